"""Global variables: every kind in every form of storage, and what happens when one is not what it was."""

from __future__ import annotations

import array
import ctypes
import gc
import math
import operator
import os
import re
import sys
import threading
import types
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from encoded import known_kinds
from helpers import PACKAGE_ROOT, run_fresh
from hypothesis import given
from hypothesis import strategies as st

from compcache import Cache, CompileError, GlobalValidationError, ModuleSource, PickleNotAllowedError
from compcache.globals import (
    Boolean,
    Buffer,
    Bytes,
    DictMember,
    Float,
    GlobalDefinition,
    Integer,
    NativeSymbol,
    ObjectIdentity,
    Pickled,
    PythonObject,
    Storage,
    Text,
    decode_definition,
    define,
    register,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Storage types by name: (LLVM type of the variable, body that reads it, signature of the function).
READERS = {
    "i8": ("i8", "%r = load i8, ptr @g\nret i8 %r", "i8()"),
    "i16": ("i16", "%r = load i16, ptr @g\nret i16 %r", "i16()"),
    "i32": ("i32", "%r = load i32, ptr @g\nret i32 %r", "i32()"),
    "i64": ("i64", "%r = load i64, ptr @g\nret i64 %r", "i64()"),
    "u64": ("i64", "%r = load i64, ptr @g\nret i64 %r", "u64()"),
    "i1": ("i1", "%r = load i1, ptr @g\nret i1 %r", "bool()"),
    "float": ("float", "%r = load float, ptr @g\nret float %r", "f32()"),
    "double": ("double", "%r = load double, ptr @g\nret double %r", "f64()"),
    "pointer": ("ptr", "%r = load ptr, ptr @g\nret ptr %r", "ptr()"),
    "text": ("ptr", "%r = load ptr, ptr @g\nret ptr %r", "cstr()"),
    "length": ("{ptr, i64}", "%p = getelementptr {ptr, i64}, ptr @g, i64 0, i32 1\n%r = load i64, ptr %p\nret i64 %r", "i64()"),
    "span": ("{ptr, i64}", "%r = load ptr, ptr @g\nret ptr %r", "ptr()"),
    "inline": ("[12 x i8]", "ret ptr @g", "ptr()"),
    "structure": ("{ i64, i32 }", "ret ptr @g", "ptr()"),
}


def source_of(value: object, form: str, name: str = "f") -> ModuleSource:
    llvm_type, body, signature = READERS[form]
    result = body.rpartition("ret ")[2].split(" ")[0]
    text = f"@g = external global {llvm_type}\ndefine {result} @{name}() {{\n{body}\n}}\n"
    return ModuleSource(text, {name: signature}, {"g": value})


def read(cache: Cache, value: object, form: str) -> Any:
    """What compiled code reads from a global of this form."""
    cache.add_module(source_of(value, form))
    return cache.get_target("f")()


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
        with pytest.raises(GlobalValidationError, match=rf"'g' .* does not fit the variable's type i{bits}"):
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
    with pytest.raises(GlobalValidationError, match=rf"global 'g' .* does not fit the variable's type {re.escape(llvm_type)}: ") as caught:
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
        with pytest.raises(GlobalValidationError, match="a buffer of 0 elements of format '0x' does not fit the variable's type"):
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
    with pytest.raises(GlobalValidationError, match=r"global 'g'.*does not fit") as caught:
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
        (np.timedelta64(5, "s"), r"a timedelta64 has a unit .*: pass it as an integer"),
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


# ------------------------------------------------------------------------------------ objects by name


def object_at(address: int) -> object:
    return ctypes.cast(address, ctypes.py_object).value


class Named:
    """Found by name, with methods that are."""

    @classmethod
    def make(cls) -> type:
        return cls

    def method(self) -> None:
        """Nothing."""


class Heir(Named):
    """Whose `make` is not that of `Named`."""


OBJECTS = [
    len, math.sin, int, types.SimpleNamespace, operator.add, str.join, None, Ellipsis, NotImplemented,
    dict.fromkeys, int.from_bytes, np.random.normal, Named.make, Heir.make, Named.method,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: getattr(value, "__qualname__", str(value)))
def test_an_object_is_found_again_by_its_name(cache: Cache, value: object) -> None:
    definition = PythonObject.of(value) if value is None else define(value)
    assert isinstance(definition, PythonObject)
    cache.add_module(source_of(definition, "pointer"))
    target = cache.get_target("f")
    assert object_at(target()) == value
    assert getattr(object_at(target()), "__self__", None) is getattr(value, "__self__", None)


def test_a_method_of_a_class_is_one_object_for_all_loads(cache: Cache) -> None:
    """Each look-up of it gives another object. A load that stored that one would keep all the others, for code that runs."""
    source = source_of(Heir.make, "pointer")
    cache.add_module(ModuleSource(source.ir + "define i64 @other() {\nret i64 1\n}\n", globals=source.globals))
    other = cache.get_target("other")  # keeps the module
    assert len({cache.get_target("f")() for _ in range(5)}) == 1
    assert other() == 1
    with pytest.raises(GlobalValidationError, match="no identity"):
        ObjectIdentity.of(Heir.make)
    assert ObjectIdentity.of(np.random.normal) == ObjectIdentity("numpy.random", "normal")


def test_a_ufunc_is_found_by_the_name_that_it_reduces_to(cache: Cache, directory: Path) -> None:
    cache.add_module(source_of(np.hypot, "pointer"))
    assert object_at(cache.get_target("f")()) is np.hypot
    script = """
    import ctypes
    from compcache import Cache
    target = Cache(directory).get_target("f")
    import numpy
    result = ctypes.cast(target(), ctypes.py_object).value is numpy.hypot
    """
    assert run_fresh(directory, script) is True


def test_an_object_without_a_name_is_refused(cache: Cache) -> None:
    for value in (object(), lambda: None, [1], types.SimpleNamespace(), "x".join, [].append, Named().method):
        with pytest.raises(GlobalValidationError, match="cannot be found by module and name") as caught:
            cache.add_module(source_of(value, "pointer"))
        assert "PythonObject(module, qualname)" in str(caught.value)


def test_the_identity_of_an_object_is_a_number(cache: Cache) -> None:
    assert read(cache, ObjectIdentity("math", "pi"), "u64") == id(math.pi)
    assert ObjectIdentity.of(math.sin) == ObjectIdentity("math", "sin")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module whose content the test may change."""
    module = types.ModuleType("a_test_registry")
    module.value = [1]  # type: ignore[attr-defined]
    module.members = {"one": 1.5, 2: "two", b"3": [3]}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_an_object_is_looked_up_at_every_load(cache: Cache, registry: Any) -> None:
    cache.add_module(source_of(PythonObject("a_test_registry", "value"), "pointer"))
    first = cache.get_target("f")
    assert object_at(first()) is registry.value
    old, registry.value = registry.value, [2]
    with Cache(cache.path) as later:
        target = later.get_target("f")
        assert object_at(target()) is registry.value
    assert old == [1]
    del registry.value
    with Cache(cache.path) as later:
        with pytest.raises(GlobalValidationError, match=r"global 'g' of function 'f'.*a_test_registry:value") as caught:
            later.get_target("f")
        assert (caught.value.global_name, caught.value.func_name) == ("g", "f")
        registry.value = [3]
        assert object_at((target := later.get_target("f"))()) is registry.value
        assert target.func_name == "f"


def test_an_object_is_kept_alive_by_the_code(cache: Cache, registry: Any) -> None:
    cache.add_module(source_of(PythonObject("a_test_registry", "value"), "pointer"))
    target = cache.get_target("f")
    registry.value = None
    gc.collect()
    assert object_at(target()) == [1]


@pytest.mark.parametrize(("key", "expected"), [("one", float), (2, str), (b"3", list)])
def test_a_member_of_a_dict_is_found_by_its_key(cache: Cache, registry: Any, key: str | int | bytes, expected: type) -> None:
    cache.add_module(source_of(DictMember.of("a_test_registry", "members", key, expected), "pointer"))
    target = cache.get_target("f")
    assert object_at(target()) is registry.members[key]


def test_a_member_whose_type_changed_is_told(cache: Cache, registry: Any) -> None:
    source = source_of(DictMember.of("a_test_registry", "members", "one", float), "pointer")
    cache.add_module(source)
    registry.members["one"] = "text"
    with pytest.raises(GlobalValidationError, match=r"members\['one'\] must be of type builtins:float, not str") as caught:
        cache.get_target("f")
    assert (caught.value.func_name, caught.value.global_name) == ("f", "g")
    assert "must be of type builtins:float, not str" in caught.value.reason
    del registry.members["one"]
    with pytest.raises(GlobalValidationError, match="has no key 'one'"):
        cache.get_target("f")
    registry.members = None
    with pytest.raises(GlobalValidationError, match="must be a dict, not an object of type NoneType"):
        cache.get_target("f")
    registry.members = {"one": 2.5}
    assert object_at((target := cache.get_target("f"))()) == 2.5
    assert target.func_name == "f"


def test_get_or_compile_rebuilds_where_a_global_no_longer_holds(cache: Cache, registry: Any) -> None:
    built = []

    def build() -> ModuleSource:
        value = registry.members["one"]
        built.append(value)
        return source_of(DictMember.of("a_test_registry", "members", "one", type(value)), "pointer")

    assert object_at((held := cache.get_or_compile("f", build))()) == 1.5
    registry.members["one"] = "text"
    with Cache(cache.path) as later:
        assert object_at((target := later.get_or_compile("f", build))()) == "text"
        assert target.module_id != held.module_id
    with Cache(cache.path) as third:
        assert object_at((target := third.get_or_compile("f", build))()) == "text"
    assert built == [1.5, "text"]


def test_a_key_of_another_type_is_refused(cache: Cache, registry: Any) -> None:
    registry.members[1.5] = "x"
    with pytest.raises(GlobalValidationError, match="must be a str, an int or bytes"):
        cache.add_module(source_of(DictMember("a_test_registry", "members", 1.5, "builtins:str"), "pointer"))


# ------------------------------------------------------------------------------------ native symbols


def test_a_native_symbol_is_an_address(cache: Cache) -> None:
    expected = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value
    assert read(cache, NativeSymbol("strlen"), "pointer") != 0
    assert expected


def test_a_native_symbol_of_a_library_serves_as_a_function(cache: Cache) -> None:
    text = "declare double @g(double)\ndefine double @f(double %x) {\n%y = call double @g(double %x)\nret double %y\n}"
    cache.add_module(ModuleSource(text, globals={"g": NativeSymbol("sqrt", "libm.so.6")}))
    assert cache.get_target("f")(9.0) == 3.0


@pytest.mark.parametrize(
    ("symbol", "culprit"),
    [
        (NativeSymbol("no_such_symbol_here"), "the native symbol 'no_such_symbol_here' is not defined in this process: name its library"),
        (NativeSymbol("_handle"), "the native symbol '_handle' is not defined in this process: name its library"),
        (NativeSymbol("no_such_symbol_here", "libm.so.6"), "is not defined in libm.so.6: correct the symbol or the library"),
    ],
)
def test_a_native_symbol_that_is_not_there_is_refused(cache: Cache, symbol: NativeSymbol, culprit: str) -> None:
    with pytest.raises(GlobalValidationError, match=culprit):
        cache.add_module(source_of(symbol, "pointer"))


@pytest.mark.slow
def test_a_library_that_is_gone_is_told_at_the_load(cache: Cache, directory: Path, tmp_path: Path) -> None:
    library = tmp_path / "libcopied.so"
    script = f"""
    import ctypes
    import llvmlite.binding as llvm
    from compcache import Cache, ModuleSource
    from compcache.images.linkers.find import find_linker
    from compcache.images.linkers.link import link_shared
    from compcache.globals import NativeSymbol
    llvm.initialize_native_target(); llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="default")
    obj = machine.emit_object(llvm.parse_assembly("define i64 @seven() {{\\nret i64 7\\n}}"))
    with open({str(library)!r}, "wb") as file:
        file.write(link_shared(find_linker(), [obj], soname="libcopied.so"))
    text = "declare i64 @g()\\ndefine i64 @f() {{\\n%x = call i64 @g()\\nret i64 %x\\n}}"
    cache = Cache(directory)
    cache.add_module(ModuleSource(text, globals={{"g": NativeSymbol("seven", {str(library)!r})}}))
    result = cache.get_target("f")()
    """
    assert run_fresh(directory, script) == 7
    library.unlink()
    with pytest.raises(GlobalValidationError, match=r"library .*libcopied.so"):
        cache.get_target("f")


# ------------------------------------------------------------------------------------ pickle


def test_a_pickled_object_needs_permission(cache: Cache) -> None:
    cache.add_module(source_of(Pickled.of({"a": [1, 2]}), "pointer"))
    with pytest.raises(PickleNotAllowedError, match=r"global 'g' of function 'f'.*allow_pickle=True"):
        cache.get_target("f")
    with Cache(cache.path, allow_pickle=True) as allowed:
        target = allowed.get_target("f")
        assert object_at(target()) == {"a": [1, 2]}
        with pytest.raises(PickleNotAllowedError):
            cache.get_target("f")
        assert object_at(target()) == {"a": [1, 2]}


def test_a_value_in_place_of_a_pickle_is_told_how_to_pickle_it() -> None:
    for value in ({"a": 1}, object(), "text", 5):
        with pytest.raises(TypeError, match=rf"must be a pickle as bytes, not {type(value).__name__}; use Pickled\.of"):
            Pickled(value)  # type: ignore[arg-type]


def test_a_pickle_is_not_read_without_permission(cache: Cache, directory: Path, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    text = "@g = external global ptr\ndefine i64 @other() {\nret i64 1\n}\ndefine ptr @f() {\n%p = load ptr, ptr @g\nret ptr %p\n}"
    cache.add_module(ModuleSource(text, globals={"g": Pickled.of(_Writes(str(witness)))}))
    witness.rmdir()  # adding looks whether the object unpickles
    assert cache.get_target("other")() == 1
    with pytest.raises(PickleNotAllowedError):
        cache.get_target("f")
    assert not witness.exists()
    with Cache(directory, allow_pickle=True) as allowed:
        allowed.get_target("f")
    assert witness.exists()


class _Writes:
    """Leaves a directory where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def iter_nothing() -> Iterator[int]:
    yield from ()


def test_what_cannot_be_pickled_is_told() -> None:
    with pytest.raises(GlobalValidationError, match="an object of type generator cannot be pickled"):
        Pickled.of(iter_nothing())


# ------------------------------------------------------------------------------------ own kinds


class Scaled(GlobalDefinition):
    """A number times a factor that this process knows."""

    __slots__ = ("number",)
    number: int
    kind = "test-scaled"
    factor: ClassVar[int] = 10

    def encode(self) -> bytes:
        return str(self.number).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Scaled:
        return cls(int(payload))

    def load(self, storage: Storage, context: object) -> tuple[bytes, object]:  # noqa: ARG002 - the interface
        if Scaled.factor == 0:
            raise GlobalValidationError(reason := "the factor is zero", reason=reason)
        return (self.number * Scaled.factor).to_bytes(storage.size, "little"), None


register(Scaled)


def test_a_kind_of_ones_own(cache: Cache, directory: Path) -> None:
    assert read(cache, Scaled(4), "i64") == 40
    script = """
    from compcache import Cache, GlobalValidationError
    try:
        Cache(directory).get_target("f")
    except GlobalValidationError as error:
        result = str(error)
    """
    message = run_fresh(directory, script)
    assert "'test-scaled' is not registered" in message
    assert "'g'" in message


def test_a_kind_that_says_no_is_quoted(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.add_module(source_of(Scaled(4), "i64"))
    monkeypatch.setattr(Scaled, "factor", 0)
    with pytest.raises(GlobalValidationError, match="the factor is zero") as caught:
        cache.get_target("f")
    assert caught.value.reason == "the factor is zero"
    assert caught.value.global_name == "g"


@pytest.mark.parametrize(
    ("method", "gives", "message"),
    [
        ("load", lambda: 1 // 0, "failed: ZeroDivisionError"),
        ("load", lambda: None, "failed: TypeError"),
        ("load", lambda: ("12345678", None), "failed: TypeError"),
        ("load", lambda: (b"1234", None), "returned 4 bytes for a variable of 8 bytes"),
        ("encode", lambda: 1 // 0, "failed: ZeroDivisionError"),
        ("encode", lambda: "4", "must return bytes, not str"),
        ("decode", lambda: 1 // 0, "cannot be decoded"),
        ("decode", lambda: 4, "must return a GlobalDefinition, not int"),
    ],
)
def test_a_kind_that_fails_is_told_and_what_was_cached_is_built_anew(
    cache: Cache, method: str, gives: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> ModuleSource:
        monkeypatch.undo()
        return source_of(Scaled(4), "i64")

    cache.add_module(build())
    monkeypatch.setattr(Scaled, method, lambda *_: gives())
    with pytest.raises(GlobalValidationError, match=message):
        (cache.get_target if method != "encode" else lambda _: cache.compile(source_of(Scaled(5), "i64"))["f"])("f")
    if method != "encode":
        assert cache.get_or_compile("f", build)() == 40


def test_a_class_that_is_defined_again_has_its_kind() -> None:
    def define_again(**names: Any) -> type[GlobalDefinition]:
        return register(type("Again", (GlobalDefinition,), {"kind": "test-again", "__slots__": (), **names}))

    define_again()
    second = define_again(decode=classmethod(lambda cls, _: cls()))
    assert type(decode_definition("test-again", b"")) is second


def test_a_kind_of_the_package_cannot_be_taken_before_it_is_used(directory: Path) -> None:
    script = """
    from compcache.globals import GlobalDefinition, register
    try:
        register(type("Mine", (GlobalDefinition,), {"kind": "text", "__slots__": ()}))
    except ValueError as error:
        result = str(error)
    """
    assert "in use by another class" in run_fresh(directory, script)


def test_a_kind_belongs_to_one_class() -> None:
    with pytest.raises(ValueError, match="in use by another class"):
        register(type("Other", (GlobalDefinition,), {"kind": "integer", "__slots__": ()}))
    with pytest.raises(ValueError, match="has no `kind`"):
        register(type("Other", (GlobalDefinition,), {"__slots__": ()}))
    assert register(Scaled) is Scaled


# ------------------------------------------------------------------------------------ encodings


@pytest.mark.slow
@given(
    st.one_of(
        st.builds(Integer, st.integers()),
        st.builds(Boolean, st.booleans()),
        st.builds(Float, st.floats(allow_nan=False)),
        st.builds(Bytes, st.binary()),
        st.builds(Text, st.text(st.characters())),
        st.builds(Buffer, st.binary(), st.sampled_from(["B", "<d", "=q"])),
        st.builds(PythonObject, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.just("a.b")),
        st.builds(
            DictMember,
            st.just("m"),
            st.just("q"),
            st.one_of(st.integers(), st.binary(), st.text(st.characters(exclude_categories=["Cs"]))),
            st.just("a:b"),
        ),
        st.builds(NativeSymbol, st.just("sym"), st.sampled_from([None, "lib.so"])),
    )
)
def test_a_definition_comes_back_from_its_bytes(definition: GlobalDefinition) -> None:
    assert decode_definition(definition.kind, definition.encode()) == definition


@pytest.mark.slow
@given(st.sampled_from([kind for kind in known_kinds() if not kind.startswith(("numba", "test"))]), st.binary(max_size=40))
def test_a_malformed_definition_raises_its_own_error_only(kind: str, payload: bytes) -> None:
    try:
        decode_definition(kind, payload)
    except GlobalValidationError as error:
        assert kind in str(error)  # noqa: PT017 - hypothesis: most examples raise, some do not


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
