"""Finds kernels that were compiled into a package, for `njit` without Numba. `compcache.numba.exports.package` creates the kernels."""

from __future__ import annotations

import os

from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FunctionType
    from typing import Any

__all__ = ["DIRECTORY", "Kernels", "decorate_packaged", "find_kernels", "kernel_name"]

#: The name of the directory with the kernels of a module, beside the module.
DIRECTORY = "__compcache__"
_caches: dict[str, Any] = {}


class Kernels:
    """The packaged kernels of one function, one for each signature."""

    def __init__(self, function: FunctionType, targets: Sequence[Any]) -> None:
        self.py_func = self.__wrapped__ = function
        self.__module__, self.__name__, self.__qualname__ = function.__module__, function.__name__, function.__qualname__
        self.__doc__ = function.__doc__
        self._targets = targets

    def __repr__(self) -> str:
        return f"<packaged kernels of {self.__module__}.{self.__qualname__}>"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the kernels in order, until one does not raise `TypeError`.

        Raises:
            TypeError: each kernel raised it, because it does not accept the arguments or itself failed. The first error is the cause.
            OverflowError, ValueError: a kernel accepts the types of the arguments, but not a value.
        """
        cause: TypeError | None = None
        for target in self._targets:
            try:
                return target(*arguments, **named)
            except TypeError as error:
                reraise_interrupt(error)
                cause = cause or error
        types = ", ".join(type(argument).__name__ for argument in (*arguments, *named.values()))
        signatures = " or ".join(str(target.signature) for target in self._targets)
        raise TypeError(f"each kernel of {self.__qualname__}() raised TypeError for ({types}): pass arguments for {signatures}") from cause


def decorate_packaged(function: FunctionType) -> Any:
    """Return the packaged kernels of a function. Raise `ImportError` if no kernel was packaged."""
    kernels = find_kernels(function)
    if kernels is None:
        raise ImportError(
            f"{function.__module__}.{function.__qualname__} has no packaged kernel, and numba is not installed; "
            "install numba, or package the kernels of its module",
            name="numba",
        )
    return kernels


def find_kernels(function: FunctionType) -> Any:
    """Return the packaged kernels of a function.

    The directory of kernels beside the module's file is trusted like that file, and must have the same owner. Code without a file (in an
    interactive session, or from `exec`) has no kernels, even if the current directory contains such a directory.

    Return a call target for one signature, or `Kernels` for several; None if no kernel was packaged. Raise `ImportError` if the directory
    is not trusted, or its kernels cannot run here. See `Cache.get_target` for other exceptions.
    """
    from compcache.cache import Cache
    from compcache.errors import NotCachedError

    file = function.__globals__.get("__file__")
    if not isinstance(file, str):
        return None
    directory = os.path.join(os.path.dirname(file), DIRECTORY)
    if directory not in _caches:
        if not os.path.isdir(directory):
            return None
        _require_trusted(directory, file)
        _caches[directory] = Cache(directory, readonly=True, trust=True, layers=())
    cache, name = _caches[directory], f"{function.__module__}.{function.__qualname__}"
    targets: list[Any] = []
    try:
        while True:
            targets.append(cache.get_target(kernel_name(name, len(targets))))
    except NotCachedError as error:
        if not targets and cache.realizations(name):
            raise ImportError(f"the packaged kernels of {name} cannot be loaded ({error}): package them again, or install numba") from error
    if len(targets) == 1:
        return targets[0]
    return Kernels(function, targets) if targets else None


def _require_trusted(directory: str, file: str) -> None:
    """Check that a directory of kernels is as trustworthy as the file of the module.

    For example, anybody can create a directory beside a script in /tmp.

    Raises:
        ImportError: the owner of the directory is neither the owner of the file, nor this user, nor the superuser; or everybody can write
            to the directory, but not to the file.
    """
    status = os.stat(directory)
    try:
        file_status = os.stat(file)
    except OSError as error:  # the file no longer exists, so only this user and the superuser are trusted
        reraise_interrupt(error)
        file_status = os.stat_result((0o600, 0, 0, 0, os.getuid(), 0, 0, 0, 0, 0))
    owners = (file_status.st_uid, os.getuid(), 0)
    for kind, owner in (("directory", status.st_uid), ("symbolic link", os.lstat(directory).st_uid)):
        if owner not in owners:
            reason = f"the {kind} does not belong to the owner of {file}; correct the owner, or install numba"
            raise ImportError(f"the kernels in {directory} are not used: {reason}")
    if status.st_mode & ~file_status.st_mode & 0o002:
        reason = f"everybody can write to the directory; run 'chmod -R o-w {directory}', or install numba"
        raise ImportError(f"the kernels in {directory} are not used: {reason}")


def kernel_name(name: str, number: int) -> str:
    """Return the func_name of the kernel for a signature of a function. The signatures are numbered from 0."""
    return f"{name}#{number}" if number else name
