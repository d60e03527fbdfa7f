"""Threads: parallel calls, and the long struggle over one thousand functions."""

from __future__ import annotations

import array
import gc
import os
import random
import threading
import time
import weakref
from typing import TYPE_CHECKING

import pytest
from helpers import adder

from compcache import Cache, Function, ModuleSource, TargetUnloadedError, hit
from compcache.hit.loader import LoadedModule, Loader

if TYPE_CHECKING:
    from pathlib import Path

MEET = """\
define i64 @meet(ptr %counter, i64 %limit) {
  %old = atomicrmw add ptr %counter, i64 1 seq_cst
  br label %loop
loop:
  %n = phi i64 [ 0, %0 ], [ %m, %again ]
  %v = load atomic i64, ptr %counter seq_cst, align 8
  %all = icmp uge i64 %v, 2
  br i1 %all, label %met, label %again
again:
  %m = add i64 %n, 1
  %stop = icmp eq i64 %m, %limit
  br i1 %stop, label %alone, label %loop
met:
  ret i64 1
alone:
  ret i64 0
}
"""


def test_targets_without_the_gil_run_in_parallel(cache: Cache) -> None:
    """Two calls that each wait for the other: with the GIL held, neither would ever see it."""
    cache.add_module(ModuleSource(MEET, {"meet": Function("i64(ptr, i64)", nogil=True)}))
    meet = cache.get_target("meet")
    assert meet.nogil
    counter = array.array("q", [0])
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(meet(counter, 1 << 40))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [1, 1]


def test_a_target_that_keeps_the_gil_runs_alone(cache: Cache) -> None:
    cache.add_module(ModuleSource(MEET, {"meet": Function("i64(ptr, i64)")}))
    meet = cache.get_target("meet")
    counter = array.array("q", [0])
    assert not meet.nogil
    assert meet(counter, 1000) == 0


#: Threads go on until they have made more calls than this, however busy the machine is.
_FEWEST_CALLS = 100


def _struggle(directory: Path, functions: int, seconds: float) -> tuple[int, list[BaseException]]:
    cache = Cache(directory)
    names = [f"f{number}" for number in range(functions)]
    for start in range(0, functions, 20):
        part = range(start, min(start + 20, functions))
        cache.add_module(ModuleSource("\n".join(adder(names[i], i) for i in part), optimize=1))
    stop = time.monotonic() + seconds
    errors: list[BaseException] = []
    counts = [0] * 16

    def work(worker: int) -> None:
        choose = random.Random(worker)
        held = []
        try:
            while (time.monotonic() < stop or sum(counts) <= _FEWEST_CALLS) and not errors:
                number = choose.randrange(functions)
                action = choose.random()
                try:
                    target = cache.get_target(names[number])
                    if target(1) != number + 1:
                        raise AssertionError(f"{target!r} gave a wrong result")
                except TargetUnloadedError:
                    continue  # another thread unloaded it between the two lines
                counts[worker] += 1
                if action < 0.3:
                    held.append(target)
                if action > 0.95:
                    cache.unload(names[number])
                if len(held) > 20:
                    held.clear()
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert cache.loaded().modules == ()
    assert cache.loaded().targets == ()
    cache.close()
    return sum(counts), errors


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def _mappings() -> int:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return len(maps.readlines())


def _check(directory: Path, functions: int, seconds: float) -> None:
    maps_before = _mappings()
    descriptors = len(os.listdir("/proc/self/fd"))
    calls, errors = _struggle(directory, functions, seconds)
    if errors:
        raise errors[0]
    assert calls > _FEWEST_CALLS
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert _mappings() <= maps_before + 80  # stacks and arenas of 16 threads; not three maps for every load


@pytest.mark.slow
def test_threads_load_call_drop_unload_and_reload(directory: Path) -> None:
    _check(directory, 60, 2.0)


def test_a_module_that_another_thread_commits_meanwhile_is_taken(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was mapped, then unloaded, and is committed between a load's look for it and its claim."""
    cache.add_module(ModuleSource(adder("f", 1)))
    first = cache.get_target("f")
    module = first._context.module
    cache.unload("f")
    looked = Loader._loaded
    late = [True]

    def look(self: Loader, module_id: bytes) -> LoadedModule | None:
        found = looked(self, module_id)
        if late and hit._mapping._is_owned():
            assert found is None
            late.clear()
            self._modules[module_id] = weakref.ref(module)
        return found

    monkeypatch.setattr(Loader, "_loaded", look)
    assert cache.get_target("f")(1) == 2
    assert not late


@pytest.mark.stress
@pytest.mark.timeout(400)
def test_threads_struggle_over_a_thousand_functions(directory: Path) -> None:
    seconds = float(os.environ.get("COMPCACHE_TEST_SECONDS", "60"))
    _check(directory, 1000, min(seconds, 5))  # arenas and caches reach their size
    before = _resident()
    cache_dir = directory.parent / "second"
    _check(cache_dir, 1000, seconds)
    assert _resident() < before + (32 << 20)
