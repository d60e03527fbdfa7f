"""Helpers in loaded code are those of the functions and types that the code gave them, whatever has the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_modes import MODES, Programs, uncached_fixture  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("numba")


#: Each call of `make` has another function of the same name, and `applied` has an overload for each.
_GIVEN_FUNCTIONS = """
    from DECORATORS import njit

    K = 1

    def make(n):
        @njit(cache=True)
        def made(x):
            return x + n
        return made

    first, second = make(10), make(20)

    @njit(cache=True)
    def applied(function, x):
        return function(x) * K

    @njit(cache=True)
    def helped(x):
        return applied(first, x)

    answers = [helped(1)]
    K = 5

    @njit(cache=True)
    def with_second(x):
        return applied(second, x)

    @njit(cache=True)
    def with_first(x):
        return applied(first, x)

    print(repr(repr([*answers, with_second(1), with_first(1), applied(second, 1.5)])))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_a_helper_in_loaded_code_is_that_of_the_functions_that_it_was_given(
    tmp_path: Path, uncached: Callable[..., str], mode: str
) -> None:
    programs = Programs(tmp_path, _GIVEN_FUNCTIONS)
    for _ in range(3):
        assert programs.start(mode, tmp_path / "cache").answer == uncached(_GIVEN_FUNCTIONS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_helper_that_was_given_a_type_that_its_caller_does_not_name_keeps_its_values(tmp_path: Path) -> None:
    """Like the class of a field of an argument: no walk of the caller meets it."""
    program = """
        from DECORATORS import njit
        from numba import float64
        from numba.experimental import jitclass

        @jitclass([("x", float64)])
        class Inner:
            def __init__(self, x):
                self.x = x

        @jitclass([("inner", Inner.class_type.instance_type)])
        class Outer:
            def __init__(self, inner):
                self.inner = inner

        K = 1

        @njit(cache=True)
        def helper(inner):
            return inner.x + K

        @njit(cache=True)
        def of_outer(outer):
            return helper(outer.inner)

        @njit(cache=True)
        def of_inner(inner):
            return helper(inner)

        inner = Inner(2.0)
        answers = [of_outer(Outer(inner))]
        K = 10
        print(repr(repr([*answers, of_inner(inner), helper(inner)])))
    """
    programs = Programs(tmp_path, program)
    for _ in range(3):
        assert programs.start("variable", tmp_path / "cache").answer == repr("[3.0, 3.0, 3.0]")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_entries_of_the_first_version_do_not_name_what_helpers_were_given(tmp_path: Path) -> None:
    """Code that version 1.0 stored has one row for all functions of a factory. What it contains is former code nevertheless."""
    program = """
        import enum
        import sys
        from DECORATORS import njit

        if sys.argv[1:] == ["first"]:
            from compcache.numba.identity import linked
            linked.references_in = lambda args: ()

        K = 1

        def make(n):
            @njit(cache=True)
            def made(x):
                return x + n
            return made

        first = make(10)

        @njit(cache=True)
        def applied(function, x):
            return function(x) * K

        @njit(cache=True)
        def helped(x):
            return applied(first, x)

        @njit(cache=True)
        def of_kind(kind):
            return K

        def make_kind():
            class Kind(enum.Enum):
                A = 1

            Kind.__qualname__ = "Kind"
            globals()["Kind"] = Kind
            return Kind.A

        answers = [helped(1), of_kind(make_kind())]
        K = 5

        @njit(cache=True)
        def with_first(x):
            return applied(first, x) + 0

        print(repr(repr([*answers, with_first(1), of_kind(make_kind())])))
    """
    programs = Programs(tmp_path, program)
    for given in ("first", "second", "second"):
        assert programs.start("variable", tmp_path / "cache", given).answer == repr("[11, 1, 11, 5]")


#: The types that `make` returns have the names of the former ones. Only code that loaded code has given the former types is former.
_GIVEN_TYPES_MADE_ANEW = """
    import enum
    from numba import float64, types
    from DECORATORS import njit
    from numba.experimental import jitclass, structref

    K = 1

    def make():
        class Kind(enum.Enum):
            A = 10

        @jitclass([("x", float64)])
        class Point:
            def __init__(self, x):
                self.x = x

        class RowType(types.StructRef):
            pass

        class Row(structref.StructRefProxy):
            def __new__(cls, x):
                return structref.StructRefProxy.__new__(cls, x)

        for cls in (Kind, RowType, Row):
            cls.__qualname__ = cls.__name__
            globals()[cls.__name__] = cls
        structref.register(RowType)
        structref.define_proxy(Row, RowType, ["x"])
        return Kind, Point, Row

    @njit(cache=True)
    def helper(x):
        return K

    @njit(cache=True)
    def with_global():
        return helper(Kind.A)

    @njit(cache=True)
    def applied(x):
        return helper(x)

    Kind, Point, Row = make()
    former = [Point(1.0), Row(1.0), (Point(2.0), 1), (Kind.A, 2)]
    answers = [with_global(), *map(applied, former)]
    K = 5
    former.append(Kind.A)
    Kind, Point, Row = make()
    present = [Point(1.0), Row(1.0), (Point(2.0), 1), (Kind.A, 2), Kind.A]
    answers += [function(x) for function in (helper, applied) for x in [*present, *former]]
    print(repr(repr(answers)))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_a_helper_in_loaded_code_is_that_of_the_types_that_it_was_given(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _GIVEN_TYPES_MADE_ANEW)
    for _ in range(3):
        assert programs.start(mode, tmp_path / "cache").answer == uncached(_GIVEN_TYPES_MADE_ANEW)


#: All intrinsics have one name and no module. The last one reads a value that cannot be compared.
_INTRINSICS_OF_ONE_NAME = """
    import os
    import sys
    from DECORATORS import njit
    from numba.extending import intrinsic

    def make(number):
        def core(x):
            def generate(context, builder, signature, args):
                return builder.add(args[0], args[0].type(number))
            return x(x), generate
        namespace = {"intrinsic": intrinsic, "core": core}
        exec("@intrinsic\\ndef made(typingctx, x):\\n    return core(x)\\n", namespace)
        return namespace["made"]

    made = {number: make(number) for number in map(int, sys.argv[1:])}
    first, second = made[10], made[20]
    unidentifiable = make(os.environ)

    @njit(cache=True)
    def called(x):
        return first(x)

    @njit
    def applied(function, x):
        return function(x) * 3

    @njit(cache=True)
    def both(x):
        return called(x), applied(second, x), applied(first, x)

    print(repr(both(1)))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_an_intrinsic_does_not_depend_on_others_of_its_name(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    """Code is stored beside namesakes that cannot be compared. In another order, no answer is that of another intrinsic."""
    programs = Programs(tmp_path, _INTRINSICS_OF_ONE_NAME)
    given = ["10 20", "10 20", "20 10", "10 5 20", "20 5 10", "10 20"]
    outcomes = [programs.start(mode, tmp_path / "cache", *numbers.split()) for numbers in given]
    assert {outcome.answer for outcome in outcomes} == {uncached(_INTRINSICS_OF_ONE_NAME, "10", "20")} == {"(11, 63, 33)"}
    assert [outcomes[0].stored > 0, outcomes[1].stored] == [True, 0]
