"""What many entries cost. Times are ratios of processor time within one system, of the least of three where few are measured."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from compcache_conformance.language import Constant, Function, Program, program
from compcache_conformance.results import Cannot, Outcome, Violation
from compcache_conformance.scenarios.registry import scenario

if TYPE_CHECKING:
    from compcache_conformance.bench import Bench


def _many(count: int) -> tuple[Program, list[tuple[str, tuple[float, ...]]], list[float]]:
    functions = tuple(Function(f"f{number}", f"x * {float(number)} + 1.0") for number in range(count))
    return Program(functions), [(f"f{number}", (3.0,)) for number in range(count)], [3.0 * number + 1.0 for number in range(count)]


def _grows(bench: Bench, what: str, small: float, large: float, most: float) -> None:
    ratio = large / max(small, 1e-9)
    bench.note(f"{what}: {ratio:.2f}x")
    if ratio > most:
        raise Violation(Outcome.MISSED, f"{what}: {ratio:.1f} times as long")


@scenario(
    "scale", "hit among many", "A function of a small program is found among many entries of others in little more time than alone.", ""
)
def hit_among_many(bench: Bench) -> None:
    bench.filled(program())
    alone = min(bench.keeps().processor_seconds for _ in range(3))
    count = bench.adapter.entries
    other = bench.root / "other"
    other.mkdir()
    many, calls, answers = _many(count)
    bench.write(many, other)
    bench.expect(bench.run(*calls, folder=other), *answers)
    among = min(bench.keeps().processor_seconds for _ in range(3))
    _grows(bench, f"process with a hit among {count} entries", alone, among, 1.5)


@scenario("scale", "last of many additions", "The last of many additions takes little more than the first ones.", "uwplasma/vmex#254")
def last_addition(bench: Bench) -> None:
    count = bench.adapter.entries
    many, calls, answers = _many(count)
    bench.write(many)
    run = bench.expect(bench.run(*calls), *answers)
    times = [reply.seconds for reply in run.replies]
    part = max(3, count // 5)
    _grows(bench, f"the last of {count} additions", sorted(times[1 : part + 1])[part // 2], sorted(times[-part:])[part // 2], 2.5)


@scenario(
    "scale",
    "ten thousand entries",
    "With ten thousand entries an addition, and a process with a hit, take little more time than with few.",
    "uwplasma/vmex#254",
    slow=True,
)
def ten_thousand_entries(bench: Bench) -> None:
    count, parts = bench.adapter.most, 10
    if not count:
        raise Cannot(f"{bench.adapter.name} takes too long here to compile ten thousand functions")
    bench.patience = max(bench.patience, 600.0)
    bench.filled(program())
    alone = min(bench.keeps().processor_seconds for _ in range(3))
    other = bench.root / "other"
    other.mkdir()
    many, calls, answers = _many(count)
    bench.write(many, other)
    times = []
    for start in range(0, count, count // parts):
        part = slice(start, start + count // parts)
        run = bench.expect(bench.run(*calls[part], folder=other), *answers[part])
        seconds = sorted(reply.seconds for reply in run.replies)
        times.append(seconds[len(seconds) // 2])
    among = min(bench.keeps().processor_seconds for _ in range(3))
    bench.note(f"{len(list(bench.store.rglob('*')))} files and folders for {count} entries")
    _grows(bench, f"the last tenth of {count} additions, by medians", times[0], times[-1], 2.5)
    _grows(bench, f"process with a hit among {count} entries", alone, among, 1.5)


@scenario("scale", "hit of the last", "The last function of a large program is found in little more time than the first.", "")
def hit_of_the_last(bench: Bench) -> None:
    many, calls, answers = _many(bench.adapter.entries)
    bench.write(many)
    bench.expect(bench.run(*calls), *answers)
    first = min(bench.expect(bench.run(calls[0]), answers[0], found=True).first.seconds for _ in range(3))
    last = min(bench.expect(bench.run(calls[-1]), answers[-1], found=True).first.seconds for _ in range(3))
    _grows(bench, "hit of the last", first, last, 3.0)


@scenario("scale", "files for an entry", "An entry takes no more than four files.", "")
def files_for_an_entry(bench: Bench) -> None:
    count = bench.adapter.entries
    many, calls, answers = _many(count)
    bench.write(many)
    bench.expect(bench.run(*calls), *answers)
    files = len(list(bench.store.rglob("*")))
    bench.note(f"{files / count:.2f} files and folders for each of {count} entries")
    if files > 4 * count + 20:
        raise Violation(Outcome.MISSED, f"{files} files and folders for {count} entries")


@scenario("scale", "flat directory", "No folder holds the files of more than a thousand entries.", "cupy/cupy#1890")
def flat_directory(bench: Bench) -> None:
    count = bench.adapter.entries
    many, calls, answers = _many(count)
    bench.write(many)
    bench.expect(bench.run(*calls), *answers)
    most = max(Counter(path.parent for path in bench.store.rglob("*")).values(), default=0)
    bench.note(f"{most} in one folder, of {count} entries")
    if count < 100:
        raise Cannot(f"{bench.adapter.name} compiles {count} functions here, which says nothing")
    if most > 0.9 * count:
        raise Violation(Outcome.MISSED, f"one folder has {most} of the files of {count} entries")


@scenario(
    "scale",
    "long chain",
    "A chain of functions, each of which calls the one before, as long as the compiler takes, is compiled and found.",
    "uwplasma/vmex#142",
)
def long_chain(bench: Bench) -> None:
    count = bench.adapter.chain
    functions = [Function("f0", "x + 1.0"), *(Function(f"f{number}", f"f{number - 1}(x) + 1.0") for number in range(1, count))]
    bench.write(Program(tuple(functions)))
    last = (f"f{count - 1}", (3.0,))
    bench.note(f"a chain of {count}")
    bench.expect(bench.run(last), 3.0 + count)
    bench.expect(bench.run(last), 3.0 + count, found=True)


@scenario("scale", "long expression", "A function of 400 operations is compiled and found.", "")
def long_expression(bench: Bench) -> None:
    bench.filled(program("x" + " + 1.0" * 400), 403.0)


@scenario(
    "scale", "size of a table", "A function that reads 20,000 numbers takes no more than four times their size.", "pymc-devs/pytensor#1759"
)
def size_of_a_table(bench: Bench) -> None:
    table = tuple(float(number) for number in range(20_000))
    bench.write(program("x * K[2] + 1.0", K=Constant("K", table)))
    bench.works()
    size = sum(path.stat().st_size for path in bench.files())
    bench.note(f"{size / 160_000:.2f} times the size of the table")
    if size > 4 * 160_000:
        raise Violation(Outcome.MISSED, f"{size} bytes for a table of 160,000")
