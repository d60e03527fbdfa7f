"""What is signed of a module, and the file of signatures beside it.

The message is ``compcache module 1``, the module_id in hexadecimal digits and the digest of what the code requires of a host, a line
each. The module_id digests image, records (names of functions included), graph and kept code; the notes, which are shown
and never run, are not signed. A file of signatures has a line for each key: its name and the signature in base64.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from compcache.digest import digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.signing.keys import PublicKey, SecretKey

__all__ = ["add_signature", "is_signed", "merged_signatures", "message_of", "signers"]

_MAX_LINES = 64
_SIZE = 64


def message_of(module_id: bytes, requirement: str) -> bytes:
    """What a signature of a module is of."""
    needs = digest([requirement.encode("utf-8", "surrogatepass")]).hex()
    return f"compcache module 1\n{module_id.hex()}\n{needs}\n".encode()


def add_signature(content: bytes, key: SecretKey, module_id: bytes, requirement: str) -> bytes:
    """The file of signatures with one more, in place of an older one of that name."""
    lines = {name: signature for name, signature in _lines(content) if name != key.name}
    lines[key.name] = key.sign(message_of(module_id, requirement))
    return "".join([f"{name} {base64.b64encode(lines[name]).decode()}\n" for name in sorted(lines)]).encode()


def merged_signatures(known: bytes, more: bytes, keys: Iterable[PublicKey], module_id: bytes, requirement: str) -> bytes:
    """Two files of signatures in one: neither takes anything from the other, and what is right for one of `keys` comes first."""
    keys = tuple(keys)
    lines = dict.fromkeys([*_lines(known), *_lines(more)])
    message = message_of(module_id, requirement)
    right = [line for line in lines if any(key.name == line[0] and key.accepts(message, line[1]) for key in keys)]
    merged = list(dict.fromkeys([*right, *lines]))[:_MAX_LINES]
    return "".join([f"{name} {base64.b64encode(signature).decode()}\n" for name, signature in merged]).encode()


def is_signed(content: bytes, keys: Iterable[PublicKey], module_id: bytes, requirement: str) -> bool:
    """Whether one of these keys has signed the module: a line of its name, with a signature that is right."""
    message = message_of(module_id, requirement)
    lines = _lines(content)
    return any(key.accepts(message, signature) for key in keys for name, signature in lines if name == key.name)


def signers(content: bytes) -> tuple[str, ...]:
    """The names in a file of signatures, as they stand there: nothing is checked."""
    return tuple(name for name, _ in _lines(content))


def _lines(content: bytes) -> list[tuple[str, bytes]]:
    found = []
    for line in content.decode("ascii", "replace").splitlines()[:_MAX_LINES]:
        name, _, encoded = line.partition(" ")
        try:
            signature = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            continue
        if len(signature) == _SIZE:
            found.append((name, signature))
    return found
