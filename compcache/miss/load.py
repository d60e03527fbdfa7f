"""Loads a function after a miss, if another process has stored it or if it can be compiled for this host from stored bitcode."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from compcache.errors import CompcacheError, IncompatibleTargetError
from compcache.miss.retarget import load_retargeted

if TYPE_CHECKING:
    from compcache.hit.target import TypedCallTarget
    from compcache.session import Session

__all__ = ["load"]


def load(session: Session, func_name: str) -> TypedCallTarget:
    """Load a stored function, and count a hit.

    Raises:
        NotCachedError, UndefinedSymbolError, ...: the errors of `Cache.get_target`.
    """
    started = perf_counter()
    try:
        target: TypedCallTarget = session.loader.load(func_name)
    except CompcacheError as error:
        if not session.retargets or not isinstance(error.__cause__, IncompatibleTargetError):
            raise
        target = load_retargeted(session, func_name, None, None, error)
        session.store.stats.missed(error)
    session.store.stats.hit(func_name, target._context.module.module_id, perf_counter() - started)
    return target
