"""Plain hits of functions with needs: symbols of the process, and functions of other modules that each have one preferred realization.

The choices of a `Plan` (`compcache.hit.plan`) are then known without one. Not plain are variables that are decoded, except addresses of
helpers, variables that several modules define, uses with another type than the definition's, and code that this host cannot run.
"""

from compcache import hit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from compcache.formats.manifest import Use
    from compcache.hit import LoadedModule, PlainLoader

__all__ = ["MANY", "PlainFunction", "PlainFunctions", "collect_imports", "encode_store", "look_up_together", "start_modules"]

#: The values of `compcache.formats.manifest`.
_STARTUP = "startup"
_VARIABLE, _MERGED = "= variable ", "= merged variable "
#: The Python modules whose function `helper_address` returns the value of a variable, by the kind of its definition.
_ADDRESSES = {"numba-symbol": "compcache.numba.lazy.c_helpers"}
#: The number of bytes of the digest in a record's link type.
_DIGEST = 8
_WORD = 8
#: Positions in a use, and in a record.
_KEY: "Final" = 0
_NAME: "Final" = 1
_SIGNATURE, _NUMBER, _NEEDS, _LINK_TYPE = 2, 4, 6, 7
#: The most module files that one such load opens.
_MOST_MODULES = 64
#: The least number of functions of one module that are looked up together, and the most bytes of records that are read for each.
MANY, _BYTES_OF_EACH = 32, 1024


class PlainFunction:
    """A function of a load.

    Attributes:
        module_id: its module.
        where: the opened module (`PlainLoader._open_module`).
        record: the function's record.
        imports: the imports, by key.
        addresses: the variables that contain addresses of helpers: their number, size, kind and the name of the helper.
        stores: the stores of these addresses.
        together: imports that were looked up together: another function of their module, the imports, and their numbers there.
        loaded: the mapped module, or None.
        start: the number of the function that runs the module's constructors, if they wait for imports.
    """

    __slots__ = ("addresses", "imports", "loaded", "module_id", "record", "start", "stores", "together", "where")

    def __init__(self, module_id: bytes, where: "Any", record: "tuple[Any, ...]") -> None:
        self.module_id = module_id
        self.where = where
        self.record = record
        self.imports: dict[int | str, Use] = {}
        self.addresses: list[tuple[int, int, str, str]] = []
        self.stores = b""
        self.together: list[tuple[PlainFunction, list[Use], list[int]]] = []
        self.loaded: Any = None
        self.start: int | None = None


class PlainFunctions(dict[str, PlainFunction]):
    """The functions of a plain load, by name."""

    __slots__ = ()

    def provide(self, loader: "PlainLoader", runtime: "Any") -> None:
        """Map the modules, find the helpers, and run the constructors that wait for imports.

        Raises:
            ImportError, OSError: a module cannot be mapped, or a helper is missing.
            ReentrantLoadError: the look-up interrupts the start of one of the modules.
        """
        for function in self.values():
            function.loaded = loader._provide(runtime, function.module_id, function.where)
            function.stores = b"".join([_address_store(runtime, function.loaded.image, *address) for address in function.addresses])
        if any(function.start is not None and not function.loaded.started for function in self.values()):
            functions = {
                name: (function.loaded, function.start, [use[_NAME] for use in function.imports.values()])
                for name, function in self.items()
            }
            with loader.mapping():
                start_modules(runtime, self.bindings(runtime), functions)

    def modules(self) -> "dict[bytes, LoadedModule]":
        """Return the modules of the functions, by module_id."""
        return {function.module_id: function.loaded for function in self.values()}

    def bindings(self, runtime: "Any") -> "tuple[bytes, list[dict[Any, Any]]]":
        """Return the stores into images that bind the functions to each other, and the table updates that record them.

        Raise `IndexError` if the records of a module do not fit its image.
        """
        stores, updates = [], []
        for function in self.values():
            if function.stores:
                stores.append(function.stores)
                runtime.require_writable(function.loaded.image, function.stores)
            slots: dict[Any, Any] = function.loaded.slots
            alone = function.imports.values()
            groups = [(self[use[_NAME]], [use], [self[use[_NAME]].record[_NUMBER]]) for use in alone] + function.together
            if slots:
                groups = [(other, [use for use in uses if use[_KEY] not in slots],
                           [number for use, number in zip(uses, numbers, strict=True) if use[_KEY] not in slots])
                          for other, uses, numbers in groups]  # fmt: skip
            if groups:
                image = function.loaded.image
                stores.append(runtime.bind(image, [(other.loaded.image, uses, numbers) for other, uses, numbers in groups]))
                runtime.require_writable(image, stores[-1])
                updates += [slots, {use[_KEY]: other.loaded for other, uses, _ in groups for use in uses}]
        return b"".join(stores), updates

    def provider_updates(self, loader: "PlainLoader") -> "list[dict[Any, Any]]":
        """Return updates for the modules that provide the variables of this load: each table of `loader`, followed by its new rows."""
        updates: list[dict[Any, Any]] = []
        for prefix, table in ((_VARIABLE, loader.providers), (_MERGED, loader.merged)):
            bound = [(name, function.loaded) for name, function in self.items() if function.record[_SIGNATURE].startswith(prefix)]
            updates += [table, {name: hit._weak(table, name, module) for name, module in bound}]
        return updates


def collect_imports(
    loader: "PlainLoader", runtime: "Any", module_id: bytes, where: "Any", record: "tuple[Any, ...]"
) -> "PlainFunctions | None":
    """Return a function with all its direct and indirect imports.

    The result is empty if there is nothing to bind: no import, no address of a helper, and no constructor that waits. It is None if one of
    the functions is missing or not plain, has another type than its use, or needs a native symbol that this process does not have.

    Args:
        loader: the loader.
        runtime: the native runtime.
        module_id: the module of the function.
        where: the opened file of the module.
        record: the function's record.

    Raises:
        CompcacheError, OSError: a record or a file cannot be read.
    """
    root = PlainFunction(module_id, where, record)
    functions, places, waiting = PlainFunctions({record[0]: root}), {module_id: where}, [root]
    natives: set[str] = set()
    needing: dict[tuple[bytes, int], PlainFunction] = {}
    for function in waiting:  # the list grows in the loop
        first = needing.setdefault((function.module_id, function.record[_NEEDS]), function)
        if first is not function:  # the needs are the same places of the same image
            function.imports, function.start = first.imports, first.start
            continue
        uses = _collect_needs(loader, runtime, function, natives)
        if uses is None:
            return None

        def find(name: str) -> "PlainFunction | None":
            """Return the function of a name, and queue it if it is new; None if it is not found (`_find`)."""
            other = functions.get(name) or _find(loader, runtime, name, places)
            if other is not None and name not in functions:
                functions[name] = other
                waiting.append(other)
            return other

        if len(uses) >= MANY:
            tables, accepted = loader._index[1], loader._accepted
            function.together, uses = look_up_together(runtime, tables, uses, accepted, _reader_of_records(loader, find))
        for use in uses:
            key, used_name, _, used_type = use
            other = find(used_name)
            own_type = other.record[_LINK_TYPE] if other is not None else b""
            if other is None or (used_type and own_type and used_type[:_DIGEST] != own_type[:_DIGEST]):
                return None
            function.imports[key] = use
    if natives and runtime.find_undefined(tuple(natives)) is not None:
        return None
    has_bindings = any(function.imports or function.addresses or function.start is not None for function in waiting)
    return functions if has_bindings else PlainFunctions()


def _collect_needs(loader: "PlainLoader", runtime: "Any", function: "PlainFunction", natives: "set[str]") -> "list[Use] | None":
    """Add the native symbols of a function to `natives`, and its variables to its fields (`_read_variables`).

    Return the unbound imports of the function, each with its key, its name, its positions and its link type. The result is None if the
    function has variables to decode.
    """
    uses: list[Use] = []
    loaded = loader._loaded(function.module_id)
    waiting = [function.record[_NEEDS]] if function.record[_NEEDS] else []
    listed = set(waiting)
    for offset in waiting:  # the list grows in the loop
        imports, variables, symbols, children = runtime.needs_record(_read_payload(runtime, function, offset))
        if not _read_variables(runtime, function, variables):
            return None
        uses += [use for use in imports if use[_KEY] not in loaded.slots] if loaded is not None else imports
        natives.update(symbols)
        waiting += [child for child in children if child not in listed]
        listed.update(children)
    return uses


def _read_payload(runtime: "Any", function: PlainFunction, offset: int) -> bytes:
    """Return the payload of a record of a function's module. See `read_frame` for the exception."""
    opened, _, _, (image, records, _, _, _, key, _) = function.where
    payload: bytes = runtime.read_frame(opened.number, offset, records, key, image)
    return payload


def _reader_of_records(
    loader: "PlainLoader", find: "Callable[[str], PlainFunction | None]"
) -> "Callable[[bytes, str, int], tuple[PlainFunction, bytes, bytes] | None]":
    """Return the argument `read_records` of `look_up_together` for a plain hit.

    A module is examined if it has the newest realization of its first import, and not too large a section of records.
    """

    def read(module_id: bytes, name: str, most: int) -> "tuple[PlainFunction, bytes, bytes] | None":
        """Return a function, its module's key and records; None if `find` prefers another module, or the records are too large."""
        other = find(name)
        if other is None or other.module_id != module_id or other.where[3][1] > most:
            return None
        image, size, _, _, _, key, _ = other.where[3]
        return other, key, loader._files.pread(other.where[0].number, size, image)

    return read


def look_up_together(
    runtime: "Any",
    tables: "tuple[Any, ...]",
    uses: "list[Use]",
    accepted: "set[bytes]",
    read_records: "Callable[[bytes, str, int], tuple[Any, bytes, bytes] | None]",
) -> "tuple[list[tuple[Any, list[Use], list[int]]], list[Use]]":
    """Look up many imports of a function at once. An import is found here if its only realization fits, and needs nothing.

    Args:
        runtime: the native runtime.
        tables: the tables of functions of the index.
        uses: the imports.
        accepted: the requirements that this host meets.
        read_records: returns an object for a module, the module's key, and its section of records, or None if the module is not
            examined. Its arguments are the module, the name of the first import from it, and the most bytes to read.

    Returns:
        For each examined module, the object of `read_records`, the imports, and their numbers in the module. Then the other imports, among
        them the first one of each module.

    Raises:
        FormatError: the index is damaged.
        CompcacheError, OSError: what `read_records` raises.
    """
    together, collected_keys = [], set()
    for module_id, (group, offsets) in runtime.uses_by_module(tables, uses).items():
        opened = read_records(module_id, group[0][_NAME], len(group) * _BYTES_OF_EACH) if len(group) >= MANY else None
        if opened is not None:
            provider, key, records = opened
            del group[0], offsets[0]  # the caller looks it up, so that the load has the module
            numbers = runtime.plain_functions(records, key, group, offsets, accepted)
            plain = group if None not in numbers else [use for use, number in zip(group, numbers, strict=True) if number is not None]
            together.append((provider, plain, [number for number in numbers if number is not None]))
            collected_keys.update([use[_KEY] for use in plain])
    return together, [use for use in uses if use[_KEY] not in collected_keys]


def _find(loader: "PlainLoader", runtime: "Any", name: str, places: "dict[bytes, Any]") -> "PlainFunction | None":
    """Return the function of this name; None if it is missing, only `Loader` can choose its realization, or too many modules are open."""
    row = runtime.newest(loader._index[1], name, runtime.is_ordered(name))
    if row is None:
        return None
    segment, module_id, offset, _, _ = row
    if offset >= hit._LINKED:
        return None
    where = places.get(module_id)
    if where is None:
        if len(places) == _MOST_MODULES:
            return None
        where = places[module_id] = loader._open_module(runtime, segment, module_id)
    record = loader._read_function(runtime, name, row, where)
    if record is None or (record[_SIGNATURE].startswith(hit._LINK_ONLY) and not _has_one_realization(loader, runtime, name)):
        return None
    return PlainFunction(module_id, where, record)


def _read_variables(runtime: "Any", function: PlainFunction, offsets: "tuple[int, ...]") -> bool:
    """Record the variables with addresses of helpers, and the number of the function that runs the constructors, in a function's fields.

    Return False at the first variable of another kind, otherwise True.
    """
    for offset in offsets:
        _, slot, _, size, kind, payload = runtime.global_record(_read_payload(runtime, function, offset))
        if kind == _STARTUP:
            function.start = slot
        elif kind in _ADDRESSES:
            function.addresses.append((slot, size, kind, payload.decode()))
        else:
            return False
    return True


def _address_store(runtime: "Any", image: "Any", slot: int, size: int, kind: str, name: str) -> bytes:
    """Return the store of a helper's address into a variable of a mapped image.

    Raise `OSError` if there is no such helper, or `ImportError` if the extension modules with the helpers cannot be loaded.
    """
    from sys import modules

    __import__(_ADDRESSES[kind])  # `importlib` would be one more file to import
    address = modules[_ADDRESSES[kind]].helper_address(name)
    if not address:
        raise OSError(f"this process has no C function {name!r} of Numba")
    return encode_store(runtime.address(image, slot), address.to_bytes(size, "little"))


def encode_store(address: int, data: bytes) -> bytes:
    """Encode one store for `runtime.commit`: an address, and data padded to words."""
    return b"".join([
        address.to_bytes(_WORD, "little"), len(data).to_bytes(_WORD, "little"), data, bytes(-len(data) % _WORD),
    ])  # fmt: skip


def _has_one_realization(loader: "PlainLoader", runtime: "Any", name: str) -> bool:
    """Return whether a name has exactly one realization. For variables, the newest one need not be the right one."""
    return bool(runtime.uses_by_module(loader._index[1], [(name, name, b"", b"")]))


def start_modules(
    runtime: "Any", bindings: "tuple[bytes, list[dict[Any, Any]]]", functions: "dict[str, tuple[LoadedModule, int | None, list[str]]]"
) -> None:
    """Run the constructors that have waited for the imports of their modules, each after those of the modules that it imports from.

    The bindings that constructors need stay, even if the load fails.

    Args:
        runtime: the native runtime.
        bindings: the stores into the images, and the table updates that record them.
        functions: by name, all functions of the load: the module, the number of the function that runs the module's constructors if they
            wait, and the names of the imports.

    Raises:
        ReentrantLoadError: this look-up interrupts the start of one of the modules.
    """
    stores, updates = bindings
    runtime.commit(stores, tuple(updates))
    for name in _providers_first(functions):
        module, number, _ = functions[name]
        if number is not None:
            _start(runtime, module, number)


def _providers_first(functions: "dict[str, tuple[LoadedModule, int | None, list[str]]]") -> "list[str]":
    """Return the names in an order in which each comes after its imports, except in cycles."""
    order: list[str] = []
    visited: set[str] = set()
    for root in functions:
        stack = [(root, False)]
        while stack:
            name, is_expanded = stack.pop()
            if is_expanded:
                order.append(name)
            elif name not in visited:
                visited.add(name)
                stack.append((name, True))
                stack += [(imported, False) for imported in functions[name][2] if imported in functions]
    return order


def _start(runtime: "Any", module: "LoadedModule", number: int) -> None:
    """Run the constructors of a module once, by its function with this number. The function with the next number runs the destructors.

    Raise `ReentrantLoadError` if this look-up interrupts the start.
    """
    # Made first, because a garbage collection may run here.
    starter, start = runtime.starter(module.image, number, module.slots), runtime.start
    if module.starter is not None:
        if not module.started and not runtime.is_linking():
            from compcache.hit.interrupts import before_start_error

            raise before_start_error(module.module_id)
        return
    try:  # no call or allocation since the check: a signal handler or a finalizer could start the module there
        module.starter = starter  # set first, so that a constructor that requests its module finds it
        start(starter)
    finally:
        module.started = True  # other threads wait until now
