"""Old code for a new program."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from compcache_conformance.language import Constant, Function, Program, edited, program
from compcache_conformance.scenarios.registry import Step, in_steps, scenario

if TYPE_CHECKING:
    from compcache_conformance.bench import Bench


def _helper(body: str) -> Program:
    return Program((Function("g", body, file="helper"), Function("f", "g(x) + 1.0")))


#: Edits of one function or constant: name, sentence, origin, program, what is changed and how, the answers of f(3.0) before and after.
_EDITS = (
    ("edited function", "An edited body is compiled.", "", program(), "f", {"body": "x * 3.0 + 1.0"}, 7.0, 10.0),
    (
        "callee in another file",
        "An edit of a function in another file reaches its callers.",
        "numba/numba#1833",
        _helper("x * 2.0"),
        "g",
        {"body": "x * 3.0"},
        7.0,
        10.0,
    ),
    (
        "callee in the same file",
        "An edit of a function reaches its callers in the same file.",
        "",
        program("g(x) + 1.0", g="x * 2.0"),
        "g",
        {"body": "x * 3.0"},
        7.0,
        10.0,
    ),
    (
        "callee of a callee",
        "An edit reaches callers over two steps and two files.",
        "numba/numba#1833",
        Program((Function("h", "x * 2.0", file="deep"), Function("g", "h(x)", file="helper"), Function("f", "g(x) + 1.0"))),
        "h",
        {"body": "x * 3.0"},
        7.0,
        10.0,
    ),
    (
        "callee of other arity",
        "A callee whose parameters changed is called in the new way.",
        "numba/numba#1833",
        _helper("x * 2.0"),
        "g",
        {"body": "0.0 - x"},
        7.0,
        -2.0,
    ),
    (
        "constant in the file",
        "An edited constant is used.",
        "",
        program("x * K + 1.0", K=Constant("K", 2.0)),
        "K",
        {"value": 3.0},
        7.0,
        10.0,
    ),
    (
        "constant in another file",
        "An edited constant in another file is used.",
        "",
        program("x * K + 1.0", K=Constant("K", 2.0, file="helper")),
        "K",
        {"value": 3.0},
        7.0,
        10.0,
    ),
    (
        "constant of a callee",
        "An edited constant that only a callee in another file reads is used.",
        "numba/numba#1833",
        Program((Function("g", "x * K", file="helper"), Function("f", "g(x) + 1.0")), (Constant("K", 2.0, file="helper"),)),
        "K",
        {"value": 3.0},
        7.0,
        10.0,
    ),
    (
        "table",
        "An edited element of a constant table is used.",
        "",
        program("x * K[1] + 1.0", K=Constant("K", (1.0, 2.0))),
        "K",
        {"value": (1.0, 3.0)},
        7.0,
        10.0,
    ),
    (
        "closure",
        "A function with a different value of a closure variable is a different function.",
        "numba/numba#6093",
        Program((Function("f", "x * k + 1.0", closes_over=(("k", 2.0),)),)),
        "f",
        {"closes_over": (("k", 3.0),)},
        7.0,
        10.0,
    ),
    (
        "field of an object",
        "A field of a constant object that compiled code reads is part of the key.",
        "",
        program("x * K + 1.0", K=Constant("K", 2.0, source="record")),
        "K",
        {"value": 3.0},
        7.0,
        10.0,
    ),
    (
        "environment read while compiling",
        "An environment variable whose value becomes part of the code is part of the key.",
        "",
        program("x * K + 1.0", K=Constant("K", 2.0, source="environment")),
        "K",
        {"value": 3.0},
        7.0,
        10.0,
    ),
    (
        "data file read while compiling",
        "A file whose content becomes part of the code is part of the key.",
        "",
        program("x * K + 1.0", K=Constant("K", 2.0, source="data")),
        "K",
        {"value": 3.0},
        7.0,
        10.0,
    ),
    (
        "tool of a tool",
        "The output of a program that one of the front end's tools runs is part of the key.",
        "modular/modular#6549",
        program("x * K + 1.0", K=Constant("K", 2.0, source="tool")),
        "K",
        {"value": 3.0},
        7.0,
        10.0,
    ),
    (
        "header",
        "An edited header that another header includes is used.",
        "inducer/pyopencl#18",
        program("x * K + 1.0", K=Constant("K", 2.0, source="header")),
        "K",
        {"value": 3.0},
        7.0,
        10.0,
    ),
    (
        "file that assembly embeds",
        "An edited file that the code embeds by `.incbin` is used, although the program's text is the same.",
        "mozilla/sccache#2795",
        program("x * K + 1.0", K=Constant("K", 2.0, source="embedded")),
        "K",
        {"value": 3.0},
        7.0,
        10.0,
    ),
    (
        "sign of zero",
        "Constants that compare equal but differ are distinguished.",
        "",
        program("1.0 / (x * 0.0 + K) + 0.0", K=Constant("K", 1e-300)),
        "K",
        {"value": -1e-300},
        1e300,
        -1e300,
    ),
    (
        "last bit of a constant",
        "Constants that differ in their last digits are distinguished.",
        "",
        program("(x * K - x) * 1000000000.0", K=Constant("K", 1.000000001)),
        "K",
        {"value": 1.000000002},
        3.0000002,
        6.0000005,
    ),
    (
        "same length",
        "An edit that keeps the length of the file is detected.",
        "",
        program("x * 2.0 + 1.0"),
        "f",
        {"body": "x * 2.0 + 4.0"},
        7.0,
        10.0,
    ),
    (
        "default argument",
        "An edited default is used.",
        "",
        Program((Function("f", "x * k + 1.0", ("x", "k"), defaults=(2.0,)),)),
        "f",
        {"defaults": (3.0,)},
        7.0,
        10.0,
    ),
    (
        "callee that becomes slower",
        "A caller is linked again if its callee is replaced by one that does more.",
        "",
        _helper("x * 2.0"),
        "g",
        {"body": "x * 2.0 + (x - 3.0) * 5.0 + 3.0"},
        7.0,
        10.0,
    ),
)

for _name, _sentence, _origin, _before, _what, _changes, _old, _new in _EDITS:
    in_steps(
        "stale",
        _name,
        _sentence,
        _origin,
        Step(_before, (_old,), fills=True),
        Step(edited(_before, _what, **_changes), (_new,), why="the code of the program before the edit"),
        Step(_before, (_old,), why="the code of the program after the edit"),
    )


@scenario("stale", "same size and time", "An edit that keeps the size and times of the file is detected.", "")
def same_size_and_time(bench: Bench) -> None:
    bench.filled(program("x * 2.0 + 1.0"))
    states = {path: path.stat() for path in bench.project.iterdir() if path.is_file()}
    bench.write(program("x * 3.0 + 1.0"))
    for path, state in states.items():
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    bench.expect(bench.run(), 10.0, why="the code of the program before the edit")


@scenario("stale", "older file", "A file that is replaced by an older file is detected: a checkout of an earlier commit.", "")
def older_file(bench: Bench) -> None:
    bench.filled(program("x * 2.0 + 1.0"))
    bench.write(program("x * 3.0 + 1.0"))
    for path in bench.project.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))
    bench.expect(bench.run(), 10.0, why="the code of the program before the checkout")


_EXACT = Program((Function("f", "(x + 1e16) - 1e16"),))
_ONE = (("f", (1.0,)),)

in_steps(
    "stale",
    "fast arithmetic",
    "Code that may be inexact is not run if exact code is required.",
    "pymc-devs/pytensor#1810",
    Step(edited(_EXACT, "f", fast=True), (), _ONE),
    Step(_EXACT, (0.0,), _ONE, found=False, why="the code of the inexact function"),
)

in_steps(
    "stale",
    "package moved away and back",
    "Two versions of a program that take turns each get their own code.",
    "",
    *(Step(program(f"x * {factor} + 1.0"), (3.0 * factor + 1.0,), why="the code of the other version") for factor in (2.0, 3.0, 2.0, 3.0)),
)


@scenario("stale", "upgraded in place", "A program whose folder is replaced by another version's is compiled.", "")
def upgraded_in_place(bench: Bench) -> None:
    bench.filled(program("x * 2.0 + 1.0"))
    old = bench.project.with_name("old")
    bench.project.rename(old)
    bench.project.mkdir()
    bench.write(program("x * 3.0 + 1.0"))
    bench.expect(bench.run(), 10.0, why="the code of the version before")
    shutil.rmtree(bench.project)
    old.rename(bench.project)
    bench.expect(bench.run(), 7.0, why="the code of the version after")


in_steps(
    "stale",
    "file that appears",
    "After a callee moves into a new file, that file's code is used.",
    "",
    Step(program("g(x) + 1.0", g="x * 2.0"), fills=True),
    Step(_helper("x * 3.0"), (10.0,), why="the callee that was there before"),
)


@scenario("stale", "edited while it runs", "If a file is edited after a process read it, the next process gets new code.", "")
def edited_while_it_runs(bench: Bench) -> None:
    bench.write(program("x * 2.0 + 1.0"))
    pause = bench.new_pause()
    running = bench.start(pauses={"0": str(pause)})
    bench.wait_for_pause()
    bench.write(program("x * 3.0 + 1.0"))
    pause.touch()
    bench.survived(running.wait())
    bench.expect(bench.run(), 10.0, why="what the process before had read, stored for what it had not")
