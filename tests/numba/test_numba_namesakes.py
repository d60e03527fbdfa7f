"""Of several implementations or types with one name, code is that of the one that the compiler uses, and of no other."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from numba_modes import Programs, uncached_fixture  # noqa: F401 - fixtures

from compcache.numba.fingerprints.owners import name_and_number_of_class

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("numba")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _assert_same(directory: Path, uncached: Callable[..., str], source: str) -> None:
    """Both versions of a program answer as without a cache, when they compile and when they load."""
    programs = Programs(directory, source)
    for version in ("1", "1", "2", "2"):
        expected = uncached(source.replace("cache=True", "cache=False"), version)
        assert programs.start("variable", directory / "cache", version).answer == expected


_FACTORY = """
    from DECORATORS import njit
    from numba.extending import overload

    def make(number):
        def called(x):
            raise NotImplementedError

        @overload(called)
        def implementation(x):
            return lambda x: x * number

        @njit(cache=True)
        def caller(x):
            return called(x)

        return caller

    numbers = (2, 10) if VERSION == 1 else (10, 2)
    print(repr(repr([caller(1) for caller in [make(number) for number in numbers]])))
"""
_TYPES = """
    import operator
    from DECORATORS import njit
    from numba import types
    from numba.extending import (
        NativeValue, lower_builtin, models, overload, overload_attribute, overload_method, register_model, type_callable, typeof_impl, unbox
    )

    class First(types.Type):
        def __init__(self):
            super().__init__(name="First")

    class Second(types.Type):
        def __init__(self):
            super().__init__(name="Second")

    values = []
    for cls in (First, Second):
        class Value:
            numba_type = cls()
        typeof_impl.register(Value)(lambda value, context: value.numba_type)
        register_model(cls)(models.OpaqueModel)
        unbox(cls)(lambda kind, obj, c: NativeValue(c.context.get_dummy_value()))
        values.append(Value())

    one, other = (First, Second) if VERSION == 1 else (Second, First)
    add, multiply = (operator.add, operator.mul) if VERSION == 1 else (operator.mul, operator.add)

    @overload_method(one, "method")
    def method_of_one(value):
        return lambda value: 1

    @overload_method(other, "method")
    def method_of_other(value):
        return lambda value: 2

    @overload_attribute(one, "attribute")
    def attribute_of_one(value):
        return lambda value: 1

    @overload_attribute(other, "attribute")
    def attribute_of_other(value):
        return lambda value: 2

    @overload(add)
    def _(x, y):
        if isinstance(x, (First, Second)):
            return lambda x, y: 1

    @overload(multiply)
    def _(x, y):
        if isinstance(x, (First, Second)):
            return lambda x, y: 2

    def called(value):
        raise NotImplementedError

    @type_callable(called)
    def type_of_called(context):
        return lambda value: types.int64

    @lower_builtin(called, one)
    def code_for_one(context, builder, signature, arguments):
        return context.get_constant(types.int64, 1)

    @lower_builtin(called, other)
    def code_for_other(context, builder, signature, arguments):
        return context.get_constant(types.int64, 2)

    uses = [
        njit(cache=True)(lambda value: value.method()), njit(cache=True)(lambda value: value.attribute),
        njit(cache=True)(lambda value: value + value), njit(cache=True)(lambda value: called(value)),
    ]
    print(repr(repr([use(value) for use in uses for value in values])))
"""
_CLASSES = """
    from DECORATORS import njit
    from numba import types
    from numba.experimental import structref
    from numba.extending import overload_method

    def make(number):
        @structref.register
        class RowType(types.StructRef):
            def preprocess_fields(self, fields):
                return tuple((name, types.unliteral(kind)) for name, kind in fields)

        class Row(structref.StructRefProxy):
            def __new__(cls, x):
                return structref.StructRefProxy.__new__(cls, x)

        structref.define_proxy(Row, RowType, ["x"])

        @overload_method(RowType, "scaled")
        def scaled(self):
            return lambda self: self.x * number

        return Row, RowType

    @njit(cache=True)
    def scale(row):
        return row.scaled()

    @njit(cache=True)
    def difference(first, second):
        return first.scaled() - second.scaled()

    (First, FirstType), (Second, SecondType), (Third, ThirdType) = make(2), make(10), make(VERSION)
    rows = [First(1), Second(1), Third(1)]
    print(repr(repr([*map(scale, rows), difference(rows[0], rows[1]), difference(rows[1], rows[2])])))
"""
_GUFUNCS = """
    import numpy as np
    from DECORATORS import guvectorize, njit

    K = VERSION

    @njit(cache=True)
    def scaled(x):
        return x * K

    @guvectorize("(n)->()", cache=True)
    def total(values, out):
        out[0] = scaled(values.sum())

    answers = [scaled(1.0)]
    K = 10
    total(np.arange(3.0), out := np.zeros(1))
    print(repr(repr([*answers, out[0]])))
"""


@pytest.mark.parametrize(
    "source", [_FACTORY, _TYPES, _CLASSES, _GUFUNCS], ids=["overloads", "registrations", "types", "wrappers of gufuncs"]
)
def test_code_is_that_of_the_implementation_used(tmp_path: Path, uncached: Callable[..., str], source: str) -> None:
    _assert_same(tmp_path, uncached, "\n    import sys\n    VERSION = int(sys.argv[1])\n" + source)


#: The former classes and functions stay in use. Each function raises, and returns, objects of the classes that were defined with it.
_FORMER_CLASSES_IN_USE = """
    import sys
    from collections import namedtuple
    from DECORATORS import njit

    CELL = '''
    class Negative(Exception):
        pass

    Pair = namedtuple("Pair", "first second")

    @njit(cache=True)
    def check(x):
        if x < 0:
            raise Negative("negative")
        return Pair(x, x)

    @njit(cache=True)
    def caller(x):
        return check(x)
    '''

    def classes_of(function):
        try:
            function(-1)
        except Exception as error:
            return type(error), type(function(1))

    kept, answers = [], []
    for number in range(3):
        exec(compile(CELL, __file__, "exec"), globals())
        kept.append((check, caller, (Negative, Pair)))
        answers += [classes_of(function) == classes for *functions, classes in kept for function in functions]
    with_numba = "numba.core.compiler" in sys.modules
    print(with_numba if "modules" in sys.argv else answers)
"""


@pytest.mark.parametrize("mode", ["run", "variable"])
def test_functions_that_are_defined_again_are_found_while_former_classes_exist(tmp_path: Path, mode: str) -> None:
    programs = Programs(tmp_path, _FORMER_CLASSES_IN_USE)
    outcomes = [programs.start(mode, tmp_path / "cache") for _ in range(2)]
    assert [outcome.answer for outcome in outcomes] == [str([True] * 12)] * 2
    assert outcomes[1].stored == 0
    if mode == "run":
        assert programs.start(mode, tmp_path / "cache", "modules").answer == "False"


#: Closures keep the former classes, which have another name now, or none. An argument determines which function is called first, and when.
_CLOSURES_OVER_FORMER_CLASSES = """
    import sys
    from collections import namedtuple
    from DECORATORS import njit

    def make():
        error, pair = Negative, Pair

        @njit(cache=True)
        def check(x):
            if x < 0:
                raise error("negative")
            return pair(x, x)

        return check, (error, pair)

    def classes_of(function):
        try:
            function(-1)
        except Exception as error:
            return type(error), type(function(1))

    class Negative(Exception):
        pass

    Pair = namedtuple("Pair", "first second")
    former = make()
    if "renamed" in sys.argv:
        FormerNegative, FormerPair = Negative, Pair
    if "early" in sys.argv:
        classes_of(former[0])

    class Negative(Exception):
        pass

    Pair = namedtuple("Pair", "first second")
    functions = [make(), former]
    print([classes_of(function) == classes for function, classes in functions])
"""


@pytest.mark.parametrize("mode", ["run", "variable"])
@pytest.mark.parametrize("name", ["renamed", "nameless"])
def test_code_of_present_classes_is_not_used_for_former_classes(tmp_path: Path, mode: str, name: str) -> None:
    programs = Programs(tmp_path, _CLOSURES_OVER_FORMER_CLASSES)
    outcomes = [programs.start(mode, tmp_path / "cache", name, when) for when in ("early", "late", "late")]
    assert [outcome.answer for outcome in outcomes] == ["[True, True]"] * 3
    assert name != "renamed" or outcomes[2].stored == 0


def test_classes_keep_their_numbers_until_they_are_freed() -> None:
    def define() -> type:
        cls = globals()["Defined"] = type("Defined", (Exception,), {"__module__": __name__})
        return cls

    first = define()
    numbers = [name_and_number_of_class(first)]
    second = define()
    numbers.append(name_and_number_of_class(second))
    del first
    gc.collect()
    numbers += [name_and_number_of_class(second), name_and_number_of_class(define())]
    assert numbers == [("Defined", 0), ("Defined", 1), ("Defined", 1), ("Defined", 0)]
