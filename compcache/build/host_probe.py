"""Asks LLVM what this machine is (miss path: imports llvmlite)."""

from __future__ import annotations

from compcache.formats.host import Host

__all__ = ["probe_host"]


def probe_host() -> Host:
    """The CPU name and the features of this machine in LLVM's terms."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return Host(llvm.get_host_cpu_name(), ",".join(f"+{name}" for name in sorted(features) if features[name]))
