"""Asks LLVM what this machine is (miss path: imports llvmlite)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.formats.host import Host, platform_name
from compcache.targets.cpu_table import table_of
from compcache.targets.machine import as_text

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["probe_host"]


def probe_host() -> Host:
    """The CPU name and the features of this machine in LLVM's terms.

    What LLVM says the machine does not have is as much a part of it as what it has: LLVM's name for a CPU stands for all
    that such a CPU can have, and hypervisors hide some of it.
    """
    import llvmlite.binding as llvm

    cpu = llvm.get_host_cpu_name()
    told = llvm.get_host_cpu_features()
    have = frozenset({name for name, has in told.items() if has} | _features_of_kernel())
    platform = platform_name()
    table = table_of(platform)
    if table is None:
        absent = {name for name, has in told.items() if not has}
        return Host(cpu, as_text(have), ",".join(_changes(have, absent)))
    have = table.supported(have)
    if cpu in table.cpus:
        named = table.expand(cpu)
        return Host(cpu, as_text(have), ",".join(_changes(have - named, named - have)))
    return Host(cpu, as_text(have), ",".join(_changes(have, table.required - have)))


def _changes(added: Iterable[str], removed: Iterable[str]) -> list[str]:
    return ["+" + name for name in sorted(added)] + ["-" + name for name in sorted(removed)]


def _features_of_kernel() -> set[str]:
    """The features that the kernel tells of, where it tells more than LLVM reads (Linux on AArch64)."""
    if platform_name() != "aarch64-linux-elf":
        return set()
    import ctypes

    from compcache.targets.hwcaps import AT_HWCAP, AT_HWCAP2, features_of

    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return features_of({key: getauxval(key) for key in (AT_HWCAP, AT_HWCAP2)})
