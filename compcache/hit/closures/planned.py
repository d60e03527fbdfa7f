"""Loads a function with a closure that an earlier load has planned: its imports need no look-up in the index.

The file (`docs/format.md`, "Planned closure") is derived, and written by `compcache.hit.closures.remember`. The function itself was looked
up and read as always. The file only says where the records of what stands behind it are, as the index would: what is bound, and where, is
read off the records, as in any other load. So a file that says something else than was planned leads to other records, or to none; it
cannot lead to an address. Each module has the stamp under which it was verified, and is opened as by any other load. Whatever does not fit
(damage, another host, a module that is gone, a symbol that this process lacks) leaves the load to the walk, which plans anew.
"""

from __future__ import annotations

from _struct import Struct  # what `struct` re-exports: a file less to read
from _struct import error as StructError  # type: ignore[attr-defined] # noqa: N812 - a class

from compcache.digest import DIGEST_SIZE
from compcache.errors import CompcacheError, FormatError, ReentrantLoadError
from compcache.files import reraise_interrupt
from compcache.formats.index import MODULE
from compcache.formats.manifest import NO_ENTRY, decode_function
from compcache.hit.closures import HEAD, MAGIC, SEAL_SIZE, seal
from compcache.hit.needs import read_needs, read_records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.hit.loader import Choice, Loader, Sources

__all__ = ["FUNCTION", "NO_STATE", "REQUIREMENT_PARTS", "modules_of", "read_planned"]

#: Of a function: the number of its module, and the offset of its record there.
FUNCTION = Struct("<II")
NO_STATE = bytes(DIGEST_SIZE)
#: The number of texts in a host requirement.
REQUIREMENT_PARTS = 7
#: The number of bytes of the digest in a record's link type.
_DIGEST = 8


def read_planned(loader: Loader, root: Choice, data: bytes, name: str, sources: Sources) -> dict[str, Choice] | None:
    """Return the choices of the planned closure in the file of this name, by function, ready for the commit; None if it cannot be used
    here.

    Then `sources` has the module of `root` and no other.
    """
    store = loader.store
    content = data[len(MAGIC) + SEAL_SIZE :]
    if data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : len(MAGIC) + SEAL_SIZE] != seal(content, name, store.stamp_key):
        return None
    try:
        chosen = _decode(loader, root, content, sources)
        _require_whole(loader, root, chosen)
        for source in sources.values():
            loader.provide(source)
        loader.start(chosen)
    except ReentrantLoadError:
        raise
    except (CompcacheError, OSError, ValueError, IndexError, StructError) as error:  # the walk finds and reports the problem
        reraise_interrupt(error)
        for module_id in [module_id for module_id in sources if module_id != root.module_id]:
            sources.pop(module_id).release()
        return None
    return chosen


def modules_of(data: bytes) -> list[bytes]:
    """Return the modules in the file of a planned closure, for its removal. Nothing is verified."""
    content = data[len(MAGIC) + SEAL_SIZE :]
    end = HEAD.size + MODULE.size * int.from_bytes(content[len(NO_STATE) : len(NO_STATE) + 4], "little")
    return [content[at : at + DIGEST_SIZE] for at in range(HEAD.size, min(end, len(content)), MODULE.size)]


def _decode(loader: Loader, root: Choice, content: bytes, sources: Sources) -> dict[str, Choice]:
    """Return the functions in the file, with their modules open.

    Raises:
        FormatError: the file is not one that `remember_closure` writes, or is out of date.
        CompcacheError, OSError: a module cannot be opened, or this host cannot run a function.
    """
    state, modules, functions, text_size = HEAD.unpack_from(content)
    if state != NO_STATE and state != loader.store.state():
        raise FormatError("the index has changed since the closure was planned")
    first = HEAD.size + modules * MODULE.size
    last = first + functions * FUNCTION.size
    if last + text_size != len(content):
        raise FormatError("a planned closure does not have the size that it states")
    texts = content[last:].decode("utf-8", "surrogatepass").split("\0")
    for start in range(0, len(texts), REQUIREMENT_PARTS):  # records name them by their digest: one that is not here is read with them
        loader.store.processor().rank("\0".join(texts[start : start + REQUIREMENT_PARTS]))
    opened = []
    for at in range(HEAD.size, first, MODULE.size):
        opened.append(loader.open_described(content[at : at + MODULE.size], sources))
        read_records(loader, opened[-1])  # now: its file is closed for a while where there are many
    if not opened or opened[0] is not root.source or len(opened) != len(sources) or root.record.entry == NO_ENTRY:
        raise FormatError("a planned closure belongs to another function")
    chosen = {root.record.name: root}
    for number, offset in FUNCTION.iter_unpack(content[first:last]):
        source = opened[number]
        record = decode_function(source.read_record(loader.store, offset))
        loader.require_features(source.file, record)
        chosen[record.name] = type(root)(source, record, offset)
    if len(chosen) != functions + 1:
        raise FormatError("a planned closure lists a function twice")
    return chosen


def _require_whole(loader: Loader, root: Choice, chosen: dict[str, Choice]) -> None:
    """Check that a closure contains all imports of its functions, with the expected types, and nothing else.

    Raises:
        FormatError: it does not.
        CompcacheError: a record cannot be read, or the process lacks a symbol.
    """
    reached, stack = {root.record.name}, [root]
    while stack:
        choice = stack.pop()
        read_needs(loader, choice)
        if choice.globals:
            raise FormatError("a planned closure has a function with global variables")
        for _, name, _, kind in choice.imports:
            other = chosen.get(name)
            if other is None or not _fits(loader, choice, kind, other):
                raise FormatError("a planned closure lacks an import of one of its functions")
            if name not in reached:
                reached.add(name)
                stack.append(other)
    if len(reached) != len(chosen):
        raise FormatError("a planned closure has functions that nothing in it uses")


def _fits(loader: Loader, user: Choice, kind: bytes, other: Choice) -> bool:
    """Return whether a function has the type that its user expects, as far as both types are known."""
    own = other.record.link_type
    if not kind or not own or kind[:_DIGEST] == own[:_DIGEST]:
        return True
    from compcache.hit.link_types import fits, read_type

    store = loader.store
    defined = read_type(lambda offset: other.source.read_record(store, offset), own)
    return fits(defined, read_type(lambda offset: user.source.read_record(store, offset), kind))[0]
