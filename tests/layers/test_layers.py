"""Layers: read-only caches below the writable one, however they came to where they are."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache
from helpers import PACKAGE_ROOT, adder, caller, constant, run_fresh
from hosts import host_like, on_host

from compcache import Cache, CacheWarning, Function, ModuleSource, NotCachedError, PrunePolicy, UntrustedDirectoryError
from compcache.files import Tree
from compcache.formats.footer import require_intact
from compcache.formats.host import platform_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.formats.footer import Footer

NEEDS_X86 = pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")


def fill(place: Path, *names: str) -> Path:
    with Cache(place) as cache:
        for number, name in enumerate(names):
            cache.add_module(ModuleSource(adder(name, number)))
    return place


def snapshot(place: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(place)): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in sorted(place.rglob("*"))
    }


def test_a_function_of_a_layer_is_a_hit_and_the_layer_stays_as_it_is(directory: Path, tmp_path: Path) -> None:
    layer = fill(tmp_path / "layer", "f", "g")
    before = snapshot(layer)
    with Cache(directory, layers=[layer]) as cache:
        assert cache.layers == (str(layer),)
        assert cache.has("g")
        assert cache.get_target("g")(41) == 42
        assert len(cache) == 2
        with pytest.raises(NotCachedError, match="cannot remove function 'g'"):
            cache.remove("g")
        assert cache.clear() == 0
        cache.prune(PrunePolicy(max_bytes=0))
        assert cache.check(repair=True).errors == ()
        assert cache.get_target("f")(1) == 1
        assert cache.stats().hits == 2
    assert snapshot(layer) == before


def test_a_hit_of_a_layer_below_an_empty_directory_reads_nothing_of_repairs(directory: Path, tmp_path: Path) -> None:
    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(adder("f", 1)), ModuleSource(adder("g", 2))])
    script = f"""
    import sys
    from compcache import Cache
    with Cache({str(tmp_path / "above")!r}, layers=[directory]) as cache:
        result = cache.get_target("f")(1), cache.get_target("g")(1), any(name.startswith("compcache.publish") for name in sys.modules)
    """
    assert run_fresh(directory, script) == (2, 3, False)


def test_a_fresh_process_takes_layers_from_the_environment(directory: Path, tmp_path: Path) -> None:
    layer = fill(tmp_path / "layer", "f")
    setting = f"{tmp_path / 'absent'}:{layer}"
    script = "from compcache import Cache\nc = Cache(directory)\nt = c.get_target('f')\nresult = t(7), 'llvmlite' in sys.modules, c.layers"
    run_fresh(directory, script, COMPCACHE_LAYERS=setting)
    assert run_fresh(directory, script, COMPCACHE_LAYERS=setting) == (7, False, (str(tmp_path / "absent"), str(layer)))


@pytest.mark.parametrize("name", ["f", f"f-{0:032x}"], ids=["plain", "content"])
def test_the_directory_is_asked_first_and_then_the_layers_in_order(directory: Path, tmp_path: Path, name: str) -> None:
    layers = [tmp_path / "one", tmp_path / "two"]
    for number, place in enumerate([directory, *layers]):
        with Cache(place) as cache:
            cache.add_module(ModuleSource(constant(name, number)))
    with Cache(directory, layers=layers) as cache:
        assert cache.get_target(name)() == 0
        assert len(cache.realizations(name)) == 3
    with Cache(tmp_path / "empty", layers=layers) as cache:
        assert cache.get_target(name)() == 1
    with Cache(tmp_path / "empty", layers=layers[::-1]) as cache:
        assert cache.get_target(name)() == 2


@pytest.mark.usefixtures("undecoded")
@NEEDS_X86
@pytest.mark.parametrize("name", ["f", f"f-{0:032x}"], ids=["plain", "content"])
def test_the_best_cpu_wins_wherever_it_is(directory: Path, tmp_path: Path, name: str) -> None:
    layers = [tmp_path / "one", tmp_path / "two"]
    for place, target in zip([directory, *layers], ["x86-64", "x86-64-v3", "x86-64-v2"], strict=True):
        with Cache(place) as cache:
            cache.add_module(ModuleSource(constant(name, 1), targets=[target]))
    for cpu, expected in [("nehalem", "x86-64-v2"), ("haswell", "x86-64-v3"), ("core2", "x86-64")]:
        with on_host(Cache(directory, layers=layers), host_like(cpu)) as cache:
            chosen = cache.get_target(name).module_id
            assert {r.module_id: r.cpu for r in cache.realizations(name)}[chosen] == expected


def test_functions_of_all_layers_depend_on_one_another(directory: Path, tmp_path: Path) -> None:
    below, above = tmp_path / "below", tmp_path / "above"
    fill(below, "other", "leaf")
    with Cache(above, layers=[below]) as cache:
        cache.add_module(ModuleSource(caller("middle", "leaf", plus=10)))
    with Cache(directory, layers=[above, below]) as cache:
        cache.add_module(ModuleSource(caller("top", "middle", plus=100)))
        assert cache.get_target("top")(1) == 112
        assert cache.dependencies("top", transitive=True) == ("middle", "leaf")
        assert cache.check().errors == ()
        assert pickle.loads(pickle.dumps(cache.get_target("top")))(1) == 112
    assert run_fresh(
        directory, f"from compcache import Cache\nresult = Cache(directory, layers={[str(above), str(below)]!r}).get_target('top')(1)"
    ) == 112


@pytest.mark.parametrize("kind", ["plain", "content"])
def test_a_realization_of_a_layer_serves_if_the_imports_of_the_newer_one_are_missing(
    directory: Path, tmp_path: Path, kind: str
) -> None:
    name = "middle" if kind == "plain" else "middle-0123456789abcdef0123456789abcdef"
    layer = tmp_path / "layer"
    with Cache(layer) as cache:
        cache.add_module(ModuleSource(adder("middle", 7), {name: Function("i64(i64)", symbol="middle")}))
    with Cache(directory, layers=[layer]) as cache:
        cache.add_module(ModuleSource(caller("middle", "missing"), {name: Function("i64(i64)", symbol="middle")}, imports=["missing"]))
        cache.add_module(ModuleSource(caller("root", "middle", plus=1), imports={"middle": name}))
    for _ in range(2):  # the first look-up writes the segment of all layers, which the second one reads
        with Cache(directory, layers=[layer]) as cache:
            assert cache.get_target("root")(1) == 9
            assert cache.get_target(name)(1) == 8


def test_a_pickled_target_of_a_layer_is_found_again_elsewhere(directory: Path, tmp_path: Path) -> None:
    with Cache(directory, layers=[fill(tmp_path / "layer", "f")]) as cache:
        data = pickle.dumps(cache.get_target("f"))
    assert run_fresh(directory, f"import pickle\nresult = pickle.loads({data!r})(5)") == 5


def _tar(source: Path, target: Path) -> None:
    target.mkdir()
    subprocess.run(f"tar -C {source} -cf - . | tar -C {target} -xf -", shell=True, check=True)


def _rsync(source: Path, target: Path) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    subprocess.run(["rsync", "-r", f"{source}/", str(target)], check=True)


@pytest.mark.parametrize(
    "copy",
    [lambda a, b: subprocess.run(["cp", "-r", str(a), str(b)], check=True), _tar, _rsync, shutil.copytree],
    ids=["cp", "tar", "rsync", "copytree"],
)
def test_a_copy_is_verified_once_and_that_is_remembered(
    directory: Path, tmp_path: Path, copy: Callable[[Path, Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = tmp_path / "copied"
    copy(fill(tmp_path / "layer", "f", "g"), layer)
    os.chmod(layer, 0o755)
    settle(layer)
    before = snapshot(layer)
    with Cache(directory, layers=[layer]) as cache:
        assert cache.get_target("g")(1) == 2
        assert cache.check(repair=True).errors == ()
    digested: list[bytes] = []

    def counted(footer: Footer, module_id: bytes, read: Callable[[int, int], bytes]) -> None:
        digested.append(module_id)
        require_intact(footer, module_id, read)

    monkeypatch.setattr("compcache.publish.verify.require_intact", counted)
    with Cache(directory, layers=[layer]) as cache:
        assert cache.get_target("g")(1) == 2
        assert digested == []
        assert cache.get_target("f")(1) == 1
        assert len(digested) == 1
    assert snapshot(layer) == before


def settle(place: Path) -> None:
    """Let files be old enough to be told from what changes now."""
    for path in place.rglob("*.ccm"):
        os.utime(path, (1_000_000, 1_000_000))
    time.sleep(0.15)


def test_a_damaged_file_of_a_layer_is_passed_over_and_left_where_it_is(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layer, other = tmp_path / "layer", fill(tmp_path / "other", "f")
    fill(layer, "f")
    (path,) = layer.rglob("*.ccm")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    before = snapshot(layer)
    with (
        caplog.at_level("DEBUG", logger="compcache"),
        Cache(directory, layers=[layer, other]) as cache,
        pytest.warns(CacheWarning, match="is damaged"),
    ):
        assert cache.get_target("f")(1) == 1
    assert snapshot(layer) == before
    assert any(message.startswith(f"refused {path}") for message in caplog.messages)


def test_a_layer_that_others_can_write_to_is_refused(directory: Path, tmp_path: Path) -> None:
    layer = fill(tmp_path / "layer", "f")
    os.chmod(layer, 0o777)
    with pytest.raises(UntrustedDirectoryError, match="layer"):
        Cache(directory, layers=[layer])
    with Cache(directory, layers=[layer], trust=True) as cache:
        assert cache.get_target("f")(3) == 3


def test_what_a_layer_lacks_is_compiled_into_the_directory(directory: Path, tmp_path: Path) -> None:
    layer = fill(tmp_path / "layer", "f")
    with Cache(directory, layers=[layer]) as cache:
        assert cache.get_or_compile("f", lambda: pytest.fail("it is in the layer"))(1) == 1
        assert cache.get_or_compile("h", lambda: ModuleSource(constant("h", 9)))() == 9
        assert [m.directory for m in cache.modules()] == [str(directory), str(layer)]
        assert {f.func_name: f.directories for f in cache.functions()} == {"f": (str(layer),), "h": (str(directory),)}


def test_a_layer_that_others_add_to_is_seen(directory: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    with Cache(directory, layers=[layer]) as cache:
        assert not cache.has("f")
        fill(layer, "f")
        assert cache.get_target("f")(2) == 2


def test_a_layer_that_is_exchanged_is_read_again(directory: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    for number in range(3):
        shutil.rmtree(layer, ignore_errors=True)
        with Cache(layer) as cache:
            cache.add_module(ModuleSource(constant("f", number)))
        for _ in range(2):
            with Cache(directory, layers=[layer]) as cache:
                assert [copy.module_id for copy in cache.realizations("f")] == [cache.get_target("f").module_id]
                assert cache.get_target("f")() == number


def test_the_listing_says_where_functions_are(directory: Path, tmp_path: Path) -> None:
    layer = fill(tmp_path / "layer", "f")
    fill(directory, "mine")
    listed = compcache("--dir", directory, "ls", COMPCACHE_LAYERS=str(layer)).out.splitlines()
    assert {line.split("\t")[0]: line.split("\t")[-1] for line in listed} == {"f": str(layer), "mine": str(directory)}


def without_privileges() -> list[str]:
    """What to start a program with that may read only what permissions allow."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("the superuser reads everything")
    powers = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={powers}", f"--inh-caps={powers}"]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["modules-v1", "modules-v1/*", "modules-v1/*/*", "index-v1", "index-v1/*", ".", ".."])
def test_what_cannot_be_read_of_a_layer_is_a_warning(directory: Path, tmp_path: Path, part: str) -> None:
    layer = fill(tmp_path / "of another user" / "layer", "f", "g")
    fill(directory, "mine")
    closed = {".": [layer], "..": [layer.parent]}.get(part) or list(layer.glob(part))
    modes = [path.stat().st_mode for path in closed]
    program = f"""
        import sys, warnings
        sys.path[:0] = [{str(PACKAGE_ROOT)!r}, {str(PACKAGE_ROOT / "tests")!r}]
        from compcache import Cache, ModuleSource
        from helpers import adder
        warnings.simplefilter("always")
        with Cache({str(directory)!r}, layers=[{str(layer)!r}]) as cache:
            print(cache.get_target("mine")(1), cache.get_or_compile("f", lambda: ModuleSource(adder("f", 5)))(1))
            print(*sorted(function.func_name for function in cache.functions() if function.directories != ({str(layer)!r},)))
            print(cache.info().functions, bool(cache.check()), cache.explain("mine").hit, cache.explain("absent").reason)
    """
    try:
        for path in closed:
            path.chmod(0)
        command = [*without_privileges(), sys.executable, "-c", textwrap.dedent(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        for path, mode in zip(closed, modes, strict=True):
            path.chmod(mode)
    assert done.stdout.splitlines() == ["1 6", "f mine", "2 True True absent"], done.stderr
    assert "cannot be read" in done.stderr or part == "modules-v1/*/*"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_layer_that_cannot_be_opened_at_the_moment_is_a_warning(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The process has too many open files, or the layer's disk fails."""
    layer, other = fill(tmp_path / "layer", "f", "g"), fill(tmp_path / "other", "h")
    fill(directory, "mine")
    open_root = Tree._enter_root

    def fail(tree: Tree, **options: Any) -> Any:
        if tree.root == str(layer):
            raise OSError(number, os.strerror(number))
        return open_root(tree, **options)

    monkeypatch.setattr(Tree, "_enter_root", fail)
    with pytest.warns(CacheWarning, match=f"{layer} is not used: .*{os.strerror(number)}$"):
        cache = Cache(directory, layers=[layer, other])
    with cache:
        assert cache.get_or_compile("f", lambda: ModuleSource(adder("f", 5)))(1) == 6
        assert [cache.get_target(name)(1) for name in ("mine", "h")] == [1, 1]


def test_a_layer_that_cannot_be_listed_for_a_moment_is_told_and_used_later(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later processes use its code, not that of other layers."""
    first, second = tmp_path / "first", tmp_path / "second"
    fill(directory, "mine")
    for number, place in enumerate((first, second), 1):
        with Cache(place) as cache:
            cache.add_module(ModuleSource(adder("f", number)))
    usual = Tree.listdir

    def fail(tree: Tree, path: str) -> list[str]:
        if path == f"{first}/index-v1":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return usual(tree, path)

    with monkeypatch.context() as patch:
        patch.setattr(Tree, "listdir", fail)
        message = f"the layer {first} is used only in part: .*{os.strerror(errno.EIO)}"
        with Cache(directory, layers=[first, second]) as cache, pytest.warns(CacheWarning, match=message):
            assert cache.get_target("f")(1) == 3
    with Cache(directory, layers=[first, second]) as cache:
        assert cache.get_target("f")(1) == 2


def test_layers_are_several_directories(directory: Path) -> None:
    with pytest.raises(TypeError, match="a list of paths"):
        Cache(directory, layers="/one")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="only the superuser mounts and becomes others")
@pytest.mark.parametrize("readonly", [False, True], ids=["writable above", "nothing to write"])
def test_a_read_only_mount_of_the_superuser_serves_another_user(readonly: bool) -> None:
    """The layer is of the superuser, on a file system mounted read-only in a mount namespace; the process is nobody's."""
    with tempfile.TemporaryDirectory() as base:
        layer, own = fill(Path(base, "layer"), "f", "g"), Path(base, "own")
        own.mkdir()
        for path in [Path(base), layer, *layer.rglob("*")]:
            os.chmod(path, 0o755 if path.is_dir() else 0o644)
        os.chown(own, 65534, 65534)
        # What is imported is read by the superuser: others may not reach this interpreter.
        program = f"""
            import os, sys
            sys.path.insert(0, {str(PACKAGE_ROOT)!r})
            from compcache import Cache
            Cache({str(layer)!r}, readonly=True).get_target("f")
            import compcache.layers.layered_store, compcache.publish.verify, compcache.publish.host_file
            os.setgid(65534); os.setuid(65534)
            try:
                open({str(layer / "x")!r}, "w")
            except OSError as error:
                print(error.strerror)
            for _ in range(2):
                with Cache({str(own / "cache")!r}, layers=[{str(layer)!r}], readonly={readonly}) as cache:
                    print(cache.get_target("g")(1))
        """
        inside = f'mount --bind {layer} {layer} && mount -o remount,bind,ro {layer} || exit 77; exec {sys.executable} -c "$1"'
        command = ["unshare", "--mount", "sh", "-c", inside, "sh", textwrap.dedent(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 77 or "unshare failed" in done.stderr:
            pytest.skip(f"no mounts here: {done.stderr}")
        assert done.stdout.splitlines() == ["Read-only file system", "2", "2"], done.stderr


def test_what_is_replaced_in_a_layer_is_found_by_who_has_it_open(directory: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    with Cache(layer) as below:
        below.add_module(ModuleSource(adder("f", 1)))
        below.add_module(ModuleSource(caller("g", "f")))
        with Cache(directory, layers=[layer]) as cache:
            assert cache.get_target("f")(1) == 2
            below.replace(ModuleSource(adder("f", 2)))
            assert cache.get_target("f")(1) == 3
            below.replace(ModuleSource(adder("f", 3)))
            gc.disable()
            try:
                assert cache.get_target("g")(1) == 4
                assert cache.loaded().modules == ()
            finally:
                gc.enable()


def test_a_host_without_msgpack_uses_layers(directory: Path, tmp_path: Path) -> None:
    """As with compcache-runtime."""
    with Cache(tmp_path / "layer") as layer:
        layer.add_module(ModuleSource(adder("f", 1)))
    script = f"""
    sys.modules["msgpack"] = None
    from compcache import Cache, NotCachedError
    cache = Cache(directory, layers=[{str(tmp_path / "layer")!r}])
    result = [cache.get_target("f")(1)]
    try:
        cache.get_target("g")
    except NotCachedError:
        result.append("miss")
    """
    assert run_fresh(directory, script) == [2, "miss"]


def test_an_addition_that_a_layer_has_is_no_addition_to_the_directory(directory: Path, tmp_path: Path) -> None:
    """Else it would come first in front of other layers, until the index is made again from the files."""
    one, other = tmp_path / "one", tmp_path / "other"
    for place, number in ((one, 1), (other, 2)):
        with Cache(place) as cache:
            cache.add_module(ModuleSource(adder("f", number)))
    with Cache(directory, layers=[one]) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        assert cache.get_target("f")(0) == 1
    for _ in range(2):
        with Cache(directory, layers=[other, one]) as cache:
            assert cache.get_target("f")(0) == 2
        shutil.rmtree(directory / "index-v1", ignore_errors=True)


def test_what_a_layer_has_and_does_not_list_is_added(directory: Path, tmp_path: Path) -> None:
    name = "g-0123456789abcdef0123456789abcdef"
    source = ModuleSource(adder("g", 1), {name: Function("i64(i64)", symbol="g")})
    layer = fill(tmp_path / "layer", "f")
    listed = {*(layer / "index-v1").iterdir()}
    with Cache(layer) as cache:
        cache.add_module(source)
    for path in {*(layer / "index-v1").iterdir()} - listed:
        path.unlink()  # as if the process that added `g` had been killed
    with Cache(directory, layers=[layer]) as cache:
        assert not cache.has(name)
        cache.add_module(source)
        assert cache.get_target(name)(1) == 2
    with Cache(directory, layers=[layer]) as cache:
        assert cache.get_target(name)(1) == 2
