"""The goals of the project: what `benchmarks/run.py` measures, in the same run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from compare.tables import figure, rows

if TYPE_CHECKING:
    from compare.context import Context

TITLE = "The goals"
MEASURES = (
    "fresh_process", "module_size", "cache_size", "first_load", "repeated_lookup", "call_overhead", "memory",
)  # fmt: skip


def measure(context: Context) -> list[dict[str, Any]]:
    outcomes: list[Any] = []
    for name in MEASURES:
        outcomes += importlib.import_module(f"measures.{name}").measure(context.workspace)
    return [outcome.as_json() for outcome in outcomes]


def markdown(record: dict[str, Any]) -> str:
    body = []
    for row in record["results"]:
        unit = "" if row["unit"] == "x" else f" {row['unit']}"
        goal = "-" if row["goal"] is None else f"{figure(row['goal'])}{unit}"
        reached = {None: "", True: "yes", False: "**no**"}[row["reached"]]
        body.append(
            [
                row["title"],
                f"{figure(row['measured'])}{unit}",
                f"{figure(row['measured_minima'])}{unit}",
                goal,
                reached,
            ]
        )
    return "\n\n".join([
        ("Ratios measured by `benchmarks/run.py` ([how](../benchmarks/README.md)), compared with the project's goals. A goal is"
         " reached if both the medians and the minima reach it."),
        rows(["measure", "by medians", "by minima", "goal", "reached"], body),
    ])  # fmt: skip


def plot(record: dict[str, Any], figure_: Any) -> None:
    shown = [row for row in record["results"] if row["goal"]]
    axes = figure_.subplots()
    axes.barh([row["title"] for row in shown], [row["measured_minima"] / row["goal"] for row in shown])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("measured / goal (minima); left of the line is reached")
