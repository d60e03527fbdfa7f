"""What 1,000 misses lose to a remote store that is not there: `python benchmarks/dead_remote.py`.

Three kinds of stores: a port that refuses, one that accepts and never answers, one that answers 500. Each look-up of a line is in a process
of its own: the first one that meets the store, the processes that follow at once (the best of five, beside the best of five without a
store, taken in turn), and eight at once that meet another such store.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING

from compcache import Cache, Identity, ModuleSource, NotCachedError

if TYPE_CHECKING:
    from collections.abc import Callable

MISSES = 1000
ROUNDS = 5
TOGETHER = 8


def misses(url: str) -> tuple[float, float]:
    """The seconds of all look-ups, and of the slowest."""
    with tempfile.TemporaryDirectory() as place, Cache(place, remote=url or None) as cache:
        cache.add_module(ModuleSource("define i64 @f(i64 %x) {\n  ret i64 %x\n}\n"))
        names = [Identity("g", number=number) for number in range(MISSES)]
        seconds = []
        for name in names:
            started = perf_counter()
            with suppress(NotCachedError):
                cache.get_target(name)
            seconds.append(perf_counter() - started)
        return sum(seconds), max(seconds)


def serve(answer: bytes) -> str:
    """The URL of a server that takes connections and answers each with these bytes; with none it says nothing."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    kept: list[socket.socket] = []

    def accept() -> None:
        while True:
            connection = listener.accept()[0]
            if not answer:
                kept.append(connection)
                continue
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(answer)

    Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/cache"


def refusing() -> str:
    """A URL where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return f"http://127.0.0.1:{port}/cache"


STORES: dict[str, Callable[[], str]] = {
    "refuses": refusing,
    "never answers": lambda: serve(b""),
    "answers 500": lambda: serve(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
}


def in_processes(url: str, environment: dict[str, str], count: int = 1) -> float:
    """The seconds that the look-ups took the slowest of so many processes, which run at once."""
    command = [sys.executable, __file__, url]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return max(float(process.communicate()[0].split()[0]) for process in running)


def main() -> None:
    """Print the seconds of each kind of store."""
    if len(sys.argv) > 1:
        print(*misses(sys.argv[1]))
        return
    print(f"seconds for {MISSES} misses          no store    first process    next processes    {TOGETHER} at once")
    with tempfile.TemporaryDirectory() as runtime:
        environment = {**os.environ, "XDG_RUNTIME_DIR": runtime}
        for what, store in STORES.items():
            url = store()
            first = in_processes(url, environment)
            pairs = [(in_processes("", environment), in_processes(url, environment)) for _ in range(ROUNDS)]
            plain, following = (min(times) for times in zip(*pairs, strict=True))
            together = in_processes(store(), environment, TOGETHER)
            print(f"{what:32}{plain:8.3f}{first:17.3f}{following:18.3f}{together:13.3f}", flush=True)


if __name__ == "__main__":
    main()
