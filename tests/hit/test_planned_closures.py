"""Closures of several modules that a load has planned, and what others make of the file: the same values, or a plan of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import warnings
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT, adder, caller, flip_byte, run_fresh, sum_of

from compcache import Cache, CacheWarning, CompcacheError, ModuleSource, UndefinedSymbolError
from compcache.directory.places import CLOSURES
from compcache.formats.footer import FOOTER_SIZE, decode_footer
from compcache.formats.index import MODULE, Stamp
from compcache.hit.closures import HEAD, MAGIC, planned, seal
from compcache.hit.closures.planned import FUNCTION, NO_STATE
from compcache.publish.removal import remove_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = b"the key of the owner"
COUNTER = """
@counter = global i64 100
define i64 @count(i64 %x) {
  %v = load i64, ptr @counter
  %n = add i64 %v, %x
  store i64 %n, ptr @counter
  ret i64 %n
}
"""
READER = """
@counter = external global i64
declare i64 @count(i64)
define i64 @twice(i64 %x) {
  %a = call i64 @count(i64 %x)
  %v = load i64, ptr @counter
  %r = add i64 %a, %v
  ret i64 %r
}
"""
#: What `top` returns of 1 in a process that has just loaded it.
TOP = 2 * 101 + 6
SCRIPT = """
from compcache import Cache
with Cache(directory) as cache:
    result = cache.get_target("top")(1), "compcache.hit.plan" in sys.modules
"""


def fill(directory: Path, **settings: object) -> None:
    """Four modules, of which `top` needs all, and one closure."""
    with Cache(directory, **settings) as cache:  # type: ignore[arg-type]
        cache.add_modules(
            [ModuleSource(COUNTER), ModuleSource(READER), ModuleSource(adder("five", 5)), ModuleSource(sum_of("top", ["twice", "five"]))]
        )
        assert cache.get_target("top")(1) == TOP


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("planned") / "cache"
    fill(directory)
    return directory


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A directory that a test may change."""
    fill(tmp_path / "own")
    return tmp_path / "own"


def plans(directory: Path) -> bool:
    """Whether a new cache object has to plan the load of `top`, which returns what it should: then it writes the file anew."""
    before = closure(directory).stat().st_ino
    with Cache(directory) as cache:
        assert cache.get_target("top")(1) == TOP
    return closure(directory).stat().st_ino != before


def closure(directory: Path) -> Path:
    (path,) = (directory / CLOSURES.directory).iterdir()
    return path


def rewrite(path: Path, content: bytes, key: bytes | None = None) -> None:
    path.write_bytes(MAGIC + seal(content, path.name, key) + content)


def content_of(path: Path) -> bytes:
    return path.read_bytes()[len(MAGIC) + 16 :]


def test_another_process_need_not_plan(filled: Path) -> None:
    before = closure(filled).stat()
    assert run_fresh(filled, SCRIPT) == (TOP, False)
    assert closure(filled).stat().st_ino == before.st_ino


def test_variables_are_shared_and_bound_once(filled: Path) -> None:
    assert not plans(filled)
    with Cache(filled) as cache:
        top, count, twice = cache.get_target("top"), cache.get_target("count"), cache.get_target("twice")
        assert (count(1), twice(1), top(1)) == (101, 204, 2 * 103 + 6)
        assert len(cache._loader.loaded_modules()) == 4
        assert cache.unload("twice") > 0
        assert cache.get_target("twice")(0) == 2 * 103


def test_what_is_damaged_or_old_is_planned_again(filled: Path) -> None:
    path = closure(filled)
    whole = path.read_bytes()
    changed = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(3, len(whole), 97)]
    for damaged in (b"", whole[:7], whole[:40], whole[:-1], whole + b"\0", *changed):
        path.write_bytes(damaged)
        assert plans(filled)
        assert path.read_bytes() == whole
    assert not plans(filled)


def _parts(content: bytes) -> tuple[list[bytes], list[tuple[int, ...]], bytes]:
    """The module entries, the functions (number of the module, offset) and the texts."""
    _, modules, functions, texts = HEAD.unpack_from(content)
    first, last = HEAD.size + modules * MODULE.size, len(content) - texts
    assert last - first == functions * FUNCTION.size
    entries = [content[at : at + MODULE.size] for at in range(HEAD.size, first, MODULE.size)]
    return entries, list(FUNCTION.iter_unpack(content[first:last])), content[last:]


def _with(content: bytes, change: Callable[[list[tuple[int, ...]]], object], state: bytes = b"") -> bytes:
    """The content after a change of its functions."""
    entries, rows, texts = _parts(content)
    change(rows)
    head = HEAD.pack(state or content[:16], len(entries), len(rows), len(texts))
    return b"".join([head, *entries, *[FUNCTION.pack(*row) for row in rows], texts])


FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "module": lambda content: _with(content, lambda rows: rows.append((77, rows.pop()[1]))),
    "another module": lambda content: _with(content, lambda rows: rows.append((0, rows.pop()[1]))),
    "offset": lambda content: _with(content, lambda rows: rows.append((rows.pop()[0], 1 << 20))),
    "no function": lambda content: _with(content, lambda rows: rows.append((rows.pop()[0], 0))),
    "twice": lambda content: _with(content, lambda rows: rows.append(rows[0])),
    "one for another": lambda content: _with(content, lambda rows: rows.extend([rows.pop(), rows[0]][1:])),
    "one missing": lambda content: _with(content, lambda rows: rows.pop()),
    "none": lambda content: _with(content, lambda rows: rows.clear()),
    "state": lambda content: bytes([1]) * 16 + content[16:],
    "short": lambda content: content[: HEAD.size - 1],
    "nothing": lambda _: b"",
    "numbers": lambda content: content[:16] + b"\xff" * 12 + content[28:],
    "more": lambda content: content + bytes(4),
    "stamps": lambda content: content[: HEAD.size + 16] + bytes(32) + content[HEAD.size + 48 :],
    "root": lambda content: content[: HEAD.size] + content[HEAD.size + 112 : HEAD.size + 224] + content[HEAD.size + 112 :],
}


@pytest.mark.parametrize("what", FORGERIES)
def test_what_does_not_fit_is_planned_again(filled: Path, what: str) -> None:
    path = closure(filled)
    whole = path.read_bytes()
    rewrite(path, FORGERIES[what](content_of(path)))
    assert plans(filled) == (what != "stamps")  # a stamp that does not fit costs a look-up, nothing else
    assert not plans(filled)
    if what == "stamps":
        path.write_bytes(whole)
    assert path.read_bytes() == whole


#: Loads `top` in a child for each change, so that a crash has an author; the loads that did not give what they should.
FUZZ = """
import os, warnings
import compcache.hit.plan, compcache.hit.closures.remember, compcache.publish.atomic_file
from compcache import Cache
from compcache.hit.closures import MAGIC, seal
path, content = {path!r}, {content!r}
def load():
    warnings.simplefilter("ignore")
    with Cache(directory) as cache:
        return cache.get_target("top")(1)
wrong = []
for at in {places!r}:
    for change in {changes!r}:
        changed = content[:at] + bytes([content[at] ^ change]) + content[at + 1 :]
        with open(path, "wb") as file:
            file.write(MAGIC + seal(changed, os.path.basename(path), None) + changed)
        child = os.fork()
        if not child:
            try:
                os._exit(0 if load() == {top} else 3)
            except BaseException as error:
                sys.stderr.write(repr(error))
                os._exit(4)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            wrong.append((at, change, status))
result = wrong
"""


def fuzz(directory: Path, step: int, changes: tuple[int, ...]) -> list[tuple[int, int, int]]:
    path = closure(directory)
    content = content_of(path)
    found: list[tuple[int, int, int]] = []
    for first in range(0, len(content), 40 * step):
        places = list(range(first, min(first + 40 * step, len(content)), step))
        found += run_fresh(directory, FUZZ.format(path=str(path), content=content, places=places, changes=changes, top=TOP))
    return found


@pytest.mark.slow
def test_no_changed_byte_behind_a_right_seal_leads_anywhere_else(own: Path) -> None:
    assert fuzz(own, 11, (1,)) == []


@pytest.mark.fault
@pytest.mark.timeout(900)
@pytest.mark.parametrize("changes", [(1, 2), (4, 8), (16, 32), (64, 128), (0xFF, 3)])
def test_no_change_of_any_byte_behind_a_right_seal_leads_anywhere_else(own: Path, changes: tuple[int, ...]) -> None:
    assert fuzz(own, 1, changes) == []


def test_a_function_of_another_type_is_not_bound(tmp_path: Path) -> None:
    """A record that has the name which is wanted need not be of the function that is."""
    other = "define double @five(double %x) {\n  ret double %x\n}\n"
    fill(tmp_path / "cache")
    with Cache(tmp_path / "cache") as cache:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrong = cache.add_module(ModuleSource(other, functions={"five": "f64(f64)"}))
        path = closure(tmp_path / "cache")
        content = content_of(path)
        places = {module_id.hex(): offset for module_id, offset in cache._store.find_all("five")}
        entries, rows, texts = _parts(content)
        (number,) = [number for number, entry in enumerate(entries) if entry[:16].hex() in places]
        with cache._store.open_module(bytes.fromhex(wrong)) as file:
            entries[number] = cache._store.entry_of(file, Stamp.of(os.fstat(file.descriptor))).encode()
    changed = [FUNCTION.pack(module, places[wrong] if module == number else offset) for module, offset in rows]
    rewrite(path, b"".join([HEAD.pack(NO_STATE, len(entries), len(rows), len(texts)), *entries, *changed, texts]))
    with Cache(tmp_path / "cache") as cache:
        assert cache.get_target("top")(1) == TOP


def test_a_module_that_is_gone_is_not_missed(own: Path) -> None:
    with Cache(own) as cache:
        other = adder("five", 2).replace("ret i64 %y", "%z = add i64 %y, 3\n  ret i64 %z")
        cache.add_module(ModuleSource(other, optimize=0))
        among = planned.modules_of(closure(own).read_bytes())
        (first, *_) = [module_id for module_id, _ in cache._store.find("five") if module_id in among]
        remove_file(cache._store, first)  # behind the back of the index
    assert plans(own)
    assert not plans(own)


def test_removal_takes_the_closure_along(own: Path) -> None:
    with Cache(own) as cache:
        cache.remove("five", force=True)
        assert list((own / CLOSURES.directory).iterdir()) == []
        cache.add_module(ModuleSource(adder("five", 6)))
        assert cache.get_target("top")(1) == TOP + 1


def test_who_has_no_key_can_write_nothing_that_is_believed(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    fill(directory, signing_key=KEY)
    path = closure(directory)
    whole = path.read_bytes()
    for key in (None, b"another key"):
        rewrite(path, FORGERIES["stamps"](content_of(path)), key)
        with Cache(directory, signing_key=KEY) as cache:
            assert cache.get_target("top")(1) == TOP
        assert path.read_bytes() == whole


def test_a_closure_under_another_name_is_none(own: Path) -> None:
    path = closure(own)
    with Cache(own) as cache:
        cache.add_modules([ModuleSource(caller("middle", "five")), ModuleSource(caller("another", "middle"))])
        cache.get_target("another")
    (other,) = {*path.parent.iterdir()} - {path}
    other.replace(path)
    assert plans(own)
    assert not plans(own)


def test_a_module_that_was_changed_after_the_plan_is_verified_again(own: Path) -> None:
    """The closure has the stamp of each module as it was: it vouches for no other state of the file."""
    with Cache(own) as cache:
        ((module_id, _),) = cache._store.find("five")
    path = own / "modules-v1" / module_id.hex()[:2] / f"{module_id.hex()}.ccm"
    data = path.read_bytes()
    flip_byte(path, decode_footer(data[-FOOTER_SIZE:], len(data)).content)  # the notes, which no load reads
    with Cache(own) as cache, pytest.warns(CacheWarning, match="is damaged"), pytest.raises(UndefinedSymbolError, match="'five'"):
        cache.get_target("top")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_closure_of_another_user_is_none(own: Path) -> None:
    os.chown(closure(own), 54321, 54321)
    assert plans(own)
    assert not plans(own)


def test_a_closure_is_of_the_function_that_its_name_says(tmp_path: Path) -> None:
    with Cache(tmp_path, trust=True) as cache:
        cache.add_modules([ModuleSource(adder("one", 1)), ModuleSource(adder("two", 2))])
        cache.add_module(ModuleSource(sum_of("a", ["one", "two"]) + "\n".join(sum_of("b", ["one", "two"]).splitlines()[2:])))
        cache.get_target("a")
    of_a = closure(tmp_path)
    kept = of_a.read_bytes()
    with Cache(tmp_path, trust=True) as cache:
        cache.get_target("b")
    (of_b,) = {*of_a.parent.iterdir()} - {of_a}
    of_b.write_bytes(kept)
    with Cache(tmp_path, trust=True) as cache:
        assert cache.get_target("b")(1) == 5
    assert of_b.read_bytes() != kept


def test_closures_of_two_functions_of_a_module_are_told_apart(tmp_path: Path) -> None:
    """Each binds what its own function needs, and leaves the rest of the module unbound."""
    with Cache(tmp_path, trust=True) as cache:
        cache.add_modules([ModuleSource(adder(name, number)) for name, number in (("a1", 1), ("a2", 2), ("b1", 10), ("b2", 20))])
        cache.add_module(ModuleSource(sum_of("a", ["a1", "a2"]) + sum_of("b", ["b1", "b2"])))
    for name, value in (("a", 3 + 2), ("b", 30 + 2)):
        with Cache(tmp_path, trust=True) as cache:
            assert cache.get_target(name)(1) == value
    first, second = (tmp_path / CLOSURES.directory).iterdir()
    first.rename(tmp_path / "third")
    second.rename(first)
    (tmp_path / "third").rename(second)
    script = "from compcache import Cache\nwith Cache(directory, trust=True) as cache:\n    result = cache.get_target({!r})(1)"
    assert [run_fresh(tmp_path, script.format(name)) for name in "ab"] == [5, 32]


def test_nothing_is_written_where_nothing_may_be(filled: Path, tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    shutil.copytree(filled, directory)
    shutil.rmtree(directory / CLOSURES.directory)
    with Cache(directory, readonly=True) as cache:
        assert cache.get_target("top")(1) == TOP
    with Cache(tmp_path / "above", layers=[directory]) as cache:
        assert cache.get_target("top")(1) == TOP
    assert not (directory / CLOSURES.directory).exists()
    assert not (tmp_path / "above" / CLOSURES.directory).exists()


def test_globals_that_are_decoded_have_no_closure(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache:
        source = "@g = external global i64\ndefine i64 @h(i64 %x) {\n  %v = load i64, ptr @g\n  ret i64 %v\n}\n"
        cache.add_modules([ModuleSource(source, globals={"g": 7}), ModuleSource(caller("i", "h")), ModuleSource(caller("j", "i"))])
        assert cache.get_target("j")(1) == 7
    assert not (tmp_path / "cache" / CLOSURES.directory).exists()


def test_threads_that_load_at_once_share_modules(filled: Path) -> None:
    with Cache(filled) as cache:
        gate = threading.Barrier(4)
        found = []

        def load(name: str) -> None:
            gate.wait()
            found.append(cache.get_target(name))

        threads = [threading.Thread(target=load, args=(name,)) for name in ("top", "twice", "count", "top")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert cache.get_target("count")(0) == 100
        assert cache.get_target("top")(1) == TOP
        assert cache.get_target("count")(0) == 101
        assert len(cache._loader.loaded_modules()) == 4


def test_processes_that_plan_at_once_leave_one_whole_file(filled: Path) -> None:
    path = closure(filled)
    whole = path.read_bytes()
    path.write_bytes(b"damaged")
    script = (
        f"import sys; sys.path.insert(0, {str(PACKAGE_ROOT)!r})\nfrom compcache import Cache\nfor _ in range(5):\n"
        f"  with Cache({str(filled)!r}) as c: assert c.get_target('top')(1) == {TOP}"
    )
    running = [subprocess.Popen([sys.executable, "-I", "-c", script]) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert path.read_bytes() == whole
    assert not plans(filled)


#: Two modules that define one variable, which is that of the first that is bound.
SHARING = """
@shared = linkonce_odr global i64 100
define i64 @{name}(i64 %x) {{
  %v = load i64, ptr @shared
  %r = add i64 %v, %x
  store i64 %r, ptr @shared
  ret i64 %r
}}
"""
UNLOADED = {
    "imported": ([COUNTER, READER, adder("five", 5), sum_of("top", ["twice", "five"])], ["count", "twice", "five", "top"]),
    "merged": (
        [SHARING.format(name="first"), SHARING.format(name="second"), sum_of("top", ["first", "second"])],
        ["first", "second", "top"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("planned_before", [True, False])
@pytest.mark.parametrize("kind", UNLOADED)
def test_variables_of_unloaded_modules_that_are_in_use_are_not_mapped_twice(tmp_path: Path, kind: str, planned_before: bool) -> None:
    modules, names = UNLOADED[kind]
    found: list[object] = []

    def load_again(cache: Cache) -> None:
        try:
            found.append(cache.get_target("top"))
        except CompcacheError as error:
            found.append(error)

    with Cache(tmp_path / "cache") as cache:
        cache.add_modules([ModuleSource(text) for text in modules])
        first = cache.get_target("top")(1)
    with Cache(tmp_path / "cache") as cache:
        top = cache.get_target("top")
        assert top(1) == first
        in_use = cache._loader.loaded_modules()  # as by a call that has not returned
        for name in names:
            cache.unload(name)
        if not planned_before:
            shutil.rmtree(tmp_path / "cache" / CLOSURES.directory)
        thread = threading.Thread(target=load_again, args=(cache,), daemon=True)
        thread.start()
        thread.join(20)
        assert len(found) == 1, "the load does not end"
        assert isinstance(found[0], UndefinedSymbolError)
        assert "was unloaded, but code that uses its variable" in str(found[0])
        found.clear()
        in_use.clear()
        del top
        assert cache.get_target("top")(1) == first


LIBRARY = """
import ctypes, warnings
import llvmlite.binding as llvm
from compcache import Cache, ModuleSource
from compcache.images.linkers.find import find_linker
from compcache.images.linkers.link import link_shared
llvm.initialize_native_target(); llvm.initialize_native_asmprinter()
machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="default")
obj = machine.emit_object(llvm.parse_assembly({native!r}))
with open({library!r}, "wb") as file:
    file.write(link_shared(find_linker(), [obj], soname="mine.so"))
ctypes.CDLL({library!r}, ctypes.RTLD_GLOBAL)
warnings.simplefilter("ignore")
with Cache(directory, trust=True) as cache:
    cache.add_module(ModuleSource({other!r}))
    cache.add_module(ModuleSource({caller!r}))  # it is the newest
    cache.add_modules([ModuleSource({six!r}), ModuleSource({top!r})])
"""
LOAD = """
import ctypes
from compcache import Cache
if {library!r}:
    ctypes.CDLL({library!r}, ctypes.RTLD_GLOBAL)
with Cache(directory, trust=True) as cache:
    result = cache.get_target("top")(1)
"""


def test_what_one_process_had_to_pass_over_another_need_not(tmp_path: Path) -> None:
    directory, library = tmp_path / "cache", str(tmp_path / "mine.so")
    run_fresh(
        directory,
        LIBRARY.format(
            native=adder("only_there", 1000),
            library=library,
            other=adder("five", 5),
            caller=caller("five", "only_there"),
            six=adder("six", 6),
            top=sum_of("top", ["five", "six"]),
        )
        + "result = None\n",
    )
    assert run_fresh(directory, LOAD.format(library="")) == 1 + 5 + 7
    assert run_fresh(directory, LOAD.format(library=library)) == 1001 + 7
    assert closure(directory)
    assert run_fresh(directory, LOAD.format(library="")) == 1 + 5 + 7
    assert run_fresh(directory, LOAD.format(library=library)) == 1001 + 7


_LOG = """
@noted = global i64 0
define i64 @note(i64 %digit) {
  %old = load i64, ptr @noted
  %shifted = mul i64 %old, 10
  %new = add i64 %shifted, %digit
  store i64 %new, ptr @noted
  ret i64 %new
}
define i64 @look(i64 %x) {
  %v = load i64, ptr @noted
  ret i64 %v
}
"""


def _started(digit: int, imported: str) -> str:
    """A module with a constructor and a destructor that use what it imports, and a function `f` with its digit."""
    return f"""
declare i64 @note(i64)
declare i64 @{imported}(i64)
@llvm.global_ctors = appending global [1 x {{ i32, ptr, ptr }}] [{{ i32, ptr, ptr }} {{ i32 65535, ptr @begin, ptr null }}]
define internal void @begin() {{
  %x = call i64 @note(i64 {digit})
  ret void
}}
define i64 @f{digit}(i64 %x) {{
  %y = call i64 @{imported}(i64 0)
  ret i64 %y
}}
"""


def test_constructors_that_wait_run_once_in_the_order_that_was_planned(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.add_modules([ModuleSource(code) for code in (_started(1, "f2"), _started(2, "f3"), _started(3, "look"), _LOG)])
    script = """
from compcache import Cache
with Cache(directory) as cache:
    f1 = cache.get_target("f1")
    result = f1(0), f1(0), "compcache.hit.plan" in sys.modules
"""
    assert run_fresh(tmp_path, script) == (321, 321, True)
    assert closure(tmp_path).exists()
    assert run_fresh(tmp_path, script) == (321, 321, False)


@pytest.mark.slow
def test_a_closure_may_have_more_modules_than_a_load_has_files_open(tmp_path: Path) -> None:
    count = 150
    with Cache(tmp_path) as cache:
        cache.add_modules([ModuleSource(adder("g0", 1)), *(ModuleSource(caller(f"g{n}", f"g{n - 1}", plus=1)) for n in range(1, count))])
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
from compcache import Cache
with Cache(directory) as cache:
    result = cache.get_target("g{count - 1}")(0), "compcache.hit.plan" in sys.modules
"""
    assert run_fresh(tmp_path, script) == (count, True)
    assert run_fresh(tmp_path, script) == (count, False)
