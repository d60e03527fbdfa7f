"""What inline assembly costs an addition: its trial in a child process, on modules of bitcode (any C or C++ program's).

    python benchmarks/assembly.py [--repetitions N] FILE.bc...

Processor time, that of child processes included, of three ways in turns: `add_module` as it is; the same without the trial; and with
one of the whole module, as it was before. Beside it what code generation alone takes (parse, the same optimization, `emit_object`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from compcache import Cache, ModuleSource
from compcache.build import codegen, trial
from compcache.translation import emission

if TYPE_CHECKING:
    from collections.abc import Callable

LEVEL = 2
WAYS: dict[str, Callable[[str], str | None]] = {
    "as it is": trial.assembly_parts,
    "no trial": lambda _: None,
    "all of it": lambda text: text if trial.has_assembly(text) else None,
}


def processor_seconds(work: Callable[[], object]) -> float:
    """What this process and its children take for it."""
    before = os.times()
    work()
    after = os.times()
    return sum(getattr(after, name) - getattr(before, name) for name in ("user", "system", "children_user", "children_system"))


def add(code: bytes, way: Callable[[str], str | None]) -> float:
    """`add_module` to a directory of its own."""
    emission.assembly_parts = way  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as directory, Cache(directory) as cache:
        cache.add_module(ModuleSource("define void @first() {\n  ret void\n}\n"))  # what the host is, and which linker there is
        return processor_seconds(lambda: cache.add_module(ModuleSource(code, libraries=["stdc++"], optimize=LEVEL)))


def generate(code: bytes) -> float:
    """Code generation alone."""
    def work() -> None:
        module = llvm.parse_bitcode(code, llvm.create_context())
        machine = codegen.target_machine("", "", LEVEL)
        codegen.optimize(module, machine, LEVEL)
        machine.emit_object(module)

    return processor_seconds(work)


def main() -> None:
    """Print a row for each file: medians, and ratios to the addition without a trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    codegen.initialize()
    for path in options.files:
        code = path.read_bytes()
        samples: dict[str, list[float]] = {name: [] for name in ("code generation", *WAYS)}
        for _ in range(options.repetitions):
            samples["code generation"].append(generate(code))
            for name, way in WAYS.items():
                samples[name].append(add(code, way))
        medians = {name: statistics.median(taken) for name, taken in samples.items()}
        text = str(llvm.parse_bitcode(code))
        calls = len([line for line in text.split("\n") if " asm " in line])
        base = medians["no trial"]
        figures = ", ".join(f"{name} {taken:.2f} s ({taken / base:.2f})" for name, taken in medians.items())
        sys.stdout.write(f"{path.stem}: {calls} lines of inline assembly; {figures}\n")
        added = medians["as it is"] - base
        sys.stdout.write(f"  the trial adds {added / medians['code generation']:.2f} of code generation\n")


if __name__ == "__main__":
    main()
