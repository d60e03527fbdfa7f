"""What requests that fail cost: `python benchmarks/remote_errors.py [--functions N] [--rounds N]`; needs `obstore`.

A small web server stands for the store and answers after 10 ms. A share of the requests goes wrong: it answers 503, or 429 with
`Retry-After: 1`, resets the connection, or says nothing. For each way and share: how many functions of a `prefetch` arrive, by their cards,
in a directory that has none, and how long that takes, as a ratio to what it takes without errors: each time next to the other, the medians
of the rounds. Then how long the first function of a host takes to arrive.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import socket
import statistics
import struct
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import ClassVar

from remote import QuietServer, Store, names_of, source

from compcache import Cache

SHARES = (0.002, 0.01, 0.05)
_DELAY = 0.01


class Failing(Store):
    """Fails at random; `Store` answers the other requests."""

    ways: ClassVar[tuple[str, ...]] = ()
    share = 0.0
    chance: ClassVar[random.Random] = random.Random(1)

    def do_GET(self) -> None:  # noqa: N802
        if self.chance.random() < Failing.share:
            getattr(self, f"_{self.chance.choice(Failing.ways)}")()
        else:
            super().do_GET()

    def _refuse(self, status: int, **headers: str) -> None:
        time.sleep(Store.delay)
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _503(self) -> None:
        self._refuse(503)

    def _429(self) -> None:
        self._refuse(429, Retry_After="1")

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _silence(self) -> None:
        time.sleep(20.0)
        self.close_connection = True


WAYS = {"503": ("503",), "429": ("429",), "reset": ("reset",), "silence": ("silence",), "all": ("503", "429", "reset", "silence")}


def prefetch(url: str, place: Path, count: int) -> tuple[int, float]:
    """How many functions arrive, and the seconds."""
    with Cache(place, remote=url) as cache:
        started = perf_counter()
        come = cache.prefetch(names_of(count))
        seconds = perf_counter() - started
    shutil.rmtree(place)
    return len(come), seconds


def measure(url: str, base: Path, count: int, rounds: int) -> None:
    """A line for each way to fail and share."""
    for way, kinds in WAYS.items():
        for share in SHARES:
            arrived, ratios = [], []
            for _ in range(rounds):
                Failing.share = 0.0
                _, without = prefetch(url, base / "p", count)
                Failing.ways, Failing.share = kinds, share
                come, seconds = prefetch(url, base / "p", count)
                arrived.append(come)
                ratios.append(seconds / without)
            ratio = statistics.median(ratios)
            print(
                f"{way:8} {share:6.1%}: {min(arrived)} of {count} arrive, in {ratio:.2f} (at most {max(ratios):.2f}) of the time of none",
                flush=True,
            )
    Failing.share = 0.0


def first(url: str, base: Path, rounds: int) -> None:
    """The first function of a host, whose helper process has not been started."""
    samples, hits = [], 0
    for number in range(rounds):
        os.environ["XDG_RUNTIME_DIR"] = str(base / f"run{number}")
        (base / f"run{number}").mkdir(mode=0o700)
        with Cache(base / "first", remote=url) as cache:
            started = perf_counter()
            cache.get_or_compile(names_of(1)[0], partial(source, 0))
            samples.append(1e3 * (perf_counter() - started))
            hits += cache.stats().remote.hits
        shutil.rmtree(base / "first")
        shutil.rmtree(base / f"run{number}")
    print(f"first function of a host: {hits} of {rounds} come from the store, {statistics.median(samples):.0f} ms")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--functions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    server = QuietServer(("127.0.0.1", 0), Failing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/cache"
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        os.environ["XDG_RUNTIME_DIR"] = str(base / "run")
        (base / "run").mkdir(mode=0o700)
        with Cache(base / "a", remote=url, remote_mode="write") as cache:
            for number, function in enumerate(names_of(options.functions)):
                cache.get_or_compile(function, partial(source, number))
            cache.push(names_of(options.functions))
            assert cache.flush_uploads(300)
        for key in [key for key in Store.objects if "/p/" in key]:
            del Store.objects[key]
        Store.delay = _DELAY
        measure(url, base, options.functions, options.rounds)
        shutil.rmtree(base / "run")  # the helper process ends with it
        first(url, base, options.rounds)


if __name__ == "__main__":
    main()
