"""Uses of functions and variables that the printed code does not show: names in assembly, and calls that code generation adds.

Each test runs in a fresh process, because a use without its record crashes.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pytest
from helpers import run_fresh

from compcache import Cache, CompileError, ModulesNotAddedError, ModuleSource

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the assembly is for x86-64")

_HELPER = "define i64 @helper(i64 %x) {\n  ret i64 7\n}\n"
_DECLARED = (
    'declare i64 @helper(i64)\n@llvm.used = appending global [1 x ptr] [ptr @helper], section "llvm.metadata"\n'
)
_CALL = (
    '  %r = call i64 asm sideeffect "{}", '
    '"={{ax}},{{di}},~{{rcx}},~{{rdx}},~{{rsi}},~{{r8}},~{{r9}},~{{r10}},~{{r11}},~{{memory}}"(i64 %x)\n'
    "  ret i64 %r\n}}\n"
)
_F = "define i64 @f(i64 %x) {\n"
_INNER = "define i64 @inner(i64 %x) {\n  %r = call i64 @helper(i64 %x)\n  ret i64 %r\n}\ndeclare i64 @helper(i64)\n"
_HIDDEN = _INNER.replace("define i64 @inner", "define hidden i64 @inner")
_VALUE = '@value = external global i64\n@llvm.used = appending global [1 x ptr] [ptr @value], section "llvm.metadata"\n'
_LOAD = '  %p = call ptr asm sideeffect "{}", "={{ax}}"()\n  %r = load i64, ptr %p\n  ret i64 %r\n}}\n'
_MACROS = """\
module asm ".macro join x, y"
module asm "call \\\\x\\\\y\\\\()@PLT"
module asm ".endm"
module asm ".macro place x, y"
module asm "movq \\\\x\\\\y\\\\()@GOTPCREL(%rip), %rax"
module asm ".endm"
"""
_TABLE = """\
module asm ".section .data.rel.ro.table,\\22aw\\22"
module asm ".hidden table"
module asm "table: .quad helper"
@table = external global ptr
define i64 @f(i64 %x) {
  %p = load ptr, ptr @table
  %r = call i64 %p(i64 %x)
  ret i64 %r
}
"""
_GOTO = """\
define i64 @f(i64 %x) {
  callbr void asm sideeffect "call helper@PLT; leaq -3(%rax), %rdi; jmp ${0:l}", "!i,~{rax},~{rcx},~{rdx},~{rdi},~{rsi},~{r8},~{r9},~{r10},~{r11}"()
    to label %none [label %done]
none:
  ret i64 1
done:
  ret i64 7
}
"""  # noqa: E501
_SECTION = _F + (
    '  %p = call ptr asm sideeffect ".pushsection .data.rel.ro,\\22aw\\22\\0A9: .quad helper\\0A.popsection\\0Amovq 9b(%rip), $0", "=r"()\n'
    "  %r = call i64 %p(i64 %x)\n  ret i64 %r\n}\n"
)


@pytest.mark.parametrize(
    "code",
    [
        _F + _CALL.format("call helper@PLT") + _DECLARED,
        _F + _CALL.format("call inner@PLT") + _INNER,
        'module asm ".set other, helper"\n' + _F + _CALL.format("call other@PLT") + _DECLARED,
        'module asm ".set other, inner"\n' + _F + _CALL.format("call other@PLT") + _HIDDEN,
        _MACROS + _F + _CALL.format("join hel, per") + _DECLARED,
        _TABLE + _DECLARED,
        _GOTO + _DECLARED,
        _SECTION + _DECLARED,
        _F + _LOAD.format("movq value@GOTPCREL(%rip), $0") + _VALUE,
        _MACROS + _F + _LOAD.format("place va, lue") + _VALUE,
    ],
    ids=[
        "call", "call of an own function", "another name", "another name of an own function", "composed name", "table", "goto", "section",
        "variable", "composed variable",
    ],
)
@pytest.mark.parametrize("level", [0, 2])
def test_what_assembly_names_is_bound(tmp_path: Path, code: str, level: int) -> None:
    script = f"""
    from compcache import Cache, ModuleSource
    cache = Cache(directory)
    helper = ModuleSource({_HELPER!r} + "@value = global i64 7")
    cache.add_modules([helper, ModuleSource({code!r}, optimize={level})])
    result = [cache.get_target("f")(1)]
    cache.link(["f"])
    result.append(Cache(directory).get_target("f")(1))
    """
    assert run_fresh(tmp_path, script) == [7, 7]


def test_assembly_that_names_storage_receives_its_value(tmp_path: Path) -> None:
    code = _MACROS + _F + _LOAD.format("place va, lue") + _VALUE
    script = f"""
    from compcache import Cache, ModuleSource
    cache = Cache(directory)
    cache.add_module(ModuleSource({code!r}, globals={{"value": 7}}))
    result = cache.get_target("f")(1)
    """
    assert run_fresh(tmp_path, script) == 7


_COPY = """\
declare ptr @memset(ptr, i32, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
@data = internal global [64 x i8] zeroinitializer
@size = internal global i64 50
define i64 @f(i64 %size) {
  call void @llvm.memset.p0.i64(ptr @data, i8 9, i64 %size, i1 false)
  %v = load volatile i8, ptr @data
  %r = zext i8 %v to i64
  ret i64 %r
}
define i64 @written(i64 %size) {
  %z = call ptr @memset(ptr @data, i32 3, i64 %size)
  ret i64 %size
}
"""
_MEMSET = "define ptr @memset(ptr %d, i32 %c, i64 %n) {\n  store i8 77, ptr %d\n  ret ptr %d\n}\n"
_AT_START = """\
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @start, ptr null }]
define internal void @start() {
  %size = load volatile i64, ptr @size
  call void @llvm.memset.p0.i64(ptr @data, i8 9, i64 %size, i1 false)
  ret void
}
define i64 @started() {
  %v = load volatile i8, ptr @data
  %r = zext i8 %v to i64
  ret i64 %r
}
"""


@pytest.mark.parametrize("level", [0, 2])
def test_calls_that_code_generation_adds_are_bound(tmp_path: Path, level: int) -> None:
    script = f"""
    from compcache import Cache, ModuleSource
    cache = Cache(directory)
    source = ModuleSource({_COPY + _AT_START!r}, imports=["memset"], optimize={level})
    cache.add_modules([ModuleSource({_MEMSET!r}), source])
    result = cache.get_target("f")(50), Cache(directory).get_target("started")()
    """
    assert run_fresh(tmp_path, script) == (77, 77)


@pytest.mark.parametrize(
    "asm", ['.section .init_array,\\22aw\\22"\nmodule asm ".quad start', '.type start, @gnu_indirect_function"\nmodule asm "start: ret']
)
def test_assembly_that_runs_during_mapping_cannot_use_imports(tmp_path: Path, asm: str) -> None:
    code = (
        f'module asm "{asm}"\nmodule asm ".text"\n{_F}  ret i64 %x\n}}\n'
        "define void @start() {\n  %r = call i64 @helper(i64 1)\n  ret void\n}\ndeclare i64 @helper(i64)\n"
    )
    with pytest.raises((CompileError, ModulesNotAddedError), match="runs while the module is mapped"):
        Cache(tmp_path).add_modules([ModuleSource(_HELPER), ModuleSource(code)])


def test_assembly_in_a_section_with_a_similar_name_may_use_imports(tmp_path: Path) -> None:
    code = (
        'module asm ".section .init.text,\\22ax\\22"\nmodule asm ".globl begin"\nmodule asm "begin: jmp helper@PLT"\nmodule asm ".text"\n'
        "declare i64 @begin(i64)\ndeclare i64 @helper(i64)\ndefine i64 @f(i64 %x) {\n  %r = call i64 @begin(i64 %x)\n  ret i64 %r\n}\n"
        '@llvm.used = appending global [1 x ptr] [ptr @helper], section "llvm.metadata"\n'
    )
    script = f"""
    from compcache import Cache, ModuleSource
    cache = Cache(directory)
    cache.add_modules([ModuleSource({_HELPER!r}), ModuleSource({code!r})])
    result = cache.get_target("f")(1)
    """
    assert run_fresh(tmp_path, script) == 7


def test_instructions_and_registers_are_no_uses(tmp_path: Path) -> None:
    """Functions of other modules, which nobody has added, have their names."""
    names = ("add", "addq", "nop", "rcx", "f", "x10")
    uses = "".join(f"declare i64 @{name}(i64)\n" for name in names if name != "f") + (
        "define i64 @uses(i64 %x) {\n"
        + "".join(f"  %r{name} = call i64 @{name}(i64 %x)\n" for name in names)
        + "  ret i64 %radd\n}\n"
    )
    code = uses + _F + (
        '  %r = call i64 asm "jmp 1f; 2: nop\\0A1: addq $$0x10, $0\\0A\\09add %rcx, $0; sub %rcx, $0", "=r,0"(i64 %x)\n  ret i64 %r\n}\n'
    )
    script = f"""
    from compcache import Cache, ModuleSource
    cache = Cache(directory)
    cache.add_module(ModuleSource({code!r}, imports={[name for name in names if name != "f"]!r}))
    result = cache.get_target("f")(1)
    """
    assert run_fresh(tmp_path, script) == 17


def test_functions_with_assembly_keep_their_own_names(cache: Cache) -> None:
    """Each also knows all names in the assembly of its module, but these take no place in the graph."""
    names = [f"helper{number}" for number in range(20)]
    used = f'@llvm.used = appending global [20 x ptr] [{", ".join(f"ptr @{name}" for name in names)}], section "llvm.metadata"\n'
    code = "".join(
        f"define i64 @by_{name}(i64 %x) {{\n{_CALL.format(f'call {name}@PLT')}declare i64 @{name}(i64)\n" for name in names
    )
    cache.add_modules([ModuleSource(_HELPER.replace("helper", name)) for name in names])
    cache.add_module(ModuleSource(code + used, imports=names))
    assert {name: cache.dependencies(f"by_{name}", transitive=False) for name in names} == {name: (name,) for name in names}


@pytest.mark.parametrize(
    "code",
    [
        'module asm ".set other, helper"\n' + _F + _CALL.format("call other@PLT") + _DECLARED,
        'module asm ".set other, inner"\n' + _F + _CALL.format("call other@PLT") + _HIDDEN,
        'module asm ".macro other"\nmodule asm "call helper@PLT"\nmodule asm ".endm"\n' + _F + _CALL.format("other") + _DECLARED,
        _F + _CALL.format("jmp there") + "define i64 @g(i64 %x) {\n" + _CALL.format("/* here */ there: call helper@PLT") + _DECLARED,
    ],
    ids=["another name", "another name of an own function", "macro", "label"],
)
def test_dependencies_include_what_other_parts_of_the_assembly_name(cache: Cache, code: str) -> None:
    cache.add_module(ModuleSource(_HELPER))
    cache.add_module(ModuleSource(code, imports=["helper"]))
    assert cache.dependencies("f", transitive=True)[-1:] == ("helper",)


def test_text_that_mentions_assembly_often_takes_little_memory(tmp_path: Path) -> None:
    script = """
    import resource
    from compcache import Cache, ModuleSource
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    text = "a keyword is asm , and so on " * 30_000
    code = f'@text = constant [{len(text)} x i8] c"{text}"\\ndefine ptr @f() {{\\n  ret ptr @text\\n}}\\n'
    Cache(directory).add_module(ModuleSource(code))
    result = Cache(directory).has("f")
    """
    assert run_fresh(tmp_path, script)


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("as_object", [False, True])
def test_calls_that_code_generation_adds_find_a_function_of_the_source(tmp_path: Path, level: int, as_object: bool) -> None:
    code = "declare double @fmod(double, double)\n" + "".join(
        f"define double @{name}(double %x, double %y) {{\n  %r = {operation}double {end}\n  ret double %r\n}}\n"
        for name, operation, end in (("added", "frem ", "%x, %y"), ("written", "call ", "@fmod(double %x, double %y)"))
    )
    script = f"""
    from compcache import Cache, ModuleSource, globals
    import compcache.images.making
    if {as_object}:
        compcache.images.making.makes_shared_objects = lambda: False
    cache = Cache(directory)
    source = ModuleSource({code!r}, globals={{"fmod": globals.NativeSymbol("pow", "libm.so.6")}}, optimize={level})
    cache.add_module(source)
    result = cache.get_target("added")(2.0, 3.0) in (2.0, 8.0), Cache(directory).get_target("written")(2.0, 3.0)
    """
    assert run_fresh(tmp_path, script, COMPCACHE_LINKER="none") == (True, 8.0)
