"""Care of a library: removals that crash, damage that is named, links, locks, two at once."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvaudit import locks
from kvaudit.errors import LockTimeout, UnusableInput
from kvaudit.sandbox import Limits, Sandbox
from kvgraft import cli_library
from kvgraft.errors import EntryNotFound, LibraryDamaged, ProfileMismatch
from kvgraft.library import Demonstration, Library, Proposal, Router, Source, check_settings
from kvgraft.library_entry import Facts
from kvgraft.library_import import import_archive
from kvgraft.session import Session
from kvgraft.store import BlockStore


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(wall_seconds=5.0), workers=1) as made:
        yield made


@pytest.fixture
def session(sessions: Callable[..., Session]) -> Session:
    return sessions("llama")


def proposal(n: int, *, shown: bool = False) -> Proposal:
    def part(m: int) -> tuple[str, str, int]:
        return (
            f"How many pairs of {m} cards?",
            f"n = {m}\nprint(n * (n - 1) // 2)",
            m * (m - 1) // 2,
        )

    demonstration = Demonstration(*part(n + 1)) if shown else None
    return Proposal(*part(n), Source.supplied("Ada"), demonstration=demonstration)


@pytest.fixture
def library(tmp_path: Path, session: Session, sandbox: Sandbox) -> Library:
    """Three entries, the second with a child."""
    made = Library.create(tmp_path / "library", session.model.pin, session.profile)
    for n in (5, 4, 7):
        made.deposit(session, proposal(n, shown=n == 4), sandbox)
    return made


# -- removal --------------------------------------------------------------------------------------


def test_several_entries_go_with_their_blocks_or_none_goes(library: Library) -> None:
    one, two, three = library.entries()
    with pytest.raises(EntryNotFound):
        library.remove(one.id, "0" * 8)
    assert len(library) == 3
    assert library.remove(one.id[:8], two.id, one.id) == (one.id, two.id)
    assert library.entries() == (three,)
    assert list(library.blocks) == [three.block_id]
    assert library.fsck().clean


CRASH = """
import os, sys
from kvaudit import atomic
from kvgraft import library_care
from kvgraft.library import Library
where, root, *ids = sys.argv[1:]
def crash(*_):
    os._exit(9)
if where == "before the folder is synchronised":
    atomic.sync_folder = crash
elif where == "before a block goes":
    library_care.drop = crash
else:  # between a child and its parent
    from pathlib import Path
    unlink, seen = Path.unlink, []
    def second(path, *a, **k):
        if path.suffix == ".kvb":
            if seen:
                os._exit(9)
            seen.append(path)
        unlink(path, *a, **k)
    Path.unlink = second
Library.open(root).remove(*ids)
"""


@pytest.mark.parametrize(
    "where",
    ["before the folder is synchronised", "before a block goes", "between a child and its parent"],
)
def test_a_removal_that_dies_is_done_and_its_blocks_are_collected(
    where: str, library: Library
) -> None:
    one, two, three = library.entries()
    done = subprocess.run([sys.executable, "-c", CRASH, where, library.root, two.id], check=False)
    assert done.returncode == 9
    again = Library.open(library.root)
    assert again.entries() == (one, three)
    found = again.fsck()
    left = set(again.blocks) - {one.block_id, three.block_id}
    assert found.clean
    assert set(found.unnamed) == left != set()
    assert set(again.gc()) == left
    assert set(again.blocks) == {one.block_id, three.block_id}
    assert again.fsck().unnamed == ()


def test_an_entry_that_cannot_be_read_is_named_and_can_be_removed(library: Library) -> None:
    one, two, three = library.entries()
    library.path(two.id).write_bytes(b"{}")
    entries, (unreadable,) = library.survey()
    assert entries == (one, three)
    assert unreadable.name == f"entries/{two.id}.json"
    assert library.entry(one.id) == one
    with pytest.raises(UnusableInput, match=two.id):
        library.entry(two.id)
    found = library.fsck()
    assert not found.clean
    assert found.unreadable == ((unreadable.name, str(unreadable.error)),)
    with pytest.raises(UnusableInput, match=two.id):
        library.gc()  # its blocks are not known
    library.remove(one.id)
    assert library.blocks.has(one.block_id)  # it may name that block too
    library.remove(two.id[:6])
    assert set(library.gc()) == {one.block_id, *two.block_ids}
    assert library.entries() == (three,)


def test_everything_that_does_not_belong_is_named(library: Library) -> None:
    one, two, _ = library.entries()
    assert library.fsck().clean
    library.blocks.path(two.block_ids[1]).unlink()
    (library.root / "letter.txt").touch()
    (library.root / "entries" / f"{one.id}.json.bak").touch()
    (library.root / "entries" / f".{one.id}.json.x.tmp").touch()
    found = library.fsck()
    assert found.missing == ((two.id, two.block_ids[1]),)
    assert found.strays == ("letter.txt", f"entries/{one.id}.json.bak")
    assert (found.temporaries, found.unreadable, found.clean) == (1, (), False)
    assert found.to_json()["clean"] is False


# -- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["entries", "blocks", "blocks/blocks", "blocks/tmp"])
def test_nothing_is_written_through_a_link_in_the_place_of_a_folder(
    name: str, library: Library, session: Session, sandbox: Sandbox, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (library.root / name).rename(elsewhere)
    (library.root / name).symlink_to(elsewhere)
    before = sorted(path.name for path in elsewhere.rglob("*"))
    for write in (
        lambda: library.deposit(session, proposal(9), sandbox),
        lambda: library.remove("0000"),
        lambda: library.gc(),
        lambda: library.route_by(Router()),
        lambda: library.fsck(),
    ):
        with pytest.raises(LibraryDamaged, match="a folder of the library is a link"):
            write()
    assert sorted(path.name for path in elsewhere.rglob("*")) == before


def test_a_link_among_the_folders_of_blocks_is_refused(
    library: Library, session: Session, sandbox: Sandbox, tmp_path: Path
) -> None:
    for number in range(256):
        folder = library.root / "blocks" / "blocks" / f"{number:02x}"
        if not folder.exists():
            folder.symlink_to(tmp_path)
    with pytest.raises(LibraryDamaged, match="is a link"):
        library.deposit(session, proposal(9), sandbox)
    assert list(tmp_path.glob("*.kvb")) == []


def test_a_library_is_not_made_around_a_link(library: Library, tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "new", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (root / "entries").symlink_to(elsewhere)
    with pytest.raises(LibraryDamaged, match="is a link"):
        Library.create_from(root, library.facts)


# -- locks ----------------------------------------------------------------------------------------


def test_a_lock_that_is_held_for_too_long_is_named(library: Library) -> None:
    descriptor = os.open(library.root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        began = time.monotonic()
        with (
            pytest.raises(LockTimeout, match=f"holds the lock; at {library.root}; .*0.2 seconds"),
            library.locked(seconds=0.2),
        ):
            raise AssertionError
        assert 0.2 <= time.monotonic() - began < 5
        assert LockTimeout("").exit_code == 2
    finally:
        os.close(descriptor)
    with library.locked(shared=True, seconds=0.0), library.locked(shared=True, seconds=0.0):
        pass


def test_a_lock_that_is_freed_in_time_is_taken(library: Library) -> None:
    descriptor = os.open(library.root, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    threading.Timer(0.3, os.close, (descriptor,)).start()
    with library.locked(seconds=30):
        pass


def test_a_temporary_that_somebody_else_has_locked_is_given_up(
    library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held: list[int] = []
    make = tempfile.mkstemp

    def taken(*arguments: Any, **named: Any) -> tuple[int, str]:
        fd, name = make(*arguments, **named)
        held.append(os.open(name, os.O_RDONLY))
        fcntl.flock(held[-1], fcntl.LOCK_EX)  # as a collection does that was stopped
        return fd, name

    block_id = library.entries()[0].block_id
    data = library.blocks.path(block_id).read_bytes()
    monkeypatch.setattr(tempfile, "mkstemp", taken)
    monkeypatch.setattr(locks.hold, "__kwdefaults__", {"shared": False, "seconds": 0.1})
    store = BlockStore(tmp_path / "store")
    with pytest.raises(LockTimeout, match="the lock"):
        store.receive(block_id, lambda file: file.write(data))
    assert list((tmp_path / "store" / "tmp").iterdir()) == []
    os.close(held[0])


# -- two at once ----------------------------------------------------------------------------------


def test_of_many_who_make_a_library_one_makes_it_and_all_go_on(
    library: Library, tmp_path: Path
) -> None:
    found: list[tuple[Library, bool]] = []
    barrier = threading.Barrier(8)

    def make() -> None:
        barrier.wait()
        found.append(Library.create_or_open(tmp_path / "new", library.facts))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made for _, made in found) == [False] * 7 + [True]
    assert all(one.facts == library.facts for one, _ in found)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").touch()
    with pytest.raises(UnusableInput, match="an empty folder"):
        Library.create_or_open(tmp_path / "home", library.facts)


@pytest.mark.parametrize("with_session", [True, False])
def test_an_import_goes_on_where_another_made_the_library_meanwhile(
    with_session: bool, library: Library, session: Session, sandbox: Sandbox, tmp_path: Path
) -> None:
    archive, new = tmp_path / "a.tar", tmp_path / "new"
    library.route_by(Router(threshold=-1.0, n_calibration=99))
    library.export(archive)

    class Slow:
        """Somebody else imports while the programs run."""

        def run_all(self, programs: list[str]) -> Any:
            if not Library.is_at(new):
                first = import_archive(archive, new, sandbox)
                assert len(first.taken) == 3
            return sandbox.run_all(programs)

    slow: Any = Slow()
    report = import_archive(archive, new, slow, session if with_session else None)
    ids = tuple(one.id for one in library.entries())
    assert (report.taken, report.present, report.refused) == ((), ids, ())
    assert Library.open(new).facts == library.facts


def test_a_first_deposit_into_a_library_of_another_profile_is_refused(
    library: Library, sessions: Callable[..., Session], sandbox: Sandbox, tmp_path: Path
) -> None:
    from kvgraft.library import prepare

    other = sessions("llama", n_ctx=512)
    prepared = prepare(other, proposal(9), sandbox)
    facts = Facts.of(other.model.pin, other.profile, Router())
    found, made = Library.create_or_open(library.root, facts)
    assert not made
    with pytest.raises(ProfileMismatch):
        found.keep(prepared)


# -- settings of strangers, calibration that travels ----------------------------------------------


@pytest.mark.parametrize("name", ["n_ctx", "n_batch", "n_outputs_max"])
def test_settings_beyond_the_model_open_no_session(
    name: str, library: Library, models: Any, tmp_path: Path
) -> None:
    model = models("llama")
    most = model.facts.n_ctx_train
    settings = library.facts.profile_settings()
    check_settings(settings.with_(**{name: most}), model, where="here")
    greedy = {**library.facts.settings, name: most + 1}
    facts = replace(library.facts, settings=greedy)
    with pytest.raises(ProfileMismatch, match=f"more {name} than the model was trained for"):
        Library(library.root, facts).open_session(model)
    with (
        pytest.raises(ProfileMismatch, match=f"at the archive; expected at most {most}"),
        cli_library._session_for(model, facts, str(tmp_path / "new")),
    ):
        raise AssertionError


def test_a_calibration_travels_with_its_entries_and_a_stale_one_stays_stale(
    library: Library, sessions: Callable[..., Session], sandbox: Sandbox, tmp_path: Path
) -> None:
    library.route_by(Router(threshold=-1.0, n_calibration=99))
    library.export(tmp_path / "fresh.tar")
    other = sessions("llama", n_ctx=512)
    import_archive(tmp_path / "fresh.tar", tmp_path / "fresh", sandbox, other)
    fresh = Library.open(tmp_path / "fresh")
    assert fresh.facts.router.entries == fresh.membership() != library.membership()
    library.remove(library.entries()[0].id)
    library.export(tmp_path / "stale.tar")
    import_archive(tmp_path / "stale.tar", tmp_path / "stale", sandbox)
    stale = Library.open(tmp_path / "stale")
    assert stale.facts.router.entries not in (None, stale.membership())
