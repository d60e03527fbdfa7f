"""Writes a golden archive: what this version stores, of every kind, for all later versions to read: `make golden`.

`tests/golden/VERSION.tar.xz` has cache directories (plain, with groups, signed, of Numba's functions), a bundle, a remote store, and
`expected.json`, which says what is in them and what each function returns. `tests/formats/test_golden.py` reads the archives of all
versions. An archive is written once, when its version is released, and never changed: a format that cannot read one has to be mended.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ARCHIVES = ROOT / "tests" / "golden"
#: Any x86-64 processor runs this code.
CPU = "x86-64"
CHAIN = """\
declare i64 @leaf(i64)
define i64 @top(i64 %x) {
  %y = call i64 @leaf(i64 %x)
  %z = add i64 %y, 100
  ret i64 %z
}
"""
LEAF = "define i64 @leaf(i64 %x) {\n  %y = mul i64 %x, 3\n  ret i64 %y\n}\n"
LARGE = """\
declare i64 @small(i64)
define i64 @large(i64 %x) {
  %y = call i64 @small(i64 %x)
  %z = shl i64 %y, 1
  ret i64 %z
}
"""
GLOBALS = """\
@count = external global i64
@ratio = external global double
@table = external global {ptr, i64}
@text = external global ptr
@floor = external global ptr
define i64 @counted(i64 %x) {
  %c = load i64, ptr @count
  %r = add i64 %x, %c
  ret i64 %r
}
define double @scaled(double %x) {
  %c = load double, ptr @ratio
  %r = fmul double %x, %c
  ret double %r
}
define i64 @second() {
  %p = load ptr, ptr @table
  %q = getelementptr i64, ptr %p, i64 1
  %r = load i64, ptr %q
  ret i64 %r
}
define i8 @letter() {
  %p = load ptr, ptr @text
  %r = load i8, ptr %p
  ret i8 %r
}
define i1 @has_object() {
  %p = load ptr, ptr @floor
  %r = icmp ne ptr %p, null
  ret i1 %r
}
"""
TOTAL = """\
define double @total(ptr %x, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  %s = phi double [0.0, %entry], [%t, %loop]
  %p = getelementptr double, ptr %x, i64 %i
  %v = load double, ptr %p
  %t = fadd double %s, %v
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, %n
  br i1 %more, label %loop, label %end
end:
  ret double %t
}
"""
MEMBERS = (
    "declare i64 @second(i64)\ndefine i64 @first(i64 %x) {\n  %y = call i64 @second(i64 %x)\n  %z = add i64 %y, 1\n  ret i64 %z\n}\n",
    "define i64 @second(i64 %x) {\n  %y = mul i64 %x, %x\n  ret i64 %y\n}\n",
)
PROGRAM = """\
from numba import njit

FACTOR = 7


@njit
def helper(x):
    return x + 1


@njit
def kernel(x):
    return helper(x) * FACTOR


print(kernel(5))
"""


def write_plain(directory: Path) -> dict[str, Any]:
    """A cache with imports, global variables, names by content, inlined and linked code, an entry of data, a pin and counts."""
    from array import array

    from compcache import Cache, Function, Identity, ModuleSource, frontend
    from compcache.globals import Buffer, PythonObject

    with Cache(directory) as cache:
        cache.add_module(ModuleSource(LEAF, cpu=CPU))
        cache.add_module(ModuleSource(CHAIN, cpu=CPU))
        variables = {
            "count": 40, "ratio": 2.5, "text": "golden", "table": Buffer.of(array("q", [1, 2, 3])),
            "floor": PythonObject("math", "floor"),
        }  # fmt: skip
        cache.add_module(ModuleSource(GLOBALS, globals=variables, cpu=CPU))
        cache.add_module(ModuleSource(TOTAL, {"total": "f64(const f64[:])"}, cpu=CPU))
        small = Identity("small", code="x + 1")
        large = Identity("large", code="small(x) * 2", callee=small)
        body = "define i64 @{}(i64 %x) {{\n  %y = add i64 %x, 1\n  ret i64 %y\n}}\n".format
        cache.add_module(ModuleSource(body("small"), {small.func_name: Function(symbol="small")}, identity=small, cpu=CPU))
        imports = {"small": small.func_name}
        cache.add_module(ModuleSource(LARGE, {large.func_name: Function(symbol="large")}, imports=imports, identity=large, cpu=CPU))
        cache.link(["top"])
        frontend.put_entry(cache, "note", b"golden data", kind="text/plain")
        frontend.write_entries(cache)
        cache.pin("total")
        calls = {
            "leaf": [[2], 6], "top": [[2], 106], "counted": [[2], 42], "scaled": [[2.0], 5.0], "second": [[], 2], "letter": [[], 103],
            "has_object": [[], True], small.func_name: [[1], 2], large.func_name: [[1], 4], "total": [["f64", [1.0, 2.0, 4.0]], 7.0],
        }  # fmt: skip
        answers(cache, calls)
    return {"calls": calls, "entry": ["note", "text/plain", "golden data"], "pinned": ["total"]}


def write_grouped(directory: Path) -> dict[str, Any]:
    """A cache with a group of two sources."""
    from compcache import Cache, ModuleSource

    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(text, cpu=CPU) for text in MEMBERS], "pair")
        calls = {"first": [[3], 10], "second": [[3], 9]}
        answers(cache, calls)
    return {"calls": calls, "groups": {"pair": 2}}


def write_signed(directory: Path, bundle: Path, store: Path) -> dict[str, Any]:
    """A cache whose modules are signed, a bundle of it, and a remote store with it."""
    from compcache import Cache, ModuleSource
    from compcache.signing.keys import generate_key

    key = generate_key("golden")
    with Cache(directory, publish_key=str(key), remote=store.as_uri(), remote_mode="write") as cache:
        for text in (LEAF, CHAIN):
            cache.add_module(ModuleSource(text, cpu=CPU))
        calls = {"leaf": [[2], 6], "top": [[2], 106]}
        answers(cache, calls)
        cache.export(["top"], bundle)
        cache.push(["top"])
        if not cache.flush_uploads():
            raise SystemExit("the store does not take what is pushed")
    return {"calls": calls, "key": str(key.public())}


def write_numba(directory: Path) -> dict[str, Any]:
    """A cache that `python -m compcache.numba run` has filled, and its program."""
    import numba

    directory.mkdir()
    (directory / "program.py").write_text(PROGRAM, encoding="utf-8")
    variables = {**os.environ, "COMPCACHE_DIR": str(directory / "cache"), "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    command = [sys.executable, "-m", "compcache.numba", "run", "program.py"]
    done = subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, check=True)
    return {"prints": done.stdout, "numba": numba.__version__, "python": platform.python_version()}


def answers(cache: Any, calls: dict[str, Any]) -> None:
    """Call every function, and compare.

    Raises:
        SystemExit: one returns something else.
    """
    for name, (arguments, expected) in calls.items():
        found = cache.get_target(name)(*arguments_of(arguments))
        if found != expected:
            raise SystemExit(f"{name} returns {found!r}, not {expected!r}")


def arguments_of(written: list[Any]) -> list[Any]:
    """The arguments of a call as `expected.json` has them: ``["f64", [...]]`` is an array."""
    from array import array

    return [array("d", written[1])] if written[:1] == ["f64"] else written


def write_all(directory: Path, *, with_numba: bool = True) -> None:
    """Everything that an archive has, below a directory.

    Raises:
        SystemExit: something does not work, or tells where it was made.
    """
    import llvmlite

    import compcache

    machine = os.uname()
    os.uname = lambda: os.uname_result((machine.sysname, "golden", machine.release, machine.version, machine.machine))
    expected = {
        "version": compcache.__version__,
        "llvmlite": llvmlite.__version__,
        "plain": write_plain(directory / "plain"),
        "grouped": write_grouped(directory / "grouped"),
        "signed": write_signed(directory / "signed", directory / "signed.bundle", directory / "store"),
        "numba": write_numba(directory / "numba") if with_numba else None,
    }
    for path in directory.rglob("*"):
        if path.is_file() and os.fsencode(ROOT) in path.read_bytes():
            raise SystemExit(f"{path} tells where it was made")
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


def pack(directory: Path, archive: Path) -> None:
    """The directory as an archive, with nothing of this machine's users and clocks in its headers."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(directory.rglob("*")):
            entry = tar.gettarinfo(path, path.relative_to(directory).as_posix())
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = int(entry.mtime)
            with open(path, "rb") if entry.isfile() else io.BytesIO() as content:
                tar.addfile(entry, content if entry.isfile() else None)
    archive.parent.mkdir(exist_ok=True)
    archive.write_bytes(lzma.compress(data.getvalue(), preset=9))


def main() -> None:
    """Write the archive of this version, in place of one of the same version that was written before its release."""
    import compcache

    if platform.machine() != "x86_64":
        raise SystemExit("golden archives have code for x86-64: run this there")
    archive = ARCHIVES / f"{compcache.__version__}.tar.xz"
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        write_all(Path(scratch))
        pack(Path(scratch), archive)
    print(f"{archive.relative_to(ROOT)}: {archive.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
