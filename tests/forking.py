"""Forks among threads that compile, load, publish and prune. Run as a process: directory, children, threads, seconds for each child.

Each child gets a function that it compiles, one that it loads in a new cache object, and one that threads of its parent load at the time.
Prints how many ended in which way (a status, or "hangs"), the longest fork and the longest child in seconds.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter

from compcache import Cache, CompcacheError, ModuleSource, PrunePolicy

_AT_ONCE = 4


def source(name: str, number: int) -> ModuleSource:
    return ModuleSource(f"define i64 @{name}(i64 %x) {{\n  %y = add i64 %x, {number}\n  ret i64 %y\n}}\n")


class Work:
    """What the threads do until the process ends."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.cache = Cache(directory)
        self.cache.add_module(source("known", 1))

    def start(self, threads: int) -> None:
        kinds = [self.compile_all] * 5 + [self.load_all, self.publish_all, self.prune_all]
        for number in range(threads):
            threading.Thread(target=kinds[number % len(kinds)], args=(number,), daemon=True).start()

    def compile_all(self, thread: int) -> None:
        number = 0
        while True:
            name = f"f{thread}_{number}"
            assert self.cache.get_or_compile(name, lambda: source(name, number))(1) == 1 + number  # noqa: B023 - called at once
            number += 1

    def load_all(self, _: int) -> None:
        while True:
            with Cache(self.directory) as mine:
                assert mine.get_or_compile("known", lambda: source("known", 1))(1) == 2

    def publish_all(self, thread: int) -> None:
        number = 0
        while True:
            self.cache.add_module(source(f"p{thread}_{number}", number))
            number += 1

    def prune_all(self, _: int) -> None:
        while True:
            try:
                self.cache.prune(PrunePolicy(max_modules=100))
            except CompcacheError:
                traceback.print_exc()
            time.sleep(0.05)

    def in_child(self, number: int) -> int:
        name = f"child{number}"
        if self.cache.get_or_compile(name, lambda: source(name, number))(1) != number + 1:
            return 3
        with Cache(self.directory) as mine:
            if mine.get_or_compile("known", lambda: source("known", 1))(1) != 2:
                return 4
        return 0 if self.cache.get_or_compile("known", lambda: source("known", 1))(1) == 2 else 5


def child(work: Work, number: int, seconds: float) -> int:
    """The process id of a child that does its work and ends."""
    pid = os.fork()
    if pid:
        return pid
    status = 9
    try:
        faulthandler.dump_traceback_later(seconds * 0.8)
        status = work.in_child(number)
    except BaseException:  # noqa: BLE001 - whatever it is
        traceback.print_exc()
    finally:
        os._exit(status)


def main(directory: str, children: int, threads: int, seconds: float) -> None:
    """Fork, and look after the children."""
    warnings.simplefilter("ignore")  # from 3.12 on, forks of processes with threads are warned of
    work = Work(directory)
    work.start(threads)
    ended: Counter[object] = Counter()
    running: dict[int, float] = {}
    longest_fork = longest_child = 0.0
    for number in range(children):
        while len(running) >= _AT_ONCE or (running and number == children - 1):
            for pid, since in list(running.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                age = time.monotonic() - since
                if not done and age > seconds:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                if done or age > seconds:
                    longest_child = max(longest_child, age)
                    ended[os.waitstatus_to_exitcode(status) if done else "hangs"] += 1
                    del running[pid]
            time.sleep(0.002)
        started = time.monotonic()
        running[child(work, number, seconds)] = time.monotonic()
        longest_fork = max(longest_fork, time.monotonic() - started)
    (last,) = running
    ended[os.waitstatus_to_exitcode(os.waitpid(last, 0)[1])] += 1
    print(repr((dict(ended), round(longest_fork, 2), round(longest_child, 2))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
