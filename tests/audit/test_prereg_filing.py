"""Drafts, filing and the chain: what is filed stays, and every change to it shows."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prereg_world
import pytest
from prereg_world import CRITERION, PREDICTION, World
from repositories import git

from kvaudit import canonical, digests, history, schemas, timestamp
from kvaudit.attest import dsse, keys
from kvaudit.errors import EvidenceIncomplete, TypedError, UnusableInput
from kvaudit.prereg import closing, draft, filing, ledger, pipeline, registration
from kvaudit.prereg.errors import (
    ExpressionInvalid,
    RegistrationChanged,
    RegistrationClosed,
    RegistrationInvalid,
    TreeDiffers,
)

Audit = Callable[..., tuple[int, str, str]]
GOLDEN_SEEDS = [
    "registration 0001 d13b39662c3ab83d5f34c7fa00b9540be1415a1aebd33730b97eb53e1f540065",
    "registration 0002 d8488bd89edb672172b6ad01754c0deca8a1805c198c810e9c11bf926aae01c5",
    "registration 0003 17723e45795b6a679eadd93258b392e0cf9672c6d249bda8fadb914bb8628083",
]


@pytest.fixture(scope="session")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three registrations: adjudicable, abandoned, open; read-only by convention."""
    world = prereg_world.build(tmp_path_factory.mktemp("laboratory"))
    world.file("first", "2026-01-01T00:00:00Z")
    world.file("second", "2026-01-02T00:00:00Z")
    world.file("third", "2026-01-03T00:00:00Z")
    closing.abandon(world.folder, 2, "no machine", keys=world.signer(), results=world.root / "no")
    return world


@pytest.fixture
def world(laboratory: World, tmp_path: Path) -> World:
    return prereg_world.copy(laboratory, tmp_path / "laboratory")


@pytest.fixture
def empty(tmp_path: Path) -> World:
    return prereg_world.build(tmp_path)


def path_of(world: World, number: int, name: str = registration.REGISTRATION) -> Path:
    return registration.find(world.folder, number).folder / name


# Filing ----------------------------------------------------------------------------------------


def test_filing_numbers_chains_and_signs(world: World) -> None:
    first, second = (registration.find(world.folder, number) for number in (1, 2))
    assert [path.name for path in sorted(world.folder.iterdir())] == [
        "0001-first",
        "0002-second",
        "0003-third",
    ]
    assert first.value["predecessor"] is None
    assert second.value["predecessor"] == {"number": 1, "sha256": first.sha256}
    envelope = path_of(world, 1, registration.ENVELOPE).read_bytes()
    payload = dsse.open(envelope, registration.PAYLOAD_TYPE, [world.public])
    assert payload == path_of(world, 1).read_bytes()
    assert ledger.read(world.folder, ledger.Trust(keys=[world.public])).all_findings == ()


def test_filing_does_not_change_the_source_tree(world: World) -> None:
    facts = history.source_facts(world.root)
    assert facts["dirty"] is False
    assert (
        digests.tree_digest(facts["files"])
        == (registration.find(world.folder, 3).value["source"]["tree_sha256"])
    )


def test_the_seed_derives_from_the_bytes_that_were_filed(world: World) -> None:
    found = registration.find(world.folder, 1)
    assert found.seed == f"registration 0001 {digests.sha256_bytes(found.sha256.encode())}"
    assert found.configuration()["seed"] == found.seed
    assert found.configuration()["registration"] == 1
    assert found.seed.split()[2] != registration.find(world.folder, 2).seed.split()[2]
    schemas.validate(found.configuration(), "config", where="configuration")


def test_a_dirty_tree_is_not_filed(empty: World) -> None:
    path = empty.draft()
    (empty.root / "workflow/code.py").write_text("x = 2\n")
    with pytest.raises(TreeDiffers, match=r"not committed.*workflow/code.py"):
        filing.file(path, empty.signer(), folder=empty.folder, repository=empty.root)
    assert not empty.folder.exists()


def test_a_tree_that_is_not_the_draft_s_is_not_filed(empty: World) -> None:
    path = empty.draft()
    (empty.root / "workflow/code.py").write_text("x = 2\n")
    prereg_world.commit(empty.root)
    with pytest.raises(TreeDiffers, match=r"not the draft's.*workflow/code.py"):
        filing.file(path, empty.signer(), folder=empty.folder, repository=empty.root)


def test_a_later_commit_of_documents_alone_is_the_same_tree(empty: World) -> None:
    path = empty.draft()
    (empty.root / "README.md").write_text("more\n")
    prereg_world.commit(empty.root)
    found = filing.file(path, empty.signer(), folder=empty.folder, repository=empty.root)
    assert found.value["source"]["commit"] == git(empty.root, "rev-parse", "HEAD")


def test_no_git_repository_no_filing(empty: World) -> None:
    path = empty.draft()
    shutil.rmtree(empty.root / ".git")
    with pytest.raises(TreeDiffers, match="belongs to no commit"):
        filing.file(path, empty.signer(), folder=empty.folder, repository=empty.root)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("models", lambda v: v["models"][0].update(sha256="0" * 64)),
        ("matrix", lambda v: v["matrix"].pop()),
        ("locks", lambda v: v["locks"].clear()),
        ("datasets", lambda v: v["datasets"].update({"workflow/data.jsonl": "0" * 64})),
        ("configuration", lambda v: v["configuration"]["value"]["exactness"].update(samples=7)),
    ],
)
def test_a_draft_whose_facts_were_edited_is_not_filed(
    empty: World, field: str, change: Callable[[Any], None]
) -> None:
    path = empty.draft()
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))
    with pytest.raises(TreeDiffers, match=f"the draft's {field} is not"):
        filing.file(path, empty.signer(), folder=empty.folder, repository=empty.root)


BAD = {
    "does not parse": ({"criteria": [{**CRITERION, "expression": "exactness/tiny-a: n =="}]}),
    "no summary has": (
        {"criteria": [{**CRITERION, "expression": "exactness/tiny-a: samples.m == 1"}]}
    ),
    "does not run": ({"criteria": [{**CRITERION, "expression": "cost/tiny-a: growth.slope > 1"}]}),
    "reads no summary": ({"criteria": [{**CRITERION, "expression": "exactness/tiny-a: 1 == 1"}]}),
    "is a value": ({"criteria": [{**CRITERION, "expression": "exactness/tiny-a: blocks + 1"}]}),
    "are called E1": ({"criteria": [CRITERION, CRITERION]}),
    "fill them in": ({"criteria": [], "predictions": []}),
    "first end is above": ({"predictions": [{**PREDICTION, "interval": [2, 1]}]}),
    "no number of the interval": ({"predictions": [{**PREDICTION, "interval": [-2, -1]}]}),
    "quantity and baseline are numbers": (
        {"predictions": [{**PREDICTION, "quantity": "exactness/tiny-a: blocks == 1"}]}
    ),
    "stopping_rule": ({"stopping_rule": ""}),
    "target/device": (
        {"target": {"device": "", "driver": "x", "engine": {"build": "x", "libraries": None}}}
    ),
    "the engine of a run could not be compared": (
        {"target": {"device": "x", "driver": "x", "engine": {"build": "mine", "libraries": None}}}
    ),
    "target/engine/libraries": (
        {"target": {"device": "x", "driver": "x", "engine": {"build": "mine", "libraries": {}}}}
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_a_draft_that_nobody_could_judge_is_not_filed(
    world: World, message: str, audit: Audit
) -> None:
    path = world.draft("bad", **BAD[message])
    code, _, err = audit(
        *("prereg", "file", path, "--key", world.key, "--into", world.folder),
        *("--repository", world.root),
    )
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert len(list(world.folder.iterdir())) == 3


def test_an_unfilled_draft_is_told_every_field_that_is_empty(empty: World) -> None:
    engine = {"build": "", "libraries": None}
    path = empty.draft(
        criteria=[],
        predictions=[],
        stopping_rule="",
        exclusions=["none", ""],
        target={"device": "", "driver": "", "engine": engine},
    )
    fields = r"criteria and predictions \(one is enough\), target/device, target/driver, "
    fields += "target/engine/build, stopping_rule, exclusions/1 "
    with pytest.raises(UnusableInput, match=f"empty: {fields}"):
        filing.file(path, empty.signer(), folder=empty.folder, repository=empty.root)
    assert not empty.folder.exists()


def test_a_draft_is_filed_again_only_when_its_registration_is_closed(empty: World) -> None:
    empty.file()
    prereg_world.commit(empty.root)  # another commit of the same tree
    with pytest.raises(RegistrationInvalid, match=r"filed already.*at 0001-first"):
        empty.file()
    path = empty.root.parent / "first.draft.json"
    path.unlink()
    assert empty.file(stopping_rule="two runs").number == 2
    closing.abandon(empty.folder, 1, "no machine", keys=empty.signer(), results=empty.root / "no")
    assert empty.file().number == 3


def test_a_filing_dated_before_its_predecessor_is_refused(world: World) -> None:
    with pytest.raises(RegistrationInvalid, match="dated before its predecessor"):
        world.file("back-dated", "2025-12-31T00:00:00Z")


def test_an_engine_of_ones_own_is_filed_by_the_digests_of_its_libraries(empty: World) -> None:
    engine = {"build": "mine", "libraries": {"libllama.so": "0" * 64}}
    found = empty.file(target={"device": "x", "driver": "x", "engine": engine})
    assert list(registration.problems(found.value)) == []


def test_who_holds_the_folder_keeps_others_out_and_keeps_its_own_errors(world: World) -> None:
    with (
        filing.locked(world.folder),
        pytest.raises(UnusableInput, match="another process is filing"),
        filing.locked(world.folder),
    ):
        pass
    with pytest.raises(BlockingIOError), filing.locked(world.folder):
        raise BlockingIOError
    with filing.locked(world.folder):
        pass


def test_a_key_with_a_password_signs_a_filing_by_the_rules_of_kvaudit_sign(
    empty: World, audit: Audit
) -> None:
    password = empty.root.parent / "password"
    key = empty.root.parent / "locked.pem"
    keys.generate(key, b"correct horse")
    command = (
        *("prereg", "file", empty.draft(), "--key", key, "--into", empty.folder),
        *("--repository", empty.root),
    )
    code, _, err = audit(*command)
    assert code == 2
    assert "no terminal to ask for the password" in err
    for text in (b"\n", b"x" * 5_000):
        password.write_bytes(text)
        code, _, err = audit(*command, "--password-file", password)
        assert code == 2
        assert "first line is no password" in err
    password.write_bytes(b"correct horse\r\nsecond line\n")
    assert audit(*command, "--password-file", password)[0] == 0


# The chain -------------------------------------------------------------------------------------


def attacked(world: World) -> ledger.Ledger:
    """What the ledger says with the signer's key, after checking that nothing can be added."""
    chain = ledger.read(world.folder, ledger.Trust(keys=[world.public]))
    assert chain.exit_code != 0
    assert "\n" not in "".join(finding.message for finding in chain.all_findings)
    return chain


def messages(chain: ledger.Ledger) -> str:
    return " | ".join(f"{finding.file}: {finding.message}" for finding in chain.all_findings)


def soften(value: dict[str, Any]) -> None:
    value["predictions"][0]["interval"] = [0.000001, 1000]


def test_bytes_changed_after_filing_show_in_the_signature_and_in_the_next_link(
    world: World,
) -> None:
    prereg_world.rewrite(path_of(world, 1), soften)
    found = messages(attacked(world))
    assert "0001-first/registration.json: was changed after it was signed" in found
    assert "its predecessor 0001-first has not the digest that it names" in found
    with pytest.raises(RegistrationChanged):
        world.file("fourth", "2026-01-04T00:00:00Z")


def test_the_last_one_changed_and_signed_again_by_another_key(world: World) -> None:
    path = path_of(world, 3)
    prereg_world.rewrite(path, soften)
    keys.generate(world.root.parent / "other.pem")
    envelope = dsse.sign(
        path.read_bytes(),
        registration.PAYLOAD_TYPE,
        [keys.load_private(world.root.parent / "other.pem")],
    )
    path.with_name(registration.ENVELOPE).write_bytes(dsse.to_bytes(envelope))
    assert "too few of the given keys have signed" in messages(attacked(world))
    # Honestly: without a key to trust, only the links are left, and the last one has none behind.
    assert ledger.read(world.folder).exit_code == 0


def test_the_first_changed_and_signed_again_by_its_own_author_breaks_the_next_link(
    world: World,
) -> None:
    path = path_of(world, 1)
    prereg_world.rewrite(path, soften)
    envelope = dsse.sign(path.read_bytes(), registration.PAYLOAD_TYPE, world.signer())
    path.with_name(registration.ENVELOPE).write_bytes(dsse.to_bytes(envelope))
    assert "0001-first has not the digest that it names" in messages(attacked(world))


def test_a_missing_predecessor_is_named(world: World) -> None:
    shutil.rmtree(world.folder / "0001-first")
    found = messages(attacked(world))
    assert "the registration of this number is missing" in found
    assert "its predecessor 0001 is missing" in found
    with pytest.raises(EvidenceIncomplete, match="no registration of this number"):
        registration.find(world.folder, 1)


def test_two_with_one_number_are_refused(world: World) -> None:
    shutil.copytree(world.folder / "0003-third", world.folder / "0003-other")
    prereg_world.rewrite(
        world.folder / "0003-other/registration.json", lambda value: value.update(name="other")
    )
    assert "two registrations have one number" in messages(attacked(world))
    with pytest.raises(RegistrationInvalid, match="two registrations have one number"):
        registration.find(world.folder, 3)
    with pytest.raises(RegistrationChanged, match="two registrations have one number"):
        world.file("fourth", "2026-01-04T00:00:00Z")


def test_a_registration_in_another_folder_is_refused(world: World) -> None:
    (world.folder / "0003-third").rename(world.folder / "0004-third")
    assert "folder is not named after it" in messages(attacked(world))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("registration.dsse.json", "is not signed"),
        ("registration.json", "absent"),
        ("outcome.dsse.json", "is not signed"),
        ("outcome.json", "is absent, its signature is there"),
    ],
)
def test_a_file_taken_away_shows(world: World, name: str, message: str) -> None:
    path_of(world, 2, name).unlink()
    assert message in messages(attacked(world))


def test_an_outcome_edited_afterwards_shows(world: World) -> None:
    def change(value: dict[str, Any]) -> None:
        value["reason"] = "another one"

    prereg_world.rewrite(path_of(world, 2, registration.OUTCOME), change)
    assert "outcome.json: was changed after it was signed" in messages(attacked(world))


def test_an_outcome_of_another_registration_shows(world: World) -> None:
    for name in (registration.OUTCOME, registration.OUTCOME_ENVELOPE):
        shutil.copy(path_of(world, 2, name), path_of(world, 3, name))
    assert "the outcome is of another registration" in messages(attacked(world))


def test_what_does_not_belong_there_shows(world: World) -> None:
    (world.folder / "0005").mkdir()
    path_of(world, 1, "notes.txt").write_text("x")
    found = messages(attacked(world))
    assert "0005: is no registration" in found
    assert "notes.txt: does not belong into a registration" in found


def test_what_is_called_a_text_beside_the_registrations_is_one(world: World) -> None:
    (world.folder / "README.md").write_text("x")
    assert ledger.read(world.folder).exit_code == 0
    (world.folder / "README.md").unlink()
    (world.folder / "README.md").symlink_to(world.folder / "0001-first")
    assert "README.md: is no registration" in messages(attacked(world))
    (world.folder / "README.md").unlink()
    shutil.move(world.folder / "0003-third", world.folder / "README.md")
    assert "README.md: is no registration" in messages(attacked(world))


def test_the_last_registration_taken_away_shows_by_a_run_of_it(world: World, audit: Audit) -> None:
    results = world.root / "results"
    world.run(registration.find(world.folder, 3), results / "third")
    status = ("prereg", "status", "--registrations", world.folder, "--results", results)
    assert audit(*status)[0] == 0
    moved = shutil.move(world.folder / "0003-third", world.root / "away")
    code, out, _ = audit(*status)
    assert code == 3
    assert "names registration 0003, which is missing" in out
    shutil.move(moved, world.folder / "0003-third")
    prereg_world.rewrite(path_of(world, 3), soften)
    code, out, _ = audit(*status)
    assert code == 1
    assert "names another registration 0003 than lies there" in out


def test_a_link_in_a_registration_is_not_followed(world: World) -> None:
    path = path_of(world, 3)
    path.rename(world.root / "elsewhere.json")
    path.symlink_to(world.root / "elsewhere.json")
    assert "symbolic link" in messages(attacked(world))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_byte_of_any_file_turns_the_status(world: World, number: int) -> None:
    trust = ledger.Trust(keys=[world.public])
    for path in sorted(registration.find(world.folder, number).folder.iterdir()):
        data = path.read_bytes()
        hint = data.find(b'"keyid":"') + 9  # which DSSE calls a hint: it is not signed, and trusted
        for at in range(0, len(data), max(1, len(data) // 12)):  # by nobody
            if hint > 8 and hint <= at < hint + 64:
                continue
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            assert ledger.read(world.folder, trust).exit_code == 1, (path.name, at)
        path.write_bytes(data)
    assert ledger.read(world.folder, trust).exit_code == 0


def test_the_wrong_key_is_one_clear_error_an_entry(world: World, audit: Audit) -> None:
    keys.generate(world.root.parent / "other.pem")
    code, out, _ = audit(
        *("prereg", "status", "--registrations", world.folder),
        *("--key", world.root.parent / "other.pem.pub"),
    )
    assert code == 1
    assert out.count("too few of the given keys have signed") == 4


def test_the_status_lists_what_hangs(world: World, audit: Audit) -> None:
    code, out, _ = audit(
        *("prereg", "status", "--registrations", world.folder, "--key", f"{world.key}.pub")
    )
    assert code == 0
    assert "0001-first  OPEN, no outcome" in out
    assert "0002-second  abandoned" in out
    assert "3 registrations, 2 open; signatures verified" in out
    _, out, _ = audit("prereg", "status", "--registrations", world.folder, "--json")
    assert [one["hangs"] for one in json.loads(out)["registrations"]] == [True, False, True]


def test_the_status_calls_nothing_verified_that_was_not(world: World, audit: Audit) -> None:
    status = ("prereg", "status", "--registrations", world.folder)
    assert "signatures not verified, no --key given" in audit(*status)[1]
    prereg_world.rewrite(path_of(world, 3), soften)
    code, out, _ = audit(*status, "--key", f"{world.key}.pub")
    assert (code, "signatures checked, see above" in out) == (1, True)
    path_of(world, 3).write_bytes(b"{}")
    code, out, _ = audit(*status, "--key", f"{world.key}.pub")
    assert code != 0
    assert "\n0003-third  cannot be read\n" in out
    assert "signatures verified" not in out


def test_the_tampered_second_registration_is_refused_by_the_pipeline(world: World) -> None:
    prereg_world.rewrite(path_of(world, 3), soften)
    config = {"registration": 3}
    pipeline.take_over(config, {"registration": 3}, world.folder)
    untouched = registration.load(world.folder / "0001-first")
    assert config["seed"] != untouched.seed  # and it is not the seed that was filed either:
    envelope = path_of(world, 3, registration.ENVELOPE).read_bytes()
    filed = digests.sha256_bytes(dsse.parse(envelope).payload)
    assert config["seed"] != registration.seed_of(3, filed, None)


# Closing ---------------------------------------------------------------------------------------


def test_an_amendment_closes_and_drafts_the_successor(world: World) -> None:
    outcome, path = closing.amend(
        *(world.folder, 1, "the device was withdrawn"),
        into=world.root.parent,
        repository=world.root,
        keys=world.signer(),
        results=world.root / "results",
    )
    assert json.loads(outcome.read_bytes())["outcome"] == "amended"
    value = json.loads(path.read_bytes())
    value["target"]["device"] = "another"
    path.write_text(json.dumps(value))
    found = filing.file(path, world.signer(), folder=world.folder, repository=world.root)
    assert found.label == "0004-first"
    assert found.value["supersedes"]["number"] == 1
    chain = ledger.read(world.folder, ledger.Trust(keys=[world.public]))
    assert chain.all_findings == ()
    assert [entry.state for entry in chain.entries] == ["amended", "abandoned", "open", "open"]
    with pytest.raises(RegistrationInvalid, match="superseded already"):
        filing.file(path, world.signer(), folder=world.folder, repository=world.root)


def test_an_amendment_after_a_result_is_refused(world: World) -> None:
    found = registration.find(world.folder, 1)
    world.run(found, world.root / "results/registered" / found.label)
    with pytest.raises(RegistrationClosed, match="there is a run"):
        closing.amend(
            *(world.folder, 1, "it did not look well"),
            into=world.root.parent,
            repository=world.root,
            results=world.root / "results",
        )
    assert list(world.root.parent.glob("*.draft.json")) == []


def test_abandoning_after_a_run_names_the_run(world: World) -> None:
    found = registration.find(world.folder, 1)
    run = world.run(found, world.root / "results/registered" / found.label)
    path = closing.abandon(
        *(world.folder, 1, "the budget ended"),
        keys=world.signer(),
        results=world.root / "results",
    )
    named = json.loads(path.read_bytes())["runs"]
    assert named == [digests.sha256_file(run / "inputs.manifest.json")]


def test_an_unsigned_outcome_closes_and_is_called_unsigned(world: World, audit: Audit) -> None:
    code, _, _ = audit(
        *("prereg", "abandon", 1, "--reason", "x", "--registrations", world.folder),
        *("--results", world.root / "results"),
    )
    assert code == 0
    world.file("fourth", "2026-01-04T00:00:00Z")
    code, out, _ = audit("prereg", "status", "--registrations", world.folder)
    assert code == 0
    assert "0001-first  abandoned, unsigned" in out
    assert "outcome.json: is not signed" in messages(attacked(world))


@pytest.mark.parametrize("command", ["amend", "abandon"])
def test_a_closed_registration_stays_as_it_is(world: World, command: str, audit: Audit) -> None:
    before = path_of(world, 2, registration.OUTCOME).read_bytes()
    code, _, err = audit(
        *("prereg", command, 2, "--reason", "x", "--registrations", world.folder),
        *("--results", world.root / "results"),
        *(("--into", world.root.parent, "--repository", world.root) if command == "amend" else ()),
    )
    assert code == 2
    assert "comes too late: the registration is closed" in err
    assert path_of(world, 2, registration.OUTCOME).read_bytes() == before


# Drafts ----------------------------------------------------------------------------------------


def test_a_draft_from_the_command_conforms_and_is_not_overwritten(
    empty: World, audit: Audit
) -> None:
    command = (
        *("prereg", "new", "--config", empty.root / "config/whole.json", "--name", "first"),
        *("--into", empty.root.parent, "--repository", empty.root),
    )
    code, out, _ = audit(*command)
    assert code == 0
    assert "fill in criteria" in out
    value = draft.read(empty.root.parent / "first.draft.json")
    assert value["criteria"] == value["predictions"] == []
    assert value["matrix"] == ["exactness/tiny-a", "exactness/tiny-b"]
    assert value["locks"] == {"envs/audit.txt": value["source"]["files"]["envs/audit.txt"]}
    assert "seed" not in value["configuration"]["value"]
    code, _, err = audit(*command)
    assert code == 2
    assert "a draft of this name already" in err


def test_yaml_is_laid_over_the_default_as_snakemake_does_it(empty: World) -> None:
    pytest.importorskip("yaml")
    (empty.root / "config/default.yaml").write_text(
        "name: d\nmodels: [tiny-a]\nprofile: {n_ctx: 1024}\n"
    )
    over = empty.root / "config/over.yaml"
    over.write_text("name: over\nprofile: {n_threads: 2}\nexactness: {samples: 3}\n")
    value = draft.configuration([over], empty.root)
    assert value["name"] == "over"
    assert value["profile"]["n_ctx"] == 1024
    assert value["profile"]["n_threads"] == 2
    assert value["exactness"]["samples"] == 3
    assert value["exactness"]["random_splits"] == 3
    assert {*value} & registration.DERIVED == set()


@pytest.mark.parametrize("name", ["default", "smoke", "paper"])
def test_defaults_are_those_that_snakemake_fills_in(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    snakemake = pytest.importorskip("snakemake.utils")
    root = Path(__file__).parents[2]
    value: dict[str, Any] = {}
    for one in ("default", name):
        snakemake.update_config(value, yaml.safe_load((root / f"config/{one}.yaml").read_text()))
    snakemake.validate(value, str(root / "manifests/schema/config.v1.json"))
    mine = draft.configuration([root / f"config/{name}.yaml"], root)
    assert canonical.dumps(mine) == canonical.dumps(
        {key: part for key, part in value.items() if key not in registration.DERIVED}
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets": ["results/x.jsonl"]}, "no file of the source tree"),
        ({"datasets": ["workflow/absent.jsonl"]}, "no file of the source tree"),
        ({"name": "Bad_Name"}, "does not conform"),
    ],
)
def test_a_draft_that_could_not_be_checked_is_not_written(
    empty: World, options: dict[str, Any], message: str
) -> None:
    config = draft.configuration([empty.root / "config/whole.json"], empty.root)
    with pytest.raises(UnusableInput, match=message):
        draft.new(**{"name": "x", "config": config, "repository": empty.root, **options})


def test_a_model_without_a_pin_is_refused(empty: World) -> None:
    config = draft.configuration([empty.root / "config/whole.json"], empty.root)
    with pytest.raises(UnusableInput, match="no pin"):
        draft.new("x", {**config, "models": ["unknown"]}, empty.root)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "registration-draft"}', "\x00" * 9])
def test_a_file_that_is_no_draft_is_refused(empty: World, text: str) -> None:
    path = empty.root.parent / "bad.draft.json"
    path.write_text(text)
    with pytest.raises(TypedError):
        filing.file(path, empty.signer(), folder=empty.folder, repository=empty.root)


def test_the_pipeline_takes_nothing_else_from_the_command_line(world: World) -> None:
    config: dict[str, Any] = {"registration": 1, "name": "default", "exactness": {"samples": 1}}
    given = {"registration": 1, "results": "elsewhere"}
    found = pipeline.take_over(config, given, world.folder)
    assert found is not None
    assert config == {**found.configuration(), "results": "elsewhere"}
    with pytest.raises(UnusableInput, match=r"no other setting counts.*seed"):
        pipeline.take_over({"registration": 1}, {**given, "seed": "mine"}, world.folder)
    assert pipeline.take_over({"name": "x"}, {"name": "x"}, world.folder) is None


@pytest.mark.parametrize("what", ["source", "models", "locks", "seed"])
def test_a_run_that_could_never_be_adjudicated_is_not_begun(world: World, what: str) -> None:
    found = registration.find(world.folder, 1)
    source = history.source_facts(world.root)
    models = {model["name"]: model["sha256"] for model in found.value["models"]}
    config = found.configuration()
    assert pipeline.check_before_run(config, source, models, world.folder) == found.reference()
    if what == "source":
        source["files"] = {**source["files"], "workflow/code.py": "0" * 64}
    elif what == "locks":
        source["files"] = {**source["files"], "envs/engine.txt": "0" * 64}
    elif what == "models":
        models["tiny-a"] = "0" * 64
    else:
        config["seed"] = "mine"
    with pytest.raises(TypedError, match={"seed": "configuration"}.get(what, "is not that of")):
        pipeline.check_before_run(config, source, models, world.folder)


def test_a_run_with_another_python_than_registered_is_not_begun(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = registration.find(world.folder, 1)
    assert found.value["target"]["python"] == platform.python_version()
    monkeypatch.setattr(platform, "python_version", lambda: "3.11.99")
    models = {model["name"]: model["sha256"] for model in found.value["models"]}
    facts = (found.configuration(), history.source_facts(world.root), models, world.folder)
    with pytest.raises(TreeDiffers, match=r"the Python is not that .* found 3\.11\.99"):
        pipeline.check_before_run(*facts)


def test_criteria_that_do_not_parse_any_more_are_an_error_and_not_a_verdict(world: World) -> None:
    found = registration.find(world.folder, 1)
    value = json.loads(canonical.dumps(found.value))
    value["criteria"][0]["expression"] = "exactness/tiny-a: samples.exact =="
    broken = registration.Registration(1, "first", "0" * 64, value, None, found.folder)
    with pytest.raises(ExpressionInvalid, match="E1: an expression does not parse"):
        broken.check()


def test_registrations_of_version_1_verify_for_ever() -> None:
    golden = Path(__file__).parents[1] / "data/golden-registration-v1"
    trust = ledger.Trust(
        keys=[keys.load_public(golden / "signer.pem.pub")],
        roots=timestamp.load_roots([golden / "root.pem"]),
    )
    chain = ledger.read(golden / "preregistered", trust)
    assert chain.all_findings == ()
    assert [entry.state for entry in chain.entries] == ["abandoned", "adjudicated", "open"]
    seeds = [entry.registration.seed for entry in chain.entries if entry.registration]
    assert seeds == GOLDEN_SEEDS
