"""Loaded functions in processes that go on."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from compcache_conformance.language import program
from compcache_conformance.results import Outcome, Violation
from compcache_conformance.scenarios.registry import scenario
from compcache_conformance.scenarios.scale import many_entries

if TYPE_CHECKING:
    from compcache_conformance.bench import Bench


@scenario("living", "threads compile", "Eight threads that request missing functions at the same time get them.", "", races=True)
def threads_compile(bench: Bench) -> None:
    bench.write(program("x * 2.0 + 1.0", a="x * 5.0"))
    _check_threads(bench)
    bench.keeps()


@scenario("living", "threads find", "Eight threads that request stored functions at the same time get them.", "", races=True)
def threads_find(bench: Bench) -> None:
    bench.write(program("x * 2.0 + 1.0", a="x * 5.0"))
    bench.expect(bench.run(("f", (3.0,)), ("a", (3.0,))), 7.0, 15.0)
    _check_threads(bench)


def _check_threads(bench: Bench) -> None:
    run = bench.run(("f", (3.0,)), ("a", (3.0,)), threads=8)
    bench.expect(run, *[7.0, 15.0] * 4)


@scenario("living", "children compile", "Children that are forked after a first call can compile.", "", races=True)
def children_compile(bench: Bench) -> None:
    bench.write(program("x * 2.0 + 1.0", a="x * 5.0"))
    _check_children(bench)


@scenario("living", "children find", "Children that are forked after a first call find stored code.", "", races=True)
def children_find(bench: Bench) -> None:
    bench.write(program("x * 2.0 + 1.0", a="x * 5.0"))
    bench.expect(bench.run(("f", (3.0,)), ("a", (3.0,))), 7.0, 15.0)
    _check_children(bench)


def _check_children(bench: Bench) -> None:
    run = bench.run(("f", (3.0,)), ("a", (3.0,)), fork=4)
    bench.expect(run, 7.0, 15.0)
    wrong = [reply for reply in run.replies if reply.answer is not None and float(reply.answer) not in {7.0, 15.0}]
    if wrong:
        raise Violation(Outcome.WRONG, f"a child answers {wrong[0].answer}")
    if sum(reply.call >= 0 for reply in run.replies) < 9:
        raise Violation(Outcome.CRASH, f"{len(run.replies) - 1} of 9 answers of children")


@scenario(
    "living",
    "children beside a thread that compiles",
    "Children that are forked while another thread compiles find stored code, and do not wait for a lock that the missing thread holds.",
    "ruby/ruby#18747",
    races=True,
)
def children_beside_a_thread(bench: Bench) -> None:
    others = {f"a{number}": f"x * {float(number)} + 1.0" for number in range(min(10, bench.adapter.entries))}
    bench.write(program("x * 2.0 + 1.0", b="x + 2.0", **others))
    stored = ("b", (3.0,)), ("f", (3.0,))
    bench.expect(bench.run(*stored), 5.0, 7.0)
    run = bench.run(*stored, *[(name, (3.0,)) for name in others], fork=6, beside=True)
    bench.survived(run)
    for reply in run.replies:
        if reply.error is not None:
            raise Violation(Outcome.ERROR, reply.error.splitlines()[0][:300])
        if reply.call == 1 and not reply.is_right(7.0):
            raise Violation(Outcome.WRONG, f"a child answers {reply.answer}")


@scenario("living", "memory", "Hundreds of further calls do not increase the memory use.", "")
def memory(bench: Bench) -> None:
    bench.filled(program())
    run = bench.run(repeat=min(2_000, bench.adapter.entries * 20))
    bench.expect(run, 7.0)
    grown = next((reply.grown for reply in run.replies if reply.call == -2), 0)
    bench.note(f"{grown / 2**20:.1f} MiB")
    if grown > 32 * 2**20:
        raise Violation(Outcome.MISSED, f"{grown / 2**20:.0f} MiB after {min(2_000, bench.adapter.entries * 20)} calls")


@scenario("living", "exit with many loaded", "A process that has loaded many functions exits with status 0.", "")
def exit_with_many(bench: Bench) -> None:
    many = bench.look_at(many_entries)
    many.find(*range(min(100, len(many.calls))))


@scenario("living", "edited under a process", "A process keeps a loaded function if another process edits and compiles its source.", "")
def edited_under_a_process(bench: Bench) -> None:
    bench.filled(program("g(x) + 1.0", g="x * 2.0"))
    pause = bench.new_pause()
    running = bench.start(("f", (3.0,)), ("f", (4.0,)), pauses={"1": str(pause)})
    bench.wait_for_pause()
    bench.write(program("g(x) + 1.0", g="x * 3.0"))
    bench.works(10.0)
    pause.touch()
    bench.expect(running.wait(), 7.0, 9.0)
    bench.works(10.0)


@scenario("living", "store replaced under a process", "A process gives right answers if another program's store replaces its store.", "")
def store_replaced(bench: Bench) -> None:
    other, store = bench.root / "other", bench.root / "other-store"
    other.mkdir()
    store.mkdir(mode=0o700)
    bench.write(program("x * 3.0 + 1.0", a="x * 6.0"), other)
    bench.expect(bench.run(("f", (3.0,)), ("a", (3.0,)), folder=other, store=store), 10.0, 18.0)
    bench.filled(program("x * 2.0 + 1.0", a="x * 5.0"))
    pause = bench.new_pause()
    running = bench.start(("f", (3.0,)), ("a", (3.0,)), ("f", (4.0,)), pauses={"1": str(pause)})
    bench.wait_for_pause()
    shutil.rmtree(bench.store)
    store.rename(bench.store)
    pause.touch()
    bench.expect(running.wait(), 7.0, 15.0, 9.0)
