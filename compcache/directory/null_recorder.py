"""The recorder of a store without statistics."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NullRecorder"]


class NullRecorder:
    """A recorder that records nothing. It has all methods of `compcache.hit.recorder.Recorder`, and none of them does anything."""

    __slots__ = ("unaccounted",)

    def __init__(self) -> None:
        self.unaccounted = 0

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None
