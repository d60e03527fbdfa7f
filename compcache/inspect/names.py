"""Suggestions for a name that is not stored: names with the same label, and similar names."""

from __future__ import annotations

from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from compcache.identity import label_of
from compcache.publish.module_lists import ModuleLists, last_part_of
from compcache.usage.snapshot import statuses_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from compcache.store import Store

__all__ = ["ending_in", "labelled", "suggestion"]

T = TypeVar("T")
_MAX_COMPARED = 2_000
_LEAST_LIKE = 0.6
_MAX_LENGTHS_APART = 4
_MIN_DIGITS = 4


def labelled(store: Store, label: str) -> tuple[str, ...]:
    """Return the func_names with this label, or with this label and the first digits of their digest; sorted."""
    head, _, digits = label.rpartition("-")
    prefix = label if len(digits) >= _MIN_DIGITS else None

    def belongs(name: str) -> bool:
        own = label_of(name)
        return own == label or (prefix is not None and own == head and name.startswith(prefix))

    return _stored(store, belongs, *[f"{base}\0" for base in (label, head) if base])


def ending_in(store: Store, part: str) -> set[str]:
    """Return the labels of stored functions, or their names without labels, that a part of a name stands for: with the types of arguments
    or without, it is the whole or the end behind a dot. Others that begin with it are not read.
    """
    last = last_part_of(part)
    bases = set[str]()
    for lists in map(ModuleLists, (store, *store.layers)):
        for behind in ("\0", "("):
            bases.update(lists.bases(f"{part}{behind}"))
            bases.update([base for _, base in lists.last_parts(f"{last}{behind}")])
    found = set[str]()
    for base in bases:
        same = {label for label in (base, base.partition("(")[0]) if label == part or label.endswith(f".{part}")}
        if not found.issuperset(same) and _stored(store, lambda _: True, f"{base}\0"):
            found |= same
    return found


def _stored(store: Store, select: Callable[[str], bool], *prefixes: str) -> tuple[str, ...]:
    """Return the stored functions that are selected among those whose bases begin with a prefix, sorted."""
    names: set[str] = set()
    for place in (store, *store.layers):
        lists = ModuleLists(place)
        found = [each for prefix in prefixes for each in lists.functions(prefix) if each[0] not in names and select(each[0])]
        present = statuses_of(place, {module_id for _, module_id in found})
        names.update([name for name, module_id in found if module_id in present])
    return tuple(sorted(names))


def suggestion(store: Store, name: str) -> str:
    """Return the suggestion for a name: stored names with that label, or a similar one; "" if the name is stored itself."""
    if any(True for _ in store.find(name)):
        return ""  # and this host cannot use it
    same = labelled(store, name)
    if same:
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        return f"; there is {same[0]!r}{more}, named by content: ask for the whole name, or with the Identity or source it has"
    near = _near(store, name)
    if near == name:  # the list of modules knows it, the index does not
        return "; a stored module defines it, but the index, or the module's file, cannot be read: 'compcache check' looks at them"
    return f"; did you mean {near!r}?" if near else ""


def _near(store: Store, name: str) -> str | None:
    from difflib import get_close_matches

    parts: dict[str, str] = {}  # the name has no package
    known: dict[str, None] = {}
    for lists in [ModuleLists(place) for place in (store, *store.layers)]:
        known.update(dict.fromkeys(_likely(name, lists.bases, str)))
        parts.update(_likely(name, lists.last_parts, itemgetter(0)))
    whole: list[str] = get_close_matches(name, known, n=1, cutoff=_LEAST_LIKE)
    if whole:
        return whole[0]
    parts.update({label.rpartition(".")[2]: label for label in known})
    return next((parts[part] for part in get_close_matches(name, parts, n=1, cutoff=_LEAST_LIKE)), None)


def _likely(name: str, starting_with: Callable[[str], Iterator[T]], text: Callable[[T], str]) -> list[T]:
    """Return some stored names of similar length, first those with the same beginning."""
    found: dict[T, None] = {}
    length = len(name)
    while len(found) < _MAX_COMPARED and length >= 0:
        some = islice(starting_with(name[:length]), 4 * _MAX_COMPARED)
        found.update(dict.fromkeys([each for each in some if abs(len(text(each)) - len(name)) <= _MAX_LENGTHS_APART]))
        length = length // 2 if length else -1
    return list(found)[:_MAX_COMPARED]
