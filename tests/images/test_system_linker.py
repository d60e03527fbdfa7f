from __future__ import annotations

import ctypes
import os
import pickle
import select
import shlex
import signal
import struct
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from helpers import compile_object, run_fresh

from compcache.errors import FormatError, LinkerError
from compcache.images.elf import patching, reading
from compcache.images.linkers.find import LINKER_VARIABLE, Linker, find_linker, find_linkers
from compcache.images.linkers.link import link_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    MakeProgram = Callable[..., Linker]

ODD_NAME = 'odd name\n"*; touch é'
IR = r"""
@"odd name\0A\22*; touch \C3\A9" = global i64 7
declare i64 @nobody_provides_this(i64)
declare i64 @helper(i64)
define i64 @twice(i64 %x) { %y = add i64 %x, %x ret i64 %y }
define i64 @indirect(i64 %x) { %y = call i64 @twice(i64 %x) ret i64 %y }
define i64 @helped(i64 %x) { %y = call i64 @helper(i64 %x) ret i64 %y }
define i64 @broken(i64 %x) { %y = call i64 @nobody_provides_this(i64 %x) ret i64 %y }
define i64 @is_missing() {
  %null = icmp eq ptr @nobody_provides_this, null
  %y = zext i1 %null to i64
  ret i64 %y
}
""".replace(" %y = ", "\n%y = ").replace(" ret ", "\nret ")
HELPER_IR = "define i64 @helper(i64 %x) {\n%y = mul i64 %x, 10\nret i64 %y\n}"
OTHER_IR = "define i64 @other(i64 %x) {\nret i64 %x\n}"


def load(image: bytes, directory: Path) -> ctypes.CDLL:
    """Opens with RTLD_LOCAL and RTLD_NOW, which ctypes always adds."""
    descriptor, path = tempfile.mkstemp(suffix=".so", dir=directory)
    os.write(descriptor, image)
    os.close(descriptor)
    return ctypes.CDLL(path)


@pytest.fixture(scope="module")
def module() -> bytes:
    return compile_object(IR)


def find_linkers_with(variables: dict[str, str]) -> tuple[Linker, ...]:
    """The linkers that these environment variables give, without others that choose a linker."""
    with mock.patch.dict(os.environ, {LINKER_VARIABLE: "", **variables}):
        return find_linkers()


def find_linker_with(variables: dict[str, str]) -> Linker | None:
    return next(iter(find_linkers_with(variables)), None)


@pytest.fixture(params=["ld.lld", "mold", "ld", "ld.gold", "ziglang"])
def linker(request: pytest.FixtureRequest) -> Linker:
    try:
        found = find_linker_with({LINKER_VARIABLE: request.param, "PATH": os.environ["PATH"]})
    except LinkerError:
        pytest.skip(f"{request.param} is not installed")
    if found is None:
        pytest.skip("the platform does not use ELF")
    return found


@pytest.fixture
def any_linker() -> Linker:
    found = find_linker()
    if found is None:
        pytest.skip("no linker on this machine")
    return found


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only places where a linker may leave something by default, all inside one directory."""
    for name in ("temporary", "home", "cache", "work"):
        (tmp_path / "scratch" / name).mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch" / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch" / "temporary"))
    monkeypatch.setenv("HOME", str(tmp_path / "scratch" / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "scratch" / "cache"))
    monkeypatch.chdir(tmp_path / "scratch" / "work")
    return tmp_path / "scratch"


def named(linker: Linker, directory: Path) -> str:
    """What COMPCACHE_LINKER has to be for this linker, which may be a command of several words."""
    if len(linker.argv) == 1:
        return linker.argv[0]
    return make_program(directory, "linker", f'exec {shlex.join(linker.argv)} "$@"')


def leftovers(scratch: Path) -> list[Path]:
    return [path for path in scratch.rglob("*") if not path.is_dir() or path.parent != scratch]


@pytest.fixture
def fake(tmp_path: Path) -> MakeProgram:
    """Makes a linker out of a shell script."""

    def make(script: str, name: str = "fake") -> Linker:
        return Linker((make_program(tmp_path / "bin", name, script),), "test")

    return make


def make_program(directory: Path, name: str, script: str = "exit 0") -> str:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def no_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides an installed ziglang wheel."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])


def make_wheel(directory: Path, monkeypatch: pytest.MonkeyPatch, *programs: str) -> None:
    """Puts a ziglang wheel first on the import path that must not be imported."""
    for program in programs:
        make_program(directory / "site" / "ziglang", program)
    (directory / "site" / "ziglang").mkdir(parents=True, exist_ok=True)
    (directory / "site" / "ziglang" / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(directory / "site"))


# --- finding ---


@pytest.mark.usefixtures("no_wheel")
def test_linkers_are_looked_for_in_the_documented_order(tmp_path: Path) -> None:
    directory = tmp_path / "programs"
    expected: tuple[Linker, ...] = ()
    for name in ("ld.lld", "mold", "ld"):  # each one goes before those that are there already
        expected = (Linker((make_program(directory, name),), f"{name} on the path"), *expected)
        variables = {"PATH": f"{directory}:{tmp_path / name}"}
        assert find_linkers_with(variables) == expected
        assert find_linker_with(variables) == expected[0]


def test_the_wheel_comes_last_and_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path, monkeypatch, "zig")
    make_program(tmp_path / "programs", "ld")
    sources = [linker.source for linker in find_linkers_with({"PATH": str(tmp_path / "programs")})]
    assert sources == ["ld on the path", "ziglang wheel"]
    zig = str(tmp_path / "site" / "ziglang" / "zig")
    assert find_linker_with({"PATH": str(tmp_path / "none")}) == Linker((zig, "ld.lld"), "ziglang wheel")


def test_a_wheel_of_another_layout_is_asked_to_find_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path, monkeypatch)
    found = find_linker_with({"PATH": str(tmp_path / "none")})
    assert found == Linker((sys.executable, "-m", "ziglang", "ld.lld"), "ziglang wheel")


@pytest.mark.usefixtures("no_wheel")
def test_a_mere_directory_with_the_name_of_the_wheel_is_none(tmp_path: Path) -> None:
    (tmp_path / "ziglang").mkdir()
    assert find_linker_with({"PATH": str(tmp_path)}) is None


@pytest.mark.usefixtures("no_wheel")
def test_no_linker_anywhere_is_none(tmp_path: Path) -> None:
    assert find_linker_with({"PATH": str(tmp_path)}) is None


@pytest.mark.parametrize("value", ["none", "off", "None", " none "])
def test_the_variable_can_say_that_there_is_no_linker(value: str, tmp_path: Path) -> None:
    make_program(tmp_path, "ld")
    assert find_linker_with({LINKER_VARIABLE: value, "PATH": str(tmp_path)}) is None


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_variable_is_no_choice(value: str, tmp_path: Path) -> None:
    program = make_program(tmp_path, "ld")
    assert find_linker_with({LINKER_VARIABLE: value, "PATH": str(tmp_path)}) == Linker((str(program),), "ld on the path")


def test_the_variable_can_be_a_name_a_path_or_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path, monkeypatch, "zig")
    make_program(tmp_path / "programs", "ld.lld")
    special = make_program(tmp_path / "programs", "special")
    zig = make_program(tmp_path / "programs", "zig")
    wheel = str(tmp_path / "site" / "ziglang" / "zig")
    expected = {
        "special": (special,),
        f" {special}\n": (special,),
        "ziglang": (wheel, "ld.lld"),
        "zig": (zig, "ld.lld"),
    }
    for value, argv in expected.items():
        found = find_linker_with({LINKER_VARIABLE: value, "PATH": str(tmp_path / "programs")})
        assert found == Linker(argv, LINKER_VARIABLE)


def test_a_linker_found_through_a_relative_path_runs_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = make_program(tmp_path / "programs", "ld")
    monkeypatch.chdir(tmp_path)
    assert find_linker_with({"PATH": "programs"}) == Linker((program,), "ld on the path")
    chosen = find_linker_with({LINKER_VARIABLE: "programs/ld", "PATH": ""})
    assert chosen == Linker((program,), LINKER_VARIABLE)


@pytest.mark.parametrize("value", ["no-such-linker", "/no/such/linker", "./text"])
def test_a_variable_that_names_nothing_is_an_error_that_says_what_to_do(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("not executable")
    with pytest.raises(LinkerError, match=f"{LINKER_VARIABLE} is '{value}'.*unset this variable") as caught:
        find_linker_with({LINKER_VARIABLE: value, "PATH": str(tmp_path)})
    assert "executable file" in str(caught.value) if "/" in value else "on the path" in str(caught.value)


@pytest.mark.usefixtures("no_wheel")
def test_asking_for_a_wheel_that_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(LinkerError, match="pip install ziglang"):
        find_linker_with({LINKER_VARIABLE: "ziglang", "PATH": str(tmp_path / "without-wheel")})


def test_a_changed_variable_is_noticed_and_an_unchanged_one_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_program(tmp_path, "first")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(LINKER_VARIABLE, "first")
    found = find_linker()
    assert found == Linker((first,), LINKER_VARIABLE)
    assert find_linker() is found
    monkeypatch.setenv(LINKER_VARIABLE, "off")
    assert find_linker() is None


@pytest.mark.parametrize("platform", ["win32", "darwin", "cygwin"])
def test_platforms_without_elf_have_no_linker(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert find_linker_with({LINKER_VARIABLE: "/no/such/linker"}) is None


# --- linking ---


def test_a_linked_object_loads_and_runs(linker: Linker, module: bytes, tmp_path: Path) -> None:
    objects = [patching.weaken_undefined(module), compile_object(HELPER_IR)]
    image = link_shared(linker, objects, soname="module")
    library = load(image, tmp_path)
    assert library.indirect(21) == 42
    assert library.helped(4) == 40
    assert reading.architecture_of(image) == reading.architecture_of(module)
    assert reading.dynamic_undefined(image) == ("nobody_provides_this",)


def test_strong_undefined_symbols_fail_at_load_and_weak_ones_are_null(
    linker: Linker, module: bytes, tmp_path: Path
) -> None:
    helper = compile_object(HELPER_IR)
    with pytest.raises(OSError, match="undefined symbol: nobody_provides_this"):
        load(link_shared(linker, [module, helper], soname="strong"), tmp_path)
    weak = link_shared(linker, [patching.weaken_undefined(module), helper], soname="weak")
    assert load(weak, tmp_path).is_missing() == 1


def test_the_same_arguments_give_the_same_bytes_wherever_they_are_linked(
    linker: Linker, module: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = set()
    for name in ("one", "another_directory"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
        for variable in ("LD_RUN_PATH", "LLD_VERSION", "MOLD_DEBUG"):
            monkeypatch.setenv(variable, name)
        images.add(link_shared(linker, [module], soname="module", export=["twice", "helped"]))
    (image,) = images
    assert b"compcache" not in image
    assert os.fsencode(tmp_path) not in image


def test_only_exported_names_are_visible(linker: Linker, module: bytes, tmp_path: Path) -> None:
    objects = [patching.weaken_undefined(module), compile_object(HELPER_IR)]
    everything = load(link_shared(linker, objects, soname="all"), tmp_path)
    assert all(hasattr(everything, name) for name in ("twice", "indirect", "helped", "helper"))
    assert ctypes.c_int64.in_dll(everything, ODD_NAME).value == 7
    some = link_shared(linker, objects, soname="some", export=["helped", ODD_NAME, "not defined"])
    library = load(some, tmp_path)
    assert ctypes.c_int64.in_dll(library, ODD_NAME).value == 7
    assert library.helped(5) == 50  # through a symbol of the other object, which is hidden
    assert not any(hasattr(library, name) for name in ("twice", "indirect", "helper", "not defined"))
    none = load(link_shared(linker, objects, soname="none", export=()), tmp_path)
    assert not hasattr(none, "helped")


def test_a_library_is_needed_where_it_provides_a_strong_symbol(
    linker: Linker, module: bytes, tmp_path: Path
) -> None:
    paths = []
    for name, ir in (("libhelper.so", HELPER_IR), ("libother.so", OTHER_IR)):
        path = tmp_path / name
        path.write_bytes(link_shared(linker, [compile_object(ir)], soname=str(path)))
        paths.append(str(path))
    strong = patching.weaken_undefined(module, keep={"helper"})
    image = link_shared(linker, [strong], soname="module", libraries=paths)
    assert reading.needed_libraries(image) == (paths[0],)
    assert load(image, tmp_path).helped(6) == 60
    weak = link_shared(linker, [patching.weaken_undefined(module)], soname="module", libraries=paths)
    assert reading.needed_libraries(weak) == ()


def test_library_paths_are_relative_to_the_caller(
    any_linker: Linker, module: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-lhelper.so").write_bytes(
        link_shared(any_linker, [compile_object(HELPER_IR)], soname="helper")
    )
    image = link_shared(any_linker, [module], soname="module", libraries=["-lhelper.so"])
    assert reading.needed_libraries(image) == ("helper",)


def test_the_soname_never_meets_a_shell(any_linker: Linker, module: bytes, scratch: Path) -> None:
    name = "$(touch one); touch two"
    assert name.encode() in link_shared(any_linker, [module], soname=name)
    assert leftovers(scratch) == []


def test_nothing_is_left_behind(linker: Linker, module: bytes, scratch: Path) -> None:
    link_shared(linker, [module], soname="module")
    with pytest.raises(LinkerError):
        link_shared(linker, [module, module], soname="module")
    assert leftovers(scratch) == []


def test_a_module_calls_its_own_functions_where_the_process_has_others_of_that_name(
    linker: Linker, tmp_path: Path
) -> None:
    ir = "define i64 @getpid() {\nret i64 -7\n}\ndefine i64 @caller() {\n%x = call i64 @getpid()\nret i64 %x\n}"
    assert load(link_shared(linker, [compile_object(ir)], soname="module"), tmp_path).caller() == -7


def test_images_are_small_and_can_be_unwound_and_not_changed_into_code(linker: Linker, module: bytes) -> None:
    image = link_shared(linker, [module], soname="module")
    (headers,), (count,) = struct.unpack_from("<Q", image, 32), struct.unpack_from("<H", image, 56)
    flags = dict(struct.unpack_from("<II", image, headers + 56 * index) for index in range(count))
    gnu_eh_frame, gnu_stack, executable = 0x6474E550, 0x6474E551, 1
    assert gnu_eh_frame in flags
    assert not flags[gnu_stack] & executable
    assert b".gnu.hash" in image
    assert b".note.gnu.build-id" not in image
    assert len(image) < 8_000


def test_flags_are_adapted_to_what_the_program_really_is(fake: MakeProgram, tmp_path: Path) -> None:
    accepted = {}
    for name in ("ld.lld", "ld.bfd", "ld.mold", "ld.gold"):
        (tmp_path / name).mkdir()
        link = tmp_path / name / "ld"
        link.symlink_to(fake('echo "$@"; exit 1', name).argv[0])
        with pytest.raises(LinkerError) as caught:
            link_shared(Linker((str(link),), "test"), [b"", b""], soname="module")
        accepted[name] = caught.value.output
    plain = (
        "-shared -Bsymbolic --hash-style=gnu --eh-frame-hdr -z noseparate-code -z now -z norelro "
        "-z noexecstack --build-id=none -soname module -o image.so 0.o 1.o --as-needed"
    )
    assert accepted == {
        "ld.lld": plain,
        "ld.bfd": plain,
        "ld.mold": plain.replace("none -soname", "none --no-fork -soname"),
        "ld.gold": plain.replace("-z noseparate-code ", ""),
    }


# --- failing ---


def test_a_failed_link_tells_what_the_linker_said(linker: Linker, module: bytes) -> None:
    with pytest.raises(LinkerError, match="failed with exit status") as caught:
        link_shared(linker, [module, module], soname="module")
    assert linker.argv[0] in str(caught.value)
    assert "twice" in caught.value.output
    assert caught.value.output == caught.value.output.strip()


def test_bytes_that_are_no_object_are_refused(linker: Linker) -> None:
    with pytest.raises(LinkerError, match="failed with exit status"):
        link_shared(linker, [b"no object"], soname="module")
    with pytest.raises(FormatError, match="not an ELF file"):
        link_shared(linker, [b"no object"], soname="module", export=["f"])


@pytest.mark.parametrize(
    ("script", "complaint", "output"),
    [
        ("echo '  out'; echo err >&2; exit 3", "failed with exit status 3: out", "out\nerr"),
        ("exit 7", "failed with exit status 7$", ""),
        ("printf 'in f:\\nwrong\\n'; exit 7", "failed with exit status 7: wrong$", "in f:\nwrong"),
        ("echo dying; kill -SEGV $$", "was killed by SIGSEGV: dying", "dying"),
        ("echo done", "reported success but wrote no file", "done"),
        ("echo text > image.so", "did not write an ELF file", ""),
        (": > image.so", "did not write an ELF file", ""),
    ],
)
def test_a_linker_that_fails_is_an_error_with_its_output(
    script: str, complaint: str, output: str, fake: MakeProgram, scratch: Path
) -> None:
    program = fake(script)
    with pytest.raises(LinkerError, match=complaint) as caught:
        link_shared(program, [b""], soname="module")
    assert program.argv[0] in str(caught.value)
    assert caught.value.output == output
    assert pickle.loads(pickle.dumps(caught.value)).output == output
    assert leftovers(scratch) == []


def test_messages_are_in_one_language(fake: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    with pytest.raises(LinkerError) as caught:
        link_shared(fake("echo $LC_ALL; exit 1"), [], soname="module")
    assert caught.value.output == "C"


def test_long_output_is_cut(fake: MakeProgram) -> None:
    program = fake("echo first; i=0; while [ $i -lt 3000 ]; do echo line; i=$((i+1)); done; exit 1")
    with pytest.raises(LinkerError) as caught:
        link_shared(program, [], soname="module")
    assert caught.value.output.startswith("first\nline\n")
    assert caught.value.output.endswith("more characters]")
    assert len(caught.value.output) < 10_000


def test_a_linker_that_cannot_be_started_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not executable")
    (tmp_path / "noise").write_bytes(b"\0\1\2\3")
    (tmp_path / "noise").chmod(0o755)
    for name, reason in (("gone", "No such file"), ("text", "Permission denied"), ("noise", "format")):
        program = Linker((str(tmp_path / name),), "test")
        with pytest.raises(LinkerError, match=f"{name}.*cannot be started .*{reason}.*{LINKER_VARIABLE}"):
            link_shared(program, [], soname="module")


@pytest.fixture
def hanging(fake: MakeProgram, tmp_path: Path) -> Iterator[tuple[Linker, int]]:
    """A linker that waits for a child of its own, and a pipe that closes when that child has ended."""
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    yield fake(f'sleep 60 > "{tmp_path}/pipe" & echo waiting; wait'), pipe
    os.close(pipe)


def closes(pipe: int) -> bool:
    """Whether the last writer of the pipe goes away within some seconds."""
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    return any(event & select.POLLHUP for _, event in poller.poll(10_000))


@pytest.mark.slow
def test_a_linker_that_hangs_is_stopped_with_all_that_it_started(
    hanging: tuple[Linker, int], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, pipe = hanging
    monkeypatch.setattr("compcache.images.linkers.link._SECONDS", 1.0)
    start = time.monotonic()
    with pytest.raises(LinkerError, match="did not finish within 1 s") as caught:
        link_shared(program, [], soname="module")
    assert time.monotonic() - start < 20
    assert caught.value.output == "waiting"
    assert closes(pipe)
    assert leftovers(scratch) == []


@pytest.mark.slow
def test_an_interrupted_link_stops_the_linker(hanging: tuple[Linker, int], scratch: Path) -> None:
    program, pipe = hanging

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.5, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            link_shared(program, [], soname="module")
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, previous)
    assert closes(pipe)
    assert leftovers(scratch) == []


def test_a_temporary_directory_that_cannot_be_written_is_an_error(
    fake: MakeProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake("exit 0")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(LinkerError, match="temporary directory"):
        link_shared(program, [], soname="module")


@pytest.mark.slow
def test_what_killed_links_leave_is_removed_by_a_later_process(
    directory: Path, tmp_path: Path, any_linker: Linker
) -> None:
    """Directories of an hour ago, of this user; nothing else, and nothing that they lead to."""
    temporary, outside = tmp_path / "temporary", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    for name in ("compcache-link-old", "compcache-link-new", "other-old"):
        (temporary / name).mkdir(parents=True)
        (temporary / name / "0.o").write_bytes(b"object")
    (temporary / "compcache-link-old" / "link").symlink_to(outside)
    (temporary / "compcache-link-link").symlink_to(outside)
    (temporary / "compcache-link-file").write_bytes(b"")
    script = f"""
    import os, time
    real = time.time
    old = {str(temporary)!r} + "/compcache-link-new"
    from compcache.images.linkers import link
    # The change time of a directory cannot be set: the clock of the process goes ahead instead, but for one directory.
    link._ABANDONED_SECONDS = -5
    os.utime(old, (real() + 10, real() + 10))
    from compcache import Cache, ModuleSource
    Cache(directory).add_module(ModuleSource("define i64 @f() {{ ret i64 7 }}"))
    result = sorted(os.listdir({str(temporary)!r}))
    """
    left = run_fresh(directory, script, TMPDIR=str(temporary), COMPCACHE_LINKER=named(any_linker, tmp_path / "bin"))
    assert left == ["compcache-link-file", "compcache-link-link", "compcache-link-new", "other-old"]
    assert (outside / "kept").exists()


@pytest.mark.slow
def test_a_link_that_is_running_is_left_alone_whatever_the_clock_says(
    directory: Path, tmp_path: Path, any_linker: Linker
) -> None:
    temporary = tmp_path / "temporary"
    (temporary / "compcache-link-running").mkdir(parents=True)
    script = """
    import os, tempfile, time
    real = time.time
    time.time = lambda: real() + 10 * 86400
    from compcache import Cache, ModuleSource
    Cache(directory).add_module(ModuleSource("define i64 @f() { ret i64 7 }"))
    result = os.listdir(tempfile.gettempdir())
    """
    left = run_fresh(directory, script, TMPDIR=str(temporary), COMPCACHE_LINKER=named(any_linker, tmp_path / "bin"))
    assert left == ["compcache-link-running"]


@pytest.mark.slow
def test_a_child_that_exits_leaves_a_running_link_alone(
    directory: Path, tmp_path: Path, module: bytes, fake: MakeProgram
) -> None:
    """A thread links, and the program forks; the child ends as programs do, with its exit handlers and finalizers."""
    (tmp_path / "image").write_bytes(module)
    for name in ("started", "go"):
        os.mkfifo(tmp_path / name)
    program = fake(f'cd "{tmp_path}"; echo > started; read _ < go; cd "$OLDPWD"; cp "{tmp_path}/image" image.so')
    (tmp_path / "temporary").mkdir()
    script = f"""
    import os, threading, warnings
    from compcache.images.linkers.find import Linker
    from compcache.images.linkers.link import link_shared
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks of a process with threads
    images = []
    thread = threading.Thread(target=lambda: images.append(link_shared(Linker({program.argv!r}, "test"), [b""])))
    thread.start()
    open({str(tmp_path / "started")!r}).read()
    if not (child := os.fork()):
        sys.exit(0)
    os.waitpid(child, 0)
    open({str(tmp_path / "go")!r}, "w").close()
    thread.join()
    result = [len(image) for image in images]
    """
    assert run_fresh(directory, script, TMPDIR=str(tmp_path / "temporary")) == [len(module)]
    assert list((tmp_path / "temporary").iterdir()) == []
