"""What many entries cost. Times are ratios of processor time within one system, of the least of three where few are measured."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compcache_conformance.language import Constant, Function, Program, program
from compcache_conformance.results import Cannot, Outcome, Violation
from compcache_conformance.scenarios.registry import scenario

if TYPE_CHECKING:
    from compcache_conformance.bench import Bench
    from compcache_conformance.processes import Call, Run

__all__ = ["Many", "many_entries"]

#: For how many seconds ten thousand entries are added; what there is then is looked at.
_LONGEST = 900.0
#: Differences below this are of the clock and of the processor's caches.
_SHORTEST = 0.0005


@dataclass(frozen=True, slots=True)
class Many:
    """A store that has many entries: those of a small program, and those of a large one in another folder."""

    bench: Bench
    calls: list[Call]
    answers: list[float]
    additions: Run

    def find(self, *which: int) -> Run:
        """Functions of the large program, found by a fresh process."""
        chosen = [self.calls[number] for number in which]
        answers = [self.answers[number] for number in which]
        return self.bench.expect(self.bench.run(*chosen, folder=self.bench.root / "other"), *answers, found=True)


def many_entries(bench: Bench) -> Many:
    """As many as the system compiles in a minute or so. Scenarios look at this store, and change nothing in it."""
    bench.filled(program())
    other = bench.root / "other"
    other.mkdir()
    many, calls, answers = _many(range(bench.adapter.entries))
    bench.write(many, other)
    return Many(bench, calls, answers, bench.expect(bench.run(*calls, folder=other), *answers))


def _many(numbers: range) -> tuple[Program, list[Call], list[float]]:
    functions = tuple(Function(f"f{number}", f"x * {float(number)} + 1.0") for number in numbers)
    return Program(functions), [(f"f{number}", (3.0,)) for number in numbers], [3.0 * number + 1.0 for number in numbers]


def _grows(bench: Bench, what: str, small: float, large: float, most: float) -> None:
    ratio = large / max(small, _SHORTEST)
    bench.note(f"{what}: {ratio:.2f}x")
    if ratio > most:
        raise Violation(Outcome.MISSED, f"{what}: {ratio:.1f} times as long")


@scenario("scale", "hit among many", "A hit for a small program takes little more time among many other entries than alone.", "")
def hit_among_many(bench: Bench) -> None:
    bench.filled(program())
    alone = min(bench.keeps().processor_seconds for _ in range(3))
    many = bench.look_at(many_entries)
    among = min(many.bench.keeps().processor_seconds for _ in range(3))
    _grows(bench, f"process with a hit among {len(many.calls)} entries", alone, among, 1.5)


@scenario("scale", "last of many additions", "The last of many additions takes little more time than the first ones.", "uwplasma/vmex#254")
def last_addition(bench: Bench) -> None:
    times = [reply.seconds for reply in bench.look_at(many_entries).additions.replies if reply.call >= 0]
    part = max(3, len(times) // 5)
    _grows(bench, f"the last of {len(times)} additions", sorted(times[1 : part + 1])[part // 2], sorted(times[-part:])[part // 2], 2.5)


@scenario(
    "scale",
    "ten thousand entries",
    "With ten thousand entries, an addition and a process with a hit take little more time than with few entries.",
    "uwplasma/vmex#254",
    slow=True,
)
def ten_thousand_entries(bench: Bench) -> None:
    count, parts = bench.adapter.most, 10
    if not count:
        raise Cannot(f"{bench.adapter.name} takes too long here to compile ten thousand functions")
    bench.filled(program())
    alone = min(bench.keeps().processor_seconds for _ in range(3))
    times = _medians_of_additions(bench, [range(start, start + count // parts) for start in range(0, count, count // parts)])
    added = len(times) * count // parts
    among = min(bench.keeps().processor_seconds for _ in range(3))
    bench.note(f"{len(list(bench.store.rglob('*')))} files and folders for {added} entries")
    if times:
        _grows(bench, f"the last tenth of {added} additions, by medians", times[0], times[-1], 2.5)
        _grows(bench, f"process with a hit among {added} entries", alone, among, 1.5)
    if added < count:
        raise Cannot(f"{added} of {count} entries were added in {_LONGEST:.0f} s")


def _medians_of_additions(bench: Bench, parts: list[range]) -> list[float]:
    """The processor time of an addition in each part of the functions, as far as the time goes; each part is a program of its own."""
    end, found = time.monotonic() + _LONGEST, []
    usual = bench.patience
    for part in parts:
        many, calls, answers = _many(part)
        folder = bench.root / f"from-{part.start}"
        folder.mkdir()
        bench.write(many, folder)
        bench.patience = end - time.monotonic()
        run = bench.run(*calls, folder=folder)
        if run.timed_out:
            break
        bench.expect(run, *answers)
        seconds = sorted(reply.seconds for reply in run.replies if reply.call >= 0)
        found.append(seconds[len(seconds) // 2])
    bench.patience = usual
    return found


@scenario(
    "scale",
    "found is cheaper",
    "A process that finds twenty functions takes less processor time than the one that compiled them.",
    "brazilofmux/tinymux#2061",
)
def found_is_cheaper(bench: Bench) -> None:
    many, calls, answers = _many(range(min(20, bench.adapter.entries)))
    bench.write(many)
    first = bench.expect(bench.run(*calls, anew=True), *answers)
    again = min(bench.expect(bench.run(*calls, anew=True), *answers, found=True).all_seconds for _ in range(2))
    ratio = again / max(first.all_seconds, _SHORTEST)
    bench.note(f"{ratio:.2f} of the time")
    if ratio > 0.9:
        raise Violation(Outcome.MISSED, f"found, and takes {ratio:.2f} of the processor time of compiling")


@scenario("scale", "hit of the last", "The last function of a large program is found in little more time than the first.", "")
def hit_of_the_last(bench: Bench) -> None:
    many = bench.look_at(many_entries)
    first = min(many.find(0).first.seconds for _ in range(3))
    last = min(many.find(-1).first.seconds for _ in range(3))
    _grows(bench, "hit of the last", first, last, 3.0)


@scenario("scale", "files for an entry", "An entry has at most four files.", "")
def files_for_an_entry(bench: Bench) -> None:
    many = bench.look_at(many_entries)
    count, files = len(many.calls), len(list(many.bench.store.rglob("*")))
    bench.note(f"{files / count:.2f} files and folders for each of {count} entries")
    if files > 4 * count + 20:
        raise Violation(Outcome.MISSED, f"{files} files and folders for {count} entries")


@scenario("scale", "flat directory", "No folder contains the files of more than a thousand entries.", "cupy/cupy#1890")
def flat_directory(bench: Bench) -> None:
    many = bench.look_at(many_entries)
    count = len(many.calls)
    most = max(Counter(path.parent for path in many.bench.store.rglob("*")).values(), default=0)
    bench.note(f"{most} in one folder, of {count} entries")
    if count < 100:
        raise Cannot(f"{bench.adapter.name} compiles {count} functions here, which says nothing")
    if most > 0.9 * count:
        raise Violation(Outcome.MISSED, f"one folder has {most} of the files of {count} entries")


@scenario(
    "scale",
    "long chain",
    "A chain of functions that call each other, as long as the compiler accepts, is compiled and found.",
    "uwplasma/vmex#142",
)
def long_chain(bench: Bench) -> None:
    count = min(bench.adapter.chain, 130) if bench.is_quick else bench.adapter.chain
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
    "scale",
    "size of a table",
    "A function that reads 20,000 numbers has an entry of at most four times their size.",
    "pymc-devs/pytensor#1759",
)
def size_of_a_table(bench: Bench) -> None:
    table = tuple(float(number) for number in range(20_000))
    bench.write(program("x * K[2] + 1.0", K=Constant("K", table)))
    bench.works()
    size = sum(path.stat().st_size for path in bench.files())
    bench.note(f"{size / 160_000:.2f} times the size of the table")
    if size > 4 * 160_000:
        raise Violation(Outcome.MISSED, f"{size} bytes for a table of 160,000")
