"""Detects stale names: compares the source of a cached function with the source that the program builds now.

Each module stores a digest of its source. Nothing here decides which code is loaded, because the user decides what a name means. A
difference causes one warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compcache.content.names import NamedSource, content_digest, freeze, source_of
from compcache.errors import CacheWarning, CompcacheError, ShadowWarning
from compcache.formats.manifest import FUNCTION, LINK_ONLY, decode_function
from compcache.formats.manifest_writer import iterate_frames
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.module_reader import read_notes
from compcache.publish.numbering import first_existing
from compcache.publish.quarantine import warn_once
from compcache.settings import is_on
from compcache.store import is_ordered
from compcache.warning import warn
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from compcache.build.source import ModuleSource
    from compcache.formats.built_module import BuiltModule
    from compcache.hit.target import TypedCallTarget
    from compcache.identity import Identity
    from compcache.publish.numbering import LookUps
    from compcache.session import Session
    from compcache.store import Store

__all__ = [
    "is_checking", "names_with_other_source", "warn_about_hidden", "warn_about_repeated", "warn_about_shadowed", "warn_about_stale",
    "warn_if_stale",
]  # fmt: skip

_ABOUT_THE_FILE = ("; ModuleID", "source_filename")
_MOST_NAMED = 10
_ADVICE = (
    "the cached code is used. Name the function by its content (an Identity, or Cache.compile), give the function another name, or "
    "remove the cached code: cache.remove({!r})"
)


def warn_if_stale(session: Session, target: TypedCallTarget, name: str | Identity, build: Callable[[], Any]) -> None:
    """Warn once if a function was compiled from a source other than `build` returns now.

    Do nothing for a content name, or unless $COMPCACHE_CHECK is set. See `source_of` for the exceptions.
    """
    if isinstance(build, NamedSource) or not is_checking():
        return  # a content name means the code, whatever source it was compiled from
    func_name = target.func_name
    source = source_of(build(), func_name, None if isinstance(name, str) else name)
    current = content_digest(freeze(source)).hex()
    stored = _read_notes(session.store, bytes.fromhex(target.module_id)).get("source")
    if stored and stored != current:
        subject = f"function {func_name!r} was compiled from different code than its build() returns now"
        warn_once(session.store, f"stale {func_name} {current}", f"{subject}; {_ADVICE.format(func_name)}")


def is_checking() -> bool:
    """Return whether ``COMPCACHE_CHECK=1`` is set. Then the sources of cached code are compared with the programs' current sources."""
    return is_on("COMPCACHE_CHECK")


def names_with_other_source(store: Store, names: Iterable[str], source: ModuleSource) -> list[str]:
    """Return the plain names whose newest realization is known to have another source. See `freeze` for an exception."""
    current = content_digest(freeze(source)).hex()
    stored_digests: dict[bytes, str] = {}
    different = []
    for name in filter(is_ordered, names):
        newest = first_existing(store, store.find(name))
        if newest is not None and newest not in stored_digests:
            stored_digests[newest] = str(_read_notes(store, newest).get("source") or current)
        if newest is not None and stored_digests[newest] != current:
            different.append(name)
    return different


def warn_about_stale(store: Store, names: Iterable[str], source: ModuleSource, consequence: str) -> None:
    """Warn once if one of these functions was compiled from another source. `consequence` ends the message."""
    for name in names_with_other_source(store, names, source)[:1]:
        warn_once(store, f"stale {name}", f"function {name!r} was compiled from different code than it has now; {consequence}")


def _read_notes(store: Store, module_id: bytes) -> dict[str, Any]:
    """Return the notes of a stored module, or an empty dict if the module cannot be read."""
    with suppress(CompcacheError, OSError), store.open_module(module_id) as module:
        return read_notes(module)
    return {}


def warn_about_shadowed(store: Store, built: BuiltModule, *, besides: Collection[bytes] = ()) -> LookUps:
    """Warn once if an added module defines functions that the cache has with different code. Modules in `besides` do not count.

    The index of the cache must have been refreshed. Return the realizations of functions in the index, where they were looked up.
    """
    look_ups = {name: store.find_known(name) for name, *_ in built.functions}
    other_modules = dict.fromkeys([module_id for rows in look_ups.values() for module_id, *_ in rows])
    for module_id in other_modules:  # among modules of the same functions, newest first
        if module_id in besides:
            continue
        shadowed = _shadowed_functions(store, module_id, built, set(look_ups))
        if shadowed is not None and not shadowed:
            break
        if shadowed:
            warn(
                f"the cache already has different code for {join_first(map(repr, shadowed), 1)}, in module {module_id.hex()[:12]}: the "
                "code that is added last is used. Name functions by their content (an Identity, or Cache.compile), or remove the cached "
                f"code first: cache.remove({shadowed[0]!r})",
                ShadowWarning,
            )
            break
    return {} if store.has_in_memory() else look_ups  # copies in memory come first, whatever their numbers


def warn_about_repeated(modules: Iterable[BuiltModule]) -> None:
    """Warn once if two modules that are added together define the same functions, and their code differs."""
    first_modules: dict[frozenset[str], BuiltModule] = {}
    for built in modules:
        names = frozenset([name for name, *_ in built.functions])
        if not names:
            continue
        earlier = first_modules.setdefault(names, built)
        has_other_code = earlier.code and built.code and earlier.code != built.code
        if has_other_code and not _has_same_code(earlier.sections.bitcode, built.sections.bitcode):
            names_text = join_first(map(repr, sorted(names)), 1)
            warn(f"two added sources that define {names_text} differ, and the last one is used: rename them in one source", ShadowWarning)
            return


def warn_about_hidden(built: BuiltModule) -> None:
    """Warn if an added module has only hidden functions, which cannot be called."""
    if built.signatures and all(text.startswith(f"{LINK_ONLY}hidden function") for text in built.signatures):
        names = [name for name, *_ in built.functions]
        warn(
            "the module exports no function that can be called, because all its functions are hidden: "
            f"{join_first(map(repr, names), _MOST_NAMED)}. Name the functions to call in functions=, or add the module together with the "
            "sources that use them",
            CacheWarning,
        )


def _shadowed_functions(store: Store, module_id: bytes, built: BuiltModule, names: set[str]) -> list[str] | None:
    """Return the functions that a stored and a new module share if their code differs, or an empty list if it is the same.

    A function may be copied into many modules, so only modules that consist of the same functions are compared. The result is None for
    other modules, for modules without code, and for a stored module that cannot be read. See `decode_function` for the exception.
    """
    code = _read_notes(store, module_id).get("code")
    if not code or not built.code:
        return None
    if code == built.code:
        return []
    try:
        with store.open_module(module_id) as module:
            payloads = [payload for _, payload in iterate_frames(module.read(module.image, module.records))]
            footer = module.footer()
            bitcode = module.read(footer.image + footer.records + footer.graph, footer.bitcode)
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)
        return None
    stored = {decode_function(payload).name for payload in payloads if payload[:1] == FUNCTION}
    is_replaced = stored == names or (is_checking() and not stored.isdisjoint(names) and (stored <= names or names <= stored))
    if not is_replaced:
        return None
    return [] if _has_same_code(bitcode, built.sections.bitcode) else sorted(names & stored)


def _has_same_code(*sections: bytes) -> bool:
    """Return whether two compressed modules have the same code, each as text or as bitcode. If one is empty, the result is False."""
    if not all(sections):
        return False
    import zlib

    from compcache.build import codegen

    codes = [zlib.decompressobj().decompress(section) for section in sections]
    texts = codegen.run(lambda context: [str(codegen.read_back(code, context)) for code in codes])
    bodies = [[line for line in text.splitlines() if not line.startswith(_ABOUT_THE_FILE)] for text in texts]
    return bodies[0] == bodies[1]
