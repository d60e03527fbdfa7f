"""The writing side of the store (miss path): modules and small files become visible, complete or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.digest import name_key
from compcache.errors import IncompatibleTargetError, IntegrityError, StorageError
from compcache.formats.footer import encode_container
from compcache.formats.index import Stamp
from compcache.formats.manifest import read_frame
from compcache.publish import index_merge
from compcache.publish.atomic_file import make_directories, publish
from compcache.publish.quarantine import warn
from compcache.store import TAG, ModuleFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.files import Files
    from compcache.formats.index import ModuleEntry
    from compcache.store import Place, Sections, Store

    Addition = tuple[list[tuple[str, int, str]], ModuleEntry]

__all__ = ["keep_in_memory", "publish_file", "publish_module", "publish_pending"]

_CACHEDIR_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This directory holds compiled code that compcache can make again.\n"
    b"# For information about cache directory tags see https://bford.info/cachedir/\n"
)


def publish_module(
    store: Store,
    sections: Sections,
    functions: Iterable[tuple[str, int, str]],
    *,
    target: bytes,
    flags: int,
    key: bytes,
    pending: list[Addition] | None = None,
) -> bytes:
    """Publish a module: its sections (image, records, graph, bitcode, notes) and what it realizes.

    A module that exists already, with the same digest, is left as it is. With `pending` the module is not indexed
    here: its index entries are appended to it, for `publish_pending`.

    Returns:
        The module_id.

    Raises:
        StorageError: it could not be stored; the cache is unchanged.
    """
    functions = list(functions)
    module_id, parts = encode_container(*sections, store.signing_key)
    path = store.module_path(module_id)
    store.require_writable(path)
    try:
        _prepare(store)
        stamp = _existing(store, module_id)
        if stamp is not None and _is_indexed(store, module_id, stamp, functions):
            return module_id
        if stamp is None:
            stamp = Stamp.of(publish(store.files, store.temporary, path, parts))
        module = ModuleFile(store.files, path, module_id)
        module.describe(len(sections[0]), len(sections[1]), target, flags, key)
        addition = functions, store.entry_of(module, stamp, len(functions))
    except OSError as error:
        message = f"cannot store a module in {store.root}: {error.strerror or error}"
        raise StorageError(message, path=path, errno=error.errno) from error
    if pending is None:
        publish_pending(store, [addition])
    else:
        pending.append(addition)
    return module_id


def publish_pending(store: Store, pending: list[Addition]) -> None:
    """Index modules that were published, all at once.

    Raises:
        StorageError: the index could not be written; the modules' files exist.
    """
    if not pending:
        return
    try:
        index_merge.add_all(store.index, pending)
    except OSError as error:
        message = f"cannot store a module in {store.root}: {error.strerror or error}"
        raise StorageError(message, path=store.index.directory, errno=error.errno) from error
    try:
        index_merge.merge_additions(store)
    except OSError as error:
        warn(f"the index of {store.root} could not be merged: {error}")


def _existing(store: Store, module_id: bytes) -> Stamp | None:
    """The stamp of the module's file if it exists and is intact."""
    if module_id in store._in_memory:
        return None  # not known to be on disk
    try:
        with store.open_module(module_id, leave_stamp=False) as module:
            return Stamp.of(store.files.fstat(module.descriptor))
    except (FileNotFoundError, IntegrityError, IncompatibleTargetError):
        return None


def _is_indexed(store: Store, module_id: bytes, stamp: Stamp, functions: list[tuple[str, int, str]]) -> bool:
    """Whether the index knows this file, and that it realizes these functions."""
    index = store.index
    index.refresh()
    if all(entry.stamp != stamp for entry in index.module(module_id)):
        return False
    # All entries of an addition are in one segment, so checking the first is enough.
    return not functions or (module_id, functions[0][1]) in index.find(name_key(functions[0][0]))


def _prepare(store: Store) -> None:
    """Create the root directory if it does not exist."""
    tag = store.path(TAG)
    try:
        store.files.stat(tag)
    except FileNotFoundError:
        make_directories(store.files, store.root)
        store.check_root()  # another user may have created it since it was opened
        publish(store.files, store.temporary, tag, [_CACHEDIR_TAG], sync=False)


def publish_file(store: Store, place: Place, file_name: str, data: bytes, *, sync: bool = True) -> str:
    """Publish a small file that is not a module; return its path. `sync` is that of `atomic_file.publish`.

    Raises:
        StorageError: it could not be stored.
    """
    path = store.path(place, file_name)
    store.require_writable(path)
    try:
        _prepare(store)
        publish(store.files, store.temporary, path, [data], sync=sync)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", path=path, errno=error.errno) from error
    return path


class _MemoryFile(ModuleFile):
    """A module file in memory: a descriptor is open only while its image is mapped."""

    __slots__ = ("_content",)

    def __init__(self, files: Files, module_id: bytes, content: bytes) -> None:
        super().__init__(files, f"<module {module_id.hex()} in memory>", module_id)
        self._content = content
        self.size = len(content)

    def read_record(self, offset: int) -> bytes:
        """See `ModuleFile`."""
        return read_frame(lambda at, size: self.read(self.image + at, size), offset, self.records, self.key)

    def read(self, offset: int, size: int) -> bytes:
        """See `ModuleFile`."""
        return self._content[offset : offset + size]


def keep_in_memory(
    store: Store, sections: Sections, functions: Iterable[tuple[str, int, str]], *, target: bytes, flags: int, key: bytes
) -> bytes:
    """Keep a module that could not be published in this store object alone; return its module_id."""
    module_id, parts = encode_container(*sections, store.signing_key)
    module = _MemoryFile(store.files, module_id, b"".join(parts))
    module.describe(len(sections[0]), len(sections[1]), target, flags, key)
    store._in_memory[module_id] = module
    for name, offset, _ in functions:
        store._memory_names.setdefault(name, {})[module_id, offset] = None
    return module_id
