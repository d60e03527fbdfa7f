"""Processors of AArch64 by their HWCAP words: who may run whose code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest

from compcache.formats.host import Processor
from compcache.targets.cpu_table import cpu_table
from compcache.targets.processor_words import feature_words, requirement_of

PROCESSORS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("processors.json").read_text())["aarch64"]
#: To LLVM encryption is an option of these.
_WITHOUT_AES = {"Neoverse N2", "Neoverse N3", "Neoverse V3"}
#: By CPU that code is compiled for (LLVM's name): the processors that run it.
RUNS = {
    "generic": set(PROCESSORS),
    "cortex-a72": set(PROCESSORS) - _WITHOUT_AES,
    "neoverse-n1": {
        "Neoverse N1 (Graviton 2)", "Neoverse V1 (Graviton 3)", "Neoverse V2 (Graviton 4)", "Apple M1", "Apple M2", "Apple M3",
    },
    "neoverse-v1": {"Neoverse V1 (Graviton 3)"},
    "apple-m1": {"Neoverse V2 (Graviton 4)", "Apple M1", "Apple M2", "Apple M3"},
    "apple-m2": {"Neoverse V2 (Graviton 4)", "Apple M2", "Apple M3"},
    "a64fx": {"Neoverse V1 (Graviton 3)", "Neoverse V2 (Graviton 4)"},
}  # fmt: skip


def processor(name: str) -> Processor:
    return Processor({word: int(value, 16) for word, value in PROCESSORS[name]["words"].items()}, name)


@pytest.mark.parametrize("cpu", RUNS)
def test_the_processors_that_run_the_code_of_a_cpu(cpu: str) -> None:
    table = cpu_table("aarch64", llvm.llvm_version_info[0])
    assert table is not None
    features = requirement_of(table.expand(cpu), frozenset(), "aarch64-linux-elf", "")
    assert {name for name in PROCESSORS if processor(name).meets(features)} == RUNS[cpu]


def test_every_feature_that_may_be_required_has_bits() -> None:
    for arch in ("aarch64", "x86_64"):
        table = cpu_table(arch, llvm.llvm_version_info[0])
        assert table is not None
        assert table.required <= feature_words(arch).keys()


def test_features_that_build_on_others_are_in_one_word_each() -> None:
    words = feature_words("aarch64")
    assert words["sha3"] == "hwcap:220000"
    assert words["sve2"] == "hwcap2:2"
    assert words["lsfe"] == "hwcap3:4"
