"""Adds many modules together: linkers run while LLVM compiles the next source, and modules are published in batches."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from compcache.build.slots import read_requests, undefined_symbols_error
from compcache.errors import ModulesNotAddedError, SignatureMismatchError, StorageError, UndefinedSymbolError
from compcache.interrupts import reraise_interrupt, suppress
from compcache.linker import link_module, translate_module
from compcache.maintain.remove import remove_modules
from compcache.miss.build import add
from compcache.miss.import_types import Provider, require_types
from compcache.miss.offers import find_bodies
from compcache.miss.publication import publish_built
from compcache.miss.run_times import share_runtime_libraries
from compcache.miss.staleness import warn_about_repeated, warn_about_shadowed
from compcache.wording import join_first, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from compcache.build.source import ModuleSource
    from compcache.formats.built_module import BuiltModule
    from compcache.linker import Translation
    from compcache.publish.numbering import LookUps
    from compcache.session import Session

__all__ = ["add_modules", "not_added_error"]

#: The number of modules that are published together. Their files are open at the same time.
_BATCH = 64
#: The number of linkers that run at a time. Each spends more time waiting for the disk and the kernel than computing.
_LINKERS = 4
_SHOWN = 10


class _Linking(NamedTuple):
    """A source whose module is being linked.

    Attributes:
        number: the position of the source in the caller's list.
        source: the source.
        exported: the functions that the source defines.
        module: the linked module.
        assumed: the symbols that later sources must define, and whether each is a function.
        weak: the source's definitions that give way to those of other sources.
        overridden: the source's definitions that gave way.
    """

    number: int
    source: ModuleSource
    exported: frozenset[str]
    module: Future[BuiltModule]
    assumed: dict[str, bool]
    weak: frozenset[str]
    overridden: frozenset[str]


def add_modules(session: Session, sources: Iterable[ModuleSource], *, replace: bool = False) -> tuple[str, ...]:
    """Implement `Cache.add_modules` and `Cache.replace`, with their errors. With `replace`, functions with newer code cause no warning."""
    session.store.require_writable()
    with ThreadPoolExecutor(min(_LINKERS, 1 + (os.cpu_count() or 1)), "compcache-link") as linkers:
        addition = _Addition(session, linkers, replace=replace)
        try:
            for number, source in enumerate(sources):
                addition.add(number, source)
            addition.complete()
        except BaseException:
            linkers.shutdown(wait=False, cancel_futures=True)
            raise
    return addition.module_ids()


class _Addition:
    """The state of an addition of many sources."""

    def __init__(self, session: Session, linkers: ThreadPoolExecutor, *, replace: bool) -> None:
        self._session = session
        self._replace = replace
        self._executor = linkers
        self._waiting: list[_Linking] = []
        self._defined: dict[str, dict[int, bool]] = {}  # all definitions so far: the numbers of the sources, and whether they are weak
        self._doubtful: list[tuple[int, ModuleSource, frozenset[str]]] = []  # sources with imports that a later source may define
        self._types: dict[str, dict[int, Provider]] = {}  # the types of the functions that the sources define, by the sources' numbers
        self._count = 0  # the number of sources so far
        self._published: dict[int, tuple[str, ...]] = {}  # by position: the module_ids of all targets, that for this host first
        self._failures: dict[int, Exception] = {}
        self._failed_sources: dict[int, object] = {}  # the sources that failed

    def add(self, number: int, source: ModuleSource) -> None:
        """Compile a source and start linking it. Publish the linked modules after each `_BATCH` sources."""
        self._count = number + 1
        unknown = self._compile(number, source)
        if unknown:
            self._doubtful.append((number, source, unknown))
        if self._count % _BATCH == 0:  # `_waiting` also has modules that wait for later sources
            self._publish_complete()

    def complete(self) -> None:
        """Compile outdated sources again, then publish all remaining modules.

        A source is outdated if a later source defines one of its imports or overrides one of its weak definitions, or if the source that
        overrides one cannot be added. The outdated modules that were published are removed.
        """
        outdated = {number: source for number, source, unknown in self._doubtful if not unknown.isdisjoint(self._defined)}
        replaced: set[str] = set()
        failed = -1
        while outdated or failed < len(self._failures):
            failed = len(self._failures)
            outdated |= {item.number: item.source for item in self._waiting if self._is_outdated(item)}
            self._waiting = [item for item in self._waiting if item.number not in outdated]
            replaced.update([module_id for number in outdated for module_id in self._published.pop(number, ())])
            for number, source in outdated.items():
                self._compile(number, source)
            outdated = {item.number: item.source for item in self._waiting if self._is_outdated(item)}
            if not outdated:
                self._find_linked(is_last=True)
        self._publish_complete(is_last=True)
        published = {module_id for module_ids in self._published.values() for module_id in module_ids}
        for module_id in replaced - published:
            with suppress(StorageError):  # the newer module is found first anyway
                remove_modules(self._session.store, [bytes.fromhex(module_id)])

    def _compile(self, number: int, source: ModuleSource) -> frozenset[str]:
        """Compile a source, start linking it, and note the functions that it defines. If that fails, record the failure.

        Return the imports that no source has defined yet; none after a failure.
        """
        unknown: set[str] = set()
        assumed: dict[str, bool] = {}

        def is_beside(name: str) -> bool:
            """Return whether a module of this addition defines the name. Unknown names are noted, since a later module may define them."""
            if name not in self._defined:
                unknown.add(name)
            return name in self._defined

        try:
            share_runtime_libraries(self._session, source, add)
            translation = translate_module(
                source, machine=self._session.store.host(), is_cached=self._session.can_import, assumed=assumed,
                is_overridden=self._overrides(number), is_beside=is_beside,
                provided=partial(find_bodies, self._session),
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one source, the other sources are added
            reraise_interrupt(error)
            self._record_failure(number, source, error)
            return frozenset()
        module = self._start_linking(translation)
        _, translated = translation.parts[0]  # these definitions are the same for all targets
        self._waiting.append(_Linking(number, source, translation.functions, module, assumed, translated.weak, translated.overridden))
        weak = translated.weak | translated.overridden
        for name in translation.functions | translated.overridden:
            self._defined.setdefault(name, {})[number] = name in weak
        return frozenset(unknown.difference(assumed))

    def _overrides(self, number: int) -> Callable[[str], bool]:
        """Return a function that returns whether another source overrides a weak definition of a source.

        That is a source with a strong or tentative definition, or an earlier source. Sources that cannot be added override nothing.
        """
        own = True, number
        return lambda name: any(
            (is_weak, other) < own and other not in self._failures for other, is_weak in self._defined.get(name, {}).items()
        )

    def _is_outdated(self, item: _Linking) -> bool:
        """Return whether another definition than before overrides a weak definition of a source that did not fail."""
        is_overridden = self._overrides(item.number)
        changed = any(map(is_overridden, item.weak)) or not all(map(is_overridden, item.overridden))
        return changed and item.number not in self._failures

    def _start_linking(self, translation: Translation) -> Future[BuiltModule]:
        """Link a module in another thread, or at once if no thread can be started. Return the future module."""
        module: Future[BuiltModule] = Future()
        unclaimed = Lock()

        def link() -> None:
            """Link the module, unless another thread does."""
            if unclaimed.acquire(blocking=False):
                try:
                    built = link_module(translation)
                except BaseException as error:  # raised where the module is awaited
                    module.set_exception(error)
                    raise
                module.set_result(built)

        try:
            self._executor.submit(link)
        except RuntimeError as error:  # the system has no more threads, but an earlier thread may take the task; or the process exits
            reraise_interrupt(error)
            with suppress(Exception):
                link()
        return module

    def _publish_complete(self, *, is_last: bool = False) -> None:
        """Publish the linked modules. Unless `is_last` is set, modules that depend on an undefined symbol wait for later sources."""
        linked = self._find_linked(is_last=is_last)
        waiting = frozenset[int]() if is_last else self._find_waiting(linked)
        self._waiting = [item for item, _ in linked if item.number in waiting]
        complete = [(item, built) for item, built in linked if item.number not in waiting]
        for start in range(0, len(complete), _BATCH):
            self._publish_batch(complete[start : start + _BATCH])

    def _find_linked(self, *, is_last: bool) -> list[tuple[_Linking, BuiltModule]]:
        """Return the sources that are linked, with their modules. Record a failure for each source that lacks an import.

        Unless `is_last` is set, later sources may define symbols.
        """
        linked = [(item, built) for item in self._waiting if (built := self._await_linked(item)) is not None]
        for item in self._waiting:
            for name in item.exported:
                self._types.get(name, {}).pop(item.number, None)
        for item, built in linked:
            for name, text in built.defined.items():
                self._types.setdefault(name, {})[item.number] = Provider(f"source {item.number}", "", text)
        return self._fail_importers_of_unavailable(linked, is_last=is_last)

    def _find_waiting(self, linked: list[tuple[_Linking, BuiltModule]]) -> frozenset[int]:
        """Return the positions of the sources that must wait, and of their importers.

        A source must wait if it lacks a symbol, or if a later source may override one of its functions.
        """
        waiting = {item.number: item.exported for item, _ in linked if item.weak | item.overridden or item.assumed.keys() - self._defined}
        while True:
            exported = frozenset[str]().union(*waiting.values())
            importers = {
                item.number: item.exported
                for item, built in linked
                if item.number not in waiting and not exported.isdisjoint(built.imports)
            }
            if not importers:
                return frozenset(waiting)
            waiting |= importers

    def _publish_batch(self, linked: list[tuple[_Linking, BuiltModule]]) -> None:
        """Publish modules together, or one by one if that fails. Issue warnings about functions that replace other functions."""
        store = self._session.store
        store.renew_index()
        look_ups: dict[str, Sequence[tuple[bytes, int]]] = {}
        for _, built in linked:
            for module in (built, *built.others):
                store.stats.compiled(module.seconds, [name for name, *_ in module.functions])
            if not self._replace:
                look_ups.update(warn_about_shadowed(store, built))
        warn_about_repeated([built for _, built in linked])
        try:
            self._publish(linked, look_ups)
        except StorageError:
            for item, built in linked:  # one by one, so that a failure concerns one module
                try:
                    self._publish([(item, built)])
                except StorageError as error:
                    self._record_failure(item.number, item.source, error)

    def _await_linked(self, item: _Linking) -> BuiltModule | None:
        """Wait until a module is linked, and return it. If it cannot be linked, record the failure and return None."""
        if item.number in self._failures:
            return None
        try:
            built = item.module.result()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one source, the other sources are added
            reraise_interrupt(error)
            self._record_failure(item.number, item.source, error)
            return None
        return built

    def _fail_importers_of_unavailable(
        self, linked: list[tuple[_Linking, BuiltModule]], *, is_last: bool
    ) -> list[tuple[_Linking, BuiltModule]]:
        """Record a failure for each module with an import that is not available. Return the other modules."""
        complete = []
        for item, built in linked:
            try:
                self._require_imports(item, built, is_last=is_last)
                require_types(self._session, built, self._types)
            except (UndefinedSymbolError, SignatureMismatchError) as error:
                self._record_failure(item.number, item.source, error)
            else:
                complete.append((item, built))
        return complete if len(complete) == len(linked) else self._fail_importers_of_unavailable(complete, is_last=is_last)

    def _require_imports(self, item: _Linking, built: BuiltModule, *, is_last: bool) -> None:
        """Check that the imports of a module are not from a module that could not be added, and if `is_last` is set, that they are defined.

        Raise `UndefinedSymbolError` if an import is not available.
        """
        missing = [name for name in item.assumed if is_last and name not in self._defined and not self._session.can_import(name)]
        missing = [name for name in missing if name in built.imports]  # optimization removes calls that never run
        if missing:
            raise undefined_symbols_error(missing, [name for name in missing if item.assumed[name]])
        failed = self._failures.keys()
        missing = [name for name in built.imports if failed and name in self._defined and failed >= self._defined[name].keys()]
        if missing:
            may_come_later = read_requests(item.source).imports.values()
            missing = [name for name in missing if name not in may_come_later and not self._session.has(name)]
        if missing:
            raise UndefinedSymbolError(
                f"the module imports {', '.join(map(repr, missing))}, whose source could not be added: correct that source first",
                symbols=missing,
            )

    def _publish(self, linked: list[tuple[_Linking, BuiltModule]], look_ups: LookUps | None = None) -> None:
        """Publish linked modules together, and record their module_ids by the positions of their sources.

        Raise `StorageError` if the modules could not be stored. See `publish_built` for `look_ups`.
        """
        module_ids = publish_built(self._session, [built for _, built in linked], look_ups=look_ups)
        self._published |= {item.number: ids for (item, _), ids in zip(linked, module_ids, strict=True)}

    def _record_failure(self, number: int, source: ModuleSource, error: Exception) -> None:
        """Record that a source could not be added."""
        self._failures[number] = error
        self._failed_sources[number] = source

    def module_ids(self) -> tuple[str, ...]:
        """Return the module_ids of all sources. Raise `ModulesNotAddedError` if some sources failed."""
        module_ids = tuple([self._published.get(number, (None,))[0] for number in range(self._count)])
        if not self._failures:
            return tuple([module_id for module_id in module_ids if module_id is not None])
        raise not_added_error(dict(sorted(self._failures.items())), module_ids, self._failed_sources)


def not_added_error(
    failures: Mapping[int, Exception], module_ids: tuple[str | None, ...], sources: Sequence[object] | Mapping[int, object]
) -> ModulesNotAddedError:
    """Return the exception for sources that could not be added.

    Errors about undefined symbols are listed last, because other errors may have caused them. The first listed error is the cause.
    """
    ordered = sorted(failures.items(), key=lambda item: (isinstance(item[1], UndefinedSymbolError), item[0]))
    messages = [f"source {number} ({sources[number]!r}): {type(error).__name__}: {error}" for number, error in ordered]
    text = f"{len(failures)} of {plural(len(module_ids), 'source')} could not be added:\n  " + join_first(messages, _SHOWN, "\n  ")
    error = ModulesNotAddedError(text, failures=failures, module_ids=module_ids)
    error.__cause__ = ordered[0][1]
    return error
