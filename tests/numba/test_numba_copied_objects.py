"""Code whose pickles would give other processes copies of the program's objects is not stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_modes import Programs, uncached_fixture  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("numba")

#: Blocks in object mode, and a caller of one, which read closure variables. The program sees what they change.
_BLOCKS = """
    from numba import objmode
    from numba.extending import overload
    from DECORATORS import njit

    class Counter:
        count = 0

    def add():
        Counter.count += 10
        return 0.5

    def make(seen, counter, called, scale):
        @njit
        def noted(x):
            with objmode(y="float64"):
                seen.append(x)
                counter.count += 1
                y = called() + len(seen) * scale
            return y

        @njit
        def scaled(x):
            with objmode(y="float64"):
                y = float(x * scale) + int("1")
            return y
        return noted, scaled

    seen, counter = [], Counter()
    noted, scaled = make(seen, counter, add, 3)

    def overloaded(x): ...

    @overload(overloaded)
    def implementation(x):
        return lambda x: x + 1

    @njit
    def calls_overloaded(x):
        return overloaded(x)

    def wrap(function):
        @njit
        def wrapped(x):
            with objmode(y="float64"):
                y = float(function(x))
            return y
        return wrapped

    @njit
    def caller(x):
        return noted(x) * 2

    answers = [noted(1.0), caller(2.0), scaled(2), wrap(calls_overloaded)(1.0), seen, counter.count, Counter.count]
    print(repr(repr(answers)))
"""
#: What a function in object mode reads is among the constants of its environment.
_OBJECT_MODE = """
    from DECORATORS import jit

    def make(seen):
        @jit(forceobj=True)
        def noted(x):
            seen.append(x)
            return len(seen)
        return noted

    seen = []
    noted = make(seen)
    print(repr(repr([noted(1), noted(2), seen])))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["run", "decorators"])
@pytest.mark.parametrize("program", [_BLOCKS, _OBJECT_MODE], ids=["blocks", "functions"])
def test_code_in_object_mode_has_the_objects_of_its_closure(tmp_path: Path, uncached: Callable[..., str], mode: str, program: str) -> None:
    programs = Programs(tmp_path, program)
    outcomes = [programs.start(mode, tmp_path / "cache") for _ in range(3)]
    assert [outcome.answer for outcome in outcomes] == [uncached(program)] * 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_blocks_in_object_mode_that_read_numbers_and_globals_are_stored(tmp_path: Path) -> None:
    programs = Programs(tmp_path, _BLOCKS)
    stored = [programs.start("run", tmp_path / "cache").stored for _ in range(2)]
    assert stored[0] > 0 == stored[1]
