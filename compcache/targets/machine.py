"""The machine for which a module is compiled, and the requirements of its code.

LLVM compiles for a CPU's name and a list of changes to its features. The names are checked first, because LLVM ignores unknown names and
compiles for another CPU. The features that the code may use beyond the architecture's baseline are computed from LLVM's own tables
(`compcache.targets.cpu_table`), for named CPUs, for lists of features and for this host.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from compcache.arch.known import architecture
from compcache.errors import CompileError
from compcache.targets.cpu_table import baseline, table_of
from compcache.targets.processor_words import enabled_features

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.targets.cpu_table import CpuTable
    from compcache.targets.host_probe import Host

__all__ = ["NATIVE", "TARGETS_VARIABLE", "Machine", "machine_for", "parse_targets"]

#: The environment variable with the targets for sources that set no targets.
TARGETS_VARIABLE = "COMPCACHE_TARGETS"
#: The name that selects this host instead of a named CPU.
NATIVE = "native"


class Machine(NamedTuple):
    """The machine for which a module is compiled.

    Attributes:
        cpu: the CPU name for LLVM.
        features: the feature changes for LLVM.
        requires: the features that the code may use.
        explicit: the features that the source requested.
        processor: the identity of this host's processor.
        is_exact: whether the code is for exactly this processor.
    """

    cpu: str
    features: str
    requires: frozenset[str]
    explicit: frozenset[str]
    processor: str = ""
    is_exact: bool = False


def machine_for(cpu: str | None, features: str | None, host: Host, platform: str) -> Machine:
    """Return the machine for a source.

    Args:
        cpu: LLVM's name of a CPU. None and "native" select this host, "" selects the architecture's baseline.
        features: the changes to the CPU's features, ``+avx2,-fma``.
        host: this host.
        platform: the platform of this process.

    Raises:
        CompileError: a name is not known to LLVM.
    """
    return _machine_for(cpu, features, host.cpu, host.features, host.adjustments, host.processor.identity, platform)


@lru_cache(maxsize=64)  # keyed by values, because each cache directory describes the host by its own object
def _machine_for(
    cpu: str | None, features: str | None, host_cpu: str, host_features: str, adjustments: str, identity: str, platform: str
) -> Machine:
    """Return the machine for a requested CPU and features, or for this host where none are requested.

    Raise `CompileError` if LLVM does not know one of the names.
    """
    table = table_of(platform)
    changes = features or ""
    is_native = cpu is None or cpu == NATIVE
    name = host_cpu if cpu is None or is_native else cpu or baseline(platform)
    if table is None:
        text = ",".join(filter(None, (host_features if is_native else "", changes)))
        return Machine(name, text, enabled_features(text), enabled_features(changes), identity, is_native and not changes)
    if not is_native:
        name, changes = _architecture_version(name, changes, table)
        table.check(name, changes)
        return Machine(name, changes, table.expand(name, changes), table.closure(enabled_features(changes)), identity)
    table.check(baseline(platform), changes)
    text = ",".join(filter(None, (adjustments, changes)))
    unknown = enabled_features(host_features) - table.required
    return Machine(name, text, table.expand(name, text) | unknown, table.closure(enabled_features(changes)), identity, not features)


def parse_targets(targets: Iterable[str] | str) -> list[tuple[str | None, str | None]]:
    """Parse targets, and return them as pairs of a CPU name and feature changes (or None), without duplicates.

    The text ``"x86-64-v2,haswell,-avx2,native"`` contains three targets.

    Raise `CompileError` if there are no targets, a target is not a str, or a feature change comes before the first CPU.
    """
    parsed: list[tuple[str, list[str]]] = []
    items = [targets] if isinstance(targets, str) or not hasattr(targets, "__iter__") else list(targets)
    for item in items:
        if not isinstance(item, str):
            raise CompileError(f"targets must be CPU names, like ('x86-64-v3', 'native'), not {type(item).__name__}")
        for word in filter(None, [word.strip() for word in item.split(",")]):
            if word[0] not in "+-":
                parsed.append((word, []))
            elif parsed:
                parsed[-1][1].append(word)
            else:
                raise CompileError(
                    f"the feature change {word!r} comes before the first CPU: write the CPU's name before the changes to its features"
                )
    if not parsed:
        raise CompileError(f"targets= contains no CPU name ({targets!r}): use x86-64-v3 or native, for example")
    return list(dict.fromkeys([(cpu, ",".join(changes) or None) for cpu, changes in parsed]))


def _architecture_version(name: str, changes: str, table: CpuTable) -> tuple[str, str]:
    """Convert an architecture version (``armv8.2-a``) to the baseline CPU and feature changes. Return other names unchanged."""
    version_changes = architecture(table.arch).version_changes(name)
    if version_changes is None:
        return name, changes
    return baseline(table.arch), ",".join(filter(None, (version_changes, changes)))
