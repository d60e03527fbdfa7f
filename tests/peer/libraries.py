"""Which files of a source distribution make up the C library inside, and with which flags."""

from __future__ import annotations

import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .bitcode import link

if TYPE_CHECKING:
    from collections.abc import Callable

    from .compilers import Compiler

CSRC = Path(__file__).with_name("csrc")


@dataclass(frozen=True, slots=True)
class Library:
    """A C library: the source distribution that has it, its files below the root, flags for the compiler."""

    sdist: str
    files: tuple[str, ...]
    flags: tuple[str, ...] = ()

    def modules(self, sdist: Callable[[str], Path], compiler: Compiler) -> dict[str, bytes]:
        """The bitcode of each file, by the file's name without its suffix."""
        root = sdist(self.sdist)
        sources = [root / file for file in self.files]
        return {source.stem: compiler.bitcode(source, *self.flags) for source in sources}

    def module(self, sdist: Callable[[str], Path], compiler: Compiler) -> bytes:
        """The whole library as one module."""
        return link(self.modules(sdist, compiler).values())


def _files(folder: str, names: str, suffix: str = ".c") -> tuple[str, ...]:
    return tuple(f"{folder}{name}{suffix}" for name in names.split())


XXHASH = Library("xxhash", ("deps/xxhash/xxhash.c",))
XXHASH_DISPATCH = Library("xxhash", ("deps/xxhash/xxhash.c", "deps/xxhash/xxh_x86dispatch.c"))
LZ4 = Library("lz4", _files("lz4libs/", "lz4 lz4hc lz4frame xxhash"))
ZSTD = Library("zstandard", ("zstd/zstd.c",), ("-DZSTD_MULTITHREAD",))
ZLIB = Library(
    "blosc",
    _files(
        "blosc/c-blosc/internal-complibs/zlib-1.3.1/",
        "adler32 compress crc32 deflate gzclose gzlib gzread gzwrite infback inffast inflate inftrees trees uncompr zutil",
    ),
    ("-DHAVE_UNISTD_H",),
)
#: With inline assembly, functions for several CPUs and the choice among them at the first call.
LIBDEFLATE = Library(
    "deflate",
    _files(
        "libdeflate/lib/",
        "adler32 crc32 deflate_compress deflate_decompress gzip_compress gzip_decompress utils zlib_compress zlib_decompress "
        + ("arm" if platform.machine() == "aarch64" else "x86") + "/cpu_features",
    ),
)  # fmt: skip
SQLITE = Library("sqlcipher3", ("vendor/sqlite3.c",))
LUA = Library(
    "lupa",
    _files(
        "third-party/lua54/l",
        "api code ctype debug do dump func gc lex mem object opcodes parser state string table tm undump vm zio "
        "auxlib baselib corolib dblib iolib mathlib oadlib oslib strlib tablib utf8lib init",
    ),
    ("-DLUA_USE_POSIX",),
)
YAML = Library(
    "ruamel.yaml.clib",
    _files("", "api dumper emitter loader parser reader scanner writer"),
    ("-DHAVE_CONFIG_H",),
)
REGEX = Library("regex", _files("src/", "_regex _regex_unicode"), (f"-I{sysconfig.get_path('include')}",))


def own_source(name: str) -> Path:
    """A C file of the tests."""
    return CSRC / f"{name}.c"
