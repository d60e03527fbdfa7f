"""How often functions were used, and when: what lists say of modules with several functions, and of copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller

from compcache import Cache, ModuleSource, frontend
from compcache.digest import name_key
from compcache.formats.statistics import LOADS_KEY, encode_stats
from compcache.store import Store
from compcache.usage.listings import functions, modules

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 490_000
NOW = HOUR * 3600.0


def add(cache: Cache, *texts: str) -> bytes:
    """A module that defines what all these texts define."""
    return bytes.fromhex(cache.add_module(ModuleSource("\n".join(texts))))


def write_uses(directory: Path, uses: dict[tuple[str, bytes], tuple[int, float]]) -> None:
    """Let the statistics say how often and when functions were used; a name of "" is for loads of the module."""
    (directory / "stats").mkdir(exist_ok=True)
    for path in (directory / "stats").iterdir():
        path.unlink()
    keys = {(name_key(name) if name else LOADS_KEY, module_id): value for (name, module_id), value in uses.items()}
    (directory / "stats" / "all.stats1").write_bytes(encode_stats({}, keys, ["folded"]))


def used_functions(directory: Path) -> dict[str, tuple[int, float]]:
    found = functions(Store(str(directory), readonly=True))
    return {f.func_name: (f.uses, f.last_used) for f in found}


def test_functions_of_one_module_are_used_apart(cache: Cache, directory: Path) -> None:
    several = add(cache, adder("a", 1), adder("b", 2), adder("c", 3))
    top = add(cache, caller("top", "b"))
    cache._store.stats.flush()
    write_uses(directory, {("a", several): (2, NOW), ("", several): (3, NOW + 90), ("top", top): (5, NOW + 50)})
    assert used_functions(directory) == {"a": (2, NOW), "b": (0, NOW + 50), "c": (0, 0.0), "top": (5, NOW + 50)}
    counted = {m.module_id: (m.uses, m.last_used) for m in modules(Store(str(directory), readonly=True))}
    assert counted == {several.hex(): (2, NOW + 90), top.hex(): (5, NOW + 50)}


@pytest.mark.parametrize("later", [0, 1])
def test_an_import_uses_the_copy_that_was_used_last(cache: Cache, directory: Path, later: int) -> None:
    copies = [add(cache, adder("leaf", 1)), add(cache, adder("leaf", 2))]
    top = add(cache, caller("top", "leaf"))
    cache._store.stats.flush()
    uses = {("leaf", copy): (1, NOW + (number == later)) for number, copy in enumerate(copies)}
    write_uses(directory, {**uses, ("top", top): (1, NOW + 50)})
    last = {m.module_id: m.last_used for m in modules(Store(str(directory), readonly=True))}
    assert last == {copies[later].hex(): NOW + 50, copies[1 - later].hex(): NOW, top.hex(): NOW + 50}
    assert used_functions(directory) == {"leaf": (2, NOW + 50), "top": (1, NOW + 50)}


def test_modules_are_listed_by_the_first_digits_of_their_ids(cache: Cache) -> None:
    ids = sorted(add(cache, adder("f", number)).hex() for number in range(30))
    for prefix in ("", ids[0][:1], ids[0][:2], ids[0][:3], ids[0]):
        expected = [module_id for module_id in ids if module_id.startswith(prefix)]
        for text in (prefix, prefix.upper()):
            assert [module.module_id for module in frontend.list_modules(cache, text)] == expected
    for text in ("x", ids[0][:2] + "x", "a ", ids[0] + "-"):
        with pytest.raises(ValueError, match="hexadecimal digits"):
            list(frontend.list_modules(cache, text))
