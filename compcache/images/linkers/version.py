"""Finds the name and the version of a linker, which module records list among the makers of a module."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from typing import TYPE_CHECKING

from compcache.interrupts import suppress

if TYPE_CHECKING:
    from compcache.images.linkers.find import Linker

__all__ = ["NAMES", "version_of"]

#: Patterns for the first line of `--version`, by the name of the linker in records.
_PATTERNS = {
    "lld": re.compile(r"\bLLD (\d\S*)"),
    "mold": re.compile(r"\bmold (\d\S*)"),
    "gold": re.compile(r"^GNU gold\b.* (\d\S*)$"),
    "ld": re.compile(r"^GNU ld\b.* (\d\S*)$"),
}
#: All names in records. "linker" is the name of every other linker.
NAMES = (*_PATTERNS, "linker")
_SECONDS = 10.0


def version_of(linker: Linker) -> tuple[str, str]:
    """Return the name of a linker, one of `NAMES`, and its version, or "" if it is unknown. The linker is run once per process.

    If it cannot be run now, for lack of processes or memory, the next call runs it again. A linker that does not answer in time is not
    asked again.
    """
    with suppress(OSError):
        status = os.stat(linker.argv[0])
        return _query_version(linker.argv, (status.st_ino, status.st_size, status.st_mtime_ns))
    return "linker", ""


@functools.lru_cache(maxsize=16)
def _query_version(argv: tuple[str, ...], state: tuple[int, ...]) -> tuple[str, str]:  # noqa: ARG001 - part of the cache's key
    """Return the linker's name and version, or ("linker", "") if unknown. Raise `OSError` if it cannot be run now, or fails."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        completed = subprocess.run(
            [*argv, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return "linker", ""
    if completed.returncode:  # the dynamic linker lacked memory or descriptors, for example
        raise ChildProcessError(f"{argv[0]} --version ended with status {completed.returncode}")
    first = completed.stdout.decode("utf-8", "replace").partition("\n")[0].strip()
    return next(((name, match[1]) for name, pattern in _PATTERNS.items() if (match := pattern.search(first))), ("linker", ""))
