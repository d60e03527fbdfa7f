"""Computes the components of keys other than the function: Numba's settings, versions, and the platform. The CPU is not part of keys."""

from __future__ import annotations

import functools
import platform
import sys
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba.core import codegen, config

from compcache.numba.registered.settings import is_harmless

__all__ = ["FORMAT", "config_text", "platform_text", "requested_cpu", "requested_cpu_and_features", "versions_text"]

#: Incremented when the meaning of keys or entries changes.
FORMAT = 7


def config_text() -> str:
    """Reload Numba's configuration, and return as text the settings that may change code.

    Settings of unknown types count too: a program may set ``numba.config.BOUNDSCHECK`` to a boolean of NumPy.
    """
    config.reload_config()
    values = sorted(vars(config).items())
    return ", ".join([f"{name}={value!r}" for name, value in values if name.isupper() and not is_harmless(name, value)])


@functools.cache
def versions_text() -> str:
    """Return the versions of Python, NumPy, Numba, llvmlite, LLVM and the format of keys."""
    llvm = ".".join(map(str, binding.llvm_version_info))
    python = f"{platform.python_implementation()} {platform.python_version()}{getattr(sys, 'abiflags', '')}"
    return (
        f"compcache.numba {FORMAT}, numba {numba.__version__}, llvmlite {llvmlite.__version__}, LLVM {llvm}, "
        f"numpy {np.__version__}, {python}"
    )


def requested_cpu_and_features() -> tuple[str, str | None]:
    """Return the CPU and the features that NUMBA_CPU_NAME, NUMBA_CPU_FEATURES and NUMBA_ENABLE_AVX choose, in the form of `ModuleSource`.

    The features are None if the variables choose what Numba uses on this host anyway; those of this host if only the CPU is chosen.
    """
    if config.CPU_NAME is None and config.CPU_FEATURES is None and config.ENABLE_AVX:
        return "native", None
    features = config.CPU_FEATURES
    if features is None:
        features = codegen.get_host_cpu_features()
    if config.CPU_NAME is None and features == binding.get_host_cpu_features().flatten():  # Numba disables AVX where there is none
        return "native", None
    return config.CPU_NAME or "native", features


def requested_cpu() -> str:
    """Return the CPU and the features that the user requested from Numba, separated by NUL; "" if the user requested neither.

    A process uses only code that was compiled for the same text.
    """
    cpu, features = requested_cpu_and_features()
    return "" if features is None else f"{cpu}\0{features}"


def platform_text(codegen: Any) -> str:
    """Return the platform for which the code generator compiles, without the CPU, and whether it uses Intel's vector library."""
    triple, *_ = codegen.magic_tuple()
    return f"{triple}, svml={getattr(config, 'USING_SVML', None)}"
