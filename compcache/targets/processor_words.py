"""Translates LLVM's CPU feature names to processor words: ``+avx2`` to ``1.0.c:18000000,7.0.b:20,xcr0:6``.

The architecture modules (`compcache.arch`) contain the words of each feature. `compcache.formats.host` reads the words of this host's
processor, and defines their syntax.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from compcache.arch.known import architecture
from compcache.formats.host import Processor, platform_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "enabled_features", "feature_words", "features_in", "format_features", "missing_features", "processor_with", "requirement_of",
    "words_of",
]  # fmt: skip


def format_features(features: Iterable[str]) -> str:
    """Return features as sorted text, as in stored records: ``+avx2,+fma``."""
    return ",".join(["+" + name for name in sorted(features)])


def features_in(features: str) -> str:
    """Return the part of a processor requirement with the feature names, like ``+avx2,+fma``, without the words."""
    return features.partition(";")[0]


def enabled_features(features: str) -> frozenset[str]:
    """Return the names of the features that a list like ``+avx2,-avx512f`` enables."""
    return frozenset([feature[1:] for feature in features.split(",") if feature.startswith("+")])


@cache
def feature_words(arch: str) -> Mapping[str, str]:
    """Return the words of each known feature, by name. The mapping is empty for architectures without a table."""
    return architecture(arch).feature_words()


def words_of(features: Iterable[str], arch: str) -> tuple[str, tuple[str, ...]]:
    """Return the combined words of features, and the sorted names of features without known words."""
    return _combine_words(frozenset(features), arch)


@lru_cache(maxsize=256)
def _combine_words(features: frozenset[str], arch: str) -> tuple[str, tuple[str, ...]]:
    """Return the processor words that hold the features, as text, and the sorted features that no word holds."""
    words_of_features = feature_words(arch)
    unknown, masks, bounds = [], dict[str, int](), dict[str, int]()
    for name in features:
        if name not in words_of_features:
            unknown.append(name)
            continue
        for item in words_of_features[name].split(","):
            word, colon, number = item.partition(":")
            if colon:
                masks[word] = masks.get(word, 0) | int(number, 16)
            else:
                word, _, number = item.partition(">")
                bounds[word] = max(bounds.get(word, 0), int(number, 16))
    parts = [f"{word}:{mask:x}" for word, mask in sorted(masks.items())]
    return ",".join(parts + [f"{word}>{number:x}" for word, number in sorted(bounds.items())]), tuple(sorted(unknown))


@lru_cache(maxsize=256)
def requirement_of(features: frozenset[str], basic: frozenset[str], platform: str, identity: str) -> str:
    """Return the processor requirement of code that uses these features.

    Args:
        features: the features, by their LLVM names.
        basic: the features that every processor of the architecture has.
        platform: the platform of the code.
        identity: the identity of this host's processor. Code that uses a feature without known words runs only on this processor.
    """
    names = features - basic
    words, unknown = words_of(names, platform.partition("-")[0])
    parts = [words] if words else []
    if unknown:
        parts.append(f"same:{identity}")
    return f"{format_features(names)};{','.join(parts)}" if names else ""


def processor_with(features: Iterable[str], platform: str, cpu: str) -> Processor:
    """Return a processor that has only these features."""
    arch = platform.partition("-")[0]
    words, _ = words_of(features, arch)
    content = {re.split("[:>]", item)[0]: 0 for text in feature_words(arch).values() for item in text.split(",")}
    for item in filter(None, words.split(",")):
        word, colon, number = item.partition(":")
        word, _, bound = item.partition(">") if not colon else (word, "", "0")
        content[word] = content.get(word, 0) | int(number or bound, 16)
    return Processor(content, "", cpu=lambda: cpu)


def missing_features(features: str, processor: Processor) -> tuple[str, ...]:
    """Return the features in a requirement that a processor lacks. If the name of none is known, return the words that it lacks."""
    known_words = feature_words(platform_name().partition("-")[0])
    items = features.rpartition(";")[2].split(",")
    absent_items = [item for item in items if not processor.meets(item)]
    names = sorted(enabled_features(features_in(features)))
    if all(item.startswith("same:") for item in absent_items):  # the features that no word describes
        return tuple([name for name in names if name not in known_words])
    absent = [name for name in names if name in known_words and not processor.meets(known_words[name])]
    return tuple(absent or absent_items)
