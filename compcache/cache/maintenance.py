"""Members of `Cache` that check a cache, compact it, and remove modules."""

from __future__ import annotations

from compcache.cache import Suggesting, install_members
from compcache.facade import Cache as Facade
from compcache.facade import func_name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.identity import Identity
    from compcache.maintain.policy import PrunePolicy
    from compcache.maintain.prune import PruneProposal
    from compcache.maintain.report_types import CheckReport, CompactReport, PruneReport
    from compcache.usage.module_files import Progress


__all__ = ["Maintenance"]


class Maintenance(Facade):
    """Checks a cache, compacts it, and removes modules."""

    def prune(self, policy: PrunePolicy, dry_run: bool = False, *, progress: Progress | None = None) -> PruneReport:
        """Remove modules by policy, least recently used first. The statistics of this process are written first.

        Modules that a remaining module needs are kept. Existing call targets of this and other processes remain valid.

        Args:
            policy: selects the modules to remove.
            dry_run: only report the modules and files that would be removed.
            progress: called from time to time with (modules read, modules to read).

        Returns:
            A report of the modules that were removed, or would be.

        Raises:
            TypeError: `policy` is not a `PrunePolicy`.
            StorageError: the cache is read-only without `dry_run`, the index or the pins cannot be read, or a file could not be removed.
        """
        self._require_open()
        from compcache.maintain.prune import prune

        self._store.stats.flush(now_held=True)
        return prune(self._store, policy, dry_run=dry_run, progress=progress)

    def propose_prune(self, policy: PrunePolicy, *, progress: Progress | None = None) -> PruneProposal:
        """Plan a prune, which `carry_out` performs. The statistics of this process are written first.

        Args:
            policy: selects the modules to remove.
            progress: called from time to time with (modules read, modules to read).

        Returns:
            The plan, with the `report` of a dry run.

        Raises:
            TypeError: `policy` is not a `PrunePolicy`.
            StorageError: the index or the pins cannot be read.
        """
        self._require_open()
        from compcache.maintain.prune import propose

        self._store.stats.flush(now_held=True)
        return propose(self._store, policy, progress=progress, fold_statistics=not self._store.readonly)

    def carry_out(self, proposal: PruneProposal) -> PruneReport:
        """Carry out a planned prune, except for modules that were pinned, used or imported since.

        Args:
            proposal: the result of `propose_prune`.

        Returns:
            A report of the modules that were removed.

        Raises:
            StorageError: the cache is read-only, the pins cannot be read, or a file could not be removed.
        """
        self._require_open()
        from compcache.maintain.prune import carry_out

        return carry_out(self._store, proposal)

    def compact(self, *, grace: float = 10.0, progress: Progress | None = None) -> CompactReport:
        """Pack small modules into *volumes*, files that contain thousands of compressed modules. The modules are unchanged otherwise.

        Of several modules that realize the same functions with the same content for the same hosts, only the newest is kept. Loaded code
        remains valid, and other processes can find every function at any time.

        Args:
            grace: for how many seconds the old files stay beside the volume, for processes on other hosts that do not see the volume
                yet.
            progress: called from time to time with (modules read, modules to read).

        Returns:
            A report of the modules that were packed and removed.

        Raises:
            StorageError: the cache is read-only, another process is compacting it, or a file could not be written or removed.
            TypeError: `grace` is not a number.
            ValueError: `grace` is negative, NaN, or longer than a process can wait.
        """
        self._require_open()
        from compcache.maintain.compact import compact

        return compact(self._store, grace=grace, progress=progress)

    def check(
        self, *, repair: bool = False, checksums: bool = True, recompile: bool = False, progress: Progress | None = None
    ) -> CheckReport:
        """Check the integrity of the cache: digests, images, imports, the index, leftovers and permissions.

        Args:
            repair: move damaged files to quarantine, rebuild the index, remove leftovers, and correct permissions.
            checksums: read and verify every module completely, not only its records.
            recompile: recompile the stored bitcode of each module, and compare the result with the module's image.
            progress: called from time to time with (modules read, modules to read).

        Returns:
            A report of the steps and the problems. A directory without a cache is reported as an error.

        Raises:
            StorageError: `repair` is set and the cache is read-only, or the index cannot be read.
        """
        self._require_open()
        from compcache.maintain.check import check

        return check(self._store, repair=repair, checksums=checksums, recompile=recompile, progress=progress)

    def pin(self, func_name: str | Identity) -> bool:
        """Keep a function and its dependencies from being pruned. The function need not be cached yet.

        Args:
            func_name: the function's name, or its `Identity`.

        Returns:
            Whether the function was not pinned before.

        Raises:
            InvalidNameError: no function can have this name.
            StorageError: the cache is read-only, or could not be written.
        """
        self._require_open()
        from compcache.build.source import check_name
        from compcache.maintain.pins import pin

        return pin(self._store, check_name(func_name_of(func_name), "name of a function"))

    def unpin(self, func_name: str | Identity) -> bool:
        """Remove the pin of a function, so that it can be pruned again.

        Args:
            func_name: the function's name, or its `Identity`.

        Returns:
            Whether the function was pinned.

        Raises:
            StorageError: the cache is read-only, or could not be written.
        """
        self._require_open()
        from compcache.maintain.pins import unpin

        return unpin(self._store, func_name_of(func_name))

    def pinned(self) -> tuple[str, ...]:
        """Return the names of the pinned functions, sorted.

        Raises:
            StorageError: the pins cannot be read.
        """
        self._require_open()
        from compcache.maintain.pins import pinned

        return pinned(self._store)

    def remove(self, func_name: str | Identity | None = None, force: bool = False, *, derived: bool = False) -> tuple[str, ...]:
        """Remove every realization of a function, its pin, the entries of its name, and its parts.

        Parts (`ModuleSource.part_of`) and entries of a label are removed with the last function of that label. A group is removed
        completely. Later look-ups through this object miss. Existing call targets remain valid.

        Args:
            func_name: the function's name, or its `Identity`; or the name of a group, if no function has that name.
            force: remove the function even if its modules contain other functions, other modules import it, or it is pinned.
            derived: remove only the linked closures that contain the function, or the set of this name; without a name, all of them.

        Returns:
            The ids of the removed modules.

        Raises:
            TypeError: no name is given, and `derived` is not set.
            NotCachedError: the function is not in the cache, and `derived` is not set.
            FunctionInUseError: one of the conditions that `force` overrides holds. Nothing was removed.
            FormatError: `derived` is set, and the entry of a linked closure is damaged.
            StorageError: the cache is read-only, the pins or a module cannot be read, or a file could not be removed.
        """
        self._require_open()
        from compcache.maintain.remove import remove_function, remove_linked

        if derived:
            return remove_linked(self._store, None if func_name is None else func_name_of(func_name))
        if func_name is None:
            raise TypeError("remove() requires the name of a function, unless derived=True is given")
        if self._entries is not None:
            self._entries.flush()
        with Suggesting(self):
            return remove_function(self._store, func_name_of(func_name), force=force)

    def remove_module(self, module_id: str) -> bool:
        """Remove one module with all its realizations. Existing call targets remain valid.

        Args:
            module_id: the module's id, 32 hexadecimal digits, as `modules` and `add_module` return it.

        Returns:
            Whether the module existed.

        Raises:
            StorageError: the cache is read-only, or the file could not be removed.
            ValueError: `module_id` is not 32 hexadecimal digits.
        """
        self._require_open()
        from compcache.maintain.remove import remove_module

        return remove_module(self._store, module_id)

    def clear(self) -> int:
        """Remove all modules and entries, and return the number of modules. Statistics and pins are kept. Call targets remain valid.

        Raises:
            StorageError: the cache is read-only, or a file could not be removed.
        """
        self._require_open()
        from compcache.maintain.remove import clear

        if self._entries is not None:
            self._entries.drop()
        return clear(self._store)


install_members(Maintenance)
