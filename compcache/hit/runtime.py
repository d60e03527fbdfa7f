"""The native runtime in this process: the extension module `compcache.hit._runtime` (C sources in `native/`).

It is built with the package, and once for all versions of CPython except free-threaded ones. What it calls back is
given to it here, before it is used.
"""

from __future__ import annotations

import os

from compcache.hit.target import install

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from compcache.files import OpenBeneath

__all__ = ["load_runtime", "path_opener"]

_loaded: Any = None


def load_runtime() -> Any:
    """The native runtime of this process.

    Raises:
        ImportError: the extension module is not there, was not built from the sources beside it, or cannot work here
            (in a subinterpreter); the message says what to do.
    """
    global _loaded  # noqa: PLW0603 - an extension module is one per process
    if _loaded is None:
        try:
            from compcache.hit import _runtime
        except ImportError as error:
            if error.name is None:  # the extension itself refuses
                raise
            from compcache.hit.native_build import missing

            raise missing(error) from error
        if _runtime.SOURCES:
            _require_current(_runtime)
        install(_runtime)
        import atexit

        atexit.register(_runtime.end)
        _register_forks(_runtime)
        _loaded = _runtime
    return _loaded


def _register_forks(runtime: Any) -> None:
    """Have `compcache.forks` do what it does around each fork, to the end: a signal handler that raises there does not stop it."""
    if hasattr(os, "register_at_fork"):
        from _functools import partial  # type: ignore[import-not-found] # what `functools` has, without its import

        hooks = {when: partial(runtime.uninterrupted, _at_fork(when)) for when in ("before", "after_in_parent", "after_in_child")}
        os.register_at_fork(**hooks)


def _at_fork(when: str) -> Callable[[list[Any]], None]:
    def act(done: list[Any]) -> None:
        from compcache import forks

        getattr(forks, when)(done)

    return act


def path_opener() -> OpenBeneath | None:
    """The function that opens files below a directory in one call; None where the native runtime cannot be loaded."""
    try:
        opener: OpenBeneath = load_runtime().open_beneath
    except ImportError:  # a load will say why
        return None
    return opener


def _require_current(extension: ModuleType) -> None:
    """In a source checkout: read the sources if one is newer than the extension (folder included, for new files)."""
    folder = f"{os.path.dirname(str(extension.__file__))}/native/"
    built = os.stat(str(extension.__file__)).st_mtime_ns
    try:
        changed = any(os.stat(folder + name).st_mtime_ns > built for name in ("", *extension.SOURCES.split()))
    except FileNotFoundError:
        changed = os.path.isdir(folder)
    if changed:
        from compcache.hit.native_build import require_same_sources

        require_same_sources(extension)
