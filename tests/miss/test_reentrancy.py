"""Building a function may ask the cache for others, never for itself, and never waits without a bound."""

from __future__ import annotations

import inspect
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller, constant

from compcache import Cache, ModuleSource, ReentrantCompileError, StorageError
from compcache.globals import PythonObject
from compcache.miss import claim
from compcache.publish.locks import wait_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from compcache import TypedCallTarget


def test_a_build_that_asks_for_itself_is_told_so(cache: Cache) -> None:
    def build() -> ModuleSource:
        cache.get_or_compile("f", build)
        return ModuleSource(constant("f", 1))

    started = time.monotonic()
    with pytest.raises(ReentrantCompileError, match="f") as caught:
        cache.get_or_compile("f", build)
    assert isinstance(caught.value, ImportError)
    assert caught.value.func_name == "f"
    assert time.monotonic() - started < 10
    assert cache.get_or_compile("f", lambda: ModuleSource(constant("f", 1)))() == 1


def test_also_by_way_of_another_function(cache: Cache) -> None:
    def build_f() -> ModuleSource:
        cache.get_or_compile("g", build_g)
        return ModuleSource(constant("f", 1))

    def build_g() -> ModuleSource:
        cache.get_or_compile("f", build_f)
        return ModuleSource(constant("g", 1))

    with pytest.raises(ReentrantCompileError, match=r"f.*g.*f"):
        cache.get_or_compile("f", build_f)


def test_also_through_an_import(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_that_runs_f.py").write_text("import hook\nhook.run()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    hook = type(sys)("hook")
    monkeypatch.setitem(sys.modules, "hook", hook)

    def build() -> ModuleSource:
        import module_that_runs_f  # type: ignore[import-not-found]  # noqa: F401

        return ModuleSource(constant("f", 1))

    def run() -> None:
        cache.get_or_compile("f", build)()

    hook.run = run  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="f"):
        cache.get_or_compile("f", build)


@pytest.mark.slow
def test_also_through_a_second_cache_object_and_another_spelling(cache: Cache, directory: Path) -> None:
    link = directory.parent / "link"
    link.symlink_to(directory)

    for other_path in (directory, link):
        with Cache(other_path) as other:

            def build(other: Cache = other) -> ModuleSource:
                other.get_or_compile("f", build)
                return ModuleSource(constant("f", 1))

            with pytest.raises(ReentrantCompileError):
                cache.get_or_compile("f", build)


def test_a_build_may_ask_for_other_functions(cache: Cache) -> None:
    def build() -> ModuleSource:
        inner = cache.get_or_compile("inner", lambda: ModuleSource(adder("inner", 5)))
        return ModuleSource(caller("outer", "inner", plus=inner(1)), imports=["inner"])

    assert cache.get_or_compile("outer", build)(10) == 21


def test_a_failed_build_leaves_nothing_behind(cache: Cache) -> None:
    def fail() -> ModuleSource:
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.get_or_compile("f", fail)
    assert cache.get_or_compile("f", lambda: ModuleSource(constant("f", 1)))() == 1


def test_a_build_that_was_interrupted_at_its_end_is_not_in_the_way(cache: Cache) -> None:
    """An exception of a signal handler comes where the thread notes that it builds the function no more."""
    code = inspect.unwrap(claim.single_flight).__code__
    lines, first = inspect.getsourcelines(code)
    (at,) = [first + number for number, line in enumerate(lines) if "if open_frame is not frame" in line]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and frame.f_code is code and frame.f_lineno == at:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    def fail() -> ModuleSource:
        raise ZeroDivisionError

    def interrupted() -> None:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            cache.get_or_compile("f", fail)
        finally:
            sys.settrace(before)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert cache.get_or_compile("f", lambda: ModuleSource(constant("f", 1)))() == 1


@pytest.mark.slow
def test_what_other_threads_build_does_not_shorten_the_wait(cache: Cache, directory: Path) -> None:
    """Who builds something else waits half a second only for what another process builds."""
    started, done = threading.Event(), threading.Event()
    built: list[float] = []

    def slow() -> ModuleSource:
        started.set()
        assert done.wait(20)
        return ModuleSource(constant("slow", 1))

    def wanted() -> ModuleSource:
        built.append(time.monotonic())
        return ModuleSource(constant("wanted", 2))

    with Cache(directory) as other, ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache.get_or_compile, "slow", slow)
        assert started.wait(20)
        with wait_lock(other._store, "compile wanted", timeout=0.0) as owned:
            assert owned
            second = threads.submit(cache.get_or_compile, "wanted", wanted)
            time.sleep(1.5)
            released = time.monotonic()
        assert second.result(20)() == 2
        done.set()
        assert first.result(20)() == 1
    assert len(built) == 1
    assert built[0] > released


@pytest.mark.slow
def test_two_threads_that_need_each_others_functions_both_get_them(cache: Cache) -> None:
    """A needs B and B needs A, at once: neither waits for the other without a bound."""
    meeting = threading.Barrier(2)
    results: dict[str, object] = {}

    def build(name: str, other: str, depth: int) -> ModuleSource:
        if depth == 0:
            meeting.wait(10)
            try:
                cache.get_or_compile(other, partial(build, other, name, 1))
            except ReentrantCompileError:
                pytest.fail("the other thread's build is not this thread's")
        return ModuleSource(constant(name, len(name)))

    def run(name: str, other: str) -> None:
        try:
            target: TypedCallTarget = cache.get_or_compile(name, partial(build, name, other, 0))
            results[name] = target()
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            results[name] = error

    threads = [threading.Thread(target=run, args=pair) for pair in (("a", "bb"), ("bb", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {"a": 1, "bb": 2}


# ------------------------------------------------------------------------ what happens while a global is decoded

_COUNTING = """
@thing = external global ptr
@counter = global i64 100
define i64 @bump(i64 %x) {
  %p = load volatile ptr, ptr @thing
  %v = load i64, ptr @counter
  %n = add i64 %v, %x
  store i64 %n, ptr @counter
  ret i64 %n
}
define i64 @read() {
  %v = load i64, ptr @counter
  ret i64 %v
}
"""


def add_counting(cache: Cache, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Add functions of one module; while `bump` is loaded for the first time, this is called."""
    waiting = [meanwhile]

    class Asking(types.ModuleType):
        @property
        def thing(self) -> object:
            if waiting and "bump" in cache:
                waiting.pop()()
            return self

    monkeypatch.setitem(sys.modules, "module_that_asks", Asking("module_that_asks"))
    cache.add_module(ModuleSource(_COUNTING, globals={"thing": PythonObject("module_that_asks", "thing")}))


def test_a_module_that_is_loaded_anew_meanwhile_is_one_for_all_its_functions(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load under way has mapped it before it was unloaded: with that mapping there would be two counters."""
    held = []

    def load_anew() -> None:
        cache.unload("bump")
        held.append(cache.get_target("read"))

    add_counting(cache, monkeypatch, load_anew)
    bump = cache.get_target("bump")
    assert [held[0](), bump(1), held[0]()] == [100, 101, 101]


def test_a_load_that_is_under_way_when_its_cache_is_closed_gives_no_target(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    add_counting(cache, monkeypatch, cache.close)
    with pytest.raises(StorageError, match="was closed while 'bump' was loaded"):
        cache.get_target("bump")
