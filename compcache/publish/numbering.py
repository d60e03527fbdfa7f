"""Numbers additions (miss path): what is added gets a number greater than all that the directory knows, unless it is used already.

A module that is added again, and is not what its names stand for any more, is the newest addition again: its file is replaced by one that
differs in the number alone. Modules of names of content need no number.
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
#: Modules of one addition, by module_id.
Group = dict[bytes, "BuiltModule"]


def numbers_of(store: Store, groups: Sequence[Group]) -> list[int | None]:
    """The number that the modules of each addition get; None where they keep what they have."""
    Store.renew_index(store)  # and of none of its layers; an index that was lost would know no number
    following = greatest_number(store.index) + 1 + (_UNSEEN if store.index.unfinished else 0)
    numbers: list[int | None] = []
    for group in groups:
        numbers.append(None if _is_used(store, group) else following)
        following += numbers[-1] is not None
    return numbers


def _is_used(store: Store, group: Group) -> bool:
    """Whether plain names of the modules are used, and each stands for one of them already; modules whose place is known keep it."""
    if any(is_numbered(decode_notes(module.sections[4])) for module in group.values()):
        return True
    names = dict.fromkeys(name for module in group.values() if module.flags != PACK_FLAG for name, *_ in module.indexed if is_ordered(name))
    return all(map(store.exists, group)) and all(_newest(store, name) in group for name in names) if names else True


def _newest(store: Store, name: str) -> bytes | None:
    """The module with the newest realization of a name; files that are gone may be in the index still."""
    return next((module_id for module_id, _ in store.find_here(name) if store.exists(module_id)), None)
