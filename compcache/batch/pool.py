"""Worker processes that may die: each job is watched, and costs no other job anything.

One job is with one worker at a time, over a socket of its own. Where a worker ends, or is ended because its time is
over, its job has failed, and the next job gets a new worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import wait
from multiprocessing.spawn import get_executable
from typing import TYPE_CHECKING, Any

from compcache.batch.build import Outcome, failure
from compcache.batch.worker import Assignment, MainModule, Setup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from compcache.batch.jobs import PreparedJob

__all__ = ["WorkerPool"]

_GRACE = 0.7
_MAX_OUTPUT = 8_000
_STUCK = 5.0
_COMMAND = "import sys; sys.path[:] = {path!r}; from compcache.batch.worker import main; main({descriptor})"


class _Worker:
    """One worker process and the job that it has."""

    def __init__(self, setup: Setup) -> None:
        self.job: PreparedJob | None = None
        self.is_ready = False
        self.started = 0.0
        self.deadline = float("inf")
        self.output = tempfile.TemporaryFile(prefix="compcache-worker-", buffering=0)  # noqa: SIM115 - see `close`
        self._timeout: float | None = None
        self.connection, other = Pipe()
        try:
            self.process = self._start(other.fileno())
        except BaseException:
            self.connection.close()
            self.output.close()
            raise
        finally:
            other.close()
        self._send(setup)

    def _start(self, descriptor: int) -> subprocess.Popen[bytes]:
        path = [os.path.abspath(entry) if entry == "" else entry for entry in sys.path]
        executable = os.fsdecode(get_executable() or sys.executable)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        return subprocess.Popen(
            [executable, *flags, "-c", _COMMAND.format(path=path, descriptor=descriptor)],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            pass_fds=(descriptor,),
            process_group=0,  # out of the reach of the terminal's Ctrl-C, and one target with its children
        )

    def _send(self, message: Setup | Assignment) -> bool:
        """Send a message; False where the worker has ended already."""
        try:
            self.connection.send(message)
        except OSError:
            return False
        return True

    def assign(self, job: PreparedJob, payload: bytes, timeout: float | None) -> bool:
        """Give the worker a job; False where it has ended already."""
        self.output.seek(0)  # the offset is shared with the worker
        self.output.truncate()
        self.job = job
        self._timeout = timeout
        self.started = time.monotonic()
        if self.is_ready:
            self._start_clock()
        return self._send(Assignment(payload, job.functions))

    def _start_clock(self) -> None:
        self.started = time.monotonic()
        self.deadline = float("inf") if self._timeout is None else self.started + self._timeout

    def collect(self) -> Outcome | None:
        """What became of the job, or of the worker; None where there is no more news than that it listens."""
        try:
            outcome: Outcome | None = self.connection.recv()
        except (EOFError, OSError):
            return self._death()
        if outcome is None:
            self.is_ready = True
            self._start_clock()  # what the interpreter took to start is not the job's time
        else:
            self.job = None
        return outcome

    def _death(self) -> Outcome:
        assert self.job is not None
        try:
            status = self.process.wait(_STUCK)
        except subprocess.TimeoutExpired:  # it closed its socket and goes on
            self.kill()
            status = self.process.wait()
        output = self.tail()
        signal_name = _signal_name(-status) if status < 0 else None
        how = f"was ended by {signal_name}" if signal_name else f"exited with status {status}"
        lines = [line for line in output.splitlines() if line.strip()]
        return Outcome(
            "died",
            self.job.functions,
            seconds=time.monotonic() - self.started,
            message=f"its worker process {how}" + (f": {lines[-1].strip()[:300]}" if lines else ""),
            signal=signal_name,
            exit_status=status if status >= 0 else None,
            output=output,
        )

    def expire(self) -> Outcome:
        """End the worker because its time is over."""
        assert self.job is not None
        seconds = time.monotonic() - self.started
        functions = self.job.functions
        _end([self])
        return Outcome(
            "timeout",
            functions,
            seconds=seconds,
            message=f"it did not finish within {self._timeout:g} s and was stopped",
            signal="SIGKILL" if self.process.returncode == -signal.SIGKILL else "SIGTERM",
            output=self.tail(),
        )

    def tail(self) -> str:
        """The last that the worker printed during its job."""
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - _MAX_OUTPUT))
        return self.output.read().decode("utf-8", "replace").replace("\0", "").strip()

    def signal(self, number: int) -> None:
        """Send a signal to the worker and the processes that it has started."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def kill(self) -> None:
        """End the worker at once."""
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Give everything back; the process must have ended."""
        self.connection.close()
        self.output.close()


class WorkerPool:
    """Up to `workers` processes that are started when there are jobs for them.

    `run` may be called several times; `close` ends the processes.
    """

    def __init__(self, settings: dict[str, Any], workers: int, timeout: float | None) -> None:
        self._setup = Setup(settings, _main_module())
        self._workers = workers
        self._timeout = timeout
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []

    @property
    def running(self) -> tuple[PreparedJob, ...]:
        """The jobs that are being done."""
        return tuple([worker.job for worker in self._busy if worker.job is not None])

    def run(self, jobs: Iterable[PreparedJob]) -> Iterator[tuple[PreparedJob, Outcome | None]]:
        """Do the jobs; yields each when it starts, with None, and when it has ended, with its outcome."""
        waiting = deque(jobs)
        while waiting or self._busy:
            while waiting and len(self._busy) < self._workers:
                job = waiting.popleft()
                yield job, self._begin(job)
            yield from self._finished()

    def run_alone(self, job: PreparedJob) -> Iterator[tuple[PreparedJob, Outcome | None]]:
        """Do one job in a new process while no other worker runs."""
        self.close()
        yield from self.run([job])
        self.close()

    def _begin(self, job: PreparedJob) -> Outcome | None:
        """Start a job; the outcome where it cannot be."""
        started = time.perf_counter()
        try:
            payload = job.payload()
        except TypeError as error:
            return failure(error, job.functions, started)
        try:
            self._busy.append(self._take(job, payload))
        except OSError as error:
            return failure(error, job.functions, started)
        return None

    def _take(self, job: PreparedJob, payload: bytes) -> _Worker:
        """A worker that has the job: one that waited for it, unless it has ended meanwhile, or a new one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.assign(job, payload, self._timeout):
                return worker
            self._discard(worker)
        worker = _Worker(self._setup)
        # Whether it has ended already, who waits for its answer finds out.
        worker.assign(job, payload, self._timeout)
        return worker

    def _finished(self) -> Iterator[tuple[PreparedJob, Outcome]]:
        """Wait for some job to end."""
        if not self._busy:
            return
        pause = min(worker.deadline for worker in self._busy) - time.monotonic()
        connections = [worker.connection for worker in self._busy]
        ready = wait(connections, None if pause == float("inf") else max(0.0, pause))
        for worker in list(self._busy):
            job = worker.job
            assert job is not None
            outcome: Outcome | None = None
            if worker.connection in ready:
                outcome = worker.collect()
            elif time.monotonic() >= worker.deadline:
                outcome = worker.expire()
            if outcome is not None:
                self._busy.remove(worker)
                if worker.job is None:
                    self._idle.append(worker)
                else:
                    self._discard(worker)
                yield job, outcome

    @staticmethod
    def _discard(worker: _Worker) -> None:
        _end([worker])
        worker.close()

    def close(self) -> None:
        """End all processes: those without a job by hanging up, the others by signals; within two seconds."""
        workers = [*self._idle, *self._busy]
        busy = list(self._busy)
        self._idle, self._busy = [], []
        for worker in workers:
            worker.connection.close()
        _end(busy)
        _end([worker for worker in workers if worker not in busy], ask=False)
        for worker in workers:
            worker.close()


def _end(workers: list[_Worker], *, ask: bool = True) -> None:
    """End processes: SIGTERM, which removes what is half-written, then SIGKILL. All of them wait together."""
    if ask:
        for worker in workers:
            worker.signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE
    for worker in workers:
        try:
            worker.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.process.wait()


def _signal_name(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if number > 0 else None


def _main_module() -> MainModule:
    """The name of the main module, if it was started by name, or else its file."""
    main: Any = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return MainModule(spec.name, None)
    path = getattr(main, "__file__", None)
    return MainModule(None, os.path.abspath(path) if path else None)
