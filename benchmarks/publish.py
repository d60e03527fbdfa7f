"""Measures compcache against what a user would pick instead, and writes docs/benchmarks.md: the command of `make bench`.

    python benchmarks/publish.py                    everything, 10 to 20 minutes
    python benchmarks/publish.py --quick            smaller and shorter, to see whether all works
    python benchmarks/publish.py first_call calls   some sections; the page keeps the others' recorded results
    python benchmarks/publish.py --render           only make the page and its plots from the recorded results

Run it with an interpreter that has compcache's dependencies and the extra `bench`. Peers that are not installed are left
out, with the reason on the page. JAX and typed_python get environments of their own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import workspace
from compare import environments
from compare.context import Context, ProgramError
from compare.document import SECTIONS, render
from compare.peers.jax_peer import LABEL as JAX
from compare.peers.typed_python import LABEL as TYPED_PYTHON
from harness import describe_run
from run import _revision as revision
from workspace import HERE, Workspace

DOCS = HERE.parent / "docs"
PEER_PACKAGES = ("numba", "cffi", "diskcache", "joblib", "matplotlib")


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    results = Path(options.output).resolve() / "benchmarks"
    results.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    if not options.render:
        with tempfile.TemporaryDirectory(prefix="compcache-bench-", ignore_cleanup_errors=True) as temporary:
            failed = _measure(options, arguments, Path(options.workdir or temporary).resolve(), results)
    sys.path.append(str(HERE.parent))  # a run has put its copy of the package first; without one, any will do
    missing = render(results, results.parent / "benchmarks.md")
    if missing:
        print(f"sections without results: {', '.join(missing)}", file=sys.stderr)
    print(results.parent / "benchmarks.md")
    return 1 if failed else 0


def _measure(options: argparse.Namespace, arguments: list[str], root: Path, results: Path) -> list[str]:
    """Record the sections; the names of those that failed, whose results stay as they were."""
    pythons, skipped = _environments(options)
    root.mkdir(parents=True, exist_ok=True)
    os.chdir(root)  # `python -c` looks for modules here first, which must not be the work tree
    space, commit = _workspace(root, options), revision()
    failed: list[str] = []
    for name in options.sections:
        context = Context(
            space, options.quick, pythons.get("jax"), pythons.get("typed_python"), dict(skipped)
        )
        context.install_programs()
        load, started = os.getloadavg(), time.perf_counter()
        # Imported here, for the sections use the package that the workspace has just put on the path.
        try:
            measured = importlib.import_module(f"compare.curves.{name}").measure(context)
        except (ProgramError, RuntimeError, OSError) as error:
            failed.append(name)
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
            continue
        record = _describe(arguments, commit, load, pythons) | {
            "section": name,
            "quick": options.quick,
            "seconds": round(time.perf_counter() - started, 1),
            "skipped": context.skipped if name in ("first_call", "cache_size", "calls") else {},
            "results": measured,
        }
        (results / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {record['seconds']:.0f} s", file=sys.stderr, flush=True)
    return failed


def _workspace(root: Path, options: argparse.Namespace) -> Workspace:
    """A workspace over a copy of the package as it is now: all sections measure the same, whoever edits meanwhile."""
    snapshot = root / "snapshot"
    shutil.rmtree(snapshot, ignore_errors=True)
    shutil.copytree(workspace.PACKAGE, snapshot, ignore=shutil.ignore_patterns("__pycache__", "native"))
    workspace.PACKAGE = snapshot
    return Workspace(root, quick=options.quick, modules=options.modules)


def _environments(options: argparse.Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """The interpreters of peers that live apart, and why others are not there."""
    pythons: dict[str, str] = {}
    skipped: dict[str, str] = {}
    recipes = (
        (JAX, environments.JAX, options.jax_environment, None),
        (TYPED_PYTHON, environments.TYPED_PYTHON, options.typed_python_environment, options.old_python),
    )
    for label, recipe, place, base in recipes:
        if recipe.package in options.without:
            skipped[label] = f"left out by --without {recipe.package}"
            continue
        install = not options.no_install
        python, reason = environments.find_or_make(recipe, Path(place), install=install, python=base)
        if python:
            pythons[recipe.package] = python
        else:
            skipped[label] = reason
    return pythons, skipped


def _describe(
    arguments: list[str], commit: str, load: tuple[float, float, float], pythons: dict[str, str]
) -> dict[str, Any]:
    record = describe_run(arguments, commit)
    record["command"] = " ".join(["python benchmarks/publish.py", *_public(arguments)])
    record["machine"]["load_before"] = [round(value, 2) for value in load]
    for package in PEER_PACKAGES:
        try:
            record["versions"][package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    record["versions"] |= {
        package: environments.version(python, package) for package, python in pythons.items()
    }
    return record


def _public(arguments: list[str]) -> list[str]:
    """The arguments without those that name places on this machine, which change no figure."""
    places = ("--workdir", "--output", "--jax-environment", "--typed-python-environment", "--old-python")
    shown = []
    before = ""
    for text in arguments:
        if before not in places and not text.startswith(places) and text != "--no-install":
            shown.append(text)
        before = text
    return shown


def _parse(arguments: list[str]) -> argparse.Namespace:
    description, _, epilog = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="benchmarks/publish.py", description=description, epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"which: {', '.join(SECTIONS)}; all without"
    )
    parser.add_argument("--quick", action="store_true", help="smaller modules and caches, fewer repetitions")
    parser.add_argument("--render", action="store_true", help="measure nothing")
    parser.add_argument(
        "--modules", type=int, metavar="N", help="modules of the largest cache (100000; quick: 5000)"
    )
    parser.add_argument("--workdir", metavar="DIR", help="keep the caches here for the next run")
    parser.add_argument("--output", metavar="DIR", default=str(DOCS), help="where page and results go (docs)")
    parser.add_argument(
        "--jax-environment", metavar="DIR", default=str(HERE.parent / ".venv-bench-jax"),
        help="the environment of JAX, made if it is not there (.venv-bench-jax)",
    )  # fmt: skip
    parser.add_argument(
        "--typed-python-environment", metavar="DIR", default=str(HERE.parent / ".venv-bench-typed-python"),
        help="the same for typed_python (.venv-bench-typed-python)",
    )  # fmt: skip
    parser.add_argument(
        "--old-python", metavar="PATH", help="the Python 3.8 for typed_python, if not on the path"
    )
    parser.add_argument(
        "--without", action="append", default=[], choices=("jax", "typed_python"), help="leave this peer out"
    )
    parser.add_argument("--no-install", action="store_true", help="install nothing")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    options.sections = options.sections or list(SECTIONS)
    options.jax_environment = os.path.abspath(options.jax_environment)
    options.typed_python_environment = os.path.abspath(options.typed_python_environment)
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
