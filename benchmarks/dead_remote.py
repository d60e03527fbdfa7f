"""What 1,000 misses lose to a remote store that is not there: `python benchmarks/dead_remote.py`.

Each line is a process of its own: without a store, with one whose port refuses, and twice with one that accepts and never answers; the second
of these loses as much again until three questions have failed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import perf_counter

from compcache import Cache, Identity, ModuleSource, NotCachedError

MISSES = 1000


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


def silent_store() -> str:
    """The URL of a server that accepts connections and says nothing."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    kept: list[socket.socket] = []

    def accept() -> None:
        while True:
            kept.append(listener.accept()[0])

    Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/cache"


def refusing_store() -> str:
    """A URL where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return f"http://127.0.0.1:{port}/cache"


def main() -> None:
    """Print the seconds of each kind of store."""
    if len(sys.argv) > 1:
        print(*misses(sys.argv[1]))
        return
    silent = silent_store()
    with tempfile.TemporaryDirectory() as runtime:
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(Path(runtime))}
        for what, url in (("no store", ""), ("refuses", refusing_store()), ("never answers", silent), ("the next process", silent)):
            run = subprocess.run([sys.executable, __file__, url], env=environment, capture_output=True, text=True, check=True)
            total, worst = map(float, run.stdout.split())
            print(f"{what:18}{total:6.2f} s for {MISSES} misses, the slowest {worst:5.2f} s")


if __name__ == "__main__":
    main()
