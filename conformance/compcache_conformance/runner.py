"""Plays scenarios for systems."""

from __future__ import annotations

import functools
import os
import re
import tempfile
import time
import traceback
from typing import TYPE_CHECKING

from compcache_conformance.bench import Bench
from compcache_conformance.language import program_of
from compcache_conformance.results import Cannot, Outcome, Result, Violation
from compcache_conformance.scenarios.registry import Scenario
from compcache_conformance.shared import Shared
from compcache_conformance.together import held_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from compcache_conformance.adapter import Adapter

__all__ = ["ADAPTER_FAILED", "RACE_RUNS", "play", "play_all", "why_not_a_first_call"]

#: How often a scenario that chance decides is played.
RACE_RUNS = 3
_LONGEST_LOG = 20_000
#: What came of playing a scenario once: the outcome, its detail, notes and a log.
_Once = tuple[Outcome, str, str, str]
#: How the detail of a cell begins where code of the adapter, not of the system, has failed.
ADAPTER_FAILED = "the adapter: "


def play_all(
    adapter: Adapter, scenarios: Iterable[Scenario], told: Callable[[Result], None] | None = None, *, is_quick: bool = False
) -> Iterator[Result]:
    """Play scenarios with one system, one after the other; quickly is once, with fewer functions where they are many, and together
    where their programs alone differ.
    """
    scenarios = list(scenarios)
    with Shared(adapter) as shared:
        held = _played_together(adapter, scenarios, shared) if is_quick else {}
        for scenario in scenarios:
            result = held.get(scenario.name) or _play(adapter, scenario, shared, is_quick=is_quick)
            if told:
                told(result)
            yield result


def _played_together(adapter: Adapter, scenarios: list[Scenario], shared: Shared) -> dict[str, Result]:
    """The results of those that held together."""
    started = time.monotonic()
    with shared.forked(lambda: Bench(adapter, shared)), Bench(adapter, shared, is_quick=True) as bench:
        held = held_together(bench, scenarios)
        seconds = round((time.monotonic() - started) / max(1, len(held)), 2)
        log = _without_folders("\n".join(bench.log)[-_LONGEST_LOG:])
    return {
        scenario.name: Result(
            scenario.name,
            scenario.family,
            adapter.name,
            Outcome.HELD.value,
            seconds,
            log=f"beside {len(held) - 1} others\n{log}",
            version=_version(adapter),
        )
        for scenario in scenarios
        if scenario.name in held
    }


def play(adapter: Adapter, scenario: Scenario, *, is_quick: bool = False) -> Result:
    """Play one scenario, in a folder of its own, which is removed."""
    return next(iter(list(play_all(adapter, [scenario], is_quick=is_quick))))


def why_not_a_first_call(adapter: Adapter) -> str:
    """Why programs of what the adapter says of itself are not answered on an empty store; nothing where they are.

    A system that cannot compile them at all would lose every scenario that has them, which says nothing about its cache.
    """
    with Shared(adapter) as shared:
        for shape in ("", *sorted(adapter.shapes)):
            outcome, detail, _note, log = _once(adapter, Scenario("", "", "", "", _first_calls(shape)), shared, is_quick=True)
            if outcome is not Outcome.HELD:
                what = f"its `shapes` name {shape!r}, and a program that has one" if shape else "its first call, f(3.0),"
                return f"{what} is not answered on an empty store: {detail}\n{log}"
            if not shape and _answers_all(adapter, shared):
                break
    return ""


def _answers_all(adapter: Adapter, shared: Shared) -> bool:
    return _once(adapter, Scenario("", "", "", "", _first_calls(*sorted(adapter.shapes))), shared, is_quick=True)[0] is Outcome.HELD


def _first_calls(*shapes: str) -> Callable[[Bench], None]:
    """Play a program that has these."""

    def play_(bench: Bench) -> None:
        names = [f"f{shape}" for shape in shapes]
        bench.write(program_of(shapes))
        bench.expect(bench.run(*[(name, (3.0,)) for name in names]), *[7.0 for _ in names])

    return play_


def _play(adapter: Adapter, scenario: Scenario, shared: Shared, *, is_quick: bool) -> Result:
    started = time.monotonic()
    wanted = RACE_RUNS if scenario.races and not is_quick else 1
    runs = [_quickly(adapter, scenario, shared) if is_quick else _once(adapter, scenario, shared, is_quick=False)]
    while runs[0][0] is not Outcome.CANNOT and len(runs) < wanted:
        runs.append(_once(adapter, scenario, shared, is_quick=is_quick))
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


def _quickly(adapter: Adapter, scenario: Scenario, shared: Shared) -> _Once:
    """With forked processes if all holds with them, and otherwise with processes that are started."""
    if adapter.is_forked and scenario.name not in adapter.limits:
        with shared.forked(lambda: Bench(adapter, shared)):
            once = _once(adapter, scenario, shared, is_quick=True)
        if once[0] is Outcome.HELD:
            return once
    return _once(adapter, scenario, shared, is_quick=True)


def _once(adapter: Adapter, scenario: Scenario, shared: Shared, *, is_quick: bool) -> _Once:
    if scenario.name in adapter.excluded:
        return Outcome.CANNOT, adapter.excluded[scenario.name], "", ""
    with Bench(adapter, shared, is_quick=is_quick) as bench:
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
        except Exception as error:  # noqa: BLE001 - whatever the methods of an adapter do: the other cells are played
            outcome, detail = Outcome.CANNOT, f"{ADAPTER_FAILED}{type(error).__name__}: {error}"
            bench.log.append(traceback.format_exc())
        log = "\n".join(bench.log)[-_LONGEST_LOG:]
        return outcome, _without_folders(detail), "; ".join(bench.notes), _without_folders(log)


def _without_folders(text: str) -> str:
    """Return the text without the names of the folders that benches made, and of this user's home."""
    text = re.sub(re.escape(tempfile.gettempdir()) + r"/conformance-\w{8}(?:/bench-\d+)?(?!\w)", "...", text)
    return text.replace(os.path.expanduser("~/"), "~/")
