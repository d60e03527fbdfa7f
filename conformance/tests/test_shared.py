"""Scenarios of one system share the stores that are filled alike; what a scenario does to its copy is not seen by the next."""

from __future__ import annotations

import pytest
from toy import Toy

from compcache_conformance.bench import Bench
from compcache_conformance.language import program
from compcache_conformance.results import Outcome, Result, Violation
from compcache_conformance.runner import play_all
from compcache_conformance.scenarios import SCENARIOS
from compcache_conformance.shared import Shared

COPIED = "a copy of the store"


def _played(fault: str, *names: str) -> list[Result]:
    return list(play_all(Toy(fault=fault), [SCENARIOS[name] for name in names], is_quick=True))


def test_what_is_filled_alike_is_filled_once() -> None:
    results = _played("", "emptied", "deep nesting", "files of 1980", "moved sources", "other working directory")
    assert [result.result for result in results] == [Outcome.HELD] * 5
    assert [COPIED in result.log for result in results] == [False, True, False, True, True]


def test_a_scenario_still_fails_for_a_cache_that_is_broken_in_its_way() -> None:
    results = _played("reads every file", "copied store", "deep nesting")
    assert [(result.result, COPIED in result.log) for result in results] == [(Outcome.HELD, False), (Outcome.ERROR, True)]


def test_a_system_that_takes_no_copy_fills_each_store_itself() -> None:
    results = _played("knows when it was written", "emptied", "deep nesting", "other hash seed")
    assert [(result.result, COPIED in result.log) for result in results] == [(Outcome.HELD, False)] * 3


def test_a_copy_has_the_times_and_modes_of_what_was_filled() -> None:
    seen = []
    with Shared(Toy()) as shared:
        for _ in range(2):
            with Bench(Toy(), shared) as bench:
                bench.filled(program())
                paths = [bench.store, *sorted(bench.store.rglob("*")), *sorted(bench.project.iterdir())]
                seen.append([(path, (state := path.lstat()).st_mtime_ns, state.st_mode, state.st_size) for path in paths])
    assert seen[0] == seen[1]


def test_a_bench_that_has_something_is_filled_anew() -> None:
    with Shared(Toy()) as shared:
        for _ in range(2):
            with Bench(Toy(), shared) as bench:
                bench.write(program("x * 3.0 + 1.0"))
                bench.works(10.0)
                bench.filled(program())
                bench.write(program("x * 3.0 + 1.0"))
                bench.keeps(10.0)


def test_a_program_that_is_never_found_is_told_as_before() -> None:
    with Shared(Toy()) as shared:
        for _ in range(2):
            with Bench(Toy(fault="salts keys"), shared) as bench, pytest.raises(Violation, match="compiles the same program again"):
                bench.filled(program())
