"""Zstandard: 500 functions in one module, with threads, a printing debug path and tables of functions."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from compcache import Cache, ModuleSource

from . import libraries
from .bitcode import exported
from .compilers import OLD_AND_NEW
from .freshpython import run_fresh

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .compilers import Compiler

zstandard = pytest.importorskip("zstandard")
pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def text() -> bytes:
    """Two megabytes: several jobs for several threads."""
    generator = random.Random(3)
    words = [generator.randbytes(generator.randrange(3, 20)) for _ in range(1000)]
    return b"-".join(generator.choice(words) for _ in range(180_000))


@pytest.fixture(scope="module")
def text_file(text: bytes, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("zstd-text") / "text"
    path.write_bytes(text)
    return str(path)


@pytest.fixture(scope="module", params=OLD_AND_NEW)
def bitcode(
    request: pytest.FixtureRequest, compiler_named: Callable[[str], Compiler], sdist: Callable[[str], Path]
) -> bytes:
    return libraries.ZSTD.module(sdist, compiler_named(request.param))


@pytest.fixture(scope="module")
def cache_dir(bitcode: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("zstd")
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(bitcode, optimize=0))
    return directory


COMPRESS = """
    text = open(text_file, "rb").read()
    context = call("ZSTD_createCCtx")
    for key, value in parameters:
        assert not call("ZSTD_isError", call("ZSTD_CCtx_setParameter", context, key, value))
    out = bytearray(call("ZSTD_compressBound", len(text)))
    size = call("ZSTD_compress2", context, out, len(out), text, len(text))
    assert not call("ZSTD_isError", size)
    call("ZSTD_freeCCtx", context)
    open(packed_file, "wb").write(out[:size])
    result = size
"""
LEVEL, CHECKSUM, WORKERS, JOB_SIZE = 100, 201, 400, 401  # of enum ZSTD_cParameter


def test_every_visible_function_is_in_the_cache(cache_dir: Path, bitcode: bytes) -> None:
    names = exported(bitcode)
    assert len(names) >= 250
    with Cache(cache_dir) as cache:
        assert [name for name in names if not cache.has(name)] == []


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param([(LEVEL, 1)], id="fast"),
        pytest.param([(LEVEL, 19), (CHECKSUM, 1)], id="thorough"),
        pytest.param([(LEVEL, 3), (WORKERS, 3), (JOB_SIZE, 1 << 19)], id="threads"),
    ],
)
def test_the_python_package_reads_what_targets_write(
    cache_dir: Path, text: bytes, text_file: str, tmp_path: Path, parameters: list[tuple[int, int]]
) -> None:
    packed = tmp_path / "packed"
    size = run_fresh(cache_dir, COMPRESS, text_file=text_file, packed_file=str(packed), parameters=parameters)
    assert 0 < size < len(text)
    assert zstandard.ZstdDecompressor().decompress(packed.read_bytes()) == text


def test_targets_read_what_the_python_package_writes(cache_dir: Path, text: bytes, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(zstandard.ZstdCompressor(level=5, write_checksum=True).compress(text))
    script = """
        import hashlib
        packed = open(packed_file, "rb").read()
        size = call("ZSTD_getFrameContentSize", packed, len(packed))
        out = bytearray(size)
        assert call("ZSTD_decompress", out, size, packed, len(packed)) == size
        result = bytes(out[:50]), out.count(b"-")
        wrong = bytearray(packed)
        wrong[len(wrong) // 2] ^= 1
        code = call("ZSTD_decompress", out, size, wrong, len(wrong))
        import ctypes
        result += (ctypes.string_at(call("ZSTD_getErrorName", code)),)
    """
    start, count, error = run_fresh(cache_dir, script, packed_file=str(packed))
    assert (start, count) == (text[:50], text.count(b"-"))
    assert error != b"No error detected"


def test_one_function_needs_only_a_part_of_the_module(cache_dir: Path) -> None:
    with Cache(cache_dir) as cache:
        assert cache.dependencies("ZSTD_versionNumber", transitive=True) == ()
        assert len(cache.dependencies("ZSTD_compress2", transitive=True)) > 20
