"""What compilers write beside plain bitcode: object files and archives, hidden symbols, names with versions."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest
from helpers import adder, caller, run_fresh
from inlined_programs import FOLLOWED, follow

from compcache import Cache, CompileError, ModuleSource, SignatureError, SignatureMismatchError, UndefinedSymbolError
from compcache.build import codegen
from compcache.errors import CacheWarning
from compcache.images.elf import patching, reading

if TYPE_CHECKING:
    from pathlib import Path


def bitcode(text: str) -> bytes:
    code: bytes = llvm.parse_assembly(text).as_bitcode()
    return code


COUNTER = """\
@seen = internal global i64 0
define i64 @work(i64 %x) {
  %old = load i64, ptr @seen
  %new = add i64 %old, %x
  store i64 %new, ptr @seen
  ret i64 %new
}
"""


def embed(text: str, section: str, content: bytes | None = None) -> bytes:
    """An object of this code with its bitcode in a section."""
    code = bitcode(text) if content is None else content
    data = "".join(f"\\{byte:02x}" for byte in code)
    text += f'\n@embedded = private constant [{len(code)} x i8] c"{data}", section "{section}", align 1\n'
    text += '@llvm.compiler.used = appending global [1 x ptr] [ptr @embedded], section "llvm.metadata"\n'
    return codegen.run(lambda context: emit(codegen.parse(text, context)))


def emit(module: llvm.ModuleRef) -> bytes:
    module.triple = llvm.get_default_triple()
    return codegen.emit_object(module, codegen.target_machine("", "", 2))


def archive(**members: bytes) -> bytes:
    """An archive as `ar` writes it, with a symbol table and a table of long names."""
    longest = b"".join(name.encode() + b"/\n" for name in members)
    data = b"!<arch>\n" + member("/", b"\0\0\0\0") + member("//", longest)
    for name, content in members.items():
        data += member(f"/{longest.index(name.encode())}", content)
    return data


def member(name: str, content: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(content):<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)


PLAIN = codegen.run(lambda context: emit(codegen.parse(adder("f", 1), context)))


@pytest.mark.parametrize("section", [".llvm.lto", ".llvmbc"])
def test_an_object_with_bitcode_is_taken(cache: Cache, section: str) -> None:
    cache.add_module(ModuleSource(embed(adder("f", 5), section)))
    assert cache.get_target("f")(1) == 6


def test_a_section_without_bitcode_does_not_hide_another_section(cache: Cache) -> None:
    """clang's ``-fembed-bitcode-marker`` writes a section `.llvmbc` of one byte."""
    text = adder("f", 5)
    marker = '\n@marker = private constant [1 x i8] zeroinitializer, section ".llvmbc", align 1\n'
    cache.add_module(ModuleSource(embed(text + marker, ".llvm.lto", bitcode(text))))
    assert cache.get_target("f")(1) == 6


def test_an_archive_becomes_one_module(cache: Cache) -> None:
    members = {
        "a_member_with_a_long_name.o": bitcode(adder("f", 5)),
        "another_member_of_it.o": embed(caller("g", "f", plus=1), ".llvm.lto"),
    }
    module_id = cache.add_module(ModuleSource(archive(**members)))
    assert (cache.get_target("f")(1), cache.get_target("g")(1)) == (6, 7)
    assert cache.get_target("f").module_id == cache.get_target("g").module_id == module_id


def test_members_of_an_archive_inline_functions_of_one_another(cache: Cache) -> None:
    """Without what their compilers say of one call only."""
    declared = "declare void @follow(ptr, ptr)\n"
    members = {"one": bitcode(FOLLOWED["follow"]), "two": bitcode(declared + FOLLOWED["kernel"])}
    cache.add_module(ModuleSource(archive(**members), {"kernel": None}))
    assert follow(cache.get_target("kernel")) == 3


@pytest.mark.parametrize("order", [1, -1])
def test_what_one_member_promises_of_a_function_is_not_valid_for_calls_of_others(cache: Cache, order: int) -> None:
    quick = "declare i64 @work(i64) memory(none) nounwind willreturn\n" + caller("quick", "work").partition("\n")[2]
    careful = "declare i64 @work(i64)\ndefine i64 @careful(i64 %x) {\n  %a = call i64 @work(i64 %x)\n  %r = call i64 @work(i64 %x)\n"
    members = [("quick", bitcode(quick)), ("careful", bitcode(careful + "  ret i64 %r\n}\n"))]
    cache.add_module(ModuleSource(COUNTER))
    cache.add_module(ModuleSource(archive(**dict(members[::order])), {"careful": None, "quick": None}))
    assert cache.get_target("careful")(20) == 40


@pytest.mark.parametrize("overriding", ["member", "source"])
@pytest.mark.parametrize("order", list(itertools.permutations(("own", "other"))))
def test_aliases_in_an_archive_are_those_of_the_body_in_their_own_member(cache: Cache, order: tuple[str, ...], overriding: str) -> None:
    """Whatever the order of the members, and whether a member or another source overrides the weak function."""
    weak, others = adder("hook", 1).replace("define", "define weak"), adder("hook", 100)
    aliases = "@named = alias i64 (i64), ptr @hook\n@given = weak alias i64 (i64), ptr @hook\n"
    users = "".join([caller(f"ask_{name}", name).partition("\n")[2] for name in ("hook", "named", "given")])
    other = others if overriding == "member" else adder("hook", 10).replace("define", "define weak")
    members = {"own": bitcode(weak + aliases + users), "other": bitcode(other + caller("also", "hook").partition("\n")[2])}
    sources = [archive(**{name: members[name] for name in order}), *([others] if overriding == "source" else [])]
    cache.add_modules(map(ModuleSource, sources))
    held = [cache.get_target(name) for name in ("hook", "also", "ask_hook", "named", "ask_named", "given", "ask_given")]
    assert [target(1) for target in held] == [101, 101, 101, 2, 2, 2, 2]
    assert not cache.check(recompile=True).findings


@pytest.mark.skipif(shutil.which("ar") is None, reason="there is no ar")
@pytest.mark.parametrize("name", ["inner", "\\01inner", "\\01in ner"])
def test_types_within_an_archive_are_compared_whatever_the_name(cache: Cache, name: str) -> None:
    """The byte 1 before a name is not part of it."""
    defined = f'define i64 @"{name}"(double %x) {{\n  ret i64 1\n}}\n'
    use = f'declare i64 @"{name}"(...)\ndefine i64 @use() {{\n  %r = call i64 (i64, ...) @"{name}"(i64 4)\n  ret i64 %r\n}}\n'
    with pytest.raises(SignatureMismatchError, match="its parameter 1 is f64, and its user passes i64"):
        cache.add_module(ModuleSource(archive(defined=bitcode(defined), use=bitcode(use))))


def test_an_archive_of_ar_is_read(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "one.o").write_bytes(bitcode(adder("f", 5)))
    (tmp_path / "with_a_name_that_is_long.o").write_bytes(bitcode(adder("g", 6)))
    subprocess.run(
        ["ar", "qcS", "lib.a", "one.o", "with_a_name_that_is_long.o"], cwd=tmp_path, check=True, capture_output=True
    )
    cache.add_module(ModuleSource((tmp_path / "lib.a").read_bytes()))
    assert (cache.get_target("f")(1), cache.get_target("g")(1)) == (6, 7)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (PLAIN, r"an ELF file of machine code without LLVM bitcode: compile with -emit-llvm"),
        (embed(adder("f", 1), ".llvmbc", b"no bitcode"), r"section \.llvmbc is not LLVM bitcode"),
        (archive(**{"machine_code_in_here.o": PLAIN}), r"member 'machine_code_in_here.o' cannot be used: the file is an ELF file"),
        (archive(), "the archive has no members"),
        (archive(**{"some.o": bitcode(adder("f", 1))})[:-9], "archive is truncated: the member 'some.o'|should have"),
        (b"!<arch>\n" + b"x" * 70, "archive is damaged"),
        (b"!<thin>\n", "thin archive, which names other files"),
        (b"\xcf\xfa\xed\xfe" + b"\0" * 40, "a Mach-O object"),
        (b"\x7fELF", "truncated"),
        (archive(one=bitcode(adder("f", 1)), two=bitcode(adder("f", 2))), r"symbol multiply defined|'f'"),
    ],
)  # fmt: skip
def test_what_holds_no_bitcode_is_refused_in_words(cache: Cache, data: bytes, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        cache.add_module(ModuleSource(data))
    assert not cache.has("f")


def test_any_truncation_of_an_archive_is_refused(cache: Cache) -> None:
    data = archive(first=embed(adder("f", 1), ".llvmbc"), second=bitcode(adder("g", 2)))
    for end in range(8, len(data), 61):
        with pytest.raises(CompileError):
            cache.add_module(ModuleSource(data[:end]))


# ---------------------------------------------------------------- hidden symbols


def test_a_module_of_hidden_functions_is_not_added_for_nothing(cache: Cache) -> None:
    text = adder("f", 1).replace("define", "define hidden") + adder("g", 1).replace("define", "define internal")
    text += "@keep = internal global ptr @g\n"
    with pytest.raises(UndefinedSymbolError, match=r"'g' \(internal\)\): name the functions to export in functions="):
        cache.add_module(ModuleSource(text.replace("define hidden", "define internal")))
    with pytest.warns(CacheWarning, match="because all its functions are hidden: 'f'. Name the functions to call in functions="):
        cache.add_module(ModuleSource(text))
    with pytest.raises(SignatureError, match="name it in functions="):
        cache.get_target("f")
    cache.add_module(ModuleSource(text, {"f": None}))
    assert cache.get_target("f")(1) == 2


def test_a_module_without_functions_is_not_added_for_nothing(cache: Cache) -> None:
    with pytest.raises(UndefinedSymbolError, match="defines no functions"):
        cache.add_module(ModuleSource("@g = internal global i64 5\n"))


# ------------------------------------------------------------ versions in names

VERSIONED = {
    "k@1": adder("k", 1).replace("@k", '@"k@1"'),
    "vcall@@16": adder("k", 1).replace("@k", '@"vcall@@16"') + adder("other", 2).replace("@other", '@"vcall..16"'),
    "f": 'module asm ".symver f,api@VERS_1"\n' + adder("f", 1),
    "g": 'module asm ".symver g,api@@VERS_2"\n' + adder("g", 1),
    "h": (
        adder("h@2", 1).replace("@h@2", '@"h@2"').replace("define", "define internal")
        + '@table = global [1 x ptr] [ptr @"h@2"]\n'
        + "define i64 @h(i64 %x) {\n  %p = load volatile ptr, ptr @table\n  %y = call i64 %p(i64 %x)\n  ret i64 %y\n}\n"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("linker", ["ld", "ld.lld", "ziglang"])
@pytest.mark.parametrize("name", VERSIONED)
def test_names_with_versions_are_shared_objects(
    cache: Cache, name: str, linker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if linker != "ziglang" and shutil.which(linker) is None:
        pytest.skip(f"{linker} is not installed")
    monkeypatch.setenv("COMPCACHE_LINKER", linker)
    cache.add_module(ModuleSource(VERSIONED[name]))
    assert cache.get_target(name)(5) == 6
    assert cache.realizations(name)[0].image_kind == "shared"


@pytest.mark.parametrize("linker", ["none", "ld", pytest.param("ld.lld", marks=pytest.mark.slow), "mold"])
def test_imports_with_versions_in_their_names_are_bound(tmp_path: Path, linker: str) -> None:
    if linker != "none" and shutil.which(linker) is None:
        pytest.skip(f"{linker} is not installed")
    script = f"""
    from compcache import Cache, ModuleSource
    cache = Cache(directory)
    cache.add_modules([ModuleSource({VERSIONED["k@1"]!r}), ModuleSource({caller("top", "k").replace("@k", '@"k@1"')!r})])
    result = cache.get_target("top")(5), cache.realizations("top")[0].image_kind
    """
    assert run_fresh(tmp_path, script, COMPCACHE_LINKER=linker) == (6, "shared")


def test_renaming_gives_each_symbol_a_name_of_its_own() -> None:
    text = "".join(adder("x", n).replace("@x", f'@"{name}"') for n, name in enumerate(["a@b", "a@@b", "a.b", "a..b", "xa@b"]))
    obj = codegen.run(lambda context: emit(codegen.parse(text, context)))
    renamed, new_names = patching.rename_versioned(obj, ())
    names = [name for section in reading.code_sections(renamed) for _, _, name in section.functions]
    assert sorted(names) == ["a..b", "a..b.0", "a.b", "a.b.0", "xa.b"]
    assert sorted(new_names) == ["a@@b", "a@b", "xa@b"]
    assert patching.rename_versioned(renamed, ()) == (renamed, {})


@pytest.mark.skipif(shutil.which("clang") is None, reason="there is no clang")
@pytest.mark.parametrize("flags", [["-fembed-bitcode"], ["-flto"], ["-flto=thin"], ["-ffat-lto-objects", "-flto"]])
def test_objects_of_clang_are_taken(cache: Cache, tmp_path: Path, flags: list[str]) -> None:
    source = tmp_path / "source.c"
    source.write_text("long triple(long x) { return 3 * x; }\n", encoding="utf-8")
    command = ["clang", "-O1", "-fPIC", "-c", *flags, str(source), "-o", str(tmp_path / "source.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C"})
    if done.returncode or re.search("unknown|not supported|unused", done.stderr):
        pytest.skip(f"clang: {done.stderr.strip()[:100]}")
    cache.add_module(ModuleSource((tmp_path / "source.o").read_bytes()))
    assert cache.get_target("triple")(14) == 42
