"""Chooses the realizations of a closure: the realizations that an ordinary load binds, in modules that are not linked closures."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import CompcacheError, NotCachedError
from compcache.formats.manifest import LINK_ONLY, VARIABLE
from compcache.hit.loader import Loader, Sources
from compcache.hit.plan import Plan
from compcache.interrupts import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from compcache.hit.loader import Choice
    from compcache.store import IsNear, Store

__all__ = ["Bound", "Chosen", "Planner", "choose"]

#: The length of the digest of a link type in records, in bytes.
_DIGEST = 8
#: The prefix of a constant's signature.
_CONSTANT = f"{LINK_ONLY}constant "


class Bound(NamedTuple):
    """The chosen realization of a function or a variable: its module and its symbol in this module.

    `is_unique` is whether every user of the name gets this realization, independent of the expected type. `has_expected_type` is whether,
    in addition, it is a function, and every user expects its link type. Users may still compare its address (`Copies.addressed`).
    """

    module_id: bytes
    symbol: str
    is_unique: bool
    has_expected_type: bool


class Chosen(NamedTuple):
    """The closure of several functions: the realization of each name, and the reasons why requested functions are not in it."""

    bound: dict[str, Bound]
    failures: dict[str, CompcacheError]


class Planner(Loader):
    """Plans loads for a process without loaded modules, using only modules that are not linked closures. It loads no code."""

    __slots__ = ()

    def __init__(self, store: Store) -> None:
        listener = store.listener  # a planner must not replace the loader that has modules in memory
        super().__init__(store, allow_pickle=False)
        store.listener = listener

    def candidates(
        self,
        func_name: str,
        is_near: IsNear | None = None,  # noqa: ARG002 - no module is loaded
        *,
        sources: Sources | None = None,  # noqa: ARG002 - linked closures are never used
    ) -> Iterator[tuple[bytes, int]]:
        """Yield the realizations of a function in modules that are not linked closures. See `Loader.candidates` for the arguments."""
        return self.store.find(func_name)


def choose(store: Store, names: Iterable[str]) -> Chosen:
    """Return the closure of these functions. If closures of single functions bind a name differently, the first one takes precedence."""
    planner = Planner(store)
    bound: dict[str, Bound] = {}
    failures: dict[str, CompcacheError] = {}
    for name in names:
        if name in bound and bound[name].has_expected_type:
            continue  # all users get this realization, so `bound` already has its imports
        try:
            for bound_name, binding in _plan_loads(planner, name).items():
                earlier = bound.setdefault(bound_name, binding)
                if earlier != binding:
                    is_unique = earlier.is_unique and binding.is_unique and earlier[:2] == binding[:2]
                    is_expected = is_unique and earlier.has_expected_type and binding.has_expected_type
                    bound[bound_name] = earlier._replace(is_unique=is_unique, has_expected_type=is_expected)
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            failures[name] = error if isinstance(error, CompcacheError) else NotCachedError(str(error), func_name=name)
    return Chosen(bound, failures)


def _plan_loads(planner: Loader, root: str) -> dict[str, Bound]:
    """Return the binding of each function that a load of `root` needs. Raise `CompcacheError` or `OSError` if the load would fail."""
    sources = Sources(root, None, 0, set())
    try:
        chosen = Plan(planner, root, planner.candidates(root), sources, None, None).choose()
        expected_by_all = dict.fromkeys(chosen, True)
        for choice in chosen.values():
            for _, name, _, expected_type in choice.imports:
                own_type = chosen[name].record.link_type[:_DIGEST]
                is_expected = any(own_type) and expected_type[:_DIGEST] == own_type  # zeros: an unknown type
                expected_by_all[name] = expected_by_all[name] and is_expected
        return _bindings_of_plan(chosen, expected_by_all)
    finally:
        for source in sources.values():
            source.release()


def _bindings_of_plan(chosen: dict[str, Choice], expected_by_all: dict[str, bool]) -> dict[str, Bound]:
    """Return the choices of a plan by the names in their records. `expected_by_all` says, by node, whether all users expect its type.

    A name that is used with several types has several nodes in a plan. A stub has the offset 0. Neither is bound to one realization.
    """
    bound: dict[str, Bound] = {}
    for node, choice in chosen.items():
        name = choice.record.name
        is_unique = name == node and choice.offset > 0 and name not in bound
        is_function = not choice.record.signature.startswith((VARIABLE, _CONSTANT))
        bound[name] = Bound(choice.module_id, choice.record.symbol, is_unique, is_unique and is_function and expected_by_all[node])
    return bound
