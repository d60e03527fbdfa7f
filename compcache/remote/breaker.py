"""When a store that fails is left alone: a circuit breaker for all processes of a host, and the patience of one process.

The breaker is a file. It holds three numbers as text: failures in a row, the time until which the store is left alone (seconds since the
epoch; 0: it is not), and for how many seconds. A file that is damaged or missing counts as a healthy store.

    healthy    look-ups go to the store
    doubtful   one failed after several tries: left alone while the helper probes, which takes a moment where the store failed once
    open       three failed in a row: left alone for 30 s, after each further failure twice as long, up to 10 minutes
    half-open  the pause is over: the next question has the helper probe, and is not waited for

So a store that is silent costs one process one look-up, and nothing those that come after it.
"""

from __future__ import annotations

import os
import time

from compcache.files import reraise_interrupt
from compcache.remote.directory import state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PROBE_SECONDS", "Breaker", "Gate", "Patience", "breaker_of"]

_FAILURES = 3  # in a row open it
_FIRST_PAUSE = 30.0
_LONGEST_PAUSE = 600.0
#: How long a probe may take, and for how long a store is in doubt where the outcome does not become known.
PROBE_SECONDS = 1.0
_DOUBT = PROBE_SECONDS + 2.0
#: The seconds that one process waits in vain before it stops waiting for a while, and again before each longer while.
_FIRST_LOSS, _NEXT_LOSS = 0.4, 0.1
_FIRST_WHILE, _LONGEST_WHILE = 1.0, 60.0
_UNWAITED = 4
#: So long a process believes that the breaker is open without looking.
_BELIEVED = 0.25


class Breaker:
    """The breaker of one store. One process writes (the helper, or a process that could not reach it); all read."""

    def __init__(self, path: str) -> None:
        self._path = path

    def is_open(self) -> bool:
        """Whether the store is to be left alone now. Costs one small read."""
        return time.time() < self._read()[1]

    def is_half_open(self) -> bool:
        """Whether a probe is to find out how the store is."""
        return 0 < self._read()[1] <= time.time()

    def is_doubtful(self) -> bool:
        """Whether the store is left alone for a moment, without having failed often enough for more."""
        failures, until, _ = self._read()
        return failures < _FAILURES and until > 0

    def allows(self) -> bool:
        """Whether look-ups may go to the store; probes go in any case."""
        return not self._read()[1]

    def succeeded(self) -> None:
        """A request was answered."""
        if self._read() != (0, 0.0, 0.0):
            self._write(0, 0.0, 0.0)

    def failed(self, *, doubt: bool = False, probe: bool = False) -> None:
        """A request was not answered in time, or with an error of the store, however often it was made.

        `doubt`: the helper finds out whether the next one fares better, before others lose as much. `probe`: it did not.
        """
        failures, until, pause = self._read()
        if until and not probe:
            return  # one of several that were on their way when another one failed
        failures += 1
        if failures >= _FAILURES:
            pause = min(2 * pause, _LONGEST_PAUSE) if pause else _FIRST_PAUSE
            until = time.time() + pause
        elif probe or doubt:
            until = time.time() + _DOUBT
        self._write(failures, until, pause)

    def state(self) -> tuple[int, float]:
        """Failures in a row, and the seconds for which the store is still left alone."""
        failures, until, _ = self._read()
        return failures, max(0.0, until - time.time())

    def _read(self) -> tuple[int, float, float]:
        try:
            with open(self._path, encoding="ascii") as file:
                failures, until, pause = file.read(200).split()
            values = int(failures), float(until), float(pause)
        except (OSError, ValueError) as error:
            reraise_interrupt(error)
            return 0, 0.0, 0.0
        if not (0 <= values[1] - time.time() <= _LONGEST_PAUSE or values[1] <= time.time()):
            return 0, 0.0, 0.0  # a clock that was set back
        return values

    def _write(self, failures: int, until: float, pause: float) -> None:
        content = f"{failures} {until} {pause}".encode("ascii")
        from compcache.processes.detached import LateFiles
        from compcache.publish.atomic_file import publish

        try:
            publish(LateFiles(), os.path.dirname(self._path), self._path, [content], sync=False)
        except OSError as error:
            reraise_interrupt(error)
            return  # every process finds out for itself then


def breaker_of(url: str) -> Breaker:
    """The breaker of one store, for the credentials that the environment has now. Raises `OSError`."""
    return Breaker(os.path.join(state_directory(url, os.environ), "breaker"))


class Gate:
    """Whether the stores with these URLs are all left alone now; a process that only looks here loads no client."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._urls = tuple(urls)
        self._believed_until = 0.0

    def is_shut(self) -> bool:
        """Whether all breakers are open. Looks into their files four times in a second at most."""
        now = time.time()
        if 0 < self._believed_until - now <= _BELIEVED:
            return True
        try:
            is_open = all(breaker_of(url).is_open() for url in self._urls)
        except OSError as error:
            reraise_interrupt(error)
            return False  # who asks is told
        self._believed_until = now + _BELIEVED if is_open else 0.0
        return is_open


class Patience:
    """How long one process goes on waiting for a store that does not answer: what it loses until the breaker opens, or to a slow store."""

    def __init__(self) -> None:
        self.answered()

    def answered(self) -> None:
        """The store has answered a question."""
        self._left = _FIRST_LOSS
        self._while = _FIRST_WHILE
        self._until = 0.0
        self._free = _UNWAITED

    def lost(self, seconds: float) -> None:
        """So long was waited in vain."""
        self._left -= seconds
        if self._left <= 0:
            # What was lost once is not lost again until look-ups that are under way have failed, and the breaker is open.
            self._until = time.monotonic() + max(self._while, 4 * seconds)
            self._while = min(2 * self._while, _LONGEST_WHILE)
            self._left = _NEXT_LOSS
            self._free = _UNWAITED

    def allows(self) -> bool:
        """Whether to wait for the next answer."""
        return time.monotonic() >= self._until

    def asks(self) -> bool:
        """Whether to ask at all. Some questions are asked without waiting, so that the breaker learns of the failures."""
        if self.allows():
            return True
        self._free -= 1
        return self._free >= 0
