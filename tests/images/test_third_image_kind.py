"""A third kind of images, which is in the tests alone (`blob_kind`): the package handles its modules without knowing the kind.

Most tests run twice: where a program has registered the kind, and where nothing knows it, as in a process with an older package.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import blob_kind
import pytest
from blob_kind import KIND, PLATFORM, add_blob, as_kind, blob_module
from cli_process import compcache
from helpers import PACKAGE_ROOT, adder, caller, constant, flip_byte, module_entries, module_file, run_fresh

from compcache import Cache, IncompatibleTargetError, LinkError, ModuleSource, NotCachedError, PrunePolicy, UndefinedSymbolError
from compcache.formats import host
from compcache.formats.host import Processor, platform_name
from compcache.formats.manifest import IMAGE_OTHER, IMAGE_SHARED, MAPPED_IN_PLACE
from compcache.formats.manifest_writer import image_flag
from compcache.images import kinds
from compcache.images.anonymous_file import anonymous_file
from compcache.linker import build_module
from compcache.miss.publication import publish_built

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from compcache.images.sides import ImageFile
    from compcache.linker import BuiltModule


@pytest.fixture(params=[True, False], ids=["registered", "unknown"])
def registered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this process knows the kind."""
    known: bool = request.param
    if known:
        register(monkeypatch, KIND, "blob_kind")
    return known


def register(monkeypatch: pytest.MonkeyPatch, kind: str, module: str) -> None:
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    kinds.register(kind, module, module)


def built_here(cache: Cache, source: ModuleSource) -> BuiltModule:
    return build_module(source, machine=cache._store.host(), is_cached=lambda _: False)


def findings(cache: Cache, *, recompile: bool = False) -> list[tuple[str, str, str]]:
    return [(found.step, found.kind, found.severity) for found in cache.check(recompile=recompile).findings]


# ------------------------------------------------------------------ stored and listed


def test_a_module_is_stored_and_described(registered: bool, cache: Cache, directory: Path) -> None:
    module_id = add_blob(cache, "f", imports=("g",))
    assert module_file(directory, module_id).read_bytes().startswith(b"DSP7program")
    (found,) = cache.realizations("f")
    assert (found.module_id, found.image_kind, found.cpu, found.signature) == (module_id, KIND, "dsp7a", "i64(i64)")
    assert PLATFORM in found.problem
    assert (repr(KIND) in found.problem) is not registered
    assert cache.dependencies("f") == ("g",)
    (function,), (module,) = cache.functions(), cache.modules()
    assert (function.func_name, module.module_id) == ("f", module_id)
    assert PLATFORM in module.problem
    assert (repr(KIND) in module.problem) is not registered
    assert not cache.has("f")
    with Cache(directory) as fresh:
        assert fresh.realizations("f") == (found,)
    entries = module_entries(cache._store.index, bytes.fromhex(module_id))
    assert {entry.flags for entry in entries} == {IMAGE_OTHER}


@pytest.mark.slow
def test_the_command_line_lists_and_shows_it(cache: Cache, directory: Path) -> None:
    """The process of a command has registered nothing."""
    module_id = add_blob(cache, "f")
    cache.add_module(ModuleSource(constant("ordinary", 1)))

    def run(*arguments: object) -> str:
        done = compcache("--dir", directory, *arguments)
        assert (done.status, done.err) == (0, "")
        return done.out

    rows = {row["func_name"]: row for row in json.loads(run("ls", "--json"))}
    assert rows["f"]["modules"] == [module_id]
    (row,) = [row for row in json.loads(run("ls", "--modules", "--json")) if row["module_id"] == module_id]
    assert row["image_kind"] == KIND
    shown = json.loads(run("show", "f", "--json"))
    assert [copy["image_kind"] for copy in shown["realizations"]] == [KIND]
    assert f"an image of the kind {KIND!r}" in run("show", "f")
    assert "f" in run("graph", "f")
    done = compcache("--dir", directory, "call", "f", 1)
    assert done.status == 2
    assert f"{KIND!r}" in done.err
    assert run("rm", "--yes", "f")
    assert [row["func_name"] for row in json.loads(run("ls", "--json"))] == ["ordinary"]


# --------------------------------------------------------------------------- loaded


def test_a_request_says_that_this_host_does_not_run_it(registered: bool, cache: Cache) -> None:
    module_id = add_blob(cache, "f")
    with pytest.raises(NotCachedError) as raised:
        cache.get_target("f")
    message = str(raised.value)
    assert isinstance(raised.value.__cause__, IncompatibleTargetError)
    assert module_id in message
    if registered:
        assert f"is for {PLATFORM}" in message
        assert f"this process is {platform_name()}" in message
    else:
        assert f"an image of the kind {KIND!r} for {PLATFORM}" in message
        assert "install a newer version, or import the package that registers this kind" in message
    assert cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))(1) == 2
    assert len(cache.realizations("f")) == 2


def test_code_for_this_host_is_taken_beside_it(registered: bool, cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    add_blob(cache, "f")
    add_blob(cache, "f", platform=platform_name(), kind=KIND if not registered else "another")
    cache.add_module(ModuleSource(caller("g", "f", plus=10)))
    with Cache(directory) as fresh:
        assert fresh.get_target("f")(1) == 2
        assert fresh.get_target("g")(1) == 12
        problems = [found.problem for found in fresh.realizations("f")]
    assert sorted(map(bool, problems)) == [False, True, True]


def test_what_imports_it_says_what_is_missing(registered: bool, cache: Cache) -> None:
    add_blob(cache, "f")
    cache.add_module(ModuleSource(caller("g", "f"), imports=["f"]))
    with pytest.raises(UndefinedSymbolError, match=PLATFORM if registered else f"kind {KIND!r}"):
        cache.get_target("g")


def test_nothing_of_an_unknown_kind_is_mapped_or_translated(cache: Cache) -> None:
    """Not even where the bytes would be code for this host, with code of LLVM beside it."""
    built = built_here(cache, ModuleSource(constant("f", 7)))
    assert image_flag(built.header.image_kind) in MAPPED_IN_PLACE
    publish_built(cache._session(), [as_kind(built, KIND, built.sections[0])])
    with pytest.raises(NotCachedError, match=f"an image of the kind {KIND!r}"):
        cache.get_target("f")
    assert not cache.has("f")
    assert len(cache.realizations("f")) == 1
    assert cache.check(recompile=True)


def test_the_kind_decides_how_bytes_are_loaded_that_the_dynamic_linker_would_map(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, KIND, "blob_kind")
    built = built_here(cache, ModuleSource(constant("f", 7)))
    publish_built(cache._session(), [as_kind(built, KIND, built.sections[0])])
    with pytest.raises(LinkError, match="is a program for another processor"):
        cache.get_target("f")


@pytest.mark.usefixtures("cache")
def test_a_copy_of_a_shared_object_is_mapped_without_llvm(directory: Path) -> None:
    """A second cache of a process maps a copy: what that imports is what a kind costs on its hit's side."""
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant("f", 7)))
    script = """
    from compcache import Cache
    opened = Cache(directory)
    assert opened._store
    first = opened.get_target("f")
    loaded = set(sys.modules)
    second = Cache(directory).get_target("f")
    result = first() + second(), sorted(name for name in set(sys.modules) - loaded if name.startswith("compcache."))
    """
    value, imported = run_fresh(directory, script)
    assert value == 14
    expected = ["images", "images.anonymous_file", "images.kinds", "images.shared", "images.shared.load"]
    expected += ["formats.module_table", "formats.records"]
    assert imported == sorted(f"compcache.{name}" for name in expected)


class Masked:
    """A kind for this host: shared objects whose bytes are not what the dynamic linker takes."""

    LOADED = "masked shared objects"

    @staticmethod
    def mask(image: bytes) -> bytes:
        return bytes(byte ^ 0x55 for byte in image)

    @staticmethod
    def load(runtime: Any, file: ImageFile) -> Any:
        copy = anonymous_file(Masked.mask(file.read(0, file.image)))
        return runtime.map_image(copy.number, os.fsencode(file.path), file.key)

    @staticmethod
    def check(image: bytes, table: kinds.Table) -> None:
        kinds.require_table(Masked.mask(image), table)

    @staticmethod
    def is_comparable(_: bytes) -> bool:
        return False


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a kind that this host runs."""
    monkeypatch.setitem(__import__("sys").modules, "masked_kind", Masked)
    register(monkeypatch, "masked", "masked_kind")
    return "masked"


def test_a_kind_is_loaded_as_it_says(masked: str, cache: Cache, directory: Path) -> None:
    built = built_here(cache, ModuleSource(adder("f", 7)))
    publish_built(cache._session(), [as_kind(built, masked, Masked.mask(built.sections[0]))])
    cache.add_module(ModuleSource(caller("g", "f", plus=1)))
    for _ in range(2):
        with Cache(directory) as fresh:
            assert fresh.has("f")
            assert (fresh.get_target("f")(1), fresh.get_target("g")(1)) == (8, 9)
            assert fresh.realizations("f")[0].problem == ""
            assert fresh.check(recompile=True)


def test_a_check_asks_the_kind(masked: str, cache: Cache) -> None:
    built = built_here(cache, ModuleSource(adder("f", 7)))
    publish_built(cache._session(), [as_kind(built, masked, built.sections[0])])
    assert findings(cache) == [("checksums", "damaged", "error")]


# ----------------------------------------------------------------------- maintained


def test_checks_leave_intact_modules_alone(registered: bool, cache: Cache, directory: Path) -> None:
    module_id = add_blob(cache, "f", bitcode=b"not LLVM's")
    assert findings(cache, recompile=True) == []
    assert cache.check(repair=True, recompile=True)
    assert isinstance(registered, bool)
    assert module_file(directory, module_id).exists()
    assert not list((directory / "quarantine").glob("*"))


def test_checks_find_damage(registered: bool, cache: Cache, directory: Path) -> None:
    module_id = add_blob(cache, "f")
    flip_byte(module_file(directory, module_id), 5)
    assert findings(cache) == [("checksums", "damaged", "error")]
    wrong = blob_module("g")
    publish_built(cache._session(), [wrong._replace(sections=wrong.sections._replace(image=b"not a program"))])
    assert len(findings(cache)) == 1 + registered


def test_an_index_that_is_made_again_has_it(registered: bool, cache: Cache, directory: Path) -> None:
    module_id = add_blob(cache, "f")
    assert cache.realizations("f")
    cache.close()
    shutil.rmtree(directory / "index-v1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is damaged
        with Cache(directory) as fresh:
            assert [found.module_id for found in fresh.realizations("f")] == [module_id]
            assert {entry.flags for entry in module_entries(fresh._store.index, bytes.fromhex(module_id))} == {IMAGE_OTHER}
            assert not fresh.has("f")
    assert isinstance(registered, bool)


def test_it_is_pruned_as_others_are(registered: bool, cache: Cache, directory: Path) -> None:
    module_ids = [add_blob(cache, f"f{number}") for number in range(3)]
    cache.add_module(ModuleSource(constant("ordinary", 1)))
    assert cache.stats().modules == 4
    report = cache.prune(PrunePolicy(max_modules=1))
    assert len(report.removed) == 3
    assert cache.prune(PrunePolicy(max_modules=0)).removed
    assert not any(module_file(directory, module_id).exists() for module_id in module_ids)
    assert isinstance(registered, bool)


# -------------------------------------------------------------------------- passed on


def test_it_travels_in_bundles(registered: bool, cache: Cache, tmp_path: Path) -> None:
    module_id = add_blob(cache, "f", imports=("g",))
    cache.add_module(ModuleSource(adder("g", 1)))
    path = tmp_path / "bundle"
    assert cache.export(["f"], path) == ("f", "g")
    (tmp_path / "other").mkdir(mode=0o700)
    with Cache(tmp_path / "other") as other:
        assert other.import_bundle(path) == ("f", "g")
        (found,) = other.realizations("f")
        assert (found.module_id, found.image_kind) == (module_id, KIND)
        assert other.get_target("g")(1) == 2
        assert findings(other) == []
    with Cache(tmp_path / "upper", layers=[path]) as upper:
        assert upper.realizations("f")[0].image_kind == KIND
        with pytest.raises(NotCachedError, match=PLATFORM if registered else f"kind {KIND!r}"):
            upper.get_target("f")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a remote store; helper processes of this test end with it."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    yield tmp_path / "store"
    shutil.rmtree(runtime)


def test_it_travels_through_a_remote_store(registered: bool, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir(mode=0o700)
    with Cache(tmp_path / "a", remote=store.as_uri(), remote_mode="write") as first:
        module_id = add_blob(first, "f", made_on="d59")
        assert first.push(["f"]) == 1
        assert first.flush_uploads(60)
    (card,) = [path for path in (store / "ccr3" / "f").rglob("*") if path.is_file()]
    assert card.relative_to(store / "ccr3" / "f").parts[0] == f"{PLATFORM}-abi{host.ABI_VERSION}"
    with Cache(tmp_path / "b", remote=store.as_uri()) as here:
        assert here.has_many(["f"]) == (False,)
        assert here.prefetch(["f"]) == ()  # this host has no use for it
    monkeypatch.setattr(host, "_PLATFORM", PLATFORM)
    with Cache(tmp_path / "c", remote=store.as_uri()) as there:
        there._store._processor = Processor({}, "d59")
        assert there.prefetch(["f"]) == ("f",)
        (found,) = there.realizations("f")
        assert (found.module_id, found.image_kind) == (module_id, KIND)
        assert (repr(KIND) in found.problem) is not registered
        assert bool(found.problem) is not registered


def test_the_processor_that_it_is_for_is_told_what_the_kind_says(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, KIND, "blob_kind")
    add_blob(cache, "f")
    monkeypatch.setattr(host, "_PLATFORM", PLATFORM)
    cache._store._processor = Processor({}, "d59")
    with pytest.raises(LinkError, match="is a program for another processor"):
        cache.get_target("f")


# ------------------------------------------------------------------------ registered


def test_a_name_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, KIND, "blob_kind")
    kinds.register(KIND, "blob_kind", "blob_kind")
    assert kinds.make_side(KIND) is blob_kind
    for name, message in ((KIND, "already registered"), ("shared", "already registered"), ("", "must not be empty")):
        with pytest.raises(ValueError, match=message):
            kinds.register(name, "another", "another")


def test_numbers_say_what_is_mapped_in_place() -> None:
    assert image_flag("shared") == IMAGE_SHARED in MAPPED_IN_PLACE
    assert not {image_flag("object"), image_flag(KIND)} & MAPPED_IN_PLACE
    assert len({image_flag(kind) for kind in ("shared", "object", KIND)}) == 3


@pytest.mark.parametrize("kind", sorted(kinds._KINDS))
def test_every_kind_has_both_sides(kind: str) -> None:
    load, make = kinds._import_load_side(kind), kinds.make_side(kind)
    assert callable(load.load)
    assert callable(load.check)
    assert make.LOADED
    assert callable(make.requires)
    assert callable(make.is_comparable)
    assert {getattr(side, "__package__", "") for side in (load, make)} == {f"compcache.images.{kind}"}


@pytest.mark.slow
def test_nothing_but_the_codec_and_the_kinds_asks_which_it_is() -> None:
    asking = []
    for path in (PACKAGE_ROOT / "compcache").rglob("*.py"):
        name = str(path.relative_to(PACKAGE_ROOT / "compcache"))
        text = path.read_text(encoding="utf-8")
        compares = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Compare)]
        if "IMAGE_" in text or any("image_kind" in ast.unparse(node) for node in compares):
            asking.append(name)
    assert sorted(asking) == ["formats/entry.py", "formats/manifest.py", "formats/manifest_writer.py", "hit/__init__.py"]
