"""What bundles cost: `python benchmarks/bundles.py` exports and imports 1,000 functions, of one module each and of ten modules."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter

from compcache import Cache, ModuleSource

FUNCTIONS = 1000
ROUNDS = 3


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


if __name__ == "__main__":
    main()
