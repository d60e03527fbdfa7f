"""Tables that expand LLVM's CPU names and feature lists to the set of ISA features that code for the CPU may use.

llvmlite does not expand CPU names. The tables ``arch/tables/llvm<major>-<arch>.json`` contain LLVM's definitions of CPUs and features;
``tools/cpu_tables.py`` writes them. An LLVM without a table uses the table of the next older version: new versions add names, and hardly
ever change the meaning of a name.

LLVM also calls tuning (``slow-3ops-lea``, ``prefer-256-bit``), mitigations and modes features. They change the code, but the code runs on
every CPU. So they are not requirements.
"""

from __future__ import annotations

import difflib
import functools
import json
from importlib import resources
from typing import TYPE_CHECKING

from compcache.arch.known import architecture
from compcache.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CpuTable", "baseline", "basic_features", "cpu_table", "table_of"]


class CpuTable:
    """The CPUs and features of an architecture in one version of LLVM."""

    def __init__(self, content: Mapping[str, object]) -> None:
        def rows(key: str) -> dict[str, tuple[str, ...]]:
            """Return a part of the table, with the words of each row."""
            value = content[key]
            assert isinstance(value, dict)
            return {name: tuple(row.split()) for name, row in value.items()}

        self.arch = str(content["arch"])
        self.cpus = rows("cpus")
        self.required = frozenset(str(content["required"]).split())
        self._other = frozenset(str(content["other"]).split())
        self._implies = rows("implies")
        self._implied_by: dict[str, list[str]] = {}
        for name, row in self._implies.items():
            for feature in row:
                self._implied_by.setdefault(feature, []).append(name)

    def check(self, cpu: str, features: str) -> None:
        """Check that LLVM knows the names of a CPU and of features. LLVM would ignore unknown names and compile for another CPU.

        `features` is a list like ``+avx2,-fma``.

        Raise `CompileError` if a name is unknown, or a feature does not have the form ``+name`` or ``-name``.
        """
        if cpu not in self.cpus:
            raise CompileError(f"the code is for {cpu!r}, which is not a CPU of {self.arch} that LLVM knows: {self.suggest_cpu(cpu)}")
        for feature in filter(None, features.split(",")):
            if feature[0] not in "+-":
                raise CompileError(
                    f"the feature {feature!r} of a target must begin with + or -: write +{feature} to enable it, -{feature} to disable it"
                )
            if not self.knows(feature[1:]):
                names = [*self._implies, *self._other]
                similar = _suggest_similar(feature[1:], names) or "correct the name, or remove the feature"
                raise CompileError(f"the code needs {feature[1:]!r}, which is not a CPU feature of {self.arch} that LLVM knows: {similar}")

    def suggest_cpu(self, cpu: str) -> str:
        """Return advice for the end of a message about an unknown CPU: the names similar to `cpu`, or else the CPU levels."""
        return _suggest_similar(cpu, self.cpus) or f"use {' or '.join(architecture(self.arch).levels)}, for example"

    def knows(self, feature: str) -> bool:
        """Return whether LLVM knows a feature of this name."""
        return feature in self._implies or feature in self._other

    def expand(self, cpu: str, features: str = "") -> frozenset[str]:
        """Return the ISA features that LLVM may use in code for a CPU with changed features.

        Args:
            cpu: the CPU's name; "" and unknown names have only the features that LLVM enables by default.
            features: ``+name`` adds a feature and all features that it implies; ``-name`` removes a feature and all features that imply it.
        """
        enabled: set[str] = set()
        for name in (*architecture(self.arch).first_features, *self.cpus.get(cpu, ())):
            enabled |= self._reachable_names(name, self._implies)
        for feature in filter(None, features.split(",")):
            if feature[0] == "-":
                enabled -= self._reachable_names(feature[1:], self._implied_by)
            elif feature[1:] in self._implies:  # LLVM ignores unknown features
                enabled |= self._reachable_names(feature[1:], self._implies)
        return frozenset(enabled & self.required)

    def closure(self, names: Iterable[str]) -> frozenset[str]:
        """Return these features and all features that they imply."""
        return frozenset().union(*[self._reachable_names(name, self._implies) for name in names])

    def supported(self, features: Iterable[str]) -> frozenset[str]:
        """Return the ISA features of a host that LLVM can use: those whose implied ISA features the host also has.

        A hypervisor may hide a feature but not the features that imply it. If LLVM enables a feature, it also enables the implied features.
        """
        present = set(features)
        return frozenset(name for name in present & self.required if self._reachable_names(name, self._implies) & self.required <= present)

    def _reachable_names(self, name: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
        """Return a name and all names that `edges` connects to it, directly or indirectly."""
        reached, stack = {name}, [name]
        while stack:
            unvisited = set(edges.get(stack.pop(), ())) - reached
            reached |= unvisited
            stack += unvisited
        return reached


def _suggest_similar(name: str, names: Iterable[str]) -> str:
    """Return a question with the names similar to `name`, or "" if no name is similar."""
    similar = difflib.get_close_matches(name, list(names), n=3)
    return f"did you mean {' or '.join(similar)}?" if similar else ""


@functools.cache
def cpu_table(arch: str, major: int) -> CpuTable | None:
    """Return the table of an architecture for a major version of LLVM, or None if the architecture has no tables."""
    folder = resources.files("compcache.arch") / "tables"
    tables = {
        int(version): entry
        for entry in folder.iterdir()
        if entry.name.endswith(f"-{arch}.json") and (version := entry.name[4 : entry.name.index("-")]).isdecimal()
    }
    if not tables:
        return None
    latest = max([version for version in tables if version <= major] or tables)  # a later LLVM than `major` is better than none
    return CpuTable(json.loads(tables[latest].read_text()))


@functools.cache
def table_of(platform: str) -> CpuTable | None:
    """Return the CPU table of a platform (``x86_64-linux-elf``) for the LLVM in use; None if compcache has no such table."""
    from compcache.llvm import llvm

    return cpu_table(platform.partition("-")[0], llvm.llvm_version_info[0])


def baseline(platform: str) -> str:
    """Return LLVM's name for the baseline CPU of a platform or an architecture."""
    return architecture(platform).baseline


@functools.cache
def basic_features(platform: str) -> frozenset[str]:
    """Return the features that every processor of a platform has, for the LLVM in use; empty if there is no table for the platform."""
    table = table_of(platform)
    return table.expand(baseline(platform)) if table else frozenset()
