"""Libraries of many files beside the same sources that a linker made a shared object of (``-shared -Wl,-Bsymbolic``).

Each is added as a group, as modules of their own, and some as a build system compiles them (``compcache add --compile-commands``).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import subprocess
from typing import TYPE_CHECKING

import pytest
from cli_process import command, environment
from helpers import PACKAGE_ROOT
from hosts import host_like, on_host

from compcache import Cache, ModuleSource
from compcache.formats.host import platform_name

from . import linked_libraries
from .conftest import unavailable
from .programs import Places, UnavailableError
from .test_cpus import QEMU, run_on

if TYPE_CHECKING:
    from pathlib import Path

    from .linked_libraries import Library

#: zstd's hooks for tracing are weak references, null where nothing defines them.
_HOOKS = pytest.mark.filterwarnings("ignore:weak references to .ZSTD_trace")
pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800), _HOOKS]

on_x86_64 = pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")

#: How many answers of each are compared, at least.
LIBRARIES = {"lapack": 400, "libsodium": 900, "sqlite": 250, "blosc2": 900, "bcftools": 700, "expressions": 500}


@pytest.fixture(scope="module", params=LIBRARIES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def places(peer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Places:
    return Places(peer_dir, tmp_path_factory.mktemp("linked"), debug=False)


@pytest.fixture(scope="module")
def library(name: str, places: Places) -> Library:
    try:
        made: Library = getattr(linked_libraries, name)(places)
        made.ordinary(places)
    except UnavailableError as error:
        unavailable(str(error))
    return made


@pytest.fixture(scope="module")
def expected(name: str, library: Library, places: Places) -> list[object]:
    """What the shared object answers."""
    answers = _answers(library, library.in_shared_object(library.ordinary(places)))
    assert len(answers) > LIBRARIES[name]
    assert len(set(map(repr, answers))) > len(answers) / 4, "the inputs make no difference"
    return answers


def _answers(library: Library, call: linked_libraries.Call) -> list[object]:
    return library.answers(call, random.Random(7))


def _differences(answers: list[object], expected: list[object]) -> list[tuple[object, object]]:
    """Not assert's own comparison, which would show all of them."""
    return [pair for pair in zip(answers, expected, strict=True) if pair[0] != pair[1]][:1]


def test_a_group_answers_what_the_shared_object_answers(library: Library, places: Places, expected: list[object], directory: Path) -> None:
    with Cache(directory) as cache:
        module_ids = cache.add_modules(library.sources(places), group=library.name)
        assert len(set(module_ids)) == 1
    with Cache(directory) as cache:
        assert _differences(_answers(library, library.in_cache(cache)), expected) == []
        assert cache.check().findings == ()


#: `test_programs.py` has re2 and abseil in modules of their own.
@pytest.mark.parametrize("name", [name for name in LIBRARIES if name != "expressions"], indirect=True, scope="module")
def test_modules_of_their_own_answer_what_the_shared_object_answers(
    library: Library, places: Places, expected: list[object], directory: Path
) -> None:
    with Cache(directory) as cache:
        module_ids = cache.add_modules(library.sources(places))
        assert len(set(module_ids)) == len(module_ids)
    with Cache(directory) as cache:
        assert _differences(_answers(library, library.in_cache(cache)), expected) == []
        assert cache.check().findings == ()


#: Without a flag for a CPU, compilers compile for processors of x86-64 without fused instructions.
_FUSED_WHERE_POSSIBLE = pytest.param("lapack", ("-ffp-contract=fast",), marks=on_x86_64)


@pytest.mark.parametrize(("made", "flags"), [("libsodium", ()), ("blosc2", ()), ("lapack", ()), _FUSED_WHERE_POSSIBLE])
def test_modules_linked_as_a_set_answer_what_the_shared_object_answers(
    made: str, flags: tuple[str, ...], places: Places, directory: Path
) -> None:
    """With their state, in as few images as there are run times beside them."""
    try:
        library: Library = getattr(linked_libraries, made)(places, *flags)
        expected = _answers(library, library.in_shared_object(library.ordinary(places)))
    except UnavailableError as error:
        unavailable(str(error))
    with Cache(directory) as cache:
        cache.add_modules(library.sources(places))
        (closure,) = cache.link(library.functions, into=made).linked
        assert set(closure.functions) == set(library.functions)
    with Cache(directory) as cache:
        held = [cache.get_target(name) for name in library.functions]
        assert len(cache.loaded().modules) <= (2 if made == "lapack" else 1)
        assert _differences(_answers(library, library.in_cache(cache)), expected) == []
        del held


@pytest.mark.parametrize("way", ["modules", "group", "group in the other order", "archive", "archive in the other order", "set"])
def test_what_flags_permit_in_one_file_is_not_assumed_in_others(way: str, places: Places, directory: Path, tmp_path: Path) -> None:
    """`-fno-math-errno`, attributes of declarations."""
    try:
        library = linked_libraries.promises(places)
        expected = _answers(library, library.in_shared_object(library.ordinary(places)))
    except UnavailableError as error:
        unavailable(str(error))
    step = -1 if "other" in way else 1
    with Cache(directory) as cache:
        if way.startswith("archive"):
            for number, code in enumerate(library.bitcode(places)[::step]):
                (tmp_path / f"{number}.o").write_bytes(code)
                subprocess.run(["ar", "qcS", "all.a", f"{number}.o"], cwd=tmp_path, check=True, capture_output=True)
            cache.add_module(ModuleSource((tmp_path / "all.a").read_bytes(), libraries=library.libraries))
        else:
            cache.add_modules(library.sources(places, optimize=2)[::step], group="promises" if way.startswith("group") else None)
        if way == "set":
            assert len(cache.link(library.functions, into="promises").linked) == 1
    with Cache(directory) as cache:
        assert _differences(_answers(library, library.in_cache(cache)), expected) == []


# ------------------------------------------------------------ flags of each file, and processors


def _add(folder: Path, *arguments: object) -> str:
    """What ``compcache add`` prints, for as long as compilers take."""
    words = command("--dir", folder / "cache", "add", *arguments)
    done = subprocess.run(words, env=environment({}), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sodium(places: Places) -> Library:
    try:
        return linked_libraries.libsodium(places)
    except UnavailableError as error:
        unavailable(str(error))


@pytest.fixture(scope="module")
def answers_of_sodium(sodium: Library, places: Places) -> list[object]:
    return _answers(sodium, sodium.in_shared_object(sodium.ordinary(places)))


def test_the_command_compiles_each_file_as_the_build_does(
    sodium: Library, answers_of_sodium: list[object], places: Places, tmp_path: Path
) -> None:
    """`compcache add --compile-commands`: flags for AES, AVX2 and AVX-512 are those of single files."""
    database = sodium.compile_commands(places)
    done = _add(tmp_path, "--name", "sodium", "--library", "pthread", "--json", "--compile-commands", database)
    assert len({row["module_id"] for row in json.loads(done)}) == 1
    with Cache(tmp_path / "cache") as cache:
        assert _differences(_answers(sodium, sodium.in_cache(cache)), answers_of_sodium) == []


@pytest.fixture(scope="module", params=["group", "modules"])
def for_all_processors(request: pytest.FixtureRequest, sodium: Library, places: Places, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with libsodium for every x86-64."""
    directory = tmp_path_factory.mktemp("sodium")
    with Cache(directory) as cache:
        cache.add_modules(sodium.sources(places, cpu="x86-64"), group="sodium" if request.param == "group" else None)
    return directory


@pytest.mark.parametrize("cpu", [None, pytest.param("haswell", marks=on_x86_64)])
def test_products_are_fused_with_sums_for_the_processor_that_the_compiler_names(cpu: str | None, places: Places, directory: Path) -> None:
    """In code that permits it. Not by `Cache.link`, which optimizes again and may fuse others (`docs/linking.md`)."""
    try:
        library = linked_libraries.lapack(places, "-march=native")
        expected = _answers(library, library.in_shared_object(library.ordinary(places)))
    except UnavailableError as error:
        unavailable(str(error))
    with Cache(directory) as cache:
        cache.add_modules(library.sources(places, cpu=cpu), group="fused")
    with Cache(directory) as cache:
        assert _differences(_answers(library, library.in_cache(cache)), expected) == []


@on_x86_64
@pytest.mark.parametrize("cpu", ["haswell", "nehalem"])
def test_code_that_asks_the_processor_loads_on_one_that_lacks_what_it_asks_for(for_all_processors: Path, sodium: Library, cpu: str) -> None:
    """The processor is this one, whatever the cache takes it for: what it would be asked to do there, it is not asked to do here."""
    sodium = sodium._replace(functions={name: types for name, types in sodium.functions.items() if name != "crypto_pwhash"})
    with on_host(Cache(for_all_processors, retarget=False), host_like(cpu)) as cache:
        call = sodium.in_cache(cache)
        assert call("sodium_init") == 0
        text, out = ctypes.create_string_buffer(b"abc", 3), ctypes.create_string_buffer(32)
        assert call("crypto_hash_sha256", ctypes.addressof(out), ctypes.addressof(text), 3) == 0
        assert out.raw == hashlib.sha256(b"abc").digest()


@on_x86_64
@pytest.mark.parametrize("cpu", ["Haswell", "Nehalem"])
def test_emulated_processors_answer_what_the_shared_object_answers(
    for_all_processors: Path, answers_of_sodium: list[object], cpu: str
) -> None:
    if QEMU is None:
        unavailable("qemu-x86_64 is not installed")
    script = f"""
import random, sys
sys.path.insert(0, {str(PACKAGE_ROOT / "tests")!r})
from compcache import Cache, ModuleSource
from peer import linked_libraries
library = linked_libraries.SODIUM
with Cache(directory, retarget=False) as cache:
    result = library.answers(library.in_cache(cache), random.Random(7))
"""
    assert _differences(run_on(cpu, for_all_processors, script), answers_of_sodium) == []


# ------------------------------------------------------------------------- crates of Rust

_COUNTER = """
use std::sync::{Mutex, atomic::{AtomicI64, Ordering::SeqCst}};
pub static COUNT: AtomicI64 = AtomicI64::new(0);
pub mod log {
    pub static LINES: super::Mutex<Vec<String>> = super::Mutex::new(Vec::new());
    pub fn say(text: &str) -> usize { let mut lines = LINES.lock().unwrap(); lines.push(text.to_string()); lines.len() }
}
pub mod threads {
    use std::cell::Cell;
    thread_local!(pub static OWN: Cell<i64> = const { Cell::new(40) });
    pub fn step() -> i64 { OWN.with(|own| { own.set(own.get() + 1); own.get() }) }
}
pub trait Shape { fn area(&self) -> f64; }
pub struct Square(pub f64);
impl Shape for Square { fn area(&self) -> f64 { self.0 * self.0 } }
pub fn next() -> i64 { COUNT.fetch_add(1, SeqCst) + 1 }
"""
_FIRST = """
use std::sync::atomic::Ordering::SeqCst;
#[no_mangle] pub extern "C" fn first_next() -> i64 { counter::next() }
#[no_mangle] pub extern "C" fn first_say() -> i64 { counter::log::say("first") as i64 }
#[no_mangle] pub extern "C" fn first_step() -> i64 { counter::threads::step() }
#[no_mangle] pub extern "C" fn first_hook() -> i64 {
    std::panic::set_hook(Box::new(|_| { counter::COUNT.fetch_add(1000, SeqCst); }));
    0
}
#[no_mangle] pub fn first_panics(number: i64) -> Box<dyn counter::Shape> {
    if number % 2 == 0 { panic!("even {number}") }
    if number % 3 == 0 { std::panic::panic_any(number * 100) }
    Box::new(counter::Square(number as f64))
}
#[no_mangle] pub fn first_thread() -> String { std::thread::current().name().unwrap_or("?").to_string() }
"""
_SECOND = """
extern "Rust" { fn first_panics(number: i64) -> Box<dyn counter::Shape>; fn first_thread() -> String; }
#[no_mangle] pub extern "C" fn second_next() -> i64 { counter::next() }
#[no_mangle] pub extern "C" fn second_say() -> i64 {
    counter::log::say("second");
    counter::log::LINES.lock().unwrap().join(",").len() as i64
}
#[no_mangle] pub extern "C" fn second_step() -> i64 {
    counter::threads::step() * 1000 + std::thread::spawn(counter::threads::step).join().unwrap()
}
#[no_mangle] pub extern "C" fn second_catches(number: i64) -> i64 {
    match std::panic::catch_unwind(|| unsafe { first_panics(number) }.area() as i64) {
        Ok(area) => area,
        Err(found) => match found.downcast::<String>() {
            Ok(text) => -(text.len() as i64),
            Err(found) => -*found.downcast::<i64>().unwrap_or(Box::new(9999)),
        },
    }
}
#[no_mangle] pub extern "C" fn variable_aliases() -> i64 {
    let made = std::thread::Builder::new().name("named".to_string()).spawn(|| unsafe { first_thread() }).unwrap();
    made.join().unwrap().len() as i64
}
"""
_CRATES = {"counter": _COUNTER, "first": _FIRST, "second": _SECOND, "all": "pub use first::*; pub use second::*;\n"}
_CALLS: list[tuple[str, list[int]]] = [
    *((name, []) for name in ("first_next", "second_next", "first_say", "second_say", "first_step", "second_step") * 2),
    *((name, []) for name in ("first_hook", "variable_aliases")),
    *(("second_catches", [number]) for number in range(1, 200)),
    ("first_next", []),
]


@pytest.mark.parametrize("files", [("counter", "first", "second"), ("first", "second")], ids=["the-crates-file", "its-archive-alone"])
def test_crates_that_are_added_together_share_their_state(places: Places, tmp_path: Path, files: tuple[str, ...]) -> None:
    """Static variables of a crate of several codegen units, thread-local ones, panics and hooks: as in a `cdylib`."""
    places = places._replace(out=tmp_path)
    for name, text in _CRATES.items():
        (tmp_path / f"{name}.rs").write_text(text)
    try:
        library = ctypes.CDLL(str(_cdylib(places)))
    except UnavailableError as error:
        unavailable(str(error))
    expected = [getattr(library, name)(*numbers) for name, numbers in _CALLS]
    flags = (*_RUST, "--extern", f"counter={tmp_path / 'libcounter.rlib'}")
    _add(tmp_path, *(tmp_path / f"{name}.rs" for name in files), "--", *flags)
    with Cache(tmp_path / "cache") as cache:
        targets = {name: cache.get_target(name) for name, _ in _CALLS}
        assert [targets[name](*numbers) for name, numbers in _CALLS] == expected
    assert expected[0:2] == [1, 2]


_RUST = ("--edition=2021", "-Copt-level=2")


def _cdylib(places: Places) -> Path:
    """The shared object that rustc makes of the crates."""
    made = ["-L", str(places.out)]
    for name in ("counter", "first", "second"):
        kind = ("--crate-type=rlib", "-Ccodegen-units=4")
        path = places.made(f"lib{name}.rlib", "rustc", places.out / f"{name}.rs", *_RUST, *kind, *made)
        made += ["--extern", f"{name}={path}"]
    return places.made("all.so", "rustc", places.out / "all.rs", *_RUST, "--crate-type=cdylib", *made)
