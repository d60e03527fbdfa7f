"""Signatures of whole files, and public keys, in the form of `minisign <https://jedisct1.github.io/minisign/>`_.

A signature file has four lines: a comment; in base64 ``ED``, the id of the key and the Ed25519 signature of the file's BLAKE2b-512
digest; a signed comment; in base64 the signature of the first signature and the signed comment. The id of a key has eight bytes. Here
it is a digest of the public key.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from compcache.digest import digest

if TYPE_CHECKING:
    from compcache.signing.keys import PublicKey, SecretKey

__all__ = ["SUFFIX", "minisign_public_key", "minisign_signature"]

SUFFIX = ".minisig"
_PREHASHED, _KEY = b"ED", b"Ed"
_ID_SIZE = 8


def minisign_public_key(key: PublicKey) -> str:
    """Return a public key in the form for `minisign -V -P`."""
    return base64.b64encode(_KEY + _key_id(key) + key.data).decode()


def minisign_signature(path: str, name: str, key: SecretKey) -> bytes:
    """Return the content of a signature file for the file at `path`. Equal files, names and keys give equal content.

    `name` is the name of the file in the signed comment. Raise `OSError` if the file cannot be read.
    """
    with open(path, "rb") as file:
        content = hashlib.file_digest(file, "blake2b").digest()
    signature = key.sign(content)
    comment = f"file:{name}\tkey:{key.name}\thashed"
    lines = [
        f"untrusted comment: signature by the compcache key {key.name}",
        base64.b64encode(_PREHASHED + _key_id(key.public()) + signature).decode(),
        f"trusted comment: {comment}",
        base64.b64encode(key.sign(signature + _encode_text(comment))).decode(),
    ]
    return _encode_text("".join([f"{line}\n" for line in lines]))


def _key_id(key: PublicKey) -> bytes:
    """Return the id of a key, which is 8 bytes of a digest."""
    return digest([key.data], size=_ID_SIZE)


def _encode_text(text: str) -> bytes:
    """Encode text that may contain a file name which is not valid UTF-8."""
    return text.encode("utf-8", "surrogateescape")
