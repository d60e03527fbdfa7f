"""Digests of bytes and keys of names: BLAKE2b (RFC 7693) in the sizes that the formats use.

Importing `hashlib` takes 3-5 ms, because it loads OpenSSL. `_blake2` is a small extension module.
"""

from __future__ import annotations

from _blake2 import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "CHECK_SIZE", "DIGEST_SIZE", "KEY_SIZE", "MAC_SIZE", "blake2b", "check", "digest", "is_content_name", "key_suffix", "mac", "name_key",
]  # fmt: skip

CHECK_SIZE = 8  # detects damage of a record or bucket; no protection against attackers
KEY_SIZE = 16
DIGEST_SIZE = 16
MAC_SIZE = 32


def check(data: bytes, salt: int = 0, whole: bytes = b"") -> bytes:
    """Return the checksum of a record, `CHECK_SIZE` bytes.

    `salt`, an integer of at most 16 bytes, makes the checksum depend on the record's place. `whole`, at most 16 bytes, makes it depend on
    the file that contains the record.
    """
    return blake2b(data, digest_size=CHECK_SIZE, salt=salt.to_bytes(16, "little"), person=whole).digest()


def digest(parts: Iterable[bytes], *, size: int = DIGEST_SIZE, person: bytes = b"") -> bytes:
    """Return the digest, `size` bytes, of the concatenation of `parts`.

    `person`, at most 16 bytes, names the purpose: digests for different purposes differ.
    """
    state = blake2b(digest_size=size, person=person)
    for _ in map(state.update, parts):
        pass
    return state.digest()


def mac(data: bytes, key: bytes) -> bytes:
    """Return the keyed digest of `data`, `MAC_SIZE` bytes. Keys longer than 64 bytes are replaced by their digest."""
    if len(key) > blake2b.MAX_KEY_SIZE:
        key = blake2b(key, digest_size=blake2b.MAX_KEY_SIZE).digest()
    return blake2b(data, digest_size=MAC_SIZE, key=key, person=b"compcache-mac-v1").digest()


def key_suffix(key: bytes | None) -> str:
    """Return the suffix of file names that belong to one signing key; empty without a key."""
    return f"-{mac(b'name', key)[:4].hex()}" if key else ""


def is_content_name(name: str) -> bool:
    """Return whether a name has the form LABEL-DIGEST (hexadecimal) of the content names that identities and `Cache.compile` give."""
    return name[-33:-32] == "-" and not name[-32:].strip("0123456789abcdef")


def name_key(name: str) -> bytes:
    """Return the key of a function name in the index, `KEY_SIZE` bytes."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=KEY_SIZE, person=b"compcache-name").digest()
