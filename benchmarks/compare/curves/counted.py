"""Counted work of a hit: instructions, system calls, opened files, imported modules. Noise does not reach these."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any

from compare.context import ProgramError
from compare.peers import contenders
from compare.tables import figure, rows
from compare.work import sizes

if TYPE_CHECKING:
    from pathlib import Path

    from compare.context import Context
    from compare.peers import Prepared

TITLE = "Counted work of a hit"
COUNTED = {
    "instructions": "instructions, million",
    "syscalls": "system calls",
    "opened": "files opened",
    "kib_read": "KiB read",
    "modules": "modules imported",
}
_RESULT = re.compile(r"= (-?\d+)")


def measure(context: Context) -> dict[str, Any]:
    small = sizes(quick=context.quick)[0]
    result: dict[str, Any] = {}
    for peer in contenders(context):
        if not peer.light:
            continue
        made = peer.prepare(context, small)
        if made is None:
            continue
        result[peer.label] = {
            **_instructions(context, made), **_system_calls(context, made), "modules": _modules(context, made),
        }  # fmt: skip
    return result


def _instructions(context: Context, made: Prepared) -> dict[str, float]:
    if shutil.which("valgrind") is None:
        context.skipped["instructions"] = "valgrind is not on the path"
        return {}
    out = context.workspace.root / "callgrind.out"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *made.command]
    try:
        context.output(command, {**made.environment, "PYTHONHASHSEED": "0"}, timeout=300)
    except ProgramError as error:
        context.skipped["instructions"] = str(error).splitlines()[-1]
        return {}
    return {"instructions": _total(out) / 1e6}


def _total(path: Path) -> int:
    with path.open(encoding="utf-8", errors="replace") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(("summary:", "totals:")))


def _system_calls(context: Context, made: Prepared) -> dict[str, float]:
    if shutil.which("strace") is None:
        context.skipped["system calls"] = "strace is not on the path"
        return {}
    out = context.workspace.root / "strace.out"
    try:
        context.output(["strace", "-f", "-o", str(out), *made.command], made.environment)
    except ProgramError as error:
        context.skipped["system calls"] = str(error).splitlines()[-1]
        return {}
    calls = [line.partition(" ")[2].lstrip() for line in out.read_text(errors="replace").splitlines()]
    calls = [line for line in calls if "(" in line and not line.startswith(("+++", "---"))]
    return {
        "syscalls": len(calls),
        "opened": sum(1 for line in calls if line.startswith("openat(") and _value(line) >= 0),
        "kib_read": sum(max(_value(line), 0) for line in calls if line.startswith(("read(", "pread64(")))
        / 1024,
    }


def _value(line: str) -> int:
    found = _RESULT.findall(line)
    return int(found[-1]) if found else -1


def _modules(context: Context, made: Prepared) -> int:
    python, flag, code = made.command
    text = context.output([python, flag, f"{code}\nimport sys; print(len(sys.modules))"], made.environment)
    return int(text.splitlines()[-1])


def markdown(record: dict[str, Any]) -> str:
    result = record["results"]
    counted = [name for name in COUNTED if any(name in counts for counts in result.values())]
    base = result.get("empty process", {})
    body = [[label, *(figure(counts.get(name)) for name in counted)] for label, counts in result.items()]
    above = [
        [label, *(figure(counts[name] - base[name] if name in counts and name in base else None) for name in counted)]
        for label, counts in result.items()
        if label != "empty process"
    ]  # fmt: skip
    header = [COUNTED[name] for name in counted]
    return "\n\n".join([
        ("Counts of the whole process that makes the first call (small code). Instructions come from `valgrind --tool=callgrind`,"
         " which repeats to a fraction of a percent whatever the load; system calls, files and bytes come from `strace -f`. Memory"
         " maps do not count as reads. `tests/hit/test_counted_work.py` limits such counts for compcache."),
        rows(["", *header], body),
        "The same counts above the empty process:",
        rows(["", *header], above),
    ])  # fmt: skip


def plot(record: dict[str, Any], figure_: Any) -> None:
    known = {
        label: counts["instructions"]
        for label, counts in record["results"].items()
        if "instructions" in counts
    }
    axes = figure_.subplots()
    axes.barh(list(known), list(known.values()))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("million instructions of the whole process (logarithmic)")
