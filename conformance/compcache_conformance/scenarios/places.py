"""Places that cannot be written, or not as usual."""

from __future__ import annotations

import os
import resource
import shutil
import time
from typing import TYPE_CHECKING

from compcache_conformance.language import Function, Program, program
from compcache_conformance.results import Lacking, Outcome, Violation
from compcache_conformance.scenarios.registry import scenario

if TYPE_CHECKING:
    from pathlib import Path

    from compcache_conformance.bench import Bench

_NOBODY = 65534


def _modes(store: Path, folder: int, file: int) -> None:
    for place, _folders, files in os.walk(store, topdown=False):
        for name in files:
            os.chmod(os.path.join(place, name), file)
        os.chmod(place, folder)

#: Some of the first processes may each create a file that later ones share. If so many processes create one each, files accumulate.
_MOST_PROCESSES = 16


@scenario("places", "read-only store", "Code in a read-only store is found.", "")
def read_only_store(bench: Bench) -> None:
    bench.filled(program())
    _modes(bench.store, 0o555, 0o444)
    bench.keeps(env=bench.adapter.readonly_environment())


@scenario("places", "new function beside a read-only store", "A program that needs functions which a read-only store lacks runs.", "")
def more_than_read_only(bench: Bench) -> None:
    bench.filled(program())
    _modes(bench.store, 0o555, 0o444)
    bench.write(program("x * 3.0 + 1.0"))
    bench.works(10.0, env=bench.adapter.readonly_environment())


@scenario("places", "not writable", "A program whose store was never writable runs.", "")
def not_writable(bench: Bench) -> None:
    bench.write(program())
    bench.store.chmod(0o555)
    bench.works()


@scenario("places", "read-only mount", "Code in a store on a read-only file system is found.", "")
def read_only_mount(bench: Bench) -> None:
    bench.filled(program())
    bench.keeps(wrap=bench.mounted("size=64m,ro", keep=True), env=bench.adapter.readonly_environment())


@scenario("places", "no store yet", "A missing store is created.", "")
def no_store_yet(bench: Bench) -> None:
    bench.write(program())
    bench.store.rmdir()
    bench.works(store=bench.store / "deep" / "er")
    bench.keeps(store=bench.store / "deep" / "er")


@scenario("places", "store that cannot be made", "A program whose store is missing and cannot be created runs.", "")
def cannot_be_made(bench: Bench) -> None:
    bench.write(program())
    bench.store.chmod(0o555)
    bench.works(store=bench.store / "deeper")


@scenario("places", "store is a file", "A program whose store is a file runs.", "")
def store_is_a_file(bench: Bench) -> None:
    bench.write(program())
    bench.store.rmdir()
    bench.store.write_text("")
    bench.works()


@scenario("places", "no home", "A program without a home directory runs.", "LMCache/LMCache#4597")
def no_home(bench: Bench) -> None:
    bench.write(program())
    bench.works(env={**bench.adapter.default_environment(bench.project), "HOME": "/proc/nonexistent", "XDG_CACHE_HOME": ""})


@scenario("places", "home that cannot be written", "A program whose home directory is not writable runs.", "LMCache/LMCache#4597")
def home_not_writable(bench: Bench) -> None:
    bench.write(program())
    home = bench.root / "home"
    home.mkdir(mode=0o555)
    for path in bench.project.iterdir():
        path.chmod(0o444)
    bench.project.chmod(0o555)
    bench.works(env={**bench.adapter.default_environment(bench.project), "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")})


@scenario("places", "full disk", "A program whose store is on a full file system runs.", "")
def full_disk(bench: Bench) -> None:
    bench.write(program())
    bench.works(wrap=bench.mounted("size=64k", full=True))


@scenario("places", "almost full disk", "A disk that becomes full while an entry is written does no harm, at that time or later.", "")
def almost_full_disk(bench: Bench) -> None:
    bench.write(program())
    for writes in (0, 1, 3):
        bench.works(env=bench.faulty(f"full:{writes}"))
    bench.works()
    bench.keeps()


@scenario(
    "places", "leftovers of failed writes", "If writes fail, partly written files do not accumulate with each process.", "nodejs/node#65473"
)
def leftovers(bench: Bench) -> None:
    bench.write(program())
    counts: list[int] = []
    while len(counts) < 3 or (counts[-3] < counts[-2] < counts[-1] and len(counts) < _MOST_PROCESSES):
        bench.works(env=bench.faulty("full:0"))
        counts.append(sum(1 for path in bench.store.rglob("*") if not path.is_dir()))
    bench.note(f"{', '.join(map(str, counts))} files")
    if counts[-3] < counts[-2] < counts[-1]:
        raise Violation(Outcome.MISSED, f"{', '.join(map(str, counts))} files after one, two and more processes that could not write")


@scenario("places", "no more files", "A file system that cannot create another file does no harm.", "")
def no_more_files(bench: Bench) -> None:
    bench.write(program())
    bench.works(wrap=bench.mounted("size=8m,nr_inodes=2"))


@scenario("places", "size of files is limited", "A process that may not write files of more than 1 KiB (`ulimit -f`) runs.", "")
def file_size_limit(bench: Bench) -> None:
    bench.write(program())
    bench.works(limits={resource.RLIMIT_FSIZE: 1024})
    bench.works()


@scenario("places", "few descriptors", "A process with a limit of 40 open files, most of which are in use, runs.", "")
def few_descriptors(bench: Bench) -> None:
    bench.write(program())
    bench.works(limits={resource.RLIMIT_NOFILE: 40})
    bench.works(limits={resource.RLIMIT_NOFILE: 40})
    bench.works()


@scenario("places", "no programs from the store", "Code is found on a file system that does not permit execution (`noexec`).", "")
def noexec(bench: Bench) -> None:
    bench.filled(program())
    wrap = bench.mounted("size=64m,noexec", keep=True)
    run = bench.works(wrap=wrap)
    if run.first.found is False:
        raise Violation(Outcome.MISSED, "right, but compiled by every process")


@scenario("places", "linked store", "A store is found through a symbolic link and by its own path.", "")
def linked_store(bench: Bench) -> None:
    bench.filled(program())
    link = bench.root / "link"
    link.symlink_to(bench.store)
    bench.keeps(store=link)


@scenario("places", "dangling link", "A program whose store is a dangling symbolic link runs.", "")
def dangling_link(bench: Bench) -> None:
    bench.write(program())
    link = bench.root / "link"
    link.symlink_to(bench.root / "nowhere")
    bench.works(store=link)


@scenario("places", "spaces and letters", "A store whose path has spaces, quotes and non-ASCII letters works.", "")
def spaces_and_letters(bench: Bench) -> None:
    bench.write(program())
    store = bench.root / 'my störe\'s "cache" 缓存 %d $HOME'
    store.mkdir(mode=0o700)
    bench.works(store=store)
    bench.keeps(store=store)


@scenario("places", "sources with spaces and letters", "Sources whose path has spaces and non-ASCII letters work.", "")
def sources_with_spaces(bench: Bench) -> None:
    folder = bench.root / "my prögram's 源"
    folder.mkdir()
    bench.write(program(), folder)
    bench.works(folder=folder)
    bench.keeps(folder=folder)


@scenario("places", "long path", "A store whose path has 1,000 letters works.", "")
def long_path(bench: Bench) -> None:
    bench.write(program())
    store = bench.root.joinpath(*["d" * 120 for _ in range(8)])
    store.mkdir(parents=True, mode=0o700)
    bench.works(store=store)
    bench.keeps(store=store)


@scenario("places", "no temporary directory", "A process whose $TMPDIR does not exist runs.", "")
def no_temporary_directory(bench: Bench) -> None:
    bench.write(program())
    bench.works(env={"TMPDIR": str(bench.root / "none")})
    bench.keeps(env={"TMPDIR": str(bench.root / "none")})


@scenario("places", "no working directory", "A process whose working directory was removed finds stored code.", "")
def no_working_directory(bench: Bench) -> None:
    bench.filled(program())
    gone = bench.root / "gone"
    gone.mkdir()
    bench.keeps(cwd=gone, wrap=("sh", "-c", f'rmdir "{gone}"; exec "$@"', "sh"))


@scenario("places", "narrow umask", "A process finds the code that a process with umask 077 stored.", "ccache/ccache#710")
def narrow_umask(bench: Bench) -> None:
    bench.write(program("x * 2.0 + 1.0", a="x + 1.0"))
    bench.expect(bench.run(("f", (3.0,)), umask=0o077), 7.0)
    bench.expect(bench.run(("a", (3.0,)), umask=0o022), 4.0)
    bench.expect(bench.run(("f", (3.0,)), ("a", (3.0,)), umask=0o002), 7.0, 4.0, found=True)


@scenario("places", "umask that takes everything", "A process whose umask removes its permissions for its own files runs.", "")
def whole_umask(bench: Bench) -> None:
    bench.write(program())
    bench.works(umask=0o777)
    bench.works()


@scenario("places", "other user's store", "A program whose store belongs to another user, and is writable only by that user, runs.", "")
def other_users_store(bench: Bench) -> None:
    if os.geteuid() != 0:
        raise Lacking("this needs a second user: run the suite as root")
    bench.filled(program())
    for path in [bench.store, *bench.store.rglob("*")]:
        os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)
    _modes(bench.store, 0o755, 0o644)
    bench.works()
    bench.write(program("x * 3.0 + 1.0"))
    bench.works(10.0)


@scenario("places", "files of the future", "Stores and sources with times in the future are used.", "")
def files_of_the_future(bench: Bench) -> None:
    bench.filled(program())
    later = time.time() + 864_000
    for path in [*bench.files(), *bench.project.iterdir()]:
        os.utime(path, (later, later))
    bench.keeps()


@scenario("places", "limit of the size", "A store with a limit of 64 KiB uses little more after 40 functions.", "")
def limit_of_the_size(bench: Bench) -> None:
    env = bench.adapter.limited_environment(65_536)
    for start in range(0, min(40, bench.adapter.entries), 5):
        numbers = range(start, start + 5)
        bench.write(Program(tuple(Function(f"f{number}", f"x * {float(number)} + 1.0") for number in numbers)))
        run = bench.run(*[(f"f{number}", (3.0,)) for number in numbers], env=env)
        bench.expect(run, *[3.0 * number + 1.0 for number in numbers])
    size = sum(path.stat().st_size for path in bench.files())
    bench.note(f"{size} bytes")
    if size > 4 * 65_536:
        raise Violation(Outcome.MISSED, f"the store has {size} bytes")


@scenario("places", "store that comes back", "A store that disappears and comes back, like an automatic mount, is used again.", "")
def store_that_comes_back(bench: Bench) -> None:
    bench.filled(program())
    away = bench.root / "away"
    bench.store.rename(away)
    bench.works()
    if bench.store.exists():
        shutil.rmtree(bench.store)
    away.rename(bench.store)
    bench.keeps()
