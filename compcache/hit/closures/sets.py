"""All records of a linked closure in memory, after several of its functions were loaded. Further loads need no look-up."""

from __future__ import annotations

from compcache.errors import CompcacheError, ReentrantLoadError
from compcache.formats.manifest import decode_function
from compcache.hit.needs import Listed
from compcache.interrupts import reraise_interrupt, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.directory.module_file import ModuleFile
    from compcache.hit.closures.linked import LinkedClosures
    from compcache.hit.loader import LoadedModule, Loader
    from compcache.hit.target import TypedCallTarget

__all__ = ["ListedFunction", "list_functions", "load_listed"]

#: The largest section of records of a closure that a loader keeps, in bytes.
_MOST_RECORDS = 1 << 22


class ListedFunction:
    """The place of a function's record in a closure."""

    __slots__ = ("file", "listed", "module_id", "offset")

    def __init__(self, file: ModuleFile, listed: Listed, offset: int) -> None:
        self.module_id = file.module_id
        self.file = file
        self.listed = listed
        self.offset = offset


def list_functions(loader: Loader, linked: LinkedClosures, module_id: bytes) -> None:
    """Read all records of a closure into memory, unless the section is large. A failure is ignored."""
    offsets: dict[str, tuple[bytes, int]] = {}
    with suppress(CompcacheError, OSError), loader.store.open_module(module_id) as file:  # a load of one of its functions meets the error
        if file.records <= _MOST_RECORDS:
            listed = Listed(file.key, file.read(file.image, file.records))
            loader.runtime().list_functions(listed.records, module_id, offsets, set())
            linked.sets |= {name: ListedFunction(file, listed, offset) for name, (_, offset) in offsets.items()}


def load_listed(loader: Loader, linked: LinkedClosures, func_name: str, loaded: LoadedModule, owner: object) -> TypedCallTarget | None:
    """Load a listed function. Return its call target, or None if it needs other functions, or must be looked up to report an error.

    Raise `ReentrantLoadError` if this load interrupts another one.
    """
    listed = linked.sets[func_name]
    choice_of, source_of, sources_of = linked.types
    source = source_of(listed.file, loaded)
    source.listed = listed.listed
    sources = sources_of(func_name, None, linked.bound.changes, set())
    sources[listed.module_id] = source
    try:
        record = decode_function(listed.listed.read_record(listed.offset))
        choice = choice_of(source, record, listed.offset)
        loader.require_features(listed.file, record)
        if record.name != func_name or not loader._prepare_alone(choice, sources):
            return None
    except ReentrantLoadError:
        raise
    except (CompcacheError, OSError) as error:  # the look-up raises the error again
        reraise_interrupt(error)
        return None
    return loader._commit(func_name, {func_name: choice}, owner, sources)
