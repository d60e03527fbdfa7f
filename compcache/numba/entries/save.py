"""Stores compiled overloads in a cache directory.

An entry is a module of the cache with a readable name that ends with the overload's key. If the machine code can be linked as a shared
object, it is in the module's image. Otherwise it is in the description, the data entry of the module, as object code that Numba serialized.
"""

from __future__ import annotations

import inspect
import re
import zlib
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numba
from llvmlite import binding
from numba.core import serialize, types
from numba.core.dispatcher import Dispatcher, ObjModeLiftedWith
from numba.core.environment import lookup_environment
from numba.core.typed_passes import _reload_parfors

from compcache import Function, ModuleSource, frontend
from compcache.errors import CompileError, LinkError
from compcache.interrupts import reraise_interrupt, suppress
from compcache.numba.compilation import libraries, native_code, scopes
from compcache.numba.compilation.copied_objects import is_equal_in_each_process
from compcache.numba.entries import image_source, load, recursion
from compcache.numba.entries.named_addresses import replace_addresses_by_names
from compcache.numba.entries.names import format_signature
from compcache.numba.fingerprints.fixed_code import unknown_code_reason
from compcache.numba.fingerprints.history import named_functions
from compcache.numba.fingerprints.walk import CLASS, SIZE_OF_LINES
from compcache.numba.identity.dependencies import encode_names, matching_names
from compcache.numba.identity.kept_results import changed_implementation, encode_results
from compcache.numba.identity.linked import encode_linked, encode_loops
from compcache.numba.identity.settings import requested_cpu, requested_cpu_and_features
from compcache.numba.lazy.c_helpers import THREADING
from compcache.numba.lazy.description import DESCRIPTION, KIND_IMAGE, KIND_OBJECT, Description
from compcache.numba.registered.jitclasses import without_addresses
from compcache.numba.registered.library import full_name
from compcache.numba.registered.refusals import Unidentifiable, Unrepeatable

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from compcache.cache import Cache
    from compcache.numba.fingerprints.walk import FunctionPart
    from compcache.numba.identity.dependencies import Dependency
    from compcache.numba.identity.key import Identity

__all__ = ["NotCacheable", "NotYetCacheable", "assembly_of", "numba_refusal_reason", "publish_entry", "save_library", "save_result"]

#: A pickled exception. It contains the line that raises the exception.
_PICKLED_EXCEPTION = re.compile(r'^@"?\.const\.(?:picklebuf|pickledata)\.', re.MULTILINE)
#: Debug information. It contains the names of files.
_DEBUG_INFORMATION = re.compile(r"!DICompileUnit\(")
#: The function that cloudpickle calls to create the copy of a class.
_CLASS_COPIER = "_make_skeleton_"
_PICKLED_CLASS_COPY = re.compile(rf"^@[^\n]*\.const\.pickledata\.[^\n]*{_CLASS_COPIER}", re.MULTILINE)
#: The maximum number of characters of the sources in an entry. A limit is necessary because the notes of an entry are read as a whole.
_MAX_SOURCE = 1 << 15
_DYNAMIC_GLOBALS = "it uses dynamic globals (such as ctypes pointers and large global arrays)"


class NotCacheable(Exception):  # noqa: N818 - a result, not a failure
    """Raised if a compiled overload cannot be stored. The message gives the reason."""


class NotYetCacheable(NotCacheable):
    """Raised if an overload calls a function that may not be compiled yet."""


def numba_refusal_reason(cres: Any) -> str:
    """Return why neither Numba nor this package can cache a compile result, in the words of Numba's warning; "" if one of them can."""
    if any(not lifted.can_cache for lifted in cres.lifted or () if lifted):
        return "it uses lifted code"
    if cres.library.has_dynamic_globals and assembly_of(cres.library, cres.library._final_module, _entry_symbols(cres.fndesc)) is None:
        return _DYNAMIC_GLOBALS
    return ""


def save_result(cache: Cache, identity: Identity, name: str, cres: Any, targets: Iterable[str] | str | None, seconds: float) -> None:
    """Store a compile result. If its code can be linked as an image, store an image for each target.

    `name` is the name of the entry. See `publish_entry` for `targets` and `seconds`.

    Raises:
        NotYetCacheable: a recursive callee is not compiled yet.
        NotCacheable: the code depends on objects that only this process has or that cannot be pickled, or its dependencies are unknown; or
            a stored entry has the same conditions, and this process cannot use it.
        CompcacheError: the entry could not be stored.
    """
    library = cres.library
    recorded = _add_linked_dependencies(libraries.collect_dependencies(library), identity)
    text = _require_assembly(cres, library._final_module)
    checked = _make_checked_fields(_digest_reported_lines(identity, text, shows_files=cres.objectmode or bool(cres.lifted)), recorded)
    if reason := load.known_rejection(name, checked):
        raise NotCacheable(reason) from Unrepeatable(reason)
    token = _find_token(cres)
    source, payload = _prepare_image_source(cres, text)
    if source is not None:
        bitcode = zlib.compress(_make_linkable_bitcode(cres), 1)
        pickled = _pickle_metadata((KIND_IMAGE, token, source.symbols, payload), cres, text)
        description = Description(*checked, pickled, bitcode)
        try:
            publish_entry(cache, identity, name, cres.signature, source, description, targets, seconds=seconds)
            if native_code.is_waiting(library):
                load.run_image(cache, name, description, source.symbols, library)
        except (CompileError, LinkError):
            source = None  # LLVM or the linker rejects the source of the image, so object code is stored
    if source is None:
        if library.has_dynamic_globals:
            raise NotCacheable(_DYNAMIC_GLOBALS)
        if recursion.link_recursive_callees(library._final_module) is not library._final_module:
            raise NotCacheable("the function calls a recursive function that Numba has compiled separately: pass the result as an argument")
        declared = [function.name for function in library._final_module.functions if function.is_declaration]
        thread_functions = tuple(name for name in declared if name in THREADING)
        pickled = _pickle_metadata((KIND_OBJECT, token, thread_functions, (_next_symbol(cres), _reduce_result(cres))), cres, text)
        publish_entry(cache, identity, name, cres.signature, None, Description(*checked, pickled, b""), seconds=seconds)


def assembly_of(library: Any, module: Any, kept: Container[str]) -> str | None:
    """Return the LLVM assembly of a library's module, with imports in place of addresses that are valid only in this process.

    `kept` are the functions that other code may call. The result is None if the code uses an address that has no name.
    """
    return replace_addresses_by_names(module, kept) if library.has_dynamic_globals else str(module)


def _entry_symbols(fndesc: Any) -> tuple[str, ...]:
    """Return the symbols by which Python, C and compiled code call a function."""
    return fndesc.llvm_cpython_wrapper_name, fndesc.llvm_cfunc_wrapper_name, fndesc.llvm_func_name


def _require_assembly(cres: Any, module: Any) -> str:
    """Return the LLVM assembly of a module, as `assembly_of` does. Raise `NotCacheable` if the code uses an address that has no name."""
    text = assembly_of(cres.library, module, _entry_symbols(cres.fndesc))
    if text is None:
        raise NotCacheable(_DYNAMIC_GLOBALS)
    return text


def _make_linkable_bitcode(cres: Any) -> bytes:
    """Return the bitcode with which callers are linked, with imports in place of addresses, and with the recursive callees.

    Raise `NotCacheable` if the code uses an address that has no name.
    """
    module = recursion.link_recursive_callees(cres.library._get_module_for_linking())
    if cres.library.has_dynamic_globals:
        module = binding.parse_assembly(_require_assembly(cres, module))
    return bytes(module.as_bitcode())


def _make_checked_fields(lines: str, recorded: libraries.LibraryRecord) -> tuple[str, str, tuple[Dependency, ...], bytes, tuple[str, ...]]:
    """Return the fields of the description that a load checks, for a digest of the source lines (or "") and the recorded dependencies.

    Raise `NotCacheable` if the dependencies are unknown.
    """
    if recorded.problem:
        raise NotCacheable(str(recorded.problem)) from recorded.problem
    asked = encode_names(recorded.names)
    rows = sorted(recorded.dependencies | encode_results(recorded.results))
    return requested_cpu(), lines, tuple(rows), asked, matching_names(asked, recorded.dependencies)


def _add_linked_dependencies(recorded: libraries.LibraryRecord, identity: Identity) -> libraries.LibraryRecord:
    """Return the dependencies of the code of an entry, with the overloads that are linked into the code, and the loops of ufuncs.

    Raise `NotCacheable` if the values of linked code are unknown, or if a process that loads the entry could not find a ufunc, or must have
    two contents of an implementation.
    """
    if reason := unknown_code_reason(identity.parts[1:]):
        raise NotCacheable(reason) from Unidentifiable(reason)
    changed = changed_implementation(recorded.dependencies, recorded.results)
    if changed and recorded.problem is None:
        reason = f"{changed} reads a value that has changed since a callee was compiled: let implementations change no variable"
        raise NotCacheable(reason) from Unrepeatable(reason)
    functions = named_functions(identity.parts)
    rows = encode_linked(recorded.linked, recorded.dependencies, functions)
    loops = encode_loops(recorded.loops, recorded.dependencies, functions)
    if loops is None:
        reason = "the function calls a ufunc without signatures that no variable contains: declare the signatures of the ufunc"
        raise NotCacheable(reason) from Unrepeatable(reason)
    return recorded._replace(dependencies=recorded.dependencies | rows | loops)


def _pickle_metadata(value: Any, cres: Any, text: str) -> bytes:
    """Return the pickled metadata of an entry, for a compile result and the LLVM assembly of its code.

    Raise `NotCacheable` if the metadata cannot be pickled, or other processes would have copies of its objects.
    """
    try:
        with scopes.storing_scope():
            pickled: bytes = serialize.dumps(value)
    except Exception as error:
        reraise_interrupt(error)
        raise NotCacheable(f"the types and constants of the function cannot be pickled: {error}") from error
    reason = _copied_objects_reason(text, pickled, cres.environment.consts)
    if reason:
        raise NotCacheable(reason) from Unrepeatable(reason)  # Numba's own cache would contain copies, too
    return pickled


def publish_entry(
    cache: Cache, identity: Identity, name: str, signature: Any, source: Any, description: Description,
    targets: Iterable[str] | str | None = None, part_of: str | None = None, seconds: float = 0.0,
) -> None:  # fmt: skip
    """Store an entry: its description, and an image, which is empty without a source.

    Args:
        cache: the cache to store in.
        identity: the identity of the function.
        name: the name of the entry.
        signature: Numba's signature, for display.
        source: the source of the image; None if the description contains the code.
        description: the description.
        targets: the CPUs to store code for, as in `ModuleSource`; ignored if the code runs only on the CPU of Numba's settings.
        part_of: the function to which a wrapper or a loop belongs; None for the code of a function.
        seconds: the CPU time that Numba took to compile the code, in seconds.

    Raises:
        CompcacheError: the entry could not be stored.
    """
    text = source.text if source else image_source.make_address_function(())
    cpu, features = requested_cpu_and_features()
    portable = not description.is_machine_code and not description.cpu and not frontend.passes_vectors(text)
    # Numba has optimized the code, which calls only functions of Numba, Python and the platform (`alone`).
    frontend.add_realizations(cache, ModuleSource(
        text,
        {name: Function("ptr(i64)", symbol=image_source.ADDRESS, shown=format_signature(signature))},
        source.globals if source else None,
        entries={DESCRIPTION: description.encode()},
        optimize=0,
        keep_bitcode=not description.is_machine_code,
        cpu=None if portable else cpu,
        features=features,
        targets=targets if portable else None,
        identity={**identity.components, **_read_sources(identity.parts)},
        part_of=part_of,
        makers={"numba": numba.__version__},
    ), alone=True, seconds=seconds)  # fmt: skip


def _find_token(cres: Any) -> str:
    """Return the token in the symbols of compiled code, or "" if the symbols have no token, or a token with a number."""
    uid = getattr(cres.fndesc, "uid", None)  # with a number: the token, "x" and the number (`scopes.next_unique_id`)
    return uid if isinstance(uid, str) and "x" not in uid else ""


def _digest_reported_lines(identity: Identity, text: str, *, shows_files: bool = False) -> str:
    """Return the digest of the source lines if LLVM assembly contains line numbers, otherwise "".

    Debug information and Python code (`shows_files`) contain lines and file names. Exceptions contain only lines; a load finds the file by
    the module name.
    """
    if shows_files or _DEBUG_INFORMATION.search(text) is not None:
        return identity.lines
    return identity.lines[:SIZE_OF_LINES] if _PICKLED_EXCEPTION.search(text) is not None else ""


def _prepare_image_source(cres: Any, text: str) -> tuple[Any, Any]:
    """Return the image's source and the description's payload, or (None, None) if the code cannot be linked as an image.

    Raise `NotYetCacheable` if a recursive callee is not compiled yet, or `NotCacheable` if the code uses an address that has no name.
    """
    fndesc = cres.fndesc
    try:
        if recursion.UNRESOLVED in text:
            text = _require_assembly(cres, recursion.link_recursive_callees(cres.library._final_module))
    except recursion.MissingCallee as error:
        raise NotYetCacheable(str(error)) from error
    if (
        cres.objectmode
        or not all(isinstance(lifted, ObjModeLiftedWith) for lifted in cres.lifted or ())
        or set(cres.reload_init) - {_reload_parfors}  # loading the code requires more than Numba's threads
        or hasattr(cres.signature.return_type, "gen_func")
    ):
        return None, None
    try:
        source = image_source.prepare_image(text, _entry_symbols(fndesc))
    except image_source.CannotLink:
        return None, None
    environment = cres.environment
    referenced = _make_environment_rows([env_name for env_name in source.environments if env_name != environment.env_name])
    return source, (
        cres.library.name, _drop_unpicklable_parts(fndesc), environment.env_name, list(environment.consts), cres.signature,
        _annotation_text(cres), referenced, *([tuple(cres.lifted)] if cres.lifted else []),
    )  # fmt: skip


def _make_environment_rows(names: Iterable[str]) -> tuple[Any, ...]:
    """Return the name, the module and the constants of each existing environment with one of these names.

    The module is None for a function that was created from text. Its code reads no globals.
    """
    found = [(name, lookup_environment(name)) for name in names]
    return tuple([(name, item.globals.get("__name__"), list(item.consts)) for name, item in found if item is not None])


def _drop_unpicklable_parts(fndesc: Any) -> Any:
    """Return a function descriptor without parts that cannot be pickled, as Numba stores it. Remove the argument's own type maps."""
    fndesc.typemap = fndesc.calltypes = None
    if fndesc.global_dict is None:
        return fndesc
    import copy

    copied = copy.copy(fndesc)
    copied.global_dict = None
    return copied


def _reduce_result(cres: Any) -> Any:
    """Return a compile result in the form that Numba pickles. Raise `NotCacheable` if the function's globals have no name."""
    if not cres.environment.can_cache():
        raise NotCacheable("the function's globals have no __name__: add __name__ to the globals that exec() uses")
    return cres._replace(type_annotation=_annotation_text(cres))._reduce()


def _annotation_text(cres: Any) -> str:
    """Return the source of a function with the types of its variables, or "" if an edit of the file has made the source invalid."""
    with suppress(TokenError):
        return without_addresses(str(cres.type_annotation))
    return ""


def save_library(
    cache: Cache, identity: Identity, name: str, signature: Any, library: Any, recorded: libraries.LibraryRecord, symbol: str, part_of: str
) -> None:
    """Store a code library that contains the wrapper of a gufunc.

    `name` is the name of the entry, `recorded` the dependencies of the function, and `symbol` the symbol of the wrapper. See
    `publish_entry` for the other arguments.

    Raises:
        NotCacheable: the code depends on objects that only this process has, or its dependencies are unknown.
        CompcacheError: the entry could not be stored.
    """
    if library.has_dynamic_globals:
        raise NotCacheable(_DYNAMIC_GLOBALS)
    library._ensure_finalized()
    recorded = _add_linked_dependencies(recorded, identity)
    checked = _make_checked_fields(_digest_reported_lines(identity, str(library._final_module)) or identity.lines[:SIZE_OF_LINES], recorded)
    try:
        source = image_source.prepare_image(str(library._final_module), (symbol,))
        payload = library.name, _make_environment_rows(source.environments)
        bitcode = zlib.compress(library._get_module_for_linking().as_bitcode(), 1)
        description = Description(*checked, serialize.dumps((KIND_IMAGE, "", source.symbols, payload)), bitcode)
        publish_entry(cache, identity, name, signature, source, description, part_of=part_of)
        if native_code.is_waiting(library):
            load.run_image(cache, name, description, source.symbols, library)
    except (image_source.CannotLink, CompileError, LinkError):
        pickled = serialize.dumps((KIND_OBJECT, "", (), library.serialize_using_object_code()))
        publish_entry(cache, identity, name, signature, None, Description(*checked, pickled, b""), part_of=part_of)


def _copied_objects_reason(text: str, pickled: bytes, constants: Iterable[Any]) -> str | None:
    """Return why other processes would get copies of objects, or None if other processes find the same objects.

    The objects are in LLVM assembly, in the pickled description of the code, and among the constants of its environment. Code contains
    pickles of the objects that it raises or returns. A class or function that can be found by its name is pickled as this name. Any other
    is pickled as a copy. Each process that unpickles the copy creates a new object, which `except` and `is` distinguish from the program's.
    """
    functions = [constant for constant in constants if isinstance(constant, Dispatcher)]
    if functions:
        return f"in other processes, the code would return a copy of the function {functions[0].py_func.__qualname__}: return no function"
    copied = next((constant for constant in constants if not is_equal_in_each_process(constant)), None)
    if copied is not None:
        return f"in other processes, the code would use a copy of an object of class {type(copied).__qualname__}: use a global instead"
    if _CLASS_COPIER.encode() in pickled or _PICKLED_CLASS_COPY.search(text):
        return "the code refers to a class, of which other processes would have a copy: assign the class to a variable of its module"
    return None


def _read_sources(parts: Iterable[FunctionPart]) -> dict[str, str]:
    """Return the source texts of functions as components of an identity, so that `compcache explain` can show edits. No key has them.

    Classes, and functions without readable source, are omitted. The first function that exceeds the maximum length, and all later
    functions, are omitted too.
    """
    texts: dict[str, str] = {}
    remaining = _MAX_SOURCE
    for part in parts:
        if part.kind == CLASS:
            continue
        try:
            text = inspect.getsource(part.function)
        except (OSError, TypeError, SyntaxError, TokenError) as error:  # for example, the file was edited since its import
            reraise_interrupt(error)
            continue
        remaining -= len(text)
        if remaining < 0:
            break
        texts[f"source of {full_name(part.function)}"] = text
    return texts


def _next_symbol(cres: Any) -> str:
    """Return the symbol that implements `next` for the generator that compiled code returns, or "" if the code returns no generator."""
    return_type = cres.signature.return_type
    if not isinstance(return_type, types.Generator) or return_type not in cres.target_context._generators:
        return ""
    return str(cres.target_context.get_generator_desc(return_type).mangled_name)
