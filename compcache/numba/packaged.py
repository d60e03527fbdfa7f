"""Kernels that were compiled into a package: made where Numba is, used by `compcache.numba.njit` where it is not."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FunctionType, ModuleType
    from typing import Any

    from compcache.build.source import ModuleSource

__all__ = ["DIRECTORY", "Kernels", "decorate_packaged", "find_kernels", "package_exports", "write_sources"]

#: The directory of kernels, beside the modules that they come from.
DIRECTORY = "__compcache__"
_caches: dict[str, Any] = {}
#: The directories of a cache that readers need.
_SHIPPED = ("modules-", "index-", "signatures-")


# ------------------------------------------------------------------- where Numba is not


class Kernels:
    """The kernels of one function, for each of several signatures that it was packaged with."""

    def __init__(self, function: FunctionType, targets: Sequence[Any]) -> None:
        self.py_func = self.__wrapped__ = function
        self.__module__, self.__name__, self.__qualname__ = function.__module__, function.__name__, function.__qualname__
        self.__doc__ = function.__doc__
        self._targets = targets

    def __repr__(self) -> str:
        return f"<packaged kernels of {self.__module__}.{self.__qualname__}>"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the first one that takes such arguments."""
        first: TypeError | None = None
        for target in self._targets:
            try:
                return target(*arguments, **named)
            except TypeError as error:
                first = first or error
        shown = ", ".join(type(argument).__name__ for argument in arguments)
        known = "; ".join(str(target.signature) for target in self._targets)
        raise TypeError(f"{self.__qualname__} was compiled for {known}, and not for ({shown})") from first


def decorate_packaged(missing: ImportError) -> Any:
    """What a decorator with a signature gives where Numba is not installed: the packaged kernels of a function.

    Raises:
        ImportError: nothing was packaged of it; this says that Numba is missing.
    """

    def decorate(function: FunctionType) -> Any:
        kernels = find_kernels(function)
        if kernels is None:
            raise ImportError(
                f"{function.__module__}.{function.__qualname__} needs numba, which is not installed: no kernel of it is packaged beside "
                "its module",
                name="numba",
            ) from missing
        return kernels

    return decorate


def find_kernels(function: FunctionType) -> Any:
    """What was packaged of a function: a call target, or `Kernels` of several signatures; None if nothing was.

    Whoever can write the directory can write the module that asks for it: it is trusted like this module's own code.
    """
    from compcache.cache import Cache
    from compcache.errors import NotCachedError

    place = os.path.join(os.path.dirname(os.path.abspath(function.__code__.co_filename)), DIRECTORY)
    if place not in _caches:
        if not os.path.isdir(place):
            return None
        _caches[place] = Cache(place, readonly=True, trust=True, layers=())
    cache, name = _caches[place], f"{function.__module__}.{function.__qualname__}"
    targets: list[Any] = []
    try:
        while True:
            targets.append(cache.get_target(_numbered(name, len(targets))))
    except NotCachedError as error:
        if not targets and cache.realizations(name):
            raise ImportError(f"the packaged kernels of {name} cannot be used here, and numba is not installed: {error}") from error
    if len(targets) == 1:
        return targets[0]
    return Kernels(function, targets) if targets else None


def _numbered(name: str, number: int) -> str:
    return f"{name}#{number}" if number else name


# ----------------------------------------------------------------------- where Numba is


def package_exports(modules: Iterable[ModuleType], out: str, targets: Iterable[str] | str | None) -> tuple[str, ...]:
    """See `compcache.numba.package`, for several modules."""
    from compcache.cache import Cache
    from compcache.numba import export

    names: list[str] = []
    with _Scratch() as place, Cache(place, layers=()) as cache:
        for module in modules:
            for function, signatures in _kernels_of(module):
                name = f"{function.__module__}.{function.__qualname__}"
                for number, signature in enumerate(signatures):
                    names.append(_numbered(name, number))
                    export(function, signature, cache=cache, name=names[-1], targets=targets)
        if names:
            _fill(cache, names, out, place)
    return tuple(names)


def write_sources(sources: Iterable[ModuleSource], out: str, targets: Iterable[str] | str | None) -> tuple[str, ...]:
    """Compile modules into a directory of kernels; sources that name a CPU or targets keep them."""
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
    """A directory for a while."""

    def __enter__(self) -> str:
        import tempfile

        self._directory = tempfile.TemporaryDirectory(prefix="compcache-package-")
        return os.path.join(self._directory.name, "cache")

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()


def _fill(cache: Any, names: Sequence[str], out: str, scratch: str) -> None:
    """Put functions and what they need into a directory, with nothing of this host and no time in it."""
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
    """The jitted functions that a module defines, with the signatures that they are declared with.

    Raises:
        ValueError: there are kernels, and one of them has no signature.
    """
    found = []
    for name, value in sorted(vars(module).items()):
        function = getattr(value, "py_func", None)
        if function is None or getattr(function, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        signatures = list(getattr(value, "nopython_signatures", ()))
        if not signatures:
            raise ValueError(
                f"{module.__name__}.{name} is declared without a signature, which says for which types it is compiled: "
                'write @njit("float64(float64[::1])"), or give it a name that begins with _ if only other kernels call it'
            )
        found.append((value, signatures))
    return found
