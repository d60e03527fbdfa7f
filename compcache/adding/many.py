"""Adding many modules at once: linkers run while LLVM compiles what comes next, and files are published by the group."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from compcache.adding.publication import publish_built
from compcache.build.slots import read_requests
from compcache.content.visible import provided_names
from compcache.errors import CompcacheError, StorageError, UndefinedSymbolError
from compcache.files import reraise_interrupt
from compcache.linker import link_module, translate_module
from compcache.publish.host_file import linker_for
from compcache.publish.staleness import warn_of_shadowed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Future

    from compcache.build.source import ModuleSource
    from compcache.cache import Cache
    from compcache.images.linkers.find import Linker
    from compcache.linker import BuiltModule

__all__ = ["ModulesNotAddedError", "add_modules"]

#: How many modules are published together: as many files are open meanwhile.
_GROUP = 64
#: How many linkers run at a time; each of them waits for the disk and the kernel more than it computes.
_LINKERS = 4
_SHOWN = 10
#: What functions of Python's C API begin with, which no source defines.
_OF_PYTHON = ("Py", "_Py")


class ModulesNotAddedError(CompcacheError):
    """Raised by `Cache.add_modules` when some of the sources could not be added; the others are stored.

    `failures` are the errors by position in the list of sources. `module_ids` are those of the stored modules in the order of
    the sources, None where one failed.
    """

    failures: dict[int, Exception]
    module_ids: tuple[str | None, ...]

    def __init__(
        self, message: str, *, failures: Mapping[int, Exception] | None = None, module_ids: tuple[str | None, ...] = ()
    ) -> None:
        super().__init__(message)
        self.failures = dict(failures or {})
        self.module_ids = module_ids


class _Given(NamedTuple):
    """A source and its position, and the names that nothing in the cache had when it was compiled."""

    number: int
    source: ModuleSource
    unknown: frozenset[str] = frozenset()


class _Linking(NamedTuple):
    """A source whose module is being linked."""

    number: int
    source: ModuleSource
    exported: frozenset[str]
    module: Future[BuiltModule]


def add_modules(cache: Cache, sources: Iterable[ModuleSource]) -> tuple[str, ...]:
    """See `Cache.add_modules`."""
    cache._store.require_writable()
    with ThreadPoolExecutor(min(_LINKERS, 1 + (os.cpu_count() or 1)), "compcache-link") as linkers:
        addition = _Addition(cache, linkers)
        try:
            for number, source in enumerate(sources):
                addition.compile(_Given(number, source))
            addition.compile_again()
            addition.publish()
        except BaseException:
            linkers.shutdown(wait=False, cancel_futures=True)
            raise
    return addition.result()


class _Addition:
    """What has become of the sources so far."""

    def __init__(self, cache: Cache, linkers: ThreadPoolExecutor) -> None:
        self._cache = cache
        self._executor = linkers
        self._waiting: list[_Linking] = []
        self._defined: set[str] = set()  # by all that was compiled
        self._provided: set[str] = set()  # functions of modules that were compiled and not published yet
        self._coming: frozenset[str] = frozenset()  # what sources define that are compiled again
        self._lost: set[str] = set()  # functions of modules that were compiled and could not be added
        self._doubtful: list[_Given] = []  # what they lack, a source behind them may define
        self._module_ids: list[str | None] = []
        self._failures: dict[int, Exception] = {}
        self._messages: dict[int, str] = {}
        self._linkers: list[Linker | None] = []

    def compile(self, given: _Given) -> None:
        """Compile a source and have it linked; publish the group when it is complete.

        One that lacks something is compiled again when all of them are known (`compile_again`), and so is one that got it from this process.
        """
        self._module_ids.append(None)
        unknown: set[str] = set()
        self._try_to_compile(given, unknown)
        missing = frozenset([name for name in unknown if not name.startswith(_OF_PYTHON)])
        if missing:
            self._doubtful.append(given._replace(unknown=missing))
        if len(self._waiting) >= _GROUP:
            self.publish()

    def compile_again(self) -> None:
        """Compile those again that lacked what a source behind them defines, which may be one of them."""
        failed = [given for given in self._doubtful if isinstance(self._failures.get(given.number), UndefinedSymbolError)]
        self._coming = frozenset[str]().union(*[_provided_by(given.source) for given in failed])
        again = [given for given in self._doubtful if not given.unknown.isdisjoint(self._coming | self._defined)]
        numbers = {given.number for given in again}
        self._waiting = [item for item in self._waiting if item.number not in numbers]
        for given in again:
            self._failures.pop(given.number, None)
        for given in again:
            self._try_to_compile(given, set())

    def _try_to_compile(self, given: _Given, unknown: set[str]) -> None:
        def is_cached(name: str) -> bool:
            if self._has(name):
                return True
            unknown.add(name)
            return False

        try:
            translation = translate_module(given.source, machine=self._cache._store.host(), is_cached=is_cached)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one source, the others are added
            reraise_interrupt(error)
            self._fail(given.number, given.source, error)
            self._lost |= self._coming and _provided_by(given.source)
            return
        module = self._executor.submit(link_module, translation, self._linker_for)
        self._waiting.append(_Linking(given.number, given.source, translation.functions, module))
        self._provided |= translation.functions
        self._defined |= translation.functions

    def _linker_for(self, obj: bytes) -> Linker | None:
        """The linker for all of them: it is chosen for the first one."""
        if not self._linkers:
            self._linkers.append(linker_for(self._cache._store, obj))
        return self._linkers[0]

    def _has(self, name: str) -> bool:
        return name in self._provided or name in self._coming or self._cache._can_import(name)

    def publish(self) -> None:
        """Publish what has been compiled."""
        waiting, self._waiting = self._waiting, []
        linked = self._without_lost_imports([(item, built) for item in waiting if (built := self._finish(item)) is not None])
        self._provided.clear()
        for start in range(0, len(linked), _GROUP):
            self._publish_group(linked[start : start + _GROUP])

    def _publish_group(self, linked: list[tuple[_Linking, BuiltModule]]) -> None:
        store = self._cache._store
        for _, built in linked:
            for module in (built, *built.others):
                store.stats.compiled(module.seconds, [name for name, *_ in module.functions])
            warn_of_shadowed(store, built)
        try:
            self._publish(linked)
        except StorageError:
            for item, built in linked:  # one by one, to store what can be stored
                try:
                    self._publish([(item, built)])
                except StorageError as error:
                    self._fail(item.number, item.source, error)

    def _finish(self, item: _Linking) -> BuiltModule | None:
        """The linked module; None where it cannot be linked."""
        try:
            built = item.module.result()
        except Exception as error:  # noqa: BLE001 - as above
            reraise_interrupt(error)
            self._fail(item.number, item.source, error)
            self._lost |= item.exported
            return None
        self._lost -= item.exported
        return built

    def _without_lost_imports(self, linked: list[tuple[_Linking, BuiltModule]]) -> list[tuple[_Linking, BuiltModule]]:
        """Those that import nothing of a module that could not be added, which may be another one of them."""
        kept = []
        for item, built in linked:
            try:
                self._require_imports(item, built)
            except UndefinedSymbolError as error:
                self._fail(item.number, item.source, error)
                self._lost |= item.exported
            else:
                kept.append((item, built))
        return kept if len(kept) == len(linked) else self._without_lost_imports(kept)

    def _require_imports(self, item: _Linking, built: BuiltModule) -> None:
        """Refuse a module for the imports that it was compiled with and that have been lost since."""
        if self._lost.isdisjoint(built.imports):
            return
        may_come_later = read_requests(item.source).imports.values()
        missing = [name for name in built.imports if name in self._lost and name not in may_come_later]
        missing = [name for name in missing if not self._cache.has(name)]
        if missing:
            raise UndefinedSymbolError(
                f"the module imports {', '.join(map(repr, missing))} of a source that could not be added", symbols=missing
            )

    def _publish(self, linked: list[tuple[_Linking, BuiltModule]]) -> None:
        module_ids = publish_built(self._cache, [built for _, built in linked])
        for (item, _), (own, *_) in zip(linked, module_ids, strict=True):
            self._module_ids[item.number] = own

    def _fail(self, number: int, source: ModuleSource, error: Exception) -> None:
        self._failures[number] = error
        self._messages[number] = f"source {number} ({source!r}): {type(error).__name__}: {error}"

    def result(self) -> tuple[str, ...]:
        """The module_ids of all sources.

        Raises:
            ModulesNotAddedError: some failed.
        """
        stored = tuple([module_id for module_id in self._module_ids if module_id is not None])
        if not self._failures:
            return stored
        count = len(self._failures)
        more = [f"and {count - _SHOWN} more"] if count > _SHOWN else []
        head = f"{count} of {len(self._module_ids)} sources could not be added:"
        failures = dict(sorted(self._failures.items()))
        messages = [self._messages[number] for number in failures]
        message = "\n  ".join([head, *messages[:_SHOWN], *more])
        error = ModulesNotAddedError(message, failures=failures, module_ids=tuple(self._module_ids))
        raise error from next(iter(failures.values()))


def _provided_by(source: ModuleSource) -> frozenset[str]:
    """What a source defines for others; nothing where the code is not valid, which compiling it tells."""
    try:
        return provided_names(source)
    except CompcacheError:
        return frozenset()
