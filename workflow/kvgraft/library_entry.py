"""What a library says of itself and of each deposit: values and their JSON forms.

An entry's id is the SHA-256 of the canonical JSON of its content. Two fields are no part of it:
`order`, which belongs to the library that holds the entry, and `admission`, which may be measured
after the deposit. Folders, sessions and programs that run are not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvaudit import digests, schemas
from kvaudit.errors import UnusableInput
from kvaudit.flywheel import routing
from kvgraft.errors import LibraryDamaged, ProfileMismatch
from kvgraft.profile import ProfileSettings
from kvgraft.templates import Template

if TYPE_CHECKING:
    from kvgraft.model import ModelPin
    from kvgraft.profile import ExecutionProfile

_OWN = ("statement", "program", "answer", "text", "block_id")
_CONTENT = (*_OWN, "source", "verification", "demonstration", "template")


@dataclass(frozen=True)
class Source:
    """Where a deposit comes from.

    Attributes:
        kind: "solver" for one that a model found, "supplied" for one that somebody gave.
        author: who gave it; None for a solver.
        solver: name of the solver; None if supplied, as are all fields below.
        attempt: number of the attempt that succeeded, from 0.
        tokens: tokens decoded until then, failed attempts among them.
        model: name of the model that found it.
    """

    kind: Literal["solver", "supplied"]
    author: str | None = None
    solver: str | None = None
    attempt: int | None = None
    tokens: int | None = None
    model: str | None = None

    @classmethod
    def supplied(cls, author: str) -> Source:
        """A deposit that somebody gave."""
        return cls("supplied", author=author)

    @classmethod
    def solved(cls, solver: str, *, attempt: int, tokens: int, model: str) -> Source:
        """A deposit that a model found."""
        return cls("solver", solver=solver, attempt=attempt, tokens=tokens, model=model)

    def to_json(self) -> dict[str, Any]:
        """All six fields; null where the kind has none."""
        return asdict(self)


@dataclass(frozen=True)
class Demonstration:
    """The problem of a deposit with other numbers, solved: how its program is adapted.

    Attributes:
        statement: the problem in the same words.
        program: Python source whose last printed line is the answer.
        answer: the known answer.
    """

    statement: str
    program: str
    answer: int


@dataclass(frozen=True)
class Proposal:
    """A deposit before anybody has checked it.

    Attributes:
        statement: the problem in words.
        program: Python source whose last printed line is the answer.
        answer: the known answer.
        source: where it comes from.
        text: what the model reads for its block; None for the usual text of the other three.
        admission: the measurement that speaks for it, if it was made already.
        demonstration: what the model reads behind it, for a child of its block.
        template: the program for any numbers; bound to the statement of the demonstration, or to
            the deposit's own without one, it must print the answer that belongs to it.
    """

    statement: str
    program: str
    answer: int
    source: Source
    text: str | None = None
    admission: Admission | None = None
    demonstration: Demonstration | None = None
    template: Template | None = None


@dataclass(frozen=True)
class Verification:
    """How the program ended in the sandbox: its ending, answer, and the SHA-256 of its output."""

    ending: str
    answer: int | None
    output_sha256: str


@dataclass(frozen=True)
class Demonstrated(Demonstration):
    """A demonstration of a library, checked.

    Attributes:
        text: what the model read for its block, behind the text of the deposit's block.
        block_id: a child of the deposit's block, in the library's store.
        verification: how its program ended.
    """

    text: str
    block_id: str
    verification: Verification


@dataclass(frozen=True)
class Admission:
    """What a block did for fresh instances.

    Attributes:
        instances: how many were drawn for this purpose.
        with_block: how many were solved with the block.
        alone: how many the model solved without any.
        needed: by how many more instances the block had to win.
    """

    instances: int
    with_block: int
    alone: int
    needed: int

    @property
    def admitted(self) -> bool:
        """Whether the block won by what was needed."""
        return self.with_block - self.alone >= self.needed


@dataclass(frozen=True)
class Entry:
    """One deposit of a library, checked.

    Attributes:
        id: SHA-256 of the canonical content, hex.
        statement, program, answer: as in `Proposal`.
        text: what the block holds, in words.
        block_id: the block, in the library's store.
        source: where it comes from.
        verification: how the program ended when it was deposited.
        demonstration: the same problem with other numbers, in a child of the block; may be None.
        template: the program for any numbers; may be None.
        admission: what the block did for fresh instances; None if nobody measured it.
        order: its place in the order of deposits; not the same in every library.
    """

    id: str
    statement: str
    program: str
    answer: int
    text: str
    block_id: str
    source: Source
    verification: Verification
    demonstration: Demonstrated | None
    template: Template | None
    admission: Admission | None
    order: int

    @classmethod
    def made(
        cls,
        proposal: Proposal,
        *,
        text: str,
        block_id: str,
        verification: Verification,
        demonstration: Demonstrated | None = None,
        order: int = 0,
    ) -> Entry:
        """The entry of a proposal that was checked; its id follows from its content.

        Args:
            proposal: what was proposed; of its demonstration only `demonstration` is kept.
            text: as in the entry, and so are all below.
            block_id: of the block.
            verification: of the program.
            demonstration: with its block.
            order: of the deposit.

        Raises:
            UnusableInput: a field does not conform to the schema.
        """
        template = proposal.template
        value: dict[str, Any] = {
            "statement": proposal.statement,
            "program": proposal.program,
            "answer": proposal.answer,
            "text": text,
            "block_id": block_id,
            "source": proposal.source.to_json(),
            "verification": asdict(verification),
            "demonstration": asdict(demonstration) if demonstration else None,
            "template": template.to_json() if template else None,
        }
        value["id"] = digests.sha256_json(value)
        value |= {"kind": "library-entry", "version": 1, "order": order}
        value["admission"] = asdict(proposal.admission) if proposal.admission else None
        return cls.from_json(value, where="deposit")

    @classmethod
    def from_json(cls, value: Any, *, where: str) -> Entry:
        """Read an entry, strictly.

        Raises:
            UnusableInput: it does not conform to the schema.
            LibraryDamaged: its id is not that of its content, or it speaks against itself.
        """
        schemas.validate(value, "library-entry", where=where)
        found = digests.sha256_json({name: value[name] for name in _CONTENT})
        if found != value["id"]:
            raise LibraryDamaged(
                "the entry's content does not have its id",
                where=where,
                expected=value["id"],
                found=found,
            )
        shown, template, admission = (
            value[name] for name in ("demonstration", "template", "admission")
        )
        for what, part in (("entry", value), ("demonstration", shown)):
            if part and part["verification"]["answer"] != part["answer"]:
                raise LibraryDamaged(
                    f"the {what}'s program did not print the {what}'s answer",
                    where=where,
                    expected=part["answer"],
                    found=part["verification"]["answer"],
                )
        if shown:
            verification = Verification(**shown["verification"])
            shown = Demonstrated(**{**shown, "verification": verification})
        return cls(
            **{name: value[name] for name in ("id", *_OWN, "order")},
            source=Source(**value["source"]),
            verification=Verification(**value["verification"]),
            demonstration=shown,
            template=Template.from_json(template) if template else None,
            admission=Admission(**admission) if admission else None,
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON form (schema library-entry.v1.json); `from_json` reads it back."""
        template = self.template.to_json() if self.template else None
        return {"kind": "library-entry", "version": 1, **asdict(self), "template": template}

    @property
    def block_ids(self) -> tuple[str, ...]:
        """The block and, if there is a demonstration, its child."""
        return (self.block_id, *([self.demonstration.block_id] if self.demonstration else []))

    @property
    def proposal(self) -> Proposal:
        """What would have to be proposed to get this entry."""
        return Proposal(
            self.statement,
            self.program,
            self.answer,
            self.source,
            self.text,
            self.admission,
            self.demonstration,
            self.template,
        )


@dataclass(frozen=True)
class Router:
    """How a library's questions are routed, and how that was calibrated.

    Attributes:
        statistic: name of the score of a candidate.
        threshold: a score at or below it abstains; None if there is no calibration.
        alpha: the false-route probability that was asked for.
        n_calibration: foreign questions that the threshold was taken from.
        entries: digest of the ids of the entries then (`membership_of`); None if not known.
    """

    statistic: str = routing.STATISTIC
    threshold: float | None = None
    alpha: float = 0.05
    n_calibration: int = 0
    entries: str | None = None


def membership_of(ids: Iterable[str]) -> str:
    """Digest of the ids of entries, whatever their order."""
    return digests.sha256_json(sorted(ids))


@dataclass(frozen=True)
class Facts:
    """What `library.json` says.

    Attributes:
        model: name of the model whose states the blocks are.
        model_sha256: SHA-256 of its file.
        profile: digest of the execution profile of every block.
        preset: name of the settings.
        settings: fields of `ProfileSettings` with which a session is opened.
        router: how questions are routed.
    """

    model: str
    model_sha256: str
    profile: str
    preset: str
    settings: Mapping[str, Any]
    router: Router

    @classmethod
    def from_json(cls, value: Any, *, where: str) -> Facts:
        """Read a `library.json`, strictly.

        Raises:
            UnusableInput: it does not conform to the schema.
        """
        schemas.validate(value, "library", where=where)
        router = value["router"]
        threshold = router["threshold"]
        if threshold is not None and (router["n_calibration"] + 1) * router["alpha"] < 1.0:
            raise UnusableInput(
                "a threshold is stated that so few calibration questions cannot give",
                where=where,
                expected=f"at least {1.0 / router['alpha'] - 1.0:.0f} for alpha {router['alpha']}",
                found=router["n_calibration"],
            )
        return cls(
            model=value["model"]["name"],
            model_sha256=value["model"]["sha256"],
            profile=value["profile"],
            preset=value["preset"],
            settings=value["settings"],
            # Canonical JSON writes 1.0 as 1.
            router=Router(
                router["statistic"],
                None if threshold is None else float(threshold),
                float(router["alpha"]),
                router["n_calibration"],
                router.get("entries"),
            ),
        )

    @classmethod
    def of(cls, model: ModelPin, profile: ExecutionProfile, router: Router) -> Facts:
        """What a library says that is made for the blocks of a model under a profile."""
        settings = profile.settings
        return cls(
            model.name, model.sha256, profile.digest, settings.name, settings.to_json(), router
        )

    def profile_settings(self) -> ProfileSettings:
        """The settings with which a session for the blocks is opened.

        Raises:
            ProfileMismatch: they are none that this version knows.
        """
        try:
            return ProfileSettings.from_json(self.settings)
        except ValueError as error:
            raise ProfileMismatch(
                f"the library's settings are none that this version knows: {error}",
                hint="use the version that made the library",
            ) from error

    def to_json(self) -> dict[str, Any]:
        """The JSON form (schema library.v1.json); `from_json` reads it back."""
        return {
            "kind": "library",
            "version": 1,
            "model": {"name": self.model, "sha256": self.model_sha256},
            "profile": self.profile,
            "preset": self.preset,
            "settings": dict(self.settings),
            "router": asdict(self.router),
        }
