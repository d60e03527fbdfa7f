"""Why Numba was imported is said, and what the programs of packages do is done without."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT
from numba_helpers import Project

from compcache import Cache, frontend

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("numba")

#: What a program does in line 5, and what it wanted then.
WANTED = {
    "class L(_CacheLocator): pass": "a class derived from numba.core.caching._CacheLocator",
    "hash(List)": "the hash of numba.typed.typedlist.List",
    "types.NamedTuple([types.int64], P)": "a call of numba.core.types.containers.NamedTuple",
    "numba.cpython.setobj.SetInstance": "numba.cpython",
    "import numba.pycc": "the module numba.pycc",
    "rows(3)": "a call of __main__.rows: the function is a generator",
    "of_set({1})": "a call of __main__.of_set: no code for these arguments is stored",
}
PROGRAM = """\
import collections, contextlib, numba, sys
from numba import njit, types; from numba.core.caching import _CacheLocator; from numba.typed import List
P = collections.namedtuple("P", "a"); rows = njit(eval("lambda n: (yield n)")); of_set = njit(eval("lambda s: len(s)"))
rows.py_func.__qualname__ = "rows"; of_set.py_func.__qualname__ = "of_set"
{line}
"""


def run(project: Project, program: str, **environment: str) -> str:
    """The standard error of a program that is started with `run`."""
    main = project.source / "main.py"
    main.write_text(program)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("COMPCACHE_", "NUMBA_"))}
    return subprocess.run(
        [sys.executable, "-m", "compcache.numba", "run", "--dir", str(project.cache), str(main)], check=False, text=True,
        env=inherited | {"PYTHONPATH": str(PACKAGE_ROOT)} | environment, capture_output=True,
    ).stderr  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("line", WANTED)
def test_the_line_that_imports_numba_is_named_with_what_it_wanted(tmp_path: Path, line: str) -> None:
    project = Project(tmp_path)
    said = run(project, PROGRAM.format(line=line), COMPCACHE_DEBUG="1")
    text = f"was imported at {project.source / 'main.py'}:5, in <module>, for {WANTED[line]}"
    with Cache(project.cache) as cache:
        noted = {refusal.name: refusal.reason for refusal in frontend.list_uncached(cache)}
        assert noted["numba(main.py)"] == text
        assert cache.explain("numba").message == f"numba(main.py) {text}"
    assert f"refused numba(main.py): {text}" in said


@pytest.mark.slow
@pytest.mark.parametrize("line", ["from numba.experimental import structref, jitclass", "from numba import cuda, gdb"])
def test_a_statement_whose_last_name_imports_numba_provides_the_submodules_before_it(tmp_path: Path, line: str) -> None:
    """Numba itself does not import these submodules."""
    assert not run(Project(tmp_path), line)


@pytest.mark.slow
def test_what_starts_without_numba_do_not_find_is_said(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert not run(project, PROGRAM.format(line="of_set({1})"))
    with Cache(project.cache) as cache:
        noted = {refusal.name: refusal.reason for refusal in frontend.list_uncached(cache)}
    assert noted["__main__.of_set(reflected set(int64))"].startswith("was compiled, but later processes import Numba to use it: an ")


WITHOUT = """
import numpy as np
from {decorators} import njit

@njit
def scaled(x, *, factor):
    return x * factor

@njit
def doubled(values):
    for value in values:
        yield 2 * value

@njit
def below(n):
    for number in range(n):
        yield number

@njit
def total(values, n):
    result = 0.0
    for value in doubled(values):
        result += value
    for number in below(n):
        result += number
    return result
"""
CALLS = """
import sys
import numpy as np
import kernels
values = np.array([1.5, 2.5])
result = [
    kernels.scaled(3, factor=2), kernels.scaled(factor=2.5, x=3), kernels.scaled(3, 2), float(kernels.scaled(values, factor=2).sum()),
    kernels.total(values, 3), kernels.total(values, 4),
], "numba" in sys.modules
"""


@pytest.mark.slow
def test_parameters_by_keyword_only_and_loops_over_generators_need_no_numba(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(kernels=WITHOUT.format(decorators="numba"))
    plain, _ = project.run_in_fork(CALLS)
    project.write(kernels=WITHOUT.format(decorators="compcache.numba"))
    for imported in (True, False):
        assert project.run(CALLS, backend=False, COMPCACHE_DIR=str(project.cache)) == (plain, imported)
    project.write(kernels=WITHOUT.format(decorators="compcache.numba").replace("2 * value", "3 * value"))
    for imported in (True, False):
        changed = [*plain[:4], plain[4] + 4, plain[5] + 4]
        assert project.run(CALLS, backend=False, COMPCACHE_DIR=str(project.cache)) == (changed, imported)


@pytest.mark.slow
def test_wrong_arguments_of_parameters_by_keyword_only_are_numbas_errors(tmp_path: Path) -> None:
    project = Project(tmp_path)
    script = """
    import kernels
    kernels.scaled(2, factor=2)
    result = []
    for positional, named in [((3,), {}), ((3,), {"factor": 2, "other": 1}), ((3, 4, 5), {}), ((), {})]:
        try:
            kernels.scaled(*positional, **named)
        except TypeError as error:
            result.append(str(error))
    """
    said = []
    for decorators in ("numba", "compcache.numba", "compcache.numba"):
        project.write(kernels=WITHOUT.format(decorators=decorators))
        said.append(project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)))
    assert said[0] == said[1] == said[2]
    assert len(said[0]) == 4
