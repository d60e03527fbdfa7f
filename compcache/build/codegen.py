"""LLVM through llvmlite: parse, check, optimize, emit.

LLVM ends the process for some inputs: inline assembly that does not assemble, CPU features that contradict the
triple. Suspicious inputs are found here (`is_suspicious`), and a child process tries them (`compcache.build.trial`).
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from compcache.arch.known import architecture
from compcache.build.ir_text import find_extreme_construct
from compcache.build.merging import link_modules, plain_declarations
from compcache.build.overridden import with_bodies_for_aliases
from compcache.errors import CompileError, FormatError, IncompatibleTargetError
from compcache.formats.host import platform_name
from compcache.formats.makers import PACKAGE, Maker
from compcache.images.embedded_bitcode import BITCODE_MAGIC, embedded_bitcode, holds_machine_code
from compcache.images.llvm_thread import call_beside, call_in_caller, check_abandoned, in_llvm_thread
from compcache.images.native_target import borrow_machine, data_layout, default_triple, initialize, note_module, note_text, target_machine
from compcache.interrupts import reraise_interrupt
from compcache.llvm import llvm
from compcache.targets.cpu_table import table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "borrow_machine", "call_beside", "call_in_caller", "check_triple", "copy", "data_layout", "emit_object", "initialize", "is_suspicious",
    "llvm_version", "new_context", "note_text", "optimize", "own_makers", "parse", "plain_source", "platform_of", "read_back", "run",
    "target_machine",
]  # fmt: skip

_T = TypeVar("_T")
#: LLVM assembly, bitcode, or the bitcode of several modules.
_Code: TypeAlias = "str | bytes | tuple[bytes, ...]"
_NO_TRIPLE = ("", "unknown-unknown-unknown")  # `llvmlite.ir.Module` writes the second by default


def llvm_version() -> str:
    """Return the version of the LLVM in use."""
    return ".".join(map(str, llvm.llvm_version_info))


def own_makers() -> tuple[Maker, ...]:
    """Return the programs other than LLVM that generate code in this process: this package and llvmlite, with their versions."""
    import llvmlite

    from compcache import __version__

    return Maker(PACKAGE, __version__), Maker("llvmlite", llvmlite.__version__)


@functools.lru_cache(maxsize=64)
def platform_of(triple: str) -> str:
    """Return the architecture, operating system and object format of a triple, without the vendor, versions and C library.

    For example, ``x86_64-unknown-linux6.18.44-gnu2.36.0`` gives ``x86_64-linux-elf``. The name of an unknown system is kept.
    """
    arch, _, system_text = triple.partition("-")
    arch = architecture(arch).name
    system_text = system_text.lower()
    for word, system, object_format in (
        ("darwin", "darwin", "macho"), ("macos", "darwin", "macho"), ("ios", "ios", "macho"),
        ("windows", "win32", "coff"), ("win32", "win32", "coff"), ("linux", "linux", "elf"),
        ("freebsd", "freebsd", "elf"), ("netbsd", "netbsd", "elf"), ("openbsd", "openbsd", "elf"),
    ):  # fmt: skip
        if word in system_text:
            return f"{arch}-{system}-{'elf' if system_text.endswith('-elf') else object_format}"
    return f"{arch}-{system_text or 'unknown'}-elf"


def run(work: Callable[[Any], _T]) -> _T:
    """Call `work` with a new context in LLVM's thread, and return its result. The result must not contain LLVM objects."""
    contexts = contextlib.ExitStack()
    return in_llvm_thread(lambda: work(contexts.enter_context(new_context())), contexts.close)


@contextlib.contextmanager
def new_context() -> Iterator[Any]:
    """Open a new LLVM context, so that builds share no state; close its modules and the context at the end.

    The modules are the items of the list `context.modules`. They are closed before the context, because closing a module
    after its context crashes. A garbage collection, for example after an exception, could free them in the wrong order.
    """
    context = llvm.create_context()
    context.modules = []
    try:
        yield context
    finally:
        for module in context.modules:
            module.close()
        context.modules.clear()
        context.close()


def plain_source(ir: Any) -> _Code:
    """Return the code of a frozen source in a form that `parse` reads. Raise `CompileError` if `ir` has another type or no LLVM code."""
    if isinstance(ir, str):
        return ir
    if not isinstance(ir, bytes):
        raise CompileError(f"ir must be LLVM assembly (str), bitcode (bytes) or an llvmlite module, not {type(ir).__name__}")
    if ir.startswith(BITCODE_MAGIC):
        return ir
    try:
        return embedded_bitcode(ir) if holds_machine_code(ir) else ir.decode()
    except FormatError as error:
        raise CompileError(f"no LLVM bitcode can be read from the code: {error}") from error
    except UnicodeDecodeError as error:
        raise CompileError(f"the code is neither LLVM bitcode nor LLVM assembly in UTF-8 ({error}): pass one of these") from error


def parse(ir: _Code, context: Any) -> Any:
    """Parse and verify the result of `plain_source`, and add the module to the context's modules.

    Bitcode of several modules becomes one module.

    Raise `CompileError` if LLVM rejects the code, or the text contains NUL or characters that UTF-8 cannot encode.
    """
    check_abandoned()
    initialize()
    try:
        module = _parse_unverified(ir, context)
    except RuntimeError as error:
        reraise_interrupt(error)
        raise CompileError(f"LLVM cannot parse the code: {str(error).strip()}") from error
    except UnicodeEncodeError as error:
        raise CompileError(f"the LLVM assembly contains characters that UTF-8 cannot encode ({error}): remove these characters") from error
    context.modules.append(module)
    try:
        module.verify()
    except RuntimeError as error:
        reraise_interrupt(error)
        raise CompileError(f"the module is not valid LLVM IR: {str(error).strip()}") from error
    return module


def _parse_unverified(ir: _Code, context: Any) -> Any:
    """Return a module from IR in any accepted form, without a check of its content.

    Raise `CompileError` for a NUL character, `RuntimeError` if LLVM rejects the code, or `UnicodeEncodeError` if UTF-8 cannot encode it.
    """
    if isinstance(ir, tuple):
        return _link_parts(ir, context)
    if isinstance(ir, bytes):
        return llvm.parse_bitcode(ir, context)
    if "\0" in ir:
        raise CompileError("the LLVM assembly contains a NUL character: remove the character")
    return llvm.parse_assembly(ir, context)


def _link_parts(parts: tuple[bytes, ...], context: Any) -> Any:
    """Return one module linked from several. Aliases of weak definitions refer to the bodies in their own module, as in an object file.

    Raise `RuntimeError` if LLVM cannot read one, or two modules define the same symbol.
    """
    modules = [read_back(part, context) for part in parts]
    if len(modules) == 1:
        return modules[0]
    declarations = []
    for number, text in enumerate(map(str, modules)):
        declarations.append(plain_declarations(text))
        rewritten = with_bodies_for_aliases(text)
        if rewritten is not text and find_extreme_construct(rewritten, printed=True) is None:  # else the linked code is refused
            modules[number] = llvm.parse_assembly(rewritten, context)
            context.modules.append(modules[number])
    return link_modules(declarations, modules, context)


def read_back(bitcode: bytes, context: Any) -> Any:
    """Parse bitcode that compcache has written, without verifying it, and add the module to the context's modules.

    Raise `RuntimeError` if this LLVM cannot read it, for example because a newer LLVM has written it.
    """
    module = llvm.parse_bitcode(bitcode, context)
    context.modules.append(module)
    return module


def copy(module: Any, context: Any) -> Any:
    """Return a copy of a module, and add the copy to the modules of `context`, which must be the context of the module."""
    copied = module.clone()
    context.modules.append(copied)
    return copied


def check_triple(module: Any) -> None:
    """Check that a module is for this platform, and set its triple to this process's triple.

    Raise `IncompatibleTargetError` if the module is for another platform or byte order, or its pointers do not have 64 bits.
    """
    triple = module.triple
    if triple not in _NO_TRIPLE and platform_of(triple) != platform_name():
        raise IncompatibleTargetError(
            f"the module is for {triple!r} ({platform_of(triple)}), but this process is {platform_name()}: compile the module "
            "for this platform, or leave out the target triple"
        )
    layout = module.data_layout
    if layout.startswith("E") and sys.byteorder == "little":
        raise IncompatibleTargetError(
            "the module's data layout is big-endian, but this process is little-endian: compile the module for this platform"
        )
    pointers = re.search(r"(?:^|-)p:(\d+)", layout)
    if pointers and pointers[1] != "64":
        raise IncompatibleTargetError(
            f"the module's data layout has {pointers[1]}-bit pointers, but this process has 64-bit pointers: compile the module for 64 bits"
        )
    module.triple = default_triple()


def is_suspicious(attributes: Iterable[tuple[str, str]]) -> bool:
    """Return whether LLVM might abort because of CPU names or features, given as pairs like ("target-cpu", "x86-64-v3")."""
    return any(not _is_harmless_attribute(*pair) for pair in set(attributes))


@functools.lru_cache(maxsize=256)
def _is_harmless_attribute(attribute: str, value: str) -> bool:
    """Return whether a target attribute names only CPUs and features that LLVM knows, and changes no basic feature or processor mode."""
    table, arch = table_of(platform_name()), architecture(platform_name())
    if attribute != "target-features":
        return value == "" or (table is not None and value in table.cpus) or value == llvm.get_host_cpu_name()
    for part in filter(None, value.split(",")):
        sign, name = part[:1], part[1:]
        if sign not in "+-" or table is None or not table.knows(name):
            return False
        if (sign == "+" and name in arch.other_modes) or (sign == "-" and name in arch.basic_features):
            return False
    return True


def optimize(module: Any, machine: Any, level: int) -> None:
    """Optimize a module, in place, with LLVM's pipeline of a level. Level 0 does not change the module."""
    check_abandoned()
    if level == 0:
        return
    note_module(module, machine)
    builder = llvm.create_pass_builder(machine, _pipeline_options(level))
    builder.getModulePassManager().run(module, builder)


@functools.cache
def _pipeline_options(level: int) -> Any:
    """Return the options of LLVM's pipeline for an optimization level, which all calls share."""
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = level > 1
    options.slp_vectorization = level > 1
    options.loop_unrolling = True
    options.loop_interleaving = level > 1
    return options


def emit_object(module: Any, machine: Any) -> bytes:
    """Return the relocatable object that a target machine emits for a module. The code generator may change the module."""
    check_abandoned()
    return bytes(machine.emit_object(module))
