"""What a Dask cluster costs a batch for each job: `python benchmarks/engines.py` (needs `distributed`).

Trivial functions, so that what is not compiling shows: by the batch's own worker processes, by `client.get_executor()` of a Dask cluster on
this host with as many workers, and, for the cluster itself, plain `client.submit`s of a function that returns its argument, all at once
and in a window of four per worker, as a batch submits. Wall time is from the first job to the last result, processes are started before
(those of the batch's own within it). Processor time is that of all processes, theirs included: the figure to trust on a machine that does
other things.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compcache import Cache, Identity, ModuleSource
from compcache.batch import Job, compile_many

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW = 4  # per worker, as in compcache.batch.executors


def jobs(count: int) -> list[Job]:
    """Functions that return a constant each."""
    return [Job(Identity("f", number=n), ModuleSource(f"define i64 @f() {{\n  ret i64 {n}\n}}\n")) for n in range(count)]


def batch(count: int, workers: int, client: Any) -> float:
    """The seconds of a batch in a new cache directory, on a cluster or (without a client) in processes of its own."""
    options = {"executor": client.get_executor()} if client is not None else {}
    with tempfile.TemporaryDirectory() as place, Cache(Path(place) / "cache") as cache:
        cache.add_module(ModuleSource("define i64 @warm() {\n  ret i64 1\n}\n"))
        wanted = jobs(count)
        started = time.perf_counter()
        report = compile_many(cache, wanted, workers=workers, **options)
        seconds = time.perf_counter() - started
    if len(report.built) != count:
        raise SystemExit(f"{len(report.built)} of {count} jobs were built: {report.failed[:4]}")
    return seconds


def same(number: int) -> int:
    """What a plain task does."""
    return number


def submits(count: int, workers: int, client: Any) -> float:
    """The seconds of as many plain tasks, submitted all at once."""
    del workers
    started = time.perf_counter()
    client.gather([client.submit(same, number, pure=False) for number in range(count)])
    return time.perf_counter() - started


def windowed(count: int, workers: int, client: Any) -> float:
    """The seconds of as many plain tasks, of which few are submitted at a time."""
    executor = client.get_executor(pure=False)
    started = time.perf_counter()
    running: set[Any] = set()
    for number in range(count):
        running.add(executor.submit(same, number))
        if len(running) == WINDOW * workers:
            running = wait(running, return_when=FIRST_COMPLETED).not_done
    wait(running)
    return time.perf_counter() - started


SIDES: dict[str, tuple[Callable[[int, int, Any], float], bool]] = {
    "batch, its own processes": (batch, False),
    "batch on Dask": (batch, True),
    "plain submits, all at once": (submits, True),
    "plain submits, a window": (windowed, True),
}


def processor_time() -> float:
    """The processor time of this process and of those that it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measure(side: str, count: int, workers: int) -> tuple[float, float]:
    """Wall and processor time of one side, in a child of its own."""
    run, on_cluster = SIDES[side]
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"  # what workers say when they are ended
        from distributed import Client, LocalCluster

        seconds = []
        if on_cluster:
            with LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
            ) as cluster, Client(cluster) as client:
                run(20 * workers, workers, client)  # imports, in every worker
                seconds.append(run(count, workers, client))
        else:
            seconds.append(run(count, workers, None))
        os.write(write, f"{seconds[0]} {processor_time()}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as answer:
        wall, processor = map(float, answer.read().split())
    return wall, processor


def main() -> None:
    """Print a line for each side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    print(f"{options.jobs} jobs, {options.workers} workers       wall s   ms per job   processor s   ms per job")
    for side in SIDES:
        few = measure(side, options.workers, options.workers)
        wall, processor = measure(side, options.jobs, options.workers)
        processor -= few[1]  # starting and ending everything
        print(f"{side:30}{wall:10.2f}{1e3 * wall / options.jobs:13.2f}{processor:14.2f}{1e3 * processor / options.jobs:13.2f}", flush=True)


if __name__ == "__main__":
    main()
