"""Links closures: chooses their modules, reads the stored code of the modules, and publishes linked closures.

A linked closure is published as a module, with an entry that names its modules (`compcache.formats.linked`). It is derived data: listings
of stored modules do not contain it, it is not an addition, and loads use it while it is valid (`compcache.hit.closures.linked`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from compcache.build import codegen
from compcache.build.recipe import read_recipe
from compcache.build.slots import Requests
from compcache.build.source import check_name
from compcache.closures.chosen import Planner, choose
from compcache.closures.code import Closure, link_code, moving_modules, read_part
from compcache.depgraph import group_sharing
from compcache.errors import CompcacheError, CompileError
from compcache.formats import host
from compcache.formats.entry import ENTRY, PART_OF, STUB, EntryRecord, decode_entry
from compcache.formats.graph import decode_notes, pack_notes
from compcache.formats.group import GROUP, MEMBER
from compcache.formats.linked import KIND, NAME, ClosureRecord, decode_closure, encode_closure, mark_linked
from compcache.formats.makers import makers_text, read_makers
from compcache.formats.manifest import LINK_ONLY, SUSPECT
from compcache.formats.manifest_writer import iterate_frames
from compcache.formats.records import decode_module
from compcache.hit.closures.validity import valid_parts
from compcache.images import making
from compcache.images.kinds import is_mapped
from compcache.interrupts import reraise_interrupt
from compcache.linker import link_translated
from compcache.maintain.remove import remove_modules
from compcache.maintain.report_types import LinkedClosure, LinkReport
from compcache.miss.publication import publish_built
from compcache.publish.additions import merge_newest
from compcache.publish.module_reader import linked_closures
from compcache.publish.verify import has_own_signature, uses_unsigned
from compcache.store import is_ordered
from compcache.targets.machine import machine_for
from compcache.translation.requests import Request
from compcache.usage.ledger import Uses
from compcache.usage.limits import effective_limit
from compcache.usage.snapshot import Slices, statuses_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from compcache.build.recipe import Recipe
    from compcache.closures.chosen import Chosen
    from compcache.closures.code import Linked, Part
    from compcache.formats.built_module import BuiltModule
    from compcache.formats.makers import Maker
    from compcache.session import Session
    from compcache.store import Store
    from compcache.targets.machine import Machine

__all__ = ["link"]

_LEVEL = 2  # the optimization level if no module of a closure is optimized
#: The kinds of entries in module files that this package writes. All other kinds belong to front ends.
_OWN_KINDS = frozenset((PART_OF, STUB, GROUP, MEMBER))
#: The fraction of the size limit that linked closures may use.
_MOST_OF_LIMIT = 0.25


def link(session: Session, names: Iterable[str] | None, into: str | None) -> LinkReport:
    """Link functions with the modules that they import (`Cache.link`), and publish the linked closures.

    Args:
        session: the open cache.
        names: the functions, or None for all functions that can be called.
        into: the name of a set, which becomes one closure, or None for one closure per function.

    Raises:
        StorageError: the cache is read-only, or cannot be written.
        CompileError: no linker for shared objects was found.
        LinkerError: $COMPCACHE_LINKER names a linker that cannot be run.
        InvalidNameError: a name cannot be used.
        FormatError: the entry of a stored linked closure is damaged.
    """
    session.store.require_writable()
    if into is not None:
        check_name(into, "name of a set")
    checked = None if names is None else [check_name(name, "func_name") for name in names]
    requested = dict.fromkeys(_all_functions(session.store) if checked is None else checked)
    if not making.makes_shared_objects():
        raise CompileError(
            "closures cannot be linked, because this platform requires a linker for shared objects, but none is installed: run "
            "`pip install 'compcache[linker]'`"
        )
    linked: list[LinkedClosure] = []
    unlinked: dict[str, str] = {}
    homes: dict[bytes, None] = {}
    linking = _Linking(session, into)
    for planned in linking.plan_sets([list(requested)] if into is not None else [[name] for name in requested]):
        outcome = linking.link(planned)
        linked += [outcome.closure] if outcome.closure is not None else []
        homes |= dict.fromkeys(outcome.homes)
        unlinked |= {name: reason for name, reason in outcome.unlinked.items() if name in requested}
    if linked:
        _remove_replaced(session, linked, into, homes)
        merge_newest(session.store)
        planner = Planner(session.store)
        for closure in linked:
            valid_parts(planner, bytes.fromhex(closure.module_id), session.store.state())
    return LinkReport(tuple(linked), unlinked)


def _all_functions(store: Store) -> list[str]:
    """Return the names of all stored functions that can be called, sorted. A signature that begins with "!" is a reason why one cannot."""
    return sorted({
        name
        for slice_ in Slices(store)
        for row in slice_.rows().values()
        for name, signature in zip(row.names, row.signatures, strict=True)
        if not signature.startswith(("!", LINK_ONLY))
    })  # fmt: skip


class _Planned(NamedTuple):
    """A closure to link, and the modules that would move into it.

    `is_requested` is false for a linked closure that was not requested, and that is only joined because it contains the same modules.
    """

    names: Sequence[str]
    chosen: Chosen
    closure: Closure
    homes: frozenset[bytes]
    is_requested: bool


class _Outcome(NamedTuple):
    """The result of a link: the published closure or None, the modules that have moved into it, and why functions are not in it."""

    closure: LinkedClosure | None
    homes: tuple[bytes, ...]
    unlinked: dict[str, str]


class _Linking:
    """Links closures so that no module moves into two closures."""

    def __init__(self, session: Session, into: str | None) -> None:
        self._session = session
        self._store = session.store
        self._into = into
        self._machine: Machine = machine_for(None, None, session.store.host(), host.platform_name())
        self._makers: dict[bytes, tuple[Maker, ...]] = {}
        self._unsigned_parts: set[bytes] = set()  # closures with their code must not be signed with this user's key
        self._parts: dict[bytes, Part | None] = {}

    def plan_sets(self, sets: Iterable[Sequence[str]]) -> list[_Planned]:
        """Return the planned closures of these sets of functions.

        Closures into which the same module would move are joined, and so are existing linked closures that contain such a module.

        Raise `FormatError` if the entry of a closure is damaged.
        """
        planned = [self._plan(names) for names in sets]
        homes = frozenset().union(*[plan.homes for plan in planned])
        if homes:
            for entry in linked_closures(self._store).values():
                former = decode_closure(entry.data)
                if not homes.isdisjoint(entry.requires[: former.homes]):
                    planned.append(self._plan(former.roots)._replace(is_requested=False))
        groups = _group_overlapping(planned)
        while len(groups) < len(planned):
            planned = [self._join(group) for group in groups]
            groups = _group_overlapping(planned)
        return [plan for plan in planned if plan.is_requested]

    def _join(self, group: Sequence[_Planned]) -> _Planned:
        """Return one plan for all functions of a group. The plan is requested if a plan of the group is."""
        if len(group) == 1:
            return group[0]
        names = dict.fromkeys([name for plan in group for name in plan.names])
        return self._plan([*names])._replace(is_requested=any(plan.is_requested for plan in group))

    def _plan(self, names: Sequence[str]) -> _Planned:
        """Return the plan of the closure of these functions. Functions that cannot be loaded are left out; `chosen.failures` lists them.

        Modules that cannot be linked are left out.
        """
        chosen = choose(self._store, names)
        roots = [name for name in names if name not in chosen.failures]
        modules = dict.fromkeys([bound.module_id for bound in chosen.bound.values()])
        closure = Closure(list(filter(None, map(self._get_part, modules))), chosen.bound, roots)
        return _Planned(names, chosen, closure, moving_modules(closure), is_requested=True)

    def link(self, planned: _Planned) -> _Outcome:
        """Link and publish a closure (`publish_built`). If that is impossible, the outcome has the reason for each requested function."""
        unlinked = {name: str(error) for name, error in planned.chosen.failures.items()}
        requested = planned.closure.roots
        try:
            linked = self._link_code(planned.closure) if len(planned.closure.parts) > 1 else None
            built = self._build_module(linked) if linked is not None else None
        except CompcacheError as error:
            reraise_interrupt(error)
            return _Outcome(None, (), unlinked | dict.fromkeys(requested, str(error)))
        if linked is None or built is None:
            reason = "of the code that it reaches, only code of one module can be copied, so there is nothing to link"
            return _Outcome(None, (), unlinked | dict.fromkeys(requested, reason))
        linked_names = frozenset(linked.names)
        unlinked |= {name: "its code cannot be copied" for name in requested if name not in linked_names}
        passed_over = next((name for name, module_id in linked.bound.items() if not self._is_found(name, module_id)), None)
        if passed_over is not None:
            reason = f"a load does not use the newest code of {passed_over!r}; 'compcache explain' shows the reason"
            return _Outcome(None, (), unlinked | dict.fromkeys(requested, reason))
        sign = self._unsigned_parts.isdisjoint(linked.parts)
        if not sign and not uses_unsigned(self._store):
            reason = "this cache cannot sign it, because code of others is in it, and others can write to the directory"
            return _Outcome(None, (), unlinked | dict.fromkeys(requested, reason))
        (module_ids,) = publish_built(self._session, [built], sign=sign, is_derived=True)
        parts_of = tuple([module_id.hex() for module_id in linked.parts])
        closure = LinkedClosure(module_ids[0], linked.names, parts_of, sum(map(len, built.sections)))
        return _Outcome(closure, linked.homes, unlinked)

    def _get_part(self, module_id: bytes) -> Part | None:
        """Return the part for a stored module, read at most once, or None if the module cannot be linked."""
        if module_id not in self._parts:
            self._parts[module_id] = self._read_part(module_id)
        return self._parts[module_id]

    def _read_part(self, module_id: bytes) -> Part | None:
        """Return the part for a stored module, and record its makers and a missing signature.

        Return None if the module cannot be read, or has no code that can be linked on this host.
        """
        store = self._store
        try:
            with store.open_module(module_id) as module:
                header, footer = decode_module(module.read_record(0)), module.footer()
                if (
                    not footer.bitcode
                    or module.flags == SUSPECT
                    or not is_mapped(header.image_kind)
                    or (header.cpu, header.machine_features) != (self._machine.cpu, self._machine.features)
                ):
                    return None
                has_data = _has_data(module.read(footer.image, footer.records))
                section = module.read(footer.image + footer.records + footer.graph, footer.bitcode)
                recipe = read_recipe(section, module.read_record)
                self._makers[module_id] = read_makers(module.read_record, module.records)
                if not has_own_signature(store, module):
                    self._unsigned_parts.add(module_id)
            found_names = None if has_data else self._found_names(recipe, module_id)
            return codegen.run(lambda context: read_part(context, module_id, recipe, found_names))
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            return None

    def _found_names(self, recipe: Recipe, module_id: bytes) -> dict[str, bool] | None:
        """Return `Part.found_names` for a module; None if look-ups find other or unknown content under the name of one of its exports."""
        is_found_by_name: dict[str, bool] = {}
        for name in [export.name for export in recipe.exports]:
            is_found_by_name[name] = self._is_found(name, module_id)
            if not is_found_by_name[name]:
                newest = next(iter(self._store.find(name)), (b"", 0))[0]
                content = self._content_digest(name, module_id)
                if not any(content) or content != self._content_digest(name, newest):
                    return None
        return is_found_by_name

    def _link_code(self, closure: Closure) -> Linked | None:
        """Return a closure's linked code, or None if it would contain the code of only one module. See `link_code` for the exceptions."""
        level = max([part.recipe.level for part in closure.parts]) or _LEVEL
        request = Request(b"", (), Requests({}, {}), level, self._machine, shared=True, keep_bitcode=False)
        return codegen.run(lambda context: link_code(context, closure, request))

    def _is_found(self, name: str, module_id: bytes) -> bool:
        """Return whether a look-up of a name returns a module first. The result is always True for content names."""
        return not is_ordered(name) or next(iter(self._store.find(name)), (b"", 0))[0] == module_id

    def _build_module(self, linked: Linked) -> BuiltModule:
        """Return the linked module with the record of what it joins: the functions, their original modules and the bindings."""
        parts = [*linked.homes, *[module_id for module_id in linked.parts if module_id not in linked.homes]]
        numbers = {module_id: number for number, module_id in enumerate(parts)}
        others = [module_id for module_id in dict.fromkeys(linked.bound.values()) if module_id not in numbers]
        numbers |= {module_id: len(numbers) + at for at, module_id in enumerate(others)}
        bindings = {name: numbers[module_id] for name, module_id in linked.bound.items() if is_ordered(name)}
        label = self._into if self._into is not None else linked.names[0]
        data = encode_closure(ClosureRecord(label, len(linked.homes), linked.names, bindings))
        entry = EntryRecord(KIND, NAME, 0, tuple(numbers), data, gone=False)
        makers = makers_text(dict.fromkeys([maker for module_id in linked.parts for maker in self._makers.get(module_id, ())]))
        built = link_translated(linked.translated._replace(makers=makers), [entry])
        exported = [export.name for export in linked.translated.prepared.exports]
        contents = b"".join([self._content_digest(name, linked.bound[name]) for name in exported])
        notes = {**decode_notes(built.sections.notes), **({"contents": contents} if any(contents) else {})}
        functions = mark_linked(built.functions, [KIND])
        return built.with_notes(pack_notes(notes))._replace(indexed=(*functions, *built.indexed[len(functions) :]))

    def _content_digest(self, name: str, module_id: bytes) -> bytes:
        """Return a function's content digest from the index, or zeros if it is unknown. The linked function has the same digest."""
        rows = self._store.find_numbered(name)
        return next((content for _, _, other_id, _, content in rows if other_id == module_id), bytes(8))


def _has_data(records: bytes) -> bool:
    """Return whether a module has entries of a front end, which reads them from the module's file before a load.

    Raise `FormatError` if a record is damaged.
    """
    kinds = [decode_entry(payload).kind for _, payload in iterate_frames(records) if payload[:1] == ENTRY]
    return not _OWN_KINDS.issuperset(kinds)


def _group_overlapping(planned: Sequence[_Planned]) -> list[list[_Planned]]:
    """Group closures, so that closures into which the same module would move are in the same group."""
    counts = Counter([home for plan in planned for home in plan.homes])
    shared = [home for home, count in counts.items() if count > 1]  # a bit for each home of each plan would take too much memory
    bits = {home: 1 << number for number, home in enumerate(shared)}
    homes = [sum(bits.get(home, 0) for home in plan.homes) for plan in planned]
    return [[planned[number] for number in group] for group in group_sharing(homes)]


def _remove_replaced(session: Session, linked: Sequence[LinkedClosure], into: str | None, homes: Mapping[bytes, None]) -> None:
    """Remove linked closures that new closures replace, and the least recently used closures beyond their share of the size limit.

    A closure is replaced by a closure for the same set (`into`) or function, and by a closure that contains the same modules (`homes`).

    Raise `StorageError` if a closure could not be removed, or `FormatError` if the entry of one is damaged.
    """
    store = session.store
    new_ids = {bytes.fromhex(closure.module_id) for closure in linked}
    names = {into} if into is not None else {name for closure in linked for name in closure.functions}
    entries = linked_closures(store)
    present = statuses_of(store, entries)
    rows = {key: decode_closure(entries[key].data) for key in present}
    replaced = {
        key
        for key, closure in rows.items()
        if key not in new_ids and (closure.label in names or not homes.keys().isdisjoint(entries[key].requires[: closure.homes]))
    }
    limit, last_uses = effective_limit(session.max_size, store.root), Uses(store).of(rows).last_uses()
    size = sum(present[key].size for key in rows if key not in replaced)
    for key in sorted(rows.keys() - replaced, key=lambda key: (key in new_ids, last_uses.get(key, 0.0), present[key].modified, key)):
        if limit is None or size <= limit * _MOST_OF_LIMIT:
            break
        replaced.add(key)
        size -= present[key].size
    if replaced:
        remove_modules(store, sorted(replaced))
