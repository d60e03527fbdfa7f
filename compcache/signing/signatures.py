"""The signed message of a module, and the file of signatures beside it.

The message is ``compcache module 1``, the module_id in hexadecimal digits and the digest of what the code requires of a host, a line
each. The module_id digests image, records (names of functions included), graph and kept code; the notes, which are shown
and never run, are not signed. A file of signatures has a line for each key: its name and the signature in base64.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from compcache.digest import digest
from compcache.files import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.signing.keys import PublicKey, SecretKey

    #: A name, and a signature.
    _Line = tuple[str, bytes]

__all__ = ["add_signature", "is_signed", "merged_signatures", "message_of", "signers"]

_SIZE = 64
#: The most that is read of a file of signatures, and of a name: more than a publisher writes.
_LONGEST, _LONGEST_NAME = 256 << 10, 100
#: How many signatures by keys that are not known here are kept, how many of these one more file brings, and how many in the name of
#: one key are checked.
_STRANGERS, _NEW_STRANGERS, _TRIED = 64, 8, 64


def message_of(module_id: bytes, requirement: str) -> bytes:
    """Return the message that a signature of a module signs."""
    needs = digest([requirement.encode("utf-8", "surrogatepass")]).hex()
    return f"compcache module 1\n{module_id.hex()}\n{needs}\n".encode()


def add_signature(content: bytes, key: SecretKey, keys: Iterable[PublicKey], module_id: bytes, requirement: str) -> bytes:
    """Return the file of signatures with one more, which comes first and replaces an older one of that name. Valid signatures by one of
    `keys` come next.
    """
    message = message_of(module_id, requirement)
    right, strangers = _sorted_out(_lines(content), keys, message)
    others = [line for line in (*right, *strangers) if line[0] != key.name]
    return _encoded([(key.name, key.sign(message)), *others])


def merged_signatures(known: bytes, more: bytes, keys: Iterable[PublicKey], module_id: bytes, requirement: str) -> bytes:
    """Merge two files of signatures. Valid signatures by one of `keys` come first; some that no key here can check follow."""
    keys, message = tuple(keys), message_of(module_id, requirement)
    right, strangers = _sorted_out(_lines(known), keys, message)
    more_right, more_strangers = _sorted_out(_lines(more), keys, message)
    kept = dict.fromkeys([*strangers, *more_strangers[:_NEW_STRANGERS]])
    return _encoded([*dict.fromkeys([*right, *more_right]), *list(kept)[:_STRANGERS]])


def _sorted_out(lines: list[_Line], keys: Iterable[PublicKey], message: bytes) -> tuple[list[_Line], list[_Line]]:
    """Return the signatures that are valid for one of the keys, and all others."""
    right = list(dict.fromkeys([line for key in keys for line in _right(lines, key, message)]))
    return right, [line for line in lines if line not in right][:_STRANGERS]


def _right(lines: Iterable[_Line], key: PublicKey, message: bytes) -> list[_Line]:
    named = [line for line in lines if line[0] == key.name]
    return [line for line in named[:_TRIED] if key.accepts(message, line[1])]


def is_signed(content: bytes, keys: Iterable[PublicKey], module_id: bytes, requirement: str) -> bool:
    """Return whether one of these keys has signed the module: a line has its name and a valid signature."""
    message = message_of(module_id, requirement)
    lines = _lines(content)
    return any(_right(lines, key, message) for key in keys)


def signers(content: bytes) -> tuple[str, ...]:
    """Return the names in a file of signatures, unchecked."""
    return tuple(name for name, _ in _lines(content)[:_STRANGERS])


def _encoded(lines: Iterable[_Line]) -> bytes:
    return "".join([f"{name} {base64.b64encode(signature).decode()}\n" for name, signature in lines]).encode()


def _lines(content: bytes) -> list[_Line]:
    found = []
    for line in content[:_LONGEST].decode("ascii", "replace").splitlines():
        name, _, encoded = line.partition(" ")
        try:
            signature = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            reraise_interrupt(error)
            continue
        if len(signature) == _SIZE and len(name) <= _LONGEST_NAME:
            found.append((name, signature))
    return found
