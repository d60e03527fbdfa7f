"""Modules of one small function by the million: fill, hit, questions and space, beside stores that somebody would write."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from importlib import util
from typing import TYPE_CHECKING, Any

import sources
from filling import add_small, fill, function_name

from compare.sampling import probe_in_turns
from compare.tables import figure, pair, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from compare.context import Context

TITLE = "Many small modules: stores side by side"
OURS, COMPACTED = "compcache", "compcache, compacted"
STORES = {"a directory of files": "files", "ccache's layout": "ccache", "SQLite": "sqlite", "LMDB": "lmdb"}
UNITS = {"us": "us", "kib": "KiB"}
QUESTIONS = {"names": "the first 20 names", "size": "number and bytes", "remove": "remove one"}


def measure(context: Context) -> dict[str, Any]:
    largest = context.workspace.modules
    counts = [count for count in (1000, 10_000, 100_000) if count < largest] + [largest]
    image = _image(context)
    stores = {label: kind for label, kind in STORES.items() if kind != "lmdb" or util.find_spec("lmdb")}
    result: dict[str, Any] = {"counts": counts, "image": os.path.getsize(image), "peers": {}}
    for count in counts:
        roots = {label: context.workspace.fresh_directory(f"stores-{kind}") for label, kind in {OURS: "ours", **stores}.items()}
        filled = {label: _fill(context, stores.get(label), root, count, image) for label, root in roots.items()}
        roots[COMPACTED], filled[COMPACTED] = _compacted(context, roots[OURS], count)
        space = {label: _space(root) for label, root in roots.items()}
        name = partial(function_name, count // 2)
        sides: dict[str, Callable[[], Mapping[str, float]]] = {
            label: partial(context.program, "kept_images", stores[label], root, "hit", name(0), "f1_0")
            for label, root in roots.items()
            if label in stores
        }
        sides |= {label: partial(context.program, "load_probe", "compcache", roots[label], name(0), "") for label in (OURS, COMPACTED)}
        hits = probe_in_turns(sides, context.repetitions(9, 3), UNITS)
        for label, root in roots.items():
            asked = {question: _ask(context, stores.get(label), root, question, name(0)) for question in QUESTIONS}
            known = result["peers"].setdefault(label, {})
            known[str(count)] = {"fill_us": filled[label], "hit": hits[label], "bytes": space[label][0] / count,
                                 "files": space[label][1] / count, "questions": asked}  # fmt: skip
            shutil.rmtree(root)
    return result


def _image(context: Context) -> str:
    path = context.workspace.root / "small.ll"
    path.write_text(sources.small_module(["f1_0"]), encoding="utf-8")
    directory = context.workspace.cached("small-image", lambda directory: context.program("fill_module", path, directory, "f1_0"))
    return f"{directory}/module.so"


def _fill(context: Context, kind: str | None, root: str, count: int, image: str) -> float:
    if kind is not None:
        taken: float = context.program("kept_images", kind, root, "fill", count, image, timeout=3600)["us"]
        return taken
    add_small(root)
    return fill(root, count, sync=False, functions=1).amortized_us


def _compacted(context: Context, root: str, count: int) -> tuple[str, float]:
    """A copy with the modules in volumes, and how many microseconds of processor time that took for each."""
    copy = context.workspace.fresh_directory("stores-compacted")
    shutil.copytree(root, copy, dirs_exist_ok=True)
    taken = context.program("measured", sys.executable, "-m", "compcache", "--dir", copy, "compact", "--grace", "0s", timeout=3600)
    return copy, taken["ms"] * 1e3 / count


def _space(root: str) -> tuple[int, int]:
    """Bytes that the disk has given, and files and directories."""
    status = [os.lstat(path) for path in _paths(root)]
    return sum(one.st_blocks for one in status) * 512, len(status)


def _paths(root: str) -> list[str]:
    return [os.path.join(folder, name) for folder, folders, files in os.walk(root) for name in (*folders, *files)]


def _ask(context: Context, kind: str | None, root: str, question: str, name: str) -> dict[str, float]:
    """Milliseconds of processor time and the greatest resident memory in MB of a process that answers a question."""
    program = str(context.workspace.site / "kept_images.py")
    words = {"names": ["ls", "--limit", "20"], "size": ["stats"], "remove": ["rm", name, "--yes"]}
    argument = {"names": "20", "size": "-", "remove": name}[question]
    ours = [sys.executable, "-m", "compcache", "--dir", root, *words[question]]
    command = ours if kind is None else [sys.executable, program, kind, root, question, argument]
    taken = [context.program("measured", *command) for _ in range(1 if question == "remove" else context.repetitions(3, 1))]
    least: dict[str, float] = min(taken, key=lambda one: one["ms"])
    return least


def markdown(record: dict[str, Any]) -> str:
    result = record["results"]
    counts, peers = result["counts"], result["peers"]
    header = ["modules of one function", *(f"{count:,}" for count in counts)]

    def table(cell: Callable[[Mapping[str, Any]], str]) -> str:
        return rows(header, [[label, *(cell(sizes[str(count)]) for count in counts)] for label, sizes in peers.items()])

    parts = [
        (f"The same small image of {result['image']:,} bytes is stored under many names; compcache also stores records, graph and"
         " bitcode. Images from databases are copied to memory before they are mapped, because the loader accepts no offset."
         " Microseconds of the first load and call in a fresh process after its imports, median (minimum):"),
        table(lambda one: pair(one["hit"]["us"])),
        "Private memory that the load adds, KiB:",
        table(lambda one: pair(one["hit"]["kib"])),
        ("One addition, µs, without compilation and disk synchronization, with merges. For compacted modules, the processor time of the"
         " compaction per module:"),
        table(lambda one: figure(one["fill_us"])),
        "Bytes allocated on disk per module, and number of files (with directories):",
        table(lambda one: f"{figure(one['bytes'])}, {figure(one['files'])}"),
    ]  # fmt: skip
    for question, said in QUESTIONS.items():
        parts += [
            f"A process that answers: {said}. Milliseconds of processor time, maximum resident memory in MB:",
            table(lambda one, question=question: "{}, {}".format(*map(figure, one["questions"][question].values()))),  # type: ignore[misc]
        ]
    return "\n\n".join(parts)


def plot(record: dict[str, Any], figure_: Any) -> None:
    result = record["results"]
    figures = {
        "µs, load and first call (minimum)": lambda one: one["hit"]["us"]["minimum"],
        "bytes on the disk for each module": lambda one: one["bytes"],
        "ms to show 20 names": lambda one: one["questions"]["names"]["ms"],
    }
    for axes, (label, value) in zip(figure_.subplots(1, len(figures)), figures.items(), strict=True):
        for peer, sizes in result["peers"].items():
            axes.plot(result["counts"], [value(sizes[str(count)]) for count in result["counts"]], "o-", label=peer)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("modules of one function")
        axes.set_ylabel(label)
    axes.legend()
