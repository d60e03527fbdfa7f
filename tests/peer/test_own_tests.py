"""Test programs that libraries bring along, run on a library in the cache: a module for each file, and one for the program.

`main` is a function of the cache like others. What a program prints, writes and ends with is what the same files do as an executable.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from compcache import Cache, ModuleSource

from .conftest import unavailable
from .programs import Places, UnavailableError, flang, modules_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]
_RUN = """
import ctypes, os, sys
from compcache import Cache, ModuleSource
cache = Cache(sys.argv[1])
arguments = [os.fsencode(text) for text in sys.argv[2:]]
main = cache.get_target("main")
vector = (ctypes.c_char_p * (len(arguments) + 1))(*arguments)
environ = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ").value
given = (len(arguments), ctypes.addressof(vector), environ)
status = main(*given[: len(main.signature.parameters)])
ctypes.CDLL(None).exit(status)
"""


class OwnTest(NamedTuple):
    """A test program: the package, the library's files, the program's, flags, folders of headers, arguments, what it reads."""

    package: str
    library: tuple[str, ...]
    program: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    folders: tuple[str, ...] = (".",)
    given: str = ""
    libraries: tuple[str, ...] = ()


_ZLIB = [
    "adler32", "compress", "crc32", "deflate", "gzclose", "gzlib", "gzread", "gzwrite", "infback", "inffast", "inflate", "inftrees",
    "trees", "uncompr", "zutil",
]  # fmt: skip
_ZLIB_FILES = tuple([f"{name}.c" for name in _ZLIB])
_ZLIB_FLAGS = ("-DHAVE_UNISTD_H", "-D_LARGEFILE64_SOURCE=1")
_DEFLATE = ("lib/[a-z]*.c", "lib/x86/*.c")
_DEFLATE_TESTS = (
    "test_checksums", "test_custom_malloc", "test_incomplete_codes", "test_litrunlen_overflow", "test_overread", "test_trailing_bytes"
)
_DEFLATE_FLAGS = ("-D_POSIX_C_SOURCE=200809L", "-D_FILE_OFFSET_BITS=64", "-DHAVE_CONFIG_H", "-D_DEFAULT_SOURCE")

TESTS = {
    "zlib-example": OwnTest("zlib", _ZLIB_FILES, ("test/example.c",), ("foo.gz",), _ZLIB_FLAGS),
    "zlib-infcover": OwnTest("zlib", _ZLIB_FILES, ("test/infcover.c",), (), _ZLIB_FLAGS),
    "zlib-minigzip": OwnTest("zlib", _ZLIB_FILES, ("test/minigzip.c",), ("-9",), _ZLIB_FLAGS, (".",), "ChangeLog"),
    **{
        name.replace("_", "-"): OwnTest(
            "libdeflate", _DEFLATE, (f"programs/{name}.c", "programs/test_util.c", "programs/prog_util.c", "programs/tgetopt.c"),
            (), _DEFLATE_FLAGS, (".", "programs", "given"), "", ("z",),
        )
        for name in _DEFLATE_TESTS
    },
    "jsoncpp": OwnTest(
        "libjsoncpp", ("src/lib_json/*.cpp",), ("src/test_lib_json/*.cpp",), (), ("-std=c++11",), ("include", "src/lib_json"),
        "", ("stdc++",),
    ),
    "leveldb": OwnTest(
        "leveldb", ("db/*.cc", "table/*.cc", "util/*.cc"), ("db/c_test.c",), (),
        ("-DLEVELDB_PLATFORM_POSIX=1", "-DLEVELDB_COMPILE_LIBRARY", "-pthread"),
        (".", "include", "given"), "", ("stdc++",),
    ),
    "flatbuffers": OwnTest(
        "flatbuffers",
        tuple([f"src/{name}.cpp" for name in ("idl_parser", "idl_gen_text", "idl_gen_fbs", "code_generators", "reflection", "util")]),
        ("tests/*.cpp",), (), ("-std=c++11", "-DFLATBUFFERS_TEST_PATH_PREFIX=./", "-DFLATBUFFERS_NO_FILE_TESTS"), ("include", "tests", "."),
        "", ("stdc++",),
    ),
    "expat": OwnTest(
        "expat", tuple([f"expat/lib/{name}.c" for name in ("xmlparse", "xmlrole", "xmltok")]),
        tuple([f"expat/tests/{name}.c" for name in ("runtests", "chardata", "structdata", "minicheck", "memcheck")]),
        (), ("-DXML_TESTING", "-DHAVE_EXPAT_CONFIG_H"), ("expat/lib", "expat/tests", "given"),
    ),
    # 15 of its files define nothing as it is configured.
    "mbedtls": OwnTest(
        "mbedtls", ("library/*.c",), ("programs/test/selftest.c", "tests/src/random.c", "tests/src/helpers.c"),
        (), (), ("include", "library", "tests/include"),
    ),
    # The program has the library in itself, and asks for its internals.
    "cjson": OwnTest("cjson", (), ("tests/misc_tests.c", "tests/unity/src/unity.c"), (), (), (".", "tests", "tests/unity/src")),
}  # fmt: skip
#: Files that are no part of a library: other programs, and code for other systems.
_LEFT_OUT = ("_test.cc", "_bench.cc", "windows", "leveldbutil", "testutil")
#: What build systems would write.
_GIVEN = {
    "config.h": "",
    "expat_config.h": "#define BYTEORDER 1234\n#define HAVE_GETRANDOM 1\n#define XML_CONTEXT_BYTES 1024\n#define XML_DTD\n#define XML_NS\n",
    "port/port_config.h": "#define HAVE_FDATASYNC 1\n#define HAVE_FULLFSYNC 0\n#define HAVE_O_CLOEXEC 1\n#define HAVE_CRC32C 0\n"
    "#define HAVE_SNAPPY 0\n#define HAVE_ZSTD 0\n",
}


@pytest.fixture(params=TESTS.values(), ids=list(TESTS))
def own_test(request: pytest.FixtureRequest) -> OwnTest:
    found: OwnTest = request.param
    return found


def test_programs_do_what_they_do_as_executables(own_test: OwnTest, peer_dir: Path, tmp_path: Path) -> None:
    places = Places(peer_dir, tmp_path, debug=False)
    try:
        root = places.source(own_test.package)
        found = [path for pattern in (*own_test.library, *own_test.program) for path in sorted(root.glob(pattern))]
        files = [path for path in found if not any(mark in path.name for mark in _LEFT_OUT)]
        for name, text in _GIVEN.items():
            (tmp_path / "given" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "given" / name).write_text(text)
        include = [f"-I{tmp_path / name if name == 'given' else root / name}" for name in own_test.folders]
        flags = ("-O2", "-fPIC", "-w", *own_test.flags, *include)
        made = [places.made(f"{file.parent.name}-{file.stem}.bc", *_compiler(file, flags), "-emit-llvm", "-c", file) for file in files]
        codes = [path.read_bytes() for path in made]
        executable = places.made("program", "clang++", *made, "-pthread", *(f"-l{name}" for name in own_test.libraries))
    except UnavailableError as error:
        unavailable(str(error))
    with Cache(tmp_path / "cache") as cache:
        cache.add_modules([_with_libraries(source, own_test) for source in modules_of(codes)])
    given = (root / own_test.given).read_bytes() if own_test.given else b""
    ours = [sys.executable, "-c", _RUN, str(tmp_path / "cache"), str(executable)]
    outcomes = [_outcome(command, own_test, given, tmp_path / name) for name, command in (("cached", ours), ("plain", [str(executable)]))]
    assert outcomes[0] == outcomes[1]
    assert outcomes[1][0] == 0


def _with_libraries(source: ModuleSource, own_test: OwnTest) -> ModuleSource:
    """C++ has a library; libdeflate's programs compare it with the system's zlib."""
    source.libraries = own_test.libraries
    return source


def _compiler(file: Path, flags: tuple[str, ...]) -> list[str]:
    if file.suffix == ".c":
        return ["clang", *[flag for flag in flags if not flag.startswith("-std=c++")]]
    return ["clang++", *flags]


def _outcome(command: list[str], own_test: OwnTest, given: bytes, directory: Path) -> tuple[int, bytes, bytes, dict[str, bytes]]:
    """Exit status, what was printed, and the files that were written."""
    directory.mkdir()
    done = subprocess.run([*command, *own_test.arguments], input=given, capture_output=True, cwd=directory, check=False)
    written = {path.name: path.read_bytes() for path in directory.iterdir()}
    return done.returncode, done.stdout, done.stderr, written


# ------------------------------------------------------------------------ BLAS


@pytest.mark.parametrize("name", ["dblat1", "dblat2", "dblat3"])
def test_blas_passes_its_own_tests(name: str, peer_dir: Path, tmp_path: Path) -> None:
    """The reference implementation in Fortran: programs that read and write files by the run time that all modules share."""
    places = Places(peer_dir, tmp_path, debug=False)
    try:
        compiler, run_time = flang(places)
        root = places.source("lapack") / "BLAS"
        library = [path for path in sorted(root.glob("SRC/[dlx]*.f*")) if path.stem != "xerbla" or name == "dblat1"]
        files = [*library, root / "SRC/idamax.f", root / f"TESTING/{name}.f"]
        made = [places.made(f"{file.stem}.bc", compiler, "-O1", "-fPIC", "-emit-llvm", "-c", file) for file in files]
        objects = [places.made(f"{file.stem}.o", compiler, "-O1", "-fPIC", "-c", file) for file in files]
        executable = places.made("program", compiler, *objects)
    except UnavailableError as error:
        unavailable(str(error))
    with Cache(tmp_path / "cache") as cache:
        cache.add_modules([ModuleSource(path.read_bytes(), archives=[str(run_time)]) for path in made])
    given = root / f"TESTING/{name}.in"
    own_test = OwnTest("lapack", (), ())
    text = given.read_bytes() if given.exists() else b""
    ours = [sys.executable, "-c", _RUN, str(tmp_path / "cache"), str(executable)]
    outcomes = [_outcome(command, own_test, text, tmp_path / kind) for kind, command in (("cached", ours), ("plain", [str(executable)]))]
    assert outcomes[0] == outcomes[1]
    assert outcomes[1][0] == 0
    assert b"PASS" in b"".join([outcomes[1][1], *outcomes[1][3].values()])


# ----------------------------------------------------------------------- cmark


def test_cmark_passes_its_own_test_of_the_interface_and_its_specification(peer_dir: Path, tmp_path: Path) -> None:
    places = Places(peer_dir, tmp_path, debug=False)
    try:
        root = places.source("cmark")
        (tmp_path / "given").mkdir()
        for name, text in _CMARK_GIVEN.items():
            (tmp_path / "given" / name).write_text(text)
        flags = ("-O2", "-fPIC", "-w", "-DCMARK_STATIC_DEFINE", f"-I{tmp_path / 'given'}", f"-I{root / 'src'}", f"-I{root / 'api_test'}")
        files = [*(path for path in sorted(root.glob("src/*.c")) if path.name != "main.c"), *sorted(root.glob("api_test/*.c"))]
        codes = [
            places.made(f"{file.parent.name}-{file.stem}.bc", "clang", *flags, "-emit-llvm", "-c", file).read_bytes() for file in files
        ]
        cplusplus = root / "api_test/cplusplus.cpp"
        codes.append(places.made("cplusplus.bc", "clang++", *flags, "-emit-llvm", "-c", cplusplus).read_bytes())
    except UnavailableError as error:
        unavailable(str(error))
    with Cache(tmp_path / "cache") as cache:
        sources = modules_of(codes)
        for source in sources:
            source.libraries = ("stdc++",)
        cache.add_modules(sources)
        render = cache.get_target("cmark_markdown_to_html")
        examples = _EXAMPLE.findall((root / "test/spec.txt").read_text(encoding="utf-8"))
        assert len(examples) > 600
        for number, (markdown, html) in enumerate(examples, 1):
            data = markdown.replace("→", "\t").encode()
            given = ctypes.create_string_buffer(data, len(data))
            rendered = ctypes.string_at(render(ctypes.addressof(given), len(data), 1 << 17)).decode()  # CMARK_OPT_UNSAFE
            assert rendered == html.replace("→", "\t"), number
    command = [sys.executable, "-c", _RUN, str(tmp_path / "cache"), "api_test"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert re.search(r"[1-9]\d* tests passed, 0 failed, 0 skipped", done.stderr), done.stderr[-500:]


#: An example of CommonMark's specification: what is given, and the HTML.
_EXAMPLE = re.compile(r"^`{32} example\n(.*?)^\.\n(.*?)^`{32}$", re.DOTALL | re.MULTILINE)
#: What CMake would write.
_CMARK_GIVEN = {
    "config.h": "#define HAVE_STDBOOL_H\n#include <stdbool.h>\n#define HAVE___BUILTIN_EXPECT\n#define HAVE___ATTRIBUTE__\n"
    "#define CMARK_ATTRIBUTE(list) __attribute__ (list)\n#define CMARK_INLINE inline\n",
    "cmark_version.h": '#define CMARK_VERSION ((0 << 16) | (30 << 8) | 2)\n#define CMARK_VERSION_STRING "0.30.2"\n',
    "cmark_export.h": "#define CMARK_EXPORT\n#define CMARK_NO_EXPORT\n",
}
