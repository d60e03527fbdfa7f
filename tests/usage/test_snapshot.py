"""Tools that read a long journal leave its sum behind, and say the same before and after."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from helpers import adder

from compcache import Cache, ModuleSource
from compcache.hit.recorder import JOURNALS_OF_HOST
from compcache.store import Store
from compcache.usage import ledger
from compcache.usage.listings import functions, modules
from compcache.usage.snapshot import look_over

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def journal(cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal that counts as long, and nobody has written to for a while."""
    monkeypatch.setattr(ledger, "_LONG", 200)
    cache.add_module(ModuleSource(adder("f", 1)))
    cache.add_module(ModuleSource(adder("g", 1)))
    assert cache.get_target("f")(1) == 2
    cache._store.stats.flush()
    (path,) = (directory / "stats").glob("*.journal1")
    assert path.stat().st_size > 200
    return path


def age(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything in the cache be ten minutes old."""
    now = time.time() + 600
    monkeypatch.setattr(time, "time", lambda: now)
    for path in (directory / "stats").iterdir():
        os.utime(path)


def test_a_long_journal_is_folded_once_it_rests(
    journal: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(directory))
    before = functions(store), modules(store)
    assert [(f.func_name, f.uses) for f in before[0]] == [("f", 1), ("g", 0)]
    age(directory, monkeypatch)
    look_over(store)
    assert not journal.exists()
    (total,) = (path for path in (directory / "stats").iterdir() if path.suffix == ".stats1")
    assert total.read_bytes().startswith(b"CCSTATS1")
    assert (functions(store), modules(store)) == before
    names = set(os.listdir(directory / "stats"))
    look_over(store)
    assert set(os.listdir(directory / "stats")) == names


def test_a_long_journal_that_processes_write_to_is_sealed(journal: Path, cache: Cache, directory: Path) -> None:
    """Otherwise each question parses all that was written since the first process began."""
    store = Store(str(directory))
    before = functions(store)
    assert not journal.exists()
    assert cache.get_target("g")(1) == 2
    cache._store.stats.flush()
    assert journal.stat().st_size < 200
    assert [(f.func_name, f.uses) for f in before] == [("f", 1), ("g", 0)]
    assert [(f.func_name, f.uses) for f in functions(store)] == [("f", 1), ("g", 1)]


def test_a_reader_that_may_not_write_folds_nothing(
    journal: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    age(directory, monkeypatch)
    look_over(Store(str(directory), readonly=True))
    assert journal.exists()


def test_journals_that_are_long_together_are_sealed(cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a host share the length that one journal may have."""
    cache.add_module(ModuleSource(adder("f", 1)))
    cache._store.stats.flush()
    (path,) = (directory / "stats").glob("*.journal1")
    monkeypatch.setattr(ledger, "_LONG", path.stat().st_size * JOURNALS_OF_HOST)
    look_over(Store(str(directory)))
    assert not path.exists()
