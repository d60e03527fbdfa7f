"""Results as rows and columns, which the reports share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from compcache_conformance.results import Outcome
from compcache_conformance.runner import RACE_RUNS
from compcache_conformance.scenarios import FAMILIES, SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache_conformance.results import Result
    from compcache_conformance.scenarios import Scenario

__all__ = ["Table", "is_ours"]

_OURS = "compcache"


def is_ours(system: str) -> bool:
    """Whether a system is of the project that the suite comes from: its losses stand first."""
    return system.startswith(_OURS)


@dataclass(frozen=True, slots=True)
class Table:
    """The cells by scenario and system."""

    cells: dict[tuple[str, str], Result]
    systems: tuple[str, ...]

    @classmethod
    def of(cls, results: Iterable[Result]) -> Table:
        """The table of results; ours first, then the others by name."""
        cells = {(result.scenario, result.system): result for result in results if result.scenario in SCENARIOS}
        systems = sorted({system for _, system in cells}, key=lambda system: (not is_ours(system), system))
        return cls(cells, tuple(systems))

    def rows(self, family: str) -> list[Scenario]:
        """The scenarios of a family that were played: those that one of ours lost first."""
        rows = [s for s in SCENARIOS.values() if s.family == family and any((s.name, system) in self.cells for system in self.systems)]
        return sorted(rows, key=lambda row: not self._lost_by_us(row.name))

    def is_one_run(self, result: Result) -> bool:
        """Whether chance decides, and the cell says what came of one run (`--quick`)."""
        return SCENARIOS[result.scenario].races and result.result != Outcome.CANNOT and result.runs < RACE_RUNS

    def families(self) -> list[str]:
        """The families that have rows."""
        return [family for family in FAMILIES if self.rows(family)]

    def cell(self, scenario: str, system: str) -> Result | None:
        """One cell; None where it was not played."""
        return self.cells.get((scenario, system))

    def losses(self, *, ours: bool) -> list[Result]:
        """What was lost, the worst first."""
        order = list(Outcome)
        lost = [result for result in self.cells.values() if Outcome(result.result).is_loss and is_ours(result.system) is ours]
        return sorted(lost, key=lambda result: (order.index(Outcome(result.result)), result.scenario, result.system))

    def counts(self, system: str) -> dict[str, int]:
        """How often each outcome came of a system's scenarios."""
        found = [result.result for (_, of), result in self.cells.items() if of == system]
        return {outcome.value: found.count(outcome.value) for outcome in Outcome}

    def version(self, system: str) -> str:
        """The version that was played; where cells are of several, all of them."""
        return ", ".join(sorted({result.version for (_, of), result in self.cells.items() if of == system and result.version}))

    def why_not(self, system: str) -> str:
        """Why a system could not be played at all; empty where it was."""
        details = {result.detail for (_, of), result in self.cells.items() if of == system}
        all_cannot = all(result.result == Outcome.CANNOT for (_, of), result in self.cells.items() if of == system)
        return next(iter(details)) if all_cannot and len(details) == 1 else ""

    def _lost_by_us(self, scenario: str) -> bool:
        return any(
            (cell := self.cell(scenario, system)) is not None and Outcome(cell.result).is_loss for system in self.systems if is_ours(system)
        )
