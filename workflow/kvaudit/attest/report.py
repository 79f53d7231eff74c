"""What an attestation is worth to the reader who gave the keys, as a value and as plain text.

This module must not know how it was found out, so that a reader without keys loads no cryptography.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvaudit.chain import Finding, exit_code
from kvaudit.errors import printable

MAX_SHOWN = 50


@dataclass(frozen=True)
class AttestationReport:
    """The attestation of a run, checked with the keys given, or not checked.

    `checked` is False where no key was given; nothing is known of the signatures then. `signers`
    are the ids of the given keys that have signed and whose signatures count. `stamped` is the time
    no later than which all of them existed; None without a time stamp, or where nobody is trusted
    to make one: then `stamp_unchecked` says whether there is one.
    """

    checked: bool
    signers: tuple[str, ...] = ()
    keys: int = 0
    threshold: int = 0
    subjects: int = 0
    findings: tuple[Finding, ...] = ()
    stamped: str | None = None
    stamp_unchecked: bool = False

    @property
    def exit_code(self) -> int:
        """0, 1 or 3, as the verifier's."""
        return exit_code(self.findings)

    def to_json(self) -> dict[str, Any]:
        """A JSON object for `kvaudit verify --json`."""
        return {
            "checked": self.checked,
            "signers": list(self.signers),
            "keys": self.keys,
            "threshold": self.threshold,
            "subjects": self.subjects,
            "stamped": self.stamped,
            "stamp_unchecked": self.stamp_unchecked,
            "findings": [vars(finding) for finding in self.findings],
        }

    def render(self) -> str:
        """Plain text without a final newline."""
        if not self.checked and not self.findings:
            return "attestation: present, NOT checked (no --key was given)"
        if self.findings:
            lines = [
                f"  {found.severity}: {printable(found.file)}: {printable(found.message, 2000)}"
                for found in self.findings[:MAX_SHOWN]
            ]
            if len(self.findings) > MAX_SHOWN:
                lines.append(f"  and {len(self.findings) - MAX_SHOWN} more (--json has them all)")
            return "\n".join([f"attestation: does not hold ({len(self.findings)}):", *lines])
        when = f", no later than {self.stamped}," if self.stamped else ""
        unchecked = ""
        if self.stamp_unchecked:
            unchecked = "; time stamp present, NOT checked (no --root was given)"
        return (
            f"attestation: holds; {self.subjects} files signed{when} by {len(self.signers)} of "
            f"{self.keys} given keys, {self.threshold} needed: {', '.join(self.signers)}"
            f"{unchecked}"
        )


UNCHECKED = AttestationReport(checked=False)
