"""zlib and libdeflate, with and without debug information, as one module and as one for each file, beside Python's zlib."""

from __future__ import annotations

import gzip
import random
import zlib
from typing import TYPE_CHECKING

import pytest

from compcache import Cache, ModuleSource

from . import libraries
from .bitcode import link
from .caching import add_modules
from .freshpython import run_fresh

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .compilers import Compiler

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def text() -> bytes:
    """Compressible, and longer than a window."""
    generator = random.Random(4)
    words = [generator.randbytes(generator.randrange(2, 12)) for _ in range(300)]
    return b" ".join(generator.choice(words) for _ in range(20_000))


@pytest.fixture(scope="module", params=["one module", "a module for each file"])
def as_one(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "one module")


def stored(library: libraries.Library, sdist: Callable[[str], Path], compiler: Compiler, directory: Path, as_one: bool) -> Path:
    modules = library.modules(sdist, compiler)
    if not as_one:
        add_modules(directory, modules)
        return directory
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(link(modules.values())))
    return directory


@pytest.fixture(scope="module")
def zlib_dir(compiler: Compiler, sdist: Callable[[str], Path], as_one: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(libraries.ZLIB, sdist, compiler, tmp_path_factory.mktemp("zlib"), as_one)


@pytest.fixture(scope="module")
def libdeflate_dir(compiler: Compiler, sdist: Callable[[str], Path], as_one: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(libraries.LIBDEFLATE, sdist, compiler, tmp_path_factory.mktemp("libdeflate"), as_one)


def test_everything_has_a_shared_object(zlib_dir: Path, libdeflate_dir: Path) -> None:
    for directory in (zlib_dir, libdeflate_dir):
        with Cache(directory, readonly=True) as cache:
            kinds = {found.image_kind for name in cache for found in cache.realizations(name)}
            assert kinds == {"shared"}
            assert cache.check(recompile=True).findings == ()


def test_zlib_gives_what_pythons_gives(zlib_dir: Path, text: bytes) -> None:
    script = """
        out = bytearray(call("compressBound", len(text)))
        import ctypes
        size = ctypes.c_ulong(len(out))
        assert call("compress2", out, ctypes.addressof(size), text, len(text), 9) == 0
        packed = bytes(out[: size.value])
        back, length = bytearray(len(text)), ctypes.c_ulong(len(text))
        assert call("uncompress", back, ctypes.addressof(length), packed, len(packed)) == 0
        damaged = call("uncompress", bytearray(len(text)), ctypes.addressof(length), packed[:-4] + bytes(4), len(packed))
        result = packed, bytes(back) == text, damaged, call("crc32", 0, text, len(text)), call("adler32", 1, text, len(text))
    """
    packed, is_same, damaged, crc, adler = run_fresh(zlib_dir, script, text=text)
    assert zlib.decompress(packed) == text
    assert is_same
    assert (damaged, crc & 0xFFFFFFFF, adler & 0xFFFFFFFF) == (-3, zlib.crc32(text), zlib.adler32(text))


def test_zlib_writes_files(zlib_dir: Path, text: bytes, tmp_path: Path) -> None:
    path = str(tmp_path / "text.gz").encode()
    script = """
        file = call("gzopen", path, b"wb9")
        assert call("gzwrite", file, text, len(text)) == len(text)
        result = call("gzclose", file)
    """
    assert run_fresh(zlib_dir, script, path=path, text=text) == 0
    assert gzip.decompress((tmp_path / "text.gz").read_bytes()) == text


def test_libdeflate_gives_what_pythons_zlib_gives(libdeflate_dir: Path, text: bytes) -> None:
    script = """
        import ctypes
        compressor, decompressor = call("libdeflate_alloc_compressor", 12), call("libdeflate_alloc_decompressor")
        out, found = bytearray(len(text)), []
        for kind in ("zlib", "gzip"):
            size = call(f"libdeflate_{kind}_compress", compressor, text, len(text), out, len(out))
            back, length = bytearray(len(text)), ctypes.c_size_t()
            end = call(f"libdeflate_{kind}_decompress", decompressor, bytes(out[:size]), size, back, len(back), ctypes.addressof(length))
            found += [bytes(out[:size]), end == 0 and bytes(back) == text and length.value == len(text)]
        result = *found, call("libdeflate_crc32", 0, text, len(text)), call("libdeflate_adler32", 1, text, len(text))
    """
    packed, first, zipped, second, crc, adler = run_fresh(libdeflate_dir, script, text=text)
    assert zlib.decompress(packed) == gzip.decompress(zipped) == text
    assert (first, second, crc & 0xFFFFFFFF, adler & 0xFFFFFFFF) == (True, True, zlib.crc32(text), zlib.adler32(text))
