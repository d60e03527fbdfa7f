"""Adding modules: what may be given, what is exported, and how declarations are provided for."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest
from helpers import adder, caller, constant, run_fresh, snapshot
from llvmlite import ir

from compcache import (
    Cache,
    CompileError,
    Function,
    ModuleSource,
    NotCachedError,
    SignatureError,
    SignatureMismatchError,
    UndefinedSymbolError,
)

if TYPE_CHECKING:
    from pathlib import Path

#: Another source that is optimized to the code of `TWICE`.
DOUBLE = "define i64 @twice(i64 %x) {\n  %y = add i64 %x, %x\n  ret i64 %y\n}\n"
TWICE = "define i64 @twice(i64 %x) {\n  %y = shl i64 %x, 1\n  ret i64 %y\n}\n"


def ir_module() -> ir.Module:
    module = ir.Module("twice")
    i64 = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(i64, [i64]), "twice")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(builder.shl(function.args[0], i64(1)))
    return module


def as_text() -> str:
    return TWICE


def as_text_bytes() -> bytes:
    return TWICE.encode()


def as_bitcode() -> bytes:
    bitcode: bytes = llvm.parse_assembly(TWICE).as_bitcode()
    return bitcode


def as_bytearray() -> bytearray:
    return bytearray(as_bitcode())


def as_module_ref() -> llvm.ModuleRef:
    return llvm.parse_assembly(TWICE)


@pytest.mark.parametrize("make", [as_text, as_text_bytes, as_bitcode, as_bytearray, ir_module, as_module_ref])
def test_every_kind_of_input_compiles_and_runs(cache: Cache, make: object) -> None:
    module_id = cache.add_module(ModuleSource(make()))  # type: ignore[operator]
    target = cache.get_target("twice")
    assert target(21) == 42
    assert target.module_id == module_id


def test_the_given_module_ref_is_left_as_it_was(cache: Cache) -> None:
    module = llvm.parse_assembly(constant("f", 1) + constant("g", 2))
    before = str(module)
    cache.add_module(ModuleSource(module, {"f": "i64()"}))
    assert str(module) == before
    module.get_function("f").name = "renamed"
    assert cache.get_target("f")() == 1


@pytest.mark.parametrize("end", ["close", "link", "engine"])
def test_a_module_ref_that_is_used_up_is_refused_by_its_state(cache: Cache, end: str) -> None:
    module = as_module_ref()
    if end == "close":
        module.close()
    elif end == "link":
        llvm.parse_assembly("").link_in(module)
    else:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine()).close()
    with pytest.raises(CompileError, match="the llvmlite module is closed"):
        cache.compile(module)
    with pytest.raises(CompileError, match="the llvmlite module is closed"):
        cache.add_module(ModuleSource(module))


def test_what_is_changed_after_the_addition_changes_nothing_stored(cache: Cache) -> None:
    data = bytearray(b"abcdefgh")
    functions = {"f": "i64()"}
    given = {"table": data}
    source = ModuleSource(
        "@table = external global ptr\ndefine i64 @f() {\n%p = load ptr, ptr @table\n%x = load i64, ptr %p\nret i64 %x\n}",
        functions,
        given,
    )
    cache.add_module(source)
    data[:] = b"--------"
    functions.clear()
    given.clear()
    source.ir = "nonsense"
    assert cache.get_target("f")() == int.from_bytes(b"abcdefgh", "little")


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_optimization_level_gives_the_same_answers(cache: Cache, level: int) -> None:
    source = """
    define i64 @sum(i64 %n) {
    entry:
      br label %loop
    loop:
      %i = phi i64 [ 0, %entry ], [ %next, %loop ]
      %s = phi i64 [ 0, %entry ], [ %t, %loop ]
      %t = add i64 %s, %i
      %next = add i64 %i, 1
      %more = icmp slt i64 %next, %n
      br i1 %more, label %loop, label %end
    end:
      ret i64 %t
    }
    """
    cache.add_module(ModuleSource(source, optimize=level))
    assert cache.get_target("sum")(1000) == 499500


def test_level_0_leaves_the_code_as_given(cache: Cache) -> None:
    text = """
    define internal i64 @private(i64 %x) {
      %y = add i64 %x, 1
      ret i64 %y
    }
    define i64 @f(i64 %x) {
      %y = call i64 @private(i64 %x)
      ret i64 %y
    }
    define i64 @g(i64 %x) {
      %y = call i64 @f(i64 %x)
      ret i64 %y
    }
    """
    cache.add_module(ModuleSource(text, {"f": None, "g": None}, optimize=0))
    assert cache.dependencies("g") == ("f",)
    cache.add_module(ModuleSource(text.replace("@g(", "@h("), {"f": None, "h": None}, optimize=2))
    assert cache.dependencies("h") == (), "an optimized module's graph knows that the call was inlined"
    assert cache.get_target("g")(1) == cache.get_target("h")(1) == 2


def test_the_same_code_is_the_same_module(directory: Path) -> None:
    with Cache(directory) as one, Cache(directory) as two:
        module_id = one.add_module(ModuleSource(TWICE))
        assert two.add_module(ModuleSource(TWICE)) == module_id
        assert [r.module_id for r in one.realizations("twice")] == [module_id]


@pytest.mark.slow
def test_adding_again_what_the_index_knows_leaves_it_alone(directory: Path) -> None:
    """However often: merges would be for nothing, and a segment written again is one that a power failure can take."""
    with Cache(directory) as cache:
        for number in range(12):
            cache.add_module(ModuleSource(adder(f"f{number}", number)))
        before = snapshot(directory)
        for number in range(12):
            cache.add_module(ModuleSource(adder(f"f{number}", number)))
        assert snapshot(directory) == before
        shutil.rmtree(directory / "index-v1")
        for number in range(12):
            cache.add_module(ModuleSource(adder(f"f{number}", number)))
    with Cache(directory) as cache:
        assert [cache.get_target(f"f{number}")(1) for number in range(12)] == [n + 1 for n in range(12)]


# ----------------------------------------------------------------------------------------- exports

SEVERAL = """
define i64 @plain(i64 %x) {
  ret i64 %x
}
define linkonce_odr double @odr(double %x, float %y) {
  ret double %x
}
define weak i32 @weak(ptr %p, i8 zeroext %c) {
  ret i32 7
}
define internal i64 @internal() {
  ret i64 1
}
define private i64 @private() {
  ret i64 1
}
define hidden i64 @hidden() {
  ret i64 1
}
declare i64 @labs(i64)
"""


def test_without_functions_every_visible_definition_is_exported(cache: Cache) -> None:
    cache.add_module(ModuleSource(SEVERAL))
    assert str(cache.get_target("plain").signature) == "i64(i64)"
    assert str(cache.get_target("odr").signature) == "f64(f64, f32)"
    assert str(cache.get_target("weak").signature) == "i32(ptr, u8)"
    for name in ("internal", "private", "hidden", "labs"):
        assert not cache.has(name)


def test_what_has_no_name_belongs_to_its_module(cache: Cache) -> None:
    code = """
define i64 @0() {
  ret i64 1
}
@1 = global i64 5
define i64 @named() {
  %one = call i64 @0()
  %old = load i64, ptr @1
  %new = add i64 %one, %old
  store i64 %new, ptr @1
  ret i64 %new
}
"""
    cache.add_module(ModuleSource(code))
    named = cache.get_target("named")
    assert (named(), named()) == (6, 7)
    assert [function.func_name for function in cache.functions()] == ["named"]
    kernels = cache.compile(code)
    assert (list(kernels), kernels.named()) == (["named"], 6)


def test_with_functions_only_these_are_exported(cache: Cache) -> None:
    cache.add_module(ModuleSource(SEVERAL, {"plain": "i64(n: i64)", "internal": None}))
    assert cache.get_target("plain")(3) == 3
    assert cache.get_target("internal")() == 1
    for name in ("odr", "weak"):
        with pytest.raises(NotCachedError, match=name):
            cache.get_target(name)


def test_an_empty_choice_of_functions_exports_none(cache: Cache) -> None:
    cache.add_module(ModuleSource(SEVERAL, {}))
    assert not cache.has("plain")


def test_a_function_may_have_another_name_than_its_symbol(cache: Cache) -> None:
    exports = {"a b/ü\n": Function("i64(i64)", symbol="twice"), "alias": Function(symbol="twice")}
    cache.add_module(ModuleSource(TWICE, exports))
    assert cache.get_target("a b/ü\n")(4) == cache.get_target("alias")(4) == 8
    assert not cache.has("twice")
    assert cache.get_target("alias").func_name == "alias"
    assert cache.get_target("alias").link_name.startswith("twice@")


def test_the_id_of_a_module_does_not_depend_on_how_a_flag_is_spelled(tmp_path: Path) -> None:
    """Entry points are cached by equality, and `1 == True`."""
    ids = set()
    for number, nogil in enumerate((1, True)):
        with Cache(tmp_path / str(number)) as cache:
            ids.add(cache.add_module(ModuleSource(TWICE, {"f": Function("u64(spelled: u64)", symbol="twice", nogil=nogil)})))  # type: ignore[arg-type]
    script = "from compcache import Cache, Function, ModuleSource\nwith Cache(directory) as cache:\n"
    script += f"    result = cache.add_module(ModuleSource({TWICE!r}, {{'f': Function('u64(spelled: u64)', symbol='twice', nogil=True)}}))"
    assert ids == {run_fresh(tmp_path / "fresh", script)}


def test_nogil_and_signature_are_stored_with_the_function(cache: Cache) -> None:
    cache.add_module(ModuleSource(TWICE, {"f": Function("u64(n: u64)", symbol="twice", nogil=True)}))
    target = cache.get_target("f")
    assert target.nogil
    assert target.signature.text() == "u64(n: u64)"
    assert target(2**63 - 1) == 2**64 - 2


@pytest.mark.parametrize(
    ("head", "complaint"),
    [
        ("hidden { i32, i32 } @f(i32 %x)", r"the function's result of type { i32, i32 }"),
        ("noundef [2 x i64] @f()", r"the function's result of type \[2 x i64\]"),
        ("i64 @f(i128 noundef %wide)", r"the function's parameter 'wide' of type i128"),
        ("i64 @f(<4 x float> noundef %v)", r"the function's parameter 'v' of type <4 x float>"),
        ("i64 @f(ptr byval(i32) %p)", r"the function's parameter 'p' of type ptr .*byval\(i32\)"),
        ("i64 @f(i64 %x, ...)", r"the function takes a variable number of arguments"),
    ],
)
def test_a_type_that_no_signature_has_is_named_without_its_attributes(cache: Cache, head: str, complaint: str) -> None:
    result = head.partition("@")[0].removeprefix("hidden ").removeprefix("noundef ")
    cache.add_module(ModuleSource(f"define {head} {{ ret {result} {'0' if result == 'i64 ' else 'undef'} }}", {"f": None}))
    with pytest.raises(SignatureError, match=complaint + r"(?: captures\(none\))?; call it from a function in another module"):
        cache.get_target("f")


def test_a_function_without_a_signature_serves_other_modules_only(cache: Cache) -> None:
    text = "define {i64, i64} @pair(i64 %x) {\n%a = insertvalue {i64, i64} undef, i64 %x, 0\nret {i64, i64} %a\n}"
    cache.add_module(ModuleSource(text))
    assert cache.has("pair")
    with pytest.raises(SignatureError, match=r"'pair'.*cannot be called from Python"):
        cache.get_target("pair")
    user = """
    declare {i64, i64} @pair(i64)
    define i64 @first(i64 %x) {
      %p = call {i64, i64} @pair(i64 %x)
      %a = extractvalue {i64, i64} %p, 0
      ret i64 %a
    }
    """
    cache.add_module(ModuleSource(user))
    assert cache.get_target("first")(9) == 9


@pytest.mark.parametrize(
    ("signature", "llvm_text"),
    [
        ("i64(i64, i64)", "i64 (i64)"),
        ("i64()", "i64 (i64)"),
        ("f64(i64)", "i64 (i64)"),
        ("i64(f64)", "i64 (i64)"),
        ("i32(i64)", "i64 (i64)"),
        ("i64(i64[:])", "i64 (i64)"),
        ("void(i64)", "i64 (i64)"),
        ("i64(ptr)", "i64 (i64)"),
        ("i64(cstr)", "i64 (i64)"),
        ("i64(bool)", "i64 (i64)"),
    ],
)
def test_a_signature_that_contradicts_the_llvm_type_is_refused(
    cache: Cache, signature: str, llvm_text: str
) -> None:
    with pytest.raises(SignatureMismatchError) as caught:
        cache.add_module(ModuleSource(TWICE, {"twice": signature}))
    assert "'twice'" in str(caught.value)
    assert llvm_text in str(caught.value)
    assert caught.value.func_name == "twice"
    assert not cache.has("twice")


@pytest.mark.parametrize(
    ("signature", "note"),
    [
        ("f64(data: f64[::1], n: i64)", "each buffer is passed as a pointer and its length, an i64 for each dimension"),
        ("tuple[f64, f64](ptr, i64)", "the function stores a tuple through an additional first parameter, a pointer"),
    ],
)
def test_a_contradiction_comes_with_what_people_overlook(cache: Cache, signature: str, note: str) -> None:
    text = "define double @mean(ptr %data, i64 %n) {\nret double 0.0\n}"
    with pytest.raises(SignatureMismatchError) as caught:
        cache.add_module(ModuleSource(text, {"mean": signature}))
    assert str(caught.value).endswith(f"; {note}")


def test_an_argument_that_is_passed_in_memory_has_no_signature(cache: Cache) -> None:
    text = "define i64 @f(ptr byval(i64) %p) {\n%x = load i64, ptr %p\nret i64 %x\n}"
    with pytest.raises(SignatureMismatchError, match="byval"):
        cache.add_module(ModuleSource(text, {"f": "i64(ptr)"}))


# ----------------------------------------------------------------------------------------- imports


def test_a_declared_function_that_the_cache_holds_is_imported(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("add5", 5)))
    cache.add_module(ModuleSource(caller("f", "add5", plus=100)))
    assert cache.get_target("f")(1) == 106
    assert cache.dependencies("f") == ("add5",)


def test_a_named_import_may_come_later(cache: Cache) -> None:
    cache.add_module(ModuleSource(caller("f", "later", plus=1), imports=["later"]))
    with pytest.raises(UndefinedSymbolError, match="'later'") as caught:
        cache.get_target("f")
    assert caught.value.symbols == ("later",)
    assert caught.value.func_name == "f"
    cache.add_module(ModuleSource(adder("later", 10)))
    assert cache.get_target("f")(1) == 12


def test_one_import_may_be_given_as_a_text(cache: Cache) -> None:
    cache.add_module(ModuleSource(caller("f", "later"), imports="later"))
    cache.add_module(ModuleSource(adder("later", 10)))
    assert cache.get_target("f")(1) == 11


def test_an_import_may_have_another_name_than_its_symbol(cache: Cache) -> None:
    cache.add_module(ModuleSource(caller("f", "callee"), imports={"callee": "the real one"}))
    cache.add_module(ModuleSource(adder("x", 10), {"the real one": Function(symbol="x")}))
    assert cache.get_target("f")(1) == 11
    assert cache.dependencies("f") == ("the real one",)


def test_modules_may_import_one_another(cache: Cache) -> None:
    text = """
    declare i1 @{other}(i64)
    define i1 @{name}(i64 %n) {{
      %zero = icmp eq i64 %n, 0
      br i1 %zero, label %end, label %more
    more:
      %m = sub i64 %n, 1
      %r = call i1 @{other}(i64 %m)
      ret i1 %r
    end:
      ret i1 {answer}
    }}
    """
    cache.add_module(ModuleSource(text.format(name="even", other="odd", answer="true"), imports=["odd"]))
    cache.add_module(ModuleSource(text.format(name="odd", other="even", answer="false")))
    assert cache.get_target("even")(10) is True
    assert cache.get_target("odd")(10) is False


def test_an_import_keeps_the_types_of_the_declaration(cache: Cache) -> None:
    """Thunks forward whatever the declaration says: several types, attributes, no result, many arguments."""
    provider = """
    define float @mix(i8 signext %a, double %b, float %c, ptr %p, i64 %1, i64 %2, i64 %3, i64 %4, i64 %5) {
      store i64 %5, ptr %p
      %x = sitofp i8 %a to float
      %y = fptrunc double %b to float
      %z = fadd float %x, %y
      %w = fadd float %z, %c
      ret float %w
    }
    define void @nothing(ptr %p) {
      store i64 77, ptr %p
      ret void
    }
    """
    user = """
    declare float @mix(i8 signext, double, float, ptr, i64, i64, i64, i64, i64)
    declare void @nothing(ptr)
    define float @use(ptr %p) {
      %r = call float @mix(i8 signext -3, double 1.5, float 0.25, ptr %p, i64 1, i64 2, i64 3, i64 4, i64 5)
      ret float %r
    }
    define void @use_nothing(ptr %p) {
      call void @nothing(ptr %p)
      ret void
    }
    """
    cache.add_module(ModuleSource(provider))
    cache.add_module(ModuleSource(user, imports=["mix", "nothing"]))
    cell = bytearray(8)
    assert cache.get_target("use")(cell) == -1.25
    assert int.from_bytes(cell, "little") == 5
    assert cache.get_target("use_nothing")(cell) is None
    assert int.from_bytes(cell, "little") == 77


def test_an_imported_address_may_be_stored_in_a_table(cache: Cache) -> None:
    """What a constant table refers to counts as used, and is called through the table."""
    cache.add_module(ModuleSource(adder("add5", 5) + adder("add6", 6)))
    text = """
    declare i64 @add5(i64)
    declare i64 @add6(i64)
    @table = internal constant [2 x ptr] [ptr @add5, ptr @add6]
    define i64 @pick(i64 %i, i64 %x) {
      %at = getelementptr [2 x ptr], ptr @table, i64 0, i64 %i
      %f = load ptr, ptr %at
      %y = call i64 %f(i64 %x)
      ret i64 %y
    }
    """
    cache.add_module(ModuleSource(text))
    assert [cache.get_target("pick")(i, 10) for i in (0, 1)] == [15, 16]
    assert set(cache.dependencies("pick")) == {"add5", "add6"}


def test_unused_imports_and_undefined_symbols_are_told_together(cache: Cache) -> None:
    text = caller("f", "nobody_has_this") + "declare i64 @declared_only(i64)\n"
    with pytest.raises(UndefinedSymbolError) as caught:
        cache.add_module(
            ModuleSource(text, globals={"no_such_global": 1}, imports=["declared_only", "not_there"])
        )
    assert caught.value.symbols == ("nobody_has_this",)
    assert caught.value.unused == ("declared_only", "no_such_global", "not_there")
    for name in (*caught.value.symbols, *caught.value.unused):
        assert repr(name) in str(caught.value)
    assert not cache.has("f")


def test_an_import_of_a_function_that_the_module_defines_is_unused(cache: Cache) -> None:
    with pytest.raises(UndefinedSymbolError) as caught:
        cache.add_module(ModuleSource(TWICE + caller("f", "other"), imports=["twice", "other", "nowhere"]))
    assert caught.value.unused == ("nowhere", "twice")
    assert caught.value.symbols == ()
    assert str(caught.value).split("; ") == [
        "imports= or globals= names 'twice', which the module or its group defines: remove the name",
        "imports= or globals= names 'nowhere', which the module does not use: remove the name, or use the symbol",
    ]


def test_an_import_of_what_the_group_defines_is_told(cache: Cache) -> None:
    with pytest.raises(UndefinedSymbolError, match="names 'twice', which the module or its group defines: remove the name"):
        cache.add_modules([ModuleSource(TWICE), ModuleSource(caller("f", "twice"), imports=["twice"])], group="g")


#: A declaration as `clang -g` writes it, with what may stand before and behind: other attachments, linkage, attributes.
DEBUG_INFO = """\
define i64 @twice(i64 %x) !dbg !7 {{
  %y = call i64 @imported(i64 %x), !dbg !9
  %z = call i64 @imported(i64 %y), !dbg !9
  ret i64 %z, !dbg !9
}}
declare {attachments} {linkage}i64 @imported(i64 noundef) #0
attributes #0 = {{ nounwind "frame-pointer"="all" }}
!llvm.dbg.cu = !{{!0}}
!llvm.module.flags = !{{!2, !3}}
!0 = distinct !DICompileUnit(language: DW_LANG_C11, file: !1, emissionKind: FullDebug)
!1 = !DIFile(filename: "twice.c", directory: "/src")
!2 = !{{i32 7, !"Dwarf Version", i32 5}}
!3 = !{{i32 2, !"Debug Info Version", i32 3}}
!4 = !DISubroutineType(types: !5)
!5 = !{{!6, !6}}
!6 = !DIBasicType(name: "long", size: 64, encoding: DW_ATE_signed)
!7 = distinct !DISubprogram(name: "twice", file: !1, line: 2, type: !4, unit: !0, spFlags: DISPFlagDefinition)
!8 = !DISubprogram(name: "imported", file: !1, line: 1, type: !4, spFlags: DISPFlagOptimized)
!9 = !DILocation(line: 3, column: 3, scope: !7)
!10 = !{{!11}}
!11 = !{{i64 0, i1 false}}
"""


@pytest.mark.parametrize("linkage", ["", "dso_local ", "extern_weak ", "extern_weak dso_local "])
@pytest.mark.parametrize("attachments", ["!dbg !8", "!callback !10", "!dbg !8 !callback !10", "!odd\\2dname !10"])
def test_a_declaration_with_metadata_is_imported(cache: Cache, attachments: str, linkage: str) -> None:
    cache.add_module(ModuleSource(adder("imported", 3)))
    cache.add_module(ModuleSource(DEBUG_INFO.format(attachments=attachments, linkage=linkage)))
    assert cache.get_target("twice")(4) == 10
    assert cache.dependencies("twice") == ("imported",)


@pytest.mark.parametrize("attachments", ["!dbg !8", "!dbg !8 !callback !10"])
def test_a_native_declaration_with_metadata_stays_native(cache: Cache, attachments: str) -> None:
    text = DEBUG_INFO.format(attachments=attachments, linkage="dso_local ").replace("@imported", "@labs")
    cache.add_module(ModuleSource(text))
    assert cache.get_target("twice")(-4) == 4


def test_an_undefined_global_variable_is_named(cache: Cache) -> None:
    text = "@missing_variable = external global i64\ndefine i64 @f() {\n%x = load i64, ptr @missing_variable\nret i64 %x\n}"
    with pytest.raises(UndefinedSymbolError, match="'missing_variable'") as caught:
        cache.add_module(ModuleSource(text))
    assert caught.value.symbols == ("missing_variable",)


def test_libc_functions_need_no_import(cache: Cache) -> None:
    text = (
        "declare i64 @labs(i64)\ndeclare double @ldexp(double, i32)\n"
        + caller("f", "labs").partition("\n")[2]
    )
    text += "define double @g(double %x) {\n%y = call double @ldexp(double %x, i32 3)\nret double %y\n}"
    cache.add_module(ModuleSource(text))
    assert cache.get_target("f")(-5) == 5
    assert cache.get_target("g")(1.5) == 12.0


def test_dependencies_are_transitive_on_request(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("a", 1)))
    cache.add_module(ModuleSource(caller("b", "a")))
    cache.add_module(ModuleSource(caller("c", "b")))
    assert cache.dependencies("c") == ("b",)
    assert cache.dependencies("c", transitive=True) == ("b", "a")
    with pytest.raises(NotCachedError, match="'nothing'"):
        cache.dependencies("nothing")


@pytest.mark.slow
def test_a_chain_of_a_thousand_functions_adds_and_loads(cache: Cache) -> None:
    functions = [adder("f0", 1)]
    functions += [caller(f"f{i}", f"f{i - 1}", plus=1).partition("\n")[2] for i in range(1, 1000)]
    cache.add_module(ModuleSource("".join(functions), {"f999": None}, optimize=0))
    assert cache.get_target("f999")(0) == 1000


# ----------------------------------------------------------------------------------------- odd sources


def test_triples_that_front_ends_write_are_accepted(cache: Cache) -> None:
    head = llvm.get_default_triple().partition("-")[0]
    for number, triple in enumerate([f"{head}-unknown-linux6.18.44-gnu2.36.0", f"{head}-pc-linux-gnu", ""]):
        cache.add_module(ModuleSource(f'target triple = "{triple}"\n' + constant(f"f{number}", number)))
        assert cache.get_target(f"f{number}")() == number


@pytest.mark.slow
def test_inline_assembly_is_compiled(cache: Cache) -> None:
    text = 'define i64 @f(i64 %x) {\n%y = call i64 asm "nop", "=r,0"(i64 %x)\nret i64 %y\n}'
    cache.add_module(ModuleSource(text))
    assert cache.get_target("f")(5) == 5


def test_mutable_statics_and_thread_local_data_work(cache: Cache) -> None:
    text = """
    @count = internal global i64 40
    @local = internal thread_local global i64 7
    define i64 @next() {
      %x = load i64, ptr @count
      %y = add i64 %x, 1
      store i64 %y, ptr @count
      ret i64 %y
    }
    define i64 @next_local() {
      %p = call ptr @llvm.threadlocal.address.p0(ptr @local)
      %x = load i64, ptr %p
      %y = add i64 %x, 1
      store i64 %y, ptr %p
      ret i64 %y
    }
    declare ptr @llvm.threadlocal.address.p0(ptr)
    """
    cache.add_module(ModuleSource(text))
    shared, local = cache.get_target("next"), cache.get_target("next_local")
    assert [shared(), shared(), local(), local()] == [41, 42, 8, 9]
    of_thread: list[int] = []
    thread = threading.Thread(target=lambda: of_thread.extend((shared(), local())))
    thread.start()
    thread.join()
    assert of_thread == [43, 8]


def test_a_source_shows_what_it_exports() -> None:
    assert repr(ModuleSource(TWICE, {"f": None})) == "<ModuleSource of str exporting 'f'>"
    assert "every function" in repr(ModuleSource(TWICE))


def test_something_else_than_a_source_is_refused(cache: Cache) -> None:
    with pytest.raises(CompileError, match="ModuleSource, not str"):
        cache.add_module(TWICE)  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_added_function_is_seen_by_caches_that_are_open(directory: Path) -> None:
    with Cache(directory) as early:
        assert not early.has("twice")
        run_fresh(
            directory,
            f"""
            from compcache import Cache, ModuleSource
            result = Cache(directory).add_module(ModuleSource({TWICE!r}))
            """,
        )
        assert early.get_target("twice")(4) == 8


def test_only_llvms_thread_creates_modules_to_compare_code(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    parse = llvm.parse_bitcode

    def recorded(*arguments: object) -> object:
        threads.append(threading.current_thread())
        return parse(*arguments)

    cache.add_module(ModuleSource(TWICE))
    monkeypatch.setattr(llvm, "parse_bitcode", recorded)
    cache.add_module(ModuleSource(DOUBLE))  # warns if the code differs
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("text", ["see alias f (x), ptr @g h", "ifunc f (x), ptr @r s", "thread_local(localexec)", "extern_weak dso_local"])
def test_strings_may_contain_words_of_llvm(cache: Cache, text: str) -> None:
    """Also as names."""
    cache.add_module(
        ModuleSource(
            f'@text = constant [{len(text)} x i8] c"{text}"\n@"{text}" = internal global i64 7\n'
            "define i64 @at(i64 %i) {\n  %p = getelementptr i8, ptr @text, i64 %i\n  %c = load i8, ptr %p\n  %r = zext i8 %c to i64\n"
            f'  store i64 %r, ptr @"{text}"\n  ret i64 %r\n}}\n'
        )
    )
    at = cache.get_target("at")
    assert "".join([chr(at(number)) for number in range(len(text))]) == text
