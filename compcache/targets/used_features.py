"""Finds the CPU features that code uses, by the attributes of its functions, its intrinsics and its assembly."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compcache.arch.known import KNOWN, architecture
from compcache.errors import CompileError
from compcache.formats.host import platform_name
from compcache.targets.cpu_table import baseline, table_of
from compcache.targets.processor_words import required

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from compcache.build.ir_text import GlobalValue
    from compcache.targets.machine import Machine

__all__ = [
    "TARGET_ATTRIBUTE",
    "check_attributes",
    "function_features",
    "own_intrinsics",
    "target_attributes",
    "used_by",
    "uses_beyond",
    "without_unknown_features",
]

#: The attributes of a function that say for which CPU it is compiled.
TARGET_ATTRIBUTE = re.compile(r'"(target-cpu|target-features|tune-cpu)"="([^"]*)"')
_GROUP = re.compile(r"attributes #(\d+) = \{(.*)\}")
#: Where a function names its group of attributes, once its line has no strings.
_OF_GROUP = re.compile(r"#(\d+)")
_STRING = re.compile(r'"[^"]*"')
_FEATURES = re.compile(r'("target-features"=")([^"]*)(")')
#: Directives of assembly that may spell any instruction.
_SPELLED_OUT = re.compile(r"\.(?:byte|short|word|long|int|quad|octa|hword|[248]byte|ascii|incbin|include|insn|macro)\b|\.value\b")
_INTRINSIC = re.compile(r"@(llvm\.[\w.]+)")
_OF_ARCHITECTURES = tuple([known.intrinsics for known in KNOWN if known.intrinsics])
_ASSEMBLY = re.compile(r'\basm (?:(?:sideeffect|alignstack|inteldialect|unwind) )*("[^"]*")')


def target_attributes(groups: Iterable[str], functions: Iterable[GlobalValue]) -> dict[str, str]:
    """Return the attributes of each function of a printed module that names a CPU.

    Args:
        groups: the lines of the module that define groups of attributes.
        functions: all of its functions.
    """
    lines = [line for line in groups if '"target-' in line or '"tune-cpu' in line]
    attributes = {match[1]: match[2] for line in lines if (match := _GROUP.match(line))}
    found = {}
    for function in functions if attributes else ():
        match = _OF_GROUP.search(_STRING.sub("", function.text)) if "#" in function.text else None
        if match is not None and match[1] in attributes:
            found[function.name] = attributes[match[1]]
    return found


def check_attributes(attributes: Mapping[str, str], platform: str) -> None:
    """Refuse functions for a CPU that LLVM does not know: LLVM would give up, or make code for another CPU.

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
                table.check(cpu or baseline(platform), "")
            except CompileError as error:
                raise CompileError(f'function {name!r} has the attribute "target-cpu"="{cpu}": {error}') from None


def without_unknown_features(text: str, attributes: Mapping[str, str], platform: str) -> str | None:
    """Return a printed module without the disabled features that this LLVM does not know; None if there are none.

    With ``-march=``, compilers list all features that they know, and older ones know some that newer ones have dropped. LLVM complains
    about each on standard error, for every function.
    """
    table = table_of(platform)
    names = {part for group in set(attributes.values()) for _, value in TARGET_ATTRIBUTE.findall(group) for part in value.split(",")}
    if table is None or all(table.knows(name[1:]) for name in names if name[:1] == "-"):
        return None
    knows = table.knows

    def known(match: re.Match[str]) -> str:
        return match[1] + ",".join([part for part in match[2].split(",") if part[:1] != "-" or knows(part[1:])]) + match[3]

    return _FEATURES.sub(known, text)


def function_features(attributes: str, machine: Machine, platform: str) -> frozenset[str]:
    """Return the features that a function may use by its own ``target-cpu`` and ``target-features``. `used_by` decides which of them count.

    Each of the two replaces the machine's, as in LLVM.
    """
    own = dict(TARGET_ATTRIBUTE.findall(attributes))
    table = table_of(platform)
    if table is None or not own.keys() - {"tune-cpu"}:
        return required(own.get("target-features", ""))
    return table.expand(own.get("target-cpu", machine.cpu), own.get("target-features", machine.features))


def used_by(code: str, features: frozenset[str]) -> frozenset[str]:
    """Return which of these features the code of a module may use.

    Compilers do not use operating-system features by themselves. These count if the code has intrinsics or assembly with one of their
    instructions, or assembly that may contain any. A compiler for a given CPU (``-march=native``) lists all features that such CPUs can
    have, even those that a hypervisor hides from this one.
    """
    instructions = architecture(platform_name()).system_features
    system = features & instructions.keys()
    if not system:
        return features
    assembly = "".join(_strings_of_assembly(code))
    if _SPELLED_OUT.search(assembly):
        return features
    written = assembly + " ".join(own_intrinsics(_INTRINSIC.findall(code)))
    return features - {name for name in system if not any(word in written for word in instructions[name] or (name,))}


def _strings_of_assembly(code: str) -> Iterator[str]:
    at = code.find("asm ")
    while at >= 0:
        match = _ASSEMBLY.match(code, at)
        if match is not None:
            yield match[1]
        at = code.find("asm ", at + 1)


def own_intrinsics(names: Iterable[str]) -> list[str]:
    """Return which of these function names are intrinsics of an architecture."""
    return [name for name in names if name.startswith(_OF_ARCHITECTURES)]


def uses_beyond(intrinsics: Iterable[str], features: frozenset[str]) -> bool:
    """Return whether some of these intrinsics may need other features, in which case LLVM would end the process.

    Functions may have the features themselves; LLVM decides that.
    """
    for name in intrinsics:
        known = next((one.intrinsic_features for one in KNOWN if one.intrinsics and name.startswith(one.intrinsics)), None)
        family = name.split(".")[2].partition("_")[0]
        if known is not None and known.get(family, family) not in features:
            return True
    return False
