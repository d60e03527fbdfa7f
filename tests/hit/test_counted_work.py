"""What one hit in a fresh process does, counted: files opened, bytes read, modules imported, system calls.

Seconds depend on the machine and on what else it does; counts do not. Each budget is what a hit needs today with a
little room: a change that exceeds it has put something on the hit path, and either takes it off again or says here why
it belongs there. `docs/benchmarks.md` shows the counts of other caches.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from helpers import PACKAGE_ROOT, adder, caller, run_fresh, sum_of
from mock_directory import FaultyFiles, cache_on

from compcache import Cache, ModuleSource, PrunePolicy
from compcache.directory.places import MODULE_LISTS
from compcache.formats.index import Index
from compcache.formats.statistics import decode_stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from compcache.formats.statistics import StatsFile

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="needs Linux's /proc/self/io")

#: The package's own modules that a plain hit imports (the package, the facade, `hit` with targets, counter and runtime, settings), and
#: what of the standard library comes along.
OWN_MODULES = 7
OTHER_MODULES = 5
#: The cache directory, that of the index, a segment of it, module file, journal.
OPENED_BY_A_HIT = 5
READS_OF_A_HIT = 7
#: Small segments of the index are read whole, and counted apart.
BYTES_READ_BY_A_HIT = 4_000
BYTES_OF_A_SEGMENT = 64 * 1024
#: Docstrings count: they are in the files that are read.
BYTES_READ_BY_THE_IMPORT = 119_000
SYSTEM_CALLS_OF_A_HIT = 55
SYSTEM_CALLS_OF_THE_IMPORT = 110
#: A hit that is not plain imports the store, the loader and `compcache.cache`: a dozen files.
MODULES_OF_OTHER_HITS = 20
#: The module, and the file of the package that knows imports.
OPENED_FOR_A_DEPENDENCY = 2
READS_FOR_A_DEPENDENCY = 8
SYSTEM_CALLS_FOR_A_DEPENDENCY = 40
#: The same, `__future__`, the class that knows layers, and its package; the others open a layer, its index, and the segment in it.
#: A dozen are the import of the file that recognizes interrupts, so that a start with Numba's functions does not import that of files.
SYSTEM_CALLS_OF_LAYERS = 326
#: Is it a bundle, the directory, its owner, its index, the segment in it.
SYSTEM_CALLS_FOR_A_LAYER = 19
MANY = 400
MODULES = 6
FUNCTIONS = 5

# Counts stand between two readings of /proc/self/io, of which the first two tell what a reading itself costs.
COUNTING = """\
import os, sys
sys.path.insert(0, {site!r})
opened = []
watching = [False]
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if watching[0] and event == "open" else None)
def counters():
    watching[0] = False
    file = os.open("/proc/self/io", os.O_RDONLY)
    lines = os.read(file, 4096).decode().splitlines()
    os.close(file)
    watching[0] = True
    os.access("/counted-work-marker", 0)
    return {{name: int(value) for name, _, value in (line.partition(":") for line in lines)}}, len(opened)
first, nothing = counters(), counters()
modules = set(sys.modules)
begin = counters()
import compcache
imported = counters()
cache = compcache.Cache({directory!r}, layers={layers!r})
target = cache.get_target({name!r})
value = target(41)
hit = counters()
watching[0] = False
def between(a, b):
    read = b[0]["rchar"] - a[0]["rchar"] - (nothing[0]["rchar"] - first[0]["rchar"])
    reads = b[0]["syscr"] - a[0]["syscr"] - (nothing[0]["syscr"] - first[0]["syscr"])
    return {{"bytes": read, "reads": reads, "opened": opened[a[1]:b[1]]}}
result = {{
    "value": value,
    "modules": sorted(set(sys.modules) - modules),
    "import": between(begin, imported),
    "hit": between(imported, hit),
}}
"""


class Counted(NamedTuple):
    """What a hit did: after the import of the package, and for the import."""

    value: int
    modules: list[str]
    imported: dict[str, Any]
    hit: dict[str, Any]

    @property
    def files(self) -> list[str]:
        """The base names of what the hit opened."""
        return [os.path.basename(path) for path in self.hit["opened"]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with its bytecode, as an installer leaves it."""
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE_ROOT / "compcache", place / "compcache", ignore=shutil.ignore_patterns("__pycache__", "native"))
    assert compileall.compile_dir(place, quiet=2)
    return place


def counting(site: Path, directory: Path, name: str, layers: Sequence[Path] = ()) -> str:
    return COUNTING.format(site=str(site), directory=str(directory), name=name, layers=[str(layer) for layer in layers])


def count(site: Path, directory: Path, name: str, layers: Sequence[Path] = ()) -> Counted:
    """The counts of a hit in a fresh process, the second one on this machine: nothing is left to be remembered."""
    script = counting(site, directory, name, layers)
    run_fresh(directory, script)
    taken = run_fresh(directory, script)
    return Counted(taken["value"], taken["modules"], taken["import"], taken["hit"])


def test_a_hit_imports_few_modules(cache: Cache, directory: Path, site: Path) -> None:
    cache.add_module(ModuleSource(adder("one", 1)))
    counted = count(site, directory, "one")
    own = [name for name in counted.modules if name.partition(".")[0] == "compcache"]
    others = [name for name in counted.modules if name not in own]
    assert counted.value == 42
    assert len(own) <= OWN_MODULES, own
    assert len(others) <= OTHER_MODULES, others


def test_a_hit_that_creates_its_journal_imports_nothing_more(cache: Cache, directory: Path, site: Path) -> None:
    cache.add_module(ModuleSource(adder("one", 1)))
    script = counting(site, directory, "one")
    run_fresh(directory, script)
    statistics = directory / "stats"
    for journal in statistics.glob("*.journal1"):
        journal.unlink()
    modules = run_fresh(directory, script)["modules"]
    assert len([name for name in modules if name.partition(".")[0] == "compcache"]) <= OWN_MODULES, modules
    assert [journal.stat().st_mode & 0o777 for journal in statistics.glob("*.journal1")] == [0o600]


def test_a_journal_has_its_mode_under_any_umask(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("one", 1)))
    journals = directory / "stats"
    for journal in journals.glob("*.journal1"):
        journal.unlink()
    script = """
    import os
    from compcache import Cache
    os.umask(0o777)
    result = Cache(directory).get_target("one")(41)
    """
    assert run_fresh(directory, script) == 42
    assert [journal.stat().st_mode & 0o777 for journal in journals.glob("*.journal1")] == [0o600]


def test_uses_are_written_to_the_directory_that_is_at_the_path(cache: Cache, directory: Path) -> None:
    for name in ("one", "two"):
        cache.add_module(ModuleSource(adder(name, 1)))
    script = """
    import os, shutil
    from compcache import Cache
    with Cache(directory) as opened:
        module = opened.get_target("one").module_id, opened.get_target("two").module_id
        os.rename(directory, f"{directory}-moved")
        shutil.copytree(f"{directory}-moved", directory)
    result = module[1]
    """
    module = run_fresh(directory, script)
    assert any(module in journal.read_text() for journal in (directory / "stats").glob("*.journal1"))


def test_a_hit_opens_few_files_and_reads_little(cache: Cache, directory: Path, site: Path) -> None:
    cache.add_module(ModuleSource(adder("one", 1)))
    counted = count(site, directory, "one")
    assert len(counted.files) <= OPENED_BY_A_HIT, counted.files
    assert counted.hit["reads"] <= READS_OF_A_HIT
    assert counted.hit["bytes"] <= BYTES_READ_BY_A_HIT
    assert counted.imported["bytes"] <= BYTES_READ_BY_THE_IMPORT


@pytest.mark.slow
def test_a_hit_in_a_large_module_does_no_more(cache: Cache, directory: Path, site: Path) -> None:
    cache.add_module(ModuleSource("".join(adder(f"f{number}", number) for number in range(MANY)), optimize=0))
    counted = count(site, directory, f"f{MANY // 2}")
    assert counted.value == 41 + MANY // 2
    assert len(counted.files) <= OPENED_BY_A_HIT, counted.files
    assert counted.hit["reads"] <= READS_OF_A_HIT
    assert counted.hit["bytes"] <= BYTES_READ_BY_A_HIT + _segments(directory)


def test_a_hit_among_many_modules_opens_few_files_more(cache: Cache, directory: Path, site: Path) -> None:
    for number in range(20):
        cache.add_module(ModuleSource(adder(f"f{number}", number), optimize=0))
    counted = count(site, directory, "f1")
    segments = [name for name in counted.files if name.endswith(".idx")]
    assert len(segments) <= len(os.listdir(directory / "index-v1"))
    assert len(counted.files) - len(segments) <= OPENED_BY_A_HIT - 1, counted.files
    assert counted.hit["bytes"] <= BYTES_READ_BY_A_HIT + _segments(directory)


def _segments(directory: Path) -> int:
    """The bytes of the index, as far as it is read whole."""
    sizes = [path.stat().st_size for path in (directory / "index-v1").iterdir()]
    return sum(size for size in sizes if size <= BYTES_OF_A_SEGMENT)


def test_a_dependency_in_another_module_costs_few_files_more(cache: Cache, directory: Path, site: Path) -> None:
    cache.add_module(ModuleSource(adder("one", 1)))
    cache.add_module(ModuleSource(caller("two", "one", plus=1)))
    alone, both = count(site, directory, "one"), count(site, directory, "two")
    assert both.value == 43
    modules = [name for name in both.files if name.endswith(".ccm")]
    assert len(set(modules)) == 2
    assert len(modules) == 2
    assert len(both.files) <= len(alone.files) + OPENED_FOR_A_DEPENDENCY, both.files
    assert both.hit["reads"] <= alone.hit["reads"] + READS_FOR_A_DEPENDENCY


def test_a_closure_opens_each_module_once_and_reads_it_once(cache: Cache, directory: Path, site: Path) -> None:
    names = [[f"f{module}_{number}" for number in range(FUNCTIONS)] for module in range(MODULES)]
    for group in names:
        cache.add_module(ModuleSource("".join(adder(name, 1) for name in group), optimize=0))
    flat = [name for group in names for name in group]
    cache.add_module(ModuleSource(sum_of("all", flat), imports=flat, optimize=0))
    alone, counted = count(site, directory, flat[0]), count(site, directory, "all")
    assert counted.value == 42 * len(flat)
    modules = [name for name in counted.files if name.endswith(".ccm")]
    assert len(set(modules)) == MODULES + 1
    assert len(modules) == MODULES + 1
    # Each module has a head that the dynamic linker reads, and each function a record; a segment is read at once.
    segments = len([name for name in counted.files if name.endswith(".idx")])
    assert counted.hit["reads"] <= alone.hit["reads"] + READS_FOR_A_DEPENDENCY + MODULES + len(flat) + segments


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_closure_asks_the_index_once_for_each_module(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch, is_plain: bool
) -> None:
    """Of names of content, which stand for the same wherever they are; for each plain name, of which there may be a newer realization."""
    end = "" if is_plain else f"-{'0' * 32}"
    names = [[f"f{module}_{number}{end}" for number in range(FUNCTIONS)] for module in range(MODULES)]
    for group in names:
        cache.add_module(ModuleSource("".join(adder(name, 1) for name in group), optimize=0))
    flat = [name for group in names for name in group]
    cache.add_module(ModuleSource(sum_of("all", flat), imports=flat, optimize=0))
    asked: list[bytes] = []
    find, find_numbered = Index.find, Index.find_numbered

    def counting(self: Index, key: bytes, **options: Any) -> Iterator[tuple[bytes, int]]:
        asked.append(key)
        return find(self, key, **options)

    def counting_numbered(self: Index, key: bytes) -> Any:
        asked.append(key)
        return find_numbered(self, key)

    monkeypatch.setattr(Index, "find", counting)
    monkeypatch.setattr(Index, "find_numbered", counting_numbered)
    with Cache(directory, trust=True) as fresh:  # no hit is plain
        assert fresh.get_target("all")(41) == 42 * len(flat)
    assert len(asked) == 1 + (len(flat) if is_plain else MODULES)


def test_a_hit_makes_few_system_calls(cache: Cache, directory: Path, site: Path, tmp_path: Path) -> None:
    cache.add_module(ModuleSource(adder("one", 1)))
    script = counting(site, directory, "one")
    run_fresh(directory, script)
    spans = _spans(script, tmp_path / "calls")
    assert len(spans) == 5, "before the counting, its own cost, the modules, the import, the hit; the rest follows"
    own = len(spans[0])
    assert len(spans[2]) - own <= SYSTEM_CALLS_OF_THE_IMPORT, _histogram(spans[2])
    assert len(spans[3]) - own <= SYSTEM_CALLS_OF_A_HIT, _histogram(spans[3])


def test_a_hit_with_an_import_makes_few_system_calls_more(cache: Cache, directory: Path, site: Path, tmp_path: Path) -> None:
    cache.add_module(ModuleSource(adder("one", 1)))
    cache.add_module(ModuleSource(caller("two", "one", plus=1)))
    counts = []
    for name in ("one", "two"):
        script = counting(site, directory, name)
        run_fresh(directory, script)
        spans = _spans(script, tmp_path / "calls")
        counts.append(spans[3])
    assert len(counts[1]) - len(counts[0]) <= SYSTEM_CALLS_FOR_A_DEPENDENCY, _histogram(counts[1])


@pytest.mark.slow
def test_a_hit_out_of_layers_does_little_more(cache: Cache, directory: Path, site: Path, tmp_path: Path) -> None:
    """The class that knows layers, and what it takes to open each of them and to look into its index."""
    layers = [tmp_path / f"layer{number}" for number in range(5)]
    for place, name in [*((place, place.name) for place in layers), (directory, "one")]:
        with Cache(place) as other:
            other.add_module(ModuleSource(adder(name, 1)))
    cache.close()
    time.sleep(0.15)  # what changed just now is verified again
    counts, opened = [], []
    for below in ([], layers[4:], layers):
        name = "layer4" if below else "one"
        counted = count(site, directory, name, below)
        assert counted.value == 42
        modules = [module for module in counted.modules if module.partition(".")[0] == "compcache"]
        assert len(modules) <= OWN_MODULES + (MODULES_OF_OTHER_HITS if below else 0), modules
        opened.append(len([path for path in counted.files if not path.endswith((".py", ".pyc"))]))
        spans = _spans(counting(site, directory, name, below), tmp_path / "calls")
        counts.append(len(spans[3]))
    local, one, five = counts
    assert one <= local + SYSTEM_CALLS_OF_LAYERS, counts
    assert five <= one + 4 * SYSTEM_CALLS_FOR_A_LAYER, counts
    assert opened[2] - opened[1] <= 4 * 3, opened  # the directory of each, its index and a segment


def _spans(script: str, trace: Path) -> list[list[str]]:
    """The system calls after each marker, by name, but those for memory."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    command = [strace, "-f", "-o", str(trace), sys.executable, "-I", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "ptrace" in done.stderr.lower():
        pytest.skip(f"strace may not trace here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    spans: list[list[str]] = []
    for line in trace.read_text(errors="replace").splitlines():
        found = re.match(r"\d+\s+(\w+)\(", line)
        if found is None or found[1] in ("brk", "munmap") or "MAP_ANONYMOUS" in line:
            continue  # where the allocator needs another page differs from process to process
        if "counted-work-marker" in line:
            spans.append([])
        elif spans:
            spans[-1].append(found[1])
    return spans


def _histogram(names: list[str]) -> dict[str, int]:
    counts = {name: names.count(name) for name in names}
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


# ---------------------------------------------------------------- misses and additions: operations on the directory

#: A look-up, which asks again whether there is nothing at all, the number of the addition, which looks at no file of a module then, and the
#: load of what was built; listing the index for each of them, before the lock and for the merge.
LOOK_UPS_OF_A_MISS, LISTINGS_OF_A_MISS = 4, 6
#: For the sum, for what was used since, and again after reading, because others may have sealed a file meanwhile. Of files that were there
#: before and did not change, each is read once.
LISTINGS_OF_STATISTICS = 3
#: The number of the addition, the module, and its index segment.
RENAMES_OF_AN_ADDITION = 3
#: For the listings of the index and of the numbers, and after a rename into a directory of modules that does not exist yet.
LOOKS_AT_THE_ROOT_OF_AN_ADDITION = 3


@pytest.fixture
def counted(cache: Cache, directory: Path) -> Iterator[tuple[Cache, FaultyFiles]]:
    """A cache that holds something, its directories made, and the double that sees what is done there."""
    for number in range(3):
        cache.add_module(ModuleSource(adder(f"f{number}", number)))
    files = FaultyFiles(directory, count=lambda _: True)
    with cache_on(files) as watched:
        yield watched, files


def names_of(files: FaultyFiles) -> list[str]:
    return [operation.name for operation in files.operations]


def test_a_miss_looks_its_name_up_once(counted: tuple[Cache, FaultyFiles], monkeypatch: pytest.MonkeyPatch) -> None:
    cache, files = counted
    cache.get_target("f0")
    looked = []
    find = Index.find_numbered

    def counting(self: Index, key: bytes) -> Any:
        looked.append(key)
        return find(self, key)

    monkeypatch.setattr(Index, "find_numbered", counting)
    files.reset()
    target = cache.get_or_compile("new", lambda: ModuleSource(adder("new", 5)))
    assert target(1) == 6
    assert len(looked) <= LOOK_UPS_OF_A_MISS
    assert names_of(files).count("listdir") <= LISTINGS_OF_A_MISS


def test_an_addition_renames_what_it_publishes_and_nothing_else(counted: tuple[Cache, FaultyFiles]) -> None:
    cache, files = counted
    cache.add_module(ModuleSource(adder("first", 1)))
    for number in range(3):
        before = len(list(Path(cache.path).rglob("*.ccm")))
        files.reset()
        cache.add_module(ModuleSource(adder(f"next{number}", number)))
        assert len(list(Path(cache.path).rglob("*.ccm"))) == before + 1
        done = [o.target for o in files.operations if o.name == "rename" and (Path(cache.path) / o.target).exists()]
        assert len(set(done)) <= RENAMES_OF_AN_ADDITION, done


def test_an_addition_looks_at_the_path_of_its_root_for_listings_only(counted: tuple[Cache, FaultyFiles]) -> None:
    """An addition opens the root again before it publishes. Later operations of the addition act in the opened directory."""
    cache, files = counted
    cache.add_module(ModuleSource(adder("first", 1)))
    files.reset()
    cache.add_module(ModuleSource(adder("next", 2)))
    assert len([o for o in files.operations if o.name == "stat" and not o.path]) <= LOOKS_AT_THE_ROOT_OF_AN_ADDITION


def test_a_merge_looks_for_lists_of_modules_once(counted: tuple[Cache, FaultyFiles]) -> None:
    """Small segments have no lists."""
    cache, files = counted
    for number in range(12):
        cache.add_module(ModuleSource(adder(f"next{number}", number)))
    merges = [o for o in files.operations if o.name == "rename" and o.target.startswith("index-v1/01-")]
    looks = [o for o in files.operations if o.path.startswith(MODULE_LISTS.directory)]
    assert merges
    assert len(looks) <= 2 * len(merges)


@pytest.mark.parametrize("removes", [True, False])
def test_a_prune_reads_each_statistics_file_once(cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch, removes: bool) -> None:
    for number in range(6):
        cache.add_module(ModuleSource(adder(f"f{number}", number)))
        cache.get_target(f"f{number}")
    cache.stats()  # what is counted so far is in a file of its own
    cache.close()
    decoded = []

    def counting(data: bytes) -> StatsFile:
        decoded.append(data)
        return decode_stats(data)

    monkeypatch.setattr("compcache.usage.ledger.decode_stats", counting)
    files = FaultyFiles(directory, count=lambda operation: operation.name in ("listdir", "rename"))
    with cache_on(files) as watched:
        report = watched.prune(PrunePolicy(max_modules=3 if removes else 6, unused_for="1000d"))
    assert len(report.removed) == (3 if removes else 0)
    assert len(decoded) == len(set(decoded)) > 0
    listed = [o for o in files.operations if o.name == "listdir" and o.path.rstrip("/").endswith("stats")]
    assert len(listed) <= LISTINGS_OF_STATISTICS, files.operations
