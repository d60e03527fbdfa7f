"""What a process holds in memory counts as used, though nobody counts its calls and look-ups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import adder, run_fresh

from compcache import Cache, ModuleSource, PrunePolicy
from compcache.hit import recorder

if TYPE_CHECKING:
    from pathlib import Path

KEEP_ONE = """
from compcache import Cache, PrunePolicy
with Cache(directory) as cache:
    result = [name for module in cache.prune(PrunePolicy(max_modules=1, grace=0)).removed for name in module.functions]
"""
HOLD = """
from compcache import Cache
from compcache.hit import recorder
recorder._HELD_SECONDS = LIMIT
recorder._PAUSE_SECONDS = 0  # nothing is pending
recorder._NEW = 0  # otherwise a process that creates a journal is noticed at its exit for another reason
cache = Cache(directory)
held = cache.get_target("held")
cache.get_target("other")
result = None
"""


def fill(cache: Cache) -> None:
    """Two modules, of which `held` is loaded first."""
    cache.add_modules([ModuleSource(adder("held", 1)), ModuleSource(adder("other", 2))])


def test_own_prunes_take_what_is_held_last(cache: Cache) -> None:
    fill(cache)
    held = cache.get_target("held")
    cache.get_target("other")
    (removed,) = cache.prune(PrunePolicy(max_modules=1)).removed
    assert removed.functions == ("other",)
    assert held(0) == 1


def test_so_does_the_limit_of_size(directory: Path) -> None:
    with Cache(directory) as cache:
        fill(cache)
        size = sum(module.size for module in cache.modules())
    with Cache(directory, max_size=int(size * 1.3)) as cache:
        held = cache.get_target("held")
        cache.get_target("other")
        cache.add_module(ModuleSource(adder("another", 3)))
        assert "held" in cache
        assert "other" not in cache
        assert held(0) == 1


@pytest.mark.slow
def test_other_processes_learn_of_it_where_the_journal_is_written(cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache)
    held = cache.get_target("held")
    cache.get_target("other")
    monkeypatch.setattr(recorder, "_HELD_SECONDS", 0.0)
    cache._store.stats.flush()
    assert run_fresh(directory, KEEP_ONE) == ["other"]
    assert held(0) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "removed"), [("0.0", "other"), ("60.0", "held")])
def test_a_process_says_so_when_it_ends_if_it_has_held_it_for_long(directory: Path, seconds: str, removed: str) -> None:
    """Nothing else happens in it that would be written; one that has ended soon costs its journal nothing."""
    with Cache(directory) as cache:
        fill(cache)
    run_fresh(directory, HOLD.replace("LIMIT", seconds))
    assert run_fresh(directory, KEEP_ONE) == [removed]


def test_it_is_no_hit(cache: Cache) -> None:
    fill(cache)
    held = cache.get_target("held")
    before = cache.stats()
    for _ in range(3):
        cache._store.stats.flush(now_held=True)
    after = cache.stats()
    assert (after.hits, after.loads, after.misses) == (before.hits, before.loads, before.misses)
    assert held(0) == 1
