"""Connections to the helper process: one short-lived connection per question. Safe in threads and in forked children.

A message is its length (4 bytes, little-endian), then msgpack.
"""

from __future__ import annotations

import os
import select
import socket
import time
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from compcache.interrupts import reraise_interrupt, suppress
from compcache.messagepack import pack, unpack
from compcache.processes.detached import start_detached
from compcache.remote.directory import outbox_directory, state_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.remote.address import Stores

__all__ = [
    "COMPILE_SECONDS", "LENGTH", "LOCK", "MAX_MESSAGE", "REFUSED", "SOCKET", "Question", "ask", "encode", "owner_of", "wake_helper",
]  # fmt: skip

#: The version of questions and answers. Helpers of several versions may run side by side; they share breakers and outboxes.
_PROTOCOL = 7
SOCKET, LOCK, REFUSED = f"socket-{_PROTOCOL}", f"helper-{_PROTOCOL}.lock", f"refused-{_PROTOCOL}"
LENGTH = Struct("<I")
MAX_MESSAGE = 1 << 30
_PEER = Struct("3i")

_HELPER = "import sys; from compcache.remote.helper.server import main; sys.exit(main(sys.argv[1:]))"
_POLL_SECONDS = 0.005
_LONGEST_POLL_SECONDS = 86400.0  # `poll` refuses more than 2**31 ms
#: A process stops waiting for a helper that cannot be reached this many seconds after its start.
_START_SECONDS = 10.0
#: A helper that ends before it was reached is started again at once this many times, then only after `_START_SECONDS`.
_STARTS = 3


class _Start(NamedTuple):
    """The last start of a helper: its PID, the monotonic time, and the number of failed starts before it."""

    pid: int
    started: float
    failed_starts: int


_NOT_STARTED = _Start(0, 0.0, 0)
_started: dict[str, _Start] = {}  # by directory
_reached: set[str] = set()  # directories whose helper was reached since
_questions: WeakSet[Question] = WeakSet()
_awaited: set[str] = set()  # directories whose helper this process has waited for
#: The only field of a message that precedes the answer: the seconds that compiling the requested module took.
COMPILE_SECONDS = "stake"
_LONGEST_COMPILATION = 10.0
_LONGEST_QUEUE = 10.0


def encode(message: object) -> bytes:
    """Encode a message, with its length. `unpack` decodes the part after the length."""
    data = pack(message)
    return LENGTH.pack(len(data)) + data


def owner_of(connection: socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket: the process that connected or called `listen`."""
    _, user = _peer_of(connection)
    return user


def _peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the PID and the user id of the process at the other end of a Unix socket."""
    pid, user, _group = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, user


class _ProcessorWait:
    """Measures how long a process waits for a processor.

    Args:
        find_pid: returns the PID of the process, which may change.
    """

    def __init__(self, find_pid: Callable[[], int]) -> None:
        self._find_pid = find_pid
        self._pid = find_pid()
        self._before = _read_wait(self._pid)
        self._sum = 0.0

    def seconds(self) -> float:
        """Return the waiting time in seconds since this object was created, at most `_LONGEST_QUEUE`."""
        pid = self._find_pid()
        now = _read_wait(pid)
        if pid == self._pid:
            self._sum += max(0.0, now - self._before)
        self._pid, self._before = pid, now
        return min(self._sum, _LONGEST_QUEUE)


def _read_wait(pid: int) -> float:
    """Return for how many seconds a process has waited for a processor, or 0.0 if the system does not report it."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        _running, waiting_ns, _slices = file.read().split()
        return int(waiting_ns) / 1e9
    return 0.0


class Question:
    """A question to the helper. It is sent once the helper listens.

    With `keeps`, the connection stays open until `close`.

    Attributes:
        answer: the decoded answer. It is set when `wait` returns True.
        is_answered: whether the answer has arrived.
        sent: the monotonic time when the question was sent, or 0.0 before that.
        problem: the reason why no answer will arrive, or "".
    """

    def __init__(self, directory: str, stores: Stores, message: object, *, keeps: bool = False) -> None:
        self._keeps = keeps
        self._directory = directory
        self._stores = stores
        self._unsent = encode(message)
        self._received = bytearray()
        self._socket: socket.socket | None = None
        self._compile_seconds = 0.0
        self.sent = 0.0
        self.answer: Any = None
        self.is_answered = False
        self.problem = ""
        _questions.add(self)

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the answer, and return whether it has arrived. `problem` gives the reason if no answer will arrive.

        Once the helper has reported how long compiling would take, the wait is at least that long. Time during which the helper waits for
        a processor does not count, up to `_LONGEST_QUEUE` seconds, because compiling would take longer too on a busy machine.
        """
        started = time.monotonic()
        queue = _ProcessorWait(self._helper_pid) if seconds else None

        def remaining() -> float:
            """Return the seconds that are left. Time during which the helper has waited for a processor is added."""
            end = started + (max(seconds, self._compile_seconds) if seconds else 0.0)
            now = time.monotonic()
            return end - now if end > now or queue is None else end + queue.seconds() - now

        while not (self.is_answered or self.problem):
            if self._socket is None and not self._connect():
                if remaining() <= 0 or self.problem:
                    break
                time.sleep(max(0.0, min(_POLL_SECONDS, remaining())))
                continue
            self._receive(max(0.0, remaining()))
            if remaining() <= 0:
                break
        return self.is_answered

    def _helper_pid(self) -> int:
        """Return the PID of the helper, or 0 if it is not known."""
        if self._socket is not None:
            with suppress(OSError):
                pid, _ = _peer_of(self._socket)
                return pid
        return _started.get(self._directory, _NOT_STARTED).pid

    def claim_first_wait(self) -> bool:
        """Return whether the helper is starting, and no question of this process has waited for it. Later calls return False."""
        if self.sent or self._directory in _awaited:
            return False
        _awaited.add(self._directory)
        return True

    def close(self) -> None:
        """Close the connection. An answer that has not arrived is lost."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> bool:
        """Connect to the helper, and send the question. Return whether that succeeded. A missing helper is started.

        If the helper cannot be reached or started, set `problem`.
        """
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            reraise_interrupt(error)
            self.problem = f"no socket can be opened: {error.strerror or error}"
            return False
        folder = -1
        try:
            # The path is relative to a descriptor, because the path of a socket has at most 107 bytes.
            folder = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            connection.connect(f"/proc/self/fd/{folder}/{SOCKET}")
            owner = owner_of(connection)
            if owner != os.geteuid():
                connection.close()
                self.problem = f"the helper process in {self._directory} runs as another user ({owner}); remove that directory"
                return False
            connection.sendall(self._unsent)
            connection.setblocking(False)
        except OSError as error:
            reraise_interrupt(error)
            connection.close()
            self.problem = _start_helper(self._directory, self._stores)
            return False
        finally:
            if folder >= 0:
                os.close(folder)
        self._socket = connection
        self.sent = time.monotonic()
        _reached.add(self._directory)
        return True

    def _receive(self, seconds: float) -> None:
        """Read the bytes that have arrived, after waiting at most `seconds`, and process complete messages.

        The last message is the answer. Messages before it announce the time of compiling. Set `problem` if the helper has ended.
        """
        connection = self._socket
        if connection is None:
            return
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        if not poll.poll(1000 * min(seconds, _LONGEST_POLL_SECONDS)):
            return
        with suppress(BlockingIOError):
            try:
                data = connection.recv(1 << 20)
            except ConnectionError as error:
                reraise_interrupt(error)
                data = b""
            self._received += data
            if not data:
                self.problem = "its helper process ended before it answered"
                self.close()
        while len(self._received) >= LENGTH.size and not self.is_answered:
            (length,) = LENGTH.unpack_from(self._received)
            end = LENGTH.size + length
            if len(self._received) < end:
                break
            message = unpack(bytes(self._received[LENGTH.size : end]))
            del self._received[:end]
            if isinstance(message, dict) and COMPILE_SECONDS in message:
                self._compile_seconds = min(max(self._compile_seconds, message[COMPILE_SECONDS]), _LONGEST_COMPILATION)
                continue
            self.answer = message
            self.is_answered = True
            if not self._keeps:
                self.close()


def _forget_connections() -> None:
    """Drop all connections in a forked child, because the parent reads the answers. `Question.wait` sends a question again."""
    for question in list(_questions):
        question.close()
        question._received.clear()


def ask(stores: Stores, *message: Any, keeps: bool = False) -> Question:
    """Send a question to the helper of these stores, and return the `Question` without waiting.

    A missing helper is started. `Question.wait` sends the question once the helper listens. With `keeps`, the connection stays open until
    `Question.close`.

    Raise `OSError` if the directory of the helper's socket cannot be made private.
    """
    question = Question(state_directory(stores.url, os.environ), stores, list(message), keeps=keeps)
    question.wait(0.0)
    return question


def wake_helper(stores: Stores) -> None:
    """Tell the helper that an outbox has something to upload. Start the helper if it does not run. A failure is ignored."""
    with suppress(OSError):
        ask(stores, "news").close()


def _start_helper(directory: str, stores: Stores) -> str:
    """Start the helper, unless this process has a running or just ended one. Return "", or the reason why it cannot be reached."""
    refused = os.path.join(directory, REFUSED)
    pid, started, failed_starts = _started.get(directory, _NOT_STARTED)
    if pid and _is_running(pid):
        is_expected = directory in _reached or time.monotonic() - started < _START_SECONDS
        return "" if is_expected else f"its helper process (PID {pid}) does not answer; run 'kill {pid}'"
    if pid and directory not in _reached and time.monotonic() - started < _START_SECONDS:
        if os.path.exists(refused):
            import json

            with suppress(OSError, ValueError), open(refused, encoding="utf-8") as file:
                return str(json.load(file))
        if time.monotonic() - started < 1.0:
            return ""  # the helper ended at once because another helper serves, or is about to
        if failed_starts >= _STARTS:
            return "its helper process ends as soon as it is started"
        failed_starts += 1  # a user or the system has killed the helper
    else:
        failed_starts = 0
    _reached.discard(directory)
    try:
        description = [[*store, state_directory(store.url, os.environ), outbox_directory(store.url, os.environ)] for store in stores.each]
        pid = start_detached(_HELPER, [directory], os.environ, encode(description))
        _started[directory] = _Start(pid, time.monotonic(), failed_starts)
    except OSError as error:
        reraise_interrupt(error)
        return f"its helper process cannot be started: {error.strerror or error}"
    return ""


def _is_running(pid: int) -> bool:
    """Return whether the helper that this process started runs. In a forked child, the result is False."""
    with suppress(ChildProcessError):  # this process was forked, and the helper is a child of its parent
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    return False
