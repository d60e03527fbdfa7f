"""Members of `Cache` that describe its content and report its use."""

from __future__ import annotations

from compcache.cache import Suggesting, func_names_of, install_members
from compcache.facade import Cache as Facade
from compcache.facade import func_name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from compcache.identity import Identity
    from compcache.inspect.descriptions import CacheInfo, FunctionGraph, FunctionReport, Realization
    from compcache.inspect.explain import Explanation
    from compcache.usage.module_files import Progress
    from compcache.usage.summaries import CacheStats, FunctionSummary, ModuleSummary, StatsPeriod


__all__ = ["Questions"]


class Questions(Facade):
    """Describes functions, modules and the cache itself."""

    def functions(
        self, select: Callable[[str], object] | None = None, *, folded: bool = False, progress: Progress | None = None
    ) -> tuple[FunctionSummary, ...]:
        """List the stored functions.

        Args:
            select: called with each name. Only functions for which it returns a true value are listed. None lists all.
            folded: list the functions of one label with their parts, or the functions of one group, as one.
            progress: called from time to time with (modules read, modules to read).

        Returns:
            One summary for each function, label or group, sorted by name.
        """
        self._require_open()
        from compcache.usage.listings import functions

        return tuple(functions(self._store, progress, select, folded=folded))

    def __iter__(self) -> Iterator[str]:
        """Return the func_names of all stored functions, sorted."""
        return iter([summary.func_name for summary in self.functions()])

    def __len__(self) -> int:
        """Return the number of func_names. This lists every function. `info` counts them at less cost."""
        return len(self.functions())

    def __bool__(self) -> bool:
        """Return True, also for an empty cache."""
        return True

    def labelled(self, label: str) -> tuple[str, ...]:
        """List the functions with a label, which were named by an `Identity` or by `compile`.

        Args:
            label: the label, or the label, a hyphen and the first four or more digits of the digest.

        Returns:
            The func_names, sorted. The result is empty if there are no such functions.

        Raises:
            TypeError: `label` is not a str.
        """
        self._require_open()
        from compcache.inspect.names import labelled

        if not isinstance(label, str):
            raise TypeError(f"labelled(): label must be a str, not {type(label).__name__}")
        return labelled(self._store, label)

    def function(self, func_name: str | Identity) -> FunctionReport:
        """Describe one function: its realizations, code, dependencies and use.

        Args:
            func_name: the function's name, or its `Identity`.

        Raises:
            NotCachedError: no stored module contains the function.
            FormatError: the dependency graph of the function's module is damaged, or does not contain the function.
            StorageError: the module cannot be read.
        """
        from compcache.inspect.functions import describe_function

        with Suggesting(self):
            return describe_function(self._store, self._loader, func_name_of(func_name))

    def realizations(self, func_name: str | Identity) -> tuple[Realization, ...]:
        """List the stored realizations of a function, including those that this host cannot use. The result may be empty.

        Args:
            func_name: the function's name, or its `Identity`.
        """
        self._require_open()
        from compcache.inspect.functions import realizations

        return realizations(self._store, self._loader, func_name_of(func_name))

    def dependencies(self, func_name: str | Identity, transitive: bool = False) -> tuple[str, ...]:
        """List the functions that a function refers to after optimization.

        Args:
            func_name: the function's name, or its `Identity`.
            transitive: include indirect dependencies.

        Returns:
            The func_names of the dependencies, direct dependencies first.

        Raises:
            NotCachedError: the function is not in the cache.
            FormatError, StorageError: the function's module is damaged, or cannot be read.
        """
        from compcache.inspect.functions import dependencies

        with Suggesting(self):
            return dependencies(self._store, self._loader, func_name_of(func_name), transitive=transitive)

    def graph(
        self, names: Iterable[str | Identity] | str | None = None, reverse: bool = False, *, progress: Progress | None = None
    ) -> FunctionGraph:
        """Return the dependencies of functions, transitively and across modules.

        Args:
            names: the functions, by their names or identities, or None for all.
            reverse: reverse the edges, so that they point from each function to the functions that refer to it.
            progress: called from time to time with (modules read, modules to read).

        Raises:
            NotCachedError: one of `names` is not in the cache. With `reverse`, this is not an error if cached functions import the name.
            FormatError, StorageError: the module of a function is damaged, or cannot be read. With `reverse`, the node of the function has
                the reason as its `problem` instead.
        """
        self._require_open()
        from compcache.inspect.call_graph import cache_graph

        chosen = None if names is None else func_names_of(names)
        with Suggesting(self):
            return cache_graph(self._store, self._loader, chosen, reverse=reverse, progress=progress)

    def ir(self, func_name: str | Identity, *, module_id: str | None = None, whole_module: bool = False) -> str:
        """Return the optimized LLVM assembly of a stored function.

        Args:
            func_name: the function's name, or its `Identity`.
            module_id: the id of the realization's module, or its first digits. None selects the first of `realizations` that this host can
                use, or else the first.
            whole_module: return the code of the complete module.

        Raises:
            NotCachedError: no realization matches, or several match.
            NoCodeError: the module was stored without bitcode.
            FormatError, StorageError: the module is damaged, or cannot be read.
        """
        from compcache.inspect.assembly import function_ir

        with Suggesting(self):
            return function_ir(self._store, self._loader, func_name_of(func_name), module_id, whole_module=whole_module)

    def asm(self, func_name: str | Identity, *, module_id: str | None = None, whole_module: bool = False) -> str:
        """Return the native assembly of a stored function.

        Args:
            func_name: the function's name, or its `Identity`.
            module_id: selects the realization, as for `ir`.
            whole_module: return the code of the complete module.

        Raises:
            NotCachedError: no realization matches, or several match.
            NoCodeError: the module was stored without bitcode.
            FormatError, StorageError: the module is damaged, or cannot be read.
        """
        from compcache.inspect.assembly import function_asm

        with Suggesting(self):
            return function_asm(self._store, self._loader, func_name_of(func_name), module_id, whole_module=whole_module)

    def explain(self, func_name: str | Identity, identity: Identity | None = None, *, progress: Progress | None = None) -> Explanation:
        """Explain why a function can or cannot be loaded, and how its inputs differ from those of stored variants.

        Remote stores are queried, too.

        Args:
            func_name: the function's name, its `Identity`, or a label. A label selects its newest function, which is compared with
                earlier functions of the label.
            identity: the function's identity, if it is known. Stored variants are compared with it.
            progress: called from time to time with (modules read, modules to read).

        Raises:
            TypeError: `identity` is not an `Identity`.
        """
        self._require_open()
        from compcache.inspect.explain import explain, newest_of_label

        if identity is not None and not hasattr(identity, "components"):
            raise TypeError(f"explain(): identity must be a compcache.Identity, not {type(identity).__name__}")
        name = newest_of_label(self._store, func_name_of(func_name))
        remote = self._session().remote()
        answer = remote.explain(name) if remote is not None else None
        return explain(self._store, self._loader, name, identity, progress, answer)

    def modules(self, *, progress: Progress | None = None) -> tuple[ModuleSummary, ...]:
        """List the stored modules.

        Args:
            progress: called from time to time with (modules read, modules to read).

        Returns:
            One summary for each module, sorted by module_id. Modules of layers come last.
        """
        self._require_open()
        from compcache.usage.listings import modules

        return tuple(modules(self._store, progress))

    def module(self, module_id: str) -> ModuleSummary:
        """Describe one stored module.

        Args:
            module_id: the module's id, 32 hexadecimal digits, as `modules` and `add_module` return it.

        Raises:
            FileNotFoundError: the module does not exist, or is damaged.
            StorageError: the module cannot be read.
            ValueError: `module_id` is not 32 hexadecimal digits.
        """
        self._require_open()
        from compcache.usage.listings import describe_module

        return describe_module(self._store, module_id)

    def info(self, *, progress: Progress | None = None) -> CacheInfo:
        """Describe the cache: its directory, its size, and the compiler that it would use. Missing lists of modules are made first.

        Args:
            progress: called from time to time with (modules read, modules to read).

        Raises:
            MissingPackageError: LLVM is not installed.
        """
        self._require_open()
        from compcache.inspect.functions import cache_info

        return cache_info(self._store, self._loader.maps_files, self._max_size, progress)

    def stats(self, since: float | None = None, *, progress: Progress | None = None) -> CacheStats:
        """Count the contents of the cache, and add up the counters of all processes that use it.

        The counters of this process are written first, and statistics files of several processes are merged, unless the cache is read-only.

        Args:
            since: add up the counters only from this time on, in seconds since the epoch, rounded down to the hour. None adds up all
                counters since they were last set to zero. The contents are counted completely.
            progress: called from time to time with (modules read, modules to read).

        Raises:
            TypeError: `since` is not a number.
        """
        self._require_open()
        from compcache.usage.statistics import cache_stats

        self._store.stats.flush()
        return cache_stats(self._store, self._max_size, since, progress)

    def history(self, since: float | None = None, *, progress: Progress | None = None) -> tuple[StatsPeriod, ...]:
        """Return the counters of `stats` over time. The counters of this process are written first.

        Args:
            since: return only counters from this time on, in seconds since the epoch, rounded down to the hour. None returns all.
            progress: called from time to time with (modules read, modules to read).

        Returns:
            One period for each hour with counts, the oldest first. The counts of hours that are older than a month are added up by day.

        Raises:
            TypeError: `since` is not a number.
        """
        self._require_open()
        from compcache.usage.statistics import history

        self._store.stats.flush()
        return history(self._store, since, progress)

    def zero_stats(self) -> None:
        """Set the counters that `stats` shows to zero. Times of last use are kept.

        Raises:
            StorageError: the cache is read-only, its statistics cannot be written, or another process is merging them.
        """
        self._require_open()
        from compcache.usage.statistics import zero_stats

        self._store.stats.flush()
        zero_stats(self._store)


install_members(Questions)
