"""What other users have put in the way: sockets, directories of bundles and of helpers, signatures, archives made to deceive."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers import adder

from compcache import Cache, CacheWarning, FormatError, ModuleSource, NotCachedError
from compcache.remote import directory
from compcache.remote.address import read_settings
from compcache.remote.connection import LENGTH, SOCKET, ask, encode
from compcache.remote.directory import state_directory
from compcache.signing.keys import generate_key

if TYPE_CHECKING:
    from collections.abc import Callable

    Members = dict[str, bytes]

OTHER = 65534
KEY = generate_key("team-1")
PUBLIC = str(KEY.public())
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


# ------------------------------------------------------------------------------ helpers of remote stores


@as_root
def test_the_socket_of_another_user_s_process_is_told_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    settings = read_settings("file:///none", "read")
    assert settings is not None
    place = state_directory(settings.url, os.environ)
    ready, asked = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # nobody may ask
            os.chdir(place)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(SOCKET)
            os.setuid(OTHER)
            listener.listen()
            os.write(ready[1], b".")
            connection, _ = listener.accept()
            os.write(asked[1], connection.recv(LENGTH.size) or b"nothing")
            connection.sendall(encode([["found", b"code", b""]]))
        os._exit(0)
    os.close(ready[1])  # so that a read ends with the child
    os.close(asked[1])
    try:
        assert os.read(ready[0], 1) == b"."
        question = ask(settings, "find", ["f"], "platform", ["shelf"])
        assert not question.wait(2)
        assert f"runs as another user ({OTHER})" in question.problem
        assert os.read(asked[0], 100) == b"nothing"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready[0])
        os.close(asked[0])


@as_root
@pytest.mark.parametrize("kind", ["of another user", "writable", "a link", "absent"])
def test_a_runtime_directory_that_others_rule_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Who owns a directory can exchange what is in it, whoever that belongs to."""
    monkeypatch.setattr(directory, "_TEMPORARY", str(tmp_path))
    runtime = tmp_path / "run"
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir()
        runtime.symlink_to(tmp_path / "elsewhere")
    elif kind != "absent":
        runtime.mkdir()
        runtime.chmod(0o777 if kind == "writable" else 0o700)
        os.chown(runtime, *((OTHER, OTHER) if kind == "of another user" else (0, 0)))
    place = state_directory("file:///none", {"XDG_RUNTIME_DIR": str(runtime)})
    assert place.startswith(f"{tmp_path}/compcache-0/compcache/")
    assert os.path.exists(runtime) == (kind != "absent")
    assert not (runtime / "compcache").exists()
    base = tmp_path / "compcache-0"
    base.rename(tmp_path / "mine")
    base.mkdir()
    os.chown(base, OTHER, OTHER)
    with pytest.raises(OSError, match="is not private to this user"):
        state_directory("file:///none", {})


# --------------------------------------------------------------------------------------------- bundles


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with a function and its signature."""
    with Cache(tmp_path / "source", publish_key=str(KEY)) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        cache.export(["f"], tmp_path / "f.ccb")
    return tmp_path / "f.ccb"


@as_root
@pytest.mark.parametrize("how", ["owner", "mode", "link", "file"])
def test_an_unpacked_bundle_that_others_could_have_exchanged_is_unpacked_elsewhere(bundle: Path, tmp_path: Path, how: str) -> None:
    Cache(tmp_path / "cache", layers=[bundle]).close()
    (place,) = (tmp_path / "cache" / "bundles-v1").iterdir()
    if how == "owner":
        os.chown(place, OTHER, OTHER)
    elif how == "mode":
        place.chmod(0o777)
    elif how == "file":
        place.rename(tmp_path / "elsewhere")
        place.touch(0o600)
    else:
        place.rename(tmp_path / "elsewhere")
        place.symlink_to(tmp_path / "elsewhere")
        os.lchown(place, OTHER, OTHER)
    with Cache(tmp_path / "cache", layers=[bundle]) as cache:
        assert cache.get_target("f")(1) == 2
        assert [layer.root.startswith(cache.path) for layer in cache._store.layers] == [False]


def rewritten(bundle: Path, change: Callable[[Members], object]) -> Path:
    with zipfile.ZipFile(bundle) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(bundle.with_name("changed.ccb"), "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return bundle.with_name("changed.ccb")


@pytest.mark.parametrize("line", [b"team-1 AAAA\n", b"team-1 " + b"A" * 86 + b"==\n", b"a " + b"A" * 86 + b"==\n", b""])
def test_no_bundle_takes_a_signature_away(bundle: Path, tmp_path: Path, line: bytes) -> None:
    def spoil(members: Members) -> None:
        for name in members:
            if name.startswith("signatures/"):
                members[name] = b"".join([line.replace(b" ", b"%d " % n, 1) for n in range(70)]) if line[:1] == b"a" else line

    place = tmp_path / "reader"
    with Cache(place, trusted_keys=[PUBLIC]) as cache:
        cache.import_bundle(bundle)
    with Cache(place) as cache:
        cache.import_bundle(rewritten(bundle, spoil))
    with Cache(place, trusted_keys=[PUBLIC]) as cache:
        assert cache.get_target("f")(1) == 2
    with Cache(tmp_path / "other") as cache:
        cache.import_bundle(rewritten(bundle, spoil))
    with Cache(tmp_path / "other", trusted_keys=[PUBLIC]) as cache:
        cache.import_bundle(bundle)
        assert cache.get_target("f")(1) == 2


JUNK = b"".join([b"a%d " % n + b"A" * 86 + b"==\n" for n in range(64)])


def junk(members: Members) -> None:
    """Put lines that could be signatures in place of the signatures."""
    for name in members:
        if name.startswith("signatures/"):
            members[name] = JUNK


def test_what_is_signed_here_is_read_whatever_a_bundle_had_for_signatures(bundle: Path, tmp_path: Path) -> None:
    with Cache(tmp_path / "publisher", publish_key=str(KEY)) as cache:
        cache.import_bundle(rewritten(bundle, junk))
        (signatures,) = (tmp_path / "publisher").rglob("*.ed25519")
        signatures.write_bytes(JUNK)
        cache.add_module(ModuleSource(adder("f", 1)))
        cache.export(["f"], tmp_path / "signed.ccb")
    with Cache(tmp_path / "publisher", trusted_keys=[PUBLIC]) as cache:
        assert cache.get_target("f")(1) == 2
    with Cache(tmp_path / "reader", trusted_keys=[PUBLIC]) as cache:
        cache.import_bundle(rewritten(bundle, dict))
        (signatures,) = (tmp_path / "reader").rglob("*.ed25519")
        signatures.write_bytes(JUNK)
        cache.import_bundle(tmp_path / "signed.ccb")
        assert cache.get_target("f")(1) == 2


def test_one_bundle_leaves_room_for_the_signatures_of_others(bundle: Path, tmp_path: Path) -> None:
    """The importing user knows no key; who reads later does."""
    with Cache(tmp_path / "reader") as cache:
        cache.import_bundle(rewritten(bundle, junk))
        cache.import_bundle(bundle)
    (signatures,) = (tmp_path / "reader").rglob("*.ed25519")
    assert signatures.stat().st_size < 64 * 100
    with Cache(tmp_path / "reader", trusted_keys=[PUBLIC]) as cache:
        assert cache.get_target("f")(1) == 2


def with_sizes(data: bytes, size: int) -> bytes:
    """An archive whose directory says that each member has this size."""
    changed = bytearray(data)
    at = changed.find(b"PK\1\2")
    while at >= 0:
        struct.pack_into("<II", changed, at + 20, size, size)
        at = changed.find(b"PK\1\2", at + 4)
    return bytes(changed)


def doubled(bundle: Path) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = rewritten(bundle, dict)
        with zipfile.ZipFile(bundle) as archive, zipfile.ZipFile(path, "a") as second:
            for name in archive.namelist():
                second.writestr(name, archive.read(name))
    return path.read_bytes()


def deflated(bundle: Path) -> bytes:
    path = bundle.with_name("deflated.ccb")
    with zipfile.ZipFile(bundle) as archive, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as second:
        for name in archive.namelist():
            second.writestr(name, archive.read(name))
    return path.read_bytes()


TRICKS: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "sizes of 2 GB": (lambda bundle: with_sizes(bundle.read_bytes(), 1 << 31), "larger than its file"),
    "sizes of 4 GB": (lambda bundle: with_sizes(bundle.read_bytes(), 0xFFFFFFFE), "larger than its file"),
    "members twice": (doubled, "two members"),
    "paths upwards": (
        lambda bundle: rewritten(bundle, lambda members: members.update({"modules/../../evil.ccm": b"x", "../evil": b"x"})).read_bytes(),
        "",
    ),
    "a module whose name is damaged": (lambda bundle: bundle.read_bytes().replace(b"modules/", b"modulee/"), "lacks the module"),
    "a module that the directory leaves out": (
        lambda bundle: rewritten(bundle, lambda members: members.pop(next(name for name in members if name[:2] == "mo"))).read_bytes(),
        "lacks the module",
    ),
    "a module under another name": (
        lambda bundle: rewritten(
            bundle, lambda members: members.update({f"modules/{'0' * 32}.ccm": next(v for k, v in members.items() if k[:2] == "mo")})
        ).read_bytes(),
        "damaged",
    ),
    "compressed": (deflated, "compressed"),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_archives_that_were_made_to_deceive(bundle: Path, tmp_path: Path, trick: str) -> None:
    make, message = TRICKS[trick]
    path = tmp_path / "tricked.ccb"
    path.write_bytes(make(bundle))
    before = sorted(tmp_path.rglob("*"))
    limit = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    with Cache(tmp_path / "target") as cache:
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), limit[1]))
        try:
            if message:
                with pytest.raises(FormatError, match=message):
                    cache.import_bundle(path)
            else:
                assert cache.import_bundle(path) == ("f",)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limit)
    assert [found for found in sorted(tmp_path.rglob("*")) if found not in before and "target" not in found.parts] == []


def test_a_pipe_in_the_place_of_a_bundle_is_not_waited_for(cache: Cache, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ccb")
    with pytest.raises(FormatError, match="not a regular file"):
        cache.import_bundle(tmp_path / "pipe.ccb")


def test_an_interrupted_unpacking_leaves_nothing(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("compcache.publish.index_merge.add_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Cache(tmp_path / "cache", layers=[bundle])
    assert list((tmp_path / "cache" / "bundles-v1").iterdir()) == []
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []


# ------------------------------------------------------------------------- modules of holders of other keys


def test_what_others_have_signed_survives_checks_repairs_and_rebuilds(directory: Path) -> None:
    keys = [b"one", b"two", None]
    for number, key in enumerate(keys):
        with Cache(directory, signing_key=key) as cache:
            cache.add_module(ModuleSource(adder(f"f{number}", number)))
    with Cache(directory, signing_key=b"one") as cache:
        report = cache.check(repair=True)
        assert [finding.kind for finding in report.findings if finding.kind != "stale"] == ["unsigned"] * 2
        assert report.errors == ()
        for segment in (directory / "index-v1").iterdir():
            segment.unlink()
        with pytest.warns(CacheWarning, match="is not signed with"), pytest.raises(NotCachedError):
            cache.get_target("f1")
        cache.check(repair=True)
    assert not (directory / "quarantine").exists()
    for number, key in enumerate(keys):
        with Cache(directory, signing_key=key) as cache:
            assert cache.get_target(f"f{number}")(10) == 10 + number


def test_a_damaged_module_of_another_key_is_damage_all_the_same(directory: Path) -> None:
    with Cache(directory, signing_key=b"two") as cache:
        module_id = cache.add_module(ModuleSource(adder("f", 1)))
    path = directory / "modules-v1" / module_id[:2] / f"{module_id}.ccm"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with Cache(directory, signing_key=b"one") as cache:
        assert [finding.kind for finding in cache.check().errors] == ["damaged"]
