"""``compcache add`` and ``compcache call``."""

from __future__ import annotations

import json
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import pytest
from cli_process import KERNELS, compcache, fill, fresh
from helpers import adder, caller, constant

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from pathlib import Path

EVERY_TYPE = """\
define i64 @i64(i64 %x) { ret i64 %x }
define i8 @u8(i8 %x) { ret i8 %x }
define double @f64(double %x) { ret double %x }
define float @f32(float %x) { ret float %x }
define i1 @bool(i1 %x) { ret i1 %x }
define ptr @cstr(ptr %x) { ret ptr %x }
define ptr @ptr(ptr %x) { ret ptr %x }
define void @void() { ret void }
"""
SIGNATURES = [f"{t}={t}({t})" for t in ("i64", "u8", "f64", "f32", "bool", "cstr", "ptr")] + ["void=void()"]


def add(directory: Path, path: object, *options: object) -> dict[str, Any]:
    done = compcache("--dir", directory, "add", path, "--json", *options)
    assert (done.status, done.err) == (0, "")
    found: dict[str, Any] = json.loads(done.out)[0]
    return found


def call(directory: Path, *arguments: object, **options: Any) -> str:
    done = compcache("--dir", directory, "call", *arguments, **options)
    assert (done.status, done.err) == (0, "")
    return done.out


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one function of each scalar type."""
    root = tmp_path_factory.mktemp("typed")
    source = root / "types.ll"
    source.write_text(EVERY_TYPE)
    add(root / "cache", source, *[word for text in SIGNATURES for word in ("--export", text)])
    return root / "cache"


@pytest.mark.slow
def test_assembly_and_bitcode_files_give_the_same_module(directory: Path, tmp_path: Path) -> None:
    text, bitcode = tmp_path / "f.ll", tmp_path / "f.bc"
    text.write_text(adder("increment", 1))
    with llvm.parse_assembly(adder("increment", 1)) as module:
        bitcode.write_bytes(module.as_bitcode())
    added = [add(directory, path) for path in (text, bitcode)]
    assert [row["functions"] for row in added] == [[{"func_name": "increment", "signature": "i64(x: i64)"}]] * 2
    assert call(directory, "increment", "41") == "42\n"


@pytest.mark.slow
def test_standard_input_is_a_file_too(directory: Path) -> None:
    done = compcache("--dir", directory, "add", "-", input=constant("seven", 7))
    assert done.status == 0
    assert done.out.split("\t")[1:3] == ["-", "seven"]
    assert call(directory, "seven") == "7\n"


def test_the_module_is_what_the_library_would_have_made(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "f.ll"
    path.write_text(constant("seven", 7))
    with Cache(directory) as cache:
        module_id = cache.add_module(ModuleSource(constant("seven", 7), optimize=1))
    assert add(directory, path, "-O", "1")["module_id"] == module_id


@pytest.mark.slow
def test_files_can_use_one_another_in_their_order(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "callee.ll").write_text(adder("callee", 1))
    (tmp_path / "caller.ll").write_text(caller("caller", "callee", plus=10))
    done = compcache("--dir", directory, "add", tmp_path / "callee.ll", tmp_path / "caller.ll")
    assert (done.status, len(done.out.splitlines())) == (0, 2)
    assert call(directory, "caller", "100") == "111\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("kernel.xyz", b"def f(x): return x\n", "the extension '.xyz' does not identify its language"),
        ("header.h", b"/* define nothing */\nlong f(long);\n", "the extension '.h' does not identify its language"),
        ("Makefile", b"all:\n\techo\n", "its name without an extension does not identify its language"),
        ("broken.ll", b"no code\n", "LLVM cannot parse the code"),
    ],
)
def test_a_file_that_is_no_code_is_named_by_its_ending(
    directory: Path, tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    done = compcache("--dir", directory, "add", tmp_path / name)
    assert done.status == 2
    assert f"{name}: " in done.err
    assert reason in done.err


@pytest.mark.slow
def test_llvm_code_is_code_under_any_name(directory: Path, tmp_path: Path) -> None:
    for number, text in enumerate((adder("f0", 1), f"; a remark\n\n{adder('f1', 1)}", "\n@f2 = constant i64 5\n")):
        add(directory, write(tmp_path / f"code{number}.any", text))
    assert call(directory, "f1", 1) == "2\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.slow
def test_advice_is_in_words_of_the_command_line(directory: Path, tmp_path: Path) -> None:
    def told(code: str, *options: str) -> str:
        done = compcache("--dir", directory, "add", write(tmp_path / "f.ll", code), *options)
        assert done.status == 2
        return done.err

    missing = 'declare i64 @"{0}"(i64)\ndefine i64 @f(i64 %x) {{\n%y = call i64 @"{0}"(i64 %x)\nret i64 %y\n}}\n'
    assert "name the symbol in --import if" in told(missing.format("nobodys"))
    assert "in --global if it is" in told(missing.format("nobodys"))
    assert "name its library in --library or --archive" in told(missing.format("nobodys"))
    assert "pass --archive libflang_rt.runtime.a, or" in told(missing.format("_FortranANothing"))
    assert "pass that .a file in --archive" in told(missing.format("rust_begin_unwind"))
    assert "soname or path in --library" in told(adder("f", 1), "--library", "no_such_library")
    assert "name the functions to export in -" in told(adder("f", 1).replace("define", "define internal") + "@k = internal global ptr @f\n")


@pytest.mark.slow
def test_hidden_functions_alone_are_told(directory: Path, tmp_path: Path) -> None:
    hidden = write(tmp_path / "hidden.ll", adder("f", 1).replace("define", "define hidden"))
    done = compcache("--dir", directory, "add", hidden)
    assert done.status == 0
    assert "warning: " in done.err
    assert "all functions are hidden" in done.err
    assert compcache("--dir", directory, "add", hidden, write(tmp_path / "user.ll", caller("g", "f"))).err == ""


@pytest.mark.slow
def test_an_import_can_come_later(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "caller.ll").write_text(caller("caller", "its_own_name"))
    refused = compcache("--dir", directory, "add", tmp_path / "caller.ll")
    assert refused.status == 2
    assert "'its_own_name'" in refused.err
    assert "--import" in refused.err
    add(directory, tmp_path / "caller.ll", "--import", "its_own_name=callee")
    missing = compcache("--dir", directory, "call", "caller", "1")
    assert missing.status == 2
    assert "needs 'callee'" in missing.err
    (tmp_path / "callee.ll").write_text(adder("callee", 5))
    add(directory, tmp_path / "callee.ll")
    assert call(directory, "caller", "1") == "6\n"


def test_a_file_that_fails_does_not_stop_the_others(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "good.ll").write_text(constant("good", 1))
    (tmp_path / "bad.ll").write_text("define i64 @bad( {")
    (tmp_path / "binary.ll").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "assembly.S").write_text(".globl f\nf: ret\n")
    paths = [tmp_path / name for name in ("bad.ll", "good.ll", "missing.ll", "binary.ll", "assembly.S")]
    done = compcache("--dir", directory, "add", *paths)
    assert done.status == 2
    errors = [line for line in done.err.splitlines() if not line.startswith("  ")]  # LLVM's own lines stand below
    assert [line.split(": ")[2] for line in errors] == [str(paths[0]), *map(str, paths[2:])]
    assert "assemble it (clang -c)" in errors[-1]
    assert "expected" in done.err
    assert errors[1].endswith("cannot be read: No such file or directory")
    assert call(directory, "good") == "1\n"


@pytest.mark.parametrize(
    ("llvm_type", "value", "result"),
    [
        ("i64", "0x10", "16"),
        ("double", "2.5", "2.5"),
        ("double", "3", "3.0"),
        ("i64", "true", "1"),
    ],
)
def test_globals_are_defined_on_the_command_line(
    directory: Path, tmp_path: Path, llvm_type: str, value: str, result: str
) -> None:
    path = tmp_path / "g.ll"
    path.write_text(f"""\
@g = external global {llvm_type}
define {llvm_type} @get() {{
  %x = load {llvm_type}, ptr @g
  ret {llvm_type} %x
}}""")
    add(directory, path, "--global", f"g={value}")
    assert call(directory, "get") == f"{result}\n"


@pytest.mark.slow
def test_text_and_bytes_and_files_and_symbols_are_globals_too(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "g.ll"
    path.write_text("""\
@text = external global ptr
@data = external global ptr
@file = external global ptr
declare i64 @length(ptr)
define ptr @get_text() {
  %x = load ptr, ptr @text
  ret ptr %x
}
define ptr @get_data() {
  %x = load ptr, ptr @data
  ret ptr %x
}
define i64 @get_length() {
  %x = load ptr, ptr @file
  %n = call i64 @length(ptr %x)
  ret i64 %n
}""")
    (tmp_path / "file").write_bytes(b"four")
    options = [
        "--global",
        "text=text:a=b",
        "--global",
        "data=bytes:4142",
        "--global",
        f"file=@{tmp_path / 'file'}",
    ]
    exports = ["--export", "get_text=cstr()", "--export", "get_data=cstr()", "--export", "get_length"]
    add(directory, path, *options, "--global", "length=native:strlen", *exports)
    assert call(directory, "get_text") == "a=b\n"
    assert call(directory, "get_data") == "AB\n"
    assert call(directory, "get_length") == "4\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "argument", "result"),
    [
        ("i64", "-3", "-3"),
        ("i64", "0x7f", "127"),
        ("i64", "1_000", "1000"),
        ("u8", "255", "255"),
        ("f64", "-1e-3", "-0.001"),
        ("f64", "0x1.8p1", "3.0"),
        ("f64", "nan", "nan"),
        ("f32", "0.5", "0.5"),
        ("bool", "true", "true"),
        ("bool", "0", "false"),
        ("cstr", "--json=é", "--json=é"),
        ("ptr", "null", "0"),
        ("ptr", "0x1000", "4096"),
    ],
)
def test_arguments_are_read_by_the_signature(typed: Path, name: str, argument: str, result: str) -> None:
    assert call(typed, name, "--", argument) == f"{result}\n"


@pytest.mark.slow
def test_negative_numbers_need_no_separator(typed: Path) -> None:
    assert call(typed, "i64", "-42") == "-42\n"
    assert call(typed, "f64", "-inf") == "-inf\n"


def test_nothing_is_printed_for_no_result(typed: Path) -> None:
    assert call(typed, "void") == ""
    assert json.loads(call(typed, "void", "--json")) == {"result": None, "buffers": {}}


def test_json_has_no_nan(typed: Path) -> None:
    assert json.loads(call(typed, "f64", "nan", "--json"), parse_constant=pytest.fail)["result"] == "nan"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["i64", "x"], "argument 1 (arg0: i64) cannot be 'x': expected an integer"),
        (["i64", "1.5"], "expected an integer"),
        (["u8", "256"], "must be between 0 and 255"),
        (["bool", "maybe"], "expected true or false"),
        (["f64", ""], "expected a number"),
        (["i64"], "'i64' takes 1 argument, not 0"),
        (["i64", "1", "2"], "'i64' takes 1 argument, not 2"),
        (["nobody"], "'compcache ls' lists the cached functions"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(typed: Path, arguments: list[str], reason: str) -> None:
    done = compcache("--dir", typed, "call", *arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("compcache: error: ")
    assert done.err.count("\n") == 1
    assert reason in done.err


@pytest.mark.slow
def test_buffers_are_lists_repeats_and_files_and_come_back_when_they_changed(
    directory: Path, tmp_path: Path
) -> None:
    fill(directory)
    assert call(directory, "norm", "3,4") == "5.0\n"
    assert call(directory, "dot", "1,2,3", "1*3") == "6.0\n"
    assert call(directory, "dot", "", "1") == "0.0\n"
    assert call(directory, "sieve", "0*8") == "4\nflags=0,0,1,1,0,1,0,1\n"
    assert call(directory, "sieve", "0*100").endswith(",... (100 elements; --json prints all)\n")
    assert len(json.loads(call(directory, "sieve", "0*100", "--json"))["buffers"]["flags"]) == 100
    (tmp_path / "vector").write_bytes(struct.pack("2d", 6.0, 8.0))
    assert call(directory, "norm", f"@{tmp_path / 'vector'}") == "10.0\n"
    assert call(directory, "norm", "@-", input=struct.pack("1d", 7.0)) == "7.0\n"
    assert call(directory, "levenshtein", "kitten", "sitting") == "3\n"
    broken = compcache("--dir", directory, "call", "norm", "@-", input=b"123")
    assert (broken.status, broken.out) == (2, "")
    assert "bytes, but must have a multiple of" in broken.err


def test_a_call_does_not_import_llvm(directory: Path) -> None:
    fill(directory)
    done = fresh("--dir", directory, "call", "norm", "3,4", PYTHONPROFILEIMPORTTIME="1")
    assert done.out == "5.0\n"
    assert "compcache.hit.loader" in done.err
    assert "llvmlite" not in done.err


@pytest.mark.slow
def test_a_table_of_bytes_serves_a_kernel(directory: Path) -> None:
    table = b"".join(_crc_of(value).to_bytes(4, "little") for value in range(256))
    add(
        directory,
        KERNELS / "crc32.ll",
        "--export",
        "crc32=u32(const u8[:])",
        "--global",
        f"crc_table=bytes:{table.hex()}",
    )
    assert call(directory, "crc32", "@-", input=b"123456789") == f"{zlib.crc32(b'123456789')}\n"


def _crc_of(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
    return value


@pytest.mark.slow
@pytest.mark.parametrize(("signature", "prefix"), [("u8(cstr)", ""), ("u8(const ptr)", "text:")])
def test_a_text_may_have_any_bytes(directory: Path, signature: str, prefix: str) -> None:
    """Such as the name of a file in another encoding."""
    code = "define i8 @first(ptr readonly %x) {\n%value = load i8, ptr %x\nret i8 %value\n}\n"
    assert compcache("--dir", directory, "add", "-", "--export", f"first={signature}", input=code).status == 0
    assert compcache("--dir", directory, "call", "first", prefix + os.fsdecode(b"\xff")).out == "255\n"
    assert compcache("--dir", directory, "call", "first", f"{prefix}é").out == "195\n"


def test_a_missing_compiler_is_reported_with_the_option(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "one.c").write_text("int one(void) { return 1; }\n")
    done = compcache("--dir", directory, "add", tmp_path / "one.c", "--cc", "no-such-compiler")
    assert done.status == 2
    assert done.err.endswith("choose another compiler that is built on LLVM (--cc)\n")
