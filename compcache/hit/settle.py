"""Finds the targets of many imports that leave nothing to choose, in one pass through the index and the records.

A plan examines one import after the other, with all its realizations and their needs. Most functions have one realization, in a
module with many other functions, and need nothing. For such functions the native runtime answers for a list of names at once, without
an object for each. Imports with anything unusual, such as damage, are left to the plan.
"""

from __future__ import annotations

from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.formats.manifest import decode_function
from compcache.store import Store, is_ordered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.hit.loader import Choice, Import, Loader, Source, Sources

__all__ = ["Settled", "settle"]

#: The least number of imports of one module that are settled together.
_MANY = 32
#: The most bytes of records that are read for each name: as many as one look-up reads.
_BYTES_OF_EACH = 1024


class Settled:
    """Imports of a function that are bound to one module. `functions` has the number of each imported function in that module."""

    __slots__ = ("_offset", "functions", "imports", "source")

    def __init__(self, source: Source, imports: list[Import], offset: int, functions: list[int]) -> None:
        self.source = source
        self.imports = imports
        self._offset = offset
        self.functions = functions

    def first_choice(self, store: Store, choice_of: type[Choice]) -> dict[str, Choice]:
        """Return the choice for the first import, by name, as a plan expects it.

        Raises:
            CompcacheError, OSError: the record cannot be read.
        """
        choice = choice_of(self.source, decode_function(self.source.read_record(store, self._offset)), self._offset)
        choice.has_needs = True
        return {self.imports[0][1]: choice}


def settle(loader: Loader, sources: Sources, user: Choice) -> dict[str, Choice]:
    """Move the imports of a function that have exactly one realization, which fits and needs nothing, to its `settled`.

    One import of each module stays, so that the plan sees the module. The choices for these imports are returned by name.

    Only plain names are settled, in a cache without layers and linked closures. Nothing is settled while variables of other modules have
    providers, because near modules are preferred then.
    """
    store = loader.store
    if type(store) is not Store or store.has_in_memory() or loader.merged or loader.providers or loader.linked is not None:
        return {}
    segments = tuple([segment.functions for segment in store.index.segments])
    imports = [item for item in user.imports if is_ordered(item[1])]
    found: dict[str, Choice] = {}
    try:
        for module_id, (wanted, offsets) in loader.runtime().uses_by_module(segments, imports).items():
            if len(wanted) < _MANY or module_id == user.module_id:
                continue
            settled = _settle_in_module(loader, sources, module_id, wanted, offsets)
            if settled is not None:
                found |= settled.first_choice(store, type(user))
                moved = set(map(id, settled.imports[1:]))
                user.imports = [item for item in user.imports if id(item) not in moved]
                user.settled.append(settled)
    except (CompcacheError, OSError) as error:  # the plan meets the error again
        reraise_interrupt(error)
    return found


def _settle_in_module(loader: Loader, sources: Sources, module_id: bytes, imports: list[Import], offsets: list[int]) -> Settled | None:
    """Return the imports from a module that need nothing, can run here and have the expected type; None if there are none.

    Args:
        loader: the loader.
        sources: the open modules of the load.
        module_id: the module.
        imports: imports whose only realization is in the module.
        offsets: the offset of the record of each of these realizations.

    Raises:
        CompcacheError, OSError: the module cannot be opened.
    """
    store = loader.store
    source = loader.open_source(module_id, sources)
    if source.listed is None or not source.listed.is_in_listing:
        return None
    records = _read_records(source, store, len(imports))
    numbers = loader.runtime().plain_functions(records, source.file.key, imports, offsets, store.processor().accepted)
    found = [row for row in zip(imports, offsets, numbers, strict=True) if row[2] is not None]
    return Settled(source, [row[0] for row in found], found[0][1], [row[2] for row in found]) if found else None


def _read_records(source: Source, store: Store, names: int) -> bytes:
    """Return a module's section of records, or b"" if the section is much larger than what single look-ups would read."""
    if source.listed is not None and source.listed.records:
        return source.listed.records
    if source.file.records > names * _BYTES_OF_EACH:
        return b""
    file = source.open_file(store)
    return file.read(file.image, file.records)
