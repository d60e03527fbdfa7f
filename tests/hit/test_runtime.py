"""The extension module in C: what it refuses, what it was built from, and what images assume of it."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from encoded import encode_table
from helpers import PACKAGE_ROOT, adder, constant, run_fresh

from compcache import Cache, Function, ModuleSource
from compcache.build.entry_points import entry_point, entry_text, read_head
from compcache.formats.host import ABI_VERSION
from compcache.formats.manifest import LINKED, FunctionRecord
from compcache.formats.manifest_writer import ManifestWriter, encode_function, encode_module
from compcache.formats.records import ModuleRecord
from compcache.formats.table import Table
from compcache.hit import _runtime, native_build
from compcache.hit.target import _require_current, load_runtime
from compcache.publish.index_merge import encode_function_entry
from compcache.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

NATIVE = PACKAGE_ROOT / "compcache" / "hit" / "native"
C_COMPILER = runpy.run_path(str(PACKAGE_ROOT / "build_backend" / "c_compiler.py"))
KEY = bytes(16)
FIRST_LOADS = """\
import sys, threading
sys.path.insert(0, sys.argv[1])
from compcache import Cache
caches, targets, results, barrier = [Cache(sys.argv[2]) for _ in range(16)], [], set(), threading.Barrier(16)
def load(cache):
    barrier.wait()
    targets.append(cache.get_target("f"))
    results.update(targets[-1](1) for _ in range(1000))
threads = [threading.Thread(target=load, args=(cache,)) for cache in caches]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(results), len({type(target) for target in targets}))
"""


def built_from(path: Path, digest: str, names: str | None = None) -> ModuleType:
    """An extension module at this path that says that it was built from sources of this digest."""
    sources = " ".join(sorted(os.listdir(NATIVE))) if names is None else names
    return cast("ModuleType", SimpleNamespace(__file__=str(path), SOURCE_DIGEST=digest, SOURCES=sources))


# ------------------------------------------------------------------------------------ the two sides of the interface


def test_python_and_c_agree_on_the_version_of_the_interface() -> None:
    assert _runtime.ABI_VERSION == ABI_VERSION


def test_entry_points_know_nothing_of_the_layout_of_objects() -> None:
    """They get at function, runtime and target through the three pointers of a Callee, which is all they read of it."""
    text = "const f64[:], i32, u64, cstr, ptr, f32, bool, i64"
    head = "i64 @f(ptr, i64, i32 signext, i64, ptr, ptr, float, i1 zeroext, i64)"
    signature = Signature.parse(f"i64({text})")
    entry = entry_text("e", entry_point("f", read_head(head), signature, nogil=True))
    offsets = {int(number) for number in re.findall(r"getelementptr inbounds i8, ptr %callee, i64 (\d+)", entry)}
    assert offsets == {0, 8}
    others = [line for line in entry.splitlines() if "%callee" in line and "getelementptr" not in line]
    assert all("call i32 %v" in line or "call void %v" in line or line.startswith("define") for line in others), others


def test_one_image_serves_targets_of_every_build_of_cpython(directory: Path) -> None:
    """Beside this interpreter: those that the variable names, separated by colons (free-threaded ones, too)."""
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 41)))
    others = [path for path in os.environ.get("COMPCACHE_TEST_PYTHONS", "").split(":") if path]
    for python in [sys.executable, *others]:
        command = [python, "-W", "error", "-c", FIRST_LOADS, str(PACKAGE_ROOT), str(directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.stdout.strip(), done.stderr) == ("[42] 1", ""), python


def test_other_interpreters_than_the_main_one_are_refused(directory: Path) -> None:
    script = """
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    from compcache import Cache
    code = f'''
    import sys
    sys.path[:] = {sys.path!r}
    from compcache.hit.target import load_runtime
    try:
        load_runtime()
    except ImportError as error:
        assert "subinterpreters" in str(error), str(error)
    else:
        raise AssertionError("not refused")
    '''
    import textwrap
    other = interpreters.create()
    failed = interpreters.run_string(other, textwrap.dedent(code))
    interpreters.destroy(other)
    result = failed is None, Cache(directory).get_target("f")()
    """
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant("f", 3)))
    assert run_fresh(directory, script) == (True, 3)


# ------------------------------------------------------------------------------------ what it refuses


@pytest.fixture
def image(cache: Cache) -> Any:
    """A mapped module, which the cache's target keeps mapped."""
    cache.add_module(ModuleSource(constant("f", 7)))
    target = cache.get_target("f")
    return target._image  # type: ignore[attr-defined]


WRONG_CALLS: dict[str, tuple[type[Exception], Any]] = {
    "open what is not there": (OSError, lambda _: _runtime.open_library(b"/no/such/file")),
    "open what is no path": (TypeError, lambda _: _runtime.open_library(cast("Any", 5))),
    "map what is not open": (OSError, lambda _: _runtime.map_image(-1, b"/", KEY)),
    "map what is no image": (OSError, lambda _: _map(__file__, KEY)),
    "map another library": (ValueError, lambda _: _map(_runtime.__file__, KEY)),
    "map with a short key": (ValueError, lambda _: _map(_runtime.__file__, b"short")),
    "adopt address 0": (ValueError, lambda _: _runtime.adopt_image(0, KEY, None)),
    "adopt what is no address": (OverflowError, lambda _: _runtime.adopt_image(1 << 70, KEY, None)),
    "address in no image": (TypeError, lambda _: _runtime.address(cast("Any", "image"), 0)),
    "address of -1": (IndexError, lambda image: _runtime.address(image, -1)),
    "address beyond the table": (IndexError, lambda image: _runtime.address(image, 1 << 20)),
    "address in a library without a table": (TypeError, lambda _: _runtime.address(_runtime.open_library(b"libc.so.6"), 0)),
    "symbol of no image": (TypeError, lambda _: _runtime.find_symbol(b"f", cast("Any", "image"))),
    "symbols in a list": (TypeError, lambda _: _runtime.find_undefined(cast("Any", ["f"]))),
    "a symbol that is no text": (TypeError, lambda _: _runtime.find_undefined(cast("Any", (b"f",)))),
    "bind in no image": (TypeError, lambda _: _runtime.bind(cast("Any", "image"), [])),
    "bind what is no import": (TypeError, lambda image: _runtime.bind(image, cast("Any", ["import"]))),
    "bind to no image": (TypeError, lambda image: _runtime.bind(image, [(cast("Any", None), [("f", "f", bytes(16), b"")], [0])])),
    "bind beyond the provider's table": (IndexError, lambda image: _runtime.bind(image, [(image, [("f", "f", bytes(16), b"")], [99])])),
    "bind a slot beyond the table": (IndexError, lambda image: _runtime.bind(image, [(image, [(99, "f", b"", b"")], [0])])),
    "bind a slot of -1": (IndexError, lambda image: _runtime.bind(image, [(image, [(-1, "f", b"", b"")], [0])])),
    "bind what is no use": (TypeError, lambda image: _runtime.bind(image, [(image, cast("Any", ["f"]), [0])])),
    "bind without a number": (ValueError, lambda image: _runtime.bind(image, [(image, [("f", "f", b"", b"")], [])])),
    "bind to no number": (TypeError, lambda image: _runtime.bind(image, [(image, [("f", "f", b"", b"")], cast("Any", [None]))])),
    "look up what is no use": (TypeError, lambda _: _runtime.uses_by_module((), cast("Any", ["f"]))),
    "look up a use without places": (TypeError, lambda _: _runtime.uses_by_module((), cast("Any", [("f", "f", None, b"")]))),
    "look up a use without a link type": (TypeError, lambda _: _runtime.uses_by_module((), cast("Any", [("f", "f", b"", None)]))),
    "look up in no table": (TypeError, lambda _: _runtime.uses_by_module(cast("Any", ({},)), [])),
    "records without an offset": (ValueError, lambda _: _runtime.plain_functions(b"", KEY, [("f", "f", b"", b"")], [], ())),
    "records of no use": (TypeError, lambda _: _runtime.plain_functions(b"", KEY, cast("Any", ["f"]), [0], ())),
    "records with a short key": (ValueError, lambda _: _runtime.plain_functions(b"", b"short", [], [], ())),
    "list functions of no records": (TypeError, lambda _: _runtime.list_functions(cast("Any", "records"), b"", {}, set())),
    "target beyond the table": (IndexError, lambda image: _runtime.make_target(image, 0, 99, "f", cast("Any", None))),
    "target of no image": (TypeError, lambda _: _runtime.make_target(cast("Any", 1), 0, 0, "f", cast("Any", None))),
    "invalidate no target": (TypeError, lambda _: _runtime.invalidate(cast("Any", "f"))),
    "validity of no target": (TypeError, lambda _: _runtime.is_valid(cast("Any", None))),
    "half a store": (ValueError, lambda _: _runtime.commit(bytes(15), ())),
    "a store without its bytes": (ValueError, lambda _: _runtime.commit(bytes(8) + b"\x09" + bytes(15), ())),
    "a store of everything": (ValueError, lambda _: _runtime.commit(bytes(8) + b"\xff" * 8, ())),
    "half a pair of tables": (ValueError, lambda _: _runtime.commit(b"", ({},))),
    "what is no table": (Exception, lambda _: _runtime.commit(b"", (cast("Any", 1), {}))),
    "address of what has no buffer": (TypeError, lambda _: _runtime.buffer_address(1)),
    "an image of one's own": (TypeError, lambda image: type(image)()),
    "a target of one's own": (TypeError, lambda _: _runtime.setup(*_HOOKS)()),
}


def _map(path: str | None, key: bytes) -> object:
    """What `map_image` says of a copy of a file."""
    assert path is not None
    with tempfile.NamedTemporaryFile() as copy, open(path, "rb") as file:
        copy.write(file.read())
        copy.flush()
        return _runtime.map_image(copy.fileno(), path.encode(), key)


_HOOKS: tuple[Any, ...] = (object, *[print] * 4)


@pytest.mark.parametrize("what", WRONG_CALLS)
def test_what_is_wrong_is_an_exception(image: Any, what: str) -> None:
    error, call = WRONG_CALLS[what]
    with pytest.raises(error):
        call(image)


def test_the_first_undefined_symbol_is_told() -> None:
    assert _runtime.find_undefined(()) is None
    assert _runtime.find_undefined(("strlen", "memcpy")) is None
    assert _runtime.find_undefined(("strlen", "no_such_symbol", "nor_this")) == "no_such_symbol"
    assert _runtime.find_undefined(("strlen", "odd\udcff", "memcpy")) == "odd\udcff"  # a name that is no UTF-8


def test_bindings_are_stores(image: Any) -> None:
    function = _runtime.address(image, 0)
    places = [(-24).to_bytes(8, sys.byteorder, signed=True) + (5).to_bytes(8, sys.byteorder), bytes(16)]
    uses: list[tuple[int | str, str, bytes, bytes]] = [("f", "f", b"".join(places), b""), (1, "f", b"", b""), ("g", "g", b"", b"")]
    stores = _runtime.bind(image, [(image, uses, [0, 0, 0]), (image, [], [])])
    words = [int.from_bytes(stores[at : at + 8], sys.byteorder) for at in range(0, len(stores), 8)]
    table = words[3]
    assert words == [table - 24, 8, function + 5, table, 8, function, _runtime.address(image, 1), 8, function]
    with pytest.raises(IndexError):  # no place for an address of the module's own
        _runtime.require_writable(image, stores)


def test_each_function_needs_an_accepted_target() -> None:
    """Also where the function before it in the list has one."""
    writer = ManifestWriter()
    header = ModuleRecord(KEY, "shared", "x86_64-linux-elf", "", ("", "+avx512f"), "", "", "22.1.0", "", "", 1)
    writer.add(encode_module(header))
    targets = (b"accepted", b"foreign!", b"accepted")
    records = [FunctionRecord(f"f{at}", "f", "i64(i64)", target, at, 0, 0) for at, target in enumerate(targets)]
    offsets = [writer.add(encode_function(record)) for record in records]
    uses: list[tuple[int | str, str, bytes, bytes]] = [(at, record.name, b"", b"") for at, record in enumerate(records)]
    assert _runtime.plain_functions(writer.content(), KEY, uses, offsets, {b"accepted"}) == [0, None, 2]


def test_uses_of_functions_in_linked_closures_are_left_out() -> None:
    places = {"one": (KEY, 7), "linked": (KEY, LINKED | 7), "two": (b"2" * 16, 9)}
    entries = sorted(encode_function_entry(name, *place, "") for name, place in places.items())
    table = Table(encode_table(entries, len(entries[0])))
    uses: list[tuple[int | str, str, bytes, bytes]] = [(at, name, b"", b"") for at, name in enumerate((*places, "missing"))]
    assert _runtime.uses_by_module((table,), uses) == {KEY: ([uses[0]], [7]), b"2" * 16: ([uses[2]], [9])}


def test_functions_are_listed_by_the_records(cache: Cache) -> None:
    text = "".join(constant(name, number) for number, name in enumerate(("one", "two", "umlaut")))
    named = {"one": "i64()", "two": "i64()", "\u00fc": Function("i64()", symbol="umlaut")}
    cache.add_module(ModuleSource(text, named))
    [(module_id, _)] = cache._store.find("one")
    with cache._store.open_module(module_id) as file:
        records = file.read(file.image, file.records)
    functions: dict[str, tuple[bytes, int]] = {"two": (b"other", 5)}
    repeated: set[str] = set()
    _runtime.list_functions(records, module_id, functions, repeated)
    assert functions.pop("two") == (b"other", 5)
    assert repeated == {"two"}
    assert {name: [place] for name, place in functions.items()} == {name: list(cache._store.find(name)) for name in ("one", "\u00fc")}
    for cut in range(len(records)):  # whatever is left of damaged records
        found: dict[str, tuple[bytes, int]] = {}
        _runtime.list_functions(records[:cut], module_id, found, set())
        assert found.items() <= {**functions, "two": next(cache._store.find("two"))}.items()


def test_stores_and_tables_are_committed_together(cache: Cache) -> None:
    from array import array

    memory = array("q", [0, 0, 0])
    at = _runtime.buffer_address(memory)

    def store(address: int, data: bytes) -> bytes:
        head = address.to_bytes(8, sys.byteorder) + len(data).to_bytes(8, sys.byteorder)
        return head + data + bytes(-len(data) % 8)

    table: dict[str, int] = {"old": 1}
    writes = store(at, (5).to_bytes(8, sys.byteorder)) + store(at + 8, b"abc") + store(at + 20, b"\1\0\0\0")
    assert load_runtime().commit(writes, (table, {"new": 2}, {}, {})) is None
    assert table == {"old": 1, "new": 2}
    assert memory[0] == 5
    assert ctypes.string_at(at + 8, 4) == b"abc\0"
    assert ctypes.string_at(at + 20, 4) == b"\1\0\0\0"
    assert cache.loaded().modules == ()


def test_rows_of_objects_that_are_gone_are_removed() -> None:
    class Owner:
        pass

    tables: list[dict[str, Any]] = [{}, {}, {}]
    owner, other = Owner(), Owner()
    for kept, name in ((owner, "gone"), (other, "stays")):
        rows = [item for table in tables for item in (table, name)]
        weak = load_runtime().weak_row(kept, _remove_dead_weakref, *rows)
        assert weak() is kept
        for table in tables:
            table[name] = weak
    del tables[2]["gone"]
    del owner, kept, weak
    assert [sorted(table) for table in tables] == [["stays"]] * 3
    with pytest.raises(TypeError, match="weak_row"):
        load_runtime().weak_row(other, _remove_dead_weakref, {})


def test_none_is_counted(image: Any, cache: Cache) -> None:
    """Where None is not immortal, each result None is a reference of its own, whatever headers the build had."""
    target = cache.get_target("f")
    echo = "define ptr @echo(ptr %p) {\n ret ptr %p\n}\ndefine void @nothing() {\n ret void\n}\n"
    cache.add_module(ModuleSource(echo, {"echo": "cstr(ptr)", "nothing": "void()"}))
    calls: list[Callable[[], object]] = [
        lambda: _runtime.commit(b"", ()),
        lambda: _runtime.invalidate(target),
        partial(cache.get_target("echo"), None),
        cache.get_target("nothing"),
    ]
    for call in calls:
        before = sys.getrefcount(None)
        for _ in range(1000):
            assert call() is None
        assert abs(sys.getrefcount(None) - before) < 100
    assert image is not None


# ------------------------------------------------------------------------------------ what it was built from


def test_it_was_built_from_the_sources_that_are_here() -> None:
    assert native_build.source_digest() == _runtime.SOURCE_DIGEST
    assert sorted(_runtime.SOURCES.split()) == sorted(path.name for path in NATIVE.iterdir())


@pytest.fixture
def extension(tmp_path: Path) -> Path:
    """A place for an extension module, beside a copy of the sources that are all older than it."""
    shutil.copytree(NATIVE, tmp_path / "native")
    for path in [*(tmp_path / "native").iterdir(), tmp_path / "native"]:
        os.utime(path, (1000, 1000))
    path = tmp_path / "_runtime.so"
    path.touch()
    return path


def test_sources_that_are_older_than_the_extension_are_not_read(extension: Path) -> None:
    _require_current(built_from(extension, "of others"))


@pytest.mark.parametrize("name", ["images.c", "runtime.h", ""])
def test_a_newer_source_is_compared_and_the_error_names_the_command(extension: Path, name: str) -> None:
    path = extension.with_name("native") / name
    os.utime(path, (1 << 33, 1 << 33))
    _require_current(built_from(extension, native_build.source_digest()))
    with pytest.raises(ImportError, match=r"not built from the sources.*make build.*pip install -e"):
        _require_current(built_from(extension, "of others"))


def test_a_source_that_is_gone_is_a_change(extension: Path) -> None:
    (extension.with_name("native") / "commit.c").unlink()
    with pytest.raises(ImportError, match="make build"):
        _require_current(built_from(extension, "of others"))


def test_a_package_without_sources_compares_nothing(extension: Path) -> None:
    shutil.rmtree(extension.with_name("native"))
    _require_current(built_from(extension, "of others"))


def test_an_extension_that_is_not_there_is_told(tmp_path: Path) -> None:
    package = tmp_path / "compcache"
    shutil.copytree(PACKAGE_ROOT / "compcache", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    script = f"""
    sys.path.insert(0, {str(tmp_path)!r})
    for name in [name for name in sys.modules if name.startswith("compcache")]:
        del sys.modules[name]
    from compcache.hit import target
    try:
        target.load_runtime()
    except ImportError as error:
        result = str(error)
    """
    assert re.search(r"native runtime .* cannot be imported.*pip install -e", run_fresh(tmp_path / "cache", script))


# ------------------------------------------------------------------------------------ how it is built


def test_the_system_compiler_is_found_and_zig_asked_for_only_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = C_COMPILER["find_system_compiler"]
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find() is None
    clang = tmp_path / "clang"
    clang.write_text("#!/bin/sh\n")
    clang.chmod(0o700)
    assert find() == "clang"
    monkeypatch.setenv("CC", "my-cc -m64")
    assert find() == "my-cc -m64"


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_the_backend_asks_for_zig_only_without_a_compiler(tmp_path: Path, kind: str) -> None:
    setuptools = tmp_path / "site" / "setuptools"
    setuptools.mkdir(parents=True)
    (setuptools / "__init__.py").touch()
    hooks = ["build_sdist", "build_wheel", "build_editable", "get_requires_for_build_sdist"]
    hooks += [f"{hook}_{kind}" for hook in ("prepare_metadata_for_build",) for kind in ("wheel", "editable")]
    hooks += ["get_requires_for_build_wheel", "get_requires_for_build_editable"]
    (setuptools / "build_meta.py").write_text("".join(f"def {hook}(*_): return ['own']\n" for hook in hooks))
    script = f"import compcache_backend as b; print(b.get_requires_for_build_{kind}())"
    path = os.pathsep.join([str(PACKAGE_ROOT / "build_backend"), str(tmp_path / "site")])
    programs = tmp_path / "bin"
    programs.mkdir()
    environment = {"PATH": str(programs), "PYTHONPATH": path}

    def requirements() -> str:
        command = [sys.executable, "-S", "-c", script]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert requirements() == f"['own', '{C_COMPILER['ZIG_REQUIREMENT']}']"
    (programs / "gcc").write_text("#!/bin/sh\n")
    (programs / "gcc").chmod(0o700)
    assert requirements() == "['own']"


@pytest.mark.parametrize("hook", ["build_editable", "prepare_metadata_for_build_editable"])
def test_editable_installations_build_in_one_tree_one_after_the_other(tmp_path: Path, hook: str) -> None:
    """Several environments may be made at the same time."""
    backend = PACKAGE_ROOT / "build_backend" / "compcache_backend.py"
    setuptools = tmp_path / "setuptools"
    setuptools.mkdir()
    (setuptools / "__init__.py").touch()
    names = ("build_sdist", "build_wheel", "get_requires_for_build_sdist", "prepare_metadata_for_build_wheel")
    tried = f"""
def {hook}(*_):
    import fcntl
    with open({str(backend)!r}, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "alone"
"""
    (setuptools / "build_meta.py").write_text("".join(f"def {name}(): ...\n" for name in names) + tried)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(backend.parent), str(tmp_path)])}
    script = f"import compcache_backend as b; print(b.{hook}('folder'))"
    done = subprocess.run([sys.executable, "-S", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "alone\n"


def test_missing_headers_name_the_packages_that_bring_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / name))
    with pytest.raises(SystemExit, match=r"Python\.h is missing.*python3-dev.*python3-devel"):
        C_COMPILER["require_python_headers"]()
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    C_COMPILER["require_python_headers"]()


def test_no_compiler_at_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"no C compiler.*pip install ziglang"):
        C_COMPILER["zig_command"]()


def test_a_commit_allocates_nothing_that_begins_a_garbage_collection() -> None:
    """Finalizers of garbage may load what the caller of `commit` has found missing. Since 3.12, no allocation begins a collection."""
    begun: list[str] = []
    table: dict[str, int] = {}
    updates = table, {"key": 1}
    callback = lambda phase, _: begun.append(phase)  # noqa: E731
    thresholds = gc.get_threshold()
    gc.callbacks.append(callback)
    gc.set_threshold(1 << 30)
    try:
        kept = [(number, number) for number in range(5000)]  # no tuple of this size is left to use again
        gc.set_threshold(1)
        _runtime.commit(b"", updates)
        count = len(begun)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(callback)
    assert (len(kept), table, count) == (5000, {"key": 1}, 0)
