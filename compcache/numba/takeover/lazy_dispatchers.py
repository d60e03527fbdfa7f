"""Creates Numba's objects for lazy functions, and finds the backend that serves them. Knows the dispatchers that are being created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compcache.numba.fingerprints.owners import record_lazy_owner
from compcache.numba.lazy import installed_backend
from compcache.numba.lazy.entries import open_cache
from compcache.numba.lazy.stand_ins import numba_decorator
from compcache.numba.registered.marks import original

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.numba.dispatch import Backend
    from compcache.numba.lazy.state import State

__all__ = ["apply_decorator", "find_lazy_backend", "unfinished_dispatchers"]

#: Unfinished dispatchers by the id of the state. A function that refers to itself needs its dispatcher before the dispatcher is finished.
#: Numba's compiler lock prevents other threads from reading this table.
unfinished_dispatchers: dict[int, Any] = {}


def apply_decorator(state: State, signatures: Iterable[str] | None = None, *, use_numba_cache: bool = False) -> Any:
    """Return the result of Numba's own decorator for a function, with Numba's types in place of stand-ins in `locals`.

    `signatures` are declared; None declares none. `use_numba_cache` is whether Numba's own cache stores the function if the program has
    requested caching. The result is a dispatcher also if the program has disabled compilation since the declaration.
    """
    from numba.core import config

    options = {name: value for name, value in state.options.items() if use_numba_cache or name != "cache"}
    if "locals" in options:
        options["locals"] = {name: original(type_) for name, type_ in options["locals"].items()}
    args: list[Any] = [list(signatures)] if signatures is not None else []
    if state.decorator == "guvectorize":
        args.append(options.pop("signature"))
    present, config.DISABLE_JIT = config.DISABLE_JIT, 0
    try:
        dispatcher = numba_decorator(state.decorator)(*args, **options)(state.function)
    finally:
        config.DISABLE_JIT = present
    record_lazy_owner(dispatcher, state)
    return dispatcher


_private_backend: Backend | None = None


def find_lazy_backend() -> Backend | None:
    """Return the backend that serves lazy functions.

    Returns:
        The installed backend. If no backend is installed, a backend on the default cache, which is created on the first call; None if this
        version of Numba is not supported, or if the default cache cannot be opened.
    """
    global _private_backend  # noqa: PLW0603 - a process has one Numba
    from compcache.numba.versions import warn_if_unsupported

    installed: Backend | None = installed_backend()
    if installed is not None:
        return installed
    if warn_if_unsupported():
        return None
    if _private_backend is None:
        from numba.core import entrypoints

        from compcache.numba.dispatch import Backend
        from compcache.numba.hooks import recorders
        from compcache.numba.hooks.installation import Hooks

        cache = open_cache()
        if cache is None:
            return None
        recorders.start_recording(from_the_start=not entrypoints._already_initialized)
        _private_backend = Backend(cache)
        Hooks(_private_backend).serve_callees()
    return _private_backend
