"""LLVM's names of CPU features, as words of the processor: ``+avx2`` is ``1.0.c:18000000,7.0.b:20,xcr0:6``.

For x86-64 the table is written by ``tools/cpu_tables.py``, which asks LLVM itself under made-up answers of CPUID; for AArch64 it
is `compcache.targets.hwcaps`. What a processor says of itself without any name, and what texts of words mean, is in `compcache.formats.host`.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING

from compcache.formats.host import WORDS, Processor, platform_name
from compcache.targets.hwcaps import AARCH64

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["SYSTEM_FEATURES", "as_text", "feature_words", "missing", "names_in", "processor_with", "required", "requirement_of", "words_of"]

#: Features of the operating system's side (x86-64). No instruction of theirs is chosen by a compiler: code has them by intrinsics
#: or assembly alone. Hypervisors hide them, so that a host rarely has all of those that its CPU's name stands for.
SYSTEM_FEATURES = frozenset((
    "clzero", "enqcmd", "fsgsbase", "hreset", "invpcid", "mwaitx", "pconfig", "pku", "ptwrite", "rdpru", "sgx", "shstk",
    "uintr", "usermsr", "wbnoinvd", "xsavec", "xsaveopt", "xsaves",
))  # fmt: skip


def as_text(features: Iterable[str]) -> str:
    """Features as records have them: ``+avx2,+fma``, sorted."""
    return ",".join(["+" + name for name in sorted(features)])


def names_in(features: str) -> str:
    """The names in what code requires of a processor: ``+avx2,+fma``."""
    return features.partition(";")[0]


def required(features: str) -> frozenset[str]:
    """The names of the features that a list like ``+avx2,-avx512f`` switches on."""
    return frozenset([part[1:] for part in features.split(",") if part.startswith("+")])


@cache
def feature_words(arch: str) -> Mapping[str, str]:
    """For each feature of an architecture whose bits are known, its words; empty for architectures without a table."""
    if arch == "aarch64":
        return {name: f"{word}:{sum(1 << bit for bit in bits):x}" for word, bits, name in AARCH64}
    if arch != "x86_64":
        return {}
    table = resources.files("compcache.targets") / "tables" / "x86_64-words.json"
    content: dict[str, str] = json.loads(table.read_text())
    return content


def words_of(features: Iterable[str], arch: str) -> tuple[str, list[str]]:
    """The words of some features together, and those features whose bits are not known."""
    known = feature_words(arch)
    unknown, masks, bounds = [], dict[str, int](), dict[str, int]()
    for name in features:
        if name not in known:
            unknown.append(name)
            continue
        for item in known[name].split(","):
            word, by, number = item.partition(":")
            if by:
                masks[word] = masks.get(word, 0) | int(number, 16)
            else:
                word, _, number = item.partition(">")
                bounds[word] = max(bounds.get(word, 0), int(number, 16))
    parts = [f"{word}:{mask:x}" for word, mask in sorted(masks.items())]
    return ",".join(parts + [f"{word}>{number:x}" for word, number in sorted(bounds.items())]), sorted(unknown)


@lru_cache(maxsize=256)
def requirement_of(features: frozenset[str], basic: frozenset[str], platform: str, identity: str) -> str:
    """What code that uses these features requires of a processor.

    Args:
        features: LLVM's names.
        basic: those of them that every processor of the architecture has.
        platform: the code's.
        identity: this processor's, which code with a feature of unknown bits is tied to.
    """
    names = features - basic
    words, unknown = words_of(names, platform.partition("-")[0])
    parts = [words] if words else []
    if unknown:
        parts.append(f"same:{identity}")
    return f"{as_text(names)};{','.join(parts)}" if names else ""


def processor_with(features: Iterable[str], platform: str, cpu: str) -> Processor:
    """A processor that has these features and no others."""
    arch = platform.partition("-")[0]
    words, _ = words_of(features, arch)
    content = dict.fromkeys(WORDS.get(arch, ()), 0)
    for item in filter(None, words.split(",")):
        word, by, number = item.partition(":")
        word, _, bound = item.partition(">") if not by else (word, "", "0")
        content[word] = content.get(word, 0) | int(number or bound, 16)
    return Processor(content, "", cpu=lambda: cpu)


def missing(features: str, processor: Processor) -> tuple[str, ...]:
    """What of these features (names and words) a processor lacks, by name where names are known."""
    known = feature_words(platform_name().partition("-")[0])
    items = features.rpartition(";")[2].split(",")
    lacking = [item for item in items if not processor.meets(item)]
    if lacking == [item for item in lacking if item.startswith("same:")]:
        return tuple(sorted(name for name in required(names_in(features)) if name not in known))
    found = [name for name in required(names_in(features)) if name in known and not processor.meets(known[name])]
    return tuple(sorted(found)) or tuple(lacking)
