"""Archives of bitcode and groups: several modules of LLVM code become one, and both ways accept, refuse and promise the same."""

from __future__ import annotations

import errno
import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller
from test_compiler_output import archive, bitcode

from compcache import Cache, CacheWarning, ModulesNotAddedError, ModuleSource, SignatureMismatchError, UndefinedSymbolError
from compcache.build import codegen
from compcache.build.ir_text import lines_from
from compcache.build.merging import declared_promises

if TYPE_CHECKING:
    from collections.abc import Callable

    Add = Callable[[Cache, tuple[str, ...]], None]


def add_group(cache: Cache, codes: tuple[str, ...]) -> None:
    cache.add_modules(list(map(ModuleSource, codes)), group="lib")


def add_archive(cache: Cache, codes: tuple[str, ...], **options: Any) -> None:
    cache.add_module(ModuleSource(archive(**{f"{number}.o": bitcode(code) for number, code in enumerate(codes)}), **options))


both_ways = pytest.mark.parametrize("add", [add_group, add_archive], ids=["group", "archive"])
both_orders = pytest.mark.parametrize("order", [1, -1])

PRESERVING = "define preserve_mostcc i64 @f(i64 %x) noinline {\n  %y = add i64 %x, 5\n  ret i64 %y\n}\n"
NARROW = "define i64 @f(i8 signext %x) {\n  %y = sext i8 %x to i64\n  ret i64 %y\n}\n"
WITHOUT_PROTOTYPE = "declare i64 @f(...)\ndefine i64 @g(i32 %x) {\n  %y = call i64 (...) @f(i32 %x)\n  ret i64 %y\n}\n"
#: It keeps a result that does not exist, and never uses it: so C does, without optimization, with a function of the old style.
KEEPING = """\
declare i64 @f(i64)
define i64 @g(i64 %x) {
  %p = alloca i64
  %y = call i64 @f(i64 %x)
  store i64 %y, ptr %p
  ret i64 7
}
"""


@both_ways
@both_orders
@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ((PRESERVING, caller("g", "f")), "its calling convention is preserve_mostcc, and its user calls it by that of C"),
        (("define double @f(double %x) {\n  ret double %x\n}\n", caller("g", "f")), "its parameter 1 is f64, and its user passes i64"),
        (("define void @f(i64 %x) {\n  ret void\n}\n", caller("g", "f")), "it returns void, and its user expects i64"),
        (
            ("@f = thread_local global i64 1\n", "@f = external global i64\ndefine ptr @g() {\n  ret ptr @f\n}\n"),
            "it is thread-local, and its user expects a variable that is not",
        ),
    ],
)  # fmt: skip
def test_members_use_one_another_by_the_types_of_definitions(
    cache: Cache, add: Add, order: int, codes: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SignatureMismatchError, match=message) as caught:
        add(cache, codes[::order])
    assert caught.value.func_name == "f"
    assert not cache.modules()


def test_untrusted_archives_are_checked_as_they_are(cache: Cache) -> None:
    with pytest.raises(SignatureMismatchError, match="preserve_mostcc"):
        add_archive(cache, (PRESERVING, caller("g", "f")), untrusted=True)


@both_ways
@both_orders
def test_what_old_c_does_on_purpose_is_accepted(cache: Cache, add: Add, order: int) -> None:
    with pytest.warns(CacheWarning, match="its parameter 1 is i8 signext, and its user passes i32") as warned:
        add(cache, (NARROW, WITHOUT_PROTOTYPE)[::order])
    assert [warning.filename for warning in warned] == [__file__]
    assert cache.get_target("g")(-3) == -3


@both_ways
@both_orders
def test_results_that_nothing_uses_need_not_exist(cache: Cache, add: Add, order: int) -> None:
    add(cache, ("define void @f(i64 %x) {\n  ret void\n}\n", KEEPING)[::order])
    assert cache.get_target("g")(1) == 7


@both_ways
@both_orders
@pytest.mark.parametrize("linkages", [*itertools.product(["", "extern_weak "], repeat=2)])
def test_what_one_member_promises_of_an_optional_function_is_not_valid_for_others(
    cache: Cache, add: Add, order: int, linkages: tuple[str, str]
) -> None:
    """The square root of a negative number sets `errno`, unless `-fno-math-errno` permits an instruction instead of the call."""
    quick = f"declare {linkages[0]}double @sqrt(double) memory(none) nounwind willreturn\ndefine double @quick(double %x) {{\n"
    quick += "  %r = call double @sqrt(double %x)\n  ret double %r\n}\n"
    careful = f"""\
@result = global double 0.0
declare ptr @__errno_location()
declare {linkages[1]}double @sqrt(double)
define i32 @careful(double %x) {{
  %p = call ptr @__errno_location()
  store i32 0, ptr %p
  %r = call double @sqrt(double %x)
  store double %r, ptr @result
  %e = load i32, ptr %p
  ret i32 %e
}}
"""
    add(cache, (quick, careful)[::order])
    assert cache.get_target("careful")(-4.0) == errno.EDOM


@both_ways
@pytest.mark.parametrize("needed", [False, True])
def test_a_function_is_optional_if_it_is_so_in_all_members(cache: Cache, add: Add, needed: bool) -> None:
    asking = "declare extern_weak i64 @nowhere(i64) nounwind\ndefine i1 @NAME() {\n  %r = icmp ne ptr @nowhere, null\n  ret i1 %r\n}\n"
    codes = tuple(asking.replace("NAME", name) for name in ("a", "b"))
    if needed:
        with pytest.raises((UndefinedSymbolError, ModulesNotAddedError), match="'nowhere', which neither"):
            add(cache, (*codes, caller("c", "nowhere")))
        return
    with pytest.warns(CacheWarning, match="weak references to 'nowhere' are null"):
        add(cache, codes)
    assert [cache.get_target(name)() for name in ("a", "b")] == [False, False]


@both_ways
@both_orders
@pytest.mark.parametrize("second_name", ["", "@hook = alias i64 (i64), ptr @f\n"], ids=["function", "alias"])
def test_an_optional_function_is_that_of_another_member(cache: Cache, add: Add, order: int, second_name: str) -> None:
    asking = "declare extern_weak i64 @hook(i64)\ndefine i1 @asks() {\n  %r = icmp ne ptr @hook, null\n  ret i1 %r\n}\n"
    add(cache, (asking + caller("use", "hook").partition("\n")[2], adder("f" if second_name else "hook", 5) + second_name)[::order])
    assert (cache.get_target("asks")(), cache.get_target("use")(1)) == (True, 6)


@both_ways
@pytest.mark.parametrize("linkage", ["", "extern_weak "])
def test_what_one_member_forbids_is_forbidden_for_all(
    cache: Cache, add: Add, linkage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbidden = ("", "returns_twice", "convergent nounwind", "noduplicate")
    codes = [
        f"declare {linkage}i32 @getppid() {words}\ndefine i32 @f{number}() {{\n  %r = call i32 @getppid()\n  ret i32 %r\n}}\n"
        for number, words in enumerate(forbidden)
    ]
    linked: list[str] = []
    emit = codegen.emit_object

    def spy(module: Any, machine: Any) -> bytes:
        linked.append(str(module))
        return emit(module, machine)

    monkeypatch.setattr(codegen, "emit_object", spy)
    add(cache, tuple(codes))
    (group,) = [line for line in lines_from(linked[-1], "attributes #") if "returns_twice" in line]
    assert {word for words in forbidden for word in words.split()} - {"nounwind"} <= {*group.split()}
    assert not declared_promises(linked[-1])["getppid"]
    assert cache.get_target("f0")() == os.getppid()
