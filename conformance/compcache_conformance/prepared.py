"""Processes that are forked from interpreters which have imported what a first call of the system imports, and have called nothing.

There are two interpreters, which take turns, so that a process and the next one differ in the hash seed and in the addresses of libraries.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import select
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from compcache_conformance.results import Cannot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Forked", "Prepared"]

_PROGRAM = Path(__file__).parent / "drivers" / "conformance_prepared.py"
_PR_SET_CHILD_SUBREAPER = 36
_INTERPRETERS = 2
#: How many seconds an interpreter may take for its imports.
_LONGEST = 120.0


class Forked:
    """A forked process, with what of `subprocess.Popen` its user needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the status, or None for a process that has not ended."""
        return self._status(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Return the status when the process has ended.

        Raises:
            subprocess.TimeoutExpired: the process has not ended within `timeout` seconds.
        """
        if self.returncode is None and not select.select([self._end], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired([], timeout or 0.0)
        status = self._status(0)
        assert status is not None
        return status

    def _status(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                os.close(self._end)
        return self.returncode


class Prepared:
    """The interpreters of one system."""

    def __init__(self, interpreter: Path, modules: Path, environment: Mapping[str, str], prepare: Callable[[], None]) -> None:
        self._command = [interpreter, _PROGRAM]
        self._modules, self._environment, self._prepare = modules, environment, prepare
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start the interpreters.

        Raises:
            Cannot: an interpreter has ended, or does not answer.
        """
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        places = [self._interpreter() for _ in range(_INTERPRETERS)]
        self._turns = itertools.cycle(places)
        for place in places:
            _answer(place)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, program: Path, **order: Any) -> Forked:
        """Start a process that runs a program; `order` has its environment, its folder, its umask, and the file for its output.

        Raises:
            Cannot: an interpreter has ended, or does not answer.
        """
        place = next(self._turns)
        with contextlib.suppress(OSError):  # then there is no answer
            place.sendall((json.dumps({"program": str(program), **order}) + "\n").encode())
        return Forked(_answer(place))

    def _interpreter(self) -> socket.socket:
        here, there = socket.socketpair()
        here.settimeout(_LONGEST)
        with there:
            process = subprocess.Popen(
                [*self._command, str(there.fileno()), self._modules], env=dict(self._environment), stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()], start_new_session=True, preexec_fn=self._prepare,  # noqa: PLW1509 - one thread starts them
            )  # fmt: skip
        self._stack.callback(process.wait)
        self._stack.callback(here.close)
        return here


def _answer(place: socket.socket) -> int:
    try:
        return int(place.recv(64))
    except (OSError, ValueError):
        raise Cannot("the interpreter that processes are forked from has ended, or does not answer") from None
