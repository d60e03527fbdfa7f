"""A worker process. It receives jobs over a channel, runs them one after the other, and answers each job.

A worker is a fresh interpreter, never a fork, because its parent may have threads. It ignores Ctrl-C, which the parent
handles. It ends with its parent, even if the parent is killed while LLVM is busy in the worker.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import signal
import socket
import sys
import threading
import time
from math import inf
from operator import lt
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from compcache.batch import process_tree
from compcache.batch.channel import Channel, ChannelError

if TYPE_CHECKING:
    from compcache.batch.build import Outcome

__all__ = ["Answer", "Assignment", "MainModule", "Setup", "main"]

_MAIN = b"__main__"
_GRACE = 1.0  # seconds
#: True in worker processes. The main script, imported for its functions, must not start another batch.
is_worker = False
_has_main = False  # whether the main module of the parent is imported


class MainModule(NamedTuple):
    """The name or the path of the parent's main module, for jobs whose function it defines; both None if it has no file."""

    name: str | None
    path: str | None


class Setup(NamedTuple):
    """The first message to a worker: the arguments that open the cache, and the main module of the parent."""

    settings: dict[str, Any]
    main: MainModule


class Assignment(NamedTuple):
    """A job for a worker: its pickle, and its functions if they are known."""

    payload: bytes
    functions: tuple[str, ...]


class Answer(NamedTuple):
    """The outcome of a job, and whether the worker must end, because the job left processes running or lowered resource limits."""

    outcome: Outcome
    is_spent: bool


def main(descriptor: int, token: bytes) -> NoReturn:
    """Run jobs for the parent at the other end of a socket until the parent closes it. Then end this process.

    The status is 0; 1 after a `ChannelError`; or what `sys.exit` of a job gives in Python: a number, 0 for None, else 1.
    """
    global is_worker  # noqa: PLW0603 - a property of the process
    is_worker = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit_cleanly)
    os.set_inheritable(descriptor, False)
    process_tree.adopt_orphans()
    threading.Thread(target=_watch_parent, args=(descriptor,), daemon=True).start()
    status = 0
    try:
        _serve_jobs(Channel(socket.socket(fileno=descriptor), token))
    except (EOFError, ConnectionError):
        status = 0  # the parent has no more jobs, or has ended
    except ChannelError as error:
        sys.stderr.write(f"{error}\n")
        status = 1
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    _flush_streams()
    if process_tree.has_children():  # the parent may have been killed before it could end them
        process_tree.end_processes(process_tree.descendants([os.getpid()]))
    os._exit(status)  # an orderly shutdown of LLVM takes as long as a small job; all results are on disk


def _exit_cleanly(*_: object) -> NoReturn:
    """Handle SIGTERM: exit by an exception, so that partly written files are removed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def _flush_streams() -> None:
    """Flush the standard streams. Ignore failures, for example because a job has closed a stream."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _watch_parent(descriptor: int) -> None:
    """When the parent closes the socket, end this process a second later, even in a job, and kill its descendants one more second later."""
    hang_up = select.POLLHUP | getattr(select, "POLLRDHUP", 0)
    poller = select.poll()
    poller.register(descriptor, hang_up)
    while True:
        events = [event for _, event in poller.poll()]
        if any(event & select.POLLNVAL for event in events):
            return  # a job closed the descriptor; the channel notices that, and `main` ends the process
        if any(event & hang_up for event in events):
            break
    time.sleep(_GRACE)  # an idle worker exits by itself
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    process_tree.end_processes(process_tree.descendants([os.getpid()]))
    os.killpg(0, signal.SIGKILL)


def _serve_jobs(channel: Channel) -> NoReturn:
    """Receive, run and answer jobs until the parent closes its end of the channel; then raise `EOFError` or `ConnectionError`.

    Raise `ChannelError` if a message is damaged, or a job has closed or replaced the channel's socket.
    """
    from compcache import linker
    from compcache.build import codegen
    from compcache.cache import Cache
    from compcache.images.linkers import link

    setup: Setup = channel.receive()
    cache = Cache(**setup.settings)
    codegen.initialize()
    assert linker, link  # imported now: the import must not count as time of the first job
    worker, limits = os.getpid(), _resource_limits()
    _send_message(channel, None)  # tells the parent that this worker is ready
    with cache:
        while True:
            assignment: Assignment = channel.receive()
            try:
                outcome = _run_job(cache, assignment, setup.main)
            finally:
                if os.getpid() != worker:
                    os._exit(0)  # a job forked, and this is the child; its parent answers
            _flush_streams()
            is_limited = any(map(lt, _resource_limits(), limits))
            _send_message(channel, Answer(outcome, process_tree.has_children() or is_limited))


def _resource_limits() -> list[float]:
    """Return all resource limits of this process. A lower limit, like one of memory, would make later jobs fail."""
    numbers = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
    return [inf if limit == resource.RLIM_INFINITY else limit for number in numbers for limit in resource.getrlimit(number)]


def _send_message(channel: Channel, message: Answer | None) -> None:
    """Send a message to the parent, and raise `EOFError` if the parent has closed its end. None says that this worker is ready."""
    channel.enqueue(message)
    if not channel.flush(block=True):
        raise EOFError


def _run_job(cache: Any, assignment: Assignment, main_module: MainModule) -> Outcome:
    """Run a job and return its outcome. Exceptions of the job and of its unpickling become a failed outcome."""
    from compcache.batch.build import build_job, failed_outcome

    started = time.perf_counter()
    try:
        if _MAIN in assignment.payload:
            _import_main(main_module)
        job = pickle.loads(assignment.payload)  # noqa: S301 - from the parent, not from the cache
    except Exception as error:  # noqa: BLE001 - importing a main module may raise anything
        return failed_outcome(error, assignment.functions, started)
    return build_job(cache, job, assignment.functions)


def _import_main(main_module: MainModule) -> None:
    """Import the parent's main module as `__main__` of this process, once, without its code under ``if __name__ == "__main__"``.

    Raise `ImportError` if the module has no file.
    """
    global _has_main  # noqa: PLW0603 - a process has one main module
    import runpy
    import types

    if _has_main:
        return
    module = types.ModuleType("__mp_main__")
    if main_module.name is not None:
        content = runpy.run_module(main_module.name, run_name="__mp_main__", alter_sys=True)
    elif main_module.path is not None:
        content = runpy.run_path(main_module.path, run_name="__mp_main__")
    else:
        raise ImportError("the job's function is defined in a main module without a file: move the function to an importable module")
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    _has_main = True
