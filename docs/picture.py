"""Draw the terminal picture in README from a real verification: python docs/picture.py."""

import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
COMMAND = ["kvaudit", "verify", "results/reference", "--failing", "F9:gemma-3-270m"]
STAGE, ROWS, LAST = "D1 ", 16, 7
"""The picture shows so many lines from the first of the stage exactness on, and the last ones."""


def main() -> int:
    """Run the verifier on the reference run and save what it printed as an SVG file."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / COMMAND[0]), *COMMAND[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.rstrip().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(STAGE))
    left_out = len(lines) - begin - ROWS - LAST
    shown = [*lines[:2], f"… {begin - 2} lines …", *lines[begin : begin + ROWS]]
    lines = [*shown, f"… {left_out} lines …", *lines[-LAST:]]
    width = max(len(line) for line in lines) + 1
    console = Console(record=True, width=width, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(Text(f"$ {' '.join(COMMAND)}", style="bold"))
    for line in lines:
        text = Text(line)
        text.highlight_words([" holds"], style="green")
        text.highlight_words([" fails"], style="red")
        console.print(text)
    # The picture brings no font of its own and fetches none: any monospaced one will do.
    svg = console.export_svg(title="kvaudit", code_format=_without_fonts())
    (ROOT / "docs" / "verdict.svg").write_text(svg, encoding="utf-8")
    return done.returncode


def _without_fonts() -> str:
    from rich._export_format import CONSOLE_SVG_FORMAT

    svg = CONSOLE_SVG_FORMAT
    start, end = svg.index("@font-face"), svg.rindex("@font-face")
    end = svg.index("}}", end) + 2
    return svg[:start] + svg[end:]


if __name__ == "__main__":
    sys.exit(main())
