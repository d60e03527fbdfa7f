"""Listings of the functions and modules of a cache, for tools. Only modules without a stored row are read."""

from __future__ import annotations

import time
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from compcache.digest import name_key
from compcache.formats import host
from compcache.formats.manifest import LINK_ONLY
from compcache.images.kinds import is_known
from compcache.interrupts import reraise_interrupt
from compcache.publish.module_lists import base_of
from compcache.publish.module_rows import Platform, Row, read_row
from compcache.store import Store
from compcache.targets.processor_words import enabled_features, features_in, format_features, missing_features
from compcache.usage.folding import entries_in, find_parts_and_entries, fold
from compcache.usage.last_uses import LastUses
from compcache.usage.ledger import Uses, fold_long
from compcache.usage.snapshot import Excerpts, Slices, look_over
from compcache.usage.summaries import ExportedFunction, FunctionSummary, ModuleSummary
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from compcache.usage.ledger import Ledger
    from compcache.usage.module_files import FileStatus, Progress
    from compcache.usage.snapshot import Overview
    from compcache.usage.summaries import EntrySummary

__all__ = [
    "describe_module", "functions", "functions_of", "listed_functions", "listed_modules", "look_over_all", "modules",
    "modules_of", "parse_module_id", "read_parts_and_entries",
]  # fmt: skip

_NEVER = (0, 0.0)
#: The number of labels or modules read first. The first rows are available soon.
_FIRST = 64
#: The maximum number of labels or modules read at a time. Reading many at a time is faster than reading one by one.
_MOST_AT_ONCE = 1 << 10
#: The most missing CPU features that a problem names.
_SHOWN_FEATURES = 8
_MODULE_ID_DIGITS = 32
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


def modules(store: Store, progress: Progress | None = None) -> list[ModuleSummary]:
    """Fold the long journals, and return all readable modules except packs, sorted by module_id, modules of layers last."""
    fold_long(store)
    uses = Uses(store)
    return [summary for directory in (store, *store.layers) for summary in _all_modules(directory, uses, progress)]


def _all_modules(directory: Store, uses: Uses, progress: Progress | None) -> Iterator[ModuleSummary]:
    """Yield the readable modules of a directory except packs, sorted by module_id. All modules are read twice."""
    slices = Slices(directory, progress)
    last_uses = LastUses(slices, uses)
    for slice_ in slices:
        counts = {module_id: count for module_id, (count, _) in uses.of_directory(slice_.first).items()}
        yield from _summaries(directory, slice_.present, slice_.rows(), counts, last_uses.of_directory(slice_.first))


def look_over_all(store: Store, progress: Progress | None = None) -> list[tuple[Store, Overview]]:
    """Return overviews of a cache directory and its layers. The uses of modules in layers are counted in the cache directory."""
    overview = look_over(store, progress)
    return [(store, overview), *[(layer, look_over(layer, progress)._replace(ledger=overview.ledger)) for layer in store.layers]]


def _modules_in(store: Store, overview: Overview) -> list[ModuleSummary]:
    """Return the modules of an overview except packs, sorted by module_id."""
    present, rows, ledger = overview
    last_uses, _ = _last_uses(ledger, rows)
    return list(_summaries(store, present, rows, ledger.counts(), last_uses))


def _summaries(
    store: Store, present: Mapping[bytes, FileStatus], rows: Mapping[bytes, Row], uses: Mapping[bytes, int], times: Mapping[bytes, float]
) -> Iterator[ModuleSummary]:
    """Yield the summaries of the modules in `rows` except packs, in order. `uses` counts uses; `times` has the times of the last uses."""
    now = time.time()
    problem_of = _Problems(store)
    for module_id in sorted(rows):
        row = rows[module_id]
        if not row.is_pack:
            size, modified = present[module_id]
            count_and_last_use = uses.get(module_id, 0), times.get(module_id, 0.0)
            yield _summary_of_row(row, size, min(modified, now), problem_of[row.platform], count_and_last_use, store.source)


class _Problems(dict[Platform, str]):
    """The reason why this host cannot use code for a platform, by platform. It is computed at the first look-up."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def __missing__(self, platform: Platform) -> str:
        self[platform] = problem = _platform_problem(self._store, platform)
        return problem


def parse_module_id(module_id: str) -> bytes:
    """Convert a module_id from 32 hexadecimal digits to bytes. Raise `ValueError` if `module_id` does not have 32 hexadecimal digits."""
    if not isinstance(module_id, str) or len(module_id) != _MODULE_ID_DIGITS or not _HEXADECIMAL.issuperset(module_id):
        raise ValueError(f"{module_id!r} is not a module_id: give {_MODULE_ID_DIGITS} hexadecimal digits, as modules() lists them")
    return bytes.fromhex(module_id)


def describe_module(store: Store, module_id: str) -> ModuleSummary:
    """Return the summary of a module.

    Raises:
        FileNotFoundError: the module does not exist or is damaged.
        StorageError: the module cannot be read.
        ValueError: `module_id` does not have 32 hexadecimal digits.
    """
    key = parse_module_id(module_id)
    holder = next((directory for directory in (store, *store.layers) if Store.exists(directory, key)), store)
    path = holder.module_path(key)
    row = None
    try:
        size, modified = holder.status_of(key)
        row = read_row(holder, key)
    except FileNotFoundError as error:
        reraise_interrupt(error)  # there is no module, or another process has just removed it
    except OSError as error:
        reraise_interrupt(error)
        raise store.unreadable_error(path, error) from error
    if row is None:
        raise FileNotFoundError(f"the cache {store.root} has no module {module_id} that can be read: modules() lists its modules")
    ledger = Uses(store).of([key])
    uses = ledger.counts().get(key, 0), ledger.last_uses().get(key, 0.0)
    return _summary_of_row(row, size, modified, _platform_problem(store, row.platform), uses, holder.source)


def functions(
    store: Store, progress: Progress | None = None, select: Callable[[str], object] | None = None, *, folded: bool = False
) -> list[FunctionSummary]:
    """Return the cached functions, or those whose names `select` accepts, sorted by name; see `Cache.functions`.

    If `folded` is true, return one summary for each group, and one for each label or name outside of groups.
    """
    return sorted(_select_functions(look_over_all(store, progress), select, folded=folded), key=attrgetter("func_name"))


def _select_functions(
    overviews: list[tuple[Store, Overview]], select: Callable[[str], object] | None, *, folded: bool
) -> Iterable[FunctionSummary]:
    """Return the functions in overviews whose names `select` accepts, in no particular order. See `functions` for `folded`."""
    if not folded:
        return functions_of(overviews, select)
    sizes = {key.hex(): size for _, overview in overviews for key, (size, _) in overview.present.items()}
    return fold(functions_of(overviews), entries_in(overviews), select, sizes)


def listed_functions(
    store: Store, progress: Progress | None = None, select: Callable[[str], object] | None = None, *, folded: bool = False, prefix: str = ""
) -> Iterator[FunctionSummary]:
    """Yield the result of `functions` with the same arguments, sorted by label. The first rows do not wait until all functions are read.

    Only functions whose labels start with `prefix` are read. If `folded` is true and the cache has groups, all functions are read, because
    the names of a group's functions do not follow from its name.
    """
    excerpts = Excerpts(store, progress)
    has_groups = folded and any(lists.has_members() for lists in excerpts.lists)
    bases = excerpts.bases("" if has_groups else prefix)
    size = _FIRST
    while batch := list(islice(bases, size)):
        size = min(2 * size, _MOST_AT_ONCE)
        chosen = set(batch)
        rows = _select_functions(excerpts.of_bases(batch[0], batch[-1]), select, folded=folded)
        chosen_rows = [row for row in rows if base_of(row.func_name) in chosen]
        yield from sorted(chosen_rows, key=lambda row: (base_of(row.func_name), row))


def listed_modules(store: Store, prefix: str = "", progress: Progress | None = None) -> Iterator[ModuleSummary]:
    """Yield the modules whose module_ids begin with `prefix`, in the order of `modules`.

    The first rows do not wait until all modules are read. After them, a listing without a prefix reads all modules together.

    Raise `ValueError` if `prefix` contains characters other than hexadecimal digits.
    """
    if not _HEXADECIMAL.issuperset(prefix):
        raise ValueError(f"{prefix!r} does not begin a module_id: give hexadecimal digits, as modules() lists them")
    prefix = prefix.lower()
    excerpts = Excerpts(store, progress)
    for number, (lists, directory) in enumerate(zip(excerpts.lists, (store, *store.layers), strict=True)):
        size = _FIRST
        whole_bytes = len(prefix) // 2 * 2  # the digits of the prefix that make whole bytes
        ids = lists.module_ids(bytes.fromhex(prefix[:whole_bytes]))
        while batch := list(islice(ids, size)):
            size = min(2 * size, _MOST_AT_ONCE)
            chosen = {module_id.hex() for module_id in batch}
            _, overview = excerpts.of_modules(batch)[number]
            summaries = _modules_in(directory, overview)
            yield from [row for row in summaries if row.module_id in chosen and row.module_id.startswith(prefix)]
            if size >= _MOST_AT_ONCE and not prefix:
                last_id = batch[-1].hex()
                yield from (row for row in _all_modules(directory, Uses(store), progress) if row.module_id > last_id)
                break


def modules_of(store: Store, module_ids: Iterable[bytes]) -> list[ModuleSummary]:
    """Return the readable modules with these module_ids in a cache directory and its layers."""
    chosen = {module_id.hex() for module_id in module_ids}
    overviews = Excerpts(store).of_modules(map(bytes.fromhex, chosen))
    return [row for directory, overview in overviews for row in _modules_in(directory, overview) if row.module_id in chosen]


def read_parts_and_entries(store: Store, func_name: str) -> tuple[list[FunctionSummary], list[EntrySummary]]:
    """Return the parts of a function, and the entries of data that belong to it; see `FunctionReport`."""
    overviews = Excerpts(store).of_name(func_name)
    return find_parts_and_entries(func_name, functions_of(overviews), entries_in(overviews))


def functions_of(overviews: list[tuple[Store, Overview]], select: Callable[[str], object] | None = None) -> Iterable[FunctionSummary]:
    """Return the functions in overviews of a directory and its layers, or the functions that `select` accepts, in no particular order.

    Functions that exist only in linked closures are left out, because a closure is not used without the modules of its functions.
    """
    by_name, *of_layers = [_functions_in(directory, overview, select) for directory, overview in overviews]
    if of_layers:
        copies = {name: [summary] for name, summary in by_name.items()}
        for layer in of_layers:
            for name, summary in layer.items():
                copies.setdefault(name, []).append(summary)
        by_name = {name: _merge_copies(summaries) for name, summaries in copies.items()}
    linked = {key.hex(): row.names for _, overview in overviews for key, row in overview.rows.items() if row.entries and row.parts}
    linked_names = {name for names in linked.values() for name in names}
    for name in linked_names.intersection(by_name):
        if linked.keys() >= set(by_name[name].modules):
            del by_name[name]
    return by_name.values()


def _functions_in(store: Store, overview: Overview, select: Callable[[str], object] | None) -> dict[str, FunctionSummary]:
    """Return the functions of an overview by name, without link-only symbols. If `select` is not None, it must accept their names."""
    now = time.time()
    present, rows, ledger = overview
    directories = (store.source,)
    last_uses, imported = _last_uses(ledger, rows)
    counts, missed = ledger.counts(), ledger.misses()
    by_name: dict[str, FunctionSummary] = {}
    duplicates: dict[str, list[FunctionSummary]] = {}
    problem_of = _Problems(store)
    for module_id, (_, platform, _, names, _, _, signatures, _, part_of) in rows.items():
        size, modified = present[module_id]
        created = min(modified, now)
        problem, modules_, module_used = problem_of[platform], (module_id.hex(),), last_uses.get(module_id, 0.0)
        for name, signature in zip(names, signatures):  # noqa: B905 - the lengths are equal, and the loop runs 100,000 times
            if (select is None or select(name)) and not signature.startswith(LINK_ONLY):
                uses, last_use = 0, module_used
                if last_use and len(names) == 1:  # the uses of the module are the uses of its only function; saves a digest of the name
                    uses = counts.get(module_id, 0)
                elif last_use:
                    uses, last_use = ledger.uses.get((name_key(name), module_id), _NEVER)
                    last_use = max(last_use, imported.get(name, 0.0))
                misses = missed.get(name_key(name), 0) if missed else 0
                fields = name, signature, 1, size, created, problem, modules_, uses, last_use, directories, misses, part_of, 1, 0, 0
                copy = _new_summary(fields)
                earlier = by_name.setdefault(name, copy)
                if earlier is not copy:
                    duplicates.setdefault(name, [earlier]).append(copy)
    for name, copies in duplicates.items():
        by_name[name] = _merge_copies(copies)
    return by_name


#: Create an `ExportedFunction` and a `FunctionSummary` from their fields, without a constructor call in Python.
_new_function: Callable[[tuple[str, str]], ExportedFunction] = partial(tuple.__new__, ExportedFunction)
_new_summary: Callable[[tuple[Any, ...]], FunctionSummary] = partial(tuple.__new__, FunctionSummary)


def _merge_copies(copies: list[FunctionSummary]) -> FunctionSummary:
    """Merge the summaries of a function's copies in several modules into one summary. Sort `copies` in place, usable copies first."""
    directories = tuple(dict.fromkeys([directory for copy in copies for directory in copy.directories]))
    copies.sort(key=lambda copy: (bool(copy.problem), copy.modules))
    return copies[0]._replace(
        realizations=sum(copy.realizations for copy in copies),
        size=sum(copy.size for copy in copies),
        created=max(copy.created for copy in copies),
        modules=tuple(sorted([module_id for copy in copies for module_id in copy.modules])),
        uses=sum(copy.uses for copy in copies),
        last_used=max(copy.last_used for copy in copies),
        directories=directories,
    )


def _last_uses(ledger: Ledger, rows: Mapping[bytes, Row]) -> tuple[dict[bytes, float], dict[str, float]]:
    """Return the time of the last use of each module, by module_id, and of each imported function, by name.

    A use of a module counts as a use of its dependencies.
    """
    latest = ledger.last_uses()
    used_ids = sorted(latest.keys() & rows.keys(), key=latest.__getitem__)
    if not any(rows[module_id].imports for module_id in used_ids):
        return latest, {}
    providers = {name: module_id for module_id, row in rows.items() for name in row.names}
    if len(providers) < sum([len(row.names) for row in rows.values()]):
        # Of several modules that realize a function, the module used last is its provider.
        providers.update({name: module_id for module_id in used_ids for name in rows[module_id].names})
    imported: dict[str, float] = {}
    visited: set[bytes] = set()
    for root in reversed(used_ids):
        if root in visited:
            continue
        visited.add(root)
        last_use, pending = latest[root], [root]
        for module_id in pending:  # the loop appends to the list
            latest[module_id] = last_use  # not earlier than its own last use, because roots are visited latest first
            for name in rows[module_id].imports:
                imported.setdefault(name, last_use)
                provider = providers.get(name)
                if provider is not None and provider not in visited:
                    visited.add(provider)
                    pending.append(provider)
    return latest, imported


def _summary_of_row(row: Row, size: int, created: float, problem: str, uses: tuple[int, float], directory: str) -> ModuleSummary:
    """Return the summary of a module. `uses` has the number of uses and the time of the last use, in seconds since the epoch."""
    platform = row.platform
    signatures = [signature.removeprefix(LINK_ONLY) for signature in row.signatures]
    features = format_features({name for text in platform.features.split("\n") for name in enabled_features(features_in(text))})
    return ModuleSummary(
        row.module_id.hex(), tuple(map(_new_function, zip(row.names, signatures, strict=True))), row.imports, size, created,
        row.seconds, platform.cpu, features, platform.llvm_version, platform.image_kind, problem, *uses, directory,
    )  # fmt: skip


def _platform_problem(store: Store, platform: Platform) -> str:
    """Return the reason why this host cannot use code for a platform; "" if this host can use the code."""
    if not is_known(platform.image_kind):
        return f"has an image of the unknown kind {platform.image_kind!r}, for {platform.triple}"
    if platform.abi != host.ABI_VERSION or platform.triple != host.platform_name():
        return f"is for {platform.triple} (ABI {platform.abi})"
    processor = store.processor()
    texts = platform.features.split("\n")  # one for each group of functions; the first says enough, if no group can run
    return "" if any(map(processor.meets, texts)) else f"needs {join_first(missing_features(texts[0], processor), _SHOWN_FEATURES)}"
