"""Batch compilation: what is built, what is skipped, and what the loss of a worker process costs."""

from __future__ import annotations

import functools
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import time
import zipapp
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import pytest
from helpers import PACKAGE_ROOT, adder, caller, constant, run_fresh
from llvmlite import ir
from mock_directory import MockDirectory

from compcache import Cache, ModuleSource, StorageError
from compcache.batch import BatchFailedError, BatchProgress, Job, compile_many

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

#: Functions that jobs are made of, in a module that worker processes import.
JOBS = r'''
import os, signal, sys, time
from compcache import ModuleSource

set_by_parent = False

def constant(name, value):
    return ModuleSource("define i64 @%s() {\n  ret i64 %d\n}\n" % (name, value))

def pid(name):
    return constant(name, os.getpid())

def inherited(name):
    return constant(name, int(set_by_parent))

def noisy(name):
    print("x" * 100_000)
    os.write(2, b"\xff\x00noise\n")
    return constant(name, 1)

def slow(name, seconds):
    time.sleep(seconds)
    return constant(name, 1)

def note(name, path):
    with open(path, "a") as file:
        file.write("%s %d\n" % (name, os.getpid()))
    time.sleep(0.2)
    return constant(name, 1)

def dies(name, how, once=None):
    if once is not None:
        if os.path.exists(once):
            return constant(name, 7)
        open(once, "x").close()
    print("last words of", name, flush=True)
    if how == "exit":
        sys.exit(3)
    if how == "end":
        sys.exit()
    if how == "stop":
        how = "SIGSTOP"
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(100)

def calls(name, callee, once):
    dies(name, "SIGKILL", once)
    return ModuleSource("declare i64 @%s()\ndefine i64 @%s() {\n  %%r = call i64 @%s()\n  ret i64 %%r\n}\n" % (callee, name, callee))

def hangs(name, path=None, deaf=False):
    if deaf:  # as code is that does not come back to Python
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if path is not None:
        with open(path, "a") as file:
            file.write("%d\n" % os.getpid())
    time.sleep(100)

def aborts(name):
    """LLVM ends the process over inline assembly that it cannot assemble."""
    import llvmlite.binding as llvm
    text = 'define void @f() {\n  call void asm sideeffect "this is no instruction", ""()\n  ret void\n}\n'
    machine = llvm.Target.from_default_triple().create_target_machine()
    machine.emit_object(llvm.parse_assembly(text))
    os.abort()

def wrong(name):
    raise ZeroDivisionError("on purpose")

def none(name):
    return None

class Steps:
    @staticmethod
    def one():
        return constant("nested", 5)
'''


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of job functions that worker processes can import."""
    place = tmp_path / "importable"
    place.mkdir()
    (place / "batch_jobs.py").write_text(JOBS)
    monkeypatch.syspath_prepend(str(place))
    sys.modules.pop("batch_jobs", None)
    import batch_jobs  # type: ignore[import-not-found]

    return batch_jobs  # type: ignore[no-any-return]


def names(records: Any) -> list[str]:
    return [record.name for record in records]


def refuse_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ------------------------------------------------------------------------------- what is built


@pytest.mark.slow
def test_jobs_are_built_in_other_processes_and_cached_ones_are_skipped(
    cache: Cache, jobs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.add_module(ModuleSource(constant("known", 1)))
    monkeypatch.setattr(jobs, "set_by_parent", True)
    everything = [
        ModuleSource(constant("known", 1)),
        *[Job(f"pid{number}", jobs.pid, (f"pid{number}",)) for number in range(6)],
        ("inherited", jobs.inherited, ("inherited",)),
    ]
    report = compile_many(cache, everything, workers=2)
    assert report.ok
    assert (len(report.built), names(report.cached), report.failed) == (7, ["known"], ())
    workers = {cache.get_target(f"pid{number}")() for number in range(6)}
    assert os.getpid() not in workers
    assert 1 <= len(workers) <= 2
    assert cache.get_target("inherited")() == 0  # a fresh interpreter, not a fork
    for record in report.built:
        (realization,) = cache.realizations(record.name)
        assert (record.functions, record.module_id) == ((record.name,), realization.module_id)
        assert record.size == realization.size > 0
        assert record.seconds > 0
    assert report.cached[0].size == cache.realizations("known")[0].size
    assert report.size == sum(record.size for record in report.built)
    assert json.loads(json.dumps(report.as_dict()))["ok"] is True

    refuse_processes(monkeypatch)
    again = compile_many(cache, everything)
    assert (len(again.built), len(again.cached), len(again.failed)) == (0, 8, 0)


@pytest.mark.slow
def test_every_kind_of_job(cache: Cache, jobs: ModuleType) -> None:
    module = llvm.parse_assembly(adder("reference", 1))
    made = ir.Module("made")
    function = ir.Function(made, ir.FunctionType(ir.IntType(64), []), "made")
    ir.IRBuilder(function.append_basic_block()).ret(ir.Constant(ir.IntType(64), 3))
    report = compile_many(
        cache,
        (
            job
            for job in [
                ModuleSource(adder("text", 1) + adder("more", 2)),
                ModuleSource(llvm.parse_assembly(adder("bitcode", 1)).as_bitcode()),
                ModuleSource(bytearray(llvm.parse_assembly(adder("array", 1)).as_bitcode())),
                ModuleSource(module),
                ModuleSource(made),
                Job("f", ModuleSource(adder("f", 1) + adder("g", 2))),
                Job("partial", functools.partial(jobs.constant, "partial"), (4,)),
                Job("nested", "batch_jobs:Steps.one"),
                ("tuple", jobs.constant, ("tuple", 6)),
                Job("noisy", jobs.noisy, ("noisy",)),
            ]
        ),
        workers=2,
    )
    assert report.failed == ()
    assert len(report.built) == 10
    calls = {"text": 1, "more": 1, "bitcode": 1, "array": 1, "reference": 1, "f": 1, "g": 1}
    assert [cache.get_target(name)(argument) for name, argument in calls.items()] == [2, 3, 2, 2, 2, 2, 3]
    assert [cache.get_target(name)() for name in ("made", "partial", "nested", "tuple", "noisy")] == [
        3,
        4,
        5,
        6,
        1,
    ]
    assert names(report.built)[:2] == ["text and 1 more", "job 1"]
    assert report.built[1].functions == ("bitcode",)


@pytest.mark.slow
def test_bitcode_that_is_cached_is_found_out_by_a_worker(cache: Cache) -> None:
    source = ModuleSource(llvm.parse_assembly(adder("bitcode", 1)).as_bitcode())
    assert len(compile_many(cache, [source]).built) == 1
    again = compile_many(cache, [source])
    assert (again.built, [record.functions for record in again.cached]) == ((), [("bitcode",)])


@pytest.mark.parametrize(
    ("text", "exports"),
    [
        ("define i64 @f() {\n ret i64 1\n}\n", ["f"]),
        ('define dso_local noundef i64 @"a b\\22" ( ) #0 {\n ret i64 1\n}\n', ['a b"']),
        ("define internal i64 @g() {\n ret i64 1\n}\ndefine linkonce_odr i64 @h() {\n ret i64 1\n}\n", ["h"]),
        (
            "define hidden i64 @g() {\n ret i64 1\n}\n define {i64, i64} @pair(ptr byval({i8}) %p) {\n",
            ["pair"],
        ),
        ("define i64 @0() {\n ret i64 1\n}\n", []),
        ("define i64\n@f() {\n ret i64 1\n}\n", []),
        ("; define i64 @no() {\ndefine private void @p() {\n ret void\n}\n", []),
    ],
)
def test_what_assembly_exports_is_read_without_llvm(text: str, exports: list[str]) -> None:
    from compcache.batch.jobs import prepare_jobs

    assert list(prepare_jobs([ModuleSource(text)])[0].functions) == exports


@pytest.mark.slow
def test_jobs_that_need_each_other_are_built_in_any_order(cache: Cache) -> None:
    chain = [ModuleSource(caller(f"f{n}", f"f{n - 1}", plus=1)) for n in range(3, 0, -1)]
    report = compile_many(cache, [*chain, ModuleSource(adder("f0", 5))], workers=1)
    assert report.failed == ()
    assert cache.get_target("f3")(1) == 9
    missing = compile_many(cache, [ModuleSource(caller("g", "nowhere"))], workers=1)
    assert (missing.failed[0].kind, missing.failed[0].error) == ("error", "UndefinedSymbolError")
    assert "'nowhere'" in missing.failed[0].message


@pytest.mark.slow
def test_a_job_that_is_wrong_fails_alone_and_says_why(cache: Cache, jobs: ModuleType) -> None:
    report = compile_many(
        cache,
        [
            ModuleSource("this is no LLVM assembly"),
            Job("wrong", jobs.wrong, ("wrong",)),
            Job("none", jobs.none, ("none",)),
            Job("other", jobs.constant, ("another", 1)),
            Job("lambda", lambda: None),
            Job("lost", "batch_jobs:nowhere"),
            ModuleSource("@g = external global i64\n" + adder("unstored", 1), globals={"g": object()}),
            Job("fine", jobs.constant, ("fine", 1)),
        ],
        workers=2,
    )
    assert names(report.built) == ["fine"]
    failed = {record.name: record for record in report.failed}
    assert failed["job 0"].error == "CompileError"
    assert re.fullmatch(r"ZeroDivisionError: on purpose \(batch_jobs\.py, line \d+, in wrong\)", failed["wrong"].message)
    with pytest.raises(BatchFailedError, match=r"(?s)7 of 8 jobs failed:\n  job 0: .*\n  wrong: ZeroDivision") as caught:
        report.raise_for_failures()
    assert pickle.loads(pickle.dumps(caught.value)).report == report
    assert "batch_jobs.py" in failed["wrong"].output
    assert "build() for 'none' returned None, but must return a compcache.ModuleSource or LLVM code" in failed["none"].message
    assert "does not export 'other' (exported: 'another')" in failed["other"].message
    assert "top level of a module" in failed["lambda"].message
    assert "nowhere" in failed["lost"].message
    assert "of type object cannot be found by module and name" in failed["unstored"].message
    assert {record.kind for record in report.failed} == {"error"}
    assert failed["wrong"].attempts == 1  # it would only do the same again
    assert not report.ok


# ------------------------------------------------------------------- processes that are lost


@pytest.mark.slow
def test_a_worker_that_dies_costs_its_own_job_alone(cache: Cache, jobs: ModuleType, directory: Path) -> None:
    once = str(directory.parent / "once")
    report = compile_many(
        cache,
        [
            *[Job(f"before{n}", jobs.constant, (f"before{n}", n)) for n in range(3)],
            Job("aborts", jobs.aborts, ("aborts",)),
            Job("killed", jobs.dies, ("killed", "SIGKILL")),
            Job("exits", jobs.dies, ("exits", "exit")),
            Job("ends", jobs.dies, ("ends", "end")),
            Job("once", jobs.dies, ("once", "SIGSEGV", once)),
            *[Job(f"after{n}", jobs.constant, (f"after{n}", n)) for n in range(3)],
        ],
        workers=2,
    )
    assert names(report.built) == ["before0", "before1", "before2", "once", "after0", "after1", "after2"]
    assert [record.attempts for record in report.built] == [1, 1, 1, 2, 1, 1, 1]
    aborts, killed, exits, ends = report.failed
    assert (aborts.kind, aborts.attempts) == ("died", 2)
    assert "this is no instruction" in aborts.output
    assert (killed.signal, killed.output, killed.exit_status) == ("SIGKILL", "last words of killed", None)
    assert (exits.signal, exits.exit_status) == (None, 3)
    assert (ends.signal, ends.exit_status) == (None, 0)
    assert killed.message == "the worker process of the job was ended by SIGKILL: last words of killed"
    assert cache.get_target("once")() == 7
    assert [path for path in MockDirectory.read(directory).files if path.startswith(("tmp/", "quar"))] == []


@pytest.mark.slow
def test_a_job_that_was_lost_waits_for_the_function_of_another_lost_job(cache: Cache, jobs: ModuleType, directory: Path) -> None:
    first, second = str(directory.parent / "first"), str(directory.parent / "second")
    lost = [Job("caller", jobs.calls, ("caller", "callee", first)), Job("callee", jobs.dies, ("callee", "SIGKILL", second))]
    report = compile_many(cache, lost, workers=1)
    assert names(report.built) == ["caller", "callee"]
    assert [record.attempts for record in report.built] == [3, 2]
    assert cache.get_target("caller")() == 7


@pytest.mark.slow
def test_a_job_that_takes_too_long_is_ended_alone(cache: Cache, jobs: ModuleType, directory: Path) -> None:
    started = time.monotonic()
    report = compile_many(
        cache,
        [
            Job("hangs", jobs.hangs, ("hangs",)),
            Job("stopped", jobs.dies, ("stopped", "stop")),
            *[Job(f"fine{n}", jobs.constant, (f"fine{n}", n)) for n in range(3)],
        ],
        workers=2,
        timeout=1.0,
    )
    assert time.monotonic() - started < 40
    assert names(report.built) == ["fine0", "fine1", "fine2"]
    hangs, stopped = report.failed
    assert (hangs.kind, hangs.signal, hangs.attempts) == ("timeout", "SIGTERM", 2)
    assert (stopped.kind, stopped.signal) == ("timeout", "SIGKILL")
    assert stopped.output == "last words of stopped"
    assert hangs.message == "the job did not finish within 1 s and was stopped: allow a longer timeout"
    assert 1.0 <= hangs.seconds < 20
    assert list((directory / "tmp").iterdir()) == []


SCRIPT = """
import sys
sys.path.insert(0, {importable!r})
import batch_jobs
from compcache import Cache
from compcache.batch import BatchInterrupted, Job, compile_many

def local(name):
    return batch_jobs.constant(name, 11)

if __name__ == "__main__":
    cache = Cache({directory!r})
    jobs = [Job("quick%d" % n, batch_jobs.constant, ("quick%d" % n, n)) for n in range(4)]
    jobs += [Job("local", local, ("local",))]
    if sys.argv[1] != "rest":
        jobs += [Job("hangs%d" % n, batch_jobs.hangs, ("hangs%d" % n, {pids!r}, n % 2 == 1)) for n in range(4)]
    def show(moment):
        print(moment.done, len(moment.running), flush=True)
    try:
        report = compile_many(cache, jobs, workers=2, progress=show)
    except BatchInterrupted as interrupt:
        report = interrupt.report
    print(len(report.built), len(report.cached), len(report.failed), report.interrupted, report.ok)
"""


@pytest.fixture
def script(jobs: ModuleType, directory: Path, tmp_path: Path) -> list[str]:
    """The command of a batch that builds five functions and then hangs in every worker."""
    assert jobs.__file__
    path = tmp_path / "batch_script.py"
    path.write_text(
        SCRIPT.format(
            importable=os.path.dirname(jobs.__file__), directory=str(directory), pids=str(tmp_path / "pids")
        )
    )
    return [sys.executable, str(path)]


def start(command: list[str], argument: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command, argument],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
    )


def wait_until_stuck(process: subprocess.Popen[str], tmp_path: Path) -> list[int]:
    """Read on until five jobs are done and both workers hang; the workers."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.split() == ["5", "2"]:
            break
    pids = tmp_path / "pids"
    while not pids.exists() or len(pids.read_text().split()) < 2:
        time.sleep(0.01)
    return [int(pid) for pid in pids.read_text().split()]


@pytest.mark.slow
def test_ctrl_c_ends_a_batch_at_once_and_the_next_run_goes_on(
    script: list[str], directory: Path, tmp_path: Path
) -> None:
    with start(script, "all") as process:
        workers = wait_until_stuck(process, tmp_path)
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
        seconds = time.monotonic() - started
    assert output.splitlines()[-1] == "5 0 0 True False"
    assert seconds < 30  # the jobs would hang for 100
    assert not any(map(is_alive, workers))
    assert list((directory / "tmp").iterdir()) == []
    with start(script, "rest") as process:
        output, _ = process.communicate()
    assert output.splitlines()[-1] == "0 5 0 False True"
    assert (
        run_fresh(directory, "from compcache import Cache; result = Cache(directory).get_target('local')()")
        == 11
    )


@pytest.mark.slow
def test_workers_end_with_a_parent_that_is_killed(script: list[str], tmp_path: Path) -> None:
    with start(script, "all") as process:
        workers = wait_until_stuck(process, tmp_path)
        process.kill()
        process.communicate()
    while any(map(is_alive, workers)):
        time.sleep(0.05)


@pytest.mark.slow
def test_a_main_script_without_a_guard_is_told_so(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "unguarded.py"
    path.write_text(
        textwrap.dedent(f"""
        from compcache.batch import Job, compile_many
        from compcache import ModuleSource
        def build():
            return ModuleSource({constant("f", 1)!r})
        print(compile_many({str(directory)!r}, [Job("f", build)], workers=1).failed[0].message)
        """)
    )
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        check=False,
    )
    assert 'under `if __name__ == "__main__":`' in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("is_archive", [False, True])
def test_functions_of_a_directory_or_an_archive_that_python_runs_are_jobs(directory: Path, tmp_path: Path, is_archive: bool) -> None:
    program = tmp_path / "program"
    program.mkdir()
    (program / "beside.py").write_text("VALUE = 4\n")
    (program / "__main__.py").write_text(
        textwrap.dedent(f"""
        from beside import VALUE
        from compcache.batch import Job, compile_many
        from compcache import ModuleSource
        def build():
            return ModuleSource({constant("f", 1)!r}.replace("1", str(VALUE)))
        if __name__ == "__main__":
            print(compile_many({str(directory)!r}, [Job("f", build)], workers=1))
        """)
    )
    if is_archive:
        zipapp.create_archive(program, program := tmp_path / "program.pyz")
    environment = os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)}
    done = subprocess.run([sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.startswith("1 built"), (done.stdout, done.stderr)
    with Cache(directory) as cache:
        assert cache.get_target("f")() == 4


@pytest.mark.slow
def test_two_batches_at_once_build_every_function_once(
    cache: Cache, jobs: ModuleType, directory: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    work = [Job(f"f{n}", jobs.note, (f"f{n}", str(log))) for n in range(6)]
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda work: compile_many(directory, work, workers=1), [work, work[::-1]])
    assert len(first.built) + len(second.built) == 6
    assert sorted(line.split()[0] for line in log.read_text().splitlines()) == [f"f{n}" for n in range(6)]
    assert cache.has("f5")


@pytest.mark.slow
def test_workers_open_the_cache_as_their_caller_does(directory: Path) -> None:
    with Cache(directory, signing_key=b"secret") as signed:
        assert len(compile_many(signed, [ModuleSource(constant("f", 1))], workers=1).built) == 1
        assert signed.get_target("f")() == 1
    with Cache(directory, readonly=True) as readonly, pytest.raises(StorageError, match="readonly=True"):
        compile_many(readonly, [ModuleSource(constant("f", 1))])


@pytest.mark.parametrize("wrong", [3, "text", (1, 2, 3, 4), Job("f", 3)])  # type: ignore[arg-type]
def test_what_is_no_job_is_refused_before_anything_is_done(cache: Cache, wrong: object) -> None:
    with pytest.raises(TypeError, match="job 1"):
        compile_many(cache, [ModuleSource(constant("f", 1)), wrong])
    assert not cache.has("f")
    with pytest.raises(ValueError, match="at least 1"):
        compile_many(cache, [], workers=0)


# ---------------------------------------------------------------------------------- executors


class Immediately(Executor):
    """The smallest executor: runs everything at once, in the caller's thread."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - as executors do
            future.set_exception(error)
        return future


@pytest.mark.parametrize("kind", ["own", "threads", "processes"])
def test_any_executor_serves(
    cache: Cache, jobs: ModuleType, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    kinds: dict[str, Callable[[], Executor]] = {
        "own": Immediately,
        "threads": lambda: ThreadPoolExecutor(2),
        "processes": lambda: ProcessPoolExecutor(2, get_context("spawn")),
    }
    if kind != "processes":
        refuse_processes(monkeypatch)
    work = [
        *[Job(f"f{n}", jobs.constant, (f"f{n}", n)) for n in range(4)],
        ModuleSource(constant("g", 9)),
        Job("wrong", jobs.wrong, ("wrong",)),
    ]
    with kinds[kind]() as executor:
        report = compile_many(cache, work, executor=executor)
        assert (len(report.built), names(report.failed)) == (5, ["wrong"])
        assert report.failed[0].error == "ZeroDivisionError"
        assert len(compile_many(cache, work[:5], executor=executor).cached) == 5
    assert [cache.get_target(name)() for name in ("f3", "g")] == [3, 9]


@pytest.mark.slow
def test_jobs_that_a_broken_executor_lost_are_built_all_the_same(cache: Cache, jobs: ModuleType) -> None:
    work = [
        Job("killed", jobs.dies, ("killed", "SIGKILL")),
        *[Job(f"f{n}", jobs.constant, (f"f{n}", n)) for n in range(4)],
    ]
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        report = compile_many(cache, work, executor=executor, workers=1)
    assert names(report.built) == ["f0", "f1", "f2", "f3"]
    assert (report.failed[0].signal, report.failed[0].output) == ("SIGKILL", "last words of killed")


class Losing(Immediately):
    """Loses each job that it gets for the first time, each in another way, as engines do whose workers are killed."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if args[1] in self.seen:
            return super().submit(function, *args, **kwargs)
        self.seen.add(args[1])
        if len(self.seen) % 3 == 0:
            raise RuntimeError("it takes no jobs now")
        future: Future[Any] = Future()
        if len(self.seen) % 3 == 1:
            future.set_exception(ValueError("what this engine says of a worker that was lost"))
        else:
            future.cancel()
            future.set_running_or_notify_cancel()
        return future


def test_what_an_executor_loses_is_submitted_once_more(cache: Cache, jobs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_processes(monkeypatch)
    work = [*[Job(f"f{n}", jobs.constant, (f"f{n}", n)) for n in range(6)], Job("wrong", jobs.wrong, ("wrong",))]
    report = compile_many(cache, work, executor=Losing())
    assert (len(report.built), names(report.failed)) == (6, ["wrong"])
    assert (report.failed[0].kind, report.failed[0].error) == ("error", "ZeroDivisionError")
    assert {job.attempts for job in report.built} == {2}


@pytest.mark.slow
def test_an_executor_that_breaks_is_made_anew(cache: Cache, jobs: ModuleType) -> None:
    """By the function that was given instead of it; jobs that were lost alone are retried, and one that kills its worker fails."""
    made: list[ProcessPoolExecutor] = []

    class OfACluster(ProcessPoolExecutor):
        pass

    def make() -> Executor:
        made.append(OfACluster(1, get_context("spawn")))
        return made[-1]

    work = [*[Job(f"f{n}", jobs.constant, (f"f{n}", n)) for n in range(4)], Job("killed", jobs.dies, ("killed", "SIGKILL"))]
    report = compile_many(cache, work, executor=make, workers=1)
    for executor in made:
        executor.shutdown()
    assert sorted(names(report.built) + names(report.cached)) == ["f0", "f1", "f2", "f3"]
    assert [(job.name, job.kind) for job in report.failed] == [("killed", "died")]
    assert len(made) >= 2


@pytest.mark.slow
def test_an_executor_s_job_that_takes_too_long_is_given_up(cache: Cache, jobs: ModuleType) -> None:
    with ThreadPoolExecutor(1) as executor:
        report = compile_many(
            cache,
            [Job("slow", jobs.slow, ("slow", 1.5)), ModuleSource(constant("f", 1))],
            executor=executor,
            timeout=0.4,
        )
    assert names(report.built) == ["f"]
    assert (report.failed[0].name, report.failed[0].kind) == ("slow", "timeout")


# ----------------------------------------------------------------------------------- progress


@pytest.mark.slow
def test_progress_tells_every_start_and_end(cache: Cache, jobs: ModuleType) -> None:
    cache.add_module(ModuleSource(constant("known", 1)))
    moments: list[BatchProgress] = []
    work = [
        ModuleSource(constant("known", 1)),
        *[Job(f"f{n}", jobs.constant, (f"f{n}", n)) for n in range(3)],
        Job("wrong", jobs.wrong, ("wrong",)),
    ]
    report = compile_many(cache, work, workers=2, progress=moments.append)
    last = moments[-1]
    assert (last.total, last.done, last.built, last.cached, last.failed, last.running) == (5, 5, 3, 1, 1, ())
    assert [moment.done for moment in moments] == sorted(moment.done for moment in moments)
    ended = [moment.last for moment in moments if moment.last is not None]
    assert sorted(map(id, ended)) == sorted(map(id, [*report.built, *report.cached, *report.failed]))
    assert {name for moment in moments for name in moment.running} == {"f0", "f1", "f2", "wrong"}
    assert max(len(moment.running) for moment in moments) <= 2
    assert last.rate > 0
    assert last.remaining == 0


def test_an_exception_of_the_progress_function_ends_the_batch(cache: Cache, jobs: ModuleType) -> None:
    def fail(_: BatchProgress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compile_many(cache, [Job("hangs", jobs.hangs, ("hangs",))], progress=fail)


@pytest.mark.slow
def test_plain_lines_where_there_is_no_terminal(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    compile_many(cache, [ModuleSource(constant("f", 1)), ModuleSource("no")], workers=1, progress=True)
    compile_many(cache, [ModuleSource(constant("f", 1))], workers=1, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("[1/2] built   f  ")
    assert "KiB" in lines[0]
    assert lines[1].startswith("[2/2] failed  job 1  ")
    assert lines[2].startswith("[1/1] cached  f  ")


@pytest.mark.slow
def test_a_bar_on_a_terminal(directory: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    code = f"""
from compcache import ModuleSource
from compcache.batch import compile_many
jobs = [ModuleSource("define i64 @shown_%d() {{\\n  ret i64 %d\\n}}\\n" % (n, n)) for n in range(4)]
compile_many({str(directory)!r}, [*jobs, ModuleSource("no")], workers=1, progress=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=theirs,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT), "TERM": "xterm", "COLUMNS": "120"},
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                break  # the other end is closed
            shown += part
            if not part:
                break
        assert process.wait(30) == 0
    os.close(ours)
    text = shown.decode()
    assert "5/5" in text
    assert "/s" in text
    assert "failed  job 4" in text


def test_a_batch_runs_in_a_directory_that_was_removed(directory: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"""
import os
os.chdir({str(gone)!r})
os.rmdir({str(gone)!r})
from compcache import ModuleSource
from compcache.batch import compile_many
from compcache.batch.spec import SpecError, read_specs
try:
    read_specs(["json:jobs"])
except SpecError as error:
    message = str(error)
sys.path.insert(0, "")
report = compile_many(directory, [ModuleSource({adder("f", 1)!r})], workers=1)
result = [message, len(report.built)]
"""
    message, count = run_fresh(directory, script)
    assert "has no attribute 'jobs'" in message
    assert count == 1
