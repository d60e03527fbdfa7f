"""Bundles that are large, or say that they are: what is believed of sizes, and what is held in memory."""

from __future__ import annotations

import os
import struct
import zipfile
from typing import TYPE_CHECKING

import pytest
from helpers import run_fresh

from compcache import Cache, FormatError, ModuleSource
from compcache.bundles.layout import LISTING, open_bundle

if TYPE_CHECKING:
    from pathlib import Path

MEMBER = f"modules/{'ab' * 16}.ccm"
_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")


def with_a_hole(path: Path, claims: int) -> Path:
    """A bundle of a few KiB with a module that is a hole of this size, as its archive says it."""
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        archive.writestr(LISTING, "")
        info = zipfile.ZipInfo(MEMBER)
        info.file_size = claims
        with archive.open(info, "w", force_zip64=True):
            pass
        found = archive.getinfo(MEMBER)
        start = archive.start_dir
        found.file_size = found.compress_size = claims
        archive.start_dir = start + claims
        archive._didModify = True  # type: ignore[attr-defined]
    return path


def with_a_large_directory(path: Path, claims: int) -> Path:
    """An archive whose directory, as it says, is a hole of this size."""
    with open(path, "wb") as file:
        file.truncate(claims)
        file.seek(claims)
        file.write(_END_64.pack(b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, claims, 0))
        file.write(_LOCATOR.pack(b"PK\6\7", 0, claims, 1))
        file.write(_END.pack(b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    return path


class Name(str):
    """A name that counts the names with which it was compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return super().__eq__(other)


def test_a_member_is_found_without_a_walk_through_all_names(tmp_path: Path) -> None:
    path = tmp_path / "many.ccb"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(LISTING, "")
        for number in range(200):
            archive.writestr(f"modules/{number:032x}.ccm", "")
    with open_bundle(str(path)) as bundle:
        assert len(bundle.names) == 200
        assert bundle.read(Name(f"signatures/{0:032x}.ed25519")) == b""
    assert Name.compared < 5


def peak_of_import(bundle: Path, place: Path, *, refused: bool) -> int:
    """By how many bytes an import of the bundle makes a process grow."""
    script = f"""
    import resource
    from compcache import Cache, FormatError
    import compcache.bundles.unpack, zipfile, mmap, tempfile, shutil
    cache = Cache(directory)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        cache.import_bundle({os.fspath(bundle)!r})
        refused = False
    except FormatError:
        refused = True
    result = [refused, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10]
    """
    was_refused, grown = run_fresh(place, script)
    assert was_refused == refused
    return int(grown)


def test_a_bundle_of_a_hole_is_refused_at_once(tmp_path: Path) -> None:
    bundle = with_a_hole(tmp_path / "b.ccb", 2 << 30)
    assert os.stat(bundle).st_blocks * 512 < 1 << 16
    with Cache(tmp_path / "c") as cache, pytest.raises(FormatError, match="has 2147483648 bytes, but at most"):
        cache.import_bundle(bundle)


def test_a_bundle_of_a_smaller_hole_takes_no_memory(tmp_path: Path) -> None:
    assert peak_of_import(with_a_hole(tmp_path / "b.ccb", 100 << 20), tmp_path / "c", refused=True) < 32 << 20


def test_an_archive_whose_directory_is_a_hole_is_refused_at_once(tmp_path: Path) -> None:
    bundle = with_a_large_directory(tmp_path / "b.ccb", 1 << 28)
    with Cache(tmp_path / "c") as cache, pytest.raises(FormatError, match=r"but at most [0-9]+ are allowed; export the bundle again"):
        cache.import_bundle(bundle)


@pytest.mark.slow
def test_large_modules_are_not_held_in_memory(tmp_path: Path) -> None:
    size = 24 << 20
    ir = f"@t = constant [{size} x i8] zeroinitializer\ndefine ptr @f() {{\n ret ptr @t\n}}\n"
    with Cache(tmp_path / "source") as cache:
        cache.add_module(ModuleSource(ir))
        cache.export(["f"], tmp_path / "f.ccb")
    assert os.stat(tmp_path / "f.ccb").st_size > size
    assert peak_of_import(tmp_path / "f.ccb", tmp_path / "c", refused=False) < size + (16 << 20)  # the pages of the file's copy count
    with Cache(tmp_path / "c") as cache:
        assert cache.get_target("f")()
