"""Processes of the benchmark: one task each, its job as JSON in, its answer as JSON out.

A task that reads engine variables, or whose memory is measured, must not share a process with
another. They run one after the other, never side by side.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kvaudit.errors import TypedError
from kvgraft import plan
from kvgraft.bench.work import Work
from kvgraft.errors import EngineFailed
from kvgraft.model import FrozenModel, ModelPin

TIMEOUT_S = 3600.0
_LATCHED = "GGML_CPU_TILED_MM"


def call(task: str, **job: Any) -> Any:
    """Run a task in a new process.

    Args:
        task: "ids", "ours", "memory", "rivals" or "splits".
        job: arguments of it, as JSON values.

    Raises:
        EngineFailed: it ended without an answer; the last line it wrote is in the error.
    """
    environment = {name: value for name, value in os.environ.items() if name != _LATCHED}
    with tempfile.TemporaryDirectory(prefix="kvgraft-bench-") as folder:
        answer = Path(folder) / "answer.json"
        done = subprocess.run(
            [sys.executable, "-m", "kvgraft.bench.children", task, str(answer)],
            input=json.dumps(job),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            env=environment,
            check=False,
        )
        if done.returncode != 0 or not answer.is_file():
            reason = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
            raise EngineFailed(f"the benchmark's task {task} failed: {reason[0]}")
        return json.loads(answer.read_text(encoding="utf-8"))


def _ids(job: dict[str, Any]) -> Any:
    """{"path", "ids"}: the model's file, checked, and the first tokens of the text."""
    with FrozenModel.open(ModelPin.from_json(job["pin"])) as model:
        ids = plan.prose(model, job["seed"], job["n_tokens"])
        return {"path": str(model.path), "ids": ids}


def _run(task: str, job: dict[str, Any]) -> Any:
    from kvgraft.bench import ours, rivals, splits

    if task == "ids":
        return _ids(job)
    if task == "splits":
        return splits.measure(job)
    work = Work.from_json(job["work"])
    if task == "rivals":
        return rivals.measure(work)
    if task == "memory":
        return ours.measure_memory(work, job["preset"], job["block"])
    return ours.measure(work, job["preset"])


def main(arguments: list[str]) -> int:
    """The child: task and answer's path as arguments, job on standard input."""
    task, answer = arguments
    try:
        value = _run(task, json.load(sys.stdin))
    except TypedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    Path(answer).write_text(json.dumps(value), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
