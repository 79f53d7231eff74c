"""What a sandboxed program may use and how its run is told: bounds, endings, answers.

This module must not know how a program is isolated; it starts nothing.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

Ending = Literal[
    "printed", "no answer", "error", "timeout", "memory", "output flood", "sandbox failure"
]
Outcome = Literal[
    "answer", "wrong", "no answer", "error", "timeout", "memory", "output flood", "sandbox failure"
]

MAX_DIGITS = 15  # every such integer is exact in JSON and in a double
_INTEGER = re.compile(rb"[+-]?[0-9]{1,%d}" % MAX_DIGITS)


@dataclass(frozen=True)
class Limits:
    """Bounds of one run. Memory and CPU time hold for each process, the others for all together.

    `file_bytes` bounds each file; /tmp as a whole holds `tmp_bytes` in at most `tmp_files` files,
    folders and links, with more of which a run ends as "memory". They are counted every few
    milliseconds, so that a run may pass the bound by what it makes in between. Standard output and
    standard error together may have `output_bytes`. So the memory of one run is at most `processes`
    times `memory_bytes`, plus /tmp, plus a kilobyte for each of its files.
    """

    wall_seconds: float = 5.0
    cpu_seconds: int = 4
    memory_bytes: int = 256 << 20
    processes: int = 16
    file_bytes: int = 1 << 20
    output_bytes: int = 64 << 10
    tmp_bytes: int = 16 << 20
    tmp_files: int = 1024


@dataclass(frozen=True)
class Ran:
    """How one program ended.

    Attributes:
        ending: "printed" when it ended well and its last line is an integer.
        answer: that integer, else None.
        output: standard output alone, at most `output_bytes`; a warning does not hide an answer.
        exit_code: of the program; negative for a signal; None when it was stopped from outside.
        seconds: wall time with the start of the sandbox.
        complaint: standard error, of the program or, at "sandbox failure", of bubblewrap.
        cpu_seconds: time of a processor that the program took; None when it was stopped from
            outside. No part of a record.
    """

    ending: Ending
    answer: int | None
    output: bytes
    exit_code: int | None
    seconds: float
    complaint: bytes = b""
    cpu_seconds: float | None = None

    def to_json(self) -> dict[str, object]:
        """The run as a record; output that is not UTF-8 is escaped, its digest is of the bytes."""
        return {
            "ending": self.ending,
            "answer": self.answer,
            "output": self.output.decode("utf-8", "backslashreplace"),
            "output_sha256": hashlib.sha256(self.output).hexdigest(),
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 6),
        }


def outcome(ran: Ran, known: int | None) -> Outcome:
    """The named outcome of a run.

    Args:
        ran: the run.
        known: the right answer; None when nobody knows it, then any printed integer is an answer.
    """
    if ran.ending != "printed":
        return ran.ending
    return "answer" if known is None or ran.answer == known else "wrong"


def last_integer(output: bytes) -> int | None:
    """The integer on the last line that holds anything, or None.

    The whole line must be one decimal integer of at most `MAX_DIGITS` digits, with or without a
    sign, blanks around it allowed. "12.0" is no integer: it comes from a division that need not
    have been exact, and a program that means 12 prints 12.
    """
    line = output.strip().rpartition(b"\n")[2].strip()
    return int(line) if _INTEGER.fullmatch(line) else None
