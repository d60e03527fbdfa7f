"""Loading one function against the number of modules in the cache."""

from __future__ import annotations

import itertools
import json
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from filling import PER_MODULE, add_small, fill, function_name

from compare.peers import not_installed
from compare.sampling import probe_in_turns
from compare.tables import figure, pair, rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compare.context import Context

TITLE = "Loading one function: modules in the cache"
UNITS = {"us": "us", "kib": "KiB"}


def measure(context: Context) -> dict[str, Any]:
    counts = [count for count in (10, 100, 1000, 10_000) if count < context.workspace.modules]
    counts.append(context.workspace.modules)
    sides = {}
    fills: dict[str, float] = {}
    for count in counts:
        large = context.workspace.cached(f"large-cache-{count}", partial(_fill, count, fills))
        sides[f"compcache|{count}"] = _asker(context, "compcache", large, count)
        objects = context.workspace.cached(
            f"orc-objects-{count}", partial(_fill_objects, context, count, "orc")
        )
        sides[f"ORC objects by hand|{count}"] = _asker(context, "orc", objects, count)
        if not_installed("diskcache") is None:
            kept = context.workspace.cached(
                f"diskcache-{count}", partial(_fill_objects, context, count, "diskcache")
            )
            sides[f"diskcache + ORC|{count}"] = _asker(context, "diskcache", kept, count)
    if context.old_python:
        for count in (10, 100) if context.quick else (10, 100, 500):
            directory = context.workspace.cached(
                f"typed-python-{count}", partial(_fill_typed_python, context, count)
            )
            sides[f"typed_python|{count}"] = partial(_typed_python, context, directory, count)
    taken = probe_in_turns(sides, context.repetitions(12, 4), UNITS)
    result: dict[str, Any] = {
        "counts": counts,
        "functions_per_module": PER_MODULE,
        "fill_us": fills,
        "peers": {},
    }
    for key, figures in taken.items():
        label, _, size = key.partition("|")
        result["peers"].setdefault(label, {})[size] = figures
    result["counts"] = sorted({int(size) for sizes in result["peers"].values() for size in sizes})
    return result


def _fill(count: int, fills: dict[str, float], directory: str) -> None:
    add_small(directory)
    fills[str(count)] = round(fill(directory, count, sync=False).amortized_us, 1)


def _fill_objects(context: Context, count: int, kind: str, directory: str) -> None:
    context.program("fill_objects", kind, directory, count)


def _fill_typed_python(context: Context, count: int, directory: str) -> None:
    for name in ("cache", "source"):
        (Path(directory) / name).mkdir(parents=True)
    _typed_python(context, directory, count, fill=1)


def _typed_python(context: Context, directory: str, count: int, *, fill: int = 0) -> Mapping[str, float]:
    assert context.old_python is not None
    program = str(context.workspace.site / "typed_python_probe.py")
    command = [context.old_python, program, f"{directory}/source", str(count), str(fill)]
    environment = {"TP_COMPILER_CACHE": f"{directory}/cache", "PYTHONPATH": ""}
    taken: Mapping[str, float] = json.loads(context.output(command, environment, timeout=600))
    return taken


def _asker(context: Context, kind: str, directory: str, count: int) -> Any:
    random = Random(count)
    chosen = itertools.cycle([random.randrange(count) for _ in range(40)])

    def ask() -> Mapping[str, float]:
        module = next(chosen)
        name = function_name(module, 3) if kind == "compcache" else f"module-{module}"
        taken: Mapping[str, float] = context.program("load_probe", kind, directory, name, "template_3")
        return taken

    return ask


def markdown(record: dict[str, Any]) -> str:
    result = record["results"]
    counts, peers = result["counts"], result["peers"]
    header = [f"modules of {result['functions_per_module']} functions", *(f"{count:,}" for count in counts)]
    tables = [
        rows(header, [[label, *(pair(sizes.get(str(count), {}).get(name)) for count in counts)] for label, sizes in peers.items()])
        for name in UNITS
    ]  # fmt: skip
    parts = [
        (
            "The same figures for caches of many modules, each of which can be loaded. Every sample loads a different function."
            " typed_python's modules have one function each, and its cache is not filled further because that takes too long."
        ),
        tables[0],
        "Private memory that the load adds, KiB:",
        tables[1],
    ]
    if result["fill_us"]:
        filled = [["one addition", *(figure(result["fill_us"].get(str(count))) for count in counts)]]
        parts += [
            "Filling compcache, µs per module, without compilation and disk synchronization, with index merges:",
            rows(header, filled),
        ]
    return "\n\n".join(parts)


def plot(record: dict[str, Any], figure_: Any) -> None:
    result = record["results"]
    for axes, (name, label) in zip(
        figure_.subplots(1, 2),
        (("us", "µs, load and first call (minimum)"), ("kib", "private KiB added (minimum)")),
        strict=True,
    ):
        for peer, sizes in result["peers"].items():
            known = [count for count in result["counts"] if str(count) in sizes]
            axes.plot(known, [sizes[str(count)][name]["minimum"] for count in known], "o-", label=peer)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("modules in the cache")
        axes.set_ylabel(label)
        axes.legend()
