"""What the asking process and the helper send each other: a length (4 bytes, little-endian), then msgpack."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from struct import Struct
from typing import TYPE_CHECKING, Any

import msgpack

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LENGTH", "MAX_MESSAGE", "decode", "encode", "owner_of", "private_directory", "state_directory"]

LENGTH = Struct("<I")
MAX_MESSAGE = 1 << 30
_PROTOCOL = 2
_PEER = Struct("3i")
_WRITE = 0o022  # for group and others
_TEMPORARY = "/tmp"  # noqa: S108 - what is made there is private, and checked


def encode(message: object) -> bytes:
    """A message with its length."""
    data: bytes = msgpack.packb(message, unicode_errors="surrogatepass")
    return LENGTH.pack(len(data)) + data


def decode(data: bytes) -> Any:
    """The message; ValueError where the bytes are not one."""
    return msgpack.unpackb(data, unicode_errors="surrogatepass")


def owner_of(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket: who has connected, or called `listen`."""
    return int(_PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1])


def private_directory(path: str) -> str:
    """A directory that this user owns and nobody else can enter; it is made where it does not exist.

    Raises:
        OSError: it belongs to another user, others can write to it, or it cannot be made.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not _is_own(path, 0o077):
            raise PermissionError(
                f"{path} is not a directory of this user alone: remove it, or set XDG_RUNTIME_DIR to a private directory"
            ) from None
    return path


def _is_own(path: str, denied: int) -> bool:
    """Whether a directory is this user's, and its mode gives others none of these rights."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & denied


#: Variables that name accounts and endpoints: processes with others of them do not share a helper.
_ACCOUNT = ("AWS_", "GOOGLE_", "AZURE_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy")


def state_directory(url: str, environment: Mapping[str, str]) -> str:
    """The directory of a store's socket, breaker and outbox: one for each user, store and set of credentials.

    A runtime directory that is not this user's alone (that of the user who called sudo, for one) is passed over: who owns a
    directory can exchange what is in it.

    Raises:
        OSError: it cannot be made private.
    """
    base = environment.get("XDG_RUNTIME_DIR", "")
    if not _is_own(base, _WRITE):
        base = f"{_TEMPORARY}/compcache-{os.geteuid()}"
        if not _is_own(base, _WRITE):
            private_directory(base)
    account = sorted((k, v) for k, v in environment.items() if k.startswith(_ACCOUNT))
    name = hashlib.blake2b(repr((_PROTOCOL, url, account)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return private_directory(os.path.join(private_directory(os.path.join(base, "compcache")), name))
