"""Code whose pickles would give other processes copies of the program's objects is not stored, and options do not lead to Numba's cache."""

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
    import numpy as np
    from numba import objmode
    from numba.extending import overload
    from DECORATORS import njit

    class Counter:
        count = 0

    calls = []

    def log(x):
        calls.append(x)
        return x

    def make(seen, counter, scale):
        @njit
        def noted(x):
            with objmode(y="float64"):
                seen.append(x)
                counter.count += 1
                y = float(len(seen) * scale)
            return y

        @njit
        def scaled(x):
            with objmode(y="float64"):
                y = float(x * scale) + int("1")
            return y
        return noted, scaled

    seen, counter = [], Counter()
    noted, scaled = make(seen, counter, 3)
    record = np.zeros(1, [("count", "i8")])[0]

    def count_in(record):
        @njit
        def counted(x):
            with objmode(y="float64"):
                record["count"] += 1
                y = float(record["count"])
            return y
        return counted

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

    answers = [noted(1.0), caller(2.0), scaled(2), wrap(calls_overloaded)(1.0), wrap(log)(5.0), calls, seen, counter.count]
    answers += [count_in(record)(1.0), record]
    print(repr(repr(answers)))
"""

#: What a function in object mode reads is among the constants of its environment.
_OBJECT_MODE = """
    from DECORATORS import jit

    def make(logged):
        @jit(forceobj=True, cache=True)
        def log(x):
            logged.append(x)
            return len(logged)
        return log

    logged = []
    log = make(logged)
    print(repr(repr([log(7), log(2.5), logged])))
"""


#: Only Numba supports the option. Numba's own cache does not know the values that helpers read.
_OPTIONS_FOR_NUMBA = """
    import sys
    from DECORATORS import njit
    K = int(sys.argv[1])

    @njit
    def helper(x):
        return x * K

    @njit(cache=True, no_cfunc_wrapper=True)
    def called(x):
        return helper(x)

    @njit("float64(float64)", cache=True, no_cfunc_wrapper=True)
    def declared(x):
        return helper(x)

    print(repr(repr([called(2.0), declared(3.0)])))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_functions_with_options_that_only_numba_supports_are_compiled_again_for_other_values(
    tmp_path: Path, uncached: Callable[..., str]
) -> None:
    programs = Programs(tmp_path, _OPTIONS_FOR_NUMBA)
    for given in ("1", "2", "2"):
        assert programs.start("decorators", tmp_path / "cache", given).answer == uncached(_OPTIONS_FOR_NUMBA, given)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["run", "decorators"])
def test_functions_in_object_mode_have_the_objects_of_their_closure(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _OBJECT_MODE)
    outcomes = [programs.start(mode, tmp_path / "cache") for _ in range(3)]
    assert [outcome.answer for outcome in outcomes] == [uncached(_OBJECT_MODE)] * 3


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["run", "decorators"])
def test_blocks_in_object_mode_have_the_objects_of_their_closure(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _BLOCKS)
    outcomes = [programs.start(mode, tmp_path / "cache") for _ in range(3)]
    assert [outcome.answer for outcome in outcomes] == [uncached(_BLOCKS)] * 3
    assert mode != "run" or outcomes[0].stored > 0 == outcomes[1].stored, "the block that reads a number is stored"


_LEFT_TO_NUMBA = """
    from DECORATORS import jit

    @jit(forceobj=True)
    def function(x):
        return x + 1

    print(function(1))
"""


def test_functions_in_object_mode_are_not_stored_without_a_request(tmp_path: Path) -> None:
    outcome = Programs(tmp_path, _LEFT_TO_NUMBA).start("run", tmp_path / "cache")
    assert (outcome.answer, outcome.stored) == ("2", 0)
