"""The user's file of trusted keys: one public key per line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compcache.settings import users_directory
from compcache.signing.keys import read_public_keys

if TYPE_CHECKING:
    from compcache.signing.keys import PublicKey

__all__ = ["add_trusted_key", "trusted_keys", "trusted_keys_path"]


def trusted_keys_path() -> str:
    """Return the path of the file: ``compcache/trusted-keys`` in the user's configuration directory (XDG Base Directory Specification)."""
    return os.path.join(users_directory("XDG_CONFIG_HOME", "~/.config"), "compcache", "trusted-keys")


def trusted_keys() -> tuple[PublicKey, ...] | None:
    """Return the keys in the file; None if the file does not exist.

    Raise `ValueError` if a line of the file is not a key, or `OSError` if the file cannot be read.
    """
    path = trusted_keys_path()
    return read_public_keys(path) if os.path.exists(path) else None


def add_trusted_key(key: PublicKey) -> str:
    """Add a key to the file unless it is already there. Create the file if necessary, and return its path.

    Raise `ValueError` if a line of the file is not a key, or `OSError` if the file cannot be read or written.
    """
    path = trusted_keys_path()
    if key not in (trusted_keys() or ()):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "a+", encoding="utf-8") as file:
            file.seek(0)
            content = file.read()
            line_end = "\n" if content and not content.endswith("\n") else ""
            file.write(f"{line_end}{key}\n")
    return path
