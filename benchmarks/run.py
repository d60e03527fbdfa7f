"""Measures compcache against its goals, ratios from one run with both sides in turns.

    python benchmarks/run.py                     every measure
    python benchmarks/run.py 1 4 call_overhead   some, by number or name
    python benchmarks/run.py --quick             smaller and shorter, to see whether all works
    python benchmarks/run.py --json results.json

Run it with the interpreter that has compcache's dependencies. Only figures of one run are comparable.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness import describe_run, table
from workspace import HERE, Workspace

if TYPE_CHECKING:
    from harness import Outcome

MEASURES = (
    "fresh_process",
    "module_size",
    "cache_size",
    "first_load",
    "repeated_lookup",
    "call_overhead",
    "memory",
    "adding",
)


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    with tempfile.TemporaryDirectory(prefix="compcache-bench-", ignore_cleanup_errors=True) as temporary:
        root = Path(options.workdir or temporary).resolve()
        workspace = Workspace(root, quick=options.quick, modules=options.modules)
        outcomes = _run(workspace, options.measures)
    record = describe_run(arguments, _revision())
    machine, versions = record["machine"], record["versions"]
    print(table(outcomes), end="\n\n")
    print(machine["cpu"], f"{machine['cores']} cores", machine["system"], machine["libc"], sep=", ", end="; ")
    print(f"load {machine['load_average']}")
    print(*(f"{name} {version}" for name, version in versions.items()), sep=", ", end="; ")
    print(f"revision {record['revision']}\n{record['command']}")
    if options.json:
        results = {**record, "quick": options.quick, "measures": [outcome.as_json() for outcome in outcomes]}
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def _run(workspace: Workspace, names: list[str]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for name in names:
        started = time.perf_counter()
        # Imported here, for the modules use the package that the workspace has just put on the path.
        outcomes += importlib.import_module(f"measures.{name}").measure(workspace)
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return outcomes


def _parse(arguments: list[str]) -> argparse.Namespace:
    description, _, epilog = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py", description=description, epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    listed = ", ".join(f"{number} {name}" for number, name in enumerate(MEASURES, 1))
    parser.add_argument(
        "measures", nargs="*", type=_measure, metavar="MEASURE", help=f"which: {listed}; all without"
    )
    parser.add_argument(
        "--json", metavar="OUT", help="write every sample, the machine and the versions to this file"
    )
    parser.add_argument("--quick", action="store_true", help="smaller modules and caches, fewer repetitions")
    parser.add_argument(
        "--modules", type=int, metavar="N", help="modules of the large cache (100000; quick: 5000)"
    )
    parser.add_argument(
        "--workdir", metavar="DIR",
        help="keep the caches here for the next run; without it a temporary directory, removed at the end",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    options.measures = options.measures or list(MEASURES)
    return options


def _measure(text: str) -> str:
    if text.isdigit() and 1 <= int(text) <= len(MEASURES):
        return MEASURES[int(text) - 1]
    if text in MEASURES:
        return text
    raise argparse.ArgumentTypeError(f"there is no measure {text!r}; there are {', '.join(MEASURES)}")


def _revision() -> str:
    """The commit of the work tree, with a mark where the package differs from it."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--short", "../compcache")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+changes" if changed else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(HERE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
