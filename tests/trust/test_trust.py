"""Whose code is run: modes of what is created, directories of other users, signatures, and links."""

from __future__ import annotations

import itertools
import os
import re
import socket
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, constant, flip_byte, module_file, run_fresh, snapshot

from compcache import Cache, CacheWarning, ModuleSource, NotCachedError, StorageError, UntrustedDirectoryError
from compcache.digest import check
from compcache.directory.places import INDEX
from compcache.files import Files
from compcache.formats.footer import FOOTER_SIZE, decode_footer, encode_container
from compcache.formats.index import Index, ModuleEntry, Stamp
from compcache.formats.manifest import IMAGE_SHARED
from compcache.formats.order import UNNUMBERED
from compcache.hit.recorder import recorder_for
from compcache.inspect import uncached
from compcache.publish import index_merge
from compcache.publish.root import prepare_root
from compcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = b"0123456789abcdef0123456789abcdef"
OTHER_USER = 54321

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

#: Loads `f` in a cache with or without a key, and says what that printed and where its code is mapped from.
LOAD = """
import warnings
from compcache import Cache, CompcacheError
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with Cache(directory, signing_key={key!r}) as cache:
        try:
            f = cache.get_target("f")
            value = f(1)
        except CompcacheError as error:
            value = type(error).__name__
        with open("/proc/self/maps") as file:
            maps = [line.split()[-1] for line in file if directory in line]
result = value, [str(w.message) for w in caught], sorted(set(maps)), "llvmlite" in sys.modules
"""


def load(directory: Path, key: bytes | None = None) -> tuple[Any, list[str], list[str], bool]:
    answer: tuple[Any, list[str], list[str], bool] = run_fresh(directory, LOAD.format(key=key))
    return answer


def fill(directory: Path, *sources: str, key: bytes | None = None) -> list[str]:
    with Cache(directory, signing_key=key) as cache:
        return [cache.add_module(ModuleSource(source)) for source in sources]


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    scratch = path.with_name("changed")
    scratch.write_bytes(change(path.read_bytes()))
    scratch.replace(path)


# ------------------------------------------------------------------------------------ modes


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0, 0o777])
def test_what_is_created_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    script = f"""
    import os
    os.umask({umask})
    from compcache import Cache, ModuleSource
    with Cache(directory) as cache:
        for number in range(10):
            cache.add_module(ModuleSource(f"define i64 @f{{number}}() {{{{ ret i64 {{number}} }}}}"))
        result = cache.get_or_compile("g", lambda: ModuleSource("define i64 @g() {{ ret i64 7 }}"))()
    """
    root = tmp_path / "not" / "there" / "yet"
    assert run_fresh(root, script) == 7
    paths = [tmp_path / "not", tmp_path / "not" / "there", root, *root.rglob("*")]
    kinds = {path.name for path in root.iterdir()}
    assert kinds >= {
        "CACHEDIR.TAG",
        "modules-v1",
        "index-v1",
        "hosts-v4",
        "locks",
        "tmp",
        "stats",
    }
    for path in paths:
        assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path


# ------------------------------------------------------------------------------------ other people's directories


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o720, 0o1777])
def test_a_directory_that_others_can_write_to_is_refused(directory: Path, mode: int) -> None:
    fill(directory, adder("f", 1))
    directory.chmod(mode)
    with pytest.raises(UntrustedDirectoryError) as caught:
        Cache(directory)
    message = str(caught.value)
    assert f"chmod go-w {directory}" in message
    assert "trust=True" in message
    assert "signing_key" in message
    with Cache(directory, trust=True) as cache:
        assert cache.get_target("f")(1) == 2
    directory.chmod(0o755)
    with Cache(directory) as cache:
        assert cache.get_target("f")(1) == 2


@as_root
def test_a_directory_of_another_user_is_refused_to_root_as_well(directory: Path) -> None:
    fill(directory, adder("f", 1))
    os.chown(directory, OTHER_USER, OTHER_USER)
    with pytest.raises(
        UntrustedDirectoryError, match=rf"belongs to user {OTHER_USER}, not to you \(0\).*trust=True"
    ):
        Cache(directory)
    with Cache(directory, trust=True) as cache:
        assert cache.get_target("f")(1) == 2


@as_root
def test_a_directory_of_another_user_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(directory, OTHER_USER + 1, OTHER_USER)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    with pytest.raises(UntrustedDirectoryError, match="belongs to"):
        Cache(directory)


@as_root
def test_a_directory_of_the_superuser_that_nobody_else_can_write_to_is_used(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was installed with a package, seen by a user; files of a third user in it are not used."""
    first, second = fill(directory, adder("f", 1), adder("g", 20))
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    directory.chmod(0o755)
    with Cache(directory) as cache:
        assert cache.get_target("f")(1) == 2
        os.chown(module_file(directory, second), OTHER_USER + 1, OTHER_USER + 1)
        with pytest.warns(CacheWarning, match=f"belongs to user {OTHER_USER + 1}"), pytest.raises(NotCachedError):
            cache.get_target("g")
    for segment in (directory / "index-v1").iterdir():
        os.chown(segment, OTHER_USER + 1, OTHER_USER + 1)
    with Cache(directory, readonly=True) as cache, pytest.raises(NotCachedError):
        cache.get_target("f")
    for mode in (0o775, 0o757):
        directory.chmod(mode)
        with pytest.raises(UntrustedDirectoryError, match="can be written by other users"):
            Cache(directory)
    assert module_file(directory, first).exists()


@as_root
def test_a_link_of_another_user_to_an_own_directory_is_refused(directory: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(directory)
    with Cache(link) as cache:  # my own link is my own choice
        assert cache.add_module(ModuleSource(adder("f", 1)))
    os.chown(link, OTHER_USER, OTHER_USER, follow_symlinks=False)
    with pytest.raises(UntrustedDirectoryError, match="symbolic link"):
        Cache(link)


@as_root
def test_an_own_link_to_a_directory_of_another_user_is_refused(directory: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(directory)
    os.chown(directory, OTHER_USER, OTHER_USER)
    with pytest.raises(UntrustedDirectoryError, match=f"belongs to user {OTHER_USER}"):
        Cache(link)


@as_root
def test_a_file_of_another_user_in_an_own_directory_is_a_miss(directory: Path) -> None:
    first, _ = fill(directory, adder("f", 1), adder("g", 2))
    path = module_file(directory, first)
    os.chown(path, OTHER_USER, OTHER_USER)
    value, warnings, _, _ = load(directory)
    assert value == "NotCachedError"
    assert len(warnings) == 1
    assert f"belongs to user {OTHER_USER}, not to you (0)" in warnings[0]
    assert path.exists()
    with Cache(directory) as cache:
        assert cache.get_target("g")(1) == 3
    with Cache(directory, trust=True) as cache:
        assert cache.get_target("f")(1) == 2


@pytest.mark.slow
@as_root
def test_a_stamp_does_not_vouch_for_a_file_of_another_user(directory: Path) -> None:
    """Who trusted all writers of the directory once has left a stamp; whose file it is counts all the same."""
    first, _ = fill(directory, adder("f", 1), adder("g", 2))
    path = module_file(directory, first)
    os.chown(path, OTHER_USER, OTHER_USER)
    time.sleep(0.15)  # else the file has changed too recently for a stamp
    with Cache(directory, trust=True) as cache:
        assert cache.get_target("f")(1) == 2
        assert list(cache._store.index.verified(bytes.fromhex(first), path.stat()))
    value, warnings, _, _ = load(directory)
    assert value == "NotCachedError"
    assert [f"belongs to user {OTHER_USER}, not to you (0)" in text for text in warnings] == [True]


@as_root
def test_a_directory_that_somebody_makes_after_it_was_opened_is_not_used(tmp_path: Path) -> None:
    root = tmp_path / "late"
    with Cache(root) as cache:
        root.mkdir(0o700)
        os.chown(root, OTHER_USER, OTHER_USER)
        with pytest.raises(NotCachedError, match=f"belongs to user {OTHER_USER}"):
            cache.get_target("f")
        with pytest.raises(StorageError, match=f"belongs to user {OTHER_USER}"):
            cache.add_module(ModuleSource(adder("f", 1)))
        with pytest.warns(CacheWarning, match=f"not stored.*belongs to user {OTHER_USER}"):
            assert cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))(1) == 2
        recorder_for(cache._store.files, str(root), readonly=False).flush()
    assert list(root.iterdir()) == []


@as_root
def test_a_directory_of_another_user_that_replaces_the_opened_one_is_left_as_it_is(directory: Path) -> None:
    with Cache(directory) as cache:
        assert cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))(1) == 2
        directory.rename(directory.with_name("moved"))
        directory.mkdir(0o700)
        os.chown(directory, OTHER_USER, OTHER_USER)
        with pytest.raises(NotCachedError, match=f"belongs to user {OTHER_USER}"):
            cache.get_target("g")
        with pytest.raises(StorageError, match=f"belongs to user {OTHER_USER}"):
            cache.add_module(ModuleSource(adder("g", 1)))
        recorder_for(cache._store.files, str(directory), readonly=False).flush()
    assert list(directory.iterdir()) == []


@as_root
def test_a_directory_that_somebody_else_is_faster_to_make_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "late"

    def another_is_faster(*_: object) -> bool:
        root.mkdir(0o700)
        os.chown(root, OTHER_USER, OTHER_USER)
        return False

    monkeypatch.setattr("compcache.publish.root.make_directories", another_is_faster)
    with Cache(root) as cache, pytest.raises(StorageError, match=f"belongs to user {OTHER_USER}"):
        cache.add_module(ModuleSource(adder("f", 1)))
    assert list(root.iterdir()) == []
    root.rmdir()
    with Cache(root, signing_key=KEY) as cache:
        prepare_root(cache._store)
        assert cache._store.exposed


# ------------------------------------------------------------------------------------ signatures


def test_a_key_opens_a_shared_directory_and_maps_private_copies_only(directory: Path) -> None:
    """What others can change between the check and the use is not what is used."""
    fill(directory, adder("f", 1), key=KEY)
    value, warnings, maps, llvm = load(directory, KEY)
    assert (value, warnings, llvm) == (2, [], False)
    assert any(path.endswith(".ccm") for path in maps)
    directory.chmod(0o777)
    assert load(directory, KEY) == (2, [], [], False)


def test_with_a_key_a_directory_that_could_not_be_opened_at_first_is_read_into_private_copies(directory: Path) -> None:
    """Nobody knows who can write there."""
    fill(directory, adder("f", 1), key=KEY)
    directory.chmod(0o777)
    other = directory.with_name("other")
    directory.rename(other)
    directory.symlink_to(directory)
    appears = f"assert not cache.has('f'); os.remove(directory); os.rename({str(other)!r}, directory)\n        try:"
    script = "import os\n" + LOAD.format(key=KEY).replace("try:", appears)
    assert run_fresh(directory, script) == (2, [], [], False)


def test_an_empty_key_is_an_error(directory: Path) -> None:
    for key in (b"", ""):
        with pytest.raises(ValueError, match="signing_key is empty"):
            Cache(directory, signing_key=key)


def test_the_key_can_come_from_the_environment(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPCACHE_SIGNING_KEY", KEY.decode())
    fill(directory, adder("f", 1))
    with Cache(directory) as cache:
        assert cache.get_target("f")(1) == 2
    monkeypatch.delenv("COMPCACHE_SIGNING_KEY")
    directory.chmod(0o777)
    with Cache(directory, signing_key=KEY.decode()) as cache:
        assert cache.get_target("f")(1) == 2
    with (
        pytest.warns(CacheWarning, match="is not signed with"),
        Cache(directory, signing_key=b"another") as other,
        pytest.raises(NotCachedError),
    ):
        other.get_target("f")


def test_unsigned_modules_are_misses_that_stay_where_they_are(directory: Path) -> None:
    (module_id,) = fill(directory, adder("f", 1))
    before = snapshot(directory / "modules-v1")
    value, warnings, _, _ = load(directory, KEY)
    assert value == "NotCachedError"
    assert len(warnings) == 1
    assert str(module_file(directory, module_id)) in warnings[0]
    assert "is not signed with this cache's signing_key" in warnings[0]
    assert snapshot(directory / "modules-v1") == before
    assert not (directory / "quarantine").exists()
    assert load(directory)[:2] == (2, [])


def test_get_or_compile_signs_what_was_unsigned_with_one_warning(directory: Path) -> None:
    fill(directory, adder("f", 1))
    with Cache(directory, signing_key=KEY) as cache, pytest.warns(CacheWarning) as caught:
        assert cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))(1) == 2
    assert len(caught) == 1
    assert load(directory, KEY)[:2] == (2, [])
    assert load(directory)[:2] == (2, [])
    assert len(list((directory / "modules-v1").rglob("*.ccm"))) == 1


def signed_with_another_key(data: bytes, _: bytes) -> bytes:
    footer = decode_footer(data[-FOOTER_SIZE:], len(data))
    sizes = (footer.image, footer.records, footer.graph, footer.bitcode, footer.notes)
    sections: list[bytes] = []
    at = 0
    for size in sizes:
        sections.append(data[at : at + size])
        at += size
    image, records, graph, bitcode, notes = sections
    return b"".join(encode_container(image, records, graph, bitcode, notes, b"somebody else's key")[1])


def with_flipped_signature(data: bytes, _: bytes) -> bytes:
    signature = bytes([data[-40] ^ 1])
    footer = data[-FOOTER_SIZE:-40] + signature + data[-39:-8]
    return data[:-FOOTER_SIZE] + footer + check(footer)


def without_signature(data: bytes, _: bytes) -> bytes:
    footer = data[-FOOTER_SIZE:-40] + bytes(32)
    return data[:-FOOTER_SIZE] + footer + check(footer)


def with_the_image_of_another(data: bytes, other: bytes) -> bytes:
    """An old signed footer behind an image that it was not made for."""
    size = decode_footer(data[-FOOTER_SIZE:], len(data)).image
    return other[:size] + data[size:]


def with_the_footer_of_another(data: bytes, other: bytes) -> bytes:
    return data[:-FOOTER_SIZE] + other[-FOOTER_SIZE:]


def entirely_another(_: bytes, other: bytes) -> bytes:
    return other


#: What is done to a signed module, and whether it is damage as well.
FORGERIES: dict[str, tuple[Callable[[bytes, bytes], bytes], bool]] = {
    "flipped": (with_flipped_signature, False),
    "removed": (without_signature, False),
    "foreign": (signed_with_another_key, False),
    "replayed": (with_the_image_of_another, True),
    "moved": (with_the_footer_of_another, True),
    "renamed": (entirely_another, True),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forgery", "shared"), [*((name, False) for name in FORGERIES), ("replayed", True), ("foreign", True)]
)
def test_a_forged_module_is_a_miss_with_a_warning(directory: Path, forgery: str, shared: bool) -> None:
    first, second = fill(directory, adder("f", 1), adder("g", 20), key=KEY)
    change, damage = FORGERIES[forgery]
    other = module_file(directory, second).read_bytes()
    path = module_file(directory, first)
    rewrite(path, lambda data: change(data, other))
    directory.chmod(0o777 if shared else 0o700)
    value, warnings, _, _ = load(directory, KEY)
    assert value == "NotCachedError"
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert path.exists() == (not damage)
    with Cache(directory, signing_key=KEY) as cache:
        assert cache.get_target("g")(1) == 21


def test_keys_are_told_from_one_another_without_verifying_content(directory: Path) -> None:
    """`verify=False` skips digests, but never where a signature covers nothing but a digest."""
    first, second = fill(directory, adder("f", 1), adder("g", 20), key=KEY)
    other = module_file(directory, second).read_bytes()
    rewrite(module_file(directory, first), lambda data: with_the_image_of_another(data, other))
    with (
        Cache(directory, verify=False, signing_key=KEY) as cache,
        pytest.warns(CacheWarning, match="digest"),
        pytest.raises(NotCachedError),
    ):
        cache.get_target("f")


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_a_forged_stamp_does_not_vouch_for_a_module_in_a_signed_cache(
    directory: Path, key: bytes | None
) -> None:
    """Without a key whoever can write to the directory is believed; with one they are not."""
    first, second = fill(directory, adder("f", 1), adder("g", 20), key=key)
    path = module_file(directory, first)
    with Cache(directory, signing_key=key) as cache:
        ((_, image, records, target, key_in_image),) = [
            (m.module_id, m.image, m.records, m.target_id, m.key)
            for m in [cache._store.open_module(bytes.fromhex(first))]
        ]
    other = module_file(directory, second).read_bytes()
    rewrite(path, lambda data: with_the_image_of_another(data, other))
    stamp = Stamp.of(path.stat())
    index = Index(Files(), f"{directory}/index-v1", f"{directory}/tmp", INDEX.suffix)
    entry = ModuleEntry(bytes.fromhex(first), stamp, image, records, target, IMAGE_SHARED, 1, key_in_image, bytes(16))
    index_merge.add_all(index, [((), entry, UNNUMBERED)])
    store = Store(str(directory), signing_key=key)
    if key is None:
        store.open_module(bytes.fromhex(first)).close()
    else:
        with pytest.warns(CacheWarning, match="is damaged"), pytest.raises(OSError, match="is damaged"):
            store.open_module(bytes.fromhex(first))


def test_a_hit_believes_nothing_that_is_kept_of_the_host(directory: Path) -> None:
    """What the processor can do it says itself: whatever stands in the file, LLVM is not asked and nothing else is run."""
    fill(directory, adder("f", 1), key=KEY)
    for path in (directory / "hosts-v4").iterdir():
        path.write_bytes(b"znver9")
    value, warnings, _, asked_llvm = load(directory, KEY)
    assert (value, warnings, asked_llvm) == (2, [], False)


# ------------------------------------------------------------------------------------ links and names


def test_a_module_file_that_is_a_link_is_not_followed(directory: Path, tmp_path: Path) -> None:
    first, _ = fill(directory, adder("f", 1), adder("g", 20))
    path = module_file(directory, first)
    elsewhere = tmp_path / "elsewhere.ccm"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    value, warnings, _, _ = load(directory)
    assert value == "NotCachedError"
    assert len(warnings) == 1
    assert "not a regular file" in warnings[0]
    assert elsewhere.exists()
    with Cache(directory) as cache:
        assert cache.get_target("g")(1) == 21
        assert cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))(1) == 2
    assert not path.is_symlink()


@pytest.mark.parametrize("part", ["modules-v1", "fan", "index-v1", "tmp"])
def test_a_directory_that_is_a_link_is_not_followed(directory: Path, tmp_path: Path, part: str) -> None:
    (module_id,) = fill(directory, adder("f", 1))
    place = module_file(directory, module_id).parent if part == "fan" else directory / part
    elsewhere = tmp_path / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    for segment in (directory / "index-v1").glob("*.idx"):  # stamps would vouch for the file
        rewrite(segment, lambda data: data)
        segment.unlink()
    before = snapshot(elsewhere)
    name = "g" if part == "tmp" else "f"
    # What is there is rebuilt into the index, what is not is published.
    with Cache(directory) as cache, pytest.warns(CacheWarning) as caught:
        assert cache.get_or_compile(name, lambda: ModuleSource(adder(name, 1)))(1) == 2
    assert any("symbolic link, and links in a cache directory are not followed" in str(warning.message) for warning in caught)
    assert snapshot(elsewhere) == before


def test_an_index_segment_that_is_no_file_is_set_aside(directory: Path, tmp_path: Path) -> None:
    fill(directory, adder("f", 1))
    (segment,) = (directory / "index-v1").iterdir()
    elsewhere = tmp_path / "elsewhere"
    segment.rename(elsewhere)
    segment.symlink_to(elsewhere)
    value, warnings, _, _ = load(directory)
    assert (value, len(warnings)) == (2, 1)
    assert re.search(r"index .* cannot be used completely .*not a regular file", warnings[0])
    assert elsewhere.exists()
    assert not segment.is_symlink()


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        *itertools.product(["module", "segment"], ["directory", "pipe", "socket"]),
        *itertools.product(["host", "tag"], ["pipe"]),
    ],
)
def test_what_is_no_file_is_no_entry_and_nobody_waits_for_it(directory: Path, place: str, kind: str) -> None:
    (module_id,) = fill(directory, adder("f", 1))
    path = {
        "module": lambda: module_file(directory, module_id),
        "segment": lambda: next((directory / "index-v1").iterdir()),
        "host": lambda: next((directory / "hosts-v4").iterdir()),
        "tag": lambda: directory / "CACHEDIR.TAG",
    }[place]()
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        old = Path.cwd()
        os.chdir(path.parent)  # a socket's path is short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
        os.chdir(old)
    value, warnings, _, _ = load(directory)
    assert value in ((2,) if place != "module" else ("NotCachedError",))
    assert len(warnings) == (1 if place in ("module", "segment") else 0)
    with Cache(directory) as cache:
        assert cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))(1) == 2


@pytest.mark.parametrize(
    "name", ["../../up", "/etc/passwd", "a/../../b", "..", ".", "~/x", "nul\u0001", "x" * 5000]
)
def test_names_of_functions_are_never_paths(directory: Path, tmp_path: Path, name: str) -> None:
    ir = constant("f", 5)

    def build() -> ModuleSource:
        from compcache import Function

        return ModuleSource(ir, functions={name: Function("i64()", symbol="f")})

    outside = snapshot_names(tmp_path) - snapshot_names(directory)
    with Cache(directory) as cache:
        assert cache.get_or_compile(name, build)() == 5
        assert cache.has(name)
    assert snapshot_names(tmp_path) - snapshot_names(directory) == outside


@pytest.mark.parametrize("name", ["../../up", "/etc/passwd", "..", "nul\0", "x" * 3000])
def test_what_is_kept_of_a_function_is_under_no_path_of_its_name(cache: Cache, tmp_path: Path, name: str) -> None:
    before = snapshot_names(tmp_path)
    uncached.record_refusal(cache._store, name, "why")
    assert [refusal.name for refusal in uncached.read_refusals(cache._store)] == [name]
    assert {path.parent.name for path in snapshot_names(tmp_path) - before if path.is_file()} == {"uncached-v2"}


def snapshot_names(place: Path) -> set[Path]:
    return {path.resolve() for path in place.rglob("*")}


def test_a_flipped_signed_module_leaves_others_alone(directory: Path) -> None:
    first, _ = fill(directory, adder("f", 1), adder("g", 20), key=KEY)
    flip_byte(module_file(directory, first), 100)
    with Cache(directory, signing_key=KEY) as cache:
        with pytest.warns(CacheWarning, match="is damaged"), pytest.raises(NotCachedError):
            cache.get_target("f")
        assert cache.get_target("g")(1) == 21
