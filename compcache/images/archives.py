"""Static libraries that a module names (`ModuleSource(archives=...)`): finds them, and reads which symbols they define.

Format: ar(5) as System V has it. The first member, ``/``, lists the symbols: their number and as many offsets of members
(32-bit, big-endian; 64-bit in ``/SYM64/``), then the names with a NUL behind each.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import time
from typing import NamedTuple

from compcache.digest import digest
from compcache.errors import LibraryError
from compcache.formats import host
from compcache.interrupts import reraise_interrupt

__all__ = ["STATE_PREFIXES", "Archive", "compiler_archives", "is_archive", "open_archive"]

#: The prefixes of functions in compiler runtimes whose state belongs to the program: flang's units of input and output, and random
#: numbers.
STATE_PREFIXES = ("_FortranAio", "_FortranARandom", "_FortranAStop", "_FortranAProgram", "_FortranAPause", "_FortranAFlush")
_MAGICS = (b"!<arch>\n", b"!<thin>\n")
_HEADER = 60  # bytes before each member
_SIZE = slice(48, 58)  # of a member, in its header
#: The number of archives whose symbols a process keeps. A compiler's runtime library has ten thousand symbols.
_KEPT = 8
#: An archive is read again if it has changed within these nanoseconds, because the clocks of file systems may be this coarse.
_SETTLED = 2_000_000_000
#: Where compilers keep static runtime libraries. $LIBRARY_PATH is searched first.
_PLACES = (
    "/usr/local/lib", "/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/gcc/*/*", "/usr/lib/llvm-*/lib",
    "/usr/lib/llvm-*/lib/clang/*/lib/*", "/usr/lib/clang/*/lib/*",
)  # fmt: skip


class Archive(NamedTuple):
    """A static library: its path, the symbols that it defines, and a digest of its content."""

    name: str
    symbols: frozenset[str]
    digest: str

    def path_of(self, symbol: str) -> str | None:
        """Return the archive's path if it defines the symbol, otherwise None."""
        return self.name if symbol in self.symbols else None

    def functions_with_state(self) -> list[str]:
        """Return the functions of a compiler's runtime whose state all modules share, sorted. Other archives have none."""
        return sorted([symbol for symbol in self.symbols if symbol.startswith(STATE_PREFIXES)])


def is_archive(name: str) -> bool:
    """Return whether a library's name has the suffix of a static library."""
    return name.endswith((".a", ".rlib"))


def open_archive(name: str) -> Archive:
    """Find a static library, and read its symbol table.

    Args:
        name: the path of the library, or its file name (``libflang_rt.runtime.a``). A file name is looked for in $LIBRARY_PATH and in the
            usual directories of compilers.

    Raises:
        LibraryError: the library is not found, cannot be read, is not an archive, or has no symbol table.
    """
    path = os.path.abspath(_find_archive(name))
    try:
        state = _file_state(path)
        return _read_archive(path, name) if state is None else _read_unchanged(path, name, state)
    except OSError as error:
        reraise_interrupt(error)
        raise LibraryError(f"the archive {path!r} cannot be read ({error.strerror or error}): pass another path", library=name) from error


def compiler_archives() -> list[str]:
    """Return the path of the newest GCC's library of arithmetic (``libgcc.a``) for this machine and its C library; [] without GCC.

    Compilers link it before the shared libgcc_s, so that most images do not need that library.
    """
    paths = glob.glob(f"/usr/lib*/gcc/{os.uname().machine}-*linux*/*/libgcc.a")
    usable = [path for path in paths if ("-musl" in path) == (host.this_libc() == "musl")]
    return sorted(sorted(usable), key=_version_in)[-1:]


def _version_in(path: str) -> list[int]:
    """Return the numbers of the version that is the name of a file's directory."""
    return [int(number) for number in re.findall(r"\d+", os.path.basename(os.path.dirname(path)))]


def _file_state(path: str) -> tuple[int, ...] | None:
    """Return a value that identifies the current version of a file, or None if the file has changed too recently.

    Raise `OSError` if the file does not exist.
    """
    status = os.stat(path)
    if abs(time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns)) < _SETTLED:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@functools.lru_cache(maxsize=_KEPT)
def _read_unchanged(path: str, name: str, state: tuple[int, ...]) -> Archive:  # noqa: ARG001 - part of the cache's key
    """Read an archive once for each state of its file, because reading takes longer than compiling a small module.

    Raise `OSError` if the file cannot be read, or `LibraryError` if it is not an archive with a symbol table.
    """
    return _read_archive(path, name)


def _read_archive(path: str, name: str) -> Archive:
    """Return the archive in a file. Messages use `name`. See `_read_unchanged` for the exceptions."""
    with open(path, "rb") as file:
        data = file.read()
    return Archive(path, _read_symbol_table(data, name), digest([data], size=16, person=b"compcache-ar").hex())


def _find_archive(name: str) -> str:
    """Return the path of an archive. A path or an existing file is returned unchanged. Raise `LibraryError` if it is not found."""
    if "/" in name or os.path.exists(name):
        return name
    directories = [*os.environ.get("LIBRARY_PATH", "").split(os.pathsep), *_PLACES]
    for directory in filter(None, directories):
        paths = sorted(glob.glob(os.path.join(directory, glob.escape(name))))
        if paths:
            return paths[-1]  # the latest of several versions
    raise LibraryError(
        f"the archive {name!r} was not found in $LIBRARY_PATH and the usual directories: pass its path, or set LIBRARY_PATH", library=name
    )


def _read_symbol_table(data: bytes, name: str) -> frozenset[str]:
    """Return the symbols in an archive's symbol table. Raise `LibraryError` if the bytes are not an archive, or have no symbol table."""
    if not data.startswith(_MAGICS):
        raise LibraryError(f"the file {name!r} is not an archive: pass a static library", library=name)
    header = data[8 : 8 + _HEADER]
    kind = header[:16].rstrip()
    width = {b"/": 4, b"/SYM64/": 8}.get(kind)
    try:
        size = int(header[_SIZE])
    except ValueError as error:
        reraise_interrupt(error)
        size = -1
    table = data[8 + _HEADER : 8 + _HEADER + size]
    if width is None or size < width or len(table) != size:
        raise LibraryError(f"the archive {name!r} has no symbol table: run ranlib on it", library=name)
    count = int.from_bytes(table[:width], "big")
    names = table[width * (1 + count) :].split(b"\0")[:count]
    return frozenset([text.decode("utf-8", "surrogateescape") for text in names])
