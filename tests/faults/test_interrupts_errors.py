"""What signal handlers raise is the program's, also where it is an `OSError`, as `TimeoutError` is: no answer is made of it."""

from __future__ import annotations

import ast
import builtins
import ctypes
import functools
import io
import os
import shutil
import signal
import sys
import threading
from contextlib import contextmanager
from http.client import RemoteDisconnected
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT, adder, caller, run_fresh
from mock_directory import FaultyFiles, MockDirectory, Operation, cache_on

from compcache import Cache, ModuleSource, PrunePolicy, frontend
from compcache.errors import StorageError
from compcache.globals.pickled import Pickled
from compcache.interrupts import reraise_interrupt, suppress
from compcache.miss import many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mock_directory import Plan

PACKAGE = PACKAGE_ROOT / "compcache"
#: Programs of their own, in whose main threads no handler of a user's runs.
ELSEWHERE = ("remote/helper/", "cli/", "numba/__main__.py", "batch/worker.py", "packaging/")
#: What Python itself says of code and of its limits, and nobody of time.
OF_THE_LANGUAGE = {
    "AssertionError", "BufferError", "GeneratorExit", "ImportError", "KeyboardInterrupt", "MemoryError", "ModuleNotFoundError", "NameError",
    "NotImplementedError", "OverflowError", "RecursionError", "StopIteration", "SyntaxError", "SystemExit", "UnicodeDecodeError",
    "UnicodeEncodeError",
}  # fmt: skip
CAUGHT = {name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)} - OF_THE_LANGUAGE
#: Python runs handlers where something is called, and where a loop begins again.
INTERRUPTED = (ast.Call, ast.For, ast.While, ast.With, ast.comprehension, ast.Yield, ast.Import, ast.ImportFrom)
#: File and class of a handler that asks nobody, and why.
EXEMPT = {
    ("errors.py", "OSError"): "a message that is read: what it cannot say, it leaves out",
    ("files.py", "OSError"): "an object that ends, where Python raises nothing",
    ("facade.py", "Exception"): "all but errors of this package are raised again",
    ("facade.py", "OSError"): "what tells an interrupt is imported first: plain hits do without it",
    ("facade.py", "TypeError"): "what tells an interrupt is imported first: plain hits do without it",
    ("facade.py", "ValueError"): "what tells an interrupt is imported first: plain hits do without it",
    ("hit/__init__.py", "Exception"): "what tells an interrupt is imported first: plain hits do without it",
    ("hit/__init__.py", "OSError"): "what tells an interrupt is imported first: plain hits do without it",
    ("hit/recorder.py", "Exception"): "what tells an interrupt is imported first: plain hits do without it",
    ("hit/recorder.py", "OSError"): "what tells an interrupt is imported first: plain hits do without it",
    ("hit/recorder.py", "FileNotFoundError"): "what tells an interrupt is imported first: plain hits do without it",
    ("hit/recorder.py", "FileExistsError"): "what tells an interrupt is imported first: plain hits do without it",
    ("hit/target.py", "FileNotFoundError"): "the package of a checkout is imported",
    ("hit/recorder.py", "IndexError"): "what was drained is kept, and is on the hit path",
    ("settings.py", "OSError"): "what tells an interrupt is imported first: plain hits do without it",
    ("images/llvm_thread.py", "BaseException"): "interrupts are raised when LLVM returns, by who waits for it",
}
TESTS = str(PACKAGE_ROOT / "tests")

#: A timer fires somewhere within each hit and each look-up; what the handler raised has to arrive, or the right answer.
LOADS = f"""\
import gc, importlib, os, pkgutil, random, signal, sys, time
sys.path.insert(0, {TESTS!r})
from helpers import adder, caller
from compcache import Cache, ModuleSource
# Where Python looks for a file to import, it takes a TimeoutError for a file that is not there: what loads import is there.
import compcache.cache, compcache.directory, compcache.formats, compcache.hit.closures, compcache.images.shared, compcache.publish
for package in (compcache.directory, compcache.formats, compcache.hit, compcache.hit.closures, compcache.images.shared, compcache.publish):
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
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
run()  # the recorder holds the directory of a cache that an interrupt left open, until the next one of that directory
deadline = time.monotonic() + 60
while open_files() > before and time.monotonic() < deadline:  # what another thread has open for a moment is not lost
    time.sleep(0.05)
result = len(fired), arrived, wrong, open_files() - before, others
"""


def names_of(caught: ast.expr | None) -> list[str]:
    """The classes that a handler names."""
    if caught is None:
        return ["BaseException"]
    return [ast.unparse(part) for part in (caught.elts if isinstance(caught, ast.Tuple) else [caught])]


def lets_interrupts_pass(handler: ast.ExceptHandler) -> bool:
    first, last = handler.body[0], handler.body[-1]
    if isinstance(first, ast.Raise) and first.exc is None:
        return True
    if names_of(handler.type) == ["BaseException"] and isinstance(last, ast.Raise) and last.exc is None:
        return True
    return ast.unparse(first) == f"reraise_interrupt({handler.name})"


def catches(tree: ast.AST) -> Iterator[tuple[int, list[str], bool]]:
    """The line of everything that catches errors of Python's own classes, which, and whether interrupts pass."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "contextlib"]
    is_contextlibs = any(alias.name == "suppress" for node in imports for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(isinstance(part, INTERRUPTED) for line in node.body for part in ast.walk(line)):
            for handler in node.handlers:
                yield handler.lineno, [name for name in names_of(handler.type) if name in CAUGHT], lets_interrupts_pass(handler)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress":
            is_own = isinstance(node.func, ast.Name) and not is_contextlibs
            yield node.lineno, [name for name in map(ast.unparse, node.args) if name in CAUGHT], is_own


def test_who_catches_errors_of_pythons_own_lets_interrupts_pass() -> None:
    found = 0
    swallowing: dict[tuple[str, str], list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for line, classes, is_right in () if name.startswith(ELSEWHERE) else catches(ast.parse(path.read_text())):
            found += bool(classes)
            for caught in () if is_right else classes:
                swallowing.setdefault((name, caught), []).append(f"{name}:{line}")
    assert found > 300
    assert {place: lines for place, lines in swallowing.items() if place not in EXEMPT} == {}
    assert EXEMPT.keys() <= swallowing.keys(), "exempt, and not there any more"


@pytest.mark.parametrize(
    ("code", "is_right"),
    [
        ("try:\n    f()\nexcept OSError as error:\n    reraise_interrupt(error)", True),
        ("try:\n    f()\nexcept OSError as error:\n    reraise_interrupt(other)", False),
        ("try:\n    f()\nexcept (A, FileNotFoundError):\n    pass", False),
        ("try:\n    f()\nexcept Exception:\n    close()\n    raise", False),
        ("try:\n    f()\nexcept:\n    close()\n    raise", True),
        ("try:\n    import f\nexcept OSError:\n    raise", True),
        ("try:\n    [a for a in b]\nexcept ValueError as error:\n    raise A from error", False),
        ("from contextlib import suppress\nwith suppress(OSError):\n    f()", False),
        ("with contextlib.suppress(OSError):\n    f()", False),
        ("with suppress(OSError):\n    f()", True),
    ],
)
def test_the_rule_for_who_catches(code: str, *, is_right: bool) -> None:
    assert [found for _, classes, found in catches(ast.parse(code)) if classes] == [is_right]


@pytest.mark.slow
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
sys._getframe().f_trace_opcodes = True  # Python 3.12 reports instructions only if a frame asked for them before `settrace`
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


def handle(error: type[Exception] | Exception, *_: object) -> None:
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


@contextmanager
def handled_by(handler: Callable[..., Any]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGUSR1)


def once(_number: int, frame: object) -> None:
    """As programs have them that wait for one signal."""
    assert frame is not None
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise FileNotFoundError(2, "too late")


def forgetful(_number: int, frame: object) -> None:
    del frame
    raise FileNotFoundError(2, "too late")


@pytest.mark.parametrize(
    "handler", [once, forgetful, functools.partial(forgetful), functools.partial(handle, PermissionError(13, "late")), Handler(Late).method]
)
def test_an_interrupt_is_told_whatever_it_is(handler: Callable[..., Any]) -> None:
    with handled_by(handler):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - of any class
            interrupt()
        with pytest.raises(type(raised.value)) as caught:
            reraise_interrupt(raised.value)
    assert caught.value is raised.value


def test_an_interrupt_that_a_library_made_something_else_of_arrives() -> None:
    def library() -> None:
        try:
            interrupt()
        except OSError:
            raise ValueError("not a zip file") from None

    with handled_by(once), pytest.raises(ValueError, match="zip") as raised:
        library()
    with pytest.raises(FileNotFoundError, match="too late"):
        reraise_interrupt(raised.value)


def test_an_interrupt_that_the_program_handles_already_is_not_raised_again(tmp_path: Path) -> None:
    with handled_by(once):
        try:
            interrupt()
        except FileNotFoundError:
            with suppress(FileNotFoundError):
                os.stat(tmp_path / "nothing")
            assert not Cache(tmp_path / "none").has("nothing")


def test_what_is_suppressed_are_no_interrupts(tmp_path: Path) -> None:
    with suppress(OSError):
        os.stat(tmp_path / "nothing")
    with handled_by(once), pytest.raises(FileNotFoundError, match="too late"), suppress(OSError):
        interrupt()
    with pytest.raises(ValueError, match="wrong"), suppress(OSError):
        raise ValueError("wrong")


@pytest.mark.parametrize("error", [TimeoutError, FileNotFoundError])
def test_an_error_that_another_thread_raises_by_its_class_is_an_interrupt(error: type[Exception]) -> None:
    def interrupted() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(error))
        for _ in range(1000):
            pass

    with pytest.raises(error) as caught:
        interrupted()
    with pytest.raises(error):
        reraise_interrupt(caught.value)


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


@pytest.mark.slow
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
