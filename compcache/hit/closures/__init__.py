"""Loads of several modules: which one provides a variable, and linked closures.

What is here is the head of the files that say for other processes which linked closures hold.
"""

from __future__ import annotations

from _struct import Struct  # what `struct` re-exports: a file less to read

from compcache.digest import DIGEST_SIZE, digest, mac

__all__ = ["HEAD", "MAGIC", "SEAL_SIZE", "seal"]

MAGIC = b"CCCLOSE6"
SEAL_SIZE = DIGEST_SIZE
#: The linked closure, zeros for names; the state of the index; whether it holds; how many of the modules behind this are in it as a whole.
HEAD = Struct("<16s16s2I")


def seal(content: bytes, file_name: str, key: bytes | None) -> bytes:
    """Return a checksum that distinguishes a file of this name from a damaged one, and with a key from one that was written without it."""
    named = file_name.encode() + content
    return mac(named, key)[:SEAL_SIZE] if key else digest([named], size=SEAL_SIZE, person=b"compcache-closed")
