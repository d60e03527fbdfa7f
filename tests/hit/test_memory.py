"""What is removed through a cache ends for its look-ups at once; who holds a target may go on calling it."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller, module_file

from compcache import Cache, ModuleSource, NotCachedError, PrunePolicy, TargetUnloadedError, UndefinedSymbolError
from compcache.hit import memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from compcache import TypedCallTarget

COUNTER = """\
@count = global i64 START
define i64 @inc() {
  %x = load i64, ptr @count
  %y = add i64 %x, 1
  store i64 %y, ptr @count
  ret i64 %y
}
"""
GET = """\
@count = external global i64
define i64 @get() {
  %x = load i64, ptr @count
  ret i64 %x
}
"""


def test_replaced_functions_are_forgotten_in_linear_time(cache: Cache) -> None:
    def count_lines(number: int) -> int:
        """How many lines `compcache.hit.memory` executes while a module replaces this many loaded functions."""
        names = [f"f{number}_{position}" for position in range(number)]
        for constant in (1, 2):
            code = "".join(adder(name, constant) for name in names)
            lines = 0

            def trace(frame: FrameType, event: str, _: object) -> Any:
                nonlocal lines
                if frame.f_code.co_filename != memory.__file__:
                    return None
                lines += event == "line"
                return trace

            sys.settrace(trace)
            try:
                cache.add_module(ModuleSource(code))
            finally:
                sys.settrace(None)
            held.extend([cache.get_target(name) for name in names])
        assert held[-1](1) == 3
        return lines

    held: list[TypedCallTarget] = []
    few, many = count_lines(30), count_lines(90)
    assert many < 6 * few, (few, many)


def _prune(cache: Cache) -> None:
    cache.prune(PrunePolicy(match="f"))


def _carry_out(cache: Cache) -> None:
    cache.carry_out(cache.propose_prune(PrunePolicy(match="f")))


def _remove_module(cache: Cache) -> None:
    cache.remove_module(cache.get_target("f").module_id)


def _repair(cache: Cache) -> None:
    path = module_file(cache.path, cache.get_target("f").module_id)
    damaged = path.with_suffix(".damaged")
    damaged.write_bytes(path.read_bytes()[:-40] + bytes(40))
    damaged.replace(path)
    assert cache.check(repair=True).findings


def _shrink(cache: Cache) -> None:
    cache._session().max_size = 1
    cache.add_module(ModuleSource(adder("other", 5)))


REMOVALS = [lambda cache: cache.remove("f"), Cache.clear, _remove_module, _prune, _carry_out, _repair, _shrink]
NAMES = ["remove", "clear", "remove_module", "prune", "carry_out", "check", "max_size"]


@pytest.mark.parametrize("remove", REMOVALS, ids=NAMES)
def test_what_this_cache_has_removed_is_not_found_any_more(cache: Cache, remove: Callable[[Cache], object]) -> None:
    held = cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))
    remove(cache)
    assert held(0) == 1
    assert not cache.loaded().targets
    with pytest.raises(NotCachedError):
        cache.get_target("f")
    second = cache.get_or_compile("f", lambda: ModuleSource(adder("f", 2)))
    assert (second(0), held(0)) == (2, 1)
    assert cache.get_target("f") is second
    with Cache(cache.path) as other:
        assert other.get_target("f")(0) == 2


def test_what_was_bound_to_it_is_bound_anew(cache: Cache) -> None:
    """By way of another module, too: `top` calls `middle`, which calls `f`."""
    cache.add_modules([
        ModuleSource(adder("f", 1)),
        ModuleSource(caller("middle", "f", plus=10), imports=["f"]),
        ModuleSource(caller("top", "middle", plus=100), imports=["middle"]),
        ModuleSource(adder("apart", 7)),
    ])  # fmt: skip
    top, apart = cache.get_target("top"), cache.get_target("apart")
    cache.remove("f", force=True)
    with pytest.raises(UndefinedSymbolError):
        cache.get_target("top")
    cache.add_module(ModuleSource(adder("f", 2)))
    assert (cache.get_target("top")(0), top(0)) == (112, 111)
    assert cache.get_target("apart") is apart


def test_a_variable_of_what_was_removed_is_provided_anew(cache: Cache) -> None:
    """Else the second version could not be loaded: code that is held uses the variable of the first one."""
    cache.add_module(ModuleSource(COUNTER.replace("START", "0")))
    cache.add_module(ModuleSource(GET))
    inc, get = cache.get_target("inc"), cache.get_target("get")
    assert (inc(), get()) == (1, 1)
    cache.remove_module(inc.module_id)
    cache.add_module(ModuleSource(COUNTER.replace("START", "50")))
    second_inc, second_get = cache.get_target("inc"), cache.get_target("get")
    assert (second_inc(), second_get()) == (51, 51)
    assert (inc(), get()) == (2, 2)


def test_what_could_not_be_stored_ends_with_the_rest(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.add_module(ModuleSource(adder("stored", 1)))
    with monkeypatch.context() as patch:
        patch.setattr(cache._store, "readonly", True)
        held = cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))
    assert cache.get_target("f") is held
    cache.clear()
    with pytest.raises(NotCachedError):
        cache.get_target("f")


def test_targets_of_what_was_removed_are_unloaded_with_their_cache(directory: Path) -> None:
    with Cache(directory) as cache:
        held = cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))
        cache.remove("f")
        cache.add_module(ModuleSource(adder("f", 1)))  # the same module: it is loaded a second time
        second = cache.get_target("f")
        assert second is not held
        assert (held(0), second(0)) == (1, 1)
    for target in (held, second):
        with pytest.raises(TargetUnloadedError):
            target(0)


def test_nothing_keeps_what_was_removed(cache: Cache) -> None:
    held = cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))
    cache.remove("f")
    assert cache._loader._ended
    del held
    gc.collect()
    assert not cache._loader._ended
