"""The command line: `compcache-conformance run ADAPTER...`, `report`, `list`."""

from __future__ import annotations

import argparse
import difflib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from compcache_conformance.adapters import AdapterError, all_adapters, from_file
from compcache_conformance.environments import default_folder, prepare
from compcache_conformance.reports import WRITERS, as_text
from compcache_conformance.results import Cannot, Outcome, Result, load, merge, to_json, write_whole
from compcache_conformance.runner import ADAPTER_FAILED, play_all, why_not_a_first_call
from compcache_conformance.scenarios import CORE, FAMILIES, SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compcache_conformance.adapter import Adapter
    from compcache_conformance.scenarios import Scenario

__all__ = ["main"]

_INTERRUPTED = 130


class _UsageError(Exception):
    """What was asked for cannot be done; the text is for who asked."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0 for success, 1 if a system failed a scenario, 2 if a requested scenario was not run or a report not written.
    """
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (_UsageError, AdapterError) as error:
        print(f"compcache-conformance: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("compcache-conformance", description="A conformance suite for caches of compiled code.")
    commands = parser.add_subparsers(required=True, metavar="{run,report,list}")
    run = commands.add_parser("run", help="run scenarios on systems")
    run.add_argument(
        "adapters", nargs="+", metavar="ADAPTER", help="the name of a system (see `list`), `all`, or the path of an adapter's file"
    )
    run.add_argument(
        "-k", "--scenarios", metavar="TEXT", action="append", help="run only this family, or scenarios whose names contain TEXT"
    )
    run.add_argument("--quick", action="store_true", help="skip slow scenarios, do not repeat races, and use fewer functions")
    run.add_argument("--core", action="store_true", help="run only the scenarios that show each kind of failure with the fewest processes")
    run.add_argument("--jobs", type=_count, default=2, metavar="N", help="the number of systems to run at a time; default: 2")
    run.add_argument("--results", type=Path, metavar="FILE", help="add the results to this JSON file")
    run.add_argument("--partial", type=Path, metavar="FOLDER", help="write the results of each system to this folder, after each scenario")
    run.add_argument(
        "--environments", type=Path, default=default_folder(), metavar="FOLDER", help="the folder for the systems' environments"
    )
    run.add_argument(
        "--allow", type=Path, metavar="FILE", help="a JSON file with known results: the exit status is 1 only for results worse than these"
    )
    _report_options(run)
    run.set_defaults(command=_run)
    report = commands.add_parser("report", help="write reports of results")
    report.add_argument("results", type=Path, nargs="+", metavar="RESULTS", help="JSON files that `run` has written")
    _report_options(report)
    report.set_defaults(command=_report)
    listing = commands.add_parser("list", help="list scenarios and systems")
    listing.set_defaults(command=_list)
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid number: give an integer of at least 1")
    return int(text)


def _report_options(parser: argparse.ArgumentParser) -> None:
    for name in WRITERS:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write a report as {name}")


# ---------------------------------------------------------------- run


def _run(options: argparse.Namespace) -> int:
    if sys.platform != "linux":
        raise _UsageError(f"scenarios require Linux, but this system is {sys.platform}: only `report` and `list` work here")
    chosen = _chosen_systems(options.adapters)
    scenarios = _chosen_scenarios(options.scenarios, quick=options.quick, core=options.core)
    allowed = _load(options.allow) if options.allow else []
    results = _load(options.results) if options.results and options.results.exists() else []
    files = _Files()
    files.require([options.results, *(getattr(options, name) for name in WRITERS)], options.partial)
    run = _Columns(scenarios, options, files)
    for column in run.play(list(chosen.values())):
        results = merge(results, column)
        files.write(options.results, to_json(results))
    print(f"\n{as_text(results)}", end="")
    _write_reports(options, results, files)
    if run.stop.is_set():
        return _INTERRUPTED
    if files.failed or (run.unplayed and "all" not in options.adapters) or any(r.detail.startswith(ADAPTER_FAILED) for r in results):
        return 2
    return 1 if _worse(results, allowed) else 0


def _chosen_systems(names: list[str]) -> dict[str, type[Adapter]]:
    known = all_adapters()
    chosen: dict[str, type[Adapter]] = {}
    for name in names:
        if name == "all":
            chosen |= known
        elif name.endswith(".py"):
            chosen |= from_file(Path(name))
        elif name in known:
            chosen[name] = known[name]
        else:
            near = difflib.get_close_matches(name, known, 1)
            suggestion = f"; did you mean {near[0]!r}?" if near else ""
            choices = f"{', '.join(known)}, all, or the path of an adapter's file, NAME.py"
            raise _UsageError(f"the system {name!r} is not known{suggestion}\nSystems: {choices}")
    return chosen


def _chosen_scenarios(texts: list[str] | None, *, quick: bool, core: bool) -> list[Scenario]:
    order = list(FAMILIES)
    chosen = [s for s in SCENARIOS.values() if not texts or any(_is_meant(s, text) for text in texts)]
    if not chosen:
        raise _UsageError(f"no scenario or family matches {' or '.join(map(repr, texts or []))}: `list` shows all scenarios")
    chosen = [scenario for scenario in chosen if not (core and scenario.name not in CORE) and not (quick and scenario.slow)]
    if not chosen:
        raise _UsageError("no scenario is left: --core or --quick excludes all selected scenarios; leave the option out")
    return sorted(chosen, key=lambda scenario: order.index(scenario.family))


def _is_meant(scenario: Scenario, text: str) -> bool:
    """A family's name means the family alone; any other text is a part of names."""
    return scenario.family == text if text in FAMILIES else text in scenario.name


def _worse(results: Iterable[Result], allowed: Iterable[Result]) -> list[Result]:
    """The losses that are worse than what is known."""
    order = list(Outcome)
    known = {(result.system, result.scenario): Outcome(result.result) for result in allowed}
    outcomes = [(result, Outcome(result.result), known.get((result.system, result.scenario), Outcome.HELD)) for result in results]
    return [result for result, now, then in outcomes if now.is_loss and order.index(now) < order.index(then)]


class _Columns:
    """Runs several systems at a time. After Ctrl-C, the running scenarios end, and no further scenario starts."""

    def __init__(self, scenarios: list[Scenario], options: argparse.Namespace, files: _Files) -> None:
        self._scenarios, self._options, self._files = scenarios, options, files
        self.stop = threading.Event()
        self.unplayed: list[str] = []

    def play(self, kinds: list[type[Adapter]]) -> list[list[Result]]:
        """Run the scenarios on each system, and return the results of each system in the order of `kinds`."""
        with ThreadPoolExecutor(self._options.jobs) as pool:
            columns = [pool.submit(self._column, kind) for kind in kinds]
            try:
                return [column.result() for column in columns]
            except KeyboardInterrupt:
                self.stop.set()
                print("interrupted: waiting for the running scenarios to end", file=sys.stderr, flush=True)
        return [column.result() for column in columns]

    def _column(self, kind: type[Adapter]) -> list[Result]:
        done: list[Result] = []
        try:
            adapter = prepare(kind, self._options.environments)
            if reason := "" if self._options.allow else why_not_a_first_call(adapter):
                raise Cannot(reason)
        except Cannot as reason:
            print(f"{kind.name:18} is skipped: {reason}", file=sys.stderr, flush=True)
            self.unplayed.append(kind.name)
            done = [Result(s.name, s.family, kind.name, Outcome.CANNOT.value, 0.0, str(reason).splitlines()[0]) for s in self._scenarios]
            self._save_partial(kind, done)
            return done
        for result in play_all(adapter, self._scenarios, _tell, is_quick=self._options.quick):
            done.append(result)
            self._save_partial(kind, done)
            if self.stop.is_set():
                break
        return done

    def _save_partial(self, kind: type[Adapter], done: list[Result]) -> None:
        if self._options.partial:
            self._files.write(self._options.partial / f"{kind.name}.json", to_json(done))


def _tell(result: Result) -> None:
    head = f"{result.system:18} {result.family:12} {result.scenario:36} {result.result:13} {result.seconds:6.1f} s"
    print(f"{head}  {result.detail[:150]}  {result.note}", flush=True)


# ---------------------------------------------------------------- files


class _Files:
    """Files that are written: one that cannot be is said once, and what was played is not lost by it."""

    def __init__(self) -> None:
        self.failed: set[Path] = set()

    def require(self, paths: Iterable[Path | None], folder: Path | None) -> None:
        """Create the folder for partial results, and check before a long run that every report can be written.

        Raises:
            _UsageError: a folder cannot be created or does not exist, or a path is a folder.
        """
        try:
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _UsageError(f"cannot create the folder {folder}: {error.strerror}") from None
        for path in paths:
            if path and (path.is_dir() or not path.parent.is_dir()):
                reason = "the path is a folder" if path.is_dir() else f"the folder {path.parent} does not exist"
                raise _UsageError(f"cannot write {path}: {reason}")

    def write(self, path: Path | None, text: str) -> None:
        """Write a report, unless `path` is None. Print the first failure for each path, and record the path in `failed`."""
        if path is None:
            return
        try:
            write_whole(path, text)
            self.failed.discard(path)
        except OSError as error:
            if path not in self.failed:
                print(f"compcache-conformance: cannot write {path}: {error.strerror}", file=sys.stderr, flush=True)
            self.failed.add(path)


def _load(path: Path) -> list[Result]:
    try:
        return load(path)
    except OSError as error:
        raise _UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise _UsageError(f"{path} is not a results file of `run`: {type(error).__name__}: {error}") from None


def _write_reports(options: argparse.Namespace, results: list[Result], files: _Files) -> None:
    for name, write in WRITERS.items():
        files.write(getattr(options, name), write(results))


# ---------------------------------------------------------------- report, list


def _report(options: argparse.Namespace) -> int:
    results: list[Result] = []
    for path in options.results:
        results = merge(results, _load(path))
    files = _Files()
    files.require([getattr(options, name) for name in WRITERS], None)
    _write_reports(options, results, files)
    return 2 if files.failed else 0


def _list(options: argparse.Namespace) -> int:  # noqa: ARG001
    for scenario in SCENARIOS.values():
        print(f"{scenario.family:12} {scenario.name:36} {scenario.sentence}  {scenario.link}")
    print()
    for name, kind in all_adapters().items():
        print(f"{name:20} {' '.join(kind.requirements)}")
    return 0
