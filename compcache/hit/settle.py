"""What the many imports of a function are bound to, where nothing is to be chosen: found in one pass through the index and the records.

A plan looks at one import after the other, at all realizations of it and at what each of them needs. Most functions have one realization,
in a module with many others, and need nothing. For these the native runtime answers for a list of names at once. Whatever is otherwise
about an import, damage too, is not found here: the plan meets it.
"""

from __future__ import annotations

from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.formats.manifest import LINK_ONLY, LINKED, FunctionRecord
from compcache.store import Store, is_ordered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.formats.index import Segment
    from compcache.formats.table import Table
    from compcache.hit.loader import Choice, Loader, Source, Sources

__all__ = ["settle"]

#: So many records of one module are read together at least.
_MANY = 32
#: So many bytes of a table, or of records, are read for each name at most: as many as one look-up reads.
_BYTES_OF_EACH = 1024
#: How many bytes of what records have of a link type are its digest.
_DIGEST = 8


def settle(loader: Loader, sources: Sources, user: Choice) -> dict[str, Choice]:
    """Return the imports of a function, by name, that have exactly one realization which needs nothing and fits.

    Only functions with plain names, in a cache without layers, and not while variables of other modules have providers: what is near
    decides then.
    """
    store = loader.store
    if type(store) is not Store or store.has_in_memory() or loader.merged or loader.providers:
        return {}
    linked = loader.linked
    kinds = {
        name: kind for _, name, _, kind in user.imports if is_ordered(name) and (linked is None or linked.bound.place_of(name) is None)
    }
    try:
        by_module = _by_module(store.index.segments, loader.runtime(), list(kinds))
    except (CompcacheError, OSError) as error:  # the plan meets it
        reraise_interrupt(error)
        return {}
    found: dict[str, Choice] = {}
    for module_id, places in by_module.items():
        if len(places) >= _MANY and module_id != user.module_id:
            try:
                found |= _functions_of(loader, sources, module_id, places, type(user))
            except (CompcacheError, OSError) as error:
                reraise_interrupt(error)
    return {name: choice for name, choice in found.items() if _fits(kinds[name], choice.record.link_type)}


def _fits(used: bytes, own: bytes) -> bool:
    return not used or not own or used[:_DIGEST] == own[:_DIGEST]


def _by_module(segments: tuple[Segment, ...], runtime: Any, names: list[str]) -> dict[bytes, dict[str, int]]:
    """Return, by module, the record offsets of functions with exactly one realization in all segments."""
    known: dict[str, tuple[bytes, int]] = {}
    several: set[str] = set()
    for segment in segments:
        for name, place in zip(names, runtime.places_of_names(_functions(segment, len(names)), names), strict=True):
            if place is not None and known.setdefault(name, place) != place:
                several.add(name)
    found: dict[bytes, dict[str, int]] = {}
    for name, place in known.items():
        if place and name not in several and place[1] < LINKED:
            found.setdefault(place[0], {})[name] = place[1]
    return found


def _functions(segment: Segment, names: int) -> Table:
    """Return the function entries of a segment, read into memory if so many look-ups would read as much of it anyway."""
    table = segment.functions
    return segment.whole()[0] if table.size <= names * _BYTES_OF_EACH else table


def _functions_of(loader: Loader, sources: Sources, module_id: bytes, places: dict[str, int], choice_of: type[Choice]) -> dict[str, Choice]:
    """Return the choices of these functions of a module that need nothing and can run here, by name. Raises the errors of opening the
    module.
    """
    store = loader.store
    source = loader.open_source(module_id, sources)
    if source.listed is None or not source.listed.is_in_listing:
        return {}
    names, accepted = list(places), store.processor().accepted
    found = {}
    records = _records(source, store, len(names))
    fields_of = loader.runtime().plain_functions(records, source.file.key, names, [*places.values()])
    for name, fields in zip(names, fields_of, strict=True):
        if fields is not None and fields[3] in accepted and not fields[2].startswith(LINK_ONLY):
            choice = found[name] = choice_of(source, FunctionRecord(*fields), places[name])
            choice.has_needs = True
    return found


def _records(source: Source, store: Store, names: int) -> bytes:
    """Return a module's section of records; nothing if it is much larger than these functions."""
    if source.listed is not None and source.listed.records:
        return source.listed.records
    if source.file.records > names * _BYTES_OF_EACH:
        return b""
    file = source.open_file(store)
    return file.read(file.image, file.records)
