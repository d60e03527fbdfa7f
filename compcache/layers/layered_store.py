"""A store with layers: read-only caches below the writable cache. On the hit path of caches with layers.

The writable directory is searched first, then the layers in their order. For a plain name, the newest addition in the first directory
with this name wins. For a content name, the realization that fits this host best wins, in any directory. A layer is never written.

Stamps of verified files do not survive copying a directory. So the writable directory remembers which files of layers were verified, in an
index that contains only stamps.
"""

from __future__ import annotations

import os

from compcache.digest import digest, name_key
from compcache.directory.places import LAYERS
from compcache.errors import FormatError, IntegrityError, StorageError
from compcache.files import absolute_path
from compcache.formats.index import Index, sort_by_preference
from compcache.formats.manifest import LINKED
from compcache.interrupts import reraise_interrupt
from compcache.store import Store, is_ordered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from compcache.directory.module_file import ModuleFile
    from compcache.formats.host import Processor
    from compcache.formats.index import ModuleEntry, Numbered, Segment
    from compcache.store import IsNear
    from compcache.targets.host_probe import Host

__all__ = ["LayeredStore", "layer_paths"]


def layer_paths(layers: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the argument `layers` of `Cache` as a list of paths. Raise `TypeError` if it is not an iterable of paths."""
    if isinstance(layers, (str, bytes, os.PathLike)):
        raise TypeError(f"layers must be a list of paths, not a single path: give [{os.fspath(layers)!r}]")
    try:
        return [os.fspath(path) for path in layers]
    except TypeError as error:
        reraise_interrupt(error)
        raise TypeError(f"layers must be a list of paths, like ['/opt/app/cache']: {error}") from None


class _Layer(Store):
    """A read-only cache below a writable cache, which remembers the verified files of the layer in addition to the layer's own stamps."""

    __slots__ = ("_upper_store", "_source")

    def __init__(self, root: str, source: str, upper_store: LayeredStore, options: dict[str, Any]) -> None:
        self._upper_store = upper_store
        if root.startswith(f"{upper_store.root}/"):  # an unpacked bundle, which must not be reached through a link in the directory
            options = {**options, "files": upper_store.files}
        super().__init__(root, **{**options, "readonly": True})
        self._source = source
        self.index.share_ranks(upper_store.index)

    @property
    def source(self) -> str:
        """See `Store`."""
        return self._source

    def is_first_warning(self, path: str) -> bool:
        """See `Store`."""
        return self._upper_store.is_first_warning(path)

    def host(self) -> Host:
        """See `Store`."""
        return self._upper_store.host()

    def processor(self) -> Processor:
        """See `Store`."""
        return self._upper_store.processor()

    def _set_if_verified(self, module: ModuleFile, status: os.stat_result, index: Index | None = None) -> bool:
        """Set the fields of a module from a valid stamp in this layer or in the writable directory. Return whether there is one."""
        upper_store = self._upper_store
        if self.trusted_keys:  # a writer of the layer could forge its stamps for these keys; so could a writer of an exposed directory
            return not upper_store.exposed and super()._set_if_verified(module, status, upper_store.verified)
        return super()._set_if_verified(module, status, index) or super()._set_if_verified(module, status, upper_store.verified)

    def open_module(self, module_id: bytes, *, leave_stamp: bool = True) -> ModuleFile:
        """See `Store`."""
        module = super().open_module(module_id, leave_stamp=leave_stamp)
        module.elsewhere = not self.trusted_keys
        return module

    def report_unreadable(self, path: str, error: OSError) -> None:
        """Warn, once for each path, that a file of the layer cannot be read. The layer's other files are used."""
        from compcache.publish.verify import warn_about_layer

        warn_about_layer(self, self.source, f"{path} cannot be read: {error.strerror or error}")

    def record_verified(self, entry: ModuleEntry) -> None:
        """Record in the writable directory that a file of this layer was verified in the state of the entry's stamp."""
        self._upper_store.record_verified_in_layer(entry)


def _warn_about_unreadable(layer: Store) -> None:
    """Warn if the index of a layer cannot be read, because other code is used for functions of that layer, or they are compiled again."""
    if layer.index.problem:
        from compcache.publish.verify import warn_about_layer

        warn_about_layer(layer, layer.source, layer.index.problem)


class LayeredStore(Store):
    """A cache directory with layers below it. See `Store`.

    A layer that does not exist is skipped. One that cannot be read, or is a file and not an intact bundle, is skipped with a warning.

    Args:
        root: the writable directory.
        layers: the paths of the layers, directories or bundles, in the order of look-ups.
        options: further arguments of `Store`, for the directory and its layers.

    Raises:
        UntrustedDirectoryError: another user owns a layer or can write to it.
    """

    __slots__ = ("_found_in", "layers", "verified")

    def __init__(self, root: str, layers: Sequence[str], options: dict[str, Any]) -> None:
        super().__init__(root, **options)
        self.verified = Index(self.files, self.directory(LAYERS), self.temporary, LAYERS.suffix)
        self.verified.owners = self.verified.vouching = self._owners
        self._found_in: dict[bytes, Store] = {}
        paths = dict.fromkeys(absolute_path(path) for path in layers)
        paths.pop(root, None)
        self.layers: tuple[Store, ...] = ()  # while bundles are unpacked
        self.layers = tuple([layer for path in paths if (layer := self._open_layer(path, options)) is not None])

    def _open_layer(self, path: str, options: dict[str, Any]) -> _Layer | None:
        """Open the layer at a path. If it cannot be used at the moment, warn and return None. Exceptions: see `LayeredStore`."""
        try:
            return _Layer(self._unpack_if_bundle(path), path, self, options)
        except (FormatError, StorageError) as error:
            reraise_interrupt(error)
            from compcache.warning import warn

            warn(f"the layer {path} is not used: {error}")
            return None

    def _unpack_if_bundle(self, path: str) -> str:
        """Return the directory of the layer at a path. A bundle is unpacked first unless it is already unpacked.

        See `ensure_unpacked` for the exceptions.
        """
        if os.path.isfile(path):
            from compcache.layers.unpacked_bundle import ensure_unpacked

            return ensure_unpacked(path, self)
        return path

    # --------------------------------------------------------------- look-ups

    def find(self, func_name: str, is_near: IsNear | None = None, *, linked: bool = False) -> Iterator[tuple[bytes, int]]:
        """See `Store`. For a content name, code for exactly this host comes first, then the best other code of all directories."""
        if self._memory_names:
            yield from list(self._memory_names.get(func_name, ()))
        is_found = False
        were_listed = [store.index.is_listed for store in (self, *self.layers)]
        for candidate in self.find_here(func_name, is_near, linked=linked):
            is_found = True
            yield candidate
        if not is_found and self._renew_all(were_listed):  # indexes that were listed before are listed again
            for candidate in self.find_here(func_name, is_near, linked=linked):
                is_found = True
                yield candidate
        if not is_found:
            for layer in self.layers:
                _warn_about_unreadable(layer)

    def renew_index(self) -> bool:
        """See `Store`."""
        return self._renew_all([True] * (1 + len(self.layers)))

    def _renew_all(self, were_listed: list[bool]) -> bool:
        """Renew the indexes of this directory and its layers. Return whether one of them has changed.

        Raise `StorageError` if an index cannot be read.
        """
        return any([store._renew_index(look=was_listed) for store, was_listed in zip((self, *self.layers), were_listed, strict=True)])  # noqa: C419 - all of them

    def find_here(self, func_name: str, is_near: IsNear | None = None, *, linked: bool = False) -> Iterator[tuple[bytes, int]]:
        """See `Store`."""
        key = name_key(func_name)
        candidates = self._find_ordered(key, is_near) if is_ordered(func_name) else self._find_best(key, linked=linked)
        return candidates if linked else ((module_id, offset) for module_id, offset in candidates if offset < LINKED)

    def find_numbered(self, func_name: str) -> list[Numbered]:
        """See `Store`."""
        return [row for _, row in self._numbered_rows(name_key(func_name))]

    def _numbered_rows(self, key: bytes) -> list[tuple[Store, Numbered]]:
        """Return the rows of a name in all directories, with their stores. Rows of earlier directories get greater addition numbers.

        A layer that cannot be read at the moment is left out with a warning. If the writable directory's index cannot be read at the
        moment, there are no rows, or `StorageError` is raised (`Index.find_numbered`).
        """
        rows: dict[bytes, tuple[Store, Numbered]] = {}
        for number, store in enumerate((self, *self.layers)):
            try:
                numbered = store.index.find_numbered(key)
            except StorageError:
                if number == 0:
                    raise
                numbered = []
            if number == 0 and store.index.is_passing:
                break
            if store.index.is_passing:
                _warn_about_unreadable(store)
            for order, rank, module_id, offset, content in numbered:
                rows.setdefault(module_id, (store, (order - (number << 64), rank, module_id, offset, content)))
        return list(rows.values())

    def _find_ordered(self, key: bytes, is_near: IsNear | None) -> Iterator[tuple[bytes, int]]:
        """Yield the realizations of a plain name, the newest addition of the first directory first. See `find` for `is_near`."""
        numbered_rows = self._numbered_rows(key)
        stores = {module_id: store for store, (_, _, module_id, _, _) in numbered_rows}
        for module_id, offset in sort_by_preference([row for _, row in numbered_rows], is_near):
            self._record_layer(module_id, stores[module_id])
            yield module_id, offset

    def _find_best(self, key: bytes, *, linked: bool) -> Iterator[tuple[bytes, int]]:
        """Yield the realizations of a content name, the best for this host first. For `linked`, see `Index.find`."""
        yielded = set()
        fallbacks: list[tuple[int, Store, bytes, int]] = []  # with the rank, the greatest of which is the best
        for store in (self, *self.layers):
            ranked: list[tuple[int, tuple[bytes, int]]] = []
            for module_id, offset in store.index.find(key, ranked, linked=linked):
                if module_id not in yielded:
                    yielded.add(module_id)
                    self._record_layer(module_id, store)
                    yield module_id, offset
            fallbacks += [(rank, store, module_id, offset) for rank, (module_id, offset) in ranked]
        fallbacks.sort(key=lambda fallback: -fallback[0])  # by rank; equal ranks stay in the order of their directories
        for _, store, module_id, offset in fallbacks:
            if module_id not in yielded:
                yielded.add(module_id)
                self._record_layer(module_id, store)
                yield module_id, offset

    def _record_layer(self, module_id: bytes, store: Store) -> None:
        """Record the layer of a module for `open_module`. This directory is not recorded, because `open_module` searches it first."""
        if store is self:
            self._found_in.pop(module_id, None)
        else:
            self._found_in[module_id] = store

    def segments(self) -> tuple[Segment, ...]:
        """See `Store`."""
        return tuple([segment for store in (self, *self.layers) for segment in store.index.segments])

    def state(self) -> bytes:
        """See `Store`."""
        roots = [layer.root.encode("utf-8", "surrogateescape") for layer in self.layers]
        return digest([*roots, *[store.index.state() for store in (self, *self.layers)]])

    def exists(self, module_id: bytes) -> bool:
        """Return whether a module exists in this directory or in a layer."""
        return super().exists(module_id) or any(layer.exists(module_id) for layer in self.layers)

    def is_cache(self) -> bool:
        """Return whether this directory or a layer has been used as a cache."""
        return super().is_cache() or any(layer.is_cache() for layer in self.layers)

    def open_module(self, module_id: bytes, *, leave_stamp: bool = True) -> ModuleFile:
        """See `Store`. A module that is missing or unusable in this directory is opened in a layer.

        Raises:
            FileNotFoundError: the module does not exist in any directory.
            IntegrityError, StorageError: the module is unusable in each directory that has it. The first such error is raised.
        """
        known_store = self._found_in.get(module_id)
        stores = (self, *self.layers) if known_store is None else (known_store, self, *self.layers)
        failure: OSError | None = None
        for store in stores:
            try:
                if store is self:
                    return super().open_module(module_id, leave_stamp=leave_stamp)
                return store.open_module(module_id, leave_stamp=leave_stamp)
            except (FileNotFoundError, IntegrityError, StorageError) as error:
                reraise_interrupt(error)
                if failure is None or isinstance(failure, FileNotFoundError):
                    failure = error.with_traceback(None)
        try:
            assert failure is not None
            raise failure
        finally:
            failure = None  # breaks a reference cycle with this frame, which would keep callers' modules alive

    def record_verified_in_layer(self, entry: ModuleEntry) -> None:
        """Record that a file of a layer was verified in the state of the entry's stamp, unless this cache is read-only."""
        if not self.readonly:
            from compcache.publish.verify import record_verified

            record_verified(self, self.verified, entry)

    def close(self) -> None:
        """Close the files of this directory and of its layers."""
        super().close()
        self.verified.close()
        for layer in self.layers:
            layer.close()
