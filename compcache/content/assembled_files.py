"""Files that inline assembly includes. Their content is part of the code, but a digest of the code does not cover it."""

from __future__ import annotations

import os

from compcache.digest import digest
from compcache.interrupts import suppress

__all__ = ["assembled_files"]

#: The beginning of both directives, for a quick search.
_DIRECTIVE = ".inc"
#: A directive in a line of LLVM assembly, and the file name after it, if it is a quoted text (GNU as, "Incbin").
_INCLUSION = r"\.inc(?:bin|lude)\b(?:[ \t]*\\22(.*?)\\22)?"


def assembled_files(text: str) -> list[bytes]:
    """Return the name and the digest of each file that inline assembly includes, as one flat list in the order of `text`.

    If the name of a file cannot be determined, the digest is random. The digest of an unreadable file is empty.
    """
    if _DIRECTIVE not in text:
        return []
    import re

    lines = [line for line in text.splitlines() if line.lstrip().startswith("module asm") or " asm " in line]
    names = [match[1] for line in lines for match in re.finditer(_INCLUSION, line)]
    return [part for name in names for part in _name_and_digest(name)]


def _name_and_digest(name: str | None) -> tuple[bytes, bytes]:
    """Return the path of a file that assembly includes, and its digest, which is empty for an unreadable file.

    If the name is None, the path is empty and the digest is random.
    """
    if name is None:
        return b"", os.urandom(16)
    import re

    path = re.sub(rb"\\([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), name.encode("utf-8", "surrogatepass"))
    with suppress(OSError, ValueError), open(path, "rb") as file:
        return path, digest([file.read()])
    return path, b""
