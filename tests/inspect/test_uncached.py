"""Why functions are compiled and not cached: what another layer notes down, and `explain` tells."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from helpers import adder, flip_byte, run_fresh

from compcache import Cache, ModuleSource
from compcache.inspect import uncached

if TYPE_CHECKING:
    from pathlib import Path



def noted(cache: Cache) -> list[tuple[str, str]]:
    return [(refusal.name, refusal.reason) for refusal in uncached.read_refusals(cache._store)]


@pytest.mark.slow
def test_explain_in_another_process_tells_the_reason(cache: Cache) -> None:
    uncached.record_refusal(cache._store, "pkg.f(int64)", "it reads a file")
    uncached.record_refusal(cache._store, "pkg.f(float64)", "it reads a socket")
    uncached.record_refusal(cache._store, "pkg.g(int64)", "it reads minds")
    script = """
    from compcache import Cache
    explanation = Cache(directory).explain("pkg.f")
    result = explanation.reason, explanation.message, [refusal.name for refusal in explanation.refusals]
    """
    reason, message, names = run_fresh(cache.path, script)
    assert reason == "refused"
    assert "pkg.f(int64) was compiled and not cached: it reads a file" in message
    assert names == ["pkg.f(float64)", "pkg.f(int64)"]  # the latest first


def test_a_function_that_is_cached_explains_itself_as_a_hit(cache: Cache) -> None:
    uncached.record_refusal(cache._store, "f", "it was bad")
    cache.add_module(ModuleSource(adder("f", 1)))
    assert (cache.explain("f").hit, cache.explain("f").reason) == (True, "")


def test_a_new_reason_takes_the_place_of_the_old_one(cache: Cache) -> None:
    uncached.record_refusal(cache._store, "f", "first")
    uncached.record_refusal(cache._store, "f", "second")
    assert noted(cache) == [("f", "second")]
    uncached.remove_refusal(cache._store, "f")
    uncached.remove_refusal(cache._store, "f")
    assert noted(cache) == []


def test_the_same_reason_is_written_once(cache: Cache) -> None:
    uncached.record_refusal(cache._store, "f", "why")
    (first,) = uncached.read_refusals(cache._store)
    time.sleep(0.002)
    uncached.record_refusal(cache._store, "f", "why")
    assert uncached.read_refusals(cache._store) == [first]


def test_only_the_latest_are_kept(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncached, "_MAX_KEPT", 5)
    for number in range(12):
        uncached.record_refusal(cache._store, f"f{number}", "why")
        time.sleep(0.002)
    assert [name for name, _ in noted(cache)] == ["f11", "f10", "f9", "f8", "f7"]


def test_what_is_damaged_or_under_another_name_counts_as_absent(cache: Cache, directory: Path) -> None:
    for number in range(3):
        uncached.record_refusal(cache._store, f"f{number}", "why")
    files = sorted((directory / "uncached-v2").iterdir())
    flip_byte(files[0], 12)
    files[1].write_bytes(files[2].read_bytes())
    (directory / "uncached-v2" / "stranger").write_bytes(b"x")
    (directory / "uncached-v2" / "empty.uncached").write_bytes(b"")
    assert len(noted(cache)) == 1


def test_names_and_reasons_of_any_kind_and_length_are_kept(cache: Cache) -> None:
    uncached.record_refusal(cache._store, "f\ud800\n", "r" * 100_000)
    assert noted(cache) == [("f\ud800\n", "r" * 4096)]


def test_a_directory_that_cannot_be_written_is_no_error(cache: Cache, directory: Path) -> None:
    uncached.record_refusal(cache._store, "f", "why")
    with Cache(directory, readonly=True) as opened:
        uncached.record_refusal(opened._store, "g", "why")
        uncached.remove_refusal(opened._store, "f")
        assert noted(opened) == [("f", "why")]
    (directory / "uncached-v2").rename(directory / "kept")
    (directory / "uncached-v2").write_text("not a directory")
    uncached.record_refusal(cache._store, "g", "why")
    uncached.remove_refusal(cache._store, "g")
    assert noted(cache) == []


def test_clearing_the_cache_forgets_them_and_a_check_finds_nothing_wrong(cache: Cache) -> None:
    uncached.record_refusal(cache._store, "f", "why")
    assert cache.check().findings == ()
    cache.clear()
    assert noted(cache) == []
