"""Compares the requirements of code with this host, without LLVM.

A module names its platform (architecture, operating system, object format), its C library, and the processor features that its machine code
needs. Features are stored as processor words, so that no table of names has to be complete: masks over words of CPUID (x86-64; Intel's
manual, volume 2, "CPUID"; AMD's, volume 3, appendix E) or of the kernel's auxiliary vector (AArch64), and lower bounds for numbers. A
*requirement* is the text with all requirements of code. `target_id` is its digest.

The features of a processor are the text ``names;words``. The names are for people (docs/format.md, "Requirements").
"""

from __future__ import annotations

import os
import sys

from compcache.digest import check, digest
from compcache.interrupts import reraise_interrupt, suppress
from compcache.native import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = [
    "ABI_VERSION", "NATIVE", "UNUSABLE", "Processor", "libc_serves", "platform_name", "platform_serves", "read_processor", "requirement",
    "target_id", "this_libc",
]  # fmt: skip

#: The version of the interface between module images, the native runtime and this package; `COMPCACHE_ABI_VERSION` in C.
ABI_VERSION = 2

#: The ranks of code that cannot run on a host, and of code that was compiled for exactly this host.
UNUSABLE, NATIVE = -1, 1 << 30

_SHARED, _SAME_CPU = 1 << 16, 1 << 15  # weights in ranks: a feature of the host that the code uses; the same CPU name


class Processor:
    """A processor, described by its words. `words` are the words that were read; `ask` returns a further word, or 0.

    `identity` is equal for processors of the same model with the same features, and empty if unknown. `cpu` returns LLVM's name of the
    processor. `accepted` has the target_ids of code that is known to run on the processor.
    """

    __slots__ = ("_ask", "_ask_cpu", "_cpu", "accepted", "identity", "words")

    def __init__(
        self, words: Mapping[str, int], identity: str, ask: Callable[[str], int] = lambda _: 0, cpu: Callable[[], str] = str
    ) -> None:
        self.words = dict(words)
        self.identity = identity
        self._ask = ask
        self._ask_cpu = cpu
        self._cpu: str | None = None
        self.accepted: set[bytes] = set()

    def cpu(self) -> str:
        """Return LLVM's name of the processor, from a file that is read once, or "" if no process has queried LLVM since the boot."""
        if self._cpu is None:
            self._cpu = self._ask_cpu()
        return self._cpu

    def meets(self, features: str) -> bool:
        """Return whether this processor has all features in a text ``names;words``. The result is False for a malformed text."""
        has_features: bool = runtime.processor_meets(features, self.words, self.identity, self._ask)
        return has_features

    def accept(self, requirement: str) -> None:
        """Record in `accepted` that code with a requirement runs on this processor.

        Two target_ids are added, because a function is checked by its full requirement, and its module by the requirement without features.
        """
        to_load = requirement.rpartition("\0")[0] + "\0"
        self.accepted |= {target_id(requirement), target_id(to_load)}

    def rank(self, requirement: str) -> int:
        """Return how well code with a requirement fits this processor, from UNUSABLE to NATIVE. Greater is better.

        Usable code ranks higher if it uses more features of the host, then if it is tuned for the host's CPU, then if it was compiled for
        fewer features that the host lacks. Malformed requirements are UNUSABLE. Side effect: accept the requirement of usable code.
        """
        if not platform_serves(requirement):
            return UNUSABLE
        _, _, _, cpu, made_for, made_on, features = requirement.split("\0")
        if not self.meets(features):
            return UNUSABLE
        self.accept(requirement)
        if made_on and made_on == self.identity:
            return NATIVE
        shared = missing = 0
        for item in made_for.split(","):
            word, _, number = item.partition(":")
            if word in self.words and number:
                try:
                    mask = int(number, 16)
                except ValueError as error:
                    reraise_interrupt(error)
                    return UNUSABLE
                shared += (mask & self.words[word]).bit_count()
                missing += (mask & ~self.words[word]).bit_count()
        return _SHARED * shared + _SAME_CPU * (bool(cpu) and cpu == self.cpu()) + _SAME_CPU - 1 - missing

    def is_native(self, requirement: str) -> bool:
        """Return whether code with a requirement was compiled for exactly this host, and can run on it."""
        return f"\0{self.identity}\0" in requirement and self.rank(requirement) == NATIVE


def read_processor(runtime: Any, machine_key: Callable[[bytes], str | None], cpu: Callable[[], str]) -> Processor:
    """Return this host's processor.

    Args:
        runtime: the native runtime, which reads the processor.
        machine_key: returns, for the bytes of the processor, a key of this machine until the next boot, or None. The key is the identity
            of a processor whose words the runtime does not read.
        cpu: returns LLVM's name of the processor.
    """
    content: bytes = runtime.processor()
    words = runtime.processor_words(content)
    identity = digest([_PLATFORM.encode(), content], size=12).hex() if words else machine_key(content) or ""
    return Processor(words, identity, runtime.processor_word, cpu)


def _platform_name() -> str:
    """Return the name of this platform: architecture, operating system and object format, such as `x86_64-linux-elf`."""
    machine = os.uname().machine.lower()
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    system = sys.platform.rstrip("0123456789")
    return f"{arch}-{system}-{'macho' if system == 'darwin' else 'elf'}"


_PLATFORM = _platform_name()


def platform_name() -> str:
    """Return the platform of this interpreter, in the form of module records: for example ``x86_64-linux-elf``."""
    return _PLATFORM


def requirement(abi: int, platform: str, libc: str, cpu: str, made_for: str, made_on: str, features: str) -> str:
    """Return the text of a requirement (docs/format.md, "Requirements")."""
    return f"{abi}\0{platform}\0{libc}\0{cpu}\0{made_for}\0{made_on}\0{features}"


def target_id(requirement: str) -> bytes:
    """Return a digest of a requirement, eight bytes."""
    return check(requirement.encode("utf-8", "surrogatepass"))


def this_libc() -> str:
    """Return the C library of this process, as in requirements: ``glibc 2.36`` or ``musl``, for example, or "" if it is unknown."""
    with suppress(AttributeError, OSError, ValueError):  # other C libraries do not have this setting
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    return "musl" if sys.platform == "linux" else ""


def platform_serves(requirement: str) -> bool:
    """Return whether this process meets a requirement's platform and C library. The CPU is not checked."""
    serves: bool = runtime.platform_serves(requirement, _PLATFORM, this_libc())
    return serves


def libc_serves(needed: str) -> bool:
    """Return whether this process has the required C library, or a later version of it."""
    return platform_serves(requirement(ABI_VERSION, _PLATFORM, needed, "", "", "", ""))
