"""Decodes the globals of a function's closure while it is loaded (not read by hits that need none)."""

from __future__ import annotations

import os

from compcache.errors import GlobalValidationError
from compcache.files import reraise_interrupt
from compcache.globals import Storage, decode_definition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.formats.manifest import GlobalRecord
    from compcache.hit.loader import Choice, Loader

__all__ = ["Kept", "decode_globals"]

#: Libraries of native symbols stay loaded: their addresses are in slots, and other code of theirs may be running.
_libraries: dict[str, object] = {}


class Kept:
    """The decoded value of a global, its bytes in the slot, and what the slot held before it.

    Code that is running may still use the value before, which therefore lives as long.
    """

    __slots__ = ("before", "data", "revalidate", "value")

    def __init__(self, data: bytes, value: object, before: object, *, revalidate: bool) -> None:
        self.data = data
        self.value = value
        self.before = before
        self.revalidate = revalidate


def decode_globals(loader: Loader, choice: Choice) -> list[tuple[GlobalRecord, bytes, Kept]]:
    """The bytes to store for each global that is not stored already, and the objects to keep alive beside them.

    Raises:
        GlobalValidationError: one is not what it was; the message names it and the function.
    """
    fills = []
    for record in choice.globals:
        try:
            fill = _decode_global(loader, choice, record)
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


def _decode_global(loader: Loader, choice: Choice, record: GlobalRecord) -> tuple[bytes, Kept] | None:
    """The bytes to store for a global; None where it is stored already and still valid."""
    known = choice.loaded.slots.get(record.slot)
    if isinstance(known, Kept) and not known.revalidate:
        return None
    definition = decode_definition(record.kind, record.payload)
    data, keep = definition.load(Storage(record.form, record.size), _LoadContext(loader, choice))
    if len(data) != record.size:
        reason = f"kind {record.kind!r} gave {len(data)} bytes for {record.size}"
        raise GlobalValidationError(reason, reason=reason)
    if isinstance(known, Kept) and known.data == data:
        return None
    return data, Kept(data, keep, known, revalidate=definition.revalidate)


class _LoadContext:
    """The services of this process that definitions may use while they are loaded."""

    __slots__ = ("_loader", "allow_pickle", "request")

    def __init__(self, loader: Loader, choice: Choice) -> None:
        self._loader = loader
        self.allow_pickle = loader.allow_pickle and not choice.source.file.elsewhere
        self.request = choice.source.request

    def address_of(self, buffer: object) -> int:
        """The address of an object's buffer."""
        address: int = self._loader.runtime().buffer_address(buffer)
        return address

    def find_symbol(self, name: str, library: str | None) -> int:
        """The address of a native symbol, 0 where it is not defined."""
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
