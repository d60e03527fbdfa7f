"""The members of a group. Each member is compiled and optimized separately, like a file. All members are then linked as LLVM code.

The result is that of a linker for the files of a shared object, as the LLVM Language Reference describes linkage, COMDATs and visibility.
Members share hidden names, sections, thread-local variables and constructors, and merged definitions have one address. The code of an
unchanged member is read from the cache.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build import codegen
from compcache.build.exports import is_visible
from compcache.build.ir_text import read_assembly, read_module, read_values, referenced_name, symbol_counts, with_symbols
from compcache.build.link_types import read_link_types
from compcache.build.merging import link_modules, plain_declarations
from compcache.build.pic import ALIAS, aliases
from compcache.errors import LinkError, SignatureMismatchError
from compcache.formats.deflate import deflate
from compcache.hit.link_types import compare_types, extent_of, unite_types
from compcache.interrupts import as_format_error, reraise_interrupt
from compcache.messagepack import pack, unpack
from compcache.warning import warn
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

__all__ = ["Member", "decode_member", "encode_member", "link_members", "make_member", "require_types_of_archive"]

_MOST_SHOWN = 20
_MAX_SIZE = 1 << 31  # bytes of a decompressed member


class Member(NamedTuple):
    """The optimized code of one source. It contains no LLVM objects.

    Attributes:
        label: the name of the source file, from the code.
        bitcode: the code.
        defined: the symbols that other members can use.
        strong: the symbols that only one member may define.
        used: the undefined symbols, each with whether it is a function.
        copied: the functions that the code defines only for the optimizer. If no other member defines them, the source is compiled again
            with its own copies.
        data: the values of large variables, by section (`compcache.build.large_data`).
        types: the link types of definitions, by symbol.
        uses: the link types that the code expects of its imports and its common blocks, by symbol, each with a function that uses it.
        declarations: its declarations of functions, without promises (`compcache.build.merging`).
    """

    label: str
    bitcode: bytes
    defined: tuple[str, ...]
    strong: tuple[str, ...]
    used: dict[str, bool]
    copied: tuple[str, ...]
    data: dict[str, bytes]
    types: dict[str, str]
    uses: dict[str, dict[str, str]]
    declarations: str


def make_member(module: Any, text: str, copied: Collection[str], data: dict[str, bytes]) -> Member:
    """Return the member for an optimized module.

    `copied` are the functions that the module defines only for the optimizer. `data` has the values of large variables, by section.
    """
    return _read_symbols(module.source_file, text)._replace(
        bitcode=module.as_bitcode(), copied=tuple(sorted(copied)), data=data, declarations=plain_declarations(text)
    )


def _read_symbols(label: str, text: str) -> Member:
    """Return a member with only the symbols of a printed module."""
    values = read_values(text)
    assembly = read_assembly(text).defined
    all_values = *values.functions, *values.variables
    visible = list(filter(is_visible, all_values))
    strong = [value.name for value in visible if value.linkage == "external" and " comdat" not in value.text]
    function_aliases = aliases(text)
    if function_aliases:
        weak = {referenced_name(match[1]) for match in ALIAS.finditer(text) if match[2].startswith(("weak", "linkonce"))}
        strong += [name for name in function_aliases if name not in weak]
    counts = symbol_counts(text)
    functions = {value.name for value in values.functions}
    declared = [value.name for value in all_values if value.is_declaration and not value.name.startswith("llvm.")]
    used_symbols = {name: name in functions for name in declared if counts.get(name, 0) > 1 and name not in assembly}
    defined = dict.fromkeys([*[value.name for value in visible], *function_aliases, *sorted(assembly)])
    types = read_link_types(text, read_module(text), [name for name in defined if name not in assembly], function_aliases, used_symbols, {})
    uses = {name: dict(functions_by_type) for name, functions_by_type in types.uses.items()}
    uses |= {value.name: {types.definitions.get(value.name, ""): ""} for value in values.variables if value.linkage == "common"}
    return Member(label, b"", tuple(defined), tuple(strong), used_symbols, (), {}, dict(types.definitions), uses, "")


def link_members(members: Sequence[Member], context: Any) -> Any:
    """Link all members into one module and return it. Issue a `CacheWarning` if a member uses a symbol with a different, compatible type.

    Raises:
        LinkError: two members define the same symbol, or LLVM cannot link them.
        SignatureMismatchError: a member uses a definition of another member in a way that the ABI does not allow.
    """
    _check_unique(members)
    _require_types(members)
    if len(members) == 1:
        return codegen.read_back(members[0].bitcode, context)
    number = 0

    def read_modules() -> Iterator[Any]:
        """Yield the modules of the members, and record the number of the last one for messages."""
        nonlocal number
        for number, member in enumerate(members):  # noqa: B007 - the message contains it
            yield codegen.read_back(member.bitcode, context)

    try:
        return link_modules([member.declarations for member in members], read_modules(), context)
    except RuntimeError as error:
        reraise_interrupt(error)
        raise LinkError(f"{_member_label(members, number)} cannot be linked with the sources before it: {str(error).strip()}") from error


def _check_unique(members: Sequence[Member]) -> None:
    """Raise `LinkError` if several members define the same symbol."""
    first_numbers: dict[str, int] = {}
    lines = []
    for number, member in enumerate(members):
        for name in member.strong:
            first_number = first_numbers.setdefault(name, number)
            if first_number != number:
                labels = _member_label(members, first_number), _member_label(members, number)
                lines.append("the symbol {!r} has several definitions: in {} and {}; rename one".format(name, *labels))
    if lines:
        raise LinkError(join_first(lines, _MOST_SHOWN, "\n  "))


def require_types_of_archive(parts: Sequence[bytes], context: Any, optimize: Callable[[Any], None]) -> None:
    """Check the types with which modules in an archive use each other, as for the members of a group.

    Warn or raise `SignatureMismatchError` as `link_members` does. Raise `CompileError` if LLVM rejects a module.

    `parts` are the modules in bitcode. The types of members are those of optimized code. So `optimize` is called for the modules if types
    seem not to fit: code that is not optimized contains calls that never run, and results that nothing uses.
    """
    modules = [codegen.parse(part, context) for part in parts]

    def read_all() -> list[Member]:
        """Return the symbols of all modules."""
        return [_read_symbols(module.source_file, with_symbols(str(module))) for module in modules]

    symbols = read_all()
    if any(_iterate_mismatches(symbols)):
        for module in modules:
            optimize(module)
        _require_types(read_all())


def _require_types(members: Sequence[Member]) -> None:
    """Check the types with which members use each other's functions and variables.

    Warn or raise `SignatureMismatchError` as `link_members` does.
    """
    for name, message, is_fitting in _iterate_mismatches(members):
        if not is_fitting:
            raise SignatureMismatchError(message, func_name=name)
        codegen.call_in_caller(warn, message)


def _iterate_mismatches(members: Sequence[Member]) -> Iterator[tuple[str, str, bool]]:
    """Yield each symbol that a member uses with another type than that of its definition, a message, and whether the use is permitted."""
    definers = {name: number for number, member in reversed(list(enumerate(members))) for name in (*member.types, *member.strong)}
    # Of common blocks, which members both define and use, linkers choose the largest.
    blocks = [(name, number) for number, member in enumerate(members) for name in member.uses.keys() & member.types.keys()]
    definers |= dict(sorted(blocks, key=lambda block: extent_of(members[block[1]].types[block[0]])))
    definers |= {name: number for number, member in enumerate(members) for name in member.strong}
    for number, member in enumerate(members):
        for name, types in member.uses.items():
            if name not in definers:
                continue
            defined, expected = members[definers[name]].types.get(name, ""), unite_types(types)
            is_fitting, reason = compare_types(defined, expected)
            if not reason:
                continue
            user = next((user for use, user in sorted(types.items()) if compare_types(defined, use)[1]), "")
            location = f" in {user!r}" if user else ""
            definer, member_label = _member_label(members, definers[name]), _member_label(members, number)
            message = f"the symbol {name!r} is {defined} in {definer}, but {member_label} uses it as {expected}{location}: {reason}"
            yield name, message, is_fitting


def _member_label(members: Sequence[Member], number: int) -> str:
    """Return the name of a member for messages: its position, with the name of the source file if the code has one."""
    label = members[number].label
    return f"source {number} ({label})" if label and label != "<string>" else f"source {number}"


def encode_member(member: Member) -> bytes:
    """Encode and compress a member."""
    return deflate(pack(list(member)))


def decode_member(data: bytes) -> Member:
    """Decode the result of `encode_member`. Raise `FormatError` if the bytes are damaged, or are not an encoded member."""
    with as_format_error("the stored code of a group's member is damaged"):
        packed = zlib.decompressobj().decompress(data, _MAX_SIZE)
        return Member._make([tuple(value) if isinstance(value, list) else value for value in unpack(packed)])
