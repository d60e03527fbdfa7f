"""The reasons of misses, one word each, for statistics and `explain`, and the functions that misses lack."""

from __future__ import annotations

from compcache.errors import IncompatibleTargetError, NotCachedError, UndefinedSymbolError

__all__ = ["miss_reason", "unfit_function"]

_REASONS = {
    "IncompatibleTargetError": "cpu",
    "KnownFaultError": "maker",
    "IntegrityError": "damaged",
    "UntrustedFileError": "untrusted",
    "FormatError": "damaged",
    "UndefinedSymbolError": "dependency",
    "GlobalValidationError": "global",
    "PickleNotAllowedError": "global",
    "SignatureError": "signature",
    "LinkError": "link",
    "StorageError": "storage",
}


def miss_reason(error: BaseException) -> str:
    """Return the reason for an error of a load, one of the values of `_REASONS`, "absent" or "other"."""
    name = type(error).__name__
    if name == "NotCachedError":
        return miss_reason(error.__cause__) if error.__cause__ is not None else "absent"
    return _REASONS.get(name, "other")


def unfit_function(error: BaseException | None, func_name: str) -> str | None:
    """Return the function whose realizations are all for other CPUs, if a load of `func_name` raised `error` for this reason, else None.

    It is `func_name`, or a function that it imports, directly or through other imports.
    """
    while isinstance(error, UndefinedSymbolError) and error.symbols:
        func_name, error = error.symbols[0], error.__cause__
    cause = error.__cause__ if isinstance(error, NotCachedError) else error
    return func_name if isinstance(cause, IncompatibleTargetError) else None
