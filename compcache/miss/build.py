"""Compiles and links one source. The cache provides its imports."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from compcache.formats.graph import decode_notes, pack_notes
from compcache.linker import build_module
from compcache.miss.import_types import require_types
from compcache.miss.offers import find_bodies
from compcache.miss.publication import publish_built
from compcache.miss.run_times import share_runtime_libraries
from compcache.miss.staleness import warn_about_hidden, warn_about_shadowed

if TYPE_CHECKING:
    from compcache.build.source import ModuleSource
    from compcache.formats.built_module import BuiltModule
    from compcache.session import Session

__all__ = ["add", "build_source"]


def build_source(session: Session, source: ModuleSource, *, alone: bool = False, seconds: float = 0.0) -> BuiltModule:
    """Compile and link a module for each of its targets. The result is not stored, but modules of runtime libraries may be added.

    Args:
        session: the cache, which provides imports and counts compilations.
        source: the code.
        alone: import only functions that the source names, and check no types of imports.
        seconds: the seconds that creating the source took. They count as compile time.

    Raises:
        CompileError, LinkError, SignatureMismatchError, ...: the errors of `Cache.add_module`.
    """
    store = session.store
    if alone:
        built = build_module(source, machine=store.host(), is_cached=lambda _: False)
    else:
        share_runtime_libraries(session, source, add)
        provided = partial(find_bodies, session)
        built = build_module(source, machine=store.host(), is_cached=session.can_import, provided=provided)
    if seconds:
        seconds += built.seconds
        notes = pack_notes({**decode_notes(built.sections.notes), "seconds": seconds})
        built = built.with_notes(notes)._replace(seconds=seconds)
    if not alone:
        require_types(session, built, {})
    for module in (built, *built.others):
        store.stats.compiled(module.seconds, [name for name, *_ in module.functions])
    return built


def add(session: Session, source: ModuleSource, *, alone: bool = False, for_others: bool = False, seconds: float = 0.0) -> tuple[str, ...]:
    """Compile and publish a module. Return the module_ids for all its targets, beginning with this host.

    With `alone`, there are no warnings about the module's functions; with `for_others`, there is none if no function can be called. See
    `build_source` for the other arguments, and `Cache.add_module` for the exceptions.
    """
    built = build_source(session, source, alone=alone, seconds=seconds)
    look_ups = None
    if not alone:
        session.store.renew_index()
        look_ups = warn_about_shadowed(session.store, built)
        if not for_others:
            warn_about_hidden(built)
    return publish_built(session, [built], look_ups=look_ups)[0]
