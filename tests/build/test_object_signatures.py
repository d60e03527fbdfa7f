"""Functions that take and return Python objects."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from compcache import Cache, ModuleSource, SignatureError, SignatureMismatchError
from compcache.build.entry_points import read_head, read_signature
from compcache.build.source import Function
from compcache.signature import Signature

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
declare void @Py_IncRef(ptr)
declare ptr @PyList_New(i64)
declare ptr @PyNumber_Add(ptr, ptr)
define ptr @same(ptr %object) {
  call void @Py_IncRef(ptr %object)
  ret ptr %object
}
define ptr @add(ptr %one, ptr %other, i64 %unused) {
  %sum = call ptr @PyNumber_Add(ptr %one, ptr %other)
  ret ptr %sum
}
define i64 @address(ptr %object) {
  %number = ptrtoint ptr %object to i64
  ret i64 %number
}
"""
FUNCTIONS = {"same": "object(object)", "add": "object(one: object, other: object, unused: i64)", "address": "i64(object)"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    made = Cache(tmp_path_factory.mktemp("objects"))
    made.add_module(ModuleSource(CODE, FUNCTIONS))
    return made


def test_an_object_goes_in_and_out(cache: Cache) -> None:
    given = object()
    same = cache.get_target("same")
    before = sys.getrefcount(given)
    for _ in range(100):
        assert same(given) is given
    assert sys.getrefcount(given) == before
    assert cache.get_target("address")(given) == id(given)


def test_results_are_new_references(cache: Cache) -> None:
    assert cache.get_target("add")(other="b", one="a", unused=1) == "ab"
    assert cache.get_target("add")([1], [2], 1) == [1, 2]


def test_an_exception_of_the_function_is_raised(cache: Cache) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        cache.get_target("add")(1, "a", 1)


def test_the_signature_says_that_any_object_will_do(cache: Cache) -> None:
    assert str(cache.get_target("add").signature) == "object(object, object, i64)"
    assert "one: a Python object" in str(cache.get_target("add").__doc__)


def test_objects_are_no_elements() -> None:
    for text in ("void(object[:])", "tuple[object](i64)", "void(const object)"):
        with pytest.raises(SignatureError):
            Signature.parse(text)


def test_a_function_of_objects_keeps_the_gil(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache, pytest.raises(SignatureMismatchError, match="but nogil=True releases the GIL"):
        cache.add_module(ModuleSource(CODE, {"same": Function("object(object)", nogil=True)}))


def test_functions_of_a_known_type_are_not_parsed_again(cache: Cache) -> None:
    """Whatever their names are: the name of another symbol, or one in quotes."""
    text = "define zeroext i16 @{}(i64 %number, ptr %address) {{\n  ret i16 7\n}}\n"
    cache.add_module(ModuleSource(text.format("known")))
    parsed = read_head.cache_info().misses, read_signature.cache_info().misses
    for name in ("f", "known.again", '"odd \\22name\\22"'):
        cache.add_module(ModuleSource(text.format(name)))
    assert (read_head.cache_info().misses, read_signature.cache_info().misses) == parsed
    for name in ("f", "known.again", 'odd "name"'):
        assert str(cache.get_target(name).signature) == "u16(i64, ptr)"
