"""Plain hits of functions with needs: symbols of the process, and functions of other modules that each have one preferred realization.

The choices of a `Plan` (`compcache.hit.plan`) are then known without one. Not plain are variables that are decoded or that several
modules define, uses with another type than the definition's, and code that this host cannot run.
"""

from compcache import hit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from compcache.hit import LoadedModule, PlainLoader

__all__ = ["Part", "Parts", "follow"]

#: The values of `compcache.formats.manifest`.
_NO_SLOT, _STARTUP = 0xFFFFFFFF, "startup"
_VARIABLE, _MERGED = "= variable ", "= merged variable "
#: The number of bytes of the digest in a record's link type.
_DIGEST = 8
#: The most module files that one such load opens.
_MOST_MODULES = 64


class Part:
    """A function of a load.

    Attributes:
        module_id: its module.
        where: the opened file of the module.
        record: the function's record.
        read: returns the payload of a record of the module.
        imports: the name of each import and its positions in the image, by the number of its slot, or by its name if it has positions.
        loaded: the mapped module, or None.
        start: the number of the function that runs the module's constructors, if they wait for imports.
    """

    __slots__ = ("imports", "loaded", "module_id", "read", "record", "start", "where")

    def __init__(self, module_id: bytes, where: "Any", record: "tuple[Any, ...]", read: "Callable[[int], bytes]") -> None:
        self.module_id = module_id
        self.where = where
        self.record = record
        self.read = read
        self.imports: dict[int | str, tuple[str, bytes]] = {}
        self.loaded: Any = None
        self.start: int | None = None


class Parts(dict[str, Part]):
    """The functions of a plain load, by name."""

    __slots__ = ()

    def provide(self, loader: "PlainLoader", runtime: "Any") -> None:
        """Map the modules, and run the constructors that wait for imports. Raises `OSError` if a module cannot be mapped."""
        for part in self.values():
            part.loaded = loader._provide(runtime, part.module_id, part.where)
        if any(part.start is not None and not part.loaded.started for part in self.values()):
            from compcache.hit.starts import start_modules

            functions = {key: (part.loaded, part.start, [name for name, _ in part.imports.values()]) for key, part in self.items()}
            with loader.mapping():
                start_modules(runtime, self.bindings(runtime), functions)

    def modules(self) -> "dict[bytes, LoadedModule]":
        """Return the modules of the functions, by module_id."""
        return {part.module_id: part.loaded for part in self.values()}

    def bindings(self, runtime: "Any") -> "tuple[bytes, list[dict[Any, Any]]]":
        """Return the stores into images that bind the functions to each other, and the table updates that record them.

        Raises:
            IndexError: the records of a module do not fit its image.
        """
        stores, updates = [], []
        for part in self.values():
            slots: dict[Any, Any] = part.loaded.slots
            imports = {key: (self[name], places) for key, (name, places) in part.imports.items() if key not in slots}
            if imports:
                image = part.loaded.image
                bound = [
                    (key if isinstance(key, int) else -1, places, other.loaded.image, other.record[4])
                    for key, (other, places) in imports.items()
                ]
                stores.append(runtime.bind(image, bound))
                runtime.require_writable(image, stores[-1])
                updates += [slots, {key: other.loaded for key, (other, _) in imports.items()}]
        return b"".join(stores), updates

    def provider_updates(self, loader: "PlainLoader") -> "list[dict[Any, Any]]":
        """Return the table updates for the modules that provide the variables of this load."""
        tables = (_VARIABLE, loader.providers), (_MERGED, loader.merged)
        return [
            item
            for prefix, table in tables
            for item in (table, {name: hit._weak(table, name, p.loaded) for name, p in self.items() if p.record[2].startswith(prefix)})
        ]


def follow(
    loader: "PlainLoader", runtime: "Any", module_id: bytes, where: "Any", record: "tuple[Any, ...]", read: "Callable[[int], bytes]"
) -> "Parts | None":
    """Return a function with all its direct and indirect imports; empty if it imports nothing; None if one of them is not plain.

    Args:
        loader: the loader.
        runtime: the native runtime.
        module_id: the module of the function.
        where: the opened file of the module.
        record: the function's record.
        read: returns the payload of a record of the module.

    Raises:
        CompcacheError, OSError: a record or a file cannot be read.
    """
    root = Part(module_id, where, record, read)
    parts, places, waiting = Parts({record[0]: root}), {module_id: where}, [root]
    natives: set[str] = set()
    for part in waiting:  # the list grows in the loop
        uses = _read_needs(runtime, part, loader._loaded(part.module_id), natives)
        if uses is None:
            return None
        for name, kind in uses:
            other = parts.get(name)
            if other is None:
                other = _find(loader, runtime, name, places)
                if other is None:
                    return None
                parts[name] = other
                waiting.append(other)
            if kind and other.record[7] and kind[:_DIGEST] != other.record[7][:_DIGEST]:
                return None
    if natives and runtime.find_undefined(tuple(natives)) is not None:
        return None
    return parts if any(part.imports or part.start is not None for part in waiting) else Parts()


def _read_needs(runtime: "Any", part: "Part", loaded: "LoadedModule | None", natives: "set[str]") -> "list[tuple[str, bytes]] | None":
    """Return the unbound imports of a function, each with the link type of its use; None if it has variables to decode."""
    uses = []
    waiting = [part.record[6]] if part.record[6] else []
    for offset in waiting:  # the list grows in the loop
        imports, variables, symbols, children, places, kinds = runtime.needs_record(part.read(offset))
        if not _note_starts(runtime, part, variables):
            return None
        for number, (slot, name) in enumerate(imports):
            key = name if slot == _NO_SLOT else slot
            if loaded is None or key not in loaded.slots:
                part.imports[key] = name, places[number] if key is name else b""
                uses.append((name, kinds[number] if kinds else b""))
        natives.update(symbols)
        waiting += [child for child in children if child not in waiting]
    return uses


def _find(loader: "PlainLoader", runtime: "Any", name: str, places: "dict[bytes, Any]") -> "Part | None":
    """Return the function of this name; None if there is none, or if choosing its realization is not plain."""
    found = runtime.newest(loader._functions, name, runtime.is_ordered(name))
    if found is None or found[2] >= hit._LINKED:
        return None
    where = places.get(found[1])
    if where is None:
        if len(places) == _MOST_MODULES:
            return None
        where = places[found[1]] = loader._open_module(runtime, found[0], found[1])
    record, read = loader._read_function(runtime, name, found, where)
    if record is None or (record[2].startswith(hit._LINK_ONLY) and not _has_one_realization(loader, runtime, name)):
        return None
    return Part(found[1], where, record, read)


def _note_starts(runtime: "Any", part: Part, offsets: "tuple[int, ...]") -> bool:
    """Record the function that runs a module's constructors. Returns False if a record is of something else, a variable to decode."""
    for offset in offsets:
        _, slot, _, _, kind, _ = runtime.global_record(part.read(offset))
        if kind != _STARTUP:
            return False
        part.start = slot
    return True


def _has_one_realization(loader: "PlainLoader", runtime: "Any", name: str) -> bool:
    """Return whether a name has exactly one realization. For variables, the newest one need not be the right one."""
    places = {runtime.places_of_names(table, [name])[0] for table in loader._functions} - {None}
    return len(places) == 1 and False not in places
