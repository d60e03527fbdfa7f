"""Arrays of NumPy, whose layout the runtime reads once it has compared it with a buffer: they are taken and refused as buffers are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers import run_fresh

from compcache import ArgumentBufferError, Cache, ModuleSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from compcache import TypedCallTarget

MODULE = """
define i64 @length(ptr %p, i64 %n) {
  ret i64 %n
}
define i64 @rows(ptr %p, i64 %n, i64 %m) {
  %high = mul i64 %n, 1000
  %r = add i64 %high, %m
  ret i64 %r
}
define ptr @start(ptr %p, i64 %n) {
  ret ptr %p
}
define void @fill(ptr %p, i64 %n) {
  store i64 65, ptr %p
  ret void
}
define i64 @first(ptr %p) {
  %r = load i64, ptr %p
  ret i64 %r
}
define i64 @counted(ptr %p, i64 %n, ptr %o) {
  %c = load i64, ptr %o
  ret i64 %c
}
define i64 @pair(ptr %p, i64 %n, ptr %q, i64 %m) {
  %r = sub i64 %n, %m
  ret i64 %r
}
"""
SIGNATURES = {
    "length": "i64(const i64[:])", "rows": "i64(const i64[:, ::1])", "start": "ptr(const i64[:])", "fill": "void(i64[:])",
    "counted": "i64(const i64[:], object)", "first": "i64(const ptr)", "pair": "i64(const i64[:], const f64[:])",
}  # fmt: skip


@pytest.fixture(scope="module")
def get(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], TypedCallTarget]]:
    with Cache(tmp_path_factory.mktemp("numpy") / "cache") as cache:
        cache.add_module(ModuleSource(MODULE, functions=SIGNATURES))
        cache.get_target("length")(np.arange(3))  # from here on the layout is known, and the dtype
        cache.get_target("fill")(np.arange(3))
        yield cache.get_target


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def unaligned() -> Any:
    return np.frombuffer(bytearray(17), np.uint8)[1:].view(np.int64)


class Derived(np.ndarray[Any, Any]):
    """Another type than NumPy's own."""


def test_arrays_are_passed_where_they_are(get: Callable[[str], TypedCallTarget]) -> None:
    for array in (np.arange(5), np.arange(6)[2:], np.empty(0, np.int64), read_only(np.arange(2)), np.arange(4).view(Derived), unaligned()):
        assert get("length")(array) == array.size
        assert get("start")(array) == array.ctypes.data
    assert get("length")(np.array(7)) == 1
    assert get("length")(np.zeros((3, 4), np.int64)) == 12
    assert get("rows")(np.zeros((3, 4), np.int64)) == 3004
    assert get("pair")(np.arange(5), np.zeros(2)) == 3


@pytest.mark.parametrize("other", [
    np.zeros(3), np.zeros(3, np.uint64), np.zeros(3, np.int32), np.zeros(3, ">i8"), np.zeros(3, "m8[s]"), np.zeros(3, object),
    np.arange(6)[::2], np.zeros((2, 3), np.int64).T, np.zeros(3, [("a", "i8")]), np.zeros(3, [("a", "i8")])["a"][::-1],
])  # fmt: skip
def test_other_elements_and_orders_are_refused(get: Callable[[str], TypedCallTarget], other: Any) -> None:
    with pytest.raises(ArgumentBufferError, match=r"length\(\): "):
        get("length")(other)


def test_several_dtypes_of_the_same_elements_are_taken_in_turns(get: Callable[[str], TypedCallTarget]) -> None:
    tagged = np.zeros(2, np.dtype("i8", metadata={"unit": "m"}))
    for array in [np.zeros(2, "l"), np.zeros(2, "q"), tagged] * 3:
        assert get("length")(array) == 2
    with pytest.raises(ArgumentBufferError):
        get("length")(np.zeros(2, "d"))


def test_a_function_that_writes_refuses_what_is_read_only(get: Callable[[str], TypedCallTarget]) -> None:
    array = np.arange(3)
    get("fill")(array)
    assert array[0] == 65
    for frozen in (read_only(np.arange(3)), np.frombuffer(bytes(16), np.int64)):
        with pytest.raises(ArgumentBufferError, match="read-only ndarray"):
            get("fill")(frozen)
        assert frozen[0] == 0


def test_an_integer_is_an_address_and_not_the_buffer_of_a_copy(get: Callable[[str], TypedCallTarget]) -> None:
    array = np.arange(3)
    for kind in (np.int64, np.uint64, np.intp):
        assert get("first")(kind(array.ctypes.data)) == 0
        assert get("first")(kind(array.ctypes.data) + kind(8)) == 1
    assert get("first")(np.timedelta64(array.ctypes.data, "ns")) == array.ctypes.data  # the buffer of a duration


def test_a_buffer_that_cannot_be_given_is_refused_with_the_reason(get: Callable[[str], TypedCallTarget]) -> None:
    view = memoryview(bytearray(8))
    view.release()
    for name, other, reason in (
        ("length", view, r"not memoryview \(operation forbidden on released memoryview object\)"),
        ("first", view, r"not memoryview \(operation forbidden on released memoryview object\)"),
        ("length", np.zeros(3, "m8[s]"), r"not ndarray \(cannot include dtype 'm' in a buffer\)"),
        ("length", [1], "not list$"),
    ):
        with pytest.raises((TypeError, ArgumentBufferError), match=reason):
            get(name)(other)


def test_numpy_is_asked_where_it_warns_of_writes(get: Callable[[str], TypedCallTarget]) -> None:
    array, _ = np.broadcast_arrays(np.arange(3), np.arange(3))
    array.flags._warn_on_write = True  # type: ignore[attr-defined]
    assert get("length")(array) == 3
    with pytest.warns(DeprecationWarning, match="broadcast"):
        get("fill")(array)


def test_dimensions_are_checked(get: Callable[[str], TypedCallTarget]) -> None:
    for array in (np.zeros(4, np.int64), np.zeros((1, 2, 3), np.int64), np.array(1)):
        with pytest.raises(ArgumentBufferError, match=r"rows\(\): "):
            get("rows")(array)


def test_an_array_is_held_while_the_function_runs_and_no_longer(get: Callable[[str], TypedCallTarget]) -> None:
    array = np.arange(4)
    before = sys.getrefcount(array)
    assert get("counted")(array, array) > before
    for _ in range(100):
        get("length")(array)
        with pytest.raises(ArgumentBufferError):
            get("pair")(array, array)
    assert sys.getrefcount(array) == before
    array.resize(8, refcheck=True)
    assert get("length")(array) == 8


@pytest.mark.slow
def test_an_array_without_dimensions_may_be_the_first(tmp_path: Path) -> None:
    """It does not show the layout; nor does an object of another type, or a NumPy that is only pretended."""
    script = f"""
    import array, sys, types
    from compcache import Cache, ModuleSource
    with Cache({str(tmp_path / "cache")!r}) as cache:
        cache.add_module(ModuleSource({MODULE!r}, functions={SIGNATURES!r}))
        length = cache.get_target("length")
        sys.modules["numpy"] = types.SimpleNamespace(ndarray=array.array)
        result = [length(array.array("q", [1] * n)) for n in (1, 2)]
        del sys.modules["numpy"]
        import numpy
        result += [length(made) for made in (numpy.array(1), memoryview(numpy.arange(3)), numpy.arange(4), numpy.arange(5))]
    """
    assert run_fresh(tmp_path, script) == [1, 2, 1, 3, 4, 5]


@pytest.mark.parametrize("value", [np.array([1]), np.array([1.5, 2]), np.array("a"), np.datetime64(5, "s")])
def test_an_array_is_not_a_number_that_is_too_large(cache: Cache, value: Any) -> None:
    """NumPy's arrays have `__index__` and `__float__`, which refuse all arrays but those of one number."""
    code = "define i64 @i(i64 %x) {\n  ret i64 %x\n}\ndefine double @d(double %x) {\n  ret double %x\n}\n"
    cache.add_module(ModuleSource(code))
    with pytest.raises(TypeError, match="must be an integer"):
        cache.get_target("i")(value)
    with pytest.raises(TypeError, match="must be a number"):
        cache.get_target("d")(value)
    for name, type_ in (("i", np.int64), ("d", np.float64)):
        assert cache.get_target(name)(np.array(type_(3))) == cache.get_target(name)(type_(3)) == 3
