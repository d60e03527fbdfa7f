"""Work that is done again without need."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from compcache_conformance.language import Constant, Function, Program, edited, program
from compcache_conformance.scenarios.registry import Step, in_steps, scenario

if TYPE_CHECKING:
    from pathlib import Path

    from compcache_conformance.bench import Bench

_TWO_FILES = Program((Function("g", "x * 2.0", file="helper"), Function("f", "g(x) + 1.0")))

#: Environments that change nothing in the code: name, sentence, origin, variables; "~" is a new folder.
_ENVIRONMENTS = (
    ("other HOME", "A different home directory alone does not cause a compilation.", "vllm-project/vllm#47573", {"HOME": "~"}),
    (
        "variable that does not matter",
        "An environment variable that no code reads does not cause a compilation.",
        "",
        {"BUILD_NUMBER": "1234", "SHLVL": "7"},
    ),
    ("other hash seed", "A different hash seed of Python does not cause a compilation.", "NVIDIA/warp#1696", {"PYTHONHASHSEED": "12345"}),
    ("other locale", "A different locale does not cause a compilation.", "", {"LC_ALL": "C.UTF-8", "LANG": "C.UTF-8", "LANGUAGE": "de"}),
    ("other time zone", "A different time zone does not cause a compilation.", "", {"TZ": "Pacific/Auckland"}),
    ("other temporary directory", "A different $TMPDIR does not cause a compilation.", "", {"TMPDIR": "~"}),
    ("other user name", "Other user names in the environment cause no compilation.", "", {"USER": "somebody", "LOGNAME": "somebody"}),
    (
        "other terminal",
        "A different terminal or terminal size does not cause a compilation.",
        "",
        {"TERM": "xterm-256color", "COLUMNS": "211", "NO_COLOR": "1"},
    ),
    (
        "other thread count",
        "A different number of threads does not cause a compilation of scalar code.",
        "",
        {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    ),
)

for _name, _sentence, _origin, _variables in _ENVIRONMENTS:

    def _play(bench: Bench, variables: dict[str, str] = _variables) -> None:
        bench.filled(program())
        other = bench.root / "other"
        other.mkdir()
        bench.keeps(env={name: str(other) if value == "~" else value for name, value in variables.items()})

    scenario("missed", _name, _sentence, _origin)(_play)


in_steps(
    "missed",
    "second process",
    "A second process finds the code that the first compiled.",
    "NVIDIA/warp#1696",
    Step(program()),
    Step(program(), found=True),
)

_THREE = program("x * 2.0 + 1.0", a="x + 1.0", b="x + 2.0")
_CALLS = ("a", (3.0,)), ("b", (3.0,)), ("f", (3.0,))
in_steps(
    "missed",
    "many processes",
    "The next process finds all code that several earlier processes compiled, each part once.",
    "",
    Step(_THREE, (4.0,), _CALLS[:1]),
    Step(_THREE, (5.0,), _CALLS[1:2]),
    Step(_THREE, (7.0,), _CALLS[2:]),
    Step(_THREE, (4.0, 5.0, 7.0), _CALLS, found=True),
)


def _touch(folder: Path, when: float) -> None:
    for path in folder.iterdir():
        os.utime(path, (when, when))


@scenario(
    "missed",
    "touched files",
    "Sources with new times and the same text do not cause a compilation: a checkout, a container, a copy.",
    "numba/numba#10776",
)
def touched_files(bench: Bench) -> None:
    bench.filled(_TWO_FILES)
    _touch(bench.project, time.time() + 5)
    bench.keeps()


@scenario(
    "missed",
    "files of 1980",
    "Sources with normalized times, as in reproducible builds, do not cause a compilation.",
    "Deltares/numba_celltree#79",
)
def normalized_times(bench: Bench) -> None:
    bench.filled(_TWO_FILES)
    _touch(bench.project, 315_532_800)
    bench.keeps()


@scenario("missed", "moved sources", "The same sources in a different folder do not cause a compilation.", "kunobi-ninja/kache#93")
def moved_sources(bench: Bench) -> None:
    bench.filled(_TWO_FILES)
    moved = bench.root / "elsewhere"
    bench.project.rename(moved)
    bench.keeps(folder=moved)


@scenario("missed", "other working directory", "A process that is started in a different folder finds stored code.", "")
def other_working_directory(bench: Bench) -> None:
    bench.filled(_TWO_FILES)
    bench.keeps(cwd=bench.root)


@scenario("missed", "moved lines", "Code that moves down in its file is not compiled again.", "")
def moved_lines(bench: Bench) -> None:
    bench.filled(program())
    bench.write(replace(program(), comment="a comment of\n# two lines" if bench.adapter.spelling else "a comment of\n two lines"))
    bench.keeps()


@scenario("missed", "edited comment", "An edited comment does not cause a compilation.", "")
def edited_comment(bench: Bench) -> None:
    bench.filled(replace(program(), comment="one comment"))
    bench.write(replace(program(), comment="another one"))
    bench.keeps()


_WITH_NEIGHBOUR = Program((Function("f", "x * 2.0 + 1.0"), Function("a", "x + 5.0")))
in_steps(
    "missed",
    "new function in the file",
    "A function that is added to a file does not cause a compilation of the file's other functions.",
    "numba/numba#9316",
    Step(program(), fills=True),
    Step(_WITH_NEIGHBOUR, found=True),
)

in_steps(
    "missed",
    "edited neighbour",
    "An edit of a function that is not called does not cause a compilation of the file's other functions.",
    "numba/numba#9316",
    Step(_WITH_NEIGHBOUR, fills=True),
    Step(edited(_WITH_NEIGHBOUR, "a", body="x + 6.0"), found=True),
)

in_steps(
    "missed",
    "edit taken back",
    "After an edit is reverted, the code from before the edit is found.",
    "",
    Step(program(), fills=True),
    Step(program("x * 3.0 + 1.0"), (10.0,)),
    Step(program(), found=True),
)


@scenario("missed", "two checkouts", "Two versions of a program that share a store each find their own code.", "")
def two_checkouts(bench: Bench) -> None:
    other = bench.root / "other"
    other.mkdir()
    bench.filled(program())
    bench.write(program("x * 3.0 + 1.0"), other)
    bench.works(10.0, folder=other)
    bench.keeps()
    bench.keeps(10.0, folder=other)


@scenario("missed", "large constant", "A function that reads a table of 20,000 numbers is found.", "pymc-devs/pytensor#1759")
def large_constant(bench: Bench) -> None:
    table = tuple(float(number) for number in range(20_000))
    bench.write(program("x * K[2] + 1.0", K=Constant("K", table)))
    bench.works()
    bench.keeps()


@scenario("missed", "copied store", "A store that is copied with its times works like the original.", "")
def copied_store(bench: Bench) -> None:
    bench.filled(program())
    bench.keeps(store=bench.copy())


@scenario(
    "missed",
    "copied store without times",
    "A store that is copied without its times, into an image or by a CI system, works like the original.",
    "",
)
def copied_without_times(bench: Bench) -> None:
    bench.filled(program())
    target = bench.copy()
    for path in sorted(target.rglob("*")):
        if path.is_file():
            os.utime(path)
    bench.keeps(store=target)


@scenario(
    "missed",
    "entries of long ago",
    "Entries that are twenty years old are found, or are compiled once more and then found.",
    "moonrepo/moon#2651",
)
def entries_of_long_ago(bench: Bench) -> None:
    bench.filled(program())
    for path in bench.files():
        os.utime(path, (1_150_000_000, 1_150_000_000))
    bench.works()
    bench.keeps(why="what is old is compiled again by every process")


@scenario("missed", "error in between", "A program that ends with an error in one function keeps the code that it compiled before.", "")
def error_in_between(bench: Bench) -> None:
    bench.write(program("x * 2.0 + 1.0", a="x + 1.0"))
    bench.run(("f", (3.0,)), ("there_is_none", (3.0,)))
    bench.keeps()


in_steps(
    "missed",
    "calls in another order",
    "A different order of calls does not cause a compilation.",
    "",
    Step(_THREE, (4.0, 5.0, 7.0), _CALLS),
    Step(_THREE, (7.0, 5.0, 4.0), _CALLS[::-1], found=True),
)

in_steps(
    "missed",
    "callee called alone",
    "A caller is found even if its callee was compiled into it.",
    "",
    Step(_TWO_FILES, fills=True),
    Step(_TWO_FILES, (6.0, 7.0), (("g", (3.0,)), ("f", (3.0,)))),
    Step(_TWO_FILES, (7.0, 6.0), (("f", (3.0,)), ("g", (3.0,))), found=True),
)
