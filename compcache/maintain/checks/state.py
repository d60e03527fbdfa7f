"""The state that the steps of a check share."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from compcache.directory.places import PLACES
from compcache.errors import CompcacheError, FormatError
from compcache.interrupts import reraise_interrupt, suppress
from compcache.maintain.report_types import Finding
from compcache.publish.module_lists import SortedItems
from compcache.publish.quarantine import move_to_quarantine
from compcache.publish.scratch import Scratch
from compcache.usage.module_files import statuses_by_directory
from compcache.usage.snapshot import Slice, Slices

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from compcache.store import Store
    from compcache.usage.module_files import FileStatus, Progress

__all__ = ["DIRECTORIES", "CheckState"]

#: The directories of a cache, below its root.
DIRECTORIES = tuple(dict.fromkeys([place.directory for place in PLACES if place.directory]))


class CheckState:
    """The state that the steps of a check share: the directory, its module lists, and the problems found so far.

    Attributes:
        total: the number of modules in the cache, as far as they were counted.
        unusable: the modules with a problem that was not repaired.
        names: the functions that modules realize and import, as keys of `relation_key`, sorted.
        indexed: the entries that the index should have, sorted.
        types: the link types of the functions that modules realize and import, by the keys in `names`, sorted; None if not read yet.
        stamps: the module_id and the stamp of each readable module, in the order of module_ids.
    """

    def __init__(self, store: Store, *, repair: bool, progress: Progress | None) -> None:
        self.store = store
        self.repair = repair
        self.progress = progress
        self.step = ""
        self.findings: list[Finding] = []
        self.slices = Slices(store)
        self.unusable: set[bytes] = set()
        self.names, self.indexed, self.stamps = SortedItems(), SortedItems(), Scratch()
        self.types: SortedItems | None = None
        self._excluded: set[bytes] = set()
        self.total = 0

    def modules(self) -> Iterator[tuple[dict[bytes, os.stat_result], Slice]]:
        """Yield, for each directory, the file statuses of its modules that are not excluded, by module_id, and their slice."""
        count = 0
        for statuses in statuses_by_directory(self.store):
            present = {module_id: status for module_id, status in statuses.items() if self.is_sound(module_id)}
            if present:
                yield present, Slice(self.slices, next(iter(present))[0], cast("dict[bytes, FileStatus]", present))
            count += len(present)
            self.total = max(self.total, count)
            # The first step does not know the total. It expects as many modules in each of the other directories.
            self.show(count, self.total if count < self.total else (count << 8) // (max(statuses, default=b"\0")[0] + 1))

    def examine_modules(self, examine: Callable[[bytes], None]) -> int:
        """Examine the modules that are not excluded, and return their number. Report a module if an examination raises an exception.

        Modules that are removed meanwhile are skipped.
        """
        total = 0
        for present, _ in self.modules():
            total += len(present)
            for module_id in present:
                try:
                    with suppress(FileNotFoundError):
                        examine(module_id)
                except (OSError, CompcacheError) as error:
                    reraise_interrupt(error)
                    self.report_unusable(module_id, error)
        return total

    def show(self, done: int, total: int) -> None:
        """Show how many of the modules or functions a step has read, and how many there are in total."""
        if self.progress is not None:
            self.progress(done, total)

    def is_sound(self, module_id: bytes) -> bool:
        """Return whether a module is not excluded from the later steps."""
        return module_id not in self._excluded

    def is_present(self, module_id: bytes) -> bool:
        """Return whether a listed module existed when the records were checked, and is not excluded."""
        return module_id not in self.slices.gone and module_id not in self._excluded

    def report(self, kind: str, subject: str, message: str, *, note: bool = False, repaired: bool = False) -> None:
        """Add a problem to the findings of the current step. The severity is "note" if `note` is true, otherwise "error".

        `repaired` is whether the problem was repaired.
        """
        severity = "note" if note else "error"
        self.findings.append(Finding(self.step, kind, severity, subject, message, repaired))

    def try_repair(self, repair: Callable[..., object], *arguments: object) -> bool:
        """Call a function that repairs something, if repair is requested. Return whether it was called, and did not fail."""
        with suppress(OSError, FormatError):
            if self.repair:
                repair(*arguments)
                return True
        return False

    def report_unusable(self, module_id: bytes, error: Exception) -> None:
        """Report a module that cannot be used, and exclude it from later steps. A module that no longer exists is not reported.

        A repair moves a damaged module to quarantine. A module that cannot be read because of permissions, missing resources or the disk
        does not count as damaged, and stays.
        """
        if not self.store.exists(module_id):
            self.exclude(module_id)
            return
        path = self.store.module_path(module_id)
        if isinstance(error, OSError) and error.errno is not None:
            reason = str(error) if isinstance(error, CompcacheError) else error.strerror or str(error)
            message = f"{path} cannot be checked, because it cannot be read: {reason}; correct this, or remove the file"
            self.report("unreadable", module_id.hex(), message)
            self.exclude(module_id)
            self.unusable.add(module_id)
            return
        self._quarantine("damaged", module_id, f"{path} is damaged: {error}")

    def report_writable(self, module_id: bytes) -> None:
        """Report a module that other users can write to, and exclude it from later steps.

        A repair moves the module to quarantine. If it corrected the mode instead, changes by other users would become trusted.
        """
        self._quarantine("permissions", module_id, f"other users can write to {self.store.module_path(module_id)}, and may have changed it")

    def _quarantine(self, kind: str, module_id: bytes, reason: str) -> None:
        """Report a module, after moving it to quarantine if repair is requested, and exclude it from later steps."""
        is_moved = self.try_repair(move_to_quarantine, self.store, self.store.module_path(module_id))
        if is_moved:
            advice = "the module was moved to quarantine"
        else:
            advice = "run check with repair to move the module to quarantine; its functions will be compiled again"
        self.report(kind, module_id.hex(), f"{reason}; {advice}", repaired=is_moved)
        self.exclude(module_id)
        if not is_moved:
            self.unusable.add(module_id)

    def exclude(self, module_id: bytes) -> None:
        """Exclude a module from the later steps."""
        self._excluded.add(module_id)

    def is_realized(self, name: str) -> bool:
        """Return whether a module that exists now realizes a function, also if the module was added during the check."""
        return any(self.store.exists(module_id) for module_id, _ in self.store.find_all(name))
