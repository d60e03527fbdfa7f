"""A helper in loaded code reads Numba's objects, although its code was loaded while stand-ins were in their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_modes import Programs, uncached_fixture, usual_modes  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("numba")

#: The caller's option makes an overload of each helper that only loaded code has. A start that has loaded the caller compiles the helpers.
_PROGRAM = """
    import sys
    import numba
    import imported
    from DECORATORS import njit, prange
    from numba import guvectorize, objmode, stencil, types, typed, vectorize
    from numba.extending import intrinsic, overload
    import numpy as np

    ITEM = types.UniTuple(types.int64, 2)
    imported.INT = numba.int64

    @vectorize(["int64(int64)"], cache=True)
    def ufunc(x):
        return x + 1

    @guvectorize(["(int64[:], int64[:])"], "(n)->(n)", cache=True)
    def gufunc(x, result):
        for i in range(len(x)):
            result[i] = x[i] + 1

    @stencil
    def kernel(a):
        return a[0] + a[-1]

    @intrinsic
    def same(context, x):
        assert ufunc is not kernel
        def generate(context, builder, signature, values):
            return values[0]
        return x(x), generate

    def target(x): ...

    @overload(target)
    def implement_target(x):
        if isinstance(x, types.Integer):
            return lambda x: ufunc(x) + same(x)

    @njit(cache=True)
    def in_object_mode(n):
        if n > 100:
            with objmode(r="int64"):
                r = int(n)
            return r
        return n

    @njit(cache=True, parallel=True)
    def in_parallel(n):
        total = 0
        for i in prange(n):
            total += i
        return total

    @njit(cache=True)
    def typed_list(n):
        items = typed.List.empty_list(ITEM)
        items.append((n, n + 1))
        return items[0][1]

    @njit(cache=True)
    def of_module(n):
        return imported.INT(n) + numba.int32(n)

    @njit(cache=True)
    def of_library(n):
        a = np.full(3, n)
        b = np.zeros(3, np.int64)
        gufunc(a, b)
        return ufunc(n) + b.sum() + kernel(a).sum()

    @njit(cache=True)
    def generated(n):
        return same(n) + target(n)

    @njit(cache=True, fastmath=True)
    def call_0(n):
        return in_object_mode(n)

    @njit(cache=True, fastmath=True)
    def call_1(n):
        return in_parallel(n)

    @njit(cache=True, fastmath=True)
    def call_2(n):
        return typed_list(n)

    @njit(cache=True, fastmath=True)
    def call_3(n):
        return of_module(n)

    @njit(cache=True, fastmath=True)
    def call_4(n):
        return of_library(n)

    @njit(cache=True, fastmath=True)
    def call_5(n):
        return generated(n)

    HELPERS = in_object_mode, in_parallel, typed_list, of_module, of_library, generated
    CALLERS = call_0, call_1, call_2, call_3, call_4, call_5
    answers = [caller(5) for caller in CALLERS]
    if "again" in sys.argv:
        answers += [helper(7) for helper in HELPERS]
    with_numba = "numba.core.compiler" in sys.modules
    print(with_numba if "modules" in sys.argv else answers)
"""


@pytest.mark.parametrize("mode", usual_modes("run"))
def test_helpers_in_code_that_was_loaded_before_numba_are_compiled_and_stored(
    tmp_path: Path, uncached: Callable[..., str], mode: str
) -> None:
    programs = Programs(tmp_path, _PROGRAM)
    cache = tmp_path / "cache"
    assert programs.start(mode, cache).answer == uncached(_PROGRAM)
    assert programs.start(mode, cache, "again").answer == uncached(_PROGRAM, "again")
    outcome = programs.start(mode, cache, "again")
    assert (outcome.answer, outcome.stored) == (uncached(_PROGRAM, "again"), 0)
    if mode == "run":
        assert programs.start(mode, cache, "again", "modules").answer == "False"
