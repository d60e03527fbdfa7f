"""The miss path of `Cache.compile`: parses a new source, and compiles the functions that are not stored."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from compcache.content.names import NAMES, NamedSource, encode_names, read_names
from compcache.formats.entry import EntryRecord, index_name, sequence_after
from compcache.miss.claim import single_flight
from compcache.miss.compile_once import compile_missing, fetch_soon
from compcache.miss.publication import publish_or_keep
from compcache.publish.packs import encode_pack

if TYPE_CHECKING:
    from compcache.content.names import SealedSource
    from compcache.session import Session

__all__ = ["compile_source"]


def compile_source(session: Session, sealed: SealedSource, names: dict[str, str] | None) -> dict[str, str]:
    """Compile the missing functions of a source. Store them or, if that fails, keep them in memory.

    `names` are the content names in the source's entry, by plain name, or None if the cache has no entry.

    Returns:
        The content names of all functions of the source, by plain name.

    Raises:
        CompileError, LinkError, ...: the errors of `Cache.add_module` about the source.
    """
    with single_flight(session, sealed.name, absent=False) as may_be_stored:
        if may_be_stored:
            names = read_names(session.store, sealed.name) or names
        if names is None and fetch_soon(session, index_name(NAMES, sealed.name)):
            names = read_names(session.store, sealed.name)
        is_new = names is None
        if names is None:
            from compcache.miss.name_source import name_source  # imports LLVM, which a source with stored names does not need

            names, units = name_source(sealed)
        else:
            units = (tuple(names.values()),)  # an entry does not say which functions belong together
        was_compiled = compile_missing(session, partial(_missing_functions, session, units), NamedSource(sealed, names).exporting)
        if is_new and not was_compiled:
            _store_names(session, sealed.name, names)
        return names


def _missing_functions(session: Session, units: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """Return all functions of each unit of which this host cannot use every function."""
    holds = partial(session.loader.holds, to_import=True)
    return tuple([name for unit in units if not all(map(holds, unit)) for name in unit])


def _store_names(session: Session, entry: str, names: dict[str, str]) -> None:
    """Store the entry with the names of a source. If that fails, issue a warning and keep the entry in memory."""
    stored = [next(session.store.find(name), None) for name in names.values()]
    modules = dict.fromkeys([candidate[0] for candidate in stored if candidate is not None])
    record = EntryRecord(NAMES, entry, sequence_after(None), tuple(modules), encode_names(names), gone=False)
    publish_or_keep(session, next(iter(names.values())), encode_pack([record]))
