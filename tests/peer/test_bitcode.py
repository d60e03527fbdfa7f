"""The inputs themselves: LLVM reads, verifies and optimizes what each compiler wrote, and it is what we think."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from . import libraries
from .bitcode import defined, exported, optimize, parse, undefined, undefined_data
from .compilers import OLD_AND_NEW
from .sdists import SDISTS, SdistUnavailableError, _check_digest, fetch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .compilers import Compiler
    from .libraries import Library

pytestmark = pytest.mark.peer

# A library, the least number of functions it has, and some function it must have.
LIBRARIES = [
    pytest.param((libraries.XXHASH, 55, "XXH3_64bits_withSeed"), id="xxhash"),
    pytest.param((libraries.LZ4, 130, "LZ4F_compressFrame"), id="lz4"),
    pytest.param((libraries.ZSTD, 500, "ZSTD_compress2"), id="zstd"),
    pytest.param((libraries.LUA, 600, "lua_pcallk"), id="lua"),
    pytest.param((libraries.YAML, 90, "yaml_parser_parse"), id="yaml"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("compiler_name", OLD_AND_NEW)
@pytest.mark.parametrize("expected", LIBRARIES)
def test_a_library_compiles_to_bitcode_that_llvm_reads(
    expected: tuple[Library, int, str],
    compiler_name: str,
    compiler_named: Callable[[str], Compiler],
    sdist: Callable[[str], Path],
) -> None:
    library, least, function = expected
    bitcode = library.module(sdist, compiler_named(compiler_name))
    assert function in exported(bitcode)
    assert len(defined(bitcode)) >= least


def test_bitcode_survives_the_optimizer(compiler: Compiler, sdist: Callable[[str], Path]) -> None:
    module = parse(libraries.XXHASH.module(sdist, compiler))
    optimize(module)
    module.verify()
    assert not module.get_function("XXH64").is_declaration


def test_code_without_pic_claims_external_data_as_its_own(compiler_named: Callable[[str], Compiler]) -> None:
    bitcode = compiler_named("clang-nopic").bitcode(libraries.own_source("calls"))
    assert undefined_data(bitcode) == ["stderr"]
    assert "@stderr = external dso_local" in str(parse(bitcode))


def test_wide_division_shows_no_call_before_code_generation(compiler: Compiler) -> None:
    assert undefined(compiler.bitcode(libraries.own_source("wide"))) == []


def test_a_compiled_file_is_reused(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiler.bitcode(libraries.own_source("wide"))
    monkeypatch.setenv("PATH", "")
    assert compiler.bitcode(libraries.own_source("wide")) == first


def test_an_index_out_of_reach_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(SdistUnavailableError, match=r"cannot get xxhash [0-9.]+: ERROR"):
        fetch("xxhash", tmp_path / "sdists")
    assert list((tmp_path / "sdists").iterdir()) == []


def test_an_archive_with_another_digest_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "xxhash.tar.gz"
    archive.write_bytes(b"something else")
    with pytest.raises(ValueError, match="pinned is"):
        _check_digest(SDISTS["xxhash"], archive)
