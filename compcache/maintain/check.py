"""Checks a cache in named, timed steps. Each step returns the number of items that it checked, and further counts.

A check changes nothing unless repair is requested. A repair moves damaged modules to quarantine, rebuilds the index, removes leftovers
and corrects permissions. Steps that verify modules read their files, and trust neither stamps nor stored rows.
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

__all__ = ["STEPS", "check"]

#: The steps in order. Later steps skip modules in which an earlier step found damage.
STEPS: dict[str, Step] = {
    "permissions": check_permissions,  # other users cannot write to the directories from which code is loaded
    "leftovers": check_leftovers,  # there are no temporary and damaged files, and no files that compcache did not write
    "manifests": check_records,  # the records of every module can be decoded
    "checksums": check_content,  # every byte is as published, and the images match their records
    "code": check_code,  # the stored bitcode compiles to the code of the module (on request)
    "edges": check_imports,  # a module provides every imported function
    "index": check_index,  # the index has the functions of all modules, and no other functions
    "statistics": check_statistics,  # the statistics can be decoded, and the pinned functions are in the cache
}


def check(
    store: Store, *, repair: bool = False, checksums: bool = True, recompile: bool = False, progress: Progress | None = None
) -> CheckReport:
    """Check a cache directory, and return a report of its problems. If the directory is not a cache, the report has one error.

    Args:
        store: the cache directory.
        repair: repair the problems that can be repaired.
        checksums: verify the digest of every module, and compare its image with its records.
        recompile: recompile the stored bitcode of every module, and compare the code with the image.
        progress: called from time to time with the number of modules read so far and the number of all modules.

    Raises:
        StorageError: `repair` is set and the cache is read-only, or the index cannot be read.
    """
    if not store.is_cache():
        message = f"there is no cache at {store.root}: give the directory of a cache"
        return CheckReport((), (Finding("directory", "absent", "error", store.root, message),))
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
