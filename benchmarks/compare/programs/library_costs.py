"""TESTS NAME DOWNLOADS OUT CACHE REPETITIONS: a library of the peers: processor seconds of adding it, and of compiling and linking it.

TESTS is the directory of the tests, whose `peer.programs` and `peer.linked_libraries` say how the library is built. The name ``constants``
stands for one variable of 100 MB, as clang writes it in bitcode; what it is held against is clang.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

from children.timing import take_turns
from code_generation import add, compile_and_link, processor_seconds

from compcache import ModuleSource

_SIZE = 100_000_000


def main(tests: str, name: str, downloads: str, out: str, directory: str, repetitions: str) -> None:
    sys.path.append(tests)
    from peer import linked_libraries
    from peer.programs import PROGRAMS, Places, UnavailableError

    places = Places(Path(downloads), Path(out), debug=False)
    try:
        if name == "constants":
            given = [ModuleSource(places.made("constants.bc", "clang", "-c", "-emit-llvm", "-w", _written(places)).read_bytes())]
        elif name in PROGRAMS:
            given = PROGRAMS[name].build(places).sources
        else:
            given = getattr(linked_libraries, name)(places).sources(places, optimize=2)
    except UnavailableError as error:
        print(json.dumps({"unavailable": str(error)}))
        return
    against = _by_clang if name == "constants" else compile_and_link
    sides = {"compile and link": lambda _: against(given), "add": lambda _: add(given, directory)}
    print(json.dumps({"modules": len(given), "samples": take_turns(sides, int(repetitions), 0)}))


def _written(places) -> Path:
    """The variable in assembly that every version of clang reads."""
    shown = [chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}" for byte in range(256)]
    path = places.out / "constants.ll"
    if not path.exists():
        value = "".join(map(shown.__getitem__, random.Random(1).randbytes(_SIZE)))
        path.write_text(f'@table = constant [{_SIZE} x i8] c"{value}"\ndefine i64 @size() {{\n  ret i64 {_SIZE}\n}}\n')
    return path


def _by_clang(given: list[ModuleSource]) -> float:
    started = processor_seconds()
    command = ["clang", "-O2", "-fPIC", "-shared", "-w", "-x", "ir", "-", "-o", "/dev/null"]
    subprocess.run(command, input=given[0].ir, check=True)
    return processor_seconds() - started


main(*sys.argv[1:])
