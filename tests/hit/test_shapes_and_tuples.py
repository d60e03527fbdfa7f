"""Buffers that must have a shape, and functions that give several numbers back."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import pytest

from compcache import ArgumentBufferError, ModuleSource, SignatureMismatchError
from compcache.signature import Signature

if TYPE_CHECKING:
    from compcache import Cache

SHAPED = """
define i64 @weigh(ptr %data, i64 %rows, i64 %columns, i64 %factor) {
  %a = mul i64 %rows, 1000
  %b = add i64 %a, %columns
  %c = mul i64 %b, %factor
  ret i64 %c
}
define i64 @length(ptr %data, i64 %count) {
  ret i64 %count
}
define void @parts(ptr %items, i64 %x) {
  store i64 %x, ptr %items
  %double = uitofp i64 %x to float
  %second = getelementptr i64, ptr %items, i64 1
  store float %double, ptr %second
  %odd = trunc i64 %x to i8
  %bit = and i8 %odd, 1
  %third = getelementptr i64, ptr %items, i64 2
  store i8 %bit, ptr %third
  %fourth = getelementptr i64, ptr %items, i64 3
  %low = trunc i64 %x to i16
  store i16 %low, ptr %fourth
  ret void
}
"""
SIGNATURES = {"weigh": "i64(const f64[:, ::1], i64)", "length": "i64(const u8[::1])", "parts": "tuple[u64, f32, bool, i16](u64)"}


def grid(rows: int, columns: int) -> Any:
    return memoryview(array("d", range(rows * columns))).cast("B").cast("d", [rows, columns])


@pytest.mark.parametrize("text", [*SIGNATURES.values(), "void(a: f32[:, :, ::1], b: i8)", "tuple[i64](f64[:])"])
def test_a_signature_with_shapes_comes_back_from_its_text(text: str) -> None:
    assert Signature.parse(text).text() == text


def test_a_function_gets_the_extents_of_a_buffer(cache: Cache) -> None:
    cache.add_module(ModuleSource(SHAPED, SIGNATURES))
    assert cache.get_target("weigh")(grid(3, 4), 2) == 6008
    assert cache.get_target("length")(b"abc") == 3


@pytest.mark.parametrize(
    ("name", "arguments", "offer"),
    [
        ("weigh", (array("d", [1]), 1), "not an array of format 'd' and 1 dimension"),
        ("weigh", (grid(3, 4)[::2], 1), "not a non-contiguous memoryview of format 'd' and 2 dimensions"),
        ("weigh", (3, 1), "not int"),
        ("length", (memoryview(bytes(6)).cast("B", [2, 3]),), "not a memoryview of format 'B' and 2 dimensions"),
        ("length", (memoryview(bytes(1)).cast("B", []),), "and 0 dimensions"),
    ],
)
def test_a_buffer_of_another_shape_is_refused(cache: Cache, name: str, arguments: tuple[Any, ...], offer: str) -> None:
    cache.add_module(ModuleSource(SHAPED, SIGNATURES))
    with pytest.raises(ArgumentBufferError) as caught:
        cache.get_target(name)(*arguments)
    assert offer in str(caught.value)
    memory = arguments[0]
    if isinstance(memory, memoryview):
        memory.release()  # an error where the call has kept it


def test_several_numbers_come_back_as_a_tuple(cache: Cache) -> None:
    cache.add_module(ModuleSource(SHAPED, SIGNATURES))
    parts = cache.get_target("parts")
    assert parts(7) == (7, 7.0, True, 7)
    assert parts(2**64 - 1) == (2**64 - 1, 2.0**64, True, -1)
    assert [type(item) for item in parts(40000)] == [int, float, bool, int]
    assert parts(40000)[3] == 40000 - 2**16


def test_a_tuple_contradicts_a_function_that_returns_a_value(cache: Cache) -> None:
    with pytest.raises(SignatureMismatchError, match=r"requires 'void \(ptr, i64\)'"):
        cache.add_module(ModuleSource("define i64 @f(i64 %x) {\n ret i64 %x\n}\n", {"f": "tuple[i64](i64)"}))
