"""compcache below Numba: the installed backend (COMPCACHE_NUMBA=1), and starts without Numba (`compcache.numba.njit`, and `run`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.adapters.compcache_facade import MAPPED
from compcache_conformance.adapters.numba_cache import DRIVER, WITHOUT_COVERAGE, as_array, decorator
from compcache_conformance.language import Spelling
from compcache_conformance.results import Cannot

_WITHOUT_NUMBA = (
    WITHOUT_COVERAGE
    + """
import main
from conformance_serve import serve

def ask(name, *arguments):
    function = getattr(main, name)
    before = "numba.core.dispatcher" in sys.modules
    counted = hits_and_misses(function) if before else (0, 0)
    answer = function(*arguments)
    if "numba.core.dispatcher" not in sys.modules:
        return answer, None if name in asked else asked.add(name) or True
    asked.add(name)
    now = hits_and_misses(function)
    return answer, True if now[0] > counted[0] else False if now[1] > counted[1] else None

def hits_and_misses(function):
    stats = function.stats
    return sum(stats.cache_hits.values()), sum(stats.cache_misses.values())

asked = set()
serve(ask)
"""
)


class _WithNumba(Adapter):
    distribution: ClassVar[str] = "compcache"
    shapes: ClassVar[frozenset[str]] = frozenset(
        {"call", "files", "constant", "table", "environment", "data", "record", "closure", "fast", "default"}
    )
    patience: ClassVar[float] = 90.0
    limits: ClassVar[dict[str, str]] = MAPPED

    def __init__(self, interpreter: Path | None = None) -> None:
        super().__init__(interpreter)
        if not find_spec("compcache") or not find_spec("numba"):
            raise Cannot("needs compcache and Numba in the environment of the suite: pip install compcache[numba]")

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """The variable of the directory, the switch of the backend, and the checkout that the suite runs beside."""
        import compcache

        return {"COMPCACHE_DIR": str(store), "COMPCACHE_NUMBA": "1", "PYTHONPATH": str(Path(compcache.__file__).parents[1])}

    def limited_environment(self, size: int) -> dict[str, str]:
        """The variable of the limit."""
        return {"COMPCACHE_MAX_SIZE": str(size)}

    def processor_environment(self, name: str) -> dict[str, str]:
        """Numba's variables for the processor."""
        return {"NUMBA_CPU_NAME": {"generic": "x86-64"}.get(name, name), "NUMBA_CPU_FEATURES": ""}

    def default_environment(self, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """No directory: that of the user's caches."""
        return {"COMPCACHE_DIR": ""}


class Installed(_WithNumba):
    """Numba's programs as they are, with the variable of the backend set."""

    name: ClassVar[str] = "compcache-numba"
    spelling: ClassVar[Spelling] = Spelling("from numba import njit", decorator, value=as_array)
    is_forked: ClassVar[bool] = True
    driver: ClassVar[str] = DRIVER
    limits: ClassVar[dict[str, str]] = {
        **MAPPED,
        **dict.fromkeys(
            ["home that cannot be written", "umask that takes everything"],
            "docs/numba.md: decorators that run before the backend is installed raise Numba's error if its own cache finds no directory",
        ),
        "threads compile": "docs/numba.md: functions are not cached if other threads compile them while the first call loads the backend",
    }


class WithoutNumba(_WithNumba):
    """Programs that take the decorators from compcache."""

    name: ClassVar[str] = "compcache-lazy"
    spelling: ClassVar[Spelling] = Spelling("from compcache.numba import njit", decorator, value=as_array)
    driver: ClassVar[str] = _WITHOUT_NUMBA


class Run(WithoutNumba):
    """Numba's programs as they are, under ``python -m compcache.numba run``."""

    name: ClassVar[str] = "compcache-run"
    spelling: ClassVar[Spelling] = Installed.spelling

    def command(self, folder: Path) -> list[str]:
        """The program as an argument."""
        interpreter, driver = super().command(folder)
        return [interpreter, "-m", "compcache.numba", "run", driver]

    def environment(self, store: Path, folder: Path) -> dict[str, str]:
        """Without the switch of the other way."""
        return {**super().environment(store, folder), "COMPCACHE_NUMBA": "0"}
