"""Prune, check and merging the index against the size of the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from filling import PER_MODULE, add_small, fill

from compare.tables import figure, rows

if TYPE_CHECKING:
    from compare.context import Context

TITLE = "Maintenance"


def measure(context: Context) -> dict[str, Any]:
    counts = [100, 1000] if context.quick else [100, 1000, 10_000]
    result: dict[str, Any] = {"functions_per_module": PER_MODULE, "counts": counts, "runs": {}}
    for count in counts:
        directory = context.workspace.fresh_directory("maintenance")
        add_small(directory)
        filled = fill(directory, count, sync=False)
        taken = context.program("maintenance_turn", directory, count, timeout=600)
        result["runs"][str(count)] = {
            **taken,
            "index_bytes": filled.index_bytes,
            "slowest_add_ms": filled.slowest_ms,
        }
    return result


def markdown(record: dict[str, Any]) -> str:
    result = record["results"]
    runs = result["runs"]
    names = list(next(iter(runs.values()))["seconds"])
    header = [
        f"modules of {result['functions_per_module']} functions",
        *(f"{count:,}" for count in result["counts"]),
    ]
    body = [[f"{name}, ms", *(figure(run["seconds"][name] * 1e3) for run in runs.values())] for name in names]
    body.append(
        ["slowest addition while filling, ms", *(figure(run["slowest_add_ms"]) for run in runs.values())]
    )
    body.append(["segments of the index before merging", *(str(run["segments"]) for run in runs.values())])
    body.append(["index, KiB", *(figure(run["index_bytes"] / 1024) for run in runs.values())])
    return "\n\n".join([
        ("One run for each size. A fresh process performs all operations in the order of the table. `check` reads every file and"
         " compares digests. Only `prune to 90 %` changes the cache. Additions merge the index automatically, so the slowest addition"
         " includes the cost of a merge."),
        rows(header, body),
    ])  # fmt: skip


def plot(record: dict[str, Any], figure_: Any) -> None:
    result = record["results"]
    axes = figure_.subplots()
    for name in next(iter(result["runs"].values()))["seconds"]:
        values = [run["seconds"][name] * 1e3 for run in result["runs"].values()]
        axes.plot(result["counts"], values, "o-", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("modules in the cache")
    axes.set_ylabel("ms")
    axes.legend()
