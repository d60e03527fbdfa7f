"""Shared objects that are written without a linker: they do what a linker's do, and what is not known is refused."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import struct
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from helpers import compile_object
from random_modules import random_module

from compcache.errors import FormatError, LinkerError
from compcache.formats.host import platform_name
from compcache.images import platform_symbols
from compcache.images.elf.exported import shared_library
from compcache.images.elf.parts import ET_DYN, names_and_sections, read_sections
from compcache.images.elf.reading import (
    dynamic_defined,
    dynamic_required,
    dynamic_undefined,
    needed_libraries,
    needed_versions,
    undefined_symbols,
)
from compcache.images.linkers.find import LINKER_VARIABLE, Linker, find_linker
from compcache.images.linkers.link import link_shared
from compcache.images.native_target import initialize
from compcache.images.shared import make
from compcache.images.writer.write import Provider, write_shared

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

on_x86 = pytest.mark.skipif(not platform_name().startswith("x86_64-linux"), reason="assembly of one architecture")


def written(*codes: str | bytes, optional: Collection[str] = (), imports: Collection[str] = (), libraries: tuple[str, ...] = ()) -> bytes:
    """The image that exports `check`, of assembly or objects."""
    return places_of(*codes, optional=optional, imports=imports, libraries=libraries)[0]


def places_of(
    *codes: str | bytes, optional: Collection[str] = (), imports: Collection[str] = (), libraries: tuple[str, ...] = ()
) -> tuple[bytes, dict[str, bytes]]:
    objects = [compile_object(code) if isinstance(code, str) else code for code in codes]
    symbols = {symbol for data in objects for symbol in undefined_symbols(data)}
    platform = sorted(symbol for symbol in symbols if platform_symbols.is_platform_symbol(symbol))
    paths = {symbol: path for path in libraries for symbol in sorted(symbols) if shared_library(path).version_of(symbol) is not None}
    image, places, libc = make.write(objects, export="check", optional=optional, platform=platform, named=paths, imports=imports)
    assert libc == make.requires(image)  # as it is read off images that others have made
    return image, places


def linked(*codes: bytes) -> bytes:
    """The same of objects by GNU's linker."""
    try:
        with mock.patch.dict(os.environ, {LINKER_VARIABLE: "ld"}):
            linker = find_linker()
    except LinkerError:
        linker = None
    if linker is None:
        pytest.skip("GNU ld is not installed")
    platform = [symbol for data in codes for symbol in undefined_symbols(data) if platform_symbols.is_platform_symbol(symbol)]
    return link_shared(linker, codes, export=["check"], libraries=platform_symbols.platform_paths(platform))


def run(image: bytes, result: Any = ctypes.c_int64) -> Any:
    """The function `check` of an image."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(image)
        file.flush()
        check = ctypes.CDLL(file.name).check
    check.restype = result
    return check


def compare(seed: int, size: int = 8) -> None:
    code = compile_object(random_module(seed, size=size).text)
    ours, theirs = run(written(code)), run(linked(code))
    assert [ours(), ours()] == [theirs(), theirs()], f"seed {seed}"


@pytest.mark.parametrize("seed", range(6))
def test_random_modules_compute_what_they_do_when_linked(seed: int) -> None:
    compare(seed)


@pytest.mark.stress
def test_many_random_modules_compute_what_they_do_when_linked() -> None:
    for seed in range(100, 1100):
        compare(seed, 4 + seed % 20)


def test_the_dynamic_linker_is_told_what_a_linker_tells_it() -> None:
    code = compile_object(random_module(3, size=12).text)
    ours, theirs = written(code), linked(code)
    assert dynamic_defined(ours) == dynamic_defined(theirs) == ("check",)
    assert {*dynamic_undefined(theirs)}.difference(dynamic_undefined(ours)) <= {"nobody_defines_this", "labs"}  # declared and not used
    assert sorted(dynamic_required(ours)) == sorted(dynamic_required(theirs))
    assert sorted(needed_libraries(ours)) == sorted(needed_libraries(theirs))
    assert needed_versions(ours) == {name: needed_versions(theirs)[name] for name in needed_versions(ours)}


def test_the_same_objects_give_the_same_bytes() -> None:
    code = compile_object(random_module(5).text)
    assert written(code) == written(code)


def test_versions_are_those_that_a_linker_binds() -> None:
    text = "declare ptr @memcpy(ptr, ptr, i64)\ndefine ptr @check(ptr %a, ptr %b) {\n  %r = call ptr @memcpy(ptr %a, ptr %b, i64 3)\n  ret ptr %r\n}\n"  # noqa: E501
    code = compile_object(text)
    assert needed_versions(written(code)) == needed_versions(linked(code)) != {}


def test_what_may_be_missing_is_null_and_needs_no_library() -> None:
    text = """\
declare extern_weak void @nobody_defines_this()
declare void @missing_here()
declare extern_weak i64 @labs(i64)
define i64 @check() {
  %a = icmp eq ptr @nobody_defines_this, null
  %b = icmp eq ptr @missing_here, null
  %c = icmp eq ptr @labs, null
  %x = select i1 %a, i64 1, i64 0
  %y = select i1 %b, i64 2, i64 0
  %z = select i1 %c, i64 4, i64 0
  %s = or i64 %x, %y
  %t = or i64 %s, %z
  ret i64 %t
}
"""
    image = written(text, optional=("missing_here",))
    assert run(image)() == 3
    assert needed_libraries(image) == ()
    with pytest.raises(OSError, match="missing_here"):
        run(written(text))


def test_places_of_imports_hold_their_addresses_once_they_are_filled_in() -> None:
    text = """\
declare i64 @imported(i64)
@table = global [2 x ptr] [ptr @imported, ptr getelementptr (i8, ptr @imported, i64 3)]
define i64 @check(i64 %n) {
  %p = getelementptr ptr, ptr @table, i64 %n
  %v = load i64, ptr %p
  ret i64 %v
}
define hidden i64 @call() {
  %v = call i64 @imported(i64 1)
  ret i64 %v
}
"""
    image, places = places_of(text, imports=("imported",))
    assert "imported" not in dynamic_undefined(image)
    check = run(image)
    address = ctypes.cast(check, ctypes.c_void_p).value or 0
    for at, addend in struct.iter_unpack("<qq", places["imported"]):
        ctypes.c_uint64.from_address(address + at).value = 5000 + addend
    assert [check(0), check(1)] == [5000, 5003]
    assert len(places["imported"]) == 3 * 16  # the entry of the global offset table, too


_THROWS = """\
@_ZTIi = external constant ptr
declare ptr @__cxa_allocate_exception(i64)
declare void @__cxa_throw(ptr, ptr, ptr)
declare ptr @__cxa_begin_catch(ptr)
declare void @__cxa_end_catch()
declare i32 @__gxx_personality_v0(...)
declare i32 @llvm.eh.typeid.for.p0(ptr)
define internal void @throw(i32 %x) noinline {
  %e = call ptr @__cxa_allocate_exception(i64 4)
  store i32 %x, ptr %e
  call void @__cxa_throw(ptr %e, ptr @_ZTIi, ptr null)
  unreachable
}
define i64 @check(i32 %x) personality ptr @__gxx_personality_v0 {
  invoke void @throw(i32 %x) to label %never unwind label %lands
never:
  ret i64 -1
lands:
  %l = landingpad { ptr, i32 } catch ptr @_ZTIi
  %e = extractvalue { ptr, i32 } %l, 0
  %p = call ptr @__cxa_begin_catch(ptr %e)
  %v = load i32, ptr %p
  call void @__cxa_end_catch()
  %w = sext i32 %v to i64
  ret i64 %w
}
"""


def test_exceptions_of_cpp_are_caught() -> None:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        pytest.skip("there is no libstdc++")
    assert library is not None
    path = _mapped("libstdc++.so.6")
    image = written(_THROWS, libraries=(path,))
    assert [run(image)(ctypes.c_int32(x)) for x in (42, -7)] == [42, -7]
    assert "libstdc++.so.6" in needed_libraries(image)
    assert needed_versions(image)["libstdc++.so.6"]


def _mapped(name: str) -> str:
    with open("/proc/self/maps") as maps:
        return next(line.split()[-1] for line in maps if name in line)


def test_unwinders_see_each_frame() -> None:
    """As many as with a linker, each in the functions of the image."""
    count = 8
    functions = "".join(
        f"define internal i32 @f{n}(ptr %b) noinline uwtable {{\n  %a = alloca [{16 * n + 16} x i8]\n  call void @keep(ptr %a)\n"
        f"  %v = call i32 @f{n + 1}(ptr %b)\n  call void @keep(ptr %a)\n  ret i32 %v\n}}\n"
        for n in range(count)
    )
    text = f"""\
declare i32 @backtrace(ptr, i32)
define internal void @keep(ptr %a) noinline {{
  store volatile i8 1, ptr %a
  ret void
}}
{functions}
define internal i32 @f{count}(ptr %b) noinline uwtable {{
  %n = call i32 @backtrace(ptr %b, i32 100)
  %m = add i32 %n, 0
  ret i32 %m
}}
define i32 @check(ptr %b) uwtable {{
  %v = call i32 @f0(ptr %b)
  ret i32 %v
}}
"""
    code = compile_object(text)
    depths = []
    for image in (written(code), linked(code)):
        frames = (ctypes.c_uint64 * 100)()
        check = run(image, ctypes.c_int32)
        depth = check(frames)
        start = ctypes.cast(check, ctypes.c_void_p).value or 0
        assert all(abs(address - start) < 0x1000 for address in frames[: count + 2])
        depths.append(depth)
    assert depths[0] == depths[1] > count + 2


def test_debuggers_see_functions_and_lines(tmp_path: Path) -> None:
    gdb = shutil.which("gdb")
    if gdb is None:
        pytest.skip("gdb is not installed")
    text = """\
define internal i64 @seen_by_debuggers(i64 %x) noinline !dbg !5 {
  %y = add i64 %x, 1, !dbg !8
  ret i64 %y, !dbg !8
}
define i64 @check(i64 %x) {
  %y = call i64 @seen_by_debuggers(i64 %x)
  ret i64 %y
}
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!3, !4}
!0 = distinct !DICompileUnit(language: DW_LANG_C99, file: !1, producer: "here", isOptimized: true, emissionKind: FullDebug, enums: !2)
!1 = !DIFile(filename: "seen.c", directory: "/nowhere")
!2 = !{}
!3 = !{i32 7, !"Dwarf Version", i32 5}
!4 = !{i32 2, !"Debug Info Version", i32 3}
!5 = distinct !DISubprogram(name: "seen_by_debuggers", scope: !1, file: !1, line: 17, type: !6, unit: !0, retainedNodes: !2, spFlags: DISPFlagDefinition)
!6 = !DISubroutineType(types: !7)
!7 = !{null}
!8 = !DILocation(line: 18, column: 3, scope: !5)
"""  # noqa: E501
    path = tmp_path / "image.so"
    path.write_bytes(written(text))
    command = [gdb, "-nx", "-batch", "-ex", "info line seen_by_debuggers", "-ex", "info symbol check", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert 'of "seen.c" starts at address' in shown
    assert "<seen_by_debuggers>" in shown
    assert "check in section .text" in shown


def test_objects_that_refer_to_each_other_become_one_image() -> None:
    first = "declare hidden i64 @second(i64)\ndefine i64 @check() {\n  %v = call i64 @second(i64 5)\n  ret i64 %v\n}\n"
    second = "@n = internal global i64 8, align 64\ndefine hidden i64 @second(i64 %x) {\n  %n = load i64, ptr @n\n  %y = mul i64 %x, %n\n  ret i64 %y\n}\n"  # noqa: E501
    assert run(written(first, second))() == 40
    with pytest.raises(FormatError, match="two objects define the symbol 'second'"):
        written(first, second, second)


def test_only_one_symbol_is_seen_and_no_page_is_both_written_and_run() -> None:
    image = written(random_module(4).text)
    assert dynamic_defined(image) == ("check",)
    (start,) = struct.unpack_from("<Q", image, 32)
    (number,) = struct.unpack_from("<H", image, 56)
    segments = [struct.unpack_from("<IIQQQQQQ", image, start + 56 * n) for n in range(number)]
    assert not [row for row in segments if row[1] & 3 == 3]
    for kind, _, offset, address, _, in_file, in_memory, alignment in segments:
        if kind == 1:
            assert offset % 0x1000 == address % 0x1000
            assert in_file <= in_memory
            assert alignment == 0x1000


def test_sections_of_a_name_are_registries_with_bounds() -> None:
    text = """\
@a = internal constant i64 3, section "registry"
@b = internal constant i64 4, section "registry"
@llvm.used = appending global [2 x ptr] [ptr @a, ptr @b], section "llvm.metadata"
@__start_registry = external hidden global i64
@__stop_registry = external hidden global i64
define i64 @check() {
  %s = sub i64 ptrtoint (ptr @__stop_registry to i64), ptrtoint (ptr @__start_registry to i64)
  %v = load i64, ptr @__start_registry
  %r = add i64 %s, %v
  ret i64 %r
}
"""
    assert run(written(text))() == 19


def test_large_constants_keep_their_section() -> None:
    text = '@c = constant [4 x i8] c"abcd", section "compcache.data.0"\ndefine i64 @check() {\n  %v = load i32, ptr @c\n  %w = zext i32 %v to i64\n  ret i64 %w\n}\n'  # noqa: E501
    image = written(text)
    assert run(image)() == int.from_bytes(b"abcd", "little")
    found = dict(names_and_sections(image, read_sections(image, ET_DYN)))["compcache.data.0"]
    assert image[found.offset : found.offset + found.size] == b"abcd"


_HOST = """\
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
  for (int i = 1; i < count; i++) {
    void *image = dlopen(names[i], RTLD_NOW);
    if (image == NULL) {
      printf("%s\\n", dlerror());
      return 1;
    }
    long (*check)(void) = (long (*)(void))dlsym(image, "check");
    const long first = check();
    printf("%ld %ld\\n", first, check());
  }
  return 0;
}
"""
#: What the C libraries of that architecture have had from the beginning.
_FIRST_VERSION = {name: Provider("libc.so.6", "GLIBC_2.17") for name in ("strlen", "abs", "memcpy", "labs")} | {
    name: Provider("libm.so.6", "GLIBC_2.17") for name in ("sin", "fabs")
}


@pytest.mark.peer
def test_random_modules_of_the_other_architecture_compute_what_they_do_when_linked(tmp_path: Path) -> None:
    tools = [shutil.which(name) for name in ("qemu-aarch64-static", "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-ld")]
    if not all(tools):
        pytest.skip("QEMU and a cross compiler (gcc-aarch64-linux-gnu) are not installed")
    qemu, compiler, linker = map(str, tools)
    (tmp_path / "host.c").write_text(_HOST)
    subprocess.run([compiler, "-o", tmp_path / "host", tmp_path / "host.c"], check=True)
    root = "/usr/aarch64-linux-gnu"
    paths = [f"{root}/lib/libm.so.6", f"{root}/lib/libc.so.6"]
    for seed in range(24):
        code = compile_object(random_module(seed).text, "aarch64-unknown-linux-gnu")
        image, *_ = write_shared([code], export="check", optional=(), imports=(), providers=_FIRST_VERSION)
        (tmp_path / f"written{seed}.so").write_bytes(image)
        theirs = link_shared(Linker((linker,), "test"), [code], export=["check"], libraries=paths)
        (tmp_path / f"linked{seed}.so").write_bytes(theirs)
    shown = []
    for kind in ("written", "linked"):
        files = [f"./{kind}{seed}.so" for seed in range(24)]
        done = subprocess.run([qemu, "-L", root, "./host", *files], cwd=tmp_path, capture_output=True, text=True, check=True)
        shown.append(done.stdout)
    assert shown[0] == shown[1]
    assert len(shown[0].splitlines()) == 24


def test_code_of_the_other_architecture_is_laid_out_and_branches_where_it_must() -> None:
    """Its instructions are read by hand: a call through the table of another image, and the address of a variable."""
    text = """\
@v = hidden global i64 77, align 64
declare void @other()
define i64 @check() {
  call void @other()
  %r = load i64, ptr @v
  ret i64 %r
}
"""
    code = compile_object(text, "aarch64-unknown-linux-gnu")
    image, *_ = write_shared([code], export="check", optional=("other",), imports=(), providers={})
    sections = dict(names_and_sections(image, read_sections(image, ET_DYN), every=True))
    addresses = {row[0]: row[3] for row in _section_rows(image)}
    words = struct.unpack_from("<8I", image, sections[".text"].offset)
    start = addresses[".text"]
    (at,) = [n for n, word in enumerate(words) if word >> 26 == 0b100101]
    distance = (words[at] & 0x3FFFFFF) - ((words[at] & 0x2000000) << 1)
    assert start + 4 * at + 4 * distance == addresses[".plt"]
    page = next((n, word) for n, word in enumerate(words) if word & 0x9F000000 == 0x90000000)
    pages = (page[1] >> 29 & 3) | (page[1] >> 5 & 0x7FFFF) << 2
    low = next(word >> 10 & 0xFFF for word in words if word >> 22 == 0b1111100101) * 8
    assert (start + 4 * page[0] & -0x1000) + 0x1000 * pages + low == addresses[".data"]
    stub = struct.unpack_from("<4I", image, sections[".plt"].offset)
    entry = (addresses[".plt"] & -0x1000) + 0x1000 * ((stub[0] >> 29 & 3) | (stub[0] >> 5 & 0x7FFFF) << 2) + 8 * (stub[1] >> 10 & 0xFFF)
    assert entry == addresses[".got"]
    assert addresses[".data"] % 0x10000 == sections[".data"].offset % 0x10000


def _section_rows(image: bytes) -> list[tuple[str, int, int, int]]:
    """Name, type, flags and address of each section."""
    sections = read_sections(image, ET_DYN)
    (start,) = struct.unpack_from("<Q", image, 40)
    names = [name for name, _ in names_and_sections(image, sections, every=True)]
    return [(name, *struct.unpack_from("<4xIQQ", image, start + 64 * number)) for number, name in enumerate(names)]


_FUNCTION = "define i64 @check() {\n  ret i64 1\n}\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (_FUNCTION.replace("check", "other"), "do not define the exported symbol 'check'"),
        ("define internal ptr @choose() {\n  ret ptr null\n}\n@f = ifunc i64 (), ptr @choose\n" + _FUNCTION, "the type 10,"),
        ('module asm ".section .rodata"\nmodule asm ".quad check"\n' + _FUNCTION, "read-only section"),
        ('@t = constant ptr @check, section ".rodata.own"\n@u = constant i64 1, section ".rodata"\n' + _FUNCTION, "have different flags"),
        ('@t = constant i64 1, section ".ctors"\n' + _FUNCTION, "section '.ctors'"),
        ('@t = constant i64 1, section ".unheard_of"\n' + _FUNCTION, "section '.unheard_of'"),
        ("@t = global i64 1, align 65536\n" + _FUNCTION, "the alignment 0x10000"),
        ("@e = external hidden global i64\ndefine i64 @check() {\n  %v = load i64, ptr @e\n  ret i64 %v\n}\n", "to symbol 4 of an object"),
        ("@e = external dso_local global i64\ndefine i64 @check() {\n  %v = load i64, ptr @e\n  ret i64 %v\n}\n", "to the symbol 'e'"),
        ("declare hidden i64 @h()\ndefine i64 @check() {\n  %v = call i64 @h()\n  ret i64 %v\n}\n", "to symbol 4 of an object"),
        ('module asm ".symver check, check@V1"\nmodule asm ".symver gone, gone@V1"\nmodule asm ".data"\nmodule asm ".quad gone"\n' + _FUNCTION, "gone@V1"),  # noqa: E501
        pytest.param('module asm ".section .data"\nmodule asm ".byte check-."\n' + _FUNCTION, "type 15", marks=on_x86),
        pytest.param('module asm ".section .note.GNU-stack,\\22x\\22"\n' + _FUNCTION, "GNU-stack", marks=on_x86),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(text: str, reason: str) -> None:
    initialize()  # what assembles
    with pytest.raises(FormatError, match=reason):
        written(text)


def test_a_distance_that_is_too_large_is_refused() -> None:
    text = "@big = internal global [3000000000 x i8] zeroinitializer\n@far = internal global i64 0\ndefine i64 @check() {\n  %v = load i64, ptr @far\n  ret i64 %v\n}\n"  # noqa: E501
    with pytest.raises(FormatError, match="too large"):
        written(text)


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.stress)])
def test_damaged_objects_raise_the_declared_error_alone(count: int) -> None:
    good = compile_object(random_module(2, size=4).text)
    choose = random.Random(count)
    refused = 0
    for _ in range(count):
        damaged = bytearray(good)
        for _ in range(choose.randrange(1, 6)):
            at = choose.choice((choose.randrange(len(good)), choose.randrange(64), len(good) - 1 - choose.randrange(1500)))
            damaged[at] = choose.choice((0, 1, 0x7F, 0xFF, choose.randrange(256)))
        cut = choose.choice((len(good), len(good), choose.randrange(len(good))))
        try:
            write_shared([bytes(damaged[:cut])], export="check", optional=(), imports=(), providers={"sin": Provider("m", "")})
        except FormatError:
            refused += 1
    assert refused > count // 10


def test_a_library_tells_the_version_of_a_symbol_by_the_table_that_a_linker_reads() -> None:
    path = platform_symbols.platform_path("libc.so.6")
    if path is None:
        pytest.skip("the C library is another one")
    library = shared_library(path)
    assert library.soname == "libc.so.6"
    assert library.version_of("nobody_defines_this") is None
    assert (library.version_of("puts") or "").startswith("GLIBC_2.")


def test_damaged_libraries_raise_the_declared_error_alone(tmp_path: Path) -> None:
    good = bytearray(linked(compile_object(random_module(1).text)))
    choose = random.Random(1)
    path = tmp_path / "library.so"
    for number in range(150):
        damaged = bytearray(good)
        for _ in range(4):
            damaged[choose.randrange(len(good))] = choose.randrange(256)
        path.with_name(str(number)).write_bytes(damaged)
        try:
            shared_library(str(path.with_name(str(number)))).version_of("check")
        except FormatError:
            continue
    path.write_bytes(b"")
    with pytest.raises(FormatError):
        shared_library(str(path))
