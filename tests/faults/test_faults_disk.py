"""Disks that are full, slow to obey, read-only, foreign or gone: a compile never fails because caching failed.

One warning says what could not be stored and why. A read-only cache needs no write at all. What other tools and other
versions of the package keep in the tree is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers import FreshProcessError, adder, caller, constant, flip_byte, module_file, run_fresh, snapshot
from mock_directory import FaultyFiles, cache_on, fail_at, full_disk, no_permission, read_only

from compcache import Cache, CacheWarning, CompcacheError, ModuleSource, NotCachedError, PrunePolicy
from compcache.digest import check, digest
from compcache.formats.footer import FOOTER_SIZE, decode_footer, encode_container
from compcache.formats.host import ABI_VERSION
from compcache.formats.manifest_writer import ManifestWriter, encode_module, iterate_frames
from compcache.formats.records import decode_module
from compcache.miss import build
from compcache.miss.build import build_source
from compcache.publish.index_rebuild import rebuild_index

if TYPE_CHECKING:
    from collections.abc import Callable

    from mock_directory import Operation


FAULT = pytest.mark.fault


@pytest.fixture
def stored(directory: Path) -> Path:
    """A directory with ``f(x) = x + 1`` and ``g(x) = x + 20``."""
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        cache.add_module(ModuleSource(adder("g", 20)))
    return directory


class Compiled:
    """Modules compiled beforehand: tests of many failures would spend their time in LLVM."""

    def __init__(self, cache: Cache, *sources: str) -> None:
        self.modules = {source: build_source(cache._session(), ModuleSource(source, optimize=0)) for source in sources}

    def into(self, cache: Cache) -> Cache:
        """The cache; until the test ends nothing is compiled."""
        build.build_source = lambda _, source, *__, **___: self.modules[source.ir]
        return cache


@pytest.fixture(autouse=True)
def _compiles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test has put in place of the compiler goes with it."""
    monkeypatch.setattr(build, "build_source", build_source)


@pytest.fixture
def compiled(cache: Cache) -> Compiled:
    return Compiled(cache, adder("new", 5))


def get_new(cache: Cache) -> tuple[int, list[str]]:
    """What `new(1)` answers, compiled if need be, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value: int = cache.get_or_compile("new", lambda: ModuleSource(adder("new", 5), optimize=0))(1)
    assert all(warning.category is CacheWarning for warning in caught), [str(w.message) for w in caught]
    return value, [str(warning.message) for warning in caught]


def is_stored(place: Path) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Cache(place) as cache:
            return cache.has("new")


# ------------------------------------------------------------------------------------ failing writes


def no_index(operation: Operation) -> BaseException | None:
    """The module can be published, but nothing that leads to it."""
    concerned = operation.target.startswith("index-v1")
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES)) if concerned else None


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (full_disk(), "No space left on device"),
        (full_disk(600), "No space left on device"),
        (no_permission(), "Permission denied"),
        (no_permission("modules-v1", "tmp"), "Permission denied"),
        (no_index, "Permission denied"),
        (read_only(), "Read-only file system"),
    ],
    ids=["full", "nearly full", "no permission", "no modules", "no index", "read-only"],
)
def test_what_cannot_be_stored_is_told_once(stored: Path, compiled: Compiled, plan: Any, reason: str) -> None:
    cache = compiled.into(cache_on(FaultyFiles(stored, plan)))
    value, messages = get_new(cache)
    assert value == 6
    assert len(messages) == 1, messages
    assert "'new' was not stored" in messages[0]
    assert reason in messages[0]
    assert get_new(cache) == (6, []), "it is there as long as the cache is open"
    cache.close()
    with Cache(stored) as later:
        assert later.get_target("f")(1) == 2


@pytest.mark.parametrize(
    "number", [errno.EDQUOT, *(pytest.param(n, marks=FAULT) for n in (errno.ENOSPC, errno.EIO))]
)
def test_a_compile_works_whichever_write_fails(
    stored: Path, compiled: Compiled, tmp_path: Path, number: int
) -> None:
    """And says so once, where the result is not there afterwards."""

    def attempt(place: Path, at: int) -> tuple[FaultyFiles, list[str]]:
        shutil.copytree(stored, place)
        place.chmod(0o700)
        files = FaultyFiles(place, fail_at(at, OSError(number, os.strerror(number))))
        with compiled.into(cache_on(files)) as cache:
            value, messages = get_new(cache)
            assert value == 6
        return files, messages

    total = len(attempt(tmp_path / "all", -1)[0].operations)
    assert total > 8
    for at in range(total):
        place = tmp_path / str(at)
        _, messages = attempt(place, at)
        assert len(messages) <= 1, (at, messages)
        assert messages or is_stored(place), at
        assert all(os.strerror(number) in message for message in messages)
        shutil.rmtree(place)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "step"),
    [(errno.EIO, 4), *(pytest.param(n, 1, marks=FAULT) for n in (errno.EIO, errno.EACCES, errno.EMFILE))],
)
def test_a_compile_works_whichever_operation_fails(
    stored: Path, compiled: Compiled, tmp_path: Path, number: int, step: int
) -> None:
    """Reading included. What can be read gives right answers, what cannot is a documented error."""

    def attempt(place: Path, at: int) -> int:
        shutil.copytree(stored, place)
        place.chmod(0o700)
        files = FaultyFiles(place, None, count=lambda _: True)
        with compiled.into(cache_on(files)) as cache:
            files.reset()
            files.plan = fail_at(at, OSError(number, os.strerror(number)))
            assert get_new(cache)[0] == 6, at
            with contextlib.suppress(CompcacheError):
                assert cache.get_target("f")(1) == 2
        return len(files.operations)

    total = attempt(tmp_path / "all", -1)
    assert total > 20
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for at in range(0, total, step):
            place = tmp_path / str(at)
            attempt(place, at)
            shutil.rmtree(place)


@pytest.mark.parametrize("step", [25, pytest.param(1, marks=FAULT)])
def test_a_directory_that_vanishes_at_any_moment_is_no_obstacle(
    stored: Path, compiled: Compiled, tmp_path: Path, step: int
) -> None:
    def attempt(place: Path, at: int) -> int:
        shutil.copytree(stored, place)
        place.chmod(0o700)
        files = FaultyFiles(place, None, count=lambda _: True)

        def vanish(operation: Operation) -> None:
            if operation.number == at:
                shutil.rmtree(place)

        with compiled.into(cache_on(files)) as cache:
            files.reset()
            files.plan = vanish
            assert get_new(cache)[0] == 6, at
        return len(files.operations)

    total = attempt(tmp_path / "all", -1)
    for at in range(0, total, step):
        attempt(tmp_path / str(at), at)


def test_an_open_cache_survives_its_directory(stored: Path) -> None:
    with Cache(stored) as cache:
        f = cache.get_target("f")
        shutil.rmtree(stored)
        assert f(1) == 2
        assert cache.get_target("f") is f
        with pytest.raises(NotCachedError):
            cache.get_target("g")
        assert get_new(cache) == (6, [])
        assert stat.S_IMODE(stored.stat().st_mode) == 0o700
    assert is_stored(stored)


# ------------------------------------------------------------------------------------ no rights, really

AS_NOBODY = """
import os, warnings
from compcache import Cache, ModuleSource, CompcacheError
source = lambda: ModuleSource("define i64 @new(i64 %x) {{ %y = add i64 %x, 5 ret i64 %y }}", optimize=0)
with Cache(directory + "-warm-up") as cache:
    cache.get_or_compile("new", source)(1)
os.setegid(65534)
os.seteuid(65534)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with Cache(directory, trust=True) as cache:
        value = cache.get_or_compile("new", source)(1)
        try:
            old = cache.get_target("f")(1)
        except CompcacheError as error:
            old = type(error).__name__
result = value, old, [str(w.message) for w in caught if "compcache" in str(w.category)]
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("readable", [True, False])
def test_somebody_elses_directory_serves_what_can_be_read(stored: Path, readable: bool) -> None:
    # Not below pytest's directory: each pytest that starts on this machine takes it from all others again.
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        elsewhere = Path(shutil.copytree(stored, Path(place) / "cache"))
        for path in [elsewhere, *elsewhere.rglob("*")] if readable else []:
            path.chmod(0o755 if path.is_dir() else 0o644)
        value, old, messages = run_fresh(elsewhere, AS_NOBODY.format())
    assert value == 6
    assert old == (2 if readable else "NotCachedError")
    assert len(messages) == 1, messages
    assert "'new' was not stored" in messages[0]
    assert "Permission denied" in messages[0]


# ------------------------------------------------------------------------------------ read-only


def everything(place: Path) -> dict[str, tuple[int, ...]]:
    """Every path with inode, size and times, the root included."""
    found: dict[str, tuple[int, ...]] = {}
    for path in [place, *place.rglob("*")]:
        status = path.lstat()
        found[str(path)] = (
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_mode,
        )
    return found


def use_readonly(place: Path) -> dict[str, Any]:
    """All that a read-only cache can do, in a fresh process."""
    script = """
    import warnings
    from compcache import Cache, ModuleSource, CompcacheError, PrunePolicy, StorageError
    warnings.simplefilter("ignore")
    result = {}
    with Cache(directory, readonly=True) as cache:
        for name in ("f", "g", "missing"):
            try:
                result[name] = cache.get_target(name)(1)
            except CompcacheError as error:
                result[name] = type(error).__name__
        cache.has("f"), cache.realizations("f"), cache.stats(), cache.exists and cache.check()
        source = lambda: ModuleSource("define i64 @new(i64 %x) { %y = add i64 %x, 5 ret i64 %y }")
        result["new"] = cache.get_or_compile("new", source)(1)
        result["again"] = cache.get_target("new")(1)
        result["dry"] = len(cache.prune(PrunePolicy(max_modules=0), dry_run=True).removed)
        for name, refused in {
            "add": lambda: cache.add_module(source()),
            "prune": lambda: cache.prune(PrunePolicy(max_modules=0)),
            "pin": lambda: cache.pin("f"),
            "clear": cache.clear,
            "zero": cache.zero_stats,
        }.items():
            try:
                result[name] = refused()
            except StorageError as error:
                result[name] = "readonly" in str(error)
    """
    answers: dict[str, Any] = run_fresh(place, script)
    return answers


@pytest.mark.slow
@pytest.mark.parametrize(
    "state", ["healthy", "damaged module", "damaged index", "no index", "empty"]
)
def test_a_read_only_cache_writes_nothing(stored: Path, state: str) -> None:
    first = next((stored / "index-v1").iterdir())
    with Cache(stored) as cache:
        f = cache.realizations("f")[0].module_id
    if state == "damaged module":
        flip_byte(module_file(stored, f), 50)
    elif state == "damaged index":
        flip_byte(first, 30)
    elif state == "no index":
        shutil.rmtree(stored / "index-v1")
    elif state == "empty":
        shutil.rmtree(stored)
        stored.mkdir(0o700)
    before = everything(stored)
    answers = use_readonly(stored)
    assert everything(stored) == before
    assert (answers["new"], answers["again"]) == (6, 6)
    for name in ("add", "prune", "pin", "clear", "zero"):
        assert answers[name] is True, name
    if state == "healthy":
        assert (answers["f"], answers["g"]) == (2, 21)
    elif state == "damaged module":
        assert (answers["f"], answers["g"]) == ("NotCachedError", 21)


@pytest.mark.slow
def test_a_read_only_cache_is_not_created(tmp_path: Path) -> None:
    place = tmp_path / "none"
    assert use_readonly(place)["new"] == 6
    assert not place.exists()


def test_a_read_only_file_system_serves_hits_in_silence(stored: Path) -> None:
    with cache_on(FaultyFiles(stored, read_only())) as cache:
        assert cache.get_target("f")(1) == 2
        with Cache(stored, readonly=True) as other:
            assert other.get_target("g")(1) == 21


# ------------------------------------------------------------------------------------ mounts and clocks


def run_on_mount(options: str, place: Path, script: str) -> str:
    """Run a script in a mount namespace of its own, where `place` is a file system in memory with these options."""
    command = f'mount -t tmpfs -o {options} tmpfs {place} && chmod 700 {place} && exec {sys.executable} -W error -c "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, "sh", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(__import__("helpers").PACKAGE_ROOT)},
    )
    if done.returncode and done.stderr.startswith(("unshare:", "mount:")):
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="mounts are tested on Linux")
def test_a_noexec_mount_serves_code_from_memory(tmp_path: Path) -> None:
    place = tmp_path / "mount"
    place.mkdir()
    hit = f"""
import sys
from compcache import Cache
with Cache({str(place)!r}) as cache:
    assert cache.get_target("f")(1) == 2
    assert cache.get_target("h")(1) == 102
assert "llvmlite" not in sys.modules, "a hit"
print("hit")
"""
    script = f"""
import subprocess, sys
from compcache import Cache, ModuleSource
with Cache({str(place)!r}) as cache:
    cache.add_module(ModuleSource({adder("f", 1)!r}))
    cache.add_module(ModuleSource({caller("h", "f", plus=100)!r}))
    assert cache.get_target("h")(1) == 102
print(subprocess.run([sys.executable, "-W", "error", "-c", {hit!r}], check=True, capture_output=True, text=True).stdout)
"""
    assert "hit" in run_on_mount("noexec", place, script)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="mounts are tested on Linux")
def test_a_full_file_system_costs_one_warning(tmp_path: Path) -> None:
    place = tmp_path / "mount"
    place.mkdir()
    script = f"""
import warnings
from compcache import Cache, ModuleSource
with warnings.catch_warnings(record=True) as caught, Cache({str(place)!r}) as cache:
    warnings.simplefilter("always")
    for number in range(16):
        name = f"f{{number}}"
        text = f"define i64 @{{name}}() {{{{ ret i64 {{number}} }}}}"
        assert cache.get_or_compile(name, lambda: ModuleSource(text, optimize=0))() == number
messages = [str(w.message) for w in caught]
assert all("No space left on device" in m for m in messages), messages
assert sum("not stored" in m for m in messages) >= len(messages) - 1, messages  # the last one that fits may say more
assert 1 <= len(messages) <= 2, messages
print("done")
"""
    assert run_on_mount("size=96k", place, script) == "done\n"


CLOCKS = """
import itertools, time
{clock}
time.time = lambda: next(ticks)
time.time_ns = lambda: int(next(ticks) * 1e9)
from compcache import Cache, ModuleSource, PrunePolicy
result = []
for number in range(12):
    with Cache(directory) as cache:
        name = f"f{{number}}"
        ir = f"define i64 @{{name}}() {{{{ ret i64 {{number}} }}}}"
        result.append(cache.get_or_compile(name, lambda: ModuleSource(ir, optimize=0))())
        cache.stats()
        if number == 6:
            cache.prune(PrunePolicy(max_modules=100))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "clock",
    [
        pytest.param("ticks = itertools.repeat(0.0)", marks=FAULT),
        pytest.param("ticks = itertools.repeat(float(2 ** 33))", marks=FAULT),
        pytest.param("ticks = itertools.count(2e9, -86400.0)", marks=FAULT),
        "ticks = itertools.repeat(-5.0)",
        "ticks = itertools.cycle([1e9, 4e9, 0.5])",
    ],
    ids=["1970", "2242", "backwards", "1969", "jumping"],
)
def test_clocks_decide_nothing_but_ages(directory: Path, clock: str) -> None:
    assert run_fresh(directory, CLOCKS.format(clock=clock)) == list(range(12))
    script = (
        'from compcache import Cache\nresult = [Cache(directory).get_target(f"f{n}")() for n in range(12)]'
    )
    assert run_fresh(directory, script) == list(range(12))


@pytest.mark.parametrize("when", [0, 2**33])
def test_files_from_other_times_are_verified_and_used(stored: Path, when: int) -> None:
    for path in stored.rglob("*"):
        os.utime(path, (when, when))
    with Cache(stored) as cache:
        assert (cache.get_target("f")(1), cache.get_target("g")(1)) == (2, 21)


# ------------------------------------------------------------------------------------ what belongs to others

FOREIGN = (
    ".DS_Store", "Thumbs.db", "lost+found/x", "README", ".git/HEAD", "modules-v1/.DS_Store", "modules-v1/README/notes",
    "modules-v1/zz/x.ccm", "modules-v1/ab/.nfs000000000000001", "modules-v1/ab/abcd.ccm", "index-v1/._00-a.idx",
    "index-v1/notes.idx", "index-v1/00-short.idx", "index-v1/00-0123456789abcdef01234567.idx.bak", "index-v1/desktop.ini",
    "hosts-v4/.directory", "locks/other.lock", "stats/.DS_Store", "quarantine/mine",
)  # fmt: skip


def use_all(place: Path) -> None:
    """Additions, a merge, a rebuild, a prune and a check, in a cache that holds f."""
    with Cache(place) as cache:
        for number in range(10):
            build = partial(ModuleSource, constant(f"n{number}", number), optimize=0)
            cache.get_or_compile(f"n{number}", build)
        rebuild_index(cache._store)
        cache.prune(PrunePolicy(match=["n[0-4]"]))
        cache.check()
        cache.stats()
        assert cache.get_target("f")(1) == 2
        assert cache.get_target("n7")() == 7


def test_files_of_other_tools_are_neither_used_nor_touched(stored: Path) -> None:
    for name in FOREIGN:
        (stored / name).parent.mkdir(parents=True, exist_ok=True)
        (stored / name).write_bytes(b"not yours")
    use_all(stored)
    for name in FOREIGN:
        assert (stored / name).read_bytes() == b"not yours", name


def test_other_versions_of_directories_are_left_alone(stored: Path) -> None:
    for name in ("modules", "index", "runtime", "hosts", "pins", "roster", "refusals"):
        for version in ("v0", "v99"):
            (stored / f"{name}-{version}").mkdir()
            (stored / f"{name}-{version}" / "some.file").write_bytes(b"theirs")
    before = {name: digests for name, digests in snapshot(stored).items() if "-v0" in name or "-v99" in name}
    assert len(before) == 28
    use_all(stored)
    after = snapshot(stored)
    assert {name: after.get(name) for name in before} == before


def rewritten(data: bytes, change: Callable[[list[bytes]], None]) -> tuple[str, bytes]:
    """A module file with other sections: its id and bytes."""
    footer = decode_footer(data[-FOOTER_SIZE:], len(data))
    sections, at = [], 0
    for size in (footer.image, footer.records, footer.graph, footer.bitcode, footer.notes):
        sections.append(data[at : at + size])
        at += size
    change(sections)
    image, records, graph, bitcode, notes = sections
    module_id, parts = encode_container(image, records, graph, bitcode, notes, None)
    return module_id.hex(), b"".join(parts)


def with_module_record(change: Callable[[bytes], bytes]) -> Callable[[list[bytes]], None]:
    """Replaces the payload of the module record, which is the first."""

    def replace(sections: list[bytes]) -> None:
        writer = ManifestWriter()
        for number, (_, payload) in enumerate(iterate_frames(sections[1])):
            writer.add(change(payload) if number == 0 else payload)
        sections[1] = writer.content()

    return replace


def newer_abi(payload: bytes) -> bytes:
    record = decode_module(payload)
    fields = {name: getattr(record, name) for name in record.__slots__} | {"abi": ABI_VERSION + 1}
    return encode_module(type(record)(**fields))


def newer_footer(data: bytes) -> bytes:
    footer = data[-FOOTER_SIZE:]
    footer = footer[:8] + (99).to_bytes(4, "little") + footer[12:-8]
    return data[:-FOOTER_SIZE] + footer + check(footer)


@pytest.mark.parametrize("newer", ["footer", "abi", "record"])
def test_a_module_of_another_version_is_a_silent_miss(stored: Path, newer: str) -> None:
    with Cache(stored) as cache:
        old = module_file(stored, cache.realizations("f")[0].module_id)
    if newer == "footer":
        path, data = old, newer_footer(old.read_bytes())
    else:
        change = newer_abi if newer == "abi" else (lambda payload: payload + b"another field")
        module_id, data = rewritten(old.read_bytes(), with_module_record(change))
        old.unlink()
        path = module_file(stored, module_id)
    path.parent.mkdir(exist_ok=True)
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").rename(path)
    with Cache(stored) as cache:
        rebuild_index(cache._store)
        with pytest.raises(NotCachedError):
            cache.get_target("f")
        assert not cache.has("f")
        assert cache.get_target("g")(1) == 21
        for number in range(9):
            cache.add_module(ModuleSource(constant(f"n{number}", number), optimize=0))
    assert path.read_bytes() == data
    assert not (stored / "quarantine").exists()
    with Cache(stored) as cache:
        assert cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))(1) == 2
    if newer != "footer":  # there the new module has the old one's name
        assert path.read_bytes() == data


def test_an_index_segment_of_another_version_is_left_alone(stored: Path) -> None:
    data = b"CCINDEX2" + os.urandom(500)
    path = stored / "index-v1" / f"03-{digest([data], size=12).hex()}.idx"
    path.write_bytes(data)
    use_all(stored)
    assert path.read_bytes() == data
    with Cache(stored) as cache, pytest.raises(NotCachedError):
        cache.get_target("nothing")
    assert path.read_bytes() == data


def test_a_segment_with_a_flipped_version_is_damage(stored: Path) -> None:
    """The name tells: it is the digest of the content."""
    (segment, *_) = (stored / "index-v1").iterdir()
    data = segment.read_bytes()
    segment.with_suffix(".new").write_bytes(b"CCINDEX9" + data[8:])
    segment.with_suffix(".new").rename(segment)
    with Cache(stored) as cache, pytest.warns(CacheWarning, match="rebuilding") as caught:
        assert (cache.get_target("f")(1), cache.get_target("g")(1)) == (2, 21)
    assert len(caught) == 1


def test_a_fresh_process_reports_a_crash_as_one() -> None:
    """The tests above rely on it."""
    with pytest.raises(FreshProcessError, match="exit status -11"):
        run_fresh("/nowhere", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\nresult = 1")
