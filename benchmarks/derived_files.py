"""What each derived file of a cache saves: a question with the file, and without it or with another one in its place.

    python benchmarks/derived_files.py [--modules 20000] [--repeat 5]

The cache is that of `maintenance.py`. Processor time in milliseconds, the least of several runs; the ratio is what would be
paid if the file were not there. `docs/decisions/` says what follows.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import maintenance

from compcache import Cache, frontend
from compcache.files import read_file
from compcache.publish.module_rows import load_rows
from compcache.store import HOSTS, MODULE_FILES, MODULE_ROWS, Store
from compcache.usage.ledger import read_ledger
from compcache.usage.module_files import list_modules
from compcache.usage.size_estimate import add_to_estimate, remember_size

if TYPE_CHECKING:
    from collections.abc import Callable


def least(action: Callable[[], object], repeat: int, before: Callable[[], object] = lambda: None) -> float:
    """The least processor time of several runs of `action`, each after `before`, in milliseconds."""
    taken = []
    for _ in range(repeat):
        before()
        started = time.process_time()
        action()
        taken.append(time.process_time() - started)
    return min(taken) * 1e3


def show(question: str, with_it: float, without: float, what: str) -> None:
    print(f"{question:<46} {with_it:9.3f} ms {without:9.3f} ms {without / with_it:8.1f}x   {what}", flush=True)


def measure(root: str, repeat: int) -> None:
    """Ask every question in both ways."""
    store = Store(root)
    present = list_modules(store)
    rows_path, list_path = Path(store.path(MODULE_ROWS)), Path(store.path(MODULE_FILES))

    def rows() -> object:
        return load_rows(store, present, lambda: read_ledger(store).rows())

    rows()
    time.sleep(6)  # directories that have just changed are not kept
    list_modules(store)
    with_list = least(lambda: list_modules(store), repeat)
    without = least(lambda: list_modules(store), repeat, lambda: list_path.unlink(missing_ok=True))
    show("which module files there are", with_list, without, "without the list: every file's status is read")
    list_modules(store)
    show("the same", with_list, with_list + least(rows, repeat), "the list inside the module rows: these are decoded, too")
    cold = least(rows, 1, lambda: rows_path.unlink(missing_ok=True))
    rows()
    show("what all modules are", least(rows, repeat), cold, "without the rows: every module is opened")
    remember_size(store, 0)
    append = least(lambda: [add_to_estimate(store, 1) for _ in range(100)], repeat) / 100
    show("how large the cache is, at an addition", append, with_list, "without the estimate: the list of files")
    journal = least(lambda: read_ledger(store), repeat)
    show("the same", append, journal, "the estimate inside the statistics")
    host = store.path(HOSTS, store.host_file() or "")
    read = least(lambda: [read_file(store.files, host, 1 << 20) for _ in range(100)], repeat) / 100
    show("what the host is", read, children("import compcache.targets.host_probe as p; p.probe_host()"), "without its file: LLVM")
    with Cache(root) as cache:
        note = least(lambda: [frontend.note_uncached(cache, f"f{n}", "a reason") for n in range(100)], repeat) / 100
        cache.explain("f1")
        asked = least(lambda: cache.explain("f1"), repeat)
    show("why a function is not cached", asked, asked + journal, f"inside the statistics (a note takes {note:.3f} ms)")


def children(script: str) -> float:
    """What a process with this script takes more than one without."""
    import os

    def run(text: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, "-c", text], check=True, cwd=Path(__file__).parent.parent)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    return (min(run(script) for _ in range(3)) - min(run("pass") for _ in range(3))) * 1e3


def main() -> None:
    """Build a cache and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compcache-derived-") as directory:
        maintenance.build(f"{directory}/cache", options.modules)
        with Cache(f"{directory}/cache") as cache:
            cache.info()  # the host is known from here on
        measure(f"{directory}/cache", options.repeat)


if __name__ == "__main__":
    main()
