"""Suggestions for a name that is not stored: names with the same label, and similar names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.identity import label_of
from compcache.usage.listings import functions

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["labelled", "suggestion"]

_MAX_COMPARED = 2_000
_LEAST_LIKE = 0.6
_MAX_LENGTHS_APART = 4
_MIN_DIGITS = 4


def labelled(store: Store, label: str) -> tuple[str, ...]:
    """The func_names of this label, and those that begin with it and some digits of their digest; sorted."""
    head, _, digits = label.rpartition("-")
    prefix = label if len(digits) >= _MIN_DIGITS else None

    def belongs(name: str) -> bool:
        own = label_of(name)
        return own == label or (prefix is not None and own == head and name.startswith(prefix))

    return tuple([summary.func_name for summary in functions(store, None, belongs)])


def suggestion(store: Store, name: str) -> str:
    """The suggestion for a name that is not stored: the stored names with that label, or a similar one; "" if it is stored itself."""
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

    def may_be_near(other: str) -> bool:
        whole = label_of(other) or other
        return min(abs(len(text) - len(name)) for text in (whole, _last_part(whole))) <= _MAX_LENGTHS_APART

    found = functions(store, None, may_be_near)[:_MAX_COMPARED]
    known = dict.fromkeys([label_of(each.func_name) or each.func_name for each in found])
    whole: list[str] = get_close_matches(name, known, n=1, cutoff=_LEAST_LIKE)
    if whole:
        return whole[0]
    parts = {_last_part(label): label for label in known}  # who gives no package
    return next((parts[part] for part in get_close_matches(name, parts, n=1, cutoff=_LEAST_LIKE)), None)


def _last_part(label: str) -> str:
    return label.rpartition(".")[2]
