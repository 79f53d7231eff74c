"""The RO-Crate of a run: what is in it, that it has one form, and that validators accept it.

The validator works offline here: the one JSON-LD context that a crate names is served from its own
HTTP cache, filled with the terms that a crate uses (RO_CRATE_TERMS below, from the specification).
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic
from authority import authority

from kvaudit import cli, crate, crate_graph, digests, manifest, timestamp
from kvaudit.attest import keys, stamp
from kvaudit.attest.run import sign_run
from kvaudit.errors import InputChanged, UnusableInput

Audit = Callable[..., tuple[int, str, str]]
REPOSITORY = Path(__file__).parents[2]
REFERENCE = REPOSITORY / "results" / "reference"
PROFILE = "provenance-run-crate-0.5"

SCHEMA_TERMS = """
    ComputerLanguage CreateAction CreativeWork Dataset HowTo HowToStep PropertyValue
    SoftwareApplication SoftwareSourceCode about actionStatus contentSize datePublished description
    encodingFormat endTime hasPart identifier instrument isBasedOn license mainEntity mentions name
    object position programmingLanguage propertyID result size softwareVersion startTime step url
    value version workExample
"""
# The terms of RO-Crate 1.1 that a crate uses. All but three are those of schema.org.
RO_CRATE_TERMS = {
    **{term: f"http://schema.org/{term}" for term in SCHEMA_TERMS.split()},
    "File": "http://schema.org/MediaObject",
    "ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow",
    "conformsTo": "http://purl.org/dc/terms/conformsTo",
}
# What the profiles recommend and no evidence says: who it was, and addresses on the web.
UNKNOWN = {
    "process-run-crate-0.5_3.2": "The Application SHOULD have a url",
    "process-run-crate-0.5_5.1": "The SoftwareApplication id SHOULD be an absolute URI",
    "process-run-crate-0.5_8.6": "The Action SHOULD have an agent",
    "ro-crate-1.1_22.2": "author",
    "ro-crate-1.1_22.3": "publisher",
}


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small source tree with a workflow."""
    root = tmp_path_factory.mktemp("source")
    for name, text in {
        "Snakefile": 'include: "rules/exactness.smk"\n',
        "rules/exactness.smk": "rule exactness:\n    script: ...\n",
        "workflow/stages/exactness.py": "print('exactness')\n",
        "config/default.yaml": "name: default\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(scope="session")
def sourced(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid run that registered that source; read-only by convention."""
    paths = [path for path in source.rglob("*") if path.is_file()]
    files = {p.relative_to(source).as_posix(): digests.sha256_file(p) for p in paths}
    run = synthetic.build(
        tmp_path_factory.mktemp("sourced") / "run",
        source={"commit": None, "dirty": None, "files": files},
    )
    assert cli.main(["verify", str(run), "--write"]) == 0
    return run


@pytest.fixture(scope="session")
def exported(sourced: Path, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its crate as a folder; read-only by convention."""
    into = tmp_path_factory.mktemp("crate") / "crate"
    crate.export(sourced, into, source=source)
    return into


def entities(folder: Path) -> dict[str, dict[str, Any]]:
    value = json.loads((folder / crate_graph.METADATA).read_bytes())
    found = {entity["@id"]: entity for entity in value["@graph"]}
    assert len(found) == len(value["@graph"])
    return found


def references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for item in value for name in references(item)]
    return [value["@id"]] if isinstance(value, dict) else []


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_every_file_is_described_with_its_length_and_digest(exported: Path) -> None:
    described = entities(exported)
    there = files_of(exported)
    del there[crate_graph.METADATA]
    for name, data in there.items():
        assert described[name]["contentSize"] == str(len(data))
        assert described[name]["sha256"] == digests.sha256_bytes(data)
    kinds = {name: entity["@type"] for name, entity in described.items()}
    assert {*there} == {name for name, kind in kinds.items() if "File" in kind}


def test_every_file_is_a_part_of_the_root_and_every_reference_leads_somewhere(
    exported: Path,
) -> None:
    described = entities(exported)
    reached: set[str] = set()
    pending = ["./"]
    while pending:
        name = pending.pop()
        reached.add(name)
        pending += [n for n in references(described[name].get("hasPart")) if n not in reached]
    assert {name for name, entity in described.items() if "File" in entity["@type"]} <= reached
    for entity in described.values():
        for key, value in entity.items():
            for name in references(value):
                assert name in described or name.startswith("http"), (entity["@id"], key)


def test_the_evidence_in_a_crate_still_verifies(exported: Path, audit: Audit) -> None:
    assert audit("verify", exported / "run")[0] == 0


def test_a_stage_is_an_action_with_its_times_tool_model_and_results(
    exported: Path, sourced: Path
) -> None:
    described = entities(exported)
    action = described["#stage/exactness/tiny-a"]
    assert action["@type"] == "CreateAction"
    assert (action["startTime"], action["endTime"]) == (
        "2026-01-01T00:01:00+00:00",
        "2026-01-01T00:02:00+00:00",
    )
    assert references(action["instrument"]) == ["source/workflow/stages/exactness.py"]
    assert references(action["object"]) == ["run/inputs.manifest.json", "#model/tiny-a"]
    assert references(action["result"]) == ["run/exactness/tiny-a/"]
    assert described["#model/tiny-a"]["sha256"] == synthetic.digest_of("model", "tiny-a")
    assert not any("agent" in entity for entity in described.values())


def test_the_verdict_is_told_claim_by_claim(exported: Path, sourced: Path) -> None:
    described = entities(exported)
    verdict = json.loads((sourced / manifest.VERDICT).read_bytes())
    told = described["run/verdict.json"]
    assert told["description"] == "verified: 8 claims hold, 0 fail, 0 not run here"
    values = {name: described[name]["value"] for name in references(told["mentions"])}
    assert values == {f"#claim/{c['id']}/{c['model']}": c["verdict"] for c in verdict["claims"]}


def test_two_exports_are_the_same_bytes(
    exported: Path, sourced: Path, source: Path, tmp_path: Path
) -> None:
    again, archive, other = (tmp_path / n for n in ("again", "a.zip", "b.zip"))
    for into in (again, archive, other):
        crate.export(sourced, into, source=source)
    assert files_of(again) == files_of(exported)
    assert archive.read_bytes() == other.read_bytes()
    with zipfile.ZipFile(io.BytesIO(archive.read_bytes())) as opened:
        assert {name: opened.read(name) for name in opened.namelist()} == files_of(exported)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_signed_run_takes_its_attestation_along(
    sourced: Path, source: Path, tmp_path: Path, audit: Audit
) -> None:
    run = shutil.copytree(sourced, tmp_path / "run")
    assert audit("keygen", tmp_path / "key.pem")[0] == 0
    assert audit("sign", run, "--key", tmp_path / "key.pem")[0] == 0
    code, out, _ = audit("crate", run, "--into", tmp_path / "crate", "--source", source)
    assert (code, out.split()[-1]) == (0, "files")
    moved = tmp_path / "crate" / "run"
    assert audit("verify", moved, "--key", tmp_path / "key.pem.pub")[0] == 0
    told = entities(tmp_path / "crate")["run/attestation.dsse.json"]
    assert told["encodingFormat"] == "application/vnd.dsse.envelope.v1+json"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_time_stamp_goes_with_the_attestation(
    sourced: Path, source: Path, tmp_path: Path, audit: Audit
) -> None:
    run = Path(shutil.copytree(sourced, tmp_path / "run"))
    keys.generate(tmp_path / "a.pem")
    sign_run(run, [keys.load_private(tmp_path / "a.pem")])
    honest = authority(tmp_path / "tsa")
    reply = honest.stamp(Path(), data=(run / manifest.ATTESTATION).read_bytes())
    roots = timestamp.load_roots([honest.root])
    stamp.accept(run, reply.read_bytes(), roots, where="reply")
    crate.export(run, tmp_path / "crate", source=source)
    trust = ("--key", tmp_path / "a.pem.pub", "--root", honest.root)
    code, out, _ = audit("verify", tmp_path / "crate/run", *trust)
    assert (code, "no later than" in out) == (0, True)
    held = entities(tmp_path / "crate")[f"run/{manifest.ATTESTATION_STAMP}"]
    assert held["encodingFormat"] == "application/timestamp-reply"
    assert str(held["description"]).endswith("; not verified here")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_what_is_no_attestation_or_no_stamp_of_it_is_not_exported(
    sourced: Path, source: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(sourced, tmp_path / "run"))
    (run / manifest.ATTESTATION).write_bytes(b"{}")
    into = tmp_path / "crate"
    with pytest.raises(UnusableInput, match=re.escape(manifest.ATTESTATION)):
        crate.export(run, into, source=source)
    (run / manifest.ATTESTATION).unlink()
    keys.generate(tmp_path / "a.pem")
    sign_run(run, [keys.load_private(tmp_path / "a.pem")])
    honest = authority(tmp_path / "tsa")
    for token in (b"no stamp", honest.stamp(Path(), data=b"another").read_bytes()):
        (run / manifest.ATTESTATION_STAMP).write_bytes(token)
        with pytest.raises(timestamp.TimestampRefused, match=re.escape(manifest.ATTESTATION_STAMP)):
            crate.export(run, into, source=source)
    assert not into.exists()


def test_a_source_that_has_changed_is_taken_from_the_history_or_refused(
    source: Path, tmp_path: Path
) -> None:
    repository = Path(shutil.copytree(source, tmp_path / "repository"))

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        command = ["git", "-C", str(repository), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "x")
    paths = [p for p in source.rglob("*") if p.is_file()]
    files = {p.relative_to(source).as_posix(): digests.sha256_file(p) for p in paths}
    facts = {"commit": git("rev-parse", "HEAD"), "dirty": False, "files": files}
    run = synthetic.build(tmp_path / "run", models=("tiny-a",), source=facts)
    assert cli.main(["verify", str(run), "--write"]) == 0
    (repository / "Snakefile").write_text("# changed\n")
    crate.export(run, tmp_path / "crate", source=repository)
    kept = (tmp_path / "crate/source/Snakefile").read_bytes()
    assert kept == (source / "Snakefile").read_bytes()
    shutil.rmtree(repository / ".git")
    with pytest.raises(InputChanged, match=r"no file of the registered digest.*Snakefile"):
        crate.export(run, tmp_path / "other", source=repository)
    assert not (tmp_path / "other").exists()


def test_evidence_that_does_not_verify_is_not_exported(
    sourced: Path, source: Path, tmp_path: Path, audit: Audit
) -> None:
    run = Path(shutil.copytree(sourced, tmp_path / "run"))
    (run / "exactness/tiny-a/summary.json").write_text("{}")
    command = ("crate", run, "--into", tmp_path / "crate", "--source", source)
    code, out, err = audit(*command)
    assert (code, out) == (1, "")
    assert "summary.json" in err
    (run / "exactness/tiny-a/summary.json").unlink()
    (run / manifest.VERDICT).unlink()
    assert audit(*command)[0] == 3
    assert not (tmp_path / "crate").exists()


@pytest.mark.parametrize("name", ["crate", "crate.zip"])
def test_nothing_is_overwritten(sourced: Path, source: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UnusableInput, match="taken"):
        crate.export(sourced, tmp_path / name, source=source)
    assert (tmp_path / name).read_text() == "mine"
    with pytest.raises(UnusableInput, match="cannot be written"):
        crate.export(sourced, tmp_path / "absent" / name, source=source)
    with pytest.raises(UnusableInput, match=r"cannot be an SPDX identifier; expected letters"):
        crate.export(sourced, tmp_path / "new", source=source, licence="../x")


def primed_cache(path: Path) -> Path:
    """An HTTP cache of the validator that holds the one context a crate names."""
    requests = pytest.importorskip("requests")
    requests_cache = pytest.importorskip("requests_cache")
    import urllib3

    body = json.dumps({"@context": RO_CRATE_TERMS}).encode()
    response = requests.Response()
    response.status_code, response.url, response._content = 200, crate_graph.CONTEXT, body
    response.headers["Content-Type"] = "application/ld+json"
    response.request = requests.Request("GET", crate_graph.CONTEXT).prepare()
    response.raw = urllib3.HTTPResponse(
        io.BytesIO(body), headers=response.headers, status=200, preload_content=False
    )
    session = requests_cache.CachedSession(str(path), backend="sqlite", expire_after=-1)
    session.cache.save_response(response, session.cache.create_key(response.request))
    session.close()
    return path


def validated(folder: Path, cache: Path, severity: str, report: Path) -> dict[str, Any]:
    """What rocrate-validator says, without a network."""
    pytest.importorskip("rocrate_validator")
    command = [
        *(str(Path(sys.executable).with_name("rocrate-validator")), "-y", "validate", str(folder)),
        *("--offline", "--cache-path", str(cache), "--no-paging", "-p", PROFILE),
        *("-l", severity, "-f", "json", "-o", str(report)),
    ]
    subprocess.run(command, check=False, capture_output=True)
    value: dict[str, Any] = json.loads(report.read_bytes())
    return value


def judge(folder: Path, tmp_path: Path) -> None:
    """All required checks pass; of the recommended ones, all but what nobody recorded."""
    cache = primed_cache(tmp_path / "cache")
    required = validated(folder, cache, "required", tmp_path / "required.json")
    assert required["passed"] is True, required["issues"]
    assert required["statistics"]["total_passed_checks"] >= 85
    assert required["statistics"]["total_skipped_checks"] == 0
    recommended = validated(folder, cache, "recommended", tmp_path / "recommended.json")
    for issue in recommended["issues"]:
        assert UNKNOWN[issue["check"]["identifier"]] in issue["message"]


def test_the_validator_accepts_a_small_crate_offline(exported: Path, tmp_path: Path) -> None:
    judge(exported, tmp_path)


def test_the_validator_is_not_blind(exported: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "crate"))
    value = json.loads((folder / crate_graph.METADATA).read_bytes())
    for entity in value["@graph"]:
        if entity["@id"] == "#stage/exactness/tiny-a":
            del entity["instrument"]
    (folder / crate_graph.METADATA).write_text(json.dumps(value))
    cache = primed_cache(tmp_path / "cache")
    report = validated(folder, cache, "required", tmp_path / "report.json")
    assert report["passed"] is False
    assert any("instrument" in issue["message"] for issue in report["issues"])


@pytest.mark.slow
@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the reference run is not here")
def test_the_validator_accepts_the_crate_of_the_reference_run(tmp_path: Path) -> None:
    crate.export(REFERENCE, tmp_path / "crate", source=REPOSITORY)
    judge(tmp_path / "crate", tmp_path)


def test_the_metadata_is_linked_data_to_a_reader_that_knows_no_crate(exported: Path) -> None:
    rdflib = pytest.importorskip("rdflib")
    value = json.loads((exported / crate_graph.METADATA).read_bytes())
    own = value["@context"][1]
    used = {key for entity in value["@graph"] for key in entity if not key.startswith("@")}
    assert used - {"sha256"} <= {*RO_CRATE_TERMS}
    value["@context"] = {**RO_CRATE_TERMS, **own}
    graph = rdflib.Graph().parse(
        data=json.dumps(value), format="json-ld", publicID="https://example.org/crate/"
    )
    rows = graph.query(
        "PREFIX s: <http://schema.org/> SELECT ?action ?file ?digest WHERE {"
        " ?action a s:CreateAction ; s:result ?folder . ?folder s:hasPart ?file ."
        " ?file <https://w3id.org/ro/terms/workflow-run#sha256> ?digest }"
    )
    found = {str(row.file).removeprefix("https://example.org/crate/"): row.digest for row in rows}
    assert str(found["run/exactness/tiny-a/summary.json"]) == digests.sha256_file(
        exported / "run/exactness/tiny-a/summary.json"
    )
