"""Whose code is run."""

from __future__ import annotations

import os
import pickle
import shutil
from typing import TYPE_CHECKING

from compcache_conformance.language import program
from compcache_conformance.results import Cannot, Lacking, Outcome, Violation
from compcache_conformance.scenarios.registry import scenario

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from compcache_conformance.bench import Bench

_NOBODY = 65534


class _Touch:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self._path),)


@scenario(
    "trust", "pickle that runs", "A file of the store that contains a pickle with a call is not unpickled.", "NVIDIA/cuda-python#2857"
)
def pickle_that_runs(bench: Bench) -> None:
    bench.filled(program())
    mark = bench.root / "mark"
    bench.damage(lambda _, __: pickle.dumps(_Touch(mark)))
    bench.run()
    if mark.exists():
        raise Violation(Outcome.WRONG, "what the file said was run")


@scenario(
    "trust", "pickle behind the head", "A pickle after the first 64 bytes of a valid file is not unpickled.", "NVIDIA/cuda-python#2857"
)
def pickle_behind_the_head(bench: Bench) -> None:
    bench.filled(program())
    mark = bench.root / "mark"

    def change(_: Path, old: bytes) -> bytes:
        return _first_pickle(old) + pickle.dumps(_Touch(mark))

    bench.damage(change)
    bench.run()
    if mark.exists():
        raise Violation(Outcome.WRONG, "what the file said was run")


def _first_pickle(old: bytes) -> bytes:
    """The first pickle of a file, if one is at its head; it is not loaded."""
    import io
    import pickletools

    stream = io.BytesIO(old)
    try:
        for _ in pickletools.genops(stream):
            pass
    except Exception:  # noqa: BLE001 - no pickle
        return old[:64]
    return old[: stream.tell()]


@scenario("trust", "another user's store", "A store that another user owns and can write to is not trusted.", "")
def another_users_store(bench: Bench) -> None:
    if os.geteuid() != 0:
        raise Lacking("this needs a second user: run the suite as root")
    bench.filled(program())
    for path in [bench.store, *bench.store.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)
        os.chown(path, _NOBODY, _NOBODY)
    bench.refuses(why="code that another user could have written was run")


@scenario("trust", "files of another user", "A file that another user put into a shared folder is not trusted.", "")
def files_of_another_user(bench: Bench) -> None:
    if os.geteuid() != 0:
        raise Lacking("this needs a second user: run the suite as root")
    bench.filled(program())
    for path in bench.store.rglob("*"):
        if path.is_dir():
            path.chmod(0o777)
        else:
            os.chown(path, _NOBODY, _NOBODY)
            path.chmod(0o644)
    bench.store.chmod(0o1777)
    bench.refuses(why="code that another user wrote was run")


@scenario("trust", "planted entry", "Another program's entry under the names of this program's files is not run.", "")
def planted_entry(bench: Bench) -> None:
    attacker = bench.root / "attacker"
    attacker.mkdir(mode=0o700)
    bench.write(program("x * 666.0 + 1.0"))
    bench.works(1999.0, store=attacker)
    theirs = bench.files(attacker)
    bench.filled(program())
    mine = bench.files()
    planted = 0
    for path in mine:
        same = [other for other in theirs if _shape(other, attacker) == _shape(path, bench.store)]
        if same:
            bench.damage(_always(same[0].read_bytes()), [path])
            planted += 1
    if not planted:
        raise Cannot("no file of one store could stand for one of the other")
    bench.works()


def _always(data: bytes) -> Callable[[Path, bytes], bytes]:
    return lambda _, __: data


def _shape(path: Path, store: Path) -> tuple[int, str]:
    """What tells kinds of files apart, as far as one sees from outside: how deep they are, and how their names end."""
    return len(path.relative_to(store).parts), path.suffix


@scenario("trust", "link in place of a file", "A write does not follow a symbolic link in place of a file.", "")
def link_in_place(bench: Bench) -> None:
    bench.filled(program())
    victims = {}
    for number, path in enumerate(bench.files()):
        victim = bench.root / f"victim-{number}"
        victim.write_text("precious")
        path.unlink()
        path.symlink_to(victim)
        victims[victim] = path
    bench.works()
    changed = [path.name for victim, path in victims.items() if not victim.exists() or victim.read_text() != "precious"]
    if changed:
        raise Violation(Outcome.WRONG, f"a file outside of the store was changed through {changed[0]}")


@scenario("trust", "folder that is a link", "A symbolic link in place of a folder of the store does not redirect removals or writes.", "")
def folder_that_is_a_link(bench: Bench) -> None:
    bench.filled(program())
    folders = [path for path in bench.store.iterdir() if path.is_dir()]
    if not folders:
        raise Cannot("the store has no folders")
    outside = bench.root / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    for folder in folders:
        shutil.rmtree(folder)
        folder.symlink_to(outside)
    bench.works()
    if not (outside / "precious").exists():
        raise Violation(Outcome.WRONG, "a file outside of the store was removed")


@scenario("trust", "rights of what is made", "With an ordinary umask, other users cannot write to any file or folder of the store.", "")
def rights(bench: Bench) -> None:
    bench.store.rmdir()
    bench.write(program())
    bench.works()
    open_ones = [path.name for path in [bench.store, *bench.store.rglob("*")] if path.lstat().st_mode & 0o022 and not path.is_symlink()]
    if open_ones:
        raise Violation(Outcome.WRONG, f"others may write {open_ones[0]}")
