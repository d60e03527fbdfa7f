"""The machine for which a module is compiled, and the requirements of its code.

LLVM takes a CPU's name and a list of changes to it. Names are checked first, for LLVM compiles for something else where
it does not know one. What code may use beyond the architecture's baseline is worked out from LLVM's own tables
(`compcache.targets.cpu_table`), however the features were named: by a CPU, by a list, or by being those of this host.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from compcache.arch.known import architecture
from compcache.errors import CompileError
from compcache.targets.cpu_table import baseline, table_of
from compcache.targets.processor_words import as_text, required

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.targets.cpu_table import CpuTable
    from compcache.targets.host_probe import Host

__all__ = ["NATIVE", "TARGETS_VARIABLE", "Machine", "machine_for", "parse_targets"]

#: What to compile for where a source does not say it.
TARGETS_VARIABLE = "COMPCACHE_TARGETS"
#: In place of a CPU's name: this host.
NATIVE = "native"


class Machine(NamedTuple):
    """The machine to compile for.

    `cpu` and `features` are passed to LLVM. `requires` are the features that code for it may use; `explicit` are those that the source
    itself requested. `processor` is the identity of this processor; `is_exact` says that the code is for exactly that.
    """

    cpu: str
    features: str
    requires: frozenset[str]
    explicit: frozenset[str]
    processor: str = ""
    is_exact: bool = False

    def by_features(self, platform: str) -> Machine:
        """Return the same machine with every feature listed, so that the name of the CPU implies no features and no tuning."""
        return self._replace(cpu=baseline(platform), features=as_text(self.requires))


@lru_cache(maxsize=64)
def machine_for(cpu: str | None, features: str | None, host: Host, platform: str) -> Machine:
    """Return the machine for a source.

    Args:
        cpu: a name that LLVM knows; None and "native" are this host, "" is the architecture's baseline.
        features: changes to it, ``+avx2,-fma``.
        host: this host.
        platform: this process's.

    Raises:
        CompileError: LLVM does not know one of the names.
    """
    table = table_of(platform)
    named = features or ""
    native = cpu is None or cpu == NATIVE
    name = host.cpu if cpu is None or native else cpu or baseline(platform)
    this = host.processor.identity
    if table is None:
        text = ",".join(filter(None, (host.features if native else "", named)))
        return Machine(name, text, required(text), required(named), this, native and not named)
    if not native:
        name, named = _architecture_version(name, named, table)
        table.check(name, named)
        return Machine(name, named, table.expand(name, named), table.closure(required(named)), this)
    table.check(baseline(platform), named)
    text = ",".join(filter(None, (host.adjustments, named)))
    unknown = required(host.features) - table.required
    return Machine(name, text, table.expand(name, text) | unknown, table.closure(required(named)), this, not features)


def parse_targets(targets: Iterable[str] | str) -> list[tuple[str | None, str | None]]:
    """Return targets as (CPU, changes to it), each once: ``"x86-64-v2,haswell,-avx2,native"`` are three.

    Raises:
        CompileError: there are none, or they are not names of CPUs.
    """
    found: list[tuple[str, list[str]]] = []
    items = [targets] if isinstance(targets, str) or not hasattr(targets, "__iter__") else list(targets)
    for item in items:
        if not isinstance(item, str):
            raise CompileError(f"targets must be names of CPUs, like ('x86-64-v3', 'native'), not {type(item).__name__}")
        for part in filter(None, [part.strip() for part in item.split(",")]):
            if part[0] not in "+-":
                found.append((part, []))
            elif found:
                found[-1][1].append(part)
            else:
                raise CompileError(f"{part!r} stands before every CPU: write the CPU's name first, then changes to it")
    if not found:
        raise CompileError(f"targets={targets!r} names no CPU: write x86-64-v3 or native, for example")
    return list(dict.fromkeys([(cpu, ",".join(changes) or None) for cpu, changes in found]))


def _architecture_version(name: str, changes: str, table: CpuTable) -> tuple[str, str]:
    """Return LLVM's name for a version of the architecture (``armv8.2-a``): changes to its baseline CPU."""
    own = architecture(table.arch).version_changes(name)
    return (name, changes) if own is None else (baseline(table.arch), ",".join(filter(None, (own, changes))))
