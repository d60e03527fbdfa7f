"""Imports Numba in place of its stand-ins. The import of this module performs the work.

Python's import locks have the required behaviour. One thread performs the import. Other threads that need Numba wait until it is finished.
The importing thread does not wait for itself, and threads do not wait for each other in a cycle.
"""

from __future__ import annotations

import sys

from compcache.numba.lazy import numba_stand_in, run_callbacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__: list[str] = []


def _import_numba() -> None:
    """Import Numba, or wait for a thread that is importing it."""
    stand_in = numba_stand_in()
    if stand_in is None and "numba" in sys.modules:
        import numba  # noqa: F401 - this waits for a thread that is importing it

        return
    from compcache.numba.lazy.garbage import few_collections

    with few_collections(lasting=True):
        _import_in_place_of(stand_in)


def _import_in_place_of(stand_in: Any) -> None:
    """Import Numba in place of the stand-in, run the callbacks, and record the import. If the import fails, restore the stand-in."""
    from compcache.numba.lazy.imports import find_import_reason, record_import

    reason = find_import_reason()
    if stand_in is not None:
        for name, module in list(sys.modules.items()):
            if name.startswith("numba.") and hasattr(type(module), "_compcache_original"):
                del sys.modules[name]
        del sys.modules["numba"]
    try:
        import numba  # noqa: F401 - all other modules use `sys.modules`
    except BaseException:
        if stand_in is not None:
            sys.modules["numba"] = stand_in
        raise
    if stand_in is not None:
        vars(stand_in)["_compcache_when_real"]()
    run_callbacks()
    record_import(reason)


_import_numba()
