"""Groups: sources that are stored as one module, like the files of a shared object (decision 49).

Each member is optimized separately, and only once. Its code is kept in the group's file, under a digest of its inputs and target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.build import codegen
from compcache.build.pic import ADDRESS_OF
from compcache.build.slots import Requests, undefined_symbols_error
from compcache.build.source import ModuleSource, check_name
from compcache.content.names import content_digest, freeze
from compcache.digest import digest
from compcache.errors import CompcacheError, CompileError, UndefinedSymbolError
from compcache.formats.entry import MOST_DATA, decode_entry, index_name
from compcache.formats.group import GROUP, MEMBER, GroupMember, decode_group, encode_group
from compcache.formats.records import decode_module
from compcache.images.archives import STATE_PREFIXES
from compcache.interrupts import reraise_interrupt
from compcache.linker import Translation, link_module, optimize_member, translate_requests
from compcache.maintain.remove import remove_modules
from compcache.miss.import_types import require_types
from compcache.miss.many import not_added_error
from compcache.miss.publication import publish_built
from compcache.miss.staleness import warn_about_shadowed
from compcache.translation.members import decode_member, encode_member
from compcache.translation.requests import requests_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from compcache.build.exports import Export
    from compcache.formats.built_module import BuiltModule
    from compcache.formats.entry import EntryRecord
    from compcache.session import Session
    from compcache.translation.members import Member
    from compcache.translation.requests import Request

__all__ = ["add_group"]

#: The version of members and of their compilation. Another number recompiles all members.
_VERSION = "6"
_PERSON = b"compcache-member"


class _Source(NamedTuple):
    """A source of a group.

    Attributes:
        number: the position of the source in the caller's list.
        source: the source.
        content: a digest of the source.
        requests: the requests to the compiler, one for each target.
        copies: the functions that the source defines for the optimizer only (available_externally), and that no member provides.
    """

    number: int
    source: ModuleSource
    content: bytes
    requests: list[Request]
    copies: frozenset[str] = frozenset()


class _Compiled(NamedTuple):
    """A member of a group for one target, and the digest under which it is kept."""

    digest: str
    member: Member


def add_group(session: Session, sources: Iterable[ModuleSource], name: str, *, replace: bool = False) -> tuple[str, ...]:
    """Implement `Cache.add_modules` and `Cache.replace` for a group. See `_Group.add` for the exceptions."""
    session.store.require_writable()
    return _Group(session, check_name(name, "name of a group"), list(sources)).add(replace=replace)


class _Group:
    """The addition of one group."""

    def __init__(self, session: Session, name: str, sources: list[ModuleSource]) -> None:
        self._session = session
        self._store = session.store
        self._name = name
        self._all_sources = sources
        self._failures: dict[int, Exception] = {}
        #: The groups with this name, for all targets and from all additions.
        self._own = list(dict.fromkeys([module_id for module_id, _ in self._store.find_all(index_name(GROUP, name))]))
        self._compiled: dict[str, Member] = {}  # by their digests

    def add(self, *, replace: bool) -> tuple[str, ...]:
        """Add the group, and return its module_id once for each source. With `replace`, remove the earlier modules of the group.

        Raises:
            ModulesNotAddedError: some sources could not be added.
            CompileError, LinkError: the sources are not consistent. Nothing is stored.
            FormatError: the entry of the stored group is damaged.
            StorageError: the group could not be stored, or an earlier module could not be removed.
        """
        sources = [read for number, source in enumerate(self._all_sources) if (read := self._read_source(number, source)) is not None]
        module_ids = self._find_unchanged(sources) if not self._failures else ()
        if not module_ids:
            sources, built = self._build_module(sources)
            if self._failures and replace:  # an incomplete group must not replace a complete one
                sources, built = [], None
            if built is not None:
                self._store.renew_index()
                look_ups = warn_about_shadowed(self._store, built, besides=self._own)
                module_ids = publish_built(self._session, [built], look_ups=look_ups)[0]
        if replace and module_ids:
            remove_modules(self._store, [module_id for module_id in self._own if module_id.hex() not in module_ids])
        added = {source.number for source in sources}
        added_ids = tuple([module_ids[0] if number in added else None for number in range(len(self._all_sources))])
        if self._failures:
            raise not_added_error(self._failures, added_ids, self._all_sources)
        return tuple([module_id for module_id in added_ids if module_id is not None])

    def _read_source(self, number: int, source: ModuleSource) -> _Source | None:
        """Return a source with its requests. If it is not valid, record the failure and return None."""
        try:
            if not isinstance(source, ModuleSource):
                raise CompileError(
                    f"a source must be a compcache.ModuleSource, not {type(source).__name__}: pass ModuleSource(code) for LLVM code"
                )
            if source.entries or source.part_of:
                raise CompileError(
                    "a source of a group cannot have entries= or part_of=: omit these arguments, or add the source without a group"
                )
            source = freeze(source)
            requests = requests_of(source, self._store.host())
            return _Source(number, source, content_digest(source), requests)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one source, the other sources are added
            reraise_interrupt(error)
            self._failures[number] = error
            return None

    def _find_unchanged(self, sources: Sequence[_Source]) -> tuple[str, ...]:
        """Return the module_ids of the stored group, this host's first, if it is unchanged and no other module defines its names.

        Otherwise return (). The group is then published again, so that its realizations are the newest.

        Raise `FormatError` if the entry of a group is damaged.
        """
        wanted_digest, stored = _digest_of(sources), []
        names: dict[str, None] = {}
        for module_id, requirement, entry in self._stored_entries(GROUP, self._name):
            group = decode_group(entry.data)
            if group.digest != wanted_digest:
                return ()
            stored.append((self._store.processor().rank(requirement), module_id.hex()))
            names.update(dict.fromkeys([name for member in group.members for name in member.names]))
        definers = {module_id for name in names for module_id, _ in self._store.find(name)}
        if len(stored) != len(self._own) or not definers.issubset(self._own):
            return ()
        return tuple([module_id for _, module_id in sorted(stored, reverse=True)])

    def _stored_entries(self, kind: str, name: str) -> Iterator[tuple[bytes, str, EntryRecord]]:
        """Yield the readable stored entries with this kind and name as (module_id, requirement of the code, entry)."""
        for module_id, offset in self._store.find(index_name(kind, name)):
            try:
                with self._store.open_module(module_id) as module:
                    requirement = decode_module(module.read_record(0)).requirement()
                    entry = decode_entry(module.read_record(offset))
            except (CompcacheError, OSError) as error:
                reraise_interrupt(error)
                continue  # another file may have the entry
            if (entry.kind, entry.name) == (kind, name):
                yield module_id, requirement, entry

    def _build_module(self, sources: list[_Source]) -> tuple[list[_Source], BuiltModule | None]:
        """Build the group's module from the sources that can be compiled and linked.

        Sources that use a missing symbol are left out. Other errors of `_link_members` are raised. See `_require_same_processors` for
        another exception.

        Returns:
            The sources in the module, and the module. Without any source, the module is None.
        """
        while True:
            sources = [source for source in sources if self._compile_source(source)]
            _require_same_processors(sources)
            if not sources:
                return [], None
            try:
                return sources, self._link_members(sources)
            except UndefinedSymbolError as error:
                sources = self._fail_users(sources, error)

    def _compile_source(self, source: _Source) -> bool:
        """Compile a source for each target whose code is not stored. If that fails, record the error and return False."""
        try:
            for request in source.requests:
                self._compile_member(source, request)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one source, the other sources are added
            reraise_interrupt(error)
            self._failures[source.number] = error
            return False
        return True

    def _compile_member(self, source: _Source, request: Request) -> _Compiled:
        """Return the member of a source and target, compiled unless known or stored. See `decode_member`, `optimize_member` for errors."""
        label = _member_digest(source, request)
        if label not in self._compiled:
            stored = next(iter(self._stored_entries(MEMBER, label)), None)
            if stored is not None:
                self._compiled[label] = decode_member(stored[2].data)
            else:
                self._compiled[label] = optimize_member(request._replace(copies=source.copies), label[:16])
        return _Compiled(label, self._compiled[label])

    def _fail_users(self, sources: list[_Source], error: UndefinedSymbolError) -> list[_Source]:
        """Record a failure for each source that uses missing symbols of a link error. Return the other sources with their added `copies`.

        Raises:
            UndefinedSymbolError: `error`, if no source uses the symbols, and none gets a copy.
        """
        remaining, missing = [], {symbol.removeprefix(ADDRESS_OF) for symbol in error.symbols}
        for source in sources:
            members = [self._compile_member(source, request).member for request in source.requests]
            copies = missing.intersection(*[member.copied for member in members])
            lacking = {name: is_function for member in members for name, is_function in member.used.items() if name in missing - copies}
            if lacking:
                self._failures[source.number] = self._missing_error(lacking)
            else:
                remaining.append(source._replace(copies=source.copies | copies))
        if remaining == sources:
            raise error
        return remaining

    def _missing_error(self, used_symbols: dict[str, bool]) -> UndefinedSymbolError:
        """Return the exception for a source that uses undefined symbols. `used_symbols` maps each symbol to whether it is a function."""
        if not self._failures:
            return undefined_symbols_error(sorted(used_symbols), [name for name, is_function in used_symbols.items() if is_function])
        names = ", ".join(map(repr, sorted(used_symbols)))
        message = f"the source uses {names}, which no source that could be added defines: add such a source, or use imports="
        return UndefinedSymbolError(message, symbols=sorted(used_symbols))

    def _link_members(self, sources: Sequence[_Source]) -> BuiltModule:
        """Link the members of all sources for each target, and check the types of their imports.

        Raises:
            CompileError, LinkError: the sources are not consistent.
            UndefinedSymbolError: a symbol is missing.
        """
        content = _digest_of(sources)
        members_by_target: list[list[_Compiled]] = []
        merged = []
        for requests in zip(*[source.requests for source in sources], strict=True):  # of all sources for one target
            members = [self._compile_member(source, request) for source, request in zip(sources, requests, strict=True)]
            members_by_target.append(members)
            merged.append(_merge_sources(requests, [compiled.member for compiled in members], content, self._is_elsewhere))
        machine, parts = translate_requests(self._store.host(), merged)
        described = [
            (request._replace(named_entries=self._make_entries(members, translated.prepared.exports, request)), translated)
            for members, (request, translated) in zip(members_by_target, parts, strict=True)
        ]
        built = link_module(Translation(machine, tuple(described)))
        require_types(self._session, built, {})
        for module in (built, *built.others):
            self._store.stats.compiled(module.seconds, [name for name, *_ in module.functions])
        return built

    def _is_elsewhere(self, name: str) -> bool:
        """Return whether a module outside this group defines a symbol.

        The result is False for runtime library functions with state, because a group contains its own copy of such a library.
        """
        if name.startswith(STATE_PREFIXES) or not self._session.can_import(name):
            return False
        return not self._own or any(module_id not in self._own for module_id, _ in self._store.find_all(name))

    def _make_entries(self, members: Sequence[_Compiled], exports: Iterable[Export], request: Request) -> dict[tuple[str, str], bytes]:
        """Return the entries of data for the group's module: the description of the group, and the members that fit into an entry."""
        names = {export.symbol: export.name for export in exports}
        rows = [
            GroupMember(member.label, label, tuple([names[symbol] for symbol in member.defined if symbol in names]))
            for label, member in members
        ]
        encoded_members = {(MEMBER, label): encode_member(member) for label, member in members} if request.keep_bitcode else {}
        entries = {key: data for key, data in encoded_members.items() if len(data) <= MOST_DATA}
        return {(GROUP, self._name): encode_group(request.digests["source"], rows), **entries}


def _digest_of(sources: Sequence[_Source]) -> str:
    """Return a digest of all inputs of a group."""
    machines = [repr((_processor_of(request), request.target)) for source in sources for request in source.requests]
    parts = [_VERSION, codegen.llvm_version(), *machines]
    return digest([repr(parts).encode(), *[source.content for source in sources]], person=_PERSON).hex()


def _member_digest(source: _Source, request: Request) -> str:
    """Return a digest of all inputs of a member: its code, its target, its compiler, its level, its copied functions, and its imports.

    Imports count because LLVM does not treat them as the platform's functions, whatever their names are. Members are stored under this
    digest, so a change of the digest's inputs makes all stored members useless.
    """
    code = source.source.ir if isinstance(source.source.ir, bytes) else source.source.ir.encode("utf-8", "surrogatepass")
    names = sorted(source.copies), sorted(request.requests.imports)
    settings = _VERSION, codegen.own_makers(), codegen.llvm_version(), _processor_of(request), request.level, *names
    return digest([repr(settings).encode(), code], person=_PERSON).hex()


def _processor_of(request: Request) -> tuple[str, str]:
    """Return the names of the CPU and of the features for which a request is compiled."""
    return request.machine.cpu, request.machine.features


def _require_same_processors(sources: Sequence[_Source]) -> None:
    """Raise `CompileError` if two sources are for different processors."""
    for source in sources[1:]:
        first = sources[0]
        if [*map(_processor_of, source.requests)] != [*map(_processor_of, first.requests)]:
            raise CompileError(
                f"source {first.number} is for {_describe_machines(first)}, but source {source.number} for {_describe_machines(source)}: "
                "give all sources of a group the same cpu=, features= and targets="
            )


def _describe_machines(source: _Source) -> str:
    """Return the CPUs of a source's targets, with the changes of their features, for a message."""
    return " and ".join([f"{cpu} with {features}" if features else cpu for cpu, features in map(_processor_of, source.requests)])


def _merge_sources(requests: Sequence[Request], members: Sequence[Member], content: str, is_cached: Callable[[str], bool]) -> Request:
    """Merge the requests of a group's sources for one target into one request.

    Raise `CompileError` if two sources export, import or define one name differently.
    """
    first_request = requests[0]
    exports_by_name: dict[str, Export] = {}
    for export in [export for request in requests for export in request.exports or ()]:
        if exports_by_name.setdefault(export.name, export) != export:
            raise CompileError(f"two sources of the group export {export.name!r} with different symbols, signatures or nogil: keep one")
    symbols = {export.symbol for export in exports_by_name.values()}
    unexported = {name for request, member in zip(requests, members, strict=True) if request.exports is not None for name in member.defined}
    return first_request._replace(
        ir=b"",
        exports=None if any(request.exports is None for request in requests) else tuple(exports_by_name.values()),
        named=tuple(exports_by_name.values()),
        unexported=frozenset(unexported - symbols),
        requests=_merge_requests([request.requests for request in requests]),
        level=max(request.level for request in requests),
        keep_bitcode=all(request.keep_bitcode for request in requests),
        identity=None,
        untrusted=False,  # each source was tried in a process of its own
        digests={"code": content, "source": content},
        is_cached=is_cached,
        members=tuple(members),
        makers="\n".join(filter(None, [request.makers for request in requests])),
    )


def _merge_requests(requests_of_sources: Sequence[Requests]) -> Requests:
    """Merge the imports, globals and libraries of sources. Raise `CompileError` if two sources import or define one symbol differently."""
    imports: dict[str, str] = {}
    globals_: dict[str, Any] = {}
    for requests in requests_of_sources:
        for symbol, name in requests.imports.items():
            if imports.setdefault(symbol, name) != name:
                raise CompileError(
                    f"two sources of the group import {symbol!r} as {imports[symbol]!r} and as {name!r}: import the symbol under one name"
                )
        for symbol, value in requests.globals.items():
            merged_value = globals_.setdefault(symbol, value)
            if merged_value is not value and (merged_value.kind, merged_value.encode()) != (value.kind, value.encode()):
                raise CompileError(f"two sources of the group define the global {symbol!r} with different values: define it once")
    libraries = dict.fromkeys([library for requests in requests_of_sources for library in requests.libraries])
    return Requests(imports, globals_, tuple(libraries))
