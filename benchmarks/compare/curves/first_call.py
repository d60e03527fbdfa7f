"""Time to the first call in a fresh process, for every peer and three sizes of code."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from harness import in_turns

from compare.context import ProgramError
from compare.peers import contenders
from compare.tables import figure, pair, rows
from compare.work import sizes

if TYPE_CHECKING:
    from compare.context import Context
    from compare.peers import Prepared

TITLE = "Time to the first call in a fresh process"


def measure(context: Context) -> dict[str, Any]:
    peers = contenders(context)
    works = sizes(quick=context.quick)
    ready: dict[tuple[str, str], Prepared] = {}
    for work in works:
        for peer in peers:
            try:
                made = peer.prepare(context, work)
            except ProgramError as error:
                context.skipped[f"{peer.label}, {work.name} code"] = str(error).strip().splitlines()[-1]
                continue
            if made is not None:
                ready[work.name, peer.label] = made
    sides = {
        "|".join(key): partial(context.time, made.command, made.environment) for key, made in ready.items()
    }
    taken = {side.label: side for side in in_turns(sides, context.repetitions(9, 3), "ms")}
    result: dict[str, Any] = {work.name: {"polynomials": work.count, "peers": {}} for work in works}
    for (name, label), made in ready.items():
        figures = taken[f"{name}|{label}"].as_json() | {"label": label}
        result[name]["peers"][label] = {**figures, "cold_ms": made.cold_ms, "disk_bytes": made.disk_bytes}
    return result


def markdown(record: dict[str, Any]) -> str:
    names = list(record["results"])
    labels = list(dict.fromkeys(label for size in record["results"].values() for label in size["peers"]))
    header = ["polynomials", *(f"{name}: {record['results'][name]['polynomials']}" for name in names)]
    hits, colds, disks = [], [], []
    for label in labels:
        cells = [record["results"][name]["peers"].get(label) for name in names]
        hits.append([label, *(pair(cell) for cell in cells)])
        if any(cell and cell["cold_ms"] for cell in cells):
            colds.append([label, *(figure(cell and cell["cold_ms"]) for cell in cells)])
            disks.append([label, *(figure(cell and cell["disk_bytes"] / 1024) for cell in cells)])
    return "\n\n".join([
        ("Milliseconds of a whole process that finds the function in a filled cache and calls it once, including the interpreter's"
         " start: median (minimum)."),
        rows(header, hits),
        "The process that filled the cache (imports, compilation, storing, the first call), milliseconds, one run:",
        rows(header, colds),
        "Size on disk, KiB (compcache's includes the description of the host, once per cache):",
        rows(header, disks),
    ])  # fmt: skip


def plot(record: dict[str, Any], figure_: Any) -> None:
    names = list(record["results"])
    labels = list(dict.fromkeys(label for size in record["results"].values() for label in size["peers"]))
    axes = figure_.subplots()
    height = 0.8 / len(names)
    for number, name in enumerate(names):
        peers = record["results"][name]["peers"]
        places = [place for place, label in enumerate(labels) if label in peers]
        values = [peers[labels[place]]["minimum"] for place in places]
        axes.barh([place + (number - 1) * height for place in places], values, height, label=f"{name} code")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("ms until the process with the first call has ended (minimum, logarithmic)")
    axes.legend()
