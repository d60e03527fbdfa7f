"""Compiles code that might abort LLVM in a child process first.

LLVM aborts the process or runs forever for some code: invalid inline assembly, CPU features that contradict the triple, constructs that
it translates for some platforms only, and malicious inputs. The parent process calls `try_in_child`; the child process runs `main`.

Inline assembly is the common case, and only a small part of a module needs a trial because of it: top-level assembly, and the functions
that contain assembly, with their attributes and registers. `assembly_parts` reduces a module to this part. Two templates cannot fail: an
empty template with plain operands, which C programs use as a barrier for the optimizer, and a comment, which they use as a mark.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.arch.known import architecture
from compcache.build import codegen
from compcache.errors import CompileError
from compcache.formats.host import platform_name
from compcache.interrupts import reraise_interrupt
from compcache.processes.detached import isolated_command
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.build.ir_text import GlobalValue
    from compcache.targets.machine import Machine

__all__ = [
    "TRUSTED", "UNTRUSTED", "Limits", "assembly_parts", "has_assembly", "has_module_assembly", "is_rare", "main", "try_in_child",
]  # fmt: skip


class Limits(NamedTuple):
    """The limits of a trial: processor time in seconds, and memory in bytes (None: unlimited)."""

    seconds: int
    memory: int | None


TRUSTED = Limits(300, None)
#: Ten times the processor time for a million lines of C, and the memory that LLVM needs for 100 MB of assembly.
UNTRUSTED = Limits(120, 4 << 30)

_CHILD = "import sys; from compcache.build.trial import main; sys.exit(main())"
#: The seconds of wall-clock time for each second of processor time, because the machine may run other work.
_PATIENCE = 4
_ASSEMBLY = re.compile(r'\basm (?:(?:sideeffect|alignstack|inteldialect|unwind) )*"([^"]*)", "([^"]*)"\(([^\n]*)')
#: A template that is only a comment: no escape, no operand, and no line marker, which the assembler interprets.
_COMMENT = re.compile(r"(?:#(?! *\d)[^\\$]*)?\Z")
_MAX_REGISTERS = 3  # more operands may need more registers than the processor has
_CONSTRAINT = re.compile(r"(?:[=+]?[&]?\*?(?:r|m|g|rm|imr|0|1|2|3)|~\{\w+\})\Z")
_OPERAND = re.compile(r"(?:i8|i16|i32|i64|ptr)\b")
_RESULT = re.compile(r"(?:void|i8|i16|i32|i64|ptr) \Z")
#: Patterns of constructs that LLVM translates only for some platforms, each by a sign: a pattern with a plain start, for a fast search.
_RARE = {
    ' gc "': re.compile(""),
    "vscale x ": re.compile(""),
    r" xor \(": re.compile(""),  # a constant
    r"ptrtoint \(": re.compile(r" to (?:<\d+ x )?i(?!(?:8|16|32|64)\b)\d+>?\)"),  # a constant of a width that no relocation has
    " = comdat ": re.compile(r" = comdat (?!any|nodeduplicate)"),
    r"cc(?: ?\d+|\(\d+\))? ": re.compile(
        r"\b(?:define|declare|call|invoke|callbr) (?:[a-z]\w* ){0,20}?"
        r"(?!(?:fast|cold|tail|swift|swifttail|preserve_most)cc )(?:cc ?\d+|[a-z]\w*cc(?:\(\d+\))?) "
    ),
}
#: The intrinsics that LLVM translates for every platform. Others are for one architecture, or some pass has to replace them first.
_ORDINARY = re.compile(
    r"llvm\.(?:abs|acos|addressofreturnaddress|asin|assume|atan2?|bitreverse|bswap|ceil|copysign|cosh?|ctlz|ctpop|cttz|dbg|debugtrap"
    r"|donothing|eh\.typeid|exp|exp10|exp2|expect|experimental\.(?:constrained|noalias)|fabs|floor|fma|fmuladd|fpto[su]i|frameaddress|frexp"
    r"|fsh[lr]|global_[cd]tors|invariant|is|launder|ldexp|lifetime|ll?rint|ll?round|load\.relative|log|log10|log2|masked"
    r"|max(?:imum)?(?:num)?|mem(?:cpy|move|set)\.p\d|min(?:imum)?(?:num)?|modf|nearbyint|objectsize|powi?|prefetch|ptrmask"
    r"|readcyclecounter|returnaddress|rint|round|roundeven|[su](?:add|cmp|max|min|mul|shl|sub)|sideeffect|sincos|sinh?|sqrt|stackrestore"
    r"|stacksave|strip|tanh?|threadlocal|trap|trunc|ubsantrap|va_copy|va_end|va_start|vector\.reduce)(?:\.|\Z)"
)


def try_in_child(code: str | bytes, machine: Machine | None, level: int = 0, limits: Limits = TRUSTED) -> None:
    """Optimize and emit code in a child process, and discard the result. Call it from the thread that waits for LLVM's thread.

    Args:
        code: LLVM assembly or bitcode.
        machine: the CPU and the features to compile for; None only parses the code.
        level: the level of LLVM's pipeline.
        limits: the limits of time and memory.

    Raises:
        CompileError: LLVM rejects the code, aborts the child, or exceeds a limit; or the child cannot be started. The message gives the
            reason.
    """
    target = None if machine is None else (machine.cpu, machine.features, level)
    settings = json.dumps([target, limits])
    data = code if isinstance(code, bytes) else code.encode("utf-8", "surrogateescape")
    try:
        completed = subprocess.run(
            isolated_command(_CHILD, [settings]), input=data, capture_output=True, timeout=limits.seconds * _PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"LLVM did not translate the code within {limits.seconds * _PATIENCE} seconds: simplify the code") from None
    except OSError as error:
        reraise_interrupt(error)
        raise CompileError(f"the process that tries the code cannot be started ({error.strerror or error}): try again") from error
    if completed.returncode:
        raise CompileError(f"LLVM cannot translate the code: {_failure_reason(completed, limits)}")


def _failure_reason(completed: subprocess.CompletedProcess[bytes], limits: Limits) -> str:
    """Return why the child process failed: a limit that it exceeded, the system's SIGKILL, the lines that it printed, or its exit status.

    Of a Python traceback, only the last line is returned, and of other text at most three lines.
    """
    text = completed.stderr.decode("utf-8", "replace").strip()
    # LLVM only warns about CPUs and features that it does not know ("ignoring feature").
    lines = [line for line in text.splitlines() if line.strip() and "ignoring" not in line]
    if completed.returncode == -_signal_number("SIGXCPU"):
        return f"the translation requires more than {limits.seconds} seconds of processor time"
    if completed.returncode == -_signal_number("SIGKILL") and not lines:
        return "the system ended the child process with SIGKILL: free memory, or simplify the code"
    if limits.memory is not None and any(sign in text for sign in ("bad_alloc", "out of memory", "MemoryError")):
        return f"the translation requires more than {limits.memory >> 20} MiB of memory"
    if lines and lines[0].startswith("Traceback"):
        lines = lines[-1:]  # the last line of a Python traceback names the exception
    return join_first(lines, 3, "; ") or f"the child process ended with status {completed.returncode}"


def _signal_number(name: str) -> int:
    """Return the number of a signal, or 0 if this platform does not have it."""
    import signal

    return int(getattr(signal, name, 0))


def is_rare(text: str, functions: Iterable[GlobalValue]) -> bool:
    """Return whether a printed module contains constructs that LLVM may be unable to translate for this platform.

    `functions` are the functions of the module. LLVM ends the process for calling conventions and garbage collectors that the platform
    lacks, for intrinsics of other platforms, and for constants that no relocation can express.
    """
    if any(re.search(sign, text) and pattern.search(text) for sign, pattern in _RARE.items()):
        return True
    intrinsics = architecture(platform_name()).intrinsics or "llvm.none."
    return any(
        function.name.startswith("llvm.") and not function.name.startswith(intrinsics) and not _ORDINARY.match(function.name)
        for function in functions
    )


def assembly_parts(text: str) -> str | None:
    """Return the part of a printed module whose assembly must be tried, or None if nothing needs a trial.

    The bodies of other functions are left out. A module that uses addresses inside functions (``blockaddress``) is returned unchanged.
    """
    if not has_assembly(text):
        return None
    chunks = text.split("\n}\n")
    doubtful = [" asm " in chunk and not all(_is_harmless(line) for line in chunk.split("\n") if " asm " in line) for chunk in chunks]
    if not has_module_assembly(text) and not any(doubtful):
        return None
    if "blockaddress(" in text:
        return text
    return "\n}\n".join([chunk if keep else _without_body(chunk) for chunk, keep in zip(chunks, doubtful, strict=True)])


def has_assembly(text: str) -> bool:
    """Return whether a printed module contains inline assembly or top-level assembly."""
    return " asm " in text


def has_module_assembly(text: str) -> bool:
    """Return whether a printed module contains top-level assembly."""
    return text.startswith("module asm") or "\nmodule asm" in text


def _without_body(chunk: str) -> str:
    """Return the text up to the end of a function, with an unreachable instruction as its body. Text without a function is unchanged."""
    start = chunk.rfind("\ndefine ") + 1
    if not start and not chunk.startswith("define "):
        return chunk
    return chunk[: chunk.index("\n", start)] + "\n  unreachable"


def _is_harmless(line: str) -> bool:
    """Return whether inline assembly cannot fail: it has no code, and at most `_MAX_REGISTERS` results and operands, of plain types."""
    match = _ASSEMBLY.search(line)
    if match is None or not _COMMENT.match(match[1]) or not _RESULT.search(line[: match.start()]):
        return False
    constraints = match[2].split(",") if match[2] else []
    operands = [part.strip() for part in match[3].rpartition(")")[0].split(", ")] if match[3][:1] != ")" else []
    registers = sum(not constraint.startswith("~") for constraint in constraints)
    plain = all(_CONSTRAINT.match(constraint) for constraint in constraints)
    return plain and registers <= _MAX_REGISTERS and all(_OPERAND.match(operand) for operand in operands)


def main() -> int:
    """Translate the code on standard input, with the target and the limits of the command line. Only parse it if the target is null.

    Return the exit status: 0, or 1 after printing LLVM's error.
    """
    target, limits = json.loads(sys.argv[1])
    data = sys.stdin.buffer.read()
    _set_limits(Limits(*limits))

    def translate(context: Any) -> None:
        """Parse, optimize and emit the code, as the parent process will.

        Raise `CompileError` if LLVM rejects the code, or `IncompatibleTargetError` if it is for another platform.
        """
        module = codegen.parse(codegen.plain_source(data), context)
        if target is None:
            return
        cpu, features, level = target
        codegen.check_triple(module)
        machine = codegen.target_machine(cpu, features, level)
        codegen.optimize(module, machine, level)
        str(module)  # printing can fail, too
        codegen.emit_object(module, machine)

    try:
        codegen.run(translate)
    except CompileError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _set_limits(limits: Limits) -> None:
    """Limit the processor time and the memory of this process, but never above the limits that it already has. Write no core file."""
    import resource

    for name, value in (("RLIMIT_CPU", limits.seconds), ("RLIMIT_AS", limits.memory), ("RLIMIT_CORE", 0)):
        if value is not None:
            limit = getattr(resource, name)  # by name, because type checkers know these limits only on some systems
            hard_limit = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (value if hard_limit == resource.RLIM_INFINITY else min(value, hard_limit), hard_limit))
