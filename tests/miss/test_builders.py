"""No thread waits for another one of its process that waits for it; one that works is waited for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from helpers import adder, run_fresh

from compcache import Cache, ModuleSource
from compcache.miss import builders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IDLE = 0.3
WORK = 0.6

#: Thread A builds X, and imports `slow` for that; thread B is importing `slow`, whose top level asks for X.
CROSSED_IMPORTS = r"""
import threading, time, types
from compcache import Cache, ModuleSource
from compcache.miss import builders
builders.IDLE_SECONDS = 100  # it is known at once, not by a sign that nobody works
building, importing = threading.Event(), threading.Event()
with Cache(directory, lock_timeout=200) as cache:
    def build():
        building.set()
        importing.wait(10)
        import slow
        return ModuleSource("define i64 @x() {\n  ret i64 7\n}\n")
    hook = types.ModuleType("hook")
    def ask():
        importing.set()
        building.wait(10)
        return cache.get_or_compile("x", build)()
    hook.ask = ask
    sys.modules["hook"] = hook
    sys.path.insert(0, directory + "-modules")
    values = []
    def begin():
        building.wait(10)
        import slow
        values.append(slow.value)
    first = lambda: values.append(cache.get_or_compile("x", build)())
    threads = [threading.Thread(target=target, daemon=True) for target in (first, begin)]
    for thread in threads:
        thread.start()
    threads[0].join(60)  # less than the lock's timeout
    threads[1].join(60)
    result = list(values)
"""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign that nobody works comes sooner."""
    monkeypatch.setattr(builders, "IDLE_SECONDS", IDLE)


@pytest.mark.slow
def test_an_import_that_asks_for_what_is_built_for_an_import_of_it(directory: Path) -> None:
    modules = directory.parent / f"{directory.name}-modules"
    modules.mkdir()
    (modules / "slow.py").write_text("import hook\nvalue = hook.ask()\n", encoding="utf-8")
    assert run_fresh(directory, CROSSED_IMPORTS) == [7, 7]


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_who_asks_with_a_lock_that_the_builder_needs_builds_it_himself(cache: Cache) -> None:
    lock, building = threading.Lock(), threading.Event()
    threads = []

    def build() -> ModuleSource:
        threads.append(threading.get_ident())
        building.set()
        if threading.get_ident() != holder:
            with lock:
                pass
        return ModuleSource(adder("f", 1))

    holder = threading.get_ident()
    with ThreadPoolExecutor(1) as pool:
        with lock:
            first = pool.submit(lambda: cache.get_or_compile("f", build)(1))
            assert building.wait(20)
            started = time.monotonic()
            assert cache.get_or_compile("f", build)(1) == 2
            waited = time.monotonic() - started
        assert first.result(20) == 2
    assert len(threads) == 2
    assert IDLE <= waited < 30  # a lock would be waited for longer
    assert cache.path not in {directory for directory, _ in builders._builders}


def _compute() -> None:
    end = time.monotonic() + WORK
    while time.monotonic() < end:
        sum(range(1000))


def _run_a_process() -> None:
    subprocess.run([sys.executable, "-S", "-c", f"import time; time.sleep({WORK})"], check=True)


def _await_llvm() -> None:
    from compcache.images.llvm_thread import in_llvm_thread

    in_llvm_thread(lambda: time.sleep(WORK))


@pytest.mark.slow
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("work", [_compute, _run_a_process, _await_llvm])
def test_who_works_is_waited_for(cache: Cache, work: Callable[[], None]) -> None:
    """The main thread builds: LLVM works for it in another one."""
    built = []

    def build() -> ModuleSource:
        built.append(work.__name__)
        started.set()
        work()
        return ModuleSource(adder("f", 1))

    def ask() -> int:
        assert started.wait(20)
        value: int = cache.get_or_compile("f", build)(1)
        return value

    started = threading.Event()
    with ThreadPoolExecutor(7) as pool:
        others = [pool.submit(ask) for _ in range(7)]
        assert cache.get_or_compile("f", build)(1) == 2
        assert [other.result(20) for other in others] == [2] * 7
    assert len(built) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_of_several_that_wait_one_builds(cache: Cache) -> None:
    """Each build sleeps: what all could do at once, one does after the other."""
    built = []

    def build() -> ModuleSource:
        built.append(threading.get_ident())
        time.sleep(1.5 * IDLE)
        return ModuleSource(adder("f", 1))

    with ThreadPoolExecutor(8) as pool:
        targets = [pool.submit(cache.get_or_compile, "f", build) for _ in range(8)]
        assert [target.result(20)(1) for target in targets] == [2] * 8
    assert len(built) <= 3


def test_without_a_clock_of_threads_a_wait_ends_as_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "pthread_getcpuclockid")
    builder = builders.Builder()
    builder._idle = 100.0
    assert not builder.is_idle()


def test_a_thread_that_has_ended_is_not_waited_for() -> None:
    made: list[builders.Builder] = []
    thread = threading.Thread(target=lambda: made.append(builders.Builder()))
    thread.start()
    thread.join()
    deadline = time.monotonic() + builders.IDLE_SECONDS / 2  # the system may still have it for a moment
    while not made[0].is_idle():
        assert time.monotonic() < deadline
        time.sleep(0.01)
