"""Limits of a process: what cannot be stored is told, no system error comes through, and the compiled function works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import adder, run_fresh

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from pathlib import Path

LIMITED = """
import os, resource, sys, warnings
sys.dont_write_bytecode = True  # Python would leave them truncated
from compcache import Cache, ModuleSource
import compcache.linker
def adder(name, number):
    return ModuleSource(f"define i64 @{{name}}(i64 %x) {{{{\\n%y = add i64 %x, {{number}}\\nret i64 %y\\n}}}}\\n")
with Cache(directory) as cache:
    cache.add_module(adder("warm", 1))
before = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.{limit}, ({amount}, {amount}))
warnings.simplefilter("ignore")
with Cache(directory, readonly={readonly}) as cache:
    held = [cache.get_or_compile(f"f{{n}}", lambda: adder(f"f{{n}}", n)) for n in range({functions})]
    values = [target(40) - n for n, target in enumerate(held)]
    more = len(os.listdir("/proc/self/fd")) - before
    open(os.devnull).close()
result = set(values), more
"""


@pytest.mark.slow
@pytest.mark.parametrize("amount", [0, 3000, 5000])
def test_a_limit_of_the_size_of_files(directory: Path, amount: int) -> None:
    """Below the size of a module nothing is stored, and below that of an image nothing is linked."""
    script = LIMITED.format(limit="RLIMIT_FSIZE", amount=amount, readonly=False, functions=2)
    values, _ = run_fresh(directory, script)
    assert values == {40}


@pytest.mark.slow
def test_a_limit_of_the_number_of_open_files(directory: Path) -> None:
    """Functions that are kept in memory hold no descriptor."""
    script = LIMITED.format(limit="RLIMIT_NOFILE", amount=24, readonly=True, functions=30)
    values, more = run_fresh(directory, script)
    assert values == {40}
    assert more <= 3


#: A process that may have no more threads, such as in a container with a limit. For the superuser the system has no such limit.
WITHOUT_THREADS = """
import _thread, threading, warnings
from compcache import Cache, CompcacheError, ModuleSource
def adder(name, number):
    return ModuleSource(f"define i64 @{name}(i64 %x) {{\\n%y = add i64 %x, {number}\\nret i64 %y\\n}}\\n")
def fail(*_, **__):
    raise RuntimeError("can't start new thread")
for module in (_thread, threading):
    for name in ("start_new_thread", "start_joinable_thread", "_start_new_thread", "_start_joinable_thread"):
        if hasattr(module, name):
            setattr(module, name, fail)
with Cache(directory) as cache:
    values = [cache.get_or_compile("f", lambda: adder("f", 1))(1)]
    assert len(cache.add_modules([adder(name, 1) for name in "gh"])) == 2
    values.append(cache.get_target("h")(2))
    try:
        cache.add_modules([ModuleSource(adder("i", 1).ir.replace("%x, 1", "%x, @nothing")), adder("j", 1)])
    except CompcacheError as error:
        values.append(type(error).__name__)
result = values
"""


def test_a_process_without_more_threads_compiles_in_the_one_that_it_has(directory: Path) -> None:
    values = run_fresh(directory, WITHOUT_THREADS)
    assert values == [2, 3, "ModulesNotAddedError"]


SHORT = """
import os, resource
from compcache import Cache, CompcacheError, PrunePolicy, StorageError
with Cache(directory) as cache:
    import compcache.maintain.remove  # Python cannot import without descriptors
    cache.stats(), cache.check(repair=True), cache.functions(), cache.info(), cache.graph(), cache.modules(), cache.pinned()
    cache.prune(PrunePolicy(max_modules=1)), cache.explain("warm")
    os.mkdir(directory + "/empty", 0o700)
    empty = Cache(directory + "/empty")
    empty.info()
    opened = []
    try:
        while True:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    raised = []
    for name, run in {
        "stats": cache.stats, "check": cache.check, "functions": cache.functions, "modules": cache.modules, "info": cache.info,
        "prune": lambda: cache.prune(PrunePolicy(max_modules=0)), "clear": cache.clear, "pinned": cache.pinned,
        "graph": cache.graph, "explain": lambda: cache.explain("warm"), "remove": lambda: cache.remove("warm"),
        "repair": lambda: cache.check(repair=True), "empty": lambda: os.close(opened.pop()) or empty.info(),
    }.items():
        try:
            run()
        except CompcacheError as error:
            raised.append((name, type(error).__name__, "Too many open files" in str(error)))
    for descriptor in opened:
        os.close(descriptor)
    left = len(cache), cache.get_target("warm")(41)
result = raised, left
"""


@pytest.mark.slow
def test_tools_without_descriptors_say_so_and_lose_nothing(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("warm", 1)))
    script = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n" + SHORT
    raised, left = run_fresh(directory, script)
    assert {(kind, told) for _, kind, told in raised} == {("StorageError", True)}
    assert {"stats", "functions", "prune", "repair", "empty"} <= {name for name, *_ in raised}
    assert left == (1, 42)


MEMORY = """
import resource, warnings
warnings.simplefilter("ignore")
from compcache import Cache, CompcacheError, ModuleSource
import compcache.linker
with Cache(directory) as cache:
    cache.get_target("warm")
used = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + {room}, -1))
def get():
    with Cache(directory) as cache:
        return cache.get_target("warm")(41), cache.get_target("big")(1)
try:
    result = get()
except (CompcacheError, MemoryError) as error:
    result = type(error).__name__
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
result = result, get()
"""


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 1 << 16, 1 << 20, 1 << 22])
def test_a_hit_without_memory_is_an_error_and_no_damage(directory: Path, room: int) -> None:
    big = "@table = global [3000000 x i8] zeroinitializer\n" + adder("big", 2).replace(
        "  %y", "  %p = getelementptr i8, ptr @table, i64 %x\n  store volatile i8 1, ptr %p\n  %y"
    )
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("warm", 1)))
        cache.add_module(ModuleSource(big))
    limited, free = run_fresh(directory, MEMORY.format(room=room))
    assert limited in ((42, 3), "MemoryError", "StorageError", "NotCachedError", "LinkError", "LibraryError")
    assert free == (42, 3)
    assert not list((directory / "quarantine").glob("*"))


#: A process that may have one more thread. The pool keeps the task for which it could not start another one, and its thread takes it.
WITH_ONE_THREAD = """
import threading
from collections import Counter
import compcache.miss.many as many
from compcache import Cache, ModuleSource
link = many.link_module
linked, may_go_on, second = Counter(), threading.Event(), threading.Event()
def counted_link(translation):
    linked[min(translation.functions)] += 1
    if threading.current_thread() is not threading.main_thread() and not second.is_set():
        second.set()
        may_go_on.wait()
    return link(translation)
def fail(_):
    raise RuntimeError("can't start new thread")
def sources():
    yield ModuleSource("define i64 @f() {\\nret i64 1\\n}\\n")
    second.wait()
    threading.Thread.start = fail
    yield ModuleSource("define i64 @g() {\\nret i64 2\\n}\\n")
    yield ModuleSource("define i64 @h() {\\nret i64 3\\n}\\n")
    may_go_on.set()
many.link_module = counted_link
with Cache(directory) as cache:
    ids = cache.add_modules(sources())
    result = len(set(ids)), dict(linked), [cache.get_target(name)() for name in "fgh"]
"""


def test_a_process_with_one_more_thread_links_each_module_once(directory: Path) -> None:
    assert run_fresh(directory, WITH_ONE_THREAD) == (3, {"f": 1, "g": 1, "h": 1}, [1, 2, 3])


#: Adds a module after an attempt without descriptors. LLVM calls a function of libgcc for a division of 128 bits.
WITHOUT_DESCRIPTORS = """
import contextlib, os, warnings
from compcache import Cache, CompcacheError, ModuleSource
warnings.simplefilter("ignore")
DIVIDER = "\\ndefine i128 @{0}(i128 %x, i128 %y) {{\\n%z = udiv i128 %x, %y\\nret i128 %z\\n}}"
with Cache(directory) as cache:
    cache.get_or_compile("warm", lambda: ModuleSource("define i64 @warm(i64 %x) {\\nret i64 %x\\n}\\n"))(1)
    opened = []
    with contextlib.suppress(OSError):
        while True:
            opened.append(os.dup(0))
    with contextlib.suppress(CompcacheError):
        cache.get_or_compile("short", lambda: ModuleSource(DIVIDER.format("short")))
    for number in opened:
        os.close(number)
    result = cache.add_module(ModuleSource(DIVIDER.format("later")))
"""


def test_a_shortage_of_descriptors_does_not_change_the_modules_that_follow(directory: Path) -> None:
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
    after = run_fresh(directory / "short", limit + WITHOUT_DESCRIPTORS)
    assert after == run_fresh(directory / "other", WITHOUT_DESCRIPTORS.replace("while True", "while False"))


#: The same, with an attempt during which a library of the platform cannot be opened, or no process can be started.
SHORT_OF = """
import ctypes, os, subprocess
from compcache import Cache, LibraryError, CompileError, ModuleSource
class Library(ctypes.CDLL):
    def __init__(self, name, *arguments):
        if name == "libgcc_s.so.1":
            raise OSError(f"{name}: cannot open shared object file: Too many open files")
        super().__init__(name, *arguments)
def start(*_, **__):
    raise BlockingIOError(11, os.strerror(11))
DIVIDER = "define i128 @divide(i128 %x, i128 %y) {\\n%z = udiv i128 %x, %y\\nret i128 %z\\n}"
ASSEMBLY = 'define i64 @one() {\\n%r = call i64 asm "mov $$1, $0", "=r"()\\nret i64 %r\\n}'
raised = []
with Cache(directory) as cache:
    for code, module, name, instead in ((DIVIDER, ctypes, "CDLL", Library), (ASSEMBLY, subprocess, "Popen", start)) if {short} else ():
        usual = getattr(module, name)
        setattr(module, name, instead)
        try:
            cache.add_module(ModuleSource(code))
        except (LibraryError, CompileError) as error:
            raised.append(type(error).__name__)
        setattr(module, name, usual)
    result = cache.add_module(ModuleSource(DIVIDER)), raised
"""


def test_a_module_is_refused_while_the_libraries_that_it_needs_cannot_be_opened(directory: Path) -> None:
    module_id, _ = run_fresh(directory / "other", SHORT_OF.replace("{short}", "False"))
    assert run_fresh(directory / "short", SHORT_OF.replace("{short}", "True")) == (module_id, ["LibraryError", "CompileError"])
