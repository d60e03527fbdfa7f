"""Typed call targets: what each type accepts, what it refuses and how, and what a target tells about itself."""

from __future__ import annotations

import array
import contextlib
import copy
import ctypes
import functools
import gc
import inspect
import math
import pickle
import pydoc
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers import constant, run_fresh

from compcache import ArgumentBufferError, Cache, Function, ModuleSource, NotCachedError, Signature, TargetUnloadedError, TypedCallTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LLVM = {"i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "f32": "float", "f64": "double", "ptr": "ptr", "cstr": "ptr"}
LLVM |= {"u8": "i8", "u16": "i16", "u32": "i32", "u64": "i64", "bool": "i1"}
INTEGERS = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
ELEMENTS = [*INTEGERS, "f32", "f64", "bool"]
CODES = {"i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "f32": "f", "f64": "d"}

MORE = """
define i64 @length(ptr %p, i64 %n) {
  ret i64 %n
}
define ptr @start(ptr %p, i64 %n) {
  ret ptr %p
}
define double @total(ptr %p, i64 %n) {
entry:
  %none = icmp eq i64 %n, 0
  br i1 %none, label %end, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %s = phi double [ 0.0, %entry ], [ %t, %loop ]
  %at = getelementptr double, ptr %p, i64 %i
  %x = load double, ptr %at
  %t = fadd double %s, %x
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  %r = phi double [ 0.0, %entry ], [ %t, %loop ]
  ret double %r
}
define void @fill(ptr %p, i64 %n, double %x) {
entry:
  %none = icmp eq i64 %n, 0
  br i1 %none, label %end, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = getelementptr double, ptr %p, i64 %i
  store double %x, ptr %at
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}
define i64 @none() {
  ret i64 7
}
define i64 @three(i64 %a, i64 %b, i64 %c) {
  %x = mul i64 %a, 100
  %y = mul i64 %b, 10
  %s = add i64 %x, %y
  %t = add i64 %s, %c
  ret i64 %t
}
define void @nothing(i64 %a) {
  ret void
}
define i64 @slow(i64 %microseconds) {
  %m = trunc i64 %microseconds to i32
  %r = call i32 @usleep(i32 %m)
  ret i64 %microseconds
}
define i1 @is_held() {
  %r = call i32 @PyGILState_Check()
  %b = icmp ne i32 %r, 0
  ret i1 %b
}
define i64 @raises() {
  %e = load ptr, ptr @PyExc_ValueError
  call void @PyErr_SetString(ptr %e, ptr @message)
  ret i64 -1
}
define i8 @truth(i8 %x) {
  ret i8 %x
}
@message = internal constant [5 x i8] c"mine\\00"
@PyExc_ValueError = external global ptr
define void @write(ptr %p) {
  store i8 65, ptr %p
  ret void
}
define i8 @read(ptr readonly %p) {
  %x = load i8, ptr %p
  ret i8 %x
}
define i8 @pure(ptr %p, ptr %q) #0 {
  %x = load i8, ptr %q
  ret i8 %x
}
define i8 @pretend(ptr %p) #1 section "#0#1#2#3#4#5#6#7#8#9" {
  %x = load i8, ptr %p
  ret i8 %x
}
define i8 @writes_arguments(ptr %p) #2 {
  %x = load i8, ptr %p
  ret i8 %x
}
attributes #0 = { memory(argmem: read, inaccessiblemem: readwrite) }
attributes #1 = { "note"="memory(none)" }
attributes #2 = { memory(read, argmem: readwrite) }
declare void @PyErr_SetString(ptr, ptr)
declare i32 @usleep(i32)
declare i32 @PyGILState_Check()
"""


def identity_text() -> str:
    """For every type an identity function of this type."""
    return "\n".join(f"define {t} @id_{name}({t} %x) {{\n  ret {t} %x\n}}" for name, t in LLVM.items())


def exports() -> dict[str, str | Function | None]:
    named: dict[str, str | Function | None] = {f"id_{name}": f"{name}({name})" for name in LLVM}
    named |= {f"length_{t}": Function(f"i64({t}[:])", symbol="length") for t in ELEMENTS}
    named |= {
        "start": "ptr(const u8[:])",
        "total": "f64(const f64[:])",
        "total_w": Function("f64(f64[:])", symbol="total"),
        "fill": "void(values: f64[:], x: f64)",
        "none": "i64()",
        "three": "i64(a: i64, b: i64, c: i64)",
        "nothing": "void(i64)",
        "slow_nogil": Function("i64(i64)", symbol="slow", nogil=True),
        "held": Function("bool()", symbol="is_held"),
        "held_nogil": Function("bool()", symbol="is_held", nogil=True),
        "raises": "i64()",
        "raw": Function("ptr(ptr)", symbol="id_ptr"),
        "truth8": Function("bool(bool)", symbol="truth"),
        "write": None,
        "read": None,
        "pure": None,
        "pretend": None,
        "writes_arguments": None,
        "declared": Function("i8(p: const ptr)", symbol="pretend"),
        "two_buffers": Function("i64(i64[:], ptr)", symbol="three2"),
    }
    return named


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, _prepared: Path) -> Iterator[Cache]:
    """One cache with all functions of this file: nothing here changes it."""
    with Cache(tmp_path_factory.mktemp("targets") / "cache") as cache:
        text = identity_text() + MORE + "define i64 @three2(ptr %p, i64 %n, ptr %q) {\n  ret i64 %n\n}\n"
        cache.add_module(ModuleSource(text, exports(), optimize=0))
        yield cache


@pytest.fixture
def get(shared: Cache) -> Callable[[str], TypedCallTarget]:
    return shared.get_target


# ------------------------------------------------------------------------------------ integers


def limits(name: str) -> tuple[int, int]:
    bits = int(name[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if name[0] == "i" else (0, (1 << bits) - 1)


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_type_takes_its_whole_range(get: Callable[[str], TypedCallTarget], name: str) -> None:
    low, high = limits(name)
    for value in (low, low + 1, 0, 1, high - 1, high):
        result = get(f"id_{name}")(value)
        assert result == value
        assert type(result) is int


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_out_of_range_overflows(get: Callable[[str], TypedCallTarget], name: str) -> None:
    low, high = limits(name)
    for value in (low - 1, high + 1, -(2**80), 2**80):
        with pytest.raises(OverflowError):
            get(f"id_{name}")(value)
    assert get(f"id_{name}")(1) == 1


def test_an_overflow_names_the_function_the_argument_and_the_range(get: Callable[[str], TypedCallTarget]) -> None:
    with pytest.raises(OverflowError, match=r"id_i8\(\): \w+( 1)? must be between -128 and 127 \(i8\), not 128"):
        get("id_i8")(128)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [1.0, "1", None, b"1", [1], 1j])
def test_an_integer_type_refuses_other_types(get: Callable[[str], TypedCallTarget], name: str, value: object) -> None:
    with pytest.raises(TypeError):
        get(f"id_{name}")(value)


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_type_takes_what_has_an_index(get: Callable[[str], TypedCallTarget], name: str) -> None:
    class Index:
        def __index__(self) -> int:
            return 42

    assert get(f"id_{name}")(Index()) == 42
    assert get(f"id_{name}")(np.int16(42)) == 42
    assert get(f"id_{name}")(True) == 1


def test_an_exception_of_a_conversion_is_passed_on(get: Callable[[str], TypedCallTarget]) -> None:
    class Index:
        def __index__(self) -> int:
            raise ZeroDivisionError("mine")

        def __float__(self) -> float:
            raise ZeroDivisionError("mine")

        def __bool__(self) -> bool:
            raise ZeroDivisionError("mine")

    for name in ("i8", "i64", "u64", "f64", "f32", "bool"):
        with pytest.raises(ZeroDivisionError, match="mine"):
            get(f"id_{name}")(Index())


# ------------------------------------------------------------------------------------ floats and booleans


def test_floats_take_numbers(get: Callable[[str], TypedCallTarget]) -> None:
    for name in ("f32", "f64"):
        for value in (0.0, -1.0, 1.5, math.inf, -math.inf, 3, True, np.float32(0.25)):
            result = get(f"id_{name}")(value)
            assert result == float(value)
            assert type(result) is float
        assert math.isnan(get(f"id_{name}")(math.nan))
        for wrong in ("1", None, b"1", 1j):
            with pytest.raises(TypeError):
                get(f"id_{name}")(wrong)
        with pytest.raises(OverflowError):
            get(f"id_{name}")(10**400)
    assert get("id_f32")(0.1) == ctypes.c_float(0.1).value
    assert math.copysign(1, get("id_f64")(-0.0)) == -1


@pytest.mark.parametrize("name", ["id_bool", "truth8"])
def test_a_bool_takes_the_truth_of_anything(get: Callable[[str], TypedCallTarget], name: str) -> None:
    for value in (True, False, 0, 1, 256, "", "x", None, [], [0], 0.0):
        assert get(name)(value) is bool(value)


def test_void_returns_none(get: Callable[[str], TypedCallTarget]) -> None:
    assert get("nothing")(1) is None


# ------------------------------------------------------------------------------------ texts and pointers


def test_cstr_takes_text_and_bytes(get: Callable[[str], TypedCallTarget]) -> None:
    for value in ("", "plain", "grüß \U0001f600", "x" * 10000):
        assert get("id_cstr")(value) == value
        assert get("id_cstr")(value.encode()) == value
    for wrong in (1, None, bytearray(b"x"), ["x"]):
        with pytest.raises(TypeError, match=r"id_cstr\(\): \w+( 1)? must be str or bytes, not"):
            get("id_cstr")(wrong)


def test_cstr_refuses_nul_and_surrogates(get: Callable[[str], TypedCallTarget]) -> None:
    for value in ("a\0b", b"a\0b", "\0"):
        with pytest.raises(ValueError, match="without NUL"):
            get("id_cstr")(value)
    with pytest.raises(UnicodeEncodeError):
        get("id_cstr")("\ud800")


def test_a_null_cstr_is_none_and_malformed_utf8_is_no_crash(cache: Cache) -> None:
    text = 'define ptr @null() {\nret ptr null\n}\n@b = internal constant [3 x i8] c"\\FFx\\00"\ndefine ptr @bad() {\nret ptr @b\n}'
    cache.add_module(ModuleSource(text, {"null": "cstr()", "bad": "cstr()"}))
    assert cache.get_target("null")() is None
    bad = cache.get_target("bad")()
    assert isinstance(bad, str)
    assert bad.encode("utf-8", "surrogateescape") == b"\xffx"


def test_a_pointer_is_an_address(get: Callable[[str], TypedCallTarget], shared: Cache) -> None:
    raw = get("raw")
    assert raw(None) == 0
    assert raw(0) == 0
    assert raw(4096) == 4096
    assert raw(2**64 - 1) == 2**64 - 1
    data = bytearray(b"hello")
    buffer = (ctypes.c_char * 5).from_buffer(data)
    assert raw(data) == raw(memoryview(data)) == raw(buffer) == ctypes.addressof(buffer)
    assert raw(ctypes.byref(buffer)) == raw(ctypes.pointer(buffer)) == ctypes.addressof(buffer)
    assert raw(ctypes.c_void_p(77)) == 77
    assert raw(ctypes.c_void_p(None)) == 0
    number = ctypes.c_double(1.5)
    assert raw(number) == ctypes.addressof(number)
    matrix = np.arange(4.0)
    assert raw(matrix) == matrix.ctypes.data
    target = get("none")
    assert raw(target) == target.address != 0
    callback = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)
    assert raw(callback) == ctypes.cast(callback, ctypes.c_void_p).value
    assert shared


def test_the_method_of_a_call_is_a_builtin_function(get: Callable[[str], TypedCallTarget], tmp_path: Path) -> None:
    """It does what the call does, by position and by name, and keeps the target, also past the end of the cache."""
    call: Any = get("id_i64").__call__
    kind: object = type(call)  # of a name of its own: mypy narrows the type of a call to that of len
    assert kind is type(len)
    assert call(5) == get("id_i64")(5)
    assert str(inspect.signature(call)) == "(*args, **named)"
    for wrong, named in (((), {}), ((1, 2), {}), (("one",), {}), ((1,), {"b": 2})):
        with pytest.raises(TypeError) as by_method:
            call(*wrong, **named)
        with pytest.raises(TypeError) as by_call:
            get("id_i64")(*wrong, **named)
        assert str(by_method.value) == str(by_call.value)
    with Cache(tmp_path / "own") as cache:
        cache.add_module(ModuleSource("define i64 @own(i64 %x) {\n  ret i64 %x\n}\n"))
        call = cache.get_target("own").__call__
        assert call(x=7) == type(cache.get_target("own")).__call__(cache.get_target("own"), 7) == 7
    with pytest.raises(TargetUnloadedError):
        call(7)


def test_a_pointer_refuses_other_types(get: Callable[[str], TypedCallTarget]) -> None:
    for wrong in (1.5, "text", [1], object()):
        with pytest.raises(TypeError, match=r"raw\(\): \w+( 1)? must be an address \(int, None, a ctypes object"):
            get("raw")(wrong)
    for value in (2**64, -(2**63) - 1):
        with pytest.raises(OverflowError):
            get("raw")(value)


def test_a_pointer_to_read_only_memory_needs_a_function_that_only_reads(get: Callable[[str], TypedCallTarget]) -> None:
    """By attributes of the parameter, by those of the function (not by texts that look like them), or by declaration."""
    text = bytes(bytearray(b"password"))  # one of its own: no literal
    frozen = np.frombuffer(text, dtype=np.uint8)
    for value in (text, frozen, memoryview(text)):
        for name in ("write", "pretend", "writes_arguments"):
            with pytest.raises(ArgumentBufferError, match=r"p must be .* not a read-only (bytes|ndarray|memoryview).*'p: const ptr'"):
                get(name)(value)
        assert get("read")(value) == get("pure")(value, value) == get("declared")(value) == ord("p")
    assert text == b"password"
    data = bytearray(text)
    for view in (data, memoryview(data), np.frombuffer(data, dtype=np.uint8), (ctypes.c_char * 8).from_buffer(data)):
        get("write")(view)
        assert get("declared")(view) == ord("A")
    for view, name in ((memoryview(text), "write"), (memoryview(data), "write"), (memoryview(text), "read")):
        with contextlib.suppress(ArgumentBufferError):
            get(name)(view)
        view.release()  # which fails while a call has it
    assert str(get("read").signature) == "i8(ptr)"
    assert str(get("declared").signature) == "i8(const ptr)"


def test_a_pointer_to_memory_with_gaps_is_refused_in_these_words(get: Callable[[str], TypedCallTarget]) -> None:
    for value in (np.zeros(8)[::2], memoryview(bytearray(8))[::2], np.zeros((2, 2)).T):
        for name in ("write", "declared"):
            with pytest.raises(ArgumentBufferError, match=r"C-contiguous buffer, not a non-contiguous (ndarray|memoryview)"):
                get(name)(value)


# ------------------------------------------------------------------------------------ buffers


@pytest.mark.parametrize("name", [n for n in ELEMENTS if n != "bool"])
def test_a_buffer_of_each_element_type(get: Callable[[str], TypedCallTarget], name: str) -> None:
    length = get(f"length_{name}")
    code = CODES[name]
    size = array.array(code).itemsize
    data = bytearray(5 * size)
    assert length(array.array(code, [1, 2, 3])) == 3
    assert length(np.zeros((2, 3), dtype=np.dtype(code))) == 6
    assert length(memoryview(data).cast(code)) == 5  # type: ignore[call-overload]
    assert length(array.array(code)) == 0
    kind = {"f32": ctypes.c_float, "f64": ctypes.c_double}.get(name)
    kind = kind or getattr(ctypes, f"c_{'u' if name[0] == 'u' else ''}int{name[1:]}")
    assert length((kind * 4)()) == 4
    assert length(np.zeros(0, dtype=np.dtype(code))) == 0


def test_bytes_like_objects_are_buffers_of_u8(get: Callable[[str], TypedCallTarget]) -> None:
    assert get("length_u8")(bytearray(b"abc")) == 3
    assert get("start")(b"abc") != 0
    assert get("length_bool")(np.zeros(3, dtype=np.bool_)) == 3


def test_platform_integers_of_the_same_size_are_the_same_type(get: Callable[[str], TypedCallTarget]) -> None:
    """`l` and `q` are both 64-bit integers here."""
    assert get("length_i64")(array.array("l", [1, 2])) == 2
    assert get("length_i64")(array.array("q", [1, 2])) == 2
    assert get("length_i64")(np.zeros(2, dtype=np.intp)) == 2
    assert get("length_i64")(np.zeros(2, dtype="<i8")) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        array.array("f", [1]),
        array.array("q", [1]),
        bytearray(8),
        b"12345678",
        np.zeros(2, dtype=">f8"),
        np.zeros(2, dtype=np.complex128),
        np.zeros(2, dtype=[("x", "<f8")]),
        np.zeros(4)[::2],
        np.zeros((2, 2)).T,
        [1.0],
        None,
        1.0,
        "text",
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'dtype', getattr(value, 'typecode', ''))}",
)
def test_another_buffer_is_refused(get: Callable[[str], TypedCallTarget], wrong: object) -> None:
    for name in ("total", "total_w"):
        with pytest.raises(ArgumentBufferError, match=r"\w+( 1)? must be a (writable )?C-contiguous f64 buffer, not") as caught:
            get(name)(wrong)
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, BufferError)


def test_a_refused_buffer_is_described(get: Callable[[str], TypedCallTarget]) -> None:
    with pytest.raises(ArgumentBufferError, match=r"not a non-contiguous ndarray of format 'd'"):
        get("total")(np.zeros(4)[::2])
    with pytest.raises(ArgumentBufferError, match=r"not a read-only bytes of format 'B'"):
        get("length_u8")(b"abc")


def test_read_only_buffers_serve_functions_that_only_read(get: Callable[[str], TypedCallTarget]) -> None:
    frozen = np.array([1.0, 2.0])
    frozen.flags.writeable = False
    assert get("total")(frozen) == 3.0
    with pytest.raises(ArgumentBufferError, match="read-only"):
        get("total_w")(frozen)
    with pytest.raises(ArgumentBufferError, match="read-only"):
        get("fill")(frozen, 1.0)


def test_a_function_writes_into_its_buffer(get: Callable[[str], TypedCallTarget]) -> None:
    values = np.zeros(3)
    assert get("fill")(values, 2.5) is None
    assert values.tolist() == [2.5, 2.5, 2.5]
    numbers = array.array("d", [0, 0])
    get("fill")(numbers, 1.0)
    assert numbers.tolist() == [1.0, 1.0]
    assert get("total")(numbers) == 2.0
    assert get("total")(array.array("d")) == 0.0


def test_buffers_are_given_back(get: Callable[[str], TypedCallTarget]) -> None:
    """A bytearray with an exported buffer cannot be resized."""
    data = bytearray(8)
    view = memoryview(data).cast("q")
    get("length_u8")(data)
    get("raw")(data)
    get("two_buffers")(view, data)
    with pytest.raises(TypeError):
        get("two_buffers")(view, object())
    with pytest.raises(ArgumentBufferError):
        get("total")(data)
    with pytest.raises(TypeError):
        get("two_buffers")(view)
    view.release()
    data.append(1)
    assert len(data) == 9


@pytest.mark.slow
def test_no_reference_is_lost_or_kept(get: Callable[[str], TypedCallTarget]) -> None:
    objects: list[Any] = ["a text of its own", np.zeros(3), bytearray(b"xyz"), 2**70]
    before = list(map(sys.getrefcount, objects))
    for _ in range(100):
        get("id_cstr")(objects[0])
        get("total")(objects[1])
        get("raw")(objects[2])
        for wrong in objects:
            with pytest.raises((TypeError, OverflowError)):
                get("id_i64")(wrong)
    del wrong
    gc.collect()
    assert list(map(sys.getrefcount, objects)) == before


# ------------------------------------------------------------------------------------ calls


def test_the_number_of_arguments_is_checked(get: Callable[[str], TypedCallTarget]) -> None:
    three: Any = get("three")
    assert three(1, 2, 3) == 123
    with pytest.raises(TypeError, match=r"three\(\) takes 3 arguments, .*; 2 given"):
        three(1, 2)
    with pytest.raises(TypeError, match=r"three\(\) takes 3 arguments, .*; 4 given"):
        three(1, 2, 3, 4)
    with pytest.raises(TypeError, match=r"none\(\) takes no arguments; 1 given"):
        get("none")(1)
    with pytest.raises(TypeError, match=r"id_i64\(\) takes 1 argument, .*; 0 given"):
        get("id_i64")()
    with pytest.raises(TypeError, match=r"three\(\) (takes no keyword arguments|has no parameter 'zzz')"):
        three(1, 2, zzz=3)
    nothing: dict[str, object] = {}
    assert three(*(1, 2, 3), **nothing) == 123


def test_a_target_is_called_in_every_way(get: Callable[[str], TypedCallTarget]) -> None:
    assert list(map(get("id_i64"), range(3))) == [0, 1, 2]
    assert get("three").__call__(1, 2, 3) == 123
    assert functools.partial(get("three"), 1)(2, 3) == 123
    assert sorted([3, 1, 2], key=get("id_i64")) == [1, 2, 3]
    assert callable(get("none"))


def test_an_exception_that_code_sets_is_raised(get: Callable[[str], TypedCallTarget]) -> None:
    with pytest.raises(ValueError, match="mine"):
        get("raises")()


def test_nogil_releases_the_gil(get: Callable[[str], TypedCallTarget]) -> None:
    assert get("held")() is True
    assert get("held_nogil")() is False
    assert (get("held").nogil, get("held_nogil").nogil) == (False, True)
    slow = get("slow_nogil")
    done: list[float] = []
    thread = threading.Thread(target=lambda: done.append(slow(300_000)))
    thread.start()
    steps = 0
    while not done:
        steps += 1
        time.sleep(0.001)
    thread.join()
    assert steps > 20, "other threads run meanwhile"


# ------------------------------------------------------------------------------------ about targets


def test_a_target_tells_what_it_is(get: Callable[[str], TypedCallTarget], shared: Cache) -> None:
    target = get("fill")
    assert isinstance(target, TypedCallTarget)
    assert target.func_name == target.__name__ == "fill"
    assert target.link_name == f"fill@{target.module_id}"
    assert target.signature == Signature.parse("void(f64[:], f64)")
    assert target.address > 4096
    assert repr(target) == f"<TypedCallTarget 'fill': void(values: f64[:], x: f64) in module {target.module_id}>"
    assert str(inspect.signature(target)) == "(values: 'f64[:]', x: 'f64') -> 'void'"
    assert str(inspect.signature(get("none"))) == "() -> 'i64'"
    assert [r.link_name for r in shared.realizations("fill")] == [target.link_name]


def test_help_tells_how_to_call(get: Callable[[str], TypedCallTarget], shared: Cache) -> None:
    text = pydoc.plain(pydoc.render_doc(get("fill")))
    for part in ("fill(values: f64[:], x: f64)", "C-contiguous buffer of f64", "returns: None", shared.path):
        assert part in text
    documentation = get("id_cstr").__doc__
    assert documentation is not None
    assert "str or None" in documentation
    assert "str (passed as UTF-8) or bytes" in documentation


def test_the_address_can_be_called_by_other_native_code(get: Callable[[str], TypedCallTarget]) -> None:
    target = get("three")
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    assert prototype(target.address)(1, 2, 3) == 123


def test_targets_cannot_be_made_or_changed(get: Callable[[str], TypedCallTarget]) -> None:
    target: Any = get("none")
    with pytest.raises(TypeError):
        type(target)()
    with pytest.raises((AttributeError, TypeError)):
        target.func_name = "other"
    with pytest.raises((AttributeError, TypeError)):
        target.something = 1


def test_a_target_is_weakly_referenced_and_collected(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("f", 1)))
    target = cache.get_target("f")
    gone: list[object] = []
    reference = weakref.ref(target, gone.append)
    assert reference() is target
    assert {target: 1}[target] == 1
    cycle: list[object] = [target]
    cycle.append(cycle)
    del target
    assert reference() is not None
    del cycle
    gc.collect()
    assert reference() is None
    assert gone == [reference]
    assert cache.get_target("f")() == 1


def test_a_copy_is_the_same_target(get: Callable[[str], TypedCallTarget]) -> None:
    target = get("none")
    assert copy.copy(target) is copy.deepcopy(target) is target


def test_a_pickled_target_is_found_again(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(constant("f", 33)))
    target = cache.get_target("f")
    data = pickle.dumps(target)
    assert pickle.loads(data) is target
    assert run_fresh(directory, f"import pickle\nresult = pickle.loads({data!r})()") == 33
    assert len(data) < 1000


def test_an_unpickled_target_keeps_working_without_a_cache_object(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("f", 33)))
    data = pickle.dumps(cache.get_target("f"))
    cache.close()
    target = pickle.loads(data)
    gc.collect()
    assert target() == 33


def test_a_pickled_target_that_is_gone_is_told(cache: Cache, directory: Path) -> None:
    module_id = cache.add_module(ModuleSource(constant("f", 33)))
    data = pickle.dumps(cache.get_target("f"))
    cache.unload("f")
    (directory / "modules-v1" / module_id[:2] / f"{module_id}.ccm").unlink()
    with pytest.raises(NotCachedError, match=r"pickled call target.*'f'") as caught:
        pickle.loads(data)
    assert caught.value.cache_dir == str(directory)


def test_an_unloaded_target_still_says_what_it_was(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("f", 33)))
    target = cache.get_target("f")
    cache.unload("f")
    assert repr(target) == "<TypedCallTarget 'f' (unloaded)>"
    assert target.__doc__ == "f: unloaded"
    for use in (target, lambda: target(1), lambda: target.signature, lambda: inspect.signature(target)):
        with pytest.raises((TargetUnloadedError, ValueError)):
            use()


def test_many_arguments_of_all_kinds_arrive_in_order(cache: Cache) -> None:
    kinds = ["i8", "f64", "u16", "f32", "i64", "f64", "u8", "i32", "f64", "u64", "f64", "f32", "i16", "f64", "u32", "f64"]
    kinds += ["f64", "i64", "f64", "f64"]
    parameters = ", ".join(f"{LLVM[k]} %a{i}" for i, k in enumerate(kinds))
    lines, total = [], "0.0"
    for i, k in enumerate(kinds):
        if k[0] == "f":
            lines.append(f"%c{i} = {'fpext float' if k == 'f32' else 'fadd double'} %a{i}" + (" to double" if k == "f32" else ", 0.0"))
        else:
            lines.append(f"%c{i} = {'s' if k[0] == 'i' else 'u'}itofp {LLVM[k]} %a{i} to double")
        lines += [f"%m{i} = fmul double %c{i}, {float(i + 1)}", f"%s{i} = fadd double {total}, %m{i}"]
        total = f"%s{i}"
    body = "\n".join(lines)
    text = f"define double @f({parameters}) {{\n{body}\nret double {total}\n}}"
    cache.add_module(ModuleSource(text, {"f": f"f64({', '.join(kinds)})"}))
    values = [(-1) ** i * (i + 2) if k[0] != "u" else i + 2 for i, k in enumerate(kinds)]
    assert cache.get_target("f")(*values) == sum((i + 1) * v for i, v in enumerate(values))
