"""A filed registration as a value: read strictly, its seed, its configuration, its criteria.

The seed of a run derives from the digest of registration.json and of the time stamp, so that no
sample of it can have been drawn before they existed. This module must not know how a registration
is filed or judged.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvaudit import canonical, digests, schemas, stagekinds
from kvaudit.errors import EvidenceIncomplete, UnusableInput
from kvaudit.prereg import expression, fields
from kvaudit.prereg.errors import ExpressionInvalid, RegistrationInvalid, TreeDiffers
from kvaudit.safefs import SafeRoot

REGISTRATION, ENVELOPE = "registration.json", "registration.dsse.json"
REQUEST, TOKEN = "timestamp.tsq", "timestamp.tsr"
OUTCOME, OUTCOME_ENVELOPE = "outcome.json", "outcome.dsse.json"
FILES = frozenset({REGISTRATION, ENVELOPE, REQUEST, TOKEN, OUTCOME, OUTCOME_ENVELOPE})
SCRATCH = ".filing"
"""The folder beside the registrations in which one is written before it gets its name."""
PAYLOAD_TYPE = "application/vnd.kvgraft.registration+json"
OUTCOME_PAYLOAD_TYPE = "application/vnd.kvgraft.registration-outcome+json"
MAX_BYTES = 4 * 1024 * 1024
ENGINE = "llama-cpp-python"
"""The engine's package, as an inputs manifest names it."""
DERIVED = frozenset({"seed", "results", "registration"})
"""Keys of a configuration that no registration states."""

_TEMPORARY = re.compile(
    rf"\.(?:{'|'.join(re.escape(name) for name in sorted(FILES))})\.[a-z0-9_]{{8}}\.tmp", re.ASCII
)
_NAME = re.compile(r"([0-9]{4})-([a-z0-9][a-z0-9-]{0,63})", re.ASCII)


@dataclass(frozen=True)
class Criterion:
    """What is to be true of a run."""

    id: str
    claim: str
    node: expression.Node


@dataclass(frozen=True)
class Prediction:
    """A number that is to lie on one side of a baseline, and within `low` and `high`."""

    id: str
    claim: str
    quantity: expression.Node
    direction: str
    baseline: expression.Node
    low: float
    high: float


@dataclass(frozen=True)
class Registration:
    """A registration that was filed; `value` conforms to schema registration.v1.json.

    Attributes:
        number: its place in the chain, from 1.
        name: as its folder has it.
        sha256: of the bytes of registration.json.
        value: what it states.
        token_sha256: of the bytes of timestamp.tsr; None without one.
        folder: where it lies.
    """

    number: int
    name: str
    sha256: str
    value: Mapping[str, Any]
    token_sha256: str | None
    folder: Path

    @property
    def label(self) -> str:
        """NNNN-name."""
        return f"{self.number:04d}-{self.name}"

    @property
    def seed(self) -> str:
        """The seed of its runs."""
        return seed_of(self.number, self.sha256, self.token_sha256)

    def reference(self) -> dict[str, Any]:
        """How an inputs manifest or an outcome names it."""
        return {
            "number": self.number,
            "sha256": self.sha256,
            "token_sha256": self.token_sha256,
        }

    def configuration(self) -> dict[str, Any]:
        """The whole configuration of its runs; `results` is left to whoever runs it."""
        value: dict[str, Any] = copy.deepcopy(dict(self.value["configuration"]["value"]))
        return {**value, "seed": self.seed, "registration": self.number, "results": ""}

    def criteria(self) -> tuple[Criterion, ...]:
        """Its criteria, parsed."""
        return tuple(
            Criterion(one["id"], one["claim"], _parsed(one["expression"], one["id"]))
            for one in self.value["criteria"]
        )

    def predictions(self) -> tuple[Prediction, ...]:
        """Its predictions, parsed."""
        return tuple(
            Prediction(
                one["id"],
                one["claim"],
                _parsed(one["quantity"], one["id"]),
                one["direction"],
                _parsed(one["baseline"], one["id"]),
                *one["interval"],
            )
            for one in self.value["predictions"]
        )

    def check(self) -> None:
        """Refuses a registration that this version cannot run or judge.

        Raises:
            RegistrationInvalid: see `problems`; also ExpressionInvalid.
        """
        for problem in problems(self.value):
            raise RegistrationInvalid(problem, where=f"{self.label}/{REGISTRATION}")

    def check_before_run(
        self, files: Mapping[str, str], models: Mapping[str, str], locks: Mapping[str, str]
    ) -> None:
        """Refuses to begin a run that could never be adjudicated.

        Args:
            files: the source tree, {path: SHA-256}.
            models: {name: SHA-256}.
            locks: {path: SHA-256}.

        Raises:
            TreeDiffers: one of them is not what the registration states; names what.
            RegistrationInvalid: this version cannot run it.
        """
        self.check()
        stated = {model["name"]: model["sha256"] for model in self.value["models"]}
        for what, registered, found in (
            ("source tree", self.value["source"]["files"], files),
            ("models", stated, models),
            ("environment locks", self.value["locks"], locks),
        ):
            different = differences(registered, found)
            if different:
                raise TreeDiffers(
                    f"the {what} is not that of registration {self.label}",
                    where=", ".join(different[:10]),
                    hint="check out the commit that it names, or file another one",
                )


def seed_of(number: int, sha256: str, token_sha256: str | None) -> str:
    """The seed that a registration's runs have, from the digests of its files."""
    return f"registration {number:04d} " + digests.sha256_bytes(
        f"{sha256}{token_sha256 or ''}".encode("ascii")
    )


def inputs_problems(inputs: Mapping[str, Any]) -> Iterator[str]:
    """What an inputs manifest says of its registration that does not fit together.

    Asked without the registration at hand: the seed must derive from the digests that are named.
    """
    named, config = inputs["registration"], inputs["configuration"]["value"]
    if named is None:
        if "registration" in config:
            yield "configuration.value names a registration, and registration is null"
        return
    if config.get("registration") != named["number"]:
        yield "registration is not the one that configuration.value names"
    if config.get("seed") != seed_of(named["number"], named["sha256"], named.get("token_sha256")):
        yield "configuration.value.seed does not derive from the registration"


def load(folder: str | Path) -> Registration:
    """Reads the registration in a folder NNNN-name.

    Its chain and its signature are checked by `kvaudit.prereg.ledger`.

    Raises:
        EvidenceIncomplete: there is no registration.json.
        RegistrationInvalid: the folder is not named after what lies in it.
        UnusableInput: the file is not canonical JSON of its schema, or states something that
            contradicts itself.
    """
    folder = Path(folder)
    with SafeRoot(folder) as root:
        data = root.read(REGISTRATION, max_bytes=MAX_BYTES)
        names = root.walk().files
        token = root.read(TOKEN, max_bytes=MAX_BYTES) if TOKEN in names else None
    where = f"{folder.name}/{REGISTRATION}"
    value = canonical.loads_document(data, where=where, max_bytes=MAX_BYTES)
    schemas.validate(value, "registration", where=where)
    problem = next(_digest_problems(value), None)
    if problem is not None:
        raise RegistrationInvalid(problem, where=where)
    found = Registration(
        number=value["number"],
        name=value["name"],
        sha256=digests.sha256_bytes(data),
        value=value,
        token_sha256=None if token is None else digests.sha256_bytes(token),
        folder=folder,
    )
    if folder.resolve().name != found.label:
        raise RegistrationInvalid(
            "a registration's folder is not named after it",
            where=where,
            expected=found.label,
            found=folder.name,
        )
    return found


def numbered(folder: str | Path) -> Iterator[tuple[int, Path]]:
    """Number and place of every folder NNNN-name in the folder of registrations, sorted."""
    root = Path(folder)
    if not root.is_dir():
        return
    for path in sorted(root.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match is not None and path.is_dir() and not path.is_symlink():
            yield int(match.group(1)), path


def is_temporary(name: str) -> bool:
    """Whether a file of a registration is one that `atomic` was writing when it was killed."""
    return _TEMPORARY.fullmatch(name) is not None


def find(folder: str | Path, number: int) -> Registration:
    """The registration of a number.

    Raises:
        EvidenceIncomplete: there is none.
        RegistrationInvalid: there are two.
        UnusableInput: as `load`.
    """
    found = [path for at, path in numbered(folder) if at == number]
    if not found:
        raise EvidenceIncomplete(
            "there is no registration of this number", where=folder, expected=f"{number:04d}"
        )
    if len(found) > 1:
        raise RegistrationInvalid(
            "two registrations have one number",
            where=folder,
            found=", ".join(path.name for path in found),
        )
    return load(found[0])


def problems(value: Mapping[str, Any]) -> Iterator[str]:
    """What contradicts itself, or this version, in a registration that conforms to its schema.

    Asked before a filing, a run and an adjudication. `load` asks for less, so that registrations
    of the past stay readable when a later version has other configurations and summaries.

    Raises:
        ExpressionInvalid: a criterion or prediction does not parse, or reads what no summary has.
    """
    yield from _digest_problems(value)
    yield from _configuration_problems(value)
    yield from _content_problems(value)


def _digest_problems(value: Mapping[str, Any]) -> Iterator[str]:
    configuration = value["configuration"]
    for key in sorted(DERIVED & {*configuration["value"]}):
        yield f"configuration.value states {key}, which derives from the filing"
    if digests.sha256_json(configuration["value"]) != configuration["sha256"]:
        yield "configuration.sha256 is not the digest of configuration.value"
    if digests.tree_digest(value["source"]["files"]) != value["source"]["tree_sha256"]:
        yield "source.tree_sha256 is not the digest of source.files"
    for name in ("datasets", "locks"):
        for path, sha256 in value[name].items():
            if value["source"]["files"].get(path) != sha256:
                yield f"{name}: {path} is not a file of the source tree with this digest"


def _configuration_problems(value: Mapping[str, Any]) -> Iterator[str]:
    configuration = value["configuration"]
    try:
        schemas.validate(configuration["value"], "config", where="configuration.value")
    except UnusableInput as error:
        yield str(error)
        return
    stages = stagekinds.configured(configuration["value"])
    for name in sorted({"profile", "stages", *stages} - {*configuration["value"]}):
        yield f"configuration.value has no {name}: it is not a whole configuration"
        return
    for name in stages:
        for text in stagekinds.KINDS[name].configuration_problems(configuration["value"][name]):
            yield f"configuration.value: {text}"
    if [model["name"] for model in value["models"]] != configuration["value"]["models"]:
        yield "models are not those of the configuration"
    if value["matrix"] != list(matrix(configuration["value"])):
        yield "matrix is not every stage of the configuration with every model"


def matrix(configuration: Mapping[str, Any]) -> Iterator[str]:
    """Every stage/model that a configuration runs, in the order of the run."""
    for stage in stagekinds.configured(configuration):
        for model in configuration["models"]:
            yield f"{stage}/{model}"


def differences(registered: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """The names whose digests are not equal in both, sorted."""
    names = {*registered, *found}
    return sorted(name for name in names if registered.get(name) != found.get(name))


def _content_problems(value: Mapping[str, Any]) -> Iterator[str]:
    engine = value["target"]["engine"]
    if not engine["build"].startswith(f"{ENGINE} ") and not engine["libraries"]:
        yield (
            f"target.engine.build is no release, `{ENGINE} X.Y.Z`, and target.engine.libraries "
            "names no digest: the engine of a run could not be compared"
        )
    entries = [*value["criteria"], *value["predictions"]]
    if not entries:
        yield "there is neither a criterion nor a prediction: fill them in"
    ids = [one["id"] for one in entries]
    for name in sorted({name for name in ids if ids.count(name) > 1}):
        yield f"two criteria or predictions are called {name}"
    for one in value["criteria"]:
        node = _parsed(one["expression"], one["id"])
        if expression.is_statement(node) is False:
            yield f"{one['id']} is a value and not true or false: compare it with something"
        yield from _paths_problems(one["id"], node, value["matrix"])
    for one in value["predictions"]:
        quantity, baseline = (_parsed(one[key], one["id"]) for key in ("quantity", "baseline"))
        if expression.is_statement(quantity) or expression.is_statement(baseline):
            yield f"{one['id']} predicts a quantity, so quantity and baseline are numbers"
        yield from _paths_problems(one["id"], quantity, value["matrix"])
        yield from _paths_problems(one["id"], baseline, value["matrix"], constant=True)
        yield from _interval_problems(one, baseline)


def _interval_problems(one: Mapping[str, Any], baseline: expression.Node) -> Iterator[str]:
    low, high = one["interval"]
    if low > high:
        yield f"{one['id']}: the interval's first end is above its second"
    sign = 1
    while isinstance(baseline, expression.Prefix) and baseline.sign == "-":
        sign, baseline = -sign, baseline.operand
    if not isinstance(baseline, expression.Literal) or isinstance(baseline.value, bool | str):
        return
    edge = sign * baseline.value
    if (one["direction"] == "above" and high <= edge) or (
        one["direction"] == "below" and low >= edge
    ):
        yield f"{one['id']}: no number of the interval is {one['direction']} the baseline"


def _paths_problems(
    id: str, node: expression.Node, cells: list[str], *, constant: bool = False
) -> Iterator[str]:
    paths = list(expression.paths(node))
    if not paths and not constant:
        yield f"{id} reads no summary, so that no run could change it"
    for path in paths:
        if path.subject not in cells:
            yield f"{id} reads {path.subject}, which the matrix does not run"
            continue
        try:
            fields.check(path)
        except ExpressionInvalid as error:
            raise _named(error, id) from None


def _parsed(text: str, id: str) -> expression.Node:
    try:
        return expression.parse(text)
    except ExpressionInvalid as error:
        raise _named(error, id) from None


def _named(error: ExpressionInvalid, id: str) -> ExpressionInvalid:
    return ExpressionInvalid(
        f"{id}: {error.what}",
        where=error.where,
        expected=error.expected,
        found=error.found,
        hint=error.hint,
    )
