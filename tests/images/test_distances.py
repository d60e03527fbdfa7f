"""The table that is added to an object: linkers and the writer see it as if the compiler had made it."""

from __future__ import annotations

import ctypes
import random
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest
from helpers import compile_object
from test_writer import linked, on_x86, run, written

from compcache.arch.known import KNOWN, architecture
from compcache.errors import CompileError, FormatError
from compcache.formats.host import platform_name
from compcache.images.elf.distances import DistanceTable, with_distances
from compcache.images.elf.parts import ET_DYN, ET_REL, names_and_sections, read_sections
from compcache.images.elf.reading import undefined_symbols
from compcache.images.writer.write import write_shared

if TYPE_CHECKING:
    from pathlib import Path

    from compcache.arch.architecture import Architecture

_CODE = """\
@hidden = hidden global i64 5
@"odd name\\\\ü" = hidden constant [3 x i64] [i64 1, i64 2, i64 3]
define hidden i64 @first() {
  ret i64 1
}
define hidden i64 @second() {
  %v = load i64, ptr @hidden
  ret i64 %v
}
"""
_ELSEWHERE = "define hidden i64 @elsewhere() {\n  ret i64 9\n}\n"
_HEAD = b"A TABLE. AND IT HAS A BEGINNING."
_NAMES = ("first", "hidden", "elsewhere", "second", "odd name\\ü", "first")
_DISTANCE = architecture(platform_name()).relocations.distance or 0


def with_table(code: str | bytes = _CODE, names: tuple[str, ...] = _NAMES) -> bytes:
    """The object with a table, as a linker gets it."""
    return with_distances(compile_object(code) if isinstance(code, str) else code, DistanceTable("check", _HEAD, names, _DISTANCE))


def offsets(image: bytes, count: int) -> tuple[int, tuple[int, ...]]:
    """Where the table is in memory, and what it holds."""
    start = ctypes.cast(run(image), ctypes.c_void_p).value or 0
    assert start % 16 == 0
    content = ctypes.string_at(start, len(_HEAD) + 4 * count)
    assert content[: len(_HEAD)] == _HEAD
    return start, struct.unpack(f"<{count}i", content[len(_HEAD) :])


def test_the_table_holds_the_distance_of_each_symbol() -> None:
    start, found = offsets(written(with_table(), compile_object(_ELSEWHERE)), len(_NAMES))
    places = dict(zip(_NAMES, [start + distance for distance in found], strict=True))
    assert found[0] == found[-1]
    results = [ctypes.CFUNCTYPE(ctypes.c_int64)(places[name])() for name in ("first", "second", "elsewhere")]
    assert results == [1, 5, 9]
    ctypes.c_int64.from_address(places["hidden"]).value = 77
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(places["second"])() == 77
    assert list((ctypes.c_int64 * 3).from_address(places["odd name\\ü"])) == [1, 2, 3]


def test_a_load_finds_the_table_beside_the_headers() -> None:
    """A page of code or constants that a load reads would be a page of each process."""
    code = "@v = hidden global i64 0\n@constants = constant [2000 x i64] [" + ", ".join(["i64 7"] * 2000) + "]\n"
    code += "define ptr @first() {\n" + "  store volatile i64 1, ptr @v\n" * 2000 + "  ret ptr @constants\n}\n"
    table = DistanceTable("check", _HEAD, ("first",), _DISTANCE, ("first",))
    image, *_ = write_shared([compile_object(code)], export="check", optional=(), imports=(), providers={}, table=table)
    assert image.index(_HEAD) < 4096 < len(image) // 8


@pytest.mark.parametrize("names", [_NAMES, ("elsewhere",), ()])
def test_the_writer_adds_what_it_would_find_in_the_file(names: tuple[str, ...]) -> None:
    """All sections are the same but those that name symbols and sections."""
    codes = compile_object(_CODE), compile_object(_ELSEWHERE)
    table = DistanceTable("check", _HEAD, names, _DISTANCE, ("first",))
    image, *_ = write_shared(codes, export="check", optional=(), imports=(), providers={}, table=table)
    assert contents(image, ET_DYN) == contents(written(with_table(codes[0], names), codes[1]), ET_DYN)
    assert len(offsets(image, len(names))[1]) == len(names)


def contents(image: bytes, kind: int) -> dict[str, bytes]:
    found = {name: image[s.offset : s.offset + s.size] for name, s in names_and_sections(image, read_sections(image, kind))}
    return {name: content for name, content in found.items() if name not in (".symtab", ".strtab", ".shstrtab")}


def test_what_the_code_itself_defines_must_be_in_the_object() -> None:
    code = compile_object(_CODE)
    table = DistanceTable("check", _HEAD, ("first", "lost"), _DISTANCE, ("lost", "first"))
    with pytest.raises(CompileError, match="no symbol 'lost'"):
        with_distances(code, table)
    with pytest.raises(CompileError, match="no symbol 'lost'"):
        write_shared([code], export="check", optional=(), imports=(), providers={}, table=table)


@on_x86
def test_a_linker_fills_it_in_as_well() -> None:
    names = tuple(name for name in _NAMES if name != "elsewhere")
    start, found = offsets(linked(with_table(names=names)), len(names))
    places = dict(zip(names, [start + distance for distance in found], strict=True))
    assert [ctypes.CFUNCTYPE(ctypes.c_int64)(places[name])() for name in ("first", "second")] == [1, 5]


def test_what_the_object_lacks_is_undefined_once() -> None:
    assert undefined_symbols(with_table(names=("elsewhere", "first", "elsewhere", "other"))) == ("elsewhere", "other")


def test_nothing_else_of_the_object_changes() -> None:
    before = compile_object(_CODE)
    after = with_table(before)

    def contents(data: bytes) -> dict[str, bytes]:
        return {name: data[s.offset : s.offset + s.size] for name, s in names_and_sections(data, read_sections(data, ET_REL)) if name}

    changed = {name for name, content in contents(after).items() if contents(before).get(name) != content}
    assert {".rodata.compcache", ".rela.rodata.compcache"} <= changed <= {
        ".rodata.compcache", ".rela.rodata.compcache", ".symtab", ".strtab", ".shstrtab",
    }  # fmt: skip
    assert contents(after).keys() >= contents(before).keys()


@on_x86
def test_names_of_sections_may_be_a_table_of_their_own(tmp_path: Path) -> None:
    """LLVM has one table for the names of symbols and sections, GNU's assembler two."""
    if shutil.which("as") is None:
        pytest.skip("there is no assembler")
    text = '.text\n.globl first\n.hidden first\nfirst: movl $1, %eax\nret\n.section .note.GNU-stack,"",@progbits\n'
    (tmp_path / "code.s").write_text(text)
    subprocess.run(["as", "code.s", "-o", "code.o"], cwd=tmp_path, check=True)
    code = with_table((tmp_path / "code.o").read_bytes(), ("first",))
    names = {name for name, _ in names_and_sections(code, read_sections(code, ET_REL))}
    assert {".text", ".rodata.compcache", ".rela.rodata.compcache"} <= names
    for image in (written(code), linked(code)):
        start, (distance,) = offsets(image, 1)
        assert ctypes.CFUNCTYPE(ctypes.c_int64)(start + distance)() == 1


def test_damaged_objects_raise_the_declared_error_alone() -> None:
    code = compile_object(_CODE)
    generator = random.Random(36)
    refused = 0
    for _ in range(2000):
        damaged = bytearray(code)
        for _ in range(generator.randrange(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        try:
            with_table(bytes(damaged[: generator.choice((len(damaged), generator.randrange(len(damaged))))]))
        except FormatError:
            refused += 1
    assert refused > 100


def test_an_object_without_symbols_is_refused() -> None:
    empty = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 1, 62, 1, 0, 0, 64, 0, 64, 0, 0, 64, 1, 0) + bytes(64)
    with pytest.raises(FormatError, match="no symbol table"):
        with_table(empty)


def test_what_the_object_lacks_comes_from_another_object_alone() -> None:
    code = with_table(names=("first", "labs"))
    with pytest.raises(FormatError):
        written(code)
    _, found = offsets(written(code, compile_object("define hidden i64 @labs(i64 %x) {\n  ret i64 7\n}\n")), 2)
    assert found[0] != found[1]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_the_relocation_is_the_one_by_which_llvm_stores_distances(known: Architecture) -> None:
    """In tables for unwinding, on each architecture."""
    code = compile_object("define void @first() uwtable {\n  ret void\n}\n", f"{known.name}-unknown-linux-gnu")
    sections = read_sections(code, ET_REL)
    (table,) = [section for title, section in names_and_sections(code, sections) if title == ".rela.eh_frame"]
    (relocation,) = struct.iter_unpack("<QIIq", code[table.offset : table.offset + table.size])
    assert relocation[1] == known.relocations.distance
