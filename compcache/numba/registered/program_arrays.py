"""Arrays of the program that compiled code refers to, because Numba does not copy their content into code.

Numba copies a global array of at most a megabyte without gaps. For any other array the code contains two addresses, that of the elements
and that of the object, and it sees what the program writes to the array later. So stored code names such an array by its content when the
function was identified. A load gives the code the array of its own process with the same content; nothing is copied or stored.
"""

from __future__ import annotations

from weakref import ref

from compcache.digest import blake2b
from compcache.errors import GlobalValidationError
from compcache.globals import GlobalDefinition, Storage, register

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from compcache.globals import LoadContext

__all__ = ["ProgramArray", "addresses", "is_copied", "name_of"]

#: In bytes; Numba's limit (`BaseContext.make_constant_array`).
_MOST_COPIED = 10**6
DATA, OBJECT = "data", "object"
#: The named arrays that are alive. A name belongs to one object as long as that lives.
_named: dict[str, ref[Any]] = {}
#: The last name of each object. Programs write to arrays, which then get another name.
_last: dict[int, str] = {}


def is_copied(array: Any) -> bool:
    """Return whether Numba copies an array that is a constant of a function into its code."""
    flags = array.flags
    return bool(array.nbytes <= _MOST_COPIED and (flags.c_contiguous or flags.f_contiguous))


def name_of(array: Any) -> str:
    """Return the name of an array in stored code: a digest of its present content, and a number if another array has the same content."""
    shape = f"{array.dtype!r}, {array.dtype.str}, {array.shape}, {array.strides}"
    state = blake2b(shape.encode(), digest_size=16)
    state.update(array.tobytes())
    digest = state.hexdigest()
    number = 0
    while True:
        name = f"{digest}-{number}"
        known = _named.get(name) or _named.setdefault(name, ref(array, _forgetter(name, id(array))))
        if known() is array:
            _last[id(array)] = name
            return name
        number += 1


def _forgetter(name: str, identity: int) -> Callable[[Any], None]:
    """Return what removes a name when its array is freed."""

    def forget(gone: Any) -> None:
        if _named.get(name) is gone:
            del _named[name]
        if _last.get(identity) == name:
            del _last[identity]

    return forget


def addresses() -> dict[int, tuple[str, str]]:
    """Return the addresses that code may have of named arrays, with the part at that address and the name. Addresses that two arrays share
    are left out.
    """
    rows = []
    for name, reference in list(_named.items()):
        array = reference()
        if array is not None and _last.get(id(array)) == name:
            rows += [(array.ctypes.data, (DATA, name)), (id(array), (OBJECT, name))]
    found = dict(rows)
    for address, row in rows:
        if found.get(address, row) != row:
            del found[address]
    return found


@register
class ProgramArray(GlobalDefinition):
    """The address of an array of the program, or of its elements. The array stays alive as long as the code."""

    __slots__ = ("part", "name")
    part: str
    name: str
    kind = "program-array"

    def encode(self) -> bytes:
        """Encode the part and the name."""
        return f"{self.part}\0{self.name}".encode()

    @classmethod
    def decode(cls, payload: bytes) -> ProgramArray:
        """Decode the array."""
        part, name = payload.decode().split("\0")
        if part not in (DATA, OBJECT):
            raise ValueError(part)
        return cls(part, name)

    def address(self) -> int:
        """Return the address in this process. Raises `ImportError` if no named array has this content."""
        return self._find()[0]

    def _find(self) -> tuple[int, Any]:
        reference = _named.get(self.name)
        array = reference() if reference is not None else None
        if array is None:
            raise ImportError(f"the program has no array with the content {self.name}")
        return array.ctypes.data if self.part == DATA else id(array), array

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        """Return the address in this process, and the array."""
        del context
        try:
            address, array = self._find()
        except ImportError as error:
            raise GlobalValidationError(str(error), reason=str(error)) from error
        return address.to_bytes(storage.size, "little"), array
