"""The signed message of a module, and the file of signatures beside it.

The message has three lines: ``compcache module 1``, the module_id in hexadecimal digits, and the digest of the requirement of the code.
The module_id is a digest of image, records (with the names of functions), graph and stored code. The notes are not signed, because
they are only displayed. A file of signatures has a line for each key: the name of the key and the signature in base64.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from compcache.digest import digest
from compcache.interrupts import suppress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.signing.keys import PublicKey, SecretKey

    #: The name of a key, and a signature.
    _Line = tuple[str, bytes]

__all__ = ["add_missing_signatures", "add_signature", "is_signed", "merge_signatures", "signed_message", "signers"]

_SIZE = 64  # bytes of a signature
_MAX_READ = 256 << 10  # bytes of a signature file
_LONGEST_NAME = 100  # characters of a key's name
_MOST_UNKNOWN = 64  # signatures by unknown keys in a file
_MOST_NEW_UNKNOWN = 8  # of these, from the second of two merged files
_MOST_CHECKED = 64  # signatures in the name of one key


def signed_message(module_id: bytes, requirement: str) -> bytes:
    """Return the message that is signed for a module."""
    requirement_digest = digest([requirement.encode("utf-8", "surrogatepass")]).hex()
    return f"compcache module 1\n{module_id.hex()}\n{requirement_digest}\n".encode()


def add_signature(content: bytes, key: SecretKey, keys: Iterable[PublicKey], module_id: bytes, requirement: str) -> bytes:
    """Return the content of a signature file after adding a signature by `key`.

    The new signature comes first. Valid signatures by one of `keys` come next, also by another key with the name of `key`. At most 64 other
    signatures follow, none of them in the name of `key`. Raise `MissingPackageError` if PyNaCl is not installed.
    """
    message = signed_message(module_id, requirement)
    valid, unknown = _partition_signatures(_decode_lines(content), keys, message)
    others = [line for line in unknown if line[0] != key.name]
    return _encode_lines(dict.fromkeys([(key.name, key.sign(message)), *valid, *others]))


def merge_signatures(stored: bytes, imported: bytes, keys: Iterable[PublicKey], module_id: bytes, requirement: str) -> bytes:
    """Merge two signature files, and return the content of the merged file, without duplicate lines.

    Valid signatures by one of `keys` come first. At most 64 other signatures follow: those of `stored`, and at most 8 of `imported`.
    Raise `MissingPackageError` if a signature must be checked and PyNaCl is not installed.
    """
    keys, message = tuple(keys), signed_message(module_id, requirement)
    valid, unknown = _partition_signatures(_decode_lines(stored), keys, message)
    imported_valid, imported_unknown = _partition_signatures(_decode_lines(imported), keys, message)
    others = dict.fromkeys([*unknown, *imported_unknown[:_MOST_NEW_UNKNOWN]])
    return _encode_lines([*dict.fromkeys([*valid, *imported_valid]), *list(others)[:_MOST_UNKNOWN]])


def add_missing_signatures(stored: bytes, added: bytes) -> bytes:
    """Return `stored` if it contains all signatures of `added`; otherwise the content of a file with those of `added` first.

    They are not checked. The file has at most 64 signatures, so its last ones may be dropped.
    """
    stored_lines, added_lines = _decode_lines(stored), _decode_lines(added)[:_MOST_UNKNOWN]
    if set(stored_lines).issuperset(added_lines):
        return stored
    return _encode_lines(list(dict.fromkeys([*added_lines, *stored_lines]))[:_MOST_UNKNOWN])


def _partition_signatures(lines: list[_Line], keys: Iterable[PublicKey], message: bytes) -> tuple[list[_Line], list[_Line]]:
    """Split signatures into valid signatures by one of the keys, and the first 64 other signatures. Return both lists."""
    valid = list(dict.fromkeys([line for key in keys for line in _valid_lines(lines, key, message)]))
    return valid, [line for line in lines if line not in valid][:_MOST_UNKNOWN]


def _valid_lines(lines: Iterable[_Line], key: PublicKey, message: bytes) -> list[_Line]:
    """Return the lines with a key's name and a valid signature by the key. Only the first 64 lines with this name are checked."""
    lines_of_key = [(name, signature) for name, signature in lines if name == key.name]
    return [(name, signature) for name, signature in lines_of_key[:_MOST_CHECKED] if key.accepts(message, signature)]


def is_signed(content: bytes, keys: Iterable[PublicKey], module_id: bytes, requirement: str) -> bool:
    """Return whether a signature file contains a valid signature of a module by one of these keys, in the name of the key.

    Raise `MissingPackageError` if a signature must be checked and PyNaCl is not installed.
    """
    message = signed_message(module_id, requirement)
    lines = _decode_lines(content)
    return any(_valid_lines(lines, key, message) for key in keys)


def signers(content: bytes) -> tuple[str, ...]:
    """Return the names in the first 64 lines of a signature file. The signatures are not checked."""
    return tuple(name for name, _ in _decode_lines(content)[:_MOST_UNKNOWN])


def _encode_lines(lines: Iterable[_Line]) -> bytes:
    """Return the content of a signature file with these lines."""
    return "".join([f"{name} {base64.b64encode(signature).decode()}\n" for name, signature in lines]).encode()


def _decode_lines(content: bytes) -> list[_Line]:
    """Return the names and signatures in the first 256 KiB of a signature file. Invalid lines are skipped."""
    decoded = []
    for line in content[:_MAX_READ].decode("ascii", "replace").splitlines():
        name, _, encoded = line.partition(" ")
        with suppress(ValueError):
            signature = base64.b64decode(encoded, validate=True)
            if len(signature) == _SIZE and len(name) <= _LONGEST_NAME:
                decoded.append((name, signature))
    return decoded
