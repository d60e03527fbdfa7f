"""The reasons of misses, one word each, for statistics and `explain`."""

from __future__ import annotations

__all__ = ["miss_reason"]

_REASONS = {
    "IncompatibleTargetError": "cpu",
    "KnownFaultError": "maker",
    "IntegrityError": "damaged",
    "FormatError": "damaged",
    "UndefinedSymbolError": "dependency",
    "GlobalValidationError": "global",
    "PickleNotAllowedError": "global",
    "SignatureError": "signature",
    "LinkError": "link",
    "StorageError": "storage",
}


def miss_reason(error: BaseException) -> str:
    """Return the reason for an error of a load: absent, cpu, maker, damaged, dependency, global, signature, link, storage or other."""
    name = type(error).__name__
    if name == "NotCachedError":
        return miss_reason(error.__cause__) if error.__cause__ is not None else "absent"
    return _REASONS.get(name, "other")
