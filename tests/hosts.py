"""Caches that take this machine for another one, and modules whose machine code depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from compcache.targets.cpu_table import cpu_table
from compcache.targets.host_probe import Host
from compcache.targets.processor_words import processor_with

if TYPE_CHECKING:
    from compcache import Cache

__all__ = ["LOOP", "NEEDS_AVX2", "SUM", "host_like", "on_host"]

LOOP = """\
define void @scale(ptr noalias %a, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %p = getelementptr double, ptr %a, i64 %i
  %x = load double, ptr %p
  %y = fmul double %x, 3.0
  store double %y, ptr %p
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %n
  br i1 %done, label %out, label %loop
out:
  ret void
}
"""
SUM = """\
define double @sum(ptr %a, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %s = phi double [0.0, %entry], [%t, %loop]
  %p = getelementptr double, ptr %a, i64 %i
  %x = load double, ptr %p
  %t = fadd fast double %s, %x
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %n
  br i1 %done, label %out, label %loop
out:
  ret double %t
}
"""
NEEDS_AVX2 = """\
declare <32 x i8> @llvm.x86.avx2.pshuf.b(<32 x i8>, <32 x i8>)
define <32 x i8> @shuffle(<32 x i8> %a, <32 x i8> %b) {
  %c = call <32 x i8> @llvm.x86.avx2.pshuf.b(<32 x i8> %a, <32 x i8> %b)
  ret <32 x i8> %c
}
"""


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
