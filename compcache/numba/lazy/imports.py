"""Tells why Numba was imported: the line of the program, and what it requested that has no stand-in."""

from __future__ import annotations

import os
import sys

from compcache import frontend
from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.numba.lazy.installed import opened_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

__all__ = ["LABEL", "Why", "note_import", "why_imported"]

#: The name under which imports are noted, together with the program's: ``compcache explain numba`` shows them.
LABEL = "numba"
_OURS = ("compcache.numba", "compcache.files", "importlib", "_frozen_importlib")
#: What the methods of stand-ins are called for.
_USES = {
    "__call__": "a call of", "__mro_entries__": "a class derived from", "__hash__": "the hash of", "__getitem__": "an item of",
    "__instancecheck__": "isinstance with", "__subclasscheck__": "issubclass with", "__reduce_ex__": "a pickle of",
    "__or__": "a union with", "__ror__": "a union with", "__dir__": "the names in",
    "__enter__": "a block in", "__eq__": "a comparison with",
}  # fmt: skip


class Why:
    """What is noted: the file and line of the program, the function there, and what it requested."""

    __slots__ = ("file", "function", "line", "wanted")

    def __init__(self, file: str, line: int, function: str, wanted: str) -> None:
        self.file = file
        self.line = line
        self.function = function
        self.wanted = wanted

    def __str__(self) -> str:
        return f"was imported at {self.file}:{self.line}, in {self.function}, for {self.wanted}"


def why_imported() -> Why:
    """Return why Numba is being imported, from the frames of this thread."""
    frame: FrameType | None = sys._getframe(1)
    own = None
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
        if not str(frame.f_globals["__name__"]).startswith(_OURS[1:]):
            own = frame
        frame = frame.f_back
    wanted = _wanted(own) if own is not None else "itself"
    if frame is None:
        return Why("?", 0, "?", wanted)
    return Why(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname, wanted)


def _wanted(frame: FrameType) -> str:
    """Return what the program requested, from the function of this package that it called."""
    given, called = frame.f_locals, frame.f_code.co_name
    subject = given.get("self", given.get("cls"))
    name = given.get("name")
    if called == "find_spec":
        return f"the module {name}"
    if called == "_call":
        function = given["state"].function
        reason = given["state"].reason or given.get("reason") or "no code for these arguments is stored"
        return f"a call of {function.__module__}.{function.__qualname__}: {reason}"
    if called in ("__getattr__", "__setattr__") and type(name) is str:
        return f"{_name_of(subject)}.{name}"
    if subject is not None:
        return f"{_USES.get(called, called)} {_name_of(subject)}"
    options = given.get("options")
    return f"{called}({', '.join(sorted(options)) if type(options) is dict else ''})"


def _name_of(subject: Any) -> str:
    """Return the name of a stand-in without reading an attribute, which would import Numba."""
    cls = type(subject)
    if issubclass(cls, type(sys)):
        return str(vars(subject).get("__name__"))
    found = []
    for slot in ("_module", "_name"):
        try:
            found.append(str(object.__getattribute__(subject, slot)))
        except AttributeError as error:
            reraise_interrupt(error)
    try:
        function = object.__getattribute__(subject, "_function")
        found.append(f"{function.__module__}.{function.__qualname__}")
    except AttributeError as error:
        reraise_interrupt(error)
    return ".".join(found) or cls.__name__


def note_import(why: Why) -> None:
    """Note it for `compcache explain numba` and ``compcache ls --uncached``, and log it with COMPCACHE_DEBUG=1. Never fails."""
    program = os.path.basename(str(getattr(sys.modules.get("__main__"), "__file__", None) or "-c"))
    try:
        cache = opened_cache()
        if cache is not None:
            frontend.note_uncached(cache, f"{LABEL}({program})", str(why))
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)
