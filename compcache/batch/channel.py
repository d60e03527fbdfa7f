"""Messages between a batch and its worker, over a socket that a job may write to, read from or close.

A worker runs foreign code. That code inherits the descriptors of the worker, may write to a wrong descriptor, and may fork. Hence every
packet begins with a token that only the two ends know. Packets without the token are dropped. If the system has sockets that keep packets
whole (``SOCK_SEQPACKET``), foreign bytes cannot get into a packet. On other systems a checksum detects foreign bytes.

A packet has a token (16 bytes), little-endian the length of the message (8), the length of the part in this packet (4), the
CRC-32 of the part (4), and the part. A message is a pickle in one or more packets.
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

from compcache.interrupts import reraise_interrupt, suppress

if TYPE_CHECKING:
    from typing import Any, Self

__all__ = ["Channel", "ChannelError", "new_token", "socket_pair"]

_HEAD = struct.Struct("<QII")
_TOKEN_SIZE = 16
_PART = 32 * 1024  # bytes of a message in one packet
_PACKET = _TOKEN_SIZE + _HEAD.size + _PART
#: The maximum number of packets read from a channel at a time. A job may write stray packets endlessly.
_AT_ONCE = 64
_LONGEST = 1 << 32  # bytes of a message
_STRAY_WRITE = "a job wrote to the socket of its worker process, and must write only to descriptors that it has opened"
_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)
_HANG_UP = select.POLLHUP | getattr(select, "POLLRDHUP", 0)
#: The type of socket that keeps packets whole, on systems that have it.
_KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_STREAM


class ChannelError(Exception):
    """Raised when a message is damaged, or when a job has closed or replaced the socket."""


def new_token() -> bytes:
    """Return a new random token for the channel of a worker."""
    return os.urandom(_TOKEN_SIZE)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a channel. The caller must close both ends."""
    return socket.socketpair(socket.AF_UNIX, _KIND)


class Channel:
    """One end of a channel. It sends and receives whole messages, and drops stray packets.

    Args:
        end: the socket, which the channel owns from now on.
        token: the first bytes of every packet.
    """

    def __init__(self, end: socket.socket, token: bytes) -> None:
        self._socket = end
        self._token = token
        self._identity = _socket_identity(end)
        self._read = bytearray()
        self._message = bytearray()
        self._received: deque[Any] = deque()  # one read of a stream may complete several messages
        self._parts: deque[bytes] = deque()
        self.is_closed = False

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 after `close`."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self.is_closed = True
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def has_unsent(self) -> bool:
        """Return whether there are packets for `flush` to send."""
        return bool(self._parts)

    def enqueue(self, message: Any) -> None:
        """Pickle a message and queue it for `flush`."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for start in range(0, len(data), _PART):
            piece = data[start : start + _PART]
            self._parts.append(self._token + _HEAD.pack(len(data), len(piece), zlib.crc32(piece)) + piece)

    def flush(self, *, block: bool) -> bool:
        """Send the queued messages. Return False if the other end is closed; then the queue is emptied.

        If `block` is false, send only the packets that fit into the buffer of the socket, and keep the other packets.

        Raise `ChannelError` if a job has closed or replaced the descriptor.
        """
        try:
            while self._parts:
                self._require_own_socket()
                piece = self._parts[0]
                sent = self._socket.send(piece, _FLAGS | (0 if block else socket.MSG_DONTWAIT))
                self._parts.popleft()
                if sent < len(piece):
                    self._parts.appendleft(piece[sent:])
        except BlockingIOError as error:
            reraise_interrupt(error)
            return True
        except OSError as error:
            reraise_interrupt(error)
            self._parts.clear()
            return False
        return True

    def receive(self) -> Any:
        """Wait for a message and return it.

        Raises:
            EOFError, ConnectionError: the other end is closed.
            ChannelError: a message is damaged, or a job has closed or replaced the descriptor.
        """
        while not self._received:
            self._require_own_socket()
            self._received += self._decode_messages(self._socket.recv(_PACKET))
        return self._received.popleft()

    def receive_available(self) -> list[Any]:
        """Return the messages that have arrived, without waiting. Set `is_closed` if no more messages can arrive.

        Raise `ChannelError` if a message is damaged.
        """
        messages = []
        for _ in range(_AT_ONCE):
            try:
                data = self._socket.recv(_PACKET, socket.MSG_DONTWAIT)
                messages += self._decode_messages(data)
            except BlockingIOError as error:
                reraise_interrupt(error)
                break
            except (EOFError, OSError) as error:
                reraise_interrupt(error)
                self.is_closed = True
                break
        return messages

    def _decode_messages(self, data: bytes) -> list[Any]:
        """Add received bytes to the buffer, and return the messages that they complete.

        Raise `EOFError` if the other end is closed, or `ChannelError` if a packet or a message is damaged.
        """
        if not data and self._has_hung_up():  # an empty packet from an open socket is a stray packet
            raise EOFError
        self._read += data
        messages = []
        while (piece := self._pop_part()) is not None:
            length, content = piece
            self._message += content
            if len(self._message) == length:
                messages.append(_unpickle_message(bytes(self._message)))
                self._message.clear()
            elif len(self._message) > length or length > _LONGEST:
                raise ChannelError(f"a message is mixed with parts of another message: {_STRAY_WRITE}")
        return messages

    def _pop_part(self) -> tuple[int, bytes] | None:
        """Remove the next packet, and stray bytes before it, from the received bytes.

        Return the length of the packet's message and the part in the packet; None if no complete packet has arrived. Raise `ChannelError`
        if the packet is damaged.
        """
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
            raise ChannelError(f"a part of a message declares {size} bytes, more than the maximum of {_PART}: {_STRAY_WRITE}")
        if len(self._read) < end:
            return None
        content = bytes(self._read[_TOKEN_SIZE + _HEAD.size : end])
        if zlib.crc32(content) != check:
            raise ChannelError(f"the checksum of a part of a message is wrong: {_STRAY_WRITE}")
        del self._read[:end]
        return length, content

    def _has_hung_up(self) -> bool:
        """Return whether the other end of the socket is closed."""
        poller = select.poll()
        poller.register(self._socket, _HANG_UP)
        return any(event & _HANG_UP for _, event in poller.poll(0))

    def _require_own_socket(self) -> None:
        """Raise `ChannelError` if the descriptor is closed, or refers to another file."""
        if _socket_identity(self._socket) != self._identity:
            raise ChannelError("the socket of the worker process was closed or replaced: a job must close only descriptors that it opened")


def _unpickle_message(data: bytes) -> Any:
    """Unpickle a message and return it; raise `ChannelError` if unpickling raises any exception."""
    try:
        return pickle.loads(data)  # noqa: S301 - between a process and its child
    except Exception as error:
        reraise_interrupt(error)
        raise ChannelError(f"a message between a batch and its worker process is damaged ({error}): {_STRAY_WRITE}") from error


def _socket_identity(end: socket.socket) -> tuple[int, int] | None:
    """Return the device and inode of a socket; None if the socket is closed."""
    with suppress(OSError):
        status = os.fstat(end.fileno())
        return status.st_dev, status.st_ino
    return None
