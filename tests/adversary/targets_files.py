"""Parsers of whole files that somebody has sent: bundles of a run, and strangers' results."""

from __future__ import annotations

import io
import json
import stat
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuzzing import Target, altered, damaged
from hypothesis import strategies as st

from kvaudit import bundle, pack
from kvaudit.rescore import adapters, equality, extract
from kvaudit.rescore.equality import Oracle
from kvaudit.safefs import SafeRoot

ENDINGS = (".tar", ".tar.zst", ".zip")


def _bundle(data: bytes, folder: Path) -> None:
    """Nothing beside the folder, no link in it, and no more than the bundle's bounds."""
    into = folder / "in" / "to"
    into.mkdir(parents=True)
    try:
        bundle.unpack(io.BytesIO(data), into, where="x")
    finally:
        there = [*folder.rglob("*")]
        assert all(path == into.parent or path.is_relative_to(into) for path in there)
        kinds = {stat.S_IFMT(path.lstat().st_mode) for path in there}
        assert kinds <= {stat.S_IFDIR, stat.S_IFREG}


def _packed(ending: str) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        (run / "exactness/tiny").mkdir(parents=True)
        for kind in ("inputs", "run"):
            (run / f"{kind}.manifest.json").write_bytes(b'{"kind":"x"}\n')
        (run / "exactness/tiny/stage.manifest.json").write_bytes(b"{}\n" * 40)
        pack.pack(run, Path(name) / f"run{ending}")
        return (Path(name) / f"run{ending}").read_bytes()


NAMES = [
    *("a", "a/b", "a/../b", "../x", "/etc/passwd", "a//b", "a/", ".", "..", "", "A", "a/B", "con"),
    *("a\\b", "a\x00b", "a\nb", "\u202ea", "é", "e\u0301", "x" * 300, "/".join("d" * 20), "C:/x"),
]
TYPES = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE]
TYPES += [tarfile.FIFOTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"g", b"x", b"L", b"Z"]


@st.composite
def _tar(draw: Any) -> bytes:
    """Members of any name and kind, with lengths that need not be true."""
    made = b""
    for _ in range(draw(st.integers(1, 5))):
        info = tarfile.TarInfo(draw(st.sampled_from(NAMES)))
        info.type = draw(st.sampled_from(TYPES))
        info.linkname = draw(st.sampled_from(NAMES))
        content = draw(st.binary(max_size=40) | st.sampled_from([b"9 path=../x\n", b"1 \n"]))
        info.size = draw(st.sampled_from([len(content)] * 6 + [0, 1 << 20, 8**11 - 1]))
        form = draw(st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
        try:
            made += info.tobuf(form, "utf-8", "surrogateescape")
        except ValueError:  # a name that this form has no place for
            continue
        made += content + bytes(-len(content) % 512)
    return made + bytes(1024)


@st.composite
def _zip(draw: Any) -> bytes:
    buffer = io.BytesIO()
    method = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2]))
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for _ in range(draw(st.integers(0, 4))):
            entry = zipfile.ZipInfo(draw(st.sampled_from(NAMES)) or "a")
            entry.external_attr = draw(st.sampled_from([0o100644, 0o120777, 0o40755, 0])) << 16
            archive.writestr(entry, draw(st.binary(max_size=60)), method)
    data = buffer.getvalue()
    return draw(damaged([data])) if draw(st.booleans()) else data


# -- strangers' results ---------------------------------------------------------------------------

_BOXED = "so the answer is \\boxed{\\frac{1}{2}} and 1,000 dollars"
LINES: Mapping[str, list[Any]] = {
    "qwen-math": [{"idx": 0, "gt": "045", "code": [_BOXED], "pred": ["45"], "score": [True]}],
    "tora": [
        {
            "idx": 0,
            "gt": "18",
            "code": ["```python\nprint(9 * 2)\n```\n```output\n18\n```\n$\\boxed{18}$"],
            "pred": ["18"],
        }
    ],
    "nemo-skills": [
        {"problem": "?", "expected_answer": "1/2", "generation": _BOXED, "predicted_answer": "0.5"}
        | {"symbolic_correct": True}
    ],
    "matharena": [
        {"problem_idx": "1", "model_name": "m", "idx_answer": 0, "answer": _BOXED}
        | {"gold_answer": "70", "parsed_answer": "70", "correct": True},
        {"idx": 2, "gold_answer": "5", "answers": ["5", "6"], "correct": [True, False], "N": 2}
        | {"messages": [[{"role": "assistant", "content": f"\\boxed{{{n}}}"}] for n in (5, 6)]},
    ],
    "livebench": [
        {"question_id": "a", "model_id": "m", "choices": [{"index": 0, "turns": [_BOXED]}]}
    ],
}
SAMPLE = {
    **{"id": "a", "epoch": 1, "target": ["4", "5"], "output": {"completion": _BOXED}},
    "scores": {"match": {"value": "C", "answer": "4"}},
}
LOG = {
    "version": 2,
    "status": "success",
    "results": {"scores": [{"name": "match", "metrics": {"accuracy": {"value": 0.5}}}]},
}


def _read(format: str, folder: Path, name: str) -> None:
    adapter = adapters.load(format)
    with SafeRoot(folder) as root:
        rows = list(adapter.rows(root, name))
        adapter.published(root, name)
    for row in rows:
        row.to_json()
        found = extract.extract(row.generation, printed=row.printed, task=row.task)
        for gold in row.golds:
            equality.compare(gold, found.text, Oracle())


def _lines(format: str) -> Any:
    def run(data: bytes, folder: Path) -> None:
        if format != "livebench":
            (folder / "x.jsonl").write_bytes(data)
            _read(format, folder, "x.jsonl")
            return
        for name in ("model_answer/x.jsonl", "question.jsonl"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        _read(format, folder, "model_answer/x.jsonl")

    return run


def _log(data: bytes, folder: Path) -> None:
    (folder / "x.eval").write_bytes(data)
    _read("inspect", folder, "x.eval")


def _eval(header: Any, sample: Any, method: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("header.json", json.dumps(header))
        archive.writestr("samples/a_epoch_1.json", json.dumps(sample))
    return buffer.getvalue()


def _text(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _strangers(seeds: list[Any]) -> Any:
    return altered(seeds).map(_text) | damaged([_text(seed) for seed in seeds])


TEX = [
    *("\\boxed{", "}", "{", "\\frac", "{1}{2}", "\\sqrt", "[3]", "^", "_", "\\left(", "\\right)"),
    *("(", ")", "[", "]", ",", "=", "+", "-", "*", "/", "!", "!!", "|", "\\pm", "\\infty", "\\pi"),
    *("1", "27.0", "045", "1e9", "10**10", "9" * 400, "x", "sin", "\\%", "^\\circ", "\\text{cm}"),
    *("1,234", "12\\frac12", "\\binom{9}{4}", "$", "answer is ", "```", "\n", "é", "\u2212", "½"),
]


def _pair(drawn: tuple[str, str], _: Path) -> None:
    gold, answer = drawn
    equality.compare(gold, answer, Oracle())
    extract.extract(answer)


def targets() -> Mapping[str, Target]:
    tex = st.lists(st.sampled_from(TEX) | st.text(max_size=2), max_size=24).map("".join)
    logs = st.tuples(
        altered([LOG]) | st.just(LOG),
        altered([SAMPLE]) | st.just(SAMPLE),
        st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    ).map(lambda drawn: _eval(*drawn))
    whole = [_eval(LOG, SAMPLE, method) for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]
    return {
        **{f"bundle {end}": Target(damaged([_packed(end)]), _bundle) for end in ENDINGS},
        "made tar": Target(_tar(), _bundle, 2),
        "made zip": Target(_zip(), _bundle, 1.5),
        **{name: Target(_strangers(seeds), _lines(name), 0.8) for name, seeds in LINES.items()},
        "inspect": Target(logs | damaged(whole), _log),
        "answers": Target(st.tuples(tex, tex), _pair, 3),
    }
