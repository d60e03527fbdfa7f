"""A store with layers: read-only caches below the writable one (read by hits of caches that were opened with layers).

The writable directory is asked first, then the layers in their order. For a plain name, the newest addition of the first of them that has
it wins; for a content name, the realization that fits this host best, wherever it is. Nothing is ever written to a layer. Five layers cost
no more than one, because the writable directory merges the indexes of all layers into one segment, named by a digest of their places and
times of change. The stamps by which a directory vouches for its files do not survive copying, so the writable directory also remembers
which files of layers were verified: in an index that contains only stamps.
"""

from __future__ import annotations

import os

from compcache.digest import digest, name_key
from compcache.directory.places import INDEX, LAYERS, MERGED_LAYERS
from compcache.errors import FormatError, IntegrityError, MissingPackageError, StorageError
from compcache.files import absolute_path, reraise_interrupt
from compcache.formats.index import MAGIC, NAME_SIZE, Index, Segment, entry_for, in_order
from compcache.formats.manifest import LINKED
from compcache.store import Store, is_ordered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from compcache.directory.module_file import ModuleFile
    from compcache.formats.host import Processor
    from compcache.formats.index import ModuleEntry, Numbered
    from compcache.store import IsNear
    from compcache.targets.host_probe import Host

__all__ = ["LAYER_SHIFT", "ORDER_BITS", "LayeredStore", "layer_paths"]

#: In the segment of all layers, the flags of a module have the number of its layer above these bits.
LAYER_SHIFT = 16
#: In the same segment, numbers of additions have this many bits, and above them the number of later layers.
ORDER_BITS = 48
_FLAGS_AT = 4 * 8 + 2 * 8 + 8  # in a module entry without its key: behind stamp, two sizes and target


def layer_paths(layers: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the paths of the argument `layers` of a `Cache`.

    Raises:
        TypeError: they are not several paths.
    """
    if isinstance(layers, (str, bytes, os.PathLike)):
        raise TypeError(f"layers must be a list of directories, like [{os.fspath(layers)!r}]")
    try:
        return [os.fspath(path) for path in layers]
    except TypeError as error:
        reraise_interrupt(error)
        raise TypeError(f"layers must be a list of directories, like ['/opt/app/cache']: {error}") from None


class _Layer(Store):
    """A read-only cache. The writable cache remembers which of its files were verified, in addition to its own stamps."""

    __slots__ = ("_above", "_source")

    def __init__(self, root: str, source: str, above: LayeredStore, options: dict[str, Any]) -> None:
        self._above = above
        if root.startswith(f"{above.root}/"):  # an unpacked bundle: no link in the directory leads to it
            options = {**options, "files": above.files}
        super().__init__(root, **{**options, "readonly": True})
        self._source = source
        self.index.share_ranks(above.index)

    @property
    def source(self) -> str:
        """See `Store`."""
        return self._source

    def is_first_warning(self, path: str) -> bool:
        """See `Store`."""
        return self._above.is_first_warning(path)

    def host(self) -> Host:
        """See `Store`."""
        return self._above.host()

    def processor(self) -> Processor:
        """See `Store`."""
        return self._above.processor()

    def _recognize(self, module: ModuleFile, status: os.stat_result, index: Index | None = None) -> bool:
        above = self._above
        if self.trusted_keys:  # the layer's maker could write its stamps for these keys, and others those of the directory above
            return not above.exposed and super()._recognize(module, status, above.verified)
        entry = above.entries.get(module.module_id)
        if entry is None or self.signing_key:
            return super()._recognize(module, status, index) or super()._recognize(module, status, above.verified)
        found = entry_for(module.module_id + entry, module.module_id, status)
        if not found:
            return super()._recognize(module, status, above.verified)
        image, records, target, flags, _, key, _ = found[0]
        module.describe(image, records, target, flags & ((1 << LAYER_SHIFT) - 1), key)
        return True

    def open_module(self, module_id: bytes, *, leave_stamp: bool = True) -> ModuleFile:
        """See `Store`."""
        module = super().open_module(module_id, leave_stamp=leave_stamp)
        module.elsewhere = not self.trusted_keys
        return module

    def tell_unreadable(self, path: str, error: OSError) -> None:
        """Warn once that a part of the layer cannot be read; the rest is used."""
        from compcache.publish.verify import warn_of_layer

        warn_of_layer(self, self.source, f"{path} cannot be read: {error.strerror or error}")

    def remember(self, entry: ModuleEntry) -> None:
        """Remember in the writable directory that a file was verified."""
        self._above.remember_layer(entry)


class LayeredStore(Store):
    """A cache directory with others below it; see `Store`.

    Args:
        root: the writable directory.
        layers: the directories and bundles below it, in the order of look-ups. A missing one is skipped.
        options: further arguments of `Store`, for the layers as well.

    A directory that this user may not read is skipped with a warning.

    Raises:
        UntrustedDirectoryError: a layer belongs to another user, or others can write to it.
        FormatError: a file is not a bundle.
    """

    __slots__ = ("_found_in", "_looked", "entries", "layers", "merged", "verified")

    def __init__(self, root: str, layers: Sequence[str], options: dict[str, Any]) -> None:
        super().__init__(root, **options)
        self.merged: Index | None = None  # what all layers hold, where that is known to be current
        self._looked = False
        self.verified = Index(self.files, self.directory(LAYERS), self.temporary, LAYERS.suffix)
        self.verified.owners = self.verified.vouching = self._owners
        self._found_in: dict[bytes, Store] = {}
        self.entries: dict[bytes, bytes] = {}  # the rows of requested modules in the segment of all layers
        places = dict.fromkeys(absolute_path(place) for place in layers)
        places.pop(root, None)
        self.layers = tuple([layer for place in places if (layer := self._open_layer(place, options)) is not None])

    def _open_layer(self, place: str, options: dict[str, Any]) -> _Layer | None:
        """Return the layer at a path; None, with a warning, if this user may not read the directory."""
        directory = self._directory_of(place)
        try:
            return _Layer(directory, place, self, options)
        except StorageError as error:
            reraise_interrupt(error)
            from compcache.publish.verify import warn_of_layer

            warn_of_layer(self, place, str(error), "at all")
            return None

    def _directory_of(self, place: str) -> str:
        """Return the directory of a layer; a bundle is unpacked before it is first used."""
        if os.path.isfile(place):
            from compcache.layers.unpacked_bundle import directory_of_bundle

            return directory_of_bundle(place, self)
        return place

    # ------------------------------------------------------- the segment of all layers

    def merged_name(self) -> str:
        """Return the name of the segment of all layers, as they are at this moment."""
        parts = [MAGIC, self.known_faults]  # one of another version has another name
        for layer in self.layers:
            try:
                status = os.stat(layer.directory(INDEX))
                state = status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
            except OSError as error:
                reraise_interrupt(error)
                state = (0, 0, 0, 0)
            parts.append(f"{layer.root}\0{state}\0".encode("utf-8", "surrogateescape"))
        return MERGED_LAYERS.file_name(digest(parts, size=NAME_SIZE).hex())

    def _look_at_layers(self) -> None:
        """Find the segment of all layers; if there is none, write it for the next process."""
        self._looked = True
        name = self.merged_name()
        index = Index(self.files, self.directory(MERGED_LAYERS), self.temporary, MERGED_LAYERS.suffix)
        index.owners = self._owners
        index.share_ranks(self.index)
        segment = Segment(index, name)
        try:
            segment.functions  # noqa: B018 - opens it
        except (OSError, FormatError) as error:
            reraise_interrupt(error)
            if not self.readonly:
                self._write_segment(name)
            return
        index.take(segment)
        self.merged = index

    def _write_segment(self, name: str) -> None:
        try:
            from compcache.maintain.layer_segment import write_layer_segment
        except MissingPackageError:
            return  # compcache-runtime asks each layer
        write_layer_segment(self, name)

    def _layer_of(self, module_id: bytes) -> Store | None:
        """Return the layer of a module, by the segment of all layers."""
        assert self.merged is not None
        for segment in self.merged.segments:
            for value in self.merged.look_up(segment, module_id, modules=True) or ():
                number = int.from_bytes(value[_FLAGS_AT : _FLAGS_AT + 4], "little") >> LAYER_SHIFT
                if number < len(self.layers):
                    self.entries[module_id] = value
                    return self.layers[number]
        return None

    # --------------------------------------------------------------- look-ups

    def find(
        self, func_name: str, is_near: IsNear | None = None, *, again: bool = False, linked: bool = False
    ) -> Iterator[tuple[bytes, int]]:
        """See `Store`. For a content name, code for exactly this host comes first, then what fits best, wherever it is."""
        if self._memory_names:
            yield from list(self._memory_names.get(func_name, ()))
        found = False
        if again and self.index.is_listed:
            self._renew_index()
        if not self._looked:
            self._look_at_layers()
        if self.merged is not None:
            for candidate in self._find_in(self.merged, func_name, is_near, linked=linked):
                found = True
                yield candidate
        if not found:
            self.merged = None  # who adds to a layer between two looks at its clock would go unnoticed
            yield from self._find_apart(func_name, is_near, linked=linked)

    def _find_apart(self, func_name: str, is_near: IsNear | None, *, linked: bool) -> Iterator[tuple[bytes, int]]:
        """Find the same with the index of each layer."""
        found = False
        listed = [store.index.is_listed for store in (self, *self.layers)]
        for candidate in self._find_in(None, func_name, is_near, linked=linked):
            found = True
            yield candidate
        if not found and self._renew_all(listed):
            for candidate in self._find_in(None, func_name, is_near, linked=linked):
                found = True
                yield candidate
        if not found:
            self._tell_of_unreadable()

    def _tell_of_unreadable(self) -> None:
        """Warn of layers that this user cannot read completely; otherwise their functions would be compiled again for no visible reason."""
        for layer in self.layers:
            if layer.index.problem:
                from compcache.publish.verify import warn_of_layer

                warn_of_layer(layer, layer.source, layer.index.problem)

    def renew_index(self) -> bool:
        """See `Store`."""
        self.merged = None
        return self._renew_all([True] * (1 + len(self.layers)))

    def _renew_all(self, look: list[bool]) -> bool:
        return any([store._renew_index(look=known) for store, known in zip((self, *self.layers), look, strict=True)])  # noqa: C419 - of each

    def _find_in(
        self, merged: Index | None, func_name: str, is_near: IsNear | None = None, *, linked: bool = False
    ) -> Iterator[tuple[bytes, int]]:
        """Return the realizations of a function here and in `merged`, or in the index of each layer."""
        places, key = self._places(merged), name_key(func_name)
        found = self._find_ordered(places, key, is_near) if is_ordered(func_name) else self._find_best(places, key)
        return found if linked else (row for row in found if row[1] < LINKED)

    def _places(self, merged: Index | None) -> list[tuple[Store | None, Index]]:
        below: list[tuple[Store | None, Index]] = [(layer, layer.index) for layer in self.layers]
        return [(self, self.index), *([(None, merged)] if merged is not None else below)]

    def find_numbered(self, func_name: str) -> list[Numbered]:
        """See `Store`."""
        return [row for _, row in self._numbered(self._places(self.merged), name_key(func_name))]

    @staticmethod
    def _numbered(places: list[tuple[Store | None, Index]], key: bytes) -> list[tuple[Store | None, Numbered]]:
        """Return the rows of all places for a name. Places that come earlier have greater numbers of additions."""
        rows: dict[bytes, tuple[Store | None, Numbered]] = {}
        for number, (store, index) in enumerate(places):
            for order, rank, module_id, offset, content in index.find_numbered(key):
                rows.setdefault(module_id, (store, (order - (number << 64), rank, module_id, offset, content)))
        return list(rows.values())

    def _find_ordered(self, places: list[tuple[Store | None, Index]], key: bytes, is_near: IsNear | None) -> Iterator[tuple[bytes, int]]:
        """Yield the newest addition of the first place, then the rest of it, then the others."""
        rows = {row[2]: (store, row) for store, row in self._numbered(places, key)}
        for candidate in in_order([row for _, row in rows.values()], is_near):
            self._note(candidate[0], rows[candidate[0]][0])
            yield candidate

    def _find_best(self, places: list[tuple[Store | None, Index]], key: bytes) -> Iterator[tuple[bytes, int]]:
        seen = set()
        lesser: list[tuple[int, Store | None, tuple[bytes, int]]] = []
        for store, index in places:
            rest: list[tuple[int, tuple[bytes, int]]] = []
            for candidate in index.find(key, rest):
                if candidate[0] not in seen:
                    seen.add(candidate[0])
                    self._note(candidate[0], store)
                    yield candidate
            lesser += [(rank, store, candidate) for rank, candidate in rest]
        if len(lesser) > 1:
            lesser.sort(key=lambda row: -row[0])  # stable: of equal ones, the first place counts
        for _, store, candidate in lesser:
            if candidate[0] not in seen:
                seen.add(candidate[0])
                self._note(candidate[0], store)
                yield candidate

    def _note(self, module_id: bytes, store: Store | None) -> None:
        """Remember the place of a module; None leaves that to the segment of all layers."""
        if store is self:
            self._found_in.pop(module_id, None)
            return
        place = store or self._layer_of(module_id)
        if place is not None:
            self._found_in[module_id] = place

    def find_here(self, func_name: str, is_near: IsNear | None = None, *, linked: bool = False) -> Iterable[tuple[bytes, int]]:
        """See `Store`."""
        return self._find_in(None, func_name, is_near, linked=linked)

    def segments(self) -> tuple[Segment, ...]:
        """See `Store`."""
        return tuple([segment for _, index in self._places(self.merged) for segment in index.segments])

    def state(self) -> bytes:
        """See `Store`."""
        below = [] if self.merged is not None else [layer.root.encode("utf-8", "surrogateescape") for layer in self.layers]
        return digest([*below, *[index.state() for _, index in self._places(self.merged)]])

    def exists(self, module_id: bytes) -> bool:
        """Return whether the file of a module exists, here or in a layer."""
        return super().exists(module_id) or any(layer.exists(module_id) for layer in self.layers)

    def is_cache(self) -> bool:
        """Return whether the directory or a layer holds anything."""
        return super().is_cache() or any(layer.is_cache() for layer in self.layers)

    def open_module(self, module_id: bytes, *, leave_stamp: bool = True) -> ModuleFile:
        """See `Store`. A module that is missing here, or not usable, is opened in a layer."""
        found_in = self._found_in.get(module_id)
        stores = (self, *self.layers) if found_in is None else (found_in, self, *self.layers)
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
            failure = None  # it and this frame would keep each other, and the callers' modules, until garbage is collected

    def remember_layer(self, entry: ModuleEntry) -> None:
        """Remember that a file of a layer was verified, if this cache can be written."""
        if not self.readonly:
            from compcache.publish.verify import remember_in

            remember_in(self, self.verified, entry)

    def close(self) -> None:
        """See `Store`."""
        super().close()
        self.verified.close()
        self.merged = None
        for layer in self.layers:
            layer.close()
