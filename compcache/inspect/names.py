"""Suggestions for a name that is not stored: names with the same label, and similar names."""

from __future__ import annotations

from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from compcache.identity import label_of
from compcache.publish.module_lists import ModuleLists, last_part_of
from compcache.usage.snapshot import statuses_of
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from compcache.store import Store
    from compcache.usage.module_files import FileStatus, Progress

__all__ = ["labelled", "labels_ending_in", "names_starting_with", "stored_functions", "suggestion"]

_T = TypeVar("_T")
_MAX_COMPARED = 2_000  # names
_LEAST_LIKE = 0.6  # the least similarity, see `difflib`
_MAX_LENGTHS_APART = 4  # characters
_MIN_DIGITS = 4  # of a digest


def labelled(store: Store, label: str) -> tuple[str, ...]:
    """Return the stored func_names with a label, sorted. `label` may end with a hyphen and the first digits of the digest."""
    head, _, digits = label.rpartition("-")
    prefix = label if len(digits) >= _MIN_DIGITS else None

    def matches(name: str) -> bool:
        label_of_name = label_of(name)
        return label_of_name == label or (prefix is not None and label_of_name == head and name.startswith(prefix))

    return tuple(sorted({name for name, _, _ in stored_functions(store, matches, [f"{base}\0" for base in (label, head) if base])}))


def labels_ending_in(store: Store, part: str) -> set[str]:
    """Return the labels and plain names of stored functions whose last components are `part`.

    Argument types may follow `part` in the names of functions. They are left out of the result. No module is read.
    """
    last_part = last_part_of(part)
    bases = set[str]()
    for lists in map(ModuleLists, (store, *store.layers)):
        for end in ("\0", "("):
            bases.update(lists.bases(f"{part}{end}"))
            bases.update([base for _, base in lists.last_parts(f"{last_part}{end}")])
    matching = set[str]()
    for base in bases:
        labels = {label for label in (base, base.partition("(")[0]) if label == part or label.endswith(f".{part}")}
        if not matching.issuperset(labels) and any(True for _ in stored_functions(store, lambda _: True, [f"{base}\0"])):
            matching |= labels
    return matching


def stored_functions(
    store: Store, select: Callable[[str], bool], prefixes: Iterable[str], progress: Progress | None = None
) -> Iterator[tuple[str, bytes, FileStatus]]:
    """Yield the name, the module_id and the module's status of each stored function that `select` accepts.

    Only functions whose bases begin with one of the `prefixes` are considered. See `ModuleLists` for `progress`.
    """
    for layer in (store, *store.layers):
        names_and_modules = chain.from_iterable(map(ModuleLists(layer, progress).functions, prefixes))
        pairs = [(name, module_id) for name, module_id in names_and_modules if select(name)]
        existing = statuses_of(layer, {module_id for _, module_id in pairs})
        yield from [(name, module_id, existing[module_id]) for name, module_id in pairs if module_id in existing]


def names_starting_with(store: Store, prefix: str, limit: int) -> list[str]:
    """Return at most `limit` func_names of stored functions that begin with a prefix, sorted. No module is read."""
    names: set[str] = set()
    for layer in (store, *store.layers):
        lists = ModuleLists(layer)
        layer_names: set[str] = set()
        for base in dict.fromkeys((prefix, prefix.rpartition("-")[0] or prefix)):  # the prefix may contain a label
            names_and_modules = lists.functions(base)
            pairs = ((name, module_id) for name, module_id in names_and_modules if name.startswith(prefix) and name not in layer_names)
            while batch := list(islice(pairs, limit - len(layer_names))):  # again, if modules no longer exist
                existing = statuses_of(layer, {module_id for _, module_id in batch})
                layer_names.update([name for name, module_id in batch if module_id in existing])
        names |= layer_names
    return sorted(names)[:limit]


def suggestion(store: Store, name: str) -> str:
    """Return a suggestion to append to the message of a miss: a stored name with this label, or a similar name.

    The suggestion begins with a semicolon. It is "" if the function is stored but unusable, or if no stored name is similar.
    """
    if any(True for _ in store.find(name)):
        return ""
    same_label = labelled(store, name)
    if same_label:
        names = join_first(map(repr, same_label), 1)
        return f"; there is {names}, named by content: give the full name, or the Identity or source of the function"
    label = label_of(name)
    if label is not None and any(True for _ in store.find(label)):
        return f"; there is {label!r}, a plain name: to store a function under an identity, export the function as the identity's func_name"
    similar = _most_similar(store, name)
    if similar == name:  # the list of modules has the name, the index does not
        return "; a stored module defines the function, but look-ups do not find it: run 'compcache check'"
    return f"; did you mean {similar!r}?" if similar else ""


def _most_similar(store: Store, name: str) -> str | None:
    """Return the stored name or label that is most similar to `name`, or None if no name is similar. `name` may omit the package."""
    from difflib import get_close_matches

    parts: dict[str, str] = {}  # full names by their last parts
    names: dict[str, None] = {}
    for lists in [ModuleLists(layer) for layer in (store, *store.layers)]:
        names.update(dict.fromkeys(_candidates(name, lists.bases, str)))
        parts.update(_candidates(name, lists.last_parts, itemgetter(0)))
    matches: list[str] = get_close_matches(name, names, n=1, cutoff=_LEAST_LIKE)
    if matches:
        return matches[0]
    parts.update({label.rpartition(".")[2]: label for label in names})
    return next((parts[similar_part] for similar_part in get_close_matches(name, parts, n=1, cutoff=_LEAST_LIKE)), None)


def _candidates(name: str, starting_with: Callable[[str], Iterator[_T]], text: Callable[[_T], str]) -> list[_T]:
    """Return at most `_MAX_COMPARED` items whose text is about as long as `name`. Those with the longest common prefix come first.

    `starting_with` returns the items whose text starts with a prefix, and `text` the text of an item.
    """
    candidates: dict[_T, None] = {}
    length = len(name)
    while len(candidates) < _MAX_COMPARED and length >= 0:
        items = islice(starting_with(name[:length]), 4 * _MAX_COMPARED)
        candidates.update(dict.fromkeys([item for item in items if abs(len(text(item)) - len(name)) <= _MAX_LENGTHS_APART]))
        length = length // 2 if length else -1
    return list(candidates)[:_MAX_COMPARED]
