"""CPU architectures: each is one file of `arch/`, and what is not known of one has a default that is safe."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT

from compcache.arch import architecture as what
from compcache.arch import known
from compcache.arch.architecture import Architecture
from compcache.arch.known import KNOWN, architecture, architecture_of_elf
from compcache.build.codegen import platform_of
from compcache.formats.host import platform_name
from compcache.images.embedded_bitcode import holds_machine_code
from compcache.targets.cpu_table import baseline, cpu_table
from compcache.targets.processor_words import requirement_of
from compcache.targets.used_features import own_intrinsics, requires_more_than

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = PACKAGE_ROOT / "compcache"
#: Where else the name of an architecture stands in code, and why.
ELSEWHERE = {
    "forks.py": "iced_x86 is a package that a fork may interrupt the import of",
    "formats/host.py": "hits name their platform as modules do, and import nothing of arch/",
    "build/entry_code/object_file.py": "assemblers are chosen by the machine's number, and stand in the folder of entry points",
    "build/entry_code/aarch64.py": "the assembler of one architecture, which its errors name",
    "build/entry_code/x86_64.py": "the assembler of one architecture; what has none is compiled by LLVM",
    "build/llvm_types.py": "x86_fp80 is a type of LLVM's",
}
_NAME = re.compile(r"x86|amd64|aarch64|arm64|riscv|loongarch|ppc64|\barmv", re.IGNORECASE)
#: Names of CPUs in examples.
_EXAMPLE = re.compile(r"x86-64-v[1-4]|x86_64-(?:linux|unknown)")


def texts(path: Path) -> Iterator[str]:
    """The strings and names in code, without docstrings."""
    content = path.read_text(encoding="utf-8")
    tree = ast.parse(content if _NAME.search(content) else "")
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)) and id(node) not in documents:
            yield str(node.value)
        elif isinstance(node, ast.Name):
            yield node.id


def names_an_architecture(path: Path) -> bool:
    return any(_NAME.search(_EXAMPLE.sub("", text)) for text in texts(path))


def test_no_code_outside_of_the_folder_names_an_architecture() -> None:
    found = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "arch" and names_an_architecture(path)
    }
    assert found == ELSEWHERE.keys(), "what differs between architectures is a field of arch/architecture.py"


def test_each_file_is_an_architecture() -> None:
    files = {path.stem for path in (PACKAGE / "arch").glob("*.py")} - {"__init__", "architecture", "known"}
    assert files == {one.name for one in KNOWN} == {name for name in vars(known) if name in files}
    assert what.__doc__


@pytest.mark.parametrize("one", KNOWN, ids=lambda one: one.name)
def test_an_architecture_is_found_by_each_of_its_names(one: Architecture) -> None:
    assert architecture(f"{one.name}-linux-elf") is architecture(one.name) is architecture_of_elf(one.elf_machine) is one
    for name in (one.name, *one.spellings):
        assert platform_of(f"{name}-unknown-linux-gnu") == f"{one.name}-linux-elf"


@pytest.mark.parametrize("one", [one for one in KNOWN if cpu_table(one.name, 22)], ids=lambda one: one.name)
def test_what_is_named_is_in_the_tables(one: Architecture) -> None:
    table = cpu_table(one.name, 22)
    assert table is not None
    assert {one.baseline, *one.levels} <= table.cpus.keys()
    assert one.package_target in table.cpus or one.version_changes(one.package_target)
    assert one.system_features.keys() <= one.feature_words().keys()
    assert all(table.knows(name) for name in one.system_features)
    assert one.relocations.changed is not None


def test_this_architecture_is_known_by_its_own_object_files() -> None:
    assert architecture(platform_name()) in KNOWN
    assert all(holds_machine_code(one.coff_magic + bytes(16)) for one in KNOWN if one.coff_magic)


def test_of_an_unknown_architecture_nothing_is_assumed() -> None:
    """Code with a feature runs on the processor that it was compiled on, and linking may move anything."""
    unknown = architecture("mill64-linux-elf")
    assert unknown == Architecture("mill64")
    assert (baseline("mill64-linux-elf"), unknown.package_target, cpu_table("mill64", 22)) == ("generic", "native", None)
    assert requirement_of(frozenset(("belt",)), frozenset(), "mill64-linux-elf", "5e") == "+belt;same:5e"
    assert unknown.relocations == what.Relocations()
    assert unknown.code_reader() is None
    assert unknown.version_changes("mill64.2-a") is None
    assert architecture_of_elf(4711) not in KNOWN


def test_intrinsics_are_told_by_their_architecture() -> None:
    names = ["llvm.x86.avx2.psad.bw", "llvm.aarch64.neon.abs", "llvm.memcpy.p0", "x86", "llvm.riscv.vle"]
    assert own_intrinsics(names) == names[:2]
    assert requires_more_than(names[:1], frozenset(("avx",)))
    assert not requires_more_than(names[:1], frozenset(("avx2",)))
    assert not requires_more_than(names[1:2], frozenset())  # names tell nothing of features there
    assert requires_more_than(names[1::-1], frozenset())


@pytest.mark.parametrize(
    ("name", "version", "changes"),
    [("aarch64", "armv8.2-a", "+v8.2a"), ("aarch64", "armv9-a", "+v9a"), ("aarch64", "cortex-a72", None), ("x86_64", "armv8-a", None)],
)
def test_versions_of_an_architecture_are_changes_to_its_baseline(name: str, version: str, changes: str | None) -> None:
    assert architecture(name).version_changes(version) == changes


@pytest.mark.parametrize(
    ("name", "relocation", "expected"),
    [
        ("x86_64", (8, 1), (8, 16)),  # R_X86_64_64
        ("x86_64", (8, 2), (8, 12)),  # R_X86_64_PC32
        ("x86_64", (8, 42), (4, 12)),  # R_X86_64_REX_GOTPCRELX: the instruction may become another one
        ("x86_64", (2, 9), (0, 6)),
        ("aarch64", (8, 257), (8, 16)),  # R_AARCH64_ABS64
        ("aarch64", (9, 283), (8, 12)),  # R_AARCH64_CALL26, somewhere in an instruction
    ],
)
def test_linking_changes_what_a_relocation_covers(name: str, relocation: tuple[int, int], expected: tuple[int, int]) -> None:
    changed = architecture(name).relocations.changed
    assert changed is not None
    assert changed(*relocation) == expected
