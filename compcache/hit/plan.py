"""Chooses realizations for a function and for everything in its import closure. Plain hits do not read this file."""

from __future__ import annotations

from compcache.digest import KEY_SIZE
from compcache.errors import (
    CompcacheError,
    FormatError,
    IncompatibleTargetError,
    IntegrityError,
    KnownFaultError,
    NotCachedError,
    SignatureError,
    SignatureMismatchError,
    UndefinedSymbolError,
)
from compcache.files import reraise_interrupt
from compcache.formats import host
from compcache.formats.index import Segment
from compcache.formats.manifest import LINK_ONLY, MAPPED_IN_PLACE, NO_ENTRY, SUSPECT, VARIABLE, WEAK
from compcache.formats.table import all_entries
from compcache.hit.needs import read_needs, read_records
from compcache.store import is_ordered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from compcache.directory.module_file import ModuleFile
    from compcache.errors import LinkError
    from compcache.formats.host import Processor
    from compcache.formats.index import Index
    from compcache.formats.manifest import FunctionRecord
    from compcache.formats.table import Table
    from compcache.hit.loader import Choice, Loader, Source, Sources
    from compcache.store import Store

__all__ = ["Listing", "Plan", "list_records", "require_features", "require_usable"]

#: How many functions a segment of the index can have for one table of what several such segments hold; how many modules a load has
#: when it makes one for the next.
_MOST_GATHERED = 128
_MANY_MODULES = 2
#: The least number of imports of one function that are looked up together.
_MANY_IMPORTS = 32
#: The number of bytes of the digest in a record's link type.
_DIGEST = 8
#: A character in names of nodes that no func_name has.
_APART = "\0"


class Listing:
    """The listed modules of a load with several.

    `functions` has the first place of each name in their records, as a hint. `repeated` are the names with further places. `unlisted`
    counts the modules whose records were not read at once.
    """

    __slots__ = ("functions", "repeated", "unlisted")

    def __init__(self) -> None:
        self.functions: dict[str, tuple[bytes, int]] = {}
        self.repeated: set[str] = set()
        self.unlisted = 0


def list_records(loader: Loader, source: Source, sources: Sources) -> None:
    """Read the records of a module at once, and list the functions in them.

    Raises:
        StorageError: the file cannot be read.
    """
    listed = read_records(loader, source)
    listed.is_in_listing = True
    listing = sources.listing = sources.listing or Listing()
    if listed.records:
        loader.runtime().list_functions(listed.records, source.file.module_id, listing.functions, listing.repeated)
    else:
        listing.unlisted += 1
    if len(sources) == _MANY_MODULES:
        _gather(loader.store.index)


class _SmallTables:
    """The entries of several tables, verified."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[bytes, list[bytes]] = {}

    def add(self, table: Table) -> None:
        """Add all entries of a table."""
        for entry in all_entries(table):
            self._entries.setdefault(entry[:KEY_SIZE], []).append(entry[KEY_SIZE:])

    def find(self, key: bytes) -> list[bytes]:
        """See `compcache.formats.table.Table`."""
        return self._entries.get(key, [])


class _SmallSegments(Segment):
    """The content of several segments, in memory."""

    __slots__ = ()

    def __init__(self, index: Index, segments: list[Segment]) -> None:
        super().__init__(index, "")
        functions, modules = _SmallTables(), _SmallTables()
        self._tables: Any = functions, modules
        self._texts = {}
        owners = {segment.owner for segment in segments}
        self.owner = owners.pop() if len(owners) == 1 else -1
        for segment in segments:
            functions.add(segment.functions)
            modules.add(segment.modules)
            self._texts |= segment.requirements


def _gather(index: Index) -> None:
    """Let an index look names up in one table with all its small segments, until it changes."""
    segments = index.segments
    if index.gathered is not None and index.gathered[0] is segments:
        return
    try:
        small = [segment for segment in segments if segment.functions.count <= _MOST_GATHERED]
        together = _SmallSegments(index, small)
    except (FormatError, OSError) as error:  # a look-up tells
        reraise_interrupt(error)
        return
    index.gathered = segments, [*[segment for segment in segments if segment not in small], together]


class _Node:
    """One function of a plan: its untried realizations, the chosen one, and the first reason against another.

    `uses` are the link types that its dependents expect, by digest, each with one of these; the chosen realization fits all of them.
    """

    __slots__ = ("candidates", "choice", "dependents", "error", "uses")

    def __init__(self, candidates: Iterator[tuple[bytes, int]]) -> None:
        self.candidates = candidates
        self.choice: Choice | None = None
        self.dependents: dict[str, None] = {}
        self.error: Exception | None = None
        self.uses: dict[bytes, tuple[Choice, bytes]] = {}

    def note(self, error: Exception) -> None:
        """Keep the first error, without its traceback: frames that hold the plan would keep all their callers' objects."""
        if self.error is None:
            self.error = error.with_traceback(None)


class Plan:
    """Chooses the realizations of a function and of everything in its import closure."""

    def __init__(
        self,
        loader: Loader,
        root: str,
        candidates: Iterator[tuple[bytes, int]],
        sources: Sources,
        opened: Choice | None,
        error: Exception | None,
    ) -> None:
        """Continue with the root's `candidates` after `opened`, or after the first one's error."""
        self._loader = loader
        self._root = root
        self._sources = sources
        self._opened = opened
        self._nodes: dict[str, _Node] = {root: _Node(candidates)}
        if error is not None:
            self._nodes[root].note(error)
        self._pending = [root]
        self._may_lack = False  # whether some function has run out of realizations
        self._apart: dict[tuple[str, bytes], str] = {}  # the nodes for users that expect an unusual type, by name and digest

    def choose(self) -> dict[str, Choice]:
        """Return the chosen realizations of the root and everything that it reaches, or the error because of which it cannot be loaded."""
        while True:
            self._choose_pending()
            chosen = self._reachable()
            conflict = self._find_second_provider(chosen)
            if conflict is None and self._loader.linked is not None:
                conflict = self._loader.linked.second_home(chosen)
            if conflict is None:
                return chosen
            self.reject(*conflict)

    def _choose_pending(self) -> None:
        while self._pending:
            name = self._pending.pop()
            node = self._nodes[name]
            if node.choice is None:
                self._advance(name, node)

    def _candidates(self, name: str) -> Iterator[tuple[bytes, int]]:
        """Yield the realizations of an import. Modules that this load uses come before others that are not loaded.

        For a plain name, yield the newest, and those with the same content.
        """
        later = []
        loader = self._loader
        provider = None
        if name in loader.merged:
            from compcache.hit.closures.providers import living_provider

            provider = living_provider(loader, loader.merged, name)
        if is_ordered(name):
            for candidate in loader.candidates(name, self._is_near, linked=True):
                if provider is None or candidate[0] == provider.module_id:
                    yield candidate
            return
        listing = self._sources.listing
        own = listing.functions.get(name) if listing is not None else None
        if own is None or (not loader.is_loaded(own[0]) and loader.loaded_modules()):
            own = None  # modules that are loaded come first, and the index tells whether one of them has it
        elif provider is None or own[0] == provider.module_id:
            yield own
        for candidate in loader.candidates(name, linked=True):
            if candidate == own or (provider is not None and candidate[0] != provider.module_id):
                continue
            if candidate[0] in self._sources or loader.is_loaded(candidate[0]):
                yield candidate
            else:
                later.append(candidate)
        yield from later

    def _is_near(self, module_id: bytes) -> bool:
        return module_id in self._sources or self._loader.is_loaded(module_id)

    def _find_second_provider(self, chosen: dict[str, Choice]) -> tuple[str, LinkError] | None:
        """Return a choice in a module that defines a variable which the load has from another module, and the reason against it."""
        listing = self._sources.listing
        variables = {name: choice for name, choice in chosen.items() if choice.record.signature.startswith(VARIABLE)}
        if listing is not None and not listing.unlisted:  # variables that another module of the load has, too, are known
            variables = {name: choice for name, choice in variables.items() if name in listing.repeated}
        if not variables:
            return None
        by_module = {choice.module_id: name for name, choice in chosen.items() if name not in variables}
        for variable, choice in variables.items():
            for module_id, offset in self._loader.store.find(choice.record.name):
                other = by_module.get(module_id)
                if other is not None and module_id != choice.module_id and not self._loader.is_loaded(module_id):
                    from compcache.hit.closures.providers import defines_for_all, second_provider

                    if defines_for_all(self._loader, chosen[other].source, offset):
                        return other, second_provider(variable, module_id, choice.module_id)
        return None

    def _advance(self, name: str, node: _Node) -> None:
        """Choose the next realization of a function, or fail its dependents if all were tried."""
        choice, self._opened = self._opened, None
        while choice is not None or (choice := self._next(name, node)) is not None:
            try:
                self._read_needs(choice)
                if name == self._root:
                    _require_entry(choice)
                if self._may_lack:
                    self._require_imports(choice)
                self._require_type(name, node, choice)
            except (CompcacheError, OSError) as error:
                reraise_interrupt(error)
                node.note(error)
                choice = None
                continue
            node.choice = choice
            self._follow(name, choice)
            return
        self._exhaust(name, node)

    def _exhaust(self, name: str, node: _Node) -> None:
        """Handle a function without usable realizations: bind its importers to its stub, or let them fail."""
        if name == self._root:
            raise self._root_error(node)
        if isinstance(node.error, IncompatibleTargetError):
            node.choice = self._loader.open_stub(name.partition(_APART)[0], self._sources)
            if node.choice is not None:
                return
        self._may_lack = True
        for use, (user, kind) in list(node.uses.items())[1:]:  # the first error against one of them
            self._set_apart(name, use, user, kind)
        for dependent in node.dependents:
            self._drop_dependent(dependent, name, node)

    def _follow(self, name: str, choice: Choice) -> None:
        """Add the imports of a choice to the plan."""
        nodes, pending = self._nodes, self._pending
        settled = self._settled(choice)
        for _, imported, _, kind in choice.imports:
            other = nodes.get(imported)
            if other is None:
                only = settled.get(imported)
                other = nodes[imported] = _Node(self._candidates(imported) if only is None else iter(()))
                other.uses[kind[:_DIGEST]] = choice, kind
                other.choice = only
                if only is None:
                    pending.append(imported)
            elif kind[:_DIGEST] not in other.uses:
                other = self._join(imported, other, choice, kind)
            other.dependents[name] = None

    def _settled(self, choice: Choice) -> dict[str, Choice]:
        """Return the targets of many imports that leave nothing to choose."""
        if len(choice.imports) < _MANY_IMPORTS or self._apart or self._may_lack:
            return {}
        from compcache.hit.settle import settle

        return settle(self._loader, self._sources, choice)

    def _join(self, name: str, node: _Node, user: Choice, kind: bytes) -> _Node:
        """Return the node of an import with this expected type."""
        use = kind[:_DIGEST]
        if (name, use) in self._apart:
            return self._nodes[self._apart[name, use]]
        is_open = node.choice is None and name in self._pending
        try:
            fits = is_open or (node.choice is not None and self._fits(node.choice, user, kind))
        except (CompcacheError, OSError) as error:  # choosing for it meets the error again
            reraise_interrupt(error)
            fits = False
        if not fits:
            return self._set_apart(name, use, user, kind)
        node.uses[use] = user, kind
        return node

    def _set_apart(self, name: str, use: bytes, user: Choice, kind: bytes) -> _Node:
        """Return the node for importers that expect a different type of a function than others."""
        node = self._nodes[name]
        node.uses.pop(use, None)
        key = self._apart[name, use] = f"{name}{_APART}{len(self._apart)}"
        apart = self._nodes[key] = _Node(self._candidates(name))
        apart.uses[use] = user, kind
        apart.dependents.update(node.dependents)
        self._pending.append(key)
        return apart

    def _target(self, name: str, kind: bytes) -> str:
        """Return the node of an import."""
        return self._apart.get((name, kind[:_DIGEST]), name)

    def _require_type(self, name: str, node: _Node, choice: Choice) -> None:
        """Check that a realization fits the first of its users. Users that it does not fit get another one.

        Raises:
            SignatureMismatchError: it does not fit.
        """
        if not node.uses or (len(node.uses) == 1 and choice.record.link_type[:_DIGEST] in node.uses):
            return
        for number, (use, (user, kind)) in enumerate(list(node.uses.items())):
            if not self._fits(choice, user, kind):
                if number == 0 and name != self._root:
                    raise _misfit(choice, user, *self._types(choice, user, kind))
                self._set_apart(name, use, user, kind)

    def _fits(self, choice: Choice, user: Choice, kind: bytes) -> bool:
        own = choice.record.link_type
        if not kind or not own or kind[:_DIGEST] == own[:_DIGEST]:
            return True
        from compcache.hit.link_types import fits

        return fits(*self._types(choice, user, kind))[0]

    def _types(self, choice: Choice, user: Choice, kind: bytes) -> tuple[str, str]:
        """Return the link types of a realization and of its use, as texts; empty if unknown."""
        return self._type(choice, choice.record.link_type), self._type(user, kind)

    def _type(self, choice: Choice, kind: bytes) -> str:
        from compcache.hit.link_types import read_type

        try:
            return read_type(lambda offset: choice.source.read_record(self._loader.store, offset), kind)
        except FormatError as error:
            if choice.module_id not in self._sources:
                raise  # it was condemned before
            raise self._loader.condemn(self._sources, choice.module_id, error) from error

    def _next(self, name: str, node: _Node) -> Choice | None:
        """Return the next realization of a function whose record can be read."""
        if self._apart:
            name = name.partition(_APART)[0]
        for module_id, offset in node.candidates:
            try:
                if name in self._loader.merged:
                    from compcache.hit.closures.providers import refuse_other_mapping

                    refuse_other_mapping(self._loader, name, module_id)
                choice = self._loader.open_candidate(name, module_id, offset, self._sources)
            except FileNotFoundError as error:
                reraise_interrupt(error)
                continue  # pruned since the index was read
            except (CompcacheError, OSError) as error:
                reraise_interrupt(error)
                node.note(error)
                continue
            return self._stronger(name, node, choice, (module_id, offset)) if choice.record.signature.startswith(WEAK) else choice
        return None

    def _stronger(self, name: str, node: _Node, weak: Choice, where: tuple[bytes, int]) -> Choice:
        """Return the definition of a variable that replaces a weak one: one that is not merged, as linkers choose, or the longest of common
        blocks that are arrays.
        """
        all_of_it, best = [where, *node.candidates], weak
        for candidate in all_of_it[1:]:
            try:
                choice = self._loader.open_candidate(name, *candidate, self._sources)
            except (CompcacheError, OSError) as error:
                reraise_interrupt(error)
                continue
            is_definition = choice.record.signature.startswith(VARIABLE)
            if is_definition or _length(choice) > _length(best):
                best, where = choice, candidate
            if is_definition:
                break
        node.candidates = iter([candidate for candidate in all_of_it if candidate != where])
        return best

    def _read_needs(self, choice: Choice) -> None:
        try:
            listed = choice.source.listed
            if listed is None or not listed.is_in_listing:
                list_records(self._loader, choice.source, self._sources)
            read_needs(self._loader, choice)
        except FormatError as error:
            raise self._loader.condemn(self._sources, choice.module_id, error) from error

    def _require_imports(self, choice: Choice) -> None:
        for _, imported, _, kind in choice.imports:
            node = self._nodes.get(self._target(imported, kind))
            if node is not None and node.uses and kind[:_DIGEST] not in node.uses:
                continue  # perhaps only other expected types are missing
            if node is not None and node.choice is None and imported not in self._pending:
                exhausted = imported != choice.record.name and not _may_have_more(node)
                if exhausted:
                    raise self._missing_import(choice, imported, node)

    def _drop_dependent(self, name: str, missing: str, missing_node: _Node) -> None:
        node = self._nodes[name]
        choice = node.choice
        if choice is not None and any(self._target(imported, kind) == missing for _, imported, _, kind in choice.imports):
            node.note(self._missing_import(choice, missing, missing_node))
            node.choice = None
            self._pending.append(name)

    def _missing_import(self, choice: Choice, imported: str, node: _Node) -> UndefinedSymbolError:
        why = f" ({node.error})" if node.error is not None else ""
        imported = imported.partition(_APART)[0]
        error = UndefinedSymbolError(
            f"function {choice.record.name!r} of module {choice.module_id.hex()} needs {_shown(imported)}, of which the cache "
            f"{self._loader.store.root} holds no usable realization{why}; add a module that defines it",
            symbols=[imported],
            func_name=choice.record.name,
            module_id=choice.module_id.hex(),
        )
        error.__cause__ = node.error
        return error

    def reject(self, name: str, error: Exception) -> None:
        """Reject a chosen realization that failed later, and continue without it."""
        node = self._nodes[name]
        node.note(error)
        node.choice = None
        self._pending.append(name)

    def _reachable(self) -> dict[str, Choice]:
        chosen: dict[str, Choice] = {}
        stack = [self._root]
        while stack:
            name = stack.pop()
            if name in chosen:
                continue
            choice = self._nodes[name].choice
            assert choice is not None
            chosen[name] = choice
            if self._apart:
                choice.imports = [(key, self._target(other, kind), places, kind) for key, other, places, kind in choice.imports]
            stack += [imported for _, imported, _, _ in choice.imports]
        return chosen

    def _root_error(self, node: _Node) -> Exception:
        name, root = self._root, self._loader.store.root
        error, node.error = node.error, None  # the frames of what is raised hold the plan
        if error is None or isinstance(error, (IncompatibleTargetError, IntegrityError)):
            problem = error or self._loader.store.index.problem
            why = f": {problem}" if problem else ""
            message = f"function {name!r} is not in the cache {root}{why}"
            not_cached = NotCachedError(message, func_name=name, cache_dir=root)
            not_cached.__cause__ = error
            return not_cached
        return error


def _misfit(choice: Choice, user: Choice, defined: str, used: str) -> SignatureMismatchError:
    """Return why a realization is skipped: its type is not the one that its user expects."""
    from compcache.hit.link_types import fits

    return SignatureMismatchError(
        f"{_shown(choice.record.name)} of module {choice.module_id.hex()} is {defined}, and {user.record.name!r} of module "
        f"{user.module_id.hex()} uses it as {used}: {fits(defined, used)[1]}",
        func_name=choice.record.name,
        module_id=choice.module_id.hex(),
    )


def _length(choice: Choice) -> int:
    """Return the length of an array variable, from its LLVM type; 0 for others."""
    count, by, _ = choice.record.signature.removeprefix(WEAK).removeprefix("[").partition(" x i8]")
    return int(count) if by and count.isdecimal() else 0


def _may_have_more(node: _Node) -> bool:
    """Return whether a node without a choice has untried realizations."""
    for candidate in node.candidates:
        node.candidates = _chain(candidate, node.candidates)
        return True
    return False


def _chain(first: tuple[bytes, int], rest: Iterator[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    yield first
    yield from rest


def _shown(symbol: str) -> str:
    """Return a symbol with its name in source code, if compilers have mangled it."""
    if not symbol.startswith(("_Z", "_R")):
        return repr(symbol)
    from compcache.images.libraries import demangle

    plain = demangle(symbol)
    return repr(symbol) if plain == symbol else f"{symbol!r} ({plain})"


def _require_entry(choice: Choice) -> None:
    record = choice.record
    if record.signature.startswith(LINK_ONLY):
        raise SignatureError(
            f"{record.name!r} of module {choice.module_id.hex()} is a {record.signature.removeprefix(LINK_ONLY)}, which other modules can "
            "import and Python cannot call: to call a hidden function, name it in functions="
        )
    if record.entry == NO_ENTRY:
        raise SignatureError(
            f"function {record.name!r} of module {choice.module_id.hex()} cannot be called from Python: "
            f"{record.signature.removeprefix('! ')}; other modules can import it, for example one that passes its values through pointers"
        )


def require_usable(store: Store, file: ModuleFile) -> None:
    """Check that this host can run the code of a module.

    Raises:
        IncompatibleTargetError: the host cannot run it; the message says why.
    """
    if store.min_llvm:
        _require_llvm(store, file)
    if file.flags == SUSPECT:
        _require_sound(store, file)
    accepted = store.processor().accepted
    if file.target_id in accepted and file.flags in MAPPED_IN_PLACE:
        return
    from compcache.formats.records import decode_module

    platform = host.platform_name()
    record = decode_module(file.read_record(0))
    if file.flags not in MAPPED_IN_PLACE:
        from compcache.images.kinds import require_known

        require_known(record, file.module_id)
    module = file.module_id.hex()
    if record.abi != host.ABI_VERSION or record.triple != platform:
        raise IncompatibleTargetError(
            f"module {module} is for {record.triple} (ABI {record.abi}), this process is {platform} (ABI {host.ABI_VERSION})",
            module_id=module,
        )
    if not host.libc_serves(record.libc):
        raise IncompatibleTargetError(
            f"module {module} needs {record.libc} or later, this process has {host.this_libc() or 'another C library'}: compile it "
            "here, or on the oldest system that is to use it",
            module_id=module,
        )
    accepted.add(file.target_id)


def _require_sound(store: Store, file: ModuleFile) -> None:
    from compcache.formats.known_faults import fault_of
    from compcache.formats.makers import read_makers

    fault = fault_of(read_makers(file.read_record, file.records))
    if fault:
        if store.is_first_warning(file.path):
            store.stats.refused(file.path, fault)
        raise KnownFaultError(f"module {file.module_id.hex()} is not used: {fault}", module_id=file.module_id.hex())


def _require_llvm(store: Store, file: ModuleFile) -> None:
    from compcache.formats.records import decode_module, version_numbers

    compiled_by = decode_module(file.read_record(0)).llvm_version
    if version_numbers(compiled_by) < version_numbers(store.min_llvm):
        raise IncompatibleTargetError(
            f"module {file.module_id.hex()} was compiled by LLVM {compiled_by}, and this cache takes none older than {store.min_llvm}",
            module_id=file.module_id.hex(),
        )


def require_features(store: Store, file: ModuleFile, record: FunctionRecord) -> None:
    """Check that this host has the features that a function requires.

    Raises:
        IncompatibleTargetError: a feature is missing.
    """
    from compcache.formats.records import decode_module

    header = decode_module(file.read_record(0))
    features = header.features_of(record)
    processor = store.processor()
    if not processor.meets(features):
        module = file.module_id.hex()
        raise IncompatibleTargetError(
            f"function {record.name!r} of module {module} was compiled for {header.cpu} and uses {_lacking(processor, features)}",
            module_id=module,
        )
    processor.accept(header.requirement(features))


def _lacking(processor: Processor, features: str) -> str:
    """Describe the features that the processor lacks."""
    from compcache.targets.processor_words import missing

    return f"{', '.join(missing(features, processor)[:8])}, which this {processor.cpu() or 'processor'} does not have"
