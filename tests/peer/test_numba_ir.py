"""The LLVM IR that Numba generates: cached and called without Numba, compared with plain Python."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import llvmlite.binding as llvm
import pytest

from compcache import Cache, Function, ModuleSource, UndefinedSymbolError
from compcache.globals import NativeSymbol

from .freshpython import run_fresh
from .libraries import own_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .compilers import Compiler

numba = pytest.importorskip("numba")
np = pytest.importorskip("numpy")
pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
]

WEIGHTS = (1.5, -2.25, 3.125)


def hypotenuse(a: float, b: float) -> float:
    return math.sqrt(a * a + b * b)


def greatest_divisor(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def collatz_steps(n: int) -> int:
    steps = 0
    while n != 1:
        n = 3 * n + 1 if n % 2 else n // 2
        steps += 1
    return steps


def special(x: float) -> float:
    return math.sin(x) + math.log1p(x) + math.erf(x) + math.lgamma(x) + math.atan2(x, 2.0) + math.pow(x, 1.5)


def is_between(x: float, negate: bool) -> bool:
    return (0.0 < x < 1.0) != negate


def average(a: float, b: float) -> float:
    return (a + b) / 2


def small_sum(a: int, b: int) -> int:
    return a + b


def unsigned_mix(x: int) -> int:
    x ^= x >> 33
    return x ^ (x >> 29)


def weigh(index: int) -> float:
    total = 0.0
    for step in range(index):
        total += WEIGHTS[step % 3] * step
    return total


def julia_steps(real: float, imaginary: float) -> int:
    z = complex(real, imaginary)
    steps = 0
    while abs(z) < 2.0 and steps < 200:
        z = z * z + complex(-0.8, 0.156)
        steps += 1
    return steps


def simpson(a: float, b: float, n: int) -> float:
    h = (b - a) / n
    total = 0.0
    for i in range(n + 1):
        weight = 1.0 if i in (0, n) else 4.0 if i % 2 else 2.0
        total += weight * math.exp(-((a + i * h) ** 2))
    return total * h / 3.0


def bit_reverse(x: int) -> int:
    result = 0
    for _ in range(32):
        result = (result << 1) | (x & 1)
        x >>= 1
    return result


class Case(NamedTuple):
    function: Callable[..., Any]
    numba_signature: str
    signature: str
    arguments: list[tuple[Any, ...]]


CASES = [
    Case(hypotenuse, "float64(float64, float64)", "f64(f64, f64)", [(3.0, 4.0), (-1e100, 0.0), (0.5, 0.25)]),
    Case(
        greatest_divisor,
        "int64(int64, int64)",
        "i64(i64, i64)",
        [(48, 36), (17, 5), (0, 9), (2**40, 2**35 * 3)],
    ),
    Case(collatz_steps, "int64(int64)", "i64(i64)", [(1,), (27,), (97,), (837_799,)]),
    Case(special, "float64(float64)", "f64(f64)", [(0.5,), (2.75,), (11.0,)]),
    Case(
        is_between, "boolean(float64, boolean)", "bool(f64, bool)", [(0.5, False), (0.5, True), (2.0, False)]
    ),
    Case(average, "float32(float32, float32)", "f32(f32, f32)", [(1.5, 2.0), (-8.0, 0.0)]),
    Case(small_sum, "int16(int8, int8)", "i16(i8, i8)", [(100, 27), (100, 100), (-128, -128)]),
    Case(unsigned_mix, "uint64(uint64)", "u64(u64)", [(0,), (2**64 - 1,), (0x123456789ABCDEF0,)]),
    Case(weigh, "float64(int64)", "f64(i64)", [(0,), (1,), (10,), (1000,)]),
    Case(julia_steps, "int64(float64, float64)", "i64(f64, f64)", [(0.0, 0.0), (0.1, 0.2), (2.5, 0.0)]),
    Case(
        simpson, "float64(float64, float64, int64)", "f64(f64, f64, i64)", [(0.0, 1.0, 10), (-2.0, 3.0, 100)]
    ),
    Case(bit_reverse, "uint32(uint32)", "u32(u32)", [(1,), (0x80000001,), (0xDEADBEEF,)]),
]
CALLBACK_IDS = [case.function.__name__ for case in CASES]


def callback(case: Case) -> Any:
    """Numba's C callback of a function; with NumPy's arithmetic, in which nothing raises."""
    return numba.cfunc(case.numba_signature, error_model="numpy")(case.function)


def raw_function(function: Callable[..., Any], signature: str, **options: Any) -> tuple[str, str]:
    """The symbol and the IR of a jitted function without wrappers: `i32 f(result*, exception**, arguments...)`."""
    jitted = numba.njit(signature, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(function)
    (compiled,) = jitted.signatures
    return jitted.overloads[compiled].fndesc.llvm_func_name, jitted.inspect_llvm(compiled)


@pytest.fixture(scope="module")
def runtime(compiler_named: Callable[[str], Compiler]) -> bytes:
    """A small runtime for Numba's code, written in C."""
    return compiler_named("zig").bitcode(own_source("numba_runtime"))


@pytest.fixture(scope="module")
def callbacks_dir(runtime: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with all cases under names of their own; some can raise, for which they need the runtime."""
    directory = tmp_path_factory.mktemp("callbacks")
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(runtime))
        for case in CASES:
            made = callback(case)
            exported = {case.function.__name__: Function(case.signature, symbol=made.native_name)}
            cache.add_module(ModuleSource(made.inspect_llvm(), exported))
    return directory


@pytest.mark.parametrize("case", CASES, ids=CALLBACK_IDS)
def test_a_callback_computes_what_python_computes(case: Case, callbacks_dir: Path) -> None:
    script = """
        target = cache.get_target(name)
        result = [target(*arguments) for arguments in calls], str(target.signature)
    """
    unwanted = ("numba", "llvmlite", "numpy", "filelock")
    name = case.function.__name__
    results, signature = run_fresh(callbacks_dir, script, name=name, calls=case.arguments, unwanted=unwanted)
    assert signature == case.signature
    assert results == [pytest.approx(case.function(*arguments), rel=1e-12) for arguments in case.arguments]


def test_modules_of_numba_do_not_get_into_each_others_way(callbacks_dir: Path) -> None:
    script = "result = [cache.get_target(name)(*arguments) for name, arguments in calls]"
    calls = [(case.function.__name__, case.arguments[-1]) for case in CASES]
    expected = [case.function(*case.arguments[-1]) for case in CASES]
    assert run_fresh(callbacks_dir, script, calls=calls) == [
        pytest.approx(value, rel=1e-12) for value in expected
    ]


def test_whole_modules_of_numba_export_every_symbol(tmp_path: Path) -> None:
    made = callback(CASES[0])
    with Cache(tmp_path / "cache") as cache:
        cache.add_module(ModuleSource(made.inspect_llvm()))
        assert cache.has(made.native_name)
        assert cache.get_target(made.native_name)(3.0, 4.0) == 5.0
        (raw,) = cache.dependencies(made.native_name)
        assert made.native_name == f"cfunc.{raw}"
    assert (
        run_fresh(tmp_path / "cache", "result = cache.get_target(name)(6.0, 8.0)", name=made.native_name)
        == 10.0
    )


def test_a_raw_function_is_linkable_and_callable(tmp_path: Path) -> None:
    symbol, ir = raw_function(hypotenuse, "float64(float64, float64)")
    with Cache(tmp_path / "cache") as cache:
        cache.add_module(
            ModuleSource(ir, {"raw hypotenuse": Function("i32(ptr, ptr, f64, f64)", symbol=symbol)})
        )
    script = """
        import ctypes
        value, exception = ctypes.c_double(), ctypes.c_void_p()
        status = cache.get_target("raw hypotenuse")(ctypes.byref(value), ctypes.byref(exception), 3.0, 4.0)
        result = status, value.value
    """
    assert run_fresh(tmp_path / "cache", script) == (0, 5.0)


def test_an_exception_is_a_status_of_the_raw_function(tmp_path: Path) -> None:
    symbol, ir = raw_function(average_of_quotients, "float64(float64, float64)")
    with Cache(tmp_path / "cache") as cache:
        cache.add_module(ModuleSource(ir, {"quotients": Function("i32(ptr, ptr, f64, f64)", symbol=symbol)}))
    script = """
        import ctypes
        value, exception = ctypes.c_double(), ctypes.c_void_p()
        quotients = cache.get_target("quotients")
        good = quotients(ctypes.byref(value), ctypes.byref(exception), 3.0, 2.0), value.value
        bad = quotients(ctypes.byref(value), ctypes.byref(exception), 3.0, 0.0)
        result = good, bad, bool(exception.value)
    """
    good, bad, described = run_fresh(tmp_path / "cache", script)
    assert good == (0, average_of_quotients(3.0, 2.0))
    assert bad != 0
    assert described


def average_of_quotients(a: float, b: float) -> float:
    return (a / b + b / a) / 2


def sum_of_squares(values: Any) -> float:
    total = 0.0
    for value in values:
        total += value * value
    return total


def triangle(n: int) -> Any:
    values = np.empty(n)
    for i in range(n):
        values[i] = i
    return values.sum()


RUNTIME = [
    "NRT_Free",
    "NRT_MemInfo_alloc_aligned",
    "NRT_MemInfo_call_dtor",
    "numba_do_raise",
    "numba_gil_ensure",
    "numba_gil_release",
    "numba_runtime_build_excinfo_struct",
    "numba_unpickle",
]


@pytest.fixture
def add_runtime_libraries(runtime: bytes, tmp_path: Path) -> Path:
    """A cache that holds the runtime."""
    with Cache(tmp_path / "runtime") as cache:
        cache.add_module(ModuleSource(runtime))
        assert [name for name in RUNTIME if not cache.has(name)] == []
    return tmp_path / "runtime"


def test_symbols_of_numbas_runtime_are_refused_by_name(tmp_path: Path) -> None:
    symbol, ir = raw_function(triangle, "float64(int64)")
    source = ModuleSource(ir, {"triangle": Function("i32(ptr, ptr, i64)", symbol=symbol)})
    with Cache(tmp_path / "cache") as cache:
        with pytest.raises(UndefinedSymbolError) as caught:
            cache.add_module(source)
        assert set(caught.value.symbols) == {"NRT_MemInfo_alloc_aligned", "NRT_MemInfo_call_dtor"}
        assert all(name in str(caught.value) for name in caught.value.symbols)
        assert not cache.has("triangle")


def test_a_runtime_in_the_cache_satisfies_it(add_runtime_libraries: Path) -> None:
    symbol, ir = raw_function(triangle, "float64(int64)")
    with Cache(add_runtime_libraries) as cache:
        cache.add_module(ModuleSource(ir, {"triangle": Function("i32(ptr, ptr, i64)", symbol=symbol)}))
    script = """
        import ctypes
        value, exception = ctypes.c_double(), ctypes.c_void_p()
        triangle, live = cache.get_target("triangle"), cache.get_target("live_blocks")
        result = [(triangle(ctypes.byref(value), ctypes.byref(exception), n), value.value, live()) for n in (5, 1001)]
    """
    assert run_fresh(add_runtime_libraries, script) == [(0, 10.0, 0), (0, 500_500.0, 0)]


def test_an_array_travels_as_its_parts(add_runtime_libraries: Path) -> None:
    symbol, ir = raw_function(sum_of_squares, "float64(float64[::1])")
    # result, exception, owner, parent, number of items, size of an item, data and shape, stride
    signature = "i32(ptr, ptr, ptr, ptr, i64, i64, const f64[:], i64)"
    with Cache(add_runtime_libraries) as cache:
        cache.add_module(ModuleSource(ir, {"sum_of_squares": Function(signature, symbol=symbol)}))
    script = """
        import ctypes
        from array import array
        value, exception = ctypes.c_double(), ctypes.c_void_p()
        data = array("d", range(100))
        arguments = None, None, len(data), 8, data, 8
        status = cache.get_target("sum_of_squares")(ctypes.byref(value), ctypes.byref(exception), *arguments)
        result = status, value.value
    """
    assert run_fresh(add_runtime_libraries, script) == (0, float(sum(n * n for n in range(100))))


def test_an_exception_in_a_callback_reaches_the_interpreter(add_runtime_libraries: Path) -> None:
    made = numba.cfunc("float64(float64, float64)")(average_of_quotients)
    exported = {"quotients": Function("f64(f64, f64)", symbol=made.native_name)}
    with Cache(add_runtime_libraries) as cache:
        cache.add_module(ModuleSource(made.inspect_llvm(), exported))
    script = """
        caught = []
        sys.unraisablehook = lambda unraisable: caught.append(repr(unraisable.exc_value))
        quotients = cache.get_target("quotients")
        result = quotients(3.0, 2.0), quotients(3.0, 0.0), caught
    """
    value, _, caught = run_fresh(add_runtime_libraries, script)
    assert value == average_of_quotients(3.0, 2.0)
    assert caught == ["ZeroDivisionError('division by zero')"]


def test_an_external_function_is_a_native_symbol_by_another_name(tmp_path: Path) -> None:
    library = ctypes.util.find_library("m")
    if library is None:
        pytest.skip("the C library's mathematics have no shared library of their own here")
    llvm.add_symbol("peer_cosine", ctypes.cast(ctypes.CDLL(library).cos, ctypes.c_void_p).value)
    peer_cosine = numba.types.ExternalFunction("peer_cosine", numba.float64(numba.float64))

    def doubled(x: float) -> Any:
        return 2 * peer_cosine(x)

    made = numba.cfunc("float64(float64)")(doubled)
    exported = {"doubled": Function("f64(f64)", symbol=made.native_name)}
    with Cache(tmp_path / "cache") as cache:
        with pytest.raises(UndefinedSymbolError) as caught:
            cache.add_module(ModuleSource(made.inspect_llvm(), exported))
        assert caught.value.symbols == ("peer_cosine",)
        provided = {"peer_cosine": NativeSymbol("cos", library=library)}
        cache.add_module(ModuleSource(made.inspect_llvm(), exported, globals=provided))
    script = "result = [cache.get_target('doubled')(x) for x in (0.0, 1.25)]"
    assert run_fresh(tmp_path / "cache", script) == pytest.approx([2.0, 2 * math.cos(1.25)])


def test_a_symbol_of_numbas_own_library_is_found_again(tmp_path: Path) -> None:
    from numba import _helperlib

    function = numba.types.ExternalFunction("_numba_test_exp", numba.float64(numba.float64))
    library = ctypes.CDLL(_helperlib.__file__)
    llvm.add_symbol("_numba_test_exp", ctypes.cast(library._numba_test_exp, ctypes.c_void_p).value)

    def grown(x: float) -> Any:
        return function(x) - 1

    made = numba.cfunc("float64(float64)")(grown)
    exported = {"grown": Function("f64(f64)", symbol=made.native_name)}
    provided = {"_numba_test_exp": NativeSymbol("_numba_test_exp", library=_helperlib.__file__)}
    with Cache(tmp_path / "cache") as cache:
        cache.add_module(ModuleSource(made.inspect_llvm(), exported, globals=provided))
    assert run_fresh(tmp_path / "cache", "result = cache.get_target('grown')(1.5)") == pytest.approx(
        math.exp(1.5) - 1
    )
