"""Links the functions that are loaded most often, in a process of low priority (`compcache.closures.background`)."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from compcache.closures.background import unlinkable_file_name, unlinkable_keys
from compcache.closures.chosen import Planner
from compcache.closures.link import link
from compcache.digest import DIGEST_SIZE, name_key
from compcache.formats.manifest import LINKED
from compcache.hit.closures import HEAD, keep_sealed
from compcache.hit.closures.validity import valid_parts
from compcache.publish.locks import wait_lock
from compcache.usage.ledger import Uses
from compcache.usage.snapshot import Slices

if TYPE_CHECKING:
    from compcache.session import Session
    from compcache.store import Store

__all__ = ["link_used"]

#: The limit of functions that a process links.
_MOST_LINKED = 64
#: The least number of loads of a function that is linked.
_MIN_LOADS = 2


def link_used(session: Session, func_name: str) -> tuple[str, ...]:
    """Link a function and frequently loaded functions, if they reach several modules, and return the linked functions.

    Functions that could not be linked are recorded, and not tried again until the index changes. Nothing is linked if another process is
    linking in the directory. See `link` for the exceptions.
    """
    store = session.store
    with wait_lock(store, "link", timeout=0) as owned:
        if owned is False:
            return ()
        unlinkable = unlinkable_keys(store)
        candidates = (name for name in _functions_to_link(store, func_name) if name_key(name) not in unlinkable)
        names = list(islice((name for name in candidates if not _is_linked(store, name)), _MOST_LINKED))
        if not names:
            return ()
        report = link(session, names, None)
        store.renew_index()
        _record_unlinkable(store, {*unlinkable, *map(name_key, report.left)})
        return tuple([name for closure in report.linked for name in closure.functions])


def _functions_to_link(store: Store, func_name: str) -> list[str]:
    """Return the requested function, followed by the functions with imports that were loaded several times, the most used first."""
    counts: dict[bytes, int] = {}
    for (_, key), count, _ in Uses(store, verify=True).sorted_uses():
        counts[key] = counts.get(key, 0) + count
    rows = (row for slice_ in Slices(store) for row in slice_.rows().values() if row.imports)
    names = {name for row in rows for name in row.names if counts.get(name_key(name), 0) >= _MIN_LOADS}
    return [func_name, *sorted(names - {func_name}, key=lambda name: (-counts[name_key(name)], name))]


def _is_linked(store: Store, func_name: str) -> bool:
    """Return whether a function has a valid linked closure."""
    marked = [module_id for module_id, offset in store.find(func_name, linked=True) if offset >= LINKED]
    return any(valid_parts(Planner(store), module_id, store.state()) is not None for module_id in marked)


def _record_unlinkable(store: Store, keys: set[bytes]) -> None:
    """Record the name keys of functions that could not be linked. A failure is ignored, because linking is only tried again."""
    keep_sealed(store, unlinkable_file_name(store), HEAD.pack(bytes(DIGEST_SIZE), store.state(), 0, 0) + b"".join(sorted(keys)))
