"""Code that would end the process, or keep LLVM busy for ever: refused, or tried in a child process first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest
from cli_process import compcache as run_command
from helpers import adder, run_fresh

from compcache import Cache, CompileError, IncompatibleTargetError, InvalidNameError, ModuleSource
from compcache.build import trial
from compcache.build.ir_text import find_extreme_construct, read_values
from compcache.build.trial import assembly_parts
from compcache.content.visible import exported_names
from compcache.formats.host import platform_name

if TYPE_CHECKING:
    from pathlib import Path

NESTED = 5_000
GOOD = adder("f", 1)


def vector(elements: int) -> str:
    return f"define void @f(ptr %p) {{\n  %a = load <{elements} x i64>, ptr %p\n  store <{elements} x i64> %a, ptr %p\n  ret void\n}}\n"


#: What ended the process or took minutes, and what the error says.
EXTREMES = {
    "vector": (vector(1_000_000), "vector of 1000000 elements"),
    "integer": (GOOD.replace("i64", "i65536"), "integer of 65536 bits"),
    "alignment of a variable": ("@g = global i64 1, align 4294967296\n" + GOOD, "aligned to 4294967296 bytes"),
    "alignment of a function": (GOOD.replace(") {", ") align 4294967296 {"), "aligned to 4294967296 bytes"),
    "constants": (
        "@g = global i8 0\n@h = global ptr " + "getelementptr (i8, ptr " * NESTED + "@g" + ", i64 1)" * NESTED + "\n" + GOOD,
        "more than 1000 levels of nesting",
    ),
    "types": ("@g = global " + "[1 x " * NESTED + "i8" + "]" * NESTED + " zeroinitializer\n" + GOOD, "levels of nesting"),
    "named types": (
        "%t0 = type { i8 }\n" + "".join(f"%t{n} = type {{ %t{n - 1} }}\n" for n in range(1, NESTED)) + GOOD,
        "levels of nesting",
    ),
}


@pytest.mark.parametrize("kind", EXTREMES)
def test_what_the_text_shows_is_refused(cache: Cache, kind: str) -> None:
    text, message = EXTREMES[kind]
    started = time.monotonic()
    with pytest.raises(CompileError, match=message):
        cache.add_module(ModuleSource(text))
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("kind", ["vector", "alignment of a variable"])
def test_so_it_is_in_bitcode(cache: Cache, kind: str) -> None:
    text, message = EXTREMES[kind]
    with pytest.raises(CompileError, match=message):
        cache.add_module(ModuleSource(llvm.parse_assembly(text).as_bitcode()))


ORDINARY = [
    "define i64 @f(ptr %p) {\n  %x = load i64, ptr null, align 4294967296\n  ret i64 %x\n}\n",  # as LLVM itself writes it
    vector(64),
    GOOD.replace("i64", "i1024"),
    "@g = global i64 1, align 4096\n" + GOOD,
    '@g = constant [36 x i8] c"<99999 x i64> gc \\22 i99999 {{{{[[[[(((("\n' + GOOD,
    "%i99999 = type { i8 }\n" + GOOD,
    '@"a gc b" = global i8 0\n' + GOOD,
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_code_is_not_extreme(text: str) -> None:
    assert find_extreme_construct(text) is None


# ------------------------------------------------------------ rare constructs

CALL = "define i64 @f(i64 %x) {{\n  %r = call {0} @{1}\n  ret i64 %x\n}}\ndeclare {0} @{1}\n"
TAGGED = "@t = global {}\ndefine i64 @f(i64 %x) {{\n  %r = load volatile i8, ptr @t\n  ret i64 %x\n}}\n"
#: What ended the process in LLVM's code generator, and what its error says.
RARE = {
    "collector": (GOOD.replace(") {", ') gc "nope" {'), "unsupported GC: nope"),
    "collector without a printer": (GOOD.replace(") {", ') gc "erlang" {'), "no GCMetadataPrinter registered for GC: erlang"),
    "convention": (GOOD.replace("define ", "define dso_local anyregcc "), "AnyReg"),
    "numbered convention": (GOOD.replace("define ", "define cc 13 "), "AnyReg"),
    "convention of a call": (
        "define i64 @f(ptr %p) {\n  %r = tail call anyregcc i64 %p()\n  ret i64 %r\n}\n", "AnyReg|translate the code"
    ),
    "comdat": ("$f = comdat largest\n" + GOOD.replace(") {", ") comdat {"), "'f' cannot be lowered"),
    "intrinsic of a GPU": (
        CALL.format("i64", "llvm.nvvm.read.ptx.sreg.globaltimer()").replace("ret i64 %x", "ret i64 %r"),
        "Cannot select: intrinsic",
    ),
    "intrinsic for a pass": (CALL.format("i1", "llvm.experimental.widenable.condition()"), None),
    "constant": (TAGGED.format("i64 xor (i64 ptrtoint (ptr @f to i64), i64 1)"), "unsupported expression in static initializer"),
    "wide pointer": (TAGGED.format("i128 ptrtoint (ptr @f to i128)"), "unsupported expression in static initializer"),
    "wide pointer into a variable": (
        "@a = global [8 x i8] zeroinitializer\n" + TAGGED.format("i128 ptrtoint (ptr getelementptr (i8, ptr @a, i64 4) to i128)"),
        "unsupported expression in static initializer",
    ),
    "scalable vector": (
        ("define i64 @f(i64 %x) {\n  %v = insertelement <vscale x 2 x i64> zeroinitializer, i64 %x, i32 0\n"
        "  %r = extractelement <vscale x 2 x i64> %v, i32 0\n  ret i64 %r\n}\n"),
        None if platform_name().startswith("aarch64") else "scalable size",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", RARE)
def test_rare_constructs_are_tried_in_a_child(cache: Cache, kind: str) -> None:
    text, message = RARE[kind]
    printed = str(llvm.parse_assembly(text))
    assert trial.is_rare(printed, read_values(printed).functions)  # the code generator ends the process with these constructs
    if message is not None:
        with pytest.raises(CompileError, match=message):
            cache.add_module(ModuleSource(text if kind != "collector" else llvm.parse_assembly(text).as_bitcode()))


def test_rare_constructs_are_compiled_after_a_trial(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    from compcache.translation import translate

    tried: list[object] = []
    monkeypatch.setattr(translate, "try_in_child", lambda *arguments: tried.append(arguments))
    cache.add_module(ModuleSource(GOOD.replace(") {", ') gc "statepoint-example" {')))
    assert tried
    assert cache.get_target("f")(1) == 2


#: LLVM aborts when it reads this intrinsic in the form of an older version.
COROUTINE = """
declare i1 @llvm.coro.end(ptr, i1)
define i1 @f(ptr %p) {
  %r = call i1 @llvm.coro.end(ptr %p, i1 false)
  ret i1 %r
}
"""


@pytest.mark.parametrize("addition", ["add_module", "add_modules", "group", "compile"])
def test_coroutines_of_another_version_are_refused(directory: Path, addition: str) -> None:
    call = {
        "add_module": "cache.add_module(source)",
        "add_modules": "cache.add_modules([source])",
        "group": "cache.add_modules([source], group='g')",
        "compile": "cache.compile(source)",
    }[addition]
    message = run_fresh(
        directory,
        f"""
from compcache import Cache, CompcacheError, ModuleSource
cache, source = Cache(directory), ModuleSource({COROUTINE!r})
try:
    {call}
    result = ""
except CompcacheError as error:
    result = str(error)
""",
    )
    assert "the code contains coroutines that LLVM" in message


def test_another_process_looks_for_the_functions_in_untrusted_code(directory: Path) -> None:
    """LLVM has to parse code with aliases to find its functions."""
    source = COROUTINE + "@g = alias i1 (ptr), ptr @f\n"
    message = run_fresh(
        directory,
        f"""
from compcache import Cache, CompileError, ModuleSource
try:
    Cache(directory).compile(ModuleSource({source!r}, untrusted=True))
except CompileError as error:
    result = str(error)
""",
    )
    assert message.startswith("LLVM cannot translate the code")


COMMON = [
    GOOD,
    *(GOOD.replace("define ", f"define internal {word} ") for word in ("fastcc", "coldcc", "swiftcc", "tailcc")),
    "$f = comdat any\n" + GOOD.replace(") {", ") comdat {"),
    "define i64 @f(i64 %acc) {\n  %cc = add i64 %acc, 1\n  %c = call i64 @cc1 (i64 %cc)\n  ret i64 %c\n}\ndeclare i64 @cc1(i64)\n",
    TAGGED.format("i64 add (i64 ptrtoint (ptr @f to i64), i64 7)"),
    "".join(f"declare double @llvm.{name}.f64(double)\n" for name in ("sqrt", "exp", "fabs", "sin", "log10", "trunc"))
    + "declare { i64, i1 } @llvm.sadd.with.overflow.i64(i64, i64)\ndeclare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n"
    + "declare void @llvm.assume(i1)\ndeclare void @llvm.trap()\ndeclare i64 @llvm.ctpop.i64(i64)\n"
    + "declare void @llvm.lifetime.start.p0(ptr)\ndeclare i64 @llvm.vector.reduce.add.v4i64(<4 x i64>)\n" + GOOD,
]  # fmt: skip


@pytest.mark.parametrize("text", COMMON)
def test_common_constructs_need_no_trial(text: str) -> None:
    printed = str(llvm.parse_assembly(text))
    assert not trial.is_rare(printed, read_values(printed).functions)


@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="a calling convention of x86")
def test_a_symbol_that_llvm_changes_is_noticed(cache: Cache) -> None:
    """LLVM appends the size of the parameters to the names of such functions."""
    text = GOOD.replace("define ", "define x86_vectorcallcc ")
    with pytest.raises(CompileError, match=r"no symbol 'f'.*calling conventions \(vectorcall\)"):
        cache.add_module(ModuleSource(text))
    caller = "define i64 @g(i64 %x) {\n  %r = call x86_vectorcallcc i64 @f(i64 %x)\n  ret i64 %r\n}\n"
    cache.add_module(ModuleSource(text.replace("i64 @f(i64 %x)", "i64 @f(i64 %x) noinline") + caller, {"g": "i64(i64)"}))
    assert cache.get_target("g")(1) == 2


def test_names_that_llvm_must_not_change_are_symbols(cache: Cache) -> None:
    """Rust marks the names of C++ functions so, for example."""
    text = GOOD.replace("@f", '@"\\01f"').replace(") {", ") noinline {") + (
        'declare i64 @"\\01labs"(i64)\ndefine i64 @g(i64 %x) {\n  %a = call i64 @"\\01f"(i64 %x)\n  %r = call i64 @"\\01labs"(i64 %a)\n'
        "  ret i64 %r\n}\n"
    )
    cache.add_module(ModuleSource(text, {"f": "i64(i64)", "g": "i64(i64)"}))
    assert (cache.get_target("f")(1), cache.get_target("g")(-8)) == (2, 7)
    kernels = cache.compile(llvm.parse_assembly(text).as_bitcode())
    assert (kernels.f(1), kernels.g(-8)) == (2, 7)
    assert exported_names(text) == exported_names(llvm.parse_assembly(text).as_bitcode()) == ("f", "g")


@pytest.mark.parametrize("value", ["define i64 {}(i64 %x) {{\n  ret i64 %x\n}}\n", "{} = global i64 1\n", "declare i64 {}(i64)\n"])
def test_a_symbol_that_is_not_utf_8_is_refused(cache: Cache, value: str) -> None:
    source = ModuleSource(value.format(r'@"\FF\FE"') + GOOD, {"f": "i64(i64)"})
    with pytest.raises(InvalidNameError, match="a symbol must be encodable as UTF-8"):
        cache.add_module(source)
    inside = r'define internal i64 @"\FF"(i64 %x) noinline {' + "\n  ret i64 %x\n}\n"
    cache.add_module(ModuleSource(inside + GOOD.replace("ret i64 %r", r'%s = call i64 @"\FF"(i64 %r)' + "\n  ret i64 %s")))
    assert cache.get_target("f")(1) == 2


def test_code_for_the_other_byte_order_is_refused(cache: Cache) -> None:
    with pytest.raises(IncompatibleTargetError, match="big-endian"):
        cache.add_module(ModuleSource('target datalayout = "E-m:e-i64:64"\n' + GOOD))


# ------------------------------------------------------------------ in a child

#: Code that no reading of the text finds out: a chain of constants through variables, far too many instructions, ...
SLOW = (
    "define void @f(ptr %p) {\n"
    + "".join(
        f"  %a{n} = load <4096 x double>, ptr %p\n  %b{n} = fdiv <4096 x double> %a{n}, %a{n}\n"
        f"  %c{n} = call <4096 x double> @llvm.pow.v4096f64(<4096 x double> %a{n}, <4096 x double> %b{n})\n"
        f"  store volatile <4096 x double> %c{n}, ptr %p\n"
        for n in range(40)
    )
    + "  ret void\n}\ndeclare <4096 x double> @llvm.pow.v4096f64(<4096 x double>, <4096 x double>)\n"
)
LARGE = '@g = constant [8589934592 x i8] zeroinitializer, section ".rodata"\ndefine ptr @f() {\n  ret ptr @g\n}\n'
ABORTS = 'define void @f() "target-cpu"="generic" {\n  call void asm sideeffect "this is no instruction", ""()\n  ret void\n}\n'


@pytest.mark.slow
@pytest.mark.parametrize(("text", "message"), [(SLOW, "seconds"), (LARGE, "memory|seconds"), (ABORTS, "this is no instruction")])
def test_what_exceeds_the_limits_costs_an_error(cache: Cache, text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from compcache import linker

    monkeypatch.setattr(linker, "UNTRUSTED", trial.Limits(3, 1 << 30))
    with pytest.raises(CompileError, match=message):
        cache.add_module(ModuleSource(text, untrusted=True))
    assert not cache.has("f")


def test_a_killed_trial_is_not_taken_for_a_long_one(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_CHILD", "import os; os.kill(os.getpid(), 9)")  # as systems do that lack memory
    with pytest.raises(CompileError, match="SIGKILL: free memory"):
        cache.add_module(ModuleSource(GOOD, untrusted=True))


@pytest.mark.slow
@pytest.mark.parametrize("source", ["text", "bitcode", "module"])
def test_good_code_passes_its_trial(cache: Cache, source: str) -> None:
    parsed = llvm.parse_assembly(GOOD)
    cache.add_module(ModuleSource({"text": GOOD, "bitcode": parsed.as_bitcode(), "module": parsed}[source], untrusted=True))
    assert cache.get_target("f")(1) == 2


@pytest.mark.slow
def test_the_command_line_survives_what_is_untrusted(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.ll").write_text(ABORTS.replace("sideeffect", "sideeffect alignstack"), encoding="utf-8")
    (tmp_path / "good.ll").write_text(adder("g", 1), encoding="utf-8")
    done = run_command("--dir", directory, "add", "--untrusted", tmp_path / "bad.ll", tmp_path / "good.ll")
    assert done.status == 2
    assert "this is no instruction" in done.err
    assert run_fresh(directory, "from compcache import Cache\nresult = Cache(directory).get_target('g')(1)") == 2


# ------------------------------------------------------------- inline assembly

BARRIER = '  %b = call i64 asm sideeffect "", "=r,0,~{dirflag},~{fpsr},~{flags}"(i64 %x)\n'


def with_assembly(*lines: str) -> str:
    return str(llvm.parse_assembly("define i64 @f(i64 %x) {\n" + "".join(lines) + "  ret i64 %x\n}\n" + adder("plain", 1)))


def test_barriers_need_no_trial() -> None:
    assert assembly_parts(with_assembly(BARRIER)) is None
    memory = '  call void asm sideeffect "", "~{memory},~{dirflag},~{fpsr},~{flags}"()\n'
    assert assembly_parts(with_assembly(memory)) is None
    comments = [f'  call void asm sideeffect "{text}", "~{{memory}}"()\n' for text in ("#begin {kernel}", "# end: 1X4!", "#")]
    assert assembly_parts(with_assembly(*comments)) is None
    assert assembly_parts(str(llvm.parse_assembly(GOOD))) is None


@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names features of x86-64")
def test_modes_of_64_bit_code_that_are_written_down_need_no_trial(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zig names all features of all functions, those that are off as well."""
    monkeypatch.setattr(trial, "subprocess", None)
    features = "+64bit-mode,-16bit-mode,-32bit-mode,-soft-float,-x32"
    attribute = f'"target-features"="{features}"'
    cache.add_module(ModuleSource(GOOD.replace("{", f"{attribute} {{", 1)))
    assert cache.get_target("f")(1) == 2
    with pytest.raises(AttributeError):
        cache.add_module(ModuleSource(adder("g", 1).replace("{", '"target-features"="+soft-float" {', 1)))


@pytest.mark.parametrize(
    "line",
    [
        '  call void asm sideeffect "nop", ""()\n',
        '  call void asm sideeffect "#comment\\0Abogus", ""()\n',
        '  call void asm sideeffect "# 1 file", ""()\n',
        '  %b = call i64 asm "#$7", "=r,0"(i64 %x)\n',
        '  %b = call i64 asm "", "=q,{nosuch}"(i64 %x)\n',
        '  %b = call i128 asm "", "=r"()\n',
        '  %b = call i64 asm "", "=r,i"(i64 %x)\n',
        '  %b = call i64 asm "", "=r,r,r,r,r,r,r"(i64 %x, i64 1, i64 2, i64 3, i64 4, i64 5)\n',
    ],
)
def test_other_assembly_is_tried_without_the_functions_that_have_none(line: str) -> None:
    parts = assembly_parts(with_assembly(line))
    assert parts is not None
    module = llvm.parse_assembly(parts)
    module.verify()
    plain = next(f for f in module.functions if f.name == "plain")
    assert [str(i).strip() for block in plain.blocks for i in block.instructions] == ["unreachable"]
    assert " asm " in str(next(f for f in module.functions if f.name == "f"))


def test_code_with_addresses_of_blocks_is_tried_whole() -> None:
    text = 'module asm ".globl x"\n@t = global ptr blockaddress(@f, %b)\ndefine void @f() {\n  br label %b\nb:\n  ret void\n}\n'
    parts = assembly_parts(str(llvm.parse_assembly(text)))
    assert parts is not None
    llvm.parse_assembly(parts)


@pytest.mark.parametrize(
    "line",
    ['  call void asm sideeffect "bogus", ""()\n', '  %b = call i128 asm "", "={ax}"()\n', '  call void asm "", "{nosuch}"(i64 %x)\n'],
)
def test_assembly_that_does_not_assemble_is_still_an_error(cache: Cache, line: str) -> None:
    with pytest.raises(CompileError):
        cache.add_module(ModuleSource("define i64 @f(i64 %x) {\n" + line + "  ret i64 %x\n}\n"))


def test_the_barrier_itself_still_works(cache: Cache) -> None:
    comment = '  call void asm sideeffect "#begin {kernel} (1X4); bogus | more", ""()\n'
    cache.add_module(ModuleSource(with_assembly(BARRIER, comment)))
    assert cache.get_target("f")(5) == 5
