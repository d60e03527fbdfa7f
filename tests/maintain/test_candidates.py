"""A prune that passes by what stays plans what one that holds all modules does, whatever the directory and the policy."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from made_up_modules import publish_module

from compcache import PrunePolicy
from compcache.digest import name_key
from compcache.formats.statistics import encode_stats
from compcache.maintain import candidates
from compcache.maintain.candidates import Census, Chooser
from compcache.maintain.pins import pin
from compcache.maintain.policy import Plan, plan_prune
from compcache.maintain.prune import propose
from compcache.publish import module_lists
from compcache.publish.index_merge import merge
from compcache.store import Store
from compcache.usage.ledger import Uses
from compcache.usage.snapshot import Slices

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from compcache.usage.snapshot import Slice

NOW = time.time()


def fill(directory: Path, choose: random.Random) -> Store:
    """Modules with imports, copies, several CPUs and makers, of some ages; some were used, and one function may be pinned."""
    store = Store(str(directory))
    uses = {}
    for number in range(choose.randrange(4, 40)):
        names = {f"f{choose.randrange(30)}" for _ in range(choose.choice((1, 1, 1, 2)))}
        imports = {f"f{choose.randrange(30)}" for _ in range(choose.choice((0, 0, 1, 2)))} - names
        module_id = publish_module(
            store, number, sorted(names), sorted(imports), cpu=choose.choice("ab"), llvm=choose.choice(("21.1.0", "22.1.0")),
            makers=choose.choice(("numba 0.66", "ld 2.40")), size=choose.choice((0, 0, 900)),
            addition=choose.choice((0, number + 1)),
        )  # fmt: skip
        age = choose.choice((10, 20, 20, 500, 1000 * choose.random()))
        os.utime(store.module_path(module_id), (NOW - age, NOW - age))
        if choose.random() < 0.4:
            uses[name_key(min(names)), module_id] = 1, NOW - choose.choice((5, 15, 400, 900 * choose.random()))
    (directory / "stats").mkdir(exist_ok=True)
    (directory / "stats" / "a.stats1").write_bytes(encode_stats({}, dict(sorted(uses.items(), key=lambda use: use[0][::-1])), ["x"]))
    if choose.random() < 0.3:
        pin(store, f"f{choose.randrange(30)}")
    return store


def some_policy(choose: random.Random, size: int) -> PrunePolicy:
    fields: dict[str, Any] = {
        "max_bytes": int(size * choose.random()), "max_modules": choose.randrange(30), "unused_for": choose.choice((0.0, 15.0, 450.0)),
        "older_than": choose.choice((15.0, 600.0)), "duplicates": True, "stale": choose.choice((0.0, 15.0, 300.0)), "min_llvm": "22",
        "made_by": "numba<1", "match": choose.choice(("f1*", ("f2*", "f?"))), "keep": "f3",
    }  # fmt: skip
    return PrunePolicy(**{name: fields[name] for name in choose.sample(sorted(fields), choose.choice((1, 1, 2, 3)))})


def told(plan: Plan) -> tuple[object, ...]:
    return [(entry.module_id, reason) for entry, reason in plan.removed], [entry.module_id for entry in plan.needed]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_plan_for_all_modules(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(seed)
    monkeypatch.setattr(module_lists, "_FEW", choose.choice((0, 512)))
    monkeypatch.setattr(candidates, "_GROWTH", 2)
    removed = 0
    for number in range(6):
        store = fill(tmp_path / f"{number}", choose)
        if choose.random() < 0.5:
            merge(store.index, store=store)
        if choose.random() < 0.5:  # one that no list has
            store.index.close()
        for _ in range(8):
            census, slices = Census(), Slices(store)
            for each in slices:
                census.add(each)
            policy = some_policy(choose, census.size)
            chooser = Chooser(slices, Uses(store), policy, NOW, census, ())
            entries = sorted(chooser._all_entries())
            assert sum(entry.size for entry in entries) == census.size
            marked = {entry.module_id: entry for entry in entries}
            chooser._mark_passed_over(marked)
            chooser._mark_newest(marked)
            whole = plan_prune([marked[entry.module_id] for entry in entries], policy, NOW)
            found = chooser.choose()
            assert told(found) == told(whole), policy
            removed += len(whole.removed)
    assert removed > 50


def test_a_limit_may_be_any_number() -> None:
    assert PrunePolicy(max_modules=1e3).max_modules == 1000  # type: ignore[arg-type]


@pytest.mark.parametrize(("policy", "walks"), [(PrunePolicy(max_modules=70), 2), (PrunePolicy(duplicates=True, stale=0.0), 3)])
def test_few_walks_lead_to_the_plan(directory: Path, monkeypatch: pytest.MonkeyPatch, policy: PrunePolicy, walks: int) -> None:
    """Of the least recently used modules most are needed by used ones, so that the first candidates do not suffice."""
    store = Store(str(directory))
    uses = {}
    for number in range(80):
        imported = number - 40 if 40 <= number < 73 else -1
        module_id = publish_module(store, number, [f"f{number}"], [f"f{imported}"] if imported >= 0 else [])
        os.utime(store.module_path(module_id), (NOW - 1000 + number, NOW - 1000 + number))
        if imported >= 0:
            uses[name_key(f"f{number}"), module_id] = 1, NOW
    (directory / "stats").mkdir(exist_ok=True)
    (directory / "stats" / "a.stats1").write_bytes(encode_stats({}, dict(sorted(uses.items(), key=lambda use: use[0][::-1])), ["x"]))
    begun: list[Slices] = []
    walk = Slices.__iter__

    def begin(slices: Slices) -> Iterator[Slice]:
        begun.append(slices)
        return walk(slices)

    monkeypatch.setattr(Slices, "__iter__", begin)
    plan = propose(store, policy, now=NOW).plan
    assert len(plan.removed) == (10 if policy.max_modules else 0)
    assert len(begun) <= walks
