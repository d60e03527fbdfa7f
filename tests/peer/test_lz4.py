"""LZ4: four modules that import each other's functions, two of them with functions of the same name."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from compcache import Cache, ModuleSource, UndefinedSymbolError

from . import libraries
from .bitcode import exported, imports_among
from .caching import add_modules
from .freshpython import run_fresh

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .compilers import Compiler

lz4_block = pytest.importorskip("lz4.block")
lz4_frame = pytest.importorskip("lz4.frame")
pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def text() -> bytes:
    """Compressible, and longer than a window of 64 KiB."""
    generator = random.Random(2)
    words = [generator.randbytes(generator.randrange(2, 12)) for _ in range(300)]
    return b" ".join(generator.choice(words) for _ in range(20_000))


@pytest.fixture(scope="module")
def modules(compiler: Compiler, sdist: Callable[[str], Path]) -> dict[str, bytes]:
    return libraries.LZ4.modules(sdist, compiler)


@pytest.fixture(scope="module")
def cache_dir(modules: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the four modules, each on its own."""
    directory = tmp_path_factory.mktemp("lz4")
    add_modules(directory, modules, optimize=1)
    return directory


def test_every_visible_function_is_in_the_cache(cache_dir: Path, modules: dict[str, bytes]) -> None:
    names = [name for bitcode in modules.values() for name in exported(bitcode)]
    assert len(names) >= 100
    with Cache(cache_dir) as cache:
        assert [name for name in names if not cache.has(name)] == []


def test_images_are_made_of_the_code_that_is_kept(cache_dir: Path, modules: dict[str, bytes]) -> None:
    with Cache(cache_dir, readonly=True) as cache:
        report = cache.check(recompile=True)
    assert report.findings == ()
    counted = {step.name: step.numbers for step in report.steps}["code"]
    assert counted == {"recompiled": len(modules), "compared": len(modules)}


def test_the_python_package_reads_blocks_that_targets_write(cache_dir: Path, text: bytes) -> None:
    script = """
        out = bytearray(call("LZ4_compressBound", len(text)))
        size = call(function, text, out, len(text), len(out), *level)
        result = bytes(out[:size])
    """
    for function, level in (
        ("LZ4_compress_default", []),
        ("LZ4_compress_HC", [9]),
        ("LZ4_compress_HC", [12]),
    ):
        packed = run_fresh(cache_dir, script, text=text, function=function, level=level)
        assert 0 < len(packed) < len(text)
        assert lz4_block.decompress(packed, uncompressed_size=len(text)) == text


def test_targets_read_blocks_that_the_python_package_writes(cache_dir: Path, text: bytes) -> None:
    script = """
        out = bytearray(size)
        assert call("LZ4_decompress_safe", packed, out, len(packed), size) == size
        result = bytes(out)
    """
    packed = lz4_block.compress(text, store_size=False)
    assert run_fresh(cache_dir, script, packed=packed, size=len(text)) == text


def test_damaged_input_is_an_error_code(cache_dir: Path) -> None:
    script = "result = call('LZ4_decompress_safe', b'\\xff' * 50, bytearray(100), 50, 100)"
    assert run_fresh(cache_dir, script) < 0


def test_frames_go_through_four_modules(cache_dir: Path, text: bytes) -> None:
    compress = """
        out = bytearray(call("LZ4F_compressFrameBound", len(text), None))
        size = call("LZ4F_compressFrame", out, len(out), text, len(text), None)
        assert not call("LZ4F_isError", size)
        result = bytes(out[:size])
    """
    packed = run_fresh(cache_dir, compress, text=text)
    assert lz4_frame.decompress(packed) == text
    decompress = """
        import ctypes
        context = ctypes.c_void_p()
        assert call("LZ4F_createDecompressionContext", ctypes.byref(context), 100) == 0
        out, sizes = bytearray(size), (ctypes.c_size_t * 2)(size, len(packed))
        address = ctypes.addressof(sizes)
        code = call("LZ4F_decompress", context.value, out, address, packed, address + 8, None)
        call("LZ4F_freeDecompressionContext", context.value)
        result = code, list(sizes), bytes(out)
    """
    packed = lz4_frame.compress(text, compression_level=3, content_checksum=True)
    assert run_fresh(cache_dir, decompress, packed=packed, size=len(text)) == (
        0,
        [len(text), len(packed)],
        text,
    )


def test_dependencies_cross_modules(cache_dir: Path) -> None:
    with Cache(cache_dir) as cache:
        assert "LZ4_compressBound" not in cache.dependencies("LZ4F_compressBound")
        reached = cache.dependencies("LZ4F_compressFrame", transitive=True)
    assert {"LZ4_compress_HC_continue", "LZ4_compress_fast_continue", "XXH32_update"} <= set(reached)


def test_the_order_of_addition_does_not_matter(
    modules: dict[str, bytes], tmp_path: Path, text: bytes
) -> None:
    reordered = {name: modules[name] for name in ("lz4frame", "lz4hc", "xxhash", "lz4")}
    add_modules(tmp_path / "cache", reordered, optimize=0)
    script = """
        out = bytearray(len(text) + 1000)
        size = call("LZ4F_compressFrame", out, len(out), text, len(text), None)
        result = bytes(out[:size])
    """
    assert lz4_frame.decompress(run_fresh(tmp_path / "cache", script, text=text)) == text


def test_what_nothing_provides_is_named(modules: dict[str, bytes], tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache:
        with pytest.raises(UndefinedSymbolError) as caught:
            cache.add_module(ModuleSource(modules["lz4hc"], optimize=0))
        assert caught.value.symbols == ("LZ4_compressBound",)
        assert not cache.has("LZ4_compress_HC")


def test_a_healthy_function_of_an_incomplete_module_runs(modules: dict[str, bytes], tmp_path: Path) -> None:
    imports = imports_among(modules)
    with Cache(tmp_path / "cache") as cache:
        cache.add_module(ModuleSource(modules["lz4frame"], imports=imports["lz4frame"], optimize=0))
    script = """
        from compcache import CompcacheError
        version = call("LZ4F_getVersion")
        try:
            cache.get_target("LZ4F_compressFrame")
        except CompcacheError as error:
            result = version, str(error)
    """
    version, message = run_fresh(tmp_path / "cache", script)
    assert version == 100
    assert "LZ4F_compressFrame" in message
    assert any(name in message for name in imports["lz4frame"])
    add_modules(tmp_path / "cache", {name: modules[name] for name in ("lz4", "lz4hc", "xxhash")}, optimize=0)
    script = """
        out = bytearray(1000)
        result = bytes(out[:call("LZ4F_compressFrame", out, 1000, b"again", 5, None)])
    """
    assert lz4_frame.decompress(run_fresh(tmp_path / "cache", script)) == b"again"


def test_two_libraries_hold_copies_of_one_function(
    modules: dict[str, bytes], compiler: Compiler, sdist: Callable[[str], Path], tmp_path: Path
) -> None:
    with Cache(tmp_path / "cache") as cache:
        first = cache.add_module(ModuleSource(modules["xxhash"], optimize=0))
        second = cache.add_module(ModuleSource(libraries.XXHASH.module(sdist, compiler), optimize=0))
        assert {copy.module_id for copy in cache.realizations("XXH32")} == {first, second}
        assert len(cache.realizations("XXH3_64bits")) == 1
    script = """
        xxh3 = cache.get_target("XXH3_64bits")  # loads the newer library, whose copy is then preferred
        target = cache.get_target("XXH32")
        result = target(b"abc", 3, 0) % 2**32, target.module_id == xxh3.module_id
    """
    assert run_fresh(tmp_path / "cache", script) == (0x32D153FF, True)
