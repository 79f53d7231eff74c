"""The command line: help, manifests, schemas, usage errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvaudit import canonical, cli, manifest, schemas

Audit = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("arguments", [["--help"], ["verify", "--help"], ["manifest", "--help"]])
def test_help_has_an_example_and_the_exit_codes(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    out = capsys.readouterr().out
    assert left.value.code == 0
    assert "example" in out
    assert "exit codes:" in out


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, kvaudit.cli as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = ('blake3', 'cryptography', 'jsonschema', 'numpy', 'pandas', 'pyarrow',\n"
        "    'rfc8785', 'rfc3161_client', 'scipy', 'securesystemslib', 'sympy', 'zstandard')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    workflow = Path(canonical.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=workflow
    )
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("arguments", [[], ["verify"], ["nonsense"], ["verify", "a", "--bad\n"]])
def test_wrong_usage_is_one_line_and_exit_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_schemas_are_listed_and_printed(audit: Audit) -> None:
    assert audit("schema")[1].split() == list(schemas.kinds())
    assert json.loads(audit("schema", "--json")[1]) == list(schemas.kinds())
    assert json.loads(audit("schema", "run")[1])["properties"]["kind"] == {"const": "run"}
    code, _, err = audit("schema", "nonsense")
    assert code == 2
    assert "no schema" in err


def test_manifests_are_shown(pristine: Path, audit: Audit) -> None:
    code, out, _ = audit("manifest", pristine, "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown[manifest.RUN] == manifest.read(pristine / manifest.RUN, "run")
    assert {*shown} == {
        manifest.INPUTS,
        manifest.RUN,
        "exactness/tiny-a/stage.manifest.json",
        "exactness/tiny-b/stage.manifest.json",
    }
    assert "# inputs.manifest.json" in audit("manifest", pristine)[1]


def test_a_manifest_is_checked_alone(run: Path, audit: Audit) -> None:
    code, out, _ = audit("manifest", "--check", run / manifest.INPUTS)
    assert (code, out) == (0, "inputs.manifest.json: a valid inputs manifest\n")
    (run / manifest.INPUTS).write_bytes(b'{"kind": "inputs"}')
    code, _, err = audit("manifest", "--check", run / manifest.INPUTS)
    assert code == 2
    assert "inputs.manifest.json" in err
    assert audit("manifest", "--check", run / manifest.VERDICT)[0] == 2
    assert audit("manifest", "--check", run / "nowhere")[0] == 3
    assert audit("manifest")[0] == 2
    assert audit("manifest", run, "--check", run / manifest.RUN)[0] == 2


def test_a_missing_manifest_is_incomplete(run: Path, audit: Audit) -> None:
    (run / "exactness/tiny-a/stage.manifest.json").unlink()
    assert audit("manifest", run)[0] == 3
