"""Bad input: each its own error, which names the culprit, and the cache is as it was before."""

from __future__ import annotations

import errno
import os
import pickle
import resource
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import pytest
from helpers import adder, constant, run_fresh, snapshot

from compcache import (
    Cache,
    CacheWarning,
    CompcacheError,
    CompileError,
    Function,
    GlobalValidationError,
    IncompatibleTargetError,
    InvalidNameError,
    ModuleSource,
    SignatureError,
    SignatureMismatchError,
    StorageError,
    UndefinedSymbolError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GOOD = adder("f", 1)
BITCODE: bytes = llvm.parse_assembly(GOOD).as_bitcode()


def external(llvm_type: str) -> str:
    return f"@g = external global {llvm_type}\ndefine ptr @f() {{\nret ptr @g\n}}\n"


REFUSED: dict[str, tuple[Callable[[], ModuleSource], type[CompcacheError], str]] = {
    "no assembly": (lambda: ModuleSource("this is no LLVM"), CompileError, "expected top-level entity"),
    "a syntax error": (lambda: ModuleSource(GOOD.replace("add", "ad")), CompileError, "ad i64"),
    "an undefined value": (
        lambda: ModuleSource(GOOD.replace("%x, 1", "%nothing, 1")),
        CompileError,
        "%nothing",
    ),
    "a type error": (lambda: ModuleSource(GOOD.replace("ret i64 %y", "ret i32 %y")), CompileError, "%y"),
    "no terminator": (
        lambda: ModuleSource("define void @f() {\n%x = add i64 1, 2\n}"),
        CompileError,
        "f|terminator|instruction",
    ),
    "not verified": (
        lambda: ModuleSource(
            "define i64 @f() {\na:\nbr label %c\nb:\nbr label %c\nc:\n%p = phi i64 [1, %a]\nret i64 %p\n}"
        ),
        CompileError,
        "(?i)phi",
    ),
    "truncated bitcode": (lambda: ModuleSource(BITCODE[:-20]), CompileError, "LLVM"),
    "garbled bitcode": (lambda: ModuleSource(BITCODE[:8] + b"\xff" * 50), CompileError, "LLVM"),
    "bytes that are no text": (lambda: ModuleSource(b"\xff\xfe\xfd"), CompileError, "utf-8"),
    "NUL in the text": (lambda: ModuleSource(GOOD + "\0"), CompileError, "NUL"),
    "another type of input": (lambda: ModuleSource(123), CompileError, "not int"),
    "another architecture": (
        lambda: ModuleSource('target triple = "riscv64-unknown-linux-gnu"\n' + GOOD),
        IncompatibleTargetError,
        "riscv64-unknown-linux-gnu",
    ),
    "another system": (
        lambda: ModuleSource(f'target triple = "{os.uname().machine}-pc-windows-msvc"\n' + GOOD),
        IncompatibleTargetError,
        "windows",
    ),
    "32-bit pointers": (
        lambda: ModuleSource('target datalayout = "e-p:32:32-i64:64"\n' + GOOD),
        IncompatibleTargetError,
        "32-bit pointers",
    ),
    "a function that is not there": (
        lambda: ModuleSource(GOOD, {"absent": "i64()"}),
        UndefinedSymbolError,
        r"'absent'.*the module defines f",
    ),
    "a symbol that is not there": (
        lambda: ModuleSource(GOOD, {"f": Function(symbol="absent")}),
        UndefinedSymbolError,
        "'absent'",
    ),
    "a function that is only declared": (
        lambda: ModuleSource("declare i64 @labs(i64)\n" + GOOD, {"labs": "i64(i64)"}),
        UndefinedSymbolError,
        "'labs'",
    ),
    "a signature that is none": (
        lambda: ModuleSource(GOOD, {"f": "i64 -> i64"}),
        SignatureError,
        "i64 -> i64",
    ),
    "a type that is none": (lambda: ModuleSource(GOOD, {"f": "i64(int)"}), SignatureError, "'int'"),
    "a signature of another type": (
        lambda: ModuleSource(GOOD, {"f": "f64(i64)"}),
        SignatureMismatchError,
        "'f'",
    ),
    "an undefined function": (
        lambda: ModuleSource(
            GOOD.replace("%y = add i64 %x, 1", "%y = call i64 @nobody(i64 %x)") + "declare i64 @nobody(i64)\n"
        ),
        UndefinedSymbolError,
        "'nobody'",
    ),
    "a global that is not there": (
        lambda: ModuleSource(GOOD, globals={"absent": 5}),
        UndefinedSymbolError,
        "'absent'",
    ),
    "a global that the module defines": (
        lambda: ModuleSource("@g = global i64 5\n" + GOOD, globals={"g": 5}),
        UndefinedSymbolError,
        "'g'",
    ),
    "a global that does not fit": (
        lambda: ModuleSource(external("i8"), globals={"g": 300}),
        GlobalValidationError,
        "'g'.*300",
    ),
    "a global that has no name": (
        lambda: ModuleSource(external("ptr"), globals={"g": object()}),
        GlobalValidationError,
        "cannot be found by module and name",
    ),
    "an import that is not used": (
        lambda: ModuleSource(GOOD, imports=["unused"]),
        UndefinedSymbolError,
        "'unused'",
    ),
    "an empty func_name": (lambda: ModuleSource(GOOD, {"": Function(symbol="f")}), InvalidNameError, "empty"),
    "NUL in a func_name": (
        lambda: ModuleSource(GOOD, {"a\0b": Function(symbol="f")}),
        InvalidNameError,
        "NUL",
    ),
    "a surrogate in a func_name": (
        lambda: ModuleSource(GOOD, {"\ud800": Function(symbol="f")}),
        InvalidNameError,
        "UTF-8",
    ),
    "a func_name without end": (
        lambda: ModuleSource(GOOD, {"x" * 70000: Function(symbol="f")}),
        InvalidNameError,
        "at most 65536 bytes",
    ),
    "a func_name of another type": (
        lambda: ModuleSource(GOOD, {3: Function(symbol="f")}),  # type: ignore[dict-item]
        InvalidNameError,
        "not int",
    ),
    "an empty import": (lambda: ModuleSource(GOOD, imports={"g": ""}), InvalidNameError, "empty"),
    "an empty global": (lambda: ModuleSource(GOOD, globals={"": 1}), InvalidNameError, "empty"),
    "a level that is none": (
        lambda: ModuleSource(GOOD, optimize=7),
        CompileError,
        "optimize must be 0, 1, 2 or 3, not 7",
    ),
    "assembly that does not assemble": (
        lambda: ModuleSource('define void @f() {\ncall void asm "this is no instruction", ""()\nret void\n}'),
        CompileError,
        "(?i)this is no instruction|invalid instruction",
    ),
    "module assembly that does not assemble": (
        lambda: ModuleSource('module asm "neither is this"\n' + GOOD),
        CompileError,
        "(?i)neither|invalid instruction",
    ),
    "a constraint that cannot be": (
        lambda: ModuleSource(
            'define void @f() {\ncall void asm "nop", "{no_such_register}"(i64 1)\nret void\n}'
        ),
        CompileError,
        "no_such_register|constraint",
    ),
    "features without 64 bits": (
        lambda: ModuleSource(GOOD, features="-64bit"),
        CompileError,
        "(?i)64",
    ),
    "a function's features without 64 bits": (
        lambda: ModuleSource(GOOD.replace("(i64 %x) {", '(i64 %x) "target-features"="-64bit" {')),
        CompileError,
        "LLVM",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_and_leaves_the_cache_as_it_was(
    cache: Cache, directory: Path, case: str
) -> None:
    make, kind, message = REFUSED[case]
    cache.add_module(ModuleSource(adder("kept", 1)))
    before = snapshot(directory)
    for _ in range(2):
        with pytest.raises(kind, match=message) as caught:
            cache.add_module(make())
        assert type(caught.value) is kind
    assert snapshot(directory) == before
    assert not cache.has("f")
    assert cache.get_target("kept")(1) == 2
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.__dict__) == (str(caught.value), caught.value.__dict__)


def test_x86_code_that_only_a_32_bit_machine_could_run_is_refused(cache: Cache) -> None:
    for triple in (
        "i386-pc-linux-gnu",
        "armv7-linux-gnueabihf",
        "wasm32-unknown-unknown",
        "nvptx64-nvidia-cuda",
    ):
        with pytest.raises(IncompatibleTargetError, match=triple):
            cache.add_module(ModuleSource(f'target triple = "{triple}"\n' + GOOD))


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "../../etc/passwd",
        "line\nbreak",
        "ünï©ødé \U0001f600",
        " ",
        ".",
        "-x",
        "%s%n",
        'quo"te\\',
        "x" * 60000,
        "@f",
        "a\tb\r",
    ],
    ids=lambda name: ascii(name[:12]),
)
def test_odd_names_are_names_like_others(cache: Cache, directory: Path, name: str) -> None:
    cache.add_module(ModuleSource(GOOD, {name: Function(symbol="f")}))
    target = cache.get_target(name)
    assert (target(1), target.func_name) == (2, name)
    assert repr(name) in repr(target)
    assert [r.func_name for r in cache.realizations(name)] == [name]
    assert pickle.loads(pickle.dumps(target)) is target
    with Cache(directory) as later:
        assert later.get_target(name)(1) == 2


@pytest.mark.parametrize("symbol", ["line\nbreak", "ünï", 'quo"te', "with space", "a/b", "back\\slash", "1"])
def test_odd_symbols_are_symbols_like_others(cache: Cache, symbol: str) -> None:
    from compcache.build.ir_text import quote

    text = GOOD.replace("@f", f"@{quote(symbol)}")
    cache.add_module(ModuleSource(text))
    assert cache.get_target(symbol)(1) == 2
    user = f"declare i64 @{quote(symbol)}(i64)\ndefine i64 @user(i64 %x) {{\n%y = call i64 @{quote(symbol)}(i64 %x)\nret i64 %y\n}}"
    cache.add_module(ModuleSource(user))
    assert cache.get_target("user")(5) == 6
    assert cache.dependencies("user") == (symbol,)


def test_a_symbol_that_looks_like_one_of_the_caches_own_does_no_harm(cache: Cache) -> None:
    text = constant('"compcache.entry.0"', 7) + constant('"compcache.slot.x"', 8) + GOOD
    cache.add_module(ModuleSource(text, {"f": None, "seven": Function(symbol="compcache.slot.x")}))
    assert cache.get_target("f")(1) == 2
    assert cache.get_target("seven")() == 8
    for symbol in ("compcache.entry.0", "compcache_module"):
        with pytest.raises(InvalidNameError, match=symbol):
            cache.add_module(ModuleSource(text, {"g": Function(symbol=symbol)}))
        with pytest.raises(InvalidNameError, match=symbol):
            cache.add_module(ModuleSource(constant(f'"{symbol}"', 7)))


# ------------------------------------------------------------------------------------ aborts


@pytest.mark.slow
def test_what_llvm_would_abort_on_does_not_end_the_process(directory: Path) -> None:
    """In a process of its own, so that a failure of this test is a failure and not the end of the run."""
    script = """
    from compcache import Cache, CompileError, ModuleSource
    sources = [
        ModuleSource('define void @f() {\\ncall void asm "bogus", ""()\\nret void\\n}'),
        ModuleSource('module asm "bogus"\\ndefine void @f() {\\nret void\\n}'),
        ModuleSource('define void @f() {\\nret void\\n}', features="-64bit,-sse2"),
        ModuleSource('define void @f() "target-features"="-64bit" {\\nret void\\n}'),
        ModuleSource('define double @f(double %x) "target-features"="-sse2,-sse" {\\nret double %x\\n}'),
        ModuleSource('define i64 @f(i64 %x) "target-features"="-64bit-mode" {\\nret i64 %x\\n}'),
        ModuleSource('define double @f(double %x) {\\nret double %x\\n}', cpu="i386"),
        ModuleSource('define i64 @f(i64 %x) {\\n%y = call i64 asm "mov $1, $0", "={nothing},r"(i64 %x)\\nret i64 %y\\n}'),
    ]
    result = 0
    cache = Cache(directory)
    for source in sources:
        try:
            cache.add_module(source)
        except CompileError:
            result += 1
    """
    assert run_fresh(directory, script) >= 6


@pytest.mark.slow
def test_refused_modules_leave_nothing_that_the_garbage_collector_stumbles_over(directory: Path) -> None:
    script = f"""
    import gc
    from compcache import Cache, CompcacheError, ModuleSource
    cache = Cache(directory)
    text = {GOOD!r}
    kept = []
    result = 0
    for number in range(20):
        for source in (
            ModuleSource(text, {{"absent": None}}),
            ModuleSource(text, {{"f": "f64()"}}),
            ModuleSource(text, imports=["absent"]),
            ModuleSource('target triple = "riscv64-linux-gnu"\\n' + text),
        ):
            try:
                cache.add_module(source)
            except CompcacheError as error:
                error.itself = error  # a cycle that only the collector can break
                result += 1
        gc.collect()
    cache.add_module(ModuleSource(text))
    result = result, cache.get_target("f")(1)
    """
    assert run_fresh(directory, script) == (80, 2)


# ------------------------------------------------------------------------------------ directories


def _as_root() -> bool:
    return os.geteuid() == 0


def test_a_directory_that_cannot_be_created_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Cache(tmp_path / "file" / "cache") as cache:
        with pytest.raises(StorageError, match="file") as caught:
            cache.add_module(ModuleSource(GOOD))
        assert isinstance(caught.value, OSError)
        with pytest.warns(CacheWarning, match="was not stored"):
            assert cache.get_or_compile("f", lambda: ModuleSource(GOOD))(1) == 2
    assert (tmp_path / "file").read_text() == ""


def test_a_directory_that_cannot_be_opened_is_no_obstacle(tmp_path: Path) -> None:
    """Such as one in the home directory of another user."""
    with Cache(tmp_path / ("n" * 300)) as cache:
        assert not cache.has("f")
        with pytest.warns(CacheWarning, match=r"was not stored.*: File name too long"):
            assert cache.get_or_compile("f", lambda: ModuleSource(GOOD))(1) == 2
        with pytest.raises(StorageError, match=r"cannot read .*: File name too long"):
            cache.stats()


@pytest.mark.skipif(_as_root(), reason="nothing is unwritable for root")
def test_an_unwritable_directory_is_told(directory: Path) -> None:
    for path in (directory, *directory.iterdir()):
        if path.is_dir():
            path.chmod(0o500)
    with Cache(directory) as cache, pytest.raises(StorageError, match="Permission denied") as caught:
        cache.add_module(ModuleSource(GOOD))
    assert caught.value.errno == errno.EACCES


def but_numbers(files: dict[str, str]) -> dict[str, str]:
    """Without the greatest number, an empty file: one that no module got does no harm."""
    return {name: data for name, data in files.items() if not name.startswith("numbers-v1")}


def test_a_full_disk_is_told_and_the_cache_is_as_it_was(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: Any) -> int:  # noqa: ARG001 - as os.write
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("kept", 1)))
        before = snapshot(directory)
        monkeypatch.setattr(cache._store.files, "write", full)
        with pytest.raises(StorageError, match="No space left") as caught:
            cache.add_module(ModuleSource(GOOD))
        assert caught.value.errno == errno.ENOSPC
        assert str(directory) in str(caught.value)
        assert but_numbers(snapshot(directory)) == but_numbers(before)
        with pytest.warns(CacheWarning, match=r"'f' was not stored.*No space left"):
            target = cache.get_or_compile("f", lambda: ModuleSource(GOOD))
        assert target(1) == 2
        assert {
            name for name in set(but_numbers(snapshot(directory))) - set(before) if not name.startswith("locks")
        } == set()
        monkeypatch.undo()
        cache.add_module(ModuleSource(GOOD))
    with Cache(directory) as later:
        assert later.get_target("f")(1) == 2


@pytest.mark.slow
def test_a_file_size_limit_is_told(directory: Path) -> None:
    """The system's own refusal to write, half-way through a file."""
    script = f"""
    import resource, signal, os
    from compcache import Cache, ModuleSource, StorageError
    from compcache.miss.build import build_source
    from compcache.miss.publication import publish_built
    cache = Cache(directory)
    cache.add_module(ModuleSource({adder("kept", 1)!r}))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The linker writes its image first: let it, and refuse only what the cache writes.
    built = build_source(cache._session(), ModuleSource({GOOD!r}))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
    try:
        publish_built(cache._session(), [built])
    except StorageError as error:
        result = str(error), os.listdir(directory + "/tmp"), cache.has("f"), cache.get_target("kept")(1)
    """
    message, leftovers, has, kept = run_fresh(directory, script)
    assert "File too large" in message
    assert (leftovers, has, kept) == ([], False, 2)
    assert resource.RLIMIT_FSIZE is not None


def test_a_directory_that_vanishes_is_a_miss_and_is_made_again(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(GOOD))
    directory.rename(directory.with_name("elsewhere"))
    assert not cache.has("f")
    cache.add_module(ModuleSource(constant("g", 4)))
    assert cache.get_target("g")() == 4
    assert not cache.has("f")


@pytest.mark.slow
def test_relative_paths_in_a_directory_that_was_removed_are_errors_in_words(directory: Path, tmp_path: Path) -> None:
    """Whole paths work there as anywhere."""
    script = f"""
    import os
    from compcache import Cache, ModuleSource, StorageError
    place = {str(tmp_path / "gone")!r}
    os.mkdir(place)
    os.chdir(place)
    os.rmdir(place)
    cache = Cache(directory)
    cache.add_module(ModuleSource({adder("f", 1)!r}))
    result = [cache.get_target("f")(1)]
    for way in (
        lambda: Cache("relative"),
        lambda: cache.export(["f"], "f.ccb"),
        lambda: cache.import_bundle("f.ccb"),
        lambda: Cache(directory, layers=["low"]),
    ):
        try:
            way()
        except StorageError as error:
            result.append("current directory no longer exists" in str(error))
    """
    assert run_fresh(directory, script) == [2, True, True, True, True]
