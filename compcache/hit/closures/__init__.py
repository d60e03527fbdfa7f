"""Loads of several modules: providers of variables, planned closures of earlier processes, linked closures.

What is here is the head of the files in which this is kept for other processes.
"""

from __future__ import annotations

from _struct import Struct  # what `struct` re-exports: a file less to read

from compcache.digest import DIGEST_SIZE, digest, mac

__all__ = ["HEAD", "MAGIC", "SEAL_SIZE", "seal"]

MAGIC = b"CCCLOSE5"
SEAL_SIZE = DIGEST_SIZE
#: State, and the numbers of modules, of functions and of bytes of texts.
HEAD = Struct("<16s3I")


def seal(content: bytes, file_name: str, key: bytes | None) -> bytes:
    """Return a checksum that distinguishes a file of this name from a damaged one, and with a key from one that was written without it."""
    named = file_name.encode() + content
    return mac(named, key)[:SEAL_SIZE] if key else digest([named], size=SEAL_SIZE, person=b"compcache-closed")
