"""Puts functions, and what they need, into a bundle."""

from __future__ import annotations

import os
from itertools import chain
from typing import TYPE_CHECKING

from compcache.bundles.layout import LISTING, content_only, module_member, signature_member, write_bundle
from compcache.errors import CompcacheError, NotCachedError, StorageError
from compcache.files import reraise_interrupt
from compcache.formats import host
from compcache.formats.footer import encode_container
from compcache.formats.manifest import decode_function
from compcache.formats.records import decode_module
from compcache.interrupts import suppress
from compcache.publish.atomic_file import unique_name
from compcache.publish.module_rows import make_row
from compcache.publish.packs import encode_pack, entries_of, holding, packs_in
from compcache.signing.minisign import SUFFIX, minisign_signature
from compcache.targets.machine import NATIVE, machine_for, parse_targets
from compcache.targets.processor_words import processor_with

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from compcache.formats.host import Processor
    from compcache.publish.module_rows import Row
    from compcache.signing.keys import SecretKey
    from compcache.store import Store

__all__ = ["export"]


class _Candidate:
    """A realization that can be exported."""

    def __init__(self, module_id: bytes, requirement: str, cpu: str) -> None:
        self.module_id = module_id
        self.requirement = requirement
        self.cpu = cpu


def export(
    store: Store, names: Iterable[str], path: str, targets: Iterable[str] | str | None, *, closure: bool, minisign: bool
) -> tuple[str, ...]:
    """See `Cache.export`."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        raise ValueError("a bundle needs at least one function")
    signer = store.publish_key if minisign else None
    if minisign and signer is None:
        raise ValueError("minisign=True needs a publish_key ($COMPCACHE_PUBLISH_KEY), and this cache has none")
    hosts = _processors(store, targets)
    chosen: dict[bytes, bytes] = {}
    rows: dict[bytes, Row] = {}
    signatures: dict[bytes, bytes] = {}
    lines = set()
    seen = set(wanted)
    roots = frozenset(wanted)
    while wanted:
        name = wanted.pop()
        for candidate in _choose(store, name, hosts, required=name in roots):
            module_id = candidate.module_id
            if module_id not in chosen:
                chosen[module_id], rows[module_id], signatures[module_id] = _read(store, module_id)
            lines.add(f"{name}\t{module_id.hex()}\t{candidate.cpu}\n")
            new = [other for other in rows[module_id].imports if closure and other not in seen]
            seen.update(new)
            wanted += new
    pack = _pack_of(store, chosen, seen)
    if pack is not None:
        key, chosen[key], signatures[key] = pack
    members = {module_member(key): data for key, data in chosen.items()}
    members |= {signature_member(key): data for key, data in signatures.items() if data}
    members[LISTING] = "".join(sorted(lines)).encode("utf-8", "surrogateescape")
    _write(path, members, signer)
    return tuple(sorted({line.partition("\t")[0] for line in lines}))


def _processors(store: Store, targets: Iterable[str] | str | None) -> dict[str, Processor]:
    """Return the processors of targets, by the targets' names."""
    found = {}
    for cpu, changes in parse_targets(targets) if targets is not None else ():
        name = ",".join(filter(None, (cpu, changes)))
        if name == NATIVE:
            found[name] = store.processor()
        else:
            machine = machine_for(cpu, changes, store.host(), host.platform_name())
            found[name] = processor_with(machine.requires, host.platform_name(), machine.cpu)
    return found


def _choose(store: Store, name: str, hosts: dict[str, Processor], *, required: bool) -> list[_Candidate]:
    """Return the realizations of a function to export: all of them, or the one that a host of each target would use."""
    candidates = _candidates(store, name)
    if not candidates:
        if not required:  # bound at loading: a function of the process, or one that is added later
            return []
        raise NotCachedError(f"function {name!r} is not in the cache {store.root}", func_name=name, cache_dir=store.root)
    if not hosts:
        return candidates
    found: dict[bytes, _Candidate] = {}
    for target, machine in hosts.items():
        best = max(candidates, key=lambda candidate: machine.rank(candidate.requirement))
        if machine.rank(best.requirement) == host.UNUSABLE:
            raise NotCachedError(
                f"function {name!r} has no realization that {target} can run, only for {', '.join(sorted({c.cpu for c in candidates}))}: "
                f"add it with targets=[{target!r}, ...]",
                func_name=name,
                cache_dir=store.root,
            )
        found[best.module_id] = best
    return list(found.values())


def _candidates(store: Store, name: str) -> list[_Candidate]:
    found = []
    for module_id, offset in store.find_all(name):
        try:
            with store.open_module(module_id) as module:
                header = decode_module(module.read_record(0))
                record = decode_function(module.read_record(offset))
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            continue  # damaged or removed
        if record.name == name:
            found.append(_Candidate(module_id, header.requirement(header.features_of(record)), header.cpu))
    return found


def _read(store: Store, module_id: bytes) -> tuple[bytes, Row, bytes]:
    """Return the content of a module's file in its form for bundles, its imports, and its signatures."""
    with store.open_module(module_id) as module:
        footer = module.footer()
        row = make_row(module_id, module.read(footer.image, footer.records), module.read(footer.content, footer.notes))
        data = content_only(module.read(0, module.size))
        requirement = decode_module(module.read_record(0)).requirement()
    holder = next((place for place in (store, *store.layers) if module.path.startswith(place.root + "/")), store)
    known = holder.signatures_of(module_id)
    if store.publish_key is not None:
        from compcache.signing.signatures import add_signature

        known = add_signature(known, store.publish_key, store.trusted_keys, module_id, requirement)
    return data, row, known


def _pack_of(store: Store, modules: Collection[bytes], names: Collection[str]) -> tuple[bytes, bytes, bytes] | None:
    """Return a pack of the entries of data that belong to the modules, or are named like functions: its id, its content, its signatures."""
    packs = [entries_of(place, pack) or () for place in (store, *store.layers) for pack in packs_in(place.index.segments)]
    found = [
        entry
        for entry in holding(chain.from_iterable(packs))
        if not entry.gone and all(key in modules for key in entry.requires) and (entry.requires or entry.name in names)
    ]
    if not found:
        return None
    built = encode_pack(found)
    module_id, parts = encode_container(*built.sections, None)
    known = b""
    if store.publish_key is not None:
        from compcache.signing.signatures import add_signature

        known = add_signature(known, store.publish_key, store.trusted_keys, module_id, built.header.requirement())
    return module_id, content_only(b"".join(parts)), known


def _write(path: str, members: dict[str, bytes], signer: SecretKey | None) -> None:
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
            for left in (scratch, scratch_signature):
                with suppress(FileNotFoundError):
                    os.unlink(left)
    except OSError as error:
        reraise_interrupt(error)
        raise StorageError(f"cannot write the bundle {path}: {error.strerror or error}", path=path, errno=error.errno) from error
