"""Writes `compcache/arch/tables/`: which features each CPU name of LLVM stands for, and which bits of CPUID tell of each.

    python tools/cpu_tables.py            (with the llvmlite whose LLVM is wanted; Linux, x86-64)

LLVM has no interface that expands a CPU name, but the tables that it expands it with are in the library: the arrays
``llvm::X86FeatureKV``, ``llvm::X86SubTypeKV`` and their AArch64 counterparts, which TableGen writes from
``llvm/lib/Target/<arch>/<arch>.td``. PyPI's llvmlite keeps its symbol table, so they are found by name and read from
memory. Their rows, as `llvm/MC/MCSubtargetInfo.h` declares them, where W is MAX_SUBTARGET_WORDS::

    SubtargetFeatureKV   name char*, description char*, number u32 (padded), implied features u64[W]
    SubtargetSubTypeKV   name char*, features u64[W], tuning features u64[W], scheduling model

W changes between versions; it is the number with which every array is a whole number of rows. What is read must agree
with the names that LLVM prints for ``-mcpu=help``, or nothing is written.

A file holds, for one architecture: `implies` (each feature that says what instructions there are, and the features
that it brings with it), `other` (features that change the code and require nothing: tuning, mitigations, modes), and `cpus` (each
64-bit CPU's features; what they imply is left out). `tests/targets/test_cpu_table.py` compares the files with LLVM's inliner.

``x86_64-words.json`` has the bits, for all versions together: run this with the oldest and with the newest supported llvmlite. LLVM knows
them as code alone (``getHostCPUFeatures``). So LLVM is asked about a made-up processor with every bit set
(`tests/targets/pretended_processor.py`), then once without each bit, and what it misses then depends on that bit.
`tests/targets/test_processor_words.py` does the same from other starts.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import llvmlite.binding as llvm
from llvmlite.binding import ffi

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "targets"))
import pretended_processor as pretended

FOLDER = Path(__file__).resolve().parents[1] / "compcache" / "arch" / "tables"
ARCHITECTURES = {"x86_64": "X86", "aarch64": "AArch64"}
#: Names that stand for others (`ProcessorAlias` in ``AArch64Processors.td``): LLVM lists them and has no row for them.
ALIASES = {
    "cobalt-100": "neoverse-n2", "cyclone": "apple-a7", "grace": "neoverse-v2",
    "apple-a8": "apple-a7", "apple-a9": "apple-a7", "apple-m1": "apple-a14", "apple-m2": "apple-a15", "apple-m3": "apple-a16",
    "apple-a18": "apple-m4", "apple-a19": "apple-m5", "apple-s4": "apple-a12", "apple-s5": "apple-a12", "apple-s6": "apple-a13",
    "apple-s7": "apple-a13", "apple-s8": "apple-a13", "apple-s9": "apple-a16", "apple-s10": "apple-a16",
}  # fmt: skip
#: Says that 512-bit vectors exist beside AVX-512, which every CPU that was ever sold has; some versions of LLVM ask a host for it. And
#: hints, which do nothing where they are not known.
NEVER_REQUIRED = {"evex512", "prefetchi"}
_HELP = "import llvmlite.binding as b; b.initialize_all_targets(); b.Target.from_triple('{0}-linux-gnu').create_target_machine(cpu='help')"
_HELP_LINE = re.compile(r"^  (\S+) +- ", re.MULTILINE)


class Library:
    """The symbols and the memory of the LLVM that is loaded."""

    def __init__(self) -> None:
        llvm.initialize_all_targets()
        path = ffi.lib._name
        listing = subprocess.run(["nm", "-S", path], capture_output=True, text=True, check=True).stdout
        rows = re.findall(r"^(\S+) (\S+) \S (\S+)$", listing, re.MULTILINE)
        self._symbols = {name: (int(start, 16), int(size, 16)) for start, size, name in rows}
        known = "LLVMPY_GetHostCPUName"
        loaded = ctypes.cast(getattr(ctypes.CDLL(path), known), ctypes.c_void_p).value
        self._base = (loaded or 0) - self._symbols[known][0]

    def array(self, name: str) -> tuple[int, int]:
        """The address and the size of a constant array of the namespace llvm."""
        start, size = self._symbols[f"_ZN4llvm{len(name)}{name}E"]
        return self._base + start, size

    def words(self) -> int:
        """W: how many 64-bit words a set of features has."""
        arrays = [(self.array(f"{target}{kind}")[1] // 8, kind) for target in ARCHITECTURES.values() for kind in ("FeatureKV", "SubTypeKV")]
        fitting = [w for w in range(3, 12) if all(size % (3 + w if kind == "FeatureKV" else 2 + 2 * w) == 0 for size, kind in arrays)]
        if len(fitting) != 1:
            raise SystemExit(f"the size of a set of features is not clear: {fitting}")
        return fitting[0]

    def rows(self, name: str, width: int) -> list[list[int]]:
        """An array as rows of `width` 64-bit words."""
        start, size = self.array(name)
        return [list((ctypes.c_uint64 * width).from_address(start + at)) for at in range(0, size, 8 * width)]


def text(pointer: int) -> str:
    """The C string at an address."""
    return ctypes.string_at(pointer).decode()


def members(words: list[int], names: dict[int, str]) -> list[str]:
    """The features whose bits are set; numbers without a name are LLVM's own."""
    number = sum(word << 64 * i for i, word in enumerate(words))
    return sorted(name for bit, name in names.items() if number >> bit & 1)


def printed_names(arch: str) -> tuple[set[str], set[str]]:
    """The CPUs and the features that LLVM lists."""
    done = subprocess.run([sys.executable, "-c", _HELP.format(arch)], capture_output=True, text=True, check=True)
    cpus, _, features = done.stderr.partition("Available features")
    return set(_HELP_LINE.findall(cpus)), set(_HELP_LINE.findall(features))


def detectable(arch: str, names: set[str], tuning: set[str]) -> set[str]:
    """The features that a host can be asked for: what code may require."""
    if arch == "x86_64":
        return set(llvm.get_host_cpu_features()) - tuning - NEVER_REQUIRED
    from compcache.arch.known import architecture

    return architecture(arch).feature_words().keys() & names


def table(library: Library, arch: str) -> dict[str, object]:
    """The content of one file."""
    target, words = ARCHITECTURES[arch], library.words()
    features = library.rows(f"{target}FeatureKV", 3 + words)
    names = {row[2] & 0xFFFFFFFF: text(row[0]) for row in features}
    implied = {text(row[0]): members(row[3:], names) for row in features}
    cpus, tuning = {}, set[str]()
    for row in library.rows(f"{target}SubTypeKV", 2 + 2 * words):
        tuned = members(row[1 + words : 1 + 2 * words], names)
        cpus[text(row[0])] = [*members(row[1 : 1 + words], names), *tuned]  # LLVM tunes for the CPU that it compiles for
        tuning |= set(tuned)
    printed, printed_features = printed_names(arch)
    cpus |= {alias: cpus[name] for alias, name in ALIASES.items() if alias in printed - set(cpus)}
    if set(cpus) != printed or set(implied) != printed_features:
        raise SystemExit(f"{arch}: the names that were read are not those that LLVM prints")
    required = detectable(arch, set(implied), tuning)
    carriers = {name for name in implied if reach(name, implied) & required}
    if arch == "x86_64":
        cpus = {name: content for name, content in cpus.items() if "64bit" in content or name == "generic"}
    return {
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "arch": arch,
        "required": sorted(required),
        "implies": {name: [other for other in implied[name] if other in carriers] for name in sorted(carriers)},
        "other": sorted(set(implied) - carriers),
        "cpus": {name: [f for f in dict.fromkeys(content) if f in carriers] for name, content in sorted(cpus.items())},
    }


def reach(name: str, implied: dict[str, list[str]]) -> set[str]:
    """A feature and all that it implies."""
    found, stack = {name}, [name]
    while stack:
        new = set(implied[stack.pop()]) - found
        found |= new
        stack += new
    return found


def as_lines(content: dict[str, object]) -> str:
    """JSON with a line for each row, so that versions can be compared."""
    parts = []
    for key, value in content.items():
        if isinstance(value, dict):
            rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(' '.join(row))}" for name, row in value.items())
            parts.append(f"{json.dumps(key)}: {{\n{rows}\n}}")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(' '.join(value) if isinstance(value, list) else value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def words() -> dict[str, str]:
    """For each feature that a host can be asked for, the bits that it depends on, in the form of `compcache.formats.host`."""
    machine, whole = pretended.MadeUp(), pretended.everything()
    found: dict[str, dict[str, int]] = {name: {} for name in machine.features(whole) - NEVER_REQUIRED}
    for word, bit, other in pretended.flips(whole):
        for name in found.keys() - machine.features(other):
            found[name][word] = found[name].get(word, 0) | 1 << bit
    least = {name: version for version in range(3, -1, -1) for name in found.keys() & machine.features(_version(whole, version))}
    for masks in found.values():
        masks[VERSION] = masks.get(VERSION, 0) & ~0xFF
    parts = {name: [f"{word}:{mask:x}" for word, mask in sorted(masks.items()) if mask] for name, masks in found.items()}
    return {name: ",".join(part + ([f"{VERSION}>{least[name]:x}"] if least[name] else [])) for name, part in sorted(parts.items())}


#: The number of AVX10's version is no bit: the lowest byte of this word.
VERSION = "24.0.b"


def _version(whole: pretended.Description, version: int) -> pretended.Description:
    a, b, c, d = whole.cpuid[0x24, 0]
    return whole._replace(cpuid={**whole.cpuid, (0x24, 0): (a, b & ~0xFF | version, c, d)})


def write_words() -> None:
    """Add what this LLVM knows to the file. Where versions disagree, the one that asks for more is right (LLVM 20 asks for APX
    and not whether the kernel saves its registers); where neither asks for all that the other does, nothing is written.
    """
    path = FOLDER / "x86_64-words.json"
    known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    new = words()
    for name in known.keys() & new.keys():
        both = set(known[name].split(",")), set(new[name].split(","))
        if not (both[0] <= both[1] or both[1] <= both[0]):
            raise SystemExit(f"versions of LLVM do not agree on {name}: {known[name]}, {new[name]}")
        new[name] = max(known[name], new[name], key=len)
    path.write_text(json.dumps(dict(sorted({**known, **new}.items())), indent=0) + "\n")
    sys.stdout.write(f"{path}: {len(new.keys() - known.keys())} new\n")


def main() -> None:
    """Write the files of this LLVM."""
    if "PRETENDED_PROCESSOR" in os.environ:
        write_words()
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = pretended.environment(Path(folder), pretended.everything())
        subprocess.run([sys.executable, __file__], env={**os.environ, **environment}, check=True)
    library = Library()
    for arch in ARCHITECTURES:
        path = FOLDER / f"llvm{llvm.llvm_version_info[0]}-{arch}.json"
        path.write_text(as_lines(table(library, arch)))
        sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
