"""What adding libraries costs beside compiling and linking the same modules, and 100 MB of constants beside clang."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare.context import HERE
from compare.tables import figure, rows

if TYPE_CHECKING:
    from compare.context import Context

TITLE = "Adding libraries"
TESTS = HERE.parent.parent / "tests"
#: What is added, by the name that its program knows, and the ratio that is aimed at.
LIBRARIES = {"cmark": 1.15, "simd_json": 1.15, "libsodium": 1.15, "blosc2": 1.15, "constants": 2.0}
SECONDS = 1800


def measure(context: Context) -> dict[str, Any]:
    downloads = Path(os.environ.get("COMPCACHE_PEER_DIR") or context.workspace.root / "downloads").resolve()
    result: dict[str, Any] = {}
    for name in LIBRARIES:
        out = context.workspace.root / f"library-{name}"
        out.mkdir(parents=True, exist_ok=True)
        repetitions = context.repetitions(3, 1)
        result[name] = context.program("library_costs", TESTS, name, downloads, out, out / "cache", repetitions, timeout=SECONDS)
    return result


def _measured(record: dict[str, Any]) -> list[tuple[str, int, float, float]]:
    """The name, the number of modules, and the least seconds of both sides."""
    found = {name: entry for name, entry in record["results"].items() if "samples" in entry}
    return [
        (name, entry["modules"], min(entry["samples"]["add"]), min(entry["samples"]["compile and link"]))
        for name, entry in found.items()
    ]  # fmt: skip


def markdown(record: dict[str, Any]) -> str:
    text = (
        "Processor seconds, minima of sides that take turns. One side is `add_modules` into a cache in use. The other side is"
        " parsing, the same optimization pipeline, `emit_object` and one link of all objects. `constants` is one module with a"
        " variable of 100 MB, in bitcode; its other side is clang, from the same bitcode to a shared object."
    )
    body = []
    for name, modules, add, alone in _measured(record):
        goal = LIBRARIES[name]
        reached = "yes" if add <= goal * alone else ""
        body.append([name, str(modules), figure(add), figure(alone), figure(add / alone), figure(goal), reached])
    return "\n\n".join([text, rows(["library", "modules", "add, s", "compile and link, s", "ratio", "goal", "reached"], body)])


def plot(record: dict[str, Any], figure_: Any) -> None:
    found = _measured(record)[::-1]
    axes = figure_.subplots()
    axes.barh([name for name, *_ in found], [add / alone for _, _, add, alone in found])
    axes.plot([LIBRARIES[name] for name, *_ in found], range(len(found)), "k|", markersize=24, label="goal")
    axes.set_xlabel("ratio, by minima")
    axes.legend()
