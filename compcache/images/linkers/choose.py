"""Choosing the linker that starts fastest.

Linking a module of ordinary size takes a linker less time than starting does: GNU ld starts in 3 ms, mold in 6, an lld that
loads the whole of LLVM in 20 to 30. The smallest program is tried first, and is taken where it is that fast: a directory's first
module would wait 0.1 s for the others to be tried.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING

from compcache.digest import digest
from compcache.errors import LinkerError
from compcache.files import reraise_interrupt
from compcache.images.linkers.link import link_shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.images.linkers.find import Linker

__all__ = ["choose_linker", "recall_linker"]

_ROUNDS = 2
#: A linker that takes more than this many times the best time is stopped.
_PATIENCE = 2.0
#: Where times differ by less, the order of `find_linkers` decides.
_TIE = 1.25
_LIMIT = 10.0  # seconds, for the first one
#: One that takes less than this is not compared: what another one could save is less than comparing costs, for hundreds of modules.
_PROMPT = 0.01
_KEY_SIZE = 12
_timing = Lock()  # linkers that are timed at the same time seem slow


def choose_linker(candidates: Sequence[Linker], note: str, obj: bytes) -> tuple[Linker, str]:
    """Return the linker to use, and a note by which the next process finds it.

    Args:
        candidates: the linkers that there are, two at least.
        note: one that was returned before, or anything else. No program is run that is not a candidate.
        obj: an object for the machine that the linker has to know.

    Linkers are timed where the note is not about these candidates: where one was installed, updated or removed since. The new
    note is empty where none of them works.
    """
    chosen = recall_linker(candidates, note)
    if chosen is not None:
        return chosen, note
    key = _key_of(candidates)
    owned = _timing.acquire(timeout=_LIMIT)  # a child may be forked while it is held
    try:
        fastest = _fastest(tuple(candidates), key, _empty_object(obj))
    finally:
        if owned:
            _timing.release()
    return (candidates[0], "") if fastest is None else (fastest, _note(key, fastest))


def recall_linker(candidates: Sequence[Linker], note: str) -> Linker | None:
    """The candidate that a note of `choose_linker` names; None where it is about other candidates."""
    key = _key_of(candidates)
    return next((linker for linker in candidates if note == _note(key, linker)), None)


def _note(key: str, linker: Linker) -> str:
    return f"{key} {linker.source}"


def _key_of(candidates: Sequence[Linker]) -> str:
    """A digest of the candidates as they are now."""
    return digest([repr((linker.argv, _stamp(linker.argv[0]))).encode() for linker in candidates], size=_KEY_SIZE).hex()


def _stamp(program: str) -> tuple[int, ...]:
    try:
        status = os.stat(program)
    except OSError as error:
        reraise_interrupt(error)
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=16)
def _fastest(candidates: tuple[Linker, ...], key: str, obj: bytes) -> Linker | None:  # noqa: ARG001 - what was timed
    """The linker that takes least time for the object, or the first that takes next to none; None where none can link it."""
    times: dict[Linker, float] = {}
    for _ in range(_ROUNDS):
        for linker in sorted(candidates, key=_size):  # the usual winner early: it limits what the others cost
            seconds = _seconds(linker, obj, min([_LIMIT, *(_PATIENCE * t for t in times.values())]))
            if seconds is not None:
                times[linker] = min(seconds, times.get(linker, seconds))
            if times.get(linker, _LIMIT) < _PROMPT:
                return linker
    best = min(times.values(), default=0.0)
    return next((linker for linker in candidates if linker in times and times[linker] <= _TIE * best), None)


def _size(linker: Linker) -> int:
    """The size of a linker's program, which its start takes most of its time to read the first time."""
    try:
        return os.stat(linker.argv[0]).st_size
    except OSError as error:
        reraise_interrupt(error)
        return 0


def _seconds(linker: Linker, obj: bytes, limit: float) -> float | None:
    """How long a link takes; None where it fails or exceeds the limit."""
    started = time.perf_counter()
    try:
        link_shared(linker, [obj], soname="probe", timeout=limit)
    except LinkerError:
        return None
    return time.perf_counter() - started


_HEADER = Struct("<16sHHIQQQIHHHHHH")
_SECTION = Struct("<IIQQQQIIQQ")
_RELOCATABLE, _CURRENT = 1, 1
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_CODE_FLAGS = 6  # SHF_ALLOC | SHF_EXECINSTR
_SYMBOL_SIZE = 24


def _empty_object(obj: bytes) -> bytes:
    """An object for the same machine, with sixteen bytes of code and no symbols.

    Layout: System V gABI, chapter 4. Linkers refuse objects without a symbol table, or do not get on with them.
    """
    names = b"\0.text\0.symtab\0.strtab\0.shstrtab\0.note.GNU-stack\0"
    sections: list[bytes] = [bytes(_SECTION.size)]
    body = bytearray(_HEADER.size)

    def add(name: bytes, kind: int, content: bytes, *rest: int, flags: int = 0) -> None:
        sections.append(_SECTION.pack(names.index(name + b"\0"), kind, flags, 0, len(body), len(content), *rest))
        body.extend(content)

    add(b".text", _PROGBITS, bytes(16), 0, 0, 16, 0, flags=_CODE_FLAGS)
    add(b".symtab", _SYMTAB, bytes(_SYMBOL_SIZE), len(sections) + 1, 1, 8, _SYMBOL_SIZE)
    add(b".strtab", _STRTAB, b"\0", 0, 0, 1, 0)
    add(b".shstrtab", _STRTAB, names, 0, 0, 1, 0)
    add(b".note.GNU-stack", _PROGBITS, b"", 0, 0, 1, 0)
    body.extend(bytes(-len(body) % 8))
    ident, _, machine, _, _, _, _, flags, *_ = _HEADER.unpack_from(obj)
    last = len(sections), len(sections) - 2  # how many sections there are, and which has their names
    _HEADER.pack_into(body, 0, ident, _RELOCATABLE, machine, _CURRENT, 0, 0, len(body), flags, _HEADER.size, 0, 0, _SECTION.size, *last)
    return bytes(body) + b"".join(sections)
