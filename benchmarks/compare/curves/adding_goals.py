"""Additions and imports against what they are held against, by processor time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compare.tables import figure, rows

if TYPE_CHECKING:
    from compare.context import Context

TITLE = "Adding: the goals"


def measure(context: Context) -> dict[str, Any]:
    scratch = context.workspace.fresh_directory("add-goals")
    result: dict[str, Any] = context.program("add_goals", scratch, context.repetitions(30, 10), timeout=900)
    return result


def _ratios(record: dict[str, Any]) -> list[tuple[str, float, float, float]]:
    """What, its seconds, those that it is held against, and the goal of their ratio; minima."""
    results = record["results"]
    least = {part: {side: min(values) for side, values in sides.items()} for part, sides in results["seconds"].items()}
    tiny, realistic = least["tiny"], least["realistic"]
    return [
        ("a tiny module, to code generation alone", tiny["one"], tiny["alone"], 1.3),
        ("the first one of a directory", tiny["first"], tiny["alone"], 1.3),
        (f"each of {results['many']} in `add_modules`", tiny["each"], tiny["alone"], 1.2),
        (f"a module of {results['functions']} functions, to code generation alone", realistic["one"], realistic["alone"], 1.02),
    ]


def _import(record: dict[str, Any]) -> float:
    """Microseconds of an import."""
    results = record["results"]
    sides = results["seconds"]["imports"]
    of_each: float = (min(sides["one"]) - min(sides["alone"])) / results["imports"] * 1e6
    return of_each


def markdown(record: dict[str, Any]) -> str:
    body = [
        [
            what, figure(seconds * 1e3), figure(against * 1e3), figure(seconds / against), figure(goal),
            "yes" if seconds <= goal * against else "",
        ]
        for what, seconds, against, goal in _ratios(record)
    ]  # fmt: skip
    of_each = _import(record)
    imports = f"{record['results']['imports']:,}"
    body.append([f"an import of a load with {imports}, microseconds", figure(of_each), "", "", "2", "yes" if of_each <= 2 else ""])
    return "\n\n".join([
        "Milliseconds of processor time, minima of sides that take turns, without the disk's time for synchronization.",
        rows(["addition", "takes", "against", "ratio", "goal", "reached"], body),
    ])  # fmt: skip


def plot(record: dict[str, Any], figure_: Any) -> None:
    found = _ratios(record)[::-1]
    axes = figure_.subplots()
    axes.barh([what for what, *_ in found], [seconds / against for _, seconds, against, _ in found])
    axes.plot([goal for *_, goal in found], range(len(found)), "k|", markersize=24, label="goal")
    axes.set_xlabel("ratio, by minima")
    axes.legend()
