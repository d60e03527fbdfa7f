"""The code of stored functions and variables as text."""

from __future__ import annotations

import pytest

from compcache import Cache, ModuleSource

CODE = """
@counter = global i64 11
@limit = constant i64 12
@second = alias i64, ptr @counter
define i64 @first(i64 %x) {
  ret i64 %x
}
@other = alias i64 (i64), ptr @first
@chosen = ifunc i64 (i64), ptr @choose
define internal ptr @choose() {
  ret ptr @first
}
"""


@pytest.fixture
def filled(cache: Cache) -> Cache:
    cache.add_module(ModuleSource(CODE))
    return cache


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("counter", "@counter = hidden global i64 11"),
        ("limit", "@limit = hidden local_unnamed_addr constant i64 12"),
        ("second", "@second = alias i64, ptr @counter"),
        ("other", "@other = alias i64 (i64), ptr @first"),
        ("chosen", "@chosen = ifunc i64 (i64), ptr @choose"),
    ],
)
def test_what_is_no_function_has_the_line_that_defines_it(filled: Cache, name: str, text: str) -> None:
    assert filled.ir(name) == text


def test_a_function_has_its_body(filled: Cache) -> None:
    assert filled.ir("first").endswith("{\n  ret i64 %x\n}")
    assert filled.asm("first").splitlines()[0] == "first:"


def test_assembly_of_a_variable_ends_where_it_ends(filled: Cache) -> None:
    for name, value in (("counter", 11), ("limit", 12)):
        label, data = filled.asm(name).splitlines()
        assert label == f"{name}:"
        assert data.split()[-1] == str(value)
