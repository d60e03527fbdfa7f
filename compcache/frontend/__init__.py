"""Functions for authors of front ends: operations on a cache that compilers need and users do not.

A front end (Numba's is `compcache.numba`) turns a program's functions into modules, determines their dependencies, and passes call targets
to the program. `docs/frontend.md` shows a front end of fifty lines. Functions with the parameter `cache` that use stored functions or
entries raise `StorageError` for a closed cache. The other functions answer questions about LLVM code, symbols, files and settings.

The files of this package: `functions` (look-ups and additions), `entries` (a front end's own data), `listings` (the content of a
directory), `settings`, `symbols`. A hit imports only the files that it uses.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.build.ir_text import passes_vectors, symbol_counts
    from compcache.cache.reopening import settings_of
    from compcache.frontend.entries import allows_pickle, get_entry, put_entry, remove_entry, write_entries
    from compcache.frontend.functions import (
        add_missing,
        add_realizations,
        check_settings,
        check_sources,
        compact_index,
        count_compilation,
        count_miss,
        find,
        find_stored,
        forget_uncached,
        note_uncached,
    )
    from compcache.frontend.listings import (
        list_costs,
        list_entries,
        list_functions,
        list_groups,
        list_labels,
        list_modules,
        list_names,
        list_uncached,
        remove_functions,
    )
    from compcache.frontend.settings import is_on, targets_of, temporary_directory
    from compcache.frontend.symbols import address_of, quote_name, unquote_name
    from compcache.images.platform_symbols import provider_of
    from compcache.miss.staleness import is_checking
    from compcache.publish.atomic_file import has_settled

#: The modules of the functions that `functions` does not define. A module is imported when one of its functions is used first (PEP 562).
_HOMES = {
    name: f"compcache.{home}"
    for home, names in {
        "build.ir_text": "passes_vectors symbol_counts",
        "cache.reopening": "settings_of",
        "frontend.entries": "allows_pickle get_entry put_entry remove_entry write_entries",
        "frontend.listings": (
            "list_costs list_entries list_functions list_groups list_labels list_modules list_names list_uncached remove_functions"
        ),
        "frontend.settings": "is_on targets_of temporary_directory",
        "frontend.symbols": "address_of quote_name unquote_name",
        "images.platform_symbols": "provider_of",
        "miss.staleness": "is_checking",
        "publish.atomic_file": "has_settled",
    }.items()
    for name in names.split()
}

__all__ = [
    "add_missing", "add_realizations", "address_of", "allows_pickle", "check_settings", "check_sources", "compact_index",
    "count_compilation", "count_miss", "find", "find_stored", "forget_uncached", "get_entry", "has_settled", "is_checking", "is_on",
    "list_costs", "list_entries", "list_functions", "list_groups", "list_labels", "list_modules", "list_names", "list_uncached",
    "note_uncached", "passes_vectors", "provider_of", "put_entry", "quote_name", "remove_entry", "remove_functions", "settings_of",
    "symbol_counts", "targets_of", "temporary_directory", "unquote_name", "write_entries",
]  # fmt: skip


def __dir__() -> "list[str]":
    return __all__


if not TYPE_CHECKING:  # with a `__getattr__`, type checkers would believe in every name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        home = _HOMES.get(name, "compcache.frontend.functions")
        __import__(home)
        value = globals()[name] = getattr(sys.modules[home], name)
        return value
