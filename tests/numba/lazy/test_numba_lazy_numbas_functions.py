"""Functions that Numba itself declares and Python calls: methods of typed containers and of boxes, constructors of `structref` values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from numba_helpers import Project

from compcache import Cache

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
pytest.importorskip("numba")

_STEP = """
    from numba import njit

    BY = 3

    @njit
    def step(x):
        return x + BY
"""
_PROGRAM = """
    from numba import int64, types
    from numba.experimental import jitclass, structref
    from numba.extending import overload_method
    from numba.typed import Dict, List
    from steps import step

    @structref.register
    class PairType(types.StructRef):
        def preprocess_fields(self, fields):
            return tuple((name, types.unliteral(kind)) for name, kind in fields)

    class Pair(structref.StructRefProxy):
        def __new__(cls, x, y):
            return structref.StructRefProxy.__new__(cls, x, y)

    structref.define_proxy(Pair, PairType, ["x", "y"])

    @jitclass([("at", int64)])
    class Counter:
        def __init__(self, at):
            self.at = step(at)

        def next(self):
            self.at = step(self.at)
            return self.at

    def answers():
        items, values, counter = List(), Dict.empty(types.int64, types.float64), Counter(3)
        items.append(1)
        values[2] = 2.5
        return items[0], len(items), values[2], counter.next(), counter.at, str(Pair(1, 2.5)._numba_type_)
"""
_INSTALL = "import compcache.numba\ncompcache.numba.install(lazy=True)\n"
_ASK = """
from numba.core import event
recorder = event.RecordingListener()
with event.install_listener("numba:compile", recorder):
    result = program.answers()
compiled = sorted({str(happened.data["dispatcher"].py_func.__qualname__) for _, happened in recorder.buffer})
result = result, compiled
"""


def _ask(project: Project) -> Any:
    return project.run(f"{_INSTALL}import program{_ASK}", backend=False, COMPCACHE_DIR=str(project.cache))


def _ask_numba(project: Project) -> Any:
    return project.run_in_fork(f"import program{_ASK}")


def test_functions_that_numba_declares_are_compiled_once_and_follow_what_they_call(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(steps=_STEP, program=_PROGRAM)
    expected, compiled = _ask_numba(project)
    assert {"_append", "_setitem", "StructRefProxy.__new__.<locals>.ctor", "method", "accessor"} <= set(compiled)
    assert _ask(project)[0] == expected
    assert _ask(project) == (expected, [])  # neither do the accessors that Numba compiles beside a constructor
    stored = [function.func_name for function in Cache(project.cache).functions()]
    assert any("._append(" in name for name in stored)
    assert not any("impl" in name for name in stored)  # the code of a caller contains that of its overloads
    project.write(steps=_STEP.replace("BY = 3", "BY = 7"))
    changed = _ask_numba(project)[0]
    assert changed != expected
    assert [_ask(project)[0] for _ in range(2)] == [changed] * 2
    project.write(steps=_STEP)
    assert _ask(project) == (expected, [])


def test_new_callers_of_functions_that_ran_without_numba_are_stored(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(steps=_STEP)
    caller = "from numba import njit\nfrom steps import step\n\n@njit\ndef double(x):\n    return 2 * step(x)\n"
    project.write(callers=caller)

    def ask(call: str) -> Any:
        script = f"import sys\n{_INSTALL}import callers, steps\nresult = {call}, 'numba.core' in sys.modules"
        return project.run(script, backend=False, COMPCACHE_DIR=str(project.cache))

    assert ask("steps.step(1)") == (4, True)
    assert ask("steps.step(1)") == (4, False)
    assert ask("(steps.step(1), callers.double(5))") == ((4, 16), True)
    assert ask("(steps.step(1), callers.double(5))") == ((4, 16), False)
    project.write(steps=_STEP.replace("BY = 3", "BY = 7"))
    assert ask("(steps.step(1), callers.double(5))")[0] == (8, 24)
    project.write(steps=_STEP)
    assert ask("(steps.step(1), callers.double(5))") == ((4, 16), False)


def test_a_function_that_sets_a_chunk_size_runs(tmp_path: Path) -> None:
    """Numba notes None for such a block, which is no function that it lifts."""
    project = Project(tmp_path)
    block = "    with parallel_chunksize(8):\n        y = x + 1\n    return y\n"
    project.write(chunks=f"from numba import njit, parallel_chunksize\n\n@njit\ndef chunk(x):\n{block}")
    for _ in range(2):
        script = f"{_INSTALL}import chunks\nresult = chunks.chunk(1)"
        assert project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)) == 2
