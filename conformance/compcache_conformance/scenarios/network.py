"""File systems of networks: a double between the program and libc (`native/faults.c`) shows what they show."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compcache_conformance.language import program
from compcache_conformance.results import Outcome, Violation
from compcache_conformance.scenarios.registry import scenario

if TYPE_CHECKING:
    from compcache_conformance.bench import Bench

#: Faults: name, sentence, origin, what `native/faults.c` is told.
_FAULTS = (
    ("late renames", "Files that other hosts see 400 ms after they were renamed do no harm.", "deepseek-ai/DeepEP#683", "late:400"),
    ("stale handles", "Every third open or read that fails with ESTALE does no harm.", "cvmfs/cvmfs#559", "stale:3"),
    (
        "missing files",
        "Every second file that is listed, and is gone when it is opened, does no harm.",
        "triton-lang/triton#11512",
        "missing:2",
    ),
    ("errors while reading", "Every second read that fails with EIO does no harm.", "", "io:2"),
    ("no locks", "A file system without locks does no harm.", "", "locks:0"),
    ("no links", "A file system without links does no harm.", "", "links:0"),
    ("failing fsync", "An fsync that fails does no harm.", "", "sync:0"),
    ("failing renames", "Every second rename that fails with EBUSY does no harm.", "", "rename:2"),
    ("all renames fail", "Renames that all fail do no harm.", "", "rename:1"),
    ("short writes", "Writes that write half do no harm.", "", "short:2"),
)

for _name, _sentence, _origin, _fault in _FAULTS:

    def _play(bench: Bench, fault: str = _fault) -> None:
        bench.write(program("x * 2.0 + 1.0", a="x * 5.0"))
        both = ("f", (3.0,)), ("a", (3.0,))
        bench.works(env=bench.faulty(fault))
        bench.expect(bench.run(*both, env=bench.faulty(fault)), 7.0, 15.0)
        bench.expect(bench.run(*both), 7.0, 15.0)
        bench.expect(bench.run(*both, env=bench.faulty(fault)), 7.0, 15.0)
        bench.expect(bench.run(*both), 7.0, 15.0, found=True)

    scenario("network", _name, _sentence, _origin)(_play)


@scenario(
    "network",
    "files that shrink under a reader",
    "Files that another host cuts short while a process has them open or mapped end no process.",
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


@scenario(
    "network", "files rewritten under a reader", "Files that are written over in place while a process uses them change nothing in it.", ""
)
def files_rewritten(bench: Bench) -> None:
    bench.filled(program("x * 2.0 + 1.0", a="x * 5.0"))
    bench.expect(bench.run(("a", (3.0,))), 15.0)
    pause = bench.new_pause()
    running = bench.start(("f", (3.0,)), ("f", (4.0,)), ("a", (3.0,)), pauses={"1": str(pause)})
    bench.wait_for_pause()
    bench.damage(lambda _, old: bytes(len(old)))
    pause.touch()
    bench.expect(running.wait(), 7.0, 9.0, 15.0)
