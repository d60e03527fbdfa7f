"""Function names on command lines and terminals: globs, labels of content names, short forms."""

from __future__ import annotations

import fnmatch
import os.path
import re
from itertools import takewhile
from typing import TYPE_CHECKING

import click

from compcache.cli.output import is_terminal, printable
from compcache.errors import NotCachedError
from compcache.frontend import list_functions, list_groups, list_labels, list_uncached
from compcache.identity import label_of
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compcache.cache import Cache
    from compcache.usage.summaries import GroupSummary

__all__ = ["common_prefix", "groups_among", "literal_prefix", "resolve", "resolve_all", "resolve_last_part", "short_name", "split_name"]

_GLOB = re.compile(r"[*?\[]")
_SHOWN_NAMES = 3
_DIGITS = 8  # digits of a digest shown on terminals; commands accept a name cut after these digits
_LEAST_PREFIX = 8  # characters of a common prefix that are worth cutting


def resolve(cache: Cache, name: str) -> str:
    """Return the function that a NAME matches; the NAME itself if it matches no function.

    Raise `click.ClickException` if the NAME matches several functions, and is not the full name of one of them.
    """
    matching = _matching_functions(cache, name)
    if len(matching) > 1 and name not in matching:
        first_names = join_first(map(short_name, matching), _SHOWN_NAMES)
        verb = "match" if _GLOB.search(name) else "are named"
        raise click.ClickException(f"{len(matching)} functions {verb} {name!r}: {first_names}; give a longer part of the name")
    return matching[0] if matching and name not in matching else name


def resolve_all(cache: Cache, names: Iterable[str], *, missing_ok: bool = False) -> list[str]:
    """Return the functions that NAMEs match, each once. A NAME is a function, a label of content names, a glob or a group.

    With `missing_ok`, a NAME that is not a glob and matches no function is returned as it is.

    Raise `NotCachedError` if a glob matches no function, or another NAME matches no function and `missing_ok` is false.
    """
    chosen: dict[str, None] = {}
    for name in names:
        matching = _matching_functions(cache, name)
        if not matching and _GLOB.search(name):
            raise NotCachedError(
                f"no function in {cache.path} matches {name!r}; 'compcache ls' lists the names", func_name=name, cache_dir=cache.path
            )
        if not matching and not missing_ok:
            cache.function(name)  # raises, with a suggestion
        chosen.update(dict.fromkeys(matching or [name]))
    return list(chosen)


def _matching_functions(cache: Cache, name: str) -> Sequence[str]:
    """Return the cached functions that a NAME matches, empty if there are none; the NAME alone if it is the full name of a function."""
    if cache.has(name):
        return [name]
    if _GLOB.search(name):
        matches = re.compile(fnmatch.translate(name)).match
        names = [summary.func_name for summary in list_functions(cache, literal_prefix((name,)), matches)]
        return [name] if name in names else names
    variants = cache.labelled(name) or [summary.func_name for summary in list_functions(cache, label_of(name) or name, name.__eq__)]
    return variants or [function for group in list_groups(cache, [name]) for function in group.functions if cache.has(function)]


def literal_prefix(patterns: Sequence[str]) -> str:
    """Return a common prefix of all labels that these globs can match; empty for no globs."""
    starts = []
    for pattern in patterns:
        before_wildcard, *_ = _GLOB.split(pattern, maxsplit=1)
        label, _, _ = before_wildcard.partition("-")
        starts.append(label)
    common = takewhile(lambda letters: len({*letters}) == 1, zip(*starts, strict=False))
    return "".join(letter for letter, *_ in common)


def resolve_last_part(cache: Cache, name: str) -> str:
    """Return the label or plain name, of stored or refused functions, that ends with a dot and `name`.

    Return `name` itself if it is empty, a full name, a label, or the end of no label or plain name.

    Raise `click.ClickException` if several labels or plain names end with `name`.
    """
    if cache.has(name) or not name:
        return name
    refused = [refusal.name for refusal in list_uncached(cache)]
    labels = {*list_labels(cache, name), *refused, *[label.partition("(")[0] for label in refused]}
    matching = sorted(label for label in labels if label.endswith(f".{name}"))
    if name in labels or not matching:
        return name
    if len(matching) > 1:
        first_names = join_first(map(printable, matching), _SHOWN_NAMES)
        raise click.ClickException(
            f"the names of {len(matching)} functions end with {name!r}: {first_names}; give a longer part of the name"
        )
    return matching[0]


def groups_among(cache: Cache, names: Iterable[str]) -> dict[str, GroupSummary]:
    """Return the groups among NAMEs by name. A NAME that is also a function does not count as a group."""
    candidates = [name for name in names if not cache.has(name)]
    return {group.name: group for group in list_groups(cache, candidates)} if candidates else {}


def short_name(func_name: str) -> str:
    """Return a name for output. On a terminal, a content name is cut after the first digits of its digest; commands accept the cut name."""
    label, identity = split_name(func_name)
    return f"{label}-{identity}" if identity and is_terminal() else func_name


def split_name(func_name: str) -> tuple[str, str]:
    """Return the label of a content name and the first digits of its digest; the name and "" for other names."""
    label = label_of(func_name)
    return (func_name, "") if label is None else (label, func_name[len(label) + 1 :][:_DIGITS])


def common_prefix(names: Sequence[str]) -> str:
    """Return the package prefix of all names, with its dot; empty for one name, or if it is not printable, or too short to be cut."""
    if len(names) < 2:  # noqa: PLR2004 - one name has no common prefix
        return ""
    prefix = os.path.commonprefix(names)  # noqa: RUF071 - names, not paths
    prefix = prefix[: prefix.rfind(".") + 1]
    return printable(prefix) if len(prefix) >= _LEAST_PREFIX and prefix.isprintable() else ""
