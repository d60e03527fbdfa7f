"""Names that stand for content: what is compiled once ever, and what a change of anything makes anew."""

from __future__ import annotations

import copy
import pickle
import sys
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import pytest
from helpers import adder, caller, constant, run_fresh
from llvmlite import ir

from compcache import Cache, CompileError, Function, Identity, ModuleSource, ShadowWarning, depgraph
from compcache.content import functions as naming
from compcache.content.functions import name_functions
from compcache.content.names import content_digest, freeze, seal
from compcache.images.native_target import initialize
from compcache.miss.name_source import name_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

TWO = adder("first", 1) + adder("second", 2) + constant("own", 3).replace("define", "define internal", 1)


def names_of(source: ModuleSource) -> dict[str, str]:
    return name_source(seal(source)).names


def bitcode(text: str) -> bytes:
    initialize()
    with llvm.parse_assembly(text) as module:
        return bytes(module.as_bitcode())


def test_text_gives_its_functions_by_plain_name(cache: Cache) -> None:
    kernels = cache.compile(TWO)
    assert (kernels["first"](1), kernels.second(1), sorted(kernels), len(kernels)) == (2, 3, ["first", "second"], 2)
    assert kernels.first is kernels["first"] is cache.get_target(kernels.func_names["first"])
    assert pickle.loads(pickle.dumps(kernels.first)) is kernels.first
    with pytest.raises(KeyError, match="no function 'own'; its functions are 'first', 'second'"):
        kernels["own"]
    with pytest.raises(AttributeError, match="no function 'third'"):
        kernels.third  # noqa: B018 - the access is what is tested


def test_text_is_read_while_llvmlite_is_imported(directory: Path) -> None:
    """By another thread, or by code that this one interrupts."""
    with Cache(directory) as cache:
        cache.compile(adder("plus", 1))
    program = """
import sys
from types import ModuleType
from compcache import Cache
sys.modules["llvmlite.ir"] = ModuleType("llvmlite.ir")  # it has no contents yet
with Cache(directory) as cache:
    result = cache.compile(source).plus(1)
"""
    assert run_fresh(directory, program.replace("source", repr(adder("plus", 1)))) == 2


def test_a_change_of_the_code_is_another_function(cache: Cache) -> None:
    """The trap: a program is edited and run again."""
    assert cache.compile(adder("f", 1)).f(1) == 2
    assert cache.compile(adder("f", 2)).f(1) == 3
    assert cache.compile(adder("f", 1)).f(1) == 2
    assert len(cache.modules()) == 2


def test_each_kind_of_code_is_compiled_once(directory: Path) -> None:
    module = ir.Module("m")
    function = ir.Function(module, ir.FunctionType(ir.IntType(64), [ir.IntType(64)]), "f")
    ir.IRBuilder(function.append_basic_block()).ret(function.args[0])
    initialize()
    with llvm.parse_assembly(adder("f", 4)) as parsed:
        for number, code in enumerate([adder("f", 1), bitcode(adder("f", 2)), module, parsed], 1):
            for _ in range(2):
                with Cache(directory) as cache:
                    assert cache.compile(code).f(10) == 10 + (number if code is not module else 0)
                    assert len(cache.modules()) == number


@pytest.mark.slow
def test_files_that_assembly_reads_are_part_of_the_code(directory: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    lines = [".section .rodata", f"blob: .incbin \\22{blob}\\22", ".text"]
    code = "".join(f'module asm "{line}"\n' for line in lines)
    code += "@blob = external global i8\ndefine i8 @first() {\n%v = load i8, ptr @blob\nret i8 %v\n}\n"
    found = []
    for content in (b"A", b"B", b"A"):
        blob.write_bytes(content)
        with Cache(directory) as cache:
            found.append(cache.compile(code)["first"]())
            cache.add_module(ModuleSource(code))
        with Cache(directory) as cache:
            found.append(cache.get_target("first")())
    assert found == [65, 65, 66, 66, 65, 65]
    with Cache(directory) as cache, pytest.raises(CompileError, match="reads files"):
        cache.compile(bitcode(code))


@pytest.mark.parametrize("kind", ["text", "bitcode", "source"])
def test_a_hit_needs_no_llvm(directory: Path, kind: str) -> None:
    code: Any = bitcode(TWO) if kind == "bitcode" else TWO
    if kind == "source":
        code = ModuleSource(TWO, {"first": Function("i64(x: i64)")}, optimize=1)
    with Cache(directory) as cache:
        assert cache.compile(code).first(1) == 2
    script = f"""
    from compcache import Cache, Function, ModuleSource
    code = {code if kind != "source" else TWO!r}
    if {kind == "source"}:
        code = ModuleSource(code, {{"first": Function("i64(x: i64)")}}, optimize=1)
    kernels = Cache(directory).compile(code)
    slow = "llvmlite", "filelock", "msgpack", "json", "re", "logging", "collections.abc"
    result = kernels.first(41), [name for name in slow if name in sys.modules and name not in before]
    """
    assert run_fresh(directory, script) == (42, [])


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("signature", {"functions": {"f": "u64(i64)"}}),
    ("names of parameters", {"functions": {"f": "i64(x: i64)"}}),
    ("gil", {"functions": {"f": Function(nogil=True)}}),
    ("level", {"optimize": 0}),
    ("cpu", {"cpu": "x86-64-v2"}),
    ("features", {"features": "-avx"}),
    ("identity", {"identity": {"version": "2"}}),
]


@pytest.mark.parametrize(("what", "options"), OPTIONS)
def test_the_name_covers_what_is_asked_for(what: str, options: dict[str, Any]) -> None:
    plain = names_of(ModuleSource(adder("f", 1)))
    other = names_of(ModuleSource(adder("f", 1), **options))
    assert plain["f"] != other["f"], what
    assert other == names_of(ModuleSource(adder("f", 1), **options))


def test_the_name_covers_globals_and_imports() -> None:
    code = "@g = external global i64\ndefine ptr @f() {\nret ptr @g\n}\n"
    names = {names_of(ModuleSource(code, globals={"g": value}))["f"] for value in (1, 2, "2", b"2", 1.0)}
    assert len(names) == 5
    code = caller("f", "callee")
    names = {names_of(ModuleSource(code, imports={"callee": name}))["f"] for name in ("a", "b")}
    names |= {names_of(ModuleSource(code))["f"]}
    assert len(names) == 3


def test_the_digest_of_a_source_covers_globals_and_imports() -> None:
    """Names are kept under it: two sources of one digest would have the same."""
    sources = [ModuleSource("code", globals={"g": value}) for value in (1, 2)]
    sources += [ModuleSource("code", imports={"g": name}) for name in ("a", "b")]
    assert len({content_digest(source) for source in sources}) == 4


LISTS: list[dict[str, Any]] = [
    {},
    {"targets": ["x86-64-v2"]},
    {"libraries": ["x86-64-v2"]},
    {"libraries": ["x86-64", "-v2"]},
    {"libraries": ["m"]},
    {"imports": {"a": "bc"}},
    {"imports": {"ab": "c"}},
    {"imports": {"a": "b", "c": "d"}},
    {"identity": {"a": "bc"}},
    {"identity": {"ab": "c"}},
    {"keep_bitcode": False},
]


def test_the_name_covers_lists_and_where_they_end() -> None:
    sources = [ModuleSource(adder("f", 1), **options) for options in LISTS]
    assert len({names_of(source)["f"] for source in sources}) == len(LISTS)
    assert len({content_digest(freeze(source)) for source in sources}) == len(LISTS)


def test_functions_named_by_content_call_each_other(cache: Cache) -> None:
    one = cache.compile(adder("callee", 1)).callee
    two = cache.compile(ModuleSource(caller("f", "callee"), imports={"callee": one})).f
    assert two(1) == 2
    assert cache.dependencies(two.func_name) == (one.func_name,)


def test_what_is_changed_later_changes_nothing(cache: Cache) -> None:
    data = bytearray(b"\1")
    source = ModuleSource("@g = external global [1 x i8]\ndefine i8 @f() {\n%v = load i8, ptr @g\nret i8 %v\n}", globals={"g": data})
    kernels = cache.compile(source)
    data[0] = 2
    cache.clear()
    assert kernels.f() == 1
    assert cache.compile(source).f() == 2


def test_what_was_pruned_meanwhile_is_compiled_again(cache: Cache) -> None:
    kernels = cache.compile(TWO)
    cache.clear()
    assert kernels.second(1) == 3


def test_a_cache_that_cannot_store_compiles_in_memory(tmp_path: Path) -> None:
    with Cache(tmp_path / "none", readonly=True) as cache:
        assert cache.compile(TWO).second(1) == 3
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        (None, r"compile\(\).*got None"),
        (7, r"compile\(\).*got an object of type int"),
        ("declare void @f()", r"compile\(\).*no externally visible function"),
        ("define", "LLVM cannot parse the code"),
        ("kernel", "(?s)LLVM cannot parse the code.*1:1"),
        (b"BC\xc0\xde", "LLVM cannot parse the code"),
    ],
)
def test_what_is_no_code_is_refused_by_name(cache: Cache, code: Any, complaint: str) -> None:
    with pytest.raises(CompileError, match=complaint):
        cache.compile(code)


ODD = """
@alias = alias i64 (i64), ptr @odd
define  weak_odr dso_local i64  @odd ( i64 %x) { ret i64 1 }
; define i64 @comment() { ret i64 1 }
define hidden i64 @hidden() { ret i64 1 }
define protected i64 @"a b"() { ret i64 7 }
define available_externally i64 @elsewhere() { ret i64 1 }
define i64 @"\\C3\\A9"() {ret i64 1}
"""


@pytest.mark.parametrize("with_alias", [False, True])
@pytest.mark.parametrize("convert", [str, bitcode])
def test_what_can_be_seen_of_a_module_is_what_llvm_says(cache: Cache, convert: Any, with_alias: bool) -> None:
    code = ODD if with_alias else ODD.replace("@alias =", ";")
    assert sorted(cache.compile(convert(code))) == sorted(["odd", "a b", "é"] + ["alias"] * with_alias)


# ---------------------------------------------------------------------------------------------------------- identity


@pytest.mark.parametrize("form", ["text", "bitcode", "llvmlite", "source", "named source", "full name"])
def test_build_for_an_identity_uses_the_plain_label(cache: Cache, form: str) -> None:
    identity = Identity("f", text="x + 1")

    def build() -> Any:
        text = adder("f", 1) + adder("helper", 5)
        if form == "llvmlite":
            module = ir.Module("m")
            function = ir.Function(module, ir.FunctionType(ir.IntType(64), [ir.IntType(64)]), "f")
            builder = ir.IRBuilder(function.append_basic_block())
            builder.ret(builder.add(function.args[0], ir.IntType(64)(1)))
            return module
        if form == "full name":
            return adder(identity.func_name, 1)
        code: Any = bitcode(text) if form == "bitcode" else text
        functions = {"f": "i64(x: i64)"} if form == "named source" else None
        return code if form in ("text", "bitcode") else ModuleSource(code, functions)

    target = cache.get_or_compile(identity, build)
    assert target(1) == 2
    assert target.func_name == identity.func_name
    assert list(cache) == [identity.func_name]
    variants = cache.explain("none", identity.extend(text="x + 2")).variants
    assert [str(difference) for difference in variants[0].differences or ()] == ['text: "x + 1" -> "x + 2"']
    assert cache.get_or_compile(identity, pytest.fail) is target


def test_build_must_return_code(cache: Cache) -> None:
    with pytest.raises(CompileError, match=r"build\(\) for 'f' returned None, but must return"):
        cache.get_or_compile("f", lambda: None)
    with pytest.raises(TypeError, match=r"a str or a compcache\.Identity, not int"):
        cache.get_or_compile(7, lambda: "")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ names by hand

NUMBER = 1


def _edited(number: int) -> Any:
    """A program's `build` before and after an edit of a constant of its module."""
    scope: dict[str, Any] = {"NUMBER": number, "adder": adder}
    exec("def build():\n    return adder('f', NUMBER)", scope)
    return scope["build"]


def warned(directory: Path, build: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught, Cache(directory) as cache:
        warnings.simplefilter("always")
        for _ in range(2):
            cache.get_or_compile("f", build)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("value", ["1", "0"])
def test_ci_is_told_that_a_name_is_stale(directory: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("COMPCACHE_CHECK", value)
    assert warned(directory, _edited(1)) == []
    assert warned(directory, _edited(1)) == []
    messages = warned(directory, _edited(2))
    assert len(messages) == int(value)
    for message in messages:
        assert "'f' was compiled from different code than its build() returns now" in message
        assert "cache.remove('f')" in message


@pytest.mark.parametrize("readonly", [False, True], ids=["stored", "in memory"])
def test_what_is_in_memory_is_compared_too(directory: Path, monkeypatch: pytest.MonkeyPatch, readonly: bool) -> None:
    """As in a notebook, where a cell that was edited runs again, and the target of its first run is still held."""
    monkeypatch.setenv("COMPCACHE_CHECK", "1")
    with Cache(directory, readonly=readonly) as cache:
        held = cache.get_or_compile("f", _edited(1))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cache.get_or_compile("f", _edited(1)) is held
        for number in (2, 3):  # each edit is told, once
            with pytest.warns(UserWarning, match=r"'f' was compiled from different code than its build\(\) returns now"):
                assert cache.get_or_compile("f", _edited(number)) is held
        del held
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache.get_or_compile("f", _edited(3))


def test_adding_other_code_under_a_name_says_what_it_shadows(cache: Cache) -> None:
    cache.add_module(ModuleSource(TWO))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.add_module(ModuleSource(TWO, optimize=0))
        cache.add_module(ModuleSource(TWO + adder("third", 1)))  # a module of another kind may hold copies
    with pytest.warns(ShadowWarning, match="the cache already has different code for 'first' and 1 more"):
        cache.add_module(ModuleSource(TWO.replace("%x, 1", "%x, 7")))


COUNTERS = """\
@c{0} = internal global i64 0
define i64 @f{0}() {{
  %x = load i64, ptr @c{0}
  ret i64 %x
}}
"""


def instructions_of(work: Callable[[], object], *files: str) -> int:
    """The number of bytecode instructions that functions of these files execute."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


SUMS = """\
@c{0} = internal global i64 0
define i64 @f{0}() {{
  %x = load i64, ptr @c{0}
  %y = call i64 @f{1}()
  %z = add i64 %x, %y
  ret i64 %z
}}
"""


@pytest.mark.parametrize("template", [COUNTERS, SUMS], ids=["of their own", "of all before"])
def test_functions_with_variables_are_named_in_linear_time(template: str) -> None:
    def name_many(number: int) -> int:
        text = "".join([template.format(position, max(0, position - 1)) for position in range(number)])
        functions = {f"f{position}": Function(symbol=f"f{position}") for position in range(number)}
        work = partial(name_functions, freeze(ModuleSource(text)), text, functions)
        return instructions_of(work, str(naming.__file__), str(depgraph.__file__))

    assert name_many(600) < 4 * name_many(200)


def test_copies_of_compiled_functions_share_them(cache: Cache) -> None:
    kernels = cache.compile(TWO)
    for copied in (copy.copy(kernels), copy.deepcopy(kernels)):
        assert copied.first is kernels.first
        assert dict(copied.func_names) == kernels.func_names
