"""Defines the stand-in for `numba.cuda`, which is used until Numba is imported.

Packages with CUDA code declare kernels and device functions on import, and call `is_available`. Numba creates them on their first use. On a
host without a driver, `is_available` does not import Numba.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib import import_module

from compcache.numba.lazy import has_numba, has_settings_file
from compcache.numba.lazy.stand_ins import COPIED_ATTRIBUTES, LazyWrapper, numbas_object, real_numba
from compcache.numba.registered.refusals import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["CUDA_STAND_INS", "can_replace_cuda"]

_Function = type(lambda: 0)
#: The modules that packages use on import. Any other module of `numba.cuda` imports Numba.
_MODULES = frozenset(("numba.cuda", "numba.cuda.cudadrv", "numba.cuda.cudadrv.driver"))
#: The libraries that Numba tries to load to find NVIDIA's driver.
_DRIVERS = (
    ("libcuda.dylib", "/usr/local/cuda/lib/libcuda.dylib") if sys.platform == "darwin"
    else tuple(f"{folder}libcuda.so{end}" for folder in ("", "/usr/lib/", "/usr/lib64/") for end in ("", ".1"))
)  # fmt: skip


def can_replace_cuda(name: str) -> bool:
    """Return whether a stand-in can replace a module of `numba.cuda`. The result is False if another package replaces `numba.cuda`."""
    from compcache.numba.registered.distributions import package_directory

    return name in _MODULES and package_directory("numba_cuda") is None and "_numba_cuda_redirector" not in sys.modules


def _import_cuda() -> Any:
    """Import Numba, and return its module `numba.cuda`."""
    real_numba()
    return import_module("numba.cuda")


class LazyCudaFunction(LazyWrapper):
    """A CUDA kernel or device function, which Numba creates on first use."""

    __slots__ = ()

    def _compcache_make(self) -> Any:
        """Return Numba's kernel or device function with the options of the decorator."""
        return _import_cuda().jit(**object.__getattribute__(self, "_options"))(object.__getattribute__(self, "_function"))

    def _compcache_content(self, walk: Any) -> None:
        """Raise `NotLazy`, because only Numba can compile a function that uses this one."""
        del walk
        name = object.__getattribute__(self, "_function").__qualname__
        raise NotLazy(f"the function uses the CUDA function {name}, which only Numba can compile")

    def __getitem__(self, configuration: Any) -> Any:
        """Return the kernel with a launch configuration."""
        return numbas_object(self)[configuration]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in COPIED_ATTRIBUTES and not has_numba():
            raise AttributeError(f"'CUDADispatcher' object has no attribute {name!r}")
        return super().__getattr__(name)


def jit(*args: Any, **options: Any) -> Any:
    """Replace `numba.cuda.jit`. Return the stand-in for a Python function, or without a function, the decorator that returns a stand-in.

    If Numba is imported, or there are a signature or options other than a plain `device`, call Numba's own decorator, which may compile.
    """
    is_plain = set(options) <= {"device"} and all(type(value) is bool for value in options.values())
    if has_numba() or not is_plain or len(args) > 1 or any(type(argument) is not _Function for argument in args):
        return _import_cuda().jit(*args, **options)
    return _declare(options, args[0]) if args else partial(_declare, options)


def _declare(options: dict[str, Any], function: Any) -> Any:
    """Return the stand-in for a kernel or device function with options.

    If Numba is imported, or if `function` is not a Python function, Numba decorates `function` instead.
    """
    if has_numba() or type(function) is not _Function:
        return _import_cuda().jit(**options)(function)
    return LazyCudaFunction(function, options)


def is_available() -> bool:
    """Replace `numba.cuda.is_available`.

    If there is neither a driver nor a setting of Numba that could name one, return False without importing Numba. Otherwise return Numba's
    result.
    """
    from compcache.numba.lazy.c_helpers import has_library

    has_settings = any(name.startswith("NUMBA_") and "CUDA" in name for name in os.environ) or has_settings_file()
    if not has_numba() and not has_settings and not has_library(_DRIVERS):
        return False
    return bool(_import_cuda().is_available())


CUDA_STAND_INS: dict[str, Any] = {"is_available": is_available, "jit": jit}
