"""SOURCES COUNT FILL: the figures of load_probe.py for typed_python (Python 3.8). FILL is 1 to compile all first.

Every function becomes a module of the cache in $TP_COMPILER_CACHE.
"""

import json
import os
import sys
from time import perf_counter

from children.private_memory import private_kib
from typed_python.compiler.compiler_cache import CompilerCache


def main(sources, count, fill):
    name = f"typed_functions_{count}"
    if fill:
        lines = ["from typed_python import Entrypoint"]
        for number in range(count):
            lines += ["@Entrypoint", f"def f{number}(a: float, b: float):", f"    return a * {number}.5 + b"]
        with open(f"{sources}/{name}.py", "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    sys.path.insert(0, sources)
    functions = __import__(name)
    if fill:
        for number in range(count):
            getattr(functions, f"f{number}")(1.0, 2.0)
    private_kib()
    before = private_kib()
    started = perf_counter()
    CompilerCache(os.environ["TP_COMPILER_CACHE"])  # importing the package has done this, unseen by the clock
    assert functions.f3(1.0, 2.0) == 5.5
    elapsed = perf_counter() - started
    print(json.dumps({"us": elapsed * 1e6, "kib": private_kib() - before}))


main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")
