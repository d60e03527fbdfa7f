"""xxHash: a hash function of many forms, compared with its Python package, from fresh processes."""

from __future__ import annotations

import platform
import random
from typing import TYPE_CHECKING

import pytest

from compcache import Cache, ModuleSource, SignatureError

from . import libraries
from .bitcode import exported
from .caching import add_modules
from .compilers import OLD_AND_NEW
from .freshpython import run_fresh

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .compilers import Compiler

xxhash = pytest.importorskip("xxhash")
pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

SIGNATURES = {
    "XXH32": "u32(const u8[:], u32)",
    "XXH64": "u64(const u8[:], u64)",
    "XXH3_64bits_withSeed": "u64(const u8[:], u64)",
}


@pytest.fixture(scope="module")
def texts() -> list[bytes]:
    """Data on both sides of every threshold of the algorithms."""
    generator = random.Random(1)
    return [
        generator.randbytes(size)
        for size in (0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1023, 1025, 70_001)
    ]


@pytest.fixture(scope="module")
def whole(compiler: Compiler, sdist: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the module with every visible function exported."""
    cache_dir = tmp_path_factory.mktemp("xxhash-whole")
    with Cache(cache_dir) as cache:
        cache.add_module(ModuleSource(libraries.XXHASH.module(sdist, compiler)))
    return cache_dir


@pytest.fixture(scope="module")
def typed(compiler: Compiler, sdist: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the module with the signatures of a few functions spelled out."""
    cache_dir = tmp_path_factory.mktemp("xxhash-typed")
    with Cache(cache_dir) as cache:
        cache.add_module(ModuleSource(libraries.XXHASH.module(sdist, compiler), SIGNATURES))
    return cache_dir


def test_every_visible_function_is_in_the_cache(
    whole: Path, compiler: Compiler, sdist: Callable[[str], Path]
) -> None:
    names = exported(libraries.XXHASH.module(sdist, compiler))
    assert len(names) >= 40
    with Cache(whole) as cache:
        assert [name for name in names if not cache.has(name)] == []


def test_digests_equal_the_python_package(typed: Path, texts: list[bytes]) -> None:
    script = """
        result = [[cache.get_target(name)(text, seed) for name in names] for text in texts]
    """
    names = list(SIGNATURES)
    for seed in (0, 0x9E3779B1):
        digests = run_fresh(typed, script, texts=texts, seed=seed, names=names)
        assert digests == [
            [
                xxhash.xxh32_intdigest(text, seed),
                xxhash.xxh64_intdigest(text, seed),
                xxhash.xxh3_64_intdigest(text, seed),
            ]
            for text in texts
        ]


def test_other_functions_stay_out_when_some_are_named(typed: Path) -> None:
    with Cache(typed) as cache:
        assert not cache.has("XXH64_digest")


def test_signatures_off_the_types_are_enough_to_call(whole: Path, texts: list[bytes]) -> None:
    script = "result = [cache.get_target('XXH64')(text, len(text), 7) % 2**64 for text in texts]"
    assert run_fresh(whole, script, texts=texts) == [xxhash.xxh64_intdigest(text, 7) for text in texts]


def test_a_state_lives_between_calls(whole: Path, texts: list[bytes]) -> None:
    script = """
        create, reset, update, digest, free = (
            cache.get_target("XXH3_" + name)
            for name in ("createState", "64bits_reset", "64bits_update", "64bits_digest", "freeState")
        )
        state = create()
        reset(state)
        for text in texts:
            assert update(state, given(text), len(text)) == 0
        result = digest(state) % 2**64
        free(state)
    """
    assert run_fresh(whole, script, texts=texts) == xxhash.xxh3_64_intdigest(b"".join(texts))


def test_a_result_that_python_has_no_type_for_is_refused_by_name(whole: Path) -> None:
    with Cache(whole) as cache:
        assert cache.has("XXH3_128bits")
        with pytest.raises(SignatureError, match="XXH3_128bits"):
            cache.get_target("XXH3_128bits")
        assert "XXH3_128bits" not in cache.dependencies("XXH64", transitive=True)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the dispatcher is for x86")
@pytest.mark.parametrize("compiler_name", OLD_AND_NEW)
def test_functions_for_several_cpus_live_in_one_module(
    compiler_name: str,
    compiler_named: Callable[[str], Compiler],
    sdist: Callable[[str], Path],
    tmp_path: Path,
    texts: list[bytes],
) -> None:
    add_modules(tmp_path / "cache", libraries.XXHASH_DISPATCH.modules(sdist, compiler_named(compiler_name)))
    script = """
        dispatched = cache.get_target("XXH3_64bits_withSeed_dispatch")
        result = [dispatched(given(text), len(text), 11) % 2**64 for text in texts]
    """
    digests = run_fresh(tmp_path / "cache", script, texts=texts)
    assert digests == [xxhash.xxh3_64_intdigest(text, 11) for text in texts]
