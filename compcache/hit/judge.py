"""Asks a front end which realization of a function to load, by the entry of data that the front end stored with it."""

from __future__ import annotations

from compcache.errors import FormatError, GlobalValidationError
from compcache.formats.entry import decode_entry, index_name, may_be_read
from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.directory.module_file import ModuleFile
    from compcache.store import Store

__all__ = ["Judge"]


class Judge:
    """Passes the entry of a realization to a front end's `accept`. Raises `GlobalValidationError` if the realization is not accepted."""

    def __init__(self, store: Store, func_name: str, kind: str, accept: Callable[[bytes], bool]) -> None:
        self._store = store
        self._key = kind, func_name
        self._accept = accept
        self._offsets: dict[bytes, int] = {}

    def __call__(self, file: ModuleFile) -> None:
        """Ask the front end about the entry of the realization in a module file.

        Raise `GlobalValidationError` unless the front end accepts the entry, or `FormatError` if the record of the entry is damaged.
        """
        kind, name = self._key
        data = self._read_data(file)
        reason = f"the realization of {name!r} has no trusted entry of the kind {kind!r}"
        if data is not None:
            try:  # the error belongs to the front end, not to a file of the cache
                if self._accept(data):
                    return
            except (FormatError, OSError) as error:
                reraise_interrupt(error)
                message = f"the front end failed to check the realization of {name!r}: {error}"
                raise GlobalValidationError(message, reason=str(error)) from error
            reason = f"the front end does not accept the realization of {name!r}"
        raise GlobalValidationError(reason, reason=reason)

    def _read_data(self, file: ModuleFile) -> bytes | None:
        """Return the data of the realization's entry in a file; None if it is missing or not trusted. Exceptions: see `read_record`."""
        kind, name = self._key
        if file.module_id not in self._offsets:
            self._offsets = dict(self._store.find(index_name(kind, name)))
        offset = self._offsets.get(file.module_id)
        if offset is None or not may_be_read(kind, elsewhere=file.elsewhere):
            return None
        record = decode_entry(file.read_record(offset))
        return record.data if (record.kind, record.name) == (kind, name) else None
