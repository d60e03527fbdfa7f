"""Programs give what one ordinary shared object of the same code gives: unlinked, linked function by function, in part, and as a set."""

from __future__ import annotations

import ctypes
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from helpers import compile_object, run_fresh
from random_programs import Program, random_program

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from pathlib import Path

SEEDS = range(int(os.environ.get("RANDOM_PROGRAMS", "30")))
_RUN = """\
from compcache import Cache
result = []
for path, calls in {programs!r}:
    with Cache(path) as cache:
        held = [cache.get_target(name) for name, _ in calls]
        result.append([target(argument) & (1 << 64) - 1 for target, (_, argument) in zip(held, calls)])
"""


def expected(program: Program, directory: Path) -> list[int]:
    """What the program gives as one shared object, in this process, which has loaded no other copy."""
    objects = []
    for number, text in enumerate(program.modules):
        path = directory / f"{number}.o"
        path.write_bytes(compile_object(text))
        objects.append(str(path))
    library = directory / "whole.so"
    subprocess.run(["cc", "-shared", "-Wl,-Bsymbolic", *objects, "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    results = []
    for name, argument in program.calls:
        function = getattr(loaded, name)
        function.restype, function.argtypes = ctypes.c_uint64, (ctypes.c_uint64,)
        results.append(function(argument))
    return results


def stored(program: Program, directory: Path, way: str) -> int:
    """Store a program, linked in this way; the number of linked closures."""
    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(text, optimize=number % 3) for number, text in enumerate(program.modules)])
        if way == "unlinked":
            return 0
        if way == "set":
            return len(cache.link(program.functions, into="all").linked)
        return len(cache.link(program.functions[:: 2 if way == "mixed" else 1]).linked)


@pytest.mark.parametrize("way", ["unlinked", "linked", "mixed", "set"])
def test_programs_give_what_a_shared_object_gives(tmp_path: Path, way: str) -> None:
    programs: list[tuple[str, Any]] = []
    wanted, linked = [], 0
    for seed in SEEDS:
        place = tmp_path / str(seed)
        place.mkdir()
        program = random_program(seed)
        wanted.append(expected(program, place))
        linked += stored(program, place / "cache", way)
        programs.append((str(place / "cache"), program.calls))
    assert (linked > len(SEEDS) // 3) == (way != "unlinked")
    got = run_fresh(tmp_path, _RUN.format(programs=programs))
    different = [seed for seed, found, right in zip(SEEDS, got, wanted, strict=True) if found != right]
    assert not different, different
