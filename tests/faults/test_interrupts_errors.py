"""What signal handlers raise is the program's, also where it is an `OSError`, as `TimeoutError` is: no answer is made of it."""

from __future__ import annotations

import functools
import io
import re
import shutil
import signal
import sys
from http.client import RemoteDisconnected
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT, adder, caller, run_fresh
from mock_directory import FaultyFiles, MockDirectory, Operation, cache_on

from compcache import Cache, ModuleSource, PrunePolicy, frontend
from compcache.errors import StorageError
from compcache.files import reraise_interrupt
from compcache.globals.pickled import Pickled
from compcache.miss import many

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mock_directory import Plan

PACKAGE = PACKAGE_ROOT / "compcache"
#: Programs of their own, in whose main threads no handler of a user's runs, and what meets no code of LLVM or files of a cache.
ELSEWHERE = (
    "remote/helper", "cli", "numba/__main__.py", "batch", "packaging", "clang", "signing", "numba/lazy", "numba/exports", "numba/kernels"
)
#: A message that is read, a question to the C library, and an object that ends, where Python raises nothing.
EXEMPT = (
    "errors.py: ",
    "translation/global_values.py:         except (OSError, AttributeError)",
    "files.py:             except OSError:\n                return  # code of others",
)
TESTS = str(PACKAGE_ROOT / "tests")

#: A timer fires somewhere within each hit and each look-up; what the handler raised has to arrive, or the right answer.
LOADS = f"""\
import gc, os, random, signal, sys, time
sys.path.insert(0, {TESTS!r})
from helpers import adder, caller
from compcache import Cache, ModuleSource
fired = []

def late(*_):
    fired.append(1)
    raise TimeoutError("too late")

def run():
    with Cache(directory) as other:
        return other.get_target("second")(5) == 25 and other.has("second") and not other.has("third")

sys.unraisablehook = lambda _: None  # what falls into a finalizer is lost in Python
cache = Cache(directory)
cache.add_modules([ModuleSource(adder("first", 20)), ModuleSource(caller("second", "first"), imports=["first"])])
run()

def open_files():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))

before = open_files()
chance = random.Random(1)
signal.signal(signal.SIGALRM, late)
arrived = wrong = 0
others = []
longest = 0.001
while len(fired) < {{number}}:
    started = time.perf_counter()
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00001, longest))
            wrong += not run()
            signal.setitimer(signal.ITIMER_REAL, 0)
            longest = 0.9 * longest + 0.1 * (time.perf_counter() - started)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeoutError:
        arrived += 1
    except Exception as error:
        others.append(repr(error))
result = len(fired), arrived, wrong, open_files() - before, others
"""


HANDLER = re.compile(r"^ *except (?:[^\n]*\W)?OSError\b[^\n:]*?(?: as (\w+))?:[^\n]*\n(?: *#[^\n]*\n)* *([^\n]*)$", re.MULTILINE)


def is_of_interest(path: Path) -> bool:
    return not path.relative_to(PACKAGE).as_posix().startswith(ELSEWHERE)


def test_who_catches_errors_of_the_system_lets_interrupts_pass() -> None:
    found = 0
    swallowing = []
    for path in sorted(filter(is_of_interest, PACKAGE.rglob("*.py"))):
        for handler in HANDLER.finditer(path.read_text()):
            found += 1
            if handler[2] not in ("raise", f"reraise_interrupt({handler[1]})"):
                swallowing.append(f"{path.relative_to(PACKAGE)}: {handler[0]}")
    assert found > 100
    assert [place for place in swallowing if not place.startswith(EXEMPT)] == []


def test_interrupted_loads_raise_the_timeout_or_give_the_right_answer(directory: Path) -> None:
    fired, arrived, wrong, leaked, others = run_fresh(directory, LOADS.format(number=60))
    assert (wrong, leaked, others) == (0, 0, [])
    assert arrived > 0.8 * fired  # the others fell into a finalizer, or behind the answer


@pytest.mark.fault
def test_a_storm_of_interrupted_loads(directory: Path) -> None:
    fired, arrived, wrong, leaked, others = run_fresh(directory, LOADS.format(number=4000))
    assert (wrong, leaked, others) == (0, 0, [])
    assert arrived > 0.8 * fired
    print(f"{fired} interrupts, {arrived} arrived")


#: A handler that raises before each instruction in turn, as one may.
AT_EACH_INSTRUCTION = """\
import itertools, os, sys
from compcache.images import anonymous_file as module
from compcache.images.anonymous_file import anonymous_file

class Late(Exception): pass

def open_files():
    return len(os.listdir("/proc/self/fd"))

def trace(frame, event, argument):
    global left
    if frame.f_code.co_filename != module.__file__:
        return None
    frame.f_trace_opcodes = True
    if event == "opcode":
        left -= 1
        if left < 0:
            raise Late
    return trace

file = anonymous_file(b"text")
assert os.pread(file.number, 10, 0) == b"text"
del file
before = open_files()
result = []
for number in itertools.count():
    left = number
    sys.settrace(trace)
    try:
        anonymous_file(b"some", b"text")
        break
    except Late:
        pass
    finally:
        sys.settrace(None)
    result.append(open_files() - before)
"""


def test_a_file_in_memory_is_closed_wherever_an_interrupt_comes(directory: Path) -> None:
    left_open = run_fresh(directory, AT_EACH_INSTRUCTION)
    assert len(left_open) > 20
    assert set(left_open) == {0}


class Late(Exception):  # noqa: N818 - as users name theirs
    pass


class Handler:
    """Handlers may be any callables."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __call__(self, *_: object) -> None:
        raise self.error

    def method(self, *_: object) -> None:
        raise self.error


def handle(error: type[Exception], *_: object) -> None:
    raise error


HANDLERS: dict[str, Callable[[type[Exception]], Any]] = {
    "function": lambda error: lambda *_: handle(error),
    "partial": lambda error: functools.partial(handle, error),
    "method": lambda error: Handler(error).method,
    "object": Handler,
}


@pytest.mark.parametrize("error", [Late, TimeoutError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", HANDLERS)
def test_an_interrupt_is_not_a_failure_of_a_source(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[Exception]
) -> None:
    """`add_modules` collects what is wrong with sources: the timeout of the program is not."""

    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(many, "translate_module", interrupted)
    before = signal.signal(signal.SIGUSR1, HANDLERS[kind](error))
    try:
        with pytest.raises(error):
            cache.add_modules([ModuleSource(adder("first", 1))])
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "error",
    [
        OSError("not a file"), FileNotFoundError(2, "no"), StorageError("full"), ValueError("wrong"), TimeoutError(110, "mount"),
        TimeoutError("timed out"), io.UnsupportedOperation("fileno"), PermissionError("of a library"), RemoteDisconnected("closed"),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_not_an_interrupt(error: Exception) -> None:
    """Libraries raise errors of the system without a number: sockets that time out, streams without a descriptor."""
    reraise_interrupt(error)
    try:
        raise error
    except type(error) as raised:
        reraise_interrupt(raised)


def test_an_error_that_another_thread_raises_by_its_class_is_an_interrupt() -> None:
    with pytest.raises(TimeoutError):
        reraise_interrupt(TimeoutError())


def test_an_interrupt_is_not_a_failure_to_pickle() -> None:
    class Interrupting:
        def __reduce__(self) -> str:
            signal.raise_signal(signal.SIGUSR1)
            return "Interrupting"

    before = signal.signal(signal.SIGUSR1, HANDLERS["function"](Late))
    try:
        with pytest.raises(Late):
            Pickled.of(Interrupting())
    finally:
        signal.signal(signal.SIGUSR1, before)


def late(*_: object) -> None:
    raise TimeoutError("too late")


#: An operation and the lines of the package that asked for it.
Place = tuple[object, ...]


def place_of(operation: Operation) -> Place:
    lines = []
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            lines.append((frame.f_code, frame.f_lineno))
    return (operation.name, *lines)


def interrupt_at(place: Place, fired: list[Place]) -> Plan:
    """A signal at the first operation of this place, whose handler raises what could be taken for an error of the system."""

    def plan(operation: Operation) -> BaseException | None:
        if not fired and place_of(operation) == place:
            fired.append(place)
            signal.raise_signal(signal.SIGUSR1)
        return None

    return plan


def places_of(files: FaultyFiles, run: Callable[[], object]) -> list[Place]:
    """Where operations come from, in their order, each once."""
    places: dict[Place, None] = {}
    files.plan = lambda operation: places.setdefault(place_of(operation))
    run()
    return list(places)


WAYS: dict[str, Callable[[Cache], object]] = {
    "load": lambda cache: cache.get_target("other")(1),
    "load of one of two": lambda cache: cache.get_target("both")(1),
    "load of several": lambda cache: cache.get_target("second")(1),
    "look-up": lambda cache: cache.has("third"),
    "addition": lambda cache: cache.add_module(ModuleSource(adder("third", 3))),
    "merge": frontend.compact_index,
    "prune": lambda cache: cache.prune(PrunePolicy(max_modules=1)),
    "pin": lambda cache: (cache.pin("first"), cache.pinned(), cache.unpin("first")),
    "check": lambda cache: cache.check(repair=True),
    "clear": lambda cache: cache.clear(),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_at_any_operation_arrives(cache: Cache, directory: Path, tmp_path: Path, way: str) -> None:
    cache.add_modules([ModuleSource(adder("first", 20)), ModuleSource(caller("second", "first"), imports=["first"])])
    for name in ("other", "another"):  # in modules of their own, which merges put together
        cache.add_module(ModuleSource(adder("both", 1) + adder(name, 1)))
    tree = MockDirectory.read(directory)

    def opened() -> tuple[FaultyFiles, Cache]:
        files = FaultyFiles(tree.dump(tmp_path / "copy"), count=lambda _: True)
        other = cache_on(files)
        files.reset()
        return files, other

    def closed(files: FaultyFiles, other: Cache) -> None:
        files.plan = None
        other.close()
        shutil.rmtree(files.root)

    files, other = opened()
    places = places_of(files, lambda: WAYS[way](other))
    closed(files, other)
    absent = 0
    before = signal.signal(signal.SIGUSR1, late)
    try:
        for place in places:
            files, other = opened()
            fired: list[Place] = []
            files.plan = interrupt_at(place, fired)
            try:
                WAYS[way](other)
            except TimeoutError as error:
                arrived = str(error)
                assert (fired, arrived) == ([place], "too late")
            else:  # a stamp that was renewed the first time, for example, need not be again
                assert not fired
                absent += 1
            closed(files, other)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(places) - absent > 3
