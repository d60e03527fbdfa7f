"""The object with a module's table, and definitions that move: linkers and the writer take both."""

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
from compcache.errors import FormatError
from compcache.formats.host import platform_name
from compcache.images.elf.objects import DistanceTable, table_object
from compcache.images.elf.parts import ET_REL, names_and_sections, object_symbols, read_sections
from compcache.images.elf.patching import move_definitions
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


def table(names: tuple[str, ...] = _NAMES) -> bytes:
    """The object with a table."""
    return table_object(distances(names))


def distances(names: tuple[str, ...]) -> DistanceTable:
    return DistanceTable(architecture(platform_name()).elf_machine, "check", _HEAD, names, _DISTANCE)


def offsets(image: bytes, count: int) -> tuple[int, tuple[int, ...]]:
    """Where the table is in memory, and what it holds."""
    start = ctypes.cast(run(image), ctypes.c_void_p).value or 0
    assert start % 16 == 0
    content = ctypes.string_at(start, len(_HEAD) + 4 * count)
    assert content[: len(_HEAD)] == _HEAD
    return start, struct.unpack(f"<{count}i", content[len(_HEAD) :])


def test_the_table_holds_the_distance_of_each_symbol() -> None:
    start, found = offsets(written(table(), _CODE, _ELSEWHERE), len(_NAMES))
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
    image, *_ = write_shared([compile_object(code)], export="check", optional=(), imports=(), providers={}, table=distances(("first",)))
    assert image.index(_HEAD) < 4096 < len(image) // 8


@pytest.mark.parametrize("names", [_NAMES, ("elsewhere",), ("first",)])
def test_the_writer_adds_what_is_in_the_object(names: tuple[str, ...]) -> None:
    codes = compile_object(_CODE), compile_object(_ELSEWHERE)
    image, *_ = write_shared(codes, export="check", optional=(), imports=(), providers={}, table=distances(names))
    start, found = offsets(image, len(names))
    first = ctypes.CFUNCTYPE(ctypes.c_int64)(start + found[0])
    assert first() == (9 if names[0] == "elsewhere" else 1)


@on_x86
def test_a_linker_fills_it_in_as_well() -> None:
    names = tuple(name for name in _NAMES if name != "elsewhere")
    start, found = offsets(linked(table(names), compile_object(_CODE)), len(names))
    places = dict(zip(names, [start + distance for distance in found], strict=True))
    assert [ctypes.CFUNCTYPE(ctypes.c_int64)(places[name])() for name in ("first", "second")] == [1, 5]


def test_each_symbol_is_undefined_once() -> None:
    assert undefined_symbols(table(("elsewhere", "first", "elsewhere"))) == ("elsewhere", "first")


@pytest.mark.parametrize("by", ["LLVM", "GNU"])
def test_definitions_move_and_references_stay(tmp_path: Path, by: str) -> None:
    """LLVM has one table for the names of symbols and sections, GNU's assembler two."""
    if by == "LLVM":
        code = compile_object("@v = global i64 5\ndefine ptr @first() {\n  ret ptr @v\n}\n")
    elif shutil.which("as") is None:
        pytest.skip("there is no assembler")
    else:
        text = '.globl v\n.data\nv: .quad 5\n.text\n.globl first\nfirst: ret\n.section .note.GNU-stack,""\n'
        (tmp_path / "code.s").write_text(text)
        subprocess.run(["as", "code.s", "-o", "code.o"], cwd=tmp_path, check=True)
        code = (tmp_path / "code.o").read_bytes()
    moved = move_definitions(code, {"v": "own.v"})
    before, after = [{symbol.name: symbol for symbol in object_symbols(data)} for data in (code, moved)]
    assert after.keys() == {"v", "own.v", "first"}
    assert not after["v"].defined
    assert after["own.v"][3:] == before["v"]._replace(other=2)[3:]
    assert after["first"] == before["first"]._replace(position=after["first"].position)
    assert undefined_symbols(moved) == ("v",)
    names = [[name for name, _ in names_and_sections(data, read_sections(data, ET_REL))] for data in (code, moved)]
    assert names[0] == names[1]
    for wrong in ({"nothing": "own.nothing"}, {"v": "first"}):
        with pytest.raises(FormatError, match="does not define the symbol"):
            move_definitions(code, wrong)


def test_damaged_objects_raise_the_declared_error_alone() -> None:
    code = compile_object(_CODE)
    generator = random.Random(36)
    refused = 0
    for _ in range(2000):
        damaged = bytearray(code)
        for _ in range(generator.randrange(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        try:
            move_definitions(bytes(damaged[: generator.choice((len(damaged), generator.randrange(len(damaged))))]), {"hidden": "own"})
        except FormatError:
            refused += 1
    assert refused > 100


def test_an_object_without_symbols_is_refused() -> None:
    empty = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 1, 62, 1, 0, 0, 64, 0, 64, 0, 0, 64, 1, 0) + bytes(64)
    with pytest.raises(FormatError, match="does not define the symbol"):
        move_definitions(empty, {"hidden": "own"})


def test_what_the_object_lacks_comes_from_another_object_alone() -> None:
    codes = table(("first", "labs")), compile_object(_CODE)
    with pytest.raises(FormatError):
        written(*codes)
    _, found = offsets(written(*codes, "define hidden i64 @labs(i64 %x) {\n  ret i64 7\n}\n"), 2)
    assert found[0] != found[1]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_the_relocation_is_the_one_by_which_llvm_stores_distances(known: Architecture) -> None:
    """In tables for unwinding, on each architecture."""
    code = compile_object("define void @first() uwtable {\n  ret void\n}\n", f"{known.name}-unknown-linux-gnu")
    sections = read_sections(code, ET_REL)
    (table,) = [section for title, section in names_and_sections(code, sections) if title == ".rela.eh_frame"]
    (relocation,) = struct.iter_unpack("<QIIq", code[table.offset : table.offset + table.size])
    assert relocation[1] == known.relocations.distance
