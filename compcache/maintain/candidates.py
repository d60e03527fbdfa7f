"""The modules that a prune may remove, and the modules that affect the decision. Other modules are not kept in memory.

`Chooser.choose` returns the plan that `compcache.maintain.policy` would make from all modules. Candidates are a superset of the modules
that will be removed. For limits, candidates are the least recently used modules. The decision also depends on the importers of candidates,
on modules that realize the same functions, and on the importers of those modules. These modules are read, too. Others are only counted.
"""

from __future__ import annotations

from array import array
from collections import Counter
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.digest import DIGEST_SIZE, name_key
from compcache.directory.places import LAYERS
from compcache.formats import known_faults
from compcache.formats.manifest import LINKED
from compcache.maintain.pins import pinned
from compcache.maintain.policy import Criteria, Entry, Outside, Plan, fresh_generations, matcher, plan_prune
from compcache.publish.module_reader import linked_closures
from compcache.store import is_ordered
from compcache.usage.snapshot import statuses_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from compcache.formats.makers import Maker
    from compcache.maintain.policy import PrunePolicy
    from compcache.publish.module_rows import Platform, Row
    from compcache.store import Store
    from compcache.usage.ledger import Uses
    from compcache.usage.module_files import FileStatus
    from compcache.usage.snapshot import Slice, Slices

__all__ = ["Census", "Chooser", "lacking_imports"]

#: The factor by which the candidates grow if the first candidates did not suffice.
_GROWTH = 2
_NO_NAMES = frozenset[str]()


class Census:
    """Counts of the modules in the slices added so far.

    Attributes:
        modules: the number of modules, without packs.
        packs: the ids of the packs.
        size: the total size of modules and packs in bytes.
    """

    def __init__(self) -> None:
        self.modules = self.size = 0
        self.packs: set[bytes] = set()

    def add(self, slice_: Slice) -> None:
        """Add the modules of a slice to the counts."""
        packs = [module_id for module_id, row in slice_.rows().items() if row.is_pack]
        self.packs.update(packs)
        self.modules += len(slice_.present) - len(packs)
        self.size += sum(status.size for status in slice_.present.values())


class _PlatformFacts(NamedTuple):
    """Facts about the code for one platform: `target` and `generation` as in `Entry`, its makers, and the known fault of a maker or "".

    Targets and generations are numbered, because numbers are faster to compare than platforms.
    """

    target: int
    generation: int
    makers: tuple[Maker, ...]
    fault: str


class Chooser:
    """Chooses the modules that a prune removes. Each prune has its own chooser.

    Args:
        slices: the modules of the directory, which a census has read.
        uses: the statistics of the directory.
        policy: the policy of the prune.
        now: the time from which ages count, in seconds since the epoch.
        census: the counts of all modules.
        spare: the modules to keep as if they were pinned.
    """

    def __init__(self, slices: Slices, uses: Uses, policy: PrunePolicy, now: float, census: Census, spare: Container[bytes]) -> None:
        self._slices = slices
        self._store = store = slices.store
        self._uses = uses
        self._policy = policy
        self._now = now
        self._census = census
        self._spare = spare
        self._pins = frozenset(pinned(store))
        self._matches = matcher(policy.match)
        self._linked = linked_closures(store)
        self._part_uses = self._read_last_uses_of_parts()
        self._targets: dict[tuple[object, ...], int] = {}
        self._generations: dict[Platform, tuple[int, int]] = {}
        self._platforms: dict[int, tuple[Platform, _PlatformFacts]] = {}
        #: The names of all makers.
        self.makers: set[str] = set()
        self._fresh = fresh_generations(self._all_entries(), policy, now) if policy.stale is not None else frozenset[object]()
        self._criteria = Criteria(policy, now, self._fresh)

    def choose(self) -> Plan:
        """Return the plan of the prune. More candidates are read until they meet the limits, or are all modules."""
        duplicates = self._possible_duplicates() if self._policy.duplicates else frozenset()
        size, count = self._excess_over_limits()
        by_recency = _ByRecency()
        selected = {entry.module_id: entry for entry in self._all_entries() if self._select_or_offer(entry, duplicates, by_recency)}
        while True:
            oldest, horizon = by_recency.oldest(size, count)
            relevant = selected | {module_id: by_recency.packs[module_id] for module_id in oldest if module_id in by_recency.packs}
            relevant.update(self._read_entries({*oldest, *self._linked, *self._slices.unlisted} - relevant.keys()))
            self._add_related(relevant)
            plan = self._plan_and_clear(relevant, horizon)
            if not plan.exceeded or horizon == inf:
                return plan
            size, count = size * _GROWTH, count * _GROWTH

    def _excess_over_limits(self) -> tuple[int, int]:
        """Return the numbers of bytes and of modules above the limits of the policy."""
        policy, census = self._policy, self._census
        size = census.size - policy.max_bytes if isinstance(policy.max_bytes, int) else 0
        count = census.modules - policy.max_modules if policy.max_modules is not None else 0
        return max(size, 0), max(count, 0)

    def _plan_and_clear(self, relevant: dict[bytes, Entry], horizon: float) -> Plan:
        """Return the policy's plan for the entries in `relevant`, and empty `relevant`.

        The entries are the candidates and the modules that affect the decision. Entries used since `horizon` are not removed for a limit.
        """

        def limit_to_candidates(entry: Entry) -> Entry:
            """Return an entry whose parts omit existing modules that are not in `relevant`."""
            if entry.parts:  # the closure's id stands for parts that are not candidates: an entry without parts is not a closure
                parts = [part for part in entry.parts if part in relevant or not self._store.exists(part)]
                entry = entry._replace(parts=(*parts, entry.module_id))
            return entry

        self._mark_passed_over(relevant)
        self._mark_newest(relevant)
        entries = [limit_to_candidates(relevant[key]) for key in sorted(relevant)]
        relevant.clear()  # otherwise a prune of many modules would keep a second table in memory
        modules = len(entries) - sum(entry.is_pack for entry in entries)
        size = sum(entry.size for entry in entries)
        outside = Outside(self._census.size - size, self._census.modules - modules, horizon, self._fresh)
        return plan_prune(entries, self._policy, self._now, outside)

    def _mark_passed_over(self, relevant: dict[bytes, Entry]) -> None:
        """Set `passed_over` of the entries in `relevant` that lack an import (`lacking_imports`).

        The field gets those functions of the entry that complete entries provide too.
        """
        holders = Counter([name for entry in relevant.values() for name in entry.functions])
        added = {key: entry for key, entry in relevant.items() if entry.imports and any(holders[name] > 1 for name in entry.functions)}
        lacking = lacking_imports(self._store, added, self._read_entries)
        usable = [entry for entry in relevant.values() if lacking and entry.module_id not in lacking and not entry.fault]
        complete = {name for entry in usable for name in entry.functions}
        for module_id in lacking & relevant.keys():
            entry = relevant[module_id]
            relevant[module_id] = entry._replace(passed_over=frozenset(complete.intersection(entry.functions)))

    def _mark_newest(self, relevant: dict[bytes, Entry]) -> None:
        """Make older code of a plain name depend on its newest code, by the fields `newest` and `imports` of the entries in `relevant`.

        Code that is newer, but passed over because it lacks an import, is neither.
        """
        holders: dict[str, int] = {}
        for entry in relevant.values():
            for name in filter(is_ordered, entry.functions):
                holders[name] = holders.get(name, 0) + 1
        for name in sorted(name for name, count in holders.items() if count > 1):
            rows = [row for row in self._store.index.find_numbered(name_key(name)) if row[2] in relevant and row[3] < LINKED]
            answering = [row for row in rows if name not in relevant[row[2]].passed_over]
            order_of_newest, _, _, _, newest = max(answering, default=(0, 0, b"", 0, b""))
            for order, _, module_id, _, content in rows:
                entry = relevant[module_id]
                need = (f"\0{name}",)
                if order < order_of_newest and not (any(content) and content == newest):
                    relevant[module_id] = entry._replace(imports=entry.imports + need)
                elif name not in entry.passed_over:
                    relevant[module_id] = entry._replace(newest=entry.newest + need)

    def _read_last_uses_of_parts(self) -> dict[bytes, float]:
        """Return when each part was last used through a linked closure, in seconds since the epoch, by the part's module_id."""
        last_uses = self._uses.of(self._linked).last_uses()
        part_uses: dict[bytes, float] = {}
        for module_id, entry in self._linked.items():
            if module_id in last_uses:
                for part in entry.requires:
                    part_uses[part] = max(last_uses[module_id], part_uses.get(part, 0.0))
        return part_uses

    def _all_entries(self) -> Iterator[Entry]:
        """Yield the entries of all modules, packs last. The entry of an unreadable module has no functions and no imports."""
        slices = self._slices
        packs = {module_id: _Pack() for module_id in self._census.packs}
        for slice_ in slices:
            last_uses = {module_id: last_use for module_id, (_, last_use) in self._uses.of_directory(slice_.first).items()}
            rows = slice_.rows()
            for module_id, row in rows.items():
                if row.is_pack and module_id in packs:
                    packs[module_id].set_status(slice_.present[module_id], last_uses.get(module_id, 0.0))
                    required_ids = {key for _, _, _, requires, *_ in row.entries for key in requires}
                    for entry in self._read_entries(required_ids).values():
                        packs[module_id].add_requirement(entry.created, entry.used, protected=entry.pinned)
            yield from self._entries_of(slice_.present, rows, last_uses)
            for required, holder in slices.lists.requirements_of_directory(slice_.first):
                if required in slice_.present and holder in packs:
                    protected = required in rows and self._is_protected(rows[required])
                    last_use = max(last_uses.get(required, 0.0), self._part_uses.get(required, 0.0))
                    packs[holder].add_requirement(slice_.present[required].modified, last_use, protected=protected)
        for module_id, pack in packs.items():
            if pack.size >= 0:  # a negative size: the pack was removed since
                yield pack.entry(module_id, protected=module_id in self._spare)

    def _entries_of(
        self, present: Mapping[bytes, FileStatus], rows: Mapping[bytes, Row], last_uses: Mapping[bytes, float]
    ) -> Iterator[Entry]:
        """Yield the entries of the modules in `present`, except packs. `last_uses` has the times of their last uses.

        A module without a row in `rows` gets an entry without functions.
        """
        for module_id, (size, created) in present.items():
            last_use = max(last_uses.get(module_id, 0.0), self._part_uses.get(module_id, 0.0))
            row = rows.get(module_id)
            if row is None:
                yield Entry(module_id, size, created, last_use, (), (), module_id, None, module_id in self._spare)
                continue
            if row.is_pack:
                continue
            _, platform, _, names, _, imports, *_ = row
            target, generation, makers, fault = self._platform_facts(platform)
            is_pinned = self._is_protected(row)
            parts = row.parts if row.entries else ()
            if parts:
                names, imports, is_pinned = (), (), module_id in self._spare
            own = module_id, size, created, last_use, names, imports, target, generation, is_pinned
            yield _new_entry((*own, platform.llvm_version, False, makers, fault, parts, (), _NO_NAMES))

    def _is_protected(self, row: Row) -> bool:
        """Return whether a module must be kept, because it is spared or holds a pinned function."""
        return row.module_id in self._spare or (bool(self._pins) and not self._pins.isdisjoint(row.names))

    def _platform_facts(self, platform: Platform) -> _PlatformFacts:
        """Return the facts about a platform, and add its makers to `makers`."""
        cached = self._platforms.get(id(platform))  # rows share their platform objects
        if cached is None:
            target = self._targets.setdefault((platform.abi, platform.triple, platform.features), len(self._targets))
            makers = platform.made_by()
            self.makers.update([maker.name for maker in makers])
            target_and_generation = self._generations.setdefault(platform._replace(makers=""), (target, len(self._generations)))
            cached = self._platforms[id(platform)] = platform, _PlatformFacts(*target_and_generation, makers, known_faults.fault_of(makers))
        _, facts = cached
        return facts

    def _read_entries(self, module_ids: Iterable[bytes]) -> dict[bytes, Entry]:
        """Return the entries of the existing modules among `module_ids`, except packs, by module_id."""
        slices = self._slices
        present = statuses_of(self._store, sorted(module_ids))
        rows = slices.lists.rows(present)
        rows.update({module_id: slices.unlisted[module_id] for module_id in present if module_id in slices.unlisted})
        return {entry.module_id: entry for entry in self._entries_of(present, rows, self._uses.of(present).last_uses())}

    def _select_or_offer(self, entry: Entry, duplicates: Container[bytes], by_recency: _ByRecency) -> bool:
        """Return whether a criterion may select an entry. Otherwise add it to `by_recency`, the candidates for removal by a limit.

        Entries with a known fault are selected. Pinned entries, and entries that `match` excludes, are neither selected nor added.
        `duplicates` has the ids of possible duplicates.
        """
        policy = self._policy
        if entry.fault:
            return True
        if entry.pinned or (policy.match and not (entry.functions and all(map(self._matches, entry.functions)))):
            return False
        recency = min(max(entry.used, entry.created), self._now)
        if self._criteria.reason(entry, recency) or entry.module_id in duplicates:
            return True
        by_recency.add(recency, entry)
        return False

    def _possible_duplicates(self) -> frozenset[bytes]:
        """Return the ids of the modules that may realize the same functions as other modules, except removed modules.

        The module lists do not contain unlisted modules, so all unlisted modules count as possible duplicates.
        """
        slices = self._slices
        module_ids = {module_id for holders in slices.lists.several_holders() for module_id in holders}
        for row in slices.unlisted.values():
            module_ids.update([row.module_id, *[module_id for name in row.names for module_id in slices.lists.holders(name)]])
        return frozenset(module_ids - slices.gone)

    def _add_related(self, relevant: dict[bytes, Entry]) -> None:
        """Add to `relevant` the importers and the duplicates of its modules, and transitively those of the added modules."""
        slices, lists = self._slices, self._slices.lists
        names = {name for entry in relevant.values() for name in entry.functions}
        if not (self._policy.duplicates or lists.has_imports() or slices.unlisted or any(map(is_ordered, names))):
            return
        visited_names: set[str] = set()
        while names:
            visited_names |= names
            related_ids = dict[bytes, None]()
            imported = set(filter(is_ordered, names))  # older code of these names needs the newest code
            for name, module_id in lists.importers_of(names):
                imported.add(name)
                related_ids[module_id] = None
            if slices.unlisted or self._policy.duplicates:  # duplicates, and importers that no list has, need the holders of all names
                imported = names
            related_ids.update((module_id, None) for _, module_id in lists.holders_of(imported))
            new_entries = self._read_entries(related_ids.keys() - relevant.keys())
            relevant.update(new_entries)
            names = {name for entry in new_entries.values() for name in entry.functions} - visited_names


def lacking_imports(
    store: Store, added: dict[bytes, Entry], read: Callable[[set[bytes]], dict[bytes, Entry]], gone: Container[bytes] = ()
) -> set[bytes]:
    """Return the ids of modules that lack an import, directly or indirectly, if the modules in `gone` are removed. Look-ups pass them over.

    The search starts from the entries in `added`, and `read` returns those of other modules. Modules of layers count as complete. Without
    layers, the result is empty in a directory that other caches use with layers, because no import is known to be missing.
    """
    if not store.layers and LAYERS.directory in store.names_in(store.root):
        return set()
    known = dict(added)
    providers: dict[str, set[bytes]] = {}
    while added:
        names = {name for entry in added.values() for name in entry.imports} - providers.keys()
        rows = {name: {row[2] for row in store.find_numbered(name) if row[3] < LINKED and row[2] not in gone} for name in names}
        found = {module_id for module_ids in rows.values() for module_id in module_ids if store.exists(module_id)}
        added = read(found - known.keys())
        known |= added
        found -= {module_id for module_id in found & known.keys() if known[module_id].fault}
        providers |= {name: module_ids & found for name, module_ids in rows.items()}
    importers: dict[str, list[Entry]] = {}
    for entry in known.values():
        for name in entry.imports:
            importers.setdefault(name, []).append(entry)
    missing = [name for name, module_ids in providers.items() if not module_ids]
    lacking: set[bytes] = set()
    for name in missing:  # grows during the iteration
        for entry in importers[name]:
            lacking.add(entry.module_id)
            for provided in entry.functions:
                if entry.module_id in providers.get(provided, ()):
                    providers[provided].remove(entry.module_id)
                    missing += [] if providers[provided] else [provided]
    return lacking


#: Makes an `Entry` from its fields without a constructor call in Python.
_new_entry: Callable[[tuple[Any, ...]], Entry] = partial(tuple.__new__, Entry)


class _Pack:
    """Collects the fields of a pack's entry.

    The age and the last use of a pack are those of the newest module that its entries require. The pack is protected if one of these
    modules is protected. It is removed without the modules, because entries can be created again.
    """

    def __init__(self) -> None:
        self.size = -1
        self._created = self._newest = self._last = 0.0
        self._protected = False

    def set_status(self, status: FileStatus, last_use: float) -> None:
        """Set the size, the creation time and the last use of the pack's own file."""
        self.size, self._created = status
        self._last = max(self._last, last_use)

    def add_requirement(self, created: float, last_use: float, *, protected: bool) -> None:
        """Record when a module that an entry of the pack requires was created and last used, and whether it is `protected`."""
        self._newest = max(self._newest, created)
        self._last = max(self._last, last_use)
        self._protected = self._protected or protected

    def entry(self, module_id: bytes, *, protected: bool) -> Entry:
        """Return the entry of the pack for the policy. `protected` is whether the pack itself must not be removed."""
        created = self._newest or self._created
        return Entry(module_id, self.size, created, self._last, (), (), module_id, module_id, protected or self._protected, is_pack=True)


class _ByRecency:
    """The modules that only a limit may remove, without their entries, which are read for the least recently used ones.

    Attributes:
        packs: the entries of the packs among them, by module_id.
    """

    def __init__(self) -> None:
        self._recency = array("d")
        self._sizes = array("q")
        self._module_ids = bytearray()
        self.packs: dict[bytes, Entry] = {}

    def add(self, recency: float, entry: Entry) -> None:
        """Add a module to these modules. `recency` is the time of its last use or of its creation, in seconds since the epoch."""
        self._recency.append(recency)
        self._sizes.append(entry.size)
        self._module_ids += entry.module_id
        if entry.is_pack:
            self.packs[entry.module_id] = entry

    def oldest(self, size: int, count: int) -> tuple[list[bytes], float]:
        """Return the least recently used modules that together have at least `size` bytes and `count` modules.

        The second item of the result is the recency of the next module, or infinity.
        """
        chosen: list[bytes] = []
        for number in sorted(range(len(self._recency)), key=self._recency.__getitem__):
            if size <= 0 and count <= 0:
                return chosen, self._recency[number]
            module_id = bytes(self._module_ids[number * DIGEST_SIZE : (number + 1) * DIGEST_SIZE])
            chosen.append(module_id)
            size -= self._sizes[number]
            count -= module_id not in self.packs
        return chosen, inf
