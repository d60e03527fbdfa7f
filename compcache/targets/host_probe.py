"""This machine in LLVM's terms, for code that is compiled for exactly this host (miss path: imports llvmlite)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.arch.known import architecture
from compcache.formats.host import Processor, platform_name
from compcache.record import Record
from compcache.targets.cpu_table import table_of
from compcache.targets.processor_words import as_text, feature_words

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Host", "probe_host"]


class Host(Record):
    """This machine.

    `cpu` is LLVM's name for it. `features` are all its features (``+avx2,+fma``, sorted). `adjustments` are the changes from the features
    of `cpu` to these, because a hypervisor may hide some. `processor` is its own description.
    """

    __slots__ = ("cpu", "features", "adjustments", "processor")
    cpu: str
    features: str
    adjustments: str
    processor: Processor


def probe_host(processor: Processor) -> Host:
    """Ask LLVM what this machine is.

    Missing features count as much as present ones: LLVM's name for a CPU stands for all features that such a CPU can have, and hypervisors
    hide some. Features that the processor does not confirm are left out.

    Raises:
        MissingPackageError: LLVM is not installed.
    """
    from compcache.images.llvm_thread import in_llvm_thread
    from compcache.llvm import llvm

    # llvmlite frees the texts twice where a handler raises between the two steps in which it frees them.
    cpu, told = in_llvm_thread(lambda: (llvm.get_host_cpu_name(), llvm.get_host_cpu_features()))
    known = feature_words(platform_name().partition("-")[0])
    have = {name for name, has in told.items() if has and (name not in known or processor.meets(known[name]))}
    if platform_name().split("-")[1] in architecture(platform_name()).kernels_tell:
        have |= {name for name, words in known.items() if processor.meets(words)}
    table = table_of(platform_name())
    if table is None:
        absent = {name for name, has in told.items() if not has}
        return Host(cpu, as_text(have), ",".join(_changes(have, absent)), processor)
    unknown = {name for name in told if not table.knows(name)}  # to a table that is older than this LLVM
    supported = table.supported(have)
    named = table.expand(cpu) if cpu in table.cpus else table.required
    added = supported - named if cpu in table.cpus else supported
    hidden = (named - supported) | (unknown - have)
    return Host(cpu, as_text(supported | (have & unknown)), ",".join(_changes(added, hidden)), processor)


def _changes(added: Iterable[str], removed: Iterable[str]) -> list[str]:
    return ["+" + name for name in sorted(added)] + ["-" + name for name in sorted(removed)]
