"""SCRATCH REPETITIONS: milliseconds of adding tiny modules: alone, by the hundred, first and second of a directory; and of LLVM alone."""

import shutil
import sys
from time import perf_counter

import llvmlite.binding as llvm

from children.timing import report, take_turns
from compcache import Cache, ModuleSource
from compcache.build import codegen
from compcache.store import Store

LEVEL = 2
MANY = 100
BARE, ONE, EACH, FIRST, SECOND = (
    "parse + optimize + emit_object", "add_module", f"add_modules of {MANY}, each", "first addition of a directory", "second",
)  # fmt: skip


def main(scratch: str, repetitions: int) -> None:
    codegen.initialize()
    machine = Store(scratch + "/host").host()
    numbers = iter(range(1_000_000_000))
    cache = Cache(scratch + "/cache")
    cache.add_module(source(next(numbers)))

    def bare(_: int) -> float:
        text = source(next(numbers)).ir
        started = perf_counter()
        module = llvm.parse_assembly(text, llvm.create_context())
        target = codegen.target_machine(machine.cpu, machine.features, LEVEL)
        codegen.optimize(module, target, LEVEL)
        target.emit_object(module)
        return (perf_counter() - started) * 1e3

    def one(_: int) -> float:
        return timed(lambda: cache.add_module(source(next(numbers))))

    def each(_: int) -> float:
        given = [source(next(numbers)) for _ in range(MANY)]
        return timed(lambda: cache.add_modules(given)) / MANY

    latest: list[Cache] = []

    def first(repetition: int) -> float:
        latest[:] = [Cache(f"{scratch}/new-{repetition}")]
        return timed(lambda: latest[0].add_module(source(next(numbers))))

    def second(repetition: int) -> float:
        if not latest:
            first(repetition)
        elapsed = timed(lambda: latest[0].add_module(source(next(numbers))))
        latest.pop().close()
        shutil.rmtree(f"{scratch}/new-{repetition}")
        return elapsed

    def both(repetition: int) -> float:
        """In this order, whichever side has its turn first."""
        firsts.append(first(repetition))
        return second(repetition)

    firsts: list[float] = []
    samples = take_turns({BARE: bare, ONE: one, EACH: each, SECOND: both}, repetitions, 3)
    samples[FIRST] = firsts[3:]
    report({"samples": samples, "facts": {"linker": cache.info().linker}})


def timed(action: object) -> float:
    started = perf_counter()
    action()  # type: ignore[operator]
    return (perf_counter() - started) * 1e3


def source(number: int) -> ModuleSource:
    """A module of one small function."""
    return ModuleSource(f"define i64 @tiny_{number}(i64 %x) {{\n  %y = add i64 %x, {number}\n  ret i64 %y\n}}\n", optimize=LEVEL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
