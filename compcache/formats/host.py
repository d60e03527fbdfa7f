"""What code requires of a machine, and what this machine offers: read from the processor, without LLVM.

A module names its platform (architecture, operating system, object format), its C library, and what its machine code needs of a
processor. That is said in the processor's own words, so that no table of names has to be complete: masks over words of CPUID
(x86-64; Intel's manual, volume 2, "CPUID"; AMD's, volume 3, appendix E) or of the kernel's auxiliary vector (AArch64), and lower bounds
for numbers. All that code requires is one text, a *requirement*; `target_id` is its digest.

What code requires of a processor is ``names;words``, the names for people (docs/format.md, "Requirements").
"""

from __future__ import annotations

import os
import sys

from compcache.digest import check, digest
from compcache.files import reraise_interrupt
from compcache.native import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = [
    "ABI_VERSION",
    "NATIVE",
    "UNUSABLE",
    "Processor",
    "libc_serves",
    "platform_name",
    "platform_serves",
    "read_processor",
    "requirement",
    "target_id",
    "this_libc",
]

#: The interface between module images, the native runtime and this package; `COMPCACHE_ABI_VERSION` in C.
ABI_VERSION = 2

#: Ranks of code on a host: it cannot run there; it was compiled for exactly that host.
UNUSABLE, NATIVE = -1, 1 << 30

_SHARED, _SAME_CPU = 1 << 16, 1 << 15  # weights in ranks: a feature that the code uses and the host has; the name of its CPU


class Processor:
    """A processor, described by its own words.

    `identity` is equal for processors of the same model with the same features, and empty if unknown. `words` are those that were read.
    `accepted` are the known target_ids of code that it can run.
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
        """Return LLVM's name of it, empty until LLVM has been asked. It is looked up once, in a file."""
        if self._cpu is None:
            self._cpu = self._ask_cpu()
        return self._cpu

    def meets(self, features: str) -> bool:
        """Return whether this processor has all of these features; False if the text does not have the form above."""
        met: bool = runtime.processor_meets(features, self.words, self.identity, self._ask)
        return met

    def accept(self, requirement: str) -> None:
        """Remember that functions with this requirement can run here, and that their modules can be mapped."""
        to_load = requirement.rpartition("\0")[0] + "\0"
        self.accepted |= {target_id(requirement), target_id(to_load)}

    def rank(self, requirement: str) -> int:
        """Return how well code fits this processor, from UNUSABLE to NATIVE. More is better.

        Runnable code is better if it uses more features of the host, then if it is tuned for its CPU, then if it was compiled for fewer
        features that the host lacks. A text that does not have the form above is UNUSABLE.
        """
        if not platform_serves(requirement):
            return UNUSABLE
        _, _, _, cpu, made_for, made_on, features = requirement.split("\0")
        if not self.meets(features):
            return UNUSABLE
        self.accept(requirement)
        if made_on and made_on == self.identity:
            return NATIVE
        shared = lacking = 0
        for item in made_for.split(","):
            word, _, number = item.partition(":")
            if word in self.words and number:
                try:
                    mask = int(number, 16)
                except ValueError as error:
                    reraise_interrupt(error)
                    return UNUSABLE
                shared += (mask & self.words[word]).bit_count()
                lacking += (mask & ~self.words[word]).bit_count()
        return _SHARED * shared + _SAME_CPU * (bool(cpu) and cpu == self.cpu()) + _SAME_CPU - 1 - lacking

    def is_native(self, requirement: str) -> bool:
        """Return whether code was compiled for exactly this host, and can run here."""
        return f"\0{self.identity}\0" in requirement and self.rank(requirement) == NATIVE


def read_processor(runtime: Any, until_boot: Callable[[bytes], str | None], cpu: Callable[[], str]) -> Processor:
    """Return this machine's processor, as the native runtime reads it.

    Without a table of the architecture's features, its words may be incomplete; `until_boot` then returns an identity that is valid until
    the next boot. `cpu` returns LLVM's name of it.
    """
    content: bytes = runtime.processor()
    words = runtime.processor_words(content)
    identity = digest([_PLATFORM.encode(), content], size=12).hex() if words else until_boot(content) or ""
    return Processor(words, identity, runtime.processor_word, cpu)


def _platform_name() -> str:
    machine = os.uname().machine.lower() if hasattr(os, "uname") else "x86_64"
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    system = sys.platform if sys.platform in ("darwin", "win32") else sys.platform.rstrip("0123456789")
    return f"{arch}-{system}-{ {'darwin': 'macho', 'win32': 'coff'}.get(system, 'elf') }"


_PLATFORM = _platform_name()


def platform_name() -> str:
    """Return this interpreter's platform as modules name theirs: for example ``x86_64-linux-elf``."""
    return _PLATFORM


def requirement(abi: int, platform: str, libc: str, cpu: str, made_for: str, made_on: str, features: str) -> str:
    """Return the requirements and the target of code as one text (docs/format.md, "Requirements")."""
    return f"{abi}\0{platform}\0{libc}\0{cpu}\0{made_for}\0{made_on}\0{features}"


def target_id(requirement: str) -> bytes:
    """Return eight bytes that are equal for equal requirements."""
    return check(requirement.encode("utf-8", "surrogatepass"))


def this_libc() -> str:
    """Return the C library of this process, as requirements name it: for example ``glibc 2.36``, ``musl``."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError) as error:  # another libc does not know the question
        reraise_interrupt(error)
        return "musl" if sys.platform == "linux" else ""


def platform_serves(requirement: str) -> bool:
    """Return whether this process has the platform and the C library that code requires. Its CPU is another question."""
    serves: bool = runtime.platform_serves(requirement, _PLATFORM, this_libc())
    return serves


def libc_serves(needed: str) -> bool:
    """Return whether this process has the required C library, or a later version of it."""
    return platform_serves(requirement(ABI_VERSION, _PLATFORM, needed, "", "", "", ""))
