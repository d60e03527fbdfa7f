"""What several scenarios of one system have in common: made for the first of them, and removed at the end."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from compcache_conformance.language import Function, Program
from compcache_conformance.processes import prepared
from compcache_conformance.results import Cannot, Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from compcache_conformance.adapter import Adapter
    from compcache_conformance.bench import Bench
    from compcache_conformance.prepared import Prepared
    from compcache_conformance.processes import Run

__all__ = ["Shared"]

T = TypeVar("T")


@dataclass
class _Kept:
    """A bench's sources and store as they were when it was filled. `serves` says whether a system takes them put back for the same."""

    folder: Path
    run: Run
    serves: bool | None = None


class Shared:
    """The folder of the benches of one system, and what is kept for the next of them."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._stack = contextlib.ExitStack()
        self._made: dict[Hashable, tuple[Bench, Any, tuple[str, ...]]] = {}
        self._filled: dict[Hashable, _Kept] = {}
        self._changes: dict[Hashable, int] = {}
        #: The interpreters that processes without wishes for their start are forked from; nothing where each is started anew.
        self.forking: Prepared | None = None
        self._prepared: Prepared | None = None
        self._is_prepared = False

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="conformance-"))
        self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def forked(self, bench: Callable[[], Bench]) -> Iterator[None]:
        """Until the end, processes without wishes for their start are forked, if the system permits that; `bench` makes an empty one."""
        if self._adapter.is_forked and not self._is_prepared:
            self._is_prepared = True
            with contextlib.suppress(Cannot):
                self._prepared = self._prepare(bench)
        self.forking = self._prepared
        try:
            yield
        finally:
            self.forking = None

    def _prepare(self, bench: Callable[[], Bench]) -> Prepared:
        """Interpreters with the modules that a first call imports, which the call itself tells."""
        modules = self._folder / "modules"
        with bench() as first:
            first.write(Program((Function("f", "x * 2.0 + 1.0"),)))
            first.run(modules=str(modules))
            environment = self._adapter.environment(first.store, first.project)
        if not modules.exists():
            modules.write_text("[]")
        return self._stack.enter_context(prepared(self._adapter.interpreter, modules, environment))

    def new_folder(self) -> Path:
        """The folder of a new bench: the one that the last had, if that is gone, since systems may know a store by its sources' paths."""
        folder = next(path for number in itertools.count() if not os.path.lexists(path := self._folder / f"bench-{number}"))
        folder.mkdir(mode=0o700)
        return folder

    def made_by(self, make: Callable[[Bench], T], told: Bench) -> T:
        """What `make` made, or raised, on its bench; what is done there from now on is told on this one."""
        key = make, self.forking
        if key not in self._made:
            bench = self._stack.enter_context(type(told)(self._adapter, self))
            made: T | Violation | Cannot
            try:
                made = make(bench)
            except (Violation, Cannot) as error:
                made = error
            self._made[key] = bench, made, tuple(bench.log)
        bench, made, log = self._made[key]
        told.log += log
        bench.log, bench.notes = told.log, told.notes
        if isinstance(made, Violation | Cannot):
            raise made
        return made

    # ---------------------------------------------------------------- stores that are filled alike

    def keep(self, bench: Bench, what: Hashable, run: Run) -> None:
        """Keep what the bench has now, which was empty before, for the next that is to be filled with the same."""
        if (bench.root, what) in self._filled:
            return
        folder = self._folder / f"filled-{len(self._filled)}"
        shutil.copytree(bench.store, folder / "store", symlinks=True)
        shutil.copytree(bench.project, folder / "project", symlinks=True)
        self._filled[bench.root, what] = _Kept(folder, run)

    def put_back(self, bench: Bench, what: Hashable, is_found: Callable[[], bool]) -> Run | None:
        """Put what was kept into a bench that has no more than the same sources; nothing where there is none, or the copy does not serve.

        That it does is asked, by `is_found`, when it is first put back: a system that takes no copy for the same fills each store itself.
        """
        kept = self._filled.get((bench.root, what))
        if kept is None:
            return None
        if kept.serves is None:
            _copy(kept.folder, bench)
            kept.serves = _holds(is_found)
            shutil.rmtree(bench.store)
            bench.store.mkdir(mode=0o700)
        if kept.serves:
            _copy(kept.folder, bench)
        return kept.run if kept.serves else None

    def changes(self, what: Hashable, count: Callable[[], int]) -> int:
        """A number of changes, which is counted once."""
        if what not in self._changes:
            self._changes[what] = count()
        return self._changes[what]


def _copy(folder: Path, bench: Bench) -> None:
    for place in (bench.store, bench.project):
        shutil.rmtree(place)
        shutil.copytree(folder / place.name, place, symlinks=True)


def _holds(is_found: Callable[[], bool]) -> bool:
    try:
        return is_found()
    except Violation:
        return False
