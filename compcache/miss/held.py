"""Functions that a build finds in memory. A build may use such a function only if it is also stored, because the result is published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.miss.claim import is_building, note_use, uses_of_builds
from compcache.publish.restore import ensure_held, ensure_stored, restore_providers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from compcache.hit.loader import Accept
    from compcache.hit.target import TypedCallTarget
    from compcache.session import Session

__all__ = ["keep_received", "keep_stored", "load_while_building"]


def load_while_building(
    session: Session, load: Callable[[str, object, Accept | None], TypedCallTarget], func_name: str, owner: object, accept: Accept | None
) -> TypedCallTarget:
    """Return a function's call target from memory or from `load`. Builds receive only functions that are stored.

    If a build requests a function that is in memory but no longer stored, the function is stored again, unless its name has different code
    now. A function that a build has received stays in memory until the build ends. See `ensure_stored` for the exceptions.

    Args:
        session: the cache.
        load: loads a function; called with `func_name`, `owner` and `accept`.
        func_name: the function.
        owner: an object that the target keeps alive.
        accept: the parameter of `Loader.load`. If it is given, memory is not searched.
    """
    target = session.loader.held(func_name) if accept is None else None
    builds = is_building(session.store.root)
    if target is None or (builds and not ensure_stored(session.store, session.loader, target)):
        target = load(func_name, owner, accept)
    if builds:
        note_use(session.store.root, target)
    return target


def keep_stored(session: Session, names: Iterable[str]) -> None:
    """Store again what is only in memory of the functions and variables in `names`, because a new module imports them.

    Raise `StorageError` if the directory cannot be read.
    """
    uses = uses_of_builds(session.store.root)
    modules = session.loader.loaded_modules()
    lost = set()
    for name in names:
        target = uses.get(name) or session.loader.held(name)
        if target is not None:
            ensure_stored(session.store, session.loader, target)
        elif modules and not session.loader.holds(name, to_import=True):
            lost.add(name)  # a variable, or a function that Python has not requested
    if lost:
        restore_providers(session.store, modules, lost)


def keep_received(session: Session, names: Iterable[str]) -> bool:
    """Keep functions in memory that this thread's builds have received, and return whether that was possible for all names.

    Look-ups then find these functions even if other processes remove their modules.
    """
    uses = uses_of_builds(session.store.root)
    return all(name in uses and ensure_held(session.store, uses[name]) for name in names)
