"""Names jitclasses, whose types and boxes differ between processes.

The type of a jitclass contains compiled functions, and its name contains its address. Code that returns an instance to Python contains the
address of the box: the class that Numba makes for the instances in Python. Stored code and its types name the jitclass instead. The
process that loads the code has given this name to one of its jitclasses when it identified the function.
"""

from __future__ import annotations

import re
import sys
from pickle import PicklingError

from compcache.digest import blake2b
from compcache.globals import register
from compcache.numba.registered.address_definition import AddressDefinition
from compcache.numba.registered.named_objects import name_object, object_named, present_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["JitclassBox", "addresses", "find_jitclass", "rebuild_type", "reduce_type", "register_jitclass", "without_addresses"]

#: Addresses of functions and objects, and the serial numbers of jitclasses, in Numba's text of types.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+|#[0-9a-f]+(?=<)")
#: The serial number of a jitclass, which is its type's address.
_SERIAL = re.compile(r"#([0-9a-f]+)(?=<)")
_BOXING = "numba.experimental.jitclass.boxing"
BOX = "box"


def without_addresses(text: str) -> str:
    """Return Numba's text of a type without the parts that differ between processes."""
    return _ADDRESS.sub("", text)


def register_jitclass(class_type: Any) -> str:
    """Name a jitclass, and return the name: a digest of its name and fields, and a number. Keys contain the content of the class."""
    return name_object(class_type, blake2b(without_addresses(class_type.name).encode(), digest_size=16).hexdigest())


def find_jitclass(name: str) -> Any:
    """Return the type of the jitclass with a name. Raise `ImportError` if this process has no such jitclass."""
    class_type = object_named(name)
    if class_type is None:
        raise ImportError(
            f"the compiled code refers to a jitclass by its name and fields (digest {name}), and this process has no such jitclass: "
            "compile the function again"
        )
    return class_type


def addresses() -> dict[int, tuple[str, str]]:
    """Return the addresses of the boxes of named jitclasses, each with `BOX` and the name."""
    boxes = sys.modules[_BOXING]._cache_specialized_box if _BOXING in sys.modules else {}
    names = {id(box): present_name(id(type_.class_type)) for type_, box in list(boxes.items())}
    return {address: (BOX, name) for address, name in names.items() if name is not None}


@register
class JitclassBox(AddressDefinition):
    """The address of the class that Numba makes for the instances of a jitclass in Python."""

    __slots__ = ("name",)
    name: str
    kind = "jitclass-box"

    def find(self) -> tuple[int, object]:
        """Return the address and the class, which Numba makes if it does not exist. Raise `ImportError` if there is no such jitclass."""
        instance_type = find_jitclass(self.name).instance_type
        box = sys.modules[_BOXING]._specialize_box(instance_type)
        return id(box), box


def reduce_type(type_: Any) -> Any:
    """Return how to pickle a jitclass's type, or a type whose name contains one; None for other types.

    Raise `PicklingError` if a jitclass in the type has no name, or the type has its own way of pickling.
    """
    serials = set(_SERIAL.findall(type_.name))
    if not serials:
        return None
    names = {serial: _name_in(type_, serial) for serial in serials}
    if None in names.values() or type(type_).__reduce__ is not sys.modules["numba.core.types"].Type.__reduce__:
        raise PicklingError(f"the type {type_} refers to a jitclass, but cannot be pickled with the name of the jitclass")
    if hasattr(type_, "instance_type_class"):
        return find_jitclass, (names[f"{id(type_):x}"],)
    return rebuild_type, (names, *type_.__reduce__())


def _name_in(type_: Any, serial: str) -> str | None:
    """Return the name of the jitclass with a serial number in a type's name; None if no name finds such a jitclass."""
    name = present_name(int(serial, 16))
    text = getattr(object_named(name), "name", None) if name is not None else None
    return name if text is not None and text in type_.name else None


def rebuild_type(names: dict[str, str], reconstructor: Any, arguments: tuple[Any, ...]) -> Any:
    """Return an unpickled type, with the serial numbers that jitclasses have in this process.

    `names` has the names of the jitclasses by serial number. The other arguments come from `__reduce__` of the pickled type. Raise
    `ImportError` if this process lacks a jitclass.
    """
    *others, state = arguments
    serials = {serial: f"#{id(find_jitclass(name)):x}" for serial, name in names.items()}
    texts = {field: _SERIAL.sub(lambda found: serials[found[1]], text) for field, text in state.items() if isinstance(text, str)}
    return reconstructor(*others, state | texts)
