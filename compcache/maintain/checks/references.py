"""Check that imported and pinned functions are in the cache, and that the statistics can be decoded."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from compcache.digest import DIGEST_SIZE
from compcache.errors import FormatError
from compcache.formats.manifest import FUNCTION, NEEDS, decode_function, decode_needs
from compcache.formats.manifest_writer import iterate_frames
from compcache.hit.link_types import compare_types, read_type
from compcache.interrupts import suppress
from compcache.maintain.pins import pinned
from compcache.publish.module_lists import IMPORTS, REALIZES, SortedItems, relation_key
from compcache.publish.module_reader import ModuleSections
from compcache.usage.ledger import Uses

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from compcache.formats.sorted_keys import Item
    from compcache.maintain.checks.state import CheckState

__all__ = ["check_imports", "check_statistics", "link_types"]


def check_imports(state: CheckState) -> tuple[int, dict[str, int]]:
    """Check that every imported function is in the cache, with the link type that the importer expects.

    Return the number of imports, and counts for the report.
    """
    edges = dangling = 0
    compared = SortedItems()  # module_id and name, for the types that are compared
    for name, keys in groupby((key for key, _ in state.names if state.is_sound(key[-DIGEST_SIZE:])), _name_in_key):
        holders: list[bytes] = []
        unprovided: list[bytes] = []
        for number, key in enumerate(keys):
            module_id = key[-DIGEST_SIZE:]
            if _realizes(key):
                holders.append(module_id)
                continue
            edges += 1
            for holder_or_importer in (*holders, module_id) if number == len(holders) else (module_id,):
                compared.add(holder_or_importer + name)
            if not holders:
                unprovided.append(module_id)
        dangling += bool(unprovided) and _report_dangling(state, _decode_name(name), unprovided)
    mismatched, unchecked = _check_types(state, SortedItems(_read_types(state, compared)) if state.types is None else state.types)
    return edges, {"dangling": dangling + mismatched, "unchecked": unchecked}


def _name_in_key(key: bytes) -> bytes:
    """Return the name in a key of `CheckState.names`."""
    return key[: -DIGEST_SIZE - 2]


def _realizes(key: bytes) -> bool:
    """Return whether the module in a key of `CheckState.names` realizes the function."""
    return key[-DIGEST_SIZE - 1 : -DIGEST_SIZE] == REALIZES


def _decode_name(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")


def _report_dangling(state: CheckState, name: str, importers: list[bytes]) -> bool:
    """Report an imported function that no module defines. Return False, without a report, if one defines it now or no importer is left."""
    modules = [module_id for module_id in importers if state.store.exists(module_id)]
    if not modules or state.is_realized(name):
        return False
    importing = f"module {modules[0].hex()} imports" if len(modules) == 1 else f"{len(modules)} modules, like {modules[0].hex()}, import"
    message = (
        f"no module defines {name!r}, which {importing}: the importing functions cannot be loaded from the cache; add {name!r} to the cache"
    )
    state.report("dangling", name, message, note=True)
    return True


def _read_types(state: CheckState, compared: Iterable[Item]) -> Iterator[Item]:
    """Yield the link types in modules, with keys as in `CheckState.names`. An empty type is unknown.

    Each module is read once. An unreadable module is skipped, because another step reports it.
    """
    for number, (module_id, keys) in enumerate(groupby((key for key, _ in compared), lambda key: key[:DIGEST_SIZE])):
        names = {_decode_name(key[DIGEST_SIZE:]) for key in keys}
        with suppress(OSError, FormatError, KeyError):
            with ModuleSections(state.store, module_id) as reader:
                payloads = dict(iterate_frames(reader.records()))
            for key, text in link_types(module_id, payloads):
                if _decode_name(_name_in_key(key)) in names:
                    yield key, text
        if number % 256 == 0:
            state.show(number, max(number, state.total))


def link_types(module_id: bytes, payloads: Mapping[int, bytes]) -> Iterator[Item]:
    """Yield the link types of a module's functions and imports, with keys as in `CheckState.names`. An empty type is unknown.

    `payloads` has the module's records by offset.

    Raise `FormatError` if a record is malformed, or `KeyError` if a record refers to a record that does not exist.
    """
    needs, own_types = [], {}
    for payload in payloads.values():
        if payload[:1] == FUNCTION:
            function = decode_function(payload)
            own_types[function.name] = function.link_type
        elif payload[:1] == NEEDS:
            needs.append(decode_needs(payload))
    types = [(name, REALIZES, link_type) for name, link_type in own_types.items()]
    types += [(name, IMPORTS, link_type) for record in needs for _, name, _, link_type in record.imports if name not in own_types]
    for name, relation, link_type in types:
        yield relation_key(name, relation, module_id), read_type(payloads.__getitem__, link_type).encode("utf-8", "surrogatepass")


def _check_types(state: CheckState, types: Iterable[Item]) -> tuple[int, int]:
    """Report imports whose link type matches no realization. Return the number of these imports, and of imports with unknown types.

    `types` has the types to compare, in the order of their keys. See `link_types`.
    """
    mismatched = unchecked = 0
    sound = (item for item in types if state.is_sound(item[0][-DIGEST_SIZE:]))  # a later step may have reported the module
    for name, items in groupby(sound, lambda item: _name_in_key(item[0])):
        realizations: list[tuple[bytes, str]] = []
        for key, value in items:
            module_id, expected = key[-DIGEST_SIZE:], _decode_name(value)
            if _realizes(key):
                realizations.append((module_id, expected))
            elif not expected or not all(text for _, text in realizations):
                unchecked += 1
            elif realizations and not _fits_any(expected, realizations) and _has_only(state, _decode_name(name), module_id, realizations):
                mismatched += 1
                _report_mismatch(state, _decode_name(name), module_id, expected, realizations[0])
    return mismatched, unchecked


def _fits_any(expected: str, realizations: Iterable[tuple[bytes, str]]) -> bool:
    """Return whether one of the `realizations`, given as (module_id, type), has a type that an importer can use as `expected`."""
    for _, text in realizations:
        is_fitting, _ = compare_types(text, expected)
        if is_fitting:
            return True
    return False


def _report_mismatch(state: CheckState, name: str, importer: bytes, expected: str, realization: tuple[bytes, str]) -> None:
    """Report a module that imports a function with another type than the `realization` module defines."""
    provider, text = realization
    message = (
        f"module {importer.hex()} imports {name!r} with the type {expected}, but no module defines it with this type: module "
        f"{provider.hex()} defines it as {text}; the importing functions cannot be loaded from the cache; "
        f"add {name!r} with the imported type to the cache"
    )
    state.report("dangling", name, message, note=True)


def _has_only(state: CheckState, name: str, importer: bytes, realizations: Iterable[tuple[bytes, str]]) -> bool:
    """Return whether the importer still exists, and all current realizations of the function, layers included, are in `realizations`."""
    current = {module_id for module_id, _ in state.store.find_all(name)}
    return state.store.exists(importer) and current <= {module_id for module_id, _ in realizations}


def check_statistics(state: CheckState) -> tuple[int, dict[str, int]]:
    """Check that the statistics can be decoded, and that the pinned functions are in the cache.

    Return the number of statistics files, and counts for the report. See `pinned` for the exception.
    """
    uses = Uses(state.store, verify=True)
    pins = pinned(state.store)
    for name in pins:
        is_unlisted = any(name in row.names and state.is_sound(key) for key, row in state.slices.unlisted.items())
        if not is_unlisted and not any(map(state.is_present, state.slices.lists.holders(name))) and not state.is_realized(name):
            message = f"the function {name!r} is pinned, but no module defines it; unpin the function, or add it to the cache"
            state.report("pin", name, message, note=True)
    return len(uses.files), {"files": len(uses.files), "incomplete": len(uses.torn), "pins": len(pins)}
