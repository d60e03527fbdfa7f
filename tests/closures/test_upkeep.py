"""Whatever is done to a cache with linked closures, tools and readers see what they see of the same cache without them."""

from __future__ import annotations

import os
import random
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller, sum_of
from test_addresses import SOURCES

from compcache import Cache, CompcacheError, Identity, ModuleSource, PrunePolicy, UndefinedSymbolError
from compcache.publish.module_reader import linked_closures
from compcache.signing.keys import generate_key

if TYPE_CHECKING:
    from pathlib import Path

#: How many histories are drawn by default, and by the long test.
FEW, MANY = 2, int(os.environ.get("HISTORIES", "200"))
_IDENTITY = Identity("content", {"words": "of these tests"})
CONTENT = _IDENTITY.func_name
NAMES = ("f", "g", "h", "k", "user", "bump", "peek", "through", "z", "outer", CONTENT)
#: What a history adds: new functions, others of the same names, and what uses them.
ADDED = (
    adder("f", 40), adder("g", 50), adder("z", 9), caller("g", "z", plus=2), sum_of("k", ["z", "g"]), sum_of("outer", ["k", CONTENT]),
    adder("unrelated", 1),
)  # fmt: skip
#: Whether the key of the readers signs what is added, from some step on.
_KEY = generate_key("tests")
_SECRET, _PUBLIC = str(_KEY), str(_KEY.public())


def values_of(cache: Cache) -> list[object]:
    """What its functions return, or the class of the error; two rounds, because some change variables."""
    found: list[object] = []
    for _ in range(2):
        for name in NAMES:
            try:
                found.append(cache.get_target(name)(2))
            except CompcacheError as error:
                found.append(type(error).__name__)
    return found


def seen(directory: Path, scratch: Path) -> dict[str, object]:
    """What tools say of a cache, and what its users get: of itself, as a layer, by a bundle, and with the keys alone."""
    found: dict[str, object] = {}
    with Cache(directory) as cache:
        found["values"] = values_of(cache)
        found["functions"] = names = [summary.func_name for summary in cache.functions()]
        derived = {key.hex() for key in linked_closures(cache._store)}
        found["modules"] = [module.module_id for module in cache.modules() if module.module_id not in derived]
        for name in names:
            why = cache.explain(name)
            known = cache.dependencies(name, transitive=True), cache.graph(name), cache.graph(name, reverse=True)
            found[name] = *known, why.hit, why.reason, why.message.replace(str(directory), ""), why.variants
        found["findings"] = [(finding.kind, finding.subject) for finding in cache.check().findings]
        exported = [name for name in NAMES if name in names]
        if exported:
            found["bundle"] = cache.export(exported, scratch / "bundle", closure=False)
    with Cache(scratch / "above", layers=[str(directory)]) as above:
        found["layer"] = values_of(above), [summary.func_name for summary in above.functions()]
    if exported:
        with Cache(scratch / "imported") as imported:
            imported.import_bundle(scratch / "bundle")
            found["imported"] = values_of(imported), [module.module_id for module in imported.modules()]
    with Cache(directory, trusted_keys=[_PUBLIC]) as trusting, warnings.catch_warnings(action="ignore"):  # that something is not signed
        found["trusted"] = values_of(trusting)
    return found


def drawn(seed: int) -> list[tuple[Any, ...]]:
    """A history: what is done to a cache, one step after the other."""
    chance = random.Random(seed)
    kinds = ["add", "link", "set", "remove", "drop", "prune", "compact", "derived", "index"]
    steps: list[tuple[Any, ...]] = [("set", tuple(chance.sample(NAMES, 4)))]
    for kind in chance.choices(kinds, weights=[4, 3, 3, 1, 1, 2, 1, 1, 1], k=chance.randint(3, 7)):
        if kind in ("link", "set"):
            steps.append((kind, tuple(chance.sample(NAMES, chance.randint(1, 5)))))
        elif kind == "add":
            steps.append((kind, chance.choice(ADDED), chance.random() < 0.5))
        elif kind == "prune":
            policy = chance.choice(({"match": chance.choice(("z", "k*", "peek"))}, {"older_than": 0, "keep": "k"}, {"duplicates": True}))
            steps.append((kind, policy))
        else:
            steps.append((kind, chance.choice(NAMES)))
    return steps


def do(directory: Path, step: tuple[Any, ...], *, links: bool) -> None:
    kind, of, *signs = step
    with Cache(directory, publish_key=_SECRET if signs and signs[0] else None) as cache, warnings.catch_warnings(action="ignore"):
        if kind == "add":
            with suppress(UndefinedSymbolError):  # of a function that an earlier step has removed
                cache.add_module(ModuleSource(of))
        elif kind in ("link", "set") and links:
            cache.link([name for name in of if cache.has(name)], into="set" if kind == "set" else None)
        elif kind == "remove":
            if cache.has(of):
                cache.remove(of, force=True)
        elif kind == "drop":
            found = [realization.module_id for realization in cache.realizations(of)]
            derived = {key.hex() for key in linked_closures(cache._store)}
            for module_id in sorted(set(found) - derived)[:1]:
                cache.remove_module(module_id)
        elif kind == "prune":
            cache.prune(PrunePolicy(**of))
        elif kind == "compact":
            cache.compact(grace=0.0)
        elif kind == "derived" and links:
            cache.remove(derived=True)
        elif kind == "index":
            for file in (directory / "index-v1").iterdir():
                file.unlink()


def play(steps: list[tuple[Any, ...]], folder: Path) -> list[str]:
    """What was seen otherwise with closures, and after which step."""
    directories = {links: folder / str(links) for links in (False, True)}
    content = ModuleSource(caller(CONTENT, "h", plus=7))
    for directory in directories.values():
        with Cache(directory, publish_key=_SECRET) as cache:
            cache.add_modules([*[ModuleSource(code) for code in SOURCES], content])
    for number, step in enumerate(steps):
        found = []
        for links, directory in directories.items():
            do(directory, step, links=links)
            scratch = folder / f"{number}{links}"
            scratch.mkdir()
            found.append(seen(directory, scratch))
        apart, linked = found
        different = [key for key in {**apart, **linked} if apart.get(key) != linked.get(key)]
        if different:
            return [f"after step {number}, {step}: {key}: {apart.get(key)!r:.300} {linked.get(key)!r:.300}" for key in different]
    return []


@pytest.mark.slow
@pytest.mark.parametrize("number", [FEW, pytest.param(MANY, marks=[pytest.mark.stress, pytest.mark.timeout(900)])])
def test_tools_and_readers_see_what_they_see_without_closures(tmp_path: Path, number: int) -> None:
    different = {seed: found for seed in range(number) if (found := play(drawn(seed), tmp_path / str(seed)))}
    assert not different
