"""A helper in loaded code that is compiled again has the former values of globals in all of its parts."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from numba_modes import Programs, uncached_fixture, usual_modes  # noqa: F401 - fixtures

from compcache.numba.fingerprints import former
from compcache.numba.fingerprints.former import keep_values
from compcache.numba.fingerprints.history import is_latest, record_code
from compcache.numba.fingerprints.walk import WITH_NUMBA, FunctionPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest.importorskip("numba")
numpy = pytest.importorskip("numpy")

#: Compiled code finds registered functions by identity. The argument changes what is compiled after the globals have changed.
_CHANGING_REGISTERED_FUNCTIONS = """
    import sys
    from DECORATORS import njit
    from numba.extending import overload, register_jitable

    K, EDITION = 1, int(sys.argv[1])

    def make(n):
        def overloaded(x):
            return K * n

        @overload(overloaded)
        def implementation(x):
            return lambda x: x * n

        @njit(cache=True)
        def made(x):
            return overloaded(x)
        return made

    calls_overloaded = make(3)

    @register_jitable
    def registered(x):
        return x + K

    @njit(cache=True)
    def calls_registered(x):
        return registered(x)

    def target(x): ...

    @overload(target)
    def calls_both(x):
        return lambda x: registered(x) + calls_overloaded(x) * 2

    @njit(cache=True)
    def calls_target(x):
        return target(x)

    @njit(cache=True)
    def caller(x):
        return calls_overloaded(x) + calls_registered(x) + calls_target(x)

    answers = [caller(2)]
    K = 5

    @njit(cache=True)
    def first(x):
        return calls_overloaded(x) + EDITION

    @njit(cache=True)
    def second(x):
        return calls_registered(x) + EDITION

    @njit(cache=True)
    def third(x):
        return registered(x) + calls_target(x) + target(x) + EDITION

    print(repr(repr([*answers, first(2), second(2), third(2)])))
"""


#: Helpers whose code contains recursive functions, which are compiled for two kinds of argument, inlined functions, and results of code
#: generators and templates. The argument changes what is compiled after the global has changed.
_CHANGING_PARTS_OF_HELPERS = """
    import sys
    from DECORATORS import njit
    from numba import types
    from numba.core.typing.templates import AbstractTemplate, infer_global, signature
    from numba.extending import intrinsic, lower_builtin, register_jitable, type_callable

    K, EDITION = 1, int(sys.argv[1])

    @njit(cache=True)
    def recursive(n):
        if n <= 0:
            return K
        return recursive(n - 1) + K

    @register_jitable(inline="always")
    def inlined(x):
        return x + K

    @njit(cache=True, inline="always")
    def inlined_dispatcher(x):
        return x * 10 + K

    @njit(cache=True)
    def calls_recursive(x):
        return x + recursive(4)

    @njit(cache=True)
    def calls_inlined(x):
        return inlined(x) + 0.5

    @njit(cache=True)
    def calls_inlined_dispatcher(x):
        return inlined_dispatcher(x) + 0.5

    def builtin(x): ...

    @type_callable(builtin)
    def type_builtin(context):
        return lambda x: types.float64

    @lower_builtin(builtin, types.Any)
    def generate_builtin(context, builder, signature, values):
        value = context.cast(builder, values[0], signature.args[0], types.float64)
        return builder.fadd(value, context.get_constant(types.float64, K * 10))

    @intrinsic
    def intrinsic_function(typing_context, x):
        k = K

        def generate(context, builder, signature, values):
            return builder.fadd(values[0], context.get_constant(types.float64, k * 100 + K))
        return types.float64(types.float64), generate

    def typed(x): ...

    def typed_by_class(x): ...

    @type_callable(typed)
    def type_typed(context):
        return lambda x: types.float64 if K == 1 else types.int64

    @infer_global(typed_by_class)
    class Template(AbstractTemplate):
        def generic(self, args, kws):
            return signature(types.float64 if K == 1 else types.int64, *args)

    @lower_builtin(typed, types.Any)
    @lower_builtin(typed_by_class, types.Any)
    def generate_typed(context, builder, signature, values):
        return context.cast(builder, values[0], signature.args[0], signature.return_type)

    @njit(cache=True)
    def calls_typed(x):
        return typed(x + 0.5)

    @njit(cache=True)
    def calls_typed_by_class(x):
        return typed_by_class(x + 0.5)

    @njit(cache=True)
    def calls_builtin(x):
        return builtin(x)

    @njit(cache=True)
    def calls_intrinsic(x):
        return intrinsic_function(float(x))

    @njit(cache=True)
    def caller(x):
        parts = calls_recursive(x), calls_inlined(x), calls_inlined_dispatcher(x), calls_builtin(x), calls_intrinsic(x)
        return *parts, calls_typed(x), calls_typed_by_class(x)

    answers = [caller(2.0)]
    K = 5

    @njit(cache=True)
    def first(x):
        return calls_recursive(x) + EDITION

    @njit(cache=True)
    def second(x):
        return calls_inlined(x) + inlined(x) + EDITION

    @njit(cache=True)
    def third(x):
        return calls_inlined_dispatcher(x) + inlined_dispatcher(x) + EDITION

    @njit(cache=True)
    def fourth(x):
        return calls_builtin(x) + builtin(x) + EDITION

    @njit(cache=True)
    def fifth(x):
        return calls_intrinsic(x) + intrinsic_function(float(x)) + EDITION

    @njit(cache=True)
    def sixth(x):
        return calls_typed(x), typed(x + 0.5), EDITION

    @njit(cache=True)
    def seventh(x):
        return calls_typed_by_class(x), typed_by_class(x + 0.5), EDITION

    functions = first, second, third, fourth, fifth, sixth, seventh
    print(repr(repr([*answers, *[function(x) for x in (2.0, 2) for function in functions]])))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", usual_modes("run", "variable"))
def test_registered_functions_stay_registered_in_copies_with_former_values(
    tmp_path: Path, uncached: Callable[..., str], mode: str
) -> None:
    programs = Programs(tmp_path, _CHANGING_REGISTERED_FUNCTIONS)
    outcomes = [programs.start(mode, tmp_path / "cache", edition) for edition in ("1", "1", "2", "2")]
    for outcome, edition in zip(outcomes, ("1", "1", "2", "2"), strict=True):
        assert outcome.answer == uncached(_CHANGING_REGISTERED_FUNCTIONS, edition)
    assert outcomes[2].stored  # `first`, whose helper is compiled from a copy


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", usual_modes("run", "variable"))
def test_functions_and_code_generators_of_helpers_have_former_values(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _CHANGING_PARTS_OF_HELPERS)
    for edition in ("1", "1", "2", "2"):
        answer = programs.start(mode, tmp_path / "cache", edition).answer
        assert answer == uncached(_CHANGING_PARTS_OF_HELPERS, edition)


#: A helper has its own entry, with what a code generator makes of another value. The first argument is that value at the start, the second
#: decides whether the process loads the helper in its caller, or alone.
_GENERATED_FROM_TWO_VALUES = """
    import sys
    from DECORATORS import njit
    from numba import types
    from numba.extending import lower_builtin, type_callable

    K, IS_ALONE, EDITION = map(int, sys.argv[1:])

    def builtin(x): ...

    @type_callable(builtin)
    def type_builtin(context):
        return lambda x: types.float64

    @lower_builtin(builtin, types.Any)
    def generate_builtin(context, builder, signature, values):
        return builder.fadd(values[0], context.get_constant(types.float64, K * 10))

    @njit(cache=True)
    def helper(x):
        return builtin(x)

    @njit(cache=True)
    def caller(x):
        return helper(x)

    @njit(cache=True)
    def other(x):
        return helper(x) + EDITION

    answers = [other(2.0) if IS_ALONE else caller(2.0)]
    K = 5
    print(repr(repr([*answers, helper(2.0), other(2.0)])))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", usual_modes("run", "variable"))
def test_entries_of_helpers_in_loaded_code_have_the_former_results_of_code_generators(
    tmp_path: Path, uncached: Callable[..., str], mode: str
) -> None:
    programs = Programs(tmp_path, _GENERATED_FROM_TWO_VALUES)
    for given in ("5 1 1", "1 0 1", "1 0 2", "1 0 2"):
        answer = programs.start(mode, tmp_path / "cache", *given.split()).answer
        assert answer == uncached(_GENERATED_FROM_TWO_VALUES, *given.split())


#: The program replaces arrays, and tuples with arrays and types. `records` is an object with a structure of C, and has a list: its class
#: cannot be called with items. The overload names `records`, and reads an attribute with this name.
_REPLACING_ARRAYS = """
    import grp
    import sys
    import numpy as np
    from DECORATORS import njit
    from numba.extending import overload

    class Settings:
        records = 3

    EDITION, records = int(sys.argv[1]), grp.getgrgid(0)

    def set_values(number):
        global TABLE, ROWS, PAIR, TYPES, SHAPE
        SHAPE = np.ones((3, 4) if number == 1.0 else (4, 3))
        TABLE, ROWS, PAIR = np.full(2000, number), np.full((40, 40), number), (np.full(2000, number), (number, np.full(3, number)))
        TYPES = np.dtype("f8") if number == 1.0 else np.dtype("f4"), np.dtype([("x", "f8")]), number

    set_values(1.0)

    def target(x): ...

    @overload(target)
    def implementation(x):
        number = Settings.records + PAIR[1][0]
        return lambda x: x + number + TABLE[7]

    @njit(cache=True)
    def helper(x):
        return x + TABLE[5] + ROWS[2, 3] + PAIR[0][5] + PAIR[1][1][2] + np.full(3, 0.1, dtype=TYPES[0])[1] + TYPES[2] + SHAPE.shape[0]

    @njit(cache=True)
    def caller(x):
        return helper(x) + target(x)

    answers = [caller(1.5)]
    TABLE[5] = ROWS[2, 3] = 100
    set_values(5.0)

    @njit(cache=True)
    def later(x):
        return helper(x), target(x), EDITION

    print(repr(repr([*answers, *[float(helper(x)) for x in (1.5, 2)], later(1.5), later(2)])))
"""


#: A helper reads arrays whose layout a plain copy would not have. The arrays stay as they are.
_READING_LAYOUTS = """
    import sys
    import numpy as np
    from DECORATORS import njit

    EDITION, FACTOR = int(sys.argv[1]), 1
    COLUMNS, ROW = np.asfortranarray(np.arange(12.0).reshape(3, 4)), np.arange(5.0)[np.newaxis]

    @njit(cache=True)
    def helper(x):
        return x + FACTOR, COLUMNS.strides[0], ROW.strides[0], COLUMNS[1, 2]

    @njit(cache=True)
    def caller(x):
        return helper(x)

    answers = [caller(1.5)]
    FACTOR = 2

    @njit(cache=True)
    def later(x):
        return helper(x), EDITION

    print(repr(repr([*answers, later(1.5), helper(2)])))
"""


#: Two functions read one array, which changes between their first calls and after them.
_READING_A_CHANGED_ARRAY = """
    import sys
    import numpy as np
    from DECORATORS import njit

    EDITION, TABLE = int(sys.argv[1]), np.arange(3.0)

    @njit(cache=True)
    def first(x):
        return x + TABLE[0]

    @njit(cache=True)
    def helper(x):
        return x + TABLE[1]

    @njit(cache=True)
    def caller(x):
        return helper(x)

    answers = [first(1.5)]
    TABLE[:] = 10
    answers.append(caller(1.5))
    TABLE[:] = 20

    @njit(cache=True)
    def later(x):
        return helper(x), EDITION

    print(repr(repr([*answers, later(1.5), helper(2)])))
"""


#: The program replaces arrays that are too large for Numba to copy, directly and in a tuple. Numba keeps them alive.
_REPLACING_LARGE_ARRAYS = """
    import sys
    import warnings
    import numpy as np
    from DECORATORS import njit

    warnings.simplefilter("ignore")  # Numba's own cache warns about such arrays
    EDITION, TABLE, PAIR = int(sys.argv[1]), np.ones(200000), (np.ones(200000), 3)

    @njit(cache=True)
    def helper(x):
        return x + TABLE.shape[0] + PAIR[0].shape[0] + PAIR[1]

    @njit(cache=True)
    def caller(x):
        return helper(x)

    answers = [caller(1.5)]
    TABLE, PAIR = np.full(300000, 5.0), (np.full(300000, 7.0), 4)

    @njit(cache=True)
    def later(x):
        return helper(x), EDITION

    print(repr(repr([*answers, later(1.5)])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", usual_modes("run"))
@pytest.mark.parametrize(
    "source", [_READING_LAYOUTS, _READING_A_CHANGED_ARRAY, _REPLACING_LARGE_ARRAYS], ids=["layouts", "changed", "large"]
)
def test_former_arrays_are_as_they_were(tmp_path: Path, uncached: Callable[..., str], mode: str, source: str) -> None:
    programs = Programs(tmp_path, source)
    for edition in ("1", "1", "2"):
        assert programs.start(mode, tmp_path / "cache", edition).answer == uncached(source, edition)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", usual_modes("run", "variable"))
def test_helpers_in_loaded_code_have_the_former_arrays(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _REPLACING_ARRAYS)
    for edition in ("1", "1", "2", "2"):
        assert programs.start(mode, tmp_path / "cache", edition).answer == uncached(_REPLACING_ARRAYS, edition)


#: The program replaces all that a helper, a template and an overload in loaded code read, and frees it.
_REPLACING_OBJECTS = """
    import gc
    import sys
    from DECORATORS import njit
    from numba import float64
    from numba.experimental import jitclass
    from numba.extending import overload

    K, EDITION = 1, int(sys.argv[1])

    def product(x):
        return x * K

    def make(number):
        @njit(cache=True)
        def made(x):
            return x + number

        @jitclass([("x", float64)])
        class Scaled:
            def __init__(self, x):
                self.x = x * number

        return njit(cache=True)(product), made, Scaled

    multiply, add, Scaled = make(10)

    @njit(cache=True)
    def helper(x):
        return multiply(x) + Scaled(x).x

    def target(x): ...

    @overload(target)
    def implementation(x):
        return lambda x: add(x)

    @njit(cache=True)
    def calls_target(x):
        return target(x)

    @njit(cache=True)
    def caller(x):
        return helper(x) + calls_target(x)

    answers = [caller(2.5)]
    K = 5
    multiply, add, Scaled = make(20)
    gc.collect()

    @njit(cache=True)
    def later(x):
        return helper(x), target(x), calls_target(x), EDITION

    answers += [helper(2.5), later(2.5), later(2)]
    print(repr(repr(answers)))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", usual_modes("run", "variable"))
def test_what_helpers_in_loaded_code_read_is_not_freed(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _REPLACING_OBJECTS)
    for edition in ("1", "1", "2", "2"):
        assert programs.start(mode, tmp_path / "cache", edition).answer == uncached(_REPLACING_OBJECTS, edition)


#: Each function of an implementation names all earlier ones.
_NAMING_ALL_OTHERS = """
    import resource
    from numba import njit
    from numba.extending import overload

    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    def f0(x):
        return x + 1
""" + "".join(f"""
    def f{number}(x):
        return {" + ".join(f"f{other}(x)" for other in range(number))} if x is None else f{number - 1}(x)
""" for number in range(1, 28)) + """
    def target(x): ...

    @overload(target)
    def implementation(x):
        number = f27(1)
        return lambda x: x + number

    @njit
    def calls_target(x):
        return target(x)

    print(calls_target(1))
"""


#: A tuple in which each level contains the next one twice.
_TREE = """
    import resource
    from numba import njit
    from numba.extending import overload

    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    tree = 2
    for _ in range(26):
        tree = tree, tree

    def target(x): ...

    @overload(target)
    def implementation(x):
        number = tree
        while isinstance(number, tuple):
            number = number[0]
        return lambda x: x + number

    @njit
    def calls_target(x):
        return target(x)

    print(calls_target(1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("source", [_NAMING_ALL_OTHERS, _TREE], ids=["functions", "tuples"])
def test_what_functions_read_is_kept_once_however_many_name_it(tmp_path: Path, source: str) -> None:
    programs = Programs(tmp_path, source)
    for _ in range(2):
        assert programs.start("run", tmp_path / "cache").answer == "3"


#: Eight functions read one array of 0.96 MB. The program prints whether they have taken less than 4 MB.
_SHARING_AN_ARRAY = """
    import tracemalloc
    import numpy as np
    from numba import njit

    TABLE = np.arange(120000.0)
    tracemalloc.start()
    for number in range(8):
        exec(f"@njit\\ndef f{number}(x): return x + TABLE[{number}]")
    print(sum(globals()[f"f{number}"](1.0) for number in range(8)), tracemalloc.get_traced_memory()[1] < 4 << 20)
"""


def test_functions_that_read_one_array_keep_one_copy(tmp_path: Path) -> None:
    programs = Programs(tmp_path, _SHARING_AN_ARRAY)
    programs.start("run", tmp_path / "cache")
    assert programs.start("run", tmp_path / "cache").answer == "36.0 True"


#: A cell that defines a helper is run again before each caller. The former and the present helper read the same.
_DEFINING_A_HELPER_AGAIN = """
    import gc
    import sys
    from numba import njit

    CELL = '''
    @njit
    def helper(x):
        return x + 1
    '''
    exec(CELL)

    @njit
    def function(x):
        return helper(x) * 2

    answers = [function(1)]
    for number in range(3):
        namespace = {"njit": njit, "function": function, "__name__": f"cell{number}"}
        exec(f"@njit\\ndef caller(x):\\n    return function(x) + {number}", namespace)
        answers.append(namespace.pop("caller")(1))
        exec(CELL)
        gc.collect()
    print(answers, "numba.core" in sys.modules)
"""


@pytest.mark.slow
def test_helpers_that_are_defined_again_as_they_were_cost_no_compilation(tmp_path: Path) -> None:
    programs = Programs(tmp_path, _DEFINING_A_HELPER_AGAIN)
    answers = [programs.start("run", tmp_path / "cache").answer for _ in range(2)]
    assert answers == ["[4, 4, 5, 6] True", "[4, 4, 5, 6] False"]


def test_code_is_compared_while_other_threads_record_code() -> None:
    def callee() -> None: ...
    def function() -> None: ...
    def defined_again() -> None: ...

    class Parts(list[FunctionPart]):
        """Parts during whose iteration another thread records other code of the callee."""

        def __iter__(self) -> Iterator[FunctionPart]:
            record_code([FunctionPart(callee, b"3", WITH_NUMBA)])
            return super().__iter__()

    record_code([FunctionPart(callee, b"2", WITH_NUMBA), FunctionPart(function, b"1", WITH_NUMBA, callees=[callee])])
    now = FunctionPart(function, b"1", WITH_NUMBA, callees=[defined_again]), FunctionPart(defined_again, b"2", WITH_NUMBA)
    assert is_latest(Parts(now))


def test_copies_of_arrays_that_are_freed_leave_no_rows() -> None:
    def make(array: Any) -> Any:
        return lambda x: x + array[0]

    def keep(count: int) -> int:
        """The rows after the values of so many functions were kept, each of which reads an array of its own and is freed."""
        arrays = [numpy.full(2, 1.0) for _ in range(count)]
        for array in arrays:
            keep_values(make(array))
        gc.collect()
        return len(former._copies)

    before = keep(0)
    assert keep(100) == before


_RECURSION_DEFINED_AGAIN = """
    import sys
    from numba import njit

    K = int(sys.argv[1])

    @njit(cache=True)
    def down(x):
        return x if x <= 0 else up(x - 1)

    @njit(cache=True)
    def up(x):
        return x + 1 if x <= 0 else down(x - 1)

    answers = [down(4), up(4)]

    @njit(cache=True)
    def down(x):
        return x * K if x <= 0 else up(x - 1)

    print([*answers, down(4), down(5), up(4)])
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("former", "stored"), [("", 2), ("assert x < 100", 3)], ids=["found", "stored"])
def test_a_function_of_a_recursion_is_found_if_it_is_defined_again_as_it_was(
    tmp_path: Path, uncached: Callable[..., str], former: str, stored: int
) -> None:
    """Code that raises an exception contains its line, so a function at another line is stored."""
    source = _RECURSION_DEFINED_AGAIN.replace("x * K if", "x if").replace("def down(x):", f"def down(x):\n        {former}")
    programs = Programs(tmp_path, source)
    outcomes = [programs.start("install", tmp_path / "cache", "1") for _ in range(2)]
    assert [(outcome.stored, outcome.found) for outcome in outcomes] == [(stored, 3 - stored), (0, 3)]
    assert {outcome.answer for outcome in outcomes} == {uncached(source, "1")}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["run", "install"])
def test_a_function_of_a_recursion_that_is_defined_in_another_way_is_not_mixed_up(
    tmp_path: Path, uncached: Callable[..., str], mode: str
) -> None:
    programs = Programs(tmp_path, _RECURSION_DEFINED_AGAIN)
    for given in ("3", "3", "5", "3"):
        assert programs.start(mode, tmp_path / "cache", given).answer == uncached(_RECURSION_DEFINED_AGAIN, given)
