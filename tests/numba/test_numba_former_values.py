"""Loaded code, and what is compiled after it, have the values that globals and attributes had at that time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from numba_modes import Programs, uncached_fixture, usual_modes  # noqa: F401 - fixtures

from compcache.numba.fingerprints.former import former_function, keep_values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("numba")

CHANGING = """
    import numpy as np
    from numba import stencil
    from DECORATORS import njit, prange, vectorize

    K = 1

    @njit(cache=True)
    def deep(x):
        return x * K

    @njit(cache=True)
    def inner(x):
        return deep(x) + K

    def make(n):
        @njit(cache=True)
        def made(x):
            return x + n + K
        return made

    first, second = make(10), make(20)

    @njit(cache=True)
    def argument(x):
        return x - K

    @njit(cache=True)
    def applied(function, x):
        return function(x) + first(x) + second(x) + inner(x)

    @vectorize(cache=True)
    def ufunc(x):
        return deep(x) + 3

    @njit(cache=True)
    def in_loop(x):
        return x + K

    @njit(cache=True, parallel=True)
    def parallel(a):
        for i in prange(a.size):
            a[i] = in_loop(a[i])
        return a.sum()

    @njit(cache=True)
    def in_stencil(x):
        return x + K

    @stencil
    def kernel(a):
        return in_stencil(a[0])

    @njit(cache=True)
    def smooth(a):
        return kernel(a).sum()

    answers = [applied(argument, 1), float(ufunc(1.5)), parallel(np.zeros(2)), smooth(np.zeros(2))]
    K = 5

    @njit(cache=True)
    def caller(x):
        return inner(x), second(x), argument(x), deep(x)

    answers += [first(1), caller(1), caller(1.5), caller(np.float32(2)), inner(1), applied(argument, 2), in_loop(1.0), in_stencil(1.0)]
    print(repr(repr(answers)))
"""
#: The second arguments are the values that the globals have once the first function has run, with which no entry was stored.
_CHANGING_WITHOUT_ENTRIES = """
    import sys
    import numpy as np
    import settings
    from numba import float64, njit as numba_njit, stencil, types
    from DECORATORS import njit
    from numba.experimental import jitclass
    from numba.extending import intrinsic, overload, overload_method, register_jitable

    K = settings.K = int(sys.argv[1])
    A = np.array([K])

    @jitclass([("x", float64)])
    class Scaled:
        def __init__(self, x):
            self.x = x + K

        def get(self):
            return self.x * K

    @numba_njit
    def deep(n):
        return deep(n - 1) + K if n > 0 else K

    @numba_njit
    def helper(x):
        return deep(x) + settings.K * A[0]

    def make():
        k = K

        @numba_njit
        def closure(x):
            return x + k

        def set_cell(value):
            nonlocal k
            k = value

        return closure, set_cell

    closure, set_cell = make()

    @register_jitable
    def registered(x):
        return x * K

    @njit(cache=True)
    def compiled_again(x):
        return x * K

    def read():
        return K

    def calls(x): ...
    def inlines(x): ...

    @overload(calls)
    def of_calls(x):
        k = read()
        return lambda x: x * k + K

    @overload(inlines, inline="always")
    def of_inlines(x):
        k = read()
        return lambda x: x * k + K

    @overload_method(types.UnicodeType, "scaled_by")
    def of_scaled_by(text, x):
        k = K
        return lambda text, x: len(text) + x * k

    @intrinsic
    def generated(context, x):
        k = K

        def generate(context, builder, signature, arguments):
            return builder.mul(arguments[0], context.get_constant(types.int64, 100 * k + K))

        return types.int64(types.int64), generate

    @stencil
    def kernel(a):
        return a[0] * K

    def use(n):
        @njit(cache=True)
        def uses(x):
            extended = calls(x), inlines(x), "text".scaled_by(x), generated(x)
            helpers = helper(x), closure(x), registered(x), compiled_again(x)
            return n, Scaled(x).get(), helpers, extended, kernel(np.ones(3)).sum()
        return uses(10)

    answers = [use(1)]
    if sys.argv[2:]:
        K = settings.K = A[0] = int(sys.argv[2])
        set_cell(K)
        compiled_again.recompile()
        answers.append(use(2))
    print(repr(repr(answers)))
"""
_CHANGING_IMPLEMENTATIONS = """
    import sys
    from DECORATORS import njit
    from numba import types
    from numba.extending import intrinsic, overload, overload_method

    K = int(sys.argv[1])

    @njit(cache=True)
    def helper(x):
        return x * K

    @njit(cache=True)
    def called_before(x):
        return x * K

    def calls_helper(x): ...
    def calls_called_before(x): ...
    def has_constant(x): ...

    @overload(calls_helper)
    def of_calls_helper(x):
        return lambda x: helper(x)

    @overload(calls_called_before)
    def of_calls_called_before(x):
        return lambda x: called_before(x)

    @overload(has_constant)
    def of_has_constant(x):
        k = K
        return lambda x: x + k

    @overload_method(types.UnicodeType, "added_to")
    def of_added_to(text, x):
        k = K
        return lambda text, x: len(text) + x + k

    @intrinsic
    def of_compiler(context, x):
        k = K

        def generate(context, builder, signature, arguments):
            return builder.mul(arguments[0], context.get_constant(types.int64, k))

        return types.int64(types.int64), generate

    def make(kind, n):
        if kind == "helper":
            return njit(cache=True)(lambda x: calls_helper(x) + n)
        if kind == "constant":
            return njit(cache=True)(lambda x: has_constant(x) + n)
        if kind == "constants":
            return njit(cache=True)(lambda x: has_constant(x) + has_constant(0.5) + n)
        if kind == "called before":
            return njit(cache=True)(lambda x: calls_called_before(x) + n)
        if kind == "method":
            return njit(cache=True)(lambda x: "text".added_to(x) + n)
        return njit(cache=True)(lambda x: of_compiler(x) + n)

    kinds = ["helper", "constant", "method", "intrinsic"]
    answers = []
    if sys.argv[2:]:
        answers = [called_before(10), *[make(kind, 0)(10) for kind in kinds]]
        K = int(sys.argv[2])
    answers += [make(kind, 1)(10) for kind in [*kinds, "constants", "called before"]]
    print(repr(repr(answers)))
"""
_CALLED_IN_IMPLEMENTATIONS = """
    from DECORATORS import njit
    from numba.extending import overload

    K = 1

    @njit(cache=True)
    def helper(x):
        return x * K

    def calls_helper(x): ...

    @overload(calls_helper)
    def of_calls_helper(x):
        return lambda x: helper(x)

    @njit(cache=True)
    def count(n):
        for number in range(n):
            yield number * K

    @njit(cache=True)
    def caller(x):
        total = 0
        for number in count(x):
            total += number
        return calls_helper(x) + total

    answers = [caller(10)]
    K = 5

    @njit(cache=True)
    def other(x):
        total = 0
        for number in count(x):
            total += number
        return helper(x) - total

    print(repr(repr([*answers, other(10), helper(10), list(count(3))])))
"""
#: The second argument is the value that the global has once the helper has run.
_CHANGING_BEFORE_A_CALLER = """
    import sys
    from DECORATORS import njit

    K = int(sys.argv[1])

    @njit(cache=True)
    def helper(x):
        return x * K

    @njit(cache=True)
    def caller(x):
        return helper(x) + 1

    answers = [helper(10)]
    K = int(sys.argv[2])
    print(repr(repr([*answers, caller(10)])))
"""
#: Overloads that return functions which they have not created. Numba inlines some of them, and reads the globals of these for each caller.
_CHANGING_RETURNED_FUNCTIONS = """
    import sys
    from DECORATORS import njit
    from numba.extending import overload, register_jitable

    K, CHOOSES = 2, True

    @njit
    def jitted(x):
        return x * K

    def chosen(x):
        return x * K

    def other(x):
        return x * K * 100

    @register_jitable
    def registered(x):
        return x + K

    @register_jitable(inline="always")
    def registered_inline(x):
        return x - K

    def of_jitted(x): ...
    def of_chosen(x): ...
    def of_inlined(x): ...

    @overload(of_jitted)
    def implementation(x):
        return jitted.py_func

    @overload(of_chosen)
    @overload(of_inlined, inline="always")
    def choice(x):
        return chosen if CHOOSES else other

    def make(n):
        @njit(cache=True)
        def made(x):
            return n, of_jitted(x), of_chosen(x), of_inlined(x), registered(x), registered_inline(x)
        return made

    answers = [make(1)(10)]
    if sys.argv[1:]:
        K, CHOOSES = 5, False
        answers += [make(2)(10), make(3)(1.5), jitted(10), njit(registered)(10)]
    print(repr(repr(answers)))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["run", "variable"])
def test_a_stored_caller_is_not_loaded_if_its_helper_ran_with_another_value(
    tmp_path: Path, uncached: Callable[..., str], mode: str
) -> None:
    programs = Programs(tmp_path, _CHANGING_BEFORE_A_CALLER)
    for given in ("5 5", "1 1", "1 5", "5 5"):
        answer = programs.start(mode, tmp_path / "cache", *given.split()).answer
        assert answer == uncached(_CHANGING_BEFORE_A_CALLER, *given.split())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["run", "variable", "decorators"])
def test_functions_that_overloads_return_keep_the_values_that_they_had(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _CHANGING_RETURNED_FUNCTIONS)
    for given in ((), ("changes",), ("changes",)):
        assert programs.start(mode, tmp_path / "cache", *given).answer == uncached(_CHANGING_RETURNED_FUNCTIONS, *given)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", usual_modes("run", "install"))
def test_helpers_in_loaded_code_keep_the_values_of_globals(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, CHANGING)
    for _ in range(3):
        assert programs.start(mode, tmp_path / "cache").answer == uncached(CHANGING)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", usual_modes("run", "variable"))
@pytest.mark.parametrize("starts", [("1", "1 5", "1 5"), ("5", "1 5", "1 5")], ids=["loaded", "other"])
def test_what_has_no_entry_is_compiled_from_the_values_that_loaded_code_had(
    tmp_path: Path, uncached: Callable[..., str], mode: str, starts: tuple[str, ...]
) -> None:
    programs = Programs(tmp_path, _CHANGING_WITHOUT_ENTRIES)
    for given in starts:
        answer = programs.start(mode, tmp_path / "cache", *given.split()).answer
        assert answer == uncached(_CHANGING_WITHOUT_ENTRIES, *given.split())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mode", "starts"),
    [
        ("run", ("1 5", "1 5", "5", "1")),
        ("variable", ("1 5", "1 5", "5", "1")),
        *[pytest.param(mode, ("1 5", "1 5", "5", "1"), marks=pytest.mark.stress) for mode in ("install", "decorators")],
        ("variable", ("5", "1 5", "1 5")),
    ],
)
def test_code_of_implementations_that_ran_with_other_values_is_found_only_with_these_values(
    tmp_path: Path, uncached: Callable[..., str], mode: str, starts: tuple[str, ...]
) -> None:
    programs = Programs(tmp_path, _CHANGING_IMPLEMENTATIONS)
    seen: set[str] = set()
    for given in starts:
        is_known = given in seen
        seen.add(given)
        outcome = programs.start(mode, tmp_path / "cache", *given.split())
        assert outcome.answer == uncached(_CHANGING_IMPLEMENTATIONS, *given.split())
        assert outcome.stored == 0 or not is_known


_CHANGING_ATTRIBUTES = """
    import sys
    from DECORATORS import njit
    from numba import types
    from numba.extending import intrinsic, overload, overload_method

    K = int(sys.argv[1])

    class Base:
        zero = 0.0 * K

    class Settings(Base):
        factor = K

        @classmethod
        def doubled(cls):
            return cls.factor * 2

    class Slotted:
        __slots__ = ("factor",)

    class Settable:
        def __init__(self):
            self.__dict__["factor"] = K
            self.slotted = Slotted()

        @property
        def factor(self):
            return self.__dict__["factor"]

        @property
        def tripled(self):
            return self.factor * 3

    table, item, read = {"factors": [K]}, Settable(), lambda: item.slotted.factor
    item.slotted.factor = read.factor = K

    def target(x): ...

    @overload(target)
    def of_target(x):
        factors = Settings.factor, Settings.doubled(), item.tripled, table["factors"][0], read(), read.factor
        return lambda x: (x, factors)

    @overload(target, inline="always")
    def of_text(x):
        if isinstance(x, types.UnicodeType):
            factor = Settings.factor
            return lambda x: len(x) * factor

    @overload_method(types.UnicodeType, "scaled")
    def of_scaled(text):
        factor = Settings.factor
        return lambda text: len(text) * factor

    @intrinsic
    def generated(context, x):
        factor = Settings.factor

        def generate(context, builder, signature, arguments):
            return builder.mul(arguments[0], context.get_constant(types.int64, factor))

        return types.int64(types.int64), generate

    def use(n):
        return njit(cache=True)(lambda x: (n, target(x), "text".scaled(), generated(x)))(10)

    answers = [use(1)]
    if sys.argv[2:]:
        table["factors"][0] = Settings.factor = item.__dict__["factor"] = item.slotted.factor = read.factor = int(sys.argv[2])
        answers += [use(2), Settings.doubled(), item.tripled, table["factors"][0], read()]
    print(repr(repr(answers)))
"""
_CHANGING_IN_THREADS = """
    import sys
    import threading
    from DECORATORS import njit
    from numba.extending import overload

    class Settings:
        factor = int(sys.argv[1])

    def target(x): ...

    @overload(target)
    def implementation(x):
        factor = Settings.factor
        return lambda x: x * factor

    def use(n):
        return njit(cache=True)(lambda x: target(x) + n)(10)

    answers, is_over = [use(1)], threading.Event()
    if sys.argv[2:]:
        Settings.factor = int(sys.argv[2])
        thread = threading.Thread(target=is_over.wait)
        thread.start()
        answers.append(use(2))
        is_over.set()
        thread.join()
    print(repr(repr(answers)))
"""
_CHANGING_QUEUE = """
    import sys
    from collections import deque
    from DECORATORS import njit
    from numba.extending import overload

    queue = deque([int(sys.argv[1])])

    def target(x): ...

    @overload(target)
    def implementation(x):
        factor = queue[0]
        return lambda x: x * factor

    @njit(cache=True)
    def first(x):
        return target(x)

    @njit(cache=True)
    def second(x):
        return target(x) + 100

    answers = [first(10)]
    if sys.argv[2:]:
        queue[0] = int(sys.argv[2])
        answers.append(second(10))
    print(repr(repr(answers)))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", usual_modes("run", "variable"))
def test_implementations_run_with_the_attributes_that_loaded_code_had(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _CHANGING_ATTRIBUTES)
    for given in ("1", "1 5", "1 5"):
        answer = programs.start(mode, tmp_path / "cache", *given.split()).answer
        assert answer == uncached(_CHANGING_ATTRIBUTES, *given.split())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_attributes_that_other_threads_may_read_are_not_former(tmp_path: Path) -> None:
    """The overload runs with the present ones, and its caller is not stored."""
    programs = Programs(tmp_path, _CHANGING_IN_THREADS)
    programs.start("run", tmp_path / "cache", "1")
    outcome = programs.start("run", tmp_path / "cache", "1", "5")
    assert (outcome.answer, outcome.stored) == ("'[11, 52]'", 0)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["variable", "run"])
def test_what_cannot_be_compiled_from_former_values_is_not_stored(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _CHANGING_QUEUE)
    for given in ("1", "1 5"):
        programs.start(mode, tmp_path / "cache", *given.split())
    assert programs.start(mode, tmp_path / "cache", "1", "1").answer == uncached(_CHANGING_QUEUE, "1", "1")


def test_arrays_in_containers_are_not_kept_as_bytes() -> None:
    numpy = pytest.importorskip("numpy")
    namespace: dict[str, Any] = {"__name__": "program", "TABLE": [numpy.arange(3)], "BUFFERS": {"key": bytearray(3)}}
    namespace["PLAIN"] = [(1, {2: "3"})]
    exec("def read():\n return TABLE[0], BUFFERS['key'], PLAIN", namespace)
    keep_values(namespace["read"])
    namespace.update({"TABLE": [numpy.ones(3)], "BUFFERS": {"key": bytearray(4)}, "PLAIN": []})
    array, buffer, plain = former_function(namespace["read"])()
    assert (type(array), type(buffer), plain) == (numpy.ndarray, bytearray, [(1, {2: "3"})])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", usual_modes("variable", "decorators"))
def test_helpers_that_implementations_call_and_generators_keep_the_values_of_globals(
    tmp_path: Path, uncached: Callable[..., str], mode: str
) -> None:
    programs = Programs(tmp_path, _CALLED_IN_IMPLEMENTATIONS)
    for _ in range(3):
        assert programs.start(mode, tmp_path / "cache").answer == uncached(_CALLED_IN_IMPLEMENTATIONS)


#: Numba copies contiguous arrays into code. Code reads the elements of other arrays at each call.
_WRITING_TO_ARRAYS = """
    import warnings
    import numpy as np
    from DECORATORS import njit

    warnings.simplefilter("ignore")  # Numba does not cache the function
    VIEW, TABLES = np.zeros((3, 4))[:, ::2], (np.zeros(4), (3, np.zeros(4)))

    @njit(cache=True)
    def read(i):
        return VIEW[i, i] + 10 * TABLES[0][i] + 1000 * TABLES[1][1][i]

    @njit(cache=True)
    def helper(x):
        return read(1) + x

    @njit(cache=True)
    def caller(x):
        return helper(x)

    answers = [caller(2.5)]
    VIEW[1, 1], TABLES[0][1], TABLES[1][1][1] = 100, 1, 1
    print(answers + [caller(2.5), helper(2.5), helper(2), helper(2j)])
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", usual_modes("variable", "decorators"))
def test_helpers_read_arrays_that_the_program_writes_to_as_without_a_cache(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _WRITING_TO_ARRAYS)
    for _ in range(2):
        assert programs.start(mode, tmp_path / "cache").answer == uncached(_WRITING_TO_ARRAYS)


#: A cell that runs again, or a module that is imported again, defines its classes and functions anew.
_DEFINED_AGAIN = """
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

    def is_current(function):
        try:
            function(-1)
        except Negative:
            return type(function(1)) is Pair

    answers = []
    for _ in range(2):
        exec(compile(CELL, __file__, "exec"), globals())
        answers += [is_current(check), is_current(caller)]
    print(answers)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", usual_modes("variable", "decorators"))
def test_functions_that_are_defined_again_with_their_classes_use_the_new_classes(tmp_path: Path, mode: str) -> None:
    programs = Programs(tmp_path, _DEFINED_AGAIN)
    for _ in range(2):
        assert programs.start(mode, tmp_path / "cache").answer == "[True, True, True, True]"


#: A function that is defined again has the name of the former one, which the code of its callers contains. So does a callee of a callee.
_CALLEES_DEFINED_AGAIN = """
    import sys
    from DECORATORS import njit

    CELL = '''
    @njit(cache=True)
    def lowest(x):
        return x + NUMBER

    @njit(cache=True)
    def low(x):
        return lowest(x)
    '''

    exec(compile(CELL.replace("NUMBER", "1"), __file__, "exec"))

    @njit(cache=True)
    def middle(x):
        return low(x) * 10

    answers = [middle(2.5)] if sys.argv[1] == "early" else []
    exec(compile(CELL.replace("NUMBER", "2"), __file__, "exec"))

    @njit(cache=True)
    def last(x):
        return low(x) + middle(x) * 100

    print(answers + [middle(2.5), last(2.5)])
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", usual_modes("variable", "decorators"))
def test_code_of_callees_that_were_defined_again_is_not_stored(tmp_path: Path, mode: str) -> None:
    programs = Programs(tmp_path, _CALLEES_DEFINED_AGAIN)
    for _ in range(2):
        assert programs.start(mode, tmp_path / "cache", "early").answer == "[35.0, 35.0, 3504.5]"
        assert programs.start(mode, tmp_path / "cache", "late").answer == "[45.0, 4504.5]"


#: The type of an enumeration that is made anew has the name of the former one, and Numba compiles the function for it.
_MADE_ANEW = """
    import enum
    from DECORATORS import njit

    K = 1

    class Kind(enum.Enum):
        A = 10

    @njit(cache=True)
    def scaled(kind):
        return kind.value * K

    answers = [scaled(Kind.A)]
    K = 5

    class Kind(enum.Enum):
        A = 10

    print(repr(repr([*answers, scaled(Kind.A)])))
"""


@pytest.mark.slow
def test_a_loaded_function_has_present_values_for_types_that_are_made_anew(tmp_path: Path, uncached: Callable[..., str]) -> None:
    programs = Programs(tmp_path, _MADE_ANEW)
    for _ in range(2):
        assert programs.start("variable", tmp_path / "cache").answer == uncached(_MADE_ANEW)
