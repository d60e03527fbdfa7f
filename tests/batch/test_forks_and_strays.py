"""Jobs and builds that do what code of others does: they fork, and they write to descriptors that are not theirs."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers import constant
from processes import Crowd

from compcache import Cache, Identity, ModuleSource
from compcache.batch import BatchProgress, BatchReport, Job, compile_many
from compcache.batch.channel import Channel, new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

JOBS = r'''
import os, resource, signal, socket, subprocess, sys, threading, time
from compcache import Function, ModuleSource

def constant(name, value=1):
    return ModuleSource("define i64 @%s() {\n  ret i64 %d\n}\n" % (name, value))

def lowers_limit(name):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    return constant(name, soft)

def raises_limit(name):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return constant(name, os.getpid())

def each_socket():
    for name in os.listdir("/proc/self/fd"):
        try:
            if "socket:" in os.readlink("/proc/self/fd/" + name):
                yield int(name)
        except OSError:
            continue

def writes(name, junk):
    for number in each_socket():
        os.write(number, junk)
    return constant(name)

def writes_on(name):
    def write():
        while True:
            for number in each_socket():
                os.write(number, b"\x00\x00\x00\x10stray")
    threading.Thread(target=write, daemon=True).start()
    time.sleep(0.2)
    return constant(name)

def closes(name):
    os.closerange(3, 256)
    time.sleep(1)
    return constant(name)

def replaces(name, path):
    for number in each_socket():
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.dup2(file, number)
    return constant(name)

def note(path, pid):
    with open(path, "a") as file:
        file.write("%d\n" % pid)

def forks(name, path, how="returns"):
    """A child that goes on for long, as careless code leaves one."""
    if os.fork() == 0:
        if how == "session":
            os.setsid()
        if how == "daemon":
            os.setsid()
            if os.fork():
                os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note(path, os.getpid())
        open(path + how, "a").close()
        time.sleep(100)
    while not os.path.exists(path + how):
        time.sleep(0.01)
    if how == "dies":
        os.unlink(path + how)
        os._exit(3)
    if how == "hangs":
        time.sleep(100)
    os.unlink(path + how)
    return constant(name)

def execs(name, path):
    process = subprocess.Popen(["sleep", "100"], start_new_session=True)
    note(path, process.pid)
    os._exit(3)

def wakes_helper(identity, runtime):
    os.environ["XDG_RUNTIME_DIR"] = runtime
    ir = "define i64 @f() {\n  ret i64 %d\n}\n" % os.getpid()
    return ModuleSource(ir, {identity.func_name: Function(symbol="f")})

def returns_twice(name):
    os.fork()
    return constant(name)
'''


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of job functions that worker processes can import."""
    place = tmp_path / "importable"
    place.mkdir()
    (place / "stray_jobs.py").write_text(JOBS)
    monkeypatch.syspath_prepend(str(place))
    sys.modules.pop("stray_jobs", None)
    import stray_jobs  # type: ignore[import-not-found]

    return stray_jobs  # type: ignore[no-any-return]


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def have_ended(numbers: list[int]) -> bool:
    """Whether processes have ended that were killed: on a busy machine they take a moment; those that were not killed sleep on."""
    deadline = time.monotonic() + 60
    while any(map(is_alive, numbers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(is_alive, numbers))


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Callable[[], list[int]]]:
    """The processes that jobs have noted in the file `pids`; those that are left are ended."""
    path = tmp_path / "pids"

    def read() -> list[int]:
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    yield read
    for pid in read():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run(cache: Cache, work: list[Job], jobs: ModuleType, *, timeout: float = 20) -> BatchReport:
    """A batch of these jobs and of one after them, with one worker."""
    started = time.monotonic()
    report = compile_many(cache, [*work, Job("last", jobs.constant, ("last",))], workers=1, timeout=timeout)
    assert time.monotonic() - started < 60
    assert "last" in [record.name for record in report.built]
    return report


JUNK = [b"x", b"", b"\x00\x00\x00\x10short", b"\x7f\xff\xff\xff" * 40, os.urandom(30_000)]


@pytest.mark.slow
def test_stray_bytes_on_a_worker_s_socket_are_dropped(cache: Cache, jobs: ModuleType) -> None:
    work = [Job(f"f{n}", jobs.writes, (f"f{n}", junk)) for n, junk in enumerate(JUNK)]
    report = run(cache, [*work, Job("on", jobs.writes_on, ("on",))], jobs)
    assert (len(report.built), report.failed) == (len(JUNK) + 2, ())


@pytest.mark.slow
def test_a_job_that_closes_its_worker_s_descriptors_costs_a_worker(cache: Cache, jobs: ModuleType, tmp_path: Path) -> None:
    other = tmp_path / "another"
    work = [Job("closes", jobs.closes, ("closes",)), Job("replaces", jobs.replaces, ("replaces", str(other)))]
    report = run(cache, work, jobs)
    assert report.failed == ()  # the second attempt finds what the first one could not tell, unless that told it after all
    assert all(map(cache.has, ("closes", "replaces")))
    assert other.read_bytes() == b""


@pytest.mark.slow
def test_what_a_job_forks_ends_with_it(
    cache: Cache, jobs: ModuleType, tmp_path: Path, pids: Callable[[], list[int]]
) -> None:
    kinds = ["returns", "session", "daemon", "dies"]
    work = [Job(how, jobs.forks, (how, str(tmp_path / "pids"), how)) for how in kinds]
    report = run(cache, work, jobs)
    assert [record.name for record in report.failed] == ["dies"]
    assert len(pids()) == 5
    assert have_ended(pids())


@pytest.mark.slow
def test_what_a_job_leaves_running_has_ended_when_the_next_one_runs(
    cache: Cache, jobs: ModuleType, tmp_path: Path, pids: Callable[[], list[int]]
) -> None:
    ended: list[bool] = []

    def look(moment: BatchProgress) -> None:
        if "last" in moment.running:
            ended.append(have_ended(pids()))

    work = [Job("daemon", jobs.forks, ("daemon", str(tmp_path / "pids"), "daemon")), Job("last", jobs.constant, ("last",))]
    assert len(compile_many(cache, work, workers=1, timeout=20, progress=look).built) == 2
    assert len(pids()) == 1
    assert ended == [True]


KILLED = """
import os, signal, sys
sys.path.insert(0, {place!r})
import stray_jobs
from compcache.batch import Job, compile_many, pool
pool._end_workers = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
compile_many({directory!r}, [Job("daemon", stray_jobs.forks, ("daemon", {pids!r}, "daemon"))], workers=1)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("jobs")
def test_what_a_job_leaves_running_ends_although_the_batch_is_killed_first(
    directory: Path, tmp_path: Path, pids: Callable[[], list[int]]
) -> None:
    script = KILLED.format(place=str(tmp_path / "importable"), directory=str(directory), pids=str(tmp_path / "pids"))
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert len(pids()) == 1
    assert have_ended(pids())


@pytest.mark.slow
def test_resource_limits_that_a_job_changes_end_with_it(cache: Cache, jobs: ModuleType) -> None:
    assert run(cache, [Job(name, jobs.lowers_limit, (name,)) for name in ("one", "two")], jobs).failed == ()
    assert cache.get_target("one")() == cache.get_target("two")()


@pytest.mark.slow
def test_a_worker_goes_on_after_a_job_that_raised_a_resource_limit(cache: Cache, jobs: ModuleType) -> None:
    """As packages do that need many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    try:
        assert run(cache, [Job(name, jobs.raises_limit, (name,)) for name in ("one", "two")], jobs).failed == ()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert cache.get_target("one")() == cache.get_target("two")()


@pytest.mark.slow
def test_what_a_job_forks_ends_with_its_time(
    cache: Cache, jobs: ModuleType, tmp_path: Path, pids: Callable[[], list[int]]
) -> None:
    work = [Job("hangs", jobs.forks, ("hangs", str(tmp_path / "pids"), "hangs"))]
    assert [record.kind for record in run(cache, work, jobs, timeout=1.5).failed] == ["timeout"]
    assert len(pids()) == 2
    assert have_ended(pids())


@pytest.mark.slow
def test_what_a_job_starts_in_a_session_of_its_own_ends_with_it(
    cache: Cache, jobs: ModuleType, tmp_path: Path, pids: Callable[[], list[int]]
) -> None:
    report = run(cache, [Job("execs", jobs.execs, ("execs", str(tmp_path / "pids")))], jobs)
    assert len(report.failed) == 1
    assert len(pids()) == 2  # it was tried twice
    assert have_ended(pids())


@pytest.mark.slow
def test_a_job_that_comes_back_in_two_processes_answers_once(cache: Cache, jobs: ModuleType) -> None:
    report = run(cache, [Job("twice", jobs.returns_twice, ("twice",))], jobs)
    assert (len(report.built), report.failed) == (2, ())


@pytest.mark.slow
def test_a_worker_that_does_not_start_is_stopped(
    cache: Cache, jobs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "importable" / "llvmlite.py").write_text("import time\ntime.sleep(100)\n")
    monkeypatch.setattr("compcache.batch.pool._START", 0.3)
    report = compile_many(cache, [Job("first", jobs.constant, ("first",))], workers=1, timeout=0.2)
    assert [record.message for record in report.failed] == ["the job did not start within 0.2 s and was stopped: allow a longer timeout"]


# ------------------------------------------------------------------------------------- locks

FORKING = """
import os, time
from compcache import Cache, ModuleSource
cache = Cache(directory, lock_timeout=20)
def build():
    child = os.fork()
    if child == 0:
        {child}
    {parent}
    return ModuleSource({text!r})
try:
    barrier()
    value = cache.get_or_compile("f", build)()
finally:
    if os.getppid() == {test}:
        sys.stdout.write("done\\n")
        sys.stdout.flush()
result = value
"""
WAITING = """
import os, time
from compcache import Cache, ModuleSource
cache = Cache(directory, lock_timeout=20)
barrier()
started = time.monotonic()
def build():
    return ModuleSource({text!r})
value = cache.get_or_compile("f", build)()
result = value, time.monotonic() - started
"""


@pytest.mark.slow
def test_a_child_that_a_build_leaves_behind_keeps_no_lock(directory: Path) -> None:
    """Forked while the lock is held; the build fails, so that the others have nothing to wait for but the lock."""
    Cache(directory).close()
    text = constant("f", 5)
    forking = FORKING.format(
        child="os.closerange(0, 3); time.sleep(40); os._exit(0)", parent="time.sleep(0.5); os._exit(0)", text=text, test=os.getpid()
    )
    with Crowd(directory, [forking, WAITING.format(text=text)]) as crowd:
        crowd.release(0)
        time.sleep(0.2)
        crowd.release(1)
        [(value, seconds)] = crowd.results(1)
    assert value == 5
    assert seconds < 15  # less than it would wait for the lock


@pytest.mark.slow
def test_a_child_that_comes_back_from_a_build_leaves_its_parent_s_lock_alone(tmp_path: Path) -> None:
    """Both go on; the child is done first, and a third process must still wait for the parent."""
    root = tmp_path / "cache"
    text = constant("f", 5)
    built = tmp_path / "built"
    with Cache(root, lock_timeout=20) as cache:

        def build() -> ModuleSource:
            child = os.fork()
            if child == 0:
                raise ZeroDivisionError
            os.waitpid(child, 0)
            waiting = WAITING.format(text=text).replace(
                "    return", f"    open({str(built)!r}, 'x').close()\n    return"
            )
            crowd.__enter__()
            crowd.processes += Crowd(root, [waiting]).processes
            crowd.release(0)
            time.sleep(0.5)
            return ModuleSource(text)

        crowd = Crowd(root, [])
        try:
            assert cache.get_or_compile("f", build)() == 5
        except ZeroDivisionError:
            os._exit(0)  # the child
        try:
            assert crowd.results()[0][0] == 5
        finally:
            crowd.__exit__()
    assert not built.exists()


def test_messages_that_a_stream_delivers_together_are_received_one_by_one() -> None:
    token = new_token()
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)  # as on systems without SOCK_SEQPACKET
    with Channel(first, token) as sender, Channel(second, token) as receiver:
        for message in ("setup", "job"):
            sender.enqueue(message)
        sender.flush(block=True)
        assert (receiver.receive(), receiver.receive()) == ("setup", "job")


@pytest.mark.slow
def test_the_helper_of_a_remote_store_is_no_process_of_a_job(
    tmp_path: Path, jobs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that take longer than a helper stays idle start it. It serves other processes too, and its uploads would be lost."""
    for name in ("run", "other", "store"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    identities = [Identity("f", code=str(number)) for number in range(2)]
    with Cache(tmp_path / "cache", remote=(tmp_path / "store").as_uri(), remote_mode="write") as cache:
        batch = [Job(identity.func_name, jobs.wakes_helper, (identity, str(tmp_path / "other"))) for identity in identities]
        assert run(cache, batch, jobs).failed == ()
        workers = {cache.get_target(identity)() for identity in identities}
    helpers = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if str(tmp_path / "other") in command_of(pid)]
    for pid in helpers:
        os.kill(pid, signal.SIGKILL)
    assert (len(workers), len(helpers)) == (1, 1)


def command_of(pid: int) -> str:
    """Return the command line of a process, or "" if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
