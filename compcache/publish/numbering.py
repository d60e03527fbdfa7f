"""Numbers additions (miss path): what is added gets a number greater than all that the directory knows, unless it is used already.

A module that is added again, and is not what its names stand for any more, is the newest addition again: its file is replaced by one that
differs in the number alone. What was compiled of the same code for another CPU, or by another host that shares the directory, has
the number of what is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.digest import name_key
from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.formats.entry import PACK_FLAG
from compcache.formats.graph import decode_notes
from compcache.formats.order import is_numbered, order_of
from compcache.publish.index_merge import greatest_number
from compcache.store import is_ordered

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from compcache.formats.built_module import BuiltModule
    from compcache.store import Store

__all__ = ["numbers_of"]

#: Modules of one addition, by module_id.
Group = dict[bytes, "BuiltModule"]


def numbers_of(store: Store, groups: Sequence[Group]) -> list[int | None]:
    """The number that the modules of each addition get; None where they keep what they have."""
    store.index.refresh()
    following = greatest_number(store.index) + 1
    numbers: list[int | None] = []
    for group in groups:
        number = _known_number(store, group)
        if number is _NEW:
            number, following = following, following + 1
        numbers.append(number)
    return numbers


#: What no addition has.
_NEW = -1


def _known_number(store: Store, group: Group) -> int | None:
    """The number that an addition has without being the next one; None where it keeps what it has, `_NEW` where it has none."""
    names = list(dict.fromkeys(name for module in group.values() if module.flags != PACK_FLAG for name, *_ in module.indexed))
    names = [name for name in names if is_ordered(name)]
    notes = {module_id: decode_notes(module.sections[4]) for module_id, module in group.items()}
    if not names or any(map(is_numbered, notes.values())):
        return None
    is_newest = all(map(store.exists, group))
    numbers: dict[bytes, int] = {}
    for name in names:
        newest = next((module_id for module_id, _ in store.find_here(name) if module_id in group or store.exists(module_id)), None)
        if newest is None:
            return _NEW
        if newest not in group:
            is_newest = False
        if not is_newest:
            number = _number_of(store, name, newest)
            if number is None or len({*numbers.values(), number}) > 1:
                return _NEW
            numbers[newest] = number
    if is_newest:
        return None
    others = [module_id for module_id in numbers if module_id not in group]
    first, module = next(iter(group.items()))
    if all(_is_of_same_code(store, other, module, notes[first]) for other in others):
        return next(iter(numbers.values()))
    return _NEW


def _number_of(store: Store, name: str, module_id: bytes) -> int | None:
    """The number of a realization in this directory; None where it has none, or is in a layer."""
    return max([row[0] for row in store.index.find_numbered(name_key(name)) if row[2] == module_id], default=None)


def _is_of_same_code(store: Store, module_id: bytes, module: BuiltModule, notes: dict[str, Any]) -> bool:
    """Whether a stored module was compiled of the same source, or of the same code for another CPU."""
    try:
        with store.open_module(module_id, leave_stamp=False) as file:
            footer = file.footer()
            known = decode_notes(file.read(footer.content, footer.notes))
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)
        return False
    if not notes.get("code") or known.get("code") != notes["code"]:
        return False
    return known.get("source") == notes.get("source") or file.target_id != module.target
