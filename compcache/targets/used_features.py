"""Determines the CPU features that a module uses, from function attributes, intrinsics and inline assembly."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compcache.arch.known import KNOWN, architecture
from compcache.errors import CompileError
from compcache.formats.host import platform_name
from compcache.targets.cpu_table import baseline, table_of
from compcache.targets.processor_words import enabled_features

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from compcache.build.ir_text import GlobalValue
    from compcache.targets.cpu_table import CpuTable

__all__ = [
    "TARGET_ATTRIBUTE", "check_attributes", "function_features", "own_intrinsics", "requires_more_than", "target_attributes", "used_by",
    "with_complete_attributes",
]  # fmt: skip

#: The attributes of a function that select the CPU for which it is compiled.
TARGET_ATTRIBUTE = re.compile(r'"(target-cpu|target-features|tune-cpu)"="([^"]*)"')
_GROUP = re.compile(r"^attributes #(\d+) = \{(.*)\}", re.MULTILINE)
#: The reference to an attribute group in the line of a function. Strings must be removed from the line first.
_GROUP_REFERENCE = re.compile(r"#(\d+)")
_STRING = re.compile(r'"[^"]*"')
_FEATURES = re.compile(r'("target-features"=")([^"]*)(")')
#: Directives of assembly that may write any instruction as bytes.
_RAW_BYTES = re.compile(r"\.(?:byte|short|word|long|int|quad|octa|hword|[248]byte|ascii|incbin|include|insn|macro)\b|\.value\b")
_INTRINSIC = re.compile(r"@(llvm\.[\w.]+)")
_ARCHITECTURE_PREFIXES = tuple([known.intrinsics for known in KNOWN if known.intrinsics])
_ASSEMBLY = re.compile(r'\basm (?:(?:sideeffect|alignstack|inteldialect|unwind) )*("[^"]*")')


def target_attributes(groups: Iterable[str], functions: Iterable[GlobalValue]) -> dict[str, str]:
    """Return the attribute group of each function with CPU attributes in a printed module, by function name.

    `groups` are the lines of the module that define attribute groups, and `functions` all its functions.
    """
    lines = [line for line in groups if '"target-' in line or '"tune-cpu' in line]
    attributes = {match[1]: match[2] for line in lines if (match := _GROUP.match(line))}
    if not attributes:
        return {}
    attributes_by_group = {}
    for function in functions:
        match = _GROUP_REFERENCE.search(_STRING.sub("", function.text)) if "#" in function.text else None
        if match is not None and match[1] in attributes:
            attributes_by_group[function.name] = attributes[match[1]]
    return attributes_by_group


def check_attributes(attributes: Mapping[str, str], platform: str) -> None:
    """Check that functions are not compiled for an unknown CPU. LLVM would end the process, or compile for another CPU.

    `attributes` has the attribute group of each function, and `platform` is the platform of this process.

    Raise `CompileError` if a function has an attribute for a CPU that LLVM does not know.
    """
    table = table_of(platform)
    for name, text in attributes.items():
        cpu = dict(TARGET_ATTRIBUTE.findall(text)).get("target-cpu")
        if table is not None and cpu and cpu not in table.cpus:
            raise CompileError(
                f'the attribute "target-cpu" of function {name!r} names {cpu!r}, which is not a CPU of {table.arch} that LLVM knows: '
                f"{table.suggest_cpu(cpu)}"
            )


def with_complete_attributes(text: str, attributes: Mapping[str, str], platform: str) -> str:
    """Return a printed module whose target attributes describe CPUs completely.

    LLVM takes a missing attribute from the target machine, whose features are changes to another CPU than the function's. So functions
    with ``target-cpu`` alone, like those of flang and rustc, get ``target-features`` without changes, and functions with
    ``target-features`` alone get the baseline. Disabled features that this LLVM does not know are left out, because LLVM prints a warning
    for each of them and each function; with ``-march=``, older compilers write features that newer versions of LLVM do not have.
    """
    table = table_of(platform)
    if table is None or all(_complete(group, table) == group for group in set(attributes.values())):
        return text
    return _GROUP.sub(lambda match: f"attributes #{match[1]} = {{{_complete(match[2], table)}}}", text)


def _complete(group: str, table: CpuTable) -> str:
    """Return an attribute group with both target attributes or none, and without disabled features that LLVM does not know."""
    if '"target-cpu"' in group and '"target-features"' not in group:
        return f'{group}"target-features"="" '
    if '"target-features"' in group and '"target-cpu"' not in group:
        group = f'{group}"target-cpu"="{baseline(table.arch)}" '

    def without_unknown(match: re.Match[str]) -> str:
        """Return the attribute without features that this LLVM does not know and that the code only switches off."""
        features = [feature for feature in match[2].split(",") if feature[:1] != "-" or table.knows(feature[1:])]
        return match[1] + ",".join(features) + match[3]

    return _FEATURES.sub(without_unknown, group)


def function_features(attributes: str, platform: str) -> frozenset[str]:
    """Return the features that a function may use according to its attributes ``target-cpu`` and ``target-features``.

    The attributes are complete (`with_complete_attributes`). `used_by` selects the features that the code really uses.
    """
    target_values = dict(TARGET_ATTRIBUTE.findall(attributes))
    features = target_values.get("target-features", "")
    table = table_of(platform)
    return enabled_features(features) if table is None else table.expand(target_values.get("target-cpu", ""), features)


def used_by(code: str, features: frozenset[str]) -> frozenset[str]:
    """Return the features that the code of a module may use, out of the features for which it is compiled.

    Compilers do not select instructions of system features. The code uses such a feature only if it has intrinsics or assembly with an
    instruction of the feature, or assembly that may contain any instruction. With ``-march=native``, compilers list all features that a CPU
    can have, even if a hypervisor hides them.
    """
    instructions = architecture(platform_name()).system_features
    system = features & instructions.keys()
    if not system:
        return features
    assembly = "".join(_assembly_strings(code))
    if _RAW_BYTES.search(assembly):
        return features
    written = assembly + " ".join(own_intrinsics(_INTRINSIC.findall(code)))
    return features - {name for name in system if not any(word in written for word in instructions[name] or (name,))}


def _assembly_strings(code: str) -> Iterator[str]:
    """Yield the strings of inline assembly in the code of a module, with their quotes."""
    position = code.find("asm ")
    while position >= 0:
        match = _ASSEMBLY.match(code, position)
        if match is not None:
            yield match[1]
        position = code.find("asm ", position + 1)


def own_intrinsics(names: Iterable[str]) -> list[str]:
    """Return the names of intrinsics that are specific to an architecture."""
    return [name for name in names if name.startswith(_ARCHITECTURE_PREFIXES)]


def requires_more_than(intrinsics: Iterable[str], features: frozenset[str]) -> bool:
    """Return whether an intrinsic may require a feature that is not in `features`. LLVM would end the process for such an intrinsic.

    The result may be true even if the functions that use the intrinsic have the feature in their attributes.
    """
    for name in intrinsics:
        features_by_family = next((arch.intrinsic_features for arch in KNOWN if arch.intrinsics and name.startswith(arch.intrinsics)), None)
        family = name.split(".")[2].partition("_")[0]  # avx2 in llvm.x86.avx2.psad.bw
        if features_by_family is not None and features_by_family.get(family, family) not in features:
            return True
    return False
