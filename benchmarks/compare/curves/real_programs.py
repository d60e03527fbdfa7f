"""Programs in C, C++, Fortran and Rust: right on how many inputs, and what adding and loading them costs beside a shared object."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import Samples

from compare.context import HERE, ProgramError
from compare.sampling import probe_in_turns
from compare.tables import figure, rows

if TYPE_CHECKING:
    from compare.context import Context

TITLE = "Real programs"
PROGRAMS = (
    "brotli_16", "brotli_35", "cmark", "fitpack", "simd_json", "json", "format", "matrices", "quickjs", "matcher",
)  # fmt: skip
TESTS = HERE.parent.parent / "tests"
UNITS = {"ms": "ms", "kib": "KiB", "written": "KiB"}
HEADER = (
    "program", "equal results", "add, CPU s", "code generation, CPU s", "ratio", "first load, ms", "`CDLL`, ms", "private (written), KiB",
    "`CDLL`, KiB",
    "modules, KiB", "`.so`, KiB",
)  # fmt: skip
#: A comparison of all functions and some additions.
SECONDS = 1800


def measure(context: Context) -> dict[str, Any]:
    """Each program; with ``--workdir``, a run that was ended goes on with those that it had not reached."""
    result: dict[str, Any] = {}
    for name in PROGRAMS:
        directory = context.workspace.cached(f"program-{name}", partial(_measure_one, context, name))
        result[name] = json.loads(Path(directory, "taken.json").read_text())
    return result


def _measure_one(context: Context, name: str, directory: str) -> None:
    """Leave what was found in a file of the directory."""
    downloads = Path(os.environ.get("COMPCACHE_PEER_DIR") or context.workspace.root / "downloads").resolve()
    out, cache = Path(directory, "built"), f"{directory}/cache"
    out.mkdir(parents=True)
    try:
        taken = context.program("real_program", TESTS, name, downloads, out, cache, context.repetitions(2, 1), timeout=SECONDS)
        taken = taken if "unavailable" in taken else _with_loads(context, taken, cache)
    except ProgramError as error:
        raise ProgramError(f"{name}: {error}") from error
    Path(directory, "taken.json").write_text(json.dumps(taken))


def _with_loads(context: Context, taken: dict[str, Any], directory: str) -> dict[str, Any]:
    ordinary, samples = taken.pop("ordinary"), taken.pop("samples")
    first = next(iter(taken["correct"]))
    loads = {
        "compcache": partial(context.program, "program_load", "compcache", directory, first),
        "CDLL": partial(context.program, "program_load", "ctypes", ordinary, first),
    }
    return {
        **taken,
        "function": first,
        "seconds": {label: Samples(label, "s", tuple(values)).as_json() for label, values in samples.items()},
        "loads": probe_in_turns(loads, context.repetitions(9, 3), UNITS),
    }


def markdown(record: dict[str, Any]) -> str:
    body = [_row(entry) for entry in _measured(record).values()]
    missing = [f"{name} ({entry['unavailable']})" for name, entry in record["results"].items() if "unavailable" in entry]
    return "\n\n".join([
        ("Code as clang, flang and rustc write it, a module for each file where more than one is named, beside the same code in an ordinary"
        " shared object. Equal results: functions, and on how many inputs together they gave what they give in the shared object. Adding is"
        " `add_modules` into a cache in use; code generation is parsing, the same optimization pipeline and `emit_object`, one module after"
        " the other, with the same functions visible; processor seconds, the linker's included. First load: the first function of a "
        "fresh process, with all that it imports, nothing called, against `ctypes.CDLL` and a"
        " symbol, libraries of C++ included on both sides. Private memory is what the load adds to what no other process has"
        " mapped: pages that were written to, in parentheses, and pages of the files, which are the disk cache's and cost nothing of "
        "their own"
        " as soon as a second process maps them. Minima. The modules' files hold compressed bitcode, graph and records as well."),
        rows(HEADER, body),
        *([f"Left out: {', '.join(missing)}."] if missing else []),
    ])  # fmt: skip


def _measured(record: dict[str, Any]) -> dict[str, Any]:
    """Without the programs that could not be built here."""
    return {name: entry for name, entry in record["results"].items() if "unavailable" not in entry}


def _row(entry: dict[str, Any]) -> list[str]:
    correct, seconds, loads = entry["correct"].values(), entry["seconds"], entry["loads"]
    add, generate = seconds["add"]["minimum"], seconds["code generation"]["minimum"]
    ours, theirs = loads["compcache"], loads["CDLL"]
    return [
        entry["title"],
        f"{len(correct)}: {sum(equal for equal, _ in correct):,} of {sum(tried for _, tried in correct):,}",
        figure(add),
        figure(generate),
        figure(add / generate),
        *(figure(side["ms"]["minimum"]) for side in (ours, theirs)),
        *map(_private, (ours, theirs)),
        figure(entry["bytes"]["modules"] / 1024),
        figure(entry["bytes"]["ordinary"] / 1024),
    ]


def _private(side: dict[str, Any]) -> str:
    """KiB of private memory, and of these what was written to, which older results do not have."""
    written = f" ({figure(side['written']['minimum'])})" if "written" in side else ""
    return figure(side["kib"]["minimum"]) + written


def plot(record: dict[str, Any], figure_: Any) -> None:
    entries = _measured(record)
    left, right = figure_.subplots(1, 2, sharey=True)
    ratios = [entry["seconds"]["add"]["minimum"] / entry["seconds"]["code generation"]["minimum"] for entry in entries.values()]
    left.barh(list(entries), ratios)
    left.axvline(1, color="black", linewidth=0.8)
    left.set_xlabel("adding / code generation (minima)")
    for offset, label in ((0.2, "compcache"), (-0.2, "CDLL")):
        values = [entry["loads"][label]["ms"]["minimum"] for entry in entries.values()]
        right.barh([number + offset for number in range(len(entries))], values, height=0.4, label=label)
    right.set_xlabel("first load, ms (minimum)")
    right.legend()
