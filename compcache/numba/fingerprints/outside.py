"""Detects reads of values without an identity: the process's environment, files, names computed at run time."""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from compcache.numba.fingerprints.errors import Unidentifiable

if TYPE_CHECKING:
    from types import CodeType

    from compcache.numba.fingerprints.code_reads import Reads

__all__ = ["names_by_text", "reads_by_name", "refuse_outside"]

_NAMES = (
    (builtins, ("__import__", "eval", "exec", "globals", "input", "open", "vars")),
    (os, ("environ", "environb", "getcwd", "getenv", "listdir", "open", "scandir", "stat", "uname", "walk")),
    (os.path, ("exists", "getmtime", "getsize", "isdir", "isfile")),
    (sys, ("_getframe", "argv", "modules")),
    (importlib, ("import_module", "reload")),
)
_OUTSIDE = {
    id(vars(module)[name]): f"{module.__name__}.{name}".removeprefix("builtins.")
    for module, names in _NAMES
    for name in names
    if name in vars(module)
}
#: Methods of library objects that read files, and functions of NumPy that do.
_FILE_READERS = frozenset(("fromfile", "genfromtxt", "loadtxt", "memmap", "read_bytes", "read_text"))
#: Functions that read attributes by names given as text.
_READERS = frozenset(("attrgetter", "getattr", "getattr_static", "hasattr", "methodcaller"))


#: What reads globals of the module by names that only text has. Frames are those of code that calls: for a package's code generators, the package's.
_BY_TEXT = frozenset(map(id, (builtins.eval, builtins.exec, builtins.globals, sys._getframe)))


def names_by_text(value: object) -> bool:
    """Whether this is `eval`, `exec`, `globals` or `sys._getframe`."""
    return id(value) in _BY_TEXT


def refuse_outside(value: object, where: str) -> None:
    """Raise `Unidentifiable` for a value whose results depend on the environment, files or run-time names."""
    name = _OUTSIDE.get(id(value))
    if name is not None:
        raise Unidentifiable(f"{where} is {name}, whose results have no identity by content")


def reads_by_name(code: CodeType, reads: Reads, *, may_read_files: bool = False) -> tuple[str, ...]:
    """The attributes that code reads from any object, including names given as text if it reads attributes by those.

    Raises:
        Unidentifiable: one of them reads files, unless this is allowed.
    """
    files = _FILE_READERS.intersection(reads.attributes)
    if files and not may_read_files:
        raise Unidentifiable(
            f"{code.co_qualname} reads a file ({min(files)}), which has no identity by content"
        )
    names = {name for chain in reads.chains for name in chain}
    if names.isdisjoint(_READERS):
        return reads.attributes
    texts: list[Any] = []
    for constant in code.co_consts:
        texts += constant if isinstance(constant, tuple) else [constant]
    found = dict.fromkeys(text for text in texts if isinstance(text, str) and text.isidentifier())
    return (*reads.attributes, *found)
