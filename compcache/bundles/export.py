"""Export of functions and their dependencies to a bundle."""

from __future__ import annotations

import os
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from compcache.bundles.layout import LISTING, module_member_name, signature_member_name, strip_compilation_data, write_bundle
from compcache.errors import CompcacheError, FormatError, NotCachedError, StorageError
from compcache.formats import host
from compcache.formats.footer import encode_container
from compcache.formats.manifest import decode_function
from compcache.formats.order import GREATEST_NUMBER
from compcache.formats.records import decode_module
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.atomic_file import unique_name
from compcache.publish.module_reader import linked_closures, needs_of
from compcache.publish.module_rows import make_row
from compcache.publish.open_segments import readable_segments
from compcache.publish.packs import encode_pack, entries_of, latest_entries, packs_in
from compcache.signing.minisign import SUFFIX, minisign_signature
from compcache.store import is_ordered
from compcache.targets.machine import NATIVE, machine_for, parse_targets
from compcache.targets.processor_words import processor_with

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from compcache.formats.host import Processor
    from compcache.publish.module_rows import Row
    from compcache.signing.keys import SecretKey
    from compcache.store import Store

__all__ = ["export"]

#: The characters that separate columns and rows of the listing.
_ESCAPES = {ord("\t"): r"\t", ord("\n"): r"\n"}


class _Candidate(NamedTuple):
    """A realization that can be exported.

    Attributes:
        module_id: its module.
        requirement: the requirement of its code.
        cpu: the displayed name of its CPU.
        order: its addition number, which is less in later directories (`LayeredStore.find_numbered`). 0 for a content name.
        age: 0 for the newest addition of a plain name and for code of the same content; larger for older additions.
        imports: the names that the function imports.
    """

    module_id: bytes
    requirement: str
    cpu: str
    order: int
    age: int
    imports: tuple[str, ...]


class _ExportedModule:
    """A module in a bundle: its content, its row, its signature file, and the greatest order of its candidates, or 0."""

    def __init__(self, content: bytes, row: Row, signatures: bytes) -> None:
        self.content = content
        self.row = row
        self.signatures = signatures
        self.order = 0


def export(
    store: Store, names: Iterable[str], path: str, targets: Iterable[str] | str | None, *, closure: bool, minisign: bool, linked: bool
) -> tuple[str, ...]:
    """Write functions to a bundle at `path`; return the names of the functions in it, sorted. See `Cache.export`."""
    names = list(dict.fromkeys(names))
    if not names:
        raise ValueError("no function to export: give at least one name")
    signer = store.publish_key if minisign else None
    if minisign and signer is None:
        raise ValueError("minisign=True requires a secret key: open the cache with publish_key, or set COMPCACHE_PUBLISH_KEY")
    processors = _target_processors(store, targets)
    modules, lines, exported_names = _collect_modules(store, names, processors, closure=closure)
    if linked:
        for module_id, entry in linked_closures(store).items():
            if modules.keys() >= {*entry.requires}:
                modules[module_id] = _read_module(store, module_id)
    numbers = _addition_numbers(modules)
    contents = {key: _member_content(key, module, numbers.get(key)) for key, module in modules.items()}
    signatures = {key: module.signatures for key, module in modules.items()}
    pack = _make_pack(store, contents, exported_names)
    if pack is not None:
        key, contents[key], signatures[key] = pack
    members = {module_member_name(key): data for key, data in contents.items()}
    members |= {signature_member_name(key): data for key, data in signatures.items() if data}
    rows = ["\t".join([name.translate(_ESCAPES), *row]) + "\n" for name, *row in sorted(lines)]
    members[LISTING] = "".join(rows).encode("utf-8", "surrogateescape")
    _write_files(path, members, signer)
    return tuple(sorted({name for name, _, _ in lines}))


def _collect_modules(
    store: Store, names: Iterable[str], processors: dict[str, Processor], *, closure: bool
) -> tuple[dict[bytes, _ExportedModule], set[tuple[str, str, str]], set[str]]:
    """Collect the modules of functions and, with `closure`, of the functions that they import.

    Returns:
        The modules by module_id, the rows of the listing, and the names of the functions and of all their imports.

    Raises:
        NotCachedError: one of `names` is not cached, or no realization of a function can run on one of the processors.
    """
    modules: dict[bytes, _ExportedModule] = {}
    lines: set[tuple[str, str, str]] = set()
    find = cache(partial(_find_candidates, store))
    served: dict[str, dict[str, bool]] = {target: {} for target in processors}
    pending = list(names)
    roots, known_names = frozenset(pending), set(pending)
    while pending:
        name = pending.pop()
        for candidate in _choose_realizations(store, name, find, processors, served, required=name in roots):
            module = modules.get(candidate.module_id)
            if module is None:
                module = modules[candidate.module_id] = _read_module(store, candidate.module_id)
            if candidate.order:
                module.order = max(candidate.order, module.order or candidate.order)
            lines.add((name, candidate.module_id.hex(), candidate.cpu))
            new_names = [imported for imported in module.row.imports if closure and imported not in known_names]
            known_names.update(new_names)
            pending += new_names
    return modules, lines, known_names


def _addition_numbers(modules: Mapping[bytes, _ExportedModule]) -> dict[bytes, int]:
    """Return new addition numbers for the modules of a bundle that have numbers, because a bundle does not record their directories.

    A module keeps its number if the number is greater than the new numbers of the older modules with the same plain names, which come from
    its own and later directories. Otherwise the module gets a number one greater than the greatest of those.
    """
    numbers: dict[bytes, int] = {}
    newest: dict[str, tuple[int, int]] = {}
    for order, module_id in sorted((module.order, module_id) for module_id, module in modules.items() if module.order):
        names = [name for name in modules[module_id].row.names if is_ordered(name)]
        older = [number + (other_order < order) for other_order, number in (newest[name] for name in names if name in newest)]
        numbers[module_id] = max([order & GREATEST_NUMBER, *older])
        newest.update(dict.fromkeys(names, (order, numbers[module_id])))
    return numbers


def _target_processors(store: Store, targets: Iterable[str] | str | None) -> dict[str, Processor]:
    """Return a processor for each target, by the target's name, or {} for None. Raise `CompileError` if a target is not valid."""
    processors = {}
    if targets is not None:
        for cpu, changes in parse_targets(targets):
            name = ",".join(filter(None, (cpu, changes)))
            if name == NATIVE:
                processors[name] = store.processor()
            else:
                machine = machine_for(cpu, changes, store.host(), host.platform_name())
                processors[name] = processor_with(machine.requires, host.platform_name(), machine.cpu)
    return processors


def _find_served(find: Callable[[str], list[_Candidate]], name: str, processor: Processor, served: dict[str, bool]) -> None:
    """Record in `served` whether a load on a processor finds a function, and the same for all its direct and indirect imports.

    A function is found if one of its realizations can run and all imports of this realization are found. `find` returns the realizations.
    """
    importers: dict[str, list[str]] = {}
    names, pending = [name], list[str]()
    for each in names:  # grows during the iteration
        if each not in served:
            served[each] = True
            pending.append(each)
            for imported in {imported for candidate in find(each) for imported in candidate.imports}:
                importers.setdefault(imported, []).append(each)
                names.append(imported)
    for each in pending:  # grows during the iteration
        if served[each] and not any(
            processor.rank(candidate.requirement) != host.UNUSABLE and all(map(served.__getitem__, candidate.imports))
            for candidate in find(each)
        ):
            served[each] = False
            pending += importers.get(each, ())


def _choose_realizations(
    store: Store,
    name: str,
    find: Callable[[str], list[_Candidate]],
    processors: dict[str, Processor],
    served: dict[str, dict[str, bool]],
    *,
    required: bool,
) -> list[_Candidate]:
    """Return the realizations to export: for each processor the realization that a load uses, or all if `processors` is empty.

    A load passes over realizations with an import that is missing, directly or indirectly. They are exported, too, because a later addition
    may provide the import. `find` returns the realizations of a function. `served` has the results of `_find_served` for each target.

    The list is empty if the function is not in the cache and `required` is false.

    Raise `NotCachedError` if a `required` function is not in the cache, or no realization can run on one of the processors.
    """
    candidates = find(name)
    if not candidates:
        if not required:  # a load may find the name in the process, or in a function that is added later
            return []
        raise NotCachedError.of(name, store.root)
    if not processors:
        return candidates
    chosen: dict[bytes, _Candidate] = {}
    for target, processor in processors.items():
        usable = [candidate for candidate in candidates if processor.rank(candidate.requirement) != host.UNUSABLE]
        if not usable:
            cpus = ", ".join(sorted({candidate.cpu for candidate in candidates}))
            raise NotCachedError(
                f"function {name!r} has no realization that {target} can run, only realizations for {cpus}: "
                f"add the function with targets=[{target!r}, ...]",
                func_name=name,
                cache_dir=store.root,
            )
        usable.sort(key=lambda candidate: (candidate.age, -processor.rank(candidate.requirement)))
        _find_served(find, name, processor, served[target])
        for candidate in usable:
            chosen[candidate.module_id] = candidate
            if all(map(served[target].__getitem__, candidate.imports)):
                break
    return list(chosen.values())


def _find_candidates(store: Store, name: str) -> list[_Candidate]:
    """Return the realizations of a function that can be read. Damaged and removed modules are skipped."""
    candidates = []
    realizations = store.find_all(name)
    rows = {module_id: (order, content) for order, _, module_id, _, content in store.find_numbered(name)} if is_ordered(name) else {}
    indexed_rows = [rows[module_id] for module_id, _ in realizations if module_id in rows]
    # The first one has the newest content, but perhaps an older number: of equal content, the code that fits this host best is first.
    newest = (max([order for order, _ in indexed_rows]), indexed_rows[0][1]) if indexed_rows else (0, b"")
    for module_id, offset in realizations:
        order, content = rows.get(module_id, newest)  # modules in memory have no row
        age = 0 if any(content) and content == newest[1] else newest[0] - order
        # The module can be damaged, or was removed in the meantime.
        with suppress(CompcacheError, OSError), store.open_module(module_id) as module:
            header = decode_module(module.read_record(0))
            record = decode_function(module.read_record(offset))
            if record.name == name:
                imports = tuple([name for needs in needs_of(module, record.needs) for _, name, _, _ in needs.imports])
                candidates.append(_Candidate(module_id, header.requirement(header.features_of(record)), header.cpu, order, age, imports))
    return candidates


def _read_module(store: Store, module_id: bytes) -> _ExportedModule:
    """Read a module for a bundle. See `Store.open_module` for the exceptions.

    The signature file contains a signature by the store's publish key, if there is one. The file is empty if there are no signatures.
    """
    with store.open_module(module_id) as module:
        footer = module.footer()
        row = make_row(module_id, module.read(footer.image, footer.records), module.read(footer.content, footer.notes))
        data = module.read(0, module.size)
        requirement = decode_module(module.read_record(0)).requirement()
    holder = next((layer for layer in (store, *store.layers) if module.path.startswith(layer.root + "/")), store)
    return _ExportedModule(data, row, _add_own_signature(store, holder.signatures_of(module_id), module_id, requirement))


def _member_content(module_id: bytes, module: _ExportedModule, number: int | None) -> bytes:
    """Return the content of a module's member in the bundle, with an addition number unless `number` is None.

    Raise `FormatError` if the notes of the module are damaged.
    """
    try:
        return strip_compilation_data(module.content, number)
    except FormatError as error:
        message = f"module {module_id.hex()} cannot be exported: {error}; remove the module, and compile its functions again"
        raise FormatError(message) from error


def _add_own_signature(store: Store, signatures: bytes, module_id: bytes, requirement: str) -> bytes:
    """Return a signature file's content with a signature by the store's publish key, if any. Raise `MissingPackageError` without PyNaCl."""
    if store.publish_key is None:
        return signatures
    from compcache.signing.signatures import add_signature

    return add_signature(signatures, store.publish_key, store.trusted_keys, module_id, requirement)


def _make_pack(store: Store, modules: Collection[bytes], names: Collection[str]) -> tuple[bytes, bytes, bytes] | None:
    """Pack the data entries of the exported functions.

    An entry is exported if it requires only exported modules. An entry without required modules is exported if it has one of the names.
    `modules` has the module_ids of the exported modules, and `names` the names of the exported functions.

    Return the module_id, the content and the signature file of the pack; None if no entry is exported.

    Raise `FormatError` if a segment or a module is damaged, or `OSError` if it cannot be read. See `_add_own_signature`, too.
    """
    packs = [entries_of(layer, pack) or () for layer in (store, *store.layers) for pack in packs_in(readable_segments(layer.index))]
    entries = [
        entry
        for entry in latest_entries(chain.from_iterable(packs))
        if not entry.gone and all(key in modules for key in entry.requires) and (entry.requires or entry.name in names)
    ]
    if not entries:
        return None
    built = encode_pack(entries)
    module_id, parts = encode_container(*built.sections, None)
    signatures = _add_own_signature(store, b"", module_id, built.header.requirement())
    return module_id, strip_compilation_data(b"".join(parts)), signatures


def _write_files(path: str, members: dict[str, bytes], signer: SecretKey | None) -> None:
    """Write a bundle, and its minisign signature if `signer` is not None. Each file is renamed to its path when it is complete.

    Raise `StorageError` if a file cannot be written.
    """
    scratch = f"{path}.{unique_name()}"
    scratch_signature = scratch + SUFFIX
    try:
        try:
            write_bundle(scratch, members)
            if signer is not None:
                with open(scratch_signature, "xb") as file:
                    file.write(minisign_signature(scratch, os.path.basename(path), signer))
            os.replace(scratch, path)
            if signer is not None:
                os.replace(scratch_signature, path + SUFFIX)
        finally:
            for file_path in (scratch, scratch_signature):
                with suppress(FileNotFoundError):
                    os.unlink(file_path)
    except OSError as error:
        reraise_interrupt(error)
        raise StorageError(
            f"cannot write the bundle {path} ({error.strerror or error}): give another path", path=path, errno=error.errno
        ) from error
