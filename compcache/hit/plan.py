"""Chooses realizations for a function and for everything in its import closure. Plain hits do not import this file."""

from __future__ import annotations

from itertools import chain

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
from compcache.files import UNUSABLE
from compcache.formats import host
from compcache.formats.manifest import LINK_ONLY, MAPPED_IN_PLACE, NO_ENTRY, SUSPECT, VARIABLE, WEAK
from compcache.hit.needs import read_needs, read_records
from compcache.hit.plain_imports import MANY, look_up_together
from compcache.interrupts import reraise_interrupt
from compcache.store import Store, is_ordered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.directory.module_file import ModuleFile
    from compcache.errors import LinkError
    from compcache.formats.manifest import FunctionRecord
    from compcache.hit.loader import Choice, Loader, Source, Sources

__all__ = ["Listing", "Plan", "list_records", "require_features", "require_usable"]

#: The number of bytes of the digest in a record's link type.
_DIGEST = 8
#: A character in names of nodes that no func_name has.
_SPLIT_MARK = "\0"
#: The prefix of signatures of weak definitions with values, which differ from common blocks.
_WITH_VALUE = f"{WEAK}with a value "


class Listing:
    """The lists of functions in a load of several modules.

    Attributes:
        functions: the first place (module_id, offset) of each name, as a hint.
        repeated: the names with further places.
        unlisted: the number of modules whose records were not read at once.
    """

    __slots__ = ("functions", "repeated", "unlisted")

    def __init__(self) -> None:
        self.functions: dict[str, tuple[bytes, int]] = {}
        self.repeated: set[str] = set()
        self.unlisted = 0


def list_records(loader: Loader, source: Source, sources: Sources) -> None:
    """Read the records of a module at once, and list its functions for the load. Do not list them if the section of records is large.

    Raise `StorageError` if the file cannot be read.
    """
    listed = read_records(loader, source)
    listed.is_in_listing = True
    listing = sources.listing = sources.listing or Listing()
    if listed.records:
        loader.runtime().list_functions(listed.records, source.file.module_id, listing.functions, listing.repeated)
    else:
        listing.unlisted += 1


class _Node:
    """One function of a plan.

    Attributes:
        candidates: its untried realizations.
        choice: the chosen realization, which fits all `uses`, or None.
        dependents: the functions that import it.
        error: the first error against a realization, or None.
        uses: the link types that the dependents expect, by digest, each with one of these dependents.
        has_unfit_definition: whether the dependents do not fit a definition of a variable, which weak definitions must not replace.
    """

    __slots__ = ("_is_ordered", "candidates", "choice", "dependents", "error", "has_unfit_definition", "uses")

    def __init__(self, name: str, candidates: Iterator[tuple[bytes, int]]) -> None:
        self._is_ordered = is_ordered(name)
        self.candidates = candidates
        self.choice: Choice | None = None
        self.dependents: dict[str, None] = {}
        self.error: Exception | None = None
        self.uses: dict[bytes, tuple[Choice, bytes]] = {}
        self.has_unfit_definition = False

    def keep_error(self, error: Exception) -> None:
        """Keep the first error, without its traceback, whose frames refer to the plan and to all objects of their callers.

        If the newest code of a plain name cannot be read at the moment, older code does not replace it.
        """
        if self.error is None:
            self.error = error.with_traceback(None)
        if self._is_ordered and _may_pass(error):
            self.candidates = iter(())


class Plan:
    """Chooses the realizations of a function and of everything in its import closure.

    Args:
        loader: the loader.
        root: the function.
        candidates: the root's realizations after the first.
        sources: the modules of the load.
        opened: the root's first realization, or None.
        error: the error of the first realization, or None.
        is_called: whether Python must be able to call the root.
    """

    def __init__(
        self,
        loader: Loader,
        root: str,
        candidates: Iterator[tuple[bytes, int]],
        sources: Sources,
        opened: Choice | None,
        error: Exception | None,
        *,
        is_called: bool = True,
    ) -> None:
        """Begin with the root."""
        self._loader = loader
        self._root = root
        self._is_called = is_called
        self._sources = sources
        self._opened = opened
        self._nodes: dict[str, _Node] = {root: _Node(root, candidates)}
        if error is not None:
            self._nodes[root].keep_error(error)
        self._pending: dict[str, None] = {root: None}  # an ordered set, because many imports are searched in it
        self._any_exhausted = False  # whether any function has run out of realizations
        self._split_nodes: dict[tuple[str, bytes], str] = {}  # by name and digest: the nodes for users that expect another type

    def choose(self) -> dict[str, Choice]:
        """Return the chosen realizations, by name, of the root and of everything that it reaches.

        Raise `CompcacheError` if the root cannot be loaded.
        """
        while True:
            self._choose_pending()
            chosen = self._reachable_choices()
            conflict = self._find_second_provider(chosen)
            if conflict is None and self._loader.linked is not None:
                conflict = self._loader.linked.find_conflict(chosen)
            if conflict is None:
                return chosen
            self.reject(*conflict)

    def _choose_pending(self) -> None:
        """Choose a realization for each pending function."""
        while self._pending:
            name, _ = self._pending.popitem()
            node = self._nodes[name]
            if node.choice is None:
                self._choose_next(name, node)

    def _candidates(self, name: str) -> Iterator[tuple[bytes, int]]:
        """Yield the realizations of an import. Those in modules that this load uses come first.

        For a plain name, these are the newest realization and those with the same content. If a module in use provides the name, a merged
        variable, only the realization in this module is yielded.
        """
        unloaded = []
        loader = self._loader
        provider = None
        if name in loader.merged:
            from compcache.hit.closures.providers import living_provider

            provider = living_provider(loader, loader.merged, name)
        if is_ordered(name):
            loader.use_present_index(self._sources)
            for candidate in loader.candidates(name, self._is_near, sources=self._sources):
                if provider is None or candidate[0] == provider.module_id:
                    yield candidate
            return
        listing = self._sources.listing
        listed = listing.functions.get(name) if listing is not None else None
        if listed is None or (not loader.is_loaded(listed[0]) and loader.loaded_modules()):
            listed = None  # realizations in loaded modules come first, and the index lists them
        elif provider is None or listed[0] == provider.module_id:
            yield listed
        for candidate in loader.candidates(name, sources=self._sources):
            if candidate == listed or (provider is not None and candidate[0] != provider.module_id):
                continue
            if candidate[0] in self._sources or loader.is_loaded(candidate[0]):
                yield candidate
            else:
                unloaded.append(candidate)
        yield from unloaded

    def _is_near(self, module_id: bytes) -> bool:
        """Return whether this load uses a module, or the loader has loaded it."""
        return module_id in self._sources or self._loader.is_loaded(module_id)

    def _find_second_provider(self, chosen: dict[str, Choice]) -> tuple[str, LinkError] | None:
        """Return the name of a choice that must not be used, and the reason, or None if there is no such choice.

        Its module defines a variable that the load has from another module.
        """
        listing = self._sources.listing
        variables = {name: choice for name, choice in chosen.items() if choice.record.signature.startswith(VARIABLE)}
        if listing is not None and not listing.unlisted:  # then the variables that several modules define are known
            variables = {name: choice for name, choice in variables.items() if name in listing.repeated}
        if not variables:
            return None
        by_module = {choice.module_id: name for name, choice in chosen.items() if name not in variables}
        for variable, choice in variables.items():
            for module_id, offset in self._loader.store.find(choice.record.name):
                user_name = by_module.get(module_id)
                if user_name is not None and module_id != choice.module_id and not self._loader.is_loaded(module_id):
                    from compcache.hit.closures.providers import defines_for_all, second_provider_error

                    if defines_for_all(self._loader, chosen[user_name].source, offset):
                        return user_name, second_provider_error(variable, module_id, choice.module_id)
        return None

    def _choose_next(self, name: str, node: _Node) -> None:
        """Choose the next usable realization of a function. If there is none, see `_handle_exhausted`."""
        choice, self._opened = self._opened, None
        while choice is not None or (choice := self._next_choice(name, node)) is not None:
            try:
                self._read_needs(choice)
                if name == self._root and self._is_called:
                    _require_entry(choice)
                if self._any_exhausted:
                    self._require_imports(choice)
                self._require_type(name, node, choice)
            except (CompcacheError, OSError) as error:
                reraise_interrupt(error)
                node.keep_error(error)
                choice = None
                continue
            node.choice = choice
            self._add_imports(name, choice)
            return
        self._handle_exhausted(name, node)

    def _handle_exhausted(self, name: str, node: _Node) -> None:
        """Handle a function without usable realizations: bind its importers to its stub, or reject them.

        Raise `CompcacheError` if the function is the root.
        """
        if name == self._root:
            raise self._root_error(node)
        if isinstance(node.error, IncompatibleTargetError):
            node.choice = self._loader.open_stub(name.partition(_SPLIT_MARK)[0], self._sources)
            if node.choice is not None:
                return
        self._any_exhausted = True
        for use, (user, expected) in list(node.uses.items())[1:]:  # the other types get a node of their own
            self._split_node(name, use, user, expected)
        for dependent in node.dependents:
            self._drop_dependent(dependent, name, node)

    def _add_imports(self, name: str, choice: Choice) -> None:
        """Add the imports of a choice to the plan."""
        nodes, pending = self._nodes, self._pending
        if len(choice.imports) >= MANY and not self._split_nodes and not self._any_exhausted:
            self._look_up_together(choice)
        for _, imported, _, expected in choice.imports:
            import_node = nodes.get(imported)
            if import_node is None:
                import_node = nodes[imported] = _Node(imported, self._candidates(imported))
                import_node.uses[expected[:_DIGEST]] = choice, expected
                pending[imported] = None
            elif expected[:_DIGEST] not in import_node.uses:
                import_node = self._node_for(imported, import_node, choice, expected)
            import_node.dependents[name] = None

    def _look_up_together(self, choice: Choice) -> None:
        """Move many imports that leave nothing to choose from `imports` to `together`. One import of each module stays.

        No import is moved while variables of other modules have providers, because near modules are preferred then.
        """
        loader, sources, store = self._loader, self._sources, self._loader.store
        if type(store) is not Store or store.has_in_memory() or loader.merged or loader.providers or loader.linked is not None:
            return

        def read_records(module_id: bytes, _: str, most: int) -> tuple[Source, bytes, bytes] | None:
            """Return a module's source, key and records; None if more than `most` bytes would be read. Exceptions: see `open_source`."""
            source = loader.open_source(module_id, sources)
            records = source.listed.records if source.listed is not None else b""
            if not records and source.file.records <= most:
                file = source.open_file(store)
                records = file.read(file.image, file.records)
            return (source, source.file.key, records) if records else None

        tables = tuple([segment.functions for segment in store.index.segments])
        try:
            choice.together, choice.imports = look_up_together(
                loader.runtime(), tables, choice.imports, store.processor().accepted, read_records
            )
        except (CompcacheError, OSError) as error:  # choosing for these imports meets the error again
            reraise_interrupt(error)

    def _node_for(self, name: str, node: _Node, user: Choice, expected: bytes) -> _Node:
        """Return the node of an import for a user that expects this type.

        The users of each type get a node of their own if the realization of `node` does not fit the type or cannot be compared with it, or
        if `node` has run out of realizations.
        """
        use = expected[:_DIGEST]
        if (name, use) in self._split_nodes:
            return self._nodes[self._split_nodes[name, use]]
        is_open = node.choice is None and name in self._pending
        try:
            is_fitting = is_open or (node.choice is not None and self._fits(node.choice, user, expected))
        except (CompcacheError, OSError) as error:  # choosing for the new node meets the error again
            reraise_interrupt(error)
            is_fitting = False
        if not is_fitting:
            return self._split_node(name, use, user, expected)
        node.uses[use] = user, expected
        return node

    def _split_node(self, name: str, use: bytes, user: Choice, expected: bytes) -> _Node:
        """Add a node for importers that expect another type of a function than others, and return it."""
        node = self._nodes[name]
        node.uses.pop(use, None)
        key = self._split_nodes[name, use] = f"{name}{_SPLIT_MARK}{len(self._split_nodes)}"
        new_node = self._nodes[key] = _Node(name, self._candidates(name))
        new_node.uses[use] = user, expected
        new_node.dependents.update(node.dependents)
        self._pending[key] = None
        return new_node

    def _node_name(self, name: str, expected: bytes) -> str:
        """Return the name of the node for an import of this type."""
        return self._split_nodes.get((name, expected[:_DIGEST]), name)

    def _require_type(self, name: str, node: _Node, choice: Choice) -> None:
        """Check that a realization fits its first user. Other users that it does not fit, and any such user of the root, get another node.

        Raise `SignatureMismatchError` if the realization does not fit the first user of another node than the root.
        """
        if not node.uses or (len(node.uses) == 1 and choice.record.link_type[:_DIGEST] in node.uses):
            return
        for number, (use, (user, expected)) in enumerate(list(node.uses.items())):
            if not self._fits(choice, user, expected):
                if number == 0 and name != self._root:
                    node.has_unfit_definition = node.has_unfit_definition or choice.record.signature.startswith(VARIABLE)
                    raise _mismatch_error(choice, user, *self._read_both_types(choice, user, expected))
                self._split_node(name, use, user, expected)

    def _fits(self, choice: Choice, user: Choice, expected: bytes) -> bool:
        """Return whether a realization has the type that a user expects. An unknown type fits."""
        defined_type = choice.record.link_type
        if not expected or not defined_type or expected[:_DIGEST] == defined_type[:_DIGEST]:
            return True
        from compcache.hit.link_types import compare_types

        return compare_types(*self._read_both_types(choice, user, expected))[0]

    def _read_both_types(self, choice: Choice, user: Choice, expected: bytes) -> tuple[str, str]:
        """Return the link type of a realization, and the link type that `user` expects, as text. See `_read_link_type`."""
        return self._read_link_type(choice, choice.record.link_type), self._read_link_type(user, expected)

    def _read_link_type(self, choice: Choice, link_type: bytes) -> str:
        """Return a link type as text, or "" if it is unknown. If its record is malformed, raise the exception of `Loader.condemn`."""
        from compcache.hit.link_types import read_type

        try:
            return read_type(lambda offset: choice.source.read_record(self._loader.store, offset), link_type)
        except FormatError as error:
            if choice.module_id not in self._sources:
                raise  # the module was condemned before
            raise self._loader.condemn(self._sources, choice.module_id, error) from error

    def _next_choice(self, name: str, node: _Node) -> Choice | None:
        """Return the next realization of a function that can be opened, or None. Weak definitions: see `_find_strongest`.

        If the dependents do not fit a definition of a variable, its weak definitions are passed over.
        """
        if self._split_nodes:
            name = name.partition(_SPLIT_MARK)[0]
        while (place := next(node.candidates, None)) is not None:  # `keep_error` may exchange the candidates
            module_id, offset = place
            try:
                if name in self._loader.merged:
                    from compcache.hit.closures.providers import refuse_other_mapping

                    refuse_other_mapping(self._loader, name, module_id)
                choice = self._loader.open_candidate(name, module_id, offset, self._sources)
            except FileNotFoundError as error:
                reraise_interrupt(error)
                continue  # the module was removed since the index was read
            except (CompcacheError, OSError) as error:
                reraise_interrupt(error)
                node.keep_error(error)
                continue
            if not choice.record.signature.startswith(WEAK):
                return choice
            if not node.has_unfit_definition:
                return self._find_strongest(name, node, choice, (module_id, offset))
        return None

    def _find_strongest(self, name: str, node: _Node, weak: Choice, place: tuple[bytes, int]) -> Choice | None:
        """Return the definition that replaces a weak one, as linkers choose it.

        That is a definition that is not merged, or else the first one, unless a common block is longer, or equally long with a larger
        alignment. The other definitions become the candidates of `node`. Unreadable definitions are not chosen. If one may be readable at
        another attempt, the result is None, because it may be the strongest.
        """
        places, best = [place, *node.candidates], weak
        if len(places) == 1:
            return weak
        from compcache.hit.link_types import extent_of

        best_extent: tuple[int, ...] = ()
        for candidate in places:
            try:
                choice = self._loader.open_candidate(name, *candidate, self._sources)
                extent = extent_of(self._read_link_type(choice, choice.record.link_type))
            except (CompcacheError, OSError) as error:
                reraise_interrupt(error)
                if _may_pass(error):
                    node.keep_error(error)
                    return None
                continue
            is_definition = choice.record.signature.startswith(VARIABLE)
            is_block = not choice.record.signature.startswith(_WITH_VALUE)
            if is_definition or not best_extent or (is_block and extent > best_extent):
                best, best_extent, place = choice, extent, candidate
            if is_definition:
                break
        node.candidates = iter([candidate for candidate in places if candidate != place])
        return best

    def _read_needs(self, choice: Choice) -> None:
        """Read the needs of a choice. If a record is malformed, raise the exception of `Loader.condemn`."""
        try:
            listed = choice.source.listed
            if listed is None or not listed.is_in_listing:
                list_records(self._loader, choice.source, self._sources)
            read_needs(self._loader, choice)
        except FormatError as error:
            raise self._loader.condemn(self._sources, choice.module_id, error) from error

    def _require_imports(self, choice: Choice) -> None:
        """Raise `UndefinedSymbolError` if an import of a choice has run out of realizations."""
        for _, imported, _, expected in choice.imports:
            node = self._nodes.get(self._node_name(imported, expected))
            if node is not None and node.uses and expected[:_DIGEST] not in node.uses:
                continue  # realizations may be missing only for other types
            if node is not None and node.choice is None and imported not in self._pending:
                exhausted = imported != choice.record.name and not _may_have_more(node)
                if exhausted:
                    raise self._missing_import_error(choice, imported, node)

    def _drop_dependent(self, name: str, missing: str, missing_node: _Node) -> None:
        """Reject the choice of a dependent if it imports the missing function."""
        node = self._nodes[name]
        choice = node.choice
        if choice is not None and any(self._node_name(imported, expected) == missing for _, imported, _, expected in choice.imports):
            node.keep_error(self._missing_import_error(choice, missing, missing_node))
            node.choice = None
            self._pending[name] = None

    def _missing_import_error(self, choice: Choice, imported: str, node: _Node) -> UndefinedSymbolError:
        """Return the error for an import without usable realizations."""
        self._loader.store.met_missing_import = True
        reason = f" ({node.error})" if node.error is not None else ""
        imported = imported.partition(_SPLIT_MARK)[0]
        error = UndefinedSymbolError(
            f"function {choice.record.name!r} of module {choice.module_id.hex()} needs {_describe_symbol(imported)}, but the cache "
            f"{self._loader.store.root} has no usable realization of it{reason}; add a module that defines it",
            symbols=[imported],
            func_name=choice.record.name,
            module_id=choice.module_id.hex(),
        )
        error.__cause__ = node.error
        return error

    def reject(self, name: str, error: Exception) -> None:
        """Reject a chosen realization that failed later. `choose` then continues without it."""
        node = self._nodes[name]
        node.keep_error(error)
        node.choice = None
        self._pending[name] = None

    def _reachable_choices(self) -> dict[str, Choice]:
        """Return the choices for the root and everything that it reaches, by node. The choices then import by the names of nodes."""
        chosen: dict[str, Choice] = {}
        stack = [self._root]
        while stack:
            name = stack.pop()
            if name in chosen:
                continue
            choice = self._nodes[name].choice
            assert choice is not None
            chosen[name] = choice
            if self._split_nodes:
                choice.imports = [
                    (key, self._node_name(imported, expected), places, expected) for key, imported, places, expected in choice.imports
                ]
            stack += [imported for _, imported, _, _ in choice.imports]
        return chosen

    def _root_error(self, node: _Node) -> Exception:
        """Return the error for the requested function: the first error against a realization.

        The result is `NotCachedError` if there is no such error, or it says that the realization is damaged or is for other hosts.
        """
        error, node.error = node.error, None  # the frames of a raised exception refer to the plan
        if error is None or isinstance(error, (IncompatibleTargetError, IntegrityError)):
            not_cached = NotCachedError.of(self._root, self._loader.store.root, error or self._loader.store.index.problem)
            not_cached.__cause__ = error
            return not_cached
        return error


def _mismatch_error(choice: Choice, user: Choice, defined: str, expected: str) -> SignatureMismatchError:
    """Return the error for a realization whose type is not the one that `user` expects."""
    from compcache.hit.link_types import compare_types

    return SignatureMismatchError(
        f"{_describe_symbol(choice.record.name)} of module {choice.module_id.hex()} is {defined}, but {user.record.name!r} of module "
        f"{user.module_id.hex()} uses it as {expected}: {compare_types(defined, expected)[1]}",
        func_name=choice.record.name,
        module_id=choice.module_id.hex(),
    )


def _may_pass(error: BaseException) -> bool:
    """Return whether an error comes from a failure of the system that another attempt may not meet."""
    cause: BaseException | None = error
    while cause is not None and getattr(cause, "errno", None) is None:
        cause = cause.__cause__
    return isinstance(cause, OSError) and cause.errno not in UNUSABLE


def _may_have_more(node: _Node) -> bool:
    """Return whether a node without a choice has untried realizations."""
    for candidate in node.candidates:
        node.candidates = chain([candidate], node.candidates)
        return True
    return False


def _describe_symbol(symbol: str) -> str:
    """Return a symbol in quotes, with its name in source code if compilers have mangled it."""
    if not symbol.startswith(("_Z", "_R")):
        return repr(symbol)
    from compcache.images.libraries import demangle

    plain = demangle(symbol)
    return repr(symbol) if plain == symbol else f"{symbol!r} ({plain})"


def _require_entry(choice: Choice) -> None:
    """Check that Python can call a function. Raise `SignatureError` if it can only be imported."""
    record = choice.record
    if record.signature.startswith(LINK_ONLY):
        kind = record.signature.removeprefix(LINK_ONLY)
        advice = "name it in functions=" if kind == "hidden function" else "export a function that returns its value"
        raise SignatureError(
            f"the symbol {record.name!r} of module {choice.module_id.hex()} is a {kind}, which other modules can import "
            f"but Python cannot call: {advice}"
        )
    if record.entry == NO_ENTRY:
        raise SignatureError(
            f"function {record.name!r} of module {choice.module_id.hex()} cannot be called from Python: "
            f"{record.signature.removeprefix('! ')}; call it from a function in another module that passes the arguments and the result "
            "by pointer"
        )


def require_usable(store: Store, file: ModuleFile) -> None:
    """Check that this host can run the code of a module, and that the cache's options allow it.

    Raises:
        IncompatibleTargetError: the module cannot be used. The message says why.
        KnownFaultError: a maker of the module is known to make wrong code.
        FormatError: the records of the module are damaged.
        StorageError: the file cannot be read.
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
            f"module {module} is for {record.triple} (ABI {record.abi}), but this process is {platform} "
            f"(ABI {host.ABI_VERSION}): compile the module here",
            module_id=module,
        )
    if not host.libc_serves(record.libc):
        raise IncompatibleTargetError(
            f"module {module} needs {record.libc} or later, but this process has {host.this_libc() or 'another C library'}: compile it "
            "here, or on the oldest system that will use it",
            module_id=module,
        )
    accepted.add(file.target_id)


def _require_sound(store: Store, file: ModuleFile) -> None:
    """Check that no maker of a module is known to make wrong code. The refusal is recorded once per file.

    Raise `KnownFaultError` if a maker has a known fault, or `FormatError` if the records are damaged.
    """
    from compcache.formats.known_faults import fault_of
    from compcache.formats.makers import read_makers

    fault = fault_of(read_makers(file.read_record, file.records))
    if fault:
        if store.is_first_warning(file.path):
            store.stats.refused(file.path, fault)
        raise KnownFaultError(f"module {file.module_id.hex()} is not used: {fault}; compile it again", module_id=file.module_id.hex())


def _require_llvm(store: Store, file: ModuleFile) -> None:
    """Check that a module was compiled by a version of LLVM that this cache accepts.

    Raise `IncompatibleTargetError` if the version is older than `min_llvm`, or `FormatError` if the module's record is damaged.
    """
    from compcache.formats.records import decode_module, version_numbers

    compiled_by = decode_module(file.read_record(0)).llvm_version
    if version_numbers(compiled_by) < version_numbers(store.min_llvm):
        raise IncompatibleTargetError(
            f"module {file.module_id.hex()} was compiled by LLVM {compiled_by}, "
            f"but this cache requires {store.min_llvm} or later (min_llvm): compile it again",
            module_id=file.module_id.hex(),
        )


def require_features(store: Store, file: ModuleFile, record: FunctionRecord) -> None:
    """Raise `IncompatibleTargetError` if this host lacks a feature that a function requires, or `FormatError` for a damaged record."""
    from compcache.formats.records import decode_module

    header = decode_module(file.read_record(0))
    features = header.features_of(record)
    processor = store.processor()
    if not processor.meets(features):
        from compcache.targets.processor_words import missing_features
        from compcache.wording import join_first

        module = file.module_id.hex()
        raise IncompatibleTargetError(
            f"function {record.name!r} of module {module} was compiled for {header.cpu} and uses "
            f"{join_first(missing_features(features, processor), 8)}, which this {processor.cpu() or 'processor'} does not have: compile "
            "it here, or for a CPU whose features all hosts have",
            module_id=module,
        )
    processor.accept(header.requirement(features))
