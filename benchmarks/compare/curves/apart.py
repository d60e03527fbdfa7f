"""Code that is cached apart beside the same in one module: helpers in a loop, chains of modules, many functions, libraries."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import closures

from compare.context import HERE, ProgramError
from compare.sampling import probe_in_turns
from compare.tables import figure, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from compare.context import Context

TITLE = "Code that is cached apart"
TESTS = HERE.parent.parent / "tests"
#: Of each library the first function that is loaded.
LIBRARIES = {"libsodium": "sodium_init", "blosc2": "blosc2_compress", "lapack": "dgeev_"}
LOOP, LOADED = {"ns": "ns", "ms": "ms"}, {"ms": "ms", "mapped": "files"}
LIBRARY = {"cpu": "ms", "imported": "ms", "kib": "KiB", "written": "KiB"}
FUNCTIONS = 200
#: A library is compiled, added and linked within so many seconds.
SECONDS = 1800
ONE = "one module"
_LIBRARY_HEADER = (
    "", "modules", "first function", "apart, ms", "linked, ms", "`CDLL`, ms", "linked / `CDLL`", "with imports", "in a process with loads",
    "linked, KiB", "`CDLL`, KiB",
)  # fmt: skip


def measure(context: Context) -> dict[str, Any]:
    """All of it."""
    lengths = [250, 500] if context.quick else [500, 1000, 2000]
    repetitions = context.repetitions(9, 3)
    loop = probe_in_turns(_loops(context), repetitions, LOOP)
    chains, last = {}, max(lengths)
    codes = [closures.link(number, last - 1) for number in reversed(range(last))]
    apart = context.workspace.cached("chain", lambda path: closures.add(Path(path), codes) and None)
    linked = context.workspace.cached("chain-linked", lambda path: _linked(path, codes, [f"f{last - length}" for length in lengths]))
    for length in lengths:
        name = f"f{last - length}"
        chains[length] = probe_in_turns(_apart_and_linked(context, apart, linked, name), min(repetitions, 5), LOADED)
    names = [f"g{number}" for number in range(FUNCTIONS)]
    codes = [closures.single(number) for number in range(FUNCTIONS)]
    apart = context.workspace.cached("functions", lambda path: closures.add(Path(path), codes) and None)
    linked = context.workspace.cached("functions-linked", lambda path: _linked(path, codes, names, into="set"))
    many = probe_in_turns(_apart_and_linked(context, apart, linked, ",".join(names)), repetitions, LOADED)
    return {"loop": loop, "chains": chains, "functions": many, "libraries": {name: _library(context, name) for name in LIBRARIES}}


def _apart_and_linked(context: Context, apart: str, linked: str, names: str) -> dict[str, Callable[[], Any]]:
    return {
        label: partial(context.program, "round_cost", "compcache", place, names)
        for label, place in (("apart", apart), ("linked", linked))
    }  # fmt: skip


def _linked(path: str, codes: list[str], names: list[str], into: str | None = None) -> None:
    from compcache import Cache

    closures.add(Path(path), codes)
    with Cache(path) as cache:
        for roots in [names] if into else [[name] for name in names]:
            cache.link(roots, into=into)
    time.sleep(4)  # look-ups list an index that has changed in the last seconds


def _loops(context: Context) -> dict[str, Callable[[], Any]]:
    """A loop over five helpers: how the code is kept, and what gives the cost of a round."""
    helpers, whole = [closures.helper(number) for number in range(closures.HELPERS)], closures.kernel(declared=False)
    path = context.workspace.root / "loop.ll"
    path.write_text("".join([*helpers, whole]), encoding="utf-8")
    together = context.workspace.cached("loop-together", lambda place: context.program("fill_module", path, place, "kernel"))
    codes = [*helpers, closures.kernel(declared=True)]
    apart = context.workspace.cached("loop-apart", lambda place: closures.add(Path(place), codes) and None)
    linked = context.workspace.cached("loop-linked", lambda place: _linked(place, codes, ["kernel"]))
    inlined = context.workspace.cached("loop-inlined", partial(_add_by_content, helpers))
    sides: dict[str, Callable[[], Any]] = {
        "apart, plain names": partial(context.program, "round_cost", "compcache", apart, "kernel", "calls"),
        "apart, names of content (inlined when the loop is added)": partial(
            context.program, "round_cost", "compcache", inlined, "kernel", "calls"
        ),
        "apart, linked": partial(context.program, "round_cost", "compcache", linked, "kernel", "calls"),
        ONE: partial(context.program, "round_cost", "compcache", f"{together}/cache", "kernel", "calls"),
        "one `.so`, `ctypes.CDLL`": partial(context.program, "round_cost", "ctypes", f"{together}/module.so", "kernel", "calls"),
    }
    try:
        context.program("numba_apart")  # fills its cache
    except ProgramError as error:
        context.skipped["Numba"] = str(error).strip().rpartition("\n")[2]
    else:
        sides["Numba, cache=True"] = partial(context.program, "numba_apart")
    return sides


def _add_by_content(helpers: list[str], path: str) -> None:
    from compcache import Cache, Function, ModuleSource

    with Cache(path) as cache:
        names = {f"h{number}": f"h{number}-{number:032x}" for number in range(closures.HELPERS)}
        cache.add_modules(
            [ModuleSource(code, {names[name]: Function(None, name)}) for name, code in zip(names, helpers, strict=True)]
        )
        cache.add_module(ModuleSource(closures.kernel(declared=True), imports=names))


def _library(context: Context, name: str) -> dict[str, Any]:
    directory = context.workspace.cached(f"library-{name}", partial(_make, context, name))
    made = json.loads(Path(directory, "made.json").read_text())
    if "unavailable" in made:
        return dict(made)
    first = LIBRARIES[name]
    sides = {
        label: partial(context.program, "program_load", "compcache", f"{directory}/{label}", first) for label in ("apart", "linked")
    }
    ordinary, earlier = made.pop("ordinary"), context.workspace.root
    sides["CDLL"] = partial(context.program, "program_load", "ctypes", ordinary, first)
    sides |= {
        "linked, later": partial(context.program, "program_load", "compcache", f"{directory}/linked", first, earlier / "loop-linked"),
        "CDLL, later": partial(context.program, "program_load", "ctypes", ordinary, first, earlier / "loop-together" / "module.so"),
    }
    return {**made, "function": first, "loads": probe_in_turns(sides, context.repetitions(9, 5), LIBRARY)}


def _make(context: Context, name: str, directory: str) -> None:
    downloads = Path(os.environ.get("COMPCACHE_PEER_DIR") or context.workspace.root / "downloads").resolve()
    out = Path(directory, "built")
    out.mkdir(parents=True)
    made = context.program("linked_library", TESTS, name, downloads, out, directory, timeout=SECONDS)
    Path(directory, "made.json").write_text(json.dumps(made))


def _least(side: dict[str, Any], name: str) -> float:
    least: float = side[name]["minimum"]
    return least


def markdown(record: dict[str, Any]) -> str:
    result = record["results"]
    one = _least(result["loop"][ONE], "ns")
    loop = [
        [label, figure(_least(side, "ns")), figure(_least(side, "ns") / one), figure(_least(side, "ms"))]
        for label, side in result["loop"].items()
    ]  # fmt: skip
    loads = [(f"a chain of {int(length):,} modules", sides) for length, sides in result["chains"].items()]
    loads.append((f"{FUNCTIONS} functions of {FUNCTIONS} modules", result["functions"]))
    body = []
    for what, sides in loads:
        apart, linked = (_least(sides[label], "ms") for label in ("apart", "linked"))
        mapped = [figure(_least(sides[label], "mapped")) for label in ("apart", "linked")]
        body.append([what, figure(apart), figure(linked), figure(linked / apart), *mapped])
    there = {name: entry for name, entry in result["libraries"].items() if "loads" in entry}
    libraries = [_library_row(name, entry) for name, entry in there.items()]
    missing = [f"{name} ({entry['unavailable']})" for name, entry in result["libraries"].items() if name not in there]
    return "\n\n".join([
        ("A loop of 200,000 rounds over five helpers of two floating-point instructions each. In code that is cached apart, each"
         " helper is in a separate module. Nanoseconds per round, relative to one module, and milliseconds of processor time of the"
         " first load in a fresh process (for Numba, of the first call). Minima."),
        rows(["", "ns per round", "relative to one module", "first load, ms"], loop),
        ("Loads in fresh processes that have imported the package, from caches that have not changed for some seconds: milliseconds of"
         " processor time, mapped parts of module files. Minima."),
        rows(["", "apart, ms", "linked, ms", "ratio", "mapped apart", "mapped linked"], body),
        *([
            ("Libraries of many files, with a module for each file. They are linked as a set, including their state, and compared"
             " with a shared object of the same files (`-shared -Bsymbolic`): processor time of the first load of one function,"
             " without a call, and the private memory that the load adds (the written part in parentheses). Minima. `import ctypes`"
             " has loaded the native part of ctypes, and compcache loads its own at the first hit. So two further columns have the"
             " ratio of times with `import compcache` and `import ctypes`, and of later loads: the process has loaded a function of"
             " another cache, or of another library."),
            rows(_LIBRARY_HEADER, libraries),
        ] if libraries else []),
        *([f"Left out: {', '.join(missing)}."] if missing else []),
    ])  # fmt: skip


def _library_row(name: str, entry: dict[str, Any]) -> list[str]:
    sides = entry["loads"]
    apart, linked, library = (sides[label] for label in ("apart", "linked", "CDLL"))
    return [
        name,
        figure(entry["modules"]),
        f"`{entry['function']}`",
        *(figure(_least(side, "cpu")) for side in (apart, linked, library)),
        figure(_least(linked, "cpu") / _least(library, "cpu")),
        figure(_least(linked, "imported") / _least(library, "imported")),
        figure(_least(sides["linked, later"], "cpu") / _least(sides["CDLL, later"], "cpu")),
        *(f"{figure(_least(side, 'kib'))} ({figure(_least(side, 'written'))})" for side in (linked, library)),
    ]


def plot(record: dict[str, Any], figure: Any) -> None:
    result = record["results"]
    left, right = figure.subplots(1, 2)
    for label in ("apart", "linked"):
        lengths = [int(length) for length in result["chains"]]
        left.plot(lengths, [_least(sides[label], "ms") for sides in result["chains"].values()], "o-", label=label)
    left.set_yscale("log")
    left.set_xlabel("modules of a chain")
    left.set_ylabel("load, ms of processor time (minimum)")
    left.legend()
    labels = [label.partition(" (")[0] for label in result["loop"]]
    right.barh(labels, [_least(side, "ns") for side in result["loop"].values()])
    right.set_xlabel("ns a round (minimum)")
