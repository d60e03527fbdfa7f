"""Loading one function against the number of functions in its module."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import sources

from compare.sampling import probe_in_turns
from compare.tables import pair, rows

if TYPE_CHECKING:
    from compare.context import Context

TITLE = "Loading one function: size of its module"
UNITS = {"us": "us", "kib": "KiB"}


def measure(context: Context) -> dict[str, Any]:
    counts = [1, 10, 100, 1000] if context.quick else [1, 10, 100, 1000, 10_000]
    sides = {}
    for count in counts:
        directory = context.workspace.cached(f"modules-of-{count}", partial(_fill, context, count=count))
        name = f"f{count}_{count // 2}"
        probes = {
            "compcache": ("compcache", f"{directory}/cache", name),
            "ORC objects by hand": ("orc", f"{directory}/orc", "module"),
            "ctypes.CDLL": ("ctypes", "-", f"{directory}/module.so"),
        }
        for label, arguments in probes.items():
            sides[f"{label}|{count}"] = partial(context.program, "load_probe", *arguments, name)
    taken = probe_in_turns(sides, context.repetitions(9, 3), UNITS)
    result: dict[str, Any] = {"counts": counts, "peers": {}}
    for key, figures in taken.items():
        label, _, count = key.partition("|")
        result["peers"].setdefault(label, {})[count] = figures
    return result


def _fill(context: Context, directory: str, count: int) -> None:
    names = [f"f{count}_{number}" for number in range(count)]
    path = context.workspace.root / f"module-{count}.ll"
    path.write_text(sources.small_module(names), encoding="utf-8")
    context.program("fill_module", path, directory, names[count // 2])


def markdown(record: dict[str, Any]) -> str:
    counts, peers = record["results"]["counts"], record["results"]["peers"]
    header = ["functions in the module", *(f"{count:,}" for count in counts)]
    tables = [
        rows(header, [[label, *(pair(sizes[str(count)][name]) for count in counts)] for label, sizes in peers.items()])
        for name in UNITS
    ]  # fmt: skip
    return "\n\n".join([
        ("Microseconds from the end of the imports to the first result, in a fresh process: median (minimum). The time includes"
         " opening the directory and mapping the native runtime for compcache, and creating the LLJIT for the hand-written cache."),
        tables[0],
        "Private memory that the load adds, KiB:",
        tables[1],
    ])  # fmt: skip


def plot(record: dict[str, Any], figure: Any) -> None:
    result = record["results"]
    for axes, (name, label) in zip(
        figure.subplots(1, 2),
        (("us", "µs, load and first call (minimum)"), ("kib", "private KiB added (minimum)")),
        strict=True,
    ):
        for peer, sizes in result["peers"].items():
            values = [sizes[str(count)][name]["minimum"] for count in result["counts"]]
            axes.plot(result["counts"], values, "o-", label=peer)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("functions in the module")
        axes.set_ylabel(label)
        axes.legend()
