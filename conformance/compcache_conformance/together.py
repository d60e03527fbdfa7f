"""Scenarios whose programs alone differ, played side by side: one program has the parts of all, and a process answers the calls of each.

Files, functions and constants of each scenario have names of their own, so that an edit of one touches nothing of another. That says
"held" alone: a scenario of which anything else is seen is played by itself, and that is what its cell says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from compcache_conformance.language import Program, tagged
from compcache_conformance.results import Cannot, Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from compcache_conformance.bench import Bench
    from compcache_conformance.processes import Call, Reply, Run
    from compcache_conformance.scenarios import Scenario
    from compcache_conformance.scenarios.registry import Step

__all__ = ["held_together"]


@dataclass
class _Part:
    """What one scenario does in each process: rows of steps. Odd rows are those in which everything may be found."""

    scenario: Scenario
    tag: str
    rows: dict[int, Step] = field(default_factory=dict)

    def __post_init__(self) -> None:
        called: set[tuple[Program, Call]] = set()
        for step in _processes(self.scenario.steps):
            now = {(step.program, call) for call in step.calls}
            row = max(self.rows, default=-1) + 1
            self.rows[row + (row % 2 != (step.found is True or now <= called))] = step
            called |= now

    def step(self, row: int) -> Step:
        """The last one until then."""
        return self.rows[max(number for number in self.rows if number <= row)]

    def calls(self, row: int) -> list[Call]:
        """What it calls in a process, by the names of the whole program."""
        return [(name + self.tag, arguments) for name, arguments in self.rows[row].calls] if row in self.rows else []


def _processes(steps: Iterable[Step]) -> Iterable[Step]:
    for step in steps:
        yield step
        if step.fills:
            yield replace(step, found=True)


def held_together(bench: Bench, scenarios: Iterable[Scenario]) -> frozenset[str]:
    """The names of those of the scenarios that hold where all of them are played at once."""
    adapter = bench.adapter
    playable = [scenario for scenario in scenarios if scenario.steps and scenario.name not in adapter.excluded]
    playable = [scenario for scenario in playable if all(step.program.shapes <= adapter.shapes for step in scenario.steps)]
    parts = [_Part(scenario, f"_{number}") for number, scenario in enumerate(playable)]
    if adapter.is_whole or not parts:
        return frozenset()
    held = set(parts_by_name := {part.scenario.name: part for part in parts})
    for row in range(1 + max(max(part.rows) for part in parts)):
        held -= _failed(bench, parts_by_name, row)
    return frozenset(held)


def _failed(bench: Bench, parts: Mapping[str, _Part], row: int) -> set[str]:
    """Those of which a process says anything but what must hold; all of them where it ends otherwise than it should."""
    programs = [tagged(part.step(row).program, part.tag) for part in parts.values()]
    functions = tuple(function for program in programs for function in program.functions)
    calls = [call for part in parts.values() for call in part.calls(row)]
    try:
        bench.write(Program(functions, tuple(constant for program in programs for constant in program.constants)))
        run = bench.run(*calls)
        bench.survived(run)
    except (Violation, Cannot):
        return set(parts)
    replies = iter(_in_order(run, len(calls)))
    failed = set()
    for name, part in parts.items():
        own = [next(replies) for _ in part.calls(row)]
        if own and not _holds(part.rows[row], own):
            failed.add(name)
    return failed


def _in_order(run: Run, count: int) -> list[Reply | None]:
    known = {reply.call: reply for reply in run.replies}
    return [known.get(number) for number in range(count)]


def _holds(step: Step, replies: list[Reply | None]) -> bool:
    """What `Bench.expect` asks for, and that a system that must say whether it found says so."""
    for number, reply in enumerate(replies):
        if reply is None or reply.error is not None or reply.answer is None:
            return False
        if step.found is not None and reply.found is not step.found:
            return False
        if step.answers and not reply.is_right(step.answers[number]):
            return False
    return True
