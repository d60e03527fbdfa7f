"""What a scenario is, and where all of them are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache_conformance.bench import Bench
    from compcache_conformance.language import Program
    from compcache_conformance.processes import Call

__all__ = ["FAMILIES", "SCENARIOS", "Origin", "Scenario", "Step", "in_steps", "scenario"]

#: The families in the order of the table, each with its question.
FAMILIES = {
    "stale": "Is old code ever run for a new program?",
    "missed": "Is anything compiled again without need?",
    "wrong entry": "Is one program's code ever run for another program?",
    "races": "How do processes affect each other if they start at the same time, or end unexpectedly?",
    "damage": "What happens to a program whose cache is damaged?",
    "places": "What happens if files cannot be written, or not in the usual way?",
    "network": "What happens on a network file system?",
    "hosts": "Is code for another processor or host run, or compiled again without need?",
    "scale": "What do many entries cost?",
    "trust": "Whose code is run?",
    "living": "How do loaded functions behave in a process that continues?",
}

Origin = str


@dataclass(frozen=True, slots=True)
class Step:
    """A fresh process that makes calls of a program, and what they answer; without answers, whatever they do.

    `fills`: the program fills the store, and a second process tries that it does. `found`: each call must be found (True), or compiled.
    """

    program: Program
    answers: tuple[float, ...] = (7.0,)
    calls: tuple[Call, ...] = (("f", (3.0,)),)
    found: bool | None = None
    why: str = ""
    fills: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table: what is done, what must hold, and whose bug it was."""

    name: str
    family: str
    sentence: str
    origin: Origin
    play: Callable[[Bench], None]
    races: bool = False
    slow: bool = False
    steps: tuple[Step, ...] = ()

    @property
    def link(self) -> str:
        """Where the report is; nothing where the scenario comes from no report."""
        repository, _, number = self.origin.partition("#")
        return f"https://github.com/{repository}/issues/{number}" if number else ""


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    family: str, name: str, sentence: str, origin: Origin = "", *, races: bool = False, slow: bool = False
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Make a function that plays on a bench the scenario of this name.

    Args:
        family: one of `FAMILIES`.
        name: the row's name, which is stable.
        sentence: what must hold.
        origin: the report that it comes from, "owner/repository#number".
        races: chance decides; it is played three times before a cell says that it did not hold.
        slow: it takes minutes.
    """
    assert family in FAMILIES
    assert name not in SCENARIOS, name

    def register(play: Callable[[Bench], None]) -> Callable[[Bench], None]:
        SCENARIOS[name] = Scenario(name, family, sentence, origin, play, races, slow)
        return play

    return register


def in_steps(family: str, name: str, sentence: str, origin: Origin, *steps: Step) -> None:
    """Make a scenario of processes one after the other, whose programs alone differ: such may be played beside others (`together.py`)."""

    def play(bench: Bench) -> None:
        for step in steps:
            if step.fills:
                bench.filled(step.program, step.answers[0])
            else:
                bench.write(step.program)
                bench.expect(bench.run(*step.calls), *step.answers, found=step.found, why=step.why)

    scenario(family, name, sentence, origin)(play)
    SCENARIOS[name] = replace(SCENARIOS[name], steps=steps)
