"""LLVM, through llvmlite: the one place that imports it.

An installed llvmlite that cannot be loaded (in a slim image, a library may be missing) counts as not installed: the error is the same, and
has the reason. It is raised when LLVM is needed, and not before.
"""

from __future__ import annotations

from compcache.errors import MissingPackageError
from compcache.files import reraise_interrupt

__all__ = ["llvm"]


def _error(reason: Exception) -> MissingPackageError:
    if isinstance(reason, ModuleNotFoundError) and (reason.name or "").partition(".")[0] == "llvmlite":
        return MissingPackageError.of("llvmlite", "compiling")
    why = f"{type(reason).__name__}: {reason}"
    return MissingPackageError(f"compiling needs llvmlite, which cannot be loaded here ({why}): mend its installation", name="llvmlite")


try:
    import llvmlite.binding as llvm
except Exception as error:
    reraise_interrupt(error)
    raise _error(error) from error
