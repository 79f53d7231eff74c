"""The questions with which composition is priced: two codes, one in each block, drawn from a seed.

Stage and verifier draw them alike. This module knows no model.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

ARMS = ("joint", "composed")
_THINGS = (
    *("anchor", "barrel", "candle", "drum", "engine", "ferry", "garden", "harbour", "island"),
    *("kettle", "lantern", "mill", "needle", "orchard", "piano", "quarry", "ribbon", "saddle"),
    *("tower", "umbrella", "violin", "wagon", "yard"),
)


@dataclass(frozen=True)
class Asked:
    """Two things with a code each: five digits, none of them alike."""

    things: tuple[str, str]
    codes: tuple[str, str]

    def sentence(self, i: int) -> str:
        """The sentence that block `i` ends with."""
        return f"The secret code of the {self.things[i]} is {self.codes[i]}."

    def question(self, needs: int) -> str:
        """The question that needs the second block alone, or both."""
        if needs == 1:
            what = f"What is the secret code of the {self.things[1]}?"
            return f"\nQuestion: {what}\nAnswer: The secret code of the {self.things[1]} is"
        what = f"What are the secret codes of the {self.things[0]} and the {self.things[1]}?"
        return f"\nQuestion: {what}\nAnswer: The secret code of the {self.things[0]} is"

    def right(self, needs: int) -> list[str]:
        """The codes that the right answer gives."""
        return [text.strip() for text, is_code in self.pieces(needs) if is_code]

    def pieces(self, needs: int) -> list[tuple[str, bool]]:
        """The right answer behind the question: (text, whether it is a code)."""
        if needs == 1:
            return [(f" {self.codes[1]}", True)]
        between = f", and the secret code of the {self.things[1]} is"
        return [(f" {self.codes[0]}", True), (between, False), (f" {self.codes[1]}", True)]


def draw(seed: str, index: int) -> Asked:
    """The question `index` of a seed: the same on every machine."""
    digest = hashlib.sha256(f"{seed}/answer/{index}".encode()).digest()
    first = digest[0] % len(_THINGS)
    second = (first + 1 + digest[1] % (len(_THINGS) - 1)) % len(_THINGS)
    one = 10000 + int.from_bytes(digest[2:6], "big") % 90000
    other = 10000 + int.from_bytes(digest[6:10], "big") % 90000
    if one == other:
        other = 10000 + (other - 9999) % 90000
    return Asked((_THINGS[first], _THINGS[second]), (str(one), str(other)))
