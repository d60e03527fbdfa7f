"""Stores and reads 1,000 entries of data of 600 bytes: time of each, files and bytes.

    python benchmarks/entries.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from compcache import Cache, frontend

NUMBER, SIZE, ROUNDS = 1000, 600, 5


def measure(directory: Path) -> tuple[float, float, float]:
    """Seconds to store the entries, to write them at the end, and to read them in another cache object."""
    with Cache(directory) as cache:
        started = time.perf_counter()
        for number in range(NUMBER):
            frontend.put_entry(cache, f"name {number}", bytes([number % 256]) * SIZE, kind="benchmark")
        stored = time.perf_counter()
    closed = time.perf_counter()
    with Cache(directory) as cache:
        frontend.get_entry(cache, "name 0", "benchmark")  # opens the index
        opened = time.perf_counter()
        assert all(frontend.get_entry(cache, f"name {number}", "benchmark") for number in range(NUMBER))
        return stored - started, closed - stored, time.perf_counter() - opened


def main() -> None:
    """Print the least of some rounds."""
    rounds = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as scratch:
            rounds.append(measure(Path(scratch) / "cache"))
            files = [path for path in Path(scratch).rglob("*") if path.is_file()]
            found = f"{len(files)} files, {sum(path.stat().st_size for path in files)} bytes"
    put, close, get = map(min, zip(*rounds, strict=True))
    print(f"put {put / NUMBER * 1e6:.0f} us each, close {close * 1e3:.0f} ms, get {get / NUMBER * 1e6:.0f} us each; {found}")


if __name__ == "__main__":
    main()
