"""Which names an edit changes: those of the functions that reach what was edited, and of those that share a state with them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from helpers import adder
from helpers import caller as with_declaration

from compcache import Function, ModuleSource
from compcache.content.names import seal
from compcache.globals import NativeSymbol, Pickled
from compcache.miss.name_source import name_source

F = adder("f", 1)
G = adder("g", 2)
COUNTER = "@counter = internal global i64 0\n"


def caller(name: str, callee: str, plus: int = 0) -> str:
    return with_declaration(name, callee, plus=plus).partition("\n")[2]


def counting(name: str, variable: str = "counter", by: int = 1) -> str:
    used = f"ptr @{variable}"
    return f"define i64 @{name}() {{\n%v = load i64, {used}\n%w = add i64 %v, {by}\nstore i64 %w, {used}\nret i64 %w\n}}\n"


def reading(name: str, variable: str) -> str:
    return f"define i64 @{name}() {{\n%v = load i64, ptr @{variable}\nret i64 %v\n}}\n"


def address(name: str, of: str) -> str:
    return f"define ptr @{name}() {{\nret ptr @{of}\n}}\n"


def with_attributes(words: str) -> str:
    return f"define i64 @f(i64 %x) #0 {{\nret i64 %x\n}}\nattributes #0 = {{ {words} }}\n"


def with_branch(weights: str) -> str:
    return f"""
define i64 @f(i1 %x) {{
br i1 %x, label %a, label %b, !prof !0
a:
ret i64 1
b:
ret i64 2
}}
!0 = !{{!"branch_weights", {weights}}}
"""


def with_types(fields: str, name: str = "f") -> str:
    return f"%T = type {{ {fields} }}\ndefine ptr @{name}(ptr %p) {{\n%q = getelementptr %T, ptr %p, i64 1\nret ptr %q\n}}\n"


#: Two loops that say of memory accesses that they may be done in parallel: of `helper`'s, where the group is the same.
PARALLEL = """
define void @helper(ptr %p) alwaysinline {{
store i32 1, ptr %p, !llvm.access.group !0
ret void
}}
define void @f(ptr %p, i64 %n) {{
entry:
br label %loop
loop:
%i = phi i64 [ 0, %entry ], [ %j, %loop ]
call void @helper(ptr %p), !llvm.access.group !{group}
%j = add i64 %i, 1
%c = icmp eq i64 %j, %n
br i1 %c, label %done, label %loop, !llvm.loop !2
done:
ret void
}}
!0 = distinct !{{}}
!1 = distinct !{{}}
!2 = distinct !{{!2, !3}}
!3 = !{{!"llvm.loop.parallel_accesses", !{group}}}
"""

SCOPES = """
define i64 @f(ptr %a, ptr %b) {{
%x = load i64, ptr %a, !alias.scope !{first}
store i64 1, ptr %b, !noalias !{second}
%y = load i64, ptr %a
%z = add i64 %x, %y
ret i64 %z
}}
!0 = distinct !{{!0, !"domain"}}
!1 = distinct !{{!1, !0}}
!2 = distinct !{{!2, !0}}
!3 = !{{!1}}
!4 = !{{!2}}
"""


CONSTRUCTORS = "@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 1, ptr @start, ptr null }]\n"
START = "define internal void @start() {{\nstore i64 {}, ptr @counter\nret void\n}}\n"
TIES = "define void @h() {\n%a = call i64 @f()\n%b = call i64 @g()\nret void\n}\n"


class Edit(NamedTuple):
    """A source before and after an edit, and the functions that have another name then; all others have the same."""

    before: Any
    after: Any
    renamed: str


CONSTANT = '@text = private unnamed_addr constant [2 x i8] c"a\\00"\n'
UNNAMED = "@0 = private unnamed_addr constant i64 7\n@1 = private unnamed_addr constant i64 8\n"
NUMBERED = "@0 = private global i64 0\n@1 = private global i64 0\n"
SECOND = UNNAMED.replace("@1", "@2").replace("@0", "@1")
INTERNAL = adder("helper", 5).replace("define", "define internal")
EDITS: dict[str, Edit] = {
    "nothing": Edit(F + G, F + G, ""),
    "the other function": Edit(F + G, F + adder("g", 3), "g"),
    "a comment": Edit(F + G, "; what f does\n" + F + G.replace("ret", "; done\n ret"), ""),
    "the order": Edit(F + G, G + F, ""),
    "a function more": Edit(F, F + G, ""),
    "a helper that nobody calls": Edit(F, F + INTERNAL, ""),
    "the layout of the text": Edit(F, F.replace("\n", "\n   "), ""),
    "a local name": Edit(F, F.replace("%x", "%other"), "f"),
    "a string with a semicolon": Edit(
        '@text = constant [2 x i8] c";a"\n' + address("f", "text"), '@text = constant [2 x i8] c";b"\n' + address("f", "text"), "f"
    ),
    "a callee": Edit(caller("f", "helper") + INTERNAL + G, caller("f", "helper") + INTERNAL.replace("5", "6") + G, "f"),
    "a callee of a callee": Edit(
        caller("f", "middle") + caller("middle", "helper").replace("define", "define internal") + INTERNAL + G,
        caller("f", "middle") + caller("middle", "helper").replace("define", "define internal") + INTERNAL.replace("5", "6") + G,
        "f",
    ),
    "one of a cycle": Edit(
        caller("f", "g") + caller("g", "f") + adder("h", 1), caller("f", "g") + caller("g", "f", plus=2) + adder("h", 1), "f g"
    ),
    "a declared function's type": Edit(
        "declare i64 @e(i64)\n" + caller("f", "e") + G,
        "declare i64 @e(i64) readnone\n" + caller("f", "e") + G,
        "f",
    ),
    # what LLVM numbers through the module
    "a number of attributes": Edit(
        with_attributes("nounwind"),
        "define i64 @a(i64 %x) #0 {\nret i64 %x\n}\nattributes #0 = { cold }\n"
        + with_attributes("nounwind").replace("#0", "#1"),
        "",
    ),
    "an attribute": Edit(with_attributes("nounwind") + G, with_attributes("nounwind cold") + G, "f"),
    "an attribute with a value": Edit(with_attributes('"a"="1"') + G, with_attributes('"a"="2"') + G, "f"),
    "a number of metadata": Edit(
        with_branch("i32 1, i32 2"),
        with_branch("i32 1, i32 2").replace("!0", "!1")
        + "define void @a() {\nret void, !other !0\n}\n!0 = !{i32 1}\n",
        "",
    ),
    "metadata": Edit(with_branch("i32 1, i32 2") + G, with_branch("i32 1, i32 3") + G, "f"),
    "which scope of two that are alike": Edit(SCOPES.format(first=3, second=4), SCOPES.format(first=3, second=3), "f"),
    "which group, told by a callee": Edit(PARALLEL.format(group=0), PARALLEL.format(group=1), "f helper"),
    "a flag of the module": Edit(
        F + '!llvm.module.flags = !{!0}\n!0 = !{i32 1, !"wchar_size", i32 4}\n',
        F + '!llvm.module.flags = !{!0}\n!0 = !{i32 1, !"wchar_size", i32 2}\n',
        "f",
    ),
    "a number of a constant": Edit(
        UNNAMED + reading("f", "1"), "@0 = private unnamed_addr constant i64 9\n" + SECOND + reading("f", "2") + reading("a", "0"), ""
    ),
    "which constant without a name": Edit(UNNAMED + reading("f", "0"), UNNAMED + reading("f", "1"), "f"),
    "which variable without a name": Edit(
        NUMBERED + counting("f", "0") + reading("g", "0"), NUMBERED + counting("f", "0") + reading("g", "1"), "f g"
    ),
    "a constant of a constant": Edit(
        UNNAMED + "@t = private unnamed_addr constant ptr @0\n" + address("f", "t") + G,
        UNNAMED + "@t = private unnamed_addr constant ptr @1\n" + address("f", "t") + G,
        "f",
    ),
    # types
    "a type": Edit(with_types("i64") + G, with_types("i64, i8") + G, "f"),
    "another type": Edit(
        with_types("i64"), "%S = type { i8 }\n" + with_types("i64") + "define void @a(ptr byval(%S) %p) {\nret void\n}\n", ""
    ),
    "a type in a type": Edit(
        "%S = type { i8 }\n" + with_types("%S, i64") + G, "%S = type { i16 }\n" + with_types("%S, i64") + G, "f"
    ),
    "a type without a name": Edit(
        with_types("i64").replace("%T", "%0").replace("%q", "%b"), with_types("i32").replace("%T", "%0").replace("%q", "%b"), "f"
    ),
    # variables
    "a constant that one uses": Edit(CONSTANT + address("f", "text") + G, CONSTANT.replace('c"a', 'c"b') + address("f", "text") + G, "f"),
    "a constant that two use": Edit(
        CONSTANT + address("f", "text") + address("g", "text"), CONSTANT + address("f", "text") + address("h", "text"), ""
    ),
    "a constant with an address of its own": Edit(
        CONSTANT.replace("unnamed_addr ", "") + address("f", "text") + address("g", "text"),
        CONSTANT.replace("unnamed_addr ", "") + address("f", "text") + address("g", "text") + address("h", "text"),
        "f g",
    ),
    "a constant's address by half": Edit(
        CONSTANT.replace("unnamed_addr", "local_unnamed_addr") + address("f", "text"),
        CONSTANT.replace("unnamed_addr", "local_unnamed_addr") + address("f", "text") + address("h", "text"),
        "f",
    ),
    "what a variable is at first": Edit(COUNTER + counting("f") + G, COUNTER.replace("0", "1") + counting("f") + G, "f"),
    "who else counts": Edit(COUNTER + counting("f") + G, COUNTER + counting("f") + counting("h", by=2) + G, "f"),
    "by how much another counts": Edit(
        COUNTER + counting("f") + counting("g"), COUNTER + counting("f") + counting("g", by=2), "f g"
    ),
    "who counts elsewhere": Edit(
        COUNTER + "@other = internal global i64 0\n" + counting("f") + counting("g", "other"),
        COUNTER + "@other = internal global i64 0\n" + counting("f") + counting("g", "other", 2),
        "g",
    ),
    "a variable that is reached through others": Edit(
        COUNTER + "@p = internal unnamed_addr constant ptr @counter\n" + address("f", "p") + counting("g") + adder("h", 1),
        COUNTER + "@p = internal unnamed_addr constant ptr @counter\n" + address("f", "p") + counting("g", by=2) + adder("h", 1),
        "f g",
    ),
    "two variables that a third function ties": Edit(
        COUNTER + "@b = internal global i64 0\n" + counting("f") + counting("g", "b") + TIES,
        COUNTER + "@b = internal global i64 0\n" + counting("f") + counting("g", "b", 2) + TIES,
        "f g h",
    ),
    "two variables that nothing ties": Edit(
        COUNTER + "@b = internal global i64 0\n" + counting("f") + counting("g", "b") + counting("h"),
        COUNTER + "@b = internal global i64 0\n" + counting("f") + counting("g", "b", 2) + counting("h"),
        "g",
    ),
    "a variable of the thread": Edit(
        COUNTER.replace("global", "thread_local unnamed_addr constant") + address("f", "counter"),
        COUNTER.replace("global", "thread_local unnamed_addr constant") + address("f", "counter") + address("h", "counter"),
        "f",
    ),
    # functions whose address is taken are one
    "who takes an address": Edit(
        address("f", "helper") + INTERNAL + G, address("f", "helper") + address("h", "helper") + INTERNAL + G, "f"
    ),
    "who calls what another takes the address of": Edit(
        caller("f", "helper") + INTERNAL + G, caller("f", "helper") + address("h", "helper") + INTERNAL + G, "f"
    ),
    "a call with an address": Edit(
        "declare void @e(ptr)\ndefine void @f() {\ncall void @e(ptr @helper)\nret void\n}\n" + caller("g", "helper") + INTERNAL,
        "declare void @e(ptr)\ndefine void @f() {\ncall void @e(ptr null)\nret void\n}\n" + caller("g", "helper") + INTERNAL,
        "f g",
    ),
    # linkage
    "the linkage of a callee": Edit(
        caller("f", "helper") + INTERNAL, caller("f", "helper") + INTERNAL.replace("internal", "linkonce_odr"), "f"
    ),
    "the linkage of a function": Edit(F + G, F.replace("define", "define weak_odr") + G, "f"),
    "the kind of a group": Edit(
        "$f = comdat any\n" + F.replace("{", "comdat {", 1), "$f = comdat largest\n" + F.replace("{", "comdat {", 1), "f"
    ),
    # what concerns a module as a whole
    "the platform": Edit(F, 'target datalayout = "e"\n' + F, "f"),
    "assembly beside the functions": Edit(F + G, 'module asm ".set a, 1"\n' + F + G, "f g"),
    "a constructor": Edit(
        CONSTRUCTORS + COUNTER + START.format(1) + F,
        CONSTRUCTORS + COUNTER + START.format(2) + F,
        "f",
    ),
    "who else uses a section": Edit(
        '@a = internal global i64 1, section "mine"\n@__start_mine = external global i64\n' + reading("f", "__start_mine") + G,
        '@a = internal global i64 2, section "mine"\n@__start_mine = external global i64\n' + reading("f", "__start_mine") + G,
        "f g",
    ),
    "what a section has, of functions": Edit(
        "@__start_mine = external global i64\n" + reading("f", "__start_mine") + G.replace("{", 'section "mine" {'),
        "@__start_mine = external global i64\n" + reading("f", "__start_mine") + adder("g", 9).replace("{", 'section "mine" {'),
        "f g",
    ),
    "a comment of a module with assembly": Edit('module asm ".set a, 1"\n' + F, '; x\nmodule asm ".set a, 1" ; y\n' + F, ""),
    "what assembly in a function names": Edit(
        COUNTER + 'define i64 @f() {\n%v = call i64 asm "movq counter, $0", "=r"()\nret i64 %v\n}\n' + counting("g"),
        COUNTER + 'define i64 @f() {\n%v = call i64 asm "movq counter, $0", "=r"()\nret i64 %v\n}\n' + counting("g", by=2),
        "f g",
    ),
    "an alias": Edit("@a = alias i64 (i64), ptr @f\n" + F + G, "@a = alias i64 (i64), ptr @f\n" + adder("f", 3) + G, "a f"),
    "a second alias": Edit(
        "@a = alias i64 (i64), ptr @f\n" + F + G, "@a = alias i64 (i64), ptr @f\n@b = alias i64 (i64), ptr @f\n" + F + G, "a f"
    ),
    # what the source says beside the code
    "a signature": Edit(ModuleSource(F + G, {"f": "i64(i64)", "g": None}), ModuleSource(F + G, {"f": "u64(i64)", "g": None}), "f"),
    "the lock": Edit(ModuleSource(F + G, {"f": None, "g": None}), ModuleSource(F + G, {"f": Function(nogil=True), "g": None}), "f"),
    "a symbol": Edit(
        ModuleSource(F + G + adder("h", 3), {"f": Function(symbol="g"), "g": None}),
        ModuleSource(F + G + adder("h", 3), {"f": Function(symbol="h"), "g": None}),
        "f",
    ),
    "which functions": Edit(ModuleSource(F + G, {"f": None}), ModuleSource(F + G, {"f": None, "g": None}), ""),
    "which functions, of those that share": Edit(
        ModuleSource(COUNTER + counting("f") + counting("g"), {"f": None}),
        ModuleSource(COUNTER + counting("f") + counting("g"), {"f": None, "g": None}),
        "f",
    ),
    "the level": Edit(ModuleSource(F + G), ModuleSource(F + G, optimize=1), "f g"),
    "an import": Edit(
        ModuleSource(with_declaration("f", "e") + G, imports={"e": "one"}),
        ModuleSource(with_declaration("f", "e") + G, imports={"e": "two"}),
        "f",
    ),
    "what is stored with functions": Edit(ModuleSource(F, entries={"types": b"1"}), ModuleSource(F, entries={"types": b"2"}), "f"),
    "what they are parts of": Edit(ModuleSource(F), ModuleSource(F, part_of="whole"), "f"),
    "an import for nothing": Edit(ModuleSource(F + G), ModuleSource(F + G, imports={"e": "two"}), "f g"),
    "a value": Edit(
        ModuleSource("@v = external global i64\n" + reading("f", "v") + G, globals={"v": 1}),
        ModuleSource("@v = external global i64\n" + reading("f", "v") + G, globals={"v": 2}),
        "f",
    ),
    "who else calls a callback": Edit(
        ModuleSource(with_declaration("f", "e"), globals={"e": Pickled.of(len)}),
        ModuleSource(with_declaration("f", "e") + caller("h", "e"), globals={"e": Pickled.of(len)}),
        "f",
    ),
    "who else calls a native callback": Edit(
        ModuleSource(with_declaration("f", "e"), globals={"e": NativeSymbol("labs")}),
        ModuleSource(with_declaration("f", "e") + caller("h", "e"), globals={"e": NativeSymbol("labs")}),
        "",
    ),
    "what an archive may call": Edit(
        ModuleSource(F + G, archives=["libnone.a"]), ModuleSource(F + adder("g", 9), archives=["libnone.a"]), "f g"
    ),
    "what an archive among libraries may call": Edit(
        ModuleSource(F + G, libraries="./libnone.a"), ModuleSource(F + adder("g", 9), libraries="./libnone.a"), "f g"
    ),
    "who else uses a value": Edit(
        ModuleSource("@v = external global i64\n" + counting("f", "v") + G, globals={"v": 1}),
        ModuleSource("@v = external global i64\n" + counting("f", "v") + G + counting("h", "v"), globals={"v": 1}),
        "f",
    ),
}


def names_of(source: Any) -> dict[str, str]:
    return name_source(seal(source)).names


@pytest.mark.slow
@pytest.mark.parametrize("what", EDITS)
@pytest.mark.parametrize("backwards", [False, True], ids=["done", "undone"])
def test_an_edit_renames_who_reaches_it(what: str, backwards: bool) -> None:
    edit = EDITS[what]
    before, after = names_of(edit.after if backwards else edit.before), names_of(edit.before if backwards else edit.after)
    both = before.keys() & after.keys()
    assert {name for name in both if before[name] != after[name]} == set(edit.renamed.split()) & both
    assert set(edit.renamed.split()) <= both
