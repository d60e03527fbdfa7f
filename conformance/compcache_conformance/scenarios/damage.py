"""Stores that were damaged."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from compcache_conformance.language import program
from compcache_conformance.results import Cannot
from compcache_conformance.scenarios.registry import scenario

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from compcache_conformance.bench import Bench

#: Of a store with many files, so many are damaged one at a time.
_MOST_FILES = 8


def _damage_all(bench: Bench, change: Callable[[Path, bytes], bytes | None]) -> None:
    bench.filled(program())
    if not bench.damage(change):
        raise Cannot("no file of the store can be changed so")
    bench.works()
    bench.keeps(why="what was damaged is compiled again by every process")


#: Damage to all files at once: name, sentence, origin, the new content of a file.
_ALL_FILES: tuple[tuple[str, str, str, Callable[[Path, bytes], bytes | None]], ...] = (
    ("truncated", "Files that were cut in half are compiled again, and stored again.", "", lambda _, old: old[: len(old) // 2]),
    ("emptied", "Files without content are compiled again, and stored again.", "", lambda _, __: b""),
    ("zero-filled", "Files of zeros, as a system crash leaves them, are compiled again.", "", lambda _, old: bytes(len(old))),
    ("last byte lost", "Files that lost their last byte are compiled again.", "", lambda _, old: old[:-1]),
    ("longer", "Files with additional bytes at the end do no harm.", "", lambda _, old: old + bytes(range(256))),
    (
        "tail of zeros",
        "Files whose last pages were never written are compiled again.",
        "",
        lambda _, old: old[: len(old) // 2] + bytes(len(old) - len(old) // 2),
    ),
    (
        "random bytes",
        "Files of noise are compiled again.",
        "",
        lambda path, old: __import__("random").Random(len(path.name)).randbytes(len(old)),
    ),
    ("other tool's files", "Files that are replaced by text do no harm.", "", lambda _, __: b"<html><body>404 Not Found</body></html>\n"),
    ("end of line conversion", "Files that a text tool has converted do no harm.", "", lambda _, old: old.replace(b"\n", b"\r\n")),
)

for _name, _sentence, _origin, _change in _ALL_FILES:

    def _play(bench: Bench, change: Callable[[Path, bytes], bytes | None] = _change) -> None:
        _damage_all(bench, change)

    scenario("damage", _name, _sentence, _origin)(_play)


def _one_at_a_time(bench: Bench, change: Callable[[Path], object], *, repaired: bool = True) -> None:
    """Damage one file, ask, restore the store; for each file of it."""
    bench.filled(program())
    intact = bench.copy("intact")
    files = bench.files()
    bench.note(f"{min(len(files), _MOST_FILES)} of {len(files)} files")
    for path in files[:: max(1, len(files) // _MOST_FILES)][:_MOST_FILES]:
        change(path)
        bench.log.append(f"damaged: {path.name}")
        bench.works()
        if repaired:
            bench.keeps(why=f"after damage to {path.name} every process compiles again")
        shutil.rmtree(bench.store)
        shutil.copytree(intact, bench.store, symlinks=True)


@scenario("damage", "flipped bits", "A file with a flipped bit is compiled again or does no harm, for eight places in each file.", "")
def flipped_bits(bench: Bench) -> None:
    bench.filled(program())
    chance = bench.rng()
    intact = bench.copy("intact")
    for _ in range(bench.few(8)):
        shutil.rmtree(bench.store)
        shutil.copytree(intact, bench.store, symlinks=True)

        def flip(_: Path, old: bytes) -> bytes:
            new = bytearray(old)
            if new:
                new[chance.randrange(len(new))] ^= 1 << chance.randrange(8)
            return bytes(new)

        bench.damage(flip)
        bench.works()
    bench.works()


@scenario("damage", "each file removed", "A store in which any one file is missing works, and is complete afterwards.", "")
def each_file_removed(bench: Bench) -> None:
    _one_at_a_time(bench, lambda path: path.unlink())


@scenario("damage", "each file emptied", "A store in which any one file is empty works, and is complete afterwards.", "")
def each_file_emptied(bench: Bench) -> None:
    _one_at_a_time(bench, lambda path: path.write_bytes(b""))


@scenario("damage", "folder in place of a file", "A folder in place of a file does no harm.", "")
def folder_in_place(bench: Bench) -> None:
    def change(path: Path) -> None:
        path.unlink()
        path.mkdir()

    _one_at_a_time(bench, change, repaired=False)


@scenario("damage", "pipe in place of a file", "A named pipe in place of a file does not block a program forever.", "")
def pipe_in_place(bench: Bench) -> None:
    def change(path: Path) -> None:
        path.unlink()
        os.mkfifo(path)

    _one_at_a_time(bench, change, repaired=False)


@scenario("damage", "unreadable files", "Files without read permission are compiled again or skipped.", "")
def unreadable_files(bench: Bench) -> None:
    bench.filled(program())
    for path in bench.files():
        path.chmod(0)
    bench.works()


@scenario("damage", "files exchanged", "Files whose contents were exchanged are not used for each other.", "")
def files_exchanged(bench: Bench) -> None:
    bench.filled(program("x * 2.0 + 1.0", a="x * 5.0"))
    bench.expect(bench.run(("a", (3.0,))), 15.0)
    files = bench.files()
    contents = {path: other.read_bytes() for path, other in zip(files, [*files[1:], files[0]], strict=True)}
    bench.damage(lambda path, _: contents[path])
    bench.expect(bench.run(("f", (3.0,)), ("a", (3.0,))), 7.0, 15.0)


@scenario("damage", "foreign files", "Other programs' files and folders in the store do no harm.", "")
def foreign_files(bench: Bench) -> None:
    bench.filled(program())
    for place in [bench.store, *(path for path in bench.store.rglob("*") if path.is_dir())]:
        for name in (".DS_Store", "core.1234", "file.tmp", "~lock", ".nfs000000012345", "README", "x" * 200):
            (place / name).write_bytes(b"not a cache's file\n")
        (place / "folder").mkdir()
        os.symlink("nowhere", place / "dangling")
        os.symlink(".", place / "loop")
    bench.keeps()
    bench.write(program("x * 3.0 + 1.0"))
    bench.works(10.0)
    bench.keeps(10.0)


@scenario("damage", "orphans of writers", "Temporary files that writers left behind do not block any process.", "jax-ml/jax#39880")
def orphans(bench: Bench) -> None:
    bench.filled(program())
    for path in bench.files():
        for ending in (".tmp", ".lock", ".partial", "-atime", ".tmp.1234"):
            beside = path.with_name(path.name[:200] + ending)
            if not beside.exists():
                beside.write_bytes(b"")
    bench.keeps()
    bench.write(program("x * 3.0 + 1.0"))
    bench.works(10.0)
    bench.keeps(10.0, why="nothing new is stored")


@scenario("damage", "deep nesting", "Folders that are nested 300 levels deep in the store do no harm.", "")
def deep_nesting(bench: Bench) -> None:
    bench.filled(program())
    place = os.open(bench.store, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("nested-folder", dir_fd=place)
        inner = os.open("nested-folder", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    bench.keeps()


@scenario("damage", "half a copy", "A store from an interrupted copy works.", "")
def half_a_copy(bench: Bench) -> None:
    bench.filled(program())
    for path in bench.files()[::2]:
        path.unlink()
    bench.works()
    bench.keeps()


@scenario("damage", "two stores merged", "A store into which another store's files were copied works.", "")
def two_stores_merged(bench: Bench) -> None:
    other = bench.root / "other"
    other.mkdir(mode=0o700)
    bench.filled(program())
    bench.write(program("x * 3.0 + 1.0"))
    bench.works(10.0, store=other)
    shutil.copytree(other, bench.store, dirs_exist_ok=True, symlinks=True)
    bench.works(10.0)
    bench.write(program())
    bench.works(7.0)
    bench.keeps(7.0)
