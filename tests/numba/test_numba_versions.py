"""Each supported series of Numba: what is recorded of it, the smallest proof in every mode; and what is not supported is left alone.

`python tools/numba_versions.py test` runs these with each series, in an environment of its own.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT, run_fresh
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

numba = pytest.importorskip("numba")
pytestmark = pytest.mark.timeout(300)

_SERIES = ".".join(numba.__version__.split(".")[:2])
_RECORDS = PACKAGE_ROOT / "compcache" / "numba" / "versions"
_PROGRAM = """
import sys
import numpy as np
from DECORATORS import guvectorize, njit, prange, vectorize
from imported import scaled

@njit(cache=True)
def listed(values):
    found = [str(value) for value in values if value > 1]
    return "-".join(found), len(found), {1: 2.5}[1]

@njit(parallel=True, cache=True)
def total(values):
    result = 0.0
    for i in prange(len(values)):
        result += scaled(values[i])
    return result

@njit(cache=True)
def raising(x):
    if x < 0:
        raise ValueError("negative")
    return np.sqrt(x)

@njit("f8(f8)", cache=True)
def declared(x):
    return x * 2

@vectorize(["f8(f8)"], cache=True)
def ufunc(x):
    return x * 3

@guvectorize(["(f8[:], f8[:])"], "(n)->()", cache=True)
def longest(values, result):
    result[0] = np.max(values)

def caught():
    try:
        raising(-1.0)
    except ValueError as error:
        return str(error)

values = np.arange(4.0)
answers = [listed((1, 2, 3)), float(total(values)), float(raising(4.0)), caught(), declared(1.5), float(ufunc(2.0)), float(longest(values))]
print(repr((repr(answers), "numba.core" in sys.modules)))
"""
#: What that program answers, with and without caches.
_ANSWERS = [("2-3", 2, 2.5), 18.0, 2.0, "negative", 3.0, 6.0, 3.0]
_IMPORTED = """
from DECORATORS import njit
SCALE = 3.0

@njit(cache=True)
def scaled(x):
    return x * SCALE
"""
_SMALL = """
import sys
from imported import scaled
print(repr((repr(scaled(2.0)), "numba.core" in sys.modules)))
"""
_INSTALLED = """
import runpy, sys
import compcache.numba
sys.path[0], sys.argv = PLACE, [PROGRAM]
backend = compcache.numba.install()
runpy.run_path(PROGRAM, run_name="__main__")
print((backend.hits, backend.misses))
"""
_MODES = ("run", "decorators", "variable", "install")


class _Programs:
    """A program in each of the modes, on one cache."""

    def __init__(self, directory: Path, source: str, package: Path = PACKAGE_ROOT) -> None:
        self.source = source
        self.project = Project(directory)
        self.project.register()
        self.package = package

    def start(self, mode: str, **environment: str) -> tuple[list[Any], str]:
        """What each line says that the program prints, and what the process says on stderr."""
        decorators = "compcache.numba" if mode == "decorators" else "numba"
        self.project.write(program=self.source.replace("DECORATORS", decorators), imported=_IMPORTED.replace("DECORATORS", decorators))
        program = str(self.project.source / "program.py")
        installed = _INSTALLED.replace("PLACE", repr(str(self.project.source))).replace("PROGRAM", repr(program))
        arguments = {"run": ["-m", "compcache.numba", "run", program], "install": ["-c", installed]}.get(mode, [program])
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("COMPCACHE_", "NUMBA_"))}
        own = {"COMPCACHE_DIR": str(self.project.cache), "NUMBA_NUM_THREADS": "2"}
        own |= {"COMPCACHE_NUMBA": "1"} if mode == "variable" else {}
        path = f"{self.package}{os.pathsep}{self.project.source}"
        done = subprocess.run(
            [sys.executable, *arguments], env=inherited | own | {"PYTHONPATH": path} | environment,
            cwd=self.project.source, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [ast.literal_eval(line) for line in done.stdout.splitlines()], done.stderr


def _record() -> tuple[Any, dict[str, Any]]:
    place = PACKAGE_ROOT / "tools" / "numba_versions.py"
    spec = importlib.util.spec_from_file_location("numba_versions", place)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool, json.loads((_RECORDS / f"{_SERIES}.json").read_text())


@pytest.mark.slow
def test_what_is_used_of_numba_is_as_recorded() -> None:
    tool, record = _record()
    assert [name for name, digest in record["names"].items() if not digest] == []
    if numba.__version__ == record["release"]:
        assert tool.surface(record["names"]) == record["names"]
    assert [name for name, digest in tool.surface(tool.names_used()).items() if not digest] == []


@pytest.mark.slow
def test_the_smallest_proof(tmp_path: Path) -> None:
    """What one mode compiled, every mode finds; two of them without Numba."""
    programs, judged = _Programs(tmp_path, _PROGRAM), repr(_ANSWERS)
    assert programs.start("run") == ([(judged, True)], "")
    for mode in _MODES:
        said, warned = programs.start(mode)
        without = mode in ("run", "decorators")
        assert (mode, said[0], warned) == (mode, (judged, not without), "")
        assert [misses for _, misses in said[1:]] == [0] * (mode == "install")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of the package that does not know this Numba."""
    place = tmp_path_factory.mktemp("package")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE_ROOT / "compcache", place / "compcache", ignore=ignore)
    (place / "compcache" / "numba" / "versions" / f"{_SERIES}.json").unlink()
    return place


@pytest.mark.slow
@pytest.mark.parametrize("mode", _MODES)
def test_a_version_that_is_not_supported_is_left_alone(tmp_path: Path, package: Path, mode: str) -> None:
    programs = _Programs(tmp_path, _SMALL, package)
    said, warned = programs.start(mode)
    assert said[0] == ("6.0", True)
    assert warned.count("Warning") == 1, warned
    assert f"does not support Numba {numba.__version__}, only Numba " in warned
    assert not programs.project.cache.exists()


_LEFT_ALONE = """
import gc, sys, warnings
before = set(sys.modules), gc.get_threshold()
import numba, numba.np.ufunc.ufuncbuilder as builder
own = numba.njit, numba.core.dispatcher.Dispatcher.enable_caching, numba.core.compiler.compile_extra, gc.get_threshold()
if MISSING:
    del builder.UFuncDispatcher._compile_core
import compcache.numba
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    backend = compcache.numba.install("cache")
    compcache.numba.install("another", lazy=True)
    compcache.numba.uninstall()
    with compcache.numba.installed("cache"):
        now = numba.njit, numba.core.dispatcher.Dispatcher.enable_caching, numba.core.compiler.compile_extra, gc.get_threshold()
    assert compcache.numba.njit is numba.njit or MISSING
try:
    compcache.numba.export(lambda x: x, "f8(f8)")
    exported = ""
except RuntimeError as error:
    exported = str(error)
result = own == now, [str(one.message) for one in warned], exported, (backend.hits, backend.misses, backend.refused)
"""


@pytest.mark.slow
@pytest.mark.parametrize("missing", [False, True])
def test_nothing_of_it_is_replaced(tmp_path: Path, package: Path, missing: bool) -> None:
    """One warning is all, and `export`, which cannot do without, is the one to say no."""
    script = f"sys.path[:0] = [{str(PACKAGE_ROOT if missing else package)!r}]\n" + _LEFT_ALONE.replace("MISSING", str(missing))
    same, warned, exported, counted = Project(tmp_path).run(script, backend=False)
    assert same
    assert warned == [f"{exported.removesuffix(': install a supported version of Numba')}; Numba works as without compcache"]
    assert ("numba.np.ufunc.ufuncbuilder:UFuncDispatcher._compile_core" in exported) is missing
    assert counted == (0, 0, {})


_WITHOUT_DESCRIPTORS = """
        import errno, os, warnings
        listdir = os.listdir
        def listdir_without_descriptors(place="."):
            if str(place).endswith("-packages"):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return listdir(place)
"""


def test_a_version_that_cannot_be_read_for_a_moment_is_left_alone(tmp_path: Path) -> None:
    """The program runs with Numba alone, and says so."""
    script = """
        os.listdir = listdir_without_descriptors
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            from compcache.numba import install, njit
            install(directory)
        os.listdir = listdir
        import numba
        result = njit is numba.njit, njit(lambda x: x + 1)(1), [str(one.message) for one in warned]
    """
    is_own, answer, (warned,) = run_fresh(tmp_path, _WITHOUT_DESCRIPTORS + script)
    assert is_own
    assert answer == 2
    assert warned.endswith("Too many open files; try again); Numba works as without compcache")


def test_the_stand_in_has_the_version_of_numba_whose_metadata_cannot_be_read(tmp_path: Path) -> None:
    script = """
        from compcache.numba import install
        install(directory, lazy=True)
        import numba
        os.listdir = listdir_without_descriptors
        result = numba.__version__, "numba.core" in sys.modules
    """
    assert run_fresh(tmp_path, _WITHOUT_DESCRIPTORS + script) == (numba.__version__, True)
