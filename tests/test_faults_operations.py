"""Every public operation while each operation on files fails in turn: an answer or a documented error, never the system's."""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller
from mock_directory import FaultyFiles, cache_on, fail_at

from compcache import Cache, CompcacheError, ModuleSource, PrunePolicy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPERATIONS: dict[str, Callable[[Cache], object]] = {
    "has": lambda cache: cache.has("f"),
    "get_target": lambda cache: cache.get_target("h")(1),
    "exists": lambda cache: cache.exists(),
    "compile": lambda cache: cache.compile(adder("plain", 3)).plain(1),
    "find_stored": lambda cache: cache.find_stored(("f", "g")),
    "functions": lambda cache: cache.functions(),
    "labelled": lambda cache: cache.labelled("f"),
    "modules": lambda cache: cache.modules(),
    "module": lambda cache: cache.module(cache.realizations("f")[0].module_id),
    "function": lambda cache: cache.function("f"),
    "realizations": lambda cache: cache.realizations("f"),
    "dependencies": lambda cache: cache.dependencies("h", transitive=True),
    "graph": lambda cache: cache.graph(),
    "ir": lambda cache: cache.ir("f"),
    "asm": lambda cache: cache.asm("f"),
    "explain": lambda cache: cache.explain("f"),
    "explain, absent": lambda cache: cache.explain("ff"),
    "note_uncached": lambda cache: cache.note_uncached("u", "why"),
    "forget_uncached": lambda cache: cache.forget_uncached("u"),
    "info": lambda cache: cache.info(),
    "stats": lambda cache: cache.stats(),
    "zero_stats": lambda cache: cache.zero_stats(),
    "prune": lambda cache: cache.prune(PrunePolicy(max_modules=1)),
    "prune, dry": lambda cache: cache.prune(PrunePolicy(max_modules=1), dry_run=True),
    "propose_prune": lambda cache: cache.propose_prune(PrunePolicy(max_modules=1)),
    "remove": lambda cache: cache.remove("f", force=True),
    "remove_module": lambda cache: cache.remove_module(cache.realizations("g")[0].module_id),
    "clear": lambda cache: cache.clear(),
    "check": lambda cache: cache.check(),
    "check, repair": lambda cache: cache.check(repair=True),
    "check, recompile": lambda cache: cache.check(recompile=True),
    "pin": lambda cache: cache.pin("f"),
    "unpin": lambda cache: cache.unpin("g"),
    "pinned": lambda cache: cache.pinned(),
    "not cached": lambda cache: str(pytest.raises(CompcacheError, cache.get_target, "ff").value),
}


@pytest.fixture
def stored(directory: Path) -> Path:
    """A directory with three functions, one of which needs another, with statistics, a pin and a refusal."""
    with Cache(directory) as cache:
        for source in (adder("f", 1), adder("g", 20), caller("h", "f")):
            cache.add_module(ModuleSource(source))
        cache.get_target("h")
        cache.pin("g")
        cache.note_uncached("u", "for no reason")
    return directory


def attempt(place: Path, run: Callable[[Cache], object], at: int, number: int) -> tuple[int, str]:
    """How many operations on files it took, and what it raised that is not documented."""
    files = FaultyFiles(place, None, count=lambda _: True)
    problem = ""
    with cache_on(files) as cache:
        files.reset()
        files.plan = fail_at(at, OSError(number, os.strerror(number)))
        try:
            run(cache)
        except CompcacheError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            problem = f"operation {at}: {error!r}"
        files.plan = None
    return len(files.operations), problem


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    "number", [errno.EMFILE, *(pytest.param(n, marks=pytest.mark.fault) for n in (errno.EIO, errno.EACCES, errno.ENOSPC))]
)  # fmt: skip
def test_no_system_error_comes_through(stored: Path, tmp_path: Path, name: str, number: int) -> None:
    copy: Any = shutil.copytree
    total, _ = attempt(copy(stored, tmp_path / "all"), OPERATIONS[name], -1, number)
    problems = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for at in range(total):
            place = copy(stored, tmp_path / str(at))
            place.chmod(0o700)
            problem = attempt(place, OPERATIONS[name], at, number)[1]
            problems += [problem] if problem else []
            shutil.rmtree(place)
    assert not problems, f"{len(problems)} of {total}: {problems[:3]}"
