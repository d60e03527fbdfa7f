"""CPU names and feature lists in LLVM's terms, expanded to the set of ISA features that code for them may use.

llvmlite does not expand CPU names. The tables of the architectures (``arch/tables/llvm<major>-<arch>.json``, written by
``tools/cpu_tables.py`` from LLVM's own) do. For an LLVM that has no table of its own the next older one is used: names are
added between versions, and what they mean hardly ever changes.

Of what LLVM calls features, only those count as requirements that a host can be asked for. Tuning
(``slow-3ops-lea``, ``prefer-256-bit``), mitigations and modes change the code, and run everywhere.
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
    """The CPUs and features of one architecture, as one version of LLVM knows them."""

    def __init__(self, content: Mapping[str, object]) -> None:
        def rows(key: str) -> dict[str, tuple[str, ...]]:
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
            for other in row:
                self._implied_by.setdefault(other, []).append(name)

    def check(self, cpu: str, features: str) -> None:
        """Refuse names that LLVM would ignore, because the code would then be for another CPU.

        Raises:
            CompileError: a name is not known, or is not of the form ``+name`` or ``-name``.
        """
        if cpu not in self.cpus:
            raise CompileError(f"{cpu!r} is not a CPU of {self.arch} that LLVM knows{_advice(cpu, self.cpus)}")
        for part in filter(None, features.split(",")):
            if part[0] not in "+-":
                raise CompileError(f"{part!r} does not say whether the feature is wanted: write +{part} or -{part}")
            if not self.knows(part[1:]):
                known = [*self._implies, *self._other]
                raise CompileError(f"{part[1:]!r} is not a CPU feature of {self.arch} that LLVM knows{_advice(part[1:], known)}")

    def knows(self, feature: str) -> bool:
        """Return whether LLVM knows a feature of this name."""
        return feature in self._implies or feature in self._other

    def expand(self, cpu: str, features: str = "") -> frozenset[str]:
        """Return the ISA features that code for this CPU with these features may use, as LLVM works them out.

        Args:
            cpu: the CPU's name; "" and unknown names stand for the architecture's baseline.
            features: ``+name`` adds a feature and all features that it implies; ``-name`` removes a feature and all features that imply it.
        """
        have: set[str] = set()
        for name in (*architecture(self.arch).first_features, *self.cpus.get(cpu, ())):
            have |= self._reach(name, self._implies)
        for part in filter(None, features.split(",")):
            if part[0] == "-":
                have -= self._reach(part[1:], self._implied_by)
            elif part[1:] in self._implies:  # LLVM ignores what it does not know
                have |= self._reach(part[1:], self._implies)
        return frozenset(have & self.required)

    def closure(self, names: Iterable[str]) -> frozenset[str]:
        """Return these features and all features that they imply."""
        return frozenset().union(*[self._reach(name, self._implies) for name in names])

    def supported(self, told: Iterable[str]) -> frozenset[str]:
        """Return the features of a host that LLVM can use: those whose implied features the host has, too.

        A hypervisor may hide a feature but not the features that imply it. Enabling one of those would enable the hidden one, too.
        """
        have = set(told)
        return frozenset(name for name in have & self.required if self._reach(name, self._implies) & self.required <= have)

    def _reach(self, name: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
        found, stack = {name}, [name]
        while stack:
            new = set(edges.get(stack.pop(), ())) - found
            found |= new
            stack += new
        return found


def _advice(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=3)
    return f": did you mean {' or '.join(close)}?" if close else ""


@functools.cache
def cpu_table(arch: str, major: int) -> CpuTable | None:
    """Return the table of an architecture for a major version of LLVM; None for an architecture that has none."""
    folder = resources.files("compcache.arch") / "tables"
    found = [
        (int(version), entry)
        for entry in folder.iterdir()
        if entry.name.endswith(f"-{arch}.json") and (version := entry.name[4 : entry.name.index("-")]).isdecimal()
    ]
    older = [pair for pair in found if pair[0] <= major] or found
    if not older:
        return None
    return CpuTable(json.loads(max(older, key=lambda pair: pair[0])[1].read_text()))


def table_of(platform: str) -> CpuTable | None:
    """Return the CPU table of a platform (``x86_64-linux-elf``) for the LLVM in use."""
    from compcache.llvm import llvm

    return cpu_table(platform.partition("-")[0], llvm.llvm_version_info[0])


def baseline(platform: str) -> str:
    """Return LLVM's name for the least capable CPU of a platform or an architecture."""
    return architecture(platform).baseline


@functools.cache
def basic_features(platform: str) -> frozenset[str]:
    """Return the features that every processor of a platform has, for the LLVM in use."""
    table = table_of(platform)
    return table.expand(baseline(platform)) if table else frozenset()
