"""Entry points that are put together of patterns do what LLVM makes of their assembly. (On AArch64: `tests/peer/test_aarch64.py`.)"""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from entry_programs import differences
from helpers import run_fresh
from llvmlite import binding as llvm

from compcache import Cache, ModuleSource
from compcache.build.entry_code import object_file
from compcache.build.entry_code.aarch64 import ArmAssembler
from compcache.build.entry_code.x86_64 import X86Assembler
from compcache.build.entry_points import EntryPoint
from compcache.images.elf.parts import read_header, read_sections
from compcache.translation import emission

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from compcache.build.entry_code.assembler import Assembler

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="LLVM compiles all entry points")

#: How deep the stack is, as an unwinder sees it.
DEPTH = """
declare i32 @backtrace(ptr, i32)
define i32 @depth(i32 %a, double %b) {
  %room = alloca [512 x ptr]
  %count = call i32 @backtrace(ptr %room, i32 512)
  ret i32 %count
}
"""


def plain(*types: str, signature: str = "", convention: str = "") -> EntryPoint:
    names = [{"double": "f64", "float": "f32", "i1": "bool", "ptr": "object"}.get(t, t) for t in types]
    return EntryPoint(signature or f"i64({', '.join(names)})", types, "i64", (False,) * len(types), convention, nogil=False, may_raise=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [36, 71])
def test_calls_end_as_where_llvm_has_compiled_the_entry_point(tmp_path: Path, seed: int) -> None:
    """Results, errors and references that are kept, of right and wrong arguments of all types."""
    good, unequal = differences(str(tmp_path), seed, count=40, calls=12)
    assert good > 100
    assert not unequal, (seed, unequal[:3])


@pytest.mark.slow
def test_unwinding_passes_through(tmp_path: Path) -> None:
    """In a process of its own: who is told nonsense of a frame may end it."""
    script = f"""
    from compcache import Cache, ModuleSource
    from compcache.build.entry_code import object_file
    from compcache.translation import emission
    result = []
    for number, way in enumerate((object_file.entry_object, lambda points: (b"", tuple(points)))):
        object_file.entry_object = way
        emission._objects_of.cache_clear()
        with Cache(f"{tmp_path}/{{number}}") as cache:
            cache.add_module(ModuleSource({DEPTH!r}))
            result.append(cache.get_target("depth")(1, 2.0))
    """
    by_patterns, by_llvm = run_fresh(tmp_path, script)
    assert by_patterns == by_llvm
    assert by_patterns > 4


@pytest.mark.parametrize("machine", [62, 183])
def test_the_object_is_what_tools_expect(tmp_path: Path, machine: int) -> None:
    """Disassembled it is code without a gap, and its frames cover it."""
    points = [plain("i64"), plain("i8", "double", "i1"), plain(*["float"] * 12, *["i16"] * 12)]
    data, others = object_file.entry_object(points, machine)
    assert not others
    assert read_header(data).machine == machine
    (tmp_path / "o").write_bytes(data)
    try:
        shown = subprocess.run(["readelf", "-sW", "--debug-dump=frames", tmp_path / "o"], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("no readelf")
    sizes = sorted(int(line.split()[2]) for line in shown.stdout.splitlines() if "compcache.entry." in line)
    ranges = [line.rpartition("pc=")[2].split("..") for line in shown.stdout.splitlines() if "FDE" in line]
    assert sorted(int(end, 16) - int(start, 16) for start, end in ranges) == sizes
    assert "arning" not in shown.stderr


def test_what_is_not_made_here_is_left_to_llvm() -> None:
    """Calling conventions of their own, frames of more than 2,032 bytes, other architectures."""
    own, many, ordinary = plain("i64", convention="fastcc"), plain(*["i64"] * 300), plain("i64")
    data, others = object_file.entry_object([own, ordinary, many])
    assert others == (own, many)
    assert data
    assert object_file.entry_object([ordinary], 243) == (b"", (ordinary,))


#: Functions without arguments that are converted: those whose conversion may fail ask in any case.
RAISING = """
declare double @llvm.sqrt.f64(double)
declare void @PyErr_SetNone(ptr)
@PyExc_KeyError = external global ptr
define double @pure() {
  %y = call double @llvm.sqrt.f64(double 2.0)
  ret double %y
}
define i64 @reads(ptr %p, i64 %n) {
  %x = load i64, ptr %p
  ret i64 %x
}
define i64 @counts() {
  %x = load i64, ptr @PyExc_KeyError
  ret i64 %x
}
define i64 @raises() {
  %e = load ptr, ptr @PyExc_KeyError
  call void @PyErr_SetNone(ptr %e)
  ret i64 0
}
define i64 @errs() #0 {
  %x = call i64 @raises()
  ret i64 %x
}
define i64 @unknown(ptr %callback) {
  %x = call i64 %callback()
  ret i64 %x
}
attributes #0 = { noinline memory(argmem: read, inaccessiblemem: readwrite) }
"""


@pytest.mark.parametrize("by_patterns", [True, False])
def test_only_functions_that_may_raise_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_patterns: bool) -> None:
    """The entry point of a function that touches the memory of its arguments alone does not ask for an exception."""
    asked = {}
    if not by_patterns:
        monkeypatch.setattr(object_file, "entry_object", lambda points: (b"", tuple(points)))
    emission._objects_of.cache_clear()
    with Cache(tmp_path / "c") as cache:
        for name in ("pure", "reads", "counts", "raises", "errs", "unknown"):
            functions = {name: "i64(const i64[:])" if name == "reads" else None}
            module = cache.add_module(ModuleSource(RAISING, functions=functions))
            asked[name] = b"PyErr_Occurred" in next((tmp_path / "c").rglob(f"{module}*")).read_bytes()
        with pytest.raises(KeyError):
            cache.get_target("raises")()
    assert asked == {"pure": False, "reads": False, "counts": True, "raises": True, "errs": True, "unknown": True}


@pytest.mark.slow
@pytest.mark.parametrize("machine", [62, 183])
def test_the_longest_code_has_jumps_that_reach(machine: int) -> None:
    """As many arguments of a kind as there is room for."""
    for kind in ("i64", "i8", "double", "float", "i1", "ptr"):
        counts = [count for count in range(120, 132) if object_file.entry_object([plain(*[kind] * count)], machine)[0]]
        assert 120 in counts
        assert 131 not in counts


def test_llvm_is_not_asked_for_what_is_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It emits the module, and no entry point."""
    emitted: list[Any] = []
    real = llvm.TargetMachine.emit_object

    def emit_object(machine: Any, module: Any) -> Any:
        emitted.append(module)
        return real(machine, module)

    monkeypatch.setattr(llvm.TargetMachine, "emit_object", emit_object)
    emission._objects_of.cache_clear()
    with Cache(tmp_path / "c") as cache:
        cache.add_module(ModuleSource("define i64 @f(i64 %x, i16 %y, float %z) {\n  ret i64 %x\n}\n"))
        assert cache.get_target("f")(5, 1, 2.0) == 5
    assert len(emitted) == 1


#: Operations, and what they are in the assembly of both architectures. (Jumps and what is relocated have their places behind them.)
ENCODED: tuple[tuple[Callable[[Any], None], str, str], ...] = (
    (lambda a: a.load(a.arguments[0], a.items, 0), "movq (%r12), %rdi", "ldr x0, [x20]"),
    (lambda a: a.load(a.arguments[4], a.items, 800), "movq 800(%r12), %r8", "ldr x4, [x20, #800]"),
    (lambda a: a.load(a.scratch, a.callee, 8), "movq 8(%rbx), %r10", "ldr x9, [x19, #8]"),
    (lambda a: a.load(a.scratch, a.scratch, 48), "movq 48(%r10), %r10", "ldr x9, [x9, #48]"),
    (lambda a: a.load(a.other_scratch, a.frame, 1000, half=True), "movl 1000(%rsp), %r11d", "ldr w10, [sp, #1000]"),
    (lambda a: a.store(a.result, 16), "movq %rax, 16(%rsp)", "str x0, [sp, #16]"),
    (lambda a: a.store(a.scratch, 2024), "movq %r10, 2024(%rsp)", "str x9, [sp, #2024]"),
    (lambda a: a.load_address(a.arguments[3], 1000), "leaq 1000(%rsp), %rcx", "add x3, sp, #1000"),
    (lambda a: a.load_number(a.arguments[1], 7), "movl $7, %esi", "mov x1, #7"),
    (lambda a: a.load_number(a.arguments[4], 0x16608), "movl $0x16608, %r8d", "movz x4, #0x6608\nmovk x4, #1, lsl #16"),
    (lambda a: a.load_number(a.scratch, 3 << 62 | 5), "movabsq $0xc000000000000005, %r10", "movz x9, #5\nmovk x9, #0xc000, lsl #48"),
    (lambda a: a.move(a.arguments[0], a.callee), "movq %rbx, %rdi", "mov x0, x19"),
    (lambda a: a.call_register(a.scratch), "callq *%r10", "blr x9"),
    (lambda a: a.extend(a.scratch, a.result, 1, signed=True), "movsbq %al, %r10", "sxtb x9, w0"),
    (lambda a: a.extend(a.scratch, a.result, 2, signed=True), "movswq %ax, %r10", "sxth x9, w0"),
    (lambda a: a.extend(a.scratch, a.result, 4, signed=True), "movslq %eax, %r10", "sxtw x9, w0"),
    (lambda a: a.extend(a.arguments[0], a.result, 1, signed=False), "movzbq %al, %rdi", "ubfx x0, x0, #0, #8"),
    (lambda a: a.extend(a.arguments[0], a.result, 2, signed=False), "movzwq %ax, %rdi", "ubfx x0, x0, #0, #16"),
    (lambda a: a.set_truth(a.result, a.result), "testl %eax, %eax\n.byte 0x40\nsetne %al\nmovzbq %al, %rax", "cmp w0, #0\ncset w0, ne"),
    (lambda a: a.keep_low_bit(a.arguments[0]), "andq $1, %rdi", "and x0, x0, #1"),
    (lambda a: a.shift_right(a.scratch, 3), "shrq $3, %r10", "lsr x9, x9, #3"),
    (lambda a: a.clear_top_bit(a.arguments[2]), "btrq $63, %rdx", "and x2, x2, #0x7fffffffffffffff"),
    (lambda a: a.load_float(7, 16, 8), "movsd 16(%rsp), %xmm7", "ldr d7, [sp, #16]"),
    (lambda a: a.load_float(1, 200, 4), "movss 200(%rsp), %xmm1", "ldr s1, [sp, #200]"),
    (lambda a: a.store_float(0, 24, 8), "movsd %xmm0, 24(%rsp)", "str d0, [sp, #24]"),
    (lambda a: a.store_float(0, 24, 4), "movss %xmm0, 24(%rsp)", "str s0, [sp, #24]"),
    (lambda a: a.convert_float(to=4), "cvtsd2ss %xmm0, %xmm0", "fcvt s0, d0"),
    (lambda a: a.convert_float(to=8), "cvtss2sd %xmm0, %xmm0", "fcvt d0, s0"),
    (lambda a: a.copy_float_bits(a.scratch), "movq %xmm0, %r10", "fmov x9, d0"),
    (lambda a: a.leave(), "movq -16(%rbp), %rbx\nmovq -8(%rbp), %r12\nleave\nret",
     "mov sp, x29\nldp x19, x20, [sp, #16]\nldp x29, x30, [sp], #32\nret"),
    (lambda a: a.enter(), "pushq %rbp\nmovq %rsp, %rbp\npushq %r12\npushq %rbx\nsubq $1040, %rsp\nmovq %rdi, %rbx\nmovq %rsi, %r12",
     "stp x29, x30, [sp, #-32]!\nmov x29, sp\nstp x19, x20, [sp, #16]\nsub sp, sp, #1040\nmov x19, x0\nmov x20, x1"),
)  # fmt: skip
#: The same with jumps back to the start.
JUMPS: tuple[tuple[Callable[[Any, int], None], str, str], ...] = (
    (lambda a, at: a.jump(at), "{at}jmp 0b", "b 0b"),
    (lambda a, at: a.jump_if_zero(a.result, at), "testq %rax, %rax\n{at}je 0b", "cbz x0, 0b"),
    (lambda a, at: a.jump_if_zero(a.result, at, half=True), "testl %eax, %eax\n{at}je 0b", "cbz w0, 0b"),
    (lambda a, at: a.jump_if_not_zero(a.scratch, at), "testq %r10, %r10\n{at}jne 0b", "cbnz x9, 0b"),
    (lambda a, at: a.jump_if_not_zero(a.scratch, at, half=True), "testl %r10d, %r10d\n{at}jne 0b", "cbnz w9, 0b"),
    (lambda a, at: a.jump_if_negative(a.result, at), "testl %eax, %eax\n{at}js 0b", "tbnz w0, #31, 0b"),
    (lambda a, at: a.jump_if_minus_one(a.result, at), "cmpq $-1, %rax\n{at}je 0b", "cmn x0, #1\nb.eq 0b"),
    (lambda a, at: a.jump_if_equal(a.scratch, a.other_scratch, at), "cmpq %r11, %r10\n{at}je 0b", "cmp x9, x10\nb.eq 0b"),
    (lambda a, at: a.jump_if_different(a.scratch, a.result, at), "cmpq %rax, %r10\n{at}jne 0b", "cmp x9, x0\nb.ne 0b"),
)


def assembled(text: str, triple: str, directory: Path) -> bytes:
    """What an assembler makes of it."""
    if importlib.util.find_spec("ziglang") is None:  # which is not imported: who looks for linkers would find this one
        pytest.skip("ziglang is not installed")
    source, made_of_it = directory / "source.s", directory / "object.o"
    source.write_text(f".text\n{text}\n")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", triple, "-c", str(source), "-o", str(made_of_it)]
    subprocess.run(command, check=True, env={**os.environ, "ZIG_LOCAL_CACHE_DIR": str(directory), "ZIG_GLOBAL_CACHE_DIR": str(directory)})
    data = made_of_it.read_bytes()
    section = max(read_sections(data, 1), key=lambda section: section.flags & 4)
    return data[section.offset : section.offset + section.size]


@pytest.mark.parametrize(("machine", "triple"), [(X86Assembler, "x86_64-linux"), (ArmAssembler, "aarch64-linux")])
def test_operations_are_encoded_as_by_an_assembler(tmp_path: Path, machine: type[Assembler], triple: str) -> None:
    """All of them together, so that one file is assembled."""
    number = machine is ArmAssembler
    code = machine()
    back = code.new_label()
    expected = ["0:"]
    code.place(back)
    for jump, *texts in JUMPS:
        jump(code, back)
        expected.append(texts[number].replace("{at}", "{disp32} "))
    for write, *texts in ENCODED:
        write(code)
        expected.append(texts[number])
    assert code.finish(1040).code.hex(" ") == assembled("\n".join(expected), triple, tmp_path).hex(" ")
