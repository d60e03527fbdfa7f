"""LLVM through llvmlite: parse, check, optimize, emit. Everything that can make LLVM abort is kept behind here.

LLVM ends the process for some inputs: inline assembly that does not assemble, CPU features that contradict the
triple. Where an input could be one of those, a child process tries it first (`compcache.build.trial`).
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm

from compcache.errors import CompileError, IncompatibleTargetError
from compcache.formats import host
from compcache.images.native_target import initialize, target_machine
from compcache.targets.machine import table_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "check_triple",
    "emit_object",
    "host_platform",
    "initialize",
    "is_suspicious",
    "llvm_version",
    "new_context",
    "optimize",
    "parse",
    "platform_of",
    "read_back",
    "target_machine",
    "try_in_child",
]

_BITCODE_MAGIC = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")
_TRIAL_SECONDS = 300.0
_NO_TRIPLE = ("", "unknown-unknown-unknown")  # the latter is what `llvmlite.ir.Module` writes by itself
#: Features without which 64-bit code of a calling convention cannot be made, and those that contradict the triple.
_BASIC_FEATURES = frozenset(("64bit", "cmov", "cx8", "fp-armv8", "fxsr", "mmx", "neon", "sse", "sse2", "x87"))
_MODES = frozenset(("16bit-mode", "32bit-mode", "64bit-mode", "soft-float", "x32"))


def llvm_version() -> str:
    """The version of the LLVM in use."""
    return ".".join(map(str, llvm.llvm_version_info))


def host_platform() -> str:
    """The platform of this process as `platform_of` names it."""
    return host.platform_name()


def platform_of(triple: str) -> str:
    """Architecture, operating system and object format of a triple, without vendor, version and libc.

    Front ends write ``x86_64-unknown-linux6.18.44-gnu2.36.0`` and the like; ``x86_64-linux-elf`` is what matters.
    """
    arch, _, rest = triple.partition("-")
    arch = {"amd64": "x86_64", "arm64": "aarch64", "x64": "x86_64"}.get(arch, arch)
    rest = rest.lower()
    for mark, system, image in (
        ("darwin", "darwin", "macho"), ("macos", "darwin", "macho"), ("ios", "ios", "macho"),
        ("windows", "win32", "coff"), ("win32", "win32", "coff"), ("linux", "linux", "elf"),
        ("freebsd", "freebsd", "elf"), ("netbsd", "netbsd", "elf"), ("openbsd", "openbsd", "elf"),
    ):  # fmt: skip
        if mark in rest:
            return f"{arch}-{system}-{'elf' if rest.endswith('-elf') else image}"
    return f"{arch}-{rest or 'unknown'}-elf"


@contextlib.contextmanager
def new_context() -> Iterator[Any]:
    """A fresh LLVM context: nothing of one build reaches another.

    Its modules are closed before it is. Left to the garbage collector, as an exception's traceback would leave
    them, the context might go first, and closing a module after its context crashes.
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


def parse(ir: Any, context: Any) -> Any:
    """The verified module of assembly text, bitcode, or either kind of llvmlite module; always a copy.

    Raises:
        CompileError: LLVM rejects it.
    """
    initialize()
    try:
        module = _parse(ir, context)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise CompileError(f"LLVM does not accept the code: {str(error).strip()}") from error
    context.modules.append(module)
    try:
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"the module is not valid LLVM IR: {str(error).strip()}") from error
    return module


def _parse(ir: Any, context: Any) -> Any:
    if isinstance(ir, llvm.ModuleRef):
        return _copy(ir, context)
    if isinstance(ir, (bytes, bytearray, memoryview)):
        data = bytes(ir)
        if data.startswith(_BITCODE_MAGIC):
            return llvm.parse_bitcode(data, context)
        ir = data.decode()
    elif not isinstance(ir, str):
        from llvmlite import ir as llvm_ir

        if not isinstance(ir, llvm_ir.Module):
            raise CompileError(
                f"ir must be LLVM assembly (str), bitcode (bytes) or an llvmlite module, not {type(ir).__name__}"
            )
        ir = str(ir)
    if "\0" in ir:
        raise CompileError("the LLVM assembly contains a NUL character")
    return llvm.parse_assembly(ir, context)


def read_back(bitcode: bytes, context: Any) -> Any:
    """The module that this process has written as bitcode."""
    module = llvm.parse_bitcode(bitcode, context)
    context.modules.append(module)
    return module


def _copy(module: Any, context: Any) -> Any:
    """A copy in another context.

    With a triple, LLVM assembles the module's inline assembly to write bitcode, and ends the process where it
    does not assemble.
    """
    with module.clone() as neutral:
        neutral.triple = ""
        copy = llvm.parse_bitcode(neutral.as_bitcode(), context)
    copy.triple = module.triple
    return copy


def check_triple(module: Any) -> None:
    """Give the module this process's triple and data layout.

    Raises:
        IncompatibleTargetError: its code is for another platform.
    """
    triple = module.triple
    if triple not in _NO_TRIPLE and platform_of(triple) != host_platform():
        raise IncompatibleTargetError(
            f"the module is for {triple!r} ({platform_of(triple)}), this process is {host_platform()}: compile it "
            "for this platform, or leave the target triple out"
        )
    pointers = re.search(r"(?:^|-)p:(\d+)", module.data_layout)
    if pointers and pointers[1] != "64":
        raise IncompatibleTargetError(
            f"the module's data layout has {pointers[1]}-bit pointers, this process has 64-bit ones"
        )
    module.triple = llvm.get_default_triple()


def is_suspicious(attributes: Iterable[tuple[str, str]]) -> bool:
    """Whether CPU names or features are such that LLVM might abort over them.

    Args:
        attributes: pairs like ("target-cpu", "x86-64-v3"): the machine's and the functions'.
    """
    return any(not _is_plain(kind, value) for kind, value in set(attributes))


def _is_plain(kind: str, value: str) -> bool:
    table = table_of(host_platform())
    if kind != "target-features":
        return value in ("", llvm.get_host_cpu_name()) or (table is not None and value in table.cpus)
    for part in filter(None, value.split(",")):
        sign, name = part[:1], part[1:]
        if sign not in "+-" or table is None or not table.knows(name):
            return False
        if name in _MODES or (sign == "-" and name in _BASIC_FEATURES):
            return False
    return True


def optimize(module: Any, machine: Any, level: int) -> None:
    """Run LLVM's pipeline of this level; level 0 leaves the code as it is."""
    if level == 0:
        return
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = level > 1
    options.slp_vectorization = level > 1
    options.loop_unrolling = True
    options.loop_interleaving = level > 1
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def emit_object(module: Any, machine: Any) -> bytes:
    """The relocatable object of a module."""
    return bytes(machine.emit_object(module))


def try_in_child(module: Any, cpu: str, features: str, level: int) -> None:
    """Optimize and emit the module in a child process, which gets it as text: see `_copy`.

    Raises:
        CompileError: LLVM ended the child; the message is what LLVM printed.
    """
    # The child finds the same packages as this process, however it came by them.
    start = f"import sys; sys.path[:] = {sys.path!r}; from compcache.build.trial import main; sys.exit(main())"
    command = [sys.executable, "-I", "-c", start, cpu, features, str(level)]
    try:
        done = subprocess.run(
            command, input=str(module).encode("utf-8", "surrogateescape"), capture_output=True, timeout=_TRIAL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"LLVM did not translate the code within {_TRIAL_SECONDS:.0f} seconds") from None
    if done.returncode != 0:
        text = done.stderr.decode("utf-8", "replace").strip()
        lines = [line for line in text.splitlines() if line.strip() and "ignoring" not in line]
        reason = "; ".join(lines[:3]) or f"it ended with status {done.returncode}"
        raise CompileError(f"LLVM cannot translate the code: {reason}")
