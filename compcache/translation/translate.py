"""Compiles a source or stored code to a module's object.

The steps are: parse, rewrite constructs that a shared object cannot contain, resolve declarations (`compcache.build.slots`), optimize, emit
(`compcache.translation.emission`). They run in LLVM's thread. Calls into the caller's code run in the caller's thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build import codegen, ir_text, pic
from compcache.build.exports import MERGED, VISIBLE_LINKAGES, choose_exports, require_exports
from compcache.build.inlining.imported import NOTHING_INLINED, link_offered_bodies
from compcache.build.inlining.offers import offered_bodies
from compcache.build.large_data.variables import replace_large_variables
from compcache.build.merging import without_tbaa_of_calls
from compcache.build.overridden import weak_definitions, with_bodies_for_aliases, without_overridden
from compcache.build.slots import (
    Requests,
    Unresolved,
    imported_thread_locals,
    require_unused,
    resolve_declarations,
    restore_resolution,
    with_nobuiltin,
)
from compcache.build.source import check_name
from compcache.build.trial import assembly_parts, has_assembly, is_rare, try_in_child
from compcache.content.functions import symbol_digests
from compcache.depgraph import DependencyGraph
from compcache.digest import is_content_name
from compcache.errors import CompileError
from compcache.formats import host
from compcache.images.archives import Archive
from compcache.targets import used_features
from compcache.translation.emission import Prepared, emit
from compcache.translation.global_values import encode_checked, encode_values
from compcache.translation.members import link_members, make_member, require_types_of_archive
from compcache.translation.requests import Request, check_extremes, parse_safely, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from compcache.build.exports import Export
    from compcache.build.inlining.imported import Inlined
    from compcache.build.pic import Alias
    from compcache.build.recipe import Recipe
    from compcache.build.slots import Resolution
    from compcache.formats.bodies import Body
    from compcache.targets.machine import Machine
    from compcache.translation.emission import Translated
    from compcache.translation.members import Member

__all__ = ["translate", "translate_again", "translate_member"]

_EXTERNAL, _INTERNAL = "external", "internal"
#: The text of a small module is shorter, in characters.
_SMALL = 1 << 14


class _CheckedModule(NamedTuple):
    """A parsed and checked module."""

    printed: str  # the module as LLVM prints it, rewritten for a shared object
    values: ir_text.GlobalValues
    data: dict[str, bytes]  # values of large variables, by section (compcache.build.large_data)


def translate(context: Any, request: Request) -> Translated:
    """Compile a source, or the members of a group, to an object.

    Raises:
        CompileError, LinkError, GlobalValidationError: the source cannot be compiled. The message gives the reason.
        InvalidNameError: a symbol is not valid UTF-8, or cannot be exported under its name.
        FormatError: see `emit`.
    """
    if request.members:
        return _translate_group(context, request)
    module, (printed, values, data) = _read_source(context, request)
    rewritten = pic.with_own_variables(_rewrite(printed, values, request))
    weak = weak_definitions(rewritten) if request.exports is None else frozenset()
    overridden = frozenset(filter(request.is_overridden, weak))
    if overridden:
        rewritten = without_overridden(rewritten, overridden)
    rewritten, request = _with_thread_locals(rewritten, request)
    if rewritten is not printed:
        module, values = codegen.parse(rewritten, context), ir_text.read_values(rewritten)
    with codegen.borrow_machine(request.machine.cpu, request.machine.features, request.level, rewritten) as target:
        digests = partial(symbol_digests, printed, data.values())
        translated = _compile_module(context, module, _CheckedModule(rewritten, values, data), request, target, digests)
    return translated._replace(weak=weak - overridden, overridden=overridden, beside_code=request.beside_code)


def translate_member(context: Any, request: Request, label: str) -> Member:
    """Compile the source of a group's member to optimized code. `label` is a digest of the source, for unique names of sections.

    Raise `CompileError` if the source cannot be compiled. See `_read_source` for other exceptions.
    """
    module, (printed, values, data) = _read_source(context, request, f"{label}.")
    rewritten = _rewrite(printed, values, request)
    rewritten = with_bodies_for_aliases(rewritten)
    if rewritten is not printed:
        module = codegen.parse(rewritten, context)
    copied = {value.name for value in (*values.functions, *values.variables) if value.linkage == "available_externally"}
    for name in copied.intersection(request.copies):
        _find_value(module, name).linkage = _INTERNAL
    doubtful = assembly_parts(rewritten)
    if doubtful is not None:  # writing bitcode assembles inline assembly
        codegen.call_in_caller(try_in_child, doubtful, request.machine, 0)
    with codegen.borrow_machine(request.machine.cpu, request.machine.features, request.level, rewritten) as target:
        module.data_layout = codegen.data_layout(target)
        codegen.optimize(module, target, request.level)
    return make_member(module, _prefer_first(module), copied.difference(request.copies), data)


def _prefer_first(module: Any) -> str:
    """Make used `linkonce` functions `weak`, and return the printed module. Linking drops unused ones.

    LLVM prefers weak definitions, but linkers the first one.
    """
    text = str(module)
    if "define linkonce " not in text:
        return text
    linkages = {value.name: value.linkage for value in ir_text.read_values(text).functions}
    graph = DependencyGraph({name: definition.references for name, definition in ir_text.read_module(text).items()})
    dropped = ("linkonce", _INTERNAL, "private", "available")  # unless something uses them
    for name in graph.closure([name for name in graph if not linkages.get(name, "").startswith(dropped)]):
        if linkages.get(name) == "linkonce_any":
            module.get_function(name).linkage = "weak_any"
    return str(module)


def _rewrite(printed: str, values: ir_text.GlobalValues, request: Request) -> str:
    """Return a printed module without constructs that are valid only in an executable.

    LLVM keeps the functions that assembly defines, and does not treat functions with the names of platform functions as the platform's.
    """
    assembly = ir_text.read_assembly(printed).defined
    declared = [function.name for function in values.functions if function.is_declaration and function.name in assembly]
    return with_nobuiltin(pic.for_shared_object(pic.with_used(printed, declared)), values.functions, request.requests.imports)


def _find_value(module: Any, name: str) -> Any:
    """Return the function or the global variable with a name. Raise `NameError` if there is none."""
    try:
        return module.get_function(name)
    except NameError:
        return module.get_global_variable(name)


def _translate_group(context: Any, request: Request) -> Translated:
    """Link the members of a group and compile them to one object. See `link_members` and `_compile_module` for the exceptions."""
    module = link_members(request.members, context)
    printed = str(module)
    values = ir_text.read_values(printed)
    rewritten, request = _with_thread_locals(printed, request)
    if rewritten is not printed:
        module, values = codegen.parse(rewritten, context), ir_text.read_values(rewritten)
    data = {section: content for member in request.members for section, content in member.data.items()}
    with codegen.borrow_machine(request.machine.cpu, request.machine.features, request.level, rewritten) as target:
        return _compile_module(context, module, _CheckedModule(rewritten, values, data), request, target)


def _read_source(context: Any, request: Request, label: str = "") -> tuple[Any, _CheckedModule]:
    """Parse and check a source.

    Returns:
        The module and its properties.

    Raises:
        CompileError: LLVM rejects the source.
        IncompatibleTargetError: the source is for another platform.
        InvalidNameError: a symbol is not valid UTF-8.
        SignatureMismatchError: a module of an archive uses another one in a way that the ABI does not allow.
    """
    module = parse_safely(request.ir, context)
    codegen.check_triple(module)
    data = replace_large_variables(module, context, size_of(request.ir), lambda outline: _check_outline(outline, request), label)
    printed = str(module)
    if data or not isinstance(request.ir, str):
        check_extremes(printed, printed=True)
    values = ir_text.read_values(printed)
    _check_names(values)
    attributes = _target_attributes(printed, values)
    used_features.check_attributes(attributes, host.platform_name())
    readable = ir_text.with_symbols(used_features.with_complete_attributes(printed, attributes, host.platform_name()))
    if isinstance(request.ir, tuple):
        readable = without_tbaa_of_calls(readable)
    if readable is not printed:
        module, printed, values = codegen.parse(readable, context), readable, ir_text.read_values(readable)
        attributes = _target_attributes(printed, values)
    _try_if_suspicious(printed, values, request, attributes)
    if isinstance(request.ir, tuple) and len(request.ir) > 1:
        level = 0 if request.untrusted else request.level  # only the linked code was tried in another process
        with codegen.borrow_machine(request.machine.cpu, request.machine.features, level, printed) as target:
            require_types_of_archive(request.ir, context, partial(codegen.optimize, machine=target, level=level))
    return module, _CheckedModule(printed, values, data)


def _check_names(values: ir_text.GlobalValues) -> None:
    """Raise `InvalidNameError` for a visible symbol that is not UTF-8, because llvmlite cannot find such a symbol."""
    for value in (*values.functions, *values.variables):
        if not value.name.isascii() and value.linkage not in ("internal", "private"):
            check_name(value.name, "symbol")


def _check_outline(outline: str, request: Request) -> None:
    """Check the outline of a module, its text without the values of variables, before LLVM compiles a part of it.

    Suspicious code is tried in a child process. Raise `CompileError` if that fails, or for extreme constructs or unknown CPUs.
    """
    check_extremes(outline, printed=True)
    values = ir_text.read_values(outline)
    attributes = _target_attributes(outline, values)
    used_features.check_attributes(attributes, host.platform_name())
    _try_if_suspicious(outline, values, request, attributes)


def _target_attributes(printed: str, values: ir_text.GlobalValues) -> dict[str, str]:
    """Return the attributes for CPUs of the functions in a printed module, by function."""
    return used_features.target_attributes(ir_text.lines_from(printed, "attributes #"), values.functions)


def _with_thread_locals(printed: str, request: Request) -> tuple[str, Request]:
    """Share thread-local variables through functions that return their addresses. Return the new text of the module and the new request.

    The module defines such functions for its own variables, and calls those of other modules in place of the variables that it imports.
    It also calls functions for variables that linkers merge, so that all modules have one variable.
    Raise `LibraryError` if a library cannot be opened, or `CompileError` if a use of an imported variable cannot be rewritten.
    """
    declared, defined, merged = pic.shared_thread_locals(ir_text.lines_of_variables(printed))
    if not request.shared or not (declared or defined or merged):
        return printed, request
    requests = request.requests
    imported = codegen.call_in_caller(imported_thread_locals, declared, requests, request.is_cached, request.is_beside)
    if request.members:  # have one copy of merged variables
        defined, merged = defined | merged, frozenset()
    provided = defined if request.exports is None else defined.intersection([export.symbol for export in request.exports])
    if request.members:
        hidden = {variable.name for variable in ir_text.read_values(ir_text.lines_of_variables(printed)).variables if variable.is_hidden}
        provided -= hidden.union(request.unexported)
    if not (imported or provided or merged):
        return printed, request
    imports = {}
    for symbol, name in requests.imports.items():
        prefix = pic.ADDRESS_OF if symbol in imported else ""
        imports[prefix + symbol] = prefix + name
    text = pic.with_addresses(printed, sorted(imported), sorted(provided), sorted(merged))
    return text, request._replace(requests=requests._replace(imports=imports))


def _compile_module(
    context: Any, module: Any, source: _CheckedModule, request: Request, target: Any, digests: Callable[[], dict[str, bytes]] = dict
) -> Translated:
    """Compile a checked module, which is changed, to its object. See `translate` for the exceptions.

    `digests` returns digests of the content of the module's symbols. It is called while LLVM generates code, if an export has a plain name.
    """
    printed, values = source.printed, source.values
    module.data_layout = codegen.data_layout(target)
    variables = ir_text.lines_of_variables(printed)
    function_aliases, own_thread_locals = pic.aliases(variables), pic.thread_locals(variables)
    assembly = ir_text.read_assembly(printed)
    exports = _choose_exports(variables, function_aliases, own_thread_locals, values, assembly.defined, request)
    resolution = resolve_declarations(
        Unresolved(module, printed, values, own_thread_locals, assembly.defined | ir_text.section_bounds(printed)),
        request.requests,
        lambda names: codegen.call_in_caller(list, filter(request.is_cached, names)),
        shared=request.shared,
        is_beside=request.is_beside,
        assumed=request.assumed,
    )
    resolution = _add_merged_imports(resolution, exports)
    encoded = encode_checked(resolution)
    # Static libraries may call functions of the module, which therefore must keep their symbols.
    hide_others = request.exports is not None and not any(isinstance(library, Archive) for library in resolution.libraries)
    may_offer = not (request.members or request.untrusted or not request.keep_bitcode)
    bodies = partial(offered_bodies, printed, exports, resolution) if may_offer else tuple
    inlined = NOTHING_INLINED
    if request.inline and request.shared and request.level and not request.members:
        resolution, inlined = link_offered_bodies(
            module, context, printed, values, exports, resolution, request.provided, request.is_beside
        )
    _set_linkages(module, values, exports, resolution, context, hide_others=hide_others, kept_symbols=assembly.mentioned)
    optimized, portable_code = _optimize_module(context, module, printed, request, target)
    require_unused(resolution.missing, optimized)
    if all(is_content_name(export.name) for export in exports):
        digests = dict
    prepared = Prepared(exports, function_aliases, resolution, encoded, portable_code, source.data, inlined, bodies, digests)
    return emit(module, optimized, context, target, request, prepared)


def _optimize_module(context: Any, module: Any, printed: str, request: Request, target: Any) -> tuple[str, bytes]:
    """Optimize a module, in place. Return its new text, and its bitcode before optimization for other CPUs, or b"" if none is stored."""
    # Code with assembly is never compiled for another CPU, and writing bitcode with invalid assembly aborts the process.
    may_be_portable = request.keep_bitcode and request.level and not has_assembly(printed) and not request.members
    write: Callable[[], bytes] = bytes
    if may_be_portable and len(printed) < _SMALL:  # copying a tiny module takes a third of the time of writing its bitcode
        write = codegen.copy(module, context).as_bitcode
    elif may_be_portable:  # copying a large module takes longer
        code = module.as_bitcode()
        write = partial(bytes, code)
    if not request.members:  # members are optimized already
        codegen.optimize(module, target, request.level)
    optimized = str(module)
    # Vectors have the width of the target's registers, so code for other CPUs must be optimized again.
    return optimized, write() if request.portable or ir_text.is_vectorized(optimized) else b""


def _choose_exports(
    variables: str,
    function_aliases: Mapping[str, Alias],
    own_thread_locals: Collection[str],
    values: ir_text.GlobalValues,
    assembly: Collection[str],
    request: Request,
) -> tuple[Export, ...]:
    """Return the exports of a module. See `choose_exports` and `require_exports` for the exceptions.

    `variables` are the module's lines of variables, and `assembly` has the symbols that its assembly defines.
    """
    merged = pic.merged_variables(variables) if request.shared and not request.members else {}
    choose = partial(
        choose_exports,
        values,
        aliases=function_aliases,
        thread_locals=own_thread_locals,
        merged=merged,
        assembly=assembly,
        variable_aliases=pic.variable_aliases(variables),
    )
    exports = choose(request.exports, may_be_empty=request.assumed is not None)
    if request.members and request.exports is None:  # some members export what they name, the others all visible symbols
        exports = (*choose(request.named), *_group_exports(exports, values, request))
        require_exports(exports, values)
    return exports


def _group_exports(exports: tuple[Export, ...], values: ir_text.GlobalValues, request: Request) -> tuple[Export, ...]:
    """Return the exports of a group without hidden symbols and inline variables. Each image has its own copies of these."""
    hidden = {value.name for value in (*values.functions, *values.variables) if value.is_hidden}
    hidden = {name for name in hidden if not name.startswith(pic.ADDRESS_OF)}
    hidden |= {value.name for value in values.variables if value.linkage.endswith("_odr")}
    hidden = hidden.union(request.unexported, [export.symbol for export in request.named])
    return tuple([export for export in exports if export.symbol not in hidden])


def translate_again(
    context: Any, recipe: Recipe, machine: Machine, *, shared: bool, inlined: Inlined, bodies: tuple[Body, ...]
) -> Translated:
    """Compile the stored code of a module to an object for another machine.

    `recipe` has the code and its options. `shared` says whether the image will be a shared object. `inlined` and `bodies` belong to the
    stored module. Raise `CompileError` if the code cannot be compiled, or is not portable to another machine. See also
    `restore_resolution` and `encode_values` for exceptions.
    """
    module = codegen.parse(recipe.code, context)
    text = str(module)
    values = ir_text.read_values(text)
    copied = {
        value.name
        for value in values.functions
        if value.linkage == "available_externally" and is_content_name(recipe.slots.get(value.name, ""))
    }
    for name in copied:  # otherwise the new image could need functions that the stored image does not need
        module.get_function(name).linkage = _INTERNAL
    slots = {symbol: name for symbol, name in recipe.slots.items() if symbol not in copied}
    _require_portable(text, values, machine)
    attributes = _target_attributes(text, values)
    complete = used_features.with_complete_attributes(text, attributes, host.platform_name())
    if complete is not text:
        module = codegen.parse(complete, context)
    if _cpu_intrinsics(values) or codegen.is_suspicious(used_features.TARGET_ATTRIBUTE.findall("\n".join(attributes.values()))):
        codegen.call_in_caller(try_in_child, complete, machine, 0 if recipe.optimized else recipe.level)
    function_aliases = pic.aliases(text)
    request = Request(recipe.code, recipe.exports, Requests({}, {}), recipe.level, machine, shared)
    with codegen.borrow_machine(machine.cpu, machine.features, recipe.level, text) as target:
        if not recipe.optimized:
            codegen.optimize(module, target, recipe.level)
        resolution = restore_resolution(module, slots, recipe.storage, recipe.libraries)
        encoded = codegen.call_in_caller(encode_values, resolution)
        code = b"" if recipe.optimized else recipe.code
        prepared = Prepared(recipe.exports, function_aliases, resolution, encoded, code, recipe.data, inlined, lambda: bodies)
        return emit(module, str(module), context, target, request, prepared)


def _cpu_intrinsics(values: ir_text.GlobalValues) -> list[str]:
    """Return the intrinsics of CPUs that a module uses."""
    return used_features.own_intrinsics([function.name for function in values.functions])


def _require_portable(text: str, values: ir_text.GlobalValues, machine: Machine) -> None:
    """Raise `CompileError` if stored code needs features that `machine` lacks, or may depend on the CPU for which it was written."""
    if used_features.requires_more_than(_cpu_intrinsics(values), machine.requires):
        raise CompileError("the stored code uses intrinsics for CPU features that this host does not have: compile the source again")
    if has_assembly(text):
        raise CompileError("the stored code contains inline assembly, which may need features of another CPU: compile the source again")
    if ir_text.passes_vectors(text):
        raise CompileError("the stored code passes vectors to other modules in a way that depends on the CPU: compile the source again")


def _try_if_suspicious(printed: str, values: ir_text.GlobalValues, request: Request, attributes: Mapping[str, str]) -> None:
    """Translate in another process first if the code may crash LLVM. See `try_in_child` for the exceptions."""
    machine = request.machine
    pairs = {("target-cpu", machine.cpu), ("target-features", machine.features)}
    pairs |= {pair for text in set(attributes.values()) for pair in used_features.TARGET_ATTRIBUTE.findall(text)}
    is_for_others = used_features.requires_more_than(_cpu_intrinsics(values), machine.requires)
    if codegen.is_suspicious(pairs) or is_for_others or is_rare(printed, values.functions):
        codegen.call_in_caller(try_in_child, printed, machine, request.level)


def _add_merged_imports(resolution: Resolution, exports: Iterable[Export]) -> Resolution:
    """Return a resolution that also imports the merged variables which the module defines."""
    merged = {export.symbol: export.name for export in exports if export.link_only.startswith(MERGED)}
    return resolution._replace(imports={**resolution.imports, **merged}) if merged else resolution


def _set_linkages(
    module: Any,
    values: ir_text.GlobalValues,
    exports: Iterable[Export],
    resolution: Resolution,
    context: Any,
    *,
    hide_others: bool,
    kept_symbols: Collection[str],
) -> None:
    """Link the support code into a module, and set the linkages of its definitions for an image.

    Merged variables become weak, exported definitions external and hidden. Other visible definitions become hidden; with `hide_others`,
    internal, except for `kept_symbols`, which assembly may use. `values` are the functions and variables of the module.
    """
    if resolution.support:
        support = codegen.parse(resolution.support, context)
        added = ir_text.read_values(str(support))
        module.link_in(support)
        values = ir_text.GlobalValues((*values.functions, *added.functions), (*values.variables, *added.variables))
    for name in resolution.thunks:
        module.get_function(name).linkage = _INTERNAL
    support_symbols = {*resolution.slots, *resolution.storage, *resolution.thunks}
    exported = {export.symbol for export in exports}.difference(resolution.imports)
    for name, linkage, find in _iterate_definitions(module, values):
        if name in support_symbols or name.startswith("llvm."):
            continue
        if name in resolution.imports:  # a merged variable: another module may provide it
            value = find()
            value.linkage = "weak_odr" if "_odr" in linkage else "weak_any"
            value.visibility = "default"
        elif name in exported:
            value = find()
            if linkage != _EXTERNAL:
                value.linkage = _EXTERNAL
            value.visibility = "hidden"
        elif linkage in VISIBLE_LINKAGES:
            _make_private(find(), internal=hide_others and name not in kept_symbols)


def _iterate_definitions(module: Any, values: ir_text.GlobalValues) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Yield each definition of the module as (name, linkage, function that returns its LLVM value). Few callers need the value."""
    for named_values, find in ((values.functions, module.get_function), (values.variables, module.get_global_variable)):
        for value in named_values:
            if value.name and not value.is_declaration:
                yield value.name, value.linkage, partial(find, value.name)
    if any(not value.name for value in (*values.functions, *values.variables)):
        for unnamed in (*module.functions, *module.global_variables):
            if not unnamed.name:
                yield "", unnamed.linkage.name, lambda value=unnamed: value  # type: ignore[misc]


def _make_private(value: Any, *, internal: bool) -> None:
    """Make a definition invisible to other modules. `internal` lets LLVM also remove or inline it."""
    if internal:
        value.linkage = _INTERNAL  # LLVM also makes its visibility the default
    else:
        value.visibility = "hidden"
