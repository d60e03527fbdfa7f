"""The needs of a function apart from its module's code: reads their records, decodes globals, fills slots.

Hits of functions that need nothing do not import this file.
"""

from __future__ import annotations

import os

from compcache.digest import check
from compcache.errors import FormatError, GlobalValidationError, UndefinedSymbolError
from compcache.formats.manifest import FRAME, STARTUP, decode_needs
from compcache.hit.plain_imports import encode_store
from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.errors import CompcacheError
    from compcache.formats.manifest import NeedsRecord
    from compcache.formats.records import GlobalRecord
    from compcache.hit.loader import Choice, LoadedModule, Loader, Source

__all__ = ["ModuleRecords", "SlotContent", "collect_stores", "decode_globals", "quarantine_misfit", "read_needs", "read_records"]

#: A module's section of records is read whole if it has at most this many bytes.
_MOST_RECORDS = 1 << 15
#: Libraries of native symbols stay loaded: slots contain their addresses, and their code may be running.
_libraries: dict[str, object] = {}


class ModuleRecords:
    """The records of a module, for a load that reads several of them.

    Attributes:
        is_in_listing: whether a load of several modules has listed the module's functions.
        key: the key of the module.
        records: the section of records, or b"" if it is too large to be read whole.
        needs: the decoded needs, by offset.
        natives: the symbols of the process that were found for the module.
    """

    __slots__ = ("is_in_listing", "key", "natives", "needs", "records")

    def __init__(self, key: bytes, records: bytes) -> None:
        self.is_in_listing = False
        self.key = key
        self.records = records
        self.needs: dict[int, NeedsRecord] = {}
        self.natives: set[str] = set()

    def read_record(self, offset: int) -> bytes:
        """Return the verified payload of a record. See `compcache.formats.manifest.read_frame`.

        Raise `FormatError` if there is no intact record at the offset.
        """
        records = self.records
        start = offset + FRAME.size
        if start > len(records):
            raise FormatError(f"the module has no record at offset {offset}")
        length, expected = FRAME.unpack_from(records, offset)
        payload = records[start : start + length]
        if len(payload) != length or check(payload, offset, self.key if offset else b"") != expected:
            raise FormatError(f"the record at offset {offset} is damaged")
        return payload


def read_records(loader: Loader, source: Source) -> ModuleRecords:
    """Return the records of a module, read at once unless the section is large. Raise `StorageError` if the file cannot be read."""
    if source.listed is None:
        file, records = source.file, b""
        if file.records <= _MOST_RECORDS:
            file = source.open_file(loader.store)
            records = file.read(file.image, file.records)
        source.listed = ModuleRecords(file.key, records)
    return source.listed


def read_needs(loader: Loader, choice: Choice) -> None:
    """Collect the unfilled imports and the globals that the function reaches, and check its native symbols, once per choice.

    Raises:
        FormatError: a record is malformed.
        StorageError: the file cannot be read.
        UndefinedSymbolError: the process lacks a native symbol.
    """
    if choice.has_needs:
        return
    choice.has_needs = True
    source, imports = choice.source, choice.imports
    decoded = read_records(loader, source).needs
    stack = [choice.record.needs] if choice.record.needs else []
    visited = set(stack)
    filled = source.loaded.slots if source.loaded is not None else None
    natives: dict[str, None] = {}
    while stack:
        offset = stack.pop()
        needs = decoded[offset] = decoded.get(offset) or decode_needs(source.read_record(loader.store, offset))
        imports += [item for item in needs.imports if item[0] not in filled] if filled else needs.imports
        if needs.globals:
            _read_globals(loader, choice, needs.globals)
        if needs.natives:
            natives.update(dict.fromkeys(needs.natives))
        for child in needs.children:
            if child not in visited:
                visited.add(child)
                stack.append(child)
    if natives:
        _require_natives(loader, choice, natives, read_records(loader, source).natives)


def _read_globals(loader: Loader, choice: Choice, offsets: tuple[int, ...]) -> None:
    """Add the globals in records, or the number of the function that runs constructors, to a choice. Exceptions: see `read_needs`."""
    from compcache.formats.records import decode_global

    for offset in offsets:
        record = decode_global(choice.source.read_record(loader.store, offset))
        if record.kind == STARTUP:
            choice.start = record.slot
        else:
            choice.globals.append(record)


def _require_natives(loader: Loader, choice: Choice, natives: dict[str, None], checked: set[str]) -> None:
    """Check that the process has these native symbols, and add them to `checked`. Raise `UndefinedSymbolError` if a symbol is missing."""
    symbol = loader.runtime().find_undefined(tuple([name for name in natives if name not in checked]))
    if symbol is not None:
        raise UndefinedSymbolError(
            f"function {choice.record.name!r} of module {choice.module_id.hex()} needs the native symbol {symbol!r}, which this process "
            "does not have: load the library that defines it first",
            symbols=[symbol],
            func_name=choice.record.name,
            module_id=choice.module_id.hex(),
        )
    checked.update(natives)


class SlotContent:
    """The decoded value of a global in a slot.

    Attributes:
        data: the bytes in the slot.
        value: the object to keep alive.
        before: the previous content of the slot, kept alive because running code may still use it.
        revalidate: whether later loads check the global again.
    """

    __slots__ = ("before", "data", "revalidate", "value")

    def __init__(self, data: bytes, value: object, before: object, *, revalidate: bool) -> None:
        self.data = data
        self.value = value
        self.before = before
        self.revalidate = revalidate


def decode_globals(loader: Loader, choice: Choice) -> list[tuple[GlobalRecord, bytes, SlotContent]]:
    """Return (record, bytes, content) for each global whose slot must be written.

    Raise `GlobalValidationError` if a global is not valid. The message names the global and the function.
    """
    fills = []
    for record in choice.globals:
        try:
            fill = _load_global(loader, choice, record)
        except GlobalValidationError as error:
            raise type(error)(
                f"global {record.name!r} of function {choice.record.name!r} (module {choice.module_id.hex()}) is "
                f"not valid: {error.reason or error}",
                global_name=record.name,
                func_name=choice.record.name,
                reason=error.reason,
            ) from error
        if fill is not None:
            fills.append((record, *fill))
    return fills


def _load_global(loader: Loader, choice: Choice, record: GlobalRecord) -> tuple[bytes, SlotContent] | None:
    """Return a global's bytes and the new content of its slot; None if the content is still valid. Exceptions: see `call_load`."""
    from compcache.globals.definition import Storage, call_load, decode_definition

    stored = choice.loaded.slots.get(record.slot)
    if isinstance(stored, SlotContent) and not stored.revalidate:
        return None
    definition = decode_definition(record.kind, record.payload)
    data, keep = call_load(definition, Storage(record.form, record.size), _LoadContext(loader, choice))
    if isinstance(stored, SlotContent) and (stored.data == data or definition.is_same(stored.value, keep)):
        return None
    return data, SlotContent(data, keep, stored, revalidate=definition.revalidate)


class _LoadContext:
    """The services of this process that definitions may use while they are loaded."""

    __slots__ = ("_loader", "allow_pickle")

    def __init__(self, loader: Loader, choice: Choice) -> None:
        self._loader = loader
        self.allow_pickle = loader.allow_pickle and not choice.source.file.elsewhere

    def address_of(self, buffer: object) -> int:
        """Return the address of a buffer (`globals.definition.LoadContext`)."""
        address: int = self._loader.runtime().buffer_address(buffer)
        return address

    def find_symbol(self, name: str, library: str | None) -> int:
        """Return the address of a native symbol, or 0 if it is not defined. With `library`, that library is opened first, and stays open.

        Raise `GlobalValidationError` if the library cannot be loaded.
        """
        runtime = self._loader.runtime()
        opened = None
        if library is not None:
            try:
                opened = runtime.open_library(os.fsencode(library))
            except OSError as error:
                reraise_interrupt(error)
                reason = f"library {library!r} cannot be loaded: {error}"
                raise GlobalValidationError(reason, reason=reason) from error
            _libraries[library] = opened
        address: int = runtime.find_symbol(name.encode(), opened)
        return address


def collect_stores(loader: Loader, chosen: dict[str, Choice]) -> tuple[list[bytes], list[dict[Any, Any]]]:
    """Return the stores into the slots of the chosen modules, and the updates: the table of each module, followed by its new items.

    If the records of a module do not fit its image, quarantine the module and raise `IntegrityError`.
    """
    runtime = loader.runtime()
    by_module: dict[bytes, list[Choice]] = {}
    for choice in chosen.values():
        by_module.setdefault(choice.module_id, []).append(choice)
    writes: list[bytes] = []
    updates: list[dict[Any, Any]] = []
    for choices in by_module.values():
        module = choices[0].loaded
        try:
            filled, stores = _slot_contents(runtime, chosen, module, choices)
            if stores:
                runtime.require_writable(module.image, stores)
                writes.append(stores)
        except IndexError as error:
            reraise_interrupt(error)
            raise quarantine_misfit(loader, choices[0], error) from None
        if filled:
            updates += [module.slots, filled]
    return writes, updates


def _slot_contents(
    runtime: Any, chosen: dict[str, Choice], module: LoadedModule, choices: list[Choice]
) -> tuple[dict[int | str, object], bytes]:
    """Return the new contents of the slots of one module, and the stores that write them.

    Raise `IndexError` if the records of the module do not fit its image.
    """
    slots = module.slots
    filled: dict[int | str, object] = {}
    groups = []
    for source, uses, functions in [group for choice in choices for group in choice.together]:
        loaded = source.loaded
        assert loaded is not None  # the plan has a choice in this module
        empty = [item for item in uses if item[0] not in slots]
        numbers = [number for item, number in zip(uses, functions, strict=True) if item[0] not in slots] if slots else functions
        groups.append((loaded.image, empty, numbers))
        filled.update(dict.fromkeys([item[0] for item in empty], loaded))
    for choice in choices:
        for item in choice.imports:
            if item[0] not in filled and item[0] not in slots:
                provider = chosen[item[1]]
                loaded = filled[item[0]] = provider.loaded
                groups.append((loaded.image, [item], [provider.record.function]))
    stores = [runtime.bind(module.image, groups)]
    for choice in choices:
        for record, data, content in choice.fills or ():
            if slots.get(record.slot) is content.before:
                stores.append(encode_store(runtime.address(module.image, record.slot), data))
                filled[record.slot] = content
    return filled, b"".join(stores)


def quarantine_misfit(loader: Loader, choice: Choice, error: IndexError) -> CompcacheError:
    """Quarantine a module whose records do not fit its image, and return the exception to raise."""
    store = loader.store
    return store.quarantine(store.module_path(choice.module_id), f"its records do not fit its image: {error}")
