"""Imports LLVM through llvmlite. Only this file imports `llvmlite.binding`.

If llvmlite is not installed, or cannot be loaded because an image lacks a library, importing this file raises `MissingPackageError` with
the reason. This file is imported only when LLVM is needed.
"""

from __future__ import annotations

from compcache.errors import MissingPackageError
from compcache.interrupts import reraise_interrupt

__all__ = ["llvm"]


def _missing_error(reason: Exception) -> MissingPackageError:
    """Return the error for a missing llvmlite, or for an installed llvmlite that cannot be loaded."""
    if isinstance(reason, ModuleNotFoundError) and (reason.name or "").partition(".")[0] == "llvmlite":
        return MissingPackageError.of("llvmlite", "compiling")
    why = f"{type(reason).__name__}: {reason}"
    return MissingPackageError(
        f"compiling needs llvmlite, but the installed llvmlite cannot be loaded ({why}): reinstall it", name="llvmlite"
    )


try:
    import llvmlite.binding as llvm
except Exception as error:
    reraise_interrupt(error)
    raise _missing_error(error) from error
