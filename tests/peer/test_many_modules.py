"""brotli in 35 modules and cmark in 34, one for each file, beside the same files in an ordinary shared object."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

from compcache import Cache, ModuleSource

from .bitcode import parse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from compcache import TypedCallTarget

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]
_INPUTS = 1000


class Split(NamedTuple):
    """A library whose files become a module each: what to compile, and how."""

    sdist: str
    patterns: tuple[str, ...]
    without: tuple[str, ...]
    flags: tuple[str, ...]
    folders: tuple[str, ...]
    modules: int

    def sources(self, root: Path) -> list[Path]:
        found = sorted(path for pattern in self.patterns for path in root.glob(pattern))
        return [path for path in found if path.name not in self.without]

    def all_flags(self, root: Path) -> list[str]:
        return [*self.flags, *(f"-I{root / folder}" for folder in self.folders)]


BROTLI = Split("brotli", ("c/common/*.c", "c/dec/*.c", "c/enc/*.c"), (), ("-O2", "-fPIC"), ("c/include",), 35)
CMARK = Split(
    "cmarkgfm",
    ("third_party/cmark/src/*.c", "third_party/cmark/extensions/*.c"),
    ("main.c",),
    ("-O2", "-fPIC", "-DCMARK_GFM_STATIC_DEFINE", "-DCMARK_GFM_EXTENSIONS_STATIC_DEFINE"),
    ("third_party/cmark/src", "third_party/cmark/extensions", "generated/unix"),
    34,
)


def add_split(library: Split, root: Path, out: Path, directory: Path, flags: list[str]) -> None:
    """Compile each file, and add it; what another one defines is imported."""
    codes = []
    for number, source in enumerate(library.sources(root)):
        target = out / f"{number}.bc"
        command = ["clang", *library.all_flags(root), *flags, "-emit-llvm", "-c", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        codes.append(target.read_bytes())
    assert len(codes) == library.modules
    symbols = [_symbols(code) for code in codes]
    defined = frozenset[str]().union(*(own for own, _ in symbols))
    with Cache(directory) as cache:
        for code, (_, declared) in zip(codes, symbols, strict=True):
            cache.add_module(ModuleSource(code, imports=sorted(declared & defined)))


def _symbols(code: bytes) -> tuple[frozenset[str], frozenset[str]]:
    """The functions and variables that a module defines for others, and those that it declares."""
    module = parse(code)
    values = [*module.functions, *module.global_variables]
    own = [v.name for v in values if not v.is_declaration and v.linkage.name not in ("internal", "private")]
    return frozenset(own), frozenset([v.name for v in values if v.is_declaration])


def shared_object(library: Split, root: Path, out: Path) -> ctypes.CDLL:
    path = out / "ordinary.so"
    command = ["clang", "-shared", *library.all_flags(root), *map(str, library.sources(root)), "-lm", "-o", str(path)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture(params=["ld", "ld.lld"])
def linker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    for program in (name, "clang"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    monkeypatch.setenv("COMPCACHE_LINKER", name)
    return name


def pieces(text: bytes) -> list[bytes]:
    """Many parts of a text, some with noise behind them."""
    generator = random.Random(3)
    found = []
    for number in range(_INPUTS):
        start = generator.randrange(len(text) // 2)
        noise = generator.randbytes(generator.randrange(100)) if number % 2 else b""
        found.append(text[start : start + generator.randrange(1, 3000)] + noise)
    return found


@pytest.mark.usefixtures("linker")
@pytest.mark.parametrize("debug", ["", "-g"])
def test_brotli_by_file(sdist: Callable[[str], Path], tmp_path: Path, debug: str) -> None:
    root = sdist(BROTLI.sdist)
    add_split(BROTLI, root, tmp_path, tmp_path / "cache", [debug] if debug else [])
    ordinary = shared_object(BROTLI, root, tmp_path)
    with Cache(tmp_path / "cache") as cache:
        compress, decompress = cache.get_target("BrotliEncoderCompress"), cache.get_target("BrotliDecoderDecompress")
        text = (root / "c/enc/encode.c").read_bytes()
        for number, data in enumerate(pieces(text)):
            quality = number % 12 if number % 10 else 11
            packed = _compress(compress, data, quality)
            assert packed == _compress_by(ordinary, data, quality)
            assert _decompress(decompress, packed, len(data)) == data


def _compress(target: TypedCallTarget, data: bytes, quality: int) -> bytes:
    given = ctypes.create_string_buffer(data, len(data))
    room = ctypes.create_string_buffer(len(data) + 1000)
    size = ctypes.c_size_t(len(room))
    assert target(quality, 22, 0, len(data), ctypes.addressof(given), ctypes.addressof(size), ctypes.addressof(room))
    return room.raw[: size.value]


def _compress_by(library: ctypes.CDLL, data: bytes, quality: int) -> bytes:
    room = ctypes.create_string_buffer(len(data) + 1000)
    size = ctypes.c_size_t(len(room))
    assert library.BrotliEncoderCompress(quality, 22, 0, ctypes.c_size_t(len(data)), data, ctypes.byref(size), room)
    return room.raw[: size.value]


def _decompress(target: TypedCallTarget, data: bytes, size: int) -> bytes:
    given = ctypes.create_string_buffer(data, len(data))
    room = ctypes.create_string_buffer(size + 1)
    written = ctypes.c_size_t(len(room))
    assert target(len(data), ctypes.addressof(given), ctypes.addressof(written), ctypes.addressof(room)) == 1
    return room.raw[: written.value]


@pytest.mark.usefixtures("linker")
@pytest.mark.parametrize("debug", ["", "-g"])
def test_cmark_by_file(sdist: Callable[[str], Path], tmp_path: Path, debug: str) -> None:
    root = sdist(CMARK.sdist)
    add_split(CMARK, root, tmp_path, tmp_path / "cache", [debug] if debug else [])
    ordinary = shared_object(CMARK, root, tmp_path)
    ordinary.cmark_markdown_to_html.restype = ctypes.c_char_p
    with Cache(tmp_path / "cache") as cache:
        render = cache.get_target("cmark_markdown_to_html")
        for data in pieces((root / "README.rst").read_bytes()):
            given = ctypes.create_string_buffer(data, len(data))
            html = ctypes.string_at(render(ctypes.addressof(given), len(data), 0))
            assert html == ordinary.cmark_markdown_to_html(data, ctypes.c_size_t(len(data)), 0)
