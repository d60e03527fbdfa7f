"""Members of `Cache` that compile modules and publish them."""

from __future__ import annotations

from compcache.cache import complete, func_names_of
from compcache.facade import Facade

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.build.source import ModuleSource
    from compcache.identity import Identity
    from compcache.maintain.report_types import LinkReport


__all__ = ["Adding"]


class Adding(Facade):
    """Adds modules to a cache, and links what is there."""

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


complete(Adding)
