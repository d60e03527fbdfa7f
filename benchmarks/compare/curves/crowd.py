"""Many processes that load functions at once: throughput, latencies, memory in total."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from filling import add_small, fill, function_name

from compare.curves import cache_size, module_size
from compare.tables import figure, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from compare.context import Context

TITLE = "Many processes at once"
FUNCTIONS = 20
MODULES = 2000
LARGE = 1000
PEERS = {"compcache": "compcache", "ORC objects by hand": "orc"}
CASES = {
    "same": f"every process loads the same {FUNCTIONS} functions",
    "different": f"every process loads {FUNCTIONS} functions of its own",
    "large": f"every process loads one function of the same module of {LARGE:,}",
}


def measure(context: Context) -> dict[str, Any]:
    counts = [1, 4, 16] if context.quick else [1, 2, 4, 8, 16, 32, 64]
    directories = {
        "compcache": context.workspace.cached(f"large-cache-{MODULES}", _fill),
        "orc": context.workspace.cached(
            f"orc-objects-{MODULES}", lambda directory: cache_size._fill_objects(context, MODULES, "orc", directory)
        ),
    }  # fmt: skip
    large = context.workspace.cached(f"modules-of-{LARGE}", partial(module_size._fill, context, count=LARGE))
    result: dict[str, Any] = {
        "counts": counts,
        "cases": {case: {label: {} for label in PEERS} for case in CASES},
    }
    for turn in range(context.repetitions(3, 1)):
        for count in counts:
            for case in CASES:
                for label, kind in list(PEERS.items()) if turn % 2 else reversed(PEERS.items()):
                    symbol = "template_3"
                    if case == "large":
                        name = f"f{LARGE}_{LARGE // 2}"
                        folder = f"{large}/{'cache' if kind == 'compcache' else 'orc'}"
                        symbol, names = name, _large_names(name, kind)
                        one = _run(context, kind, folder, symbol, [names for _ in range(count)])
                    else:
                        chosen = [
                            _names(kind, member if case == "different" else 0) for member in range(count)
                        ]
                        one = _run(context, kind, directories[kind], symbol, chosen)
                    result["cases"][case][label].setdefault(str(count), []).append(one)
    for peers in result["cases"].values():
        for sizes in peers.values():
            for count, runs in sizes.items():
                sizes[count] = _summary(runs)
    return result


def _fill(directory: str) -> None:
    add_small(directory)
    fill(directory, MODULES, sync=False)


def _large_names(name: str, kind: str) -> list[str]:
    return [name if kind == "compcache" else "module"]


def _names(kind: str, member: int) -> list[str]:
    modules = range(member * FUNCTIONS, (member + 1) * FUNCTIONS)
    return [function_name(module, 3) if kind == "compcache" else f"module-{module}" for module in modules]


def _run(context: Context, kind: str, directory: str, symbol: str, names: list[list[str]]) -> dict[str, Any]:
    command = [sys.executable, str(context.workspace.site / "crowd_member.py"), kind, directory, symbol]
    members = [
        subprocess.Popen(
            [*command, *own], env=context.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for own in names
    ]  # fmt: skip
    try:
        _each(members, lambda member: _expect_ready(_line(member)))
        before = _memory(members)
        _each(members, _go)
        answers = [json.loads(_line(member)) for member in members]
        after = _memory(members)
        _each(members, _go)
    finally:
        for member in members:
            if member.stdin is not None:
                member.stdin.close()
            member.wait(30)
            if member.stdout is not None:
                member.stdout.close()
    wall = max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)
    latencies = sorted(latency * 1e6 for answer in answers for latency in answer["latencies"])
    return {
        "wall_ms": wall * 1e3,
        "per_second": len(latencies) / wall,
        "latencies_us": latencies,
        "pss_kib": after["Pss"],
        "added_pss_kib": after["Pss"] - before["Pss"],
        "private_kib": after["Private"],
    }


def _each(members: list[subprocess.Popen[str]], action: Callable[[subprocess.Popen[str]], object]) -> None:
    for member in members:
        action(member)


def _line(member: subprocess.Popen[str]) -> str:
    assert member.stdout is not None
    return member.stdout.readline()


def _expect_ready(line: str) -> None:
    if line != "ready\n":
        raise RuntimeError(f"a member of the crowd did not start: {line!r}")


def _go(member: subprocess.Popen[str]) -> None:
    assert member.stdin is not None
    member.stdin.write("\n")
    member.stdin.flush()


def _memory(members: list[subprocess.Popen[str]]) -> dict[str, int]:
    """The proportional and private KiB of all members together."""
    total = {"Pss": 0, "Private": 0}
    for member in members:
        with open(f"/proc/{member.pid}/smaps_rollup", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("Pss:"):
                    total["Pss"] += int(line.split()[1])
                elif line.startswith(("Private_Clean:", "Private_Dirty:")):
                    total["Private"] += int(line.split()[1])
    return total


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The best run by throughput gives the figures; what it is among is recorded."""
    best = max(runs, key=lambda run: run["per_second"])
    latencies = best["latencies_us"]
    cuts = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else latencies * 99
    return {
        "runs": len(runs),
        "per_second": round(best["per_second"], 1),
        "per_second_of_all_runs": [round(run["per_second"], 1) for run in runs],
        "wall_ms": round(best["wall_ms"], 3),
        "latency_us": {"p50": round(cuts[49], 1), "p90": round(cuts[89], 1), "p99": round(cuts[98], 1)},
        "latency_max_us": round(latencies[-1], 1),
        "pss_kib": best["pss_kib"],
        "added_pss_kib": best["added_pss_kib"],
        "private_kib": best["private_kib"],
    }


def markdown(record: dict[str, Any]) -> str:
    result = record["results"]
    parts = [
        (
            "Fresh processes wait until all have completed their imports, then load and call at once. A latency is the time from one"
            " completed call to the next; the first latency of a process includes opening the cache (creating the LLJIT). Of several"
            " runs the one with the highest throughput is shown. Memory is the total proportional set size (PSS) of all processes, in"
            " which a shared page counts once, and the part of it that the loads added."
        )
    ]
    for case, text in CASES.items():
        body = [
            [
                label, count, figure(entry["per_second"]), *(figure(entry["latency_us"][p]) for p in ("p50", "p90", "p99")),
                figure(entry["pss_kib"] / 1024), figure(entry["added_pss_kib"] / 1024),
            ]
            for label, sizes in result["cases"][case].items()
            for count, entry in sizes.items()
        ]  # fmt: skip
        header = [text, "processes", "loads/s", "p50, µs", "p90, µs", "p99, µs", "PSS, MiB", "added, MiB"]
        parts.append(rows(header, body))
    return "\n\n".join(parts)


def plot(record: dict[str, Any], figure_: Any) -> None:
    result = record["results"]
    counts = result["counts"]
    throughput, latency, memory = figure_.subplots(1, 3)
    for label in PEERS:
        for case, style in (("same", "o-"), ("different", "s--")):
            sizes = result["cases"][case][label]
            throughput.plot(
                counts, [sizes[str(n)]["per_second"] for n in counts], style, label=f"{label}, {case}"
            )
        sizes = result["cases"]["different"][label]
        for name, style in (("p50", "o-"), ("p99", "s--")):
            values = [sizes[str(n)]["latency_us"][name] for n in counts]
            latency.plot(counts, values, style, label=f"{label}, {name}")
        sizes = result["cases"]["large"][label]
        memory.plot(counts, [sizes[str(n)]["added_pss_kib"] / 1024 for n in counts], "o-", label=label)
    for axes, name in (
        (throughput, "functions loaded a second"), (latency, "µs a load (different functions)"),
        (memory, f"MiB added by one of {LARGE:,} functions, all processes"),
    ):  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("processes")
        axes.set_ylabel(name)
        axes.legend(fontsize="small")
