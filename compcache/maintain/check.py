"""Checks a cache in named, timed steps; each returns how many items it checked, and further counts.

Nothing is changed unless repair is requested: then damaged modules go to quarantine, the index is rebuilt, leftovers are
removed and permissions corrected. A step that verifies something reads the files: it trusts neither stamps nor the
stored module rows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from compcache.maintain.checks.index import check_index
from compcache.maintain.checks.leftovers import check_leftovers
from compcache.maintain.checks.modules import check_code, check_content, check_records
from compcache.maintain.checks.permissions import check_permissions
from compcache.maintain.checks.references import check_imports, check_statistics
from compcache.maintain.checks.state import CheckState
from compcache.maintain.report_types import CheckReport, CheckStep, Finding

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.store import Store
    from compcache.usage.module_files import Progress

    Step = Callable[[CheckState], tuple[int, dict[str, int]]]

__all__ = ["STEPS", "check", "report_absence"]

#: The steps in order: a module that one of them finds damaged is skipped by the later ones.
STEPS: dict[str, Step] = {
    "permissions": check_permissions,  # other users cannot write to the directories that code is loaded from
    "leftovers": check_leftovers,  # temporary and damaged files, and files that compcache did not write
    "manifests": check_records,  # the records of every module decode
    "checksums": check_content,  # every byte is as it was published, and the images hold what the records name
    "code": check_code,  # the stored bitcode compiles to the code of the module (on request)
    "edges": check_imports,  # some module provides every function that another one imports
    "index": check_index,  # the index has the functions of all modules, and no others
    "statistics": check_statistics,  # the statistics decode, and the pinned functions are in the cache
}


def report_absence(store: Store) -> CheckReport:
    """Return the report on a directory without a cache."""
    message = f"no cache at {store.root}"
    return CheckReport((), (Finding("directory", "absent", "error", store.root, message),))


def check(
    store: Store, *, repair: bool = False, checksums: bool = True, recompile: bool = False, progress: Progress | None = None
) -> CheckReport:
    """Check a cache directory.

    Args:
        store: the directory.
        repair: correct what can be corrected.
        checksums: read every module in full, compare it with its digest, and its image with its records.
        recompile: recompile the stored bitcode of the modules, and compare the result with their images.
        progress: called with (modules read, modules to read) now and then.

    Raises:
        StorageError: `repair` is set and the cache is read-only.
    """
    if repair:
        store.require_writable()
    state = CheckState(store, repair=repair, progress=progress)
    steps = []
    for name, step in STEPS.items():
        if (name == "checksums" and not checksums) or (name == "code" and not recompile):
            continue
        state.step = name
        started = time.perf_counter()
        checked, numbers = step(state)
        steps.append(CheckStep(name, checked, time.perf_counter() - started, numbers))
    return CheckReport(tuple(steps), tuple(state.findings))
