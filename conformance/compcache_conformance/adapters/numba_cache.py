"""Numba's own cache, `cache=True`, with $NUMBA_CACHE_DIR; the newest version and two older ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.language import Spelling

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from compcache_conformance.language import Function

#: Where a driver begins: Numba imports coverage where it is, a quarter of its own time; environments of users have none.
WITHOUT_COVERAGE = """
import sys

sys.modules["coverage"] = None
"""
DRIVER = (
    WITHOUT_COVERAGE
    + """
import main
from conformance_serve import serve

def ask(name, *arguments):
    function = getattr(main, name)
    answer = function(*arguments)
    stats = function.stats
    hits, misses = sum(stats.cache_hits.values()), sum(stats.cache_misses.values())
    before = counted.get(name, (0, 0))
    counted[name] = hits, misses
    return answer, True if hits > before[0] else False if misses > before[1] else None

counted = {}
serve(ask)
"""
)

_OTHER_FILES = "its documents: changes in functions of other files are not recognized"
_GLOBALS = "its documents: global variables are treated as constants of the function that was cached"
_TIMES = "its documents: an entry is valid as long as the source file's time and size are those of the index"


def decorator(function: Function) -> str:
    """How a function of the program is declared."""
    return f"@njit(cache=True{', fastmath=True' if function.fast else ''})"


def as_array(text: str) -> str:
    """A table as an array, which is what Numba's documents recommend for long ones; a file that has none imports no NumPy."""
    return f"__import__('numpy').array({text})" if text.startswith("(") else text


class NumbaCache(Adapter):
    """The newest version."""

    name: ClassVar[str] = "numba"
    requirements: ClassVar[tuple[str, ...]] = ("numba",)
    distribution: ClassVar[str] = "numba"
    shapes: ClassVar[frozenset[str]] = frozenset(
        {"call", "files", "constant", "table", "environment", "data", "record", "closure", "fast", "default"}
    )
    spelling: ClassVar[Spelling] = Spelling("from numba import njit", decorator, value=as_array)
    driver: ClassVar[str] = DRIVER
    patience: ClassVar[float] = 90.0
    limits: ClassVar[Mapping[str, str]] = {
        "callee in another file": _OTHER_FILES,
        "callee of a callee": _OTHER_FILES,
        "callee of other arity": _OTHER_FILES,
        "callee that becomes slower": _OTHER_FILES,
        "constant of a callee": _OTHER_FILES,
        "upgraded in place": _OTHER_FILES,
        "package moved away and back": _OTHER_FILES,
        "edited under a process": _OTHER_FILES,
        "constant in another file": _GLOBALS,
        "environment read while compiling": _GLOBALS,
        "data file read while compiling": _GLOBALS,
        "tool of a tool": _GLOBALS,
        "ranks": _GLOBALS,
        "touched files": _TIMES,
        "files of 1980": _TIMES,
        "same size and time": _TIMES,
    }

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """The variable of the directory."""
        return {"NUMBA_CACHE_DIR": str(store)}

    def processor_environment(self, name: str) -> dict[str, str]:
        """Its variables for the processor."""
        return {"NUMBA_CPU_NAME": {"generic": "x86-64"}.get(name, name), "NUMBA_CPU_FEATURES": ""}

    def default_environment(self, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """No directory: `__pycache__` beside the source, else the user's caches."""
        return {"NUMBA_CACHE_DIR": ""}


class Numba066(NumbaCache):
    """Version 0.66."""

    name: ClassVar[str] = "numba-0.66"
    requirements: ClassVar[tuple[str, ...]] = ("numba==0.66.*",)


class Numba061(NumbaCache):
    """Version 0.61."""

    name: ClassVar[str] = "numba-0.61"
    requirements: ClassVar[tuple[str, ...]] = ("numba==0.61.*",)
