"""Named Ed25519 keys as text: ``name:base64``, as Nix writes them (RFC 8032; the secret key is the seed of 32 bytes).

PyNaCl does the arithmetic. It is imported when a signature is made or checked, and not by hits of modules that were checked before.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from typing import Any, NamedTuple, NoReturn

from compcache.errors import MissingPackageError
from compcache.files import reraise_interrupt
from compcache.processes.secret_references import read_secret

__all__ = ["PublicKey", "SecretKey", "new_key", "parse_public", "parse_publics", "parse_secret", "read_own", "read_publics"]

_SIZE = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")


class PublicKey(NamedTuple):
    """A key that verifies signatures."""

    name: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.name}:{base64.b64encode(self.data).decode()}"

    def accepts(self, message: bytes, signature: bytes) -> bool:
        """Return whether the owner of the secret key has signed this."""
        nacl = _nacl()
        try:
            nacl.signing.VerifyKey(self.data).verify(message, signature)
        except (nacl.exceptions.BadSignatureError, ValueError) as error:
            reraise_interrupt(error)
            return False
        return True


class SecretKey(NamedTuple):
    """A key that creates signatures. Its text is a secret."""

    name: str
    seed: bytes

    def __str__(self) -> str:
        return f"{self.name}:{base64.b64encode(self.seed).decode()}"

    def __repr__(self) -> str:
        return f"SecretKey({self.name!r}, ...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key cannot be pickled: name the variable or the file that it is in")

    def public(self) -> PublicKey:
        """Return the public key with which others check the signatures."""
        return PublicKey(self.name, bytes(_nacl().signing.SigningKey(self.seed).verify_key))

    def sign(self, message: bytes) -> bytes:
        """Return the signature, 64 bytes, always the same for the same message."""
        signature: bytes = _nacl().signing.SigningKey(self.seed).sign(message).signature
        return signature


def new_key(name: str) -> SecretKey:
    """Return a new secret key.

    Raises:
        ValueError: the name is not usable.
    """
    _check_name(name, name)
    return SecretKey(name, os.urandom(_SIZE))


def parse_secret(text: str) -> SecretKey:
    """Return a secret key from its text.

    Raises:
        ValueError: the text is not a secret key. The message does not show it.
    """
    return SecretKey(*_parse(text, "publish_key", shown=False))


def read_own(publish_key: str) -> SecretKey:
    """Return the secret key that a setting contains or names.

    Raises:
        ValueError: it is not a key, or the named variable or file does not exist.
        OSError: the file cannot be read.
    """
    return parse_secret(read_secret(publish_key, "publish_key"))


def read_publics(trusted: Any) -> tuple[PublicKey, ...]:
    """Return the public keys of a setting: at least one, unless it is empty.

    Raises:
        TypeError, ValueError: they are not keys.
        OSError: a file cannot be read.
    """
    keys = parse_publics(trusted) if trusted else ()
    if trusted and not keys:
        raise ValueError("trusted_keys names no key")
    return keys


def _content(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def parse_public(text: str) -> PublicKey:
    """Return a public key from its text.

    Raises:
        ValueError: the text is not a public key.
    """
    return PublicKey(*_parse(text, "a trusted key", shown=True))


def parse_publics(keys: Any) -> tuple[PublicKey, ...]:
    """Parse public keys: several texts, one text with spaces, commas or lines between the keys, or ``@file`` with such a text.

    Raises:
        TypeError: the argument is neither text nor several texts.
        ValueError: one of them is not a key.
        OSError: a file cannot be read.
    """
    found: dict[PublicKey, None] = {}
    if isinstance(keys, (bytes, bytearray)) or not hasattr(keys, "__iter__"):
        raise TypeError(f"trusted keys are text of the form name:base64, one or several, not {type(keys).__name__}")
    for item in [keys] if isinstance(keys, str) else keys:
        for word in str(item).replace(",", " ").split():
            if word.startswith("@"):
                lines = [line.partition("#")[0] for line in _content(word[1:]).splitlines()]
                found.update(dict.fromkeys(parse_publics(lines)))
            else:
                found[parse_public(word)] = None
    return tuple(found)


def _parse(text: str, what: str, *, shown: bool) -> tuple[str, bytes]:
    where = f": {text!r}" if shown else ""
    name, colon, encoded = text.strip().partition(":")
    if not colon:
        raise ValueError(f"{what} must have the form name:base64{where}")
    _check_name(name, name if shown else "the key's name")
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        reraise_interrupt(error)
        data = b""
    if len(data) != _SIZE:
        raise ValueError(f"{what} must have {_SIZE} bytes in base64 after the colon{where}")
    return name, data


def _check_name(name: str, shown: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name of a key must be at most 100 letters, digits and . _ @ + -: {shown}")


def _nacl() -> Any:
    try:
        import nacl.exceptions
        import nacl.signing
    except ImportError as error:
        raise MissingPackageError.of("PyNaCl", "signatures", "sign") from error
    return nacl
