"""Building a function may ask the cache for others, never for itself, and never waits without a bound."""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller, constant

from compcache import Cache, ModuleSource, ReentrantCompileError

if TYPE_CHECKING:
    from pathlib import Path

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
