"""Static libraries: `ModuleSource(archives=[...])`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers import run_fresh

from compcache import Cache, LibraryError, ModuleSource, UndefinedSymbolError
from compcache.content.names import content_digest
from compcache.formats.host import this_libc
from compcache.images import archives

USER = "declare i32 @add_two(i32)\ndefine i32 @answer() {\n  %x = call i32 @add_two(i32 40)\n  ret i32 %x\n}\n"
SOURCES = {
    "first": (
        "#include <stdlib.h>\nint more(int);\n__attribute__((weak)) int of_later_systems(int);\n"
        "int add_two(int x) { return of_later_systems ? 0 : more(abs(x)) + 1; }\n"
    ),
    "second": "int more(int x) { return x + 1; }\n",
    "unused": "int nowhere(int);\nint unused(int x) { return nowhere(x); }\n",
    "state": "static long sum;\nlong _FortranAioCount(double x, long y) { return sum += (long)(x * 2) + y; }\n",
    "wide": "unsigned long divide(unsigned long x, unsigned long y) { return (unsigned __int128)x * x / y; }\n",
    "counter": "static long calls;\nlong count_calls(long x) { return calls += x; }\n",
    "lacking": "int nowhere(int);\nint add_three(int x) { return nowhere(x); }\n",
    "unsure": "__attribute__((weak)) int nowhere(int);\nint add_three(int);\nint add_four(int x) { return nowhere ? add_three(x) : 4; }\n",
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of several members, one of which needs another and the C library, and one what nobody has."""
    if shutil.which("cc") is None or shutil.which("ar") is None:
        pytest.skip("there is no C compiler")
    directory = tmp_path_factory.mktemp("archive")
    for name, text in SOURCES.items():
        (directory / f"{name}.c").write_text(text, encoding="utf-8")
        subprocess.run(["cc", "-O1", "-fPIC", "-c", f"{name}.c"], cwd=directory, check=True)
    subprocess.run(["ar", "rcs", "libown.a", *[f"{name}.o" for name in SOURCES]], cwd=directory, check=True)
    return directory / "libown.a"


@pytest.mark.slow
@pytest.mark.parametrize("linker", ["ld", "ld.lld", "mold", "ziglang"])
def test_what_is_used_of_an_archive_is_in_the_image(
    cache: Cache, archive: Path, linker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if linker != "ziglang" and shutil.which(linker) is None:
        pytest.skip(f"{linker} is not installed")
    monkeypatch.setenv("COMPCACHE_LINKER", linker)
    copy = Path(shutil.copy(archive, tmp_path / "libcopy.a"))
    cache.add_module(ModuleSource(USER, archives=[str(copy)]))
    if linker != "ziglang":
        with pytest.raises(UndefinedSymbolError, match="no library defines 'nowhere', used by"):  # weakly in one member, but not in another
            cache.add_module(ModuleSource(USER.replace("add_two", "add_four"), archives=[str(copy)]))
    copy.unlink()
    script = "from compcache import Cache; result = Cache(directory).get_target('answer')()"
    assert run_fresh(cache.path, script) == 42


@pytest.mark.slow
def test_archives_are_found_by_their_names(cache: Cache, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBRARY_PATH", str(archive.parent))
    cache.add_module(ModuleSource(USER, archives="libown.a"))
    assert cache.get_target("answer")() == 42


@pytest.mark.skipif(not archives.compiler_archives(), reason="GCC is not installed")
def test_arithmetic_of_the_compiler_needs_no_library(cache: Cache, archive: Path) -> None:
    """Compilers link libgcc.a before libgcc_s, whose mapping takes longer than that of the image."""
    code = "declare i64 @divide(i64, i64)\ndefine i64 @square(i64 %x) {\n  %y = call i64 @divide(i64 %x, i64 3)\n  ret i64 %y\n}\n"
    cache.add_module(ModuleSource(code, archives=[str(archive)]))
    script = "from compcache import Cache; f = Cache(directory).get_target('square')\n"
    assert run_fresh(cache.path, script + "result = f(1 << 30), 'libgcc_s' in open('/proc/self/maps').read()") == ((1 << 60) // 3, False)


def test_the_newest_compiler_for_the_c_library_of_the_process_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [f"/usr/lib/gcc/{triple}/{version}/libgcc.a" for triple in ("a-linux-gnu", "a-linux-musl") for version in ("12", "9", "10.2.0")]
    monkeypatch.setattr("glob.glob", lambda _: paths)
    assert archives.compiler_archives() == [paths[3 if this_libc() == "musl" else 0]]


@pytest.mark.parametrize("linked", [False, True])
def test_archives_that_are_not_used_add_nothing(cache: Cache, archive: Path, *, linked: bool) -> None:
    """Build systems name a run time for every file. The functions that members may call at exit are only in images with members."""
    code = "declare i64 @g(i64)\ndefine i64 @f(i64 %x) {\n  %y = call i64 @g(i64 %x)\n  ret i64 %y\n}\n"
    sources = [code.partition("\n")[2].replace("@g", "@labs").replace("@f", "@g"), code]
    cache.add_modules([ModuleSource("declare i64 @labs(i64)\n" * ("@labs" in text) + text, archives=[str(archive)]) for text in sources])
    if linked:
        assert cache.link(["f"]).linked
    script = f"from compcache import Cache; f = Cache(directory).get_target({'f' if linked else 'g'!r})\n"
    assert run_fresh(cache.path, script + "result = f(-7), f._context.module.starter is None") == (7, True)


def test_linked_closures_have_no_second_state_of_an_archive(cache: Cache, archive: Path, tmp_path: Path) -> None:
    own = tmp_path / "libcounter.a"
    subprocess.run(["ar", "rcs", own, archive.parent / "counter.o"], check=True)
    call = "declare i64 @{1}(i64)\ndefine i64 @{0}(i64 %x) {{\n  %y = call i64 @{1}(i64 %x)\n  ret i64 %y\n}}\n"
    pairs = [("user", "count_calls"), ("middle", "user"), ("top", "middle")]
    cache.add_modules([ModuleSource(call.format(*pair), archives=[str(own)]) for pair in pairs])
    assert cache.link(["top"]).linked
    script = "from compcache import Cache\nwith Cache(directory) as cache:\n    user, top = [cache.get_target(name) for name in NAMES]\n"
    for names in (["user", "top"], ["top", "user"]):
        result = "    result = [user(1), top(1), user(1)]"
        assert run_fresh(cache.path, script.replace("NAMES", repr(names)) + result) == [1, 2, 3]


def test_modules_that_use_an_archive_do_not_share_its_state_in_closures(cache: Cache, archive: Path, tmp_path: Path) -> None:
    own = tmp_path / "libcounter.a"
    subprocess.run(["ar", "rcs", own, archive.parent / "counter.o"], check=True)
    user = "declare i64 @count_calls(i64)\ndefine i64 @{0}(i64 %x) {{\n  %y = call i64 @count_calls(i64 %x)\n  ret i64 %y\n}}\n"
    top = "declare i64 @one(i64)\ndeclare i64 @two(i64)\ndeclare i64 @three(i64)\ndefine i64 @top(i64 %x) {\n"
    top += "  %a = call i64 @one(i64 %x)\n  %b = call i64 @two(i64 %x)\n  %c = call i64 @three(i64 %x)\n"
    top += "  %d = mul i64 %b, 100\n  %e = add i64 %a, %d\n  %r = add i64 %e, %c\n  ret i64 %r\n}\n"
    three = "define i64 @three(i64 %x) {\n  ret i64 %x\n}\n"
    sources = [user.format("one"), user.format("two"), three, top]
    cache.add_modules([ModuleSource(text, archives=[str(own)]) for text in sources])
    assert cache.link(["top"]).linked
    assert run_fresh(cache.path, "from compcache import Cache\nresult = Cache(directory).get_target('top')(3)") == 3 + 300 + 3


def test_archives_that_cannot_be_used_are_named(cache: Cache, archive: Path, tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match=r"'libno-such-thing\.a' was not found in \$LIBRARY_PATH and the usual directories"):
        cache.add_module(ModuleSource(USER, archives=["no-such-thing"]))
    (tmp_path / "libbad.a").write_bytes(b"no archive")
    with pytest.raises(LibraryError, match="is not an archive"):
        cache.add_module(ModuleSource(USER, archives=[str(tmp_path / "libbad.a")]))
    with pytest.raises(UndefinedSymbolError, match="no library defines 'nowhere', used by members of the archives"):
        cache.add_module(ModuleSource(USER.replace("add_two", "add_three"), archives=[str(archive)]))


@pytest.mark.parametrize("given_as", ["archives", "libraries"])
def test_names_of_content_know_what_is_in_an_archive(archive: Path, tmp_path: Path, given_as: str) -> None:
    copy = Path(shutil.copy(archive, tmp_path / "libcopy.a"))
    given: dict[str, Any] = {given_as: [str(copy)]}
    before = content_digest(ModuleSource(USER, **given))
    with copy.open("ab") as file:
        file.write(b"\n")
    assert content_digest(ModuleSource(USER, **given)) != before


def test_an_archive_is_read_once_for_all_modules_until_it_changes(
    cache: Cache, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def source(number: int) -> ModuleSource:
        return ModuleSource(USER.replace("@answer", f"@answer_{number}"), archives=[str(copy)])

    def read(path: str, name: str) -> archives.Archive:
        reads.append(path)
        return read_archive(path, name)

    reads: list[str] = []
    read_archive = archives._read_archive
    monkeypatch.setattr(archives, "_read_archive", read)
    copy = Path(shutil.copy(archive, tmp_path / "libcopy.a"))
    cache.add_module(source(0))
    assert len(reads) > 1  # it was written just now, and might be written again before its time changes
    reads.clear()
    monkeypatch.setattr(archives, "_SETTLED", 0)
    cache.add_modules([source(number) for number in range(1, 4)])
    assert reads == [str(copy)]
    shutil.copy(archive, tmp_path / "other.a")
    with (tmp_path / "other.a").open("r+b") as file:  # of the same size and time
        file.seek(-1, 2)
        file.write(b"\1")
    shutil.copystat(copy, tmp_path / "other.a")
    before = content_digest(source(1))
    (tmp_path / "other.a").replace(copy)
    assert content_digest(source(1)) != before
    assert reads == [str(copy)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("together_first", [False, True])
def test_state_of_a_run_time_is_one_for_all_modules(cache: Cache, archive: Path, *, together_first: bool) -> None:
    """Files that one source file of Fortran opens and another one writes."""
    text = """
declare i32 @add_two(i32)
declare i64 @_FortranAioCount(double, i64)
define i64 @{0}(i64 %x) {{
  %a = call i32 @add_two(i32 1)
  %b = zext i32 %a to i64
  %y = call i64 @_FortranAioCount(double 2.5, i64 %x)
  %r = mul i64 %y, %b
  ret i64 %r
}}
"""

    def add_one() -> None:
        cache.add_module(ModuleSource(text.format("one"), archives=[str(archive)]))

    def add_two() -> None:
        cache.add_modules([ModuleSource(text.format(name), archives=[str(archive)]) for name in ("three", "four")])

    for add in (add_two, add_one) if together_first else (add_one, add_two):
        add()
    cache.get_or_compile("two", lambda: ModuleSource(text.format("two"), archives=[str(archive)]))
    script = """
from compcache import Cache
with Cache(directory) as cache:
    functions = [cache.get_target(name) for name in ("one", "two", "three", "four")]
    result = [function(1) for function in functions], sorted(cache)
"""
    assert run_fresh(cache.path, script) == ([18, 36, 54, 72], ["four", "one", "three", "two"])
    assert len(cache.modules()) == 5
