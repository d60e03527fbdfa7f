"""Entries of data for plain hits, and functions that a front end accepts by the data of an entry.

The answers are those of `compcache.store` and `compcache.frontend`. In any other case there is no answer. The callers check that the
loader still has the files of a plain cache.
"""

# On the path of plain hits: no `__future__`, annotations are in quotes.
from compcache.hit.target import load_runtime
from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from compcache.hit import PlainLoader
    from compcache.hit.target import TypedCallTarget

__all__ = ["load_accepted_function", "read_entry"]

#: The flags of module files whose entries are read: images and packs (`compcache.formats.manifest`).
_READABLE = 1, 4
#: The numbers of fields of `_runtime.entry_record`.
_SEQUENCE, _REQUIRES, _DATA, _GONE = 2, 3, 4, 5


def read_entry(loader: "PlainLoader", kind: str, name: str) -> "tuple[bytes | None] | None":
    """Return a tuple with the data of the latest entry with a kind and name, or with None if the directory has no such entry.

    Return None instead of a tuple if only a store can answer.
    """
    try:
        runtime, names = load_runtime(), loader._index[0]
        records = [] if names is None else _records(loader, runtime, kind, name)
        if not records:  # a missing name is searched in the present index
            if not loader._refresh_index(runtime) or not loader._index[1]:
                return None
            records = _records(loader, runtime, kind, name) if loader._index[0] is not names else []
        latest = max([record for _, record in records], key=lambda record: (record[_SEQUENCE], record[_GONE], record[_DATA]), default=None)
        if latest is None or latest[_GONE]:
            return (None,)
        if any(loader._open_module(runtime, 0, module_id)[0] is None for module_id in latest[_REQUIRES]):
            return None  # the module is gone
    except Exception as error:  # noqa: BLE001 - whatever the error is, the store meets it again and reports it
        reraise_interrupt(error)
        return None
    return (latest[_DATA],)


def _records(loader: "PlainLoader", runtime: "Any", kind: str, name: str) -> "list[tuple[bytes, tuple[Any, ...]]]":
    """Return the module_id and the record of each entry with a kind and name in the known index.

    Raise `OSError` if a file cannot be read, or must be verified first, or `CompcacheError` if a file is damaged.
    """
    key = runtime.digest(f"\0{kind}\0{name}".encode("utf-8", "surrogatepass"), 16, b"compcache-name")
    records = []
    for segment, table in enumerate(loader._index[1]):
        for value in table.find(key):
            module_id, offset, *_ = runtime.function_entry(value)
            opened, path, _, entry = loader._open_module(runtime, segment, module_id)
            if entry is None or entry[3] not in _READABLE:
                raise OSError(f"{path} cannot be read without the checks of a complete look-up")
            image_size, records_size, _, _, _, module_key, _ = entry
            record = runtime.entry_record(runtime.read_frame(opened.number, offset, records_size, module_key, image_size))
            if record[:2] == (kind, name):
                records.append((module_id, record))
    return records


def load_accepted_function(loader: "PlainLoader", func_name: str, kind: str, accept: "Callable[[bytes], bool]") -> "TypedCallTarget | None":
    """Return the call target of a plain function with one realization whose entry of this kind is accepted; otherwise None."""
    try:
        runtime = load_runtime()
        row_and_closure = loader._find(runtime, func_name)
        if row_and_closure is None or row_and_closure[1] is not None:
            return None  # only realizations outside of closures are accepted by their entries
        module_id = row_and_closure[0][1]
        entries = [record[_DATA] for of_module, record in _records(loader, runtime, kind, func_name) if of_module == module_id]
        if len(entries) != 1 or not accept(entries[0]):
            return None
    except Exception as error:  # noqa: BLE001 - the loader calls `accept` again
        reraise_interrupt(error)
        return None
    target = loader.load_plain(func_name, None)
    return target if target is not None and target._context.module.module_id == module_id else None
