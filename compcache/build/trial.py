"""Compiles code that might abort the process in a child process first.

LLVM ends the process, or does not come back, for some code: inline assembly that does not assemble, CPU features that contradict
the triple, and inputs that were made to do so. The parent's side is `try_in_child`; `main` is the child's.

Inline assembly is the common case, and what of a module needs a trial for it is little: the functions that have any, with
their own attributes and registers, and assembly at the top of the module. `assembly_parts` cuts a module down to these. An empty
template with plain operands, by which C programs keep a compiler from optimizing, cannot fail; nor can a comment, by which they
mark places.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build import codegen
from compcache.build.ir_text import read_values
from compcache.errors import CompileError
from compcache.processes.detached import isolated_command

if TYPE_CHECKING:
    from compcache.targets.machine import Machine

__all__ = [
    "TRUSTED", "UNTRUSTED", "Limits", "assembly_parts", "functions_with_assembly", "has_assembly", "has_module_assembly", "main",
    "try_in_child",
]  # fmt: skip


class Limits(NamedTuple):
    """The limits of a trial: seconds of processor time, and bytes of memory (None: unlimited)."""

    seconds: int
    memory: int | None


TRUSTED = Limits(300, None)
#: Ten times what a million lines of C take, and what LLVM takes for modules of 100 MB of assembly.
UNTRUSTED = Limits(120, 4 << 30)

_CHILD = "import sys; from compcache.build.trial import main; sys.exit(main())"
#: Wall-clock time for each second of processor time: the machine may have other things to do.
_PATIENCE = 4
_ASSEMBLY = re.compile(r'\basm (?:(?:sideeffect|alignstack|inteldialect|unwind) )*"([^"]*)", "([^"]*)"\(([^\n]*)')
#: Only that: no escape, no operand, no number of a line, which has a meaning.
_COMMENT = re.compile(r"(?:#(?! *\d)[^\\$]*)?\Z")
_FEW = 3
_CONSTRAINT = re.compile(r"(?:[=+]?[&]?\*?(?:r|m|g|rm|imr|0|1|2|3)|~\{\w+\})\Z")
_OPERAND = re.compile(r"(?:i8|i16|i32|i64|ptr)\b")
_RESULT = re.compile(r"(?:void|i8|i16|i32|i64|ptr) \Z")


def try_in_child(code: str | bytes, machine: Machine, level: int, limits: Limits = TRUSTED) -> None:
    """Optimize and emit code in a child process; call it from the thread that waits for LLVM's.

    Raises:
        CompileError: LLVM ended the child, or a limit did; the message says how.
    """
    settings = json.dumps([machine.cpu, machine.features, level, limits])
    data = code if isinstance(code, bytes) else code.encode("utf-8", "surrogateescape")
    try:
        done = subprocess.run(
            isolated_command(_CHILD, [settings]), input=data, capture_output=True, timeout=limits.seconds * _PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"LLVM did not translate the code within {limits.seconds * _PATIENCE} seconds") from None
    if done.returncode:
        raise CompileError(f"LLVM cannot translate the code: {_reason(done, limits)}")


def _reason(done: subprocess.CompletedProcess[bytes], limits: Limits) -> str:
    text = done.stderr.decode("utf-8", "replace").strip()
    lines = [line for line in text.splitlines() if line.strip() and "ignoring" not in line]
    if done.returncode == -_signal("SIGXCPU") or (done.returncode == -_signal("SIGKILL") and not lines):
        return f"it takes more than {limits.seconds} seconds of processor time"
    if limits.memory is not None and any(sign in text for sign in ("bad_alloc", "out of memory", "MemoryError")):
        return f"it takes more than {limits.memory >> 20} MiB of memory"
    if lines and lines[0].startswith("Traceback"):
        lines = lines[-1:]  # a Python error: its last line names it
    return "; ".join(lines[:3]) or f"it ended with status {done.returncode}"


def _signal(name: str) -> int:
    import signal

    return int(getattr(signal, name, 0))


# ------------------------------------------------------------ inline assembly


def assembly_parts(text: str) -> str | None:
    """Return the part of a printed module whose inline assembly must be tried; None if nothing needs a trial.

    The bodies of other functions are left out. Code that takes addresses inside of functions is left whole.
    """
    if not has_assembly(text):
        return None
    at_the_top = has_module_assembly(text)
    chunks = text.split("\n}\n")
    doubtful = [" asm " in chunk and any(not _is_harmless(line) for line in _assembly_lines(chunk)) for chunk in chunks]
    if not at_the_top and not any(doubtful):
        return None
    if "blockaddress(" in text:
        return text
    return "\n}\n".join([chunk if keep else _without_body(chunk) for chunk, keep in zip(chunks, doubtful, strict=True)])


def has_assembly(text: str) -> bool:
    """Return whether a printed module has any inline assembly."""
    return " asm " in text or has_module_assembly(text)


def has_module_assembly(text: str) -> bool:
    """Return whether a printed module has assembly outside of its functions."""
    return text.startswith("module asm") or "\nmodule asm" in text


def functions_with_assembly(text: str) -> frozenset[str]:
    """Return the functions of a printed module that have inline assembly in them."""
    bodies = [chunk for chunk in text.split("\n}\n") if " asm " in chunk]
    return frozenset([value.name for body in bodies for value in read_values(body).functions if not value.is_declaration])


def _assembly_lines(chunk: str) -> list[str]:
    return [line for line in chunk.split("\n") if " asm " in line]


def _without_body(chunk: str) -> str:
    """Return a function with its body left out."""
    start = chunk.rfind("\ndefine ") + 1
    if not start and not chunk.startswith("define "):
        return chunk
    return chunk[: chunk.index("\n", start)] + "\n  unreachable"


def _is_harmless(line: str) -> bool:
    """Return whether an instruction has a template without code, and operands that always find registers."""
    match = _ASSEMBLY.search(line)
    if match is None or not _COMMENT.match(match[1]) or not _RESULT.search(line[: match.start()]):
        return False
    constraints = match[2].split(",") if match[2] else []
    operands = [part.strip() for part in match[3].rpartition(")")[0].split(", ")] if match[3][:1] != ")" else []
    registers = sum(not constraint.startswith("~") for constraint in constraints)
    plain = all(_CONSTRAINT.match(constraint) for constraint in constraints)
    return plain and registers <= _FEW and all(_OPERAND.match(operand) for operand in operands)


# --------------------------------------------------------------- in the child


def main() -> int:
    """Translate the code on standard input, with the CPU, features, level and limits of the command line; exit 0."""
    cpu, features, level, limits = json.loads(sys.argv[1])
    data = sys.stdin.buffer.read()
    _limit(Limits(*limits))

    def translate(context: Any) -> None:
        module = codegen.parse(codegen.plain_source(data), context)
        codegen.check_triple(module)
        machine = codegen.target_machine(cpu, features, level)
        codegen.optimize(module, machine, level)
        str(module)
        codegen.emit_object(module, machine)

    try:
        codegen.run(translate)
    except CompileError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _limit(limits: Limits) -> None:
    import resource

    for what, value in (("RLIMIT_CPU", limits.seconds), ("RLIMIT_AS", limits.memory), ("RLIMIT_CORE", 0)):
        if value is not None:
            kind = getattr(resource, what)
            most = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (value if most == resource.RLIM_INFINITY else min(value, most), most))


if __name__ == "__main__":
    sys.exit(main())
