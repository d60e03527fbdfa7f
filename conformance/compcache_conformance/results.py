"""What came of a scenario with a system."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Cannot", "Lacking", "Outcome", "Result", "Violation", "load", "merge", "save", "to_json", "to_summary", "write_whole"]


class Outcome(StrEnum):
    """What a cell of the table says, the worst first."""

    WRONG = "wrong answer"
    CRASH = "crash"
    HANG = "hang"
    ERROR = "raw error"
    LOST = "lost"
    MISSED = "missed"
    HELD = "held"
    CANNOT = "cannot"

    @property
    def is_loss(self) -> bool:
        """Whether the system did not do what the scenario asks for."""
        return self not in {Outcome.HELD, Outcome.CANNOT}


class Violation(Exception):  # noqa: N818 - it is a finding about a system, no error of the suite
    """Raised by a scenario when what must hold does not."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


class Cannot(Exception):  # noqa: N818 - neither
    """Raised when a system has no such thing, or this machine cannot show it; the text says why."""


class Lacking(Cannot):
    """Raised when this machine has not what it takes to show it, whatever the system."""

    def __init__(self, why: str) -> None:
        super().__init__(f"this machine: {why}")


@dataclass(frozen=True, slots=True)
class Result:
    """One cell: what came of one scenario with one system."""

    scenario: str
    family: str
    system: str
    result: str
    seconds: float
    detail: str = ""
    note: str = ""
    log: str = ""
    version: str = ""
    runs: int = 1


def to_json(results: Iterable[Result]) -> str:
    """Results as JSON: ``{"results": [{"scenario", "family", "system", "result", "seconds", "detail", ...}, ...]}``."""
    return json.dumps({"results": [asdict(result) for result in results]}, indent=1) + "\n"


def to_summary(results: Iterable[Result]) -> str:
    """As JSON, without logs: what a page is made of, and what later runs are compared with."""
    return to_json(replace(result, log="") for result in results)


def save(path: Path, results: Iterable[Result]) -> None:
    """Write results as JSON, in one step."""
    write_whole(path, to_json(results))


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step, so that what was there stays where the disk is full."""
    if path.exists() and not path.is_file():  # a device, or a pipe
        path.write_text(text)
        return
    made = path.with_name(f"{path.name}.new")
    try:
        made.write_text(text)
        made.rename(path)
    except OSError:
        made.unlink(missing_ok=True)
        raise


def load(path: Path) -> list[Result]:
    """Read what `save` wrote."""
    return [Result(**row) for row in json.loads(path.read_text())["results"]]


def merge(older: Iterable[Result], newer: Iterable[Result]) -> list[Result]:
    """The results of two runs; of one cell the newer one."""
    cells = {(result.system, result.scenario): result for result in older}
    cells.update({(result.system, result.scenario): result for result in newer})
    return list(cells.values())
