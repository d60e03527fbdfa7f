"""The miss side of `Cache.compile`: a source that is new is parsed and finds the functions in it that are stored, others are compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.build import codegen
from compcache.build.exports import visible_exports
from compcache.build.ir_text import read_values
from compcache.build.large_data.variables import abridged
from compcache.build.pic import aliases
from compcache.content.functions import Naming, name_functions, name_together
from compcache.content.names import NAMES, NamedSource, encode_names, exported_as, read_names
from compcache.content.visible import exported_names
from compcache.errors import CompileError, StorageError
from compcache.formats.entry import EntryRecord, index_name, sequence_after
from compcache.miss.claim import single_flight
from compcache.miss.compile_once import HEDGE_SECONDS, compile_missing
from compcache.miss.publication import publish_built
from compcache.publish.packs import encode_pack
from compcache.publish.quarantine import warn_not_stored
from compcache.translation.requests import refuse_extremes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.build.source import Function, ModuleSource
    from compcache.content.names import SealedSource
    from compcache.session import Session

__all__ = ["compile_source", "name_source"]

_SUFFIXES = ("ll", "bc", "o", "a")
#: Longer code is not printed to be named: what makes it long is data.
_MOST_PRINTED = 1 << 24


def compile_source(session: Session, sealed: SealedSource, names: dict[str, str] | None) -> dict[str, str]:
    """Store the functions of a source that are not stored yet, or keep them in memory; the names of all by their plain names.

    Args:
        session: where they are looked for and stored.
        sealed: the source.
        names: those that an entry says, where there is one.

    Raises:
        CompileError, LinkError, ...: what `Cache.add_module` raises about the source.
    """
    with single_flight(session, sealed.name, absent=False) as look_again:
        if look_again:
            names = read_names(session.store, sealed.name) or names
        if names is None:
            names = _fetch_names(session, sealed)
        if names is not None:
            if not _are_stored(session, names.values()):
                compile_missing(session, tuple(names.values()), NamedSource(sealed, names))
            return names
        names, units = name_source(sealed)
        missing = [name for unit in units if not _are_stored(session, [names[name] for name in unit]) for name in unit]
        named = NamedSource(sealed, names)
        if not missing or not compile_missing(session, tuple([names[name] for name in missing]), lambda: named.exporting(missing)):
            _store_names(session, sealed.name, names)
        return names


def _are_stored(session: Session, names: Iterable[str]) -> bool:
    return all(map(session.has, names))


def _fetch_names(session: Session, sealed: SealedSource) -> dict[str, str] | None:
    """The names that the remote store knows; with a module that has some of the functions, as a rule."""
    inquiry = session.inquire((index_name(NAMES, sealed.name),))
    if inquiry is None:
        return None
    if inquiry.arrived(HEDGE_SECONDS):
        return read_names(session.store, sealed.name)
    inquiry.give_up()
    return None


def _store_names(session: Session, entry: str, names: dict[str, str]) -> None:
    """Keep the names of a source whose functions are all in other files. They belong to these."""
    store = session.store
    if store.readonly:
        return
    found = [next(store.find(name), None) for name in names.values()]
    modules = dict.fromkeys([candidate[0] for candidate in found if candidate is not None])
    record = EntryRecord(NAMES, entry, sequence_after(None), tuple(modules), encode_names(names), gone=False)
    try:
        publish_built(session, [encode_pack([record])])
    except StorageError as error:
        warn_not_stored(next(iter(names.values())), error)


# ----------------------------------------------------------------------------------------------------------- names


def name_source(sealed: SealedSource) -> Naming:
    """Name the functions of a source; LLVM reads its code.

    Code that nobody vouches for, and code that is long for its data, is not printed: one digest stands for all of its functions.

    Raises:
        CompileError: LLVM does not accept the code, or no function of it can be seen from outside.
    """
    source = sealed.source
    if source.untrusted or _is_long(source.ir):
        return name_together(_exports(source, exported_names(source.ir)), sealed.digest)
    try:
        text = _printed(source.ir)
    except CompileError:
        _refuse_name_of_file(source.ir)
        raise
    if source.functions is not None:
        return name_functions(source, text, _exports(source, source.functions))
    exports = visible_exports(read_values(text), aliases(text))
    return name_functions(source, text, _exports(source, [export.symbol for export in exports if not export.link_only]))


def _exports(source: ModuleSource, names: Iterable[str]) -> dict[str, Function]:
    given = source.functions if source.functions is not None else dict.fromkeys(names)
    exports = {name: exported_as(value, name) for name, value in given.items()}
    if not exports:
        raise CompileError("compile(): the code defines no externally visible function")
    return exports


def _is_long(code: str | bytes) -> bool:
    return len(code) > _MOST_PRINTED or (isinstance(code, str) and len(abridged(code)) < len(code))


def _printed(code: str | bytes) -> str:
    """The code as LLVM prints it."""
    if isinstance(code, str):
        refuse_extremes(code, printed=False)
    plain = codegen.plain_source(code)
    return codegen.run(lambda context: str(codegen.parse(plain, context)))


def _refuse_name_of_file(code: str | bytes) -> None:
    if isinstance(code, str) and 0 < len(code.splitlines()) <= 1 and code.rpartition(".")[2].strip() in _SUFFIXES:
        raise CompileError(f"compile(): {code!r} looks like the name of a file: give what is in it, open({code!r}, 'rb').read()") from None
