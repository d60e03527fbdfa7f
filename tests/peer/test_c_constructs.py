"""What C compilers write beyond plain functions, one construct at a time, with files of the tests' own."""

from __future__ import annotations

import math
import platform
from typing import TYPE_CHECKING

import pytest

from compcache import Cache, CompcacheError, ModuleSource, SignatureError, UndefinedSymbolError

from .caching import add_modules
from .freshpython import run_fresh
from .libraries import own_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .compilers import Compiler

pytestmark = pytest.mark.peer

INTEL = platform.machine() in ("x86_64", "AMD64")


@pytest.fixture(scope="module", params=[0, 2], ids=["O0", "O2"])
def optimize(request: pytest.FixtureRequest) -> int:
    level: int = request.param
    return level


@pytest.fixture(scope="module")
def cached(
    compiler: Compiler, optimize: int, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """`cached(name)`: a cache that holds `csrc/<name>.c`, all of it."""
    made: dict[str, Path] = {}

    def cache_with(name: str) -> Path:
        if name not in made:
            directory = tmp_path_factory.mktemp(name)
            with Cache(directory) as cache:
                cache.add_module(ModuleSource(compiler.bitcode(own_source(name)), optimize=optimize))
            made[name] = directory
        return made[name]

    return cache_with


CALL = "result = [call(*one) for one in calls]"


def expect(cache_dir: Path, *expected: tuple[object, ...]) -> None:
    """Each (function, argument, ..., result), called in order in one fresh process."""
    results = run_fresh(cache_dir, CALL, calls=[call[:-1] for call in expected])
    assert results == [call[-1] for call in expected]


class TestState:
    def test_statics_outlive_a_call(self, cached: Callable[[str], Path]) -> None:
        expect(
            cached("state"),
            ("count_call", 101),
            ("count_call", 102),
            ("count_call_elsewhere", 112),
            ("count_call", 113),
        )

    def test_every_process_starts_from_the_initial_values(self, cached: Callable[[str], Path]) -> None:
        for _ in range(2):
            expect(cached("state"), ("count_call", 101), ("remember", 5, 1, 0))

    def test_statics_outlive_the_target_object(self, cached: Callable[[str], Path]) -> None:
        script = """
            import gc
            keeper = cache.get_target("construction_order")
            result = []
            for _ in range(3):
                result.append(cache.get_target("count_call")())
                gc.collect()
        """
        assert run_fresh(cached("state"), script) == [101, 102, 103]

    def test_constructors_run_once_and_in_order(self, cached: Callable[[str], Path]) -> None:
        expect(
            cached("state"),
            ("constructed_value", 41),
            ("construction_order", 212),
            ("construction_order", 212),
        )

    def test_an_unloaded_module_leaves_no_traces(self, cached: Callable[[str], Path]) -> None:
        script = """
            import gc
            counts = []
            for _ in range(3):
                target = cache.get_target("count_call")
                counts.append(target())
                cache.unload("count_call")
                del target
                gc.collect()
            result = counts
        """
        assert run_fresh(cached("state"), script) == [101, 101, 101]

    def test_zeroed_memory_takes_no_space_in_the_cache(self, cached: Callable[[str], Path]) -> None:
        directory = cached("state")
        expect(directory, ("remember", 0, 7, 0), ("remember", (32 << 20) - 1, 8, 0), ("remember", 0, 9, 7))
        assert sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) < 2 << 20

    def test_large_constant_tables_are_read(self, cached: Callable[[str], Path]) -> None:
        script = """
            entry = cache.get_target("large_entry")
            result = all(entry(n) % 2**32 == n * 2654435761 % 2**32 for n in range(4 * 4096))
        """
        assert run_fresh(cached("state"), script) is True


@pytest.mark.filterwarnings("ignore:weak references")  # that nothing provides, on purpose
class TestPointers:
    def test_tables_of_functions_are_called_through(self, cached: Callable[[str], Path]) -> None:
        expect(
            cached("pointers"),
            ("apply", 0, 20, 3, 23),
            ("apply", 1, 20, 3, 17),
            ("apply", 2, 20, 3, 60),
            ("apply_registered", 0, 20, 3, 23_000 + 23 + ord("a")),
            ("apply_registered", 1, 20, 3, 60_000 + 60 + ord("m")),
        )

    def test_a_table_entry_can_be_replaced(self, cached: Callable[[str], Path]) -> None:
        script = """
            import ctypes
            callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(lambda a, b: a * 100 + b)
            call("replace_registered", 0, callback)
            result = call("apply_registered", 0, 2, 3)
        """
        assert run_fresh(cached("pointers"), script) == 203_000 + 5 + ord("a")

    def test_an_alias_and_a_weak_definition_are_called(self, cached: Callable[[str], Path]) -> None:
        expect(cached("pointers"), ("original", 5, 15), ("overridable", 5, 12), ("through_alias", 5, 27))

    def test_an_alias_is_a_function_like_any_other(self, cached: Callable[[str], Path]) -> None:
        expect(cached("pointers"), ("other_name", 5, 15))

    def test_a_weak_declaration_that_nothing_satisfies_is_null(self, cached: Callable[[str], Path]) -> None:
        expect(cached("pointers"), ("optional", 5, -5))

    def test_a_weak_variable_is_the_process_own_or_at_null(self, cached: Callable[[str], Path]) -> None:
        expect(cached("weak_data"), ("optional_variable", -1), ("has_environment", 1))

    def test_hidden_functions_are_reached(self, cached: Callable[[str], Path]) -> None:
        expect(cached("pointers"), ("through_hidden", 5, 11))

    def test_a_hidden_function_can_be_exported_by_name(self, compiler: Compiler, tmp_path: Path) -> None:
        with Cache(tmp_path / "cache") as cache:
            cache.add_module(
                ModuleSource(compiler.bitcode(own_source("pointers")), {"hidden_twice": "i64(i64)"})
            )
        expect(tmp_path / "cache", ("hidden_twice", 21, 42))

    def test_a_definition_wins_over_the_c_library(self, cached: Callable[[str], Path]) -> None:
        expect(cached("pointers"), ("ffsll", 8, 12353), ("through_own_ffsll", 8, 12353))

    def test_an_address_of_a_target_is_a_callback(self, cached: Callable[[str], Path]) -> None:
        script = """
            from array import array
            compare = cache.get_target("compare_descending")
            data = array("q", values)
            cache.get_target("sort_with")(data, len(data), compare.address)
            again = array("q", values)
            cache.get_target("sort_descending")(again, len(again))
            result = list(data), list(again)
        """
        values = [5, -3, 99, 0, 2**40, -(2**50), 7]
        in_order = sorted(values, reverse=True)
        assert run_fresh(cached("pointers"), script, values=values) == (in_order, in_order)

    def test_a_pointer_to_a_private_function_travels_through_python(
        self, cached: Callable[[str], Path]
    ) -> None:
        script = """
            address = call("address_of_multiply")
            result = call("call_pointer", address, 6, 7)
        """
        assert run_fresh(cached("pointers"), script) == 42

    def test_computed_jumps_go_where_they_should(self, cached: Callable[[str], Path]) -> None:
        program = bytes([1, 1, 2, 3, 2, 1, 0, 1])
        expect(cached("pointers"), ("run_program", program, len(program), -7))

    def test_recursion_ends(self, cached: Callable[[str], Path]) -> None:
        expect(
            cached("pointers"),
            ("ackermann", 2, 6, 15),
            ("is_even", 1001, 0),
            ("is_odd", 1001, 1),
            ("is_even", 0, 1),
        )


class TestCalls:
    def test_narrow_arguments_are_extended(self, cached: Callable[[str], Path]) -> None:
        expect(
            cached("calls"),
            ("widen_i8", -1, -1),
            ("widen_i8", 127, 127),
            ("widen_i16", -30_000, -30_000),
            ("widen_bool", True, 10),
            ("widen_bool", False, 20),
        )

    def test_unsigned_narrow_arguments_are_extended_with_zeros(
        self, compiler: Compiler, tmp_path: Path
    ) -> None:
        signatures = {"widen_u8": "i64(u8)", "widen_u16": "i64(u16)", "narrow_u16": "u16(i64)"}
        with Cache(tmp_path / "cache") as cache:
            cache.add_module(ModuleSource(compiler.bitcode(own_source("calls")), signatures))
        expect(
            tmp_path / "cache",
            ("widen_u8", 255, 255),
            ("widen_u16", 65_535, 65_535),
            ("narrow_u16", -1, 65_535),
        )

    def test_zero_extension_is_read_off_the_declaration(self, cached: Callable[[str], Path]) -> None:
        script = """
            widen = cache.get_target("widen_u8")
            try:
                result = widen(200)
            except OverflowError:
                result = widen(200 - 256)
        """
        assert run_fresh(cached("calls"), script) == 200

    def test_narrow_results_have_no_rubbish_above_them(self, cached: Callable[[str], Path]) -> None:
        expect(
            cached("calls"),
            ("narrow_i8", 0x1_0000_0080, -128),
            ("narrow_i8", 0x1FF, -1),
            ("is_positive", 0.5, True),
            ("is_positive", -0.5, False),
            ("halve", 5.0, 2.5),
        )

    def test_many_arguments_arrive_in_order(self, cached: Callable[[str], Path]) -> None:
        arguments = [
            1,
            2.0,
            3,
            4.0,
            5,
            6.0,
            7,
            8.0,
            9,
            10.0,
            -11,
            12.0,
            13,
            14.0,
            15,
            16.0,
            17,
            18.0,
            19,
            20.0,
            21,
            22.0,
        ]
        value = sum(weight * argument for weight, argument in enumerate(arguments, 1))
        expect(cached("calls"), ("many", *arguments, value))

    def test_structs_by_value_work_inside_the_module(self, cached: Callable[[str], Path]) -> None:
        expect(
            cached("calls"),
            ("call_sum_pair", 1.5, 2.25, 3.75),
            ("call_sum_large", 10, sum(range(10, 18))),
            ("call_swapped", 1.0, 2.0, 21.0),
        )

    @pytest.mark.parametrize("name", ["sum_large", "swapped", "sum_all", "format_into", "triple_long"])
    def test_what_python_cannot_call_is_there_without_a_signature(
        self, cached: Callable[[str], Path], name: str
    ) -> None:
        with Cache(cached("calls")) as cache:
            assert cache.has(name)
            with pytest.raises(SignatureError, match=name):
                cache.get_target(name)

    def test_varargs_reach_functions_of_the_module_and_of_the_c_library(
        self, cached: Callable[[str], Path]
    ) -> None:
        script = """
            out = bytearray(80)
            size = cache.get_target("format_record")(out, len(out), given(b"n\\xc3\\xb8"), 42, 1234.5)
            result = bytes(out[:size]), cache.get_target("sum_three")(1, 2**40, -5)
        """
        assert run_fresh(cached("calls"), script) == (b"n\xc3\xb8 #00042 = 1.234e+03 (x%)", 2**40 - 4)

    def test_streams_of_the_c_library_are_the_process_own(self, cached: Callable[[str], Path]) -> None:
        script = """
            import os
            reader, writer = os.pipe()
            saved = os.dup(2)
            os.dup2(writer, 2)
            code = cache.get_target("report")(given(b"to stderr"))
            os.dup2(saved, 2)
            os.close(writer)
            result = code, os.read(reader, 100)
        """
        assert run_fresh(cached("calls"), script) == (10, b"to stderr\n")

    def test_long_doubles_and_libm(self, cached: Callable[[str], Path]) -> None:
        script = "result = [cache.get_target(n)(x) for n, x in calls]"
        calls = [("triple_through_long", 0.1), ("cube_root_of_long", 27.0), ("call_libm", 1.75)]
        tripled, root, libm = run_fresh(cached("calls"), script, calls=calls)
        assert tripled == pytest.approx(0.3)
        assert root == pytest.approx(3.0)
        assert libm == pytest.approx(math.sin(1.75) + 1.75**2.5 + math.fmod(1.75, 0.75))

    @pytest.mark.skipif(not INTEL, reason="the convention is of x86-64")
    def test_another_calling_convention_is_followed(self, cached: Callable[[str], Path]) -> None:
        expect(cached("calls"), ("call_foreign_convention", 4, 2, 42))
        script = """
            from compcache import SignatureError
            try:
                result = cache.get_target("foreign_convention")(4, 2)
            except SignatureError:
                result = "refused"
        """
        assert run_fresh(cached("calls"), script) in (42, "refused")

    def test_calls_between_modules_keep_their_form(
        self, compiler: Compiler, optimize: int, tmp_path: Path
    ) -> None:
        modules = {name: compiler.bitcode(own_source(name)) for name in ("crossing", "calls")}
        add_modules(tmp_path / "cache", modules, optimize=optimize)
        expect(
            tmp_path / "cache",
            ("cross_varargs", 5, 10**12, 20 + 4 * 10**12),
            ("cross_pair", 1.5, 2.25, 3.75),
            ("cross_swapped", 1.0, 2.0, 21.0),
            ("cross_large", 10, sum(range(10, 18))),
            ("cross_long", 2.5, 7.5),
            ("cross_narrow", 0x1FE, -2),
            ("cross_through_pointer", 9.0, 4.5),
        )


class TestMachine:
    def test_inline_assembly_runs(self, cached: Callable[[str], Path]) -> None:
        expect(
            cached("machine"),
            ("rotate_left_one", 3, 6),
            ("rotate_left_one", -(2**63), 1),
            ("behind_a_barrier", 41, 42),
        )

    def test_errno_is_the_process_own(self, cached: Callable[[str], Path]) -> None:
        expect(cached("machine"), ("error_of_bad_close", 9))

    def test_longjmp_lands(self, cached: Callable[[str], Path]) -> None:
        expect(
            cached("machine"),
            ("divide_or_jump", 84, 2, 42),
            ("divide_or_jump", 5, 0, 5077),
            ("divide_or_jump", 84, -2, -42),
        )

    def test_atomics_and_builtins(self, cached: Callable[[str], Path]) -> None:
        expect(
            cached("machine"),
            ("add_atomically", 5, 5),
            ("add_atomically", -7, -2),
            ("bits", 0xF0, 40456),
        )

    def test_calls_that_code_generation_adds_are_resolved(self, cached: Callable[[str], Path]) -> None:
        script = """
            out = bytearray(40)
            size = cache.get_target("copy_text")(out, given(b"some text"))
            result = size, bytes(out[:size + 1])
        """
        assert run_fresh(cached("machine"), script) == (12, b"some text!!!\0")


def add_or_refusal(cache_dir: Path, source: ModuleSource) -> CompcacheError | None:
    """What `add_module` refuses the source with, None where it takes it."""
    with Cache(cache_dir) as cache:
        try:
            cache.add_module(source)
        except CompcacheError as error:
            return error
    return None


def test_each_thread_has_its_own_thread_local_data(compiler: Compiler, optimize: int, tmp_path: Path) -> None:
    source = ModuleSource(compiler.bitcode(own_source("threads")), optimize=optimize)
    assert add_or_refusal(tmp_path / "cache", source) is None
    script = """
        import threading
        names = ("count_call", "count_visible_call")
        seen = []
        def work(number):
            for _ in range(3):
                last = [call(name) for name in names]
            seen.append((*last, call("name_sum", number)))
        work(1)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2, 6)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        work(9)
        result = sorted(seen)
    """
    in_threads = [(1003, 8, number) for number in range(1, 6)]
    assert run_fresh(tmp_path / "cache", script) == [*in_threads, (1006, 11, 10)]


class TestBeyondTheIR:
    """Symbols that appear in the object only, or that no shared library has: an answer, or a clear refusal."""

    @pytest.fixture
    def source(self, compiler: Compiler, optimize: int) -> Callable[[str], ModuleSource]:
        return lambda name: ModuleSource(compiler.bitcode(own_source(name)), optimize=optimize)

    def test_functions_of_the_compilers_library(
        self, source: Callable[[str], ModuleSource], tmp_path: Path
    ) -> None:
        refusal = add_or_refusal(tmp_path / "cache", source("wide"))
        if refusal is None:
            quotient = (5 << 64 | 6) // 7 - (1 << 64)
            expect(tmp_path / "cache", ("divide_wide", 5, 6, 7, quotient), ("unrelated", 6, 7))
            expect(tmp_path / "cache", ("powers", 1.5, 5, 1.5**5), ("powers", 2.0, -2, 0.25))
        else:
            assert isinstance(refusal, UndefinedSymbolError)
            assert set(refusal.symbols) == {"__udivti3", "__powidf2"}

    def test_the_compilers_own_cpu_model(self, source: Callable[[str], ModuleSource], tmp_path: Path) -> None:
        refusal = add_or_refusal(tmp_path / "cache", source("cpu_model"))
        if refusal is None:
            expect(tmp_path / "cache", ("has_vectors", 1))
        else:
            assert isinstance(refusal, UndefinedSymbolError)
            assert set(refusal.symbols) & {"__cpu_model", "__cpu_indicator_init"}

    def test_module_level_assembly(self, source: Callable[[str], ModuleSource], tmp_path: Path) -> None:
        refusal = add_or_refusal(tmp_path / "cache", source("module_asm"))
        if refusal is None:
            expect(tmp_path / "cache", ("through_assembly", 16, 42))
        else:
            assert "assembl" in str(refusal)

    def test_a_thread_local_model_of_executables(
        self, source: Callable[[str], ModuleSource], tmp_path: Path
    ) -> None:
        refusal = add_or_refusal(tmp_path / "cache", source("local_exec"))
        if refusal is None:
            expect(tmp_path / "cache", ("count_call", 1001), ("count_call", 1002))
        else:
            assert "calls" in str(refusal)

    def test_functions_chosen_by_a_resolver(
        self, source: Callable[[str], ModuleSource], tmp_path: Path
    ) -> None:
        refusal = add_or_refusal(tmp_path / "cache", source("indirect"))
        if refusal is None:
            expect(tmp_path / "cache", ("through_chosen", 1, 1002))
        else:
            assert "chosen" in str(refusal)


class TestSeveralModules:
    @pytest.fixture
    def towers(self, compiler: Compiler) -> dict[str, bytes]:
        return {name: compiler.bitcode(own_source(name)) for name in ("tower_left", "tower_right")}

    @pytest.mark.parametrize("reverse", [False, True], ids=["left-first", "right-first"])
    def test_a_circle_of_two_modules_closes(
        self, towers: dict[str, bytes], optimize: int, reverse: bool, tmp_path: Path
    ) -> None:
        in_order = dict(sorted(towers.items(), reverse=reverse))
        add_modules(tmp_path / "cache", in_order, optimize=optimize)
        expect(
            tmp_path / "cache",
            ("tower_left", 10, 25),
            ("tower_left_calls", 6),
            ("tower_right", 10, 25),
            ("tower_left_calls", 11),
            ("tower_step", 0, 3, 7),
            ("tower_step", 1, 3, 8),
        )

    def test_half_a_circle_says_what_it_lacks_until_it_comes(
        self, towers: dict[str, bytes], optimize: int, tmp_path: Path
    ) -> None:
        with Cache(tmp_path / "cache") as cache:
            cache.add_module(ModuleSource(towers["tower_left"], imports=["tower_right"], optimize=optimize))
            assert cache.get_target("tower_left_calls")() == 0
            with pytest.raises(CompcacheError, match="tower_right"):
                cache.get_target("tower_left")
            cache.add_module(ModuleSource(towers["tower_right"], imports=["tower_left"], optimize=optimize))
            assert cache.get_target("tower_left")(10) == 25

    def test_imports_are_checked_both_ways(
        self, towers: dict[str, bytes], optimize: int, tmp_path: Path
    ) -> None:
        with Cache(tmp_path / "cache") as cache:
            with pytest.raises(UndefinedSymbolError) as missing:
                cache.add_module(ModuleSource(towers["tower_left"], optimize=optimize))
            assert missing.value.symbols == ("tower_right",)
            superfluous = ModuleSource(
                towers["tower_left"], imports=["tower_right", "no_such_function"], optimize=optimize
            )
            with pytest.raises(UndefinedSymbolError) as unused:
                cache.add_module(superfluous)
            assert unused.value.unused == ("no_such_function",)

    def test_a_constructor_that_needs_another_module_works_or_is_refused(
        self, towers: dict[str, bytes], compiler: Compiler, optimize: int, tmp_path: Path
    ) -> None:
        add_modules(tmp_path / "cache", towers, optimize=optimize)
        bitcode = compiler.bitcode(own_source("constructor_import"))
        source = ModuleSource(bitcode, imports=["tower_right"], optimize=optimize)
        refusal = add_or_refusal(tmp_path / "cache", source)
        if refusal is None:
            expect(tmp_path / "cache", ("initial_value", 3))
        else:
            assert "tower_right" in str(refusal)
