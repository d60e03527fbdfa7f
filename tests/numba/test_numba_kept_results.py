"""Results of functions that ran while code was compiled, in code of other processes and modes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_modes import Outcome, Programs, uncached_fixture  # noqa: F401 - fixtures

from compcache import Cache

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("numba")

_LOADED_FIRST = """
    import sys
    from numba import njit
    from numba.extending import overload

    *earlier, present = map(int, sys.argv[1:])
    G = (earlier or [present])[0]

    def target(x):
        pass

    @overload(target)
    def implementation(x):
        return (lambda x: x + 1) if G == 1 else (lambda x: x + 50)

    @njit
    def first(x):
        return target(x)

    @njit
    def second(x):
        return target(x) + 100

    value = first(1)
    G = present
    print(value, second(1))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_results_in_code_that_was_loaded_without_numba_are_those_of_this_process(tmp_path: Path, uncached: Callable[..., str]) -> None:
    programs = Programs(tmp_path, _LOADED_FIRST)
    for given in ("1 5", "1 5", "5", "1 5"):
        assert programs.start("run", tmp_path / "cache", *given.split()).answer == uncached(_LOADED_FIRST, *given.split())


_KEPT = """
    import sys
    from numba import njit
    from numba.extending import overload
    import compcache.numba

    *earlier, present = map(int, sys.argv[2:])
    G = (earlier or [present])[0]

    def target(x):
        pass

    @overload(target, inline="always")
    def implementation(x):
        return (lambda x: x + 1) if G == 1 else (lambda x: x + 2)

    @njit
    def uncached(x):
        return target(x)

    if sys.argv[1] == "installed":
        compcache.numba.install()
    if earlier:
        uncached(1)
        G = present
    compcache.numba.install()

    @njit(cache=True)
    def cached(x):
        return target(x) + 100

    print(cached(1))
"""
_DECLINED = """
    import sys
    from numba import njit
    from numba.extending import overload
    import compcache.numba

    compcache.numba.install()
    *earlier, present = map(int, sys.argv[1:])
    G = (earlier or [present])[0]

    class State:
        def knows(self):
            return self.values is None

    state = State()
    state.values = (value for value in (1,))

    def target(x):
        pass

    @overload(target)
    def special(x):
        return None if state.knows() or G == 1 else lambda x: 200

    @overload(target)
    def general(x):
        return lambda x: 100

    @njit(cache=True)
    def first():
        return target(1)

    @njit(cache=True)
    def second():
        return target(1) + 1

    if earlier:
        first()
        G = present
    print(second())
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", ["installed", "later"])
def test_results_of_uncached_code_and_of_the_time_before_the_installation_are_not_taken_for_present_ones(tmp_path: Path, when: str) -> None:
    programs = Programs(tmp_path, _KEPT)
    first, other, same = (programs.start("plain", tmp_path / "cache", when, *given) for given in (("1", "2"), "2", "1"))
    assert [first.answer, other.answer, same.answer] == ["102", "103", "102"]
    assert (other.found, same.found) == (0, 1 if when == "installed" else 0)
    assert programs.start("plain", tmp_path / "cache", when, "1", "2").answer == "102"  # not the entry of the second start


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_implementations_that_declined_have_the_content_of_that_time(tmp_path: Path) -> None:
    programs = Programs(tmp_path, _DECLINED)

    def start(*given: str) -> Outcome:
        return programs.start("plain", tmp_path / "cache", *given, NUMBA_CACHE_DIR=str(tmp_path / "-".join(given)))

    assert [start(*given).answer for given in (("1", "2"), ("2",), ("2", "1"))] == ["101", "201", "201"]
    assert start("1")[::2] == ("101", 1)


_COUNTING = """
    import sys
    from numba import njit, types
    from numba.core.typing.templates import AbstractTemplate, infer_global, signature
    from numba.extending import lower_builtin

    order, counted = sys.argv[1:]
    count = [0]

    def number(x):
        pass

    class Plain(AbstractTemplate):
        def generic(self, args, kws):
            return signature(types.int64, args[0])

    class Counting(AbstractTemplate):
        def generic(self, args, kws):
            count[0] += 1
            return signature(types.int64, args[0])

    infer_global(number)(Counting if counted == "typing" else Plain)

    @lower_builtin(number, types.Any)
    def lower_number(context, builder, sig, args):
        if counted == "lowering":
            count[0] += 1
        return context.get_constant(types.int64, count[0])

    @njit(cache=True)
    def f(x):
        return number(x)

    @njit(cache=True)
    def g(x):
        return number(x) * 10

    print([f(1) if name == "f" else g(1) for name in order])
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("counted", ["typing", "lowering"])
@pytest.mark.parametrize("mode", ["run", "install"])
def test_code_of_generators_whose_values_a_compilation_has_changed_is_not_stored(
    tmp_path: Path, uncached: Callable[..., str], mode: str, counted: str
) -> None:
    programs = Programs(tmp_path, _COUNTING)
    for order in ("g", "fg", "g"):
        outcome = programs.start(mode, tmp_path / "cache", order, counted)
        assert outcome == Outcome(uncached(_COUNTING, order, counted), 0, 0)


_HELPED = """
    import sys
    from numba import njit, types
    from numba.core.typing.templates import AbstractTemplate, infer_global, signature
    from numba.extending import lower_builtin

    *earlier, present = map(int, sys.argv[1:])
    G = (earlier or [present])[0]

    def number(x):
        pass

    @infer_global(number)
    class Typing(AbstractTemplate):
        def generic(self, args, kws):
            return signature(types.float64 if G == 1 else types.int64, types.int64)

    @lower_builtin(number, types.int64)
    def lower_number(context, builder, sig, args):
        return context.cast(builder, args[0], types.int64, sig.return_type)

    @njit(cache=True)
    def helper(x):
        return number(x)

    @njit(cache=True)
    def first(x):
        return helper(x)

    @njit(cache=True)
    def second(x):
        return helper(x), 100

    value = first(1) if earlier else None
    G = present
    print(value, second(1))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["run", "install"])
def test_helpers_that_a_process_has_compiled_have_the_types_of_that_time_in_code_that_it_loads(
    tmp_path: Path, uncached: Callable[..., str], mode: str
) -> None:
    programs = Programs(tmp_path, _HELPED)
    for given in ("2", "1 2", "1 2", "2"):
        assert programs.start(mode, tmp_path / "cache", *given.split()).answer == uncached(_HELPED, *given.split())


_GROWING = """
    import sys
    from numba import float64, njit, types
    from numba.core.typing.templates import AttributeTemplate
    from numba.experimental import jitclass
    from numba.extending import infer_getattr

    table = {}
    FACTOR = int(sys.argv[1])

    @infer_getattr
    class Reading(AttributeTemplate):
        key = types.ClassInstanceType

        def generic_resolve(self, instance, attr):
            return types.int64 if table.get(attr) == instance else None

    @jitclass([("a", float64)])
    class Scale:
        def __init__(self, a):
            self.a = a

    @njit(cache=True)
    def helper(s):
        return s.a * FACTOR

    @njit(cache=True)
    def with_helper(s):
        return helper(s) + s.a

    @njit(cache=True)
    def alone(s):
        return s.a + FACTOR

    s = Scale(2.5)
    value = helper(s)
    table["b"] = 1
    print(value, with_helper(s), alone(s))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["run", "install"])
def test_code_that_no_process_can_use_is_not_stored_at_each_start(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _GROWING)
    stored = []
    for given in ("3", "3", "3", "4", "4"):
        assert programs.start(mode, tmp_path / "cache", given).answer == uncached(_GROWING, given)
        stored.append(len(Cache(tmp_path / "cache").modules()))
    _, second, third, edited, last = stored  # the first process compiles the getter of the field as a part of other code
    assert second == third < edited == last
    assert not [function for function in Cache(tmp_path / "cache").functions() if "with_helper" in function.func_name]


_REGISTERED_IN_STAGES = """
    import sys
    from llvmlite import ir
    from numba import njit, types
    from numba.core.imputils import lower_builtin
    from numba.extending import type_callable

    NUMBER = int(sys.argv[1])

    def make(name, number):
        def operation(x):
            return x + number

        operation.__name__ = operation.__qualname__ = name
        globals()[name] = operation

        @type_callable(operation)
        def type_operation(context):
            return lambda x: types.int64

        @lower_builtin(operation, types.int64)
        def generate(context, builder, sig, args):
            return builder.add(args[0], ir.Constant(ir.IntType(64), number))

    make("first", NUMBER)

    @njit(cache=True)
    def calls_first(x):
        return first(x)

    answers = [calls_first(1)]
    make("second", 20)

    @njit(cache=True)
    def calls_second(x):
        return second(x)

    @njit(cache=True)
    def calls_both(x):
        return first(x) * second(x)

    print(*answers, calls_second(1), calls_both(1))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_code_generators_of_one_name_that_are_registered_later_are_no_new_results(tmp_path: Path, uncached: Callable[..., str]) -> None:
    programs = Programs(tmp_path, _REGISTERED_IN_STAGES)
    for given, stored, found in (("1", 3, 0), ("1", 0, 3), ("4", 3, 0), ("4", 0, 3)):
        outcome = programs.start("variable", tmp_path / "cache", given)
        assert outcome == Outcome(uncached(_REGISTERED_IN_STAGES, given), stored, found)


_WITH_FLAGS = """
    import sys
    from DECORATORS import njit
    from numba import types
    from numba.extending import intrinsic, overload

    fast, K = map(int, sys.argv[1:])
    present, K = K, 1

    def target(x):
        pass

    def outer(x):
        pass

    @overload(target)
    def implementation(x):
        return lambda x: x + K

    @overload(outer)
    def with_target(x):
        return lambda x: target(x)

    @intrinsic
    def constant(context, x):
        value = K

        def generate(context, builder, sig, args):
            return context.get_constant(types.int64, value)

        return types.int64(x), generate

    @njit(cache=True)
    def first(x):
        return target(x), constant(x)

    @njit(cache=True, fastmath=bool(fast))
    def second(x):
        return target(x), constant(x), 100

    @njit(cache=True)
    def nested(x):
        return outer(x)

    @njit(cache=True)
    def last(x):
        return target(x), constant(x), 200

    value = first(2.5)
    K = present
    print(value, second(2.5), nested(2.5), last(2.5))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["run", "decorators"])
def test_results_of_overloads_are_kept_for_each_set_of_compiler_flags(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    """Callers with other options make Numba run an overload again, and so does the compilation of another overload. See `_get_impl`."""
    programs = Programs(tmp_path, _WITH_FLAGS)
    stored = []
    for given in ("0 3", "1 3", "1 3", "1 1", "0 3"):
        outcome = programs.start(mode, tmp_path / "cache", *given.split())
        assert outcome.answer == uncached(_WITH_FLAGS, *given.split())
        stored.append(outcome.stored)
    assert stored[2] == stored[4] == 0


_REGISTERED_FOR_OWN_FUNCTIONS = """
    import sys
    from numba import njit
    from numba.extending import overload, register_jitable

    *earlier, present, added = map(int, sys.argv[1:])
    K = (earlier or [present])[0]

    def target(x):
        pass

    @overload(target)
    def implementation(x):
        in_cell = K * 2

        @register_jitable
        def scaled(x):
            return x * K + in_cell

        def register(function):
            overload(function, strict=False)(lambda x: function)
            return function

        @register
        def other(x):
            return scaled(x) + added * 100

        return lambda x: (scaled(x), other(x))

    @njit(cache=True)
    def first(x):
        return target(x)

    @njit(cache=True)
    def second(x):
        return target(x), first(x)

    answers = [first(2.5)]
    K = present
    print([*answers, second(2.5), second(2)], "numba.core.compiler" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["run", "install"])
def test_what_an_overload_registers_for_its_own_functions_is_a_part_of_it(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _REGISTERED_FOR_OWN_FUNCTIONS)
    outcomes = []
    for given in ("3 0", "3 0", "4 0", "3 1", "3 0", "3 5 0", "3 5 0"):
        outcomes.append(programs.start(mode, tmp_path / "cache", *given.split()))
        assert outcomes[-1].answer.split("]")[0] == uncached(_REGISTERED_FOR_OWN_FUNCTIONS, *given.split()).split("]")[0]
    for outcome in (outcomes[1], outcomes[4]):
        assert (outcome.stored, outcome.found or outcome.answer.split("]")[1]) == (0, {"run": " False", "install": 3}[mode])


_REGISTERED_FOR_ANOTHER_FUNCTION = """
    import sys
    from numba import njit
    from numba.extending import overload

    *earlier, present = map(int, sys.argv[1:])
    K = (earlier or [present])[0]

    def target(x):
        pass

    def helper(x):
        pass

    @overload(target)
    def implementation(x):
        in_cell = K

        @overload(helper)
        def for_helper(x):
            return lambda x: x * in_cell

        return lambda x: helper(x)

    @njit(cache=True)
    def first(x):
        return target(x)

    @njit
    def with_helper(x):
        return helper(x)

    @njit(cache=True)
    def second(x):
        return target(x), with_helper(x)

    answers = [first(2)] if earlier else []
    K = present
    print([*answers, second(2.5)])
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_an_overload_registers_for_another_function_is_no_part_of_it(tmp_path: Path, uncached: Callable[..., str]) -> None:
    """The first implementation is used, which may be that of an earlier run."""
    programs = Programs(tmp_path, _REGISTERED_FOR_ANOTHER_FUNCTION)
    for given in ("3 5", "5", "3 5", "5"):
        assert programs.start("install", tmp_path / "cache", *given.split()).answer == uncached(
            _REGISTERED_FOR_ANOTHER_FUNCTION, *given.split()
        )
