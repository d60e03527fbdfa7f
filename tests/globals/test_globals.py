"""Global variables: every kind in every form of storage, and what happens when one is not what it was."""

from __future__ import annotations

import array
import ctypes
import gc
import math
import re
import sys
import threading
import types
from typing import Any, ClassVar

import numpy as np
import pytest
from encoded import known_kinds
from helpers import PACKAGE_ROOT
from read_globals import read, source_of

from compcache import Cache, CompileError, GlobalValidationError, ModuleSource
from compcache.globals import Boolean, Buffer, Bytes, Float, Integer, NativeSymbol, ObjectIdentity, Pickled, PythonObject, Text, define


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        (5, "i64", 5),
        (-1, "i64", -1),
        (2**63 - 1, "i64", 2**63 - 1),
        (2**64 - 1, "u64", 2**64 - 1),
        (-128, "i8", -128),
        (200, "i8", -56),
        (-7, "i16", -7),
        (70000, "i32", 70000),
        (3, "double", 3.0),
        (3, "float", 3.0),
        (12345, "pointer", 12345),
        (True, "i1", True),
        (False, "i1", False),
        (True, "i64", 1),
        (True, "i8", 1),
        (0.5, "double", 0.5),
        (0.5, "float", 0.5),
        (math.inf, "float", math.inf),
        ("grüß", "text", "grüß"),
        (b"bytes", "text", "bytes"),
        ("grüß", "length", 6),
        (b"a\0b", "length", 3),
        (b"", "length", 0),
        (array.array("d", [1.0, 2.0, 3.0]), "length", 3),
        (np.arange(6, dtype=np.int32).reshape(2, 3), "length", 6),
        (memoryview(b"abcd"), "length", 4),
        (Integer(9), "i64", 9),
        (Boolean(True), "i8", 1),
        (Float(1.25), "double", 1.25),
        (Text("x"), "text", "x"),
        (Bytes(b"y"), "text", "y"),
        (np.int64(-3), "i64", -3),
        (np.uint64(2**64 - 1), "u64", 2**64 - 1),
        (np.uint8(200), "i8", -56),
        (np.bool_(True), "i1", True),
        (np.float32(0.5), "double", 0.5),
        (np.float16(0.25), "float", 0.25),
        (np.int16(3), "double", 3.0),
    ],
)
def test_a_value_reaches_the_code(cache: Cache, value: object, form: str, expected: object) -> None:
    result = read(cache, value, form)
    assert result == expected
    assert type(result) is type(expected)


def test_a_value_in_place_is_padded_with_zeros(cache: Cache) -> None:
    cache.add_module(source_of(b"abc", "inline"))
    target = cache.get_target("f")
    assert ctypes.string_at(target(), 12) == b"abc".ljust(12, b"\0")


@pytest.mark.parametrize(("variable", "expected"), [("[8 x double], align 128", 128), ("<8 x double>", 64), ("i64, align 4096", 4096)])
def test_a_value_in_place_is_aligned_as_code_relies_on(cache: Cache, variable: str, expected: int) -> None:
    rest = 'asm sideeffect "", "=r,0"(i64 ptrtoint (ptr @g to i64))'  # which LLVM cannot conclude from the declaration
    code = f"@before = external global [3 x i8]\n@g = external global {variable}\ndefine i64 @f() {{\n"
    code += f"%x = load i8, ptr @before\n%at = call i64 {rest}\n%r = urem i64 %at, {expected}\nret i64 %r\n}}\n"
    value = 1 if variable.startswith("i") else np.arange(8.0)
    assert cache.compile(ModuleSource(code, globals={"before": b"abc", "g": value}))["f"]() == 0


@pytest.mark.parametrize(("bits", "value"), [(1, 1), (1, -1), (7, -64), (7, 127), (24, 2**24 - 1), (33, -1)])
def test_an_integer_has_the_bits_of_its_type(cache: Cache, bits: int, value: int) -> None:
    code = f"@g = external global i{bits}\ndefine i64 @f() {{\n%x = load i{bits}, ptr @g\n%r = zext i{bits} %x to i64\nret i64 %r\n}}\n"
    assert cache.compile(ModuleSource(code, globals={"g": value}))["f"]() == value % 2**bits
    for other in (2**bits, -(2 ** (bits - 1)) - 1):
        with pytest.raises(GlobalValidationError, match=rf"'g': .* does not fit the type i{bits}"):
            cache.compile(ModuleSource(code, globals={"g": other}))


def test_bytes_behind_a_pointer_end_with_nul(cache: Cache) -> None:
    cache.add_module(source_of(b"abc", "pointer"))
    target = cache.get_target("f")
    assert ctypes.string_at(target(), 4) == b"abc\0"


def test_a_buffer_is_a_snapshot_that_every_cache_object_has_to_itself(cache: Cache) -> None:
    data = np.array([1, 2, 3], dtype=np.int64)
    cache.add_module(source_of(data, "span"))
    data[:] = 0
    target = cache.get_target("f")
    view = (ctypes.c_int64 * 3).from_address(target())
    assert list(view) == [1, 2, 3]
    view[0] = 100
    with Cache(cache.path) as later:
        again = later.get_target("f")
        assert list((ctypes.c_int64 * 3).from_address(again())) == [1, 2, 3]
    assert view[0] == 100


def test_a_strided_buffer_is_stored_in_c_order(cache: Cache) -> None:
    matrix = np.arange(6, dtype=np.int64).reshape(2, 3).T
    cache.add_module(source_of(matrix, "span"))
    target = cache.get_target("f")
    assert list((ctypes.c_int64 * 6).from_address(target())) == [0, 3, 1, 4, 2, 5]


ARRAYS: dict[str, list[Any]] = {
    "[4 x double]": [
        np.arange(4.0), np.arange(4.0).reshape(2, 2), np.arange(8.0)[::2], array.array("d", range(4)), (ctypes.c_double * 4)(),
        bytes(range(32)), bytearray(32), memoryview(bytes(32)), np.zeros(32, dtype=np.uint8),
    ],
    "[2 x [2 x float]]": [np.arange(4, dtype=np.float32), np.zeros((2, 2), dtype=np.float32), bytes(16)],
    "<4 x i32>": [np.arange(4, dtype=np.int32), np.arange(4, dtype=np.uint32), bytearray(16)],
    "[3 x i64]": [array.array("q", [1, 2, 3]), array.array("l", [1, 2, 3]), np.zeros(3, dtype=np.intp), np.zeros(3, dtype=np.uint64)],
    "[2 x half]": [np.ones(2, dtype=np.float16)],
    "[4 x i8]": [b"ab", "ab", b"abcd", bytearray(b"abcd"), np.ones(4, dtype=np.bool_), array.array("b", [1, 2, 3, 4])],
    "[5 x i8]": [(ctypes.c_char * 5)(), b""],
    "{ double, [4 x i8] }": [b"ab", np.ones(1)],
}  # fmt: skip
MISFITS: dict[str, list[Any]] = {
    "[4 x double]": [
        np.ones(4, dtype=np.float32), np.ones(4, dtype=np.int64), np.ones(8, dtype=np.float32), np.ones(3), np.ones(5), np.ones(0),
        np.ones(4, dtype=">f8"), np.zeros(2, dtype=np.complex128), np.zeros(4, dtype=[("x", "<f8")]),
        bytes(31), bytearray(31), bytes(33), "text",
    ],
    "[2 x [2 x float]]": [np.ones(2, dtype=np.float32), np.ones(4, dtype=np.int32), np.ones((2, 2)), b"abc"],
    "<4 x i32>": [np.ones(4, dtype=np.float32), np.ones(2, dtype=np.int64), np.ones(3, dtype=np.int32)],
    "[4 x i8]": [bytearray(b"ab"), b"abcde", "abcde", np.ones(2, dtype=np.int16)],
    "[2 x half]": [np.ones(2, dtype=np.int16)],
}  # fmt: skip


def pairs_of(table: dict[str, list[Any]]) -> list[Any]:
    return [pytest.param(t, v, id=f"{t}-{number}") for t, values in table.items() for number, v in enumerate(values)]


def array_source(llvm_type: str, value: object) -> ModuleSource:
    return ModuleSource(f"@g = external global {llvm_type}\ndefine ptr @f() {{\nret ptr @g\n}}", globals={"g": value}, optimize=0)


@pytest.mark.parametrize(("llvm_type", "value"), pairs_of(ARRAYS))
def test_an_array_takes_buffers_of_its_elements_and_its_bytes(cache: Cache, llvm_type: str, value: Any) -> None:
    data = value.encode() if isinstance(value, str) else memoryview(value).tobytes()
    cache.add_module(array_source(llvm_type, value))
    target = cache.get_target("f")
    assert ctypes.string_at(target(), len(data)) == data


@pytest.mark.parametrize(("llvm_type", "value"), pairs_of(MISFITS))
def test_an_array_refuses_buffers_of_other_elements_or_another_number(cache: Cache, llvm_type: str, value: object) -> None:
    with pytest.raises(GlobalValidationError, match=rf"global variable 'g': .* does not fit the type {re.escape(llvm_type)}: ") as caught:
        cache.add_module(array_source(llvm_type, value))
    assert caught.value.global_name == "g"
    assert "does not fit" in caught.value.reason
    assert not cache.has("f")


@pytest.mark.parametrize("llvm_type", ["[4 x i8]", "{ptr, i64}"])
def test_a_buffer_of_empty_elements_is_a_value_like_others(cache: Cache, llvm_type: str) -> None:
    source = array_source(llvm_type, Buffer(b"", "0x"))
    if llvm_type == "{ptr, i64}":
        cache.add_module(source)
        assert ctypes.c_int64.from_address(cache.get_target("f")() + 8).value == 0
    else:
        with pytest.raises(GlobalValidationError, match="a buffer of 0 elements of format '0x' does not fit the type"):
            cache.add_module(source)


class Remover(types.ModuleType):
    """A module whose namespace is read while another thread removes a module."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            sys.modules.pop("compcache_removed", None)
        return super().__getattribute__(name)


class Nameless:
    """An object that does not know its module."""

    def __init__(self) -> None:
        vars(self).update(__module__=None, __name__="held")

    def __reduce__(self) -> str:
        raise TypeError


def test_a_value_is_looked_for_while_modules_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    holder, value = types.ModuleType("compcache_holder"), Nameless()
    holder.__dict__["held"] = value
    for module in (Remover("a_remover"), types.ModuleType("compcache_removed"), holder):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert define(value) == PythonObject("compcache_holder", "held")


def test_a_structure_has_its_own_size_whatever_was_compiled_before(cache: Cache) -> None:
    sizes = {"<{ i8, i64 }>": 9, "{ i64, i8 }": 16, "{ i8 }": 1, "[5 x { i8, i16 }]": 20, "{ <{ i8, i16 }>, [9 x i8] }": 12}
    for number in range(100):  # LLVM often puts a type where a type of the module before was
        llvm_type, size = list(sizes.items())[number % len(sizes)]
        cache.add_module(array_source(llvm_type, bytes(size)))
        with pytest.raises(GlobalValidationError, match=rf"a value of {size + 1} bytes .*inline of {size} bytes"):
            cache.add_module(array_source(llvm_type, bytes(size + 1)))


def test_decoded_values_live_as_long_as_the_code(cache: Cache) -> None:
    cache.add_module(source_of("long enough not to be interned by anybody", "text"))
    target = cache.get_target("f")
    for _ in range(3):
        gc.collect()
        bytearray(1000)
    assert target() == "long enough not to be interned by anybody"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "form"),
    [
        (256, "i8"),
        (-129, "i8"),
        (2**64, "i64"),
        (-(2**63) - 1, "i64"),
        (5, "span"),
        (5, "inline"),
        (True, "double"),
        (True, "span"),
        (0.5, "i64"),
        (0.5, "pointer"),
        (0.5, "span"),
        (1e300, "float"),
        (b"x", "i64"),
        (b"x", "double"),
        (b"a" * 13, "inline"),
        (b"a" * 17, "structure"),
        ("text", "i8"),
        (array.array("i", [1]), "i32"),
        pytest.param(10**400, "double", id="huge-double"),
        pytest.param(10**5000, "i64", id="huge-i64"),
    ],
)
def test_a_value_that_does_not_fit_its_storage_is_refused_by_the_addition(cache: Cache, value: object, form: str) -> None:
    with pytest.raises(GlobalValidationError, match=r"global (variable )?'g'.*does not fit") as caught:
        cache.add_module(source_of(value, form))
    assert caught.value.global_name == "g"
    assert not cache.has("f")


@pytest.mark.parametrize("value", [b"12345678", array.array("q", [1]), np.array(1), np.longdouble(1), ctypes.c_int64(3)], ids=repr)
def test_a_block_of_memory_for_a_number_is_refused_in_words_that_say_what_to_do(cache: Cache, value: object) -> None:
    with pytest.raises(GlobalValidationError, match=r"does not fit .*: use a number as the value, or declare a pointer"):
        cache.add_module(source_of(value, "i64"))


@pytest.mark.parametrize("value", ["text", len, 0x1000, True, Pickled.of(1), ObjectIdentity.of(len)], ids=repr)
def test_a_value_for_a_function_that_is_declared_must_be_callable_in_each_process(cache: Cache, value: object) -> None:
    text = "declare i64 @g()\ndefine i64 @f() {\n%x = call i64 @g()\nret i64 %x\n}"
    with pytest.raises(CompileError, match=r"'g'.*function"):
        cache.add_module(ModuleSource(text, globals={"g": value}))


@pytest.mark.parametrize("parameter", ["i64 %x", 'i64 noundef %"x %y"'])
def test_a_function_that_is_defined_for_the_optimizer_can_be_given(cache: Cache, parameter: str) -> None:
    copy = f"define available_externally dso_local i64 @g({parameter}) {{\n  ret i64 0\n}}\n"
    text = "define i64 @f(i64 %x) {\n  %y = call i64 @g(i64 %x)\n  ret i64 %y\n}\n"
    cache.add_module(ModuleSource(copy + text, globals={"g": NativeSymbol("labs")}))
    assert cache.get_target("f")(-5) == 5


class Pointing(ctypes.Structure):
    _fields_: ClassVar[list[Any]] = [("count", ctypes.c_int64), ("first", ctypes.POINTER(ctypes.c_int64))]


@pytest.mark.parametrize(
    "value",
    [
        ctypes.CFUNCTYPE(None)(lambda: None), ctypes.pointer(ctypes.c_int64(1)), ctypes.c_void_p(1), ctypes.c_char_p(b"a"), Pointing(),
        np.array([object()]), np.zeros(2, dtype=[("number", "i8"), ("any", "O")]),
    ],
    ids=lambda value: memoryview(value).format,
)  # fmt: skip
def test_addresses_of_one_process_are_no_value(cache: Cache, value: object) -> None:
    with pytest.raises(GlobalValidationError, match="contains addresses, which are not valid"):
        cache.add_module(source_of(value, "pointer"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, r"None is ambiguous: pass 0 for a null pointer"),
        (np.timedelta64(5, "s"), r"a timedelta64 has a unit, .*: pass an integer"),
        (np.datetime64("2026-01-01"), "a datetime64 has a unit"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["pointer", "i64"])
def test_values_that_may_mean_two_things_are_refused(cache: Cache, value: object, reason: str, form: str) -> None:
    with pytest.raises(GlobalValidationError, match=reason):
        cache.add_module(source_of(value, form))
    assert read(cache, 0, "pointer") == 0


def test_values_that_look_like_addresses_are_values(cache: Cache) -> None:
    for number, value in enumerate([np.zeros(2, dtype="c16"), np.zeros(2, dtype=[("POZ", "i8"), ("X&", "f8")])]):
        cache.add_module(source_of(value, "pointer", f"f{number}"))


def test_what_has_no_buffer_of_its_elements_is_told(cache: Cache) -> None:
    with pytest.raises(GlobalValidationError, match="ndarray cannot be stored"):
        cache.compile(source_of(np.array(["2026-01-01"], dtype="M8[s]"), "pointer"))


def test_a_thread_local_global_cannot_be_defined(cache: Cache) -> None:
    text = "@g = external thread_local global i64\ndefine i64 @f() {\n%x = load i64, ptr @g\nret i64 %x\n}"
    with pytest.raises(CompileError, match="'g' is thread-local"):
        cache.add_module(ModuleSource(text, globals={"g": 5}))


def test_a_refused_addition_does_not_disturb_others_in_other_threads(cache: Cache) -> None:
    outcomes: list[object] = []

    def add(number: int) -> None:
        good = number % 2 == 0
        try:
            cache.add_module(source_of(number if good else 2**64, "i64", f"f{number}"))
            outcomes.append((number, cache.get_target(f"f{number}")()))
        except GlobalValidationError:
            outcomes.append((number, None))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes, key=str) == [(n, n if n % 2 == 0 else None) for n in range(8)]


def test_plain_values_have_definitions() -> None:
    assert define(True) == Boolean(True)
    assert define(1) == Integer(1)
    assert define(1.0) == Float(1.0)
    assert define(b"b") == Bytes(b"b")
    assert define("t") == Text("t")
    assert define(bytearray(b"x")) == Buffer(b"x", "B")
    assert define(len) == PythonObject("builtins", "len")
    assert define(Integer(2)) == Integer(2)


@pytest.mark.parametrize("kind", [kind for kind in known_kinds() if not kind.startswith("test")])
def test_the_format_of_a_kind_is_described(kind: str) -> None:
    assert f"`{kind}`" in (PACKAGE_ROOT / "docs" / "format.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("type_", ["%opaque", "{ i64, %opaque }", 'target("spirv.Sampler")'])
def test_a_variable_whose_type_has_no_size_is_refused(cache: Cache, type_: str) -> None:
    """LLVM ends the process when it is asked for the size of such a type."""
    text = f"%opaque = type opaque\n@g = external global {type_}\ndefine i64 @f() {{\n  %r = load i64, ptr @g\n  ret i64 %r\n}}\n"
    with pytest.raises(GlobalValidationError, match="'g', whose type in the code has no size"):
        cache.add_module(ModuleSource(text, globals={"g": b"12345678"}))
    cache.add_module(ModuleSource("@g = global i64 7\n"))
    cache.add_module(ModuleSource(text))
    assert cache.get_target("f")() == 7
