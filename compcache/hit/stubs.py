"""The last resort of a plan: stubs (`compcache.build.stubs`) for imports that this processor cannot run."""

from __future__ import annotations

from compcache.errors import CompcacheError
from compcache.formats.entry import STUB, decode_entry, decode_stub, index_name
from compcache.formats.manifest import LINK_ONLY, NO_ENTRY, FunctionRecord
from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.directory.module_file import ModuleFile
    from compcache.hit.loader import Loader, Source, Sources
    from compcache.store import Store

__all__ = ["find_stub", "has_stub"]

#: The signature in the record of a stub.
_SIGNATURE = LINK_ONLY + "stub"


def find_stub(loader: Loader, name: str, sources: Sources) -> tuple[Source, FunctionRecord] | None:
    """Return the stub of a function, preferably from a module that this load uses already, or None if this host can run none."""
    places = list(loader.store.find(index_name(STUB, name)))
    places.sort(key=lambda place: place[0] not in sources and not loader.is_loaded(place[0]))
    for module_id, offset in places:
        try:
            source = loader.open_source(module_id, sources)
            number = _read_stub(loader.store, source.open_file(loader.store), offset, name)
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            continue
        if number is not None:
            return source, FunctionRecord(name, "", _SIGNATURE, b"", number, NO_ENTRY, 0)
    return None


def has_stub(loader: Loader, name: str) -> bool:
    """Return whether the cache has a stub of a function that this host can run. Unreadable stubs do not count."""
    for module_id, offset in loader.store.find(index_name(STUB, name)):
        try:
            with loader.store.open_module(module_id) as file:
                loader.require_usable(file)
                if _read_stub(loader.store, file, offset, name) is not None:
                    return True
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
    return False


def _read_stub(store: Store, file: ModuleFile, offset: int, name: str) -> int | None:
    """Return the number of a stub's symbol, or None if the record is not the stub of this function, or if this processor cannot run it.

    Raise `FormatError` if the record is malformed.
    """
    record = decode_entry(file.read_record(offset))
    number, features = decode_stub(record.data)
    return number if (record.kind, record.name) == (STUB, name) and store.processor().meets(features) else None
