"""What maintenance costs: every command of the command line, on a cache of many modules, and the merging of its index.

    python benchmarks/maintenance.py [--modules 100000] [--directory DIR] [--keep] [--repeat 3] [--only NAME]...

The modules are one that was compiled, published again with other names: 512 at once without waiting for the disk, and the last 4,096
one by one as programs do; half of the functions have been used. Commands run as processes of their own; of several runs the one with the
least processor time counts, because elapsed times say more about what else a machine does. *Cold*: what tools derive
(lists of modules and files) is not there yet.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from filling import compile_template

from compcache.build.ir_text import Definition
from compcache.build.records import symbol_nodes
from compcache.build.slots import Resolution
from compcache.files import Files
from compcache.formats.graph import encode_graph, encode_notes
from compcache.formats.manifest import FunctionRecord, NeedsRecord
from compcache.formats.manifest_writer import ManifestWriter, encode_function, encode_needs
from compcache.formats.records import decode_module
from compcache.formats.table import all_entries
from compcache.hit.recorder import recorder_for
from compcache.publish import index_merge
from compcache.publish.additions import merge
from compcache.publish.writer import Publication, publish_modules
from compcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from compcache.formats.index import Index

#: How many modules are added at once, and how many at the end one by one.
AT_ONCE = 512
ALONE = 4096


class NoSync(Files):
    """File operations that do not wait for the disk."""

    __slots__ = ()

    @staticmethod
    def fsync(_: int) -> None:
        """Nothing."""


class Template:
    """A compiled module of one function, of which modules are made that differ in the names of records and graph."""

    def __init__(self, store: Store) -> None:
        payloads, (self._function,), self._built = compile_template(store, 1)
        self._header = payloads[0]
        record = decode_module(payloads[0])
        self._requirement = record.requirement(record.features_of(self._function))

    def publication(self, number: int) -> Publication:
        """Make a module with one function, which imports that of the module before it in its group of ten.

        The first function of each group imports nothing, and can be loaded and called.
        """
        writer = ManifestWriter()
        writer.add(self._header)
        imports = ((1, f"function.{number - 1:08d}", b"", b""),) if number % 10 else ()
        needs = writer.add(encode_needs(NeedsRecord(imports, (), (), ()))) if imports else 0
        name = f"function.{number:08d}"
        one = self._function
        fields = one.symbol, one.signature, one.target_id, one.function, one.entry, needs or one.needs
        offset = writer.add(encode_function(FunctionRecord(name, *fields)))
        built = self._built
        graph = graph_of(name, one.symbol, tuple([use[1] for use in imports]))
        sections = built.sections._replace(records=writer.content(), graph=graph, notes=encode_notes(0.05, None, {}))
        return Publication(sections, ((name, offset, self._requirement),), built.target, built.flags, built.key)


def publish(store: Store, publications: Sequence[Publication], first: int) -> None:
    """Add modules by one segment of the index, and count a hit of every second one."""
    module_ids = publish_modules(store, publications)
    merge(store)
    for number, (publication, module_id) in enumerate(zip(publications, module_ids, strict=True), first):
        store.stats.compiled(0.05)
        store.stats.added(len(publication.sections.image))
        if number % 2:
            store.stats.hit(publication.indexed[0][0], module_id)


def graph_of(name: str, symbol: str, imports: tuple[str, ...]) -> bytes:
    """The graph section of a module with one function, a private helper and perhaps an import."""
    own = Definition("function", "", ("helper", *[f"@{imported}" for imported in imports]))
    definitions = {symbol: own, "helper": Definition("function", "", ())}
    definitions |= {f"@{imported}": Definition("external", "", ()) for imported in imports}
    slots = {f"@{imported}": imported for imported in imports}
    nodes = symbol_nodes(definitions, {symbol: name}, Resolution(slots, {}, "", ()), {symbol: "f64(f64, f64)"})
    return encode_graph(nodes)


def timed(what: str, action: Callable[[], object]) -> None:
    """Run an action and print how long it took."""
    started = time.perf_counter()
    result = action()
    print(f"{what:<42} {time.perf_counter() - started:8.2f} s   {result}", flush=True)


def build(root: str, modules: int) -> str:
    """Publish modules by the 512, and then some one by one; return how long the slowest of these took, with its merges."""
    store = Store(root, files=NoSync(), recorder=recorder_for)
    source = Template(store)
    alone = min(modules, ALONE)
    for first in range(0, modules - alone, AT_ONCE):
        last = min(first + AT_ONCE, modules - alone)
        publish(store, [source.publication(number) for number in range(first, last)], first)
    store.stats.flush()
    store = Store(root, recorder=recorder_for)  # through the system's files: other stores merge large segments and make lists themselves
    slowest = slowest_cpu = 0.0
    for number in range(modules - alone, modules):
        started, used = time.perf_counter(), time.process_time()
        publish(store, [source.publication(number)], number)
        slowest = max(slowest, time.perf_counter() - started)
        slowest_cpu = max(slowest_cpu, time.process_time() - used)
    store.stats.flush()
    return f"slowest of {alone} additions {slowest * 1e3:.1f} ms, {slowest_cpu * 1e3:.1f} ms of processor time"


def commands(modules: int) -> dict[str, list[str]]:
    """The command lines, by what is printed of them."""
    name = f"function.{modules // 2 + 5:08d}"
    lines = [
        "ls", "ls --modules", "ls --json", "ls --sort last-use --limit 20", "ls function.0000*", "info", "stats",
        f"show {name}", f"explain {name}", "explain nothing", f"graph {name}", "graph --all", "graph --all --json",
        "prune --dry-run", f"prune --max-modules {modules * 9 // 10} --dry-run",
        "prune --max-size 100M --unused-for 0s --dry-run", "prune --duplicates --stale 30d --dry-run",
        "prune --match function.0002* --dry-run", "check --no-checksums", "check", "clear --dry-run",
        f"pin {name}", "pin", f"unpin {name}",
    ]  # fmt: skip
    return {line: line.split() for line in lines}


def measure(root: str, modules: int, repeat: int, only: list[str]) -> None:
    """Time the commands in turn."""
    chosen = {line: words for line, words in commands(modules).items() if not only or line in only}
    print(f"{'command':<52} {'CPU s':>8} {'elapsed':>8}")
    if not only:
        for path in (Path(root) / "module-lists-v5").glob("*"):
            path.unlink()
        _show("ls, cold", [run(root, ["ls"])])
    for line, words in chosen.items():
        _show(line, [run(root, words) for _ in range(repeat)])


def _show(line: str, runs: list[tuple[float, float]]) -> None:
    print("{:<52} {:8.2f} {:8.2f}".format(line, *min(runs)), flush=True)


def run(root: str, words: list[str]) -> tuple[float, float]:
    """Run a command with its output thrown away; its processor time and its elapsed time in seconds."""
    before = os.times()
    command = [sys.executable, "-m", "compcache", "--dir", root, *words]
    subprocess.run(command, stdout=subprocess.DEVNULL, cwd=Path(__file__).parent.parent, check=False)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used, after.elapsed - before.elapsed


def merge_all(index: Index) -> str:
    """Write all segments of an index as one."""
    segments = index.segments
    entries = {entry for segment in segments for entry in all_entries(segment.functions)}
    known: dict[bytes, bytes] = {}
    for segment in segments:
        for data in all_entries(segment.modules):
            index_merge.keep_newest(known, data)
    requirements = {text for segment in segments for text in segment.requirements.values()}
    modules = [known[key] for key in sorted(known)]
    index_merge.replace_segments(index, sorted(entries), modules, requirements, 9, segments)
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
    parser.add_argument("--repeat", type=int, default=3, help="how often each command runs")
    parser.add_argument("--only", action="append", default=[], metavar="COMMAND", help="only this command line")
    parser.add_argument("--keep", action="store_true", help="leave the directory there")
    options = parser.parse_args()
    root = options.directory or os.path.join(tempfile.mkdtemp(prefix="compcache-"), "cache")
    if not os.path.isdir(root):
        timed(f"add {options.modules} modules", lambda: build(root, options.modules))
    try:
        measure(root, options.modules, options.repeat, options.only)
        if not options.only:
            timed("merge the whole index", lambda: merge_all(Store(root, files=NoSync()).index))
    finally:
        if not options.keep:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
