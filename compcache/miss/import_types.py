"""Checks the link types of a new module's imports before the module is stored (`docs/linking.md`, "Types")."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import CompcacheError, SignatureMismatchError
from compcache.formats.manifest import decode_function
from compcache.hit.link_types import DIGEST_SIZE, compare_types, read_type, type_digest, unite_types
from compcache.interrupts import reraise_interrupt
from compcache.warning import warn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from compcache.formats.built_module import BuiltModule
    from compcache.session import Session

__all__ = ["Provider", "require_types"]


class Provider(NamedTuple):
    """A realization of an import: a description of its module, the module_id, and the link type ("" if unknown)."""

    where: str
    module_id: str
    link_type: str


def require_types(session: Session, built: BuiltModule, added: Mapping[str, Mapping[int, Provider]]) -> None:
    """Check that each import of a module has a realization with the link type that the module expects.

    An import without any realization is accepted. The functions in `added`, which are added together with the module, take precedence over
    functions in the cache. Raise `SignatureMismatchError` if no realization of an import has the type that the code expects.
    """
    own_names = {name for name, *_ in built.functions}
    for name, types in built.used.items():
        if name not in own_names:
            stored = _stored_providers(session, name, type_digest(unite_types(types)))
            _require_provider(name, types, iter(added[name].values()) if added.get(name) else stored)


def _require_provider(name: str, types: Mapping[str, str], providers: Iterator[Provider]) -> None:
    """Check that the type of a provider matches the uses of a function. Issue a warning if the best match is doubtful.

    Raise `SignatureMismatchError` if no provider matches.
    """
    expected = unite_types(types)
    first_provider: tuple[Provider, str] | None = None
    doubtful: tuple[Provider, str] | None = None
    for provider in providers:
        is_fitting, reason = compare_types(provider.link_type, expected)
        if is_fitting and not reason:
            return
        if is_fitting:
            doubtful = doubtful or (provider, reason)
        else:
            first_provider = first_provider or (provider, reason)
    if doubtful is not None:
        warn(_describe_mismatch(name, types, *doubtful))
    elif first_provider is not None:
        provider = first_provider[0]
        raise SignatureMismatchError(_describe_mismatch(name, types, *first_provider), func_name=name, module_id=provider.module_id)


def _describe_mismatch(name: str, types: Mapping[str, str], provider: Provider, reason: str) -> str:
    """Return how the cached type of a function differs from a use, with the using function if that is known."""
    doubtful = [(use, user) for use, user in sorted(types.items()) if compare_types(provider.link_type, use)[1]]
    use, user = doubtful[0] if doubtful else (unite_types(types), "")
    location = f" in {user!r}" if user else ""
    return f"the symbol {name!r} is {provider.link_type} in {provider.where}, but the module uses it as {use}{location}: {reason}"


def _stored_providers(session: Session, name: str, expected: bytes) -> Iterator[Provider]:
    """Yield the stored realizations of a function that this host can use. `link_type` is "" if the type's digest is `expected`."""
    store, loader = session.store, session.loader
    for module_id, offset in store.find(name):
        try:
            with store.open_module(module_id) as module:
                loader.require_usable(module)
                record = decode_function(module.read_record(offset))
                loader.require_features(module, record)
                link_type = record.link_type
                text = read_type(module.read_record, link_type) if link_type[:DIGEST_SIZE] != expected else ""
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            continue
        yield Provider(f"module {module_id.hex()}", module_id.hex(), text)
