"""Parsers of documents: manifests, records, envelopes, registrations, time stamps, criteria."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import forging
import replay_rows
from fuzzing import Target, altered, damaged, documents, written
from hypothesis import strategies as st

from kvaudit import canonical, chain, digests, manifest, records, schemas, timestamp
from kvaudit.attest import dsse, keys, revoked, statement
from kvaudit.errors import TypedError
from kvaudit.prereg import evaluate, expression, fields, ledger, registration
from kvaudit.prereg.errors import ExpressionInvalid
from kvaudit.safefs import SafeRoot
from kvaudit.stagekinds import KINDS
from kvaudit.verify import Verdict

DATA = Path(__file__).parents[1] / "data"
FILED = DATA / "golden-registration-v1"
RUN = forging.REFERENCE
STAGES = [f"{stage}/{forging.MODEL}" for stage in ("exactness", "flywheel")]


def _json(path: Path) -> Any:
    return json.loads(path.read_bytes())


# -- manifests ------------------------------------------------------------------------------------


def _manifest(kind: str) -> Any:
    def run(data: bytes, _: Path) -> None:
        value = manifest.parse(data, kind, where="x")
        if kind == "verdict":
            Verdict.from_json(value)

    return run


def _sealed(value: Any) -> Any:
    config = value["configuration"]
    config["sha256"] = digests.sha256_json(config["value"])
    value["source"]["tree_sha256"] = digests.tree_digest(value["source"]["files"])
    return value


def _inputs(data: bytes, folder: Path) -> None:
    """Inputs of any content, under a run of the reference's stages."""
    manifest.parse(data, "inputs", where="x")
    _chain(folder, {manifest.INPUTS: data})


def _stage(data: bytes, folder: Path) -> None:
    manifest.parse(data, "stage", where="x")
    _chain(folder, {f"{STAGES[0]}/{manifest.STAGE}": data})


def _run(data: bytes, folder: Path) -> None:
    manifest.parse(data, "run", where="x")
    _chain(folder, {manifest.RUN: data})


def _chain(folder: Path, changed: Mapping[str, bytes]) -> None:
    names = [manifest.INPUTS, *(f"{stage}/{manifest.STAGE}" for stage in STAGES)]
    for name in {*names, *changed}:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(changed.get(name) or (RUN / name).read_bytes())
    with SafeRoot(folder) as root:
        chain.read(root, root.walk())


# -- records --------------------------------------------------------------------------------------


def record_seeds() -> dict[str, list[Any]]:
    """Kind of record -> some lines of that kind."""
    found: dict[str, list[Any]] = {}
    for stage, kind in KINDS.items():
        folder = RUN / stage / forging.MODEL
        for name, line in kind.records.items():
            if (folder / name).exists():
                lines = (folder / name).read_bytes().splitlines()
                some = [json.loads(text) for text in lines[:: max(1, len(lines) // 3)][:3]]
                found.setdefault(line, []).extend(some)
    made, _ = replay_rows.rows()
    for name, line in KINDS["replay"].records.items():
        found.setdefault(line, []).extend(made[name][:2])
    return found


def _record(drawn: tuple[str, bytes], _: Path) -> None:
    kind, data = drawn
    records.parse(data, kind, where="x")


@st.composite
def _records(draw: Any, seeds: Mapping[str, list[Any]]) -> tuple[str, bytes]:
    kind = draw(st.sampled_from(sorted(seeds)))
    if draw(st.integers(0, 3)):
        rows = draw(st.lists(altered(seeds[kind]) | st.sampled_from(seeds[kind]), max_size=3))
        return kind, b"".join(written(row) for row in rows)
    return kind, draw(damaged([written(seed) for seed in seeds[kind]]))


def _every_schema(drawn: tuple[str, Any], _: Path) -> None:
    kind, value = drawn
    schemas.validate(value, kind, where="x")


def _any_value() -> Any:
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["kind", "version", "value", "x"]), inner, max_size=4)
        ),
        max_leaves=12,
    )


# -- envelopes ------------------------------------------------------------------------------------


def _envelope(data: bytes, _: Path) -> None:
    dsse.signers(data, statement.PAYLOAD_TYPE, [PUBLIC])


def _statement(data: bytes, _: Path) -> None:
    statement.parse(data)


def _key(data: bytes, folder: Path) -> None:
    path = folder / "x.pub"
    path.write_bytes(data)
    keys.load_public(path)


def _revoked(data: bytes, folder: Path) -> None:
    path = folder / "revoked.txt"
    path.write_bytes(data)
    revoked.load(path)


PUBLIC = keys.load_public(DATA / "golden-v1.a.pub")
LIST = f"# of ours\n{PUBLIC.keyid} 2026-01-31T12:00:00Z\n{'0' * 64}  # lost\n".encode()


# -- registrations --------------------------------------------------------------------------------


def _registered(value: Any) -> Any:
    """Its own digests put right, so that what comes behind them is reached."""
    config = value["configuration"]
    config["sha256"] = digests.sha256_json(config["value"])
    value["source"]["tree_sha256"] = digests.tree_digest(value["source"]["files"])
    return value


def _registration(data: bytes, folder: Path) -> None:
    """In a folder of its own name, so that this is not all that is wrong with it."""
    label = re.search(rb'"name":"([a-z]{1,9})","number":([0-9])', data)
    name = f"000{label[2].decode()}-{label[1].decode()}" if label else "0001-first"
    place = folder / name
    place.mkdir()
    (place / registration.REGISTRATION).write_bytes(data)
    found = registration.load(place)
    found.configuration()
    found.criteria()
    found.predictions()
    list(registration.problems(found.value))


def _ledger(drawn: tuple[str, bytes], folder: Path) -> None:
    """One file of a chain of registrations is anything: findings, and never an end."""
    name, data = drawn
    place = folder / "preregistered"
    shutil.copytree(FILED / "preregistered", place)
    (place / name).write_bytes(data)
    ledger.read(place, TRUST)


TRUST = ledger.Trust(
    keys=[keys.load_public(FILED / "signer.pem.pub")],
    roots=timestamp.load_roots([FILED / "root.pem"]),
)


@st.composite
def _filed(draw: Any) -> tuple[str, bytes]:
    root = FILED / "preregistered"
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path = draw(st.sampled_from(files))
    data = path.read_bytes()
    drawn = damaged([data])
    if path.suffix == ".json":
        drawn |= altered([json.loads(data)]).map(written)
    return path.relative_to(root).as_posix(), draw(drawn)


STAMPED = FILED / "preregistered/0002-second"


def _token(data: bytes, _: Path) -> None:
    document = (STAMPED / registration.REGISTRATION).read_bytes()
    asked = (STAMPED / registration.REQUEST).read_bytes()
    timestamp.verify(data, document, TRUST.roots, where="x", asked=asked)


def _asked(data: bytes, _: Path) -> None:
    document = (STAMPED / registration.REGISTRATION).read_bytes()
    token = (STAMPED / registration.TOKEN).read_bytes()
    timestamp.verify(token, document, TRUST.roots, where="x", asked=data)


def _root(data: bytes, folder: Path) -> None:
    path = folder / "root.pem"
    path.write_bytes(data)
    roots = timestamp.load_roots([path])
    token = (STAMPED / registration.TOKEN).read_bytes()
    document = (STAMPED / registration.REGISTRATION).read_bytes()
    timestamp.verify(token, document, roots, where="x")


# -- criteria -------------------------------------------------------------------------------------

SUMMARIES = {
    stage: _json(RUN / stage / "summary.json")
    for stage in (*STAGES, f"cost/{forging.MODEL}", f"exactness/{forging.OTHER}")
}
PIECES = [
    *("samples.exact", "samples.n", "splits", "lengths[tokens == 512]", "lengths[*]", "lengths[0]"),
    *("@cost/smollm2-135m:lengths[*].tokens", "arms.graft", 'arms["graft"]', "[*]", "[-1]", "[0]"),
    *("(", ")", "[", "]", ",", ".", "+", "-", "*", "/", "==", "!=", "<", "<=", ">", ">=", "and"),
    *("or", "not", "true", "false", "abs(", "sum(", "max(", "min(", "len(", "all(", "any("),
    *("count(", "measured(", "1", "0", "1e308", "9007199254740993", "1e999", '"text"', '"', "@"),
    *(
        "x" * 300,
        "(" * 30,
        "not " * 30,
        "- " * 30,
        "\n",
        "\x00",
        "é",
        "__class__",
        "1/0",
        "{}",
        ";",
    ),
]


def _criterion(text: str, _: Path) -> None:
    node = expression.parse(text)
    expression.is_statement(node)
    for path in expression.paths(node):
        with contextlib.suppress(ExpressionInvalid):
            fields.check(path)
    with contextlib.suppress(TypedError):  # a statement is no quantity
        evaluate.statement(node, SUMMARIES)
        return
    evaluate.quantity(node, SUMMARIES)


def _grammar() -> Any:
    """Expressions that parse; their values need not fit."""
    atoms = st.sampled_from(
        [
            *("samples.exact", "samples.n", "splits.n", "splits.control_kl_max", "blocks", "arms"),
            *("arms.graft.equal", 'arms["graft"].kl.max', "@cost/smollm2-135m:lengths[*].tokens"),
            *("@cost/smollm2-135m:lengths[tokens == 512].tokens", "lengths[0]", "nothing.there"),
            *("0", "1", "9007199254740991", "1e308", "0.1", '"text"', "true", "false"),
        ]
    )
    signs = st.sampled_from(["+", "-", "*", "/", "==", "!=", "<", "<=", ">", ">=", "and", "or"])
    calls = st.sampled_from([*expression.FUNCTIONS])

    def more(inner: Any) -> Any:
        return (
            st.tuples(inner, signs, inner).map(lambda d: f"({d[0]} {d[1]} {d[2]})")
            | st.tuples(calls, inner).map(lambda d: f"{d[0]}({d[1]})")
            | st.tuples(st.sampled_from(["max", "min"]), inner, inner).map(
                lambda d: f"{d[0]}({d[1]}, {d[2]})"
            )
            | inner.map(lambda text: f"not ({text})")
            | inner.map(lambda text: f"-({text})")
        )

    whole = st.recursive(atoms, more, max_leaves=12)
    return whole.map(lambda text: f"exactness/smollm2-135m: {text}")


def _criteria() -> Any:
    pieces = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=14)
    scope = st.sampled_from(["", "exactness/smollm2-135m: ", "cost/smollm2-135m: ", "x/y: "])
    junk = st.tuples(scope, pieces).map(lambda drawn: drawn[0] + " ".join(drawn[1]))
    return _grammar() | _grammar() | junk


def targets() -> Mapping[str, Target]:
    verdict = _json(RUN / manifest.VERDICT)
    inputs = _json(RUN / manifest.INPUTS)
    stages = [_json(RUN / stage / manifest.STAGE) for stage in STAGES]
    sealed = _json(RUN / manifest.RUN)
    envelope = (DATA / "golden-v1.dsse.json").read_bytes()
    filed = [
        _json(path) for path in sorted(FILED.glob(f"preregistered/*/{registration.REGISTRATION}"))
    ]
    token = (STAMPED / registration.TOKEN).read_bytes()
    asked = (STAMPED / registration.REQUEST).read_bytes()
    whole = st.sampled_from(schemas.kinds())
    return {
        "inputs manifest": Target(documents([inputs], _sealed), _inputs, 0.6),
        "stage manifest": Target(documents(stages), _stage, 0.4),
        "run manifest": Target(documents([sealed]), _run, 0.4),
        "verdict": Target(documents([verdict]), _manifest("verdict"), 0.4),
        "records": Target(_records(record_seeds()), _record, 4),
        "any value as any kind": Target(st.tuples(whole, _any_value()), _every_schema, 2),
        "envelope": Target(documents([json.loads(envelope)]), _envelope),
        "statement": Target(documents([json.loads(dsse.parse(envelope).payload)]), _statement),
        "public key": Target(damaged([(DATA / "golden-v1.a.pub").read_bytes()]), _key),
        "list of revoked keys": Target(damaged([LIST]) | st.binary(max_size=300), _revoked),
        "registration": Target(documents(filed, _registered), _registration),
        "chain of registrations": Target(_filed(), _ledger),
        "time stamp": Target(damaged([token]) | st.binary(max_size=200), _token, 3),
        "request for a time stamp": Target(damaged([asked]), _asked),
        "root certificate": Target(damaged([(FILED / "root.pem").read_bytes()]), _root),
        "criterion": Target(_criteria(), _criterion, 4),
        "canonical JSON": Target(
            st.binary(max_size=300) | documents([inputs["configuration"]]),
            lambda data, _: canonical.loads_document(data, where="x"),
        ),
    }
