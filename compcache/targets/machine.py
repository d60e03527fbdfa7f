"""The machine that a module is compiled for, and what its code requires of a host.

LLVM takes a CPU's name and a list of changes to it. Names are checked first, for LLVM compiles for something else where
it does not know one. What code may use beyond the architecture's baseline is worked out from LLVM's own tables
(`compcache.targets.cpu_table`), however the features were named: by a CPU, by a list, or by being those of this host.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import CompileError
from compcache.formats.host import SYSTEM_FEATURES, required
from compcache.targets.cpu_table import cpu_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from compcache.build.source import ModuleSource
    from compcache.formats.host import Host
    from compcache.targets.cpu_table import CpuTable

__all__ = ["NATIVE", "TARGETS_VARIABLE", "TARGET_ATTRIBUTE", "Machine", "as_text", "check_attributes", "function_requirements", "machine_for", "parse_targets", "requested_targets", "table_of", "used_by", "uses_beyond"]

#: What to compile for where a source does not say it.
TARGETS_VARIABLE = "COMPCACHE_TARGETS"
#: In place of a CPU's name: this host.
NATIVE = "native"
_ARM_VERSION = re.compile(r"armv([89](?:\.[0-9])?)-a")
#: The feature that the intrinsics ``llvm.x86.<family>.*`` belong to, where it has another name.
_FAMILIES = {
    "aesni": "aes", "atomic": "64bit", "avx512": "avx512f", "pclmulqdq": "pclmul", "rdrand": "rdrnd", "sse41": "sse4.1", "sse42": "sse4.2",
    "sha1msg1": "sha", "sha256msg1": "sha", "xgetbv": "xsave", "flags": "64bit", "int": "64bit", "rdtsc": "64bit", "rdtscp": "64bit",
}  # fmt: skip
#: The instructions of the features of the operating system's side, and so the intrinsics, by what each is called; another's
#: intrinsic or assembly that has the word in its name counts, too, which does no harm.
_SYSTEM_INSTRUCTIONS = {
    "fsgsbase": ("rdfsbase", "rdgsbase", "wrfsbase", "wrgsbase"),
    "mwaitx": ("mwaitx", "monitorx"),
    "pku": ("rdpkru", "wrpkru"),
    "sgx": ("enclu", "encls", "enclv"),
    "shstk": ("ssp", "wrss", "wruss", "setssbsy", "clrssbsy"),
    "uintr": ("clui", "stui", "testui", "senduipi", "uiret"),
    "usermsr": ("urdmsr", "uwrmsr"),
    "xsaves": ("xsaves", "xrstors"),
}
#: Directives of assembly that may spell any instruction.
_SPELLED_OUT = re.compile(r"\.(?:byte|short|word|long|int|quad|octa|hword|[248]byte|ascii|incbin|include|insn|macro)\b|\.value\b")
_INTRINSICS = re.compile(r"@llvm\.x86\.[\w.]+")
_ASSEMBLY = re.compile(r'\basm (?:(?:sideeffect|alignstack|inteldialect|unwind) )*("[^"]*")')
_BASELINES = {"x86_64": "x86-64", "aarch64": "generic"}
#: The attributes of a function that say for which CPU it is compiled.
TARGET_ATTRIBUTE = re.compile(r'"(target-cpu|target-features|tune-cpu)"="([^"]*)"')


class Machine(NamedTuple):
    """The machine to compile for.

    `cpu` and `features` are what LLVM is given; `requires` is what code for it needs of a host, as sorted text
    (``+avx2,+fma``); `explicit` are the features that the source itself asked for.
    """

    cpu: str
    features: str
    requires: frozenset[str]
    explicit: frozenset[str]

    def by_features(self, platform: str) -> Machine:
        """The same with every feature listed: nothing comes with the name of the CPU, and no tuning either."""
        return self._replace(cpu=_baseline(platform), features=as_text(self.requires))

    def required_by(self, code: str) -> str:
        """The host requirements of a module with this text: `used_by` of the machine's, and what the source asked for."""
        return as_text(used_by(code, self.requires) | (self.requires & self.explicit))


def used_by(code: str, features: frozenset[str]) -> frozenset[str]:
    """Of these features, those that the code of a module may use.

    No compiler uses those of the operating system's side by itself. They count where the code has intrinsics or assembly with one of
    their instructions, or assembly that may spell any. A compiler that is told to compile for a CPU (``-march=native``) lists all that
    such CPUs can have, also what a hypervisor hides from this one.
    """
    system = features & SYSTEM_FEATURES
    if not system:
        return features
    assembly = "".join(_ASSEMBLY.findall(code)) if " asm " in code or "module asm" in code else ""
    if _SPELLED_OUT.search(assembly):
        return features
    written = assembly + " ".join(_INTRINSICS.findall(code))
    return features - {name for name in system if not any(word in written for word in _SYSTEM_INSTRUCTIONS.get(name, (name,)))}


def as_text(features: Iterable[str]) -> str:
    """Features as records have them: ``+avx2,+fma``, sorted."""
    return ",".join(["+" + name for name in sorted(features)])


def table_of(platform: str) -> CpuTable | None:
    """The CPU table of a platform (``x86_64-linux-elf``) for the LLVM in use."""
    import llvmlite.binding as llvm

    return cpu_table(platform.partition("-")[0], llvm.llvm_version_info[0])


@lru_cache(maxsize=64)
def machine_for(cpu: str | None, features: str | None, host: Host, platform: str) -> Machine:
    """The machine that a source names.

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
    name = host.cpu if cpu is None or native else cpu or _baseline(platform)
    if table is None:
        text = ",".join(filter(None, (host.features if native else "", named)))
        return Machine(name, text, required(text), required(named))
    if not native:
        name, named = _architecture_version(name, named, table)
        table.check(name, named)
        return Machine(name, named, table.expand(name, named), table.closure(required(named)))
    table.check(_baseline(platform), named)
    text = ",".join(filter(None, (host.adjustments, named)))
    return Machine(name, text, table.expand(name, text), table.closure(required(named)))


def requested_targets(source: ModuleSource) -> list[tuple[str | None, str | None]]:
    """The (CPU, changes to it) that a source is to be compiled for.

    Raises:
        CompileError: it has both targets and a CPU, or no target at all.
    """
    chosen = source.targets
    if source.cpu is not None or source.features is not None:
        if chosen is not None:
            raise CompileError("targets= names the CPUs to compile for: leave cpu= and features= out, or targets=")
        return [(source.cpu, source.features)]
    if chosen is None:
        chosen = os.environ.get(TARGETS_VARIABLE) or [NATIVE]
    found = parse_targets(chosen)
    if not found:
        raise CompileError(f"targets={chosen!r} names no CPU")
    return found


def parse_targets(targets: Iterable[str] | str) -> list[tuple[str | None, str | None]]:
    """Targets as (CPU, changes to it), each once: ``"x86-64-v2,haswell,-avx2,native"`` are three."""
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
    return list(dict.fromkeys([(cpu, ",".join(changes) or None) for cpu, changes in found]))


def _architecture_version(name: str, changes: str, table: CpuTable) -> tuple[str, str]:
    """A version of the AArch64 architecture (``armv8.2-a``) as LLVM has it: a feature of its baseline CPU."""
    match = _ARM_VERSION.fullmatch(name)
    if match is None or table.arch != "aarch64":
        return name, changes
    return _BASELINES[table.arch], ",".join(filter(None, (f"+v{match[1]}a", changes)))


def _baseline(platform: str) -> str:
    return _BASELINES.get(platform.partition("-")[0], "generic")


def check_attributes(attributes: Mapping[str, str], platform: str) -> None:
    """Refuse functions for a CPU that LLVM does not know, for which it would make code for another one, or give up.

    Args:
        attributes: the attributes of each function.
        platform: this process's.

    Raises:
        CompileError: there is one.
    """
    table = table_of(platform)
    for name, text in attributes.items():
        cpu = dict(TARGET_ATTRIBUTE.findall(text)).get("target-cpu")
        if table is not None and cpu is not None:
            try:
                table.check(cpu or _baseline(platform), "")
            except CompileError as error:
                raise CompileError(f'function {name!r} has the attribute "target-cpu"="{cpu}": {error}') from None


def uses_beyond(intrinsics: Iterable[str], features: frozenset[str]) -> bool:
    """Whether some of these intrinsics of x86-64 may be of a feature that is not among these: LLVM ends the process over them.

    Functions may have the features themselves; that is for LLVM to say.
    """
    families = {name.split(".")[2].partition("_")[0] for name in intrinsics}
    return any(_FAMILIES.get(family, family) not in features for family in families)


def function_requirements(attributes: str, machine: Machine, platform: str) -> frozenset[str]:
    """The features that a function may use by its own ``target-cpu`` and ``target-features``; `used_by` tells which of them count.

    Each of the two that it has takes the place of the machine's, as LLVM has it.
    """
    own = dict(TARGET_ATTRIBUTE.findall(attributes))
    table = table_of(platform)
    if table is None or not own.keys() - {"tune-cpu"}:
        return required(own.get("target-features", ""))
    return table.expand(own.get("target-cpu", machine.cpu), own.get("target-features", machine.features))
