"""Worker processes that may die: a job that kills its worker affects no other job.

A worker has one job at a time, and a channel of its own. If a worker dies, or is ended after a timeout, its job has
failed, and the next job gets a new worker. The same applies after a job that left processes behind: they are ended with
their worker.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from multiprocessing.spawn import get_executable
from typing import TYPE_CHECKING, Any

from compcache.batch.build import Outcome, failure
from compcache.batch.channel import Channel, ChannelError, new_token, socket_pair
from compcache.batch.process_tree import MARK, descendants, end_processes, marked
from compcache.batch.worker import Answer, Assignment, MainModule, Setup
from compcache.files import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from compcache.batch.jobs import PreparedJob

__all__ = ["WorkerPool"]

_GRACE = 0.7
_MAX_OUTPUT = 8_000
#: How long a worker may go on after its channel was closed, and how long a worker takes to end.
_STUCK = 60.0
_END = 0.2
#: How long an interpreter and LLVM may take to start, if jobs have a timeout.
_START = 60.0
#: The interval for polling workers: one that has ended may have left a child that keeps its socket open.
_TICK = 0.2
_PAUSE = 0.003
_COMMAND = "import sys; sys.path[:] = {path!r}; from compcache.batch.worker import main; main({descriptor}, {token!r})"


class _Worker:
    """A worker process and its current job."""

    def __init__(self, setup: Setup) -> None:
        self.job: PreparedJob | None = None
        self.is_ready = False
        self.is_spent = False
        self._is_deaf = False
        self.started = 0.0
        self.deadline = float("inf")
        self.mark = secrets.token_hex(8)
        self.output = tempfile.TemporaryFile(prefix="compcache-worker-", buffering=0)  # noqa: SIM115 - see `close`
        self._timeout: float | None = None
        token = new_token()
        end, other = socket_pair()
        self.channel = Channel(end, token)
        try:
            self.process = self._start(other.fileno(), token)
        except BaseException:
            self.channel.close()
            self.output.close()
            raise
        finally:
            other.close()
        self.channel.post(setup)
        self.channel.flush(block=False)

    def _start(self, descriptor: int, token: bytes) -> subprocess.Popen[bytes]:
        path = [os.path.abspath(entry) if entry == "" else entry for entry in sys.path]
        executable = os.fsdecode(get_executable() or sys.executable)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        return subprocess.Popen(
            [executable, *flags, "-c", _COMMAND.format(path=path, descriptor=descriptor, token=token)],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            pass_fds=(descriptor,),
            env=os.environ | {MARK: self.mark},
            process_group=0,  # unaffected by the terminal's Ctrl-C, and signalled together with its children
        )

    def assign(self, job: PreparedJob, payload: bytes, timeout: float | None) -> bool:
        """Give the worker a job; return False if it has already ended."""
        self.output.seek(0)  # the offset is shared with the worker
        self.output.truncate()
        self.job = job
        self._timeout = timeout
        self._start_clock(0.0 if self.is_ready else _START)
        self.channel.post(Assignment(payload, job.functions))
        return self.channel.flush(block=False)

    def _start_clock(self, more: float) -> None:
        self.started = time.monotonic()
        self.deadline = float("inf") if self._timeout is None else self.started + self._timeout + more

    def collect(self) -> Outcome | None:
        """Return the outcome of the job, or of the worker's end; None if neither has ended."""
        has_ended = self.has_ended()  # checked before its last messages are read
        if self.channel.has_unsent:
            self.channel.flush(block=False)  # if the worker is gone, the code below notices
        try:
            answers = self.channel.received()
        except ChannelError as error:
            return self._death(f": {error}")
        for answer in answers:
            if isinstance(answer, Answer):
                self.job = None
                self.is_spent = answer.leaves_processes
                return answer.outcome
            self.is_ready = True
            self._start_clock(0.0)  # the interpreter's start does not count as the job's time
        if has_ended or (self.channel.is_closed and self._has_gone_deaf()):
            return self._death()
        return None

    def _has_gone_deaf(self) -> bool:
        """Return whether the worker behind a closed channel has ended. A job that closes descriptors may still finish its work."""
        if not self._is_deaf:
            self._is_deaf = True
            self.deadline = min(self.deadline, time.monotonic() + _STUCK)
            return self.wait(_END)  # it is ending just now
        return time.monotonic() >= self.deadline

    def has_ended(self) -> bool:
        """Return whether the process has ended; it stays a zombie, so that its id and its group are not reused."""
        if self.process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError as error:
            reraise_interrupt(error)
            return True

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process; return False if it is still running."""
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE)
        return True

    def _death(self, reason: str = "") -> Outcome:
        assert self.job is not None
        below = [] if self.has_ended() else descendants([self.process.pid])
        self.signal(signal.SIGKILL)
        status = self.process.wait()
        end_processes(below)
        output = self.tail()
        signal_name = _signal_name(-status) if status < 0 else None
        how = f"was ended by {signal_name}" if signal_name else f"exited with status {status}"
        lines = [line for line in output.splitlines() if line.strip()]
        return Outcome(
            "died",
            self.job.functions,
            seconds=time.monotonic() - self.started,
            message=f"its worker process {how}" + (reason or (f": {lines[-1].strip()[:300]}" if lines else "")),
            signal=signal_name,
            exit_status=status if status >= 0 else None,
            output=output,
        )

    def expire(self) -> Outcome:
        """End the worker because its job timed out."""
        assert self.job is not None
        seconds = time.monotonic() - self.started
        functions = self.job.functions
        _end([self])
        did_what = "finish" if self.is_ready else "start"
        return Outcome(
            "timeout",
            functions,
            seconds=seconds,
            message=f"it did not {did_what} within {self._timeout:g} s and was stopped",
            signal="SIGKILL" if self.process.returncode == -signal.SIGKILL else "SIGTERM",
            output=self.tail(),
        )

    def tail(self) -> str:
        """Return the end of the worker's output during its job."""
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - _MAX_OUTPUT))
        return self.output.read().decode("utf-8", "replace").replace("\0", "").strip()

    def signal(self, number: int) -> None:
        """Send a signal to the worker and the processes of its group."""
        if self.process.returncode is not None:
            return
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError) as error:
            reraise_interrupt(error)
            return

    def close(self) -> None:
        """Release all resources; the process must have ended."""
        self.channel.close()
        self.output.close()


class WorkerPool:
    """Up to `workers` processes, started when there are jobs for them.

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
        """The running jobs."""
        return tuple([worker.job for worker in self._busy if worker.job is not None])

    def run(self, jobs: Iterable[PreparedJob]) -> Iterator[tuple[PreparedJob, Outcome | None]]:
        """Run the jobs; yields each with None when it starts, and with its outcome when it has ended."""
        waiting = deque(jobs)
        while waiting or self._busy:
            while waiting and len(self._busy) < self._workers:
                job = waiting.popleft()
                yield job, self._begin(job)
            yield from self._finished()

    def run_alone(self, job: PreparedJob) -> Iterator[tuple[PreparedJob, Outcome | None]]:
        """Run one job in a new process while no other worker runs."""
        self.close()
        yield from self.run([job])
        self.close()

    def _begin(self, job: PreparedJob) -> Outcome | None:
        """Start a job; return its outcome if it cannot be started."""
        started = time.perf_counter()
        try:
            payload = job.payload()
        except TypeError as error:
            reraise_interrupt(error)
            return failure(error, job.functions, started)
        try:
            self._busy.append(self._take(job, payload))
        except OSError as error:
            reraise_interrupt(error)
            return failure(error, job.functions, started)
        return None

    def _take(self, job: PreparedJob, payload: bytes) -> _Worker:
        """Assign the job to an idle worker that is still alive, or else to a new one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.assign(job, payload, self._timeout):
                return worker
            self._discard(worker)
        worker = _Worker(self._setup)
        # If it has already ended, `collect` finds out.
        worker.assign(job, payload, self._timeout)
        return worker

    def _finished(self) -> Iterator[tuple[PreparedJob, Outcome]]:
        """Wait for events and yield the jobs that have ended."""
        if not self._busy:
            return
        self._wait()
        for worker in list(self._busy):
            job = worker.job
            assert job is not None
            outcome = worker.collect()
            if outcome is None and time.monotonic() >= worker.deadline:
                outcome = worker.expire()
            if outcome is not None:
                self._busy.remove(worker)
                if worker.job is None and not worker.is_spent:
                    self._idle.append(worker)
                else:
                    self._discard(worker)
                yield job, outcome

    def _wait(self) -> None:
        """Wait until a channel is ready, for the first deadline, or for `_TICK`."""
        pause = min(worker.deadline for worker in self._busy) - time.monotonic()
        poller = select.poll()
        for worker in self._busy:
            if worker.channel.is_closed:
                continue
            poller.register(worker.channel, select.POLLIN | (select.POLLOUT if worker.channel.has_unsent else 0))
        poller.poll(1000 * max(0.0, min(pause, _TICK)))

    @staticmethod
    def _discard(worker: _Worker) -> None:
        _end([worker])
        worker.close()

    def close(self) -> None:
        """End all processes within two seconds: idle ones by closing their channels, the others by signals."""
        workers = [*self._idle, *self._busy]
        busy = list(self._busy)
        self._idle, self._busy = [], []
        for worker in workers:
            worker.channel.close()
        _end(busy)
        _end([worker for worker in workers if worker not in busy], ask=False)
        for worker in workers:
            worker.close()


def _end(workers: list[_Worker], *, ask: bool = True) -> None:
    """End processes and their descendants: SIGTERM, on which they remove partly written files, then SIGKILL."""
    if not workers:
        return
    below = descendants([worker.process.pid for worker in workers if worker.process.returncode is None])
    if ask:
        for worker in workers:
            worker.signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE
    for worker in workers:
        worker.wait(max(0.0, deadline - time.monotonic()))
    left = [*below, *marked([worker.mark for worker in workers])]
    numbers = {worker.process.pid for worker in workers}
    end_processes([process for process in left if process.number not in numbers])
    for worker in workers:
        worker.signal(signal.SIGKILL)  # its group, which exists as long as it is a zombie
        worker.process.wait()


def _signal_name(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError as error:
        reraise_interrupt(error)
        return f"signal {number}" if number > 0 else None


def _main_module() -> MainModule:
    """Return the name of the main module, if it was started by name, or else its file."""
    main: Any = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return MainModule(spec.name, None)
    path = getattr(main, "__file__", None)
    return MainModule(None, os.path.abspath(path) if path else None)
