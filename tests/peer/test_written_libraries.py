"""Other people's C libraries as images: written of the objects of several compilers, and made by GNU ld of the same objects. Their answers
are equal.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

from compcache.images import platform_symbols
from compcache.images.elf.reading import undefined_symbols
from compcache.images.linkers.find import Linker
from compcache.images.linkers.link import link_shared
from compcache.images.shared import make

from . import libraries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .libraries import Library

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
_INPUT = r"""
#include <stdlib.h>
#include <string.h>
static unsigned state = 1;
static unsigned next(void) { return state = state * 1103515245 + 12345, state >> 16; }
static unsigned long hash(unsigned long h, const unsigned char *data, size_t size) {
    while (size--) h = (h ^ *data++) * 1099511628211ul;
    return h;
}
#define SIZE 200000
static unsigned char given[SIZE], packed[2 * SIZE], back[SIZE];
static void fill(void) { for (int i = 0; i < SIZE; i++) given[i] = i % 100 < 60 ? "compressible text of a kind "[i % 28] : next() % 64; }
"""


class Used(NamedTuple):
    """A library, and C code of a function `check` that uses it."""

    library: Library
    headers: tuple[str, ...]
    code: str


LIBRARIES = {
    "lz4": Used(
        libraries.LZ4,
        ("lz4libs",),
        r"""
#include "lz4.h"
#include "lz4hc.h"
long check(int level) {
    fill();
    char *from = (char *)given, *to = (char *)packed;
    int size = level == 1 ? LZ4_compress_default(from, to, SIZE, sizeof packed) : LZ4_compress_HC(from, to, SIZE, sizeof packed, level);
    int returned = LZ4_decompress_safe(to, (char *)back, size, SIZE);
    return returned == SIZE && !memcmp(given, back, SIZE) ? (long)hash(size, packed, size) : -1;
}
""",
    ),
    "zstd": Used(
        libraries.ZSTD,
        ("zstd",),
        r"""
#include "zstd.h"
long check(int level) {
    fill();
    size_t size = ZSTD_compress(packed, sizeof packed, given, SIZE, level);
    size_t returned = ZSTD_decompress(back, SIZE, packed, size);
    return returned == SIZE && !memcmp(given, back, SIZE) ? (long)hash(size, packed, size) : -1;
}
""",
    ),
    "zlib": Used(
        libraries.ZLIB,
        ("blosc/c-blosc/internal-complibs/zlib-1.3.1",),
        r"""
#include "zlib.h"
long check(int level) {
    uLongf size = sizeof packed, returned = SIZE;
    fill();
    if (compress2(packed, &size, given, SIZE, level) || uncompress(back, &returned, packed, size)) return -1;
    return returned == SIZE && !memcmp(given, back, SIZE) ? (long)(hash(size, packed, size) ^ crc32(0, given, SIZE)) : -1;
}
""",
    ),
}  # fmt: skip


def objects_of(used: Used, root: Path, compiler: str, directory: Path) -> list[bytes]:
    driver = directory / "check.c"
    driver.write_text(_INPUT + used.code)
    folders = [f"-I{root / folder}" for folder in used.headers]
    found = []
    for number, source in enumerate([driver, *(root / file for file in used.library.files)]):
        result = directory / f"{number}.o"
        command = [compiler, "-O1", "-g", "-w", "-fPIC", *used.library.flags, *folders, "-c", str(source), "-o", str(result)]
        subprocess.run(command, check=True)
        found.append(result.read_bytes())
    return found


def answers(image: bytes, path: Path) -> list[int]:
    path.write_bytes(image)
    check = ctypes.CDLL(str(path)).check
    check.restype = ctypes.c_long
    return [check(level) for level in (1, 6, 9)]


def foreign(objects: Sequence[bytes]) -> list[str]:
    undefined = {symbol for data in objects for symbol in undefined_symbols(data)}
    return sorted(symbol for symbol in undefined if platform_symbols.is_platform_symbol(symbol))


@pytest.mark.parametrize("compiler", ["gcc", "clang-13", "clang-19"])
@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_answer_as_they_do_when_linked(name: str, compiler: str, sdist: Callable[[str], Path], tmp_path: Path) -> None:
    for command in (compiler, "ld"):
        if shutil.which(command) is None:
            pytest.skip(f"{command} is not installed")
    used = LIBRARIES[name]
    objects = objects_of(used, sdist(used.library.sdist), compiler, tmp_path)
    platform = foreign(objects)
    ours, *_ = make.write(objects, export="check", optional=(), platform=platform, named={}, imports=())
    linker = Linker(("/usr/bin/ld",), "ld on the path")
    assert linker is not None
    theirs = link_shared(linker, objects, soname="theirs.so", export=["check"], libraries=platform_symbols.platform_paths(platform))
    expected = answers(theirs, tmp_path / "theirs.so")
    assert answers(ours, tmp_path / "ours.so") == expected
    assert len({*expected}) > 1
    assert -1 not in expected
