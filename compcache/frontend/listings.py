"""Lists of what a directory contains, for tools, and the removal of functions by their names."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from compcache.cache import Cache
    from compcache.inspect.uncached import Refusal
    from compcache.usage.costs import Cost
    from compcache.usage.module_files import Progress
    from compcache.usage.summaries import EntrySummary, FunctionSummary, GroupSummary, ModuleSummary

__all__ = [
    "list_costs", "list_entries", "list_functions", "list_groups", "list_labels", "list_modules", "list_names", "list_uncached",
    "remove_functions",
]  # fmt: skip


def list_functions(
    cache: Cache, prefix: str = "", match: Callable[[str], object] | None = None, *, folded: bool = False, progress: Progress | None = None
) -> Iterator[FunctionSummary]:
    """Yield summaries of the stored functions, sorted by label and name. See `Cache.functions`.

    The first summaries are yielded without reading all functions.

    Args:
        cache: the cache.
        prefix: the beginning of the labels, or of the names of functions without a label.
        match: returns whether a function with this func_name is listed.
        folded: whether all functions with the same label have one summary.
        progress: called repeatedly with (modules read, modules to read), if lists of modules have to be made first.
    """
    cache._require_open()
    from compcache.usage.listings import listed_functions

    return listed_functions(cache._store, progress, match, folded=folded, prefix=prefix)


def list_names(cache: Cache, prefix: str, limit: int) -> list[str]:
    """Return the names of stored functions that begin with a prefix, sorted, and nothing else about the functions.

    Args:
        cache: an open cache.
        prefix: the beginning of the names.
        limit: the most names to return. It is not specified which names are left out.
    """
    cache._require_open()
    from compcache.inspect.names import names_starting_with

    return names_starting_with(cache._store, prefix, limit)


def list_labels(cache: Cache, part: str) -> set[str]:
    """Return the labels of stored functions, and the names of functions without labels, whose last components are `part`.

    Argument types after `part` are left out of the labels and names.

    Args:
        cache: an open cache.
        part: one or more components of a dotted name. ``solve`` and ``linalg.solve`` find ``linalg.solve``, also with types of arguments.
    """
    cache._require_open()
    from compcache.inspect.names import labels_ending_in

    return labels_ending_in(cache._store, part)


def list_groups(cache: Cache, names: Collection[str] | None = None) -> tuple[GroupSummary, ...]:
    """Return the stored groups (`Cache.add_modules`) with their members, sorted by name.

    Args:
        cache: an open cache.
        names: the names of groups; None for all groups.
    """
    cache._require_open()
    from compcache.usage.groups import groups

    return tuple(groups(cache._store, names))


def list_modules(cache: Cache, prefix: str = "", *, progress: Progress | None = None) -> Iterator[ModuleSummary]:
    """Yield summaries of the stored modules whose module_ids begin with a prefix, in the order of `Cache.modules`.

    Args:
        cache: an open cache.
        prefix: the first hexadecimal digits of module_ids.
        progress: called repeatedly with (modules read, modules to read).

    Raises:
        ValueError: `prefix` contains characters other than hexadecimal digits.
    """
    cache._require_open()
    from compcache.usage.listings import listed_modules

    return listed_modules(cache._store, prefix, progress)


def list_entries(cache: Cache) -> tuple[EntrySummary, ...]:
    """Return summaries of the stored entries, sorted by name and kind. Entries that are not yet written are left out.

    Args:
        cache: an open cache.
    """
    cache._require_open()
    from compcache.usage.folding import entries_in
    from compcache.usage.listings import look_over_all

    return tuple(entries_in(look_over_all(cache._store)))


def list_costs(
    cache: Cache, *, progress: Progress | None = None, duplicate: Callable[[str, int, int], object] | None = None
) -> Iterator[Cost]:
    """Yield the costs of stored functions, one item for each label or plain name, sorted by label or name.

    Args:
        cache: the cache.
        progress: called repeatedly with the numbers of read modules and of all modules.
        duplicate: called for each callable function with several realizations: its name, their number, the size of their modules in bytes.
    """
    cache._require_open()
    from compcache.usage.costs import costs

    return costs(cache._store, progress, duplicate)


def list_uncached(cache: Cache) -> tuple[Refusal, ...]:
    """Return the records of `note_uncached`, the latest first. A few hundred records are kept.

    Args:
        cache: an open cache.
    """
    from compcache.inspect.uncached import read_refusals

    cache._require_open()
    return tuple(read_refusals(cache._store))


def remove_functions(
    cache: Cache, names: Iterable[str], *, force: bool = False, derived: bool = False, dry_run: bool = False
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Remove functions and groups, importers before the functions that they import.

    Args:
        cache: an open cache.
        names: the names of functions or groups.
        force: see `Cache.remove`.
        derived: see `Cache.remove`.
        dry_run: remove nothing, and return what would be returned otherwise.

    Returns:
        The ids of the removed modules by name, and the reason for each function or group that was kept.

    Raises:
        FormatError: see `Cache.remove`.
        StorageError: see `Cache.remove`.
    """
    cache._require_open()
    from compcache.maintain import remove

    return remove.remove_functions(cache._store, names, force=force, derived=derived, dry_run=dry_run)
