"""Compiles the kernels of modules into directories that packages ship. `compcache.numba.kernels.find` finds them there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from compcache.numba.kernels.find import numbered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

    from compcache import ModuleSource

__all__ = ["package_exports", "write_sources"]

#: The subdirectories of a cache that readers need.
_SHIPPED = ("modules-", "index-", "signatures-")


def package_exports(modules: Iterable[ModuleType], out: str, targets: Iterable[str] | str | None) -> tuple[str, ...]:
    """Implement `compcache.numba.package` for several modules."""
    from compcache.cache import Cache
    from compcache.numba.exports.export import export

    names: list[str] = []
    with _Scratch() as place, Cache(place, layers=()) as cache:
        for module in modules:
            for function, signatures in _kernels_of(module):
                name = f"{function.__module__}.{function.__qualname__}"
                for number, signature in enumerate(signatures):
                    names.append(numbered(name, number))
                    export(function, signature, cache=cache, name=names[-1], targets=targets)
        if names:
            _fill(cache, names, out, place)
    return tuple(names)


def write_sources(sources: Iterable[ModuleSource], out: str, targets: Iterable[str] | str | None) -> tuple[str, ...]:
    """Compile modules into a directory of kernels. Sources that name a CPU or targets keep them."""
    from compcache.cache import Cache

    with _Scratch() as place, Cache(place, layers=()) as cache:
        for source in sources:
            if source.targets is None and source.cpu is None and source.features is None:
                source.targets = targets
            cache.add_module(source)
        names = list(cache)
        _fill(cache, names, out, place)
    return tuple(names)


class _Scratch:
    """A temporary directory."""

    def __enter__(self) -> str:
        import tempfile

        self._directory = tempfile.TemporaryDirectory(prefix="compcache-package-")
        return os.path.join(self._directory.name, "cache")

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()


def _fill(cache: Any, names: Sequence[str], out: str, scratch: str) -> None:
    """Copy functions and what they need into a directory, without anything that depends on this host or on the time."""
    import shutil

    from compcache.cache import Cache

    bundle = f"{scratch}.ccb"
    cache.export(names, bundle)
    with Cache(out, layers=(), trust=True) as packaged:
        packaged.import_bundle(bundle)
    for directory in os.scandir(out):
        if directory.is_dir() and not directory.name.startswith(_SHIPPED):
            shutil.rmtree(directory)


def _kernels_of(module: ModuleType) -> list[tuple[Any, list[Any]]]:
    """Return the jitted functions that a module defines, with their declared signatures.

    Raises:
        ValueError: a kernel has no signature, although others have one.
    """
    found = []
    for name, value in sorted(vars(module).items()):
        function = getattr(value, "py_func", None)
        if function is None or getattr(function, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        signatures = list(getattr(value, "nopython_signatures", ()))
        if not signatures:
            raise ValueError(
                f"{module.__name__}.{name} is declared without a signature, which says for which types to compile it: "
                'write @njit("float64(float64[::1])"), or give it a name that begins with _ if only other kernels call it'
            )
        found.append((value, signatures))
    return found
