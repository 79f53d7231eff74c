"""llama-cpp-python's own ways to keep a state: `save_state` pickled to a file, `LlamaDiskCache`.

Used as its documentation has them, with its defaults but for what makes the work the same: model
file, token ids, context size, batch size, threads, flash attention off. Runs in a process of its
own; knows nothing of sessions and blocks.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgraft.bench.work import WARM_UP, Clock, Measured, Work, flip_byte, largest_difference

PICKLED = "save_state, pickled"
CACHED = "LlamaDiskCache"


def measure(work: Work) -> dict[str, Any]:
    """Both rivals at every length; returns {"measured": [...]} as JSON."""
    import llama_cpp

    # Its cache reports every step on standard error, whatever it was told.
    with contextlib.redirect_stderr(io.StringIO()):
        llm = llama_cpp.Llama(
            model_path=str(work.pin.source["path"]),
            n_ctx=work.n_ctx,
            n_batch=512,
            n_ubatch=512,
            n_threads=work.n_threads,
            n_threads_batch=work.n_threads,
            n_gpu_layers=work.n_gpu_layers,
            flash_attn=False,
            swa_full=True,
            verbose=False,
        )
        llm.eval(list(work.ids[:WARM_UP]))
        measured = [one for n in work.lengths for one in _Rivals(llm, work, n).run()]
        llm.close()
    return {"measured": [one.to_json() for one in measured]}


class _Rivals:
    """Both rivals at one length; they share the cold reading."""

    def __init__(self, llm: Any, work: Work, n_tokens: int) -> None:
        from llama_cpp.llama_cache import LlamaDiskCache

        self._llm = llm
        self._work = work
        self._n = n_tokens
        self._span, self._question = work.span(n_tokens), work.question(n_tokens)
        self._pickled, self._cached = Clock(), Clock()
        self._file = work.scratch / f"state-{n_tokens}.pickle"
        self._folder = work.scratch / f"disk-cache-{n_tokens}"
        self._cache = LlamaDiskCache(str(self._folder))

    def run(self) -> list[Measured]:
        """Rounds of a cold reading that is saved both ways, and a restore of each."""
        fresh = restored = hit = np.empty(0, np.float32)
        cached_bytes = 0
        for _ in range(self._work.repeats):
            fresh = self._cold()
            os.sync()  # a rival's restore shall not pay for writing its file back
            cached_bytes = _folder_bytes(self._folder)
            restored = self._restore(self._file)
            hit = self._hit()
        self._empty()
        self._llm.eval([*self._span, self._question])
        one_shot = self._logits()
        pickled_bytes = self._file.stat().st_size
        out = [
            self._measured(PICKLED, self._pickled, pickled_bytes, fresh, one_shot, restored),
            self._measured(CACHED, self._cached, cached_bytes, fresh, one_shot, hit),
        ]
        self._cache.cache.clear()
        self._cache.cache.close()
        self._file.unlink()
        return out

    def _measured(
        self,
        who: str,
        clock: Clock,
        disk_bytes: int,
        fresh: NDArray[np.float32],
        one_shot: NDArray[np.float32],
        restored: NDArray[np.float32],
    ) -> Measured:
        noticed = self._pickle_notices() if who == PICKLED else self._cache_notices()
        differences = {
            "same_split": largest_difference(fresh, restored),
            "one_shot": largest_difference(one_shot, restored),
        }
        return Measured(who, self._n, clock.seconds, disk_bytes, differences, noticed)

    def _empty(self) -> None:
        """Forget everything, cached rows included, so that only a restore can bring them back."""
        self._llm.reset()
        self._llm._ctx.kv_cache_clear()

    def _logits(self) -> NDArray[np.float32]:
        from llama_cpp import llama_cpp as api

        row = api.llama_get_logits_ith(self._llm._ctx.ctx, -1)
        return np.ctypeslib.as_array(row, (self._llm.n_vocab(),)).copy()

    def _cold(self) -> NDArray[np.float32]:
        self._empty()
        begin = time.perf_counter()
        self._llm.eval(self._span)
        middle = time.perf_counter()
        state = self._pickled.time("save", self._save)
        self._cache.cache.clear()
        self._cached.time("save", lambda: self._cache.__setitem__(self._span, state))
        again = time.perf_counter()
        self._llm.eval([self._question])
        logits = self._logits()
        end = time.perf_counter()
        for clock in (self._pickled, self._cached):
            clock.note("cold", (middle - begin) + (end - again))
        return logits

    def _save(self) -> Any:
        state = self._llm.save_state()
        with self._file.open("wb") as file:
            pickle.dump(state, file, protocol=pickle.HIGHEST_PROTOCOL)
        return state

    def _restore(self, path: Path) -> NDArray[np.float32]:
        self._empty()
        begin = time.perf_counter()
        with path.open("rb") as file:
            self._llm.load_state(pickle.load(file))  # noqa: S301 - written by `_save`
        assert self._llm.n_tokens == self._n
        self._llm.eval([self._question])
        logits = self._logits()
        self._pickled.note("restore", time.perf_counter() - begin)
        return logits

    def _hit(self) -> NDArray[np.float32]:
        """A completion of one token that finds its prompt in the cache.

        On a hit the cache takes the entry out and the completion puts a longer one in; both belong
        to what a user waits for. The look-up alone is timed too, and is no more than a part.
        """
        llm, prompt = self._llm, [*self._span, self._question]
        self._empty()
        llm.set_cache(self._cache)
        begin = time.perf_counter()
        llm.create_completion(prompt, max_tokens=1, temperature=0.0)
        self._cached.note("restore", time.perf_counter() - begin)
        llm.set_cache(None)
        logits = self._logits()
        self._empty()
        begin = time.perf_counter()
        llm.load_state(self._cache[prompt])
        llm.eval([self._question])
        self._cached.note("lookup", time.perf_counter() - begin)
        return logits

    # -- does it look at what it reads? -----------------------------------------------------------

    def _pickle_notices(self) -> bool:
        """Change one byte of the saved state; True if restoring it raises."""
        with self._file.open("rb") as file:
            state = pickle.load(file).llama_state  # noqa: S301 - written by `_save`
        damaged = self._file.with_suffix(".damaged")
        _flip_inside([self._file], state, damaged)
        timings = self._pickled
        self._pickled = Clock()
        try:
            self._restore(damaged)
        except Exception:  # whatever it raises, it noticed
            return True
        finally:
            self._pickled = timings
            damaged.unlink()
        return False

    def _cache_notices(self) -> bool:
        """The same for the file of the cache's folder that holds the state."""
        self._cache.cache.clear()
        self._empty()
        self._llm.eval(self._span)
        state = self._llm.save_state()
        self._cache[self._span] = state
        _flip_inside(_files(self._folder), state.llama_state)
        try:
            self._llm.load_state(self._cache[[*self._span, self._question]])
        except Exception:  # whatever it raises, it noticed
            return True
        return False


def _flip_inside(files: list[Path], state: bytes, target: Path | None = None) -> None:
    """Change one byte amid the state's last rows, in whichever file holds them.

    A small entry lies in pages of a database, which may cut a few bytes apart: others are tried.
    """
    for back in range(2000, 3000, 100):
        mark = state[-back : -back + 64]
        for path in files:
            at = path.read_bytes().rfind(mark)
            if at >= 0:
                flip_byte(path, target or path, at)
                return
    raise ValueError("no file holds the state as it is")


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder))
