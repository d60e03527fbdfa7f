"""What a build finds in memory is in the directory as well: another process, or a limit of size, may have removed it there."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller, module_file, run_fresh

from compcache import Cache, Identity, ModuleSource, NotCachedError, UndefinedSymbolError

if TYPE_CHECKING:
    from pathlib import Path

G = "from compcache import Cache\nwith Cache(directory) as cache:\n    result = cache.get_target('g')(0)\n"


def clear_elsewhere(directory: Path) -> None:
    with Cache(directory) as other:
        other.clear()


@pytest.mark.parametrize("asked_by", ["get_target", "get_or_compile", "nobody"])
def test_what_was_removed_elsewhere_is_stored_again_for_a_build(cache: Cache, directory: Path, asked_by: str) -> None:
    """Where the source names its import, nothing else looks for that before the next process does."""
    builds = []

    def build_f() -> ModuleSource:
        builds.append("f")
        return ModuleSource(adder("f", 1))

    def build_g() -> ModuleSource:
        if asked_by == "get_target":
            assert cache.get_target("f") is f
        if asked_by == "get_or_compile":
            assert cache.get_or_compile("f", build_f) is f
        return ModuleSource(caller("g", "f", plus=10), imports=["f"])

    f = cache.get_or_compile("f", build_f)
    content = module_file(directory, f.module_id).read_bytes()
    clear_elsewhere(directory)
    assert cache.get_or_compile("g", build_g)(0) == 11
    assert builds == ["f"]
    assert module_file(directory, f.module_id).read_bytes() == content
    assert cache.get_target("f") is f
    assert run_fresh(directory, G) == 11


def test_an_addition_stores_it_again_as_well(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    held = cache.get_target("f")
    clear_elsewhere(directory)
    cache.add_module(ModuleSource(caller("g", "f", plus=10)))  # `f` is found, or this is an error
    assert held(0) == 1
    assert run_fresh(directory, G) == 11


STATE = "@state = global i64 5\ndefine ptr @state.address() {\n  ret ptr @state\n}\n"
ADDING = """
@state = external global i64
define i64 @NAME(i64 %x) {
  %old = load i64, ptr @state
  %new = add i64 %old, %x
  store i64 %new, ptr @state
  ret i64 %new
}
"""


def test_an_addition_stores_a_variable_in_use_again(cache: Cache, directory: Path) -> None:
    held = [cache.get_or_compile("state.address", lambda: STATE)]
    held.append(cache.compile(ModuleSource(ADDING.replace("NAME", "first"), imports=["state"])).first)
    assert held[1](3) == 8
    clear_elsewhere(directory)
    assert cache.compile(ModuleSource(ADDING.replace("NAME", "second"), imports=["state"])).second(3) == 11
    assert run_fresh(directory, "from compcache import Cache\nresult = str(Cache(directory).get_target('state.address').signature)")
    clear_elsewhere(directory)
    name = Identity("third")
    third = cache.get_or_compile(name, lambda: ModuleSource(ADDING.replace("NAME", "third"), imports=["state"]))
    assert third(1) == 12


def test_an_addition_does_not_store_again_what_this_cache_removed(cache: Cache) -> None:
    held = cache.get_or_compile("state.address", lambda: STATE)
    cache.remove("state.address", force=True)
    functions = cache.compile(ModuleSource(ADDING.replace("NAME", "first"), imports=["state"]))
    with pytest.raises(UndefinedSymbolError, match="'state'"):
        functions["first"]
    assert held()


def test_what_goes_after_the_build_has_asked_is_stored_again(cache: Cache, directory: Path) -> None:
    """Also where the build does not hold what it has got."""

    def build_g() -> ModuleSource:
        assert cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))(0) == 1
        clear_elsewhere(directory)
        return ModuleSource(caller("g", "f", plus=10), imports=["f"])

    assert cache.get_or_compile("g", build_g)(0) == 11
    assert run_fresh(directory, G) == 11


def test_with_what_it_is_bound_to(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("h", 1)))
    cache.add_module(ModuleSource(caller("f", "h", plus=2), imports=["h"]))
    held = cache.get_target("f")
    with Cache(directory) as other:
        other.remove("h", force=True)

    def build_g() -> ModuleSource:
        cache.get_target("f")
        return ModuleSource(caller("g", "f", plus=10), imports=["f"])

    assert cache.get_or_compile("g", build_g)(0) == 13
    assert held(0) == 3
    assert run_fresh(directory, G) == 13


def test_what_another_process_has_put_in_its_place_is_used(cache: Cache, directory: Path) -> None:
    held = cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))
    with Cache(directory) as other:
        other.clear()
        other.add_module(ModuleSource(adder("f", 2)))

    def build_g() -> ModuleSource:
        assert cache.get_target("f")(0) == 2
        return ModuleSource(caller("g", "f", plus=10), imports=["f"])

    assert cache.get_or_compile("g", build_g)(0) == 12
    assert (held(0), cache.get_target("f")(0)) == (1, 2)
    assert not module_file(directory, held.module_id).exists()
    assert run_fresh(directory, G) == 12


def test_what_cannot_be_stored_again_is_compiled_again(directory: Path) -> None:
    """A second cache object has a copy of the image alone."""
    with Cache(directory) as first, Cache(directory) as cache:
        first.add_module(ModuleSource(adder("f", 1)))
        mapped, held = first.get_target("f"), cache.get_target("f")
        clear_elsewhere(directory)

        def build_g() -> ModuleSource:
            with pytest.raises(NotCachedError):
                cache.get_target("f")
            assert cache.get_or_compile("f", lambda: ModuleSource(adder("f", 2)))(0) == 2
            return ModuleSource(caller("g", "f", plus=10), imports=["f"])

        assert cache.get_or_compile("g", build_g)(0) == 12
        assert (mapped(0), held(0)) == (1, 1)
    assert run_fresh(directory, G) == 12


@pytest.mark.slow
def test_the_limit_of_size_spares_what_a_build_has_asked_for(directory: Path) -> None:
    with Cache(directory, max_size=9_000) as cache:
        cache.add_modules([ModuleSource(adder("f", 1)), ModuleSource(adder("second", 2))])

        def build_g() -> ModuleSource:
            cache.get_target("f")
            for name in ("other1", "other2", "other3", "other4"):
                cache.get_or_compile(name, partial(ModuleSource, adder(name, 3)))
            assert "f" in cache
            return ModuleSource(caller("g", "f", plus=10), imports=["f"])

        assert cache.get_or_compile("g", build_g)(0) == 11
        assert "second" not in cache
    assert run_fresh(directory, G) == 11


def test_other_threads_go_on_answering_from_memory(cache: Cache, directory: Path) -> None:
    """Only a thread that builds looks at the directory."""
    f = cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))
    clear_elsewhere(directory)
    found = []

    def build_g() -> ModuleSource:
        thread = threading.Thread(target=lambda: found.append(cache.get_target("f")))
        thread.start()
        thread.join(20)
        assert not module_file(directory, f.module_id).exists()
        return ModuleSource(adder("g", 5))

    cache.get_or_compile("g", build_g)
    assert found == [f]
    assert cache._targets["f"]() is f
