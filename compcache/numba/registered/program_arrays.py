"""The program's arrays that compiled code refers to: those whose content Numba does not copy into code.

A global array of at most a megabyte without gaps is copied. Of any other one Numba's code has two addresses, that of its elements and
that of the object, and sees what the program writes to it later. So code that is stored names such an array by what it held when the
function was identified, and a load gives the code the array of its own process that holds the same: nothing is copied or stored.
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

#: Of bytes; what Numba has (`BaseContext.make_constant_array`).
_MOST_COPIED = 10**6
DATA, OBJECT = "data", "object"
#: The arrays that were named and are alive. A name is one object's as long as that lives.
_named: dict[str, ref[Any]] = {}
#: The last name of each object: programs write to arrays, which have another name then.
_last: dict[int, str] = {}


def is_copied(array: Any) -> bool:
    """Whether Numba copies an array that is a constant of a function into its code."""
    flags = array.flags
    return bool(array.nbytes <= _MOST_COPIED and (flags.c_contiguous or flags.f_contiguous))


def name_of(array: Any) -> str:
    """The name of an array in stored code: a digest of what it holds now, and a number where another one holds the same."""
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
    """What ends a name with its array."""

    def forget(gone: Any) -> None:
        if _named.get(name) is gone:
            del _named[name]
        if _last.get(identity) == name:
            del _last[identity]

    return forget


def addresses() -> dict[int, tuple[str, str]]:
    """The addresses that code may have of arrays that were named, with the part that is there, and the name; none that two arrays share."""
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
    """The address of an array of the program, or of its elements; it is alive as long as the code."""

    __slots__ = ("part", "name")
    part: str
    name: str
    kind = "program-array"

    def encode(self) -> bytes:
        """The part and the name."""
        return f"{self.part}\0{self.name}".encode()

    @classmethod
    def decode(cls, payload: bytes) -> ProgramArray:
        """Decode the array."""
        part, name = payload.decode().split("\0")
        if part not in (DATA, OBJECT):
            raise ValueError(part)
        return cls(part, name)

    def address(self) -> int:
        """The address in this process. Raises `ImportError`: no array that was named holds this."""
        return self._find()[0]

    def _find(self) -> tuple[int, Any]:
        reference = _named.get(self.name)
        array = reference() if reference is not None else None
        if array is None:
            raise ImportError(f"the program has no array with the content {self.name}")
        return array.ctypes.data if self.part == DATA else id(array), array

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        """The address in this process, and the array."""
        del context
        try:
            address, array = self._find()
        except ImportError as error:
            raise GlobalValidationError(str(error), reason=str(error)) from error
        return address.to_bytes(storage.size, "little"), array
