"""What the asking process and the helper send each other: a length (4 bytes, little-endian), then msgpack."""

from __future__ import annotations

import hashlib
import os
import stat
from struct import Struct
from typing import TYPE_CHECKING, Any

import msgpack

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LENGTH", "MAX_MESSAGE", "decode", "encode", "private_directory", "state_directory"]

LENGTH = Struct("<I")
MAX_MESSAGE = 1 << 30
_PROTOCOL = 1


def encode(message: object) -> bytes:
    """A message with its length."""
    data: bytes = msgpack.packb(message, unicode_errors="surrogatepass")
    return LENGTH.pack(len(data)) + data


def decode(data: bytes) -> Any:
    """The message; ValueError where the bytes are not one."""
    return msgpack.unpackb(data, unicode_errors="surrogatepass")


def private_directory(path: str) -> str:
    """A directory that this user owns and nobody else can enter; it is made where it does not exist.

    Raises:
        OSError: it belongs to another user, others can write to it, or it cannot be made.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(
                f"{path} is not a directory of this user alone: remove it, or set XDG_RUNTIME_DIR to a private directory"
            ) from None
    return path


#: Variables that name accounts and endpoints: processes with others of them do not share a helper.
_ACCOUNT = ("AWS_", "GOOGLE_", "AZURE_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy")


def state_directory(url: str, environment: Mapping[str, str]) -> str:
    """The directory of a store's socket, breaker and outbox: one for each user, store and set of credentials.

    Raises:
        OSError: it cannot be made private.
    """
    base = environment.get("XDG_RUNTIME_DIR") or f"/tmp/compcache-{os.geteuid()}"  # noqa: S108 - made 0700 and checked
    account = sorted((k, v) for k, v in environment.items() if k.startswith(_ACCOUNT))
    name = hashlib.blake2b(repr((_PROTOCOL, url, account)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return private_directory(os.path.join(private_directory(os.path.join(base, "compcache")), name))
