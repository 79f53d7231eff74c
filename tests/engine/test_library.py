"""A library on disk: what enters it, what it refuses, what stays after a crash, and archives."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kvaudit import canonical, kvb
from kvaudit.errors import BlockRefused, UnusableInput
from kvaudit.kvb_map import open_block
from kvgraft import library_archive
from kvgraft.errors import (
    ArchiveRefused,
    DepositRefused,
    EntryNotFound,
    LibraryDamaged,
    ModelMismatch,
    ProfileMismatch,
)
from kvgraft.library import (
    Admission,
    Demonstration,
    Entry,
    Library,
    Proposal,
    Router,
    Source,
    prepare,
)
from kvgraft.library_import import import_archive
from kvgraft.session import Session
from kvgraft.templates import Template

SECTOR = 512


@dataclass(frozen=True)
class Ran:
    """As `kvaudit.sandbox.Ran`, as far as a library looks at it."""

    ending: str
    answer: int | None
    output: bytes


class Bare:
    """Runs the programs of these tests without a sandbox; `forced` takes the place of a run."""

    def __init__(self, forced: Ran | None = None) -> None:
        self.forced = forced
        self.programs: list[str] = []

    def run(self, program: str) -> Ran:
        self.programs.append(program)
        if self.forced:
            return self.forced
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
        lines = done.stdout.split()
        if done.returncode or not lines:
            return Ran("error", None, done.stdout)
        return Ran("printed", int(lines[-1]), done.stdout)

    def run_all(self, programs: Sequence[str]) -> list[Ran]:
        return [self.run(program) for program in programs]


def proposal(n: int = 3, **changes: Any) -> Proposal:
    made = Proposal(
        f"How many pairs can be formed from {n} cards?",
        f"n = {n}\nprint(n * (n - 1) // 2)\n",
        n * (n - 1) // 2,
        Source.supplied("Ada"),
    )
    return replace(made, **changes)


BODY = "print(n * (n - 1) // 2)\n"


def taught(n: int = 3, other: int = 9, **changes: Any) -> Proposal:
    """A proposal with a demonstration and a template."""
    shown = proposal(other)
    demonstration = Demonstration(shown.statement, shown.program, shown.answer)
    template = Template(f"n = {n}\n{BODY}", ("n",))
    return replace(proposal(n, demonstration=demonstration, template=template), **changes)


@pytest.fixture
def sandbox() -> Any:
    return Bare()


@pytest.fixture
def session(sessions: Callable[..., Session]) -> Session:
    return sessions("llama")


@pytest.fixture
def library(tmp_path: Path, session: Session) -> Library:
    return Library.create(tmp_path / "library", session.model.pin, session.profile)


@pytest.fixture
def filled(library: Library, session: Session, sandbox: Any) -> Library:
    for n in (5, 4, 7):
        library.deposit(session, proposal(n), sandbox)
    return library


def files(root: Path) -> dict[str, bytes]:
    """Every file but those that only writers see."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


# -- deposit --------------------------------------------------------------------------------------


def test_a_deposit_is_there_after_reopening_with_a_block_that_grafts(
    library: Library, session: Session, sandbox: Any
) -> None:
    entry = library.deposit(session, proposal(), sandbox)
    assert session.tokens == ()
    again = Library.open(library.root)
    assert again.facts == library.facts
    assert again.entries() == (entry,)
    assert again.entry(entry.id[:6]) == entry
    assert entry.verification.answer == entry.answer == 3
    tokens = session.model.tokenize(entry.text)
    with again.block(entry) as block:
        assert block.tokens.tolist() == tokens
        assert block.header.provenance["deposit"]["source"] == entry.source.to_json()
        receipt = session.graft(block)
    assert receipt.exact
    assert session.tokens == tuple(tokens)


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("print(4)", "found the answer 4"),
        ("print(", "found error"),
        ("pass", "found error"),
    ],
)
def test_a_program_that_does_not_print_the_answer_is_refused_and_leaves_nothing(
    program: str, found: str, library: Library, session: Session, sandbox: Any
) -> None:
    before = files(library.root)
    with pytest.raises(DepositRefused, match=f"expected 3; {found}"):
        library.deposit(session, proposal(program=program), sandbox)
    assert files(library.root) == before


def test_a_right_answer_does_not_count_if_the_program_did_not_end_well(
    library: Library, session: Session
) -> None:
    forced: Any = Bare(Ran("output flood", 3, b"3"))
    with pytest.raises(DepositRefused, match="found output flood"):
        library.deposit(session, proposal(), forced)


def test_a_demonstration_is_a_child_that_is_restored_behind_the_block(
    library: Library, session: Session, sandbox: Any
) -> None:
    entry = library.deposit(session, taught(), sandbox)
    assert Library.open(library.root).entries() == (entry,)
    shown = entry.demonstration
    assert shown is not None
    assert (shown.answer, shown.verification.answer) == (36, 36)
    assert entry.block_ids == (entry.block_id, shown.block_id)
    assert set(library.blocks) == set(entry.block_ids)
    assert entry.template == taught().template
    model = session.model
    tokens = model.tokenize(entry.text) + model.tokenize(shown.text, begin=False)
    session.prefill(tokens)
    fresh = session.decode([7])
    session.reset()
    block, child = library.chain(entry)
    with block, child:
        assert child.header.parent == block.header.id
        receipt = session.graft_chain([block, child])
    assert receipt.exact
    assert session.tokens == tuple(tokens)
    assert session.decode([7]).tobytes() == fresh.tobytes()


def test_the_chain_of_a_deposit_without_a_demonstration_is_its_block(filled: Library) -> None:
    entry = filled.entries()[0]
    (block,) = filled.chain(entry)
    with block:
        assert (block.header.id,) == entry.block_ids == (entry.block_id,)
    assert (entry.demonstration, entry.template) == (None, None)


def test_a_block_is_the_same_with_and_without_a_demonstration(
    library: Library, session: Session, sandbox: Any
) -> None:
    alone = library.deposit(session, proposal(), sandbox)
    both = library.deposit(session, taught(), sandbox)
    assert alone.id != both.id
    assert alone.block_id == both.block_id
    library.remove(both.id)
    assert list(library.blocks) == [alone.block_id]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            {"demonstration": Demonstration("And from 5 cards?", "print(11)", 10)},
            "demonstration's program does not print the answer; .*expected 10; found the answer 11",
        ),
        (
            {"template": Template("n = 3\nprint(n * n)", ("n",))},
            "the template's program does not print the answer",
        ),
        ({"template": Template(f"n = 3\nm = 2\n{BODY}", ("n", "m"))}, "the template does not fit"),
        (
            {"demonstration": None, "template": Template("n = 3\nprint(n + 1)", ("n",))},
            "the template's program does not print the answer; .*expected 3; found the answer 4",
        ),
    ],
)
def test_a_wrong_demonstration_or_template_is_refused_and_leaves_nothing(
    changes: dict[str, Any], found: str, library: Library, session: Session, sandbox: Any
) -> None:
    before = files(library.root)
    with pytest.raises(DepositRefused, match=found):
        library.deposit(session, taught(**changes), sandbox)
    assert files(library.root) == before


def test_removing_and_collecting_take_the_child_with_the_block(
    filled: Library, session: Session, sandbox: Any
) -> None:
    whole = files(filled.root)
    entry = filled.deposit(session, taught(), sandbox)
    assert filled.gc() == ()
    assert filled.remove(entry.id) == (entry.id,)
    assert files(filled.root) == whole
    entry = filled.deposit(session, taught(), sandbox)
    filled.blocks.path(entry.block_id).unlink()  # a child alone is of no use
    assert filled.gc() == (entry.block_ids[1],)
    filled.remove(entry.id)
    assert files(filled.root) == whole


def test_a_deposit_that_cannot_be_stored_whole_leaves_no_block(
    library: Library, session: Session, sandbox: Any
) -> None:
    prepared = prepare(session, taught(), sandbox)
    block, child = prepared.captures
    child.state[-1] ^= 1
    with pytest.raises(BlockRefused):
        library.keep(replace(prepared, captures=(block, child)))
    assert files(library.root).keys() == {"library.json"}


def test_entries_keep_the_order_of_their_deposit(filled: Library) -> None:
    assert [entry.answer for entry in filled.entries()] == [10, 6, 21]
    assert [entry.answer for entry in Library.open(filled.root).entries()] == [10, 6, 21]


def test_the_same_deposit_again_changes_nothing(
    filled: Library, session: Session, sandbox: Any
) -> None:
    before = files(filled.root)
    first = filled.entries()[0]
    assert filled.deposit(session, proposal(5), sandbox) == first
    assert {k: v for k, v in files(filled.root).items() if "/tmp/" not in k} == before


def test_a_text_of_its_own_and_a_solver_are_kept(
    library: Library, session: Session, sandbox: Any
) -> None:
    source = Source.solved("code", attempt=2, tokens=411, model="tiny")
    entry = library.deposit(session, proposal(text="A card.", source=source), sandbox)
    (read,) = Library.open(library.root).entries()
    assert (read, read.text, read.source) == (entry, "A card.", source)


def test_admission_is_noted_behind_the_same_id(filled: Library) -> None:
    entry = filled.entries()[1]
    noted = filled.admit(entry.id, Admission(20, 18, 3, 2))
    assert (noted.id, noted.order) == (entry.id, entry.order)
    assert noted.admission is not None
    assert noted.admission.admitted
    assert Library.open(filled.root).entries()[1] == noted
    assert not Admission(20, 4, 3, 2).admitted


def test_routing_is_noted(library: Library) -> None:
    router = Router("log-likelihood-ratio", 2.0, 0.05, 150)
    library.route_by(router)
    noted = replace(router, entries=library.membership())
    assert Library.open(library.root).facts.router == library.facts.router == noted
    with pytest.raises(UnusableInput, match="router/alpha"):
        library.route_by(replace(router, alpha=2.0))


def test_removing_takes_the_block_unless_another_entry_has_it(
    filled: Library, session: Session, sandbox: Any
) -> None:
    first = filled.entries()[0]
    other = replace(proposal(5), program="print(10)", text=first.text)
    twin = filled.deposit(session, other, sandbox)
    assert twin.block_id == first.block_id
    filled.remove(first.id[:8])
    assert filled.blocks.has(twin.block_id)
    filled.remove(twin.id)
    assert not filled.blocks.has(twin.block_id)
    assert [entry.answer for entry in filled.entries()] == [6, 21]
    with pytest.raises(EntryNotFound):
        filled.remove(first.id)


def test_a_session_of_another_model_or_profile_is_refused(
    library: Library, sessions: Callable[..., Session], models: Any, sandbox: Any
) -> None:
    with pytest.raises(ModelMismatch):
        library.deposit(sessions("other"), proposal(), sandbox)
    with pytest.raises(ProfileMismatch):
        library.deposit(sessions("llama", n_ctx=512), proposal(), sandbox)
    with pytest.raises(ModelMismatch):
        library.open_session(models("other"))
    with library.open_session(models("llama")) as opened:
        assert opened.profile.digest == library.facts.profile
    assert sandbox.programs == []
    prepared = prepare(sessions("llama", n_ctx=512), proposal(), sandbox)
    with pytest.raises(ProfileMismatch):
        library.keep(prepared)
    assert (len(library), len(library.blocks)) == (0, 0)


# -- folders --------------------------------------------------------------------------------------


def test_a_library_is_made_in_an_empty_folder_only(library: Library, tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="found a library"):
        Library.create_from(library.root, library.facts)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").touch()
    with pytest.raises(UnusableInput, match=r"found letter\.txt"):
        Library.create_from(tmp_path / "home", library.facts)
    assert os.listdir(tmp_path / "home") == ["letter.txt"]
    with pytest.raises(UnusableInput, match="holds no library"):
        Library.open(tmp_path / "home")
    with pytest.raises(UnusableInput, match="cannot be opened"):
        Library.open(tmp_path / "none")


def test_what_a_writer_leaves_who_died_is_not_seen_and_is_collected(
    filled: Library, session: Session, sandbox: Any
) -> None:
    whole = files(filled.root)
    gone = filled.deposit(session, proposal(8), sandbox)
    (filled.root / "entries" / f"{gone.id}.json").unlink()  # as if it died behind the block
    (filled.root / "entries" / f".{gone.id}.json.abc.tmp").write_bytes(b'{"kind":')
    assert len(Library.open(filled.root).entries()) == len(filled) == 3
    assert filled.gc() == (gone.block_id,)
    assert files(filled.root) == whole
    assert filled.gc() == ()


def test_a_creator_who_died_is_followed_by_another(library: Library, tmp_path: Path) -> None:
    root = tmp_path / "half"
    (root / "entries").mkdir(parents=True)
    (root / ".library.json.abc.tmp").touch()
    assert Library.create_from(root, library.facts).entries() == ()


def _damaged_answer(value: dict[str, Any]) -> None:
    value["answer"] = value["verification"]["answer"] = 11


def _damaged_program(value: dict[str, Any]) -> None:
    value["program"] += "#"


def _damaged_demonstration(value: dict[str, Any]) -> None:
    value["demonstration"]["program"] += "#"


def _damaged_template(value: dict[str, Any]) -> None:
    value["template"]["shape"] = ["m"]


def _damaged_kind(value: dict[str, Any]) -> None:
    value["kind"] = "library"


def _added_field(value: dict[str, Any]) -> None:
    value["note"] = "hello"


DAMAGES = [
    _damaged_answer,
    _damaged_program,
    _damaged_demonstration,
    _damaged_template,
    _damaged_kind,
    _added_field,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_named(
    damage: Callable[[Any], None], library: Library, session: Session, sandbox: Any
) -> None:
    filled = library
    for made in (proposal(5), taught(), proposal(7)):
        library.deposit(session, made, sandbox)
    path = filled.root / "entries" / f"{filled.entries()[1].id}.json"
    value = json.loads(path.read_bytes())
    damage(value)
    path.write_bytes(canonical.dumps(value) + b"\n")
    with pytest.raises((UnusableInput, LibraryDamaged), match=path.name):
        filled.entries()
    path.unlink()
    assert len(filled.entries()) == 2


def test_an_entry_under_another_name_or_behind_a_link_is_refused(filled: Library) -> None:
    one, two, _ = (filled.root / "entries" / f"{entry.id}.json" for entry in filled.entries())
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    with pytest.raises(LibraryDamaged, match="another entry than its name says"):
        filled.entries()
    one.unlink()
    (filled.root / "elsewhere").write_bytes(data)
    one.symlink_to(filled.root / "elsewhere")
    with pytest.raises(UnusableInput, match="refused unopened"):
        filled.entries()


def test_writers_take_turns(
    filled: Library, session: Session, sandbox: Any, tmp_path: Path
) -> None:
    made = [_remade(filled, session, sandbox, n) for n in range(20, 36)]
    opened = [Library.open(filled.root) for _ in range(4)]

    def write(index: int) -> None:
        for entry in made[index::4]:
            opened[index].place(entry, lambda: None)

    threads = [threading.Thread(target=write, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = filled.entries()
    assert [entry.order for entry in entries] == list(range(1, 20))
    assert {entry.id for entry in made} < {entry.id for entry in entries}


def _remade(library: Library, session: Session, sandbox: Any, n: int) -> Entry:
    """An entry for some writer to keep; its block is of no interest."""
    first, ran = library.entries()[0], sandbox.run(proposal(n).program)
    return Entry.made(
        proposal(n),
        text="text",
        block_id=first.block_id,
        verification=replace(first.verification, answer=ran.answer),
    )


WRITER = """
import sys
from dataclasses import replace
from kvgraft.library import Entry, Library, Proposal, Source
library, offset = Library.open(sys.argv[1]), int(sys.argv[2])
first = library.entries()[0]
print("ready", flush=True)
for n in range(offset, offset + 10_000):
    made = Entry.made(
        Proposal(f"What is {n}?", f"print({n})", n, Source.supplied("Ada")),
        text="text",
        block_id=first.block_id,
        verification=replace(first.verification, answer=n),
    )
    library.place(made, lambda: None)
"""


def test_writers_that_are_killed_leave_whole_entries(filled: Library) -> None:
    for index in range(4):
        two = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(filled.root), str(10_000 * (2 * index + one))],
                stdout=subprocess.PIPE,
            )
            for one in (1, 2)
        ]
        for writer in two:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        time.sleep(0.05 + 0.013 * index)
        for writer in two:
            writer.kill()
            writer.communicate()
        entries = Library.open(filled.root).entries()
        assert [entry.order for entry in entries] == list(range(1, len(entries) + 1))
    assert len(entries) > 7
    assert filled.gc() == ()
    assert sorted(os.listdir(filled.root / "entries")) == sorted(
        f"{one.id}.json" for one in entries
    )


def test_settings_of_another_version_are_refused(library: Library) -> None:
    for changed in ({"n_ctx": "many"}, {"unheard": 1}, {"n_ctx": 0}):
        facts = replace(library.facts, settings={**library.facts.settings, **changed})
        with pytest.raises(ProfileMismatch, match="none that this version knows"):
            facts.profile_settings()


# -- archives -------------------------------------------------------------------------------------


@pytest.fixture
def archive(filled: Library, tmp_path: Path) -> Path:
    filled.route_by(Router("log-likelihood-ratio", 1.5, 0.1, 99))
    path = tmp_path / "library.tar"
    found = filled.export(path)
    assert (found.entries, found.blocks, found.bytes) == (3, 3, path.stat().st_size)
    return path


@pytest.mark.parametrize("with_session", [False, True])
def test_an_archive_makes_an_equal_library(
    with_session: bool,
    archive: Path,
    filled: Library,
    session: Session,
    sandbox: Any,
    tmp_path: Path,
) -> None:
    ids = tuple(entry.id for entry in filled.entries())
    given = session if with_session else None
    ran = len(sandbox.programs)
    report = Library.import_archive(archive, tmp_path / "new", sandbox, given)
    assert (report.taken, report.present, report.refused) == (ids, (), ())
    assert (report.compared, report.recomputed) == (3 if with_session else 0, ())
    assert len(sandbox.programs) - ran == 3
    new = Library.open(tmp_path / "new")
    assert (new.entries(), new.facts) == (filled.entries(), filled.facts)
    assert new.blocks.fsck().ok == 3
    assert new.export(tmp_path / "again.tar").sha256 == _sha256(archive)
    again = Library.import_archive(archive, tmp_path / "new", sandbox, given)
    assert (again.taken, again.present) == ((), ids)


@pytest.fixture
def taught_archive(filled: Library, session: Session, sandbox: Any, tmp_path: Path) -> Path:
    """Three plain entries, and one with a demonstration and a template."""
    filled.deposit(session, taught(), sandbox)
    found = filled.export(tmp_path / "taught.tar")
    assert (found.entries, found.blocks) == (4, 5)
    return tmp_path / "taught.tar"


@pytest.mark.parametrize("with_session", [False, True])
def test_an_archive_carries_demonstrations(
    with_session: bool,
    taught_archive: Path,
    filled: Library,
    session: Session,
    sandbox: Any,
    tmp_path: Path,
) -> None:
    ran = len(sandbox.programs)
    given = session if with_session else None
    report = import_archive(taught_archive, tmp_path / "new", sandbox, given)
    assert (len(report.taken), report.refused) == (4, ())
    assert report.compared == (4 if with_session else 0)
    assert len(sandbox.programs) - ran == 4 + 2
    assert sandbox.programs[-1] == f"n = 9\n{BODY}"
    new = Library.open(tmp_path / "new")
    assert new.entries() == filled.entries()
    assert set(new.blocks) == set(filled.blocks)
    assert new.export(tmp_path / "again.tar").sha256 == _sha256(taught_archive)


def test_another_profile_gets_a_child_of_its_own(
    taught_archive: Path,
    filled: Library,
    sessions: Callable[..., Session],
    sandbox: Any,
    tmp_path: Path,
) -> None:
    other = sessions("llama", n_ctx=512)
    filled.admit(filled.entries()[3].id, Admission(20, 18, 3, 2))
    archive = tmp_path / "admitted.tar"
    filled.export(archive)
    report = import_archive(archive, tmp_path / "new", sandbox, other)
    assert (len(report.recomputed), report.refused) == (4, ())
    new, old = Library.open(tmp_path / "new"), filled.entries()[3]
    entry = new.entries()[3]
    assert entry.demonstration is not None
    assert old.demonstration is not None
    assert entry.demonstration.text == old.demonstration.text
    assert (entry.template, entry.admission) == (old.template, old.admission)
    assert not set(entry.block_ids) & set(old.block_ids)
    block, child = new.chain(entry)
    with block, child:
        assert other.graft_chain([block, child]).exact


def _flip_child(members: dict[str, bytes], entry: Entry) -> None:
    name = f"blocks/{entry.block_ids[1]}.kvb"
    members[name] = members[name][:-9] + bytes([members[name][-9] ^ 1]) + members[name][-8:]


def _no_child(members: dict[str, bytes], entry: Entry) -> None:
    del members[f"blocks/{entry.block_ids[1]}.kvb"]


def _block_for_child(members: dict[str, bytes], entry: Entry) -> None:
    _with_demonstration(members, entry, block_id=entry.block_id)


def _other_demonstration(members: dict[str, bytes], entry: Entry) -> None:
    _with_demonstration(members, entry, program="print(37)")


def _more_of_a_demonstration(members: dict[str, bytes], entry: Entry) -> None:
    _with_demonstration(members, entry, program="print(1)\nprint(36)")


def _other_template(members: dict[str, bytes], entry: Entry) -> None:
    template = Template("n = 3\nprint(n * n)", ("n",))
    _with_demonstration(members, replace(entry, template=template))


def _with_demonstration(members: dict[str, bytes], entry: Entry, **changes: Any) -> None:
    """Put an entry with another demonstration in the place of its like, with an id and all."""
    assert entry.demonstration is not None
    del members[f"entries/{entry.id}.json"]
    made = Entry.made(
        entry.proposal,
        text=entry.text,
        block_id=entry.block_id,
        verification=entry.verification,
        demonstration=replace(entry.demonstration, **changes),
        order=entry.order,
    )
    members[f"entries/{made.id}.json"] = canonical.dumps(made.to_json()) + b"\n"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_flip_child, "chunk 0 of the state is damaged"),
        (_no_child, "the archive does not hold the entry's block"),
        (_block_for_child, "the block's start is not that of the entry"),
        (_other_demonstration, "the demonstration's program does not print the answer"),
        (_more_of_a_demonstration, "no longer prints all that it printed"),
        (_other_template, "the template's program does not print the answer"),
    ],
)
def test_a_bad_demonstration_refuses_its_entry_and_both_of_its_blocks(
    spoil: Callable[[dict[str, bytes], Entry], None],
    reason: str,
    taught_archive: Path,
    filled: Library,
    sandbox: Any,
    tmp_path: Path,
) -> None:
    *good, bad = filled.entries()
    members = unpack(taught_archive)
    spoil(members, bad)
    report = import_archive(pack(tmp_path / "bad.tar", members), tmp_path / "new", sandbox)
    assert report.taken == tuple(entry.id for entry in good)
    assert reason in report.refused[0][1]
    new = Library.open(tmp_path / "new")
    assert set(new.blocks) == {entry.block_id for entry in good}
    assert new.blocks.fsck().clean


def test_a_forged_child_passes_its_digests_and_fails_the_computation(
    taught_archive: Path, filled: Library, session: Session, sandbox: Any, tmp_path: Path
) -> None:
    entry, members = filled.entries()[3], unpack(taught_archive)
    name = entry.block_ids[1]
    with open_block(filled.blocks.path(name)) as block:
        old, tokens, state = block.header, block.tokens.copy(), bytearray(block.state)
    state[-3] ^= 1
    header = kvb.build(
        model=old.model,
        profile=old.profile,
        engine=old.engine,
        tokens=tokens,
        state=state,
        start=old.start,
        parent=old.parent,
        provenance=old.provenance,
    )
    file = io.BytesIO()
    kvb.write_block(file, header, tokens, state)
    del members[f"blocks/{name}.kvb"]
    members[f"blocks/{header.id}.kvb"] = file.getvalue()
    _with_demonstration(members, entry, block_id=header.id)
    forged = pack(tmp_path / "forged.tar", members)
    report = import_archive(forged, tmp_path / "new", sandbox, session)
    assert len(report.taken) == report.compared == 3
    ((_, reason),) = report.refused
    assert "not what the model computes for the entry's text" in reason
    assert header.id not in set(Library.open(tmp_path / "new").blocks)


def _sha256(path: Path) -> str:
    from kvaudit import digests

    return digests.sha256_file(path)


def test_tar_lists_an_archive_without_a_word(archive: Path) -> None:
    done = subprocess.run(["tar", "tf", str(archive)], capture_output=True, check=True)
    assert done.stderr == b""
    names = done.stdout.decode().split()
    assert names[0] == "library.json"
    assert [name.partition("/")[0] for name in names[1:]] == ["entries"] * 3 + ["blocks"] * 3
    with tarfile.open(archive) as opened:
        assert {(one.mtime, one.uid, one.mode) for one in opened} == {(0, 0, 0o644)}


def test_an_export_does_not_replace_a_file(archive: Path, filled: Library) -> None:
    before = archive.read_bytes()
    with pytest.raises(UnusableInput, match="exists already"):
        filled.export(archive)
    assert archive.read_bytes() == before
    assert [one for one in os.listdir(archive.parent) if one.startswith(".")] == []


def test_an_export_of_a_damaged_block_leaves_nothing(filled: Library, tmp_path: Path) -> None:
    path = filled.blocks.path(filled.entries()[2].block_id)
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(BlockRefused):
        filled.export(tmp_path / "out.tar")
    assert not (tmp_path / "out.tar").exists()


def test_another_profile_gets_blocks_of_its_own(
    archive: Path,
    filled: Library,
    sessions: Callable[..., Session],
    sandbox: Any,
    tmp_path: Path,
) -> None:
    other = sessions("llama", n_ctx=512)
    report = import_archive(archive, tmp_path / "new", sandbox, other)
    new = Library.open(tmp_path / "new")
    assert report.taken == report.recomputed == tuple(entry.id for entry in new.entries())
    assert report.refused == ()
    assert new.facts.profile == other.profile.digest != filled.facts.profile
    assert [one.statement for one in new.entries()] == [one.statement for one in filled.entries()]
    with new.block(new.entries()[0]) as block:
        assert other.graft(block).exact
    with pytest.raises(ProfileMismatch, match="import with the model"):
        import_archive(archive, tmp_path / "new", sandbox)


def test_an_archive_of_another_model_is_refused(
    archive: Path, sessions: Callable[..., Session], sandbox: Any, tmp_path: Path
) -> None:
    with pytest.raises(ModelMismatch, match="the archive is of another model"):
        import_archive(archive, tmp_path / "new", sandbox, sessions("other"))
    assert not (tmp_path / "new").exists()


# -- archives with one bad entry ------------------------------------------------------------------

Members = dict[str, bytes]


def unpack(path: Path) -> Members:
    with tarfile.open(path) as opened:
        return {one.name: opened.extractfile(one).read() for one in opened}  # type: ignore[union-attr]


def pack(path: Path, members: Members) -> Path:
    """An archive in its one form, whatever the members hold."""
    order = sorted(members, key=lambda name: ("leb".index(name[0]), name))
    with path.open("wb") as file:
        for name in order:
            library_archive._write(file, name, members[name])
        file.write(bytes(1024))
    return path


def _rewritten(members: Members, entry: Entry, **changes: Any) -> None:
    """Put an entry in the place of another, with an id and all."""
    del members[f"entries/{entry.id}.json"]
    content = {**entry.to_json(), **changes}
    made = Entry.made(
        Proposal(content["statement"], content["program"], content["answer"], entry.source),
        text=content["text"],
        block_id=content["block_id"],
        verification=entry.verification,
        order=entry.order,
    )
    members[f"entries/{made.id}.json"] = canonical.dumps(made.to_json()) + b"\n"


def _flip_block(members: Members, entry: Entry, folder: Path) -> None:
    name = f"blocks/{entry.block_id}.kvb"
    members[name] = members[name][:-9] + bytes([members[name][-9] ^ 1]) + members[name][-8:]


def _cut_block(members: Members, entry: Entry, folder: Path) -> None:
    name = f"blocks/{entry.block_id}.kvb"
    members[name] = members[name][:-1]


def _empty_block(members: Members, entry: Entry, folder: Path) -> None:
    members[f"blocks/{entry.block_id}.kvb"] = b""


def _no_block(members: Members, entry: Entry, folder: Path) -> None:
    del members[f"blocks/{entry.block_id}.kvb"]


def _swapped_blocks(members: Members, entry: Entry, folder: Path) -> None:
    other = next(one for one in members if one.startswith("blocks/") and entry.block_id not in one)
    members[f"blocks/{entry.block_id}.kvb"] = members[other]


def _other_program(members: Members, entry: Entry, folder: Path) -> None:
    _rewritten(members, entry, program="print(11)")


def _program_with_more_output(members: Members, entry: Entry, folder: Path) -> None:
    _rewritten(members, entry, program=f"print(1)\n{entry.program}")


def _other_statement(members: Members, entry: Entry, folder: Path) -> None:
    _rewritten(members, entry, statement="What is the answer?")


def _other_id(members: Members, entry: Entry, folder: Path) -> None:
    members[f"entries/{'0' * 64}.json"] = members.pop(f"entries/{entry.id}.json")


def _not_canonical(members: Members, entry: Entry, folder: Path) -> None:
    members[f"entries/{entry.id}.json"] += b" "


def _not_json(members: Members, entry: Entry, folder: Path) -> None:
    members[f"entries/{entry.id}.json"] = b"\x80" * 9


BAD: list[tuple[Callable[[Members, Entry, Path], None], str]] = [
    (_flip_block, "chunk 0 of the state is damaged"),
    (_cut_block, "the file ends before its state does"),
    (_empty_block, "the file ends inside its length field"),
    (_no_block, "the archive does not hold the entry's block"),
    (_swapped_blocks, "the block's id is not that of the entry"),
    (_other_program, "the program does not print the answer"),
    (_program_with_more_output, "no longer prints all that it printed"),
    (_other_statement, "the block's statement is not that of the entry"),
    (_other_id, "another entry than its name says"),
    (_not_canonical, "not canonical JSON"),
    (_not_json, "not UTF-8"),
]


@pytest.mark.parametrize(("spoil", "reason"), BAD)
def test_a_bad_entry_is_refused_by_name_and_nothing_of_it_is_kept(
    spoil: Callable[[Members, Entry, Path], None],
    reason: str,
    archive: Path,
    filled: Library,
    sandbox: Any,
    tmp_path: Path,
) -> None:
    bad, good = filled.entries()[1], [filled.entries()[0], filled.entries()[2]]
    members = unpack(archive)
    spoil(members, bad, tmp_path)
    spoiled = pack(tmp_path / "bad.tar", members)
    report = import_archive(spoiled, tmp_path / "new", sandbox)
    assert report.taken == tuple(entry.id for entry in good)
    assert reason in report.refused[0][1]
    assert report.refused[0][0].startswith("entries/")
    new = Library.open(tmp_path / "new")
    assert [entry.id for entry in new.entries()] == [entry.id for entry in good]
    assert set(new.blocks) == {entry.block_id for entry in good}
    assert new.blocks.fsck().clean
    assert new.facts.router.threshold is None  # it was calibrated with the refused entry


def test_a_forged_state_passes_its_digests_and_fails_the_computation(
    archive: Path, filled: Library, session: Session, sandbox: Any, tmp_path: Path
) -> None:
    entry, members = filled.entries()[1], unpack(archive)
    with open_block(filled.blocks.path(entry.block_id)) as block:
        old, tokens, state = block.header, block.tokens.copy(), bytearray(block.state)
    state[-3] ^= 1
    header = kvb.build(
        model=old.model,
        profile=old.profile,
        engine=old.engine,
        tokens=tokens,
        state=state,
        provenance=old.provenance,
    )
    file = io.BytesIO()
    kvb.write_block(file, header, tokens, state)
    del members[f"blocks/{entry.block_id}.kvb"]
    members[f"blocks/{header.id}.kvb"] = file.getvalue()
    _rewritten(members, entry, block_id=header.id)
    forged = pack(tmp_path / "forged.tar", members)
    report = import_archive(forged, tmp_path / "new", sandbox, session)
    assert len(report.taken) == report.compared == 2
    ((_, reason),) = report.refused
    assert "not what the model computes for the entry's text" in reason
    assert header.id not in set(Library.open(tmp_path / "new").blocks)
    # Digests alone speak for any state, which is why the command computes blocks again.
    assert len(import_archive(forged, tmp_path / "trusting", sandbox).taken) == 3


def test_a_block_that_nobody_names_is_refused(
    archive: Path, filled: Library, sandbox: Any, tmp_path: Path
) -> None:
    entry, members = filled.entries()[1], unpack(archive)
    del members[f"entries/{entry.id}.json"]
    report = import_archive(pack(tmp_path / "more.tar", members), tmp_path / "new", sandbox)
    assert report.refused == ((f"blocks/{entry.block_id}.kvb", "no sound entry names the block"),)
    assert entry.block_id not in set(Library.open(tmp_path / "new").blocks)


def test_no_library_is_made_if_every_entry_is_refused(archive: Path, tmp_path: Path) -> None:
    nothing: Any = Bare(Ran("timeout", None, b""))
    report = import_archive(archive, tmp_path / "new", nothing)
    assert (report.taken, len(report.refused)) == ((), 3)
    assert not (tmp_path / "new").exists()


# -- hostile archives -----------------------------------------------------------------------------


def _tar(members: list[tuple[tarfile.TarInfo, bytes]], format: int = tarfile.GNU_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as out:
        for info, data in members:
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return file.getvalue()


def _info(name: str, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def _link(name: str, kind: bytes, target: str) -> bytes:
    return _info(name, type=kind, linkname=target).tobuf(tarfile.GNU_FORMAT)


ENTRY = f"entries/{'ab' * 32}.json"

HOSTILE: dict[str, Callable[[bytes, bytes], bytes]] = {
    # Each is given the header and bytes of a sound library.json, and of the rest.
    "empty": lambda head, rest: b"",
    "only an end": lambda head, rest: bytes(1024),
    "no end": lambda head, rest: (head + rest)[:-1024],
    "half an end": lambda head, rest: (head + rest)[:-512],
    "padded like other tars": lambda head, rest: head + rest + bytes(8192),
    "bytes behind the end": lambda head, rest: head + rest + b"x",
    "cut short": lambda head, rest: (head + rest)[: len(head + rest) // 2],
    "no manifest": lambda head, rest: rest,
    "the manifest twice": lambda head, rest: head + head + rest,
    "everything twice": lambda head, rest: head + rest[:-1024] + rest,
    "compressed": lambda head, rest: b"\x1f\x8b" + head + rest,
    "a parent folder": lambda h, rest: h + _tar([(_info("../evil.json"), b"x")]),
    "an absolute path": lambda h, rest: h + _tar([(_info("/etc/passwd"), b"x")]),
    "a path through an entry": lambda h, rest: h + _tar([(_info(f"entries/../{ENTRY}"), b"x")]),
    "upper case": lambda h, rest: h + _tar([(_info(f"entries/{'AB' * 32}.json"), b"x")]),
    "a newline": lambda h, rest: h + _tar([(_info(f"{ENTRY}\n"), b"x")]),
    "a long name": lambda h, rest: h + _tar([(_info("e" * 300), b"x")]),
    "a pax header": lambda h, rest: (
        h + _tar([(_info(ENTRY, pax_headers={"path": "../evil"}), b"x")], tarfile.PAX_FORMAT)
    ),
    "a symbolic link": lambda h, rest: h + _link(ENTRY, tarfile.SYMTYPE, "/etc/passwd") + rest,
    "a hard link": lambda h, rest: h + _link(ENTRY, tarfile.LNKTYPE, "library.json") + rest,
    "a device": lambda h, rest: h + _link(ENTRY, tarfile.CHRTYPE, "") + rest,
    "a pipe": lambda h, rest: h + _link(ENTRY, tarfile.FIFOTYPE, "") + rest,
    "a folder": lambda h, rest: h + _link("entries", tarfile.DIRTYPE, "") + rest,
    "a sparse file": lambda h, rest: h + _link(ENTRY, tarfile.GNUTYPE_SPARSE, "") + rest,
    "an owner": lambda h, rest: h + _tar([(_info(ENTRY, uid=1000), b"x")]),
    "a name of an owner": lambda h, rest: h + _tar([(_info(ENTRY, uname="root"), b"x")]),
    "a set-user-id bit": lambda h, rest: h + _tar([(_info(ENTRY, mode=0o4755), b"x")]),
    "a time": lambda h, rest: h + _tar([(_info(ENTRY, mtime=1), b"x")]),
    "another tar format": lambda h, rest: h + _tar([(_info(ENTRY), b"x")], tarfile.USTAR_FORMAT),
    "a bomb": lambda h, rest: h + library_archive._header(ENTRY, 1 << 40) + rest,
    "a bomb of a block": lambda h, rest: (
        h + library_archive._header(f"blocks/{'ab' * 32}.kvb", 1 << 39) + rest
    ),
    "a negative size": lambda h, rest: h + _negative(library_archive._header(ENTRY, 0)) + rest,
    "a wrong checksum": lambda h, rest: h + rest[:148] + b"0000000\0" + rest[156:],
    "something in a gap": lambda h, rest: h[:-1] + b"x" + rest,
}


def _negative(header: bytes) -> bytes:
    data = bytearray(header)
    data[124:136] = b"\xff" * 12
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data)
    return bytes(data)


@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_in_any_other_form_is_refused_whole(
    name: str, archive: Path, sandbox: Any, tmp_path: Path
) -> None:
    data = archive.read_bytes()
    manifest = unpack(archive)["library.json"]
    end = SECTOR + len(manifest) + -len(manifest) % SECTOR
    path = tmp_path / "hostile.tar"
    path.write_bytes(HOSTILE[name](data[:end], data[end:]))
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ArchiveRefused):
        import_archive(path, tmp_path / "new", sandbox)
    assert sorted(os.listdir(tmp_path)) == before
    assert not (tmp_path.parent / "evil.json").exists()


def test_the_hostile_archives_are_made_of_parts_that_are_sound(
    archive: Path, sandbox: Any, tmp_path: Path
) -> None:
    path = pack(tmp_path / "same.tar", unpack(archive))
    assert path.read_bytes() == archive.read_bytes()
    assert len(import_archive(path, tmp_path / "new", sandbox).taken) == 3


def test_an_archive_is_not_unpacked_among_other_things(
    archive: Path, filled: Library, sandbox: Any, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").touch()
    for into in (tmp_path / "home", tmp_path / "home" / "letter.txt"):
        with pytest.raises(UnusableInput, match="a library is made in"):
            import_archive(archive, into, sandbox)
    assert os.listdir(tmp_path / "home") == ["letter.txt"]
    path = filled.root / "entries" / f"{filled.entries()[0].id}.json"
    path.write_bytes(b"{}")
    with pytest.raises(UnusableInput, match=path.name):
        import_archive(archive, filled.root, sandbox)


@pytest.mark.parametrize("what", ["none", "folder", "pipe"])
def test_what_is_no_file_is_no_archive(what: str, sandbox: Any, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    with pytest.raises(ArchiveRefused):
        import_archive(path, tmp_path / "new", sandbox)


def test_a_manifest_that_does_not_conform_refuses_the_archive(
    archive: Path, sandbox: Any, tmp_path: Path
) -> None:
    members = unpack(archive)
    members["library.json"] = b"{}\n"
    with pytest.raises(ArchiveRefused, match=r"the archive's library\.json is refused"):
        import_archive(pack(tmp_path / "bad.tar", members), tmp_path / "new", sandbox)
