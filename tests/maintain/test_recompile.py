"""The code that is kept beside an image is the code that the image was made of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller, module_file

from compcache import Cache, ModuleSource
from compcache.build.kept_code import read_code
from compcache.formats.footer import FOOTER_SIZE, decode_footer, encode_container

if TYPE_CHECKING:
    from pathlib import Path


def with_code_of(directory: Path, module_id: str, other_id: str) -> str:
    """Publish a module with the kept code of another one."""
    first, second = (module_file(directory, each).read_bytes() for each in (module_id, other_id))
    f, s = (decode_footer(data[-FOOTER_SIZE:], len(data)) for data in (first, second))
    at = s.image + s.records + s.graph
    image, records, graph = first[: f.image], first[f.image :][: f.records], first[f.image + f.records :][: f.graph]
    bitcode, notes = second[at : at + s.bitcode], first[f.content :][: f.notes]
    made, parts = encode_container(image, records, graph, bitcode, notes, None)
    path = module_file(directory, made.hex())
    path.parent.mkdir(exist_ok=True, mode=0o700)
    path.write_bytes(b"".join(parts))
    path.chmod(0o600)
    return made.hex()


#: Code that uses what linking fills in: a slot, a variable, a native function, a constant in memory, a constructor.
RELOCATED = """
@state = internal global i64 3
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @start, ptr null }]
declare i64 @leaf(i64)
declare double @cos(double)
define internal void @start() {
  store volatile i64 CONSTANT, ptr @state
  ret void
}
define i64 @top(i64 %x) {
  %a = load volatile i64, ptr @state
  %b = call i64 @leaf(i64 %x)
  %c = sitofp i64 %b to double
  %d = call double @cos(double %c)
  %e = fmul double %d, 4.25
  %f = fptosi double %e to i64
  %g = add i64 %a, %f
  ret i64 %g
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_machine_code_is_compared_but_for_what_linking_fills_in(cache: Cache, directory: Path, level: int) -> None:
    cache.add_module(ModuleSource(adder("leaf", 1)))
    sources = [ModuleSource(RELOCATED.replace("CONSTANT", n), optimize=level) for n in ("1000", "2000")]
    modules = [cache.add_module(source) for source in sources]
    report = cache.check(recompile=True)
    assert report.findings == ()
    assert {step.name: step.numbers for step in report.steps}["code"] == {"recompiled": 3, "compared": 3}
    wrong = with_code_of(directory, *modules)
    damaged = [finding for finding in cache.check(recompile=True).findings if finding.kind == "damaged"]
    assert [finding.subject for finding in damaged] == [wrong]
    assert "gives different machine code for 'start'" in damaged[0].message


#: A loop of which LLVM makes other instructions where its values are used in another order, which bitcode does not say.
MIXER = """
define i64 @mix(ptr %data, i64 %n, i64 %seed) {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %h = phi i64 [ %seed, %entry ], [ %mixed, %loop ]
  %at = getelementptr inbounds i8, ptr %data, i64 %i
  %byte = load i8, ptr %at
  %wide = zext i8 %byte to i64
  %both = xor i64 %h, %wide
  %product = mul i64 %both, 1099511628211
  %high = lshr i64 %product, 47
  %low = shl i64 %product, 17
  %turned = or i64 %low, %high
  %mixed = add i64 %turned, %i
  %next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  %result = phi i64 [ %seed, %entry ], [ %mixed, %loop ]
  ret i64 %result
}
"""


#: A loop with a branch, which LLVM's code generator arranges in another way at its highest level.
BRANCHING = """
define i64 @steps(i64 %start) {
entry:
  br label %loop
loop:
  %n = phi i64 [ %start, %entry ], [ %following, %latch ]
  %count = phi i64 [ 0, %entry ], [ %next, %latch ]
  %rest = urem i64 %n, 4
  switch i64 %rest, label %up [
    i64 0, label %down
    i64 2, label %aside
  ]
up:
  %triple = mul i64 %n, 3
  %larger = add i64 %triple, 1
  br label %latch
down:
  %quarter = lshr i64 %n, 2
  br label %latch
aside:
  %other = xor i64 %n, 5
  br label %latch
latch:
  %following = phi i64 [ %larger, %up ], [ %quarter, %down ], [ %other, %aside ]
  %next = add nuw nsw i64 %count, 1
  %small = icmp ule i64 %following, 1
  %long = icmp ugt i64 %next, 500
  %stop = or i1 %small, %long
  br i1 %stop, label %done, label %loop
done:
  %both = add i64 %next, %following
  ret i64 %both
}
"""


def test_the_assembly_that_is_shown_is_that_of_the_image(cache: Cache) -> None:
    shown = {}
    for level in (2, 3):
        module_id = cache.add_module(ModuleSource(BRANCHING, optimize=level))
        code = read_code(cache._store, module_id)
        if code.assembly(2) == code.assembly(3):
            pytest.skip("this LLVM arranges the loop alike")
        assert code.level() == level
        shown[level] = cache.asm(cache.module(module_id).functions[0][0], module_id=module_id, whole_module=True)
        assert shown[level] == code.assembly(level).strip()


@pytest.mark.parametrize("level", [1, 2, 3])
def test_an_image_is_made_of_the_code_that_is_kept(cache: Cache, level: int) -> None:
    cache.add_module(ModuleSource(MIXER, optimize=level))
    report = cache.check(recompile=True)
    assert report.findings == ()
    assert {step.name: step.numbers for step in report.steps}["code"] == {"recompiled": 1, "compared": 1}


#: A table of entries in a section, between the bounds that a linker defines, and a function in assembly that jumps to another one.
IN_THE_IMAGE = """
module asm ".text"
module asm ".globl jumps"
module asm "jumps: jmp target"
@entry = internal global i64 4, section "own_table"
@llvm.used = appending global [1 x ptr] [ptr @entry], section "llvm.metadata"
@__start_own_table = external hidden global i64
declare i64 @jumps(i64)
define i64 @target(i64 %x) {
  %r = add i64 %x, 1
  ret i64 %r
}
define i64 @first(i64 %x) {
  %value = load i64, ptr @__start_own_table
  %r = call i64 @jumps(i64 %value)
  ret i64 %r
}
"""


def test_symbols_of_the_linker_and_of_assembly_are_no_damage(cache: Cache) -> None:
    cache.add_module(ModuleSource(IN_THE_IMAGE))
    assert cache.get_target("first")(0) == 5
    report = cache.check(recompile=True)
    assert report.findings == ()
    assert {step.name: step.numbers for step in report.steps}["code"] == {"recompiled": 1, "compared": 1}


@pytest.mark.parametrize("names", [(), ("add", "other")], ids=["fewer", "more"])
def test_former_versions_recorded_other_uses_of_assembly(cache: Cache, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    code = """\
module asm ".globl third\\0Athird: .byte 0 /* other */"
@third = external global i8
define i64 @f() {
  call void asm sideeffect "/* other */", ""()
  ret i64 1
}
define i64 @add() {
  ret i64 2
}
define i64 @other() {
  ret i64 2
}
"""
    with monkeypatch.context() as patch:
        patch.setattr("compcache.build.ir_text.functions_with_assembly", lambda _: {})
        patch.setattr("compcache.build.ir_text._WORD", re.compile("|".join(["third", *names])))
        cache.add_module(ModuleSource(code))
    assert cache.check(recompile=True).findings == ()



def test_code_that_is_kept_is_translated_again_and_compared(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("leaf", 1)))
    cache.add_module(ModuleSource(caller("top", "leaf")))
    cache.add_module(ModuleSource(adder("bare", 3), keep_bitcode=False))
    report = cache.check(recompile=True)
    assert report.findings == ()
    assert {step.name: step.numbers for step in report.steps}["code"] == {"recompiled": 2, "compared": 2}
    # A module that carries the code of another one, every digest in order.
    module_id = with_code_of(directory, *[cache.add_module(ModuleSource(adder(n, 7))) for n in ("one", "two")])
    assert not [finding for finding in cache.check().findings if finding.kind == "damaged"]
    damaged = [finding for finding in cache.check(recompile=True).findings if finding.kind == "damaged"]
    assert [finding.subject for finding in damaged] == [module_id]
    assert "the bitcode of the module defines 'two', which is not in the dependency graph" in damaged[0].message
