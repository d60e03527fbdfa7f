"""The dynamic linker: one file under several names, names that mean other files, other threads, and forks."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT, adder, compile_object, constant, module_file, run_fresh, sum_of

from compcache import Cache, ModuleSource
from compcache.files import Files
from compcache.hit.loader import Loader
from compcache.images.linkers.find import find_linker
from compcache.images.linkers.link import link_shared
from compcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

#: A function with a state of its own: who shares its mapping shares the state.
COUNTER = """\
@count = internal global i64 0
define i64 @bump() {
  %old = load i64, ptr @count
  %new = add i64 %old, 1
  store i64 %new, ptr @count
  ret i64 %new
}
"""


def shown_path(address: int) -> str:
    """The file in which `dladdr` finds an address: what profilers and tracebacks of native code show."""

    class Info(ctypes.Structure):
        _fields_ = [("fname", ctypes.c_char_p), ("fbase", ctypes.c_void_p), ("sname", ctypes.c_char_p), ("saddr", ctypes.c_void_p)]

    info = Info()
    assert ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info))
    assert info.fname is not None
    return os.fsdecode(info.fname)


def mapped_path(address: int) -> str:
    """The file that the system has mapped at an address: what `perf` records."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, _, rest = line.partition("-")
        if int(start, 16) <= address < int(rest.split(" ", 1)[0], 16):
            return line.split(maxsplit=5)[-1]
    raise AssertionError(f"{address:x} is not mapped")


@pytest.fixture
def counter(directory: Path) -> Path:
    """A directory with `bump` in it; the file of its module."""
    with Cache(directory) as cache:
        return module_file(directory, cache.add_module(ModuleSource(COUNTER)))


# ----------------------------------------------------------------------------------------- one file, several paths


def by_symbolic_link(directory: Path, other: Path) -> None:
    other.symlink_to(directory)


def by_hard_links(directory: Path, other: Path) -> None:
    """As `cp -al` does it."""
    shutil.copytree(directory, other, copy_function=os.link)
    other.chmod(0o700)


@pytest.mark.parametrize("way", [by_symbolic_link, by_hard_links])
@pytest.mark.usefixtures("counter")
def test_one_file_under_two_paths_is_two_modules(directory: Path, tmp_path: Path, way: Callable[[Path, Path], None]) -> None:
    other = tmp_path / "other"
    way(directory, other)
    first = Cache(directory).get_target("bump")
    second = Cache(other).get_target("bump")
    assert [first(), first(), second()] == [1, 2, 1]
    del first
    gc.collect()
    assert second() == 2
    third = Cache(directory).get_target("bump")
    assert [third(), second()] == [1, 3]


@pytest.mark.usefixtures("counter")
def test_a_directory_that_is_mounted_twice_is_two_caches(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    script = f"import sys; sys.path.insert(0, {str(PACKAGE_ROOT)!r})\nfrom compcache import Cache\n"
    script += f"first, second = [Cache(path).get_target('bump') for path in ({str(directory)!r}, {str(other)!r})]\n"
    script += "print(first(), first(), second())"
    inside = 'mount --bind "$1" "$2" || exit 77; exec "$3" -I -c "$4"'  # in a mount namespace that ends with the process
    command = ["unshare", "--mount", "sh", "-c", inside, "sh", str(directory), str(other), sys.executable, script]
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"may not mount here: {done.stderr.strip()}")
    assert (done.stdout, done.stderr) == ("1 2 1\n", "")


@pytest.mark.usefixtures("counter")
def test_many_mappings_of_one_file_are_many_modules(directory: Path) -> None:
    """All but the first are copies, whose descriptors have the same number, one after the other."""
    targets = [Cache(directory).get_target("bump") for _ in range(40)]
    for expected in (1, 2):
        assert [target() for target in targets] == [expected] * 40


def test_a_library_that_somebody_else_has_mapped_is_not_ours(directory: Path, counter: Path) -> None:
    foreign = ctypes.CDLL(str(counter))
    target = Cache(directory).get_target("bump")
    held = Cache(directory).get_target("bump")
    assert target() == held() == 1
    assert mapped_path(target.address) != str(counter)  # a copy
    del foreign


def test_a_mapping_that_outlives_its_target_is_not_used_again(directory: Path, counter: Path) -> None:
    target = Cache(directory).get_target("bump")
    assert [target(), target()] == [1, 2]
    foreign = ctypes.CDLL(str(counter))  # finds the mapping by its inode, and keeps it
    del target
    gc.collect()
    assert Cache(directory).get_target("bump")() == 1
    del foreign


# ----------------------------------------------------------------------------------------- what is mapped, and shown


class Swapping(Files):
    """Replaces a file by another one as soon as it was opened."""

    __slots__ = ("new", "old")

    def __init__(self, old: Path, new: Path) -> None:
        self.old, self.new = str(old), str(new)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
        if os.path.basename(path) == os.path.basename(self.old) and os.path.exists(self.new):
            os.rename(self.new, self.old)
        return descriptor


def cache_with(directory: Path, files: Files) -> Cache:
    """A cache whose file operations are these."""
    cache = Cache(directory)
    cache._store.close()
    cache._store = Store(str(directory), files=files)
    cache._loader = Loader(cache._store, allow_pickle=False)
    cache._plain, cache._targets = cache._loader, cache._loader.targets
    return cache


def test_what_was_verified_is_what_is_mapped(directory: Path, tmp_path: Path) -> None:
    with Cache(directory) as cache:
        good = module_file(directory, cache.add_module(ModuleSource(adder("f", 1))))
        other = module_file(directory, cache.add_module(ModuleSource(adder("g", 1000))))
    planted = tmp_path / "planted"
    shutil.copyfile(other, planted)
    cache = cache_with(directory, Swapping(good, planted))
    target = cache.get_target("f")
    assert not planted.exists()
    assert target(1) == 2


@pytest.mark.parametrize("name", ["$LIB", "$ORIGIN", "${PLATFORM}"])
def test_variables_of_the_dynamic_linker_mean_nothing_in_a_path(directory: Path, tmp_path: Path, name: str) -> None:
    root = tmp_path / name / "cache"
    with Cache(directory) as cache:
        module_id = cache.add_module(ModuleSource(COUNTER))
    shutil.copytree(directory, root)
    root.chmod(0o700)
    target = Cache(root).get_target("bump")
    assert target() == 1
    assert mapped_path(target.address) == shown_path(target.address) == str(module_file(root, module_id))


def test_debuggers_and_profilers_see_the_path_of_the_module(directory: Path, counter: Path) -> None:
    first, second = Cache(directory).get_target("bump"), Cache(directory).get_target("bump")
    assert mapped_path(first.address) == str(counter)
    assert "memfd:compcache" in mapped_path(second.address)
    assert shown_path(first.address) == shown_path(second.address) == str(counter)


@pytest.mark.slow
def test_gdb_finds_the_module(directory: Path, counter: Path) -> None:
    gdb = shutil.which("gdb")
    if gdb is None:
        pytest.skip("gdb is not installed")
    script = f"import sys; sys.path.insert(0, {str(PACKAGE_ROOT)!r})\nfrom compcache import Cache\n"
    script += f"target = Cache({str(directory)!r}).get_target('bump')\nprint(target(), flush=True)\nsys.stdin.read()"
    command = [gdb, "-nx", "-batch", "-iex", "set auto-solib-add off", "-iex", "set debuginfod enabled off"]
    with subprocess.Popen([sys.executable, "-I", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        command += ["-p", str(child.pid), "-ex", "info sharedlibrary"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=40)
        except subprocess.TimeoutExpired:
            pytest.skip("gdb takes too long here")
        finally:
            child.kill()
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("gdb may not attach here")
    assert str(counter) in done.stdout, done.stdout + done.stderr


# ----------------------------------------------------------------------------------------- other threads, forks

#: `hook` of `builtins` runs while the module is mapped (constructor) or unmapped (destructor), with the GIL.
HOOKED = """\
@text = private constant [33 x i8] c"import builtins; builtins.hook()\\00"
@llvm.global_{which} = appending global [1 x {{ i32, ptr, ptr }}] [{{ i32, ptr, ptr }} {{ i32 65535, ptr @run, ptr null }}]
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyRun_SimpleString(ptr)
define internal void @run() {{
  %state = call i32 @PyGILState_Ensure()
  %r = call i32 @PyRun_SimpleString(ptr @text)
  call void @PyGILState_Release(i32 %state)
  ret void
}}
"""
#: Takes half a second, without the GIL.
SLOW = """\
@llvm.global_{which} = appending global [1 x {{ i32, ptr, ptr }}] [{{ i32, ptr, ptr }} {{ i32 65535, ptr @run, ptr null }}]
declare i32 @usleep(i32)
define internal void @run() {{
  %r = call i32 @usleep(i32 500000)
  ret void
}}
"""
BEGIN = """
import builtins, ctypes, faulthandler, gc, os, signal, threading, time
from compcache import Cache
from compcache.hit import _runtime
faulthandler.dump_traceback_later(20, exit=True)
cache = Cache(directory)
"""


def run_threads(directory: Path, script: str) -> Any:
    import textwrap

    return run_fresh(directory, BEGIN + textwrap.dedent(script))


@pytest.mark.slow
@pytest.mark.parametrize("which", ["ctors", "dtors"])
@pytest.mark.parametrize("other", ["drops a target", "looks for a native", "loads", "imports an extension"])
def test_code_that_mapping_runs_may_want_the_gil(directory: Path, library: Path, which: str, other: str) -> None:
    native = "declare i32 @only_in_my_library()\ndefine i32 @native() {\n  %r = call i32 @only_in_my_library()\n  ret i32 %r\n}\n"
    add = f"""
        ctypes.CDLL({str(library)!r}, ctypes.RTLD_GLOBAL)
        from compcache import ModuleSource
        cache.add_module(ModuleSource({HOOKED.format(which=which) + constant("hooked", 1)!r}))
        cache.add_module(ModuleSource({constant("dropped", 2)!r}))
        cache.add_module(ModuleSource({constant("loaded", 3)!r}))
        cache.add_module(ModuleSource({native!r}))
        builtins.hook = lambda: None
        result = 0
    """
    run_threads(directory, add)
    script = f"""
        ctypes.CDLL({str(library)!r}, ctypes.RTLD_GLOBAL)
        begun, order = threading.Event(), []
        def hook():
            begun.set()
            time.sleep(0.3)
            order.append("hook")
        builtins.hook = hook
        held = [cache.get_target("dropped")]
        def work():
            target = cache.get_target("hooked")
            assert target() == 1
            del target
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        if {other!r} == "drops a target":
            held.clear()
        elif {other!r} == "imports an extension":  # the interpreter opens it with the GIL held
            import _lsprof
            ctypes.CDLL({str(library)!r} + ".2")
        elif {other!r} == "loads":
            assert cache.get_target("loaded")() == 3
        else:
            assert cache.get_target("native")() == 5
        order.append("other")
        thread.join()
        gc.collect()
        left = [line for line in open("/proc/self/maps") if "modules-v1" in line]
        result = sorted(order), len(left) if {other!r} == "drops a target" else 0
    """
    assert run_threads(directory, script) == (["hook", "other"], 0)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with a native in it."""
    linker = find_linker()
    if linker is None:
        pytest.skip("no linker on this machine")
    path = tmp_path_factory.mktemp("library") / "mine.so"
    code = compile_object("define i32 @only_in_my_library() {\n  ret i32 5\n}\n")
    path.write_bytes(link_shared(linker, [code], soname="mine.so"))
    path.with_name("mine.so.2").write_bytes(link_shared(linker, [code], soname="mine.so.2"))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("which", ["ctors", "dtors"])
@pytest.mark.parametrize(
    ("fork", "load"),
    [("os.fork()", "cache.get_target('quick')()"), ("ctypes.PyDLL(None).fork()", "_runtime.open_library(b'libm.so.6') and 2")],
    ids=["python", "native"],  # a native fork leaves CPython's locks as they are, but not those of the dynamic linker
)
def test_a_child_that_was_forked_while_something_was_mapped_can_load(directory: Path, which: str, fork: str, load: str) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(SLOW.format(which=which) + constant("slow", 1)))
        cache.add_module(ModuleSource(constant("quick", 2)))
    script = f"""
        thread = threading.Thread(target=lambda: cache.get_target("slow")())
        thread.start()
        time.sleep(0.2)
        child = {fork}
        if child == 0:
            signal.alarm(5)
            os._exit({load})
        thread.join()
        _, status = os.waitpid(child, 0)
        result = status
    """
    assert run_threads(directory, script) == 2 << 8


# ----------------------------------------------------------------------------------------- descriptors


def test_modules_that_cannot_be_stored_hold_no_descriptors(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", readonly=True)
    keep = [cache.get_or_compile("warm", lambda: ModuleSource(adder("warm", 1), optimize=0))]
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        text = adder(f"f{number}", number)
        keep.append(cache.get_or_compile(f"f{number}", lambda text=text: ModuleSource(text, optimize=0)))  # type: ignore[misc]
    assert len(os.listdir("/proc/self/fd")) <= before  # what other tests left may go meanwhile
    assert [target(1) for target in keep] == [2, 1, 2, 3, 4, 5]
    assert all(name.startswith("<module ") for name in map(shown_path, [target.address for target in keep]))


@pytest.mark.slow
def test_a_closure_of_many_modules_needs_few_descriptors(directory: Path) -> None:
    modules, at_once = 10, 4
    with Cache(directory) as cache:
        for number in range(modules):
            cache.add_module(ModuleSource(adder(f"f{number}", 1), optimize=0))
        names = [f"f{number}" for number in range(modules)]
        cache.add_module(ModuleSource(sum_of("all", names), imports=names, optimize=0))
    script = f"""
        import os, resource
        from compcache import Cache
        from compcache.hit import loader, plan
        loader._MOST_FILES = {at_once}
        cache = Cache(directory)
        assert cache.get_target("f0")(1) == 2
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + {at_once + 3}, used + {at_once + 3}))
        result = cache.get_target("all")(1), len(os.listdir("/proc/self/fd")) - used
    """
    assert run_fresh(directory, script) == (2 * modules, 0)


@pytest.mark.parametrize("linkage", ["weak", "linkonce", "weak_odr", "linkonce_odr", "common"])
def test_definitions_that_linkers_merge(cache: Cache, linkage: str) -> None:
    value = 0 if linkage == "common" else 5
    cache.add_module(
        ModuleSource(
            f"@counter = {linkage} global i64 {value}\n"
            "define i64 @count() {\n  %old = load i64, ptr @counter\n  %new = add i64 %old, 1\n"
            "  store i64 %new, ptr @counter\n  ret i64 %new\n}\n"
        )
    )
    assert [cache.get_target("count")() for _ in range(2)] == [value + 1, value + 2]


GIVEN_NAMES = """
import os
from compcache import Cache
cache = Cache(directory)
held = cache.get_target("first")
child = os.fork()
if child == 0:
    cache.get_target("second")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
result = os.getpid(), child
"""


@pytest.mark.skipif(not os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc tells which names it was given")
def test_names_given_to_the_dynamic_linker_mean_the_same_in_other_processes(cache: Cache, directory: Path, tmp_path: Path) -> None:
    """A debugger opens them in its own process, where `/proc/self/fd/0` may be a terminal; after a fork the process has another number."""
    for number, name in enumerate(("first", "second")):
        cache.add_module(ModuleSource(constant(name, number)))
    both = run_fresh(directory, GIVEN_NAMES, LD_DEBUG="files", LD_DEBUG_OUTPUT=str(tmp_path / "linker"))
    said = "\n".join([file.read_text() for file in tmp_path.glob("linker.*")])
    names = re.findall(r"^ *(\d+):\s+file=(\S+) \[0\];  dynamically loaded by", said, re.MULTILINE)
    given = [(int(process), os.path.normpath(name)) for process, name in names if "/fd/" in name]
    assert [process for process, _ in given] == list(both)
    assert all(re.fullmatch(rf"/+proc/{process}/fd/\d+", name) for process, name in given)


@pytest.mark.parametrize("kind", ["function", "variable"])
def test_two_symbols_can_stand_for_one_thing(cache: Cache, directory: Path, kind: str) -> None:
    if kind == "function":
        cache.add_module(ModuleSource("define i64 @f() {\n  ret i64 5\n}\n"))
        head, value = "declare i64 @{0}()\n", "call i64 @{0}()"
    else:
        cache.add_module(ModuleSource("@f = global i64 5\n"))
        head, value = "@{0} = external global i64\n", "load i64, ptr @{0}"
    text = head.format("a") + head.format("b") + "define i64 @only() {\n  %b = " + value.format("b") + "\n  ret i64 %b\n}\n"
    text += f"define i64 @both() {{\n  %a = {value.format('a')}\n  %b = {value.format('b')}\n  %c = add i64 %a, %b\n  ret i64 %c\n}}\n"
    cache.add_module(ModuleSource(text, imports={"a": "f", "b": "f"}))
    script = "from compcache import Cache\ncache = Cache(directory)\nresult = [cache.get_target(name)() for name in ('only', 'both')]"
    assert run_fresh(directory, script) == [5, 10]


@pytest.mark.parametrize("head", ["", "internal ", "dso_local "])
@pytest.mark.parametrize("tail", ["", "unnamed_addr ", 'local_unnamed_addr noinline section ".text.own" comdat ', "noinline prefix i64 7 "])
def test_a_function_with_the_name_of_a_platform_function_is_the_modules_own(cache: Cache, head: str, tail: str) -> None:
    """LLVM would compute `floor` of a constant itself."""
    if "comdat" in tail and head == "internal ":
        tail = tail.replace("comdat ", "")
    own = f"define {head}double @floor(double %x) {tail}{{\n  %r = fadd double %x, 100.0\n  ret double %r\n}}\n"
    text = own + "define double @f() {\n  %r = call double @floor(double 2.5)\n  ret double %r\n}\n"
    cache.add_module(ModuleSource(("$floor = comdat any\n" if "comdat" in tail else "") + text, {"f": "f64()"}))
    assert cache.get_target("f")() == 102.5
