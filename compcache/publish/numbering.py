"""Numbers additions (miss path): an addition gets a number greater than all in the directory, unless it is the newest already.

A module that is added again, and is no longer what its names stand for, becomes the newest addition: a file that differs only in the number
replaces its file. Modules with names of content need no number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.formats.entry import PACK_FLAG
from compcache.formats.graph import decode_notes
from compcache.formats.order import is_numbered
from compcache.publish.index_merge import greatest_number
from compcache.store import Store, is_ordered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.formats.built_module import BuiltModule

__all__ = ["numbers_of"]

#: More additions than an index that is being rebuilt can lack.
_UNSEEN = 1 << 28
#: The modules of one addition, by module_id.
Group = dict[bytes, "BuiltModule"]


def numbers_of(store: Store, groups: Sequence[Group], *, is_listed: bool = False) -> list[int | None]:
    """Return the number for the modules of each addition; None if they keep theirs. `is_listed`: the index was renewed just before."""
    if not is_listed:
        Store.renew_index(store)  # and of none of its layers; an index that was lost would know no number
    following = greatest_number(store.index) + 1 + (_UNSEEN if store.index.unfinished else 0)
    numbers: list[int | None] = []
    for group in groups:
        numbers.append(None if _is_used(store, group) else following)
        following += numbers[-1] is not None
    return numbers


def _is_used(store: Store, group: Group) -> bool:
    """Return whether the plain names of the modules already stand for them. Modules whose place is known keep it."""
    if any(is_numbered(decode_notes(module.sections[4])) for module in group.values()):
        return True
    names = dict.fromkeys(name for module in group.values() if module.flags != PACK_FLAG for name, *_ in module.indexed if is_ordered(name))
    return not names or (all(_newest(store, name) in group for name in names) and all(map(store.exists, group)))


def _newest(store: Store, name: str) -> bytes | None:
    """Return the module with the newest realization of a name. The index may still list files that are gone."""
    return next((module_id for module_id, _ in store.find_here(name) if store.exists(module_id)), None)
