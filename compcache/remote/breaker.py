"""Decides when a failing store is not asked: a circuit breaker for all processes of a user, and the patience of one process.

The breaker is a file with three numbers as text: consecutive failures, the time until which the store is not asked (seconds since the
epoch, or 0), and the length of that pause in seconds. A damaged or missing file means a healthy store.

    healthy    look-ups go to the store
    doubtful   a request failed after several tries: the store is not asked until the helper has probed it, which is soon
    open       three requests failed in a row: the store is not asked for 30 s, and twice as long after each further failure, up to 600 s
    half-open  the pause is over: the next question makes the helper probe the store, and does not wait for the answer

A silent store therefore delays one look-up of one process. Later processes are not delayed.
"""

from __future__ import annotations

import os
import time

from compcache.interrupts import suppress
from compcache.remote.directory import state_directory

__all__ = ["PROBE_SECONDS", "Breaker", "Patience", "breaker_of"]

_FAILURES = 3  # the number of consecutive failures that opens the breaker
_FIRST_PAUSE = 30.0
_LONGEST_PAUSE = 600.0
#: How long a probe may take, and how long a store stays in doubt if the result of its probe never becomes known.
PROBE_SECONDS = 1.0
_DOUBT = PROBE_SECONDS + 2.0
#: How many seconds a process may wait in vain before it stops waiting for the first time, and before each later time.
_FIRST_LOSS, _NEXT_LOSS = 0.4, 0.1
#: For how many seconds a process does not wait: at first, and at most. Each such time is twice as long as the last.
_FIRST_IMPATIENCE, _LONGEST_IMPATIENCE = 1.0, 60.0
#: The number of questions that a process asks without waiting in such a time.
_UNWAITED = 4


class Breaker:
    """The circuit breaker of a store. All processes read its file. Helpers, and processes whose questions failed, write it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def is_open(self) -> bool:
        """Read the file, and return whether the store must get no request now."""
        _, pause_end, _ = self._read_state()
        return time.time() < pause_end

    def is_half_open(self) -> bool:
        """Return whether the pause is over, so that the store must be probed before it gets another request."""
        _, pause_end, _ = self._read_state()
        return 0 < pause_end <= time.time()

    def is_doubtful(self) -> bool:
        """Return whether the store must be probed first, although it has failed too few times to open the breaker."""
        failures, pause_end, _ = self._read_state()
        return failures < _FAILURES and pause_end > 0

    def allows_lookups(self) -> bool:
        """Return whether look-ups may ask the store. Probes are always allowed."""
        _, pause_end, _ = self._read_state()
        return not pause_end

    def record_success(self) -> None:
        """Record that a request was answered."""
        if self._read_state() != (0, 0.0, 0.0):
            self._write_state(0, 0.0, 0.0)

    def record_failure(self, *, is_doubtful: bool = False, is_probe: bool = False) -> None:
        """Record that all tries of a request timed out or failed with an error of the store.

        `is_probe` says that the request was a probe. After a failed probe, and with `is_doubtful`, the store is doubtful until the next
        probe, unless the breaker opens. While look-ups may not ask the store, only failures of probes count.
        """
        failures, pause_end, pause = self._read_state()
        if pause_end and not is_probe:
            return  # a concurrent request has already recorded its failure
        failures += 1
        if failures >= _FAILURES:
            pause = min(2 * pause, _LONGEST_PAUSE) if pause else _FIRST_PAUSE
            pause_end = time.time() + pause
        elif is_probe or is_doubtful:
            pause_end = time.time() + _DOUBT
        self._write_state(failures, pause_end, pause)

    def state(self) -> tuple[int, float]:
        """Return the number of consecutive failures, and the remaining seconds of the pause without requests."""
        failures, pause_end, _ = self._read_state()
        return failures, max(0.0, pause_end - time.time())

    def _read_state(self) -> tuple[int, float, float]:
        """Return the failures in a row, the end of the pause, and the pause in seconds.

        All are 0 if there is no valid file, or if the pause would end too late, because the clock was set back.
        """
        with suppress(OSError, ValueError):
            with open(self._path, encoding="ascii") as file:
                failures, pause_end_text, pause = file.read(200).split()
            pause_end = float(pause_end_text)
            values = int(failures), pause_end, float(pause)
            return values if pause_end - time.time() <= _LONGEST_PAUSE else (0, 0.0, 0.0)
        return 0, 0.0, 0.0

    def _write_state(self, failures: int, pause_end: float, pause: float) -> None:
        """Share the failures, the end of the pause and its length in seconds with other processes. A failed write is ignored."""
        content = f"{failures} {pause_end} {pause}".encode("ascii")
        from compcache.processes.detached import LateFiles
        from compcache.publish.atomic_file import publish

        with suppress(OSError):  # each process then detects by itself that the store fails
            publish(LateFiles(), os.path.dirname(self._path), self._path, [content], sync=False)


def breaker_of(url: str) -> Breaker:
    """Return the breaker of one store, for the current credentials of the environment.

    Raise `OSError` if the directory of the breaker cannot be made private.
    """
    return Breaker(os.path.join(state_directory(url, os.environ), "breaker"))


class Patience:
    """Decides whether one process waits for a store that is slow or silent."""

    def __init__(self) -> None:
        self.record_answer()

    def record_answer(self) -> None:
        """Record that the store answered a question."""
        self._budget = _FIRST_LOSS
        self._pause = _FIRST_IMPATIENCE
        self._until = 0.0
        self._unwaited = _UNWAITED

    def record_wait(self, seconds: float) -> None:
        """Record that the process waited for `seconds` without an answer. After too many seconds, it does not wait for a while."""
        self._budget -= seconds
        if self._budget <= 0:
            # A loss counts once: the look-ups that are under way must fail first, and open the breaker.
            self._until = time.monotonic() + max(self._pause, 4 * seconds)
            self._pause = min(2 * self._pause, _LONGEST_IMPATIENCE)
            self._budget = _NEXT_LOSS
            self._unwaited = _UNWAITED

    def allows_waiting(self) -> bool:
        """Return whether to wait for the next answer."""
        return time.monotonic() >= self._until

    def should_ask(self) -> bool:
        """Return whether to ask the store.

        While the process does not wait, it still asks a few questions, so that the breaker records their failures. Each call then counts
        as a question.
        """
        if self.allows_waiting():
            return True
        self._unwaited -= 1
        return self._unwaited >= 0
