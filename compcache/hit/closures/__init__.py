"""Loads of several modules: the providers of variables, and linked closures.

This file reads and writes the files that record for other processes which linked closures are valid.
"""

from __future__ import annotations

from _struct import Struct  # not `struct`, which is one more file to import

from compcache.digest import DIGEST_SIZE, digest, mac
from compcache.directory.places import CLOSURES
from compcache.errors import CompcacheError
from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["HEAD", "MAGIC", "SEAL_SIZE", "keep_sealed", "read_sealed", "seal"]

MAGIC = b"CCCLOSE6"
SEAL_SIZE = DIGEST_SIZE
#: The most sealed files that a directory keeps.
_MOST_KEPT = 512
#: The linked closure, the state of the index, whether the closure is valid, and how many of the modules after the head it
#: contains whole.
HEAD = Struct("<16s16s2I")


def seal(content: bytes, file_name: str, key: bytes | None) -> bytes:
    """Return the checksum of a file with this name and content. With a key, only a process that has the key can compute the checksum."""
    named = file_name.encode() + content
    return mac(named, key)[:SEAL_SIZE] if key else digest([named], size=SEAL_SIZE, person=b"compcache-closed")


def read_sealed(store: Store, file_name: str) -> bytes | None:
    """Return the content of a file, which begins with a `HEAD`; None if the file is missing or damaged, or lacks the seal of this store."""
    data = store.read_file(CLOSURES, file_name) or b""
    start = len(MAGIC) + SEAL_SIZE
    content = data[start:]
    return content if len(content) >= HEAD.size and data[:start] == MAGIC + seal(content, file_name, store.stamp_key) else None


def keep_sealed(store: Store, file_name: str, content: bytes) -> None:
    """Write a file with a seal, and remove old files above the limit. A failure is ignored, because the content can be determined again."""
    from compcache.publish.atomic_file import keep_file

    try:
        keep_file(store, CLOSURES, file_name, MAGIC + seal(content, file_name, store.stamp_key) + content, _MOST_KEPT)
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)
