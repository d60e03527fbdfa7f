"""ccache with gcc: a cache of another kind, for reference. A program is one C file with headers, which is compiled whole."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.language import as_c, headers

if TYPE_CHECKING:
    from pathlib import Path

    from compcache_conformance.language import Program

_DRIVER = """
import ctypes, json, os, pathlib, subprocess, sys, tempfile, threading

from conformance_serve import serve

here = pathlib.Path(__file__).parent
notes = json.loads((here / "program.json").read_text())
folder = tempfile.mkdtemp(dir=os.environ.get("CONFORMANCE_SCRATCH"))
loaded = {}
lock = threading.Lock()

def ask(name, *arguments):
    found = None
    with lock:  # as a build does: one command for one object
        if not loaded:
            found = compile_all()
    function = getattr(loaded["library"], name)
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_double] * len(arguments)
    return function(*arguments), found

def compile_all():
    log, made = os.path.join(folder, "stats"), os.path.join(folder, "main.o")
    environment = dict(os.environ, CCACHE_STATSLOG=log)
    options = ["-O2", "-fPIC"] + notes["options"]
    command = ["ccache", "gcc", *options, "-c", str(here / "main.c"), "-o", made]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("ccache gcc: status %d: %s" % (done.returncode, done.stderr[-500:]))
    library = os.path.join(folder, "library.so")
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(["gcc", "-shared", made, "-o", library, "-lm"], env=plain, check=True)
    loaded["library"] = ctypes.CDLL(library)
    said = open(log).read() if os.path.exists(log) else ""
    return True if "cache_hit" in said else False if "cache_miss" in said else None

try:
    serve(ask)
finally:
    subprocess.run(["rm", "-rf", folder])
"""


class Ccache(Adapter):
    """gcc behind ccache, in its defaults."""

    name: ClassVar[str] = "ccache"
    programs: ClassVar[tuple[str, ...]] = ("ccache", "gcc")
    shapes: ClassVar[frozenset[str]] = frozenset({"call", "files", "constant", "table", "fast", "header", "embedded"})
    driver: ClassVar[str] = _DRIVER
    is_whole: ClassVar[bool] = True
    limits: ClassVar[dict[str, str]] = {"file that assembly embeds": "its manual: code that uses .incbin is not cached"}
    entries: ClassVar[int] = 50
    chain: ClassVar[int] = 4000
    excluded: ClassVar[dict[str, str]] = dict.fromkeys(
        (
            "new function in the file", "edited neighbour", "calls in another order", "many processes", "hit among many", "hit of the last",
            "last of many additions", "each its own function", "types at once", "files for an entry", "flat directory",
            "callee called alone",
        ),
        "a program is one file here: it is compiled whole",
    ) | {"size of files is limited": "gcc cannot write an object under this limit"}  # fmt: skip

    def write(self, folder: Path, program: Program) -> None:
        """One C file and its headers."""
        import json

        fast = any(function.fast for function in program.functions)
        self.put(folder / "program.json", json.dumps({"options": ["-ffast-math"] if fast else []}))
        for file in program.files:
            self.put(folder / ("main.c" if file == "main" else f"{file}.h"), as_c(program, file))
        for name, text in headers(program).items():
            self.put(folder / name, text)

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """Its directory."""
        return {"CCACHE_DIR": str(store)}

    def readonly_environment(self) -> dict[str, str]:
        """Its setting for a cache that it may not write."""
        return {"CCACHE_READONLY": "1"}

    def limited_environment(self, size: int) -> dict[str, str]:
        """Its limit."""
        return {"CCACHE_MAXSIZE": f"{max(1, size // 1024)}k"}

    def default_environment(self, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """No directory: below the home directory."""
        return {"CCACHE_DIR": ""}

    def version(self) -> str:
        """What it says."""
        done = subprocess.run(["ccache", "--version"], check=False, capture_output=True, text=True)
        return done.stdout.partition("\n")[0]
