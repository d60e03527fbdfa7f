"""A signal handler, or a finalizer, that interrupts a load and asks for a function gets it, or one documented error."""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import itertools
import os
import signal
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT, adder, caller, run_fresh

from compcache import Cache, ModuleSource, ReentrantLoadError
from compcache.hit import target as runtime_module

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from types import CodeType, FrameType

    from compcache import TypedCallTarget

PACKAGE = str(PACKAGE_ROOT / "compcache")
PROVIDER = "@v = global i64 7\ndefine i64 @provider(i64 %x) {\n  %y = load i64, ptr @v\n  ret i64 %y\n}\n"
#: Its constructor waits for what it imports; a second run changes the result.
STARTED = """\
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @begin, ptr null }]
@v = external global i64
@state = internal global i64 0
declare i64 @bottom(i64)
define internal void @begin() {
  %x = load i64, ptr @v
  %y = call i64 @bottom(i64 %x)
  %old = load i64, ptr @state
  %new = add i64 %old, %y
  store i64 %new, ptr @state
  ret void
}
define i64 @started(i64 %x) {
  %y = load i64, ptr @state
  ret i64 %y
}
"""
#: How many handlers run at once, and how many signals come.
MOST_HANDLERS, SIGNALS = 3, 100
CRITICAL = ("_map", "_map_image", "_commit", "start_bound", "_start")
EXPECTED = {"alone": 5, "bottom": 1, "middle": 11, "top": 111, "provider": 7, "started": 8}


@pytest.fixture
def filled(cache: Cache) -> Cache:
    cache.add_modules([
        ModuleSource(adder("alone", 5)),
        ModuleSource(adder("bottom", 1)),
        ModuleSource(caller("middle", "bottom", plus=10), imports=["bottom"]),
        ModuleSource(caller("top", "middle", plus=100), imports=["middle"]),
        ModuleSource(PROVIDER),
        ModuleSource(STARTED),
    ])  # fmt: skip
    with Cache(cache.path) as other:  # what a load leaves for the next is there
        for name, value in EXPECTED.items():
            assert other.get_target(name)(0) == value
    return cache


@functools.cache
def places_of(code: CodeType) -> frozenset[int]:
    """The offsets of the instructions before which CPython looks for signals: after calls, and where loops begin again."""
    instructions = list(dis.get_instructions(code))
    after_calls = {next_one.offset for one, next_one in itertools.pairwise(instructions) if one.opname.startswith(("CALL", "RESUME"))}
    return frozenset(after_calls | {one.argval for one in instructions if one.opname.startswith("JUMP_BACKWARD")})


class Interruption:
    """Calls a function at one of the places of the package, or of some functions, at which a signal handler can be called; `came` tells
    whether there were so many.
    """

    def __init__(self, place: int, handler: Callable[[], None], within: Container[str] = ()) -> None:
        self._left = place
        self._within = within
        self._handler = handler
        self.came = False

    def __enter__(self) -> Interruption:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        is_place = event == "opcode" and not self.came and frame.f_lasti in places_of(frame.f_code)
        if is_place and (not self._within or frame.f_code.co_name in self._within):
            self._left -= 1
            if self._left < 0:
                self.came = True
                sys.settrace(None)
                self._handler()
        return self._trace


def interrupted(directory: str, outer: str, inner: str, place: int, within: Container[str] = (), *, trust: bool = False) -> str:
    """How a look-up within a look-up ends; empty where the outer one has fewer places."""
    with Cache(directory, trust=trust) as cache:
        found: list[TypedCallTarget | ReentrantLoadError] = []
        values: list[int] = []

        def ask() -> None:
            try:
                found.append(cache.get_target(inner))
                values.append(found[0](0))  # type: ignore[operator]
            except ReentrantLoadError as error:
                found.append(error)

        with Interruption(place, ask, within) as interruption:
            target = cache.get_target(outer)
        assert target(0) == EXPECTED[outer]
        if not interruption.came:
            return ""
        again = cache.get_target(inner)
        assert again(0) == EXPECTED[inner]
        assert cache.get_target(outer) is target
        if isinstance(found[0], ReentrantLoadError):
            assert found[0].func_name == inner
            return "refused"
        assert found[0] is again
        assert values == [EXPECTED[inner]]
        return "answered"


@pytest.mark.slow
@pytest.mark.parametrize("trust", [False, True], ids=["plain", "by_the_store"])
@pytest.mark.parametrize("outer", ["alone", "top", "started"])
def test_a_load_may_be_interrupted_anywhere(filled: Cache, outer: str, trust: bool) -> None:
    """At some places of all, and at each one of those that change what other look-ups see."""
    answers: Counter[tuple[str, str]] = Counter()
    for inner, stride, within in ((outer, 23, ()), (outer, 1, CRITICAL), ("middle", 23, ()), ("provider", 23, ())):
        place = 0
        while answer := interrupted(filled.path, outer, inner, place, within, trust=trust):
            answers[inner, answer] += 1
            place += stride
    assert answers[outer, "answered"] > 0 < answers[outer, "refused"]
    assert answers["middle", "answered"] > answers["middle", "refused"]
    if outer == "alone":  # of what it is not in the middle of, it refuses nothing
        assert not answers["middle", "refused"]


def test_the_error_says_what_to_do(filled: Cache) -> None:
    from compcache import hit

    errors = []

    class Interrupted(hit.LoadedModule):
        """Asks while it is claimed and not mapped."""

        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            if name == "image" and value is not None:
                with pytest.raises(ReentrantLoadError, match=r"by code that interrupts a load of module .*: retry") as caught:
                    filled.get_target("alone")
                errors.append(caught.value)
            super().__setattr__(name, value)

    before = hit.LoadedModule
    hit.LoadedModule = Interrupted  # type: ignore[misc]
    try:
        assert filled.get_target("alone")(0) == 5
    finally:
        hit.LoadedModule = before  # type: ignore[misc]
    assert [error.func_name for error in errors] == ["alone"]
    assert filled.stats().misses == 0


def test_a_module_that_is_about_to_be_started_is_no_answer(filled: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a finalizer in a garbage collection that begins with the call of the constructors."""

    class Asking:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def start(self, *arguments: Any) -> None:
            with pytest.raises(ReentrantLoadError, match="whose constructors have not run"):
                cache.get_target("started")
            asked.append(1)
            real.start(*arguments)

    real, asked = runtime_module._loaded, list[int]()
    monkeypatch.setattr(runtime_module, "_loaded", Asking())
    with Cache(filled.path) as cache:
        assert cache.get_target("started")(0) == EXPECTED["started"]
    assert asked  # once for each mapping


#: Each load is in a child of its own: files of the package that only some loads need are imported in it.
IMPORTS = r"""
import os
import compcache
from compcache import Cache
package = os.path.dirname(compcache.__file__)
def interrupt(line):
    left, found = [line], []
    cache = Cache(directory, trust=True)  # hits that are not plain import most
    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(package):
            return None
        # Where a file is being imported, and what it defines.
        if event == "line" and not found and frame.f_code.co_name == "<module>":
            left[0] -= 1
            if left[0] < 0:
                sys.settrace(None)
                try:
                    found.append(cache.get_target("top")(0))
                except RuntimeError:  # `ReentrantLoadError` is one, and may not be there yet
                    found.append(-1)
                return None
        return trace
    sys.settrace(trace)
    value = cache.get_target("top")(0)
    sys.settrace(None)
    return (3 if not found else 0) if value == 111 and found in ([], [111], [-1]) else 1
line, refused = 0, 0
while True:
    child = os.fork()
    if not child:
        try:
            status = interrupt(line)
        except BaseException as error:
            sys.stderr.write(f"line {line}: {error!r}\n")
            status = 1
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        break
    line += 2
result = status, line > 20
"""


@pytest.mark.slow
def test_imports_of_a_load_may_be_interrupted_as_well(filled: Cache) -> None:
    """What is half imported is no answer: `ImportError`, or `NameError`, was."""
    assert run_fresh(filled.path, IMPORTS) == (3, True)


#: The load of an image meets the file that loads images while it is being imported.
HALF = """
import importlib.machinery
import types
from compcache import Cache, ReentrantLoadError
from compcache.hit.loader import Loader
Loader._map_file = lambda self, file: None  # a noexec mount
side = "compcache.images.shared.load"
half = sys.modules[side] = types.ModuleType(side)
half.__spec__ = importlib.machinery.ModuleSpec(side, None)
half.__spec__._initializing = True
with Cache(directory, trust=True) as cache:  # its loads are not plain hits
    try:
        cache.get_target("top")
    except ReentrantLoadError as error:
        refused = error.func_name, "that imports " + side + ": retry the look-up" in str(error)
    del sys.modules[side]
    result = refused, cache.get_target("top")(0)
"""


def test_an_attribute_of_a_half_imported_file_is_no_answer(filled: Cache) -> None:
    assert run_fresh(filled.path, HALF) == (("top", True), 111)


@pytest.mark.slow
def test_signals_at_any_time(filled: Cache) -> None:
    """The handler asks for one after the other of what the main thread loads and drops. It may be interrupted itself, but not by ever more
    signals: on a busy machine they come faster than they are handled, and the stack is finite.
    """
    names = list(EXPECTED)
    wrong: list[object] = []
    asked = handled = 0

    def handle(_: int, __: object) -> None:
        nonlocal asked, handled
        asked += 1
        name = names[asked % len(names)]
        try:
            if (value := filled.get_target(name)(0)) != EXPECTED[name]:
                wrong.append((name, value))
        except ReentrantLoadError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is
            wrong.append((name, error))
        handled += 1

    before = signal.signal(signal.SIGUSR1, handle)
    ended = threading.Event()

    def fire() -> None:
        while not ended.wait(0.001):
            if asked - handled < MOST_HANDLERS:
                os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=fire)
    thread.start()
    try:
        while asked < SIGNALS:
            for name in names:
                assert filled.get_target(name)(0) == EXPECTED[name]
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("line", range(20, 320, 60))
def test_finalizers_ask_as_well(filled: Cache, line: int) -> None:
    found: list[TypedCallTarget] = []

    class Asking:
        """Garbage of a cycle."""

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            with contextlib.suppress(ReentrantLoadError):
                found.append(filled.get_target("middle"))

    Asking()

    def collect() -> None:
        gc.collect()

    with Interruption(line, collect) as interruption:
        assert filled.get_target("top")(0) == 111
    assert interruption.came
    assert [target(0) for target in found] in ([], [11])
    assert not found or filled.get_target("middle") is found[0]


#: Its constructor and its destructor use what it imports, which is in a module of its own.
ENDING = """\
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @begin, ptr null }]
@llvm.global_dtors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @end, ptr null }]
@state = internal global i64 0
declare i64 @one(i64)
define internal void @begin() {
  %x = call i64 @one(i64 7)
  store i64 %x, ptr @state
  ret void
}
define internal void @end() {
  %x = call i64 @one(i64 -1)
  store i64 %x, ptr @state
  ret void
}
define i64 @ending() {
  %x = load i64, ptr @state
  ret i64 %x
}
"""


@pytest.mark.parametrize("trust", [False, True], ids=["plain", "by_the_store"])
def test_a_module_that_goes_may_be_interrupted_anywhere(cache: Cache, trust: bool) -> None:
    """The handler gets a module that has not ended, whose destructors run when that goes."""
    cache.add_modules([ModuleSource(adder("one", 1)), ModuleSource(ENDING)])
    place = 0
    while True:
        with Cache(cache.path, trust=trust) as other:
            found: list[TypedCallTarget] = []
            target = other.get_target("ending")
            assert target() == 8
            with Interruption(place, lambda: found.append(other.get_target("ending"))) as interruption:  # noqa: B023
                del target
                gc.collect()
            assert [each() for each in found] == [8] * len(found)
        if not interruption.came:
            break
        place += 1
