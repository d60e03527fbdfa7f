"""Every public operation while each operation on files fails in turn: an answer or a documented error, never the system's."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import warnings
from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller
from mock_directory import FaultyFiles, cache_on, fail_at

from compcache import Cache, CompcacheError, ModuleSource, PrunePolicy, frontend

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path



def describe_one(cache: Cache) -> None:
    with contextlib.suppress(FileNotFoundError):  # as documented
        for copy in cache.realizations("f"):
            cache.module(copy.module_id)


def miss(cache: Cache) -> None:
    with pytest.raises(CompcacheError) as caught:
        cache.get_target("ff")
    str(caught.value)


OPERATIONS: dict[str, Callable[[Cache], object]] = {
    "has": lambda cache: cache.has("f"),
    "get_target": lambda cache: cache.get_target("h")(1),
    "exists": lambda cache: cache.exists,
    "compile": lambda cache: cache.compile(adder("plain", 3))["plain"](1),
    "find_stored": lambda cache: frontend.find_stored(cache, ("f", "g")),
    "functions": lambda cache: cache.functions(),
    "labelled": lambda cache: cache.labelled("f"),
    "modules": lambda cache: cache.modules(),
    "module": describe_one,
    "function": lambda cache: cache.function("f"),
    "realizations": lambda cache: cache.realizations("f"),
    "dependencies": lambda cache: cache.dependencies("h", transitive=True),
    "graph": lambda cache: cache.graph(),
    "ir": lambda cache: cache.ir("f"),
    "asm": lambda cache: cache.asm("f"),
    "explain": lambda cache: cache.explain("f"),
    "explain, absent": lambda cache: cache.explain("ff"),
    "note_uncached": lambda cache: frontend.note_uncached(cache, "u", "why"),
    "forget_uncached": lambda cache: frontend.forget_uncached(cache, "u"),
    "info": lambda cache: cache.info(),
    "stats": lambda cache: cache.stats(),
    "zero_stats": lambda cache: cache.zero_stats(),
    "prune": lambda cache: cache.prune(PrunePolicy(max_modules=1)),
    "prune, dry": lambda cache: cache.prune(PrunePolicy(max_modules=1), dry_run=True),
    "propose_prune": lambda cache: cache.propose_prune(PrunePolicy(max_modules=1)),
    "remove": lambda cache: cache.remove("f", force=True),
    "remove_module": lambda cache: [cache.remove_module(copy.module_id) for copy in cache.realizations("g")],
    "clear": lambda cache: cache.clear(),
    "check": lambda cache: cache.check(),
    "check, repair": lambda cache: cache.check(repair=True),
    "check, recompile": lambda cache: cache.check(recompile=True),
    "pin": lambda cache: cache.pin("f"),
    "unpin": lambda cache: cache.unpin("g"),
    "pinned": lambda cache: cache.pinned(),
    "not cached": miss,
}


@pytest.fixture
def stored(directory: Path) -> Path:
    """A directory with three functions, one of which needs another, with statistics, a pin and a refusal."""
    with Cache(directory) as cache:
        for source in (adder("f", 1), adder("g", 20), caller("h", "f")):
            cache.add_module(ModuleSource(source))
        cache.get_target("h")
        cache.pin("g")
        frontend.note_uncached(cache, "u", "for no reason")
    return directory


#: What an operation is there to remove; everything else is there afterwards. A pin protects `g` from prunes.
REMOVES = {
    "prune": {"f", "h"},
    "remove": {"f"},
    "remove_module": {"g"},
    "clear": {"f", "g", "h"},
}


def attempt(place: Path, name: str, at: int, number: int) -> tuple[int, str]:
    """How many operations on files it took, and what is wrong: an exception that is not documented, or a loss."""
    files = FaultyFiles(place, None, count=lambda _: True)
    problem = ""
    with cache_on(files) as cache:
        files.reset()
        files.plan = fail_at(at, OSError(number, os.strerror(number)))
        try:
            OPERATIONS[name](cache)
        except CompcacheError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            problem = f"operation {at}: {error!r}"
        files.plan = None
    with Cache(place) as after:
        lost = [kept for kept in sorted({"f", "g", "h"} - REMOVES.get(name, set())) if not after.has(kept)]
        if lost and not problem:
            problem = f"operation {at}: lost {lost}"
    return len(files.operations), problem


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "step"),
    [(errno.EMFILE, 83), *(pytest.param(n, 1, marks=pytest.mark.fault) for n in (errno.EMFILE, errno.EIO, errno.EACCES))],
)  # fmt: skip
@pytest.mark.timeout(900)
def test_no_system_error_comes_through(stored: Path, tmp_path: Path, number: int, step: int) -> None:
    attempts = 0
    problems = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in OPERATIONS:
            total, _ = attempt(shutil.copytree(stored, tmp_path / "all"), name, -1, number)
            shutil.rmtree(tmp_path / "all")
            for at in range(len(name) % step, total, step):
                place = shutil.copytree(stored, tmp_path / str(at))
                place.chmod(0o700)
                problem = attempt(place, name, at, number)[1]
                problems += [f"{name}, {problem}"] if problem else []
                shutil.rmtree(place)
                attempts += 1
    print(f"{attempts} failures of {os.strerror(number)}")
    assert not problems, f"{len(problems)} of {attempts}: {problems[:3]}"
