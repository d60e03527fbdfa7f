"""Digests of functions: equal where the code and all that it reaches is, whatever stands beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import constant

from compcache import Cache, Function, ModuleSource
from compcache.content.functions import exported_content, symbol_digests
from compcache.formats.index import CONTENT_SIZE

if TYPE_CHECKING:
    from pathlib import Path

CODE = """\
%pair = type { i64, i64 }
%other = type { i64 }
@counter = internal global i64 0
define internal i64 @helper(i64 %x) #0 {
  %y = add i64 %x, 1
  ret i64 %y
}
define i64 @f(i64 %x) #0 {
  %p = alloca %pair, align 8
  %y = call i64 @helper(i64 %x)
  store i64 %y, ptr @counter, align 8
  ret i64 %y
}
attributes #0 = { nounwind }
"""


def content(code: str, symbol: str = "f") -> bytes:
    return symbol_digests(code, ())[symbol]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%x, 1", "%x, 2"),
        ("global i64 0", "global i64 1"),
        ("{ i64, i64 }", "{ i64, i32 }"),
        ("nounwind", "noinline"),
        ("store i64 %y", "store volatile i64 %y"),
    ],
)
def test_what_a_function_reaches_is_part_of_it(old: str, new: str) -> None:
    assert content(CODE) != content(CODE.replace(old, new))


@pytest.mark.parametrize(
    "other",
    [
        CODE + constant("g", 5),
        CODE.replace("%other = type { i64 }\n", ""),
        CODE.replace("#0", "#3"),
        "@more = global i64 3\n" + CODE,
    ],
)
def test_what_stands_beside_it_is_not(other: str) -> None:
    assert content(CODE) == content(other)


def test_functions_that_call_one_another_differ() -> None:
    code = "".join(f"define i64 @{a}() {{\n  %y = call i64 @{b}()\n  ret i64 %y\n}}\n" for a, b in ("fg", "gf"))
    assert content(code, "f") != content(code, "g")
    assert content(code, "f") == content(code + constant("h", 1), "f")


def test_what_the_source_says_beside_its_code_counts() -> None:
    code = content(CODE)
    assert exported_content(b"", code, "i64(i64)") != exported_content(b"globals", code, "i64(i64)")
    assert exported_content(b"", code, "i64(i64)") != exported_content(b"", code, "u64(i64)")
    assert exported_content(b"", None, "i64(i64)") == bytes(CONTENT_SIZE)


def test_only_plain_names_need_a_digest(tmp_path: Path) -> None:
    cache, name = Cache(tmp_path), "named-0123456789abcdef0123456789abcdef"
    cache.add_module(ModuleSource(constant("plain", 1)))
    cache.add_module(ModuleSource(constant("g", 1), {name: Function("i64()", symbol="g")}))
    assert [[any(row[-1]) for row in cache._store.find_numbered(each)] for each in ("plain", name)] == [[True], [False]]
