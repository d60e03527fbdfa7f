"""Plain hits of functions with needs: symbols of the process, and functions of other modules that each have one preferred realization.

The choices of a `Plan` (`compcache.hit.plan`) are then known without one. Not plain are variables that are decoded or that several
modules define, uses with another type than the definition's, and code that this host cannot run.
"""

from compcache import hit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from compcache.hit import LoadedModule, PlainLoader

    #: Of an import: its key, its name, its places, and the link type of the use.
    Use: TypeAlias = "tuple[int | str, str, bytes, bytes]"

__all__ = ["Part", "Parts", "collect_imports"]

#: The values of `compcache.formats.manifest`.
_NO_SLOT, _STARTUP = 0xFFFFFFFF, "startup"
_VARIABLE, _MERGED = "= variable ", "= merged variable "
#: The number of bytes of the digest in a record's link type.
_DIGEST = 8
#: The most module files that one such load opens.
_MOST_MODULES = 64
#: The least number of functions of one module that are looked up together, and the most bytes of records that are read for each.
_MANY, _BYTES_OF_EACH = 32, 1024


class Part:
    """A function of a load.

    Attributes:
        module_id: its module.
        where: the opened file of the module.
        record: the function's record.
        imports: the name of each import and its positions in the image, by the number of its slot, or by its name if it has positions.
        together: imports that were looked up together: another function of their module, and for each its key, its positions and its
            number there.
        loaded: the mapped module, or None.
        start: the number of the function that runs the module's constructors, if they wait for imports.
    """

    __slots__ = ("imports", "loaded", "module_id", "record", "start", "together", "where")

    def __init__(self, module_id: bytes, where: "Any", record: "tuple[Any, ...]") -> None:
        self.module_id = module_id
        self.where = where
        self.record = record
        self.imports: dict[int | str, tuple[str, bytes]] = {}
        self.together: list[tuple[Part, list[tuple[int | str, bytes, int]]]] = []
        self.loaded: Any = None
        self.start: int | None = None


class Parts(dict[str, Part]):
    """The functions of a plain load, by name."""

    __slots__ = ()

    def provide(self, loader: "PlainLoader", runtime: "Any") -> None:
        """Map the modules, and run the constructors that wait for imports. Raise `OSError` if a module cannot be mapped."""
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
            rows = [(key, places, self[name].loaded, self[name].record[4]) for key, (name, places) in part.imports.items()]
            rows += [(key, places, provider.loaded, number) for provider, functions in part.together for key, places, number in functions]
            if slots:
                rows = [row for row in rows if row[0] not in slots]
            if rows:
                image = part.loaded.image
                bound = [(key if isinstance(key, int) else -1, places, loaded.image, number) for key, places, loaded, number in rows]
                stores.append(runtime.bind(image, bound))
                runtime.require_writable(image, stores[-1])
                updates += [slots, {row[0]: row[2] for row in rows}]
        return b"".join(stores), updates

    def provider_updates(self, loader: "PlainLoader") -> "list[dict[Any, Any]]":
        """Return the table updates for the modules that provide the variables of this load."""
        tables = (_VARIABLE, loader.providers), (_MERGED, loader.merged)
        return [
            item
            for prefix, table in tables
            for item in (table, {name: hit._weak(table, name, p.loaded) for name, p in self.items() if p.record[2].startswith(prefix)})
        ]


def collect_imports(loader: "PlainLoader", runtime: "Any", module_id: bytes, file: "Any", record: "tuple[Any, ...]") -> "Parts | None":
    """Return a function with all its direct and indirect imports.

    The result is empty if it imports nothing, or None if one of them is not plain.

    Args:
        loader: the loader.
        runtime: the native runtime.
        module_id: the module of the function.
        file: the opened file of the module.
        record: the function's record.

    Raises:
        CompcacheError, OSError: a record or a file cannot be read.
    """
    root = Part(module_id, file, record)
    parts, places, waiting = Parts({record[0]: root}), {module_id: file}, [root]
    natives: set[str] = set()
    for part in waiting:  # the list grows in the loop
        uses = _read_needs(loader, runtime, part, natives)
        if uses is None:
            return None

        def find(name: str) -> "Part | None":
            provider = parts.get(name) or _find(loader, runtime, name, places)
            if provider is not None and name not in parts:
                parts[name] = provider
                waiting.append(provider)
            return provider

        if len(uses) >= _MANY:
            uses = _look_up_together(loader, runtime, part, uses, find)
        for key, name, positions, kind in uses:
            provider = find(name)
            if provider is None:
                return None
            part.imports[key] = name, positions
            if kind and provider.record[7] and kind[:_DIGEST] != provider.record[7][:_DIGEST]:
                return None
    if natives and runtime.find_undefined(tuple(natives)) is not None:
        return None
    return parts if any(part.imports or part.start is not None for part in waiting) else Parts()


def _read_needs(loader: "PlainLoader", runtime: "Any", part: "Part", natives: "set[str]") -> "list[Use] | None":
    """Return the unbound imports of a function, each with its key, its positions and the link type of its use.

    The result is None if the function has variables to decode.
    """
    uses = []
    loaded = loader._loaded(part.module_id)
    waiting = [part.record[6]] if part.record[6] else []
    for offset in waiting:  # the list grows in the loop
        imports, variables, symbols, children, places, kinds = runtime.needs_record(_read_payload(runtime, part, offset))
        if not _record_start(runtime, part, variables):
            return None
        for number, (slot, name) in enumerate(imports):
            key = name if slot == _NO_SLOT else slot
            if loaded is None or key not in loaded.slots:
                uses.append((key, name, places[number] if key is name else b"", kinds[number] if kinds else b""))
        natives.update(symbols)
        waiting += [child for child in children if child not in waiting]
    return uses


def _read_payload(runtime: "Any", part: Part, offset: int) -> bytes:
    """Return the payload of a record of a function's module."""
    opened, _, _, (image, records, _, _, _, key, _) = part.where
    payload: bytes = runtime.read_frame(opened.number, offset, records, key, image)
    return payload


def _look_up_together(
    loader: "PlainLoader", runtime: "Any", part: Part, uses: "list[Use]", find: "Callable[[str], Part | None]"
) -> "list[Use]":
    """Look up many imports of a function at once, if they are from one module.

    An import is looked up here if its only realization fits and needs nothing. Return the other imports, and at least one of each
    module. The errors are those of `collect_imports`.
    """
    modules: dict[bytes, tuple[list[Use], list[int]]] = {}
    for use, place in zip(uses, runtime.places_of_names(loader._functions, [use[1] for use in uses]), strict=True):
        if place and place[1] < hit._LINKED:
            module_uses, offsets = modules.get(place[0]) or modules.setdefault(place[0], ([], []))
            module_uses.append(use)
            offsets.append(place[1])
    found_keys = set()
    for module_id, (module_uses, offsets) in modules.items():
        provider = find(module_uses[0][1]) if len(module_uses) >= _MANY else None
        if provider is None or provider.module_id != module_id or provider.where[3][1] > len(module_uses) * _BYTES_OF_EACH:
            continue
        image, size, _, _, _, key, _ = provider.where[3]
        records = loader._files.pread(provider.where[0].number, size, image)
        names, types = [use[1] for use in module_uses], [use[3] for use in module_uses]
        numbers = runtime.plain_functions(records, key, names, offsets, types, loader._accepted)
        rows = [(use[0], use[2], number) for use, number in zip(module_uses[1:], numbers[1:], strict=True) if number is not None]
        part.together.append((provider, rows))
        found_keys.update([row[0] for row in rows])
    return [use for use in uses if use[0] not in found_keys]


def _find(loader: "PlainLoader", runtime: "Any", name: str, places: "dict[bytes, Any]") -> "Part | None":
    """Return the function of this name, or None if it is missing or choosing its realization is not plain."""
    row = runtime.newest(loader._functions, name, runtime.is_ordered(name))
    if row is None or row[2] >= hit._LINKED:
        return None
    file = places.get(row[1])
    if file is None:
        if len(places) == _MOST_MODULES:
            return None
        file = places[row[1]] = loader._open_module(runtime, row[0], row[1])
    record = loader._read_function(runtime, name, row, file)
    if record is None or (record[2].startswith(hit._LINK_ONLY) and not _has_one_realization(loader, runtime, name)):
        return None
    return Part(row[1], file, record)


def _record_start(runtime: "Any", part: Part, offsets: "tuple[int, ...]") -> bool:
    """Record the function that runs a module's constructors. Return False if a record is that of a variable to decode."""
    for offset in offsets:
        _, slot, _, _, kind, _ = runtime.global_record(_read_payload(runtime, part, offset))
        if kind != _STARTUP:
            return False
        part.start = slot
    return True


def _has_one_realization(loader: "PlainLoader", runtime: "Any", name: str) -> bool:
    """Return whether a name has exactly one realization. For variables, the newest one need not be the right one."""
    return bool(runtime.places_of_names(loader._functions, [name])[0])
