"""What `compile_many` promises on any executor, as a program: ``executor_contract.py EXECUTOR CASE DIRECTORY`` prints the report as JSON.

The executors run in a process of their own: MPI, and Parsl's processes, want one that is not a test's.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from compcache import Cache, Function, Identity, ModuleSource
from compcache.batch import Job, compile_many

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

HERE = os.path.dirname(os.path.abspath(__file__))
# Workers find this file by its name, and the package that is tested.
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, os.path.dirname(os.path.dirname(HERE)), *filter(None, [os.environ.get("PYTHONPATH")])])


def build(name: str, value: int) -> ModuleSource:
    return ModuleSource(f"define i64 @f() {{\n ret i64 {value}\n}}\n", {name: Function("i64()", symbol="f")})


def kill_this_worker(name: str) -> ModuleSource:
    os.kill(os.getpid(), signal.SIGKILL)
    return build(name, 0)


def sleep_long(name: str) -> ModuleSource:
    time.sleep(20)
    return build(name, 0)


def _here() -> Any:
    """This file under the name by which workers find its functions."""
    return import_module("executor_contract")


def jobs(count: int) -> list[Job]:
    names = [Identity("f", number=number).func_name for number in range(count)]
    return [Job(name, _here().build, (name, number)) for number, name in enumerate(names)]


@contextmanager
def dask() -> Iterator[Executor]:
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"distributed.scheduler.allowed-failures": 1})
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        yield client.get_executor()


@contextmanager
def loky() -> Iterator[Any]:
    """By the function that makes another one when one is broken."""
    from loky import get_reusable_executor

    yield partial(get_reusable_executor, max_workers=2)
    get_reusable_executor(max_workers=2).shutdown(wait=False, kill_workers=True)


@contextmanager
def executorlib() -> Iterator[Executor]:
    from executorlib import SingleNodeExecutor

    with SingleNodeExecutor(max_workers=2) as executor:
        yield executor


class OfRay:
    """An executor of the few lines that `docs/batch.md` shows."""

    def submit(self, function: Any, /, *arguments: Any) -> Any:
        import ray

        return ray.remote(max_retries=0)(function).remote(*arguments).future()


@contextmanager
def of_ray() -> Iterator[Any]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}})
    yield OfRay()
    ray.shutdown()


@contextmanager
def mpi() -> Iterator[Executor]:
    # Open MPI starts no more processes than there are cores, this one among them.
    os.environ["OMPI_MCA_rmaps_base_oversubscribe"] = "1"  # noqa: SIM112 - its spelling
    from mpi4py.futures import MPIPoolExecutor

    with MPIPoolExecutor(max_workers=2, path=[HERE]) as executor:
        yield executor


@contextmanager
def parsl() -> Iterator[Executor]:
    from parsl.concurrent import ParslPoolExecutor
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    high_throughput = HighThroughputExecutor(
        max_workers_per_node=2, address="127.0.0.1", loopback_address="127.0.0.1", encrypted=False,
        provider=LocalProvider(init_blocks=1, max_blocks=1),
    )  # fmt: skip
    with ParslPoolExecutor(config=Config(executors=[high_throughput], run_dir=f"{sys.argv[3]}-parsl", usage_tracking=0)) as executor:
        yield executor


EXECUTORS: dict[str, Any] = {"dask": dask, "executorlib": executorlib, "loky": loky, "mpi": mpi, "parsl": parsl, "ray": of_ray}


def main(kind: str, case: str, directory: str) -> None:
    options: dict[str, Any] = {}
    todo = jobs(12)
    cache = Cache(directory, remote=os.environ.get("STORE"), remote_mode="write" if "STORE" in os.environ else None)
    if case == "killed":
        todo.append(Job("bad", _here().kill_this_worker, ("bad",)))
    elif case == "slow":
        todo.insert(0, Job("slow", _here().sleep_long, ("slow",)))
        options["timeout"] = 4
    elif case == "apart":
        options["worker_directory"] = f"{directory}-of-workers"
    with EXECUTORS[kind]() as executor:
        report = compile_many(cache, todo, executor=executor, **options)
        sys.stdout.write(f"\nREPORT {json.dumps(report.as_dict())}\n")
        sys.stdout.flush()
        if case in ("slow", "killed"):
            os._exit(0)  # who waits for the workers waits for the job, or for a process that is gone


if __name__ == "__main__":
    main(*sys.argv[1:])
