"""Values and statistics of a benchmark run: samples taken in turns, outcomes against goals, the printed table."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PACKAGES = ("llvmlite", "filelock", "msgpack", "numpy", "ziglang")


@dataclass(frozen=True, slots=True)
class Samples:
    """What one side of a comparison took, one value for each repetition."""

    label: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value: what to expect."""
        return statistics.median(self.values)

    @property
    def minimum(self) -> float:
        """The smallest value: what it takes when nothing else runs."""
        return min(self.values)

    def as_json(self) -> dict[str, Any]:
        """The samples with their statistics, rounded to what is meaningful."""
        return {
            "label": self.label,
            "unit": self.unit,
            "repetitions": len(self.values),
            "median": _round(self.median),
            "minimum": _round(self.minimum),
            "maximum": _round(max(self.values)),
            "values": [_round(value) for value in self.values],
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the table: a ratio (or an absolute figure) and its goal, smaller being better.

    `subject` and `baseline` are the sides that make the ratio; without a baseline the figure is the subject's median.
    `others` are for orientation. A row without a goal is one, too.
    """

    title: str
    subject: Samples
    baseline: Samples | None = None
    goal: float | None = None
    others: tuple[Samples, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> float:
        """The ratio of the medians, or the median."""
        return self.subject.median / (self.baseline.median if self.baseline else 1.0)

    @property
    def measured_minima(self) -> float:
        """The ratio of the minima, or the minimum: steadier on a busy machine."""
        return self.subject.minimum / (self.baseline.minimum if self.baseline else 1.0)

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached, by the medians and by the minima; None without a goal.

        What else runs on the machine adds to both sides alike, which draws a ratio of medians towards one.
        """
        return None if self.goal is None else max(self.measured, self.measured_minima) <= self.goal

    @property
    def unit(self) -> str:
        """What the figure counts: times the baseline, or the subject's unit."""
        return "x" if self.baseline else " " + self.subject.unit

    @property
    def sides(self) -> tuple[Samples, ...]:
        """Everything that was measured for this row."""
        return tuple(side for side in (self.subject, self.baseline, *self.others) if side is not None)

    def as_json(self) -> dict[str, Any]:
        """The row with its raw samples."""
        return {
            "title": self.title,
            "measured": _round(self.measured),
            "measured_minima": _round(self.measured_minima),
            "unit": self.unit.strip(),
            "goal": self.goal,
            "reached": self.reached,
            "subject": self.subject.label,
            "baseline": self.baseline.label if self.baseline else None,
            "sides": [side.as_json() for side in self.sides],
            "notes": list(self.notes),
            "facts": dict(self.facts),
        }


def _round(value: float) -> float:
    return float(f"{value:.5g}")


def in_turns(
    sides: Mapping[str, Callable[[], float]], repetitions: int, unit: str, warm_up: int = 1
) -> list[Samples]:
    """Take every side's sample once per repetition, in alternating order, so that noise meets all sides alike.

    Each side is called as `side()` and returns its own figure. The first `warm_up` repetitions do not count.
    """
    values: dict[str, list[float]] = {label: [] for label in sides}
    for repetition in range(repetitions + warm_up):
        order = list(sides.items())
        for label, side in order if repetition % 2 else reversed(order):
            value = side()
            if repetition >= warm_up:
                values[label].append(value)
    return [Samples(label, unit, tuple(taken)) for label, taken in values.items()]


def show(value: float) -> str:
    """A figure with three significant digits, and no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def table(outcomes: Iterable[Outcome]) -> str:
    """The outcomes as a text table, each row followed by its raw medians and notes."""
    rows = [("measure", "measured", "by minima", "goal", "reached")]
    details: list[list[str]] = [[]]
    for outcome in outcomes:
        goal = "" if outcome.goal is None else f"{outcome.goal:g}{outcome.unit}"
        reached = {None: "", True: "yes", False: "NO"}[outcome.reached]
        figures = (
            f"{show(outcome.measured)}{outcome.unit}",
            f"{show(outcome.measured_minima)}{outcome.unit}",
        )
        rows.append((outcome.title, *figures, goal, reached))
        details.append(_details(outcome))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row, more in zip(rows, details, strict=True):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        lines += [f"    {line}" for line in more]
    rule = "-" * (sum(widths) + 2 * len(widths) - 2)
    return "\n".join([lines[0], rule, *lines[1:]])


def _details(outcome: Outcome) -> list[str]:
    lines = [
        f"{side.label}: median {show(side.median)} {side.unit}, minimum {show(side.minimum)}, n={len(side.values)}"
        for side in outcome.sides
    ]
    lines += [f"{name}: {value}" for name, value in outcome.facts.items()]
    return [*lines, *outcome.notes]


def describe_run(arguments: Sequence[str], revision: str) -> dict[str, Any]:
    """Machine, versions and command of this run."""
    return {
        "command": " ".join(["python", "benchmarks/run.py", *arguments]),
        "revision": revision,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "architecture": platform.machine(),
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "libc": " ".join(platform.libc_ver()),
            "load_average": [round(value, 2) for value in os.getloadavg()],
        },
        "versions": {"python": f"{platform.python_implementation()} {sys.version.split()[0]}", **_versions()},
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    import llvmlite.binding as llvm

    found["llvm"] = ".".join(map(str, llvm.llvm_version_info))
    return found
