"""Bundles: one file for functions and what they need, the same bytes for the same content, all or nothing when it is imported."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache
from helpers import PACKAGE_ROOT, adder, caller, constant, module_file, run_fresh
from hosts import host_like, on_host

from compcache import Cache, CacheWarning, CompcacheError, FormatError, Function, IntegrityError, ModuleSource, NotCachedError, StorageError
from compcache.bundles.layout import write_bundle
from compcache.formats.host import platform_name
from compcache.globals import Pickled
from compcache.signing.keys import generate_key, parse_public_key

if TYPE_CHECKING:
    from pathlib import Path

NEEDS_X86 = pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")
KEY = generate_key("team-1")
PUBLIC = str(KEY.public())


def fill(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("leaf", 1)))
    cache.add_module(ModuleSource(caller("middle", "leaf", plus=10)))
    cache.add_module(ModuleSource(caller("top", "middle", plus=100)))
    cache.add_module(ModuleSource(constant("other", 7)))


@pytest.fixture
def bundle(cache: Cache, tmp_path: Path) -> Path:
    """A bundle of a function with two below it."""
    fill(cache)
    path = tmp_path / "app.ccb"
    assert cache.export(["top"], path) == ("leaf", "middle", "top")
    return path


@pytest.mark.slow
def test_a_closure_travels(bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    with Cache(place) as cache:
        assert cache.import_bundle(bundle) == ("leaf", "middle", "top")
        assert cache.get_target("top")(1) == 112
        assert list(cache) == ["leaf", "middle", "top"]
        assert cache.check().errors == ()
        assert cache.import_bundle(bundle) == ("leaf", "middle", "top")
    script = "from compcache import Cache\nresult = Cache(directory).get_target('top')(2), 'llvmlite' in sys.modules"
    run_fresh(place, script)
    assert run_fresh(place, script) == (113, False)


def test_an_import_into_a_directory_that_has_lost_its_index_loses_nothing(bundle: Path, tmp_path: Path) -> None:
    with Cache(tmp_path / "elsewhere") as other:
        other.add_module(ModuleSource(constant("own", 5)))
    shutil.rmtree(tmp_path / "elsewhere" / "index-v1")
    with Cache(tmp_path / "elsewhere") as other:
        other.import_bundle(bundle)
    with Cache(tmp_path / "elsewhere") as other:
        assert other.get_target("own")() == 5


def test_without_closure_a_bundle_has_what_is_named(cache: Cache, tmp_path: Path) -> None:
    fill(cache)
    path = tmp_path / "app.ccb"
    assert cache.export(["top", "other"], path, closure=False) == ("other", "top")
    with Cache(tmp_path / "elsewhere") as other:
        other.import_bundle(path)
        assert other.get_target("other")() == 7
        with pytest.raises(CompcacheError, match="needs 'middle'"):
            other.get_target("top")


@pytest.mark.slow
def test_the_same_content_gives_the_same_bytes(cache: Cache, tmp_path: Path) -> None:
    """Written by another process at another time, with statistics and a key of the directory, of names in another order."""
    fill(cache)
    cache.export(["top"], tmp_path / "one.ccb")
    script = f"""
    sys.path[:0] = [{str(PACKAGE_ROOT / "tests")!r}, {os.path.dirname(__file__)!r}]
    from compcache import Cache
    from test_bundles import fill
    with Cache(directory, signing_key=b"secret") as cache:
        fill(cache)
        cache.get_target("top")(1)
        result = cache.export(["middle", "leaf", "top"], {str(tmp_path / "two.ccb")!r})
    """
    run_fresh(tmp_path / "again", script)
    assert (tmp_path / "two.ccb").read_bytes() == (tmp_path / "one.ccb").read_bytes()


def test_a_name_that_looks_like_a_row_of_the_listing_is_a_name(tmp_path: Path) -> None:
    name = f"f\t{'0' * 32}\tcpu\n"
    with Cache(tmp_path / "from") as cache:
        cache.add_module(ModuleSource(adder("f", 1), {name: Function(symbol="f")}))
        assert cache.export([name], tmp_path / "one.ccb") == (name,)
    with Cache(tmp_path / "to") as cache:
        cache.import_bundle(tmp_path / "one.ccb")
        assert cache.get_target(name)(1) == 2


def test_zip_reads_it_and_nothing_of_this_host_is_in_it(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        assert archive.testzip() is None
        listing = archive.read("compcache-bundle-1.txt").decode().splitlines()
        assert [line.split("\t")[0] for line in listing] == ["leaf", "middle", "top"]
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert os.fsencode(bundle.parent) not in bundle.read_bytes()
    if shutil.which("unzip"):
        assert subprocess.run(["unzip", "-qt", str(bundle)], check=False).returncode == 0


def test_a_bundle_cut_anywhere_is_refused_and_nothing_is_imported(bundle: Path, tmp_path: Path) -> None:
    data = bundle.read_bytes()
    cut = tmp_path / "cut.ccb"
    place = tmp_path / "elsewhere"
    with Cache(place) as cache:
        for size in [*range(0, len(data), 512), len(data) - 1, len(data) - 10]:
            cut.write_bytes(data[:size])
            with pytest.raises(FormatError, match="is not an intact compcache bundle"):
                cache.import_bundle(cut)
        assert len(cache) == 0


def test_a_changed_bundle_is_refused(bundle: Path, tmp_path: Path) -> None:
    data = bundle.read_bytes()
    changed = tmp_path / "changed.ccb"
    refused = 0
    with Cache(tmp_path / "elsewhere") as cache:
        for at in range(0, len(data), 997):
            changed.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
            try:
                cache.import_bundle(changed)
            except (FormatError, NotImplementedError):
                refused += 1
            else:
                assert cache.get_target("top")(1) == 112  # what was hit is in no module: a name of the listing
        assert refused > 10


def test_a_bundle_whose_archive_is_right_and_whose_module_is_not_is_refused(bundle: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.ccb"
    with zipfile.ZipFile(bundle) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in members if name.startswith("modules/"))
    members[name] = members[name][:100] + bytes([members[name][100] ^ 1]) + members[name][101:]
    write_bundle(str(changed), members)
    with Cache(tmp_path / "elsewhere") as cache:
        with pytest.raises(FormatError, match="is damaged"):
            cache.import_bundle(changed)
        assert len(cache) == 0


def test_other_files_are_told(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no bundle at all")
    with zipfile.ZipFile(tmp_path / "y", "w") as archive:
        archive.writestr("a.txt", "a")
    for name, text in (("x", "is not an intact compcache bundle"), ("y", "is not a compcache bundle of a known version")):
        with pytest.raises(FormatError, match=text):
            cache.import_bundle(tmp_path / name)
    with pytest.raises(StorageError, match="cannot read the bundle"):
        cache.import_bundle(tmp_path / "absent")
    with pytest.raises(NotCachedError, match="'f' is not in the cache"):
        cache.export(["f"], tmp_path / "z")
    with pytest.raises(ValueError, match="at least one name"):
        cache.export([], tmp_path / "z")
    assert not (tmp_path / "z").exists()


@pytest.mark.usefixtures("undecoded")
@NEEDS_X86
def test_targets_are_what_hosts_of_that_kind_would_take(cache: Cache, tmp_path: Path) -> None:
    cache.add_module(ModuleSource(constant("f", 1), targets=["x86-64", "x86-64-v2", "x86-64-v3"]))
    path = tmp_path / "app.ccb"
    cache.export(["f"], path, targets="haswell,nehalem")
    with on_host(Cache(tmp_path / "elsewhere"), host_like("haswell")) as other:
        other.import_bundle(path)
        assert sorted(r.cpu for r in other.realizations("f")) == ["x86-64-v2", "x86-64-v3"]
    cache.add_module(ModuleSource(constant("g", 1), targets=["x86-64-v3"]))
    with pytest.raises(NotCachedError, match="'g' has no realization that nehalem can run"):
        cache.export(["g"], path, targets=["nehalem"])


@NEEDS_X86
def test_targets_get_the_newest_code_that_they_can_run(cache: Cache, tmp_path: Path) -> None:
    cache.add_module(ModuleSource(constant("f", 0), targets=["x86-64-v3"]))
    with pytest.warns(CacheWarning, match="different code"):
        cache.add_module(ModuleSource(constant("f", 1), targets=["x86-64-v2"]))
    cache.export(["f"], tmp_path / "app.ccb", targets=["haswell"])
    with Cache(tmp_path / "elsewhere") as other:
        other.import_bundle(tmp_path / "app.ccb")
        assert [realization.cpu for realization in other.realizations("f")] == ["x86-64-v2"]


@NEEDS_X86
@pytest.mark.filterwarnings("ignore:function:compcache.CacheWarning")
def test_code_that_was_added_again_is_the_newest_for_all_targets(cache: Cache, tmp_path: Path) -> None:
    for value, target in ((1, "x86-64-v3"), (2, "x86-64-v2"), (1, "x86-64")):
        cache.add_module(ModuleSource(constant("f", value), targets=[target]))
    cache.export(["f"], tmp_path / "app.ccb", targets=["haswell"])
    with Cache(tmp_path / "elsewhere") as other:
        other.import_bundle(tmp_path / "app.ccb")
        assert [realization.cpu for realization in other.realizations("f")] == ["x86-64-v3"]


def test_a_bundle_gives_the_code_that_a_cache_with_layers_gives(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "function", CacheWarning)
        with Cache(tmp_path / "layer") as cache:
            for number in (2, 3, 4):
                cache.add_module(ModuleSource(adder("leaf", number)))
            cache.add_module(ModuleSource(caller("top", "leaf")))
        with Cache(tmp_path / "upper", layers=[tmp_path / "layer"]) as cache:
            cache.add_module(ModuleSource(adder("leaf", 5)))
            assert cache.get_target("top")(1) == 6
            cache.export(["top"], tmp_path / "app.ccb")
    for options in ({"path": tmp_path / "above", "layers": [tmp_path / "app.ccb"]}, {"path": tmp_path / "imported"}):
        with Cache(**options) as cache:
            if "layers" not in options:
                cache.import_bundle(tmp_path / "app.ccb")
            assert cache.get_target("top")(1) == 6
            assert len(cache.realizations("leaf")) == 4


@pytest.mark.parametrize("indirect", [False, True])
@pytest.mark.parametrize("options", [{}, {"targets": ["native"]}])
def test_a_bundle_has_the_code_that_serves_while_newer_code_lacks_an_import(
    tmp_path: Path, options: dict[str, Any], *, indirect: bool
) -> None:
    with Cache(tmp_path / "layer") as cache:
        cache.add_module(ModuleSource(adder("middle", 7)))
    with Cache(tmp_path / "upper", layers=[tmp_path / "layer"]) as cache:
        if indirect:
            cache.add_module(ModuleSource(caller("between", "missing"), imports=["missing"]))
        lacking = "between" if indirect else "missing"
        cache.add_module(ModuleSource(caller("middle", lacking), imports=[lacking]))
        cache.add_module(ModuleSource(caller("root", "middle", plus=1)))
        assert cache.get_target("root")(1) == 9
        cache.export(["root"], tmp_path / "app.ccb", **options)
    with Cache(tmp_path / "imported") as cache:
        cache.import_bundle(tmp_path / "app.ccb")
        assert cache.get_target("root")(1) == 9
        cache.add_module(ModuleSource(adder("missing", 100)))
        assert len(cache.realizations("middle")) == 2
    with Cache(tmp_path / "imported") as cache:
        assert cache.get_target("root")(1) == 102


def test_code_that_a_module_of_a_layer_brings_along_is_older_in_bundles_too(tmp_path: Path) -> None:
    """`other` is exported from a module that has older code of `leaf`, with a greater number than the newer code."""
    with Cache(tmp_path / "layer") as cache:
        for number in (2, 3):
            cache.add_module(ModuleSource(constant("unrelated", number)))
        cache.add_module(ModuleSource(adder("leaf", 2) + adder("other", 7)))
    with Cache(tmp_path / "upper", layers=[tmp_path / "layer"]) as cache:
        cache.add_module(ModuleSource(adder("leaf", 5)))
        cache.export(["leaf", "other"], tmp_path / "app.ccb")
    with Cache(tmp_path / "imported") as imported, Cache(tmp_path / "above", layers=[tmp_path / "app.ccb"]) as above:
        imported.import_bundle(tmp_path / "app.ccb")
        for cache in (imported, above):
            assert (cache.get_target("leaf")(1), cache.get_target("other")(1)) == (6, 8)


def test_the_number_of_a_module_in_two_directories_is_that_of_the_first(tmp_path: Path) -> None:
    """In the layer, the module was added after the code that replaces it above."""
    with Cache(tmp_path / "layer") as cache:
        for number in range(4):
            cache.add_module(ModuleSource(constant("unrelated", number)))
        cache.add_module(ModuleSource(adder("leaf", 1)))
    with Cache(tmp_path / "upper") as cache:
        former = cache.add_module(ModuleSource(adder("leaf", 1)))
        cache.add_module(ModuleSource(adder("leaf", 2)))
        module_file(tmp_path / "upper", former).unlink()  # the index lists it, and the layer has a file of it
    with Cache(tmp_path / "upper", layers=[tmp_path / "layer"]) as cache:
        assert cache.get_target("leaf")(1) == 3
        cache.export(["leaf"], tmp_path / "app.ccb")
    with Cache(tmp_path / "imported") as cache:
        cache.import_bundle(tmp_path / "app.ccb")
        assert cache.get_target("leaf")(1) == 3


@pytest.mark.parametrize("signer", [None, "team-1", "other"])
def test_a_trusted_key_must_have_signed(cache: Cache, tmp_path: Path, signer: str | None) -> None:
    path = tmp_path / "app.ccb"
    key = {None: None, "team-1": str(KEY), "other": str(generate_key("team-1"))}[signer]
    with Cache(cache.path, publish_key=key) as publishing:
        fill(publishing)
        publishing.export(["top"], path)
    with Cache(tmp_path / "elsewhere", trusted_keys=[PUBLIC]) as other:
        if signer == "team-1":
            other.import_bundle(path)
            assert other.get_target("top")(1) == 112
            return
        with pytest.raises(IntegrityError, match="no trusted key has signed the module, so nothing was imported"):
            other.import_bundle(path)
        assert len(other) == 0
    with Cache(tmp_path / "third") as third:
        with pytest.raises(IntegrityError):
            third.import_bundle(path, trusted_keys=PUBLIC)
        third.import_bundle(path)


def test_pickles_need_a_signature_always(cache: Cache, tmp_path: Path) -> None:
    code = "@o = external global ptr\ndefine ptr @f() {\n  %x = load ptr, ptr @o\n  ret ptr %x\n}\n"
    source = ModuleSource(code, {"f": "ptr()"}, {"o": Pickled.of({"a": 1})})
    path, signed = tmp_path / "app.ccb", tmp_path / "signed.ccb"
    cache.add_module(source)
    cache.export(["f"], path)
    with Cache(cache.path, publish_key=str(KEY)) as publishing:
        publishing.export(["f"], signed)
    with Cache(tmp_path / "elsewhere", allow_pickle=True) as other:
        for bundle in (path, signed):
            with pytest.raises(IntegrityError, match="pickled values, which require a signature by a trusted key"):
                other.import_bundle(bundle)
        other.import_bundle(signed, trusted_keys=[PUBLIC])
        assert other.get_target("f")()


@pytest.mark.slow
def test_the_commands_export_and_import(cache: Cache, tmp_path: Path) -> None:
    fill(cache)
    path = tmp_path / "app.ccb"
    done = compcache("--dir", cache.path, "export", "top", "--closure", "-o", path)
    assert (done.status, "3 functions" in done.err) == (0, True), done.err
    done = compcache("--dir", tmp_path / "elsewhere", "import", path, "--json", XDG_CONFIG_HOME=str(tmp_path))
    assert done.status == 0, done.err
    assert compcache("--dir", tmp_path / "elsewhere", "call", "top", "1").out.strip() == "112"
    path.write_bytes(path.read_bytes()[:-1])
    done = compcache("--dir", tmp_path / "elsewhere", "import", path, XDG_CONFIG_HOME=str(tmp_path))
    assert (done.status, "is not an intact compcache bundle" in done.err) == (2, True), done.err
    public = compcache("key", "new", "k", "-o", tmp_path / "k").out.strip()
    assert compcache("key", "trust", public, XDG_CONFIG_HOME=str(tmp_path)).status == 0
    compcache("--dir", cache.path, "export", "top", "-o", path)
    refused = compcache("--dir", tmp_path / "third", "import", path, XDG_CONFIG_HOME=str(tmp_path))
    assert (refused.status, "no trusted key" in refused.err) == (2, True), refused.err
    compcache("--dir", cache.path, "export", "top", "-o", path, COMPCACHE_PUBLISH_KEY=f"@{tmp_path}/k")
    assert compcache("--dir", tmp_path / "third", "import", path, XDG_CONFIG_HOME=str(tmp_path)).status == 0


@pytest.mark.slow
def test_minisign_verifies_a_bundle(cache: Cache, tmp_path: Path) -> None:
    """By the Debian package; what it reads is written down at https://jedisct1.github.io/minisign/#signature-format."""
    fill(cache)
    path, secret = tmp_path / "app.ccb", tmp_path / "k"
    public = compcache("key", "new", "team-1", "-o", secret).out.strip()
    refused = compcache("--dir", cache.path, "export", "top", "-o", path, "--minisign")
    assert (refused.status, "COMPCACHE_PUBLISH_KEY" in refused.err, path.exists()) == (2, True, False), refused.err
    written = []
    for _ in range(2):
        done = compcache("--dir", cache.path, "export", "top", "-o", path, "--minisign", COMPCACHE_PUBLISH_KEY=f"@{secret}")
        assert done.status == 0, done.err
        written.append((tmp_path / "app.ccb.minisig").read_bytes())
    assert written[0] == written[1]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["app.ccb", "app.ccb.minisig", "cache", "k"]
    key = compcache("key", "show", "--minisign", secret).out.strip()
    assert compcache("key", "trust", public, XDG_CONFIG_HOME=str(tmp_path / "home")).status == 0
    assert compcache("key", "show", "--minisign", XDG_CONFIG_HOME=str(tmp_path / "home")).out.strip() == key
    lines = written[0].decode().splitlines()
    content = hashlib.blake2b(path.read_bytes()).digest()
    assert parse_public_key(public).accepts(content, base64.b64decode(lines[1])[10:])
    minisign = shutil.which("minisign")
    if minisign is None:
        pytest.skip("minisign is not installed: only the parts were checked")
    assert subprocess.run([minisign, "-V", "-m", path, "-P", key], check=False, stdout=subprocess.DEVNULL).returncode == 0
    path.write_bytes(path.read_bytes()[:-1])
    assert subprocess.run([minisign, "-V", "-m", path, "-P", key], check=False, stderr=subprocess.DEVNULL).returncode == 1
