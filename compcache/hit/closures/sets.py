"""All records of a linked closure in memory, after several of its functions were loaded. Further loads need no look-up."""

from __future__ import annotations

from compcache.errors import CompcacheError, ReentrantLoadError
from compcache.formats.manifest import decode_function
from compcache.hit.needs import ModuleRecords
from compcache.interrupts import reraise_interrupt, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.directory.module_file import ModuleFile
    from compcache.hit.closures.linked import LinkedClosures
    from compcache.hit.loader import LoadedModule, Loader
    from compcache.hit.target import TypedCallTarget

__all__ = ["ListedFunction", "list_functions", "load_from_list"]

#: The largest section of records of a closure that a loader keeps, in bytes.
_MOST_RECORDS = 1 << 22


class ListedFunction:
    """The place of a function's record in a closure."""

    __slots__ = ("file", "module_id", "offset", "records")

    def __init__(self, file: ModuleFile, records: ModuleRecords, offset: int) -> None:
        self.module_id = file.module_id
        self.file = file
        self.records = records
        self.offset = offset


def list_functions(loader: Loader, linked: LinkedClosures, module_id: bytes) -> None:
    """Read all records of a closure into memory, unless the section is large. A failure is ignored."""
    offsets: dict[str, tuple[bytes, int]] = {}
    with suppress(CompcacheError, OSError), loader.store.open_module(module_id) as file:  # a load of one of its functions meets the error
        if file.records <= _MOST_RECORDS:
            records = ModuleRecords(file.key, file.read(file.image, file.records))
            loader.runtime().list_functions(records.records, module_id, offsets, set())
            linked.listed_functions |= {name: ListedFunction(file, records, offset) for name, (_, offset) in offsets.items()}


def load_from_list(loader: Loader, linked: LinkedClosures, func_name: str, loaded: LoadedModule, owner: object) -> TypedCallTarget | None:
    """Load a listed function. Return its call target, or None if it needs other functions, or must be looked up to report an error.

    Raise `ReentrantLoadError` if this load interrupts another one.
    """
    function = linked.listed_functions[func_name]
    choice_of, source_of, sources_of = linked.types
    source = source_of(function.file, loaded)
    source.listed = function.records
    sources = sources_of(func_name, None, linked.bound.changes, set())
    sources[function.module_id] = source
    try:
        record = decode_function(function.records.read_record(function.offset))
        choice = choice_of(source, record, function.offset)
        loader.require_features(function.file, record)
        if record.name != func_name or not loader._prepare_alone(choice, sources):
            return None
    except ReentrantLoadError:
        raise
    except (CompcacheError, OSError) as error:  # the look-up raises the error again
        reraise_interrupt(error)
        return None
    return loader._commit(func_name, {func_name: choice}, owner, sources)
