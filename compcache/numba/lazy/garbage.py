"""Makes Python collect garbage less often while Numba or this package is imported, or Numba compiles.

Python 3.11 examines the new objects whenever there are 700 of them, and all objects of a process when their number has grown by a quarter.
The import of Numba creates 70,000 objects, and its registrations before the first compilation create as many again. All of them live as
long as the process. In a short program these examinations take 5 to 10 % of the processor time.
"""

from __future__ import annotations

import gc
import sys
from _thread import allocate_lock  # importing `threading` is slow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["few_collections", "freeze_start"]

#: The numbers of new objects that start a collection: while functions are compiled, which leaves garbage, and while modules are imported.
_LIMITS = (50_000, 1_000_000)


class _Thresholds:
    """The thresholds for collections.

    Attributes:
        blocks: the number of running blocks of each kind, in all threads.
        program_thresholds: the thresholds of the program.
        applied_thresholds: the thresholds that this object has set last.
    """

    def __init__(self) -> None:
        self._guard = allocate_lock()
        self.blocks = [0, 0]
        self.program_thresholds: tuple[int, ...] = ()
        self.applied_thresholds: tuple[int, ...] = ()

    def count(self, change: int, *, lasting: bool) -> None:
        """Change the number of running blocks of a kind by 1 or -1, and set the thresholds. `lasting` is the kind, an index of `blocks`."""
        with self._guard:
            self.blocks[lasting] += change
            current = gc.get_threshold()
            if current != self.applied_thresholds:
                self.program_thresholds = current  # the program has set new thresholds
            limits = [limit for limit, blocks in zip(_LIMITS, self.blocks, strict=True) if blocks and self.program_thresholds[0]]
            threshold = max([self.program_thresholds[0], *limits])
            if threshold != current[0]:
                gc.set_threshold(threshold, *self.program_thresholds[1:])
            self.applied_thresholds = gc.get_threshold()


_thresholds = _Thresholds()


class few_collections:  # noqa: N801 - it is used like a function
    """A context manager for a block in which Python seldom collects garbage: ``with few_collections():``.

    The thresholds of the program apply if they are higher, or 0, even if they are set inside the block.

    Args:
        lasting: whether objects that are created in the block live as long as the process. Then they join the oldest generation without an
            examination.
    """

    __slots__ = ("_lasting",)

    def __init__(self, *, lasting: bool = False) -> None:
        self._lasting = lasting

    def __enter__(self) -> None:
        _thresholds.count(1, lasting=self._lasting)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._lasting:
            _move_to_oldest_generation()
        _thresholds.count(-1, lasting=self._lasting)


def freeze_start() -> None:
    """Exclude the present objects from collections, also from those at the exit, in a process whose program has not begun."""
    global _frozen_count  # noqa: PLW0603 - a process has one collector
    gc.freeze()
    _frozen_count = gc.get_freeze_count()


_frozen_count = 0


def _move_to_oldest_generation() -> None:
    """Move all objects to the oldest generation without examining them. Garbage among them waits for a full collection."""
    has_generations = getattr(sys, "_is_gil_enabled", lambda: True)()  # Python without the GIL has one generation
    # If the program itself controls collections, it has disabled them or frozen more objects.
    if has_generations and gc.isenabled() and gc.get_freeze_count() <= _frozen_count:
        gc.freeze()
        gc.unfreeze()
