"""Removes the values of large variables from a module, so that printing and storing its code does not take time for them.

In printed code, a byte of a constant takes two to four characters, and the code is searched several times. In bitcode, constants are
written bit by bit. So LLVM emits an object with only the large variables, and their bytes are read from it
(`compcache.images.elf.reading.data_of`). In the module, placeholders replace the values: zeros of the same size, in sections of their own,
`externally_initialized` so that LLVM does not use the zeros. The module is optimized, searched, stored and emitted in this form. The values
are inserted into its object before it is linked (`compcache.images.elf.patching.with_sections`). To compile stored code again, the
values are read from the same sections of the stored image (`read_large_values`). Variables whose values contain addresses are not removed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from compcache.build import codegen
from compcache.build.ir_text import long_lines, quote, target_text
from compcache.build.trial import has_assembly, has_module_assembly
from compcache.errors import CompileError, FormatError
from compcache.images.elf.reading import data_of, sections_with_prefix
from compcache.llvm import llvm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["abridged", "read_large_values", "replace_large_variables"]

_PREFIX = "compcache.data."
#: The least size in bytes of a variable that is removed, and the least size of all of them together. LLVM can use the values that stay.
_LEAST_SIZE = 1 << 16
_LEAST_TOTAL_SIZE = 1 << 20
_LINKAGES = frozenset(("external", "internal", "private"))
#: Sections that LLVM chooses for variables without one. A named section may be a registry.
_SECTIONS = frozenset((".data", ".rodata", *(f".rodata.cst{size}" for size in (4, 8, 16, 32)), *(f".rodata.str{n}.{n}" for n in (1, 2, 4))))
#: The least number of characters of a line with a long constant.
_LEAST_LINE = 4096
_LONG_LIST = re.compile(r"(?:(?:i(?:8|16|32|64)|half|float|double) [-+.xa-fA-F0-9]++, ){1024,}+")


def abridged(text: str) -> str:
    """Return LLVM assembly without long constants of bytes and integers. The result is only for searches."""
    if len(text) < _LEAST_TOTAL_SIZE:
        return text
    parts, copied_end = [], 0
    for start, end in long_lines(text, _LEAST_LINE):
        parts += [text[copied_end:start], _LONG_LIST.sub("", _without_strings(text[start:end]))]
        copied_end = end
    return "".join([*parts, text[copied_end:]]) if parts else text


def _without_strings(line: str) -> str:
    """Return a line with long constants of bytes left out. Searching for quotes is much faster than a regular expression."""
    parts, copied_end = [], 0
    string_start = line.find('c"')
    while string_start >= 0:
        end = line.find('"', string_start + 2)
        if end - string_start > _LEAST_LINE:
            parts += [line[copied_end:string_start], 'c""']
            copied_end = end + 1
        string_start = line.find('c"', end + 1) if end >= 0 else end
    return "".join([*parts, line[copied_end:]])


def replace_large_variables(module: Any, context: Any, size: int, check: Callable[[str], None], label: str = "") -> dict[str, bytes]:
    """Replace the large variables of a module with placeholders.

    Args:
        module: the module, which is changed.
        context: the module's context.
        size: the length of the module's code, as text or bitcode. Short code has no large variables.
        check: called with the module's text, without the values, before LLVM compiles it. Its exceptions are raised.
        label: a part of the names of sections, which must differ between the modules of an image.

    Returns:
        The values, by the names of the sections that will contain them. The mapping is empty if no variable was replaced.
    """
    if size < _LEAST_TOTAL_SIZE:
        return {}
    layout = codegen.target_machine("", "", 0).target_data
    module.data_layout = str(layout)
    sizes = {
        variable.name: layout.get_abi_size(variable.global_value_type)
        for variable in module.global_variables
        if not variable.is_declaration and variable.linkage.name in _LINKAGES
    }
    names = {name for name in sizes if name and sizes[name] >= _LEAST_SIZE and not name.startswith("llvm.")}
    if sum(sizes[name] for name in names) < _LEAST_TOTAL_SIZE:
        return {}
    outline = _placeholder_text(module, context, {name: sizes[name] for name in names})
    check(outline)
    has_aliases = " alias " in outline or " ifunc " in outline  # they refer to functions by their names
    if has_module_assembly(outline) or (has_aliases and has_assembly(outline)):  # its translation may abort the process
        return {}
    values = data_of(_emit_variables(module, context, names, has_aliases=has_aliases), names, _SECTIONS)
    values = {name: datum for name, datum in values.items() if len(datum.content) >= _LEAST_SIZE}
    sections = {name: f"{_PREFIX}{label}{number}" for number, name in enumerate(sorted(values))}
    lines = [
        _placeholder_line(name, len(value.content), sections[name], value.alignment, writable=value.writable)
        for name, value in values.items()
    ]
    _replace_definitions(module, context, set(values), lines)
    return {section: values[name].content for name, section in sections.items()}


def read_large_values(image: bytes) -> dict[str, bytes]:
    """Return the values that were removed from the module of a stored image, by section. Raise `CompileError` if the image is malformed."""
    try:
        return sections_with_prefix(image, _PREFIX)
    except FormatError as error:
        raise CompileError(
            f"the values of large variables cannot be read from the stored image ({error}): compile the module again"
        ) from error


def _placeholder_text(module: Any, context: Any, sizes: Mapping[str, int]) -> str:
    """Return the module's text with placeholders instead of the values."""
    copy = codegen.copy(module, context)
    placeholders = [_placeholder_line(name, size, f"{_PREFIX}0", 1, writable=True) for name, size in sizes.items()]
    _replace_definitions(copy, context, set(sizes), placeholders)
    return str(copy)


def _emit_variables(module: Any, context: Any, names: set[str], *, has_aliases: bool) -> bytes:
    """Return an object that contains only the variables in `names`, and the functions if the module has aliases (`has_aliases`).

    All other definitions become internal, so that LLVM removes them as dead code, or `available_externally`, so that it does not emit them.
    """
    copy = codegen.copy(module, context)
    for value in [*copy.functions, *copy.global_variables]:
        if not value.is_declaration:
            value.visibility = "default"
            value.linkage = "external" if value.name in names else "internal"
            if value.is_function and not has_aliases:
                value.linkage = "available_externally"
    machine = codegen.target_machine("", "", 0)
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(copy, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0)))
    return codegen.emit_object(copy, machine)


def _placeholder_line(name: str, size: int, section: str, alignment: int, *, writable: bool) -> str:
    """Return the line of a variable without its value, in the section from which the value is read. It is constant unless `writable`."""
    kind = "global" if writable else "constant"
    return f'@{quote(name)} = externally_initialized {kind} [{size} x i8] zeroinitializer, section "{section}", align {alignment}'


def _replace_definitions(module: Any, context: Any, names: set[str], placeholders: list[str]) -> None:
    """Replace definitions in a module by placeholders of the same names, by making them weak and linking the strong placeholders."""
    before = {value.name: (value.linkage, value.visibility) for value in module.global_variables if value.name in names}
    for variable in module.global_variables:
        if variable.name in names:
            variable.linkage = "weak_any"
    module.link_in(codegen.parse(target_text(module) + "\n".join(placeholders), context))
    for variable in module.global_variables:
        if variable.name in names:
            linkage, visibility = before[variable.name]
            variable.visibility = "default"  # which a local linkage requires
            variable.linkage = linkage
            variable.visibility = visibility
