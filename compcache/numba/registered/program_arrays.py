"""Names the arrays of the program whose addresses compiled code contains.

Numba copies a contiguous global array of at most a megabyte into the code. For any other array, the code contains the addresses of the
elements and of the object, and it reads later writes to the array. So stored code names such an array by its content at the time when the
function was identified. A load gives the code the address of an array with this content in its own process. Nothing is copied or stored.
"""

from __future__ import annotations

import sys

from compcache.digest import blake2b
from compcache.globals import register
from compcache.numba.registered.address_definition import AddressDefinition
from compcache.numba.registered.named_objects import name_object, named_objects, object_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ProgramArray", "addresses", "is_copied", "register_array"]

#: The maximum size in bytes of an array that Numba copies (`BaseContext.make_constant_array`).
_MAX_COPIED_BYTES = 10**6
DATA, OBJECT = "data", "object"


def is_copied(array: Any) -> bool:
    """Return whether Numba copies a global array into the code of a function."""
    flags = array.flags
    return bool(array.nbytes <= _MAX_COPIED_BYTES and (flags.c_contiguous or flags.f_contiguous))


def register_array(array: Any) -> str:
    """Name an array by a digest of its present content, and return the name, which stored code contains."""
    shape = f"{array.dtype!r}, {array.dtype.str}, {array.shape}, {array.strides}"
    state = blake2b(shape.encode(), digest_size=16)
    # Arrays of numbers are digested without a copy of their elements.
    is_plain = type(array) is sys.modules["numpy"].ndarray and array.flags.c_contiguous and array.dtype.kind in "biufc"
    state.update(array if is_plain else array.tobytes())
    return name_object(array, state.hexdigest())


def addresses() -> dict[int, tuple[str, str]]:
    """Return, for each address of a named array that code may contain, the part of the array at the address and the array's name.

    An address that belongs to two arrays is omitted.
    """
    rows = []
    for name, array in named_objects(sys.modules["numpy"].ndarray):
        rows += [(array.ctypes.data, (DATA, name)), (id(array), (OBJECT, name))]
    parts = dict(rows)
    for address, row in rows:
        if parts.get(address, row) != row:
            del parts[address]
    return parts


@register
class ProgramArray(AddressDefinition):
    """The address of an array of the program, or of its elements. The array stays alive as long as the code."""

    __slots__ = ("part", "name")
    part: str
    name: str
    kind = "program-array"

    @classmethod
    def decode(cls, payload: bytes) -> ProgramArray:
        """Decode the part and the name. Raise `ValueError` or `TypeError` if the payload is malformed."""
        array = super().decode(payload)
        if array.part not in (DATA, OBJECT):
            raise ValueError(f"an address in an array of the program refers to {array.part!r}, not to {DATA!r} or {OBJECT!r}")
        return array

    def find(self) -> tuple[int, object]:
        """Return the address and the array. Raise `ImportError` if no array of this process has this content."""
        array = object_named(self.name)
        if array is None:
            raise ImportError(
                f"the compiled code refers to an array of the program by its content (digest {self.name}), and this process has no such "
                "array: create the array before the first call, or compile the function again"
            )
        return array.ctypes.data if self.part == DATA else id(array), array
