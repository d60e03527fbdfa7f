"""Processes that start at once, and processes that end in the middle."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from typing import TYPE_CHECKING

from compcache_conformance.language import Constant, Function, Program, program
from compcache_conformance.results import Cannot, Outcome, Violation
from compcache_conformance.scenarios.registry import scenario

if TYPE_CHECKING:
    from compcache_conformance.bench import Bench


def _count(bench: Bench, most: int) -> int:
    """How many processes at once: as many as the system's patience allows on two processors, and quickly no more than twelve."""
    return min(most, max(4, bench.adapter.entries // 5), 12 if bench.is_quick else most)


@scenario(
    "races",
    "two starters",
    "Two processes that compile the same function at the same time both give right answers, and the function is then found.",
    "numba/numba#10128",
    races=True,
)
def two_starters(bench: Bench) -> None:
    bench.write(program())
    for run in bench.together(2):
        bench.expect(run, 7.0)
    bench.keeps()


@scenario(
    "races",
    "crowd of starters",
    "Up to 32 processes that start at the same time behind a barrier all give right answers.",
    "numba/numba#10128",
    races=True,
)
def crowd_of_starters(bench: Bench) -> None:
    bench.write(program("g(x) + 1.0", g="x * 2.0"))
    count = _count(bench, 32)
    bench.note(f"{count} processes")
    for run in bench.together(count):
        bench.expect(run, 7.0)
    bench.keeps()


@scenario(
    "races",
    "each its own function",
    "Processes that compile different functions of one file at the same time lose none.",
    "numba/numba#10128",
    races=True,
)
def each_its_own(bench: Bench) -> None:
    count = min(8, _count(bench, 8))
    bench.write(Program(tuple(Function(f"f{number}", f"x * {float(number)}") for number in range(count))))
    calls = [(f"f{number}", (3.0,)) for number in range(count)]
    for number, run in enumerate(bench.at_once([(call,) for call in calls])):
        bench.expect(run, 3.0 * number)
    again = bench.run(*calls)
    bench.expect(again, *[3.0 * number for number in range(count)])
    lost = [reply.call for reply in again.replies if reply.found is False]
    if lost:
        raise Violation(Outcome.LOST, f"{len(lost)} of {count} functions are not found again")


@scenario(
    "races", "types at once", "Processes that compile one function for different types at once lose none.", "numba/numba#10128", races=True
)
def types_at_once(bench: Bench) -> None:
    bench.write(program("x * 0.5 + 1.0"))
    for run in bench.at_once([(("f", (3,)),), (("f", (3.0,)),)]):
        bench.expect(run, 2.5)
    again = bench.expect(bench.run(("f", (3,)), ("f", (3.0,))), 2.5, 2.5)
    if any(reply.found is False for reply in again.replies):
        raise Violation(Outcome.LOST, "what one of the two compiled is not found again")


@scenario(
    "races",
    "two versions at once",
    "Two versions of a program that run at the same time with one store get their own code.",
    "numba/numba#4807",
    races=True,
)
def two_versions(bench: Bench) -> None:
    other = bench.root / "other"
    other.mkdir()
    bench.write(program("g(x) + 1.0", g="x * 2.0"))
    bench.write(program("g(x) + 1.0", g="x * 3.0"), other)
    for _ in range(2):
        first = [bench.start() for _ in range(2)]
        second = [bench.start(folder=other) for _ in range(2)]
        for process in first:
            bench.expect(process.wait(), 7.0)
        for process in second:
            bench.expect(process.wait(), 10.0)


@scenario(
    "races",
    "ranks",
    "Processes that differ in a value of their environment, like the ranks of a job, get their own code.",
    "pytorch/pytorch#92664",
    races=True,
)
def ranks(bench: Bench) -> None:
    bench.write(program("x * K + 1.0", K=Constant("K", 0.0, source="environment")))
    values = (2.0, 3.0, 4.0, 5.0)[: bench.few(4)]
    for _ in range(2):
        running = [bench.start(env={"CONFORMANCE_K": repr(value)}) for value in values]
        for value, process in zip(values, running, strict=True):
            bench.expect(process.wait(), 3.0 * value + 1.0)


@scenario(
    "races",
    "killed at each change",
    "A process that is killed before any one of its file changes leaves a working store.",
    "jax-ml/jax#39880",
    slow=True,
)
def killed_at_each_change(bench: Bench) -> None:
    bench.write(program())
    changes = bench.changes()
    points = sorted({1 + at * (changes - 1) // max(1, min(changes, _points(bench)) - 1) for at in range(min(changes, _points(bench)))})
    bench.note(f"killed before {len(points)} of {changes} changes")
    for point in points:
        shutil.rmtree(bench.store)
        bench.store.mkdir(mode=0o700)
        bench.run(env=bench.faulty(f"kill:{point}"))
        bench.works()
        bench.keeps(why=f"after a kill before change {point} nothing is stored any more")


def _points(bench: Bench) -> int:
    return min(24, max(4, bench.adapter.entries // 5))


@scenario("races", "killed while it compiles", "A process that is killed at a random time leaves a working store.", "", races=True)
def killed_while_it_compiles(bench: Bench) -> None:
    bench.write(program("g(x) + 1.0", g="x * 2.0"))
    started = time.monotonic()
    bench.works(store=bench.copy("trial"))
    length = time.monotonic() - started
    for part in (0.85, 0.6, 0.7, 0.95)[: bench.few(4)]:
        running = bench.start()
        time.sleep(length * part)
        running.kill()
        running.wait()
    bench.works()
    bench.keeps()


@scenario(
    "races",
    "stopped writer",
    "A process that is stopped while it stores does not block other processes forever.",
    "pytorch/pytorch#189245",
    slow=True,
)
def stopped_writer(bench: Bench) -> None:
    bench.write(program())
    changes = bench.changes()
    running = bench.start(env=bench.faulty(f"stop:{1 + changes // 2}"))
    deadline = time.monotonic() + bench.adapter.patience / 2
    while _state(running.pid) != "T" and time.monotonic() < deadline:
        time.sleep(0.02)
    if _state(running.pid) != "T":
        running.kill()
        running.wait()
        raise Cannot("it made fewer changes of files than the time before")
    try:
        bench.works()
    finally:
        running.kill()
        running.wait()


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@scenario("races", "terminated", "A process that receives SIGTERM while it compiles leaves a working store.", "")
def terminated(bench: Bench) -> None:
    bench.write(program())
    changes = bench.changes()
    run = bench.start(env=bench.faulty(f"term:{1 + changes // 2}")).wait()
    if run.status == 0:
        raise Cannot("it made fewer changes of files than the time before")
    if run.status not in {-signal.SIGTERM, 128 + signal.SIGTERM}:
        bench.note(f"status {run.status} after SIGTERM")
    bench.works()
    bench.keeps()


@scenario("races", "store removed beside a reader", "A process whose store is removed continues.", "NVIDIA/cuda-python#2580")
def store_removed(bench: Bench) -> None:
    bench.filled(program("x * 2.0 + 1.0", a="x + 1.0"))
    pause = bench.new_pause()
    running = bench.start(("f", (3.0,)), ("a", (3.0,)), ("f", (4.0,)), pauses={"1": str(pause)})
    bench.wait_for_pause()
    shutil.rmtree(bench.store)
    pause.touch()
    bench.expect(running.wait(), 7.0, 4.0, 9.0)


@scenario("races", "files removed beside a reader", "A process continues if its store loses single files.", "NVIDIA/cuda-python#2580")
def files_removed(bench: Bench) -> None:
    bench.filled(program("x * 2.0 + 1.0", a="x + 1.0"))
    bench.expect(bench.run(("a", (3.0,))), 4.0)
    copy = bench.copy()
    for at in range(min(len(bench.files()), 6)):
        shutil.rmtree(bench.store)
        shutil.copytree(copy, bench.store, symlinks=True)
        pause = bench.new_pause()
        running = bench.start(("f", (3.0,)), ("a", (3.0,)), ("f", (4.0,)), pauses={"1": str(pause)})
        bench.wait_for_pause()
        bench.files()[at].unlink()
        pause.touch()
        bench.expect(running.wait(), 7.0, 4.0, 9.0)


@scenario(
    "races",
    "store removed while it is filled",
    "Processes whose store is removed repeatedly give right answers.",
    "NVIDIA/cuda-python#2580",
    races=True,
)
def store_removed_while_filled(bench: Bench) -> None:
    bench.write(program("g(x) + 1.0", g="x * 2.0"))
    running = [bench.start() for _ in range(4)]
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline and any(process.is_running for process in running):
        for path in list(bench.store.iterdir()):
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):  # it is gone, or has come back as a folder
                path.unlink()
        time.sleep(0.003)
    for process in running:
        bench.expect(process.wait(), 7.0)
    bench.works()
    bench.keeps()
