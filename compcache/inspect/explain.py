"""Explains why a function was, or would be, a miss: each realization with the reason against it, and the nearest variants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from compcache.display import Shown
from compcache.errors import CompcacheError, FormatError
from compcache.files import reraise_interrupt
from compcache.hit.loader import Loader
from compcache.hit.miss import miss_reason
from compcache.identity import Difference, compare, label_of
from compcache.inspect.functions import realizations
from compcache.inspect.inlined import inlined_into
from compcache.inspect.names import suggestion
from compcache.inspect.passed_over import passed_over
from compcache.inspect.separate_state import SeparateState, separate_state
from compcache.inspect.uncached import Refusal, read_all
from compcache.publish.module_reader import read_notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from compcache.identity import Identity
    from compcache.inspect.descriptions import Realization
    from compcache.remote.answer import RemoteAnswer
    from compcache.store import IsNear, Store
    from compcache.usage.module_files import Progress

__all__ = ["Explanation", "Overload", "Variant", "Verdict", "explain", "newest_of_label"]

_MAX_COMPARED = 64
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one realization can be loaded.

    Attributes:
        realization: the realization.
        reason: why not: absent, cpu, damaged, dependency, global and others; empty if it can.
        message: the reason in words.
        passed_over: realizations of its imports that have another link type than it expects.
        inlined: functions of other modules whose code may be in it.
    """

    realization: Realization
    reason: str
    message: str
    passed_over: tuple[str, ...] = ()
    inlined: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """A stored function with the same label, or an older module with the same plain name, and its differences from the requested one.

    Attributes:
        func_name: its name.
        module_id: its module.
        created: when its file was written, in seconds since the epoch.
        differences: the components that differ; None if one of the two was stored without an `Identity`.
    """

    func_name: str
    module_id: str
    created: float
    differences: tuple[Difference, ...] | None


@dataclass(frozen=True, slots=True)
class Overload:
    """A function that is stored for these types of arguments, ``kernels.total(int64)``, with whether its code can be loaded.

    Of several for the same types, this is the latest. Only a process with the source knows whether it is up to date. `before` is the one
    that was stored before it for these types, if any.
    """

    label: str
    func_name: str
    hit: bool
    message: str
    before: Variant | None = None


@dataclass(frozen=True, slots=True)
class Explanation(Shown):
    """The explanation of why a function can be loaded, or cannot.

    Attributes:
        func_name: the requested function; for a label, the newest function with it.
        hit: whether a load succeeds now.
        reason: why not, in one word as in `Verdict`; empty if it does.
        message: the reason in words.
        verdicts: all realizations.
        variants: the other stored functions with the same label, or earlier additions under a plain name: the most similar first if an
            `Identity` was given, otherwise the latest first.
        refusals: why a function with that label was compiled and not cached, the latest first; on a miss, `message` says it as well.
        overloads: for a name without types, the stored functions by types of arguments; `hit` is then whether one of these can be loaded.
        remote: the remote store's present answer; None for a cache without one.
        separate: variables that the function does not share with others of its module, which are used from another module.
    """

    func_name: str
    hit: bool
    reason: str
    message: str
    verdicts: tuple[Verdict, ...]
    variants: tuple[Variant, ...]
    refusals: tuple[Refusal, ...] = ()
    overloads: tuple[Overload, ...] = ()
    remote: RemoteAnswer | None = None
    separate: tuple[SeparateState, ...] = ()


class _OneRealization(Loader):
    """A loader that knows only one realization of one function."""

    __slots__ = ("_candidate", "_name")

    def __init__(self, store: Store, name: str, candidate: tuple[bytes, int], *, allow_pickle: bool) -> None:
        super().__init__(store, allow_pickle=allow_pickle)
        self._name = name
        self._candidate = candidate

    def candidates(
        self, func_name: str, is_near: IsNear | None = None, *, again: bool = False, linked: bool = False
    ) -> Iterator[tuple[bytes, int]]:
        """Return the one realization for its function, and all realizations of other functions."""
        return iter((self._candidate,)) if func_name == self._name else super().candidates(func_name, is_near, again=again, linked=linked)


def explain(
    store: Store,
    loader: Loader,
    func_name: str,
    identity: Identity | None = None,
    progress: Progress | None = None,
    remote: RemoteAnswer | None = None,
) -> Explanation:
    """Explain why a function can be loaded, or cannot; see `Cache.explain`."""
    copies = {bytes.fromhex(copy.module_id): copy for copy in realizations(store, loader, func_name)}
    verdicts = []
    for module_id, offset in store.find_all(func_name):
        if module_id in copies:
            alone = _OneRealization(store, func_name, (module_id, offset), allow_pickle=loader.allow_pickle)
            error = _try(alone, func_name)
            reason = "" if error is None else miss_reason(error)
            unfit = passed_over(store, module_id, offset)
            inlined = inlined_into(store, module_id, offset)
            verdicts.append(Verdict(copies[module_id], reason, "" if error is None else str(error), unfit, inlined))
    error = _try(Loader(store, allow_pickle=loader.allow_pickle), func_name)
    own = identity.components() if identity is not None else _components_of(store, copies)
    label = identity.label if identity is not None else label_of(func_name) or func_name
    refusals = _refusals(store, label)
    same = _stored(store, func_name, label, progress)
    overloads = _overloads(store, loader, func_name, same) if error is not None and not copies else ()
    reason, message = ("", "") if error is None else (miss_reason(error), str(error))
    if reason == "absent" and not same:
        message += suggestion(store, func_name)
    if reason == "absent" and refusals:
        reason, message = "refused", "; ".join(refusal.text for refusal in refusals)
    if any(overload.hit for overload in overloads):
        error, reason, message = None, "", ""
    separate = separate_state(store, loader, func_name) if copies else ()
    variants = _variants(store, same, own)
    variants += [variant for variant in _variants(store, _older(func_name, copies), own) if variant.differences]
    if identity is not None:
        variants.sort(key=lambda variant: _MAX_COMPARED if variant.differences is None else len(variant.differences))
    shown = tuple(variants[:_MAX_SHOWN])
    return Explanation(func_name, error is None, reason, message, tuple(verdicts), shown, refusals, overloads, remote, separate)


def newest_of_label(store: Store, name: str) -> str:
    """Return the newest function with this label, or the name itself if it is stored or is no label.

    The label of a Numba function may omit the types of its arguments, if only one combination is stored.
    """
    if any(True for _ in store.find_all(name)):
        return name
    same = _stored(store, name, name, None)
    return same[0][1] if len({label_of(other) for _, other, _ in same}) == 1 else name


def _belongs(name: str | None, label: str) -> bool:
    """Return whether a name is the label, or the label with the types of arguments."""
    return name is not None and (name == label or name.startswith(f"{label}("))


def _refusals(store: Store, label: str) -> tuple[Refusal, ...]:
    return tuple([refusal for refusal in read_all(store) if _belongs(refusal.name, label)])


def _try(loader: Loader, func_name: str) -> Exception | None:
    """Load the function as a hit would, then release it; return the error, if there is one."""
    try:
        loader.load(func_name)
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)
        return error
    finally:
        loader.close()
    return None


def _components_of(store: Store, modules: Mapping[bytes, object]) -> dict[str, str] | None:
    """Return the identity with which one of these modules was stored."""
    for module_id in modules:
        try:
            with store.open_module(module_id) as module:
                found = read_notes(module).get("identity")
        except (FileNotFoundError, CompcacheError, FormatError) as error:
            reraise_interrupt(error)
            continue
        if isinstance(found, dict):
            return {str(name): str(text) for name, text in found.items()}
    return None


def _stored(store: Store, func_name: str, label: str, progress: Progress | None) -> list[tuple[float, str, bytes]]:
    """Return the other stored functions of a label, the latest first: when, under which name, in which module."""
    from compcache.publish.module_lists import ModuleLists
    from compcache.usage.snapshot import statuses_of

    rows = []
    for place in (store, *store.layers):
        lists = ModuleLists(place, progress)
        found = [each for prefix in (f"{label}\0", f"{label}(") for each in lists.functions(prefix)]
        found = [(name, module_id) for name, module_id in found if name != func_name and _belongs(label_of(name), label)]
        present = statuses_of(place, {module_id for _, module_id in found})
        rows += [(present[module_id].modified, name, module_id) for name, module_id in found if module_id in present]
    return sorted(rows, reverse=True)


def _older(func_name: str, copies: Mapping[bytes, Realization]) -> list[tuple[float, str, bytes]]:
    """Return the modules that were added under a plain name before the newest one."""
    return [(copy.created, func_name, module_id) for module_id, copy in list(copies.items())[1:]]


def _overloads(store: Store, loader: Loader, func_name: str, same: list[tuple[float, str, bytes]]) -> tuple[Overload, ...]:
    rows: dict[str, list[tuple[float, str, bytes]]] = {}
    for row in same:
        label = label_of(row[1]) or ""
        if label.startswith(f"{func_name}("):
            rows.setdefault(label, []).append(row)
    found = []
    for label, ((_, name, module_id), *older) in sorted(rows.items()):
        error = _try(Loader(store, allow_pickle=loader.allow_pickle), name)
        before = _variants(store, older[:1], _components_of(store, {module_id: None}))
        found.append(Overload(label, name, error is None, "" if error is None else str(error), before[0] if before else None))
    return tuple(found)


def _variants(store: Store, same: list[tuple[float, str, bytes]], own: dict[str, str] | None) -> list[Variant]:
    found = []
    for created, name, module_id in same[:_MAX_COMPARED]:
        stored = _components_of(store, {module_id: None})
        differences = None if own is None or stored is None else compare(own, stored)
        found.append(Variant(name, module_id.hex(), created, differences))
    return found
