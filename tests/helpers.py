"""What several tests need: little modules, fresh processes, and what a directory holds."""

from __future__ import annotations

import ast
import contextlib
import gc
import hashlib
import os
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pytest

    from compcache.formats.index import Index, ModuleEntry

PACKAGE_ROOT = Path(__file__).resolve().parent.parent
_FIRST = """\
import sys
before = set(sys.modules)
sys.path.insert(0, {root!r})
directory = {directory!r}
"""
_LAST = "\nsys.stdout.write('\\n' + repr(result) + '\\n')\n"

#: One function of no arguments that returns a constant: the smallest module there is.
CONSTANT = """\
define {type} @{name}() {{
  ret {type} {value}
}}
"""


class FreshProcessError(Exception):
    """Raised when a fresh process fails; says how it ended (negative: by which signal) and what it printed."""


def constant(name: str, value: object, llvm_type: str = "i64") -> str:
    """The assembly of a function that returns a constant."""
    return CONSTANT.format(type=llvm_type, name=name, value=value)


def caller(name: str, callee: str, *, plus: int = 0) -> str:
    """The assembly of ``name(x) = callee(x) + plus``, with `callee` declared."""
    return f"""\
declare i64 @{callee}(i64)
define i64 @{name}(i64 %x) {{
  %y = call i64 @{callee}(i64 %x)
  %z = add i64 %y, {plus}
  ret i64 %z
}}
"""


def adder(name: str, number: int) -> str:
    """The assembly of ``name(x) = x + number``."""
    return f"define i64 @{name}(i64 %x) {{\n  %y = add i64 %x, {number}\n  ret i64 %y\n}}\n"


def sum_of(name: str, callees: Iterable[str]) -> str:
    """The assembly of a function that adds up what others return."""
    callees = list(callees)
    lines = [f"declare i64 @{callee}(i64)" for callee in callees] + [f"define i64 @{name}(i64 %x) {{"]
    total = "0"
    for number, callee in enumerate(callees):
        lines += [f"  %y{number} = call i64 @{callee}(i64 %x)", f"  %s{number} = add i64 {total}, %y{number}"]
        total = f"%s{number}"
    return "\n".join([*lines, f"  ret i64 {total}", "}"]) + "\n"


def compile_object(ir: str, triple: str = "") -> bytes:
    """The object file of position-independent code, of this platform where none is named."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(ir)
    module.triple = triple or llvm.get_process_triple()
    target_machine = llvm.Target.from_triple(module.triple).create_target_machine(reloc="pic", codemodel="default")
    code: bytes = target_machine.emit_object(module)
    return code


def run_fresh(directory: os.PathLike[str] | str, script: str, **environment: str) -> Any:
    """What `script` left in `result`, after a run in a process with nothing in memory but what it imports.

    The script has `sys`, `directory` and `before` (the names in `sys.modules` at the start). The process sees
    none of this one's COMPCACHE variables but those in `environment`; warnings are errors.
    """
    first = _FIRST.format(root=str(PACKAGE_ROOT), directory=os.fspath(directory))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COMPCACHE_")}
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-X", "faulthandler", "-c", first + textwrap.dedent(script) + _LAST],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FreshProcessError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return ast.literal_eval(done.stdout.splitlines()[-1])


#: How a module is refused where images are objects; what it needs a shared object for follows.
REFUSED_AS_OBJECT = "it requires a shared object for: "


def store_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have modules stored as objects, as on platforms on which there are no shared objects of ELF's."""
    monkeypatch.setenv("COMPCACHE_LINKER", "none")
    monkeypatch.setattr("compcache.images.making.makes_shared_objects", lambda: False)


def snapshot(directory: os.PathLike[str] | str) -> dict[str, str]:
    """What a cache holds: every file and directory, with the digests of the files; counters and locks aside."""
    root = Path(directory)
    found = {path.relative_to(root): path for path in sorted(root.rglob("*"))}
    return {
        str(name): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for name, path in found.items()
        if name.parts[0] not in ("stats", "locks")
    }


def module_file(directory: os.PathLike[str] | str, module_id: str) -> Path:
    """The file of a module."""
    return Path(directory) / "modules-v1" / module_id[:2] / f"{module_id}.ccm"


def require_equal_modules(expected: Iterable[Path], actual: Iterable[Path]) -> None:
    """Compare module files in pairs. A failure names the sections that differ, and has their whole content: it may not come again."""
    differences = []
    for number, paths in enumerate(zip(expected, actual, strict=True)):
        if paths[0].name != paths[1].name:
            for (name, one), (_, other) in zip(*map(_sections_of, paths), strict=True):
                if one != other:
                    first = next((at for at in range(min(len(one), len(other))) if one[at] != other[at]), min(len(one), len(other)))
                    differences.append(f"{number}: {name} differs from byte {first} of {len(one)} and {len(other)}: {one!r} != {other!r}")
    assert not differences, "\n".join(differences)


def _sections_of(path: Path) -> list[tuple[str, bytes]]:
    """The sections of a module file that determine its id, by name."""
    from compcache.formats.footer import FOOTER_SIZE, decode_footer

    data = path.read_bytes()
    footer = decode_footer(data[-FOOTER_SIZE:], len(data))
    sections, start = [], 0
    for name in ("image", "records", "graph", "bitcode"):
        size = getattr(footer, name)
        sections.append((name, data[start : start + size]))
        start += size
    return sections


def module_entries(index: Index, module_id: bytes) -> list[ModuleEntry]:
    """The entries of a module in all segments that are used."""
    from compcache.formats.index import ModuleEntry

    found = [index.look_up(segment, module_id, modules=True) for segment in index.segments]
    return [ModuleEntry.decode(module_id + value) for values in found for value in values or ()]


def flip_byte(path: Path, offset: int) -> None:
    """Damage one byte of a file, under a new name so that what is mapped stays as it is."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    scratch = path.with_suffix(".damaged")
    scratch.write_bytes(data)
    scratch.replace(path)


class _Held:
    """Something that a program has while it looks a function up."""


def frees_callers(look_up: Callable[[], object], error: type[Exception]) -> bool:
    """Whether a look-up that finds nothing, or raises this error, leaves its callers' objects to reference counting."""

    def program() -> weakref.ref[_Held]:
        held = _Held()
        with contextlib.suppress(error):
            assert look_up() is None
        return weakref.ref(held)

    program()  # what is imported and remembered the first time
    gc.collect()
    gc.disable()
    try:
        return program()() is None
    finally:
        gc.enable()
