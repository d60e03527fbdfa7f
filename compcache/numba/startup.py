"""Installs the backend without changes to the program: ``COMPCACHE_NUMBA=1 python program.py``.

Numba calls `init`, an entry point of the group ``numba_extensions``, before it compiles or loads its first function.
"""

from __future__ import annotations

__all__ = ["VARIABLE", "init"]

VARIABLE = "COMPCACHE_NUMBA"


def init() -> None:
    """Install the backend if $COMPCACHE_NUMBA is on, unless a backend is installed already.

    The backend uses the directory $COMPCACHE_DIR, or the default directory if that variable is not set. Raise `SettingError` if
    $COMPCACHE_NUMBA means neither on nor off. See `install` for other exceptions. Numba turns each exception into a warning.
    """
    from compcache import frontend

    if frontend.is_on(VARIABLE):
        import compcache.numba
        from compcache.numba.lazy import installed_backend

        if installed_backend() is None:
            compcache.numba._install(None, {}, is_first=True)
