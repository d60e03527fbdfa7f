"""What maintenance costs: list, prune, check and statistics of a cache of many modules, and the merging of its index.

    python benchmarks/maintenance.py [--modules 100000] [--directory DIR] [--keep]

The modules are synthesized (no compiler runs) and published through the store as additions are, without waiting for
the disk. Each operation is then timed: cold (nothing is derived yet) and warm.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compcache.catalog import functions
from compcache.check import check
from compcache.digest import digest
from compcache.files import Files
from compcache.graphsection import encode_notes
from compcache.manifest import (
    IMAGE_SHARED,
    NO_ENTRY,
    FunctionRecord,
    ManifestWriter,
    ModuleRecord,
    NeedsRecord,
    encode_function,
    encode_module,
    encode_needs,
)
from compcache.prune import PrunePolicy
from compcache.pruning import prune
from compcache.store import Store
from compcache.totals import cache_stats

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.index import Index

FEATURES = ",".join(f"+feature{number}" for number in range(60))


class NoSync(Files):
    """File operations that do not wait for the disk."""

    __slots__ = ()

    @staticmethod
    def fsync(_: int) -> None:
        """Nothing."""


def publish(store: Store, number: int) -> None:
    """Add a module of 4 KiB with one function, which imports that of the module before it in its group of ten."""
    key = digest([number.to_bytes(8, "little")])
    writer = ManifestWriter()
    writer.add(encode_module(ModuleRecord(key, "shared", "x86_64-linux-elf", "cpu", FEATURES, "22.1.0", 1)))
    imports = ((1, f"function.{number - 1:08d}"),) if number % 10 else ()
    needs = writer.add(encode_needs(NeedsRecord(imports, (), (), ()))) if imports else 0
    name = f"function.{number:08d}"
    offset = writer.add(encode_function(FunctionRecord(name, "f", "i64(i64)", 0, NO_ENTRY, needs)))
    table = b"CCMODULE" + (1).to_bytes(4, "little") + (2).to_bytes(4, "little") + key
    image = b"\x7fELF" + bytes(60) + table + bytes(4000)
    sections = image, writer.content(), b"", b"", encode_notes(0.05, None)
    store.publish(sections, [(name, offset)], target=bytes(8), flags=IMAGE_SHARED, key=key)


def timed(what: str, action: Callable[[], object]) -> None:
    """Run an action and print how long it took."""
    started = time.perf_counter()
    result = action()
    print(f"{what:<42} {time.perf_counter() - started:8.2f} s   {result}", flush=True)


def build(root: str, modules: int) -> str:
    """Publish modules; how long the slowest publication, with its merges, took."""
    store = Store(root, files=NoSync())
    slowest = 0.0
    for number in range(modules):
        started = time.perf_counter()
        publish(store, number)
        slowest = max(slowest, time.perf_counter() - started)
    return f"slowest addition {slowest:.2f} s"


def measure(root: str, modules: int) -> None:
    """Time every operation in turn."""

    def store() -> Store:
        return Store(root, files=NoSync())

    def summary(report: object) -> str:
        return " ".join(f"{step.name} {step.seconds:.2f}" for step in report.steps)  # type: ignore[attr-defined]

    timed("ls, cold (reads every module)", lambda: f"{len(functions(store()))} functions")
    timed("ls, warm", lambda: f"{len(functions(store()))} functions")
    timed("stats", lambda: f"{cache_stats(store(), None).modules} modules")
    timed("check without checksums", lambda: summary(check(store(), checksums=False)))
    timed("check", lambda: summary(check(store())))

    def pruned(policy: PrunePolicy, *, dry_run: bool = False) -> str:
        return f"{len(prune(store(), policy, dry_run=dry_run).removed)} modules"

    timed("prune, nothing to do", lambda: pruned(PrunePolicy(max_modules=modules)))
    timed("prune to 90 %, dry run", lambda: pruned(PrunePolicy(max_modules=modules * 9 // 10), dry_run=True))
    timed("prune to 90 %", lambda: pruned(PrunePolicy(max_modules=modules * 9 // 10)))
    timed("merge the whole index", lambda: merge_all(store().index))


def merge_all(index: Index) -> str:
    """Write all segments of an index as one."""
    segments = index.segments
    entries: set[bytes] = set()
    known: dict[bytes, bytes] = {}
    for segment in segments:
        index._collect(segment, entries, known)
    index.publish_only(sorted(entries), [known[key] for key in sorted(known)], 9, segments)
    return f"{len(segments)} segments, {len(entries)} functions"


def main() -> None:
    """Build a cache and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--modules", type=int, default=100_000)
    parser.add_argument(
        "--directory", help="where to build it; a directory that is there already is used as it is"
    )
    parser.add_argument("--keep", action="store_true", help="leave the directory there")
    options = parser.parse_args()
    root = options.directory or os.path.join(tempfile.mkdtemp(prefix="compcache-"), "cache")
    if not os.path.isdir(root):
        timed(f"add {options.modules} modules", lambda: build(root, options.modules))
    try:
        measure(root, options.modules)
    finally:
        if not options.keep:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
