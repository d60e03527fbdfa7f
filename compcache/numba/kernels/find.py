"""Finds kernels that were compiled into a package, for `njit` without Numba (`compcache.numba.exports.package` creates them)."""

from __future__ import annotations

import os

from compcache.files import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FunctionType
    from typing import Any

__all__ = ["DIRECTORY", "Kernels", "decorate_packaged", "find_kernels", "numbered"]

#: The directory of kernels, beside the modules that they come from.
DIRECTORY = "__compcache__"
_caches: dict[str, Any] = {}


class Kernels:
    """The kernels of one function, one for each packaged signature."""

    def __init__(self, function: FunctionType, targets: Sequence[Any]) -> None:
        self.py_func = self.__wrapped__ = function
        self.__module__, self.__name__, self.__qualname__ = function.__module__, function.__name__, function.__qualname__
        self.__doc__ = function.__doc__
        self._targets = targets

    def __repr__(self) -> str:
        return f"<packaged kernels of {self.__module__}.{self.__qualname__}>"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the first kernel that accepts the arguments."""
        first: TypeError | None = None
        for target in self._targets:
            try:
                return target(*arguments, **named)
            except TypeError as error:
                reraise_interrupt(error)
                first = first or error
        shown = ", ".join(type(argument).__name__ for argument in arguments)
        known = "; ".join(str(target.signature) for target in self._targets)
        raise TypeError(f"{self.__qualname__} was compiled for {known}, and not for ({shown})") from first


def decorate_packaged(missing: ImportError) -> Any:
    """Return the result of a decorator with a signature if Numba is not installed: the packaged kernels of a function.

    Raises:
        ImportError: no kernel was packaged; the message says that Numba is missing.
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
    """Return what was packaged for a function: a call target, or `Kernels` for several signatures; None if nothing was.

    The directory beside the file of the function's module is trusted like that file, and must have the same owner. Code without a file (in
    an interactive session, or from `exec`) has no such directory, even if the current directory contains one.

    Raises:
        ImportError: the directory is another user's, or its kernels cannot be used here.
    """
    from compcache.cache import Cache
    from compcache.errors import NotCachedError

    file = function.__globals__.get("__file__")
    if not isinstance(file, str):
        return None
    place = os.path.join(os.path.dirname(file), DIRECTORY)
    if place not in _caches:
        if not os.path.isdir(place):
            return None
        _require_same_owner(place, file)
        _caches[place] = Cache(place, readonly=True, trust=True, layers=())
    cache, name = _caches[place], f"{function.__module__}.{function.__qualname__}"
    targets: list[Any] = []
    try:
        while True:
            targets.append(cache.get_target(numbered(name, len(targets))))
    except NotCachedError as error:
        if not targets and cache.realizations(name):
            raise ImportError(f"the packaged kernels of {name} cannot be used here, and numba is not installed: {error}") from error
    if len(targets) == 1:
        return targets[0]
    return Kernels(function, targets) if targets else None


def _require_same_owner(place: str, file: str) -> None:
    """Check that a directory has a trusted owner. In /tmp, for example, anybody can create one beside a script.

    Raises:
        ImportError: its owner is not that of the module, this user or the superuser, or everybody can write to it.
    """
    found = os.stat(place)
    try:
        module = os.stat(file)
    except OSError as error:  # it was removed: the directory speaks for itself
        reraise_interrupt(error)
        module = os.stat_result((0o600, 0, 0, 0, os.getuid(), 0, 0, 0, 0, 0))
    owners = (module.st_uid, os.getuid(), 0)
    if found.st_uid not in owners or os.lstat(place).st_uid not in owners:
        raise ImportError(f"{place} does not belong to the owner of {file}: kernels in it are not used, and numba is not installed")
    if found.st_mode & ~module.st_mode & 0o002:
        raise ImportError(f"everybody can write to {place}: kernels in it are not used; run 'chmod -R o-w {place}', or install numba")


def numbered(name: str, number: int) -> str:
    """Return the func_name of a kernel's n-th signature."""
    return f"{name}#{number}" if number else name
