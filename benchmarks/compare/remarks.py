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
        "The peers do different work. Numba and JAX start from Python functions, which they type or trace again in every process, and"
        " their imports take most of the time. The four caches above them look functions up by name. The hand-written cache,"
        " diskcache and joblib must import llvmlite (and start LLVM) before they can link an object. A process that has imported"
        " llvmlite for other reasons saves less; the section after the next one shows this case, in which the imports precede the"
        " measurement. JAX and typed_python run in separate environments, typed_python with the old Python and LLVM that it needs."
    ),
    "module_size": (
        "ORC links the whole object for any function. The dynamic loader maps the object and reads only the pages that are used, so"
        " the module's size does not matter. Compared with `ctypes.CDLL`, compcache also opens the directory and its index, and maps"
        " the native runtime, once for each process."
    ),
    "cache_size": (
        "typed_python reads every manifest when its cache is opened, so its line rises with the number of modules. A directory of"
        " objects has no such cost either, because the file system is its index. But it knows only names."
    ),
    "stores": (
        "A store of bytes knows only names. compcache's first load also checks who wrote the module, whether the verified file is"
        " unchanged, and the function's requirements and types. Its questions are asked by its command line, whose start is most of"
        " their cost; the peers' questions are asked by a few lines of Python. In compcache a module is a separate file, which takes"
        " at least one disk block, until `compcache compact` merges small modules. Since these figures were recorded, the runtime reads"
        " compacted modules, and `stats` adds up stored numbers: [decision 131](decisions/0131-volumes-in-the-runtime.md) has the"
        " difference."
    ),
    "apart": (
        "Plain names are bound when they are loaded, so their calls use slots until the closure is linked. Functions named by content"
        " are inlined when their callers are added. A load of separate modules maps each of them. The dynamic linker walks through"
        " all libraries of the process each time, so the cost per module rises with the length of a chain ([decision"
        " 82](decisions/0082-closures-in-layers.md)). Most of the time for a linked library is that of any first hit of a process:"
        " the directory, its index, the runtime, and the file that records that the closure is valid ([decision"
        " 101](decisions/0101-closures-in-the-plain-reader.md)). [Decision 100](decisions/0100-closures-that-import-are-plain.md)"
        " covers LAPACK. typed_python needs an old Python, and was not measured."
    ),
    "adding": (
        "In addition to code generation, a module needs its entry points and table, the dependency graph, its image, records,"
        " compressed bitcode, and the synchronized write. Most of this is a cost per module, so it matters most for modules with a"
        " few small functions."
    ),
    "real_programs": (
        "The programs were measured one after the other. If each side was measured once (quick), ratios also reflect other work on"
        " the machine. Processor seconds of the same work differ by a fifth and more from one minute to the next here, even in minima"
        " of two runs. [Decision 34](decisions/0034-loads-of-many-modules.md) has ratios of five runs, and of instructions. If many"
        " small modules are added, the cost of each module matters. A first load is of the whole closure: hundreds of functions in up"
        " to 30 modules, while `ld.so` maps a single file. When these figures were measured, another process had recorded the"
        " bindings ([decision 90](decisions/0090-two-ways-to-what-is-bound.md)). Other work on the machine prolongs first loads most."
        " Most of the private memory is file pages. The kernel maps up to 64 KiB around each page that is read. For a small image"
        " this is the whole text, for a large file only a part. Module files are larger than the shared object because of their"
        " bitcode, which `show --ir` and retargeting read."
    ),
    "crowd": (
        "Code that ORC links is private memory of each process, while all processes share a mapped image. The 99th percentile of both"
        " peers is mostly due to the scheduler: many processes on few cores."
    ),
    "maintenance_cost": (
        "The costs of `check` and `prune` are necessarily proportional to the number of modules. A look-up does none of this work."
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
        f"**Against a library whose path is known.** Above an empty process, a hit takes {figure(ours - empty)} ms. Importing ctypes"
        f" and opening a shared object takes {figure(bare - empty)} ms (minima). In instructions this is {figure(millions[0])} against"
        f" {figure(millions[1])} million, and {figure(millions[2])} million for the bare prototype of a cache (whole processes:"
        f" {figure(whole)} times the prototype's instructions). Most of it is the import of about fifteen small modules, each of which"
        " the interpreter must find, read and execute. In contrast to the prototype they check digests, owners, versions and the host,"
        " fill slots of dependencies, count hits, and unload safely."
    )  # fmt: skip


def _goal_row(records: Mapping[str, Any], number: str) -> Any:
    return next(row for row in records["goals"]["results"] if row["title"].startswith(number + " "))


def _warm(records: Mapping[str, Any]) -> str:
    row = _goal_row(records, "4.")
    return (
        f"**First look-up in a warm process.** It takes {figure(row['measured'])} times as long as `ctypes.CDLL` and a symbol on the same"
        f" image ({figure(row['measured_minima'])} times by minima): it reads the index, the module's records and its stamp, and makes a"
        " typed target."
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
        f"**Adding tiny modules.** A module with one small function costs {figure(above(tiny['1']))} ms more than code generation,"
        f" {figure(ratio(tiny['1']))} times code generation alone. The hand-written cache only adds a file. compcache also synchronizes the"
        " write, and describes the code for modules that will be linked with it. For"
        f" {many} realistic functions the ratio is {figure(ratio(real[many]))}. Put many small functions into one module, or add many"
        " modules by `add_modules` or a batch."
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
        f" If a linker makes the image, the linker's start is a large part of the addition: {listed}. Debian's `ld.lld` loads LLVM's"
        " whole shared library to link a few hundred bytes."
    )


def _disk(records: Mapping[str, Any]) -> str:
    tiny = records["adding"]["results"]["tiny"]
    one, many = tiny["1"]["bytes"], tiny["1000"]["bytes"]
    return (
        f"**Bytes of tiny modules.** A module with one function takes {one['module file']:,} bytes, its object {one['object']:,}. The rest"
        " is program headers, dynamic section, table, entry points, records and bitcode. With a thousand functions per module it is"
        f" {figure(many['module file'] / 1000)} against {figure(many['object'] / 1000)} bytes each."
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
        f"**Calls, against a C extension.** {', '.join(pairs)}. One image serves all versions of Python. So entry points call functions of"
        " the stable ABI instead of macros, and they are called through the vectorcall of an object."
    )
    method = cases["add"].get("compcache, its __call__")
    if method:
        text += (
            " `target.__call__` is a builtin function, which Python calls with a specialized instruction:"
            f" {figure(method['minimum'])} ns (two floats)."
        )
    array, numba = cases["first"].get("compcache, NumPy array"), cases["first"].get("Numba's dispatcher")
    if array and numba:
        text += (
            f" A call with a NumPy array takes {figure(array['minimum'])} ns, and {figure(numba['minimum'])} ns through Numba's dispatcher."
        )
    return text


def _merges(records: Mapping[str, Any]) -> str:
    runs = records["maintenance_cost"]["results"]["runs"]
    count, run = list(runs.items())[-1]
    return (
        f"**One addition pays for a merge.** While {int(count):,} modules were added, the slowest addition took"
        f" {figure(run['slowest_add_ms'])} ms, because it merged the index entries of earlier additions. Look-ups do not wait for it."
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
