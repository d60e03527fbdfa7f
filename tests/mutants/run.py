"""Applies mutants to a copy of the package, one at a time, and runs the tests that must notice.

    python tests/mutants/run.py                    all of them (`make mutants`)
    python tests/mutants/run.py NAME ...           these, or those of a file (trust, numba)
    python tests/mutants/run.py --sample 12 --seed $(git rev-parse HEAD)

A mutant is a small change that takes a line of defence away, or lets old code pass for new. They are data: the TOML files beside this one.
A table ``[[mutant]]`` has `name`; `file`, from the root of the repository (in C, of the native runtime); `old`, which stands there exactly
once, and `new`; `why` it matters, a sentence that says what goes wrong; `tests`, what is given to pytest; `options` for pytest where it
needs some.

A mutant that its tests do not notice fails, and so does one that no longer applies: the code has changed, and the mutant must follow
(`test_mutants.py` tells). The native runtime is built anew for one whose file is in C. The tests that failed are run without any mutant at
the end, in the same copies, and must pass, so that a failure is the mutant's.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import queue
import random
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
#: What the tests read of the repository.
COPIED = ("compcache", "tests", "examples", "docs", "tools", "benchmarks", "build_backend")
_FAILED, _SECONDS = 1, 300
_C_OPTIONS = "-shared", "-fPIC", "-O1", "-std=gnu11", "-fvisibility=hidden"


class Mutant(NamedTuple):
    """One change, and what must notice it."""

    name: str
    group: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]
    options: tuple[str, ...]

    @property
    def is_compiled(self) -> bool:
        """Whether the file is a source of the native runtime."""
        return self.file.startswith("compcache/hit/native/")

    def apply(self, text: str) -> str:
        """The file with the change.

        Raises:
            ValueError: the mutant does not fit the file.
        """
        if text.count(self.old) != 1:
            raise ValueError(f"what it changes stands {text.count(self.old)} times in {self.file}, not once")
        return text.replace(self.old, self.new)


class Outcome(NamedTuple):
    """How a mutant fared."""

    mutant: Mutant
    #: What is wrong: that nothing noticed, or that it does not apply; empty where a test failed.
    problem: str
    #: What failed, as pytest names it; all tests of the mutant where they came to no end.
    noticed_by: tuple[str, ...]
    seconds: float


def read_mutants() -> list[Mutant]:
    """All mutants, in the order of their files."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            lists = tuple(row["tests"]), tuple(row.get("options", ()))
            found.append(Mutant(row["name"], path.stem, row["file"], row["old"], row["new"], row["why"], *lists))
    return found


def _left_out(_: str, names: list[str]) -> set[str]:
    """Bytecode of other Pythons, and of tests, in which pytest leaves the paths of its sources. Copies do not compile the package anew."""
    return {name for name in names if name.endswith(".pyc") and not name.endswith(f".{sys.implementation.cache_tag}.pyc")}


class Copy:
    """A copy of the repository to change and to run tests in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._time = 1_000_000_000
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=_left_out, symlinks=True)
        for path in [path for path in ROOT.iterdir() if path.is_file()]:
            shutil.copy2(path, folder)
        self._runtime = next((folder / "compcache/hit").glob("_runtime*.so"))
        self._kept = folder / "kept"

    def test(
        self, tests: tuple[str, ...], options: tuple[str, ...] = (), seconds: float | None = _SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run tests there, for so many seconds at most. `_failed_tests` tells which failed."""
        shutil.rmtree(self._kept, ignore_errors=True)
        # Bytecode is kept, else each process that a test starts would compile the package: see `_write`.
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:xdist", "--timeout=120"]
        command.append(f"--override-ini=cache_dir={self._kept}")
        variables = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": ""}
        return subprocess.run(
            [*command, *options, *tests], cwd=self.folder, env=variables, capture_output=True, text=True, check=False, timeout=seconds,
            stdin=subprocess.DEVNULL,
        )

    def _failed_tests(self) -> tuple[str, ...]:
        """What failed in the last run, as far as pytest could tell."""
        path = self._kept / "v/cache/lastfailed"
        return tuple(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else ()

    def _write(self, path: Path, text: str) -> None:
        """Each content gets a time of its own: kept bytecode is taken for that of a file of the same size and second."""
        path.write_text(text, encoding="utf-8")
        self._time += 2
        os.utime(path, (self._time, self._time))

    def _compile(self) -> None:
        """Build the native runtime of the sources as they are now.

        Raises:
            ValueError: it cannot be built.
        """
        build = runpy.run_path(str(self.folder / "compcache/hit/native_build.py"))
        macros = f'-DCOMPCACHE_SOURCE_DIGEST="{build["source_digest"]()}"', '-DCOMPCACHE_SOURCES=""', "-DCOMPCACHE_LIMITED_API=0x030B0000"
        sources = [path for path in build["source_paths"]() if path.endswith(".c")]
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        self._runtime.unlink()  # a process that a test has left may have it mapped
        command = [*compiler, *_C_OPTIONS, *macros, f"-I{sysconfig.get_path('include')}", *sources, "-o", str(self._runtime)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise ValueError(f"it cannot be compiled:\n{done.stderr[-2000:]}")

    def _put_back_runtime(self) -> None:
        self._runtime.unlink(missing_ok=True)
        shutil.copy2(ROOT / self._runtime.relative_to(self.folder), self._runtime)

    def try_out(self, mutant: Mutant) -> Outcome:
        """Apply a mutant, run its tests, and take it back."""
        started = time.monotonic()
        problem = self._find_problem(mutant)
        noticed_by = () if problem else self._failed_tests() or mutant.tests
        return Outcome(mutant, problem, noticed_by, time.monotonic() - started)

    def _find_problem(self, mutant: Mutant) -> str:
        path = self.folder / mutant.file
        before = path.read_text(encoding="utf-8")
        try:
            self._write(path, mutant.apply(before))
            if mutant.is_compiled:
                self._compile()
            done = self.test(mutant.tests, mutant.options)
            if done.returncode == 0:  # on a busy machine a race may not come about
                done = self.test(mutant.tests, mutant.options)
        except (OSError, ValueError) as error:
            return str(error)
        except subprocess.TimeoutExpired:
            return ""  # a test that no longer ends has noticed
        finally:
            self._write(path, before)
            if mutant.is_compiled:
                self._put_back_runtime()
        if done.returncode == _FAILED:
            return ""
        return "SURVIVED" if done.returncode == 0 else f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def chosen(mutants: list[Mutant], options: argparse.Namespace) -> list[Mutant]:
    """Those that the command line asks for."""
    if options.names:
        mutants = [mutant for mutant in mutants if {mutant.name, mutant.group} & set(options.names)]
    if options.sample:
        mutants = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    return mutants


def parts_of(outcomes: list[Outcome], count: int) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield what noticed these mutants, with its options, in parts that can run at the same time: a file is never divided."""
    for options in sorted({outcome.mutant.options for outcome in outcomes}):
        tests = dict.fromkeys(test for outcome in outcomes if outcome.mutant.options == options for test in outcome.noticed_by)
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        for number in range(1 if options else min(count, len(files))):  # options may select tests of one file alone
            chosen_files = set(files if options else files[number::count])
            if part := tuple(test for test in tests if test.partition("::")[0] in chosen_files):
                yield part, options


def main() -> int:
    """Try mutants; 0 where all were noticed."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("names", nargs="*", help="mutants, or groups of them (names of files without .toml)")
    parser.add_argument("--sample", type=int, default=0, help="try so many, drawn at random")
    parser.add_argument("--seed", default="", help="what the draw depends on")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many copies to work in")
    options = parser.parse_args()
    mutants = chosen(read_mutants(), options)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(options.jobs):
            copies.put(Copy(Path(folder) / str(number)))

        @contextlib.contextmanager
        def some_copy() -> Iterator[Copy]:
            copy = copies.get()
            try:
                yield copy
            finally:
                copies.put(copy)

        def test_without_mutant(part: tuple[tuple[str, ...], tuple[str, ...]]) -> subprocess.CompletedProcess[str]:
            with some_copy() as copy:
                return copy.test(*part, seconds=None)

        def attempt(mutant: Mutant) -> Outcome:
            with some_copy() as copy:
                return copy.try_out(mutant)

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            outcomes = []
            for outcome in pool.map(attempt, mutants):
                outcomes.append(outcome)
                mutant = outcome.mutant
                print(f"{mutant.group}/{mutant.name}: {outcome.problem or 'noticed'} ({outcome.seconds:.1f} s)", flush=True)
                if outcome.problem:
                    print(f"    {mutant.file}: {mutant.why}")
            for done in pool.map(test_without_mutant, list(parts_of(outcomes, options.jobs))):
                if done.returncode:
                    print(f"without a mutant the tests fail:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
                    return 2
        survived = sum(bool(outcome.problem) for outcome in outcomes)
    print(f"{len(mutants) - survived} of {len(mutants)} mutants noticed")
    return bool(survived)


if __name__ == "__main__":
    sys.exit(main())
