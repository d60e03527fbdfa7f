"""Messages between a batch and its worker, over a socket that a job may write to, read from or close.

A worker runs foreign code, which inherits its descriptors and may write to one that it takes for its own, or fork. So
every packet begins with a token that only the two ends know; other packets are dropped. If the system has sockets
that keep packets whole (``SOCK_SEQPACKET``), no bytes get into the middle of one; elsewhere a checksum detects that.

A packet: token (16 bytes), then little-endian the length of the message (8), of this packet's part of it (4), and the
part's CRC-32 (4), then the part. A message is a pickle in one or more packets.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
import sys
import zlib
from collections import deque
from typing import TYPE_CHECKING

from compcache.files import reraise_interrupt

if TYPE_CHECKING:
    from typing import Any, Self

__all__ = ["Channel", "ChannelError", "new_token", "socket_pair"]

_HEAD = struct.Struct("<QII")
_TOKEN_SIZE = 16
_PART = 32 * 1024
_PACKET = _TOKEN_SIZE + _HEAD.size + _PART
#: How many packets are read from one channel at a time: a job may write stray ones endlessly.
_AT_ONCE = 64
_LONGEST = 1 << 32
_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)
_HANG_UP = select.POLLHUP | getattr(select, "POLLRDHUP", 0)
#: The type that keeps packets whole, where it exists.
_KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_STREAM


class ChannelError(Exception):
    """Raised when a message is damaged, or a job has closed or replaced the socket."""


def new_token() -> bytes:
    """Return a token for one worker."""
    return os.urandom(_TOKEN_SIZE)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a channel; the caller closes them."""
    return socket.socketpair(socket.AF_UNIX, _KIND)


class Channel:
    """One end of a channel: sends and receives whole messages, drops stray packets.

    Args:
        end: the socket; the channel owns it.
        token: the bytes that packets begin with.
    """

    def __init__(self, end: socket.socket, token: bytes) -> None:
        self._socket = end
        self._token = token
        self._identity = _identity(end)
        self._read = bytearray()
        self._message = bytearray()
        self._parts: deque[bytes] = deque()
        self.is_closed = False

    def fileno(self) -> int:
        """Return the socket's descriptor, -1 when closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self.is_closed = True
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------- sending

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` has packets to send."""
        return bool(self._parts)

    def post(self, message: Any) -> None:
        """Queue a message for `flush`."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for start in range(0, len(data), _PART):
            part = data[start : start + _PART]
            self._parts.append(self._token + _HEAD.pack(len(data), len(part), zlib.crc32(part)) + part)

    def flush(self, *, block: bool) -> bool:
        """Send the queued messages; without `block`, as much as the other end takes now. False if the other end is closed.

        Raises:
            ChannelError: the descriptor is no longer the channel's.
        """
        try:
            while self._parts:
                self._check()
                part = self._parts[0]
                sent = self._socket.send(part, _FLAGS | (0 if block else socket.MSG_DONTWAIT))
                self._parts.popleft()
                if sent < len(part):
                    self._parts.appendleft(part[sent:])
        except BlockingIOError as error:
            reraise_interrupt(error)
            return True
        except OSError as error:
            reraise_interrupt(error)
            self._parts.clear()
            return False
        return True

    # -------------------------------------------------------------- receiving

    def receive(self) -> Any:
        """Wait for a message.

        Raises:
            EOFError: the other end is closed.
            ChannelError: a message was damaged, or the descriptor is no longer the channel's.
        """
        while True:
            self._check()
            messages = self._take(self._socket.recv(_PACKET))
            if messages:
                return messages[0]

    def received(self) -> list[Any]:
        """Return the messages that have arrived; `is_closed` says whether more can come.

        Raises:
            ChannelError: as `receive`.
        """
        messages = []
        for _ in range(_AT_ONCE):
            try:
                data = self._socket.recv(_PACKET, socket.MSG_DONTWAIT)
                messages += self._take(data)
            except BlockingIOError as error:
                reraise_interrupt(error)
                break
            except (EOFError, OSError) as error:
                reraise_interrupt(error)
                self.is_closed = True
                break
        return messages

    def _take(self, data: bytes) -> list[Any]:
        if not data and self._has_hung_up():  # an empty packet is a stray one
            raise EOFError
        self._read += data
        messages = []
        while (part := self._next_part()) is not None:
            length, content = part
            self._message += content
            if len(self._message) == length:
                messages.append(_unpickled(bytes(self._message)))
                self._message.clear()
            elif len(self._message) > length or length > _LONGEST:
                raise ChannelError("a message contains parts of another one")
        return messages

    def _next_part(self) -> tuple[int, bytes] | None:
        """Return the next whole part of the received bytes; drops stray bytes before it."""
        start = self._read.find(self._token)
        if start < 0:
            del self._read[: max(0, len(self._read) - _TOKEN_SIZE + 1)]
            return None
        del self._read[:start]
        if len(self._read) < _TOKEN_SIZE + _HEAD.size:
            return None
        length, size, check = _HEAD.unpack_from(self._read, _TOKEN_SIZE)
        end = _TOKEN_SIZE + _HEAD.size + size
        if size > _PART:
            raise ChannelError("a packet has an impossible length")
        if len(self._read) < end:
            return None
        content = bytes(self._read[_TOKEN_SIZE + _HEAD.size : end])
        if zlib.crc32(content) != check:
            raise ChannelError("a packet was damaged by other bytes on the socket")
        del self._read[:end]
        return length, content

    def _has_hung_up(self) -> bool:
        poller = select.poll()
        poller.register(self._socket, _HANG_UP)
        return any(event & _HANG_UP for _, event in poller.poll(0))

    def _check(self) -> None:
        """Raise if a job has closed the descriptor, or another file has its number now."""
        if _identity(self._socket) != self._identity:
            raise ChannelError("a job closed the descriptors of its worker process")


def _unpickled(data: bytes) -> Any:
    try:
        return pickle.loads(data)  # noqa: S301 - between a process and its child
    except Exception as error:
        reraise_interrupt(error)
        raise ChannelError(f"a message cannot be unpickled: {error}") from error


def _identity(end: socket.socket) -> tuple[int, int] | None:
    try:
        status = os.fstat(end.fileno())
    except OSError as error:
        reraise_interrupt(error)
        return None
    return status.st_dev, status.st_ino
