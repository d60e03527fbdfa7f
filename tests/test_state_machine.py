"""A long random life of a cache, compared with a model that is a dict."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from processes import in_fork

from compcache import Cache, CompcacheError, ModuleSource, NotCachedError, TargetUnloadedError, UndefinedSymbolError
from compcache.publish.removal import remove_file

NAMES = ["a", "b", "c", "d", "e"]


def text(name: str, constant: int, callees: list[str]) -> str:
    """name(x) = x + constant + the sum of its callees at x - 1 for x > 0, else constant."""
    lines = [f"declare i64 @{callee}(i64)" for callee in dict.fromkeys(callees) if callee != name]
    lines += [
        f"define i64 @{name}(i64 %x) {{",
        "  %stop = icmp sle i64 %x, 0",
        "  br i1 %stop, label %low, label %high",
        "low:",
        f"  ret i64 {constant}",
        "high:",
        "  %less = sub i64 %x, 1",
        f"  %s0 = add i64 %x, {constant}",
    ]
    for i, callee in enumerate(callees):
        lines += [f"  %c{i} = call i64 @{callee}(i64 %less)", f"  %s{i + 1} = add i64 %s{i}, %c{i}"]
    return "\n".join([*lines, f"  ret i64 %s{len(callees)}", "}", ""])


class CacheLife(RuleBasedStateMachine):
    """Modules of one function each. Every realization of a name has the same meaning, as identities promise."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="compcache-life-")
        self.cache = Cache(self.root)
        self.meaning: dict[str, tuple[int, list[str]]] = {}
        self.modules: dict[str, set[str]] = {name: set() for name in NAMES}
        self.valid: list[tuple[str, Any]] = []
        self.invalid: list[Any] = []

    def teardown(self) -> None:
        self.cache.close()
        shutil.rmtree(self.root)

    # ---------------------------------------------------------------- the model

    def value(self, name: str, x: int) -> int:
        constant, callees = self.meaning[name]
        return constant if x <= 0 else x + constant + sum(self.value(c, x - 1) for c in callees)

    def closure(self, name: str) -> set[str]:
        seen: set[str] = set()
        stack = [name]
        while stack:
            current = stack.pop()
            if current not in seen:
                seen.add(current)
                stack += self.meaning.get(current, (0, []))[1]
        return seen

    # -------------------------------------------------------------------- rules

    @rule(name=st.sampled_from(NAMES), constant=st.integers(0, 9), callees=st.lists(st.sampled_from(NAMES), max_size=2))
    def add(self, name: str, constant: int, callees: list[str]) -> None:
        constant, callees = self.meaning.setdefault(name, (constant, callees))
        variant = len(self.modules[name])
        source = ModuleSource(
            text(name, constant, callees) + f"define i64 @variant{variant}() {{\n  ret i64 {variant}\n}}\n",
            {name: "i64(i64)"},
            imports=[callee for callee in dict.fromkeys(callees) if callee != name],
            optimize=variant % 3,
        )
        self.modules[name].add(self.cache.add_module(source))

    @rule(name=st.sampled_from(NAMES), x=st.integers(0, 3))
    def load_and_call(self, name: str, x: int) -> None:
        held = any(n == name for n, _ in self.valid)
        missing = [n for n in self.closure(name) if not self.modules[n]]
        try:
            target = self.cache.get_target(name)
        except NotCachedError:
            assert not self.modules[name]
            return
        except UndefinedSymbolError:
            assert missing
            return
        assert held or self.modules[name]
        assert target(x) == self.value(name, x)
        self.valid.append((name, target))

    @precondition(lambda self: self.valid)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.valid.pop(data.draw(st.integers(0, len(self.valid) - 1)))

    @rule()
    def collect(self) -> None:
        gc.collect()

    @rule(name=st.sampled_from(NAMES))
    def unload(self, name: str) -> None:
        self.cache.unload(name)
        self.invalid += [target for n, target in self.valid if n == name]
        self.valid = [(n, target) for n, target in self.valid if n != name]

    @rule()
    def reopen(self) -> None:
        self.cache.close()
        self.invalid += [target for _, target in self.valid]
        self.valid.clear()
        self.cache = Cache(self.root)

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: str) -> None:
        for module_id in self.modules[name]:
            remove_file(self.cache._store, bytes.fromhex(module_id))
        self.modules[name].clear()

    @rule()
    def lose_the_index(self) -> None:
        shutil.rmtree(os.path.join(self.root, "index-v1"), ignore_errors=True)
        self.cache.close()
        self.invalid += [target for _, target in self.valid]
        self.valid.clear()
        self.cache = Cache(self.root)

    @precondition(lambda self: self.valid)
    @rule()
    def fork(self) -> None:
        name, target = self.valid[0]

        def work() -> int:
            good = target(2) == self.value(name, 2)
            self.cache.close()
            return 0 if good else 1

        assert in_fork(work) == 0

    # --------------------------------------------------------------- invariants

    @invariant()
    def valid_targets_work(self) -> None:
        for name, target in self.valid[-5:]:
            assert target(1) == self.value(name, 1)

    @invariant()
    def invalid_targets_say_so(self) -> None:
        for target in self.invalid[-5:]:
            with pytest.raises(TargetUnloadedError):
                target(1)

    @invariant()
    def has_agrees(self) -> None:
        for name in NAMES:
            assert self.cache.has(name) == bool(self.modules[name])
            assert {r.module_id for r in self.cache.realizations(name)} == self.modules[name]

    @invariant()
    def loaded_is_bounded(self) -> None:
        assert set(self.cache.loaded().targets) <= {name for name, _ in self.valid} | set(NAMES)


def _run(examples: int, steps: int) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    relaxed = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        CacheLife,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=relaxed, database=None
        ),
    )


def test_a_short_life() -> None:
    _run(3, 12)


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_a_long_life() -> None:
    seconds = float(os.environ.get("COMPCACHE_TEST_SECONDS", "300"))
    _run(max(5, int(seconds / 3)), 40)


def test_the_errors_of_the_model_are_those_of_the_package() -> None:
    assert issubclass(NotCachedError, CompcacheError)
    assert issubclass(UndefinedSymbolError, CompcacheError)
