"""Layers, copies and bundles that came from others: what cannot be read is told, and no signature is believed that is not right."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import textwrap
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT, adder

from compcache import Cache, CacheWarning, IntegrityError, ModuleSource, NotCachedError
from compcache.signing.keys import generate_key

if TYPE_CHECKING:
    from collections.abc import Callable

KEY, OTHER = generate_key("team-1"), generate_key("team-2")
PUBLIC = str(KEY.public())
SUFFIX = ".ed25519"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser becomes another user")

#: Imports are made by the superuser: others may not reach this interpreter.
AS_ANOTHER = """
    import os, sys, warnings
    sys.path.insert(0, {root!r})
    import compcache.layers.layered_store, compcache.publish.verify, compcache.publish.host_file
    from compcache import Cache, NotCachedError
    with Cache({place!r}, readonly=True) as cache:
        cache.get_target("f")
    os.setgid(65534); os.setuid(65534)
    with Cache({own!r}, layers=[{place!r}]) as cache, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            try:
                print(cache.get_target("f")(1))
            except NotCachedError:
                pass
    print([str(warning.message) for warning in caught])
"""


def make_private(place: Path) -> None:
    place.chmod(0o700)


def make_files_private(place: Path) -> None:
    for path in place.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o600)


def make_index_private(place: Path) -> None:
    (place / "index-v1").chmod(0o700)


def close_parent(place: Path) -> None:
    place.parent.chmod(0o700)


def leave(place: Path) -> None:
    assert place.is_dir()


@pytest.mark.slow
@as_root
@pytest.mark.parametrize("change", [leave, make_private, make_files_private, make_index_private, close_parent])
def test_a_layer_that_cannot_be_read_is_told_once_with_the_remedy(change: Callable[[Path], None]) -> None:
    """Whoever publishes for a team and forgets the modes would let everybody compile for ever."""
    with tempfile.TemporaryDirectory() as base:
        os.chmod(base, 0o755)
        place, own = Path(base, "team", "layer"), Path(base, "own")
        with Cache(place) as cache:
            cache.add_module(ModuleSource(adder("f", 1)))
        for path in [place.parent, place, *place.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        change(place)
        own.mkdir()
        os.chown(own, 65534, 65534)
        script = textwrap.dedent(AS_ANOTHER.format(root=str(PACKAGE_ROOT), place=str(place), own=str(own / "cache")))
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        *values, told = done.stdout.splitlines()
        if change is leave:
            assert (values, told) == (["2", "2"], "[]")
            return
        (message,) = ast.literal_eval(told)
        assert values == []
        assert f"the layer {place} is used only in part" in message
        assert "Permission denied" in message
        assert (f"chmod go+x {place.parent}'" if change is close_parent else f"chmod -R go+rX {place}'") in message


# ---------------------------------------------------------------------------------- signatures

Signatures = dict[str, bytes]


def strip(files: Signatures, _: Signatures) -> Signatures:
    return dict.fromkeys(files, b"")


def replay(files: Signatures, _: Signatures) -> Signatures:
    """Each has the signature of another module by the same key."""
    names = sorted(files)
    return dict(zip(names, [files[name] for name in names[1:] + names[:1]], strict=True))


def of_another_key(_: Signatures, theirs: Signatures) -> Signatures:
    return theirs


def renamed(_: Signatures, theirs: Signatures) -> Signatures:
    """Another key's, under the name of the trusted one."""
    return {name: data.replace(b"team-2 ", b"team-1 ") for name, data in theirs.items()}


def forge(files: Signatures, _: Signatures) -> Signatures:
    return {name: data[:20] + bytes([data[20] ^ 1]) + data[21:] for name, data in files.items()}


FORGERIES = [strip, replay, of_another_key, renamed, forge]


def publish(place: Path, key: object) -> Signatures:
    with Cache(place, publish_key=str(key)) as cache:
        for name in "fg":
            cache.add_module(ModuleSource(adder(name, 1)))
        cache.export(["f", "g"], place.with_suffix(".ccb"))
    return {path.name: path.read_bytes() for path in place.glob(f"signatures-v1/*{SUFFIX}")}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Signatures, Signatures]:
    """A directory (and a bundle of it) that the trusted key has signed; its signatures, and those of another key."""
    base = tmp_path_factory.mktemp("published")
    return base / "ours", publish(base / "ours", KEY), publish(base / "theirs", OTHER)


def with_signatures(bundle: Path, files: Signatures, target: Path) -> Path:
    with zipfile.ZipFile(bundle) as archive, zipfile.ZipFile(target, "w") as changed:
        for name in archive.namelist():
            if not name.endswith(SUFFIX):
                changed.writestr(name, archive.read(name))
        for name, data in files.items():
            if data:
                changed.writestr(f"signatures/{name}", data)
    return target


def copy_with(place: Path, files: Signatures, target: Path) -> Path:
    subprocess.run(["cp", "-r", str(place), str(target)], check=True)
    for name, data in files.items():
        path = target / "signatures-v1" / name
        path.write_bytes(data) if data else path.unlink()
    return target


@pytest.mark.parametrize("form", ["layer", "bundle as layer", "directory"])
@pytest.mark.parametrize("change", [None, *FORGERIES])
def test_what_no_trusted_key_signed_is_a_miss_wherever_it_is(
    published: tuple[Path, Signatures, Signatures], tmp_path: Path, form: str, change: Callable[..., Signatures] | None
) -> None:
    place, ours, theirs = published
    files = ours if change is None else change(ours, theirs)
    layers = []
    if form == "directory":
        copy_with(place, files, tmp_path / "own")
    elif form == "layer":
        layers = [copy_with(place, files, tmp_path / "copy")]
    else:
        layers = [with_signatures(place.with_suffix(".ccb"), files, tmp_path / "app.ccb")]
    for _ in range(2):  # what was refused once is not believed the second time
        with Cache(tmp_path / "own", layers=layers, trusted_keys=[PUBLIC]) as cache, warnings.catch_warnings():
            if change is None:
                assert cache.get_target("f")(1) == 2
                continue
            warnings.simplefilter("ignore", CacheWarning)
            with pytest.raises(NotCachedError):
                cache.get_target("f")


@pytest.mark.parametrize("change", FORGERIES)
def test_a_bundle_with_a_forged_signature_is_not_imported(
    published: tuple[Path, Signatures, Signatures], tmp_path: Path, change: Callable[..., Signatures]
) -> None:
    place, ours, theirs = published
    path = with_signatures(place.with_suffix(".ccb"), change(ours, theirs), tmp_path / "app.ccb")
    with Cache(tmp_path / "own", trusted_keys=[PUBLIC]) as cache:
        with pytest.raises(IntegrityError, match="nothing was imported"):
            cache.import_bundle(path)
        assert len(cache) == 0
