"""Batch compilation against the number of workers."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from compare.sampling import probe_in_turns
from compare.tables import figure, pair, rows

if TYPE_CHECKING:
    from compare.context import Context

TITLE = "Batches"


def measure(context: Context) -> dict[str, Any]:
    jobs, functions = (24, 3) if context.quick else (80, 4)
    workers = [0, 1, 2, 4]
    labels = {number: _label(number) for number in workers}

    def turn(number: int) -> dict[str, float]:
        directory = context.workspace.fresh_directory("batch")
        taken: dict[str, float] = context.program("batch_turn", directory, number, jobs, functions)
        return taken

    sides = {labels[number]: partial(turn, number) for number in workers}
    taken = probe_in_turns(sides, context.repetitions(3, 1), {"wall": "s", "cpu": "s"})
    return {"jobs": jobs, "functions_per_job": functions, "cores": os.cpu_count(), "sides": taken}


def _label(workers: int) -> str:
    if not workers:
        return "one process, no pool"
    return f"{workers} worker{'s' if workers > 1 else ''}"


def markdown(record: dict[str, Any]) -> str:
    result = record["results"]
    base = next(iter(result["sides"].values()))
    body = [
        [
            label, pair(side["wall"]), figure(base["wall"]["minimum"] / side["wall"]["minimum"]),
            figure(result["jobs"] / side["wall"]["minimum"]), pair(side["cpu"]),
        ]
        for label, side in result["sides"].items()
    ]  # fmt: skip
    return "\n\n".join([
        (f"{result['jobs']} modules of {result['functions_per_job']} loops each are added to an empty cache on {result['cores']}"
         " cores: seconds of wall time, the speed-up by minima, jobs per second, and seconds of processor time of all processes"
         " together. The figures include starting and ending the workers. Other work on the machine affects wall times of parallel"
         " work most. The processor time shows the cost of the workers themselves."),
        rows(["", "wall, s", "speed-up", "jobs/s", "processor time, s"], body),
    ])  # fmt: skip


def plot(record: dict[str, Any], figure_: Any) -> None:
    result = record["results"]
    axes = figure_.subplots()
    labels = list(result["sides"])
    rates = [result["jobs"] / result["sides"][label]["wall"]["minimum"] for label in labels]
    axes.bar(labels, rates)
    axes.set_ylabel(f"jobs a second (best run, {result['cores']} cores)")
