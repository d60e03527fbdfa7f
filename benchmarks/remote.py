"""What a remote store saves, by its distance: `python benchmarks/remote.py [--functions N] [--fleet N...]`; needs `obstore`.

A small web server in a thread stands for the store and answers each request after a delay: the round trip. For each delay: a compile, a
remote hit (the first of a process, and later ones), and how long a fleet of fresh processes, each with a directory of its own, takes to
have 16 functions, without a store and with one. Then `prefetch` of many functions, by cards and by their pack. Medians; a loaded machine
slows both sides.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

from compcache import Cache, Identity
from compcache.miss import compile_once

if TYPE_CHECKING:
    from collections.abc import Callable

DELAYS = (0, 1, 10, 50, 100)
FUNCTIONS = 16
_BODY = "".join(
    f" %p{n} = fmul double %q{n}, %x\n %q{n + 1} = call double @llvm.sqrt.f64(double %p{n})\n" for n in range(40)
)
_WORKER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
from remote import names_of, source
from compcache import Cache
url, directory, count = sys.argv[1:]
names = names_of(int(count))
with Cache(directory, remote=url or None) as cache:
    for number, name in enumerate(names):
        cache.get_or_compile(name, lambda: source(number))
"""


def source(number: int) -> str:
    """A function of 80 instructions, which takes some milliseconds to compile."""
    body = _BODY.replace("%q0,", f"{number + 1}.0,")
    return f"declare double @llvm.sqrt.f64(double)\ndefine double @f(double %x) {{\n{body} ret double %q40\n}}\n"


def names_of(count: int) -> list[Identity]:
    return [Identity("f", number=number) for number in range(count)]


class QuietServer(ThreadingHTTPServer):
    """Many connections at once."""

    request_queue_size = 1000
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients hang up."""


class Store(BaseHTTPRequestHandler):
    """Objects in memory, each answer after the delay."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is two writes: the second would wait 40 ms for the acknowledgement of the first
    objects: ClassVar[dict[str, bytes]] = {}
    delay = 0.0

    def do_GET(self) -> None:
        time.sleep(Store.delay)
        self._answer(200 if self.path in self.objects else 404, self.objects.get(self.path, b""))

    def do_PUT(self) -> None:
        self.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(Store.delay)
        self._answer(201, b"")

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def fleet(url: str, base: Path, processes: int) -> float:
    """The seconds until all of these processes have their functions."""
    command = [sys.executable, "-c", _WORKER.format(here=str(Path(__file__).parent)), url]
    started = perf_counter()
    running = [subprocess.Popen([*command, str(base / f"w{n}"), str(FUNCTIONS)]) for n in range(processes)]
    assert not any(process.wait() for process in running)
    seconds = perf_counter() - started
    for n in range(processes):
        shutil.rmtree(base / f"w{n}")
    return seconds


def hits(url: str, place: Path, count: int) -> list[float]:
    """The milliseconds of each of these functions in a directory that has none."""
    with Cache(place, remote=url) as cache:
        samples = []
        for number, name in enumerate(names_of(count)):
            started = perf_counter()
            cache.get_or_compile(name, lambda number=number: source(number))  # type: ignore[misc]
            samples.append(1e3 * (perf_counter() - started))
        taken = cache.stats().remote.hits
    print(f"    ({taken} of {count} came from the store)") if taken < count else None
    return samples


def prefetched(url: str, place: Path, count: int) -> float:
    with Cache(place, remote=url) as cache:
        started = perf_counter()
        come = cache.prefetch(names_of(count))
        seconds = perf_counter() - started
    assert len(come) == count, len(come)
    return seconds


def fill(url: str, place: Path, count: int) -> list[float]:
    """Compile functions, put them into the store with a pack of them; the milliseconds of each compile."""
    with Cache(place, remote=url, remote_mode="write") as cache:
        samples = []
        for number, name in enumerate(names_of(count)):
            started = perf_counter()
            cache.get_or_compile(name, lambda number=number: source(number))  # type: ignore[misc]
            samples.append(1e3 * (perf_counter() - started))
        cache.push(names_of(count))
        assert cache.flush_uploads(300)
    return samples


def with_and_without_packs(action: Callable[[str], None]) -> None:
    """Do something while the store has no packs, and again while it has."""
    packs = {key: data for key, data in Store.objects.items() if "/p/" in key}
    for title, kept in (("by cards", {}), ("by packs", packs)):
        for key in packs:
            Store.objects.pop(key, None)
        Store.objects.update(kept)
        action(title)


def distances(url: str, base: Path) -> None:
    """A hit by the distance of the store, against a compile."""
    compile_ms = statistics.median(fill(url, base / "first", FUNCTIONS))
    print(f"compile {compile_ms:.1f} ms")
    for delay in DELAYS:
        Store.delay = delay / 1e3

        def measure(title: str, delay: int = delay) -> None:
            first, *others = hits(url, base / f"h{delay}{title}", FUNCTIONS)
            later = statistics.median(others)
            print(
                f"round trip {delay:3} ms, {title}: first hit {first:6.1f} ms, later ones {later:6.1f} ms = {later / compile_ms:.2f} "
                "compiles"
            )

        with_and_without_packs(measure)


def fleets(url: str, base: Path, sizes: list[int]) -> None:
    """Cold starts of many processes."""
    for processes in sizes:
        Store.delay = 0.0
        without = fleet("", base, processes)
        for delay in (1, 50):
            Store.delay = delay / 1e3
            print(f"fleet of {processes}: {without:.2f} s without a store, {fleet(url, base, processes):.2f} s with one {delay} ms away")


def prefetches(url: str, base: Path, count: int) -> None:
    """Many functions at once."""
    Store.delay = 0.0
    print(f"{count} functions: compiled in {sum(fill(url, base / 'many', count)) / 1e3:.1f} s")
    for delay in (0, 10):
        Store.delay = delay / 1e3
        with_and_without_packs(
            lambda title, delay=delay: print(  # type: ignore[misc]
                f"prefetch {title}, round trip {delay} ms: {prefetched(url, base / f'p{delay}{title}', count):.1f} s"
            )
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--functions", type=int, default=1000)
    parser.add_argument("--fleet", type=int, nargs="*", default=[1, 4, 16, 64])
    options = parser.parse_args()
    server = QuietServer(("127.0.0.1", 0), Store)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/cache"
    compile_once.HEDGE_SECONDS = 10.0  # the time of a hit, not of what is done instead
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        os.environ["XDG_RUNTIME_DIR"] = str(base / "run")
        (base / "run").mkdir(mode=0o700)
        distances(url, base)
        prefetches(url, base, options.functions)
        fleets(url, base, options.fleet)
        shutil.rmtree(base / "run")  # the helper process ends with it


if __name__ == "__main__":
    main()
