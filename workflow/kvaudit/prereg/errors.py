"""What can be wrong with a registration, its criteria, or a run that claims it."""

from __future__ import annotations

from kvaudit.errors import EvidenceIncomplete, TypedError, UnusableInput


class ExpressionInvalid(UnusableInput):
    """A criterion or prediction cannot be read, or means nothing for any summary."""


class FieldMissing(EvidenceIncomplete):
    """A summary lacks a field that a criterion or prediction reads (exit 3)."""


class RegistrationInvalid(UnusableInput):
    """A registration is not what it must be, or not where it must be."""


class RegistrationChanged(TypedError):
    """A filed registration, its outcome or its chain is no longer what it was (exit 1)."""

    exit_code = 1


class RegistrationClosed(UnusableInput):
    """What was asked comes too late: there is an outcome, or a run, already."""


class TreeDiffers(UnusableInput):
    """The working tree is not the one that the draft or the registration states."""


class RunRefused(TypedError):
    """A run is not one of this registration; names everything that differs (exit 1)."""

    exit_code = 1
