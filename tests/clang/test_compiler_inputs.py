"""What compilers read, by whatever name and at whatever time it changes: code of another source is never taken for this one's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from compcache import Cache, CompileError, clang
from compcache.clang.run import preprocess
from compcache.clang.units import make_unit

if TYPE_CHECKING:
    from pathlib import Path

    from _pytest.mark.structures import ParameterSet

pytestmark = pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")
SCALE = "long scale(long x) { return FACTOR * x; }\n"
#: A compiler that changes a file before or after one of its runs.
CHANGING = """#!/bin/sh
case " $* " in *{run}*) changes=1;; esac
[ -n "$changes" ] && [ {when} = before ] && {change}
{clang} "$@"
status=$?
[ -n "$changes" ] && [ {when} = after ] && {change}
exit $status
"""


def longer(*values: str) -> ParameterSet:
    return pytest.param(*values, marks=pytest.mark.fault)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a\nb#c", *map(longer, ["a#b", "a\\b", "a\\ b", "a\nb", "a$b c", "-x", 'a"b'])], ids=repr)
def test_a_changed_header_is_seen_whatever_its_name(cache: Cache, tmp_path: Path, name: str) -> None:
    header, included = tmp_path / name / "factor.h", tmp_path / "all.h"
    header.parent.mkdir()
    included.write_text('#include "factor.h"\n', encoding="utf-8")
    source = tmp_path / "scale.c"
    source.write_text(f'#include "all.h"\n{SCALE}', encoding="utf-8")
    found = []
    for factor in (2, 3):
        header.write_text(f"#define FACTOR {factor}\n", encoding="utf-8")
        found += [clang.compile(source, flags=["-O1", f"-I{header.parent}"], cache=cache).scale(10) for _ in range(2)]
    assert found == [20, 20, 30, 30]


def test_preprocessors_know_no_file_that_they_could_remove(cache: Cache, tmp_path: Path) -> None:
    """If a header is missing, clang removes the file of its list of headers, whatever file that is: as root also ``/dev/stderr``."""
    compiler, paths = tmp_path / "clang", tmp_path / "paths"
    record = f'case " $* " in *" -MF "*) echo "$*" | sed "s/.* -MF \\([^ ]*\\) .*/\\1/" >> "{paths}"; exit 1;; esac'
    compiler.write_text(f'#!/bin/sh\n{record}\nexec clang "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    with pytest.raises(CompileError):
        clang.compile('#include "missing.h"\n', cc=str(compiler), cache=cache)
    assert [path for path in paths.read_text().splitlines() if not os.path.realpath(os.path.dirname(path)).startswith("/proc/")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "restriction",
    [
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))",
        "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
    ],
    ids=["files of at most 64 bytes", "no current directory"],
)
def test_sources_compile_where_no_file_can_be_written(tmp_path: Path, restriction: str) -> None:
    """Compilers write to pipes, and need the current directory only for relative paths."""
    header, source = tmp_path / "factor.h", tmp_path / "scale.c"
    header.write_text("#include <stdint.h>\n#define FACTOR 7\n", encoding="utf-8")
    source.write_text(f'#include "factor.h"\n{SCALE}', encoding="utf-8")
    script = f"from compcache import clang\n{restriction}\nprint(clang.compile({str(source)!r}).scale(10))"
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "COMPCACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}  # it would be cut
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert finished.stdout == "70\n", finished.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("first/nested/factor.h", "#define FACTOR 3\n"),
        ("absent/nested/factor.h", "#define FACTOR 3\n"),
        ("source/nested/factor.h", "#define FACTOR 3\n"),
        ("nested/summand.h", "#define SUMMAND 10\n"),
        ("third/option.h", "#undef FACTOR\n#define FACTOR 3\n"),
    ],
)
def test_a_new_file_that_the_compiler_finds_before_another_is_seen(
    cache: Cache, tmp_path: Path, name: str, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory in ("source", "first", "second/nested", "third"):
        (tmp_path / directory).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    source, new = tmp_path / "source/scale.c", tmp_path / name
    (tmp_path / "second/nested/factor.h").write_text("#define FACTOR 2\n", encoding="utf-8")
    (tmp_path / "second/nested/summand.h").write_text("#define SUMMAND 0\n", encoding="utf-8")
    source.write_text(
        '#include "nested/factor.h"\n#if __has_include /* a comment */ \\\n(<option.h>)\n#include <option.h>\n#endif\n'
        "int scale(int x) { return FACTOR * x + SUMMAND; }\n",
        encoding="utf-8",
    )
    flags = ["-O1", "-include", "nested/summand.h", "-Iabsent", "-Ifirst", "-Isecond//", "-Ithird"]
    found = [clang.compile(source, flags=flags, cache=cache).scale(10) for _ in range(2)]
    new.parent.mkdir(parents=True, exist_ok=True)
    new.write_text(content, encoding="utf-8")
    found += [clang.compile(source, flags=flags, cache=cache).scale(10) for _ in range(2)]
    new.unlink()
    found += [clang.compile(source, flags=flags, cache=cache).scale(10)]
    assert found == [20, 20, 30, 30, 20]


@pytest.mark.slow
def test_a_path_counts_as_it_is_written(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = '#include "factor.h"\nint scale(int x) { return FACTOR * x; }\nconst char *name(void) { return __FILE__; }\n'
    for directory, factor in (("first", 2), ("second/nested", 3)):
        (tmp_path / directory).mkdir(parents=True)
        folder = tmp_path / directory.partition("/")[0]
        (folder / "factor.h").write_text(f"#define FACTOR {factor}\n", encoding="utf-8")
        (folder / "scale.c").write_text(code, encoding="utf-8")
    (tmp_path / "first" / "link").symlink_to(tmp_path / "second" / "nested")
    monkeypatch.chdir(tmp_path)
    functions = {"scale": "i32(i32)", "name": "cstr()"}
    paths = ("first/scale.c", f"{tmp_path}/first/scale.c", "first/link/../scale.c")
    kernels = [clang.compile(path, functions=functions, cache=cache) for path in paths]
    assert [kernel.scale(10) for kernel in kernels] == [20, 20, 30]
    assert [kernel.name() for kernel in kernels] == list(paths)


@pytest.mark.slow
def test_a_precompiled_header_beside_an_included_file_counts(cache: Cache, tmp_path: Path) -> None:
    header, other = tmp_path / "factor.h", tmp_path / "other.h"
    header.write_text("#define FACTOR 2\n", encoding="utf-8")
    flags, found = ["-O1", "-include", str(header)], []
    found.append(clang.compile(SCALE, flags=flags, cache=cache).scale(10))
    for factor in (3, 4):
        other.write_text(f"#define FACTOR {factor}\n", encoding="utf-8")
        subprocess.run(["clang", "-fPIC", "-O1", "-x", "c-header", str(other), "-o", f"{header}.gch"], check=True)
        found.append(clang.compile(SCALE, flags=flags, cache=cache).scale(10))
    assert found == [20, 30, 40]


@pytest.mark.slow
def test_preprocessors_and_compilers_agree_that_code_is_position_independent(cache: Cache, tmp_path: Path) -> None:
    header, found = tmp_path / "factor.h", []
    code = f'#ifdef __PIE__\n#define FACTOR 1\n#else\n#include "{header}"\n#endif\n{SCALE}'
    for factor in (2, 3):
        header.write_text(f"#define FACTOR {factor}\n", encoding="utf-8")
        found += [clang.compile(code, flags=["-O1"], cache=cache).scale(10)]
    assert found == [20, 30]


@pytest.mark.slow
def test_a_new_file_that_arrives_after_the_preprocessor_has_looked_is_seen(cache: Cache, tmp_path: Path) -> None:
    source, compiler, new = tmp_path / "scale.c", tmp_path / "cc", tmp_path / "first" / "factor.h"
    for directory, factor in (("first", 3), ("second", 2)):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "factor.h").write_text(f"#define FACTOR {factor}\n", encoding="utf-8")
    new.rename(tmp_path / "new")
    source.write_text("#include <factor.h>\n" + SCALE, encoding="utf-8")
    change = f"cp {tmp_path / 'new'} {new}"
    compiler.write_text(CHANGING.format(run='" -E "', when="after", change=change, clang=shutil.which("clang")), encoding="utf-8")
    compiler.chmod(0o755)
    flags = ["-O1", f"-I{new.parent}", f"-I{tmp_path / 'second'}"]
    time.sleep(0.1)  # the preprocessor runs twice for files that have just been written
    found = [clang.compile(source, flags=flags, cc=str(compiler), cache=cache).scale(10) for _ in range(2)]
    for path in (tmp_path / "new", new):
        path.unlink()
    found.append(clang.compile(source, flags=flags, cc=str(compiler), cache=cache).scale(10))
    assert found == [30, 30, 20]


def test_an_import_in_fortran_reads_no_file(tmp_path: Path) -> None:
    """Otherwise the compiler runs in each process."""
    source, compiler = tmp_path / "f.f90", tmp_path / "flang"
    source.write_text("import :: c_int\n", encoding="utf-8")
    compiler.write_text("#!/bin/sh\nprintf '#line 1 \"f.f90\"\\nimport :: c_int\\n'\n", encoding="utf-8")
    compiler.chmod(0o755)
    assert preprocess(make_unit(source, cc=str(compiler))).files is not None


@pytest.mark.parametrize("name", ["-fsyntax-only.c", longer("@options.c"), longer("-.c")])
def test_a_file_name_is_never_an_option(cache: Cache, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(SCALE.replace("FACTOR", "7"), encoding="utf-8")
    assert clang.compile(name, cache=cache).scale(10) == 70


@pytest.mark.slow
def test_files_of_options_count_with_their_content(cache: Cache, tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    outer.write_text(f"-O1 @{inner}", encoding="utf-8")
    for factor in (2, 3):
        inner.write_text(f"-DFACTOR={factor}", encoding="utf-8")
        assert clang.compile(SCALE, flags=[f"@{outer}"], cache=cache).scale(10) == 10 * factor


@pytest.mark.slow
def test_files_of_options_are_found_beside_the_one_that_names_them(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "outer.cfg").write_text("@inner.cfg\n", encoding="utf-8")
    wraps = "int wraps(int x) { return x + 1 < x; }\n"  # what the preprocessor gives is the same for both flags
    found = []
    for flag in ("-fwrapv", "-fno-wrapv"):
        (tmp_path / "inner.cfg").write_text(flag, encoding="utf-8")
        flags = ["-O2", "--config", str(tmp_path / "outer.cfg")]
        found += [clang.compile(wraps, flags=flags, cache=cache).wraps(2**31 - 1)]
    assert found == [1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", longer("--config")])
def test_files_of_flags_that_no_flag_names_count_with_their_content(cache: Cache, tmp_path: Path, name: str) -> None:
    """Clang finds them in directories of the system and the user, and names them in its version text."""
    configuration, compiler = tmp_path / "of-test.cfg", tmp_path / "cc"
    if name == "default":  # only newer versions have default files
        compiler.write_text(
            f'#!/bin/sh\ncase " $* " in *" -v "*) echo "Configuration file: {configuration}" >&2;; esac\n'
            f'exec clang "$@" $(cat {configuration} 2>&-)\n',
            encoding="utf-8",
        )
        flags = ["-O2"]
    else:
        compiler.write_text('#!/bin/sh\nexec clang "$@"\n', encoding="utf-8")
        flags = ["-O2", f"--config-user-dir={tmp_path}", "--config", configuration.name]
    compiler.chmod(0o755)
    wraps = "int wraps(int x) { return x + 1 < x; }\n"
    found = []
    for flag in ("-fwrapv", "-fno-wrapv"):
        configuration.write_text(flag, encoding="utf-8")
        found += [clang.compile(wraps, flags=flags, cc=str(compiler), cache=cache).wraps(2**31 - 1) for _ in range(2)]
    assert found == [1, 1, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["flags", "a file of flags", "the environment"])
def test_lists_of_macros_are_no_code(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """All sources with the same macros would have the code of the first one."""
    (tmp_path / "flags").write_text("-dM", encoding="utf-8")
    flags = {"flags": ["-Wp,-dM"], "a file of flags": [f"@{tmp_path}/flags"], "the environment": []}[place]
    if place == "the environment":
        monkeypatch.setenv("CCC_OVERRIDE_OPTIONS", "+-dM")
    with pytest.raises(CompileError, match="write a list of macros instead of code: remove -dM"):
        clang.compile(SCALE, flags=["-O1", "-DFACTOR=2", *flags], cache=cache)


@pytest.mark.slow
def test_a_file_of_flags_that_appears_later_counts(cache: Cache, tmp_path: Path) -> None:
    """The compiler reads it in each run, whatever it has read before."""
    configuration, compiler = tmp_path / "of-test.cfg", tmp_path / "cc"
    compiler.write_text(
        f'#!/bin/sh\nif [ -e {configuration} ]; then case " $* " in *" -v "*) echo "Configuration file: {configuration}" >&2;; esac\n'
        f'exec clang "$@" $(cat {configuration}); fi\nexec clang "$@"\n',
        encoding="utf-8",
    )
    compiler.chmod(0o755)
    wraps = "int {}(int x) {{ return x + 1 < x; }}\n"
    flags = ["-O2", "-fno-wrapv"]
    assert clang.compile(wraps.format("first"), flags=flags, cc=str(compiler), cache=cache).first(2**31 - 1) == 0
    configuration.write_text("-fwrapv", encoding="utf-8")
    assert clang.compile(wraps.format("wraps"), flags=flags, cc=str(compiler), cache=cache).wraps(2**31 - 1) == 1
    configuration.unlink()
    assert clang.compile(wraps.format("wraps"), flags=flags, cc=str(compiler), cache=cache).wraps(2**31 - 1) == 0


@pytest.mark.slow
def test_a_file_for_the_output_is_neither_written_nor_an_obstacle(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    codes = [SCALE.replace("FACTOR", factor) for factor in ("2", "3")]
    assert [clang.compile(code, flags=["-O1", "-oscale.o"], cache=cache).scale(10) for code in codes] == [20, 30]
    assert not os.path.exists("scale.o")


@pytest.mark.slow
def test_files_behind_the_letters_of_a_flag_count(cache: Cache, tmp_path: Path) -> None:
    found = []
    for factor in (2, 3):
        header, overlay = tmp_path / f"factor{factor}.h", tmp_path / "overlay.yaml"
        header.write_text(f"#define FACTOR {factor}\n", encoding="utf-8")
        name = {"name": "factor.h", "type": "file", "external-contents": str(header)}
        folder = {"name": str(tmp_path / "virtual"), "type": "directory", "contents": [name]}
        overlay.write_text(json.dumps({"version": 0, "roots": [folder]}), encoding="utf-8")
        flags = [f"-I{tmp_path / 'virtual'}", f"-ivfsoverlay{overlay}"]
        found.append(clang.compile(f"#include <factor.h>\n{SCALE}", flags=flags, cache=cache).scale(10))
    assert found == [20, 30]


@pytest.mark.parametrize("flag", ["--extern=factor=libfactor.rlib", longer("--extern=noprelude:factor=libfactor.rlib")])
def test_crates_that_flags_name_count_with_their_content(tmp_path: Path, flag: str) -> None:
    """They do not belong to the files that the compiler lists."""
    compiler, crate = tmp_path / "rustc", tmp_path / "libfactor.rlib"
    compiler.write_text("#!/bin/sh\n", encoding="utf-8")
    compiler.chmod(0o755)
    digests = set()
    for content in (b"2", b"3"):
        crate.write_bytes(content)
        digests.add(make_unit("fn f() {}", [flag], str(compiler), "rust", str(tmp_path)).input_digest())
    assert len(digests) == 2


@pytest.mark.slow
def test_names_that_are_not_utf_8_are_names(cache: Cache, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    source = folder / os.fsdecode(b"\xfe.c")
    source.write_text(f"#include <factor.h>\n{SCALE}", encoding="utf-8")
    found = []
    for factor in (2, 3):
        (folder / "factor.h").write_text(f"#define FACTOR {factor}\n", encoding="utf-8")
        found += [clang.compile(source, flags=["-O1", f"-I{folder}"], cache=cache).scale(10) for _ in range(2)]
    assert found == [20, 20, 30, 30]
    assert any(name.startswith("scale-") for name in cache)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["-lvalue", "-l:libvalue.a"])
def test_libraries_that_flags_name_count_with_their_content(cache: Cache, tmp_path: Path, name: str) -> None:
    found = []
    for value in (1, 2):
        (tmp_path / "value.c").write_text(f"int value(void) {{ return {value}; }}\n", encoding="utf-8")
        subprocess.run(["clang", "-c", "-fPIC", "value.c"], cwd=tmp_path, check=True)
        subprocess.run(["ar", "rcs", "libvalue.a", "value.o"], cwd=tmp_path, check=True)
        code = "int value(void);\nint twice(void) { return 2 * value(); }\n"
        found += [clang.compile(code, flags=["-O1", f"-L{tmp_path}", name], cache=cache).twice()]
    assert found == [2, 4]


@pytest.mark.slow
def test_flags_of_the_environment_count(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    wraps = "int wraps(int x) { return x + 1 < x; }\n"
    found = []
    for flag in ("-fwrapv", "-fno-wrapv"):
        monkeypatch.setenv("CCC_OVERRIDE_OPTIONS", f"+{flag}")
        found += [clang.compile(wraps, cache=cache).wraps(2**31 - 1)]
    assert found == [1, 0]


@pytest.mark.slow
def test_options_count_with_their_content(cache: Cache) -> None:
    code = "extern int table[5000];\nint at(int i) { return table[i]; }\n"
    table = np.arange(5000, dtype=np.int32)
    other = np.where(table == 2500, 7, table).astype(np.int32)  # numpy prints both alike
    found = [clang.compile(code, globals={"table": given}, cache=cache)["at"](2500) for given in (table, other, table.copy())]
    assert found == [2500, 7, 2500]


@pytest.mark.slow
def test_files_that_assembly_reads_count_with_their_content(cache: Cache, tmp_path: Path) -> None:
    code = '#define QUOTED(x) "\\"" x "\\""\n__asm__(".pushsection .rodata\\nblob: .incbin " QUOTED("PATH") "\\n.popsection");\n'
    code += "extern const char blob[];\nint first(void) { return blob[0]; }\n"
    blob = tmp_path / "blob"
    found = []
    for content in (b"A", b"B", b"A"):
        blob.write_bytes(content)
        found += [clang.compile(code.replace("PATH", str(blob)), cache=cache).first()]
    assert found == [65, 66, 65]


@pytest.mark.slow
def test_modules_that_code_imports_count_with_their_content(cache: Cache, tmp_path: Path) -> None:
    """A preprocessor writes that a module is imported, but not what it contains."""
    (tmp_path / "module.modulemap").write_text('module Factor { header "factor.h" export * }\n', encoding="utf-8")
    flags = ["-O1", "-fmodules", f"-fmodules-cache-path={tmp_path / 'modules'}", f"-I{tmp_path}"]
    found = []
    for number, factor in enumerate((2, 3)):
        header = tmp_path / "factor.h"
        header.write_text(f"static inline long factor(void) {{ return {factor}; }}\n", encoding="utf-8")
        os.utime(header, (1e9 + number, 1e9 + number))  # clang compares whole seconds
        source = f'#include "factor.h"\n{SCALE.replace("FACTOR", "factor()")}'
        found += [clang.compile(source, flags=flags, cache=cache).scale(10) for _ in range(2)]
    assert found == [20, 20, 30, 30]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("rustc") is None, reason="rustc is not installed")
def test_variables_that_rust_asks_for_count(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    code = '#[no_mangle]\npub extern "C" fn version() -> i32 { env!("OF_TEST").len() as i32 }\n'
    for value in ("a", "bb"):
        monkeypatch.setenv("OF_TEST", value)
        try:
            compiled = clang.compile(code, language="rust", cache=cache)
        except CompileError as error:
            pytest.skip(f"this rustc writes bitcode of a newer LLVM: {error}")
        assert compiled.version() == len(value)


@pytest.mark.slow
def test_numbers_of_lines_are_part_of_code_that_asks_for_them(cache: Cache) -> None:
    text = "long line(void) { return __builtin_LINE(); }\n"
    for empty in (0, 3):
        assert clang.compile("\n" * empty + text, cache=cache).line() == 1 + empty


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", longer("u8"), longer("L")])
def test_lines_of_raw_strings_count(cache: Cache, prefix: str) -> None:
    texts = ["a\n\nb", "a\nb", 'a\n# 5 "x.h"\nb', 'a\n# 5 "longer.h"\nb']
    codes = [f'extern "C" long size() {{ return sizeof({prefix}R"({text})") / sizeof({prefix}""); }}\n' for text in texts]
    sizes = [clang.compile(code, language="c++", cache=cache)["size"]() for code in codes]
    assert sizes == [len(text) + 1 for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["\\8", "\\777"])
def test_lines_of_raw_strings_may_look_like_line_markers(cache: Cache, name: str) -> None:
    text = f'a\n# 1 "{name}" 1\nb'
    code = f'extern "C" long size() {{ return sizeof(R"({text})"); }}\n'
    assert clang.compile(code, language="c++", cache=cache)["size"]() == len(text) + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "run", "when"),
    [
        ("factor.h", " -E ", "after"), ("scale.c", " -c ", "before"),
        *[longer(*case) for case in product(("scale.c", "factor.h"), (" -E ", " -c "), ("before", "after"))],
    ],
)  # fmt: skip
def test_what_changes_while_it_is_compiled_is_not_believed(
    cache: Cache, tmp_path: Path, changed: str, run: str, when: str
) -> None:
    """An editor saves a file between two runs of the compiler: no later call may get what was made of the other text."""
    source, header, compiler = tmp_path / "scale.c", tmp_path / "factor.h", tmp_path / "cc"
    header.write_text("#define FACTOR 2\n", encoding="utf-8")
    source.write_text(f'#include "factor.h"\n{SCALE}', encoding="utf-8")
    new = "#define FACTOR 3" if changed == "factor.h" else SCALE.replace("FACTOR", "3").strip()
    change = f"[ ! -e {tmp_path}/done ] && touch {tmp_path}/done && printf '%s\\n' '{new}' > {tmp_path / changed}"
    text = CHANGING.format(run=f'"{run}"', when=when, change=change, clang=shutil.which("clang"))
    compiler.write_text(text, encoding="utf-8")
    compiler.chmod(0o755)
    try:
        first = clang.compile(source, cc=str(compiler), cache=cache).scale(10)
    except CompileError as error:
        assert "compile the source again" in str(error)  # noqa: PT017 - or it is right
    else:
        assert first in (20, 30)
    assert os.path.exists(tmp_path / "done")
    assert clang.compile(source, cc=str(compiler), cache=cache).scale(10) == 30
    header.write_text("#define FACTOR 2\n", encoding="utf-8")
    source.write_text(f'#include "factor.h"\n{SCALE}', encoding="utf-8")
    assert clang.compile(source, cc=str(compiler), cache=cache).scale(10) == 20
