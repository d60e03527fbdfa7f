"""Libraries of many files, each with flags of its own: as bitcode, as what build systems say of them, and as a shared object.

What is compared (`test_linked_libraries.py`) is also what is measured; so nothing here knows pytest.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import struct
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache import ModuleSource

from .programs import CSRC, PROGRAMS, Places, files_of_expressions, flang, symbols_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from compcache import Cache

    #: Calls a function of a library by its name, with numbers and addresses.
    Call = Callable[..., Any]

_ONLY_CODE = ("-O2", "-Xclang", "-disable-llvm-passes", "-fPIC")
LINK = ("-shared", "-Wl,-Bsymbolic")
_TYPES = {"v": None, "i": ctypes.c_int, "q": ctypes.c_int64, "p": ctypes.c_void_p, "d": ctypes.c_double, "f": ctypes.c_float}


class File(NamedTuple):
    """A file of source code, and the flags that it has besides those of the library."""

    path: Path
    flags: tuple[str, ...] = ()


class Library(NamedTuple):
    """The files of a shared object, in their order, and how a compiler makes one of them.

    `libraries` are those that it links, without "-l"; `functions` has the types of those that are called, as "result:arguments",
    and `exercise` calls them with inputs of a generator and yields what they answer. The `first` files have modules that others use.
    """

    name: str
    compiler: str
    files: tuple[File, ...]
    flags: tuple[str, ...]
    functions: dict[str, str]
    exercise: Callable[[Call, random.Random], Iterator[object]]
    libraries: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    first: int = 0

    def command(self, file: File) -> tuple[str, ...]:
        """The flags of one file."""
        return (*self.flags, *file.flags)

    def bitcode(self, places: Places) -> list[bytes]:
        """The bitcode of each file."""
        return [path.read_bytes() for path in self._compiled(places, ".bc")]

    def sources(self, places: Places, **options: Any) -> list[ModuleSource]:
        """A source for each file that defines something."""
        options = {"libraries": self.libraries, "archives": self.archives, "optimize": 0, **options}
        return [ModuleSource(code, **options) for code in self.bitcode(places) if symbols_of(code)[0]]

    def ordinary(self, places: Places) -> Path:
        """The shared object that a linker makes of the same files."""
        objects = self._compiled(places, ".o")
        return places.made(f"{self.name}.so", self.compiler, *LINK, *objects, *(f"-l{name}" for name in self.libraries))

    def compile_commands(self, places: Places) -> Path:
        """The folder of a ``compile_commands.json``, as CMake writes it, that says how each file is compiled."""
        folder = places.out / f"{self.name}-build"
        folder.mkdir(exist_ok=True)
        entries = [
            {
                "directory": str(folder),
                "command": shlex.join([self.compiler, *self.command(file), "-o", f"{number}.o", "-c", str(file.path)]),
                "file": str(file.path),
            }
            for number, file in enumerate(self.files)
        ]
        (folder / "compile_commands.json").write_text(json.dumps(entries, indent=1))
        return folder

    def _compiled(self, places: Places, ending: str) -> list[Path]:
        def compiled(number: int) -> Path:
            file = self.files[number]
            name = f"{self.name}-{number}-{file.path.stem}"
            code = places.made(f"{name}.bc", self.compiler, *self.command(file), "-emit-llvm", "-c", file.path)
            if ending == ".bc":
                return code
            if self.compiler in ("clang", "clang++"):  # the source is what takes the time
                return places.made(f"{name}.o", self.compiler, *_ONLY_CODE, "-c", code)
            return places.made(f"{name}.o", self.compiler, *self.command(file), "-c", file.path)

        numbers = range(len(self.files))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return [*map(compiled, numbers[: self.first]), *pool.map(compiled, numbers[self.first :])]

    def in_shared_object(self, path: Path) -> Call:
        """Calls the functions of a shared object."""
        library = ctypes.CDLL(str(path))
        found = {}
        for name, types in self.functions.items():
            function = found[name] = getattr(library, name)
            result, arguments = types.split(":")
            function.restype, function.argtypes = _TYPES[result], [_TYPES[letter] for letter in arguments]
        return lambda name, *arguments: found[name](*arguments)

    def in_cache(self, cache: Cache) -> Call:
        """Calls the functions of a cache; their modules stay loaded for as long as this lives."""
        found = {name: cache.get_target(name) for name in self.functions}
        return lambda name, *arguments: found[name](*arguments)

    def answers(self, call: Call, generator: random.Random) -> list[object]:
        """What the functions answer to inputs of the generator."""
        return list(self.exercise(call, generator))


class Memory:
    """Buffers for as long as this lives, by their addresses."""

    def __init__(self) -> None:
        self._buffers: dict[int, ctypes.Array[ctypes.c_char]] = {}

    def __call__(self, content: bytes | int) -> int:
        """The address of a new buffer with this content, or of this size."""
        buffer = (
            ctypes.create_string_buffer(content, len(content) + 1) if isinstance(content, bytes) else ctypes.create_string_buffer(content)
        )
        address = ctypes.addressof(buffer)
        self._buffers[address] = buffer
        return address

    @staticmethod
    def read(address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)


# ---------------------------------------------------------------------- libsodium

_SODIUM_DEFINES = """
NATIVE_LITTLE_ENDIAN=1 HAVE_TI_MODE=1 HAVE_PTHREAD=1 HAVE_C_VARARRAYS=1 HAVE_CATCHABLE_SEGV=1 HAVE_CPUID=1 HAVE_RDRAND=1
HAVE_MMINTRIN_H=1 HAVE_EMMINTRIN_H=1 HAVE_PMMINTRIN_H=1 HAVE_TMMINTRIN_H=1 HAVE_SMMINTRIN_H=1 HAVE_AVXINTRIN_H=1
HAVE_AVX2INTRIN_H=1 HAVE_AVX512FINTRIN_H=1 HAVE_WMMINTRIN_H=1 HAVE_SYS_MMAN_H=1 HAVE_SYS_RANDOM_H=1 HAVE_INTTYPES_H=1
HAVE_STDINT_H=1 HAVE_INLINE_ASM=1 HAVE_WEAK_SYMBOLS=1 HAVE_ATOMIC_OPS=1 HAVE_ALLOCA_H=1 HAVE_ALLOCA=1 HAVE_MMAP=1 HAVE_MLOCK=1
HAVE_MADVISE=1 HAVE_MPROTECT=1 HAVE_RAISE=1 HAVE_SYSCONF=1 HAVE_GETRANDOM=1 HAVE_GETENTROPY=1 HAVE_GETPID=1 HAVE_POSIX_MEMALIGN=1
HAVE_NANOSLEEP=1 HAVE_CLOCK_GETTIME=1 HAVE_EXPLICIT_BZERO=1 TLS=_Thread_local CONFIGURED=1 _GNU_SOURCE=1
"""
#: What a word in the name of a file says of its flags, as in libsodium's own Makefile.am.
_SODIUM_FLAGS = {
    "_aesni": "-mssse3 -mavx -maes -mpclmul",
    "sse2": "-msse2",
    "_sse.": "-msse2",
    "ssse3": "-mssse3",
    "sse41": "-msse4.1",
    "avx2": "-mavx2",
    "avx512f": "-mavx2 -mavx512f",
    "internal_random": "-mrdrnd",
}


def libsodium(places: Places) -> Library:
    """All its C files: 119, some of which are empty on this processor."""
    root = places.sdist("pynacl") / "src/libsodium"
    source = root / "src/libsodium"
    headers = places.out / "sodium-headers"
    headers.mkdir(exist_ok=True)
    (headers / "version.h").write_text((root / "builds/msvc/version.h").read_text())
    files = []
    for path in sorted(source.glob("**/*.c")):
        words = [flags for word, flags in _SODIUM_FLAGS.items() if word in path.name]
        files.append(File(path, tuple(" ".join(words).split())))
    include = (f"-I{headers}", f"-I{source / 'include/sodium'}", f"-I{source / 'include'}")
    flags = (*(f"-D{define}" for define in _SODIUM_DEFINES.split()), *include, "-fPIC", "-fvisibility=hidden", "-w", "-O2", "-pthread")
    return SODIUM._replace(files=tuple(files), flags=flags)


_SODIUM_FUNCTIONS = {
    "sodium_init": "i:",
    "randombytes_buf_deterministic": "v:pqp",
    "crypto_hash_sha256": "i:ppq",
    "crypto_hash_sha512": "i:ppq",
    "crypto_generichash": "i:pqpqpq",
    "crypto_shorthash": "i:ppqp",
    "crypto_auth": "i:ppqp",
    "crypto_onetimeauth": "i:ppqp",
    "crypto_stream_xor": "i:ppqpp",
    "crypto_stream_chacha20_xor": "i:ppqpp",
    "crypto_secretbox_easy": "i:ppqpp",
    "crypto_secretbox_open_easy": "i:ppqpp",
    "crypto_aead_xchacha20poly1305_ietf_encrypt": "i:pppqpqppp",
    "crypto_aead_aegis256_encrypt": "i:pppqpqppp",
    "crypto_aead_aes256gcm_is_available": "i:",
    "crypto_sign_seed_keypair": "i:ppp",
    "crypto_sign_detached": "i:pppqp",
    "crypto_sign_verify_detached": "i:ppqp",
    "crypto_box_seed_keypair": "i:ppp",
    "crypto_box_easy": "i:ppqppp",
    "crypto_scalarmult_base": "i:pp",
    "crypto_scalarmult": "i:ppp",
    "crypto_kdf_derive_from_key": "i:pqqpp",
    "crypto_pwhash": "i:pqpqpqqi",
    "crypto_pwhash_scryptsalsa208sha256_ll": "i:pqpqqiipq",
    "crypto_core_ristretto255_from_hash": "i:pp",
    "sodium_bin2hex": "p:pqpq",
    "sodium_version_string": "p:",
}


def _use_sodium(call: Call, generator: random.Random) -> Iterator[object]:
    memory = Memory()
    out, size = memory(4096), memory(8)
    yield call("sodium_init") in (0, 1), call("crypto_aead_aes256gcm_is_available")
    yield memory.read(call("sodium_version_string"), 6)

    def answer(length: int, name: str, *arguments: int) -> tuple[str, int, bytes]:
        ctypes.memset(out, 0, 4096)
        return name, call(name, out, *arguments), memory.read(out, length)

    for number in range(40):
        length = generator.randrange(0, 1500)
        text, seed, nonce = memory(generator.randbytes(length)), memory(generator.randbytes(32)), memory(generator.randbytes(32))
        yield answer(100, "randombytes_buf_deterministic", 100, seed)
        yield answer(32, "crypto_hash_sha256", text, length)
        yield answer(64, "crypto_hash_sha512", text, length)
        yield answer(48, "crypto_generichash", 48, text, length, seed, 32)
        yield answer(8, "crypto_shorthash", text, length, seed)
        yield answer(32, "crypto_auth", text, length, seed)
        yield answer(16, "crypto_onetimeauth", text, length, seed)
        yield answer(length, "crypto_stream_xor", text, length, nonce, seed)
        yield answer(length, "crypto_stream_chacha20_xor", text, length, nonce, seed)
        yield answer(length + 16, "crypto_secretbox_easy", text, length, nonce, seed)
        sealed = memory(memory.read(out, length + 16))
        yield answer(length, "crypto_secretbox_open_easy", sealed, length + 16, nonce, seed)
        yield answer(length + 16, "crypto_aead_xchacha20poly1305_ietf_encrypt", size, text, length, seed, 32, 0, nonce, seed)
        yield answer(length + 32, "crypto_aead_aegis256_encrypt", size, text, length, seed, 32, 0, nonce, seed)
        public, secret = memory(32), memory(64)
        yield call("crypto_sign_seed_keypair", public, secret, seed), memory.read(public, 32), memory.read(secret, 64)
        yield answer(64, "crypto_sign_detached", size, text, length, secret)
        signature = memory(memory.read(out, 64))
        yield call("crypto_sign_verify_detached", signature, text, length, public)
        yield call("crypto_sign_verify_detached", signature, text, length, nonce)
        yield call("crypto_box_seed_keypair", public, secret, seed), memory.read(public, 32)
        yield answer(length + 16, "crypto_box_easy", text, length, nonce, public, secret)
        yield answer(32, "crypto_scalarmult_base", seed)
        yield answer(32, "crypto_scalarmult", seed, public)
        yield answer(40, "crypto_kdf_derive_from_key", 40, number, nonce, seed)
        yield answer(32, "crypto_core_ristretto255_from_hash", memory(generator.randbytes(64)))
        yield answer(64, "sodium_bin2hex", 65, seed, 32)[2]
        if number % 8 == 0:
            for algorithm in (1, 2):
                yield answer(32, "crypto_pwhash", 32, text, length, nonce, 3, 1 << 18, algorithm)
            yield call("crypto_pwhash_scryptsalsa208sha256_ll", text, length, nonce, 32, 64, 8, 1, out, 64), memory.read(out, 64)


#: What can be called of it.
SODIUM = Library("sodium", "clang", (), (), _SODIUM_FUNCTIONS, _use_sodium, ("pthread",))


# ---------------------------------------------------------------- c-blosc2, lz4 and zstd


def blosc2(places: Places) -> Library:
    """c-blosc2 with its lz4 and zstd, files for instructions of their own included."""
    root = places.sdist("blosc2") / "blosc2/c-blosc2"
    lz4, zstd = root / "internal-complibs/lz4-1.10.0", root / "internal-complibs/zstd-1.5.6"
    headers = places.out / "blosc-headers"
    headers.mkdir(exist_ok=True)
    (headers / "config.h").write_text("#define HAVE_ZSTD 1\n")
    wide = {"-avx512.c": ("-mavx512f", "-mavx512bw"), "-avx2.c": ("-mavx2",), "-sse2.c": ("-msse2",)}
    kinds = ("SSE2", "AVX2", "AVX512")
    chosen = {"shuffle.c": tuple(f"-DSHUFFLE_{kind}_ENABLED" for kind in kinds)}
    found = [
        *root.glob("blosc/*.c"),
        *lz4.glob("*.c"),
        *(path for part in ("common", "compress", "decompress", "dictBuilder") for path in zstd.glob(f"{part}/*.c")),
    ]
    files = []
    for path in sorted(found):
        own = next((flags for ending, flags in wide.items() if path.name.endswith(ending)), ())
        if not re.search(r"-(neon|altivec)\.c$", path.name):
            files.append(File(path, (*own, *chosen.get(path.name, ()))))
    folders = (headers, root / "include", root / "blosc", lz4, zstd, zstd / "common")
    defines = ("-DUSING_CMAKE", "-DBLOSC_SHARED_LIBRARY", "-DZSTD_DISABLE_ASM", "-DXXH_NAMESPACE=ZSTD_")
    flags = (*defines, *(f"-I{folder}" for folder in folders), "-std=gnu99", "-fPIC", "-w", "-O2", "-pthread")
    return Library("blosc2", "clang", tuple(files), flags, _BLOSC_FUNCTIONS, _use_blosc, ("m", "pthread"))


_BLOSC_FUNCTIONS = {
    "blosc2_init": "v:",
    "blosc2_destroy": "v:",
    "blosc2_set_nthreads": "i:i",
    "blosc1_set_compressor": "i:p",
    "blosc2_list_compressors": "p:",
    "blosc2_set_delta": "v:i",
    "blosc2_compress": "i:iiipipi",
    "blosc2_decompress": "i:pipi",
    "blosc1_getitem": "i:piip",
    "LZ4_compress_HC": "i:ppiii",
    "LZ4_decompress_safe": "i:ppii",
    "ZSTD_compress": "q:pqpqi",
    "ZSTD_decompress": "q:pqpq",
    "ZSTD_isError": "i:q",
    "ZSTD_getErrorName": "p:q",
    "ZDICT_trainFromBuffer": "q:pqppi",
}


def _use_blosc(call: Call, generator: random.Random) -> Iterator[object]:
    memory, room = Memory(), 1 << 17
    packed, plain = memory(room), memory(room)
    call("blosc2_init")
    names = ctypes.string_at(call("blosc2_list_compressors"))
    yield names
    for name in names.split(b","):
        for shuffle in (0, 1, 2):
            for typesize in (1, 2, 4, 7, 8, 16):
                for level in (1, 5, 9):
                    base = generator.randrange(1 << 16)
                    items = generator.randrange(1, 3000)
                    text = b"".join((base + n * n % 97).to_bytes(typesize + 3, "little")[:typesize] for n in range(items))
                    given, length = memory(text), len(text)
                    yield call("blosc1_set_compressor", memory(name))
                    call("blosc2_set_delta", generator.randrange(2))
                    call("blosc2_set_nthreads", 1)
                    size = call("blosc2_compress", level, shuffle, typesize, given, length, packed, room)
                    yield name, shuffle, typesize, level, size, memory.read(packed, size)
                    call("blosc2_set_nthreads", generator.choice((1, 3)))
                    yield call("blosc2_decompress", packed, size, plain, room), memory.read(plain, length) == text
                    yield call("blosc1_getitem", packed, items // 2, items // 3, plain), memory.read(plain, items // 3 * typesize)
    yield call("blosc1_set_compressor", memory(b"zlib"))
    call("blosc2_destroy")
    samples = [b"%d,%s;" % (n % 37, b"abc" * (n % 5)) for n in range(4000)]
    joined = b"".join(samples)
    sizes = memory(b"".join(len(sample).to_bytes(8, "little") for sample in samples))
    size = call("ZDICT_trainFromBuffer", plain, 4096, memory(joined), sizes, len(samples))
    yield size, call("ZSTD_isError", size), memory.read(plain, max(size, 0)) if size < 4097 else b""
    for _ in range(50):
        start = generator.randrange(len(joined) // 2)
        text = joined[start : start + generator.randrange(8000)]
        given = memory(text)
        size = call("LZ4_compress_HC", given, packed, len(text), room, generator.randrange(1, 12))
        yield size, memory.read(packed, size), call("LZ4_decompress_safe", packed, plain, size, room), memory.read(plain, len(text)) == text
        size = call("ZSTD_compress", packed, room, given, len(text), generator.randrange(1, 19))
        yield size, memory.read(packed, size), call("ZSTD_decompress", plain, room, packed, size), memory.read(plain, len(text)) == text
        ctypes.memset(packed + size // 2, 255, 3)
        yield ctypes.string_at(call("ZSTD_getErrorName", call("ZSTD_decompress", plain, room, packed, size)))


# -------------------------------------------------------------- one file with flags of several

_FLAGS = {
    "plain": (),
    "promising": ("-DPROMISES",),
    "quick": ("-fno-math-errno",),
    "fast": ("-ffast-math",),
    "free": ("-ffreestanding", "-fno-plt"),
    "null": ("-fno-delete-null-pointer-checks", "-fno-strict-aliasing"),
    "rounding": ("-frounding-math", "-ffp-exception-behavior=strict"),
    "guarded": ("-Os", "-fstack-protector-all", "-fcf-protection=full", "-fno-omit-frame-pointer"),
    "builtin": ("-fno-builtin",),
}
_WITH_FLAGS = ("arc", "root", "unused", "pointer", "given", "looks", "length", "structs", "vector")
#: Where flags or promises make the answers of a file's own functions undefined.
_UNDEFINED = {f"{name}_{flags}" for name in ("arc", "root", "unused") for flags in ("promising", "quick", "fast")}
_UNDEFINED |= {"looks_promising", "given_promising"}


def promises(_: Places) -> Library:
    """`csrc/promises.c`, whose answers depend on what other files promise if a linker applies that to its calls."""
    own = [File(CSRC / "promises.c", (f"-DN={name}", *flags)) for name, flags in _FLAGS.items()]
    files = (*own[1:], own[0], File(CSRC / "promises.c"))
    names = [f"{name}_{flags}" for flags in _FLAGS for name in _WITH_FLAGS]
    functions = {name: "i:i" for name in names if name not in _UNDEFINED}
    flags = ("-O2", "-Xclang", "-disable-llvm-passes", "-w", "-fPIC")
    return Library("promises", "clang", files, flags, functions, _use_promises, ("m",))


def _use_promises(call: Call, _: random.Random) -> Iterator[object]:
    functions = [f"{name}_{flags}" for flags in _FLAGS for name in _WITH_FLAGS]
    yield from [(name, x, call(name, x)) for name in functions if name not in _UNDEFINED for x in (2, 5, 1000)]


# -------------------------------------------------------------------- htslib and bcftools

_HTSLIB_CONFIG = """\
#define HAVE_LIBBZ2 1
#define HAVE_LIBLZMA 1
#define HAVE_LZMA_H 1
#define HAVE_DRAND48 1
#define HAVE_FDATASYNC 1
#define HAVE_FSYNC 1
#define HAVE_GETPAGESIZE 1
#define HAVE_GMTIME_R 1
#define HAVE_MMAP 1
#define HAVE_POPCNT 1
#define HAVE_SSE4_1 1
#define HAVE_SSSE3 1
#define HAVE_AVX2 1
#define HAVE_AVX512 1
#define HAVE_X86INTRIN_H 1
#define HAVE_ATTRIBUTE_CONSTRUCTOR 1
#define HAVE_ATTRIBUTE_TARGET_SSSE3 1
#define HAVE_BUILTIN_CPU_SUPPORT_SSSE3 1
#define HAVE_DECL___CPUID_COUNT 1
#define HAVE_DECL___GET_CPUID_MAX 1
#define PLUGIN_EXT ".so"
#define _XOPEN_SOURCE 600
"""
_HTSLIB_VERSIONS = """\
#define HTS_VERSION_TEXT "1.24"
#define BCFTOOLS_VERSION "1.24"
#define HTSCODECS_VERSION_TEXT "1.6"
"""


def bcftools(places: Places) -> Library:
    """bcftools, which defines `error` as the C library does, and htslib without libcurl and without `regidx.c`, which bcftools has."""
    root = places.sdist("pysam")
    headers = places.out / "htslib-headers"
    headers.mkdir(exist_ok=True)
    (headers / "config.h").write_text(_HTSLIB_CONFIG)
    (headers / "version.h").write_text(_HTSLIB_VERSIONS)
    names = ("CC", "CPPFLAGS", "CFLAGS", "LDFLAGS", "LIBS")
    (headers / "config_vars.h").write_text("".join(f'#define HTS_{name} ""\n' for name in names))
    wide = {"_sse4.c": "-msse4.1 -mssse3 -mpopcnt", "_avx2.c": "-mavx2 -mpopcnt", "_avx512.c": "-mavx512f -mpopcnt"}
    own = [*root.glob("bcftools/*.pysam.c")]
    left_out = [root / f"htslib/{name}.c" for name in ("regidx", "hfile_libcurl", "hfile_s3", "hfile_gcs")]
    library = [path for part in ("", "cram/", "htscodecs/htscodecs/") for path in root.glob(f"htslib/{part}*.c")]
    files = []
    for path in [*sorted(own), *sorted(library)]:
        wider = next((flags for ending, flags in wide.items() if path.name.endswith(ending)), "")
        # For readers of the package, which renames it, it is the name of the C library again.
        renamed = ("-Dbcftools_error=error",) if path in own else ()
        if path not in left_out:
            files.append(File(path, (*wider.split(), *renamed)))
    folders = (headers, root / "bcftools", root / "htslib", root / "htslib/htscodecs")
    flags = (*(f"-I{folder}" for folder in folders), "-D_GNU_SOURCE", "-fPIC", "-w", "-O2", "-pthread")
    return Library("bcftools", "clang", tuple(files), flags, _BCFTOOLS_FUNCTIONS, _use_bcftools, ("z", "bz2", "lzma", "m", "pthread"))


_BCFTOOLS_FUNCTIONS = {
    "bcftools_dispatch": "i:ip",
    "bcftools_set_stdout": "p:i",
    "bcftools_set_stderr": "p:i",
    "bcftools_close_stdout": "v:",
    "bcftools_close_stderr": "v:",
    "hts_version": "p:",
    "hts_set_log_level": "v:i",
    "hts_parse_decimal": "q:ppi",
    "kf_betai": "d:ddd",
    "kf_gammap": "d:dd",
    "rans_compress_4x16": "p:pipi",
    "rans_uncompress_4x16": "p:pip",
}


def _variants(generator: random.Random) -> str:
    """A file of variants, as VCF."""
    lines = ["##fileformat=VCFv4.2", "##contig=<ID=1,length=90000>", "##contig=<ID=2,length=90000>"]
    lines += ['##INFO=<ID=DP,Number=1,Type=Integer,Description="Depth">', '##INFO=<ID=AF,Number=A,Type=Float,Description="Share">']
    lines += [
        '##FORMAT=<ID=GT,Number=1,Type=String,Description="Genotype">',
        '##FORMAT=<ID=GQ,Number=1,Type=Integer,Description="Quality">',
    ]
    lines += ['##FILTER=<ID=q10,Description="Poor">', "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\ta\tb\tc"]
    for chromosome in "12":
        position = 0
        for number in range(generator.randrange(5, 40)):
            position += generator.randrange(1, 900)
            alleles = generator.sample(["A", "C", "G", "T", "AT", "CGG"], generator.randrange(2, 4))
            shares = ",".join(f"{generator.random():.3f}" for _ in alleles[1:])
            info = f"DP={generator.randrange(200)};AF={shares}"
            genotypes = [f"{generator.choice(('0/0', '0/1', '1|1', './.'))}:{generator.randrange(99)}" for _ in "abc"]
            passed = generator.choice(("PASS", "q10", "."))
            fields = [
                chromosome,
                position,
                f"rs{number}",
                alleles[0],
                ",".join(alleles[1:]),
                generator.randrange(60),
                passed,
                info,
                "GT:GQ",
            ]
            lines.append("\t".join(map(str, [*fields, *genotypes])))
    return "\n".join(lines) + "\n"


_BCFTOOLS_COMMANDS = (
    "view --no-version -o {out} -i DP>50&&QUAL<40 {vcf}",
    "view --no-version -o {out} -G -m3 {vcf}",
    "view --no-version -o {out} -Ob --threads 2 {vcf}",
    'query -o {out} -f %CHROM:%POS\\t%REF>%ALT\\t%INFO/AF[\\t%GT=%GQ]\\n -e GT[0]="mis" {vcf}',
    "filter --no-version -o {out} -s low -e AF[0]<0.3||GQ[1]<20 {vcf}",
    "norm --no-version -o {out} -m -any {vcf}",
    "stats -s - {vcf}",
    "annotate --no-version -o {out} -x INFO/DP,FORMAT/GQ {vcf}",
    "sort -o {out} {vcf}",
    "gtcheck -o {out} {vcf}",
    "roh -o {out} -G30 --AF-dflt 0.4 {vcf}",
    "view --no-version -o {out} -i NOSUCH=1 {vcf}",
    "view {vcf}.missing",
    "query -o {out} -f %NOSUCH\\n {vcf}",
)


def _use_bcftools(call: Call, generator: random.Random) -> Iterator[object]:
    yield ctypes.string_at(call("hts_version"))
    yield from _use_htslib(call, generator)
    with tempfile.TemporaryDirectory() as folder:
        vcf, paths = f"{folder}/in.vcf", [f"{folder}/{name}" for name in ("written", "out", "err")]
        for _ in range(20):
            Path(vcf).write_text(_variants(generator))
            for command in _BCFTOOLS_COMMANDS:
                Path(paths[0]).unlink(missing_ok=True)
                words = ["bcftools", *command.format(vcf=vcf, out=paths[0]).split()]
                status = _run_bcftools(call, words, *paths[1:])
                yield command, status, *[_without_own_names(path, folder) for path in paths]


def _use_htslib(call: Call, generator: random.Random) -> Iterator[object]:
    memory = Memory()
    size = memory(4)
    for _ in range(100):
        yield call("kf_betai", generator.random() * 9, generator.random() * 9, generator.random())
        yield call("kf_gammap", generator.random() * 9, generator.random() * 9)
        yield call("hts_parse_decimal", memory(b"%d.%dk" % (generator.randrange(99), generator.randrange(10))), 0, 0)
        text = bytes(generator.choices(b"acgtn", k=generator.randrange(1, 4000)))
        packed = call("rans_compress_4x16", memory(text), len(text), size, generator.choice((0, 1, 4, 5, 64, 193)))
        length = int.from_bytes(memory.read(size, 4), "little")
        yield memory.read(packed, length)
        plain = call("rans_uncompress_4x16", packed, length, size)
        yield memory.read(plain, len(text)) == text


def _run_bcftools(call: Call, words: list[str], out: str, err: str) -> int:
    memory = Memory()
    call("hts_set_log_level", 0)
    for name, path in (("bcftools_set_stdout", out), ("bcftools_set_stderr", err)):
        call(name, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    arguments = memory(b"".join(memory(word.encode()).to_bytes(8, "little") for word in words) + bytes(8))
    status: int = call("bcftools_dispatch", len(words), arguments)
    call("bcftools_close_stdout")
    call("bcftools_close_stderr")
    return status


def _without_own_names(path: str, folder: str) -> bytes:
    """The content of a file, without names of temporary files and times."""
    content = Path(path).read_bytes().replace(folder.encode(), b"") if os.path.exists(path) else b""
    return re.sub(rb"bcftools\.\w{6}|(?m:^.*(?:Time required|produced by).*$)", b"", content)


# ----------------------------------------------------------------------------- LAPACK

#: Lines that are no comments, in either form of source code.
_CODE = re.compile(r"(?m)^[^*!c\n].*")


def lapack(places: Places, rounding: str = "-ffp-contract=off") -> Library:
    """Three routines of LAPACK and all that they call, files of Fortran modules before those that use them.

    Each product and each sum is rounded, unless another flag is given: linked closures keep bits only of such code (`docs/linking.md`).
    The flag is a part of the name of each file.
    """
    compiler, runtime = flang(places)
    root = places.source("lapack")
    found: dict[str, Path] = {}
    there = {path.stem: path for pattern in ("BLAS/SRC/*.f*", "SRC/*.f*", "SRC/*.F90", "INSTALL/dlamch.f") for path in root.glob(pattern)}
    wanted = ["dgesv", "dsyev", "dgeev"]
    while wanted:
        name = wanted.pop()
        path = there.get(name)
        if path is not None and name not in found:
            found[name] = path
            code = "\n".join(_CODE.findall(path.read_text(encoding="latin-1").lower()))
            wanted += re.findall(r"[a-z]\w+", code)
    files = sorted(found.values(), key=lambda path: (not path.stem.startswith("la_"), path.name))
    name = f"lapack{rounding}"
    modules = places.out / f"{name}-modules"
    modules.mkdir(exist_ok=True)
    flags = ("-O2", "-fPIC", rounding, "-module-dir", str(modules))
    first = sum(path.stem.startswith("la_") for path in files)
    parts = tuple(map(File, files))
    return Library(name, str(compiler), parts, flags, _LAPACK_FUNCTIONS, _use_lapack, archives=(str(runtime),), first=first)


_LAPACK_FUNCTIONS = {"dgesv_": "v:pppppppp", "dsyev_": "v:pppppppppqq", "dgeev_": "v:ppppppppppppppqq"}


def _use_lapack(call: Call, generator: random.Random) -> Iterator[object]:
    memory = Memory()
    info = memory(8)

    def integer(value: int) -> int:
        return memory(value.to_bytes(4, "little"))

    def doubles(values: list[float]) -> int:
        return memory(struct.pack(f"{len(values)}d", *values))

    for number in range(120):
        n, columns = generator.randrange(1, 30), generator.randrange(1, 4)
        matrix = [generator.gauss(0, 1) for _ in range(n * n)]
        if number % 10 == 0:
            matrix[:n] = [0.0] * n  # singular
        order, right, room = integer(n), doubles([generator.random() for _ in range(n * columns)]), integer(64 * n)
        pivots, work = memory(4 * n), memory(8 * 64 * n)
        a = doubles(matrix)
        call("dgesv_", order, integer(columns), a, order, pivots, right, order, info)
        yield memory.read(a, 8 * n * n), memory.read(right, 8 * n * columns), memory.read(pivots, 4 * n), memory.read(info, 4)
        a, values = doubles(matrix), memory(8 * n)
        call("dsyev_", memory(b"V"), memory(generator.choice((b"U", b"L"))), order, a, order, values, work, room, info, 1, 1)
        yield memory.read(a, 8 * n * n), memory.read(values, 8 * n), memory.read(info, 4)
        a, imaginary, left, vectors = doubles(matrix), memory(8 * n), memory(8 * n * n), memory(8 * n * n)
        both = memory(b"V"), memory(b"V")
        call("dgeev_", *both, order, a, order, values, imaginary, left, order, vectors, order, work, room, info, 1, 1)
        yield [memory.read(place, 8 * n) for place in (values, imaginary)], memory.read(info, 4)
        yield memory.read(left, 8 * n * n), memory.read(vectors, 8 * n * n)


# ------------------------------------------------------------------- re2, abseil, SQLite


def expressions(places: Places) -> Library:
    """re2 on abseil, a file for each, called by a file of ours."""
    files, flags = files_of_expressions(places)
    functions = PROGRAMS["expressions"].functions

    def use(call: Call, generator: random.Random) -> Iterator[object]:
        for function in functions:
            for _ in range(150):
                given = function.make_input(generator)
                yield function.name, given, function.call(partial(call, function.name), given)

    types = dict.fromkeys([function.name for function in functions], "q:pqpq")
    linked = ("stdc++", "m", "pthread")
    return Library("expressions", "clang++", tuple(map(File, files)), (*flags, "-O1", "-fPIC"), types, use, linked)


def sqlite(places: Places) -> Library:
    """SQLite's amalgamation, and a file that calls it and is called by it."""
    vendor = places.sdist("sqlcipher3") / "vendor"
    files = (File(CSRC / "statements.c"), File(vendor / "sqlite3.c"))
    defines = ("-DSQLITE_ENABLE_FTS5", "-DSQLITE_ENABLE_RTREE", "-DSQLITE_ENABLE_MATH_FUNCTIONS", "-DSQLITE_THREADSAFE=1")
    flags = (*defines, f"-I{vendor}", "-fPIC", "-w", "-O1", "-pthread")
    return Library("sqlite", "clang", files, flags, {"run_statements": "q:pqpq", "sqlite3_libversion": "p:"}, _use_sqlite, ("m", "pthread"))


#: Statements as those of SQLite's own tests (`select1.test`, `fts5`, `rtree`, `window1`, `json101`), with room for numbers.
_STATEMENTS = """
CREATE TABLE t1(a INTEGER, b INTEGER, c INTEGER, d TEXT); CREATE INDEX t1i ON t1(b, c);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {0})
  INSERT INTO t1 SELECT i, i * {1} % 97, i * {2} % 31, printf('%s-%05d', char(97 + i % 7), i * {1} % 1009) FROM n;
SELECT CASE WHEN c > (SELECT avg(c) FROM t1) THEN a * 2 ELSE b * 10 END, abs(b - c) FROM t1 ORDER BY 1, 2 LIMIT 20;
SELECT d, digits(d) FROM t1 WHERE b BETWEEN {3} AND {3} + 30 OR digits(d) = {2} ORDER BY digits(d) DESC, d LIMIT 9;
SELECT c, count(*), sum(a), avg(b), group_concat(d, '/') FROM t1 GROUP BY c HAVING count(*) > 1 ORDER BY c LIMIT 8;
SELECT a, sum(b) OVER (PARTITION BY c ORDER BY a ROWS 2 PRECEDING), rank() OVER (ORDER BY b DESC) FROM t1 ORDER BY a LIMIT 12;
SELECT x.a, y.a FROM t1 x JOIN t1 y ON x.b = y.c AND x.a < y.a ORDER BY 1, 2 LIMIT 15;
UPDATE t1 SET d = replace(d, 'a', 'zz'), c = NULL WHERE a % {1} = 1; DELETE FROM t1 WHERE b IN (SELECT c FROM t1 WHERE a < {2});
SELECT count(*), total(c), min(d), max(d), hex(zeroblob(3)), round(sqrt(sum(b)), 6) FROM t1;
CREATE VIRTUAL TABLE f USING fts5(d); INSERT INTO f SELECT d FROM t1; SELECT d FROM f WHERE f MATCH 'b OR zz' ORDER BY rank, d LIMIT 6;
CREATE VIRTUAL TABLE r USING rtree(id, x0, x1); INSERT INTO r SELECT a, min(b, c), max(b, c) FROM t1 WHERE c NOT NULL;
SELECT count(*), sum(id) FROM r WHERE x0 >= {3} AND x1 <= 70;
SELECT json_group_array(json_object('a', a, 'd', d)) FROM (SELECT a, d FROM t1 ORDER BY a DESC LIMIT 3);
PRAGMA integrity_check; SELECT strftime('%Y-%j', 86400 * a, 'unixepoch') FROM t1 ORDER BY a LIMIT 2;
"""
_WRONG = ("SELECT nothing FROM t1;", "INSERT INTO t1 VALUES (1);", "CREATE TABLE t1(a);", "SELECT (1;", "SELECT abs(-9223372036854775808);")


def _use_sqlite(call: Call, generator: random.Random) -> Iterator[object]:
    memory = Memory()
    room = 1 << 16
    out = memory(room)
    yield ctypes.string_at(call("sqlite3_libversion"))
    for number in range(250):
        text = _STATEMENTS.format(generator.randrange(5, 150), *(generator.randrange(1, 60) for _ in range(3)))
        if number % 5 == 0:
            text += generator.choice(_WRONG)
        size = call("run_statements", memory(text.encode()), len(text), out, room)
        yield memory.read(out, size)
