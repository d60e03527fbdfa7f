"""Damaged files: every bit of the small ones, random bits of modules, and whatever else can befall a file.

The outcome is the right result, a miss, or a documented error; never a crash or a wrong answer, and functions that
have nothing to do with the damaged file answer right. The long forms are marked `fault`.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest
from damage import FUNCTIONS, Case, every_bit, run_cases
from helpers import adder, caller, module_file

from compcache import Cache, CacheWarning, CompcacheError, ModuleSource
from compcache.files import Files
from compcache.formats.footer import FOOTER_SIZE, decode_footer
from compcache.miss.build import build_source
from compcache.publish.writer import Publication, publish_modules
from compcache.store import Store

if TYPE_CHECKING:
    from pathlib import Path

KEY = "a signing key for tests, of some length"
MODULES = 2000
#: Into how many tests the bits of small files are divided: some 29,000, each 50 ms.
PARTS = 4
SECTIONS = ("image", "records", "graph", "bitcode", "notes", "footer")
TABLE = """\
@g = external global i64
define i64 @t(i64 %x) {
  %v = load i64, ptr @g
  %r = add i64 %v, %x
  ret i64 %r
}
"""


@pytest.fixture(params=["", pytest.param(KEY, marks=pytest.mark.fault)], ids=["unsigned", "signed"])
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pristine(directory: Path, key: str) -> Path:
    """A directory with the functions of `damage.FUNCTIONS`, all published, indexed and loaded once."""
    with Cache(directory, signing_key=key or None) as cache:
        for source in (adder("f", 1), adder("g", 20), caller("h", "f", plus=100)):
            cache.add_module(ModuleSource(source))
        cache.add_module(ModuleSource(TABLE, globals={"g": 41}))
        assert {name: cache.get_target(name)(1) for name in FUNCTIONS} == FUNCTIONS
    return directory


def modules_of(root: Path, key: str) -> dict[str, Path]:
    """The file that each function is in."""
    with Cache(root, signing_key=key or None) as cache:
        return {name: module_file(root, cache.realizations(name)[0].module_id) for name in FUNCTIONS}


def affected(case: Case, files: dict[str, Path], root: Path) -> set[str]:
    """The functions that damage to these files may cost.

    A segment of the index that was deleted leaves no trace: what only it named is missed until it is added again, or
    until a check repairs the index.
    """
    if case.kind == "delete" and case.path.startswith("index-v1"):
        return set(FUNCTIONS)
    hit = {name for name, path in files.items() if str(path.relative_to(root)) in (case.path, case.other)}
    return hit | ({"h"} if "f" in hit else set())


def require_right_or_miss(results: list[Any], files: dict[str, Path], root: Path) -> dict[str, int]:
    """Judge all outcomes; how often there was which."""
    counts = dict.fromkeys(("right", "miss"), 0)
    for case, outcome, warnings in results:
        may_miss = affected(case, files, root)
        for name, result in outcome.items():
            function = name.removeprefix("tools of ")
            accepted = ("right", "miss") if function in may_miss else ("right",)
            assert result in accepted, (case, name, result, warnings)
            counts[result] += function == name
        assert len(warnings) <= 2, (case, warnings)
    return counts


def section_bits(path: Path, rng: random.Random, count: int) -> list[int]:
    """Random bits, as many of each section."""
    data = path.read_bytes()
    footer = decode_footer(data[-FOOTER_SIZE:], len(data))
    sizes = (footer.image, footer.records, footer.graph, footer.bitcode, footer.notes, FOOTER_SIZE)
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    chosen = [rng.randrange(len(SECTIONS)) for _ in range(count)]
    return [
        8 * starts[n] + rng.randrange(8 * sizes[n]) if sizes[n] else rng.randrange(8 * len(data))
        for n in chosen
    ]


def small_files(root: Path) -> list[Path]:
    found = [root / "CACHEDIR.TAG", *(root / "index-v1").iterdir(), *(root / "hosts-v4").iterdir()]
    return [path for path in found if path.is_file()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "short", [True, pytest.param(False, marks=[pytest.mark.fault, pytest.mark.timeout(1200)])]
)
def test_a_flipped_bit_of_a_module_is_a_miss_at_worst(pristine: Path, key: str, short: bool) -> None:
    rng = random.Random(7)
    files = modules_of(pristine, key)
    count = 40 if short else MODULES
    cases = []
    for path in files.values():
        name = str(path.relative_to(pristine))
        cases += [Case(name, "flip", bit) for bit in section_bits(path, rng, count // len(files))]
    results = run_cases(pristine, cases, key=key)
    counts = require_right_or_miss(results, files, pristine)
    assert counts["miss"] > count // 2
    assert counts["right"] > count
    print(f"{len(cases)} bits of modules: {counts}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["some", *(pytest.param(n, marks=[pytest.mark.fault, pytest.mark.timeout(3600)]) for n in range(PARTS))]
)
def test_a_flipped_bit_of_a_small_file_costs_nothing(pristine: Path, key: str, part: int | str) -> None:
    files = modules_of(pristine, key)
    cases = [case for path in small_files(pristine) for case in every_bit(pristine, path)]
    cases = random.Random(8).sample(cases, 40) if isinstance(part, str) else cases[part::PARTS]
    results = run_cases(pristine, cases, key=key)
    counts = require_right_or_miss(results, files, pristine)
    assert counts["miss"] == 0
    print(f"{len(cases)} bits of small files: {counts}")


@pytest.mark.slow
@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.fault)])
def test_whatever_befalls_a_file_is_a_miss_at_worst(pristine: Path, key: str, short: bool) -> None:
    files = modules_of(pristine, key)
    everything = sorted(path for path in pristine.rglob("*") if path.is_file())
    cases = []
    for path in everything:
        name = str(path.relative_to(pristine))
        size = path.stat().st_size
        cases += [Case(name, "truncate", number) for number in (size, size // 2, 1)]
        cases += [Case(name, "append", number) for number in (1, 5000)]
        cases += [Case(name, kind) for kind in ("zero", "delete")]
        siblings = [other for other in everything if other != path and other.suffix == path.suffix]
        cases += [Case(name, "swap", 0, str(other.relative_to(pristine))) for other in siblings[:1]]
    if short:
        cases = random.Random(10).sample(cases, 40)
    results = run_cases(pristine, cases, key=key)
    counts = require_right_or_miss(results, files, pristine)
    assert counts["miss"] > 0
    print(f"{len(cases)} truncated, extended, emptied, deleted and swapped files: {counts}")


# ------------------------------------------------------------------------------------ changes within a tick


class CoarseFiles(Files):
    """A file system whose clock ticks once an hour, but keeps the times that it is told."""

    __slots__ = ("told",)

    def __init__(self) -> None:
        self.told: dict[int, int] = {}

    def utime(self, descriptor: int, *, ns: tuple[int, int]) -> None:  # type: ignore[override]
        os.utime(descriptor, ns=ns)
        self.told[os.fstat(descriptor).st_ino] = ns[1]

    def fstat(self, descriptor: int) -> Any:
        status = os.fstat(descriptor)
        told = self.told.get(status.st_ino) == status.st_mtime_ns
        return _Coarse(status, status.st_mtime_ns if told else _tick(status.st_mtime_ns))


class _Coarse:
    def __init__(self, status: os.stat_result, mtime: int) -> None:
        self._status = status
        self.st_mtime_ns = mtime
        self.st_ctime_ns = _tick(status.st_ctime_ns)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._status, name)


def _tick(nanoseconds: int) -> int:
    return nanoseconds - nanoseconds % (3600 * 10**9)


def test_a_change_in_the_same_tick_as_the_publication_is_noticed(directory: Path) -> None:
    """As on kernels before multigrain timestamps: the change leaves the same ctime."""
    if time.time() % 3600 > 3590:
        time.sleep(10)
    with Cache(directory) as cache:
        built = build_source(cache._session(), ModuleSource(adder("f", 1)))
    files = CoarseFiles()
    store = Store(str(directory), files=files)
    (module_id,) = publish_modules(store, [Publication(built.sections, built.functions, built.target, built.flags, built.key)])
    path = module_file(directory, module_id.hex())
    before = path.stat()
    store.open_module(module_id).close()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff\xff\xff")
    assert path.stat().st_ino == before.st_ino
    assert _tick(path.stat().st_ctime_ns) == _tick(before.st_ctime_ns)
    with pytest.warns(CacheWarning, match="digest"), pytest.raises(OSError, match="is damaged"):
        store.open_module(module_id)


def test_a_file_that_has_just_changed_gets_no_stamp(directory: Path) -> None:
    """Two changes within a tick, with a verification between them, look like one."""
    with Cache(directory) as cache:
        module_id = bytes.fromhex(cache.add_module(ModuleSource(adder("f", 1))))
    path = module_file(directory, module_id.hex())
    path.write_bytes(path.read_bytes())
    index = directory / "index-v1"
    names = {p.name for p in index.iterdir()}
    Store(str(directory)).open_module(module_id).close()
    assert {p.name for p in index.iterdir()} == names
    time.sleep(0.15)
    Store(str(directory)).open_module(module_id).close()
    assert {p.name for p in index.iterdir()} > names


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [True, False], ids=["grown", "of holes"])
@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore::compcache.CacheWarning")
def test_a_file_of_any_size_is_read_no_further_than_it_can_be_right(pristine: Path, key: str, tmp_path: Path, *, keeps: bool) -> None:
    """A terabyte that takes no room on the disk, in the place of each file in turn."""
    with Cache(pristine, signing_key=key or None) as cache:
        cache.add_modules([ModuleSource(caller("middle", "h")), ModuleSource(caller("top", "middle"))])
        cache.get_target("top")
        cache.stats()
    known = {**FUNCTIONS, "middle": 102, "top": 102}
    for path in [path for path in sorted(pristine.rglob("*")) if path.is_file()]:
        damaged = tmp_path / "damaged"
        shutil.copytree(pristine, damaged)
        place = damaged / path.relative_to(pristine)
        if not keeps:
            place.write_bytes(b"")
        place.chmod(0o600)
        os.truncate(place, 1 << 40)
        with Cache(damaged, signing_key=key or None) as cache:
            for name, right in known.items():
                with contextlib.suppress(CompcacheError):
                    assert cache.get_target(name)(1) == right, path
            cache.info(), cache.explain("f"), cache.stats(), cache.functions(), cache.graph()
        shutil.rmtree(damaged)
