"""What modules do not say about the calls of one another, in code that LLVM reads."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import pytest
from helpers import adder

from compcache import Cache, ModuleSource
from compcache.build import codegen
from compcache.build.merging import declared_promises, link_modules, plain_declarations, without_tbaa_of_calls

DECLARED = """\
%"a type" = type { i64, ptr }
declare nonnull ptr @place(ptr noalias noundef readonly captures(none), i64 range(i64 0, 9)) #0
declare void @passed(ptr sret([4 x i8]) align 4, ptr byval(%"a type") align 16, i16 noundef signext, ...)
declare fastcc nofpclass(nan inf) <4 x float> @"odd #7 (name"(ptr align 8 dereferenceable(4), x86_fp80, %"a type") #2
declare extern_weak i32 @optional(i32 returned) #0
declare hidden zeroext i8 @again(i32) local_unnamed_addr #1
declare double @llvm.sqrt.f64(double) #0
declare void @plain(ptr, i64)
attributes #0 = { memory(none) nounwind "target-cpu"="x86-64" }
attributes #1 = { nofree returns_twice "no-builtins" allocsize(0) }
attributes #2 = { cold }
"""
PLAIN = {
    "place": "declare ptr @place(ptr, i64)",
    "passed": "declare void @passed(ptr sret([4 x i8]), ptr byval({ i64, ptr }) align 16, i16 signext, ...)",
    "odd #7 (name": 'declare fastcc <4 x float> @"odd #7 (name"(ptr, x86_fp80, { i64, ptr })',
    "optional": "declare extern_weak i32 @optional(i32)",
    "again": 'declare hidden zeroext i8 @again(i32) local_unnamed_addr returns_twice "no-builtins"',
    "plain": "declare void @plain(ptr, i64)",
}


def test_declarations_say_how_a_function_is_called_and_what_is_forbidden() -> None:
    assert llvm.parse_assembly(DECLARED) is not None
    text = plain_declarations(DECLARED)
    assert text.split("\n") == list(PLAIN.values())
    assert llvm.parse_assembly(text) is not None


def test_promises_are_everything_else() -> None:
    group = ["memory(none)", "nounwind", '"target-cpu"="x86-64"']
    assert declared_promises(DECLARED) == {
        "place": ["nonnull", "noalias", "noundef", "readonly", "captures(none)", "range(i64 0, 9)", *group],
        "passed": ["align 4", "noundef"],
        "odd #7 (name": ["nofpclass(nan inf)", "align 8", "dereferenceable(4)", "cold"],
        "optional": ["returned", *group],
        "again": ["nofree", "allocsize(0)"],
        "plain": [],
    }


def test_of_several_modules_the_declarations_promise_nothing() -> None:
    other = '%"a type" = type { float }\ndeclare nonnull ptr @place(ptr, i64)\ndeclare %"a type" @new()\n'

    def link(context: Any) -> str:
        modules = [codegen.parse(text, context) for text in (DECLARED, other)]
        linked = link_modules([plain_declarations(str(module)) for module in [*modules, *modules]], modules, context)
        linked.verify()
        return str(linked)

    promises = declared_promises(codegen.run(link))
    assert set(promises) == {*PLAIN, "new"}
    assert not any(promises.values())


@pytest.mark.parametrize("order", [1, -1])
def test_a_function_is_necessary_where_one_module_needs_it(order: int) -> None:
    codes = ["declare void @f(i64)\n", "declare extern_weak void @f(i64) nounwind\n"]

    def link(context: Any) -> str:
        modules = [codegen.parse(text, context) for text in codes[::order]]
        return str(link_modules([plain_declarations(str(module)) for module in modules], modules, context))

    assert "declare void @f(i64)\n" in codegen.run(link)


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_forbidden_stands_before_the_section_of_a_declaration(order: int) -> None:
    """Clang writes `"no-builtins"` at declarations, and `__attribute__((section))` after it."""
    codes = [
        'declare i32 @hot(i32) local_unnamed_addr #0 section "x" align 16\nattributes #0 = { "no-builtins" nounwind }\n',
        "declare i32 @hot(i32) returns_twice\n",
    ]

    def link(context: Any) -> str:
        modules = [codegen.parse(text, context) for text in codes[::order]]
        return str(link_modules([plain_declarations(str(module)) for module in modules], modules, context))

    linked = codegen.run(link)
    assert "returns_twice" in linked
    assert '"no-builtins"' in linked
    assert "nounwind" not in linked


def test_a_structure_whose_name_contains_the_word_opaque_is_passed_by_value() -> None:
    code = "%opaque = type { i32 }\n%outer = type { %opaque, i32 }\ndeclare void @f(%outer) nounwind\n"
    assert plain_declarations(str(llvm.parse_assembly(code))) == "declare void @f({ { i32 }, i32 })"


def test_types_may_contain_any_number_of_types() -> None:
    depth = 500
    types = "".join(f"%t{number} = type {{ %t{number - 1}, i8 }}\n" for number in range(1, depth))
    (declared,) = plain_declarations(f"{types}%t0 = type {{ i64 }}\ndeclare nonnull ptr @f(ptr byval(%t{depth - 1}))\n").split("\n")
    assert declared == f"declare ptr @f(ptr byval({'{ ' * depth}i64{' }, i8' * (depth - 1)} }}))"


@pytest.mark.parametrize("group", [None, "together"])
def test_code_that_has_the_address_of_a_function_with_an_opaque_result_is_linked(cache: Cache, group: str | None) -> None:
    opaque = "%type = type opaque\ndeclare %type @abs()\n"
    using = """
@pointer = global ptr @abs
declare i64 @imported(i64)
define i64 @importing(i64 %x) {
  %y = call i64 @imported(i64 %x)
  ret i64 %y
}
"""
    cache.add_modules([ModuleSource(adder("imported", 7)), ModuleSource(opaque + using)], group=group)
    if group is None:
        assert cache.link(["importing"]).linked
    assert cache.get_target("importing")(1) == 8


@pytest.mark.parametrize("root", ["Flang function root _QPf", "Simple C/C++ TBAA"])
def test_types_of_one_call_are_removed_and_nothing_else(root: str) -> None:
    code = f"""
define i64 @f(ptr %p, ptr %q) {{
  store [14 x i8] c", !tbaa !0, !t", ptr %q, align 1, !tbaa !1, !nontemporal !4
  call void asm "# , !tbaa !1", ""(), !annotation !5
  %x = load i64, ptr %p, align 8, !tbaa !1, !noundef !6
  ret i64 %x
}}
!1 = !{{!2, !2, i64 0}}
!2 = !{{!"data", !3, i64 0}}
!3 = !{{!"{root}"}}
!4 = !{{i32 1}}
!5 = !{{!", !tbaa !1"}}
!6 = !{{}}
"""
    printed = str(llvm.parse_assembly(code))
    left = str(llvm.parse_assembly(without_tbaa_of_calls(printed)))
    assert ("load i64, ptr %p, align 8, !tbaa" in left) == root.startswith("Simple")
    assert left.count("!tbaa") == (5 if root.startswith("Simple") else 3)
    assert all(kept in left for kept in ('c", !tbaa !0, !t"', "!nontemporal", "!noundef", "!annotation"))
