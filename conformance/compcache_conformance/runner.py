"""Plays scenarios for systems."""

from __future__ import annotations

import functools
import time
import traceback
from typing import TYPE_CHECKING

from compcache_conformance.bench import Bench
from compcache_conformance.results import Cannot, Outcome, Result, Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from compcache_conformance.adapter import Adapter
    from compcache_conformance.scenarios.registry import Scenario

__all__ = ["play", "play_all"]

#: How often a scenario that chance decides is played.
_RACE_RUNS = 3
_LONGEST_LOG = 20_000


def play_all(adapter: Adapter, scenarios: Iterable[Scenario], told: Callable[[Result], None] | None = None) -> Iterator[Result]:
    """Play scenarios with one system, one after the other."""
    for scenario in scenarios:
        result = play(adapter, scenario)
        if told:
            told(result)
        yield result


def play(adapter: Adapter, scenario: Scenario) -> Result:
    """Play one scenario, in a folder of its own, which is removed."""
    started = time.monotonic()
    runs = [_once(adapter, scenario)]
    while scenario.races and runs[0][0] is not Outcome.CANNOT and len(runs) < _RACE_RUNS:
        runs.append(_once(adapter, scenario))
    order = list(Outcome)
    outcome, detail, note, log = min(runs, key=lambda run: order.index(run[0]))
    if len(runs) > 1 and outcome.is_loss:
        detail = f"{sum(run[0] is outcome for run in runs)} of {len(runs)} runs: {detail}"
    if scenario.name in adapter.limits and outcome.is_loss:
        note = f"documented: {adapter.limits[scenario.name]}"
    return Result(
        scenario.name,
        scenario.family,
        adapter.name,
        outcome.value,
        round(time.monotonic() - started, 2),
        detail,
        note,
        log,
        _version(adapter),
        len(runs),
    )


@functools.cache
def _version(adapter: Adapter) -> str:
    return adapter.version()


def _once(adapter: Adapter, scenario: Scenario) -> tuple[Outcome, str, str, str]:
    if scenario.name in adapter.excluded:
        return Outcome.CANNOT, adapter.excluded[scenario.name], "", ""
    with Bench(adapter) as bench:
        try:
            scenario.play(bench)
            outcome, detail = Outcome.HELD, ""
        except Cannot as reason:
            outcome, detail = Outcome.CANNOT, str(reason)
        except Violation as violation:
            outcome, detail = violation.outcome, str(violation)
        except OSError as error:  # the suite's own steps: a place that cannot be made here
            outcome, detail = Outcome.CANNOT, f"this machine: {error}"
            bench.log.append(traceback.format_exc())
        log = "\n".join(bench.log)[-_LONGEST_LOG:]
        detail = detail.replace(str(bench.root), "...")
        return outcome, detail, "; ".join(bench.notes), log.replace(str(bench.root), "...")
