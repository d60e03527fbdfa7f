"""Members of `Cache` that compile modules and publish them."""

from __future__ import annotations

from compcache.cache import func_names_of, install_members
from compcache.facade import Cache as Facade

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.build.source import ModuleSource
    from compcache.identity import Identity
    from compcache.maintain.report_types import LinkReport


__all__ = ["Adding"]


class Adding(Facade):
    """Adds modules to a cache, and links stored modules."""

    def add_module(self, source: ModuleSource) -> str:
        """Compile and publish a module, once for each of its targets.

        Args:
            source: the code, with its exports, imports and definitions.

        Returns:
            The module_id of this host's module, 32 hexadecimal digits. The same code has the same module_id in every process.

        Raises:
            CompileError, LinkError, SignatureError, InvalidNameError, GlobalValidationError: the source is not valid. The cache is
                unchanged.
            StorageError: the module could not be stored. The cache is unchanged.
        """
        from compcache.miss.build import add

        return add(self._session(), source)[0]

    def add_modules(self, sources: Iterable[ModuleSource], group: str | None = None) -> list[str]:
        """Compile many modules and publish them together. Each costs less than with `add_module`.

        Sources may use functions and variables from each other, in any order, like the files of a library. Their definitions take
        precedence over definitions in the platform, in libraries and in the cache. As in a static library, a module is loaded, and its
        constructors run, when one of its definitions is needed.

        Args:
            sources: the sources, each as for `add_module`. An iterator is read only as fast as the sources are compiled.
            group: the name of a group. The sources become one module with its own hidden names, like files linked into one shared
                object. A source that is unchanged since the group was last added is not optimized again.

        Returns:
            The module_ids, in the order of the sources. For a group, all of them are equal.

        Raises:
            ModulesNotAddedError: some sources could not be added. The message and `failures` name them; all other sources are stored.
            LinkError, CompileError: the members of a group define a symbol twice, or are not consistent. Nothing is stored.
            StorageError: the cache is read-only, or a group could not be stored.
            TypeError: `sources` is not iterable.
        """
        if not hasattr(sources, "__iter__"):
            raise TypeError(f"add_modules(): sources must be several sources, like [source], not one {type(sources).__name__}")
        if group is not None:
            from compcache.miss.groups import add_group

            return list(add_group(self._session(), sources, group))
        from compcache.miss.many import add_modules

        return list(add_modules(self._session(), sources))

    def replace(self, source_or_sources: ModuleSource | Iterable[ModuleSource], *, group: str | None = None) -> list[str]:
        """Add modules as `add_modules` does, and remove the older modules whose functions all have newer realizations.

        Loaded code stays loaded. A module stays if one of its functions has no newer realization. The other functions of such a
        module are no longer used.

        Args:
            source_or_sources: one source as for `add_module`, or several as for `add_modules`.
            group: as for `add_modules`. The group replaces all groups of this name; if a source is not valid, nothing is stored.

        Returns:
            The ids of the modules that were added, in the order of the sources.

        Raises:
            ModulesNotAddedError, LinkError, ...: the errors of `add_modules`. Nothing was removed.
            StorageError: the cache is read-only, a group could not be stored, or an older module could not be removed.
        """
        from compcache.miss.replace import replace

        return list(replace(self._session(), source_or_sources, group))

    def link(self, names: Iterable[str | Identity] | None = None, *, into: str | None = None) -> LinkReport:
        """Link the code that functions reach in several modules into one image. Each function gets another realization.

        Args:
            names: the functions, by their names or identities, or None for all.
            into: the name of a set. All functions of a set share one image.

        Returns:
            A report of the functions that were linked, and the reasons why other functions were not linked.

        Raises:
            StorageError: the cache is read-only, or cannot be written.
            CompileError: no linker for shared objects was found.
            LinkerError: $COMPCACHE_LINKER names a linker that cannot be run.
            InvalidNameError: a name cannot be used.
            FormatError: the entry of a stored linked closure is damaged.
        """
        from compcache.closures.link import link

        return link(self._session(), None if names is None else func_names_of(names), into)


install_members(Adding)
