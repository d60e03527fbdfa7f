"""Fixtures of the whole suite: cache directories that cost nothing to set up."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest
from helpers import constant
from hypothesis import settings

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from numba_helpers import Project

#: A file system in memory, and how much of it must be free: tests that pass remove what they wrote.
_MEMORY, _MEMORY_BYTES = "/dev/shm", 4 << 30
_VARIABLES = ("DIR", "SIGNING_KEY", "MAX_SIZE", "LOCK_TIMEOUT", "LOCKS")


#: How long an example takes tells what else the machine does.
settings.register_profile("compcache", deadline=None)
settings.load_profile("compcache")


if (spec := importlib.util.find_spec("numba")) is None or spec.origin is None:
    # Where Numba is not installed, Python takes tests/numba for a package of that name.
    sys.modules["numba"] = None  # type: ignore[assignment]


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start what they put in the background like that, and children inherit it: Ctrl-C is among what is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _use_memory_for_files() -> None:
    """Put what tests write into memory, where there is enough: they wait for disks otherwise, a quarter of their time.

    A directory for temporary files that the environment names is kept: `.ci/run` has one of the two Pythons write to a disk.
    """
    with contextlib.suppress(OSError):
        found = os.statvfs(_MEMORY)
        if found.f_bavail * found.f_frsize >= _MEMORY_BYTES and not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY):
            os.environ.setdefault("TMPDIR", _MEMORY)
            tempfile.tempdir = None  # it was asked for already, by what keeps the output of tests


_use_memory_for_files()


#: Nor does a configuration file of whoever runs the tests count, here and in processes that tests start.
os.environ["XDG_CONFIG_HOME"] = os.path.join(os.path.dirname(__file__), "no-configuration")


def pytest_configure(config: pytest.Config) -> None:
    """Whoever names files or folders gets their slow tests as well; `make test` names none."""
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        config.option.markexpr = config.option.markexpr.removesuffix(" and not slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `.ci/run` has two Pythons share."""
    parser.addoption("--slow-in", action="append", default=[], metavar="PATH", help="of the slow tests, only those of this folder or file")
    parser.addoption("--no-slow-in", action="append", default=[], metavar="PATH", help="no slow tests of this folder or file")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests that `--slow-in` and `--no-slow-in` do not choose."""
    only, never = tuple(config.getoption("slow_in")), tuple(config.getoption("no_slow_in"))

    def is_chosen(item: pytest.Item) -> bool:
        place = item.path.relative_to(config.rootpath).as_posix()
        return item.get_closest_marker("slow") is None or (place.startswith(only or "") and not (never and place.startswith(never)))

    if only or never:
        config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
        items[:] = [item for item in items if is_chosen(item)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half as many again as there are processors: many tests wait, for a lock, a disk or a process."""
    return (os.cpu_count() or 1) * 3 // 2


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected is no garbage, and tests that collect garbage do not look through the thousands of tests each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests does not count, but for the choice of a linker."""
    for name in _VARIABLES:
        monkeypatch.delenv(f"COMPCACHE_{name}", raising=False)


@pytest.fixture(scope="session")
def _prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory that holds what every cache needs once: what LLVM says of the host."""
    root = tmp_path_factory.mktemp("prepared") / "cache"
    with Cache(root) as cache:
        module_id = cache.add_module(ModuleSource(constant("unused", 0)))
        cache.get_target("unused")
    for name in ("modules-v1", "numbers-v1", "index-v1", "stats", "tmp"):
        shutil.rmtree(root / name)
    assert module_id
    return root


@pytest.fixture
def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code is not looked into: functions require all that they were compiled for, however little they do."""
    monkeypatch.setattr("compcache.translation.requirements._reader_of", lambda _: None)


@pytest.fixture
def directory(tmp_path: Path, _prepared: Path) -> Path:
    """An empty cache directory."""
    root = tmp_path / "cache"
    shutil.copytree(_prepared, root)
    root.chmod(0o700)
    return root


@pytest.fixture
def cache(directory: Path) -> Iterator[Cache]:
    """An open, empty cache."""
    with Cache(directory) as opened:
        yield opened


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Modules and caches of one test of Numba."""
    from numba_helpers import Project

    return Project(tmp_path)
