"""Children of a fork go on, whatever threads that they do not have were doing; and no lock of the package is forgotten."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT, run_fresh

from compcache.forks import FORGOTTEN, LOCKS, OTHERS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

PACKAGE = PACKAGE_ROOT / "compcache"
#: What makes a lock that threads wait for, and what makes a thread.
_LOCKS = frozenset(("Lock", "RLock", "allocate_lock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"))
_THREADS = frozenset(("Thread", "Timer", "start_new_thread", "start_joinable_thread", "ThreadPoolExecutor", "ProcessPoolExecutor"))

FIRST = """
import os, signal, threading, time, warnings
from compcache import Cache, ModuleSource, forks, frontend
warnings.simplefilter("ignore")  # from 3.12 on, forks of processes with threads are warned of
def source(name, number):
    return ModuleSource(f"define i64 @{name}(i64 %x) {{\\n  %y = add i64 %x, {number}\\n  ret i64 %y\\n}}\\n")
def status_of(work):
    pid = os.fork()
    if not pid:
        signal.alarm(10)
        try:
            os._exit(work())
        except BaseException as error:
            sys.stderr.write(repr(error))
            os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def thread(work):
    threading.Thread(target=work, daemon=True).start()
"""


# ----------------------------------------------------------------------- the list


class _Made(ast.NodeVisitor):
    """The locks and threads that a file makes: what they are assigned to, or by what they are made."""

    def __init__(self) -> None:
        self.classes: list[str] = []
        self.targets: list[str] = []
        self.found: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.classes.append(node.name)
        self.generic_visit(node)
        self.classes.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        self.targets = [ast.unparse(target) for target in node.targets]
        self.generic_visit(node)
        self.targets = []

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.targets = [ast.unparse(node.target)]
        self.generic_visit(node)
        self.targets = []

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func).rpartition(".")[2]
        if name == "type":  # what is asked for is the type
            return
        if name in _LOCKS:
            (target,) = self.targets or [name]
            self.found.append(target.replace("self", ".".join(self.classes)) if target.startswith("self.") else target)
        elif name in _THREADS:
            self.found.append(name)
        self.generic_visit(node)


def made() -> Iterator[tuple[str, str]]:
    """Every lock and thread of the package, by file and name."""
    for path in sorted(set(PACKAGE.rglob("*.py")) - {PACKAGE / "forks.py"}):
        visitor = _Made()
        visitor.visit(ast.parse(path.read_text()))
        yield from [(path.relative_to(PACKAGE).as_posix(), name) for name in visitor.found]
    for path in sorted([*PACKAGE.rglob("*.c"), *PACKAGE.rglob("*.h")]):
        names = re.findall(r"\bpthread_(?:mutex|cond|rwlock)_t (\w+)", path.read_text())
        yield from [(path.relative_to(PACKAGE).as_posix(), name) for name in names]


@pytest.mark.slow
def test_every_lock_and_thread_is_in_the_list() -> None:
    files = {lock: lock.module.replace(".", "/").removeprefix("compcache/") for lock in LOCKS}
    listed = {(f"{file}/__init__.py" if (PACKAGE / file).is_dir() else f"{file}.py", lock.path) for lock, file in files.items()}
    objects = {("numba/lazy/garbage.py", "_thresholds._guard"): "_Thresholds._guard"}
    listed = {(file, objects.get((file, path), path)) for file, path in listed if not path.startswith("llvm.")}
    numba = {("numba/core/compiler_lock.py", "global_compiler_lock._lock")}
    assert set(made()) | numba == listed | set(OTHERS)


def test_one_file_asks_python_to_be_told_of_forks() -> None:
    asking = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if "os.register_at_fork" in path.read_text()]
    assert asking == ["hit/target.py"]
    for path in PACKAGE.rglob("*.c"):
        text = path.read_text()
        assert "pthread_mutex_t" not in text or "pthread_atfork(" in text, f"{path} has a lock that a fork leaves as it is"


def test_whoever_forgets_can_be_found() -> None:
    for module, function, _ in FORGOTTEN:
        tree = ast.parse(PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text())
        assert function in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


# ---------------------------------------------------------------------- locks

HELD = """
import importlib, importlib.util
Cache(directory)
forks.LOCKS = tuple([lock for lock in forks.LOCKS if importlib.util.find_spec(lock.module.partition(".")[0])])
for lock in forks.LOCKS:
    importlib.import_module(lock.module)
seconds = {seconds}
forks.LOCKS = tuple([forks.Lock(lock.module, lock.path, min(lock.patience, 0.02), lock.why) for lock in forks.LOCKS])
held, end = threading.Event(), threading.Event()
def hold():
    for lock in forks.LOCKS:
        lock.find().acquire()
    held.set()
    end.wait(seconds)
    for lock in forks.LOCKS[::-1]:
        lock.find().release()
thread(hold)
held.wait()
def child():
    if not all(lock.find().acquire(timeout=0.1) for lock in forks.LOCKS):
        return 3
    for lock in forks.LOCKS:
        lock.find().release()
    if not getattr(Cache(directory).get_or_compile("f", lambda: source("f", 1)), "address", 0):
        return 4
    return 0
found = [status_of(child)]
end.set()
def all_are_free():
    found.append(all(lock.find().acquire(timeout=2) for lock in forks.LOCKS))
last = threading.Thread(target=all_are_free)
last.start()
last.join()
result = found
"""


@pytest.mark.slow
def test_a_child_has_no_lock_that_another_thread_held(directory: Path) -> None:
    pytest.importorskip("numpy")
    assert run_fresh(directory, FIRST + HELD.format(seconds=20)) == [0, True]


WAITED_FOR = """
cache = Cache(directory)
cache.get_or_compile("f", lambda: source("f", 1))
from types import SimpleNamespace as Named
numba = sys.modules["numba.core.compiler_lock"] = Named(global_compiler_lock=Named(_lock=threading.RLock()))
holder, seen, release = {holder}, [], threading.Event()
lock = holder.{name}
def hold():
    with lock:
        release.set()
        time.sleep(0.3)
        seen.append("done")
thread(hold)
release.wait()
result = status_of(lambda: 0 if seen else 1), holder.{name} is lock, lock._is_owned()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("holder", "name"), [("sys.modules['compcache.hit']", "_lock"), ("numba.global_compiler_lock", "_lock")])
def test_a_fork_waits_until_tables_are_whole(directory: Path, holder: str, name: str) -> None:
    assert run_fresh(directory, FIRST + WAITED_FOR.format(holder=holder, name=name)) == (0, True, False)


NESTED = """
cache = Cache(directory)
cache.get_or_compile("f", lambda: source("f", 1))
hit, nested = sys.modules["compcache.hit"], []
def handle(*_):
    nested.append(status_of(lambda: cache.get_or_compile("in_handler", lambda: source("in_handler", 1))(1) - 2))
signal.signal(signal.SIGALRM, handle)
release = threading.Event()
def hold():
    with hit._mapping:
        release.set()
        time.sleep(0.5)
thread(hold)
release.wait()
signal.setitimer(signal.ITIMER_REAL, 0.1)
outer = status_of(lambda: cache.get_or_compile("outside", lambda: source("outside", 1))(1) - 2)
free = []
last = threading.Thread(target=lambda: free.extend(lock.find().acquire(timeout=1) for lock in forks.LOCKS if lock.find()))
last.start()
last.join()
result = outer, nested, all(free), forks._taken
"""


@pytest.mark.slow
def test_a_signal_handler_may_fork_while_a_fork_waits(directory: Path) -> None:
    assert run_fresh(directory, FIRST + NESTED) == (0, [0], True, {})


# -------------------------------------------------------------------- imports

IMPORTS = """
import importlib.abc, importlib.machinery
entered = threading.Event()
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != {module!r} or os.getpid() != parent:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def slowly(module):
            entered.set()
            time.sleep({seconds})
            execute(module)
        spec.loader.exec_module = slowly
        return spec
parent = os.getpid()
sys.meta_path.insert(0, Slow())
cache = Cache(directory)
forks._IMPORT_SECONDS = {patience}
thread(lambda: cache.get_or_compile("f", lambda: source("f", 1)))
assert entered.wait(20)
started = time.monotonic()
status = status_of(lambda: 0 if cache.get_or_compile("g", lambda: source("g", 1))(1) == 2 else 3)
result = status, time.monotonic() - started
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["compcache.miss.compile_once", "compcache.build.codegen", "ctypes"])
def test_a_fork_waits_for_an_import_of_another_thread(directory: Path, module: str) -> None:
    """Python never lets a child import what another thread was importing."""
    status, seconds = run_fresh(directory, FIRST + IMPORTS.format(module=module, seconds=0.4, patience=10.0))
    assert status == 0
    assert seconds > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("module", ["compcache.miss.compile_once", "compcache.build.codegen"])
def test_an_import_that_does_not_end_begins_anew_in_the_child(directory: Path, module: str) -> None:
    """It may wait for what the forking thread holds."""
    status, seconds = run_fresh(directory, FIRST + IMPORTS.format(module=module, seconds=20, patience=0.2))
    assert status == 0
    assert seconds < 10


# ---------------------------------------------------- what threads were doing

BUILDING = """
cache = Cache(directory, lock_timeout=30)
cache.add_module(source("known", 1))
known = cache.get_target("known")
building, end = threading.Event(), threading.Event()
def build():
    building.set()
    end.wait(20)
    return source("f", 1)
thread(lambda: cache.get_or_compile("f", build))
building.wait()
def child():
    loader = cache._loader
    if loader.builds or "known" not in loader.targets:
        return 3
    return 0 if cache.get_target("known") is known and cache.get_or_compile("g", lambda: source("g", 1))(1) == 2 else 4
result = status_of(child), len(cache._loader.builds)
end.set()
"""


@pytest.mark.slow
def test_builds_of_other_threads_are_none_of_the_child(directory: Path) -> None:
    """While functions are built, no look-up answers from memory at once: a child would never do so again."""
    assert run_fresh(directory, FIRST + BUILDING) == (0, 1)


ENTRIES = """
cache = Cache(directory)
frontend.get_entry(cache, "a", "k")
frontend.put_entry(cache, "a", b"1", kind="k")
cache._entries.flush()
held = threading.Event()
def hold():
    with cache._entries._lock:
        held.set()
        time.sleep(20)
thread(hold)
held.wait()
def child():
    frontend.put_entry(cache, "b", b"2", kind="k")
    return 0 if frontend.get_entry(cache, "b", "k") == b"2" else 3
result = status_of(child)
"""


def test_entries_can_be_put_where_another_thread_was_writing_some(directory: Path) -> None:
    assert run_fresh(directory, FIRST + ENTRIES) == 0


# --------------------------------------------------------------- all together


def forks(directory: Path, children: int, threads: int, seconds: float) -> tuple[dict[object, int], float, float]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("forking.py")), str(directory), str(children), str(threads), str(seconds)],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    ended, fork, child = ast.literal_eval(done.stdout.splitlines()[-1])
    assert ended == {0: children}, f"{ended}\n{done.stderr[-6000:]}"
    return ended, fork, child


@pytest.mark.slow
def test_some_forks_among_threads_that_compile(directory: Path) -> None:
    forks(directory, 8, 48, 20)


@pytest.mark.stress
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("threads", [48, 64])
def test_forks_among_threads_that_compile(tmp_path: Path, threads: int) -> None:
    """1,000 children each, of 20 processes, so that many forks meet the first imports."""
    longest = [forks(tmp_path / str(number), 50, threads, 60)[1:] for number in range(20)]
    print(f"1000 children: longest fork {max(fork for fork, _ in longest)} s, longest child {max(child for _, child in longest)} s")


# ---------------------------------------------------------------------- interrupts

INTERRUPTED = """
class Interrupt(Exception):
    pass
def interrupt(number, frame):
    raise Interrupt
cache = Cache(directory)
cache.get_or_compile("f", lambda: source("f", 1))
signal.signal(signal.SIGALRM, interrupt)
raised, rounds = 0, 300
for n in range(rounds):
    parent = os.getpid()
    try:
        signal.setitimer(signal.ITIMER_REAL, (n + 1) * 2e-6)
        if not os.fork():
            os._exit(0)
        time.sleep(1)
        break
    except Interrupt:
        if os.getpid() != parent:
            os._exit(1)
        raised += 1
statuses = set()
try:
    while True:
        statuses.add(os.waitstatus_to_exitcode(os.wait()[1]))
except ChildProcessError:
    pass
free = []
def acquire():
    found = [lock.find() for lock in forks.LOCKS]
    free.append(all(lock is None or lock.acquire(timeout=2) for lock in found))
last = threading.Thread(target=acquire)
last.start()
last.join()
result = [raised == rounds, statuses, free, forks._taken]
"""


@pytest.mark.slow
def test_what_a_signal_handler_raises_during_a_fork_arrives_and_keeps_no_lock(directory: Path) -> None:
    assert run_fresh(directory, FIRST + INTERRUPTED) == [True, {0}, [True], {}]
