"""State shared by the steps of a check: the directory, its modules, and the findings so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from compcache.directory.places import PLACES
from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.maintain.report_types import Finding
from compcache.publish.quarantine import set_aside
from compcache.usage.module_files import statuses_by_directory
from compcache.usage.snapshot import Slice, Slices

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from compcache.store import Store
    from compcache.usage.module_files import FileStatus, Progress

__all__ = ["DIRECTORIES", "CheckState"]

#: The directories of a cache, below its root.
DIRECTORIES = tuple(dict.fromkeys([place.directory for place in PLACES if place.directory]))


class CheckState:
    """State shared by the steps: the directory, what lies beside its lists, and the findings so far."""

    def __init__(self, store: Store, *, repair: bool, progress: Progress | None) -> None:
        self.store = store
        self.repair = repair
        self.progress = progress
        self.step = ""
        self.findings: list[Finding] = []
        self.slices = Slices(store)
        self.unusable: set[bytes] = set()
        self._forgotten: set[bytes] = set()
        self._total = 0

    def modules(self, step: int = 1 << 8) -> Iterator[tuple[dict[bytes, os.stat_result], Slice]]:
        """Yield the modules with no finding so far, a directory at a time, with the statuses of their files."""
        done = 0
        for found in statuses_by_directory(self.store):
            present = {module_id: status for module_id, status in found.items() if self.is_sound(module_id)}
            for module_id in list(present)[:1]:
                yield present, Slice(self.slices, module_id[0], cast("dict[bytes, FileStatus]", present))
            done += len(present)
            self._total = max(self._total, done)
            if self.progress is not None:
                self.progress(done, self._total if done < self._total else done * step // (max(found, default=b"\0")[0] + 1))

    def is_sound(self, module_id: bytes) -> bool:
        """Return whether a module has no finding so far."""
        return module_id not in self._forgotten

    def is_there(self, module_id: bytes) -> bool:
        """Return whether a listed module existed when the records were checked, and has no finding."""
        return module_id not in self.slices.gone and module_id not in self._forgotten

    def find(self, kind: str, subject: str, message: str, *, note: bool = False, repaired: bool = False) -> None:
        """Add a finding."""
        severity = "note" if note else "error"
        self.findings.append(Finding(self.step, kind, severity, subject, message, repaired))

    def unusable_for(self, module_id: bytes, error: Exception) -> None:
        """Report a problem of a module, and repair it if requested, unless the module was removed meanwhile.

        Only files that were read count as damaged. A file that cannot be read now, for lack of permission, descriptors or memory or
        because of the disk, stays.
        """
        if not self.store.exists(module_id):
            self.forget(module_id)
            return
        path = self.store.module_path(module_id)
        if isinstance(error, OSError) and error.errno is not None:
            reason = str(error) if isinstance(error, CompcacheError) else error.strerror
            self.find("unreadable", module_id.hex(), f"{path} cannot be checked: {reason}")
            self.forget(module_id)
            self.unusable.add(module_id)
            return
        self._set_aside("damaged", module_id, f"{path} is damaged: {error}")

    def open_to_others(self, module_id: bytes) -> None:
        """Report a module that other users can write to, and set it aside if requested: a change of its mode would make their code ours."""
        self._set_aside("permissions", module_id, f"other users can write to {self.store.module_path(module_id)}, and may have done so")

    def _set_aside(self, kind: str, module_id: bytes, reason: str) -> None:
        done = self.repair and _set_aside(self.store, self.store.module_path(module_id))
        what = "it was moved to quarantine" if done else "repair moves it to quarantine, and what it has is made again"
        self.find(kind, module_id.hex(), f"{reason}; {what}", repaired=done)
        self.forget(module_id)
        if not done:
            self.unusable.add(module_id)

    def forget(self, module_id: bytes) -> None:
        """Exclude a module from the later steps."""
        self._forgotten.add(module_id)

    def is_provided(self, name: str) -> bool:
        """Return whether a module holds a function now; additions since the check began count."""
        return any(self.store.exists(module_id) for module_id, _ in self.store.find_all(name))


def _set_aside(store: Store, path: str) -> bool:
    try:
        set_aside(store, path)
    except OSError as error:
        reraise_interrupt(error)
        return False
    return True
