"""Worker processes that may die. A job that kills its worker affects no other job.

A worker has one job at a time, and its own channel. If a worker dies, or is ended after a timeout, its job has failed, and the
next job gets a new worker. A worker is also replaced after a job that left processes behind, which end with the worker, or that lowered
resource limits.
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

from compcache.batch.build import Outcome, failed_outcome
from compcache.batch.channel import Channel, ChannelError, new_token, socket_pair
from compcache.batch.process_tree import MARK, descendants, end_processes, processes_with_marks
from compcache.batch.worker import Answer, Assignment, MainModule, Setup
from compcache.interrupts import reraise_interrupt, suppress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from compcache.batch.jobs import PreparedJob

__all__ = ["WorkerPool"]

# Durations are in seconds.
_GRACE = 0.7  # between SIGTERM and SIGKILL
_MAX_OUTPUT = 8_000  # bytes of the output of a worker in a report
#: The longest time for which a worker may go on after its channel was closed.
_STUCK = 60.0
#: The time that a worker takes to end.
_END = 0.2
#: The longest time in which an interpreter and LLVM must start, if jobs have a timeout.
_START = 60.0
#: The interval for polling workers. A worker that has ended may have left a child that keeps its socket open.
_TICK = 0.2
_PAUSE = 0.003  # between two looks at a process that is about to end
_COMMAND = "import sys; sys.path[:] = {path!r}; from compcache.batch.worker import main; main({descriptor}, {token!r})"


class _Worker:
    """A worker process and its current job."""

    def __init__(self, setup: Setup) -> None:
        self.job: PreparedJob | None = None
        self.is_ready = False
        self.is_spent = False
        self._is_cut_off = False
        self.started = 0.0
        self.deadline = float("inf")
        self.mark = secrets.token_hex(8)
        self.output = tempfile.TemporaryFile(prefix="compcache-worker-", buffering=0)  # noqa: SIM115 - see `close`
        self._timeout: float | None = None
        token = new_token()
        own_end, worker_end = socket_pair()
        self.channel = Channel(own_end, token)
        try:
            self.process = self._start_process(worker_end.fileno(), token)
        except BaseException:
            self.channel.close()
            self.output.close()
            raise
        finally:
            worker_end.close()
        self.channel.enqueue(setup)
        self.channel.flush(block=False)

    def _start_process(self, descriptor: int, token: bytes) -> subprocess.Popen[bytes]:
        """Start a fresh interpreter, which gets `descriptor` and the import path and flags of this process.

        Raise `OSError` if the interpreter cannot be started.
        """
        path = _import_path()
        executable = os.fsdecode(get_executable() or sys.executable)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        return subprocess.Popen(
            [executable, *flags, "-c", _COMMAND.format(path=path, descriptor=descriptor, token=token)],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            pass_fds=(descriptor,),
            env=os.environ | {MARK: self.mark},
            process_group=0,  # keeps Ctrl-C of the terminal from the worker, and lets one signal reach its children, too
        )

    def assign(self, job: PreparedJob, payload: bytes, timeout: float | None) -> bool:
        """Send a job to the worker; return False if the worker has already ended. The output of the previous job is discarded.

        The time limit, `timeout` seconds (None: no limit), starts when the worker is ready. `payload` is the pickled job.

        Raise `ChannelError` if the descriptor of the channel was closed or replaced.
        """
        self.output.seek(0)  # the worker shares the offset
        self.output.truncate()
        self.job = job
        self._timeout = timeout
        self._set_deadline(0.0 if self.is_ready else _START)
        self.channel.enqueue(Assignment(payload, job.functions))
        return self.channel.flush(block=False)

    def _set_deadline(self, allowance: float) -> None:
        """Set the start of the job to the current time, and its deadline to `allowance` seconds after its timeout."""
        self.started = time.monotonic()
        self.deadline = float("inf") if self._timeout is None else self.started + self._timeout + allowance

    def collect(self) -> Outcome | None:
        """Return the outcome of the job if the job or the worker has ended; None while both run. A damaged channel ends the worker.

        The time of the job begins when the worker says that it is ready. After an answer, the worker has no job.
        """
        has_ended = self.has_ended()  # must come before reading, or the last messages of the worker could be missed
        try:
            if self.channel.has_unsent:
                self.channel.flush(block=False)  # a worker that is gone is noticed below
            answers = self.channel.receive_available()
        except ChannelError as error:
            return self._kill(f": {error}")
        for answer in answers:
            if isinstance(answer, Answer):
                self.job = None
                self.is_spent = answer.is_spent
                return answer.outcome
            self.is_ready = True
            self._set_deadline(0.0)  # the start of the interpreter does not count as time of the job
        if has_ended or (self.channel.is_closed and self._wait_after_hang_up()):
            return self._kill()
        return None

    def _wait_after_hang_up(self) -> bool:
        """Return whether a worker with a closed channel has ended, or has passed its deadline.

        A job that closes descriptors may still finish its work. Hence the first call sets a deadline, and waits at most 0.2 seconds.
        """
        if not self._is_cut_off:
            self._is_cut_off = True
            self.deadline = min(self.deadline, time.monotonic() + _STUCK)
            return self.wait(_END)  # a worker that is about to end closes its channel first
        return time.monotonic() >= self.deadline

    def has_ended(self) -> bool:
        """Return whether the process has ended. Leave the process a zombie, so that its PID and process group are not reused."""
        if self.process.returncode is not None:
            return True
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` seconds for the end of the process. Return whether it has ended."""
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE)
        return True

    def _kill(self, reason: str = "") -> Outcome:
        """Kill the worker and its descendants, and return the outcome of its job.

        The message ends with `reason`, by default with the last line of the output.
        """
        assert self.job is not None
        children = [] if self.has_ended() else descendants([self.process.pid])
        self.signal(signal.SIGKILL)
        status = self.process.wait()
        end_processes(children)
        output = self.read_output()
        signal_name = _signal_name(-status) if status < 0 else None
        end = f"was ended by {signal_name}" if signal_name else f"exited with status {status}"
        lines = [line for line in output.splitlines() if line.strip()]
        if not reason and lines:
            reason = f": {lines[-1].strip()[:300]}"
        return Outcome(
            "died",
            self.job.functions,
            seconds=time.monotonic() - self.started,
            message=f"the worker process of the job {end}{reason}",
            signal=signal_name,
            exit_status=status if status >= 0 else None,
            output=output,
        )

    def expire(self) -> Outcome:
        """End the worker because its job has timed out, and return the outcome of the job."""
        assert self.job is not None
        seconds = time.monotonic() - self.started
        functions = self.job.functions
        _end_workers([self])
        verb = "finish" if self.is_ready else "start"
        return Outcome(
            "timeout",
            functions,
            seconds=seconds,
            message=f"the job did not {verb} within {self._timeout:g} s and was stopped: allow a longer timeout",
            signal="SIGKILL" if self.process.returncode == -signal.SIGKILL else "SIGTERM",
            output=self.read_output(),
        )

    def read_output(self) -> str:
        """Return the last 8,000 bytes of the output that the worker has written during its job, decoded."""
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - _MAX_OUTPUT))
        return self.output.read().decode("utf-8", "replace").replace("\0", "").strip()

    def signal(self, number: int) -> None:
        """Send a signal to the process group of the worker. Do nothing if the group no longer exists, or may not be signalled."""
        if self.process.returncode is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Close the channel and the output file. The process must have ended."""
        self.channel.close()
        self.output.close()


class WorkerPool:
    """Up to `workers` worker processes. A process is started when there is a job for it.

    `run` may be called several times. `close` ends the processes.

    Args:
        settings: the arguments with which a worker opens the cache.
        workers: the maximum number of processes; None: one for each CPU that this process may use.
        timeout: the seconds that a job may take; None for no limit.
    """

    def __init__(self, settings: dict[str, Any], workers: int | None, timeout: float | None) -> None:
        usable_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._setup = Setup(settings, _main_module())
        self._workers = workers or usable_cpus
        self._timeout = timeout
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []

    def run(self, jobs: Iterable[PreparedJob]) -> Iterator[tuple[PreparedJob, Outcome | None]]:
        """Run the jobs. Yield each job with None when it starts, and with its outcome when it has ended."""
        pending = deque(jobs)
        while pending or self._busy:
            while pending and len(self._busy) < self._workers:
                job = pending.popleft()
                yield job, self._start_job(job)
            yield from self._wait_for_ended()

    def run_alone(self, job: PreparedJob) -> Iterator[tuple[PreparedJob, Outcome | None]]:
        """End all workers, run one job in a new process, and end that process. Yield the same pairs as `run`."""
        self.close()
        yield from self.run([job])
        self.close()

    def _start_job(self, job: PreparedJob) -> Outcome | None:
        """Start a job, and return None. If it cannot be started, return its outcome."""
        started = time.perf_counter()
        try:
            payload = job.payload()
        except TypeError as error:
            reraise_interrupt(error)
            return failed_outcome(error, job.functions, started)
        try:
            self._busy.append(self._assign_job(job, payload))
        except (OSError, ChannelError) as error:
            reraise_interrupt(error)
            return failed_outcome(error, job.functions, started)
        return None

    def _assign_job(self, job: PreparedJob, payload: bytes) -> _Worker:
        """Assign a job to an idle worker that is alive, else to a new worker. Return the worker.

        Raise `OSError` if a worker cannot be started, or `ChannelError` if the descriptor of a channel was closed or replaced.
        """
        while self._idle:
            worker = self._idle.pop()
            if worker.assign(job, payload, self._timeout):
                return worker
            self._end_worker(worker)
        worker = _Worker(self._setup)
        worker.assign(job, payload, self._timeout)  # `collect` notices if the new worker has already ended
        return worker

    def _wait_for_ended(self) -> Iterator[tuple[PreparedJob, Outcome]]:
        """Wait for an event or a deadline, and yield the jobs that have ended, if any, with their outcomes."""
        if not self._busy:
            return
        self._wait_for_event()
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
                    self._end_worker(worker)
                yield job, outcome

    def _wait_for_event(self) -> None:
        """Wait until a channel is ready, until the first deadline, or for `_TICK` seconds."""
        pause = min(worker.deadline for worker in self._busy) - time.monotonic()
        poller = select.poll()
        for worker in self._busy:
            if worker.channel.is_closed:
                continue
            poller.register(worker.channel, select.POLLIN | (select.POLLOUT if worker.channel.has_unsent else 0))
        poller.poll(1000 * max(0.0, min(pause, _TICK)))

    @staticmethod
    def _end_worker(worker: _Worker) -> None:
        """End a worker, and close its files."""
        _end_workers([worker])
        worker.close()

    def close(self) -> None:
        """End all processes: idle workers by closing their channels, busy workers by signals."""
        workers = [*self._idle, *self._busy]
        busy = list(self._busy)
        self._idle, self._busy = [], []
        for worker in workers:
            worker.channel.close()
        _end_workers(busy)
        _end_workers([worker for worker in workers if worker not in busy], terminate=False)
        for worker in workers:
            worker.close()


def _end_workers(workers: list[_Worker], *, terminate: bool = True) -> None:
    """End workers and their descendants by SIGTERM, and after a grace period by SIGKILL.

    On SIGTERM, a worker removes partly written files. If `terminate` is false, no SIGTERM is sent: the workers end by themselves.
    """
    if not workers:
        return
    children = descendants([worker.process.pid for worker in workers if worker.process.returncode is None])
    if terminate:
        for worker in workers:
            worker.signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE
    for worker in workers:
        worker.wait(max(0.0, deadline - time.monotonic()))
    children += processes_with_marks([worker.mark for worker in workers])
    pids = {worker.process.pid for worker in workers}
    end_processes([process for process in children if process.pid not in pids])
    for worker in workers:
        worker.signal(signal.SIGKILL)  # reaches the process group, which exists while the worker is a zombie
        worker.process.wait()


def _import_path() -> list[str]:
    """Return the import path of this process, with the path of the current directory instead of "", unless the directory was removed."""
    current = ""
    with suppress(FileNotFoundError):
        current = os.getcwd()
    return [entry or current for entry in sys.path]


def _signal_name(number: int) -> str | None:
    """Return the name of a signal, ``signal N`` for an unknown signal, and None for a number that is not positive."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}" if number > 0 else None


def _main_module() -> MainModule:
    """Return this process's main module: by name if it was started with ``python -m``, otherwise by its path, if it has a file.

    If it was started with a directory or an archive, the path is that of the directory or the archive.
    """
    main: Any = sys.modules["__main__"]
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if spec is not None and spec.name == "__main__":
        path = os.path.dirname(spec.origin)
    elif spec is not None and spec.name:
        return MainModule(spec.name, None)
    return MainModule(None, os.path.abspath(path) if path else None)
