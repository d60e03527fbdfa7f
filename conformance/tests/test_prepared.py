"""Quick runs fork processes from interpreters that have imported what a first call imports."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from toy import Toy

from compcache_conformance.bench import Bench
from compcache_conformance.language import program
from compcache_conformance.results import Outcome
from compcache_conformance.runner import play_all
from compcache_conformance.scenarios import SCENARIOS
from compcache_conformance.shared import Shared

if TYPE_CHECKING:
    from collections.abc import Iterator

_DRIVER = """
import os
import sys
import time

imported_before = "colorsys" in sys.modules
import colorsys

from conformance_serve import serve

def ask(name, what, *more):
    if what == 0.0:
        return imported_before, None
    if what == 1.0:
        return hash("some text"), None
    if what == 2.0:
        os.kill(os.getpid(), int(more[0]))
    if what == 6.0:
        time.sleep(60)
    if what == 4.0:
        os._exit(int(more[0]))
    return sys.argv == [__file__] and __name__ == "__main__" and "__main__" in sys.modules, None

serve(ask)
"""


class _Asked(Toy):
    patience: ClassVar[float] = 3.0
    driver: ClassVar[str] = _DRIVER


@pytest.fixture
def bench() -> Iterator[Bench]:
    adapter = _Asked()
    with Shared(adapter) as shared, shared.forked(lambda: Bench(adapter, shared)), Bench(adapter, shared) as made:
        made.write(program())
        yield made


def _answer(bench: Bench, *arguments: float, **order: Any) -> float:
    run = bench.run(("f", arguments), **order)
    assert run.status == 0, run.output
    return float(run.first.answer or "nan")


def test_a_process_has_what_a_first_call_imports(bench: Bench) -> None:
    assert _answer(bench, 0.0) == 1.0


@pytest.mark.parametrize(
    "order",
    [{"env": {"A": "1"}}, {"cwd": Path("/")}, {"umask": 0o077}, {"limits": {resource.RLIMIT_NOFILE: 100}}, {"wrap": ("env",)}],
    ids=lambda order: next(iter(order)),
)
def test_a_process_with_wishes_for_its_start_is_started(bench: Bench, order: dict[str, Any]) -> None:
    assert _answer(bench, 0.0, **order) == 0.0


def test_processes_after_one_another_have_other_hash_seeds(bench: Bench) -> None:
    hashes = [_answer(bench, 1.0) for _ in range(4)]
    assert hashes[0] == hashes[2] != hashes[1] == hashes[3]


def test_a_process_is_like_one_that_is_started(bench: Bench) -> None:
    assert _answer(bench, 5.0) == 1.0


def test_ends_are_told(bench: Bench) -> None:
    assert bench.run(("f", (2.0, 11.0))).status == -11
    assert bench.run(("f", (4.0, 3.0))).status == 3
    late = bench.run(("f", (6.0,)))
    assert (late.timed_out, late.status) == (True, -9)


def test_a_scenario_that_does_not_hold_is_played_with_started_processes() -> None:
    class Forked(Toy):
        driver: ClassVar[str] = "import sys\nassert 'colorsys' not in sys.modules\nimport colorsys\n" + Toy.driver

    results = list(play_all(Forked(), [SCENARIOS["touched files"], SCENARIOS["second process"]], is_quick=True))
    assert [result.result for result in results] == [Outcome.HELD] * 2
    assert "beside" not in results[1].log
