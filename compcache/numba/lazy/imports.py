"""Determines why Numba was imported: the line of the program, and the request for which there is no stand-in."""

from __future__ import annotations

import os
import sys

from compcache import frontend
from compcache.errors import CompcacheError
from compcache.interrupts import suppress
from compcache.numba.lazy import open_lazy_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

__all__ = ["LABEL", "find_import_reason", "record_import"]

#: The name under which imports are recorded, together with the name of the program. ``compcache explain numba`` shows them.
LABEL = "numba"
_PACKAGE = "compcache.numba"
#: The modules whose frames stand between the program and an import of Numba.
_MODULES_BETWEEN = (_PACKAGE, "compcache.interrupts", "importlib", "_frozen_importlib")
#: Descriptions of the operations that methods of stand-ins perform.
_OPERATIONS = {
    "__call__": "a call of", "__mro_entries__": "a class derived from", "__hash__": "the hash of", "__getitem__": "an item of",
    "__instancecheck__": "isinstance with", "__subclasscheck__": "issubclass with", "__reduce_ex__": "a pickle of",
    "__or__": "a union with", "__ror__": "a union with", "__dir__": "the names in",
    "__enter__": "a block in", "__eq__": "a comparison with",
}  # fmt: skip


def find_import_reason() -> str:
    """Return why Numba is being imported, according to the frames of this thread: file, line and function of the program, and request."""
    frame: FrameType | None = sys._getframe(1)
    own_frame = None
    while frame is not None and (name := str(frame.f_globals.get("__name__"))).startswith(_MODULES_BETWEEN):
        if name.startswith(_PACKAGE):
            own_frame = frame
        frame = frame.f_back
    request = _describe_request(own_frame) if own_frame is not None else "itself"
    place = "?:0, in ?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_qualname}"
    return f"was imported at {place}, for {request}"


def _describe_request(frame: FrameType) -> str:
    """Return the description of the program's request, from the function of this package that the program called."""
    variables, called = frame.f_locals, frame.f_code.co_name
    subject = variables.get("self", variables.get("cls"))
    name = variables.get("name")
    if called == "find_spec":
        return f"the module {name}"
    if called == "_find_callee":
        function = variables["state"].function
        reason = variables["state"].reason or variables.get("reason") or "no code for these arguments is stored"
        return f"a call of {function.__module__}.{function.__qualname__}: {reason}"
    if called in ("__getattr__", "__setattr__") and type(name) is str:
        return f"{_stand_in_name(subject)}.{name}"
    if subject is not None:
        return f"{_OPERATIONS.get(called, called)} {_stand_in_name(subject)}"
    options = variables.get("options")
    return f"{called}({', '.join(sorted(options)) if type(options) is dict else ''})"


def _stand_in_name(subject: Any) -> str:
    """Return the name of a stand-in without reading an ordinary attribute, which would import Numba."""
    cls = type(subject)
    if issubclass(cls, type(sys)):
        return str(vars(subject).get("__name__"))
    names = []
    for slot in ("_module", "_name", "_function"):
        with suppress(AttributeError):
            value = object.__getattribute__(subject, slot)
            names.append(value if type(value) is str else f"{value.__module__}.{value.__qualname__}")
    return ".".join(names) or cls.__name__


def record_import(reason: str) -> None:
    """Record the reason of an import for ``compcache explain numba``, and log it if $COMPCACHE_DEBUG is on. Ignore errors of the cache."""
    program = os.path.basename(str(getattr(sys.modules.get("__main__"), "__file__", None) or "-c"))
    with suppress(CompcacheError, OSError):
        cache = open_lazy_cache()
        if cache is not None:
            frontend.note_uncached(cache, f"{LABEL}({program})", reason)
