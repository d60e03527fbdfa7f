"""What adding costs above bare code generation, in time and on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness import Samples

from compare.tables import figure, pair, rows

if TYPE_CHECKING:
    from compare.context import Context

TITLE = "Adding"
KINDS = {"tiny": "two instructions each", "realistic": "20 to 100 instructions each"}


def measure(context: Context) -> dict[str, Any]:
    plan = {"tiny": [1, 10, 100, 1000], "realistic": [1, 10, 100] if context.quick else [1, 10, 100, 300]}
    result: dict[str, Any] = {}
    for kind, counts in plan.items():
        for count in counts:
            repetitions = (
                3
                if count >= 300
                else context.repetitions(9, 3)
                if count >= 100
                else context.repetitions(25, 6)
            )
            scratch = context.workspace.fresh_directory("add-costs")
            taken = context.program("add_costs", scratch, kind, count, repetitions)
            samples = taken["samples"].items()
            result.setdefault(kind, {})[str(count)] = {
                "ms": {label: Samples(label, "ms", tuple(values)).as_json() for label, values in samples},
                "bytes": taken["bytes"],
            }
    return result


def markdown(record: dict[str, Any]) -> str:
    parts = [
        (
            "Milliseconds of one addition. All sides run in one process, in turns: median (minimum). Code generation alone is"
            " parsing, the same optimization pipeline and `emit_object`. compcache's figure includes the fsync of the module's file."
        )
    ]
    for kind, by_count in record["results"].items():
        labels = list(next(iter(by_count.values()))["ms"])
        body = [[label, *(pair(entry["ms"][label]) if label in entry["ms"] else "" for entry in by_count.values())] for label in labels]
        body.append(
            ["ratio to code generation, by minima", *(figure(_ratio(entry)) for entry in by_count.values())]
        )
        body.append(
            ["above it, ms a module, by minima", *(figure(_above(entry)) for entry in by_count.values())]
        )
        parts.append(rows([f"functions of {KINDS[kind]}", *(f"{int(count):,}" for count in by_count)], body))
    parts.append(
        "Bytes on disk for each function (for compcache with its bitcode, dependency graph and records):"
    )
    for kind, by_count in record["results"].items():
        body = [
            [label, *(figure(entry["bytes"][key] / int(count)) for count, entry in by_count.items())]
            for key, label in (("module file", "compcache, module file"), ("object", "object as emitted"))
        ]
        parts.append(rows([f"functions of {KINDS[kind]}", *(f"{int(count):,}" for count in by_count)], body))
    return "\n\n".join(parts)


def _ratio(entry: dict[str, Any]) -> float:
    ratio: float = entry["ms"]["add_module"]["minimum"] / entry["ms"]["code generation alone"]["minimum"]
    return ratio


def _above(entry: dict[str, Any]) -> float:
    above: float = entry["ms"]["add_module"]["minimum"] - entry["ms"]["code generation alone"]["minimum"]
    return above


def plot(record: dict[str, Any], figure_: Any) -> None:
    left, right = figure_.subplots(1, 2)
    for kind, by_count in record["results"].items():
        counts = [int(count) for count in by_count]
        left.plot(counts, [_ratio(entry) for entry in by_count.values()], "o-", label=KINDS[kind])
        for key, style in (("module file", "o-"), ("object", "s--")):
            values = [entry["bytes"][key] / int(count) for count, entry in by_count.items()]
            right.plot(counts, values, style, label=f"{key}, {kind}")
    for axes, label in ((left, "add_module / code generation (minima)"), (right, "bytes a function")):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("functions in the module")
        axes.set_ylabel(label)
        axes.legend()
