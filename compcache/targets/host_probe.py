"""Asks LLVM for a description of this host, for code that is compiled for exactly this host (miss path: imports llvmlite)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.arch.known import architecture
from compcache.formats.host import Processor, platform_name
from compcache.record import Record
from compcache.targets.cpu_table import table_of
from compcache.targets.processor_words import feature_words, format_features

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Host", "probe_host"]


class Host(Record):
    """LLVM's description of this host.

    Attributes:
        cpu: LLVM's name of the CPU.
        features: all features that the host has (``+avx2,+fma``, sorted).
        adjustments: the changes from the features of `cpu` to `features`. A hypervisor may hide some features.
        processor: the processor's description of itself (CPUID or HWCAP).
    """

    __slots__ = ("cpu", "features", "adjustments", "processor")
    cpu: str
    features: str
    adjustments: str
    processor: Processor


def probe_host(processor: Processor) -> Host:
    """Return LLVM's description of this host, without features that the processor does not confirm.

    For LLVM, a CPU has all features that such a CPU can have, but a hypervisor may hide some. These features are listed as adjustments.

    Args:
        processor: the description of this host's processor, from CPUID or HWCAP.

    Raises:
        MissingPackageError: LLVM is not installed.
    """
    from compcache.images.llvm_thread import in_llvm_thread
    from compcache.llvm import llvm

    # In another thread, because llvmlite would free the texts twice if a signal handler raised an exception while it frees them.
    cpu, reported = in_llvm_thread(lambda: (llvm.get_host_cpu_name(), llvm.get_host_cpu_features()))
    known_words = feature_words(platform_name().partition("-")[0])
    names = {name for name, has in reported.items() if has and (name not in known_words or processor.meets(known_words[name]))}
    if platform_name().split("-")[1] in architecture(platform_name()).kernels_with_features:  # linux in x86_64-linux-elf
        names |= {name for name, words in known_words.items() if processor.meets(words)}
    table = table_of(platform_name())
    if table is None:
        absent = {name for name, has in reported.items() if not has}
        return Host(cpu, format_features(names), ",".join(_signed_names(names, absent)), processor)
    unknown = {name for name in reported if not table.knows(name)}  # the table may be older than this LLVM
    supported = table.supported(names)
    if cpu in table.cpus:
        assumed = table.expand(cpu)  # what LLVM assumes for this CPU
        added, hidden = supported - assumed, assumed - supported
    else:  # LLVM may assume anything, so all features are listed
        added, hidden = supported, table.required - supported
    return Host(cpu, format_features(supported | (names & unknown)), ",".join(_signed_names(added, hidden | (unknown - names))), processor)


def _signed_names(added: Iterable[str], removed: Iterable[str]) -> list[str]:
    """Return ``+name`` for each added feature, then ``-name`` for each removed feature, sorted."""
    return ["+" + name for name in sorted(added)] + ["-" + name for name in sorted(removed)]
