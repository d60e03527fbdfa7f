"""Programs of other people beside the same code in an ordinary shared object: all functions, 1,000 inputs each, by every linker.

`programs.PROGRAMS` is the list. The code that all linkers are tried with is compiled once.
"""

from __future__ import annotations

import ctypes
import shutil
from typing import TYPE_CHECKING

import pytest
from helpers import store_objects

from compcache import Cache, CompileError, ModulesNotAddedError, clang

from .conftest import unavailable
from .programs import CSRC, INPUTS, PROGRAMS, Built, Places, Program, UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module", params=PROGRAMS.values(), ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    found: Program = request.param
    return found


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "debug"])
def places(request: pytest.FixtureRequest, program: Program, peer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Places:
    return Places(peer_dir, tmp_path_factory.mktemp(program.name), request.param)


@pytest.fixture(scope="module")
def built(program: Program, places: Places) -> Built:
    try:
        return program.build(places)
    except UnavailableError as error:
        return unavailable(str(error))


@pytest.mark.parametrize("linker", ["", "ld", "ld.lld"])
def test_every_function_gives_what_it_gives_in_a_shared_object(
    program: Program, built: Built, linker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if linker and shutil.which(linker) is None:
        unavailable(f"{linker} is not installed")
    monkeypatch.setenv("COMPCACHE_LINKER", linker)
    library = ctypes.CDLL(str(built.ordinary))
    with Cache(tmp_path / "cache") as cache:
        cache.add_modules(built.sources)
        for function in program.functions:
            target, reference = cache.get_target(function.name), function.reference(library)
            results = set()
            for data in function.inputs(library):
                expected = function.call(reference, data)
                assert function.call(target, data) == expected, (function.name, data)
                results.add(expected)
            assert len(results) > INPUTS // 200, "the inputs make no difference"


def test_what_an_object_cannot_have_is_refused_by_name(
    program: Program, built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_objects(monkeypatch)
    with Cache(tmp_path / "cache") as cache, pytest.raises((CompileError, ModulesNotAddedError), match=program.refusal):
        cache.add_modules(built.sources)


def test_the_front_end_compiles_what_needs_a_run_time(peer_dir: Path, tmp_path: Path) -> None:
    """`clang.compile` alone, with a header of a package and exceptions of the C++ library."""
    try:
        include = Places(peer_dir, tmp_path, debug=False).packages("nlohmann-json3-dev") / "usr/include"
    except UnavailableError as error:
        unavailable(str(error))
    round_trip = PROGRAMS["json"].functions[0]
    with Cache(tmp_path / "cache") as cache:
        compiled = clang.compile(CSRC / "json.cpp", flags=["-O2", f"-I{include}"], cache=cache)
        assert round_trip.call(compiled[round_trip.name], b'[1,{"a":null}]') == (30, b'[\n  1,\n  {\n    "a": null\n  }\n]')
        assert "parse_error" in repr(round_trip.call(compiled[round_trip.name], b"[1, 2"))
