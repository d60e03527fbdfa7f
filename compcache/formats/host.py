"""The CPU features of this machine, read without LLVM where LLVM has been asked before.

A module names its platform (architecture, operating system, object format), its C library, and the CPU features that its
code uses. Which features the host has, only LLVM knows in its own terms; its answer is kept in the cache directory
under the boot id of the machine, because a kernel does not change without a boot, and what the processor says of itself.
All that code requires is one text, a *requirement*; `target_id` is its digest.
"""

from __future__ import annotations

import os
import sys

from compcache.digest import CHECK_SIZE, check, digest, mac
from compcache.files import reraise_interrupt
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.files import Files

__all__ = [
    "ABI_VERSION",
    "NATIVE",
    "SYSTEM_FEATURES",
    "UNUSABLE",
    "Host",
    "decode_host",
    "decode_linker",
    "encode_host",
    "host_key",
    "libc_serves",
    "native_requirements",
    "platform_name",
    "platform_serves",
    "required",
    "requirement",
    "target_id",
    "this_libc",
]

#: The interface between module images, the native runtime and this package; `COMPCACHE_ABI_VERSION` in C.
ABI_VERSION = 2

#: Features of the operating system's side (x86-64). No instruction of theirs is chosen by a compiler: code has them by intrinsics
#: or assembly alone. Hypervisors hide them, so that a host rarely has all of those that its CPU's name stands for.
SYSTEM_FEATURES = frozenset((
    "clzero", "enqcmd", "fsgsbase", "hreset", "invpcid", "mwaitx", "pconfig", "pku", "ptwrite", "rdpru", "sgx", "shstk",
    "uintr", "usermsr", "wbnoinvd", "xsaves",
))  # fmt: skip

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


#: Ranks of code on a host: it cannot run it; it was compiled for it.
UNUSABLE, NATIVE = -1, 1 << 30

_REQUIREMENT_FIELDS = 5
_ABI_TEXT = str(ABI_VERSION)


class Host(Record):
    """The CPU of a machine in LLVM's terms.

    `cpu` is its name, `features` is all that it has (``+avx2,+fma``, sorted), and `adjustments` are the changes that make
    the one the other: what the name stands for is more, where a hypervisor hides something.
    """

    __slots__ = ("cpu", "features", "adjustments")
    cpu: str
    features: str
    adjustments: str

    def rank(self, requirement: str) -> int:
        """How well code fits this host: UNUSABLE, or the more the better, up to NATIVE.

        Of what the host can run, code that uses more of its features is better, then code that is tuned for its CPU.
        """
        if not platform_serves(requirement):
            return UNUSABLE
        if requirement.endswith(self.native_end()):
            return NATIVE
        cpu, features = requirement.split("\0")[-2:]
        needed = required(features)
        return 2 * len(needed) + (cpu == self.cpu) if needed <= required(self.features) else UNUSABLE

    def native_end(self) -> str:
        """How the requirement of code ends that was compiled for exactly this host."""
        return f"\0{self.cpu}\0{native_requirements(self.features)}"

    def missing(self, features: str) -> tuple[str, ...]:
        """The features that code requires (``+avx2,+fma``; `-x` requires nothing) and this host lacks."""
        have = required(self.features)
        return tuple(sorted(required(features) - have))


def native_requirements(features: str) -> str:
    """The requirements of code that was compiled for a host with these features, where the source names no others."""
    return ",".join(["+" + name for name in sorted(required(features) - SYSTEM_FEATURES)])


def required(features: str) -> frozenset[str]:
    """The names of the features that a list like ``+avx2,-avx512f`` switches on."""
    return frozenset([part[1:] for part in features.split(",") if part.startswith("+")])


def _platform_name() -> str:
    machine = os.uname().machine.lower() if hasattr(os, "uname") else "x86_64"
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    system = sys.platform if sys.platform in ("darwin", "win32") else sys.platform.rstrip("0123456789")
    return f"{arch}-{system}-{ {'darwin': 'macho', 'win32': 'coff'}.get(system, 'elf') }"


_PLATFORM = _platform_name()


def platform_name() -> str:
    """This interpreter's platform as modules name theirs: for example ``x86_64-linux-elf``."""
    return _PLATFORM


def requirement(abi: int, platform: str, libc: str, cpu: str, features: str) -> str:
    """All that code requires of a host, and the CPU that it is tuned for, as one text.

    `libc` is empty where the code uses none, else ``musl``, or ``glibc`` and the least version.
    """
    return f"{abi}\0{platform}\0{libc}\0{cpu}\0{features}"


def target_id(requirement: str) -> bytes:
    """Eight bytes that are equal for code of equal requirements."""
    return check(requirement.encode("utf-8", "surrogatepass"))


def this_libc() -> str:
    """The C library of this process, as requirements name it: for example ``glibc 2.36``, ``musl``."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError) as error:  # another libc does not know the question
        reraise_interrupt(error)
        return "musl" if sys.platform == "linux" else ""


def platform_serves(requirement: str) -> bool:
    """Whether this process is of the platform and has the C library that code requires; its CPU is another question."""
    fields = requirement.split("\0")
    if len(fields) != _REQUIREMENT_FIELDS:
        return False
    return fields[0] == _ABI_TEXT and fields[1] == _PLATFORM and libc_serves(fields[2])


def libc_serves(needed: str) -> bool:
    """Whether the C library of this process is what code needs, or a later version of it."""
    if not needed:
        return True
    kind, _, version = needed.partition(" ")
    own_kind, _, own = this_libc().partition(" ")
    return kind == own_kind and _numbers(version) <= _numbers(own)


def _numbers(version: str) -> list[int]:
    return [int(part) if part.isdecimal() else 0 for part in version.split(".")]


def host_key(files: Files, processor: bytes) -> str | None:
    """A name for this boot of this machine and its processor; None where the system does not report them.

    `processor` is what the processor says of itself: emulators and containers share a boot with their machine.
    """
    try:
        opened = files.open_owned(_BOOT_ID, os.O_RDONLY | os.O_CLOEXEC)
        boot_id = files.pread(opened.number, 64, 0)
    except OSError as error:
        reraise_interrupt(error)
        return None
    return digest([boot_id.strip(), _PLATFORM.encode(), processor], size=12).hex()


def encode_host(host: Host, name: str, signing_key: bytes | None = None, linker: str = "") -> bytes:
    """A host, and a note on the linker to use there, as the bytes of the file of this name, signed where there is a key."""
    text = f"{host.cpu}\0{host.features}\0{host.adjustments}\0{linker}".encode()
    return _seal(text, name, signing_key) + text


def decode_host(data: bytes, name: str, signing_key: bytes | None = None) -> Host | None:
    """The host in a file's bytes; None where they are damaged, of another name, or not signed with the key."""
    *fields, _ = _fields(data, name, signing_key)
    return Host(*fields) if fields else None


def decode_linker(data: bytes, name: str, signing_key: bytes | None = None) -> str:
    """The note on a linker in a file's bytes; empty where there is none, or where `decode_host` gives None."""
    return _fields(data, name, signing_key)[-1]


def _fields(data: bytes, name: str, signing_key: bytes | None) -> list[str]:
    """The fields of a file; one that is empty where they are not to be believed."""
    text = data[CHECK_SIZE:]
    if _seal(text, name, signing_key) != data[:CHECK_SIZE]:
        return [""]
    fields = text.decode("utf-8", "replace").split("\0")
    return fields if len(fields) == len(Host.__slots__) + 1 else [""]


def _seal(text: bytes, name: str, signing_key: bytes | None) -> bytes:
    """Ties the text to its file's name: what is true of one machine must not be believed of another."""
    sealed = name.encode() + b"\0" + text
    return mac(sealed, signing_key)[:CHECK_SIZE] if signing_key else check(sealed)
