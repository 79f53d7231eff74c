"""The command `kvgraft recheck`: what a run computed, computed again with the engine.

`add_commands` is loaded with --help, so imports that take time happen in `run`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvaudit.errors import UnusableInput, printable
from kvgraft.cli_common import emit, pretty

if TYPE_CHECKING:
    from kvgraft.recheck_common import Rechecked

_SHOWN = 20


def add_commands(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `recheck`.

    Args:
        commands: argparse's object of commands.
        command: (commands, name, summary, example) -> the parser of one, with --json.
    """
    parser = command(
        commands,
        "recheck",
        "compute a run's samples and generations again: tokens, draws, logits, states, blocks",
        "kvgraft recheck results/reference-portable --portable",
    )
    parser.add_argument("run", metavar="RUN", help="the directory of inputs.manifest.json")
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="this model alone; repeatable"
    )
    parser.add_argument(
        "--stage",
        action="append",
        default=[],
        choices=("exactness", "flywheel"),
        help="this stage alone; repeatable",
    )
    parser.add_argument(
        "--portable",
        action="store_true",
        help="load the portable build (make portable): the run's own bytes, on any machine",
    )
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="so many texts or generations a stage instead of all",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="of the engine (every core)")
    parser.add_argument(
        "--seed", default="recheck", metavar="TEXT", help="name that draws the sample (%(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Recheck, print, and return the exit code.

    Raises:
        UnusableInput: the sample is not positive, or the engine takes no such number of threads.
        TypedError: as `recheck.recheck`.
    """
    from kvgraft.profile import MAX_THREADS
    from kvgraft.recheck import recheck

    if options.sample is not None and options.sample < 1:
        raise UnusableInput("--sample is a positive number", found=options.sample)
    if options.threads is not None and not 1 <= options.threads <= MAX_THREADS:
        raise UnusableInput(
            "--threads is out of range", expected=f"1 to {MAX_THREADS}", found=options.threads
        )
    found = recheck(
        options.run,
        models=options.model,
        stages=options.stage,
        sample=options.sample,
        seed=options.seed,
        threads=options.threads,
        portable=options.portable,
        note=lambda text: print(f"kvgraft: {text}", file=sys.stderr, flush=True),
    )
    if options.json:
        emit(pretty([one.to_json() for one in found]))
    else:
        emit("".join(map(_render, found)))
    return 0 if all(one.passed for one in found) else 1


def _render(found: Rechecked) -> str:
    steps = f"{found.same_tokens:,} of {found.tokens:,} tokens the same"
    bytes_ = found.mode == "bytes"
    if found.stage == "flywheel":
        what, how = "generations", "tokens and logits" if bytes_ else "tokens alone"
        steps = f"{found.same_tokens:,} of {found.tokens:,} tokens drawn again"
    else:
        what, how = "readings", "logits, states, blocks" if bytes_ else "tokens alone"
    took = f"  {found.seconds:.0f} s"
    if found.original_seconds:
        ratio = found.seconds / found.original_seconds
        took += f", {ratio:.2f} times the {found.original_seconds:.0f} s recorded"
    lines = [
        f"{found.model}, {found.stage}: {found.equal:,} of {found.checked:,} {what} as recorded"
        f" ({how}), {steps}",
        took,
    ]
    if not found.checked:
        lines.append("  nothing was checked, so that this says nothing of the records")
    left = found.n - found.checked - sum(found.skipped.values())
    if left:
        lines.append(f"  {left:,} of {found.n:,} records were not drawn")
    lines += [f"  {n} not checked: {reason}" for reason, n in sorted(found.skipped.items())]
    if found.profile_differences:
        fields = ", ".join(found.profile_differences[:_SHOWN])
        lines.append(f"  another kind of machine, so that no byte can be compared: {fields}")
    for one in found.disagreements[:_SHOWN]:
        lines.append(f"  {one.file}, line {one.line} ({printable(one.where)}): {one.what}")
    if len(found.disagreements) > _SHOWN:
        lines.append(f"  and {len(found.disagreements) - _SHOWN} more")
    return "\n".join(lines) + "\n"
