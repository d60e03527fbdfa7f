"""Who keeps what alive: ownership, identity, unloading, weak references, snapshots."""

from __future__ import annotations

import array
import copy
import gc
import pickle
import sys
import threading
import types
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller, constant, frees_callers, run_fresh

from compcache import Cache, CompcacheError, ModuleSource, NotCachedError, TargetUnloadedError, TypedCallTarget, frontend
from compcache.globals import PythonObject
from compcache.publish.removal import remove_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

READ_TABLE = """\
@table = external global ptr
define i64 @bump() {
  %p = load ptr, ptr @table
  %v = load i64, ptr %p
  %w = add i64 %v, 1
  store i64 %w, ptr %p
  ret i64 %w
}
"""
IDENTITY_OF = """\
@thing = external global ptr
define ptr @thing_address() {
  %p = load ptr, ptr @thing
  ret ptr %p
}
"""


#: The copies in memory that other tests have left: code that was started is never unmapped.
_LEFT: set[tuple[str, str]] = set()


def _copies_and_files(directory: str) -> set[tuple[str, str]]:
    """The images of a cache that the process has mapped, and all copies in memory, as (path, inode)."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        rows = [line.split(maxsplit=5) for line in maps if "/" in line]
    found = {(row[-1].strip(), row[4]) for row in rows}
    return {(path, inode) for path, inode in found if ("modules-v1" in path and directory in path) or "memfd:compcache" in path}


def mapped_images(directory: Path) -> int:
    """How many images of this cache, or copies of them in memory, the process has mapped since the test began."""
    return len(_copies_and_files(str(directory)) - _LEFT)


@pytest.fixture(autouse=True)
def _nothing_of_other_tests(tmp_path: Path) -> None:
    """What other tests have left does not count in `mapped_images`."""
    gc.collect()
    _LEFT.clear()
    _LEFT.update(_copies_and_files(str(tmp_path)))


# ------------------------------------------------------------------ ownership


def test_a_target_alone_keeps_code_globals_and_imports(directory: Path) -> None:
    cache = Cache(directory)
    cache.add_module(ModuleSource(adder("inner", 5)))
    cache.add_module(ModuleSource(caller("outer", "inner", plus=1), imports=["inner"]))
    cache.add_module(ModuleSource(READ_TABLE, {"bump": "i64()"}, {"table": array.array("q", [40])}))
    outer, bump = cache.get_target("outer"), cache.get_target("bump")
    images = mapped_images(directory)
    del cache
    gc.collect()
    blocks = [bytes(4096) for _ in range(2000)]  # memory that was freed by mistake is used again by now
    assert outer(10) == 16
    assert [bump(), bump()] == [41, 42]
    assert mapped_images(directory) == images == 3
    del blocks, outer, bump
    gc.collect()
    assert mapped_images(directory) == 0


def test_cycles_through_globals_are_collected(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Holder:
        target: TypedCallTarget | None = None

    module = types.ModuleType("module_in_a_cycle")
    module.holder = Holder()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "module_in_a_cycle", module)
    cache = Cache(directory)
    source = ModuleSource(IDENTITY_OF, globals={"thing": PythonObject("module_in_a_cycle", "holder")})
    cache.add_module(source)
    target = cache.get_target("thing_address")
    assert target() == id(module.holder)
    module.holder.target = target
    alive = weakref.ref(module.holder)
    gc.disable()  # from here on the cycle is garbage
    try:
        del target, module.holder
        assert alive() is not None
        assert mapped_images(directory) == 1
    finally:
        gc.enable()
    gc.collect()
    assert alive() is None
    assert mapped_images(directory) == 0


def test_modules_that_import_each_other_are_collected(directory: Path) -> None:
    even = """\
declare i64 @odd(i64)
define i64 @even(i64 %n) {
  %z = icmp eq i64 %n, 0
  br i1 %z, label %yes, label %ask
yes:
  ret i64 1
ask:
  %m = sub i64 %n, 1
  %r = call i64 @odd(i64 %m)
  ret i64 %r
}
"""
    odd = even.replace("@odd", "@tmp").replace("@even", "@odd").replace("@tmp", "@even").replace("ret i64 1", "ret i64 0")
    cache = Cache(directory)
    cache.add_module(ModuleSource(even, imports=["odd"]))
    cache.add_module(ModuleSource(odd, imports=["even"]))
    target = cache.get_target("even")
    assert [target(n) for n in range(5)] == [1, 0, 1, 0, 1]
    assert mapped_images(directory) == 2
    del target
    gc.collect()
    assert mapped_images(directory) == 0


# ------------------------------------------------------------------- identity


def test_asking_twice_gives_the_same_object(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    target = cache.get_target("f")
    assert cache.get_target("f") is target
    assert cache.get_or_compile("f", pytest.fail) is target
    box = [target]
    assert next(filter(None, box)) is target  # through native code and back


@pytest.mark.slow
def test_many_threads_that_ask_at_once_get_the_same_object(cache: Cache) -> None:
    for number in range(20):
        name = f"f{number}"
        cache.add_module(ModuleSource(adder(name, number)))
        if number % 2:
            cache.add_module(ModuleSource(adder(name, number) + constant("other", number)))
        barrier = threading.Barrier(32)
        found: list[TypedCallTarget] = []

        def ask(name: str = name, barrier: threading.Barrier = barrier, found: list[TypedCallTarget] = found) -> None:
            barrier.wait()
            found.append(cache.get_target(name))

        threads = [threading.Thread(target=ask) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 32
        assert len({id(target) for target in found}) == 1
        assert found[0](1) == 1 + number


def test_reused_addresses_resurrect_nothing(cache: Cache) -> None:
    names = [f"f{number}" for number in range(8)]
    for number, name in enumerate(names):
        cache.add_module(ModuleSource(constant(name, number)))
    seen: dict[int, set[str]] = {}
    for _ in range(50):
        for number, name in enumerate(names):
            target = cache.get_target(name)
            seen.setdefault(id(target), set()).add(name)
            assert (target.func_name, target()) == (name, number)
            del target
    assert any(len(users) > 1 for users in seen.values()), "no address was reused: the test shows nothing"


def test_link_names_are_distinct_and_name_the_realization(cache: Cache) -> None:
    first = cache.add_module(ModuleSource(constant("f", 1)))
    second = cache.add_module(ModuleSource(constant("f", 1) + constant("g", 2)))
    names = {realization.link_name for realization in cache.realizations("f")}
    assert names == {f"f@{first}", f"f@{second}"}
    assert cache.get_target("f").link_name in names


def test_two_caches_on_one_directory_share_nothing_that_can_change(directory: Path) -> None:
    with Cache(directory) as one, Cache(directory) as two:
        one.add_module(ModuleSource(READ_TABLE, {"bump": "i64()"}, {"table": array.array("q", [0])}))
        first, second = one.get_target("bump"), two.get_target("bump")
        assert [first(), first(), second(), first()] == [1, 2, 1, 3]
        one.close()
        assert second() == 2
        with pytest.raises(TargetUnloadedError):
            first()


# --------------------------------------------------------------------- unload


def test_an_unloaded_target_says_what_happened_and_what_to_do(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("f", 1) + constant("g", 2)))
    f, g = cache.get_target("f"), cache.get_target("g")
    assert cache.unload("f")
    attributes = ("signature", "address", "link_name", "module_id", "func_name", "nogil")
    uses: list[Any] = [f, g, lambda: pickle.dumps(f), *(partial(getattr, f, name) for name in attributes)]
    for use in uses:
        with pytest.raises(TargetUnloadedError, match=r"unload.*get_target"):
            use()
    assert "unloaded" in repr(f)
    again = cache.get_target("f")
    assert again is not f
    assert again() == 1
    with pytest.raises(TargetUnloadedError) as caught:
        f()
    assert caught.value.func_name == "f"


def test_closing_invalidates_what_was_handed_out(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant("f", 1)))
        f = cache.get_target("f")
        assert f() == 1
    with pytest.raises(TargetUnloadedError):
        f()
    with pytest.raises(OSError, match="closed"):
        cache.get_target("f")
    cache.close()


def test_a_dependent_of_an_unloaded_module_goes_on(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("inner", 5)))
    cache.add_module(ModuleSource(caller("outer", "inner"), imports=["inner"]))
    outer, inner = cache.get_target("outer"), cache.get_target("inner")
    cache.unload("inner")
    assert outer(1) == 6
    with pytest.raises(TargetUnloadedError):
        inner(1)


def test_code_is_unmapped_when_the_last_holder_is_gone(directory: Path) -> None:
    gc.collect()
    before = mapped_images(directory)  # copies in memory that failed tests may still hold
    cache = Cache(directory)
    cache.add_module(ModuleSource(constant("f", 1)))
    first = cache.get_target("f")
    assert mapped_images(directory) == before + 1
    cache.unload("f")
    assert mapped_images(directory) == before + 1
    second = cache.get_target("f")  # a copy: the file is still mapped by the first one
    assert second() == 1
    assert mapped_images(directory) == before + 2
    del first
    assert mapped_images(directory) == before + 1
    del second
    assert mapped_images(directory) == before


def test_a_reload_starts_from_the_stored_globals(cache: Cache) -> None:
    cache.add_module(ModuleSource(READ_TABLE, {"bump": "i64()"}, {"table": array.array("q", [0])}))
    first = cache.get_target("bump")
    assert [first(), first()] == [1, 2]
    cache.unload("bump")
    second = cache.get_target("bump")  # while the first one still holds its own
    assert second() == 1
    del first, second
    assert cache.get_target("bump")() == 1


def test_loaded_returns_to_its_starting_point(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("inner", 5)))
    cache.add_module(ModuleSource(caller("outer", "inner"), imports=["inner"]))
    start = cache.loaded()
    assert start == type(start)((), (), 0)
    outer = cache.get_target("outer")
    state = cache.loaded()
    assert (len(state.modules), state.targets) == (2, ("outer",))
    assert state.bytes_mapped > 0
    assert outer(1) == 6
    del outer
    assert cache.loaded() == start
    kept = cache.get_target("inner")
    cache.unload("inner")
    assert cache.loaded() == start
    assert "unloaded" in repr(kept)


def test_an_unload_waits_for_no_running_call_and_does_not_disturb_it(cache: Cache) -> None:
    spin = """\
define i64 @spin(ptr %flags) {
  store atomic i64 1, ptr %flags seq_cst, align 8
  br label %loop
loop:
  %q = getelementptr i64, ptr %flags, i64 1
  %v = load atomic i64, ptr %q seq_cst, align 8
  %go = icmp eq i64 %v, 0
  br i1 %go, label %loop, label %end
end:
  ret i64 %v
}
"""
    from compcache import Function

    cache.add_module(ModuleSource(spin, {"spin": Function("i64(ptr)", nogil=True)}))
    flags = array.array("q", [0, 0])
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(cache.get_target("spin")(flags)))
    thread.start()
    while not flags[0]:
        pass  # the GIL is free: this loop would never end otherwise
    cache.unload("spin")
    gc.collect()
    assert not results
    flags[1] = 7
    thread.join(20)
    assert results == [7]
    assert cache.loaded().modules == ()


# --------------------------------------------------------- weak references, pickling


def test_weak_references_call_back_once_and_may_use_the_cache(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("f", 1)))
    target = cache.get_target("f")
    calls: list[int] = []
    weak = weakref.ref(target, lambda _: calls.append(cache.get_target("f")()))
    assert weak() is target
    del target
    assert weak() is None
    gc.collect()
    assert calls == [1]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickled_target_is_the_same_object_in_its_process(cache: Cache, protocol: int) -> None:
    cache.add_module(ModuleSource(constant("f", 1)))
    target = cache.get_target("f")
    assert pickle.loads(pickle.dumps(target, protocol)) is target
    assert copy.copy(target) is target
    assert copy.deepcopy([target])[0] is target


def test_a_pickled_target_is_found_in_another_process(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("f", 4)))
    data = pickle.dumps(cache.get_target("f"))
    script = f"""
    import pickle
    target = pickle.loads({data!r})
    result = target(1), pickle.loads({data!r}) is target, "llvmlite" in sys.modules
    """
    assert run_fresh(directory, script) == (5, True, False)


def test_a_target_that_cannot_be_found_again_says_which_and_where(cache: Cache, directory: Path) -> None:
    module_id = cache.add_module(ModuleSource(constant("f", 1)))
    data = pickle.dumps(cache.get_target("f"))
    remove_file(cache._store, bytes.fromhex(module_id))
    with pytest.raises(NotCachedError, match="f") as caught:
        pickle.loads(data)
    assert (caught.value.func_name, caught.value.cache_dir) == ("f", str(directory))
    assert str(directory) in str(caught.value)


# ------------------------------------------------------------------ snapshots


def test_nothing_stored_changes_with_the_callers_objects(cache: Cache) -> None:
    values = array.array("q", [10])
    functions: dict[str, Any] = {"bump": "i64()"}
    definitions: dict[str, Any] = {"table": values}
    source = ModuleSource(READ_TABLE, functions, definitions)
    module_id = cache.add_module(source)
    values[0] = 99
    functions.clear()
    definitions.clear()
    source.ir = "nonsense"
    assert cache.get_target("bump")() == 11
    assert cache.add_module(ModuleSource(READ_TABLE, {"bump": "i64()"}, {"table": array.array("q", [10])})) == module_id


def test_an_llvmlite_module_may_change_after_it_was_added(cache: Cache) -> None:
    from llvmlite import ir

    module = ir.Module()
    number = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(number, ()), "f")
    ir.IRBuilder(function.append_basic_block()).ret(number(1))
    target = cache.get_or_compile("f", lambda: ModuleSource(module))
    ir.Function(module, ir.FunctionType(number, ()), "undefined_later")
    function.name = "renamed"
    assert target() == 1
    assert cache.get_target("f") is target
    assert not cache.has("renamed")


def test_records_that_are_handed_out_are_frozen(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    target = cache.get_target("f")
    for record in (cache.realizations("f")[0], cache.loaded(), target.signature, target.signature.parameters[0]):
        name = next(iter(type(record).__slots__))
        with pytest.raises(AttributeError):
            setattr(record, name, None)
    for name in ("func_name", "address", "_function", "_context"):
        with pytest.raises(AttributeError):
            setattr(target, name, None)


# ------------------------------------------------------------------- misses


@pytest.mark.parametrize("way", [Cache.get_target, frontend.find])
def test_a_miss_keeps_no_object_of_its_callers(cache: Cache, way: Callable[[Cache, str], object]) -> None:
    assert frees_callers(lambda: way(cache, "nothing"), NotCachedError)


@pytest.mark.parametrize("way", [Cache.get_target, frontend.find])
def test_a_function_that_cannot_be_loaded_keeps_no_object_of_its_callers(cache: Cache, way: Callable[[Cache, str], object]) -> None:
    cache.add_modules([
        ModuleSource(caller("top", "leaf"), {"top": "i64(i64)"}, imports=["leaf"]),
        ModuleSource(adder("leaf", 1), {"leaf": "i64(i64)"}),
    ])  # fmt: skip
    cache.remove("leaf", force=True)
    assert frees_callers(lambda: way(cache, "top"), CompcacheError)
