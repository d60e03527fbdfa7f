"""The command line: `compcache-conformance run ADAPTER...`, `report`, `list`."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from compcache_conformance.adapters import all_adapters, from_file
from compcache_conformance.environments import default_folder, prepare
from compcache_conformance.reports import WRITERS
from compcache_conformance.results import Cannot, Outcome, Result, load, merge, save
from compcache_conformance.runner import play_all
from compcache_conformance.scenarios import CORE, FAMILIES, SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compcache_conformance.adapter import Adapter
    from compcache_conformance.scenarios import Scenario

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 1 where a system did not do what a scenario asks for."""
    options = _parser().parse_args(arguments)
    return int(options.command(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("compcache-conformance", description="A conformance suite for caches of compiled code.")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="play scenarios for systems")
    run.add_argument("adapters", nargs="+", metavar="ADAPTER", help="the names of systems, `all`, or files with adapters")
    run.add_argument("-k", "--scenarios", metavar="TEXT", action="append", help="only scenarios, or families, whose name contains this")
    run.add_argument("--quick", action="store_true", help="play what chance decides once, and leave out what takes long")
    run.add_argument("--core", action="store_true", help="only what shows each kind of mistake with the fewest processes")
    run.add_argument("--jobs", type=int, default=2, help="how many systems at once")
    run.add_argument("--results", type=Path, help="a JSON file to which the results are added")
    run.add_argument("--partial", type=Path, help="a folder for the results of each system, written after each scenario")
    run.add_argument("--environments", type=Path, default=default_folder(), help="where environments of systems are kept")
    run.add_argument("--allow", type=Path, help="results that are known: the exit status is 1 only for cells that are worse than there")
    _report_options(run)
    run.set_defaults(command=_run)
    report = commands.add_parser("report", help="write reports of results")
    report.add_argument("results", type=Path, nargs="+", help="JSON files")
    _report_options(report)
    report.set_defaults(command=_report)
    listing = commands.add_parser("list", help="list scenarios and systems")
    listing.set_defaults(command=_list)
    return parser


def _report_options(parser: argparse.ArgumentParser) -> None:
    for name in WRITERS:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write a report as {name}")


def _run(options: argparse.Namespace) -> int:
    known = all_adapters()
    chosen: dict[str, type[Adapter]] = {}
    for name in options.adapters:
        if name == "all":
            chosen |= known
        elif name.endswith(".py"):
            chosen |= from_file(Path(name))
        elif name in known:
            chosen[name] = known[name]
        else:
            print(f"there is no system {name!r}: {', '.join(known)}", file=sys.stderr)
            return 2
    scenarios = _chosen_scenarios(options.scenarios, quick=options.quick, core=options.core)
    results = load(options.results) if options.results and options.results.exists() else []
    with ThreadPoolExecutor(options.jobs) as pool:
        for column in pool.map(lambda kind: _column(kind, scenarios, options), chosen.values()):
            results = merge(results, column)
            if options.results:
                save(options.results, results)
    _write_reports(options, results)
    return 1 if _unexpected(results, options.allow) else 0


def _unexpected(results: Iterable[Result], allowed: Path | None) -> list[Result]:
    order = list(Outcome)
    known = {(result.system, result.scenario): Outcome(result.result) for result in (load(allowed) if allowed else [])}
    worse = []
    for result in results:
        outcome = Outcome(result.result)
        if outcome.is_loss and order.index(outcome) < order.index(known.get((result.system, result.scenario), Outcome.HELD)):
            worse.append(result)
    return worse


def _chosen_scenarios(texts: list[str] | None, *, quick: bool, core: bool) -> list[Scenario]:
    from dataclasses import replace

    order = list(FAMILIES)
    chosen = [s for s in SCENARIOS.values() if not texts or any(text in s.name or text == s.family for text in texts)]
    if core:
        chosen = [scenario for scenario in chosen if scenario.name in CORE]
    if quick:
        chosen = [replace(scenario, races=False) for scenario in chosen if not scenario.slow]
    return sorted(chosen, key=lambda scenario: order.index(scenario.family))


def _column(kind: type[Adapter], scenarios: list[Scenario], options: argparse.Namespace) -> list[Result]:
    try:
        adapter = prepare(kind, options.environments)
    except Cannot as reason:
        done = [Result(scenario.name, scenario.family, kind.name, Outcome.CANNOT.value, 0.0, str(reason)) for scenario in scenarios]
        _save_partial(kind, done, options)
        return done
    done = []
    for result in play_all(adapter, scenarios, _tell):
        done.append(result)
        _save_partial(kind, done, options)
    return done


def _save_partial(kind: type[Adapter], done: list[Result], options: argparse.Namespace) -> None:
    if options.partial:
        save(options.partial / f"{kind.name}.json", done)


def _tell(result: Result) -> None:
    head = f"{result.system:18} {result.family:12} {result.scenario:36} {result.result:13} {result.seconds:6.1f} s"
    print(f"{head}  {result.detail[:150]}  {result.note}", flush=True)


def _report(options: argparse.Namespace) -> int:
    results: list[Result] = []
    for path in options.results:
        results = merge(results, load(path))
    _write_reports(options, results)
    return 0


def _write_reports(options: argparse.Namespace, results: list[Result]) -> None:
    for name, write in WRITERS.items():
        path = getattr(options, name)
        if path:
            path.write_text(write(results))


def _list(options: argparse.Namespace) -> int:  # noqa: ARG001
    for scenario in SCENARIOS.values():
        print(f"{scenario.family:12} {scenario.name:36} {scenario.sentence}  {scenario.link}")
    print()
    for name, kind in all_adapters().items():
        print(f"{name:20} {' '.join(kind.requirements)}")
    return 0
