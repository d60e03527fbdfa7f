"""Single flight: of processes that miss one function together, one compiles; nobody waits without a bound."""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers import run_fresh
from processes import Crowd

from compcache import Cache
from compcache.files import Tree
from compcache.publish.locks import wait_lock

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from typing import Any

#: Leaves a file for every build, and calls what it gets. `held` makes a build last.
GET = r"""
import os
from compcache import Cache, ModuleSource
import compcache.linker, compcache.miss.compile_once

def build():
    open(directory + "-builds/" + str(os.getpid()), "x").close()
    HELD
    return ModuleSource("define i64 @f(i64 %x) {\n  %y = add i64 %x, 41\n  ret i64 %y\n}\n")

def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()

with Cache(directory, lock_timeout=TIMEOUT) as cache:
    barrier()
    started = time.monotonic()
    try:
        value = cache.get_or_compile("f", build)(1)
    except ZeroDivisionError:
        value = "failed"
    result = [value, time.monotonic() - started]
"""
HANG = "say('building'); time.sleep(100)"
PROCESSES = [8, pytest.param(32, marks=pytest.mark.stress)]


def script(timeout: float | None = None, held: str = "time.sleep(0.3)") -> str:
    return GET.replace("TIMEOUT", repr(timeout)).replace("HELD", held)


@pytest.fixture
def builds(directory: Path) -> Path:
    """Where every process that builds leaves a file."""
    path = Path(f"{directory}-builds")
    path.mkdir()
    return path


def count(builds: Path) -> int:
    return len(list(builds.iterdir()))


def modules(directory: Path) -> int:
    with Cache(directory) as cache:
        return len(cache.realizations("f"))


@pytest.mark.slow
@pytest.mark.parametrize("processes", PROCESSES)
def test_one_process_compiles_and_the_others_wait_and_load(
    directory: Path, builds: Path, processes: int
) -> None:
    with Crowd(directory, [script()] * processes) as crowd:
        crowd.release()
        results = crowd.results()
    assert [value for value, _ in results] == [42] * processes
    assert count(builds) == 1
    assert modules(directory) == 1


#: It says that it builds, and then that it has published, and goes on at a barrier each time.
PUBLISHING = script(held="say('building'); barrier()").replace("\nwith Cache", """
place = compcache.miss.compile_once
publish = place.publish_or_keep

def publish_and_go_on(*arguments):
    publish(*arguments)
    say("published")
    barrier()

place.publish_or_keep = publish_and_go_on

with Cache""")
#: It says that it waits for the lock before its first pause. Its clock stands still for 200 pauses; then every timeout is over.
WAITING = script().replace("\nwith Cache", """
import compcache.publish.locks

class Clock:
    now, pauses = 0, 0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        if not self.pauses:
            say("waiting")
            barrier()
        time.sleep(seconds)
        self.pauses += 1
        self.now = 1 << 60 if self.pauses > 200 else 0

clock = compcache.publish.locks.time = Clock()

with Cache""") + "result = [value, clock.now]\n"


@pytest.mark.slow
def test_those_who_wait_load_as_soon_as_the_function_is_there(directory: Path, builds: Path) -> None:
    """They do not stand in line for the lock: the builder goes on holding it after it has published."""
    with Crowd(directory, [PUBLISHING, WAITING, WAITING]) as crowd:
        builder, *others = crowd.processes
        crowd.release(0)
        crowd.expect(builder, "building")
        crowd.release(1, 2)
        for process in others:
            crowd.expect(process, "waiting")
        crowd.release(0)
        crowd.expect(builder, "published")
        crowd.release(1, 2)
        assert crowd.results(1, 2) == [[42, 0]] * 2
    assert count(builds) == 1


@pytest.mark.slow
def test_threads_of_one_process_compile_once(directory: Path, builds: Path) -> None:
    threads = r"""
from concurrent.futures import ThreadPoolExecutor
import os
from compcache import Cache, ModuleSource
with Cache(directory) as cache:
    def build():
        open(directory + "-builds/" + str(len(os.listdir(directory + "-builds"))), "x").close()
        time.sleep(0.2)
        return ModuleSource("define i64 @f(i64 %x) {\n  %y = add i64 %x, 41\n  ret i64 %y\n}\n")
    with ThreadPoolExecutor(8) as pool:
        targets = list(pool.map(lambda _: cache.get_or_compile("f", build), range(8)))
    result = [len(set(map(id, targets))), targets[0](1)]
"""
    with Crowd(directory, [threads]) as crowd:
        assert crowd.results() == [[1, 42]]
    assert count(builds) == 1


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_builder_that_dies_or_hangs_delays_the_others_by_the_lock_timeout_at_most(
    directory: Path, builds: Path, end: signal.Signals
) -> None:
    timeout = 60.0 if end == signal.SIGKILL else 1.0  # what a build takes on a loaded machine must not exceed the former
    others = [script(timeout)] * 3
    with Crowd(directory, [script(timeout, HANG), *others]) as crowd:
        crowd.release(0)
        crowd.expect(crowd.processes[0], "building")
        crowd.processes[0].send_signal(end)
        crowd.release(1, 2, 3)
        results = crowd.results(1, 2, 3)
    assert [value for value, _ in results] == [42] * 3
    waited = max(seconds for _, seconds in results)
    if end == signal.SIGKILL:
        assert count(builds) == 2  # the kernel let go of the lock: one of the others built, at once
        assert waited < timeout
    else:
        assert timeout <= waited < timeout + 40
        assert 2 <= count(builds) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("where", ["argument", "variable"])
def test_the_waiting_time_can_be_set(directory: Path, builds: Path, where: str) -> None:
    waiter = script(0.5 if where == "argument" else None)
    variables = {"COMPCACHE_LOCK_TIMEOUT": "0.5"} if where == "variable" else {}
    with Crowd(directory, [script(None, HANG), waiter], **variables) as crowd:
        crowd.release(0)
        crowd.expect(crowd.processes[0], "building")
        crowd.release(1)
        ((value, seconds),) = crowd.results(1)
    assert value == 42
    assert 0.5 <= seconds < 40
    assert count(builds) == 2


@pytest.mark.slow
@pytest.mark.parametrize("processes", [4, pytest.param(32, marks=pytest.mark.stress)])
def test_without_locks_all_succeed(directory: Path, builds: Path, processes: int) -> None:
    shutil.rmtree(directory / "locks", ignore_errors=True)
    with Crowd(directory, [script()] * processes, COMPCACHE_LOCKS="0") as crowd:
        crowd.release()
        results = crowd.results()
    assert [value for value, _ in results] == [42] * processes
    assert count(builds) > 1
    assert not (directory / "locks").exists()
    assert modules(directory) == 1  # the same bytes, whoever wrote them


REFUSING = """
import errno, fcntl
def refuse(*_):
    raise OSError(errno.ERROR, "no locks here")
fcntl.flock = fcntl.lockf = refuse
"""


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def test_on_a_file_system_that_refuses_locks_soft_ones_serve(directory: Path, builds: Path, error: str) -> None:
    with Crowd(directory, [REFUSING.replace("ERROR", error) + script(60.0)] * 2) as crowd:
        crowd.release()
        results = crowd.results()
    assert [value for value, _ in results] == [42] * 2
    assert max(seconds for _, seconds in results) < 30
    assert count(builds) == 1
    assert [path.name for path in (directory / "locks").iterdir() if path.read_bytes()] == []  # soft ones are not empty


@pytest.mark.slow
def test_a_soft_lock_of_a_dead_holder_delays_nobody(directory: Path, builds: Path) -> None:
    refusing = REFUSING.replace("ERROR", "ENOLCK")
    with Crowd(directory, [refusing + script(None, HANG), refusing + script(60.0)]) as crowd:
        crowd.release(0)
        crowd.expect(crowd.processes[0], "building")
        crowd.processes[0].kill()
        crowd.processes[0].wait()
        crowd.release(1)
        ((value, seconds),) = crowd.results(1)
    assert value == 42
    assert seconds < 30
    assert count(builds) == 2


HOLDING = r"""
from compcache import Cache
from compcache.publish.locks import wait_lock
import sys, os, time
with Cache(directory) as cache:
    barrier()
    started = time.monotonic()
    with wait_lock(cache._store, "upkeep", timeout=SECONDS) as owned:
        sys.stdout.write("holding\n" if owned else "passed by\n"); sys.stdout.flush()
        WHAT
result = owned, time.monotonic() - started
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", REFUSING.replace("ERROR", "ENOLCK")], ids=["flock", "soft"])
def test_a_lock_that_is_held_long_keeps_others_out_and_goes_with_its_holder(directory: Path, kind: str) -> None:
    holder = kind + HOLDING.replace("SECONDS", "5.0").replace("WHAT", "time.sleep(60)")
    other = kind + HOLDING.replace("WHAT", "pass")
    with Crowd(directory, [holder, other.replace("SECONDS", "0.3"), other.replace("SECONDS", "20.0")]) as crowd:
        crowd.release(0)
        crowd.expect(crowd.processes[0], "holding")
        crowd.release(1)
        crowd.expect(crowd.processes[1], "passed by")
        crowd.processes[0].kill()
        crowd.processes[0].wait()
        crowd.release(2)
        crowd.expect(crowd.processes[2], "holding")


def test_a_lock_that_the_system_does_not_give_back_fails_nobody(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with a lock is no reason that a prune fails. Closing its file gives it back, too."""
    flock, failing = fcntl.flock, [True]

    def refusing(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN and failing and failing.pop():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", refusing)
    with wait_lock(cache._store, "upkeep", timeout=0.1) as owned:
        assert owned
    assert failing == []
    with wait_lock(cache._store, "upkeep", timeout=0.1) as owned:
        assert owned


@pytest.mark.slow
def test_additions_and_hits_import_no_filelock(directory: Path) -> None:
    code = """
import sys
from compcache import Cache
with Cache(directory) as cache:
    result = cache.get_or_compile("f", lambda: "define i64 @f() {\\n  ret i64 7\\n}\\n")(), "filelock" in sys.modules
"""
    assert run_fresh(directory, code) == (7, False)


def test_links_in_place_of_the_folder_of_locks_are_not_followed(cache: Cache, directory: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.rmtree(directory / "locks", ignore_errors=True)
    (directory / "locks").symlink_to(elsewhere)
    with wait_lock(cache._store, "upkeep", timeout=0.1) as owned:
        assert owned is None
    assert list(elsewhere.iterdir()) == []


def rename_removed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the file of a lock removed as a client of NFS removes one that it has open: it gets another name, and keeps its link."""
    silly = os.path.join(os.path.dirname(path), ".nfs")
    monkeypatch.setattr(Tree, "unlink", lambda self, removed: self.rename(removed, silly + str(time.monotonic_ns())))


def show_removed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a removed lock file seen once more at its path, as a client of NFS sees what another host has removed."""
    lstat, former = Tree.lstat, [os.lstat(path)]
    monkeypatch.setattr(Tree, "lstat", lambda self, looked: former.pop() if former else lstat(self, looked))


@pytest.mark.parametrize("behave", [rename_removed, show_removed])
def test_a_lock_file_that_a_network_file_system_removes_is_no_lock(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch, behave: Callable[[str, pytest.MonkeyPatch], None]
) -> None:
    """One waits with the file open; its holder removes it. Who has waited and who comes later do not both have the lock."""
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with wait_lock(cache._store, "upkeep", timeout=0) as owned:
            assert owned
            held.set()
            leave.wait()

    def come_later() -> bool | None:
        with wait_lock(cache._store, "upkeep", timeout=0) as owned:
            return owned

    with ThreadPoolExecutor(2) as pool:
        holder = pool.submit(hold)
        held.wait()
        (path,) = (directory / "locks").iterdir()
        behave(str(path), monkeypatch)

        def release() -> bool:
            leave.set()
            holder.result()
            return False

        with wait_lock(cache._store, "upkeep", timeout=60, until=release) as owned:
            assert owned
            assert pool.submit(come_later).result() is False


def test_who_waits_with_a_removed_lock_file_does_not_have_the_lock_of_the_next(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of who waits was removed as network file systems do it, and the next holder has made another one at its path."""
    held, leave = queue.SimpleQueue[bool | None](), threading.Semaphore(0)

    def hold() -> None:
        with wait_lock(cache._store, "upkeep", timeout=0) as owned:
            held.put(owned)
            leave.acquire()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(hold)
        assert held.get()
        (path,) = (directory / "locks").iterdir()
        rename_removed(str(path), monkeypatch)
        following: list[bool | None] = []

        def follow() -> bool:
            if following:
                return True
            leave.release()
            first.result()
            pool.submit(hold)
            following.append(held.get())
            return False

        with wait_lock(cache._store, "upkeep", timeout=60, until=follow) as owned:
            leave.release()
            assert (owned, following) == (False, [True])


@pytest.mark.parametrize("times", [1, 1 << 30])
@pytest.mark.parametrize("call", ["flock", "fstat", "lstat"])
def test_a_lock_file_that_another_host_removes_is_made_again(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, call: str, times: int
) -> None:
    """If that goes on, somebody else has the lock; it is not that there are no locks here."""
    with wait_lock(cache._store, "upkeep", timeout=0):
        pass
    place = {"flock": fcntl, "fstat": cache._store.files, "lstat": Tree}[call]
    original, left = getattr(place, call), [times]

    def stale(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return original(*arguments)

    monkeypatch.setattr(place, call, stale)
    with wait_lock(cache._store, "upkeep", timeout=0) as owned:
        assert owned is (times == 1)


@pytest.mark.slow
def test_a_locks_directory_that_cannot_be_made_is_no_obstacle(directory: Path, builds: Path) -> None:
    shutil.rmtree(directory / "locks", ignore_errors=True)
    (directory / "locks").write_bytes(b"somebody's file")
    with Crowd(directory, [script()] * 2) as crowd:
        crowd.release()
        assert [value for value, _ in crowd.results()] == [42, 42]
    assert count(builds) >= 1


NESTED = r"""
from compcache import Cache, ModuleSource, ReentrantCompileError
names = ["a", "b"] if number == 0 else ["b", "a"]
def leaf(name):
    return ModuleSource("define i64 @" + name + "() {\n  ret i64 7\n}\n")
with Cache(directory) as cache:
    def inner():
        return INNER
    def outer():
        sys.stdout.write("building\n"); sys.stdout.flush()
        sys.stdin.readline()  # both hold their lock
        cache.get_or_compile(names[1], inner)
        return leaf(names[0])
    barrier()
    started = time.monotonic()
    try:
        value = cache.get_or_compile(names[0], outer)()
    except ReentrantCompileError as error:
        value = "reentrant"
    result = [value, time.monotonic() - started]
"""


def let_both_go(crowd: Crowd) -> None:
    crowd.release()
    for process in crowd.processes:
        crowd.expect(process, "building")
    for process in crowd.processes:
        say(process)


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


@pytest.mark.slow
def test_builds_that_need_each_others_function_do_not_wait_for_each_other(directory: Path) -> None:
    """One holds the lock of a and wants b, the other one holds b and wants a."""
    with Crowd(directory, [NESTED.replace("INNER", "leaf(names[1])")] * 2) as crowd:
        let_both_go(crowd)
        results = crowd.results()
    assert [value for value, _ in results] == [7, 7]
    assert max(seconds for _, seconds in results) < 40


@pytest.mark.slow
def test_builds_that_go_round_in_circles_say_so_in_every_process(directory: Path) -> None:
    circle = "cache.get_or_compile(names[0], outer) and None"
    with Crowd(directory, [NESTED.replace("INNER", circle)] * 2) as crowd:
        let_both_go(crowd)
        results = crowd.results()
    assert "reentrant" in [value for value, _ in results]
    assert max(seconds for _, seconds in results) < 40


@pytest.mark.slow
def test_an_exception_in_build_is_that_process_s_own(directory: Path, builds: Path) -> None:
    """The others do not inherit it: they build."""
    failing = script(held="time.sleep(0.3); raise ZeroDivisionError")
    with Crowd(directory, [failing, script()]) as crowd:
        crowd.release(0)
        while not count(builds):
            time.sleep(0.01)
        crowd.release(1)
        results = crowd.results()
    assert [value for value, _ in results] == ["failed", 42]
    assert count(builds) == 2


@pytest.mark.slow
def test_locks_are_let_go_of(directory: Path, builds: Path) -> None:
    with Crowd(directory, [script()]) as crowd:
        crowd.release()
        crowd.results()
    assert count(builds) == 1
    assert list((directory / "locks").iterdir()) == []  # and no file stays for every function there is


@pytest.mark.slow
def test_a_lock_keeps_everybody_else_out_although_its_file_comes_and_goes(directory: Path) -> None:
    """Six processes take one lock again and again; a counter that is read and written without care shows overlaps."""
    counting = """
from compcache import Cache
from compcache.publish.locks import wait_lock
path = directory + "-counter"
with Cache(directory) as cache:
    barrier()
    for _ in range(60):
        with wait_lock(cache._store, "count", timeout=60.0) as owned:
            assert owned is True
            with open(path) as file:
                value = int(file.read())
            time.sleep(0.0005)
            with open(path, "w") as file:
                file.write(str(value + 1))
    result = True
"""
    Path(f"{directory}-counter").write_text("0")
    with Crowd(directory, [counting] * 6) as crowd:
        crowd.release()
        assert crowd.results() == [True] * 6
    assert Path(f"{directory}-counter").read_text() == "360"
