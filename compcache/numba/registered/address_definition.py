"""Defines the base of imports by name: addresses that differ between processes, of objects that have the same name in each."""

from __future__ import annotations

from compcache.errors import GlobalValidationError
from compcache.globals import GlobalDefinition, Storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from compcache.globals import LoadContext

__all__ = ["AddressDefinition"]


class AddressDefinition(GlobalDefinition):
    """The base of kinds whose fields are texts that identify an address in every process."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Encode the fields, separated by NUL."""
        fields: tuple[str, ...] = self.__slots__
        return "\0".join([getattr(self, field) for field in fields]).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Decode the fields. Raise `ValueError` or `TypeError` if the payload is malformed."""
        return cls(*payload.decode().split("\0"))

    def find(self) -> tuple[int, object]:
        """Return the address in this process, and an object that must live as long as the address is used, or None.

        Raise `ImportError` if this process has no such object.
        """
        raise NotImplementedError

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        """Return the address in little-endian order, and the object of `find`.

        Raise `GlobalValidationError` if this process has no such object.
        """
        del context
        try:
            address, owner = self.find()
        except ImportError as error:
            raise GlobalValidationError(str(error), reason=str(error)) from error
        return address.to_bytes(storage.size, "little"), owner
