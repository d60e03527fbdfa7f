"""Loading: no LLVM on a hit, only what a function needs, and nothing left behind by a load that fails."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import pickle
import shutil
import warnings
from pathlib import Path

import pytest
from helpers import adder, caller, constant, flip_byte, module_file, run_fresh, snapshot
from mock_directory import Crash, FaultyFiles, MockDirectory, Operation, cache_on, crash_before

from compcache import (
    Cache,
    CacheWarning,
    GlobalValidationError,
    ModuleSource,
    NotCachedError,
    StorageError,
    TargetUnloadedError,
    TypedCallTarget,
    UndefinedSymbolError,
    UntrustedDirectoryError,
    frontend,
)
from compcache.formats.index import HEADER
from compcache.globals import GlobalDefinition, Integer, NativeSymbol, PythonObject, Storage, register

UNWANTED = ("llvmlite", "filelock", "numpy", "logging", "dataclasses", "msgpack", "ctypes", "inspect", "pathlib")

WITH_GLOBALS = """
@a = external global i64
@b = external global i64
@c = external global i64
@shared = external global ptr
define i64 @use_a() {
  %x = load i64, ptr @a
  ret i64 %x
}
define i64 @use_ab() {
  %x = call i64 @use_a()
  %y = load i64, ptr @b
  %z = add i64 %x, %y
  ret i64 %z
}
define i64 @use_c() {
  %x = load i64, ptr @c
  ret i64 %x
}
define i64 @use_none() {
  ret i64 5
}
"""


def test_a_hit_in_a_fresh_process_imports_nothing_slow(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("add5", 5)))
    cache.add_module(ModuleSource(caller("f", "add5")))
    result, imported = run_fresh(
        directory,
        f"""
        from compcache import Cache
        value = Cache(directory).get_target("f")(37)
        result = value, [name for name in {UNWANTED!r} if name in sys.modules and name not in before]
        """,
    )
    assert result == 42
    assert imported == []


def test_get_or_compile_and_globals_import_nothing_slow_on_a_hit(cache: Cache, directory: Path) -> None:
    text = "@a = external global i64\ndefine i64 @f() {\n%x = load i64, ptr @a\nret i64 %x\n}"
    cache.add_module(ModuleSource(text, globals={"a": 41}))
    result, imported = run_fresh(
        directory,
        f"""
        import compcache
        with compcache.Cache(directory) as cache:
            value = cache.get_or_compile("f", None)(), cache.has("f"), "f" in cache
        result = value, [name for name in {UNWANTED!r} if name in sys.modules and name not in before]
        """,
    )
    assert result == (41, True, True)
    assert imported == []


def test_a_module_is_opened_once_and_only_when_it_is_needed(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("f", 1) + constant("g", 2)))
    cache.add_module(ModuleSource(constant("h", 3)))
    loader = cache._loader
    assert (loader.opened, cache.loaded().modules) == (0, ())
    f = cache.get_target("f")
    assert (loader.opened, cache.loaded().modules) == (1, (f.module_id,))
    g = cache.get_target("g")
    assert (loader.opened, cache.loaded().targets) == (1, ("f", "g"))
    h = cache.get_target("h")
    assert (loader.opened, len(cache.loaded().modules)) == (2, 2)
    assert (f(), g(), h()) == (1, 2, 3)
    assert cache.loaded().bytes_mapped > 0


def test_only_the_globals_of_the_closure_are_decoded(cache: Cache) -> None:
    given = {"a": 1, "b": 20, "c": 300}
    text = WITH_GLOBALS.replace("@shared = external global ptr\n", "")
    cache.add_module(ModuleSource(text, globals=given, optimize=0))
    loader = cache._loader
    none = cache.get_target("use_none")
    assert loader.decoded == 0
    a = cache.get_target("use_a")
    assert (a(), loader.decoded) == (1, 1)
    ab = cache.get_target("use_ab")
    assert (ab(), loader.decoded) == (21, 2)
    assert [len(m.slots) for m in loader.loaded_modules()] == [2], "the slot of the third global stays empty"
    assert none() == 5


def test_only_the_imports_of_the_closure_are_loaded(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("add1", 1)))
    cache.add_module(ModuleSource(adder("add2", 2)))
    text = caller("f", "add1") + caller("g", "add2") + constant("plain", 9)
    cache.add_module(ModuleSource(text))
    loader = cache._loader
    assert (cache.get_target("plain")(), loader.opened) == (9, 1)
    f = cache.get_target("f")
    assert f(1) == 2
    modules = {m.module_id.hex(): len(m.slots) for m in loader.loaded_modules()}
    assert modules[f.module_id] == 1
    assert len(modules) == 2


@pytest.mark.slow
def test_one_function_of_many_opens_one_image(cache: Cache) -> None:
    cache.add_module(ModuleSource("".join(constant(f"f{i}", i) for i in range(300))))
    assert cache.get_target("f123")() == 123
    assert (cache._loader.opened, cache._loader.decoded) == (1, 0)


def test_asking_twice_gives_the_same_object(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("f", 1)))
    target = cache.get_target("f")
    assert cache.get_target("f") is target
    assert cache.get_or_compile("f", lambda: pytest.fail("must not build")) is target
    assert isinstance(target, TypedCallTarget)


# ------------------------------------------------------------------------------ things that are gone

GONE = """
declare i64 @{gone}(i64)
define i64 @healthy(i64 %x) {{
  %y = mul i64 %x, 2
  ret i64 %y
}}
define i64 @broken(i64 %x) {{
  %y = call i64 @{gone}(i64 %x)
  ret i64 %y
}}
"""


def test_a_module_serves_the_functions_that_can_be_satisfied(cache: Cache, directory: Path) -> None:
    provider = cache.add_module(ModuleSource(adder("provider", 5)))
    cache.add_module(ModuleSource(GONE.format(gone="provider")))
    path = module_file(directory, provider)
    away = directory.parent / "away"
    path.rename(away)
    with Cache(directory) as later:
        for _ in range(2):
            assert later.get_target("healthy")(4) == 8
            with pytest.raises(UndefinedSymbolError, match=r"'broken'.*needs 'provider'.*add a module") as caught:
                later.get_target("broken")
            assert caught.value.symbols == ("provider",)
        assert later.has("broken"), "nothing is marked invalid"
        assert later.realizations("broken")[0].problem == ""
        away.rename(path)
        assert later.get_target("broken")(4) == 9


def test_another_realization_satisfies_a_dependent_as_well(cache: Cache, directory: Path) -> None:
    provider = cache.add_module(ModuleSource(adder("provider", 5)))
    cache.add_module(ModuleSource(GONE.format(gone="provider")))
    module_file(directory, provider).unlink()
    with Cache(directory) as later:
        with pytest.raises(UndefinedSymbolError):
            later.get_target("broken")
        later.add_module(ModuleSource(adder("provider", 50)))
        assert later.get_target("broken")(1) == 51


@pytest.mark.slow
def test_a_native_symbol_that_this_process_lacks_concerns_its_users_only(directory: Path, tmp_path: Path) -> None:
    """The module is added by a process that has loaded a library globally, and used by one that has not."""
    text = GONE.format(gone="only_in_my_library")
    library = tmp_path / "mine.so"
    make = f"""
    import ctypes
    import llvmlite.binding as llvm
    from compcache import Cache, ModuleSource
    from compcache.images.linkers.find import find_linker
    from compcache.images.linkers.link import link_shared
    llvm.initialize_native_target(); llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="default")
    obj = machine.emit_object(llvm.parse_assembly({adder("only_in_my_library", 1000)!r}))
    with open({str(library)!r}, "wb") as file:
        file.write(link_shared(find_linker(), [obj], soname="mine.so"))
    ctypes.CDLL({str(library)!r}, ctypes.RTLD_GLOBAL)
    with Cache(directory) as cache:
        cache.add_module(ModuleSource({text!r}))
        result = cache.get_target("broken")(1)
    """
    assert run_fresh(directory, make) == 1001
    with Cache(directory) as cache:
        assert cache.get_target("healthy")(4) == 8
        with pytest.raises(UndefinedSymbolError, match=r"'broken'.*native symbol 'only_in_my_library'"):
            cache.get_target("broken")
    use = f"""
    from compcache import Cache
    import ctypes
    with Cache(directory) as cache:
        ctypes.CDLL({str(library)!r}, ctypes.RTLD_GLOBAL)
        result = cache.get_target("broken")(1)
    """
    assert run_fresh(directory, use) == 1001


class _Raises(GlobalDefinition):
    """A global that can be defined but not loaded, as long as `good` is false."""

    __slots__ = ()
    kind = "test-raises"
    good = True

    def encode(self) -> bytes:
        return b""

    @classmethod
    def decode(cls, payload: bytes) -> _Raises:  # noqa: ARG003 - the interface
        return cls()

    def load(self, storage: Storage, context: object) -> tuple[bytes, object]:  # noqa: ARG002 - the interface
        if not _Raises.good:
            raise GlobalValidationError("out of order", reason="out of order")
        return bytes(storage.size), None


register(_Raises)


@pytest.mark.slow
def test_a_load_that_fails_half_way_leaves_nothing_behind(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.add_module(ModuleSource(adder("add1", 1)))
    text = caller("calls", "add1").replace("define", "@a = external global i64\n@b = external global i64\ndefine")
    text += """
    define i64 @f(i64 %x) {
      %y = call i64 @calls(i64 %x)
      %a = load i64, ptr @a
      %b = load i64, ptr @b
      %s = add i64 %a, %b
      %t = add i64 %s, %y
      ret i64 %t
    }
    """
    cache.add_module(ModuleSource(text, globals={"a": 10, "b": _Raises()}))
    keeper = cache.get_target("calls")
    before = cache.loaded()
    slots = [dict(m.slots) for m in cache._loader.loaded_modules()]
    monkeypatch.setattr(_Raises, "good", False)
    for _ in range(3):
        with pytest.raises(GlobalValidationError, match=r"global 'b' of function 'f'.*out of order") as caught:
            cache.get_target("f")
        assert (caught.value.global_name, caught.value.func_name) == ("b", "f")
    del caught
    gc.collect()
    assert cache.loaded() == before
    assert [dict(m.slots) for m in cache._loader.loaded_modules()] == slots
    monkeypatch.setattr(_Raises, "good", True)
    assert cache.get_target("f")(1) == 12
    assert keeper(1) == 2


def test_loading_changes_nothing_on_disk(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("add1", 1)))
    cache.add_module(ModuleSource(caller("f", "add1")))
    before = snapshot(directory)
    with Cache(directory) as later:
        assert later.get_target("f")(1) == 2
    run_fresh(directory, "from compcache import Cache\nresult = Cache(directory).get_target('f')(1)")
    assert snapshot(directory) == before


# ------------------------------------------------------------------------------------- lifetimes


def test_what_nobody_holds_is_unloaded(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("add1", 1)))
    cache.add_module(ModuleSource(caller("f", "add1")))
    target = cache.get_target("f")
    assert (len(cache.loaded().modules), cache.loaded().targets) == (2, ("f",))
    del target
    gc.collect()
    assert (cache.loaded().modules, cache.loaded().targets, cache.loaded().bytes_mapped) == ((), (), 0)


def test_a_target_outlives_its_cache_object_and_its_file(directory: Path) -> None:
    cache = Cache(directory)
    module_id = cache.add_module(ModuleSource(constant("f", 7)))
    target = cache.get_target("f")
    module_file(directory, module_id).unlink()
    del cache
    gc.collect()
    assert target() == 7


def test_unload_invalidates_what_was_handed_out(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("f", 1) + constant("g", 2)))
    f, g = cache.get_target("f"), cache.get_target("g")
    assert cache.unload("f") is True
    for target, name in ((f, "f"), (g, "g")):
        with pytest.raises(TargetUnloadedError, match=rf"'{name}'.*get_target") as caught:
            target()
        assert caught.value.func_name == name
        with pytest.raises(TargetUnloadedError):
            _ = target.address
        with pytest.raises(TargetUnloadedError):
            pickle.dumps(target)
        assert "unloaded" in repr(target)
    again = cache.get_target("f")
    assert again is not f
    assert again() == 1
    assert cache.unload("g") is True
    assert cache.unload("nothing") is False


def test_unload_of_a_dependency_leaves_its_callers_running(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("add1", 1)))
    cache.add_module(ModuleSource(caller("f", "add1")))
    f, add1 = cache.get_target("f"), cache.get_target("add1")
    cache.unload("add1")
    with pytest.raises(TargetUnloadedError):
        add1(1)
    del add1
    gc.collect()
    assert f(1) == 2


def test_closing_a_cache_invalidates_its_targets(directory: Path) -> None:
    with Cache(directory) as cache, Cache(directory) as other:
        cache.add_module(ModuleSource(constant("f", 1)))
        mine, theirs = cache.get_target("f"), other.get_target("f")
        cache.close()
        cache.close()
        with pytest.raises(TargetUnloadedError, match="was unloaded: request it again from an open cache"):
            mine()
        assert theirs() == 1
        for call in (lambda: cache.get_target("f"), lambda: cache.has("f"), lambda: cache.realizations("f")):
            with pytest.raises(StorageError, match="closed"):
                call()
        assert "closed" in repr(cache)


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_cache_is_closed_though_an_interrupt_ends_the_writing_of_its_counters(
    directory: Path, monkeypatch: pytest.MonkeyPatch, is_plain: bool
) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant("f", 1)))
    cache = Cache(directory, lock_timeout=None if is_plain else 5)
    target = cache.get_target("f")
    cache.get_target("f")
    monkeypatch.setattr("compcache.hit.recorder.Recorder._write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.close()
    with pytest.raises(TargetUnloadedError, match="was unloaded"):
        target()
    links = [Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert not [link for link in links if link.is_symlink() and os.readlink(link).startswith(str(directory))]
    cache.close()


# ------------------------------------------------------------------------------------- directories


def test_what_is_not_cached_is_a_key_error_that_names_function_and_directory(cache: Cache, directory: Path) -> None:
    with pytest.raises(NotCachedError, match="'nothing'") as caught:
        cache.get_target("nothing")
    assert isinstance(caught.value, KeyError)
    assert (caught.value.func_name, caught.value.cache_dir) == ("nothing", str(directory))
    assert str(directory) in str(caught.value)
    assert not cache.has("nothing")
    assert cache.realizations("nothing") == ()
    with pytest.raises(TypeError, match=r"a str or a compcache\.Identity, not int"):
        cache.get_target(3)  # type: ignore[arg-type]


def test_opening_a_directory_that_does_not_exist_creates_nothing(tmp_path: Path) -> None:
    root = tmp_path / "not" / "there"
    with Cache(root) as cache:
        assert not cache.has("f")
        with pytest.raises(NotCachedError):
            cache.get_target("f")
    assert not root.parent.exists()


def test_the_first_addition_creates_a_private_directory(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    with Cache(root) as cache:
        cache.add_module(ModuleSource(constant("f", 1)))
    assert root.stat().st_mode & 0o777 == 0o700
    assert (root / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55")
    assert all(path.stat().st_mode & 0o077 == 0 for path in root.rglob("*"))
    assert list((root / "tmp").iterdir()) == []


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_directory_that_others_can_write_is_refused(directory: Path, mode: int) -> None:
    directory.chmod(mode)
    with pytest.raises(UntrustedDirectoryError, match=r"chmod go-w .*trust=True") as caught:
        Cache(directory)
    assert caught.value.path == str(directory)
    Cache(directory, trust=True).close()


@pytest.mark.parametrize("place", ["file", "file/deeper"])
def test_a_program_runs_whose_directory_is_a_file_or_below_one(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / place)
    with pytest.raises(NotCachedError):
        cache.get_target("f")
    with pytest.warns(CacheWarning, match="was not stored.*Not a directory") as caught:
        assert (cache.compile(adder("f", 7)).f(1), cache.compile(adder("g", 8)).g(1)) == (8, 9)
    assert len(caught) == 1  # one problem, however many functions it concerns
    with pytest.raises(StorageError, match="Not a directory"):
        cache.add_module(ModuleSource(adder("f", 7)))


def test_the_environment_names_the_default_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPCACHE_DIR", str(directory))
    assert Cache().path == str(directory)
    monkeypatch.delenv("COMPCACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    assert Cache().path == str(directory / "compcache")


def test_a_read_only_cache_loads_but_does_not_add(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(constant("f", 1)))
    before = snapshot(directory)
    with Cache(directory, readonly=True) as reader:
        assert reader.get_target("f")() == 1
        with pytest.raises(StorageError, match="readonly=True"):
            reader.add_module(ModuleSource(constant("g", 2)))
        g = reader.get_or_compile("g", lambda: ModuleSource(constant("g", 2)))
        assert g() == 2
        assert reader.get_target("g") is g
    assert snapshot(directory) == before


def test_a_deleted_index_is_rebuilt(cache: Cache, directory: Path) -> None:
    for number in range(3):
        cache.add_module(ModuleSource(constant(f"f{number}", number)))
    for path in (directory / "index-v1").iterdir():
        path.unlink()
    with Cache(directory) as later:
        assert [later.get_target(f"f{number}")() for number in range(3)] == [0, 1, 2]


def test_a_damaged_index_is_rebuilt_with_a_warning(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(constant("f", 1)))
    (segment,) = (directory / "index-v1").iterdir()
    flip_byte(segment, 20)
    with Cache(directory) as later, pytest.warns(CacheWarning, match="index.*damaged.*rebuilding"):
        assert later.get_target("f")() == 1
    with Cache(directory) as again:
        assert again.get_target("f")() == 1


@pytest.mark.slow
def test_many_additions_are_merged_and_found(cache: Cache, directory: Path) -> None:
    for number in range(30):
        cache.add_module(ModuleSource(constant(f"f{number}", number), optimize=0))
    assert len(list((directory / "index-v1").iterdir())) <= 12
    with Cache(directory) as later:
        assert [later.get_target(f"f{number}")() for number in range(30)] == list(range(30))


def test_few_additions_are_merged_when_it_is_asked_for(cache: Cache, directory: Path) -> None:
    for number in range(3):
        cache.add_module(ModuleSource(constant(f"f{number}", number), optimize=0))
    with Cache(directory, readonly=True) as reader:
        frontend.compact_index(reader)
    assert len(list((directory / "index-v1").iterdir())) == 3
    frontend.compact_index(cache)
    assert len(list((directory / "index-v1").iterdir())) == 1
    with Cache(directory) as later:
        assert [later.get_target(f"f{number}")() for number in range(3)] == list(range(3))
    shutil.rmtree(directory)
    frontend.compact_index(cache)
    cache.close()
    frontend.compact_index(cache)


def test_a_merge_that_ends_anywhere_loses_nothing(cache: Cache, directory: Path, tmp_path: Path) -> None:
    for number in range(4):
        cache.add_module(ModuleSource(constant(f"f{number}", number), optimize=0))
    tree = MockDirectory.read(directory)
    for number in range(100):
        files = FaultyFiles(tree.dump(tmp_path / f"copy{number}"), crash_before(number))
        dying = cache_on(files)
        with contextlib.suppress(Crash):
            frontend.compact_index(dying)
        dying._store.stats.reset()  # who was killed writes nothing at an exit
        with Cache(files.root) as later:
            assert [later.has(f"f{n}") for n in range(4)] == [True] * 4
        if not files.crashed:
            assert number >= 4
            return
    pytest.fail("the merge did not end")


@pytest.mark.parametrize("operation", ["open", "pread"])
def test_a_merge_leaves_out_what_it_cannot_read(cache: Cache, directory: Path, operation: str) -> None:
    for number in range(4):
        cache.add_module(ModuleSource(constant(f"f{number}", number), optimize=0))
    unreadable = sorted(os.listdir(directory / "index-v1"))[1]

    def plan(asked: Operation) -> BaseException | None:
        return OSError(errno.EIO, "it broke") if asked.name == operation and unreadable in asked.path else None

    with cache_on(FaultyFiles(directory, plan, count=lambda _: True)) as other:
        frontend.compact_index(other)
    assert len(os.listdir(directory / "index-v1")) == 2
    with Cache(directory) as later:
        assert [later.has(f"f{n}") for n in range(4)] == [True] * 4


@pytest.mark.parametrize("part", ["functions", "modules"])
def test_a_merge_of_a_damaged_segment_loses_nothing(cache: Cache, directory: Path, part: str) -> None:
    for number in range(4):
        cache.add_module(ModuleSource(constant(f"f{number}", number), optimize=0))
    path = sorted((directory / "index-v1").iterdir())[1]
    _, function_size, *_ = HEADER.unpack(path.read_bytes()[: HEADER.size])
    flip_byte(path, HEADER.size + function_size - 1 + (0 if part == "functions" else 60))
    with Cache(directory) as other:
        frontend.compact_index(other)
    with Cache(directory) as later, warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        assert [later.has(f"f{n}") for n in range(4)] == [True] * 4


def test_a_module_signed_with_another_key_is_a_miss(directory: Path) -> None:
    with Cache(directory, signing_key=b"one") as cache:
        cache.add_module(ModuleSource(constant("f", 1)))
    with Cache(directory, signing_key="one") as cache:
        assert cache.get_target("f")() == 1
    with (
        Cache(directory, signing_key=b"two", readonly=True) as cache,
        pytest.warns(CacheWarning, match="is not signed with this cache"),
        pytest.raises(NotCachedError),
    ):
        cache.get_target("f")


# ------------------------------------------------------------------------------------- get_or_compile


def test_get_or_compile_builds_once(cache: Cache, directory: Path) -> None:
    calls = []

    def build() -> ModuleSource:
        calls.append(1)
        return ModuleSource(constant("f", 1))

    assert cache.get_or_compile("f", build)() == 1
    assert cache.get_or_compile("f", build)() == 1
    with Cache(directory) as later:
        assert later.get_or_compile("f", build)() == 1
    assert calls == [1]


def test_a_build_without_the_wanted_function_is_an_error(cache: Cache, directory: Path) -> None:
    before = set(snapshot(directory))
    with pytest.raises(UndefinedSymbolError, match=r"does not export 'f' \(exported: 'g'\)") as caught:
        cache.get_or_compile("f", lambda: ModuleSource(constant("g", 1)))
    assert caught.value.symbols == ("f",)
    assert {name for name in set(snapshot(directory)) - before if not name.startswith("locks")} == set()


def test_an_exception_of_build_reaches_the_caller(cache: Cache) -> None:
    def build() -> ModuleSource:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        cache.get_or_compile("f", build)
    assert cache.get_or_compile("f", lambda: ModuleSource(constant("f", 1)))() == 1


def test_get_or_compile_provides_an_import_that_is_missing(cache: Cache) -> None:
    cache.add_module(ModuleSource(caller("f", "later"), imports=["later"]))
    source = ModuleSource(caller("f", "later") + adder("later", 3).replace("@later", "@own"), {"f": None}, imports=["later"])
    with pytest.raises(UndefinedSymbolError):
        cache.get_or_compile("f", lambda: source)
    whole = adder("later", 3) + caller("f", "later").partition("\n")[2]
    assert cache.get_or_compile("f", lambda: ModuleSource(whole))(1) == 4


def test_definitions_compare_by_value() -> None:
    assert Integer(3) == Integer(3) != Integer(4)
    assert NativeSymbol("a") == NativeSymbol("a", None) != NativeSymbol("a", "libm.so.6")
    assert PythonObject("os", "path") != PythonObject("os", "sep")
