"""The facade: look up and load, or build, link, publish and load. What a hit needs of it is in `compcache.facade`."""

from __future__ import annotations

import os
import sys
from _weakref import ref
from time import perf_counter

from compcache.errors import CompcacheError, IncompatibleTargetError, NotCachedError, ReentrantLoadError, UndefinedSymbolError
from compcache.facade import (
    CHECK_VARIABLE,
    DEBUG_VARIABLE,
    KEY_VARIABLE,
    LAYERS_VARIABLE,
    LOCKS_VARIABLE,
    RULES,
    TRUSTED_VARIABLE,
    Facade,
    Later,
    default_directory,
    members,
    open_caches,
)
from compcache.facade import func_name_of as _func_name_of
from compcache.files import absolute_path
from compcache.hit.loader import Loader
from compcache.hit.recorder import recorder_for
from compcache.hit.target import path_opener
from compcache.settings import is_on, setting
from compcache.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, NoReturn, TypeGuard

    from compcache.build.source import ModuleSource
    from compcache.hit.compiled import CompiledFunctions
    from compcache.hit.loader import Accept
    from compcache.hit.target import TypedCallTarget
    from compcache.identity import Identity
    from compcache.inspect.descriptions import CacheInfo, FunctionGraph, FunctionReport, LoadedState, Realization
    from compcache.inspect.explain import Explanation
    from compcache.maintain.policy import PrunePolicy
    from compcache.maintain.prune import PruneProposal
    from compcache.maintain.report_types import CheckReport, CompactReport, LinkReport, PruneReport
    from compcache.remote.client import RemoteStore
    from compcache.session import Session
    from compcache.usage.module_files import Progress
    from compcache.usage.summaries import CacheStats, FunctionSummary, ModuleSummary, StatsPeriod

    #: A `ModuleSource`, or LLVM code: assembly text, bitcode, an `llvmlite.ir.Module`, an `llvmlite.binding.ModuleRef`.
    Source = ModuleSource | str | bytes | Any

__all__ = ["Cache", "default_directory", "find_again", "func_names_of"]


class Cache(Facade):
    """See `compcache.facade.Facade`, which becomes this class: what a hit needs of it, its documentation first, is there."""

    # ---------------------------------------------------------- compile, or find

    def compile(self, source: Source) -> CompiledFunctions:
        """Compile LLVM code once ever, and return its functions, whose names are digests of the content.

        A name stands for the function and all that it reaches in the code, with its signature, the definitions of globals, the imports,
        the options and the CPU that is asked for: an edit of one function, or of a comment, leaves the names of others as they are, and
        only what is not stored is compiled. Where the same source was compiled before, text or bitcode, LLVM is not even imported.

        Args:
            source: assembly text, bitcode, an llvmlite module, or a `ModuleSource` of these.

        Returns:
            A mapping of plain names to call targets; ``kernels["scale"]`` is ``kernels.scale``. A function is loaded when
            it is first asked for.

        Raises:
            CompileError, LinkError, ...: what `add_module` raises about the source. Not being able to store the
                result does not fail the call: one `CacheWarning`, and the functions work.
        """
        self._require_open()
        from compcache.content.names import NamedSource, read_names, seal
        from compcache.hit.compiled import CompiledFunctions

        sealed = seal(source)
        names = read_names(self._store, sealed.name)
        if names is None or not self._has_all(names.values()):
            from compcache.miss.compile_source import compile_source

            names = compile_source(self._session(), sealed, names)
        named = NamedSource(sealed, names)
        return CompiledFunctions(names, lambda name: self.get_or_compile(name, named))

    def _has_all(self, names: Iterable[str]) -> bool:
        """Return whether functions of one source are stored: the first as `has` tells it, the others as the index says."""
        first, *others = names
        return self._loader.holds(first, to_import=True) and all(next(self._store.find(name), None) is not None for name in others)

    def has(self, func_name: str | Identity) -> bool:
        """Return whether the cache holds a realization of this function that this host can use; ``func_name in cache`` is the same.

        It reads the index and one record at most; whether everything that the function needs is there as
        well, only `get_target` finds out.

        Args:
            func_name: the function's name, or its `Identity`.
        """
        self._require_open()
        return self._loader.holds(_func_name_of(func_name))

    __contains__ = has

    def add_module(self, source: ModuleSource) -> str:
        """Compile a module and publish it, once for each of its targets.

        Args:
            source: the code, with what is exported, imported and defined.

        Returns:
            The module_id of the one for this host, 32 hexadecimal digits: the same for the same code, in every process.

        Raises:
            CompileError, LinkError, SignatureError, InvalidNameError, GlobalValidationError: the source is not
                right; the message names the culprit.
            StorageError: it could not be stored. In each case the cache is as it was.
        """
        self._require_open()
        from compcache.miss.build import add

        return add(self._session(), source)[0]

    def add_modules(self, sources: Iterable[ModuleSource], group: str | None = None) -> list[str]:
        """Compile many modules and publish them together, which costs less for each than `add_module` does.

        Sources may use what others among them define, functions and variables, in any order: a library is the list of its files. What they
        define comes before what the platform, libraries and the cache have of the same names.
        As in a static library, a module is loaded when something that it defines is needed, and its constructors run then.

        Args:
            sources: what `add_module` takes; an iterator is read as far as there is work to do.
            group: a name: the sources are one module then, as files are that are linked into one shared object, with hidden names of its
                own. A source that did not change since a group of this name was added is not optimized again.

        Returns:
            The module_ids, in the order of the sources: of a group the same for each.

        Raises:
            ModulesNotAddedError: some of them could not be added. Its message and its `failures` name them; all others
                are stored.
            LinkError, CompileError: the members of a group define a symbol twice, or contradict each other otherwise; nothing is stored.
            StorageError: the cache is read-only.
        """
        self._require_open()
        if not hasattr(sources, "__iter__"):
            raise TypeError(f"add_modules() takes several sources, like [source], not one {type(sources).__name__}")
        if group is not None:
            from compcache.miss.groups import add_group

            return list(add_group(self._session(), sources, group))
        from compcache.miss.many import add_modules

        return list(add_modules(self._session(), sources))

    def replace(self, source_or_sources: ModuleSource | Iterable[ModuleSource], *, group: str | None = None) -> list[str]:
        """Add modules as `add_modules` does, and remove those that they replace: older ones all of whose functions have newer realizations.

        Loaded code stays loaded. A module that has a function which nothing newer has, stays; its other functions are not used any more.

        Args:
            source_or_sources: what `add_module`, or `add_modules` takes.
            group: as of `add_modules`. The group takes the place of all of this name; where a source is not right, nothing is stored.

        Returns:
            The ids of the modules that were added, in the order of the sources.

        Raises:
            ModulesNotAddedError, StorageError, ...: what `add_modules` raises; nothing was removed.
        """
        self._require_open()
        from compcache.miss.replace import replace

        return list(replace(self._session(), source_or_sources, group))

    # --------------------------------------------------------------- this object

    def link(self, names: Iterable[str | Identity] | None = None, *, into: str | None = None) -> LinkReport:
        """Link the code that functions reach in several modules, as one more realization of each.

        Args:
            names: the functions; None: all.
            into: the name of a set, one image for all of them.

        Raises:
            CompileError: there is no linker for shared objects.
        """
        self._require_open()
        from compcache.closures.link import link

        return link(self._session(), None if names is None else func_names_of(names), into)

    @property
    def exists(self) -> bool:
        """Whether the directory holds a cache: the first addition creates one."""
        return self._store.is_cache()

    @property
    def readonly(self) -> bool:
        """Whether it was opened with readonly=True."""
        return self._store.readonly

    @property
    def layers(self) -> tuple[str, ...]:
        """The directories of caches (or bundles) that are only read, below this one, in the order in which they are asked."""
        return tuple([layer.source for layer in self._store.layers])

    def loaded(self) -> LoadedState:
        """Return the modules, call targets and mapped bytes that this object has in memory now."""
        from compcache.inspect.descriptions import LoadedState

        modules = self._loader.loaded_modules()
        names = tuple(sorted(target._name for target in self._loader.loaded_targets()))
        return LoadedState(tuple(sorted(m.module_id.hex() for m in modules)), names, sum(m.size for m in modules))

    def unload(self, func_name: str | Identity) -> bool:
        """Invalidate the modules that hold a function, and every call target returned from them.

        A running call finishes; later ones raise `TargetUnloadedError`. The code is unmapped when the
        last object that could run it is gone.

        Args:
            func_name: the function's name, or its `Identity`.

        Returns:
            Whether there were any call targets.
        """
        self._require_open()
        return self._loader.unload(_func_name_of(func_name)) > 0

    def __repr__(self) -> str:
        return f"<compcache.Cache {self.path!r}{' (closed)' if self._closed else ''}>"

    def _repr_html_(self) -> str:
        from compcache.display import html

        return html(self)

    def __reduce__(self) -> NoReturn:
        from compcache.hit.call_errors import refuse_copies

        refuse_copies()

    # ----------------------------------------------------------------- questions

    def functions(
        self, select: Callable[[str], object] | None = None, *, folded: bool = False, progress: Progress | None = None
    ) -> tuple[FunctionSummary, ...]:
        """List the stored functions.

        Args:
            select: called with each name; only functions for which it returns something true are listed. None lists all.
            folded: list those of one label, and what belongs to them, as one.
            progress: called now and then with (modules read, modules to read).

        Returns:
            One summary for each function, or label, sorted by name.
        """
        self._require_open()
        from compcache.usage.listings import functions

        return tuple(functions(self._store, progress, select, folded=folded))

    def __iter__(self) -> Iterator[str]:
        """Return the func_names of all stored functions, sorted."""
        return iter([summary.func_name for summary in self.functions()])

    def __len__(self) -> int:
        """Return the number of func_names. Everything is listed for it; `info` counts cheaper."""
        return len(self.functions())

    def __bool__(self) -> bool:
        """Return true: an empty cache is a cache."""
        return True

    def labelled(self, label: str) -> tuple[str, ...]:
        """List the functions that `Identity` or `compile` named with a label.

        Args:
            label: the label; four digits or more of the digest may follow it, behind a hyphen.

        Returns:
            Their func_names, sorted.
        """
        self._require_open()
        from compcache.inspect.names import labelled

        if not isinstance(label, str):
            raise TypeError(f"labelled(): label must be a str, not {type(label).__name__}")
        return labelled(self._store, label)

    def function(self, func_name: str | Identity) -> FunctionReport:
        """Describe all that the cache holds about one function.

        Args:
            func_name: the function's name, or its `Identity`.

        Raises:
            NotCachedError: no module on disk holds it.
        """
        self._require_open()
        from compcache.inspect.functions import describe_function

        with _Suggesting(self):
            return describe_function(self._store, self._loader, _func_name_of(func_name))

    def realizations(self, func_name: str | Identity) -> tuple[Realization, ...]:
        """List every stored copy of a function, including those that this host cannot use; empty if there is none.

        Args:
            func_name: the function's name, or its `Identity`.
        """
        self._require_open()
        from compcache.inspect.functions import realizations

        return realizations(self._store, self._loader, _func_name_of(func_name))

    def dependencies(self, func_name: str | Identity, transitive: bool = False) -> tuple[str, ...]:
        """List the functions that a function refers to after optimization.

        Args:
            func_name: the function's name, or its `Identity`.
            transitive: include what these refer to, and so on.

        Returns:
            Their func_names, nearest first.

        Raises:
            NotCachedError: the function is not in the cache.
        """
        self._require_open()
        from compcache.inspect.functions import dependencies

        with _Suggesting(self):
            return dependencies(self._store, self._loader, _func_name_of(func_name), transitive=transitive)

    def graph(
        self, names: Iterable[str | Identity] | str | None = None, reverse: bool = False, *, progress: Progress | None = None
    ) -> FunctionGraph:
        """Return the dependencies of functions, transitively and across modules.

        Args:
            names: the functions, by their names or identities; None for all.
            reverse: lead the edges the other way, from each function to what refers to it.
            progress: called now and then with (modules read, modules to read).

        Raises:
            NotCachedError: one of `names` is not in the cache.
        """
        self._require_open()
        from compcache.inspect.call_graph import cache_graph

        chosen = None if names is None else func_names_of(names)
        with _Suggesting(self):
            return cache_graph(self._store, self._loader, chosen, reverse=reverse, progress=progress)

    def ir(self, func_name: str | Identity, *, module_id: str | None = None, whole_module: bool = False) -> str:
        """Return the optimized LLVM assembly of a stored function.

        Args:
            func_name: the function's name, or its `Identity`.
            module_id: of which realization; the first digits will do. None is the one that a load would choose.
            whole_module: return the code of its module instead.

        Raises:
            NotCachedError: no such realization is stored.
            NoCodeError: the module was stored without its code.
        """
        self._require_open()
        from compcache.inspect.assembly import function_ir

        with _Suggesting(self):
            return function_ir(self._store, self._loader, _func_name_of(func_name), module_id, whole_module=whole_module)

    def asm(self, func_name: str | Identity, *, module_id: str | None = None, whole_module: bool = False) -> str:
        """Return the native assembly of a stored function.

        Args:
            func_name: the function's name, or its `Identity`.
            module_id: of which realization, as for `ir`.
            whole_module: return the code of its module instead.

        Raises:
            NotCachedError, NoCodeError: as for `ir`.
        """
        self._require_open()
        from compcache.inspect.assembly import function_asm

        with _Suggesting(self):
            return function_asm(self._store, self._loader, _func_name_of(func_name), module_id, whole_module=whole_module)

    def explain(self, func_name: str | Identity, identity: Identity | None = None, *, progress: Progress | None = None) -> Explanation:
        """Explain why a function can or cannot be loaded, and what changed: realizations, stored variants, the remote store's answer.

        Args:
            func_name: the function's name, its `Identity`, or a label: then the function that was stored last under it is explained,
                and compared with those before.
            identity: what the function is made of, if the caller has that: variants are compared with it.
            progress: called now and then with (modules read, modules to read).
        """
        self._require_open()
        from compcache.inspect.explain import explain, newest_of_label

        if identity is not None and not hasattr(identity, "components"):
            raise TypeError(f"explain(): identity must be a compcache.Identity, not {type(identity).__name__}")
        name = newest_of_label(self._store, _func_name_of(func_name))
        remote = self._session().remote()
        answer = remote.explain(name) if remote is not None else None
        return explain(self._store, self._loader, name, identity, progress, answer)

    def modules(self, *, progress: Progress | None = None) -> tuple[ModuleSummary, ...]:
        """List the stored modules.

        Args:
            progress: called now and then with (modules read, modules to read).

        Returns:
            One summary for each module, sorted by module_id, those of layers last.
        """
        self._require_open()
        from compcache.usage.listings import modules

        return tuple(modules(self._store, progress))

    def module(self, module_id: str) -> ModuleSummary:
        """Describe one stored module.

        Args:
            module_id: its 32 hexadecimal digits, as `modules` and `add_module` give them.

        Raises:
            FileNotFoundError: it is not there, or damaged.
            ValueError: `module_id` does not have that form.
        """
        self._require_open()
        from compcache.usage.listings import describe_module

        return describe_module(self._store, module_id)

    def info(self, *, progress: Progress | None = None) -> CacheInfo:
        """Describe the whole cache: its place, its size, and what would compile for it. No module is opened.

        Args:
            progress: called now and then with (modules read, modules to read).
        """
        self._require_open()
        from compcache.inspect.functions import cache_info

        return cache_info(self._store, self._loader.maps_files, self._max_size, progress)

    def stats(self, since: float | None = None, *, progress: Progress | None = None) -> CacheStats:
        """Count the contents of the cache, and add up the counters of all processes that use it.

        Args:
            since: count only from this time on, in seconds since the epoch, to the hour.
            progress: called now and then with (modules read, modules to read).

        Raises:
            TypeError: `since` is not such a time.
        """
        self._require_open()
        from compcache.usage.statistics import cache_stats

        self._store.stats.flush()
        return cache_stats(self._store, self._max_size, since, progress)

    def history(self, since: float | None = None, *, progress: Progress | None = None) -> tuple[StatsPeriod, ...]:
        """Return the counters of `stats` over time.

        Args:
            since: only from this time on, in seconds since the epoch, to the hour.
            progress: called now and then with (modules read, modules to read).

        Returns:
            The hours in which something was counted, days where that is a month ago; the oldest first.

        Raises:
            TypeError: `since` is not such a time.
        """
        self._require_open()
        from compcache.usage.statistics import history

        self._store.stats.flush()
        return history(self._store, since, progress)

    def zero_stats(self) -> None:
        """Set the counters that `stats` shows to zero. Times of last use are kept.

        Raises:
            StorageError: the cache is read-only, or another process is folding its statistics.
        """
        self._require_open()
        from compcache.usage.statistics import zero_stats

        self._store.stats.flush()
        zero_stats(self._store)

    # --------------------------------------------------------------- maintenance

    def prune(self, policy: PrunePolicy, dry_run: bool = False, *, progress: Progress | None = None) -> PruneReport:
        """Remove modules by policy, least recently used first.

        Nothing goes that something which stays needs. Call targets that are held, here or elsewhere, go on working.

        Args:
            policy: which modules to remove.
            dry_run: remove nothing, and report what would be removed.
            progress: called now and then with (modules read, modules to read).

        Raises:
            StorageError: the cache is read-only, or a file could not be removed.
        """
        self._require_open()
        from compcache.maintain.prune import prune

        self._store.stats.flush(now_held=True)
        return prune(self._store, policy, dry_run=dry_run, progress=progress)

    def propose_prune(self, policy: PrunePolicy, *, progress: Progress | None = None) -> PruneProposal:
        """Plan a prune for inspection, to be carried out by `carry_out`.

        Args:
            policy: which modules to remove.
            progress: called now and then with (modules read, modules to read).

        Returns:
            The plan; its `report` is that of a dry run.
        """
        self._require_open()
        from compcache.maintain.prune import propose

        self._store.stats.flush(now_held=True)
        return propose(self._store, policy, progress=progress, fold_statistics=not self.readonly)

    def carry_out(self, proposal: PruneProposal) -> PruneReport:
        """Carry out a planned prune, except for modules that were pinned, used or imported since.

        Args:
            proposal: what `propose_prune` returned.

        Raises:
            StorageError: the cache is read-only, or a file could not be removed.
        """
        self._require_open()
        from compcache.maintain.prune import carry_out

        return carry_out(self._store, proposal)

    def compact(self, *, grace: float = 10.0, progress: Progress | None = None) -> CompactReport:
        """Put small modules together: thousands in one file, a *volume*, each compressed and as it was published.

        Of modules that realize the same functions by the same content, for the same hosts, the newest stays. What is loaded and held goes
        on working, and processes that use the directory meanwhile find every function all the time.

        Args:
            grace: for how many seconds the files stay beside the volume that has them, for processes on other hosts that do not see it yet.
            progress: called now and then with (modules read, modules to read).

        Raises:
            StorageError: the cache is read-only, another process compacts it, or a file could not be written or removed.
            TypeError, ValueError: `grace` is not a number, or negative.
        """
        self._require_open()
        from compcache.maintain.compact import compact

        return compact(self._store, grace=grace, progress=progress)

    def check(
        self, *, repair: bool = False, checksums: bool = True, recompile: bool = False, progress: Progress | None = None
    ) -> CheckReport:
        """Look for damage: checksums, records against images, missing imports, the index, leftovers, permissions.

        Args:
            repair: put damaged files in quarantine, rebuild the index, remove leftovers, correct permissions.
            checksums: read every module in full; without, only their records.
            recompile: compile the code that is kept beside images again, and compare the result with the module.
            progress: called now and then with (modules read, modules to read).

        Returns:
            What each step checked, and what it found. A directory without a cache is reported as an error.

        Raises:
            StorageError: `repair` is set and the cache is read-only.
        """
        self._require_open()
        from compcache.maintain.check import check, report_absence

        if not self.exists:
            return report_absence(self._store)
        return check(self._store, repair=repair, checksums=checksums, recompile=recompile, progress=progress)

    def pin(self, func_name: str | Identity) -> bool:
        """Keep a function and its dependencies from being pruned. It need not be cached yet.

        Args:
            func_name: the function's name, or its `Identity`.

        Returns:
            Whether it was not pinned before.

        Raises:
            StorageError: the cache is read-only, or could not be written.
        """
        self._require_open()
        from compcache.maintain.pins import pin

        return pin(self._store, _func_name_of(func_name))

    def unpin(self, func_name: str | Identity) -> bool:
        """Undo `pin`.

        Args:
            func_name: the function's name, or its `Identity`.

        Returns:
            Whether it was pinned.

        Raises:
            StorageError: the cache is read-only, or could not be written.
        """
        self._require_open()
        from compcache.maintain.pins import unpin

        return unpin(self._store, _func_name_of(func_name))

    def pinned(self) -> tuple[str, ...]:
        """Return the pinned functions, sorted."""
        self._require_open()
        from compcache.maintain.pins import pinned

        return pinned(self._store)

    def remove(self, func_name: str | Identity | None = None, force: bool = False, *, derived: bool = False) -> tuple[str, ...]:
        """Remove every realization of a function, its pin, the entries of its name, and its parts.

        Parts (`ModuleSource.part_of`) and entries of a label go with the last function of that label. A group is removed whole.
        No look-up of this object's finds it from now on; call targets that are held go on working.

        Args:
            func_name: the function's name, or its `Identity`; or the name of a group, where no function has it.
            force: remove it even if its modules hold other functions, others import it or it is pinned.
            derived: remove the linked closures that it is in, or that set, and nothing else; without a name all.

        Returns:
            The ids of the removed modules.

        Raises:
            TypeError: there is no name.
            NotCachedError: the function is not in the cache.
            FunctionInUseError: it is in use as above; nothing was removed.
            StorageError: the cache is read-only, or a file could not be removed.
        """
        self._require_open()
        from compcache.maintain.remove import remove_function, remove_linked

        if derived:
            return remove_linked(self._store, None if func_name is None else _func_name_of(func_name))
        if func_name is None:
            raise TypeError("remove() needs the name of a function")
        if self._entries is not None:
            self._entries.flush()
        with _Suggesting(self):
            return remove_function(self._store, _func_name_of(func_name), force=force)

    def remove_module(self, module_id: str) -> bool:
        """Remove one module with everything that it realizes. Call targets that are held go on working.

        Args:
            module_id: its 32 hexadecimal digits, as `modules` and `add_module` give them.

        Returns:
            Whether it existed.

        Raises:
            StorageError: the cache is read-only, or the file could not be removed.
            ValueError: `module_id` does not have that form.
        """
        self._require_open()
        from compcache.maintain.remove import remove_module

        return remove_module(self._store, module_id)

    def clear(self) -> int:
        """Remove every module and return their number. Statistics and pins stay, call targets that are held go on working.

        Raises:
            StorageError: the cache is read-only, or a file could not be removed.
        """
        self._require_open()
        from compcache.maintain.clear import clear

        if self._entries is not None:
            self._entries.forget()
        return clear(self._store)

    # ------------------------------------------------------------------- bundles

    def export(
        self,
        names: Iterable[str | Identity],
        path: str | os.PathLike[str],
        targets: Iterable[str] | str | None = None,
        *,
        closure: bool = True,
        minisign: bool = False,
    ) -> tuple[str, ...]:
        """Write functions to a bundle: one file, a ZIP archive, for `import_bundle` or to be used as a layer.

        The same modules give the same bytes, in every process and on every host. Modules keep their signatures; with a
        `publish_key` that key signs them as well.

        Args:
            names: the functions, at least one, by their names or identities.
            path: the file; one of this name is replaced.
            targets: CPUs (see `ModuleSource`): of each function what a host of each of these would use. None is every realization.
            closure: include all functions that these ones import, transitively.
            minisign: write a signature of the whole file by the `publish_key` beside it (``<path>.minisig``) for `minisign -V`, with the
                key that ``compcache key show --minisign`` prints.

        Returns:
            The func_names in the bundle, sorted.

        Raises:
            ValueError: no function is named, or there is no `publish_key` for `minisign`.
            NotCachedError: one of the functions is not in the cache, or has no realization for a target.
            StorageError: the file could not be written.
        """
        self._require_open()
        from compcache.bundles.export import export

        if self._entries is not None:
            self._entries.flush()

        wanted = func_names_of(names)
        with _Suggesting(self):
            return export(self._store, wanted, absolute_path(os.fspath(path)), targets, closure=closure, minisign=minisign)

    def import_bundle(self, path: str | os.PathLike[str], *, trusted_keys: Iterable[str] | str | None = None) -> tuple[str, ...]:
        """Add the modules of a bundle, all of them or none.

        Args:
            path: the bundle.
            trusted_keys: public keys beside those of the cache (``name:base64``, or ``@path``). If there are any, one of them must have
                signed each module.

        Returns:
            The func_names of all functions in it, sorted.

        Raises:
            FormatError: the file is not a bundle, or damaged, or a part of it is missing.
            IntegrityError: a module is not signed, and there are trusted keys or it holds pickled values.
            StorageError: the bundle could not be read, or the cache could not be written.
        """
        self._require_open()
        from compcache.bundles.unpack import import_bundle

        keys: Any = ()
        if trusted_keys:
            from compcache.signing.keys import parse_publics

            keys = parse_publics(trusted_keys)
        return import_bundle(self._store, absolute_path(os.fspath(path)), keys)

    # -------------------------------------------------------------- remote store

    @property
    def remote(self) -> RemoteStore | None:
        """The remote stores that the cache was opened with, for their `status`, `verify` and `collect_garbage`."""
        self._require_open()
        return self._session().remote()

    def has_many(self, names: Iterable[str | Identity]) -> tuple[bool, ...]:
        """Ask for many functions at once, here and then in the remote store.

        Args:
            names: the functions, by their names or identities.

        Returns:
            For each function, in the order of `names`, whether either has code of it that this host can use.
        """
        self._require_open()
        wanted = func_names_of(names)
        known = {name: self.has(name) for name in wanted}
        absent = [name for name, there in known.items() if not there]
        remote = self._session().remote()
        if absent and remote is not None:
            known.update(zip(absent, remote.has(absent), strict=True))
        return tuple(known[name] for name in wanted)

    def prefetch(self, names: Iterable[str | Identity], *, plain: bool = True) -> tuple[str, ...]:
        """Fetch functions that are not cached, and all that they import, from the remote store.

        Args:
            names: the functions, by their names or identities.
            plain: fetch names that do not stand for content as well.

        Returns:
            The func_names of those that came.
        """
        self._require_open()
        remote = self._session().remote()
        absent = [name for name in func_names_of(names) if not self.has(name)]
        return remote.fetch(absent, plain=plain, insists=True) if remote is not None else ()

    def push(self, names: Iterable[str | Identity]) -> int:
        """Upload the modules of functions, and of all that these import, to the remote store in the background.

        What is pushed together makes a pack as well: `prefetch` of the same functions takes one request.

        Args:
            names: the functions, by their names or identities.

        Returns:
            How many modules were queued; `flush_uploads` waits for them.

        Raises:
            NotCachedError: a function is not in the cache.
            ValueError: the cache has no remote store that may be written to.
        """
        self._require_open()
        remote = self._session().remote()
        if remote is None or not remote.writes:
            raise ValueError("push needs a remote store to write to: open the cache with remote= and remote_mode='write'")
        wanted = dict.fromkeys([each for name in func_names_of(names) for each in (name, *self.dependencies(name, transitive=True))])
        found = dict.fromkeys([each.module_id for function in wanted for each in self.realizations(function)])
        count = sum([remote.offer(bytes.fromhex(module_id), always=True) for module_id in found])
        remote.pack(wanted)
        return count

    def flush_uploads(self, timeout: float = 60.0) -> bool:
        """Wait until what was compiled or pushed is in the remote store.

        Args:
            timeout: for how many seconds at most.

        Returns:
            Whether nothing is left to upload.
        """
        self._require_open()
        remote = self._session().remote()
        return remote is None or remote.flush(timeout) == 0

    # ---------------------------------------------- what the methods above share

    def _open(
        self,
        path: Any,
        layers: Any,
        trusted_keys: Any,
        min_llvm: Any,
        readonly: bool,
        verify: bool,
        trust: bool,
        allow_pickle: bool,
        tune: bool,
        link: Any,
    ) -> None:
        """Open the directory, whatever was given; see `Cache`."""
        signing_key, publish_key = self._keys_given
        remote, remote_mode = self._remote_given
        _require("path", path, (str, os.PathLike))
        _require("signing_key", signing_key, (bytes, str))
        _require("lock_timeout", self._lock_timeout, (int, float))
        for name, value in (("publish_key", publish_key), ("min_llvm", min_llvm)):
            _require(name, value, (str,))
        root = absolute_path(default_directory() if path is None else os.fspath(path))
        self._store = _open_store(
            root, layers, signing_key, trusted_keys, publish_key, min_llvm, {"readonly": readonly, "verify": verify, "trust": trust}
        )
        self._plain = self._loader = Loader(self._store, allow_pickle=allow_pickle)
        self._targets = self._loader.targets
        self._max_size = self._max_size if self._max_size is None else _size_in_bytes(self._max_size)
        self._checks = sys.flags.dev_mode or is_on(CHECK_VARIABLE)
        if link not in (None, "background"):
            raise ValueError(f"link must be 'background' or None, not {link!r}")
        self._tunes = tune
        self._tuners = {} if (tune or link) and not readonly else None
        if remote is not None or remote_mode is not None:
            self._session().remote()
        open_caches[root, bool(self._store.stamp_key)] = ref(self)

    def _become_whole(self) -> None:
        """Get a store and a loader, which plain hits do without: as they would be if the cache had been opened with them.

        What the environment and the owner of the directory were then counts, not what they are by now.
        """
        loader, recorder = self._plain, self._plain._recorder
        loader.leave_plain()
        store = Store(loader._root, open_beneath=path_opener(), user=loader._owner)
        store = self.__dict__.setdefault("_first_store", store)  # of threads that meet here, and of handlers, the first one's
        recorder.write_by(store.files)
        store.stats = recorder
        loader.__class__ = Loader
        assert isinstance(loader, Loader)
        loader.adopt(store)
        self._loader = loader
        self._store = store

    def _is_miss(self, error: Exception) -> TypeGuard[CompcacheError]:
        """Return whether `get_or_compile` compiles after this error of a look-up."""
        return isinstance(error, CompcacheError) and not self._closed and not isinstance(error, ReentrantLoadError)

    def _may_load_now(self, error: Exception, func_name: str | Identity) -> bool:
        """Count a miss; return whether the function has been fetched, so that it can be loaded after all."""
        if not isinstance(error, CompcacheError) or isinstance(error, ReentrantLoadError):
            return False
        self._store.stats.missed(error)
        if isinstance(error, (NotCachedError, UndefinedSymbolError)) and self._session().fetch((_func_name_of(func_name),)):
            return True
        if isinstance(error, NotCachedError):
            error.suggest = self._suggestion
        return False

    def _close_whole(self) -> None:
        if self._entries is not None:
            self._entries.flush()
        self._closed = True
        if self._tuners:
            from compcache.closures.background import reap

            reap(self._tuners)
        self._store.stats.flush()  # what is held until now counts as used
        self._loader.close()
        self._store.close()

    def _load_whole(self, func_name: str, owner: object, accept: Accept | None) -> TypedCallTarget:
        if self._loader.builds:
            from compcache.miss.held import load_while_building

            return load_while_building(self._session(), self._load_stored, func_name, owner, accept)
        return self._load_stored(func_name, owner, accept)

    def _load_stored(self, func_name: str, owner: object, accept: Accept | None) -> TypedCallTarget:
        started = perf_counter()
        before = self._loader.held(func_name)
        try:
            target = self._loader.load(func_name, owner, accept)
        except CompcacheError as error:
            if not self._retarget or not isinstance(error.__cause__, IncompatibleTargetError):
                raise
            target = self._load_retargeted(func_name, owner, accept, error)
        if self._tuners is not None and func_name not in self._tuners:
            from compcache.closures.background import work_later

            work_later(self._session(), self._tuners, target, tunes=self._tunes)
        if target is not before:  # else this process had it already
            self._store.stats.hit(func_name, target._context.module.module_id, perf_counter() - started)
        return target

    def _load_retargeted(self, func_name: str, owner: object, accept: Accept | None, error: CompcacheError) -> TypedCallTarget:
        """Compile the kept bitcode for this host and load the function again; raise `error` where that does not help."""
        try:
            try:
                from compcache.miss.retarget import load_retargeted
            except ImportError:  # only what runs kernels is installed
                raise error from error.__cause__

            target = load_retargeted(self._session(), func_name, owner, accept, error)
            self._store.stats.missed(error)
        finally:
            del error  # its traceback has this frame
        return target

    def _checked(self, target: TypedCallTarget, name: str | Identity, build: Callable[[], Source]) -> TypedCallTarget:
        """Return a hit, after a warning where it was compiled from something else than `build` returns now."""
        from compcache.miss.staleness import check_hit

        check_hit(self._session(), target, name, build)
        return target

    def _session(self) -> Session:
        """Return this cache, to the miss path."""
        if self._opened_session is None:
            from compcache.session import Session

            self._opened_session = Session(
                self._store, self._loader, max_size=self._max_size, lock_timeout=self._lock_timeout, retargets=self._retarget,
                remote=self._remote_given,
            )  # fmt: skip
        return self._opened_session

    def _suggestion(self, func_name: str) -> str:
        """Return similar names for the message of a `NotCachedError`; it runs when the message is read."""
        from compcache.inspect.names import suggestion

        return suggestion(self._store, func_name)


class _Suggesting:
    """Adds similar names to the message of a `NotCachedError`."""

    __slots__ = ("_cache",)

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def __enter__(self) -> None:
        """Return the cache; nothing is prepared."""

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, NotCachedError):
            error.suggest = self._cache._suggestion


def _size_in_bytes(size: int | str) -> int:
    if type(size) is int and size >= 0:
        return size
    from compcache.usage.limits import read_size

    return read_size(size)


def _require(name: str, value: object, kinds: tuple[type, ...]) -> None:
    if value is not None and not isinstance(value, kinds):
        raise TypeError(f"Cache(): {name} must be {' or '.join(k.__name__ for k in kinds)}, not {type(value).__name__}")


def _open_store(
    root: str,
    layers: Iterable[str | os.PathLike[str]] | None,
    signing_key: bytes | str | None,
    trusted_keys: Iterable[str] | str | None,
    publish_key: str | None,
    min_llvm: str | None,
    options: dict[str, Any],
) -> Store:
    """Return the store of a directory. Settings that are not given come from the environment."""
    options["open_beneath"] = path_opener()
    rules = signing_key, trusted_keys, publish_key, min_llvm
    if rules != (None,) * 4 or any(map(setting, RULES)):
        from compcache.signing.rules import read_rules

        options.update(read_rules(*rules, RULES))
    is_on(LOCKS_VARIABLE)
    options["recorder"] = recorder_for
    if is_on(DEBUG_VARIABLE) or hasattr(sys.modules.get("logging"), "getLogger"):
        from compcache.hit.log import logging_recorder_for

        options["recorder"] = logging_recorder_for
    if layers is None:
        layers = [path for path in setting(LAYERS_VARIABLE).split(os.pathsep) if path]
    if layers:
        from compcache.layers.layered_store import LayeredStore, layer_paths

        return LayeredStore(root, layer_paths(layers), options)
    return Store(root, **options)


def func_names_of(names: Any) -> list[str]:
    """Return the names of several functions, or of one, each given as such or as an `Identity`."""
    if isinstance(names, str) or hasattr(names, "func_name"):
        return [_func_name_of(names)]
    if not hasattr(names, "__iter__"):
        raise TypeError(f"names must be an iterable of str or compcache.Identity, like ['dot'], not {type(names).__name__}")
    return [_func_name_of(name) for name in names]


def _open_cache(path: str, *, signed: bool) -> Cache | None:
    known = open_caches.get((path, signed))
    cache = known() if known is not None else None
    return cache if cache is not None and not cache._closed else None


def find_again(path: str, func_name: str, signed: bool = False, layers: tuple[str, ...] = ()) -> TypedCallTarget:
    """Return the target that a pickled one stands for, from an open cache of this directory or a new one.

    A pickle carries neither key nor trust. One of a cache with a signing key is loaded only with the key of an open cache
    of the directory, or that of the environment.

    Raises:
        NotCachedError: that cache does not hold the function (any more).
        UntrustedDirectoryError: this process has no key, or would have to trust others who can write there.
    """
    cache = _open_cache(path, signed=True) if signed else _open_cache(path, signed=False) or _open_cache(path, signed=True)
    if cache is None:
        if signed and not setting(KEY_VARIABLE) and not setting(TRUSTED_VARIABLE):
            from compcache.hit.call_errors import no_key_for_pickled

            raise no_key_for_pickled(path, func_name, KEY_VARIABLE)
        cache = Cache(path, layers=layers or None)
    try:
        held = cache._targets.get(func_name)
        target = held() if held is not None else None
        return target if target is not None else cache._load(func_name, owner=cache)
    except NotCachedError as error:
        from compcache.hit.call_errors import pickled_is_gone

        raise pickled_is_gone(path, func_name, error) from error


def _complete() -> Any:
    """Put the members of this class in place of what stands for them in the facade; `Cache` is that class with all of them.

    What a program has put in such a place, as tests do, stays there. What it then puts back may be a stand-in.
    """
    unlike = "__dict__", "__weakref__", "__module__", "__doc__"
    members.update({name: member for name, member in vars(Cache).items() if name not in unlike})
    for name, member in members.items():
        if isinstance(Facade.__dict__.get(name, Later(name)), Later):
            setattr(Facade, name, member)
    return Facade


if not TYPE_CHECKING:  # last: a signal handler that asks for something meanwhile meets all of this file, or nothing of it
    Cache = _complete()
