"""The worst that a user without a secret can write in the place of each kind of file: sound in every check that needs none.

Each function of `FORGERIES` writes the files of one place into a directory and gives them away. `EVIL` is a cache of somebody else with the
names of the victim's functions, whose modules are in the directory already.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgpack

from compcache import Cache, ModuleSource
from compcache.digest import check, digest, name_key
from compcache.directory.places import (  # fmt: skip
    BUNDLES,
    CLOSURES,
    GONE,
    HOSTS,
    INDEX,
    JOURNALS,
    LAYERS,
    LOCKS,
    MERGED_LAYERS,
    MODULE_FILES,
    MODULE_LISTS,
    MODULES,
    NUMBERS,
    PARTS,
    PINS,
    PLACES,
    QUARANTINE,
    SIGNATURES,
    SIZE,
    STATISTICS,
    TAG,
    TEMPORARY,
    UNCACHED,
    VOLUMES,
    Place,
    module_id_of,
)
from compcache.formats.footer import LARGEST_FOREIGN
from compcache.formats.host_file import HostFile, encode_host
from compcache.formats.index import NAME_SIZE, ModuleEntry, Stamp
from compcache.formats.journal import HOUR
from compcache.formats.order import GREATEST_NUMBER, Order
from compcache.formats.statistics import encode_stats
from compcache.formats.volume import encode_removed
from compcache.hit.closures import HEAD, MAGIC, seal
from compcache.hit.closures.validity import _file_name
from compcache.hit.recorder import JOURNALS_OF_HOST, encode_batch
from compcache.layers.unpacked_bundle import unpacked_name
from compcache.publish import index_merge
from compcache.publish.index_rebuild import read_indexed_names
from compcache.publish.module_lists import _items_of, _publish_list
from compcache.publish.module_rows import read_row
from compcache.publish.volumes import Content, write_volume
from compcache.signing.keys import generate_key
from compcache.signing.signatures import add_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["FORGERIES", "OTHER_USER", "RIGHT", "WRONG", "Victim", "evil_source", "forge_modules"]

OTHER_USER = 54321
#: What the victim's functions add to their argument, and what those of the other user do.
RIGHT, WRONG = 1, 665
_MANY = 1_000_000


def evil_source(name: str) -> ModuleSource:
    """What the other user would like to be run."""
    return ModuleSource(f"define i64 @{name}(i64 %x) {{\n  %y = add i64 %x, {WRONG}\n  ret i64 %y\n}}\n")


class Victim(NamedTuple):
    """What is attacked: a directory, how its reader opens it, the bundle among its layers, and a cache of the attacker's."""

    root: Path
    options: dict[str, object]
    evil: Path
    bundle: Path | None = None

    def open(self, **others: object) -> Cache:
        """As the attacker opens it, who believes everything and knows what is public."""
        public = {name: value for name, value in self.options.items() if name in ("trusted_keys", "layers")}
        return Cache(self.root, readonly=True, **{**public, **others})  # type: ignore[arg-type]

    def write(self, place: Place, name: str, data: bytes) -> None:
        """Write a file of this kind, and give it away."""
        path = self.root / place.form.rpartition("/")[0] / (name or place.name)
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        os.chown(path, OTHER_USER, OTHER_USER)

    def write_segment(self, place: Place, name: str, modules: Iterable[ModuleEntry], functions: Iterable[bytes], texts: set[str]) -> None:
        """Write an index segment; without a `name` under the one that its content has."""
        rows = sorted(entry.encode() for entry in modules)
        data = index_merge.encode_segment(sorted(functions), rows, texts, GREATEST_NUMBER)
        self.write(place, name or f"00-{digest([data], size=NAME_SIZE).hex()}{place.suffix}", data)


def _module_ids(root: Path) -> list[bytes]:
    return [module_id for path in sorted(root.glob(f"{MODULES.directory}/*/*")) if (module_id := module_id_of(path.name))]


def forge_modules(victim: Victim) -> None:
    """Modules of the other user under their own names, without a signature that counts."""
    for path in victim.evil.glob(f"{MODULES.directory}/*/*"):
        target = victim.root / path.relative_to(victim.evil)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        os.chown(target, OTHER_USER, OTHER_USER)


def _large(victim: Victim) -> None:
    """Modules that claim more than there is room for, too."""
    path = next(victim.evil.glob(f"{MODULES.directory}/*/*"))
    target = victim.root / path.relative_to(victim.evil)
    with target.open("r+b") as file:
        file.truncate(LARGEST_FOREIGN * 64)


def _entries(victim: Victim, root: Path) -> tuple[list[ModuleEntry], set[bytes], set[str]]:
    """Stamps of all modules of a directory as they are there, and names for those of the other user, added last of all.

    Of what is signed they say that its records are elsewhere.
    """
    modules: list[ModuleEntry] = []
    functions: set[bytes] = set()
    texts: set[str] = set()
    evil = set(_module_ids(victim.evil))
    with Cache(root, trust=True, readonly=True) as believing, victim.open(trust=True) as cache:
        for module_id in _module_ids(root):
            with believing._store.open_module(module_id) as module:
                indexed = read_indexed_names(module) if module_id in evil else []
                stamp, image, records = Stamp.of(os.fstat(module.opened.number)), module.image, module.records
                entry = cache._store.entry_of(module, stamp)
                if (root / SIGNATURES.directory / SIGNATURES.file_name(module_id.hex())).exists():
                    # A merge keeps that entry of a state of a file whose MAC is the greatest: it is found by trying, as an attacker would.
                    for wrong in range(8, 1 << 20, 8):
                        module.describe(image - 8, records + wrong, module.target_id, module.flags, module.key)
                        entry = cache._store.entry_of(module, stamp)
                        if entry.mac >= b"\xff" or not any(entry.mac):
                            break
                modules.append(entry)
            functions |= set(index_merge.encode_entries(indexed, module_id, Order(GREATEST_NUMBER)))
            texts |= {needs for _, _, needs in indexed}
    return modules, functions, texts


def _index(victim: Victim) -> None:
    victim.write_segment(INDEX, "", *_entries(victim, victim.root))


def _stamps_of_layers(victim: Victim) -> None:
    for layer in victim.options.get("layers", ()):  # type: ignore[attr-defined]
        if os.path.isdir(layer):
            modules, _, _ = _entries(victim, Path(layer))
            victim.write_segment(LAYERS, "", [*modules, *_entries(victim, victim.root)[0]], (), set())


def _segment_of_layers(victim: Victim) -> None:
    victim.write_segment(MERGED_LAYERS, MERGED_LAYERS.file_name("0" * 2 * NAME_SIZE), *_entries(victim, victim.root))


def _unpacked_bundle(victim: Victim) -> None:
    if victim.bundle is None:
        return
    place = victim.root / BUNDLES.directory / unpacked_name(str(victim.bundle), victim.bundle.stat())
    with Cache(place) as cache:
        cache.add_module(evil_source("bundled"))
    for path in (place, *place.rglob("*")):
        os.chown(path, OTHER_USER, OTHER_USER)


def _closure(victim: Victim) -> None:
    """Every module is a linked closure that holds."""
    with victim.open(trust=True) as cache:
        store = cache._store
        for module_id in _module_ids(victim.root):
            name, content = _file_name(store, module_id), HEAD.pack(module_id, store.state(), 1, 0)
            victim.write(CLOSURES, name, MAGIC + seal(content, name, store.stamp_key) + content)


def _host(victim: Victim) -> None:
    with victim.open(trust=True, signing_key=b"guessed") as cache:
        guessed, _ = cache._store.host_file()
    with victim.open(trust=True) as cache:
        name, _ = cache._store.host_file()
    with Cache(victim.root, **victim.options) as cache:  # type: ignore[arg-type]
        named, _ = cache._store.host_file()
    host = HostFile("wrong", "999.0", "+wrong", "")
    for each in {name, guessed, named}:
        victim.write(HOSTS, each, encode_host(host, each, b"guessed" if each == guessed else None))


def _signatures(victim: Victim) -> None:
    key = generate_key("team-1")
    for path in victim.evil.glob(f"{MODULES.directory}/*/*"):
        victim.write(SIGNATURES, SIGNATURES.file_name(path.stem), add_signature(b"", key, (), bytes.fromhex(path.stem), ""))


def _rows(victim: Victim) -> None:
    with Cache(victim.root, trust=True) as cache:
        found = [read_row(cache._store, module_id) for module_id in _module_ids(victim.root)]
        rows = [row._replace(names=tuple(f"wrong {name}" for name in row.names)) for row in found if row]
        items = dict(item for row in rows for item in _items_of(row, 5000))
        for segment in cache._store.index.segments:
            _publish_list(cache._store, segment.name, sorted(items.items()), ())
    for path in (victim.root / MODULE_LISTS.directory).iterdir():
        os.chown(path, OTHER_USER, OTHER_USER)


def _part(victim: Victim) -> None:
    """Of an index that is being rebuilt: what the other user says of all directories, for ever."""
    victim.write_segment(PARTS, PARTS.file_name(f"00-ff-{'f' * 16}"), *_entries(victim, victim.root))


def _journal(victim: Victim) -> None:
    lines = [f"{time.time()} hits {_MANY} {module_id.hex()} {name_key('f').hex()}" for module_id in _module_ids(victim.root)]
    for number in range(JOURNALS_OF_HOST):
        victim.write(JOURNALS, JOURNALS.file_name(f"{os.uname().nodename}.{number}"), encode_batch(lines))


def _statistics(victim: Victim) -> None:
    uses = {(name_key("f"), module_id): (_MANY, time.time()) for module_id in _module_ids(victim.root)}
    victim.write(STATISTICS, STATISTICS.file_name("forged"), encode_stats({(int(time.time()) // HOUR, "hits"): float(_MANY)}, uses, ["x"]))


def _uncached(victim: Victim) -> None:
    packed = msgpack.packb(["f", "wrong", time.time()])
    victim.write(UNCACHED, UNCACHED.file_name(name_key("f").hex()), check(packed) + packed)


def _copies_in(place: Place) -> Callable[[Victim], None]:
    def forge(victim: Victim) -> None:
        for path in victim.evil.glob(f"{MODULES.directory}/*/*"):
            victim.write(place, f"{path.name}.1", path.read_bytes())

    return forge


def _volume(victim: Victim) -> None:
    """Of all modules of the victim what the other user has in their place, in a volume that replaces every other one."""
    evil = next(victim.evil.glob(f"{MODULES.directory}/*/*")).read_bytes()
    with Cache(victim.root, trust=True) as cache:
        store = cache._store
        known = store.volumes.current()
        forged = write_volume(store, [Content(module_id, evil, b"", 1.0) for module_id in store.module_ids()], known)
        assert forged is not None
    os.chown(victim.root / VOLUMES.directory / forged.name, OTHER_USER, OTHER_USER)


def _gone(victim: Victim) -> None:
    """That everything was removed of each volume, and of one that is not there.

    A list in place of the owner's takes that away. A volume without its list holds nothing: its modules are misses.
    """
    everything = b"".join([encode_removed(module_id) for module_id in _module_ids(victim.root)])
    for path in (*(victim.root / VOLUMES.directory).glob(f"*{VOLUMES.suffix}"), victim.root / ("00" * NAME_SIZE)):
        victim.write(GONE, GONE.file_name(path.stem), everything)


FORGERIES: dict[Place, Callable[[Victim], None]] = {
    BUNDLES: _unpacked_bundle,  # before the reader has unpacked it
    TAG: lambda victim: victim.write(TAG, "", b"wrong"),
    MODULES: _large,
    HOSTS: _host,
    LAYERS: _stamps_of_layers,
    MERGED_LAYERS: _segment_of_layers,
    CLOSURES: _closure,
    SIGNATURES: _signatures,
    MODULE_LISTS: _rows,
    MODULE_FILES: lambda victim: victim.write(MODULE_FILES, "", b"CCFILES3"),
    JOURNALS: _journal,
    STATISTICS: _statistics,
    SIZE: lambda victim: victim.write(SIZE, "", b"0 99999999999999\n"),
    NUMBERS: lambda victim: victim.write(NUMBERS, NUMBERS.file_name(f"{GREATEST_NUMBER:012x}"), b""),
    PINS: lambda victim: victim.write(PINS, PINS.file_name(name_key("f").hex()), b"f"),
    UNCACHED: _uncached,
    VOLUMES: _volume,
    GONE: _gone,
    LOCKS: lambda victim: victim.write(LOCKS, LOCKS.file_name(name_key("f").hex()), b""),
    TEMPORARY: _copies_in(TEMPORARY),
    QUARANTINE: _copies_in(QUARANTINE),
    PARTS: _part,
    INDEX: _index,  # it lies about the modules that others are made of
}
assert set(FORGERIES) == set(PLACES)
