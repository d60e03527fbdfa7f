"""The table of feature bits against the LLVM that is installed, and the native runtime's reading of the processor.

LLVM, and the runtime, are told made-up processors (`pretended_processor`): every bit of every word that LLVM may ask for is changed, from
several starts, and what LLVM then says the processor has must be what the table says of the same words.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pretended_processor import Description, MadeUp, environment, everything, flips, is_possible, words_of_description

import compcache
from compcache.arch.known import architecture
from compcache.formats.host import ABI_VERSION, Processor, platform_name, read_processor, requirement
from compcache.targets.cpu_table import cpu_table
from compcache.targets.processor_words import enabled_features, feature_words, missing_features, requirement_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not is_possible(), reason="needs x86-64, gcc, nm and iced-x86")

#: Hints: they do nothing on processors without them, and nothing requires them.
HINTS = {"evex512", "prefetchi"}
#: LLVM 20 does not ask whether the kernel saves the registers of APX.
FORGOTTEN = {"ccmp", "cf", "egpr", "ndd", "nf", "ppx", "push2pop2", "zu"}
PROCESSORS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("processors.json").read_text())["x86_64"]


def in_pretence(folder: Path, function: str) -> Any:
    """What a function of this file returns in a process that can be told other processors."""
    code = (
        f"import json, sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import {__name__} as this; "
        f"print(json.dumps(this.{function}()))"
    )
    preloaded = {**os.environ, **environment(folder, everything())}
    done = subprocess.run([sys.executable, "-c", code], env=preloaded, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def description_of(words: dict[str, str]) -> Description:
    """A processor by its words; AMD's by their families."""
    family = int(words.get("1.0.a", "0"), 16) >> 8 & 0xF
    vendor = (0x68747541, 0x444D4163, 0x69746E65) if family == 0xF else (0x756E6547, 0x6C65746E, 0x49656E69)
    cpuid = dict.fromkeys(everything().cpuid, (0, 0, 0, 0))
    cpuid |= {(0, 0): (0x40, *vendor), (7, 0): (2, 0, 0, 0), (1 << 31, 0): (0x80000040, 0, 0, 0)}
    for word, value in words.items():
        if word != "xcr0":
            leaf, subleaf, register = word.split(".")
            place, at = (int(leaf, 16), int(subleaf, 16)), "abcd".index(register)
            answer = cpuid.get(place, (0, 0, 0, 0))
            cpuid[place] = (*answer[:at], int(value, 16), *answer[at + 1 :])  # type: ignore[assignment]
    return Description(cpuid, int(words.get("xcr0", "0"), 16))


def starts() -> Iterator[Description]:
    yield everything()
    for name in ("Goldmont", "Granite Rapids-D"):
        yield description_of(PROCESSORS[name]["words"])
    chance = random.Random(7)
    for _ in range(2):
        cpuid = {place: tuple(chance.getrandbits(32) for _ in answer) for place, answer in everything().cpuid.items()}
        cpuid |= {(0, 0): (0x40, 0, 0, 0), (1 << 31, 0): (0x80000040, 0, 0, 0)}
        yield Description(cpuid, chance.getrandbits(32) | 0x7)  # type: ignore[arg-type]


def differences() -> list[str]:
    """Where LLVM and the table say different things, over every change of a bit."""
    import llvmlite.binding as llvm

    machine, table = MadeUp(), feature_words("x86_64")
    names = set(llvm.get_host_cpu_features()) - HINTS  # each question costs some twenty signals
    found: dict[str, str] = {}
    for start in starts():
        for word, bit, description in [("", 0, start), *flips(start)]:
            told = machine.features(description)
            processor = Processor(words_of_description(description), "")
            ours = {name for name, words in table.items() if processor.meets(words)}
            for name in names & (told ^ ours):
                if name not in FORGOTTEN or name in ours or llvm.llvm_version_info[0] > 20:
                    found.setdefault(name, f"{name}: bit {bit} of {word}, LLVM says {name in told}")
    return sorted(found.values())


@pytest.mark.slow
def test_the_table_says_what_llvm_says_whatever_bit_is_changed(tmp_path: Path) -> None:
    """A new version of LLVM with features that the table lacks fails here: run tools/cpu_tables.py with it."""
    assert in_pretence(tmp_path, "differences") == []


def readings() -> list[str]:
    """Where the native runtime reads other words than the processor has."""
    from compcache.hit.target import load_runtime

    machine, wrong = MadeUp(), []
    for name, row in PROCESSORS.items():
        description = description_of(row["words"])
        machine.be(description)
        processor = read_processor(load_runtime(), lambda _: None, str)
        for word, value in words_of_description(description).items():
            if not processor.meets(f";{word}:{value:x}") or processor.words[word] != value:
                wrong.append(f"{name}: {word}")
    return wrong


@pytest.mark.slow
def test_the_runtime_reads_the_words_that_the_processor_has(tmp_path: Path) -> None:
    assert in_pretence(tmp_path, "readings") == []


def test_what_the_dynamic_linker_has_asked_is_what_the_processor_answers(tmp_path: Path) -> None:
    """Each word as the runtime reads it, by CPUID alone, and as the header reads it where no such dynamic linker is."""
    from compcache.hit.target import load_runtime

    runtime = load_runtime()
    content = runtime.processor()
    words = {word: value for word, value in runtime.processor_words(content).items() if word != "xcr0"}
    assert words == {word: runtime.processor_word(word) for word in words}
    header = Path(str(compcache.__file__)).parent / "hit/native/processor_x86_64.h"
    source, program = tmp_path / "words.c", tmp_path / "words"
    ask = "unsigned long long words[16]; return fwrite(words, 8, ask_processor(words), stdout) != NAMED_WORDS;"
    source.write_text(f'#include <string.h>\n#include "{header}"\nint main(void) {{ {ask} }}\n')
    subprocess.run(["gcc", "-D__x86_get_cpuid_feature_leaf=nobody_asked", str(source), "-o", str(program)], check=True)
    assert subprocess.run([str(program)], capture_output=True, check=True).stdout == content


def answers() -> dict[str, list[str]]:
    machine = MadeUp()
    return {name: sorted(machine.features(description_of(row["words"]))) for name, row in PROCESSORS.items()}


@pytest.mark.slow
def test_every_processor_runs_the_code_of_those_whose_features_it_has(tmp_path: Path) -> None:
    """Each of the described processors with code for each: LLVM's word against that of masks."""
    import llvmlite.binding as llvm

    table = cpu_table("x86_64", llvm.llvm_version_info[0])
    assert table is not None
    told = {name: frozenset(features) - HINTS for name, features in in_pretence(tmp_path, "answers").items()}
    processors = {
        name: Processor({word: int(value, 16) for word, value in row["words"].items()}, name) for name, row in PROCESSORS.items()
    }
    assert len(processors) >= 25
    wrong, runs = [], 0
    for maker, have in told.items():
        used = table.supported(have) - frozenset(architecture("x86_64").system_features) - FORGOTTEN
        features = requirement_of(used, frozenset(), "x86_64-linux-elf", maker)
        for reader, processor in processors.items():
            if processor.meets(features) != (used <= told[reader]):
                wrong.append(f"{reader} with code of {maker}")
            if not processor.meets(features):
                assert set(missing_features(features, processor)) == used - told[reader]
            runs += processor.meets(features)
    assert wrong == []
    assert len(told) < runs < len(told) ** 2


def test_code_with_a_feature_of_unknown_bits_runs_on_the_same_processor_alone() -> None:
    features = requirement_of(frozenset(("avx2", "of-the-future")), frozenset(), "x86_64-linux-elf", "5e")
    assert enabled_features(features.partition(";")[0]) == {"avx2", "of-the-future"}
    words = {word: int(value, 16) for word, value in PROCESSORS["Zen 4"]["words"].items()}
    assert Processor(words, "5e").meets(features)
    assert not Processor(words, "another").meets(features)
    assert not Processor(words, "").meets(features)
    assert missing_features(features, Processor(words, "another")) == ("of-the-future",)
    nobody = requirement_of(frozenset(("of-the-future",)), frozenset(), "x86_64-linux-elf", "")
    assert not Processor(words, "").meets(nobody)


@pytest.mark.parametrize("text", ["+avx;nonsense", ";7.0.b:xyz", ";7.0.b:", ";24.0.b>", ";,", ";same:", ";7.0.b:-1"])
def test_what_is_not_understood_is_not_met(text: str) -> None:
    assert not Processor({"7.0.b": 0xFFFFFFFF}, "5e").meets(text)


def test_leaves_are_read_only_where_code_names_them() -> None:
    asked: list[str] = []

    def ask(word: str) -> int:
        asked.append(word)
        return 1

    processor = Processor({"7.0.b": 0x20}, "5e", ask)
    assert processor.meets("+avx2;7.0.b:20")
    assert asked == []
    assert processor.meets(";24.0.b>1")
    assert not processor.meets(";24.0.b>2")
    assert asked == ["24.0.b"]


def test_the_name_of_the_cpu_is_looked_up_once() -> None:
    """It stands in a file, and ranking compares it for each requirement."""
    asked: list[str] = []

    def name() -> str:
        asked.append("")
        return "haswell"

    processor = Processor({}, "5e", cpu=name)
    texts = [requirement(ABI_VERSION, platform_name(), "", cpu, "", "", "") for cpu in ("haswell", "nehalem", "haswell")]
    assert processor.rank(texts[0]) > processor.rank(texts[1]) >= 0
    assert processor.rank(texts[2]) == processor.rank(texts[0])
    assert len(asked) == 1
