"""Whole runs of tiny models under two builds of the portable arithmetic, for `portable_proof`.

The stage exactness is run under both, without Snakemake, and the evidence compared by `kvaudit
diff`: everything must be equal but readings of clock and machine. Programs cannot be isolated under
emulation, so that a run with generations is made natively and rechecked under the other build.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine_wheel import ENVS

sys.path.insert(0, str(ENVS.parent / "workflow"))

from kvaudit import schemas
from kvaudit.diff import diff
from kvgraft import pins
from kvgraft.errors import EngineFailed
from kvgraft.tiny import make_tiny_gguf

CHECKOUT = ENVS.parent
MODELS = {
    "tiny-gemma3": {"architecture": "gemma3", "quantisation": "Q4_K", "n_embd": 256, "window": 64},
    "tiny-llama": {"architecture": "llama", "quantisation": "Q8_0"},
}
EXACTNESS = {
    "samples": 5,
    "raw_samples": 1,
    "min_tokens": 24,
    "max_tokens": 96,
    "determinism_lengths": [64],
    "split_lengths": [67, 131],
    "random_splits": 1,
    "single_tokens": 8,
}
FLYWHEEL = {
    "arms": ["recall", "recall-text"],
    **{"families": 3, "admission": 1, "transfers": 1, "few_transfers": 1, "solved": 1},
    **{"queries": 1, "calibration": 1, "growth": [1], "growth_queries": 1},
}

Place = tuple[Path, Path]
"""Folder of a build, and the Python that can load it."""


def compared(work: Path, here: Place, there: Place) -> dict[str, dict[str, Any]]:
    """{what: {same, said, …}} of the runs that are made under both builds.

    Args:
        work: a folder for the runs; made.
        here: the native build.
        there: the other one.

    Raises:
        EngineFailed: a run or its recheck failed under a build.
        TypedError: a run's evidence cannot be read.
    """
    work.mkdir(parents=True)
    known = tiny_pins(work)
    given = {name: configuration(work, known, [name]) for name in ("exactness", "flywheel")}
    for place, name in ((here, "here"), (there, "there")):
        _run(place, "kvgraft.plain_run", str(work / name), str(given["exactness"]))
    found = diff(work / "here", work / "there")
    made = {"run of the stage exactness, kvaudit diff": _said(found)}
    _run(here, "kvgraft.plain_run", str(work / "generations"), str(given["flywheel"]))
    # Emulated threads wait for each other at length; their number changes no byte.
    given_run = (str(work / "generations"), "--portable", "--threads", "1", "--json")
    again = _run(there, "kvgraft", "recheck", *given_run)
    made["run with generations, kvgraft recheck --portable"] = _rechecked(json.loads(again))
    return made


def tiny_pins(work: Path) -> Path:
    """Tiny models in a folder, and the pins file that names them."""
    known = work / "pins.json"
    for name, arguments in MODELS.items():
        pins.add(known, pins.for_file(make_tiny_gguf(work / f"{name}.gguf", **arguments), name))  # type: ignore[arg-type]
    return known


def configuration(work: Path, known: Path, stages: list[str]) -> Path:
    """A configuration of these stages with the schema's defaults, as a file."""
    sections = json.loads(schemas.text("config"))["properties"]
    own: dict[str, dict[str, Any]] = {"exactness": EXACTNESS, "flywheel": FLYWHEEL}
    value: dict[str, Any] = {
        "name": "portable-proof",
        "results": "",
        "seed": "portable proof",
        "pins": str(known),
        "models": [*MODELS],
        "stages": stages,
        "profile": {"preset": "portable", "n_ctx": 1024, "n_batch": 512, "n_threads": 1},
    }
    value["profile"]["n_gpu_layers"] = 0
    for name in own:
        fields = sections[name]["properties"]
        defaults = {key: one["default"] for key, one in fields.items() if "default" in one}
        value[name] = defaults | own[name]
    path = work / f"{'-'.join(stages)}.json"
    schemas.validate(value, "config", where=path.name)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def _run(place: Place, module: str, *arguments: str) -> str:
    """Standard output of a module under a build.

    Raises:
        EngineFailed: it failed; its last line is in the error.
    """
    folder, interpreter = place
    # The engine's own variables are the profile's to set.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GGML_", "LLAMA_"))}
    done = subprocess.run(
        [str(interpreter), "-m", module, *arguments],
        cwd=CHECKOUT,
        env={**clean, "LLAMA_CPP_LIB_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    # A recheck that finds something ends with 1, and says what.
    if done.returncode and not (done.returncode == 1 and done.stdout):
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise EngineFailed(f"{module} failed under {folder.name}: {reason}")
    return done.stdout


def _said(found: Any) -> dict[str, Any]:
    """What `kvaudit diff` says of two runs, both of which must be sound evidence."""
    sound = found.findings == (0, 0) and found.status[0] == found.status[1] == "verified"
    readings = sum(rows.readings for rows in found.records)
    return {
        "same": bool(found.same and sound),
        "status": list(found.status),
        "said": f"{'the same in substance' if found.same else 'DIFFERENT in substance'}, "
        f"{readings} records differ in readings of the clock alone; "
        f"{found.status[0]} and {found.status[1]}",
    }


def _rechecked(stages: list[dict[str, Any]]) -> dict[str, Any]:
    checked, equal = (sum(one[key] for one in stages) for key in ("checked", "equal"))
    mode = {one["mode"] for one in stages}
    same = checked == equal > 0 and mode == {"bytes"}
    return {"same": same, "said": f"{equal} of {checked} generations as recorded, in bytes"}
