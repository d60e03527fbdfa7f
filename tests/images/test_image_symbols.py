"""Symbols that neither LLVM nor another module defines: by assembly, by the linker, by the compiler's or a loaded library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import REFUSED_AS_OBJECT, constant, run_fresh, store_objects

from compcache import Cache, CompileError, ModuleSource
from compcache.formats.host import platform_name
from compcache.images.libraries import library_with, loaded_libraries
from compcache.images.platform_symbols import in_process, is_platform_symbol, versioned_name

if TYPE_CHECKING:
    from collections.abc import Callable

on_x86 = pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="has assembly of x86-64")

_REGISTRY = """\
%item = type { ptr, i64 }
@a = internal constant %item { ptr @provided, i64 1 }, section "registry"
@b = internal constant %item { ptr @own, i64 20 }, section "registry"
@llvm.used = appending global [2 x ptr] [ptr @a, ptr @b], section "llvm.metadata"
@__start_registry = external hidden constant i8
@__stop_registry = external hidden constant i8
declare i64 @provided(i64)
define internal i64 @own(i64 %x) {
  ret i64 %x
}
define i64 @count() {
  %n = sub i64 ptrtoint (ptr @__stop_registry to i64), ptrtoint (ptr @__start_registry to i64)
  %k = udiv i64 %n, 16
  ret i64 %k
}
define i64 @call_first(i64 %x) {
  %f = load ptr, ptr @__start_registry
  %y = call i64 %f(i64 %x)
  ret i64 %y
}
"""
_ASSEMBLY = """\
module asm ".text"
module asm ".globl by_assembly"
module asm ".type by_assembly,@function"
module asm "by_assembly: mov %rdi, %rax"
module asm " add kept_value(%rip), %rax; jmp inner"
module asm "inner: ret"
module asm ".size by_assembly, .-by_assembly"
@kept_value = global i64 5
declare i64 @by_assembly(i64)
define i64 @through(i64 %x) {
  %y = call i64 @by_assembly(i64 %x)
  %z = mul i64 %y, 2
  ret i64 %z
}
"""
_PIE = """\
@counter = dso_local thread_local global i64 3
define i64 @bump() {
  %v = load i64, ptr @counter
  %w = add i64 %v, 1
  store i64 %w, ptr @counter
  ret i64 %w
}
!llvm.module.flags = !{!0, !1}
!0 = !{i32 8, !"PIC Level", i32 2}
!1 = !{i32 7, !"PIE Level", i32 2}
"""


@pytest.fixture(params=["", "ld", "ld.lld", "mold"])
def linker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    import shutil

    if request.param and shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setenv("COMPCACHE_LINKER", request.param)
    return str(request.param)


@pytest.mark.usefixtures("linker")
def test_a_section_is_a_registry_whose_members_are_bound(cache: Cache) -> None:
    cache.add_module(ModuleSource("define i64 @provided(i64 %x) {\n  %y = add i64 %x, 100\n  ret i64 %y\n}\n"))
    cache.add_module(ModuleSource(_REGISTRY))
    assert cache.get_target("count")() == 2
    assert cache.get_target("call_first")(7) in (7, 107)
    assert cache.dependencies("call_first", transitive=True) == ("provided",)


def test_a_registry_needs_a_shared_object(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    store_objects(monkeypatch)
    with pytest.raises(CompileError, match=f"{REFUSED_AS_OBJECT}the bound '__start_registry' of a section"):
        cache.add_module(ModuleSource(_REGISTRY, imports=["provided"]))


@pytest.mark.slow
@on_x86
@pytest.mark.parametrize("names", [None, {"through": None, "by_assembly": "i64(i64)"}])
@pytest.mark.usefixtures("linker")
def test_a_function_of_top_level_assembly_is_one_of_the_module(cache: Cache, names: dict[str, str | None] | None) -> None:
    cache.add_module(ModuleSource(_ASSEMBLY, names))
    cache.add_module(
        ModuleSource("declare i64 @by_assembly(i64)\ndefine i64 @user(i64 %x) {\n  %y = call i64 @by_assembly(i64 %x)\n  ret i64 %y\n}\n")
    )
    assert cache.get_target("through")(1) == 12
    assert cache.get_target("by_assembly")(1) == 6
    assert cache.get_target("user")(2) == 7


@pytest.mark.slow
@on_x86
def test_assembly_without_a_linker(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPCACHE_LINKER", "none")
    cache.add_module(ModuleSource(_ASSEMBLY, {"through": None}))
    assert cache.get_target("through")(1) == 12


@pytest.mark.skipif(not versioned_name("__cpu_model"), reason="the compiler's library has no model of the CPU")
@pytest.mark.parametrize("choice", ["", "none"])
def test_the_compilers_model_of_the_cpu(cache: Cache, monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    if choice:
        monkeypatch.setenv("COMPCACHE_LINKER", choice)
    cache.add_module(ModuleSource("""\
@__cpu_model = external dso_local global { i32, i32, i32, [1 x i32] }
declare i32 @__cpu_indicator_init()
define i32 @features() {
  %ignored = call i32 @__cpu_indicator_init()
  %p = getelementptr i8, ptr @__cpu_model, i64 12
  %f = load i32, ptr %p
  ret i32 %f
}
"""))
    assert cache.get_target("features")() & 0b11111 == 0b11111  # cmov, mmx, popcnt, sse and sse2, of any CPU that is in use


@pytest.mark.usefixtures("linker")
def test_thread_local_variables_of_code_for_executables(cache: Cache) -> None:
    cache.add_module(ModuleSource(_PIE))
    bump = cache.get_target("bump")
    assert [bump(), bump()] == [4, 5]


_UNUSED = _ASSEMBLY.replace("call i64 @by_assembly(i64 %x)", "add i64 %x, 1")
_KEPT = '@keep = internal global i64 0\n@llvm.used = appending global [1 x ptr] [ptr @keep], section "llvm.metadata"\n'


@on_x86
@pytest.mark.parametrize("extra", ["", _KEPT], ids=["alone", "beside-others"])
@pytest.mark.parametrize("functions", [None, {"through": None, "by_assembly": "i64(i64)"}], ids=["all", "named"])
@pytest.mark.parametrize("group", [False, True], ids=["one", "group"])
def test_assembly_that_optimized_code_does_not_call_is_exported(
    cache: Cache, extra: str, functions: dict[str, str | None] | None, group: bool
) -> None:
    """LLVM removes declarations without uses."""
    source = ModuleSource(_UNUSED + extra, functions)
    cache.add_modules([source, ModuleSource(constant("other", 3))], group="both") if group else cache.add_module(source)
    assert cache.get_target("by_assembly")(4) == 9
    assert cache.get_target("through")(4) == 10


@pytest.mark.parametrize("find", [is_platform_symbol, in_process])
def test_names_that_no_library_can_have_are_not_found(find: Callable[[str], bool]) -> None:
    assert find("strlen")
    assert not any(map(find, ("strlen\0", "strlen\0rest", "strlen\udce9", "\ud800", "strlen_of_nothing", "")))


def test_a_library_that_the_process_has_loaded_needs_no_name(cache: Cache) -> None:
    if library_with("adler32", loaded_libraries()) is None:
        pytest.skip("nothing here has loaded zlib from the system's directories")
    source = """\
@text = private constant [3 x i8] c"abc"
declare i64 @adler32(i64, ptr, i32)
define i64 @sum() {
  %s = call i64 @adler32(i64 1, ptr @text, i32 3)
  ret i64 %s
}
"""
    cache.add_module(ModuleSource(source))
    script = "from compcache import Cache; import sys; result = Cache(directory).get_target('sum')(), 'zlib' in sys.modules"
    assert run_fresh(cache.path, script) == (0x024D0127, False)
