"""Why a function could not be had, in one word each: what statistics count and `explain` says."""

from __future__ import annotations

import os
import sys

__all__ = ["LOG_VARIABLE", "log_miss", "miss_reason"]

#: A level name of `logging`: what happens is then told on standard error, unless the program configures it.
LOG_VARIABLE = "COMPCACHE_LOG"

_REASONS = {
    "IncompatibleTargetError": "cpu",
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
    """The reason behind an error of a load: absent, cpu, damaged, dependency, global, signature, link, storage, other."""
    name = type(error).__name__
    if name == "NotCachedError":
        return miss_reason(error.__cause__) if error.__cause__ is not None else "absent"
    return _REASONS.get(name, "other")


def log_miss(error: BaseException) -> None:
    """Tell the logger ``compcache`` about a miss, if anybody may be listening."""
    level = os.environ.get(LOG_VARIABLE, "").strip().upper()
    if not level and "logging" not in sys.modules:
        return
    import logging

    logger = logging.getLogger("compcache")
    if level and not logger.hasHandlers():
        logging.basicConfig(format="%(name)s: %(message)s")
    if level and logger.level == logging.NOTSET:
        number = logging.getLevelNamesMapping().get(level)
        logger.setLevel(number if number is not None else logging.DEBUG)
    logger.debug("miss (%s): %s", miss_reason(error), error)
