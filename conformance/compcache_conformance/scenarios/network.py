"""File systems of networks: a double between the program and libc (`native/faults.c`) shows single failures, and two mounts of another one
(`network_double.py`) what two hosts see.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

from compcache_conformance.language import program
from compcache_conformance.results import Outcome, Violation
from compcache_conformance.scenarios.registry import scenario

if TYPE_CHECKING:
    from compcache_conformance.bench import Bench

#: Faults: name, sentence, origin, what `native/faults.c` is told.
_FAULTS = (
    ("late renames", "Files that other hosts see 400 ms after their rename do no harm.", "deepseek-ai/DeepEP#683", "late:400"),
    ("stale handles", "A file system on which every third open or read fails with ESTALE does no harm.", "cvmfs/cvmfs#559", "stale:3"),
    (
        "missing files",
        "A file system on which every second listed file is missing when it is opened does no harm.",
        "triton-lang/triton#11512",
        "missing:2",
    ),
    ("errors while reading", "A file system on which every second read fails with EIO does no harm.", "", "io:2"),
    ("no locks", "A file system without locks does no harm.", "", "locks:0"),
    ("no links", "A file system without links does no harm.", "", "links:0"),
    ("failing fsync", "A file system on which fsync fails does no harm.", "", "sync:0"),
    ("failing renames", "A file system on which every second rename fails with EBUSY does no harm.", "", "rename:2"),
    ("all renames fail", "A file system on which all renames fail does no harm.", "", "rename:1"),
    ("short writes", "A file system on which writes are cut in half does no harm.", "", "short:2"),
)

for _name, _sentence, _origin, _fault in _FAULTS:

    def _play(bench: Bench, fault: str = _fault) -> None:
        bench.write(program("x * 2.0 + 1.0", a="x * 5.0"))
        both = ("f", (3.0,)), ("a", (3.0,))
        bench.works(env=bench.faulty(fault))
        bench.expect(bench.run(*both, env=bench.faulty(fault)), 7.0, 15.0)
        plain = bench.expect(bench.run(*both), 7.0, 15.0)
        if bench.is_quick and all(reply.found for reply in plain.replies if reply.call >= 0):
            return
        bench.expect(bench.run(*both, env=bench.faulty(fault)), 7.0, 15.0)
        bench.expect(bench.run(*both), 7.0, 15.0, found=True)

    scenario("network", _name, _sentence, _origin)(_play)


@scenario(
    "network",
    "files that shrink under a reader",
    "Files that another host truncates while a process has them open or mapped do not end the process.",
    "llvm/llvm-project#220936",
)
def files_that_shrink(bench: Bench) -> None:
    bench.filled(program("x * 2.0 + 1.0", a="x * 5.0"))
    bench.expect(bench.run(("a", (3.0,))), 15.0)
    pause = bench.new_pause()
    running = bench.start(("f", (3.0,)), ("f", (4.0,)), ("a", (3.0,)), pauses={"1": str(pause)})
    bench.wait_for_pause()
    for path in bench.files():
        path.chmod(0o600)
        os.truncate(path, 0)
    pause.touch()
    run = running.wait()
    if run.status == -7:
        raise Violation(Outcome.CRASH, "SIGBUS: code or data was mapped from a file that has become empty")
    bench.expect(run, 7.0, 9.0, 15.0)


@scenario("network", "files rewritten under a reader", "Files that are overwritten while a process uses them do not change it.", "")
def files_rewritten(bench: Bench) -> None:
    bench.filled(program("x * 2.0 + 1.0", a="x * 5.0"))
    bench.expect(bench.run(("a", (3.0,))), 15.0)
    pause = bench.new_pause()
    running = bench.start(("f", (3.0,)), ("f", (4.0,)), ("a", (3.0,)), pauses={"1": str(pause)})
    bench.wait_for_pause()
    bench.damage(lambda _, old: bytes(len(old)))
    pause.touch()
    bench.expect(running.wait(), 7.0, 9.0, 15.0)


@scenario(
    "network",
    "two hosts",
    "Two hosts that see each other's changes late compile at the same time, give right answers, and find stored code.",
    "deepseek-ai/DeepEP#683",
    races=True,
)
def two_hosts(bench: Bench) -> None:
    bench.write(program("g(x) + 1.0", g="x * 2.0"))
    with bench.clients() as places:
        running = [bench.start(store=place) for place in places * 2]
        for process in running:
            bench.expect(process.wait(), 7.0)
        time.sleep(0.6)
        for place in places:
            bench.expect(bench.run(store=place), 7.0, found=True)


@scenario("network", "edited beside another host", "Two hosts that alternately run two versions of a program each get their own code.", "")
def edited_beside(bench: Bench) -> None:
    with bench.clients() as places:
        for factor in (2.0, 3.0, 2.0, 3.0):
            bench.write(program(f"x * {factor} + 1.0"))
            for place in places:
                bench.expect(bench.run(store=place), 3.0 * factor + 1.0, why="the code of the other version")


def _taken_away(bench: Bench, *, cut: bool) -> None:
    bench.write(program("x * 2.0 + 1.0", a="x * 5.0"))
    both = ("f", (3.0,)), ("a", (3.0,))
    with bench.clients() as (first, second):
        bench.expect(bench.run(*both, store=first), 7.0, 15.0)
        time.sleep(0.6)
        pause = bench.new_pause()
        running = bench.start(("f", (3.0,)), ("f", (4.0,)), ("a", (3.0,)), store=second, pauses={"1": str(pause)})
        bench.wait_for_pause()
        for path in [path for path in second.rglob("*") if path.is_file()]:
            path.open("rb").close()  # the kernel drops what it has of a file when it is opened anew, as it may do at any time
        for path in [path for path in first.rglob("*") if path.is_file()] if cut else []:
            path.chmod(0o600)
            os.truncate(path, 0)
        for path in [] if cut else list(first.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        pause.touch()
        run = running.wait()
        if run.status == -7:
            raise Violation(Outcome.CRASH, "SIGBUS: code or data was mapped from a file that another host took away")
        bench.expect(run, 7.0, 9.0, 15.0)


@scenario(
    "network",
    "removed by another host",
    "Files that another host removes while a process uses them do not end the process.",
    "cvmfs/cvmfs#559",
)
def removed_by_another(bench: Bench) -> None:
    _taken_away(bench, cut=False)


@scenario(
    "network", "cut by another host", "Files that another host truncates do not end a process that uses them.", "llvm/llvm-project#220936"
)
def cut_by_another(bench: Bench) -> None:
    _taken_away(bench, cut=True)


@scenario(
    "network",
    "answers that are lost",
    "Renames, links and removals that succeed, but are reported as failed because the first answer was lost, do no harm.",
    "",
)
def lost_answers(bench: Bench) -> None:
    bench.write(program("x * 2.0 + 1.0", a="x * 5.0"))
    with bench.clients("--lost", "1", "--locks", "fail") as places:
        for place in places * 2:
            bench.expect(bench.run(("f", (3.0,)), ("a", (3.0,)), store=place), 7.0, 15.0)
