"""Batches on other people's executors: Dask with workers that are killed; a contract that loky, mpi4py and Parsl keep as well."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from helpers import constant

from compcache import Cache, ModuleSource
from compcache.batch import Job, compile_many

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


def build(name: str, value: int) -> ModuleSource:
    return ModuleSource(constant(name, value))


def kill_this_worker(name: str) -> ModuleSource:
    os.kill(os.getpid(), signal.SIGKILL)
    return ModuleSource(constant(name, 0))


def sleep_long(name: str) -> ModuleSource:
    time.sleep(20)
    return ModuleSource(constant(name, 0))


@pytest.fixture
def client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    dask.config.set({"distributed.scheduler.allowed-failures": 1, "distributed.worker.multiprocessing-method": "spawn"})
    sys.path.insert(0, os.path.dirname(__file__))
    os.environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))])
    with (
        distributed.LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def jobs(count: int) -> list[Job]:
    return [Job(f"f{number}", build, (f"f{number}", number)) for number in range(count)]


def test_a_cluster_whose_workers_are_killed_loses_no_job(client: Any, tmp_path: Path) -> None:
    count = int(os.environ.get("COMPCACHE_TEST_JOBS", "300"))
    ended = threading.Event()

    def kill_two() -> None:
        choice = random.Random(7)
        for _ in range(2):
            if ended.wait(2.0):
                return
            pids = list(client.run(os.getpid).values())
            os.kill(choice.choice(pids), signal.SIGKILL)

    killer = threading.Thread(target=kill_two)
    killer.start()
    try:
        report = compile_many(tmp_path / "cache", jobs(count), executor=client.get_executor())
    finally:
        ended.set()
        killer.join()
    assert [(job.name, job.message) for job in report.failed] == []
    assert len(report.built) + len(report.cached) == count
    with Cache(tmp_path / "cache") as cache:
        assert all(cache.get_target(f"f{number}")() == number for number in range(count))


def test_a_job_that_kills_its_workers_fails_alone_and_never_runs_here(client: Any, tmp_path: Path) -> None:
    bad = Job("bad", kill_this_worker, ("bad",))
    report = compile_many(tmp_path / "cache", [*jobs(6), bad], executor=client.get_executor())
    assert [(job.name, job.message) for job in report.failed if job.name != "bad"] == []
    done = {job.name for job in report.built} | {job.name for job in report.cached}  # some were stored before their worker was lost
    assert done == {f"f{number}" for number in range(6)}
    (failed,) = report.failed
    assert (failed.name, failed.kind, failed.attempts) == ("bad", "died", 2)


def test_a_job_that_takes_too_long_is_given_up(client: Any, tmp_path: Path) -> None:
    """Dask's futures never say that they run: jobs report their start."""
    slow = Job("slow", sleep_long, ("slow",))
    report = compile_many(tmp_path / "cache", [slow, *jobs(8)], executor=client.get_executor(), timeout=5)
    assert [(job.name, job.kind) for job in report.failed] == [("slow", "timeout")]
    assert report.failed[0].seconds < 15
    assert len(report.built) == 8


def test_a_worker_has_what_a_graph_calls_before_its_tasks_run(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its functions are in a cache that is not there any more, and in a store that is gone when the tasks run."""
    import dask

    from compcache.dask import PrefetchPlugin, functions_of

    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    url = (tmp_path / "store").as_uri()
    with Cache(tmp_path / "cache", remote=url, remote_mode="write") as cache:
        target = cache.get_or_compile("f", lambda: ModuleSource("define i64 @f(i64 %x) {\n ret i64 %x\n}\n"))
        cache.push(["f"])
        assert cache.flush_uploads(60)
        graph = dask.delayed(sum)([dask.delayed(target, pure=True)(number) for number in range(4)])
        plugin = PrefetchPlugin(functions_of(graph), remote=url)
        shutil.rmtree(tmp_path / "cache")
        client.register_plugin(plugin)
        shutil.rmtree(tmp_path / "store")
        assert (tmp_path / "cache").exists()
        assert client.compute(graph).result(60) == 6
    shutil.rmtree(tmp_path / "run")


# -------------------------------------------------------------------------------------- any executor

PACKAGES = {
    "dask": "distributed", "executorlib": "executorlib", "loky": "loky", "mpi": "mpi4py.futures", "parsl": "parsl", "ray": "ray",
}  # fmt: skip
CONTRACT = os.path.join(os.path.dirname(__file__), "executor_contract.py")


def run_contract(kind: str, case: str, directory: Path, **variables: str) -> dict[str, Any]:
    """The report of a batch on an executor, which runs in a process of its own."""
    if importlib.util.find_spec(PACKAGES[kind].partition(".")[0]) is None:
        pytest.skip(f"{PACKAGES[kind]} is not installed")
    if kind == "mpi" and subprocess.run([sys.executable, "-c", "from mpi4py import MPI"], check=False, capture_output=True).returncode:
        pytest.skip("there is no MPI library")
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = {"PYTHONPATH": package, "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"}
    output = directory.with_name(f"{directory.name}.{case}.out")
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, CONTRACT, kind, case, str(directory)], env=os.environ | path | variables, cwd=directory.parent,
            stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(120)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # workers that nobody waits for
    lines = [line for line in output.read_text().splitlines() if line.startswith("REPORT ")]
    assert lines, output.read_text()
    report: dict[str, Any] = json.loads(lines[0].removeprefix("REPORT "))
    return report


@pytest.mark.parametrize("kind", sorted(PACKAGES))
def test_jobs_are_built_once(tmp_path: Path, kind: str) -> None:
    report = run_contract(kind, "plain", tmp_path / "cache")
    assert (len(report["built"]), report["failed"]) == (12, [])
    assert len(run_contract(kind, "plain", tmp_path / "cache")["cached"]) == 12
    with Cache(tmp_path / "cache") as cache:
        assert sorted(cache.get_target(name)() for name in cache) == list(range(12))


@pytest.mark.parametrize("kind", sorted(set(PACKAGES) - {"mpi"}))  # MPI ends with the process that is killed
def test_a_job_that_kills_its_workers_costs_no_other(tmp_path: Path, kind: str) -> None:
    report = run_contract(kind, "killed", tmp_path / "cache")
    assert [(job["name"], job["kind"]) for job in report["failed"] if job["name"] == "bad"] == [("bad", "died")]
    done = len(report["built"]) + len(report["cached"])
    assert done == 12


@pytest.mark.parametrize("kind", sorted(PACKAGES))
def test_timeouts_count_from_the_start_that_jobs_report(tmp_path: Path, kind: str) -> None:
    report = run_contract(kind, "slow", tmp_path / "cache")
    assert [(job["name"], job["kind"]) for job in report["failed"]] == [("slow", "timeout")]
    assert len(report["built"]) == 12


@pytest.mark.parametrize("kind", sorted(PACKAGES))
def test_workers_with_a_directory_of_their_own_share_by_the_store(tmp_path: Path, kind: str) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    store = (tmp_path / "store").as_uri()
    try:
        report = run_contract(kind, "apart", tmp_path / "cache", STORE=store, XDG_RUNTIME_DIR=str(runtime))
        assert len(report["built"]) == 12
        end = time.monotonic() + 60
        while time.monotonic() < end and len([p for p in (tmp_path / "store" / "ccr3" / "f").rglob("*") if p.is_file()]) < 12:
            time.sleep(0.2)
    finally:
        shutil.rmtree(runtime)
    with Cache(tmp_path / "reader", remote=store) as cache:
        names = [name for job in report["built"] for name in job["functions"]]
        assert set(cache.prefetch(names)) == set(names)
        assert sorted(cache.get_target(name)() for name in names) == list(range(12))
    with Cache(tmp_path / "cache") as cache:
        assert not list(cache)
