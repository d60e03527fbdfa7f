"""Arguments of another type than the one that is meant: refused by name, or understood."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from helpers import adder

import compcache
from compcache import Cache, CompcacheError, CompileError, Identity, ModuleSource, PrunePolicy


@pytest.mark.parametrize(
    ("call", "kind", "complaint"),
    [
        (lambda _: Cache(3), TypeError, r"Cache\(\): path must be str or PathLike, not int"),  # type: ignore[arg-type]
        (lambda _: Cache("c", signing_key=3), TypeError, "signing_key must be bytes or str, not int"),  # type: ignore[arg-type]
        (lambda _: Cache("c", lock_timeout="x"), TypeError, "lock_timeout must be int or float, not str"),  # type: ignore[arg-type]
        (lambda cache: cache.get_or_compile("f", "code"), TypeError, r"build must be a function.*compile\(code\) takes"),
        (lambda cache: cache.prune("5GB"), TypeError, "takes a compcache.PrunePolicy"),
        (lambda cache: cache.has(3), TypeError, r"a str or a compcache\.Identity, not int"),
        (lambda cache: cache.pin(3), TypeError, r"a str or a compcache\.Identity, not int"),
        (lambda _: ModuleSource("", ["f"]), TypeError, "functions must be a mapping, like .*not list"),  # type: ignore[arg-type]
        (lambda _: ModuleSource("", globals=[1]), TypeError, "globals must be a mapping, like .*not list"),  # type: ignore[arg-type]
        (lambda _: PrunePolicy(max_bytes="much"), ValueError, "max_bytes: 'much' is not a valid size"),
        (lambda _: PrunePolicy(unused_for="30"), ValueError, "unused_for: '30' has no unit"),
        (lambda _: PrunePolicy(older_than=[]), TypeError, "older_than must be seconds"),  # type: ignore[arg-type]
        (lambda cache: cache.compile("kernels/dot.ll"), CompileError, r"name of a file: give what is in it, open\("),
        (lambda cache: cache.compile(Path("dot.ll")), CompileError, r"name of a file: give what is in it, open\("),
        (lambda cache: cache.compile(ModuleSource(adder("f", 1), {"f": "f64(f64)"})), CompcacheError, "of function 'f' contradicts"),
    ],
)
def test_arguments_of_another_type_are_refused_by_name(cache: Cache, call: Any, kind: type[Exception], complaint: str) -> None:
    with pytest.raises(kind, match=complaint):
        call(cache)


def test_an_identity_stands_for_its_name(cache: Cache) -> None:
    identity = Identity("f", number=1)
    target = cache.get_or_compile(identity, lambda: adder("f", 1))
    assert identity in cache
    assert cache.get_target(identity) is target
    assert cache.realizations(identity)
    assert cache.dependencies(identity) == ()
    assert "@f" in cache.ir(identity)
    assert [node.name for node in cache.graph([identity]).nodes] == [node.name for node in cache.graph(identity.func_name).nodes]
    assert cache.explain(identity).hit
    assert cache.pin(identity)
    assert cache.unpin(identity)
    assert cache.unload(identity)
    assert len(cache.remove(identity)) == 1


def test_policies_take_the_units_of_the_command_line() -> None:
    policy = PrunePolicy(max_bytes="5GB", unused_for="30d", older_than=timedelta(hours=1), grace=60)
    assert (policy.max_bytes, policy.unused_for, policy.older_than, policy.grace) == (5 << 30, 30 * 86400, 3600, 60)


def test_a_warning_shows_the_line_of_the_program(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        with pytest.warns(UserWarning, match="is in the cache already") as caught:
            cache.add_module(ModuleSource(adder("f", 2)))
    assert [warning.filename for warning in caught] == [__file__]


def test_explain_suggests_a_near_name(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("norm", 1)))
    assert cache.explain("nrom").message.endswith("did you mean 'norm'?")


def test_a_misspelt_name_of_the_package_is_known() -> None:
    with pytest.raises(AttributeError) as caught:
        compcache.Cahe  # type: ignore[attr-defined]  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("Cahe", compcache)
    assert set(compcache.__all__) < set(dir(compcache))
