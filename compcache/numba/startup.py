"""Installs the backend without a change of the program: ``COMPCACHE_NUMBA=1 python program.py``.

Numba calls `init` before it compiles or loads its first function (entry point group ``numba_extensions``).
"""

from __future__ import annotations

import os

__all__ = ["VARIABLE", "init"]

VARIABLE = "COMPCACHE_NUMBA"
_OFF = ("", "0", "off", "no", "false")


def init() -> None:
    """Install the backend if $COMPCACHE_NUMBA is set, with the directory $COMPCACHE_DIR or the default one."""
    if os.environ.get(VARIABLE, "").strip().lower() not in _OFF:
        import compcache.numba
        from compcache.numba.lazy.installed import installed_backend

        if installed_backend() is None:
            compcache.numba._install(None, {}, is_first=True)
