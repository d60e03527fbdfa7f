"""Processes that run scripts or commands as forks of an interpreter that has imported what they need.

Starting an interpreter and importing LLVM or Numba costs more than most tests. A nursery imports modules of others and does nothing with
compcache, or only imports it, so each fork finds the package as a fresh process does. A test about what a process imports, or about
how it starts, starts an interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Nursery"]

_LONGEST = 1 << 20
#: `work` of the preparation runs in the fork and returns its exit status.
_SERVE = """

def serve(channel):
    import json, os, socket, sys
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not message:
            return 0
        request = json.loads(message)
        child = os.fork()
        for number, descriptor in enumerate(descriptors):
            if child == 0:
                os.dup2(descriptor, number)
            os.close(descriptor)
        if child == 0:
            channel.close()
            sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w", closefd=False), open(2, "w", closefd=False)
            sys.__stdout__ = sys.stdout
            os.environ.clear()
            os.environ.update(request["environment"])
            return work(request)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        channel.send(str(status).encode())

if __name__ == "__main__":
    import gc, socket, sys
    gc.freeze()  # else each fork would copy what its collector looks at
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        sys.exit(serve(channel))
"""


class Nursery:
    """An interpreter whose forks do the work, one after the other; it ends when this process does.

    Args:
        preparation: What the interpreter runs first. It defines `work`, which each fork calls with its request.
        environment: The variables of the interpreter. Each request has those of its fork.
    """

    def __init__(self, preparation: str, environment: Mapping[str, str]) -> None:
        import atexit

        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", preparation + _SERVE, str(theirs.fileno())],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        atexit.register(self.close)

    @property
    def is_running(self) -> bool:
        """Whether forks can be made."""
        return self._process.poll() is None

    def run(self, streams: Sequence[int], environment: Mapping[str, str], **request: Any) -> int:
        """The exit status of a fork with these standard streams, which are closed here.

        An exception that ends the wait, as a time limit of a test does, ends the fork and the nursery.
        """
        message = json.dumps({"environment": dict(environment), **request}).encode()
        assert len(message) < _LONGEST
        socket.send_fds(self._channel, [message], list(streams))
        for stream in set(streams):
            os.close(stream)
        try:
            return int(self._channel.recv(64))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the nursery, and a fork that still runs."""
        self._channel.close()
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
