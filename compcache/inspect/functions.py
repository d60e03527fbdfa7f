"""Details of cached functions for tools. This module imports msgpack and dataclasses, and is not on the hit path."""

from __future__ import annotations

import os
from copy import copy
from typing import TYPE_CHECKING

from compcache.depgraph import DependencyGraph
from compcache.digest import name_key
from compcache.directory.places import INDEX, MODULES, QUARANTINE, VOLUMES
from compcache.errors import CompcacheError, FormatError, NotCachedError, StorageError
from compcache.files import SHORTAGES
from compcache.formats.graph import INLINED
from compcache.formats.manifest import LINK_ONLY, LINKED, STARTUP, decode_function
from compcache.formats.records import GlobalRecord, decode_global, decode_module
from compcache.hit.target import link_name_of
from compcache.inspect.descriptions import CacheInfo, FunctionReport, GlobalReport, Realization
from compcache.inspect.provenance import provenance
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.module_reader import needs_of, read_graph, read_notes
from compcache.targets.processor_words import features_in
from compcache.usage.ledger import Uses
from compcache.usage.listings import read_parts_and_entries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compcache.directory.module_file import ModuleFile
    from compcache.formats.graph import ModuleGraph
    from compcache.hit.loader import Loader
    from compcache.inspect.descriptions import Provenance
    from compcache.store import Store
    from compcache.usage.module_files import Progress

__all__ = ["cache_info", "dependencies", "describe_function", "realizations", "unreadable_error"]


def realizations(store: Store, loader: Loader, func_name: str) -> tuple[Realization, ...]:
    """Return the stored copies of a function. Copies in linked closures come last. Copies that cannot be read are left out."""
    loaded = {module.module_id for module in loader.loaded_modules()}
    copies = []
    linked = [(module_id, offset ^ LINKED) for module_id, offset in store.find_here(func_name, linked=True) if offset & LINKED]
    for module_id, offset in [*store.find_all(func_name), *linked]:
        with suppress(FileNotFoundError, CompcacheError), store.open_module(module_id) as module:
            copies.append(_describe_copy(loader, module, offset, loaded=module_id in loaded))
    return tuple(copies)


def _describe_copy(loader: Loader, module: ModuleFile, offset: int, *, loaded: bool) -> Realization:
    """Return the description of the copy whose record is at `offset` in an open module, with the reason if this host cannot use it.

    `loaded` says whether this process has loaded the copy. Raise `FormatError` or `StorageError` if a record cannot be read.
    """
    record = decode_function(module.read_record(offset))
    header = decode_module(module.read_record(0))
    problem = ""
    try:
        loader.require_usable(module)
        loader.require_features(module, record)
    except CompcacheError as error:
        problem = str(error)
    return Realization(
        func_name=record.name,
        link_name=link_name_of(record.symbol, module.module_id),
        module_id=module.module_id.hex(),
        signature=record.signature.removeprefix(LINK_ONLY),
        cpu=header.cpu,
        features=features_in(header.features_of(record)),
        llvm_version=header.llvm_version,
        image_kind=header.image_kind,
        size=module.size,
        created=float(read_notes(module).get("created", 0.0)),
        loaded=loaded,
        problem=problem,
    )


def dependencies(store: Store, loader: Loader, func_name: str, *, transitive: bool) -> tuple[str, ...]:
    """Return the func_names to which a function refers, directly or through private functions of its module.

    With `transitive`, add the names to which these functions refer, and so on. Functions that are not cached add no names.

    See `unreadable_error` for the exceptions.
    """
    order: dict[str, None] = {}
    pending = [func_name]
    visited = {func_name}
    while pending:
        name = pending.pop(0)
        direct, failure = _direct_dependencies(store, loader, name)
        if direct is None and name == func_name:
            raise unreadable_error(store, name, failure)
        for dependency in direct or ():
            order[dependency] = None
            if transitive and dependency not in visited:
                visited.add(dependency)
                pending.append(dependency)
    return tuple(order)


def _direct_dependencies(store: Store, loader: Loader, func_name: str) -> tuple[list[str] | None, Exception | None]:
    """Return the func_names to which a function refers, from its first readable module, and None.

    If no module is readable, return None and the first error; None twice if the function has no module.
    """
    failure: Exception | None = None
    for module_id, offset in loader.candidates(func_name):
        try:
            with store.open_module(module_id) as module:
                symbol = decode_function(module.read_record(offset)).symbol
                return _named_successors(_read_graph_with(module, symbol), symbol), None
        except (FileNotFoundError, CompcacheError) as error:
            reraise_interrupt(error)
            failure = failure or copy(error)  # without the frames, which refer to the objects of all callers
    return None, failure


def unreadable_error(store: Store, func_name: str, failure: Exception | None) -> Exception:
    """Return the exception for a function without a readable module. `failure` is the first error of its modules, or None.

    A `StorageError` or `FormatError` is returned itself, because the function is in the cache. Otherwise the exception is `NotCachedError`.
    """
    if isinstance(failure, (FormatError, StorageError)):
        return copy(failure)  # the frames of the raised exception may refer to `failure`
    missing = NotCachedError.of(func_name, store.root)
    missing.__cause__ = failure
    return missing


def _read_graph_with(module: ModuleFile, symbol: str) -> ModuleGraph:
    """Return the dependency graph of an open module after checking that it contains a symbol.

    Raise `FormatError` if the graph is damaged, or does not contain the symbol, or `StorageError` if the module cannot be read.
    """
    graph = read_graph(module)
    if symbol not in graph.nodes:
        raise FormatError(f"the dependency graph of module {module.module_id.hex()} does not contain its symbol {symbol!r}")
    return graph


def _named_successors(graph: ModuleGraph, symbol: str) -> list[str]:
    """Return the func_names to which a symbol refers, directly or through nodes without a func_name."""
    edges = {name: node.references for name, node in graph.nodes.items()}
    named = {
        name: node.func_name
        for name, node in graph.nodes.items()
        if node.func_name is not None and node.kind in ("function", "import", "variable", INLINED)
    }
    transparent = [name for name in edges if name not in named]
    reached = DependencyGraph(edges).through(symbol, transparent)
    return list(dict.fromkeys([named[name] for name in reached if name in named]))


def cache_info(store: Store, maps_files: int, max_size: int | None = None, progress: Progress | None = None) -> CacheInfo:
    """Return a summary of a cache directory; see `CacheInfo`. Outdated module lists are made again first, because they hold the counts.

    `maps_files` is the argument of `Loader`. `max_size` is the size limit passed to `Cache`, in bytes; None for the limit in the settings.

    Raise `MissingPackageError` if LLVM is not installed. See `find_linker` and `effective_limit` for other exceptions.
    """
    from compcache import __version__
    from compcache.formats import host
    from compcache.images.linkers.find import find_linker
    from compcache.publish.host_file import query_host
    from compcache.usage.limits import effective_limit
    from compcache.usage.snapshot import count_modules
    from compcache.usage.statistics import hits_and_misses
    from compcache.usage.whole_directories import other_formats

    counts = count_modules(store, progress)
    hits, misses = hits_and_misses(store)
    machine = query_host(store)
    return CacheInfo(
        directory=store.root,
        exists=os.path.isdir(store.root),
        format=f"{MODULES.directory}, {INDEX.directory}",
        other_formats=tuple(other_formats(store)),
        modules=counts.modules,
        functions=counts.names,
        realizations=counts.realizations,
        size=counts.size,
        max_size=effective_limit(max_size, store.root),
        hits=hits,
        misses=misses,
        other_size=_total_size(store, leave_out={MODULES.directory, VOLUMES.directory}),
        quarantined=len(store.names(QUARANTINE)),
        linker=str(find_linker() or "none"),
        loader=_describe_loader(store, maps_files),
        platform=host.platform_name(),
        cpu=machine.cpu,
        features=machine.features,
        llvm_version=machine.llvm_version,
        version=__version__,
    )


def _describe_loader(store: Store, maps_files: int) -> str:
    """Describe how images are loaded, for `CacheInfo.loader`."""
    from compcache.hit.target import load_runtime
    from compcache.images.kinds import is_mapped, make_side
    from compcache.images.making import usual_kind
    from compcache.images.shared.load import describe_loading

    loaded = make_side(usual_kind()).LOADED
    return f"{loaded}, {describe_loading(load_runtime(), store.root, maps_files)}" if is_mapped(usual_kind()) else loaded


def _total_size(store: Store, *, leave_out: set[str]) -> int:
    """Return the total size in bytes of the files in the cache directory. Subdirectories of the root in `leave_out` are not counted.

    Raise `StorageError` if a directory cannot be read at the moment (`SHORTAGES`).
    """
    total = 0

    def require_absent(error: OSError) -> None:
        if error.errno in SHORTAGES:
            raise store.unreadable_error(store.root, error) from error

    try:
        for directory, directories, files, descriptor in os.fwalk(store.root, onerror=require_absent):
            if directory == store.root:
                directories[:] = set(directories) - leave_out
            for name in files:
                with suppress(OSError):  # the file may have been removed in the meantime
                    total += os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_size
    except OSError as error:  # the directory may not exist
        reraise_interrupt(error)
        require_absent(error)
    return total


def describe_function(store: Store, loader: Loader, func_name: str) -> FunctionReport:
    """Return the details of a function.

    Raises:
        NotCachedError: no intact module realizes the function.
        FormatError: the dependency graph of the module is damaged, or does not contain the function.
        StorageError: the module's file cannot be read.
    """
    while True:
        copies = realizations(store, loader, func_name)
        offsets = dict(store.find_all(func_name)) if copies else {}
        copies = tuple([copy for copy in copies if bytes.fromhex(copy.module_id) in offsets])
        if not copies:
            raise NotCachedError.of(func_name, store.root, store.index.problem)
        with suppress(FileNotFoundError):  # another process has removed a copy: describe the copies that are left
            return _describe_copies(store, func_name, copies, offsets)


def _describe_copies(store: Store, func_name: str, copies: tuple[Realization, ...], offsets: Mapping[bytes, int]) -> FunctionReport:
    """Return the details of a function from its copies, whose records are at `offsets` in their modules.

    Raises:
        FileNotFoundError: the module of a copy was removed.
        FormatError: the dependency graph of the module is damaged, or does not contain the function.
        StorageError: the module's file cannot be read.
    """
    chosen = next((copy for copy in copies if not copy.problem), copies[0])
    module_id = bytes.fromhex(chosen.module_id)
    offset = offsets[module_id]
    with store.open_module(module_id) as module:
        record = decode_function(module.read_record(offset))
        globals_ = _filled_globals(module, record.needs)
        graph = _read_graph_with(module, record.symbol)
        notes = read_notes(module)
        has_code = module.footer().bitcode > 0
    identity = notes.get("identity")
    key = name_key(func_name)
    uses = Uses(store).of([bytes.fromhex(copy.module_id) for copy in copies]).uses
    parts, entries = read_parts_and_entries(store, func_name)
    return FunctionReport(
        func_name=func_name,
        signature=chosen.signature,
        module_id=chosen.module_id,
        realizations=copies,
        dependencies=tuple(_named_successors(graph, record.symbol)),
        globals=globals_,
        natives=_native_symbols(graph, record.symbol),
        has_code=has_code,
        seconds=float(notes.get("seconds", 0.0)),
        identity=tuple([(str(name), str(text)) for name, text in identity.items()]) if isinstance(identity, dict) else (),
        uses=tuple([uses.get((key, bytes.fromhex(copy.module_id)), (0, 0.0)) for copy in copies]),
        parts=tuple(parts),
        entries=tuple(entries),
        provenance=tuple([_read_provenance(store, copy) for copy in copies]),
    )


def _read_provenance(store: Store, copy: Realization) -> Provenance:
    """Return the origin of a copy from its module. See `Store.open_module` and `provenance` for the exceptions."""
    with store.open_module(bytes.fromhex(copy.module_id)) as module:
        return provenance(store, module)


def _filled_globals(module: ModuleFile, needs_offset: int) -> tuple[GlobalReport, ...]:
    """Return the globals that a load of a function fills, sorted by name. `needs_offset` is the offset of its needs, or 0.

    Raise `FormatError` for a damaged record, or `StorageError` if the module cannot be read.
    """
    reports: dict[int, GlobalReport] = {}
    for record in needs_of(module, needs_offset):
        for offset in record.globals:
            stored = decode_global(module.read_record(offset))
            if stored.kind != STARTUP:
                reports.setdefault(offset, _describe_global(stored))
    return tuple(sorted(reports.values(), key=lambda report: report.name))


def _describe_global(record: GlobalRecord) -> GlobalReport:
    """Return the description of a global variable. A definition that cannot be decoded is described by the error."""
    from compcache.globals import decode_definition

    try:
        definition = repr(decode_definition(record.kind, record.payload))
    except CompcacheError as error:
        definition = str(error)
    return GlobalReport(record.name, record.kind, record.form, record.size, definition)


def _native_symbols(graph: ModuleGraph, symbol: str) -> tuple[str, ...]:
    """Return the native symbols to which a function refers, directly or through private functions and variables."""
    nodes = graph.nodes
    edges = DependencyGraph({name: node.references for name, node in nodes.items()})
    transparent = [name for name, node in nodes.items() if node.kind == "variable" or (node.kind == "function" and node.func_name is None)]
    return tuple(name for name in edges.through(symbol, transparent) if nodes[name].kind == "native")
