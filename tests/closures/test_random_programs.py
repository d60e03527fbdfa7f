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
    from collections.abc import Callable
    from pathlib import Path

#: How many programs are drawn by default, and by the long test.
FEW, MANY = 10, int(os.environ.get("RANDOM_PROGRAMS", "100"))
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


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[tuple[Program, list[int]]]]:
    """The first programs, each with what it gives; each is compiled once."""
    known: list[tuple[Program, list[int]]] = []

    def draw(number: int) -> list[tuple[Program, list[int]]]:
        for seed in range(len(known), number):
            program = random_program(seed)
            known.append((program, expected(program, tmp_path_factory.mktemp("program"))))
        return known[:number]

    return draw


@pytest.mark.slow
@pytest.mark.parametrize("number", [FEW, pytest.param(MANY, marks=[pytest.mark.stress, pytest.mark.timeout(900)])])
@pytest.mark.parametrize("way", ["unlinked", "linked", "mixed", "set"])
def test_programs_give_what_a_shared_object_gives(
    tmp_path: Path, drawn: Callable[[int], list[tuple[Program, list[int]]]], way: str, number: int
) -> None:
    programs: list[tuple[str, Any]] = []
    wanted, linked = [], 0
    for seed, (program, right) in enumerate(drawn(number)):
        wanted.append(right)
        linked += stored(program, tmp_path / str(seed), way)
        programs.append((str(tmp_path / str(seed)), program.calls))
    assert (linked > number // 3) == (way != "unlinked")
    got = run_fresh(tmp_path, _RUN.format(programs=programs))
    different = [seed for seed, (found, right) in enumerate(zip(got, wanted, strict=True)) if found != right]
    assert not different, different
