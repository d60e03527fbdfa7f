"""Logs hits, misses, compilations, waits and refusals to the logger ``compcache``, one line each.

Caches that are opened while `COMPCACHE_DEBUG` is set or `logging` is imported use this file; other caches do not import it.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from compcache.hit.miss import miss_reason
from compcache.hit.recorder import recorder_for
from compcache.settings import is_on

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from compcache.directory.null_recorder import NullRecorder
    from compcache.files import Tree
    from compcache.hit.recorder import Recorder

__all__ = ["logging_recorder_for"]

DEBUG_VARIABLE = "COMPCACHE_DEBUG"
_SHOWN_NAMES = 3
_SHORT_ID = 12
_logger = logging.getLogger("compcache")


def logging_recorder_for(files: Tree, root: str, *, readonly: bool) -> LoggingRecorder:
    """Return a recorder that logs events, and counts them like the one of `recorder_for`. A `readonly` cache is not counted."""
    _configure_logging()
    return LoggingRecorder(recorder_for(files, root, readonly=readonly))


def _configure_logging() -> None:
    """If `COMPCACHE_DEBUG` is on (`is_on`), write all events to standard error. Handlers and a level that the program has set stay."""
    if not is_on(DEBUG_VARIABLE):
        return
    if not _logger.hasHandlers():
        handler = _StderrHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        _logger.addHandler(handler)
    if _logger.level == logging.NOTSET:
        _logger.setLevel(logging.DEBUG)


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]  # some supported versions have no generic class
    """Writes lines to standard error. A line that cannot be written is lost, because the program may have closed the stream."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - it replaces this method, which writes to standard error too
        """Do nothing, so that the line is lost."""


class LoggingRecorder:
    """Logs events, and passes them and all other calls to the recorder that counts."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Recorder | NullRecorder) -> None:
        self._counts = counts

    @property
    def unaccounted(self) -> int:
        """See `Recorder`."""
        return self._counts.unaccounted

    @unaccounted.setter
    def unaccounted(self, value: int) -> None:
        self._counts.unaccounted = value

    def hit(self, func_name: str, module_id: bytes, seconds: float = 0.0) -> None:
        """Log and count the load of a function, which took `seconds`."""
        _logger.debug("hit %s: module %s, %s", func_name, module_id.hex()[:_SHORT_ID], _format_time(seconds))
        self._counts.hit(func_name, module_id)

    def __getattr__(self, name: str) -> Any:
        """Return a method of the recorder that counts."""
        return getattr(self._counts, name)

    def missed(self, error: Exception) -> None:
        """Record that a function was missing or had no usable realization."""
        name = getattr(error, "func_name", "")
        message, _, _ = str(error.args[0] if error.args else "").partition("\n")  # without suggestions
        _logger.debug("miss %s (%s): %s", name, miss_reason(error), message)
        self._counts.missed(error)

    def refused(self, name: str, reason: str) -> None:
        """Record that a file is not used, or that a function was not cached."""
        _logger.debug("refused %s: %s", name, reason)

    def remote_answered(self, name: str, answer: str) -> None:
        """Record that the remote store answered about a function."""
        _logger.debug("remote store %s: %s", name, answer)

    def waited(self, lock: str, seconds: float, *, owned: bool | None) -> None:
        """Record that this thread has waited for a lock with this name. `owned` is whether it holds the lock now."""
        end = "acquired" if owned else "another process or thread holds it"
        _logger.debug("waited %s for the lock %r: %s", _format_time(seconds), lock, end)

    def compiled(self, seconds: float, names: Sequence[str] = ()) -> None:
        """Record that a module was compiled."""
        from compcache.wording import join_first

        _logger.debug("compiled %s in %s", join_first(names, _SHOWN_NAMES), _format_time(seconds))
        self._counts.compiled(seconds)

    def added(self, size: int) -> None:
        """Record that a module was published."""
        _logger.debug("published a module of %d bytes", size)
        self._counts.added(size)


def _format_time(seconds: float) -> str:
    """Return a time as text, in milliseconds if it is shorter than a second."""
    return f"{1e3 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
