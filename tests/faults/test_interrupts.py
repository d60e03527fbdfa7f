"""Exceptions that signal handlers raise (Ctrl-C, timeouts) while code is compiled: they arrive, and nothing breaks."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT, run_fresh
from processes import Crowd

if TYPE_CHECKING:
    from pathlib import Path

TESTS = str(PACKAGE_ROOT / "tests")
FIRST = f"""\
import random, signal, sys, threading, time
sys.path.insert(0, {TESTS!r})
from helpers import adder
from compcache import Cache, ModuleSource

class Late(Exception):
    pass

def found(cache):
    # As after a kill, a temporary file may be left, or the index may lack a module: nothing is wrong.
    return sorted({{finding.kind for finding in cache.check().findings}} - {{"leftover", "unindexed", "stale"}})

def late(*_):
    raise Late

def compiled(cache, number):
    # What the caller's program does is no part of this: its own module is made beforehand.
    source = ModuleSource(CODE(f"f{{number}}", number))
    return lambda: cache.get_or_compile(f"f{{number}}", lambda: source)

def make_module(name, number):
    import llvmlite.binding as llvm
    return llvm.parse_assembly(adder(name, number))
"""
#: A timer fires somewhere within each compilation; what was interrupted is done again, while its traceback is there.
STORM = """\
signal.signal(signal.SIGALRM, late)
chance = random.Random({seed})
cache = Cache(directory, lock_timeout=4)
arrived = wrong = done = 0
longest = 0.01
deadline = time.monotonic() + {seconds}
while arrived < 5 or time.monotonic() < deadline:
    number = done + arrived
    run = compiled(cache, number)
    started = time.perf_counter()
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0003, longest))
        target = run()
        signal.setitimer(signal.ITIMER_REAL, 0)
        wrong += target(5) != 5 + number
        done += 1
        longest = 0.9 * longest + 0.1 * (time.perf_counter() - started)
    except Late:
        arrived += 1
        wrong += run()(5) != 5 + number
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
result = arrived, wrong, found(cache), threading.active_count()
"""
#: The same for other ways into the cache; `START` prepares and gives a call that returns 5.
WAYS = {
    "compile": "text = adder('plain', number); return lambda: cache.compile(text)['plain'](5) - number",
    "add_modules": (
        "sources = [ModuleSource(adder(f'm{number}_{i}', number + i)) for i in range(3)]\n"
        "    return lambda: cache.add_modules(sources) and cache.get_target(f'm{number}_2')(5) - number - 2"
    ),
    "dependents": (
        "sources = [ModuleSource(adder(f'a{number}', number)), ModuleSource(caller(f'b{number}', f'a{number}'))]\n"
        "    return lambda: [cache.add_module(source) for source in sources] and called(f'b{number}') - number"
    ),
    "loads": "return lambda: called('second') - 20",
}
MANY_WAYS = """\
from helpers import caller
from compcache import ModulesNotAddedError
signal.signal(signal.SIGALRM, late)
chance = random.Random({seed})
cache = Cache(directory, lock_timeout=4)
cache.add_modules([ModuleSource(adder("first", 20)), ModuleSource(caller("second", "first"), imports=["first"])])

def called(name):
    with Cache(directory) as other:
        return other.get_target(name)(5)

def start(number):
    {way}

assert start(100000)() == 5
arrived = wrong = number = 0
longest = 0.02
deadline = time.monotonic() + {seconds}
while time.monotonic() < deadline or arrived < 3:
    number += 1
    run = start(number)
    started = time.perf_counter()
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, longest))
        answer = run()
        signal.setitimer(signal.ITIMER_REAL, 0)
        longest = 0.9 * longest + 0.1 * (time.perf_counter() - started)
    except (Late, ModulesNotAddedError):
        arrived += 1
        answer = run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    wrong += answer != 5
kinds = sorted({{finding.kind for finding in cache.check().findings}} - {{"leftover", "unindexed"}})
result = arrived, wrong, kinds, threading.active_count()
"""
#: An exception at the nth line that the main thread runs, for one n after the other, llvmlite's lines included. The end of a with block is
#: left out: its event has the line of the `with`. CPython handles signals after calls and backward jumps, and not between the block's last
#: instruction and the call of `__exit__`.
LINES = """\
import linecache
import compcache.linker, compcache.miss.compile_once

def ends_block(frame):
    if not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
        return False
    return frame.f_lasti > min(start for start, _, line in frame.f_code.co_lines() if line == frame.f_lineno)

class Injector:
    def __init__(self, at):
        self.left = at

    def __call__(self, frame, event, _):
        if event == "line" and "importlib" not in frame.f_code.co_filename and not ends_block(frame):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise Late
        return self

def lines_of(run):
    injector = Injector(-1)
    sys.settrace(injector)
    try:
        run()
    finally:
        sys.settrace(None)
    return -1 - injector.left

cache = Cache(directory, lock_timeout=4)
compiled(cache, 0)()
lines = min(lines_of(compiled(cache, number)) for number in (1, 2))
arrived = wrong = 0
slow = []
for at in range({first}, lines, {step}):
    number = 2 + at
    run = compiled(cache, number)
    sys.settrace(Injector(at))
    try:
        run()
    except Late:
        arrived += 1
        started = time.perf_counter()
        wrong += run()(5) != 5 + number
        if time.perf_counter() - started > 4:
            slow.append(at)
    finally:
        sys.settrace(None)
result = lines, arrived, wrong, slow, found(cache), threading.active_count()
"""
KINDS = {"text": "adder", "modules of LLVM": "make_module"}


def script(text: str, kind: str, **values: Any) -> str:
    return FIRST + f"CODE = {KINDS[kind]}\n" + text.format(**values)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_interrupts_while_code_is_compiled(directory: Path, kind: str) -> None:
    arrived, wrong, findings, threads = run_fresh(directory, script(STORM, kind, seed=1, seconds=2.5))
    assert arrived >= 5
    assert (wrong, findings, threads) == (0, [], 1)


#: What a process needs for the tests of the import system's lock. One that hangs ends with the stacks of its threads.
LOCKED = f"""\
import _imp, faulthandler, sys
sys.path.insert(0, {TESTS!r})
from compcache import Cache
from helpers import adder
faulthandler.dump_traceback_later(60, exit=True)
cache = Cache(directory)

def answer(number):
    return cache.compile(adder(f"f{{number}}", number))[f"f{{number}}"](2)
"""


def test_a_lock_that_an_interrupted_import_has_left_stops_no_compilation(directory: Path) -> None:
    """As an exception of a signal handler leaves it, between the two lines of the import system that take it and see to its release."""
    script = """
_imp.acquire_lock()
_imp.acquire_lock()
result = answer(1), _imp.lock_held()
"""
    assert run_fresh(directory, LOCKED + script) == (3, False)


@pytest.mark.parametrize("name", ["_get_module_lock", "cb"])
def test_a_signal_handler_that_interrupts_the_import_system_leaves_it_its_lock(directory: Path, name: str) -> None:
    """These two functions of the import system hold the lock while Python code runs."""
    script = f"""
TEXT = '''
def {name}():
    _imp.acquire_lock()
    try:
        return answer(3)
    finally:
        _imp.release_lock()
'''
names = {{"_imp": _imp, "answer": answer}}
answer(1)
exec(compile(TEXT, "<frozen importlib._bootstrap>", "exec"), names)
result = names["{name}"](), _imp.lock_held()
"""
    assert run_fresh(directory, LOCKED + script) == (5, False)


@pytest.mark.fault
def test_a_storm_of_interrupts(directory: Path) -> None:
    for round_ in range(4):
        scripts = [script(STORM, kind, seed=10 * round_ + seed, seconds=20) for seed, kind in enumerate(KINDS)]
        with Crowd(directory, scripts) as crowd:
            for arrived, wrong, findings, threads in crowd.results():
                assert (wrong, findings, threads) == (0, [], 1)
                print(f"{arrived} interrupts")


@pytest.mark.fault
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
def test_interrupts_on_other_ways_into_the_cache(directory: Path, way: str) -> None:
    """No index entry without its module either (`stale`): nothing is removed here."""
    text = FIRST + MANY_WAYS.format(seed=3, seconds=20, way=WAYS[way])
    arrived, *rest = run_fresh(directory, text)
    assert rest == [0, [], 1]
    print(f"{arrived} interrupts")


@pytest.mark.slow
def test_an_interrupt_at_some_lines(directory: Path) -> None:
    lines, arrived, *rest = run_fresh(directory, script(LINES, "text", first=7, step=307))
    assert lines > 400
    assert arrived > 5
    assert rest == [0, [], [], 1]


@pytest.mark.fault
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_at_every_line(directory: Path, kind: str) -> None:
    with Crowd(directory, [script(LINES, kind, first=1 + i, step=4) for i in range(4)]) as crowd:
        results = crowd.results()
    for _, _, *rest in results:
        assert rest == [0, [], [], 1]
    print(f"{sum(arrived for _, arrived, *_ in results)} interrupts at lines of {results[0][0]}")


#: What the main thread runs of llvmlite's, beside the end of objects that the LLVM thread has closed.
OF_LLVMLITE = """\
def calls_of(run):
    seen = set()
    def watch(frame, event, _):
        if "llvmlite" in frame.f_code.co_filename:
            seen.add(frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name)
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return seen

cache = Cache(directory)
from compcache import Function
import llvmlite.binding as llvm
for number in range(2):
    modules = [make_module(f"m{number}_{i}", i) for i in range(6)]
    runs = [
        lambda: cache.get_or_compile(f"m{number}_0", lambda: ModuleSource(modules[0])),
        lambda: cache.get_or_compile(f"m{number}_1", lambda: modules[1]),
        lambda: cache.add_module(ModuleSource(modules[2])),
        lambda: cache.add_modules([ModuleSource(modules[3])]),
        lambda: cache.compile(modules[4]),
        lambda: cache.compile(adder(f"t{number}", 1)),
    ]
    result = sorted(set().union(*map(calls_of, runs)))
"""


@pytest.mark.slow
def test_the_main_thread_calls_nothing_of_llvmlite(directory: Path) -> None:
    """An interrupt in llvmlite's `OutputString.close` has its memory freed twice: no such call may be where handlers run."""
    calls = run_fresh(directory, FIRST + OF_LLVMLITE)
    ends = {"OutputString.__del__", "OutputString.close", "__del__", "close"}
    ends |= {"ObjectRef.closed", "closed"}  # a property in Python, which calls nothing
    assert [call for call in calls if call not in ends and "_is_shutting_down" not in call] == []


def test_a_child_forked_by_the_caller_meanwhile_is_told_so(directory: Path) -> None:
    text = """
        import os
        from compcache import CompileError
        from compcache.images.llvm_thread import call_in_caller, in_llvm_thread
        try:
            pid = in_llvm_thread(lambda: call_in_caller(os.fork))
        except CompileError as error:
            os._exit(7 if "forked during a compilation" in str(error) else 8)
        result = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    """
    assert run_fresh(directory, textwrap.dedent(text)) == 7


@pytest.mark.slow
def test_a_fork_while_llvm_works_leaves_a_child_that_can_compile(directory: Path) -> None:
    text = """
        import os
        from concurrent.futures import ThreadPoolExecutor
        def child():
            pid = os.fork()
            if not pid:
                os._exit(0 if compiled(cache, 1000 + os.getpid())()(1) == 1001 + os.getpid() else 1)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        cache = Cache(directory)
        compiled(cache, 0)()  # all imports are done: a child forked during one waits for it for ever, whoever imports
        with ThreadPoolExecutor(1) as pool:
            children = [pool.submit(child) for _ in range(2)]
            number = 0
            while not all(future.done() for future in children):
                number += 1
                assert compiled(cache, number)()(1) == number + 1
            result = [future.result() for future in children]
    """
    assert run_fresh(directory, FIRST + "CODE = adder\n" + textwrap.dedent(text)) == [0] * 2
