"""``compcache add --compile-commands``: how a build compiles each file."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache

from compcache import CompileError
from compcache.clang.compile_commands import CompileCommand, read_compile_commands
from compcache.clang.units import make_unit

if TYPE_CHECKING:
    from pathlib import Path

needs_clang = pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Three files that need flags of their own: macros, a directory of headers that is relative to the build."""
    for name, text in {
        "include/factor.h": "#define FACTOR 7\nlong base(long);\n",
        "src/base.c": '#include "factor.h"\nlong base(long x) { return x + FACTOR + EXTRA; }\n',
        "src/user file.c": '#include "factor.h"\nlong user(long x) { return base(x) * SCALE; }\n',
        "src/other.cpp": 'extern "C" long base(long);\nextern "C" long other(long x) { auto y = base(x); return y; }\n',
        "src/start.S": "nop\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "build").mkdir()
    write(tmp_path, ENTRIES)
    return tmp_path


def write(project: Path, entries: Any) -> None:
    (project / "build" / "compile_commands.json").write_text(json.dumps(entries).replace("ROOT", str(project)), encoding="utf-8")


ENTRIES: list[dict[str, Any]] = [
    {  # CMake, with GCC
        "directory": "ROOT/build",
        "command": '/usr/bin/cc -DEXTRA=\\"1\\"[0]-\'48\' -I../include -Werror -O2 -MD -MT base.o -MF base.d -o base.o -c ../src/base.c',
        "file": "../src/base.c",
    },
    {  # Bear, through ccache
        "directory": "ROOT/build",
        "arguments": ["ccache", "clang", "-I../include", "-DSCALE=2", "-O1", "-c", "ROOT/src/user file.c", "-ouser.o", "-MFuser.d"],
        "file": "ROOT/src/user file.c",
    },
    {"directory": ".", "arguments": ["clang++", "-std=c++17", "-c", "--", "../src/other.cpp"], "file": "../src/other.cpp", "output": "x.o"},
    {"directory": ".", "arguments": ["clang", "-c", "../src/start.S"], "file": "../src/start.S"},
]


def test_a_database_tells_what_is_compiled_where_and_how(project: Path) -> None:
    build, clang = str(project / "build"), "clang"
    base, user, other = [str(project / "src" / name) for name in ("base.c", "user file.c", "other.cpp")]
    expected = (
        CompileCommand(base, "../src/base.c", build, None, ('-DEXTRA="1"[0]-48', "-I../include", "-O2")),
        CompileCommand(user, user, build, clang, ("-I../include", "-DSCALE=2", "-O1")),
        CompileCommand(other, "../src/other.cpp", build, "clang++", ("-std=c++17",)),
    )
    assert read_compile_commands(project / "build") == expected
    write(project, [*ENTRIES, *ENTRIES])
    assert read_compile_commands(project / "build" / "compile_commands.json") == expected


@pytest.mark.parametrize(
    ("compiler", "expected"),
    [
        ("gcc", None), ("/usr/bin/g++-12", None), ("x86_64-linux-gnu-gcc", None), ("c++", None), ("gfortran", None),
        ("clang-14", "clang-14"), ("/opt/llvm/bin/clang++", "/opt/llvm/bin/clang++"), ("tools/clang", "/b/tools/clang"), ("icx", "icx"),
    ],
)  # fmt: skip
def test_gnu_compilers_give_way_to_clang(tmp_path: Path, compiler: str, expected: str | None) -> None:
    path = tmp_path / "compile_commands.json"
    path.write_text(json.dumps([{"directory": "/b", "file": "a.c", "arguments": [compiler, "-Werror=all", "-c", "a.c"]}]))
    (command,) = read_compile_commands(path)
    assert command.compiler == expected
    assert command.flags == (() if expected is None else ("-Werror=all",))


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({}, "not a compilation database: the JSON text must be a list of entries"),
        ([5], "entry 0 of .* must be a JSON object"),
        ([{"directory": "/"}], 'the key "file" of entry 0 of .* must be the name of a file'),
        ([{"file": "a.c", "directory": 5}], 'the key "directory" of entry 0 of .* must be the path'),
        ([{"file": "a.c", "directory": "/"}], r"entry 0 of .* \(a.c\) must contain the command as a list"),
        ([{"file": "a.c", "arguments": []}], "must contain the command as a list of strings"),
        ([{"file": "a.c", "arguments": ["clang", 5]}], "must contain the command as a list of strings"),
        ([{"file": "a.c", "command": "clang 'a.c"}], "cannot be split into words"),
    ],
)
def test_what_is_no_database_is_told(tmp_path: Path, entries: object, reason: str) -> None:
    path = tmp_path / "compile_commands.json"
    path.write_text(json.dumps(entries))
    with pytest.raises(CompileError, match=reason):
        read_compile_commands(path)
    path.write_text("[")
    with pytest.raises(CompileError, match="is not a compilation database"):
        read_compile_commands(tmp_path)


@pytest.mark.slow
@needs_clang
def test_files_are_compiled_as_the_build_does(project: Path, directory: Path) -> None:
    done = compcache("--dir", directory, "add", "--compile-commands", project / "build", "--json")
    assert done.status == 0, done.err
    assert [os.path.basename(row["file"]) for row in json.loads(done.out)] == ["base.c", "user file.c", "other.cpp"]
    assert [compcache("--dir", directory, "call", name, "1").out for name in ("base", "user", "other")] == ["9\n", "18\n", "9\n"]


@pytest.mark.slow
@needs_clang
def test_files_are_chosen_among_those_of_the_database(project: Path, directory: Path) -> None:
    """What it does not list is not compiled by guess; files that need no compiler are added as ever."""
    (project / "plain.ll").write_text("define i64 @plain() {\nret i64 5\n}\n")
    (project / "unlisted.c").write_text("long unlisted(void) { return 1; }\n")
    chosen = [project / "src" / "base.c", project / "plain.ll"]
    done = compcache("--dir", directory, "add", "--compile-commands", project / "build", *chosen, "--", "-UEXTRA", "-DEXTRA=100")
    assert done.status == 0, done.err
    assert compcache("--dir", directory, "call", "base", "1").out == "108\n"
    done = compcache("--dir", directory, "add", "--compile-commands", project / "build", project / "unlisted.c")
    assert done.status == 2
    assert "unlisted.c: the compile commands have no entry for this file" in done.err


@pytest.mark.slow
@needs_clang
def test_a_file_that_is_compiled_in_two_ways_is_compiled_in_the_first(project: Path, directory: Path) -> None:
    write(project, [ENTRIES[0], {**ENTRIES[0], "command": "cc -DEXTRA=5 -I../include -c ../src/base.c"}])
    done = compcache("--dir", directory, "add", "--compile-commands", project / "build")
    assert done.status == 0
    assert "base.c: the first command is used" in done.err
    assert compcache("--dir", directory, "call", "base", "1").out == "9\n"


@pytest.mark.slow
@needs_clang
def test_the_cause_comes_before_those_that_wait_for_it(project: Path, directory: Path) -> None:
    (project / "src" / "base.c").write_text("long base(long x) { return x +; }\n")
    (project / "src" / "other.cpp").write_text('extern "C" long zlib_like(long);\nextern "C" long other(long x) { return zlib_like(x); }\n')
    sources = [project / "src" / name for name in ("user file.c", "other.cpp", "base.c")]
    done = compcache("--dir", directory, "add", "--compile-commands", project / "build", *sources)
    assert done.status == 2
    errors = [line for line in done.err.splitlines() if line.startswith("compcache: error: ")]
    assert len(errors) == 3
    assert "base.c: clang reports errors" in errors[0]
    assert "user file.c: " in errors[1]
    assert "'base'" in errors[1]
    assert "other.cpp: " in errors[2]
    assert "'zlib_like'" in errors[2]


@pytest.mark.slow
@needs_clang
def test_module_interfaces_are_source_code(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "twice.cppm").write_text('export module twice;\nextern "C" long twice(long x) { return 2 * x; }\n')
    done = compcache("--dir", directory, "add", tmp_path / "twice.cppm", "--", "-std=c++20", "-O1")
    assert done.status == 0, done.err
    assert compcache("--dir", directory, "call", "twice", "4").out == "8\n"


@needs_clang
@pytest.mark.parametrize(("flag", "what"), [("-S", "assembly"), ("-fsyntax-only", "nothing")])
def test_flags_for_another_output_are_refused(project: Path, directory: Path, flag: str, what: str) -> None:
    done = compcache("--dir", directory, "add", project / "src" / "other.cpp", "--", "-O2", flag)
    assert done.status == 2
    assert f"other.cpp: the flag {flag} makes the compiler write {what} instead of code: remove the flag" in done.err
    with pytest.raises(CompileError, match=f"the flag {flag} makes the compiler write {what}"):
        make_unit(project / "src" / "other.cpp", flags=[f"-Wp,{flag}"])


def test_without_a_database_or_files_nothing_is_done(tmp_path: Path, directory: Path) -> None:
    done = compcache("--dir", directory, "add")
    assert (done.status, done.out) == (2, "")
    assert "missing argument 'FILE...'" in done.err
    done = compcache("--dir", directory, "add", "--compile-commands", tmp_path / "nowhere")
    assert done.status == 2
    assert "--compile-commands: " in done.err
    assert "nowhere cannot be read" in done.err
    (tmp_path / "compile_commands.json").write_text("[]")
    assert "has no files in C, C++ or Fortran" in compcache("--dir", directory, "add", "--compile-commands", tmp_path).err
