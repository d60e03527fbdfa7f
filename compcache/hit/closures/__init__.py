"""Loads of several modules: the providers of variables, and linked closures.

This file has the head of the files that record for other processes which linked closures are valid.
"""

from __future__ import annotations

from _struct import Struct  # not `struct`, which is one more file to import

from compcache.digest import DIGEST_SIZE, digest, mac

__all__ = ["HEAD", "MAGIC", "SEAL_SIZE", "seal"]

MAGIC = b"CCCLOSE6"
SEAL_SIZE = DIGEST_SIZE
#: The linked closure (zeros for names), the state of the index, whether the closure is valid, and how many of the modules after the head it
#: contains whole.
HEAD = Struct("<16s16s2I")


def seal(content: bytes, file_name: str, key: bytes | None) -> bytes:
    """Return a checksum of a file with this name and content. With a key, only a process that has the key can write it."""
    named = file_name.encode() + content
    return mac(named, key)[:SEAL_SIZE] if key else digest([named], size=SEAL_SIZE, person=b"compcache-closed")
