"""Errors of the engine side. Each says what was expected, what was found and what to do next."""

from __future__ import annotations

from kvaudit.errors import TypedError


class ModelMismatch(TypedError):
    """A model file, or the model a block was captured with, is not the pinned one."""


class ModelNotInstalled(ModelMismatch):
    """The package that carries a pinned model is not installed."""

    exit_code = 3


class ModelUnsupported(TypedError):
    """The architecture keeps state that a sequence capture does not restore in full."""


class ProfileMismatch(TypedError):
    """A block or record was made under another execution profile."""


class EngineUnavailable(TypedError):
    """The inference engine cannot be loaded or was loaded with other process-wide settings."""


class EngineNotInstalled(EngineUnavailable):
    """The inference engine is not installed, or its libraries do not load."""

    exit_code = 3


class NotPortable(TypedError):
    """The engine that is loaded, or was given, does not compute the portable arithmetic."""

    exit_code = 1


class GraftRefused(TypedError):
    """A block may not be grafted here: the context is not empty, or a parent is missing."""


class ContextFull(TypedError):
    """The context has no room for the tokens asked for."""


class TokenOutOfVocabulary(TypedError):
    """A token id lies outside the model's vocabulary."""


class EmptySpan(TypedError):
    """A span of no tokens was given where at least one is needed."""


class SessionClosed(TypedError):
    """The session was used after it was closed."""


class EngineOutOfMemory(TypedError):
    """The engine could not allocate the context or a compute buffer."""


class EngineFailed(TypedError):
    """The engine returned an error that has no more precise class."""


class StateRefused(TypedError):
    """State bytes are malformed for this context, or the engine did not accept all of them."""


class DeterminismFailed(TypedError):
    """Two fresh computations under one profile differ, so no comparison would mean anything."""

    exit_code = 1


class StoreFull(TypedError):
    """The store's file system has no room; nothing was left half-written."""


class StoreReadOnly(TypedError):
    """The store cannot be written to."""


class StoreDamaged(TypedError):
    """The store's folder is not laid out as a block store."""


class StageBusy(TypedError):
    """Another process is at work on a stage's folder."""


class LibraryDamaged(TypedError):
    """A library's folder is not laid out as one, or an entry in it is not what its name says."""


class EntryNotFound(TypedError):
    """A library holds no entry of that id, or several whose ids begin so."""


class DepositRefused(TypedError):
    """A deposit does not enter a library: its program did not print its answer."""

    exit_code = 1


class ArchiveRefused(TypedError):
    """An archive of a library is not in its one form; nothing of it was taken in."""


class TemplateMismatch(TypedError):
    """The numbers of a statement do not fit those that a template binds."""
