"""A program that runs in each mode of the backend: as a command, by a variable, installed, and with decorators."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from helpers import PACKAGE_ROOT
from numba_helpers import Project

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_IMPORTED = """
    from DECORATORS import njit
    SCALE = 3

    @njit(cache=True)
    def scaled(x):
        return x * SCALE
"""
#: In a fork of a process that has imported Numba, and the backend unless it is for the answers without. Numba's configuration is that of
#: the variables from then on.
_FORKED = """
import runpy, sys
from numba.core import config
config.reload_config()
sys.path[:0], sys.argv[:] = [{directory!r}, {root!r}], [{program!r}, *{given!r}]
if {installs}:
    import compcache.numba
    compcache.numba.install()
runpy.run_path({program!r}, run_name="__main__")
"""
MODES = ("run", "variable", "install", "decorators")


class Outcome(NamedTuple):
    """What a program said, and how many functions it stored and found with Numba."""

    answer: str
    stored: int
    found: int


class Programs:
    """A program that runs in each mode, with the same sources in the same place."""

    def __init__(self, directory: Path, source: str) -> None:
        self.project = Project(directory)
        self.project.register()
        self.source = source

    def start(self, mode: str, cache: Path, *given: str, **variables: str) -> Outcome:
        place = self.project.source
        sources = {"program": self.source, "imported": _IMPORTED, "settings": "K = 0"}
        decorators = "compcache.numba" if mode == "decorators" else "numba"
        self.project.write(**{name: textwrap.dedent(text).replace("DECORATORS", decorators) for name, text in sources.items()})
        program = str(place / "program.py")
        variables = {"COMPCACHE_DIR": str(cache), "NUMBA_DEBUG_CACHE": "1", **variables}
        if mode == "variable":
            variables["COMPCACHE_NUMBA"] = "1"
        if mode in {"run", "decorators"}:
            status, out, err = self._run([*(("-m", "compcache.numba", "run") if mode == "run" else ()), program, *given], variables)
        else:
            installs = mode == "install"
            script = _FORKED.format(directory=str(place), root=str(PACKAGE_ROOT), program=program, given=given, installs=installs)
            status, out, err = self.project.fork(script, variables, backend=mode in MODES)
        assert (status, err) == (0, "")
        lines = out.splitlines()
        stored, found = (sum(line.startswith(f"[cache] data {what}") for line in lines) for what in ("saved to", "loaded from"))
        return Outcome(lines[-1], stored, found)

    def _run(self, arguments: list[str], variables: dict[str, str]) -> tuple[int, str, str]:
        """In an interpreter of its own, for starts without Numba."""
        place = self.project.source
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("COMPCACHE_", "NUMBA_"))}
        own = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{place}"}
        done = subprocess.run(
            [sys.executable, *arguments], env=inherited | own | variables, cwd=place, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module", name="uncached")
def uncached_fixture(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """What a program with arguments answers without compcache and without code of an earlier start."""

    @functools.cache
    def answer(source: str, *given: str) -> str:
        directory = tmp_path_factory.mktemp("uncached")
        return Programs(directory, source).start("plain", directory / "none", *given).answer

    return answer


def usual_modes(*usual: str) -> list[Any]:
    """A mode that starts without Numba and one that has it; the others, which test_numba_modes.py compares, are in the stress test."""
    return [mode if mode in usual else pytest.param(mode, marks=pytest.mark.stress) for mode in MODES]
