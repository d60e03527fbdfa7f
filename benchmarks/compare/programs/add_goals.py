"""SCRATCH REPETITIONS: processor seconds of additions and of what each is held against, in turns.

Both sides work in this process, but for the loads, which have processes of their own.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from time import process_time
from typing import TYPE_CHECKING

import orc_objects
import sources
from children.timing import take_turns

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from collections.abc import Callable

_MANY, _FUNCTIONS, _IMPORTS = 100, 300, 10_000
_LOAD = (
    "import sys; from time import process_time; from compcache import Cache; cache = Cache(sys.argv[1]); cache.get_target('none'); "
    "start = process_time(); cache.get_target(sys.argv[2]); print(process_time() - start)"
)


def seconds(work: Callable[[], object]) -> float:
    """The processor time of some work, its processes included."""
    before = process_time() + _of_children()
    work()
    return process_time() + _of_children() - before


def _of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def tiny(number: int) -> str:
    return sources.small_module([f"tiny_{number}"], seed=number)


def of_tiny(scratch: str, repetitions: int) -> dict[str, list[float]]:
    """A tiny module alone, as the first of a directory, and each of many."""
    numbers = iter(range(1_000_000_000))
    cache = Cache(f"{scratch}/tiny")
    cache.add_module(ModuleSource(sources.SMALL))

    def first(repetition: int) -> float:
        directory = f"{scratch}/first-{repetition}"
        with Cache(directory) as new:
            taken = seconds(lambda: new.add_module(ModuleSource(tiny(next(numbers)))))
        shutil.rmtree(directory)
        return taken

    def each(_: int) -> float:
        given = [ModuleSource(tiny(next(numbers))) for _ in range(_MANY)]
        return seconds(lambda: cache.add_modules(given)) / _MANY

    sides: dict[str, Callable[[int], float]] = {
        "alone": lambda _: seconds(lambda: generate(tiny(next(numbers)))),
        "one": lambda _: seconds(lambda: cache.add_module(ModuleSource(tiny(next(numbers))))),
        "first": first,
    }
    taken = take_turns(sides, repetitions)
    many = take_turns({"each": each}, max(2, repetitions // 10), 1)
    cache.close()
    return taken | many


_machine = orc_objects.target_machine()


def generate(text: str) -> None:
    """Code generation alone, by a target machine that was made before, as additions have it."""
    llvm = orc_objects.llvm
    header = f'target datalayout = "{_machine.target_data}"\ntarget triple = "{llvm.get_default_triple()}"\n'
    module = llvm.parse_assembly(header + text, llvm.create_context())
    builder = llvm.create_pass_builder(_machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    _machine.emit_object(module)


def of_realistic(scratch: str, repetitions: int) -> dict[str, list[float]]:
    seeds = iter(range(1_000_000))
    with Cache(f"{scratch}/realistic") as cache:
        return take_turns({
            "alone": lambda _: seconds(lambda: generate(sources.realistic_module(_FUNCTIONS, 2 * next(seeds)))),
            "one": lambda _: seconds(lambda: cache.add_module(ModuleSource(sources.realistic_module(_FUNCTIONS, 2 * next(seeds) + 1)))),
        }, repetitions, 0)  # fmt: skip


def of_imports(scratch: str, repetitions: int) -> dict[str, list[float]]:
    """Loads, in fresh processes, of a function that imports many from one module, and of one that imports nothing."""
    names = [f"import_{number}" for number in range(_IMPORTS)]
    calls = "".join([f"  %x{number + 1} = call double @{name}(double %x{number}, double 1.0)\n" for number, name in enumerate(names)])
    declared = "".join([f"declare double @{name}(double, double)\n" for name in names])
    user = f"{declared}define double @all(double %x0) {{\n{calls}  ret double %x{_IMPORTS}\n}}\n"
    directory = f"{scratch}/imports"
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(sources.small_module(names), optimize=0))
        cache.add_module(ModuleSource(user, optimize=0, inline=False))
        cache.add_module(ModuleSource("define void @none() {\n  ret void\n}\ndefine void @few() {\n  ret void\n}\n"))

    def load(name: str) -> float:
        return float(subprocess.check_output([sys.executable, "-c", _LOAD, directory, name]))

    return take_turns({"alone": lambda _: load("few"), "one": lambda _: load("all")}, repetitions, 0)


def main(scratch: str, repetitions: int) -> None:
    os.environ.pop("COMPCACHE_LINKER", None)
    few = max(2, repetitions // 10)
    found = {
        "tiny": of_tiny(scratch, repetitions), "realistic": of_realistic(scratch, few), "imports": of_imports(scratch, few + 2),
    }  # fmt: skip
    print(json.dumps({"seconds": found, "imports": _IMPORTS, "many": _MANY, "functions": _FUNCTIONS}))


main(sys.argv[1], int(sys.argv[2]))
