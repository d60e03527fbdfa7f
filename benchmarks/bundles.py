"""What bundles cost: `python benchmarks/bundles.py` exports and imports 1,000 functions, of one module each and of ten modules.

As a layer: the first process, which unpacks it; a later process with one hit; and the least that a process would have to do
that takes members where they stand: read the archive's directory, copy one image to a memory file.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from compcache import Cache, ModuleSource

FUNCTIONS = 1000
ROUNDS = 3
FRESH = 15
_HIT = "from compcache import Cache\nCache({own!r}, layers=[{bundle!r}]).get_target('f7')(1)"
_IN_PLACE = """
import os, zipfile
with zipfile.ZipFile({bundle!r}) as archive:
    data = archive.read(archive.namelist()[7])
file = os.memfd_create("image")
os.write(file, data)
"""


def seconds(script: str) -> float:
    """Of a fresh process."""
    started = perf_counter()
    subprocess.run([sys.executable, "-c", script], check=True)
    return perf_counter() - started


def as_layer(base: Path, bundle: Path) -> None:
    """Print what a bundle costs that is a layer."""
    hit, in_place = _HIT.format(own=str(base / "own"), bundle=str(bundle)), _IN_PLACE.format(bundle=str(bundle))
    first = seconds(hit)
    later: dict[str, list[float]] = {"pass": [], hit: [], in_place: []}
    for _ in range(FRESH):
        for script, times in later.items():
            times.append(seconds(script))
    nothing, again, members = [min(times) * 1e3 for times in later.values()]
    print(
        f"      as a layer: first process {first * 1e3:.0f} ms, later ones {again - nothing:.1f} ms above `pass`; "
        f"members in place: {members - nothing:.1f} ms for archive and copy alone"
    )


def fill(place: Path, modules: int) -> list[str]:
    """Fill a cache; return the names of its functions."""
    names = [f"f{number}" for number in range(FUNCTIONS)]
    size = FUNCTIONS // modules
    with Cache(place) as cache:
        for first in range(0, FUNCTIONS, size):
            text = "".join([f"define i64 @f{n}(i64 %x) {{\n  %y = add i64 %x, {n}\n  ret i64 %y\n}}\n" for n in range(first, first + size)])
            cache.add_module(ModuleSource(text))
    return names


def main() -> None:
    """Print the table."""
    for modules in (FUNCTIONS, 10):
        with tempfile.TemporaryDirectory() as base:
            names = fill(Path(base, "cache"), modules)
            bundle = Path(base, "app.ccb")
            exports, imports = [], []
            for number in range(ROUNDS):
                with Cache(Path(base, "cache")) as cache:
                    started = perf_counter()
                    cache.export(names, bundle)
                    exports.append(perf_counter() - started)
                with Cache(Path(base, f"other{number}")) as cache:
                    started = perf_counter()
                    cache.import_bundle(bundle)
                    imports.append(perf_counter() - started)
            size = bundle.stat().st_size / 1024
            print(f"{modules:5} modules: export {min(exports):.2f} s, import {min(imports):.2f} s, {size:,.0f} KiB")
            as_layer(Path(base), bundle)


if __name__ == "__main__":
    main()
