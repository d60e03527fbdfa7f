"""A load that fails half-way leaves everything as it was, and succeeds once the cause is gone."""

from __future__ import annotations

import array
import gc
import linecache
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller, constant
from test_lifetimes import _nothing_of_other_tests, mapped_images  # noqa: F401

from compcache import Cache, FormatError, GlobalValidationError, ModuleSource, NotCachedError, UndefinedSymbolError, hit
from compcache.globals import DictMember, PythonObject
from compcache.hit import target as runtime_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOP = """\
declare i64 @middle(i64)
@table = external global ptr
@thing = external global ptr
define i64 @top(i64 %x) {
  %p = load ptr, ptr @table
  %v = load i64, ptr %p
  %o = load volatile ptr, ptr @thing
  %a = ptrtoint ptr %o to i64
  %s = sub i64 %a, %a
  %y = call i64 @middle(i64 %x)
  %z = add i64 %y, %v
  %r = add i64 %z, %s
  ret i64 %r
}
define i64 @other() {
  ret i64 3
}
"""


@pytest.fixture
def tower(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """top -> middle -> bottom over three modules; top has a snapshot and a Python object."""
    module = types.ModuleType("module_of_the_tower")
    module.thing = object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "module_of_the_tower", module)
    cache.add_module(ModuleSource(adder("bottom", 1)))
    cache.add_module(ModuleSource(caller("middle", "bottom", plus=10), imports=["bottom"]))
    definitions = {"table": array.array("q", [100]), "thing": PythonObject("module_of_the_tower", "thing")}
    cache.add_module(ModuleSource(TOP, globals=definitions, imports=["middle"]))
    return cache


def state_of(cache: Cache) -> dict[str, Any]:
    """All that a load may change: tables, slots, counters, mapped images."""
    inside = cache._loader
    return {
        "loaded": cache.loaded(),
        "names": sorted(inside.targets),
        "targets": sorted(target.link_name for target in inside.loaded_targets()),
        "modules": sorted(inside._modules),
        "counters": (inside.decoded, inside.opened),
        "slots": [(m.module_id, sorted(m.slots, key=str)) for m in inside.loaded_modules()],
        "images": mapped_images(cache.path),  # type: ignore[arg-type]
        "descriptors": _descriptors(),
    }


def _descriptors() -> int:
    import os

    return len(os.listdir("/proc/self/fd"))


class Failing:
    """The native runtime, with a failure at the n-th call of any of its functions."""

    def __init__(self, runtime: Any, fail_at: int, error: type[BaseException]) -> None:
        self._runtime = runtime
        self._error = error
        self._left = fail_at
        self.failed = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._runtime, name)

        def call(*args: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self.failed = True
                raise self._error("injected")
            return function(*args)

        return call


def fail_load(cache: Cache, name: str) -> BaseException | None:
    try:
        cache.get_target(name)
    except BaseException as error:  # noqa: BLE001 - whatever was injected
        return error.with_traceback(None)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, OSError])
def test_a_failure_at_any_native_step_leaves_the_state(tower: Cache, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    tower.get_target("top")(1)
    tower.unload("top")
    gc.collect()
    before = state_of(tower)
    real = runtime_module._loaded
    steps = 0
    while True:
        failing = Failing(real, steps + 1, error)
        monkeypatch.setattr(runtime_module, "_loaded", failing)
        result = fail_load(tower, "top")
        monkeypatch.setattr(runtime_module, "_loaded", real)
        if not failing.failed:
            break
        steps += 1
        # An image that cannot be mapped from its file is mapped from memory instead: that is no failure.
        if result is not None:
            gc.collect()
            assert state_of(tower) == before, f"step {steps}"
        else:
            gc.collect()
            tower.unload("top")
            before = {**state_of(tower), "counters": before["counters"]}
            tower._loader.decoded, tower._loader.opened = before["counters"]
    assert steps > 10
    tower.unload("top")
    assert tower.get_target("top")(1) == 112


@pytest.mark.slow
def test_a_failure_leaves_the_slots_of_modules_that_are_in_use(tower: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is mapped for a function that needs nothing: its slots are empty after the load of another one has failed."""
    other = tower.get_target("other")
    gc.collect()
    before = state_of(tower)
    assert before["slots"]
    real = runtime_module._loaded
    for steps in range(1, 1000):
        failing = Failing(real, steps, MemoryError)
        monkeypatch.setattr(runtime_module, "_loaded", failing)
        error = fail_load(tower, "top")
        monkeypatch.setattr(runtime_module, "_loaded", real)
        if not failing.failed:
            break
        assert isinstance(error, MemoryError)
        gc.collect()
        assert state_of(tower) == before, f"step {steps}"
    assert steps > 10
    assert (tower.get_target("top")(1), other()) == (112, 3)


def test_who_keeps_the_error_of_a_load_can_load_again(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its traceback has the module that could not be mapped."""
    cache.add_module(ModuleSource(adder("f", 1)))

    class WithoutMemory:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def map_image(self, *_: object) -> Any:
            raise MemoryError

    real = runtime_module._loaded
    monkeypatch.setattr(runtime_module, "_loaded", WithoutMemory())
    with pytest.raises(MemoryError) as caught:
        cache.get_target("f")
    monkeypatch.setattr(runtime_module, "_loaded", real)
    assert cache.get_target("f")(1) == 2
    assert caught.value.__traceback__ is not None


@pytest.mark.slow
@pytest.mark.parametrize("step", [31, pytest.param(1, marks=[pytest.mark.stress, pytest.mark.timeout(600)])])
def test_a_failure_at_any_line_of_a_load_leaves_the_state(tower: Cache, step: int) -> None:
    """As if a signal handler raised there: at every line of the loader, in turn (every 31st one by default)."""
    tower.get_target("top")(1)
    gc.collect()
    before = state_of(tower)
    files = ("hit/__init__.py", "loader.py", "store.py", "globals.py", "manifest.py")
    line = 1 - step
    while True:
        line += step
        error = _load_interrupted_at(tower, line, files)
        if error is None:
            break
        assert isinstance(error, KeyboardInterrupt)
        gc.collect()
        after = state_of(tower)
        after["counters"] = before["counters"]
        if after != before:  # past the commit: everything is there, and nobody holds the target
            assert after["slots"] in ([], before["slots"])
            assert {**after, "slots": []} == {**before, "slots": []}, f"line {line}"
    assert line > 100
    assert _free_for_others(hit._lock)
    assert tower.get_target("top")(1) == 112


#: No signal handler runs inside of these: CPython looks for signals when a Python function is called and at
#: backward jumps, and they have neither.
_EXEMPT = ("__del__", "close", "forget")


def _free_for_others(lock: Any) -> bool:
    """Whether another thread could take a reentrant lock."""
    taken: list[bool] = []

    def take() -> None:
        taken.append(lock.acquire(timeout=1))
        if taken[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken == [True]


def _enters_or_leaves(frame: types.FrameType) -> bool:
    """Whether this is the line of a `with`: an exception there would skip the `__exit__`, which no signal can."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


def _load_interrupted_at(cache: Cache, number: int, files: tuple[str, ...]) -> BaseException | None:
    left = number

    def trace(frame: types.FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(files) or frame.f_code.co_name in _EXEMPT:
            return None
        if event == "line" and not _enters_or_leaves(frame):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        return fail_load(cache, "top")
    finally:
        sys.settrace(previous)


def test_a_missing_dependency_deep_in_the_closure(tower: Cache) -> None:
    bottom = tower.realizations("bottom")[0].module_id
    stored = path_of(tower, bottom)
    data = stored.read_bytes()
    stored.unlink()
    before = state_of(tower)
    with pytest.raises(UndefinedSymbolError) as caught:
        tower.get_target("top")
    assert "bottom" in str(caught.value)
    assert "middle" in str(caught.value)
    del caught
    assert state_of(tower) == before
    assert tower.get_target("other")() == 3  # a function of the same module that needs nothing
    stored.write_bytes(data)
    stored.chmod(0o600)
    assert tower.get_target("top")(1) == 112


def path_of(cache: Cache, module_id: str) -> Path:
    from pathlib import Path

    return Path(cache._store.module_path(bytes.fromhex(module_id)))


def test_an_invalid_global(tower: Cache) -> None:
    module = sys.modules["module_of_the_tower"]
    thing = module.__dict__.pop("thing")
    before = state_of(tower)
    with pytest.raises(GlobalValidationError) as caught:
        tower.get_target("top")
    assert (caught.value.global_name, caught.value.func_name) == ("thing", "top")
    del caught
    assert state_of(tower) == before
    module.thing = thing  # type: ignore[attr-defined]
    assert tower.get_target("top")(1) == 112


def test_a_damaged_image_in_the_closure_is_a_miss_of_what_needs_it(tower: Cache) -> None:
    stored = path_of(tower, tower.realizations("bottom")[0].module_id)
    data = stored.read_bytes()
    stored.write_bytes(data[:200] + b"\xff" * 8 + data[208:])
    before = state_of(tower)
    with pytest.warns(match="damaged"), pytest.raises(UndefinedSymbolError) as caught:
        tower.get_target("top")
    reason: BaseException = caught.value
    while reason.__cause__ is not None:
        reason = reason.__cause__
    assert isinstance(reason, FormatError)
    del caught, reason
    assert state_of(tower) == before
    with pytest.raises(NotCachedError):
        tower.get_target("bottom")
    tower.add_module(ModuleSource(adder("bottom", 1)))
    assert tower.get_target("top")(1) == 112


def test_a_member_that_was_replaced_is_found_by_the_next_load(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("module_with_members")
    module.members = {"one": 1.5}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "module_with_members", module)
    text = "@one = external global ptr\n"
    for name in ("first", "second"):
        text += f"define ptr @{name}() {{\n  %p = load ptr, ptr @one\n  ret ptr %p\n}}\n"
    cache.add_module(ModuleSource(text, globals={"one": DictMember.of("module_with_members", "members", "one", float)}))
    first = cache.get_target("first")
    assert first() == id(module.members["one"])
    module.members["one"] = 2.5
    assert cache.get_target("second")() == id(module.members["one"])


def test_an_object_that_was_replaced_is_found_by_the_next_load(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("module_that_changes")
    module.thing = first = object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "module_that_changes", module)
    text = "@thing = external global ptr\ndefine ptr @where() {\n  %p = load ptr, ptr @thing\n  ret ptr %p\n}\n"
    text += constant("keep", 0).replace("ret i64 0", "%q = load ptr, ptr @thing\n  %n = ptrtoint ptr %q to i64\n  ret i64 %n")
    cache.add_module(ModuleSource(text, globals={"thing": PythonObject("module_that_changes", "thing")}))
    keep = cache.get_target("keep")
    assert keep() == id(first)
    module.thing = second = object()  # type: ignore[attr-defined]
    assert cache.get_target("where")() == id(second)
