"""What was created for lazy functions in this process: their dispatchers, finished or not, and the backend that serves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.numba.fingerprints.content import content_of
from compcache.numba.lazy.entries import open_cache
from compcache.numba.lazy.installed import installed_backend
from compcache.numba.lazy.stand_ins import original
from compcache.numba.registered.refusals import Unidentifiable

if TYPE_CHECKING:
    from compcache.numba.dispatch.backend import Backend
    from compcache.numba.fingerprints.walk import Part
    from compcache.numba.lazy.entries import Key
    from compcache.numba.lazy.state import State

__all__ = [
    "LazyDispatcher",
    "backend_for_lazy",
    "dispatchers",
    "note_unfinished",
    "parts_of",
    "real_options",
    "state_of_dispatcher",
    "unfinished",
]


class LazyDispatcher(NamedTuple):
    """A lazy function that has its dispatcher."""

    state: State
    real: Any
    backend: Backend


#: All of them, because compiling one compiles its callees.
dispatchers: list[LazyDispatcher] = []


def state_of_dispatcher(dispatcher: Any) -> State | None:
    """Return the state of the lazy function for which a dispatcher was created, or None."""
    return next((one.state for one in dispatchers if one.real is dispatcher), None)


#: Unfinished dispatchers, which a function that reads itself needs. The lock of Numba's compiler keeps other threads from them.
unfinished: dict[int, Any] = {}


def note_unfinished(state: State, real: Any) -> None:
    """Register an unfinished dispatcher, for a function that reads itself."""
    unfinished[id(state)] = real


def real_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a decorator, with Numba's own types of variables."""
    if "locals" not in options:
        return options
    return {**options, "locals": {name: original(type_) for name, type_ in options["locals"].items()}}


_private_backend: Backend | None = None


def backend_for_lazy() -> Backend | None:
    """Return the installed backend, or one for lazy functions only; None if it does not support this version of Numba."""
    global _private_backend  # noqa: PLW0603 - Numba is one per process
    from compcache.numba.versions.supported import is_unsupported

    installed: Backend | None = installed_backend()
    if installed is not None:
        return installed
    if is_unsupported():
        return None
    if _private_backend is None:
        from numba.core import entrypoints

        from compcache.numba.dispatch.backend import Backend
        from compcache.numba.hooks import recorders

        cache = open_cache()
        if cache is None:
            return None
        recorders.start_recording(from_the_start=not entrypoints._already_initialized)
        _private_backend = Backend(cache)
    return _private_backend


def parts_of(state: State, key: Key) -> list[Part]:
    """Return the reads of the function and its callees when the code that ran here was compiled, with a unique mark for each function whose
    reads have changed since.
    """
    from compcache.numba.fingerprints.walk import Part, fingerprint

    now: dict[int, bytes] = {}
    parts: dict[int, Part] = {}
    try:
        content = content_of(state.function, tuple(sorted(state.key_options.items())), key.given)
        now = {id(part.function): part.digest for part in content.parts}
        parts = {id(part.function): part for part in fingerprint(state.function).parts}
    except Unidentifiable:
        pass
    return [
        parts[id(old.function)]
        if now.get(id(old.function)) == old.digest and id(old.function) in parts
        else Part(old.function, b"read before Numba was imported")
        for old in key.content.parts
    ]
