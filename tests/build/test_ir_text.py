"""What is read off the code that LLVM prints, against what LLVM says of it."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from compcache import Cache, CompileError, ModuleSource
from compcache.build.ir_text import change_lines, find_extreme_construct, lines_from, long_lines, read_values

CODE = """
@0 = private constant i32 4
@copy = available_externally global i32 4
@absent = extern_weak global i32
@tentative = common global i32 0
@own = thread_local(initialexec) global i32 0
@elsewhere = external hidden global i32
@"odd = name" = weak_odr hidden unnamed_addr constant [2 x i8] c"@x"
@weak = weak dso_local global i32 1, section "a #1 hidden"
@"\22\22\22\22 = global x" = internal constant i8 0
@second = alias i32, ptr @tentative
%"hidden x@y" = type { i32, i32 }
declare extern_weak i32 @may_be()
declare hidden i32 @near()
declare void @described() section "a #0"
define protected fastcc %"hidden x@y" @structure(ptr %a) {
  ret %"hidden x@y" zeroinitializer
}
define weak void @1() {
  ret void
}
define linkonce_odr hidden noundef nonnull align 8 ptr @"q \\22r"() #0 {
  ret ptr null
}
define "key"="a@b #9" i32 @with_key() #0 {
  ret i32 0
}
define internal void @"define "() {
  ret void
}
attributes #0 = { nounwind "target-cpu"="x86-64" }
"""


def test_values_are_what_llvm_says() -> None:
    module = llvm.parse_assembly(CODE, llvm.create_context())
    values = read_values(str(module))
    for found, asked in ((values.functions, module.functions), (values.variables, module.global_variables)):
        expected = {(v.name, v.is_declaration, v.linkage.name, v.visibility.name == "hidden") for v in asked}
        assert {(v.name, v.is_declaration, v.linkage, v.is_hidden) for v in found} == expected
        assert len(found) == len(expected)


@pytest.mark.parametrize("name", ["plain", '"x) #1 "', '"#1"', '"\\22) #1"'])
def test_no_name_hides_the_attributes_of_a_function(cache: Cache, name: str) -> None:
    code = f"define void @{name}() #0 {{\n  ret void\n}}\ndefine void @other() #1 {{\n  ret void\n}}\n"
    groups = 'attributes #0 = { nounwind "target-cpu"="no-such-cpu" }\nattributes #1 = { nounwind }\n'
    with pytest.raises(CompileError, match="no-such-cpu"):
        cache.add_module(ModuleSource(code + groups, {"other": None}))


@pytest.mark.parametrize("text", ["", "@", "@a", "@a\n@b", "x\n@a\n\n@b\n@", "\n@a@b\n @c\n"])
def test_lines_are_found_by_their_start(text: str) -> None:
    expected = [line for line in text.split("\n") if line.startswith("@")]
    assert lines_from(text, "@") == expected
    changed = "\n".join([f"#{line}" if line.startswith("@") else line for line in text.split("\n")])
    assert change_lines(text, "@", lambda line: f"#{line}") == changed


@pytest.mark.parametrize("length", [2, 3, 8, 9])
def test_no_long_line_is_missed(length: int) -> None:
    sizes = [0, 1, length, 2, length - 1, 3 * length, 0, length + 1, 5, length]
    for start in range(length + 2):
        text = "\n".join(["x" * size for size in (start, *sizes)])
        found = {text[begin:end] for begin, end in long_lines(text, length)}
        assert found >= {line for line in text.split("\n") if len(line) >= length}
        assert found <= {*text.split("\n")}


#: How programs write types that LLVM accepts. `{0}` is the type, `{1}` its part.
SPELLINGS = {
    "as LLVM prints it": "%t{0} = type {{ %t{1} }}\n",
    "spaces": "  %t{0}  =  type  {{%t{1}}}\n",
    "no spaces": "%t{0}=type{{%t{1}}} ",
    "lines": "%t{0}\n=\ntype {{\ni8,\n%t{1}\n}}\n",
    "comments": '%t{0} = ; @a = type\n type {{ ; %u = "\n %t{1} }}\n',
    "quoted names": '%"@ = {0}" = type {{ i8, %"@ = {1}" }}\n',
    "names like words": "%define{0} = type {{ %define{1} }}\n",
    "after others": "%t{0} = type {{ %t{1} }} define %t{0} @f{0}() {{ ret %t{0} undef }} @g{0} = global %t{0} undef\n",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_deep_named_types_are_found_in_each_spelling(spelling: str) -> None:
    deep = "".join([SPELLINGS[spelling].format(number + 1, number) for number in range(1100)])
    assert find_extreme_construct(deep) == "a type or constant with more than 1000 levels of nesting"
    flat = "".join([SPELLINGS[spelling].format(number + 1, 0) for number in range(1100)])
    assert find_extreme_construct(flat) is None


def test_deep_types_are_found_in_what_llvm_prints() -> None:
    deep = "[1 x " * 1500 + "i8" + "]" * 1500
    text = "\n".join(["define void @f() {\n  ret void\n}"] * 50)
    for printed in (False, True):
        assert find_extreme_construct(text, printed=printed) is None
        assert find_extreme_construct(f"{text}\n@v = external global {deep}\n", printed=printed) is not None
        assert find_extreme_construct(f'{text}\n@v = constant [9 x i8] c"{"(" * 3000}"\n', printed=printed) is None
