"""Compiles the kernels of modules into directories that packages ship. `compcache.numba.kernels.find` reads these directories."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from compcache.numba.kernels.find import kernel_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType

    from compcache import ModuleSource
    from compcache.cache import Cache

__all__ = ["package_exports", "write_sources"]

#: The name prefixes of the cache's subdirectories that readers need.
_SHIPPED = ("modules-", "index-", "signatures-")


def package_exports(modules: Iterable[ModuleType], out: str, targets: Iterable[str] | str | None) -> tuple[str, ...]:
    """Compile every kernel of several modules into a directory. `compcache.numba.package` documents the arguments.

    Return the func_names of the kernels. If the modules have no kernels, nothing is written.

    Raises:
        CompileError: a kernel cannot be exported.
        ImportError: Numba is not installed.
        OSError: no temporary directory can be created.
        StorageError: the directory cannot be written.
        ValueError: a public jitted function has no signature.
    """
    from compcache.numba.lazy.stand_ins import real_numba

    real_numba()  # the import of the next module requires it
    from compcache.numba.exports.export import export

    names: list[str] = []
    with _scratch_cache() as cache:
        for module in modules:
            for function, signatures in _find_module_kernels(module):
                name = f"{function.__module__}.{function.__qualname__}"
                for number, signature in enumerate(signatures):
                    names.append(kernel_name(name, number))
                    export(function, signature, cache=cache, name=names[-1], targets=targets)
        if names:
            _copy_kernels(cache, names, out)
    return tuple(names)


def write_sources(sources: Iterable[ModuleSource], out: str, targets: Iterable[str] | str | None) -> tuple[str, ...]:
    """Compile modules into a directory of kernels, and return the names of all functions in it.

    `targets` is assigned to each module that has neither a CPU, nor features, nor targets. See `Cache.add_module` for exceptions.
    """
    with _scratch_cache() as cache:
        for source in sources:
            if source.targets is None and source.cpu is None and source.features is None:
                source.targets = targets
            cache.add_module(source)
        names = list(cache)
        _copy_kernels(cache, names, out)
    return tuple(names)


@contextmanager
def _scratch_cache() -> Iterator[Cache]:
    """Provide an empty cache in a temporary directory, which is removed at the end. Raise `OSError` if it cannot be created."""
    from compcache.cache import Cache
    from compcache.processes.scratch import scratch_directory

    with scratch_directory("compcache-package-") as directory, Cache(os.path.join(directory, "cache"), layers=()) as cache:
        yield cache


def _copy_kernels(cache: Cache, names: Sequence[str], out: str) -> None:
    """Copy functions and their dependencies into a directory, without subdirectories that depend on this host or on the time.

    A bundle is written beside the directory of the cache. Raise `StorageError` if the bundle or the directory cannot be written.
    """
    import shutil

    from compcache.cache import Cache

    bundle = f"{cache.path}.ccb"
    cache.export(names, bundle)
    with Cache(out, layers=(), trust=True) as packaged:
        packaged.import_bundle(bundle)
    for directory in os.scandir(out):
        if directory.is_dir() and not directory.name.startswith(_SHIPPED):
            shutil.rmtree(directory)


def _find_module_kernels(module: ModuleType) -> list[tuple[Any, list[Any]]]:
    """Return the public jitted functions that a module defines, each with its declared signatures.

    Raise `ValueError` if a function without a leading underscore has no signature.
    """
    kernels = []
    for name, value in sorted(vars(module).items()):
        function = getattr(value, "py_func", None)
        if function is None or getattr(function, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        signatures = list(getattr(value, "nopython_signatures", ()))
        if not signatures:
            raise ValueError(
                f"{module.__name__}.{name} is decorated without a signature, so its argument types are unknown: "
                'write @njit("float64(float64[::1])"), or start the name with "_" if only other kernels call the function'
            )
        kernels.append((value, signatures))
    return kernels
