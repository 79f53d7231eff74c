"""Parquet tables from records, and the check that a table still is what its records say.

A table is a convenience for readers with pandas; it is never evidence. This module must not
compute anything that is not a plain function of one record.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvaudit import atomic

SOURCES: Mapping[str, str] = {"tables/samples.parquet": "records/samples.jsonl"}
"""Table -> the record file that it is made from, both relative to the stage's folder."""

MAX_TABLE_BYTES = 256 * 1024 * 1024

_FIELDS: Mapping[str, str] = {
    "model": "string",
    "sample": "int64",
    "seed": "string",
    "profile": "string",
    "exact": "bool",
    "split_invariant": "bool",
    "span_tokens": "int64",
    "query_tokens": "int64",
    "past_window": "bool",
    "span_sha256": "string",
    "query_sha256": "string",
    "block_id": "string",
    "state_bytes": "int64",
    "state_sha256": "string",
    "file_bytes": "int64",
    "positions": "list int64",
    "top5_margin": "list float64",
}
"""Columns taken from the sample as they are, with their types."""

_COLUMNS: Mapping[str, str] = {
    **_FIELDS,
    "arm": "string",
    "process": "int64",
    "equal_to_fresh": "bool",
    "logits_sha256": "list string",
    "argmax": "list int64",
    "kl_from_fresh": "list float64",
    "kl_from_fresh_max": "float64",
    "decoded_tokens": "int64",
    "restored_bytes": "int64",
    "arm_state_sha256": "string",
    "prefill_seconds": "float64",
    "restore_seconds": "float64",
    "query_seconds": "float64",
    "raw_kept": "bool",
}


def sample_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """One row per sample and arm, as a pandas DataFrame.

    Args:
        rows: the rows of records/samples.jsonl, validated.
    """
    import pandas as pd

    table = []
    for row in rows:
        fresh = row["arms"]["fresh"]["logits_sha256"]
        for name in sorted(row["arms"]):
            arm = row["arms"][name]
            table.append(
                {
                    **{column: row[column] for column in _FIELDS},
                    "arm": name,
                    "process": arm["process"],
                    "equal_to_fresh": arm["logits_sha256"] == fresh,
                    "logits_sha256": arm["logits_sha256"],
                    "argmax": arm["argmax"],
                    "kl_from_fresh": arm["kl_from_fresh"],
                    "kl_from_fresh_max": max(arm["kl_from_fresh"], key=abs),
                    "decoded_tokens": arm["decoded_tokens"],
                    "restored_bytes": arm["restored_bytes"],
                    "arm_state_sha256": arm["state_sha256"],
                    **{f"{part}_seconds": value for part, value in arm["seconds"].items()},
                    "raw_kept": row["raw"] is not None,
                }
            )
    return pd.DataFrame(table, columns=list(_COLUMNS))


def sample_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The Parquet file of `sample_frame`: uncompressed, one row group, no free metadata, so that
    one pyarrow version makes one text of it on every machine.
    """
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    sink = io.BytesIO()
    pq.write_table(
        _table(rows), sink, compression="none", row_group_size=1 << 20, store_schema=False
    )
    return sink.getvalue()


def write_samples(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes tables/samples.parquet atomically."""
    atomic.write_bytes(path, sample_bytes(rows))


def check_samples(data: bytes, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """What is wrong with a Parquet file, or None where it equals its records.

    Args:
        data: the whole file; hostile.
        rows: the rows of records/samples.jsonl, validated.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    expected = _table(rows)
    try:
        file = pq.ParquetFile(
            pa.BufferReader(data),
            thrift_string_size_limit=1 << 20,
            thrift_container_size_limit=1 << 16,
        )
        # A few bytes can promise a table of any size: look at the promise before reading.
        facts = file.metadata
        if facts.num_rows != expected.num_rows:
            return f"has {facts.num_rows} rows, its records make {expected.num_rows}"
        if facts.metadata:
            return "carries metadata that no record accounts for"
        promised = sum(
            facts.row_group(index).total_byte_size for index in range(facts.num_row_groups)
        )
        if promised > MAX_TABLE_BYTES:
            return f"promises {promised} bytes of data"
        if not file.schema_arrow.equals(expected.schema):
            return "has other columns than its records make"
        found = file.read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"is not a readable Parquet file: {type(error).__name__}"
    if not found.equals(expected):
        return "does not equal its records"
    own = sample_bytes(rows)
    if facts.created_by == pq.ParquetFile(pa.BufferReader(own)).metadata.created_by and own != data:
        return "equals its records in value but not in the bytes that its own writer makes"
    return None


def _schema() -> Any:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
    }

    def column(kind: str) -> Any:
        if kind.startswith("list "):
            return pa.list_(pa.field("element", types[kind[5:]]))
        return types[kind]

    return pa.schema([(name, column(kind)) for name, kind in _COLUMNS.items()])


def _table(rows: Sequence[Mapping[str, Any]]) -> Any:
    import pyarrow as pa

    table = pa.Table.from_pandas(sample_frame(rows), schema=_schema(), preserve_index=False)
    return table.replace_schema_metadata(None)
