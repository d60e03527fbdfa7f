"""Batches on other people's executors: Dask with workers that are killed, loky."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
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


def test_loky_s_lost_workers(tmp_path: Path) -> None:
    loky = pytest.importorskip("loky")
    executor = loky.get_reusable_executor(max_workers=2)
    report = compile_many(tmp_path / "cache", jobs(40), executor=executor)
    executor.shutdown()
    assert len(report.built) == 40
