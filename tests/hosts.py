"""Caches that take this machine for another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from compcache.targets.cpu_table import cpu_table
from compcache.targets.host_probe import Host
from compcache.targets.processor_words import processor_with

if TYPE_CHECKING:
    from compcache import Cache

__all__ = ["host_like", "on_host"]


def on_host(cache: Cache, host: Host) -> Cache:
    """The cache, from now on on that host."""
    cache._store._host = host
    cache._store._processor = host.processor
    cache._store.index._ranks.clear()
    return cache


def host_like(cpu: str, changes: str = "") -> Host:
    """A host with a CPU of x86-64 that LLVM knows, and these changes (what a hypervisor hides)."""
    table = cpu_table("x86_64", llvm.llvm_version_info[0])
    assert table is not None
    have = table.expand(cpu, changes)
    processor = processor_with(have, "x86_64-linux-elf", cpu)
    processor.identity = f"{cpu} {changes}"
    return Host(cpu, ",".join(f"+{name}" for name in sorted(have)), changes, processor)
