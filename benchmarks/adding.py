"""Where the time of an addition goes: processor time of a tiny module by part, and beside it code generation alone.

    python benchmarks/adding.py [--modules N] [--linker PATH]

Each part is charged with what it takes itself, without the parts that it calls; the medians of N modules are printed. A linker that is
named makes the images, and its process is counted; else they are written.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import statistics
import tempfile
import threading
from time import thread_time
from typing import TYPE_CHECKING, Any

from llvmlite.binding import ffi

from compcache import Cache, ModuleSource, linker
from compcache.build import codegen
from compcache.images import making
from compcache.images.linkers.find import LINKER_VARIABLE
from compcache.miss import build
from compcache.publish import writer

if TYPE_CHECKING:
    from collections.abc import Callable

#: What is measured: an object, its attribute, and the part that it is.
PARTS = (
    (ffi._lib_fn_wrapper, "__call__", "LLVM"),
    (codegen, "run", "what LLVM is asked, and its answers"),
    (making, "make_image", "image"),
    (linker, "_assemble_module", "records"),
    (build, "publish_built", "publication"),
    (writer, "_publish_files", "files"),
    (writer, "_publish_index", "index"),
)


class Clock:
    """Charges each thread's time to the part that it is in."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._local = threading.local()
        self._lock = threading.Lock()

    def within(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, as a part."""

        @functools.wraps(work)
        def timed(*args: Any, **kwargs: Any) -> Any:
            inner = getattr(self._local, "inner", 0.0)
            self._local.inner, started = 0.0, thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                seconds = thread_time() - started
                with self._lock:
                    self.spent[part] = self.spent.get(part, 0.0) + seconds - self._local.inner
                self._local.inner = inner + seconds

        return timed


def module(number: int) -> str:
    return f"define i64 @f{number}(i64 %x) {{\n  %y = add i64 %x, {number}\n  ret i64 %y\n}}\n"


def generate(text: str) -> None:
    """Code generation alone."""

    def work(context: Any) -> None:
        parsed = codegen.parse(text, context)
        codegen.check_triple(parsed)
        with codegen.borrow_machine("", "", 2) as machine:
            codegen.optimize(parsed, machine, 2)
            codegen.emit_object(parsed, machine)

    codegen.run(work)


def of_children() -> float:
    """The processor time of processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=50, help="how many are added")
    parser.add_argument("--linker", default="", help="a linker that makes the images")
    options = parser.parse_args()
    if options.linker:
        os.environ[LINKER_VARIABLE] = options.linker
    rows: dict[str, list[float]] = {}
    plain_run = codegen.run
    clock = Clock()
    for owner, name, part in PARTS:
        work = getattr(owner, name)
        if part.startswith("what"):  # its work is done in another thread
            setattr(owner, name, lambda job, run=work, part=part: run(clock.within(part, job)))
        else:
            setattr(owner, name, clock.within(part, work))
    with tempfile.TemporaryDirectory() as directory, Cache(directory) as cache:
        for number in range(options.modules + 3):
            clock.spent = {}
            before = of_children()
            clock.within("everything else", cache.add_module)(ModuleSource(module(number)))
            clock.spent["processes"] = of_children() - before
            if number >= 3:
                for part, seconds in clock.spent.items():
                    rows.setdefault(part, []).append(seconds)
    alone = []
    for number in range(options.modules):
        generating: list[float] = []
        codegen.run = lambda job, kept=generating: plain_run(lambda context: kept.append(_seconds(job, context)))
        generate(module(10_000 + number))
        alone += generating
    medians = {part: statistics.median(seconds) * 1e3 for part, seconds in rows.items()}
    print(f"{'ms':>8}  part")
    for part, milliseconds in sorted(medians.items(), key=lambda row: -row[1]):
        print(f"{milliseconds:8.2f}  {part}")
    print(f"{sum(medians.values()):8.2f}  all of it")
    print(f"{statistics.median(alone) * 1e3:8.2f}  code generation alone")


def _seconds(job: Callable[[Any], Any], context: Any) -> float:
    started = thread_time()
    job(context)
    return thread_time() - started


if __name__ == "__main__":
    main()
