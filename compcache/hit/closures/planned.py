"""Loads a function with the closure that a former load has planned: one file instead of a walk through records and index.

The file (`docs/format.md`, "Planned closure") is derived, and written by `compcache.hit.closures.remember`. The function itself was looked
up and read as always; what stands behind it comes from here: the modules, each with the stamp under which it was verified, and what
is bound to what. It is believed as far as stamps are, and each module is opened as by any other load. Whatever does not fit
(damage, another host, a module that is gone, a symbol that this process lacks) leaves the load to the walk, which plans anew.
"""

from __future__ import annotations

from _struct import Struct  # what `struct` re-exports: a file less to read
from _struct import error as StructError  # type: ignore[attr-defined] # noqa: N812 - a class

from compcache.digest import DIGEST_SIZE, digest, mac
from compcache.errors import CompcacheError, FormatError, ReentrantLoadError
from compcache.files import reraise_interrupt
from compcache.formats.host import UNUSABLE
from compcache.formats.index import MODULE
from compcache.formats.manifest import NO_ENTRY, NO_SLOT, FunctionRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.hit.loader import Choice, LoadedModule, Loader, Source, Sources

__all__ = ["BINDING", "FUNCTION", "HEAD", "MAGIC", "NO_STATE", "REQUIREMENT_PARTS", "PlannedClosure", "modules_of", "read_planned", "seal"]

MAGIC = b"CCCLOSE3"
_SEAL_SIZE = DIGEST_SIZE
#: State, and the numbers of modules, functions, waiting constructors, bindings, requirements, native symbols, and bytes of texts.
HEAD = Struct("<16s7I")
#: Of a function, and of what runs the constructors of a module: the number of the module, and of the symbol there.
FUNCTION = Struct("<II")
#: Of what is bound: number of the module, slot or NO_SLOT, number of the provider, and of the symbol there, size of the places.
BINDING = Struct("<5I")
NO_STATE = bytes(DIGEST_SIZE)
#: How many texts a requirement of a host is.
REQUIREMENT_PARTS = 7


def seal(content: bytes, file_name: str, key: bytes | None) -> bytes:
    """What tells a planned closure of this name from a damaged one; with a key, from one that somebody without it has written."""
    named = file_name.encode() + content
    return mac(named, key)[:_SEAL_SIZE] if key else digest([named], size=_SEAL_SIZE, person=b"compcache-closed")


class PlannedClosure:
    """What a load binds, by the numbers of its modules.

    `chosen` has at least one function of each module, and each variable that several modules define or use.
    """

    __slots__ = ("_bindings", "_names", "_places", "_sources", "_starts", "chosen")

    def __init__(
        self, chosen: dict[str, Choice], sources: list[Source], starts: bytes, bindings: bytes, names: list[str], places: bytes
    ) -> None:
        self.chosen = chosen
        self._sources = sources
        self._starts = starts
        self._bindings = bindings
        self._names = names
        self._places = places

    def start(self, loader: Loader) -> None:
        """Run the constructors that have waited for what their modules import, in the order that was planned.

        Raises:
            IndexError: the closure does not fit an image.
        """
        waiting = [(self._sources[number].loaded, symbol) for number, symbol in FUNCTION.iter_unpack(self._starts)]
        if any(module is not None and not module.started for module, _ in waiting):
            from compcache.hit.closures.starts import start_bound

            with loader.mapping():
                start_bound(loader.runtime(), self.bindings(loader.runtime()), waiting)

    def bindings(self, runtime: Any) -> tuple[list[bytes], list[dict[Any, Any]]]:
        """What to store in images, and the updates of the modules' tables, as of `compcache.hit.needs.collect_stores`.

        Raises:
            IndexError: the closure does not fit an image.
        """
        modules = [source.loaded for source in self._sources]
        rows: list[list[tuple[int, bytes, Any, int]]] = [[] for _ in modules]
        filled: list[dict[int | str, object]] = [{} for _ in modules]
        places, names, at = self._places, iter(self._names), 0
        for user, slot, provider, symbol, size in BINDING.iter_unpack(self._bindings):
            key = next(names, "") if slot == NO_SLOT else slot
            other, module = modules[provider], modules[user]
            assert other is not None
            assert module is not None
            if key not in module.slots:  # by another thread, which has mapped the module for a load of its own
                filled[user][key] = other
                rows[user].append((slot if slot != NO_SLOT else -1, places[at : at + size], other.image, symbol))
            at += size
        return _stores(runtime, modules, rows), [
            table for pair in zip([m.slots for m in modules if m], filled, strict=True) for table in pair
        ]


def _stores(runtime: Any, modules: list[LoadedModule | None], rows: list[list[tuple[int, bytes, Any, int]]]) -> list[bytes]:
    found = []
    for module, row in zip(modules, rows, strict=True):
        if row and module is not None:
            stores = runtime.bind(module.image, row)
            runtime.require_writable(module.image, stores)
            found.append(stores)
    return found


def read_planned(loader: Loader, root: Choice, data: bytes, name: str, sources: Sources) -> PlannedClosure | None:
    """The planned closure in the file of this name, its modules mapped and among `sources`; None where it cannot be used here.

    Then `sources` has the module of `root` and no other.
    """
    store = loader.store
    content = data[len(MAGIC) + _SEAL_SIZE :]
    if data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : len(MAGIC) + _SEAL_SIZE] != seal(content, name, store.stamp_key):
        return None
    try:
        planned = _decode(loader, root, content, sources)
        for source in sources.values():
            loader.provide(source)
    except ReentrantLoadError:
        raise
    except (CompcacheError, OSError, ValueError, IndexError, StructError) as error:  # the walk finds out what is wrong, and says so
        reraise_interrupt(error)
        for module_id in [module_id for module_id in sources if module_id != root.module_id]:
            sources.pop(module_id).release()
        return None
    return planned


def modules_of(data: bytes) -> list[bytes]:
    """The modules that the file of a planned closure names, for who removes modules: nothing is verified."""
    content = data[len(MAGIC) + _SEAL_SIZE :]
    end = HEAD.size + MODULE.size * int.from_bytes(content[len(NO_STATE) : len(NO_STATE) + 4], "little")
    return [content[at : at + DIGEST_SIZE] for at in range(HEAD.size, min(end, len(content)), MODULE.size)]


def _decode(loader: Loader, root: Choice, content: bytes, sources: Sources) -> PlannedClosure:
    state, modules, functions, waiting, bound, requirements, natives, text_size = HEAD.unpack_from(content)
    if state != NO_STATE and state != loader.store.index.state():
        raise FormatError("the index has changed since the closure was planned")
    at = HEAD.size
    if at + modules * MODULE.size + (functions + waiting) * FUNCTION.size + bound * BINDING.size + text_size > len(content):
        raise FormatError("a planned closure is truncated")
    entries = [content[start : start + MODULE.size] for start in range(at, at + modules * MODULE.size, MODULE.size)]
    at += modules * MODULE.size
    rows = content[at : at + functions * FUNCTION.size]
    at += len(rows)
    starts = content[at : at + waiting * FUNCTION.size]
    at += len(starts)
    bindings = content[at : at + bound * BINDING.size]
    at += len(bindings)
    texts = content[at : at + text_size].decode("utf-8", "surrogatepass").split("\0")
    first = min(requirements * REQUIREMENT_PARTS, len(texts))
    processor = loader.store.processor()
    for start in range(0, first, REQUIREMENT_PARTS):
        if processor.rank("\0".join(texts[start : start + REQUIREMENT_PARTS])) == UNUSABLE:
            raise FormatError("this host lacks what a function of the closure requires")
    last = first + natives
    if loader.runtime().find_undefined(tuple(texts[first:last])) is not None:
        raise FormatError("a native symbol of the closure is not in this process")
    opened = [loader.open_described(entry, sources) for entry in entries]
    if opened[0] is not root.source:
        raise FormatError("a planned closure is of another function")
    chosen = {root.record.name: root}
    names = texts[last : last + 2 * functions]
    for number, (module, symbol) in enumerate(FUNCTION.iter_unpack(rows)):
        func_name, signature = names[2 * number : 2 * number + 2]
        record = FunctionRecord(func_name, "", signature, b"", symbol, NO_ENTRY, 0)
        chosen.setdefault(func_name, type(root)(opened[module], record))
    return PlannedClosure(chosen, opened, starts, bindings, texts[last + 2 * functions :], content[at + text_size :])
