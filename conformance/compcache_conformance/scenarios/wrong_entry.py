"""One program's code for another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache_conformance.language import Constant, Function, Program, program
from compcache_conformance.results import Outcome, Violation
from compcache_conformance.scenarios.registry import Step, in_steps, scenario
from compcache_conformance.scenarios.scale import many_entries

if TYPE_CHECKING:
    from compcache_conformance.bench import Bench


@scenario(
    "wrong entry",
    "forks with one name",
    "Two programs that share a store and have the same file and function names get their own code.",
    "numba/numba#10486",
)
def forks_with_one_name(bench: Bench) -> None:
    other = bench.root / "fork"
    other.mkdir()
    bench.write(program("g(x) + 1.0", g="x * 2.0"))
    bench.write(program("g(x) + 1.0", g="x * 3.0"), other)
    for _ in range(2):
        bench.works(7.0)
        bench.works(10.0, folder=other)


@scenario(
    "wrong entry",
    "forks under one path",
    "Two programs that have the same path one after the other get their own code.",
    "numba/numba#10486",
)
def forks_under_one_path(bench: Bench) -> None:
    for factor in (2.0, 3.0, 2.0):
        aside = bench.root / f"aside-{len(list(bench.root.iterdir()))}"
        bench.project.rename(aside)
        bench.project.mkdir()
        bench.write(program(f"x * {factor} + 1.0"))
        bench.works(3.0 * factor + 1.0)


@scenario("wrong entry", "many alike", "Many functions that differ in one digit get their own code.", "NVIDIA/warp#1696")
def many_alike(bench: Bench) -> None:
    many = bench.look_at(many_entries)
    many.find(*range(len(many.calls)))
    bench.note(f"{len(many.calls)} functions")


_TWO = ("f", (3.0,)), ("g", (3.0,))
in_steps(
    "wrong entry",
    "bodies exchanged",
    "Two functions that exchange their bodies get the code of their new bodies.",
    "pymc-devs/pytensor#1670",
    Step(program("x * 2.0 + 1.0", g="x * 3.0 + 1.0"), (7.0, 10.0), _TWO),
    Step(program("x * 3.0 + 1.0", g="x * 2.0 + 1.0"), (10.0, 7.0), _TWO),
)

_DIFFERENCE = (("f", (5.0, 3.0)),)
in_steps(
    "wrong entry",
    "arguments exchanged",
    "A function with a different order of parameters is a different function.",
    "",
    Step(Program((Function("f", "a - b", ("a", "b")),)), (2.0,), _DIFFERENCE),
    Step(Program((Function("f", "a - b", ("b", "a")),)), (-2.0,), _DIFFERENCE),
)

in_steps(
    "wrong entry",
    "operands exchanged",
    "Code that differs in the order of operands is distinguished.",
    "",
    Step(program("x / 2.0 - 1.0"), (0.5,)),
    Step(program("2.0 / x - 1.0"), (2.0 / 3.0 - 1.0,)),
)

_CASES = program("x * 2.0 + 1.0", F="x * 3.0 + 1.0"), (7.0, 10.0), (("f", (3.0,)), ("F", (3.0,)))
in_steps(
    "wrong entry",
    "names that differ in case",
    "Functions whose names differ only in case get their own code.",
    "",
    Step(*_CASES),
    Step(*_CASES, found=True),
)

_LONG = "f" * 240
_LONG_NAMES = (
    Program((Function(f"{_LONG}1", "x * 2.0"), Function(f"{_LONG}2", "x * 3.0"))),
    (6.0, 9.0),
    ((f"{_LONG}1", (3.0,)), (f"{_LONG}2", (3.0,))),
)
in_steps(
    "wrong entry",
    "long names",
    "Functions whose names differ after 240 letters get their own code, and are found.",
    "",
    Step(*_LONG_NAMES),
    Step(*_LONG_NAMES, found=True),
)

_KINDS = program("x * 0.5 + 1.0"), (2.5, 2.75, 3.0), (("f", (3,)), ("f", (3.5,)), ("f", (4,)))
in_steps("wrong entry", "integer and float", "Code for one argument type is not run for another.", "", Step(*_KINDS), Step(*_KINDS))

in_steps(
    "wrong entry",
    "constants of two names",
    "Values that move from one constant to another are distinguished.",
    "",
    *(
        Step(program("x * K + L", K=Constant("K", first), L=Constant("L", second)), (answer,))
        for first, second, answer in ((2.0, 1.0, 7.0), (1.0, 2.0, 5.0))
    ),
)


def _table(middle: float) -> Constant:
    return Constant("K", (*(1.0 for _ in range(1000)), middle, *(1.0 for _ in range(1000))))


in_steps(
    "wrong entry",
    "tables that print alike",
    "Large tables that differ in the middle are distinguished.",
    "",
    *(Step(program("x * K[1000] + 1.0", K=_table(middle)), (3.0 * middle + 1.0,)) for middle in (2.0, 3.0)),
)


@scenario("wrong entry", "two stores", "A process with a different store does not find the code in the first store.", "")
def two_stores(bench: Bench) -> None:
    bench.filled(program())
    other = bench.root / "other store"
    other.mkdir(mode=0o700)
    run = bench.works(store=other)
    if run.first.found:
        raise Violation(Outcome.WRONG, "found in a store that is empty")
