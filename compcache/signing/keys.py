"""Named Ed25519 keys as text: ``name:base64``, as in Nix. A secret key is the seed (RFC 8032) and the public key, so it is longer.

Version 1.0.0 wrote only the seed, which is as long as a public key. Such keys are read with a warning.

PyNaCl makes and checks signatures. It is imported at the first use. Hits of modules that were checked before do not need it.
Other uses raise `MissingPackageError` without it.
"""

from __future__ import annotations

import base64
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from compcache.configuration import SettingError, read_private_text
from compcache.errors import CacheWarning, MissingPackageError
from compcache.files import not_missing
from compcache.interrupts import reraise_interrupt, suppress
from compcache.processes.secret_references import read_secret
from compcache.settings import users_directory
from compcache.warning import warn

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "OldKeyWarning", "PublicKey", "SecretKey", "add_trusted_key", "generate_key", "parse_public_key", "parse_public_keys",
    "parse_secret_key", "read_publish_key", "read_trusted_keys", "trusted_keys",
]  # fmt: skip

_SIZE = 32  # bytes of a key
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")


class OldKeyWarning(CacheWarning):
    """A secret key has the form of version 1.0.0."""


class PublicKey(NamedTuple):
    """A named key that verifies signatures. Its text is ``name:base64``."""

    name: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.name}:{base64.b64encode(self.data).decode()}"

    def accepts(self, message: bytes, signature: bytes) -> bool:
        """Return whether `signature` is a valid signature of `message` by the matching secret key.

        Raise `MissingPackageError` if PyNaCl is not installed.
        """
        nacl = _import_nacl()
        with suppress(nacl.exceptions.BadSignatureError, ValueError):
            nacl.signing.VerifyKey(self.data).verify(message, signature)
            return True
        return False


class SecretKey(NamedTuple):
    """A named key that makes signatures. Its text, ``name:base64``, contains the secret; its `repr` does not. The text needs PyNaCl.

    `stated` is the public key in the text from which the key was read; empty if there was none.
    """

    name: str
    seed: bytes
    stated: bytes = b""

    def __str__(self) -> str:
        return f"{self.name}:{base64.b64encode(self.seed + self.public().data).decode()}"

    def __repr__(self) -> str:
        return f"SecretKey({self.name!r}, ...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"the secret key {self.name} cannot be pickled: pass the name of its variable or file ($VARIABLE, @file)")

    def public(self) -> PublicKey:
        """Return the public key that verifies signatures by this key. See `_signing_key` for the exceptions."""
        return PublicKey(self.name, bytes(self._signing_key().verify_key))

    def sign(self, message: bytes) -> bytes:
        """Sign a message, and return the signature of 64 bytes. Equal messages have equal signatures.

        See `_signing_key` for the exceptions.
        """
        signature: bytes = self._signing_key().sign(message).signature
        return signature

    def _signing_key(self) -> Any:
        """Return the key as an object of PyNaCl.

        Raise `ValueError` if the public key in the key's text is another one, or `MissingPackageError` if PyNaCl is not installed.
        """
        key = _import_nacl().signing.SigningKey(self.seed)
        if self.stated not in (b"", bytes(key.verify_key)):
            raise ValueError(f"the secret key {self.name} is damaged: its halves belong to different keys; restore it, or make a new key")
        return key


def generate_key(name: str) -> SecretKey:
    """Generate a random secret key with this name. Raise `ValueError` if `name` is not a valid key name."""
    _check_name(name, repr(name))
    return SecretKey(name, os.urandom(_SIZE))


def parse_secret_key(text: str) -> SecretKey:
    """Return a secret key from its text. Raise `ValueError` if the text is not a secret key. The message does not show the text.

    Warn if the text may be a public key.
    """
    name, data = _parse_key(text, "publish_key", secret=True)
    if len(data) == _SIZE:
        warn(
            f"the secret key {name} has the form of version 1.0.0, which is also the form of public keys: if it is a public key, everybody "
            "can sign with it; replace it by a new key (compcache key new)",
            OldKeyWarning,
        )
    return SecretKey(name, data[:_SIZE], data[_SIZE:])


def read_publish_key(publish_key: str) -> SecretKey:
    """Return the secret key in the setting `publish_key`, which contains the key or names its variable or file.

    Raises:
        ValueError: the text is not a key, or its reference is refused (`read_secret`).
        OSError: the file with the key cannot be read.
    """
    return parse_secret_key(read_secret(publish_key, "publish_key"))


def read_trusted_keys(trusted: Any) -> tuple[PublicKey, ...]:
    """Return the public keys in the setting `trusted_keys`; an empty tuple if the setting is empty. See `parse_public_keys` for its forms.

    Raises:
        TypeError: the setting is neither a text nor an iterable of texts.
        ValueError: a text is not a key, or a non-empty setting contains no key.
        OSError: a file cannot be read.
    """
    keys = parse_public_keys(trusted) if trusted else ()
    if trusted and not keys:
        raise ValueError("trusted_keys contains no key: give keys of the form name:base64, or an empty setting")
    return keys


def parse_public_key(text: str) -> PublicKey:
    """Return a public key from its text. Raise `ValueError` if the text is not a public key."""
    return PublicKey(*_parse_key(text, "a trusted key", secret=False))


def parse_public_keys(keys: Any) -> tuple[PublicKey, ...]:
    """Return the public keys in one text or in several texts, each key once.

    Spaces, commas or line breaks separate the keys in a text. ``@file`` in place of a key includes the keys in a file, which may
    have comments after ``#`` and include files. Each file is read once, so files may include each other.

    Raises:
        TypeError: `keys` is neither text nor an iterable.
        ValueError: the text of an item is not a key, or a file is refused (`read_private_text`).
        OSError: a file cannot be read.
    """
    if isinstance(keys, (bytes, bytearray)) or not hasattr(keys, "__iter__"):
        raise TypeError(f"trusted keys must be text of the form name:base64, or a list of such texts, not {type(keys).__name__}")
    return _parse_words(_split_words([keys] if isinstance(keys, str) else keys))


def _split_words(texts: Iterable[Any]) -> list[str]:
    """Return the words of texts, which are separated by spaces, commas or line breaks."""
    return " ".join(map(str, texts)).replace(",", " ").split()


def _parse_words(words: list[str]) -> tuple[PublicKey, ...]:
    """Return the public keys in `words`, each key once. The words of included files are appended to `words`.

    Raise `ValueError` for a word that is not a key. See `_words_in` for other exceptions.
    """
    parsed: dict[PublicKey, None] = {}
    included: set[str] = set()
    for word in words:
        if not word.startswith("@"):
            parsed[parse_public_key(word)] = None
        elif word not in included:
            included.add(word)
            words += _words_in(word[1:])
    return tuple(parsed)


def _words_in(path: str) -> list[str]:
    """Return the words in a file of keys, without comments. See `read_private_text` for the exceptions."""
    return _split_words(line.partition("#")[0] for line in read_private_text(path).splitlines())


def _parse_key(text: str, description: str, *, secret: bool) -> tuple[str, bytes]:
    """Return the name and the bytes of a key, whose text has the form ``name:base64``. Raise `ValueError` if the text is not a key.

    A public key has 32 bytes, a secret one 64, or 32 in version 1.0.0. Messages call the key `description`. They contain no text of a
    secret key.
    """
    quoted = "" if secret else f": {text!r}"
    name, colon, encoded = text.strip().partition(":")
    if not colon:
        raise ValueError(f"{description} must have the form name:base64{quoted}")
    _check_name(name, f"the name in {description}" if secret else repr(name))
    try:
        data = base64.b64decode(encoded, validate=True)
    except ValueError as error:
        reraise_interrupt(error)
        data = b""
    if len(data) == 2 * _SIZE and not secret:
        raise ValueError(f"{description} is the secret key {name}: give its public key, which `compcache key show` prints")
    if len(data) not in (_SIZE, 2 * _SIZE):
        raise ValueError(f"{description} must have {2 * _SIZE if secret else _SIZE} bytes in base64 after the colon{quoted}")
    return name, data


def _check_name(name: str, text: str) -> None:
    """Raise `ValueError` if `name` is not a valid key name. The message contains `text` in place of `name`."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{text} is not a valid key name: use 1 to 100 letters, digits and characters of ._@+-, beginning with a letter or a digit"
        )


def _import_nacl() -> Any:
    """Import and return PyNaCl, with its modules `exceptions` and `signing`; raise `MissingPackageError` if it is not installed."""
    try:
        import nacl.exceptions
        import nacl.signing
    except ImportError as error:
        raise MissingPackageError.of("PyNaCl", "signing or verifying", "sign") from error
    return nacl


def trusted_keys_path() -> str:
    """Return the path of the user's file of trusted keys: ``compcache/trusted-keys`` in the user's configuration directory (XDG)."""
    return os.path.join(users_directory("XDG_CONFIG_HOME", "~/.config"), "compcache", "trusted-keys")


def trusted_keys() -> tuple[PublicKey, ...] | None:
    """Return the keys in the user's file of trusted keys, one on each line; None if the file does not exist.

    Raise `SettingError` if a line of the file is not a key. See `read_private_text` for other exceptions.
    """
    path = trusted_keys_path()
    if not not_missing([path]):
        return None
    words = _words_in(path)
    try:
        return _parse_words(words)
    except ValueError as error:
        reraise_interrupt(error)
        raise SettingError(f"the file of trusted keys {path} cannot be used ({error}): correct its lines") from error


def add_trusted_key(key: PublicKey) -> str:
    """Add a key to the user's file of trusted keys unless it is already there. Create the file if necessary, and return its path.

    Raise `OSError` if the file cannot be written. See `trusted_keys` for other exceptions.
    """
    path = trusted_keys_path()
    if key not in (trusted_keys() or ()):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "a+", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.seek(0)
            content = file.read()
            line_end = "\n" if content and not content.endswith("\n") else ""
            file.write(f"{line_end}{key}\n")
    return path
