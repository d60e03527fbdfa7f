"""Keeps the promises of one module's declarations away from other modules that LLVM optimizes together with it.

If several modules declare a function, LLVM keeps one of the declarations, and optimizes the calls of all modules by its promises. The
flags of a module permit promises that are not valid for another: `-fno-math-errno`, `-ffast-math`, `-fdelete-null-pointer-checks`.
Compilers repeat promises at calls. So declarations that modules share say only how a function is called. Types of memory accesses (TBAA)
are not shared either if they only hold within one call of a function.
"""

from __future__ import annotations

import itertools
import re
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

from compcache.build.ir_text import add_attributes, lines_from, parse_head, quote, references
from compcache.build.llvm_types import named_types, split_words
from compcache.interrupts import suppress
from compcache.llvm import llvm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "declared_promises", "expand_types", "link_modules", "plain_declarations", "without_tbaa_of_calls",
]  # fmt: skip

#: The root of the types that flang writes for one function, and an attachment of types. Attachments are at the end of a line.
_FLANG_ROOT = '!{!"Flang '
_TBAA = re.compile(r", !tbaa(?:\.struct)? !\d+(?=(?:, ![-.\w]+ !\d+)*$)", re.MULTILINE)

#: Words of an attribute group, and the attributes that forbid transformations, or say that arguments are passed on.
_ATTRIBUTE = re.compile(r'"[^"]*"(?:="[^"]*")?|\w+(?:\([^)]*\))?')
_FORBIDS = re.compile(r'(?:returns_twice|convergent|noduplicate|nobuiltin|strictfp|"(?:no-builtin|thunk)[^\n]*)\Z')
_GROUP = re.compile(r'"[^"]*"| #(\d+)')
_OPTIONAL = "declare extern_weak "
#: Attributes of a parameter or result. LLVM's types have other characters, or are among these words.
_WORD = re.compile(r"[a-z_]+(?:\([^\n]*\))?\Z")
#: Types, linkages, calling conventions and attributes that affect how a value is passed.
_CALLED = re.compile(
    r"(?:void|half|bfloat|float|double|ptr|token|metadata|target|addrspace|extern_weak|hidden|protected|dso_local|\w*cc|"
    r"amdgpu_kernel|\w+_func|zeroext|signext|noext|inreg|byval|byref|sret|nest|inalloca|preallocated|swiftself|swifterror|swiftasync|elementtype)(?:\(|\Z)"
)
_TYPE_NAME = re.compile(r'%(?:"[^"]*"|[-$._A-Za-z0-9]+)')


def without_tbaa_of_calls(text: str) -> str:
    """Return printed code without TBAA metadata if the metadata may only hold within one call of a function.

    Flang gives each function a tree of types, in which the function's arguments do not alias. If LLVM inlines two calls of a function into
    one caller, the accesses of both calls have these types, although an argument of one call may alias another argument of the other call
    (llvm-project issue 89829). So code of several modules must be inlined without this metadata.
    """
    return _TBAA.sub("", text) if _FLANG_ROOT in text else text


def plain_declarations(text: str) -> str:
    """Return the declarations of functions in printed code without what they promise and without names of types, one a line.

    Functions whose result has an opaque type are left out. Code can only use their addresses.
    """
    groups, types = _attribute_groups(text), named_types(text)
    lines: list[str] = []
    for line in lines_from(text, "declare "):
        if "@llvm." not in line:
            with suppress(ValueError):
                lines.append(_split_declaration(line, groups, types)[0])
    return "\n".join(lines)


def declared_promises(text: str) -> dict[str, list[str]]:
    """Return what the declarations in printed code promise, like ``memory(none)``, by name. See `_split_declaration` for the exception."""
    groups = _attribute_groups(text)
    return {references(line)[0]: _split_declaration(line, groups)[1] for line in lines_from(text, "declare ") if "@llvm." not in line}


def link_modules(declarations: Iterable[str], modules: Iterable[Any], context: Any) -> Any:
    """Link modules, and return the result. `declarations` are the results of `plain_declarations` for them.

    Declarations in the result promise nothing, and forbid what one of the modules forbids. LLVM keeps the declarations of the first module,
    unless they are optional (`extern_weak`). So the first module declares all functions, and optional ones become optional at the end.

    Raise `RuntimeError` if LLVM cannot link a module. Exceptions of the iterator `modules` are passed on.
    """
    lines_by_name: dict[str, list[str]] = {}
    for line in dict.fromkeys(itertools.chain.from_iterable(map(str.splitlines, declarations))):
        lines_by_name.setdefault(references(line)[0], []).append(line)
    linked = llvm.parse_assembly("\n".join(map(_unite_declarations, lines_by_name.values())), context)
    context.modules.append(linked)
    for module in modules:
        linked.link_in(module)
    for name in [name for name, lines in lines_by_name.items() if all(line.startswith(_OPTIONAL) for line in lines)]:
        with suppress(NameError, UnicodeEncodeError):  # it is defined as an alias, or llvmlite cannot look up its name
            function = linked.get_function(name)
            function.linkage = "external_weak" if function.is_declaration else function.linkage
    return linked


def _unite_declarations(lines: list[str]) -> str:
    """Return the first declaration in `lines` that is not optional, with the attributes of all `lines` that forbid transformations.

    If all are optional, return the first without `extern_weak`. See `parse_head` for the exception.
    """
    first = min(lines, key=lambda line: line.startswith(_OPTIONAL))
    suffix, *suffixes = [parse_head(line).suffix for line in (first, *lines)]
    words = dict.fromkeys(word for other in suffixes for word in _ATTRIBUTE.findall(other) if _FORBIDS.match(word))
    added = [word for word in words if word not in _ATTRIBUTE.findall(suffix)]
    return first.replace(_OPTIONAL, "declare ", 1).removesuffix(suffix) + add_attributes(suffix, added)


def expand_types(text: str, types: Mapping[str, str]) -> str:
    """Replace named types by their definitions. Raise `ValueError` for a type that is opaque or unknown, or that contains itself."""
    inner_names: dict[str, list[str]] = {}
    waiting = _TYPE_NAME.findall(text)
    for name in waiting:  # grows during the loop
        if name not in inner_names:
            if types.get(name, "opaque") == "opaque":
                raise ValueError(f"the type {name} is opaque or not defined")
            inner_names[name] = _TYPE_NAME.findall(types[name])
            waiting += inner_names[name]
    expanded: dict[str, str] = {}
    for name in TopologicalSorter(inner_names).static_order():  # its CycleError is a ValueError
        expanded[name] = _TYPE_NAME.sub(lambda match: expanded[match[0]], types[name])
    return _TYPE_NAME.sub(lambda match: expanded[match[0]], text)


def _attribute_groups(text: str) -> dict[str, list[str]]:
    """Return the attributes in the attribute groups of printed code, by the numbers of the groups."""
    pairs = [line.removeprefix("attributes #").partition(" = ") for line in lines_from(text, "attributes #")]
    return {number: _ATTRIBUTE.findall(words) for number, _, words in pairs}


def _split_declaration(line: str, groups: Mapping[str, list[str]], types: Mapping[str, str] | None = None) -> tuple[str, list[str]]:
    """Return the line of a declaration without the attributes that promise something, and these attributes.

    With `types`, the line has these definitions instead of named types. Raise `ValueError` for a type that cannot be expanded. See
    `parse_head` for other reasons.
    """
    head = parse_head(line.removeprefix("declare "))
    promises: list[str] = []
    result, *parameters = [_without_promises(text, promises) for text in (head.prefix, *head.parameters)]
    if types:
        result, *parameters = [expand_types(text, types) for text in (result, *parameters)]
    attributes = [word for number in _GROUP.findall(head.suffix) for word in groups.get(number, ())]
    promises += [word for word in attributes if not _FORBIDS.match(word)]
    suffix = _GROUP.sub(lambda match: "" if match[1] else match[0], head.suffix)
    suffix = add_attributes(suffix, [word for word in attributes if _FORBIDS.match(word)])
    return f"declare {result} @{quote(references(line)[0])}({', '.join(parameters)}){suffix}", promises


def _without_promises(text: str, promises: list[str]) -> str:
    """Return a parameter or a result without the attributes that promise something. The attributes are added to `promises`."""
    if " " not in text:
        return text
    kept: list[str] = []
    words = iter(split_words(text))
    for word in words:
        whole = f"align {next(words, '')}" if word == "align" else word
        is_promise = "byval(" not in text if word == "align" else _WORD.match(word) and not _CALLED.match(word)
        (promises if is_promise else kept).append(whole)
    return " ".join(kept)
