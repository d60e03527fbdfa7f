"""The recorder of a store without statistics."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache import files as file_ops
    from compcache.hit.loader import Loader

__all__ = ["NullRecorder"]


class NullRecorder:
    """A recorder that records nothing. See `compcache.hit.recorder.Recorder` for the methods."""

    __slots__ = ("unaccounted",)

    def __init__(self) -> None:
        self.unaccounted = 0

    def hit(self, func_name: str, module_id: bytes, seconds: float = 0.0) -> None:
        """Ignore that a function was loaded."""

    def missed(self, error: Exception) -> None:
        """Ignore that a function was missing."""

    def refused(self, name: str, reason: str) -> None:
        """Ignore that a file was rejected, or that a function was not cached."""

    def remote_answered(self, name: str, answer: str) -> None:
        """Ignore that the remote store answered about a function."""

    def waited(self, lock: str, seconds: float, *, owned: bool | None) -> None:
        """Ignore that this thread has waited for a lock."""

    def compiled(self, seconds: float, names: Sequence[str] = ()) -> None:
        """Ignore that a module was compiled."""

    def added(self, size: int) -> None:
        """Ignore that a module was published."""

    def count(self, counter: str, amount: float = 1, func_name: str = "", module_id: bytes = b"") -> None:
        """Ignore an event."""

    def write_by(self, files: file_ops.Tree) -> None:
        """Do nothing: there are no statistics to write."""

    def watch(self, loader: Loader) -> None:
        """Ignore a loader, whose modules a recorder would count as used."""

    def flush(self, *, now_held: bool = False) -> None:
        """Do nothing: there are no pending records."""

    def reset(self) -> None:
        """Do nothing: there are no counters."""
