"""Functions that use more of a processor than their module, by attributes of their own, and code that imports them."""

from __future__ import annotations

import faulthandler
import os
from typing import TYPE_CHECKING

import pytest
from hosts import host_like, on_host
from processes import in_fork

from compcache import Cache, ModuleSource, NotCachedError, UndefinedSymbolError
from compcache.formats.entry import STUB
from compcache.formats.host import platform_name

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")

OLD = "x86-64"
WIDE = """\
define void @wide(ptr %p) "target-features"="+avx512f" "min-legal-vector-width"="512" {
  %v = load <16 x i32>, ptr %p
  %w = add <16 x i32> %v, %v
  store <16 x i32> %w, ptr %p
  ret void
}
"""
ASKS = """\
declare void @wide(ptr)
define i64 @asks(i64 %x, i1 %can, ptr %p) {
  br i1 %can, label %yes, label %no
yes:
  call void @wide(ptr %p)
  ret i64 0
no:
  ret i64 %x
}
"""


def haswell(directory: Path, cpu: str = "haswell") -> Cache:
    return on_host(Cache(directory, retarget=False), host_like(cpu))


def test_a_check_of_the_processor_in_one_module_guards_a_function_of_another(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(WIDE, cpu=OLD), ModuleSource(ASKS, cpu=OLD)])
    with haswell(directory) as here:
        assert here.get_target("asks")(5, False, bytearray(64)) == 5
        with pytest.raises(NotCachedError, match="avx512f, which this haswell does not have"):
            here.get_target("wide")


def test_code_that_imports_such_a_function_is_added_where_it_cannot_run(directory: Path) -> None:
    with haswell(directory) as here:
        here.add_module(ModuleSource(WIDE, cpu=OLD))
        here.add_module(ModuleSource(ASKS, cpu=OLD))
        assert here.get_target("asks")(7, False, bytearray(64)) == 7


def test_a_stub_that_is_called_names_the_function_and_the_feature(directory: Path, tmp_path: Path) -> None:
    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(WIDE, cpu=OLD), ModuleSource(ASKS, cpu=OLD)])
    said = tmp_path / "said"

    def call() -> None:
        faulthandler.disable()
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
        with haswell(directory) as here:
            here.get_target("asks")(5, True, bytearray(64))

    status = in_fork(call)
    assert status != 0
    assert said.read_text().startswith("compcache: the call of wide requires CPU features that this processor lacks (avx512f")


def test_what_the_module_itself_was_compiled_for_is_not_optional(directory: Path) -> None:
    with Cache(directory) as cache:
        code = WIDE.replace("+avx512f", "+avx512f,+avx2").replace("<16 x i32>", "<8 x i32>").replace('512"', '256"')
        cache.add_module(ModuleSource(code, cpu="x86-64-v3"))
        cache.add_module(ModuleSource(ASKS, cpu=OLD))
    with haswell(directory, "nehalem") as here, pytest.raises(UndefinedSymbolError, match="wide"):
        here.get_target("asks")


def test_a_realization_that_can_run_is_preferred_to_a_stub(directory: Path) -> None:
    plain = "define void @wide(ptr %p) {\n  store i64 11, ptr %p\n  ret void\n}\n"
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(plain, cpu=OLD))
        cache.add_module(ModuleSource(WIDE, cpu=OLD))
        cache.add_module(ModuleSource(ASKS, cpu=OLD))
    buffer = bytearray(64)
    with haswell(directory) as here:
        assert here.get_target("asks")(5, True, buffer) == 0
    assert buffer[0] == 11


def test_functions_without_features_of_their_own_have_no_stub(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(WIDE.replace("+avx512f", "+sse2"), cpu=OLD))
        assert cache._store.read_entry(STUB, "wide") is None
        cache.add_module(ModuleSource(WIDE, cpu=OLD))
        assert cache._store.read_entry(STUB, "wide") is not None


def test_a_module_compiled_again_for_this_host_has_stubs_of_its_own(directory: Path) -> None:
    both = WIDE + ASKS.split("\n", 1)[1]
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(both.replace("define i64 @asks", "define i64 @alone"), cpu="skylake-avx512"))
        cache.add_module(ModuleSource(ASKS, cpu=OLD))
    with on_host(Cache(directory), host_like("haswell")) as here:
        assert here.get_target("alone")(4, False, bytearray(64)) == 4
        assert here.get_target("asks")(6, False, bytearray(64)) == 6


TABLE = """\
@wide_table = constant [1 x ptr] [ptr @wide]
"""
CHOOSES = """\
@wide_table = external constant [1 x ptr]
define i64 @asks(i64 %x, i1 %can, ptr %p) {
  br i1 %can, label %yes, label %no
yes:
  %f = load ptr, ptr @wide_table
  call void %f(ptr %p)
  ret i64 0
no:
  ret i64 %x
}
"""


def test_a_table_of_functions_for_a_newer_processor_can_be_used_by_code_that_asks(directory: Path) -> None:
    """As libsodium has them: who chooses the table has asked the processor."""
    table = TABLE + WIDE.replace("@wide(ptr %p)", "@wide(ptr %p) noinline")
    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(table, cpu=OLD), ModuleSource(CHOOSES, cpu=OLD)])
    with haswell(directory) as here:
        assert here.get_target("asks")(5, False, bytearray(64)) == 5
