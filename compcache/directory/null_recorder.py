"""Replaces the recorder in a store without statistics."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache import files as file_ops
    from compcache.hit.loader import Loader

__all__ = ["NullRecorder"]


class NullRecorder:
    """Counts nothing: for a store without statistics. See `compcache.hit.recorder.Recorder`."""

    __slots__ = ("unaccounted",)

    def __init__(self) -> None:
        self.unaccounted = 0

    def hit(self, func_name: str, module_id: bytes, seconds: float = 0.0) -> None:
        """Record that a function was loaded."""

    def missed(self, error: Exception) -> None:
        """Record that a function was missing."""

    def refused(self, name: str, reason: str) -> None:
        """Record that a file is not used, or a function was not cached."""

    def asked(self, name: str, answer: str) -> None:
        """Record that the remote store answered about a function."""

    def waited(self, what: str, seconds: float, *, owned: bool | None) -> None:
        """Record that another process was waited for."""

    def compiled(self, seconds: float, names: Sequence[str] = ()) -> None:
        """Record that a module was compiled."""

    def added(self, size: int) -> None:
        """Record that a module was published."""

    def count(self, counter: str, amount: float = 1, func_name: str = "", module_id: bytes = b"") -> None:
        """Count something that happened."""

    def write_by(self, files: file_ops.Tree) -> None:
        """Do nothing: nothing is written."""

    def watch(self, loader: Loader) -> None:
        """Note that a loader holds modules from now on."""

    def flush(self, *, now_held: bool = False) -> None:
        """Do nothing: nothing is pending."""

    def reset(self) -> None:
        """Do nothing: there are no counts."""
