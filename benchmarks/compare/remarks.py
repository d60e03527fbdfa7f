"""What the document says about the figures. Every figure inside a sentence comes from the records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compare.tables import figure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OURS, BY_HAND, LIBRARY, EMPTY = (
    "compcache",
    "ORC objects by hand (llvmlite)",
    "ctypes.CDLL, path known",
    "empty process",
)
ADDED, GENERATED = "add_module", "code generation alone"

#: Remarks below the tables of a section.
SECTION = {
    "first_call": (
        "The peers do not all do the same. Numba and JAX start from Python functions, which they type or trace again in every"
        " process, and their imports are most of the time; the four caches above them are asked by name. The hand-written"
        " cache, diskcache and joblib all pay the import of llvmlite (and LLVM's start) before they can link an object;"
        " a process that has imported llvmlite for other reasons saves less, which the next but one section shows: there the"
        " imports are done before the clock starts. JAX and typed_python run in environments of their own, typed_python"
        " with the old Python and the old LLVM that it needs."
    ),
    "module_size": (
        "ORC links the whole object whichever function is asked for. The dynamic loader maps it, and touches the pages that are"
        " used: the module's size does not matter. What compcache takes above `ctypes.CDLL` is opening the directory, its index,"
        " and mapping the native runtime, once for each process."
    ),
    "cache_size": (
        "typed_python reads every manifest when its cache is opened, hence a line that rises with the modules. A directory of"
        " objects has no such cost either: the file system is its index, and it knows nothing but names."
    ),
    "stores": (
        "A store of bytes knows a name and nothing else. compcache's first load also reads who wrote the module, whether the file is as"
        " it was verified, what the function needs, and its types. Its questions are asked of its command line, whose start is most of"
        " their cost; the peers' are asked of a few lines of Python. A module is a file of its own here, which has a page of the disk at"
        " least, until `compcache compact` puts small ones together."
    ),
    "apart": (
        "Plain names are bound when they are loaded, so calls of them go through slots until the closure is linked; names of content are"
        " inlined when what uses them is added. A load of modules that are apart maps each of them, and the dynamic linker walks through"
        " all libraries of the process each time, so a chain costs more for each module the longer it is"
        " ([decision 82](decisions/0082-closures-in-layers.md)). Of a linked library most of the time is what any first hit of a process"
        " takes: the directory, its index, the runtime, the file that says that the closure holds. LAPACK and what has changed since"
        " these runs: [decision 100](decisions/0100-closures-that-import-are-plain.md). typed_python"
        " needs an old Python, and was not measured."
    ),
    "adding": (
        "Above code generation, a module pays for its entry points and table, the dependency graph, its image,"
        " records, compressed bitcode, and the synchronized write. Most of that is a price per module, so it weighs on modules of a"
        " few small functions."
    ),
    "real_programs": (
        "Each program was measured by itself, one after the other; where each side was taken once (quick), ratios tell of the neighbours as"
        " well. Processor seconds of the same work differ by a fifth and more from one minute to the next here, and minima of two still"
        " show that: [decision 34](decisions/0034-loads-of-many-modules.md) has ratios of five turns, and of instructions."
        " Where many small modules are added, the price of each weighs. First loads are of the whole closure: some hundred functions in "
        "up to 30 modules, of which another process has written down what is bound to what, while"
        " `ld.so` maps one file; they are what a load on the machine lengthens most. Of"
        " the private memory most is pages of files: the kernel maps up to 64 KiB around each page that is touched, of each image the "
        "whole text"
        " then, and of one large file a part. Module files are larger than the shared object by their"
        " bitcode, which `show --ir` and retargeting read."
    ),
    "crowd": (
        "Code that ORC has linked is private memory of each process; an image that is mapped is shared by all of them. The 99th"
        " percentile of both peers is mostly the scheduler: many processes on few cores."
    ),
    "maintenance_cost": (
        "`check` and `prune` are proportional to the modules, as they have to be; nothing of it is on the way of a look-up."
    ),
}  # fmt: skip


def summary(records: Mapping[str, Any]) -> str:
    """The section on where compcache loses; empty where nothing is recorded."""
    found = _bullets(records, LOSSES)
    return "\n\n".join(["## Where compcache loses, and why", "\n".join(found)]) if found else ""


def _bullets(records: Mapping[str, Any], makers: tuple[Callable[[Mapping[str, Any]], str], ...]) -> list[str]:
    """The remarks whose sections are recorded."""
    found = []
    for make in makers:
        try:
            found.append(f"* {make(records)}")
        except (KeyError, StopIteration):
            continue
    return found


def _start(records: Mapping[str, Any]) -> str:
    peers = records["first_call"]["results"]["small"]["peers"]
    empty, ours, bare = (peers[label]["minimum"] for label in (EMPTY, OURS, LIBRARY))
    counts = records["counted"]["results"]
    millions = [
        counts[label]["instructions"] - counts[EMPTY]["instructions"]
        for label in (OURS, LIBRARY, "bare prototype")
    ]
    whole = counts[OURS]["instructions"] / counts["bare prototype"]["instructions"]
    return (
        f"**Against a library whose path is known.** Above an empty process, a hit takes {figure(ours - empty)} ms, importing ctypes"
        f" and opening a shared object {figure(bare - empty)} ms (minima); in instructions {figure(millions[0])} against"
        f" {figure(millions[1])} million, and {figure(millions[2])} million for the bare prototype of a cache (whole processes:"
        f" {figure(whole)} times the prototype's instructions). Most of it is the"
        " import: some fifteen small modules, each of which the interpreter has to find, read and execute. What they do that the"
        " prototype does not: check digests, owners, versions and the host, fill slots of dependencies, count hits, unload safely."
    )  # fmt: skip


def _goal_row(records: Mapping[str, Any], number: str) -> Any:
    return next(row for row in records["goals"]["results"] if row["title"].startswith(number + " "))


def _warm(records: Mapping[str, Any]) -> str:
    row = _goal_row(records, "4.")
    return (
        f"**First look-up in a warm process.** {figure(row['measured'])} times what `ctypes.CDLL` and a symbol take on the same image"
        f" ({figure(row['measured_minima'])} by minima): the index, the module's records and its stamp are read, and a typed target"
        " is made."
    )  # fmt: skip


def _adding(records: Mapping[str, Any]) -> str:
    tiny = records["adding"]["results"]["tiny"]
    real = records["adding"]["results"]["realistic"]

    def above(entry: Any) -> float:
        return float(entry["ms"][ADDED]["minimum"] - entry["ms"][GENERATED]["minimum"])

    def ratio(entry: Any) -> float:
        return float(entry["ms"][ADDED]["minimum"] / entry["ms"][GENERATED]["minimum"])

    many = list(real)[-1]
    return (
        f"**Adding tiny modules.** A module of one small function costs {figure(above(tiny['1']))} ms above code generation,"
        f" {figure(ratio(tiny['1']))} times code generation alone; the hand-written cache adds a file and nothing else. The write is"
        " synchronized, and code is described for what will be linked with it. For"
        f" {many} realistic functions the ratio is {figure(ratio(real[many]))}. Who compiles many small functions gives them to one"
        " module, or many modules to `add_modules` or a batch."
        f"{_linkers(tiny['1']['ms'])}"
    )  # fmt: skip


def _linkers(sides: Mapping[str, Any]) -> str:
    """What a linker would add to it; "" where there was none."""
    prefix = "add_module, linked by "
    times = {name.removeprefix(prefix): side["minimum"] for name, side in sides.items() if name.startswith(prefix)}
    if len(times) < 2:
        return ""
    listed = ", ".join(f"`{name}` {figure(time)} ms" for name, time in sorted(times.items(), key=lambda item: item[1]))
    return (
        f" Where a linker makes the image, its own start is much of the whole addition: {listed}; Debian's `ld.lld`"
        " loads all of LLVM's shared library to link a few hundred bytes."
    )


def _disk(records: Mapping[str, Any]) -> str:
    tiny = records["adding"]["results"]["tiny"]
    one, many = tiny["1"]["bytes"], tiny["1000"]["bytes"]
    return (
        f"**Bytes of tiny modules.** {one['module file']:,} bytes for a module of one function, whose object has"
        f" {one['object']:,}: program headers, dynamic section, table, entry points, records, bitcode. With a thousand functions a module"
        f" it is {figure(many['module file'] / 1000)} against {figure(many['object'] / 1000)} bytes each."
    )  # fmt: skip


def _calls(records: Mapping[str, Any]) -> str:
    cases = records["calls"]["results"]
    pairs = [
        f"{figure(sides[OURS]['minimum'])} against {figure(sides['C extension (gcc)']['minimum'])} ns ({name})"
        for name, sides in (
            ("two floats", cases["add"]),
            ("a string", cases["length"]),
            ("a buffer", cases["first"]),
        )
    ]
    text = (
        f"**Calls, against a C extension.** {', '.join(pairs)}. One image serves all versions of Python, so entry points call the"
        " stable ABI's functions where a compiled extension uses macros, and the target is an object whose vectorcall they are."
    )
    method = cases["add"].get("compcache, its __call__")
    if method:
        text += (
            f" `target.__call__` is a builtin function, for which Python has an instruction of its own: {figure(method['minimum'])} ns (two"
            " floats)."
        )
    array, numba = cases["first"].get("compcache, NumPy array"), cases["first"].get("Numba's dispatcher")
    if array and numba:
        text += (
            f" A NumPy array costs {figure(array['minimum'])} ns; through Numba's dispatcher, which knows the array's layout, too, the"
            f" call takes {figure(numba['minimum'])} ns."
        )
    return text


def _merges(records: Mapping[str, Any]) -> str:
    runs = records["maintenance_cost"]["results"]["runs"]
    count, run = list(runs.items())[-1]
    return (
        f"**One addition pays for a merge.** While {int(count):,} modules were added, the slowest addition took"
        f" {figure(run['slowest_add_ms'])} ms, because it merged what the others had added. Look-ups do not wait for it."
    )


def _batch(records: Mapping[str, Any]) -> str:
    sides = records["batch_speed"]["results"]["sides"]
    alone, one = sides["one process, no pool"], sides["1 worker"]
    ratio = one["cpu"]["minimum"] / alone["cpu"]["minimum"]
    return (
        f"**Batches of few jobs.** A pool of one worker takes {figure(ratio)} times the processor time of a plain loop: the"
        " worker imports LLVM again, and jobs travel between processes."
    )


LOSSES = (_start, _warm, _adding, _disk, _calls, _merges, _batch)
