"""Writes volumes (`compcache.formats.volume`), which can replace other volumes."""

from __future__ import annotations

import os
import zlib
from itertools import chain, groupby, islice
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import CHECK_SIZE, DIGEST_SIZE, check
from compcache.directory.places import GONE, MODULES, VOLUMES, module_id_of
from compcache.errors import FormatError
from compcache.formats.footer import intact_footer
from compcache.formats.table_writer import table_parts
from compcache.formats.volume import MAGIC, NAME_SIZE, Volume, encode_removed
from compcache.publish.atomic_file import make_directories, publish
from compcache.publish.removal import append, unlink
from compcache.publish.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from compcache.store import Store

__all__ = ["Content", "content_of", "contents_of", "mark_gone", "members_of", "remove_orphaned_lists", "remove_volume", "write_volume"]

#: Level 9 takes twice the time of level 6, and a larger memory five times, because the compressor is copied for each module.
_LEVEL, _RAW, _MEMORY = 6, -15, 8
#: The dictionary is a sample of this many of the first modules, as many as fit deflate's window.
_SAMPLES, _WINDOW = 256, 1 << 15
_TAIL = Struct(f"<QIIQ{CHECK_SIZE}s")
_MEMBER = Struct(f"<{DIGEST_SIZE}sQIIId")
#: A module_id, and the number of the volume that the module was read from; -1 if it was read from its own file.
_SOURCE = Struct(f"<{DIGEST_SIZE}si")


class Content(NamedTuple):
    """The content of a module file.

    Attributes:
        module_id: the digest of the module's content.
        data: the bytes of the module file.
        signatures: the bytes of its signatures.
        modified: the time when the file was written, in seconds since the epoch.
        source: the volume that the module was read from, or None if it was read from its own file.
    """

    module_id: bytes
    data: bytes
    signatures: bytes
    modified: float
    source: Volume | None = None


def write_volume(store: Store, contents: Iterable[Content], replaced: Sequence[Volume] = ()) -> Volume | None:
    """Publish modules as one volume, which replaces other volumes. Return None if no modules are left.

    The new volume never restores a removed module, even if this process is killed. Its list of removed modules is created first, so later
    removals are recorded there. Modules that were removed earlier are then added to the list. After that, the volume becomes visible.
    `contents` are in the order of their ids.

    Raise `OSError` if the volume could not be written. All modules remain in their files and volumes.
    """
    remaining = iter(contents)
    samples = list(islice(remaining, _SAMPLES))
    if not samples:
        return None
    dictionary = _choose_dictionary([content.data for content in samples])
    members, rows, sources = _compress_modules(chain(samples, remaining), dictionary, replaced)
    stem = os.urandom(NAME_SIZE)
    names = stem + b"".join([bytes.fromhex(volume.name.removesuffix(VOLUMES.suffix)) for volume in replaced])
    count = len(names) // NAME_SIZE
    tail = _TAIL.pack(len(MAGIC) + members.size, len(dictionary), count, len(MAGIC) + members.size + len(dictionary + names), b"")

    def parts() -> Iterator[bytes]:
        """Yield the parts of the volume's file. The check at the end covers what precedes it."""
        yield MAGIC
        yield from members.parts()
        yield dictionary + names
        yield from table_parts(rows.read, rows.size, _MEMBER.size)
        yield tail[:-CHECK_SIZE] + check(tail[:-CHECK_SIZE] + dictionary + names)

    gone_name = GONE.file_name(stem.hex())
    make_directories(store.files, store.directory(VOLUMES))
    append(store, GONE, gone_name, b"")
    removed_ids = _find_removed(store, sources, replaced)
    if len(removed_ids) * _MEMBER.size == rows.size:
        unlink(store, store.path(GONE, gone_name))
        return None
    append(store, GONE, gone_name, b"".join(map(encode_removed, removed_ids)), sync=True)
    name = VOLUMES.file_name(stem.hex())
    publish(store.files, store.temporary, store.path(VOLUMES, name), parts())
    return Volume(store.files, store.directory(VOLUMES), name, (VOLUMES.suffix, GONE.suffix), store.volumes.owners)


class _CompressedModules(NamedTuple):
    """The compressed modules of a volume, their rows in its table (`_MEMBER`), and their sources (`_SOURCE`)."""

    members: Scratch
    rows: Scratch
    sources: Scratch


def _compress_modules(contents: Iterable[Content], dictionary: bytes, replaced: Sequence[Volume]) -> _CompressedModules:
    """Compress modules with a dictionary. `replaced` are the volumes from which modules were read. See `Scratch` for the exception."""
    members, rows, sources = Scratch(), Scratch(), Scratch()
    with_dictionary = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW, _MEMORY, zlib.Z_DEFAULT_STRATEGY, dictionary)
    for content in contents:
        compressor = with_dictionary.copy()
        stream = compressor.compress(content.data + content.signatures) + compressor.flush()
        sizes = len(stream), len(content.data), len(content.signatures)
        rows.write(_MEMBER.pack(content.module_id, len(MAGIC) + members.size, *sizes, content.modified))
        members.write(stream)
        sources.write(_SOURCE.pack(content.module_id, -1 if content.source is None else replaced.index(content.source)))
    return _CompressedModules(members, rows, sources)


def _find_removed(store: Store, sources: Scratch, volumes: Sequence[Volume]) -> list[bytes]:
    """Return the ids of the modules that were removed after they were read, or whose volume no longer exists.

    Raise `StorageError` if the directory cannot be read.
    """
    existing = store.present_names(store.directory(VOLUMES)) if volumes else ()
    removed_by_volume = [volume.removed_ids() if volume.name in existing else None for volume in volumes]
    gone_ids = []
    for first_byte, rows in groupby(map(_SOURCE.unpack, sources.pieces(_SOURCE.size)), key=lambda row: row[0][0]):
        present = {module_id_of(name) for name in store.present_names(store.path(MODULES, f"{first_byte:02x}"))}
        for module_id, number in rows:
            if number < 0:  # a file of its own
                is_gone = module_id not in present
            else:
                removed_ids = removed_by_volume[number]
                is_gone = removed_ids is None or module_id in removed_ids
            if is_gone:
                gone_ids.append(module_id)
    return gone_ids


def _choose_dictionary(samples: list[bytes]) -> bytes:
    """Return a compression dictionary: evenly spaced samples, as many as fit deflate's window."""
    count = max(1, min(len(samples), _WINDOW * len(samples) // (sum(map(len, samples)) + 1)))
    spaced_samples = [samples[number * len(samples) // count] for number in range(count)]
    return b"".join(spaced_samples)[-_WINDOW:]


def members_of(volume: Volume, first_byte: int) -> dict[bytes, bytes]:
    """Return the entries of the modules of a volume whose ids begin with this byte. The result is empty if the volume is damaged.

    Raise `OSError` if the volume cannot be read.
    """
    try:
        return dict(volume.members(first_byte))
    except FormatError:
        return {}


def content_of(volume: Volume, module_id: bytes, member: bytes) -> Content | None:
    """Return a module of a volume, or None if it is damaged. Raise `OSError` if the volume cannot be read."""
    try:
        content = Content(module_id, *volume.content(member), volume.status_of(member)[1], volume)
        intact_footer(content.data, module_id)
    except FormatError:
        return None
    return content


def contents_of(volume: Volume) -> Iterator[Content]:
    """Yield the intact modules of a volume, in the order of their ids. Raise `OSError` if the volume cannot be read."""
    for first_byte in range(256):
        for module_id, member in members_of(volume, first_byte).items():
            content = content_of(volume, module_id, member)
            if content is not None:
                yield content


def mark_gone(store: Store, volume: Volume, module_id: bytes) -> None:
    """Mark a module of a volume as removed. Raise `OSError` if the mark could not be written."""
    append(store, GONE, volume.gone_name, encode_removed(module_id))


def remove_orphaned_lists(store: Store) -> None:
    """Remove the lists of removed modules whose volumes no longer exist. Raise `StorageError` if a list could not be removed."""
    volumes = {name.removesuffix(VOLUMES.suffix) for name in store.names(VOLUMES)}
    for name in store.names(GONE):
        if name.removesuffix(GONE.suffix) not in volumes:
            unlink(store, store.path(GONE, name))


def remove_volume(store: Store, volume: Volume) -> None:
    """Remove a replaced or empty volume. Raise `StorageError` if the volume could not be removed."""
    unlink(store, store.path(VOLUMES, volume.name))
    unlink(store, store.path(GONE, volume.gone_name))
