"""Arguments of another type than the one that is meant: refused by name, or understood."""

from __future__ import annotations

import inspect
import sys
from datetime import UTC, datetime, timedelta
from math import nan
from pathlib import Path
from typing import Any, cast

import pytest
from helpers import adder

import compcache
from compcache import (
    Cache,
    CompcacheError,
    CompileError,
    Identity,
    ModuleSource,
    NotCachedError,
    PrunePolicy,
    Signature,
    SignatureError,
    frontend,
)
from compcache.batch import compile_many


@pytest.mark.parametrize(
    ("call", "kind", "complaint"),
    [
        (lambda _: Cache(3), TypeError, r"Cache\(\): path must be str or PathLike, not int"),  # type: ignore[arg-type]
        (lambda _: Cache("c", signing_key=3), TypeError, "signing_key must be bytes or str, not int"),  # type: ignore[arg-type]
        (lambda _: Cache("c", lock_timeout="x"), TypeError, "lock_timeout must be int or float, not str"),  # type: ignore[arg-type]
        (lambda _: Cache("c", remote=["x", b"s3://u:pw@h"]).has_many(["f"]), TypeError, "each item of remote must be a str, not bytes$"),  # type: ignore[list-item]
        (lambda cache: cache.get_or_compile("f", "code"), TypeError, r"build must be a function.*compile\(code\) takes"),
        (lambda cache: cache.prune("5GB"), TypeError, "requires a compcache.PrunePolicy"),
        (lambda cache: cache.has(3), TypeError, r"a str or a compcache\.Identity, not int"),
        (lambda cache: cache.pin(3), TypeError, r"a str or a compcache\.Identity, not int"),
        (lambda _: ModuleSource("", ["f"]), TypeError, "functions must be a mapping, like .*not list"),  # type: ignore[arg-type]
        (lambda _: ModuleSource("", globals=[1]), TypeError, "globals must be a mapping, like .*not list"),  # type: ignore[arg-type]
        (lambda _: PrunePolicy(max_bytes="much"), ValueError, "max_bytes: 'much' is not a valid size"),
        (lambda _: PrunePolicy(unused_for="30"), ValueError, "unused_for: '30' has no unit"),
        (lambda _: PrunePolicy(older_than=[]), TypeError, "older_than must be seconds"),  # type: ignore[arg-type]
        (lambda _: PrunePolicy(min_llvm=22), TypeError, "min_llvm must be text like '22', not int: 22"),  # type: ignore[arg-type]
        (lambda _: PrunePolicy(max_modules="3"), TypeError, "max_modules must be a number of modules, not str: '3'"),  # type: ignore[arg-type]
        (lambda cache: compile_many(cache, [], timeout=nan), ValueError, "timeout must be more than 0 seconds, not nan"),
        (lambda cache: cache.compile("kernels/dot.ll"), CompileError, r"name of a file: pass its content, open\("),
        (lambda cache: cache.compile(Path("dot.ll")), CompileError, r"is a path, not code: pass the file's content, open\("),
        (lambda cache: cache.compile(ModuleSource(adder("f", 1), {"f": "f64(f64)"})), CompcacheError, "of function 'f' does not match"),
    ],
)
def test_arguments_of_another_type_are_refused_by_name(cache: Cache, call: Any, kind: type[Exception], complaint: str) -> None:
    with pytest.raises(kind, match=complaint):
        call(cache)


PARAMETERS_OF_ANY_TYPE = ("ir", "keep_bitcode", "untrusted", "optimize", "inline")  # refused when it is compiled, or true or false
SOURCE_PARAMETERS = sorted(set(inspect.signature(ModuleSource).parameters) - set(PARAMETERS_OF_ANY_TYPE))


@pytest.mark.parametrize("value", [5, b"bytes", object()], ids=["int", "bytes", "object"])
@pytest.mark.parametrize("parameter", SOURCE_PARAMETERS)
def test_every_parameter_of_a_source_is_refused_by_name(parameter: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"ModuleSource\(\): {parameter} must be .*, not {type(value).__name__}"):
        ModuleSource("", **{parameter: value})


def test_a_source_takes_one_text_or_several(tmp_path: Path) -> None:
    source = ModuleSource("", imports=iter(["f"]), libraries="z", archives=tmp_path / "libx.a", targets=iter(["native"]))
    assert (source.imports, source.libraries, source.archives, source.targets) == (("f",), "z", (tmp_path / "libx.a",), ("native",))
    assert ModuleSource("", libraries=None, archives=None).archives == ()


CACHE_OPTIONS = ("signing_key", "lock_timeout", "layers", "trusted_keys", "publish_key", "max_size", "min_llvm", "remote", "remote_mode")


@pytest.mark.parametrize("option", CACHE_OPTIONS)
def test_every_option_of_a_cache_is_refused_by_name(directory: Path, option: str) -> None:
    with pytest.raises((TypeError, ValueError), match=option.replace("_", "[_ ]")):
        Cache(directory, **{option: object()})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda cache: cache.has_many(5), "names must be an iterable of .*not int"),
        (lambda cache: cache.graph(5), "names must be an iterable of .*not int"),
        (lambda cache: frontend.add_missing(cache, *cast("tuple[Any, Any]", (5, lambda: None))), "names must be an iterable of .*not int"),
        (lambda cache: frontend.add_missing(cache, ["f"], cast("Any", "f")), "build must be a function"),
        (lambda cache: cache.add_modules(ModuleSource("")), "must be several sources"),
        (lambda cache: cache.explain("f", {"a": "b"}), "identity must be a compcache.Identity, not dict"),
        (lambda cache: cache.remove_module("zz"), "32 hexadecimal digits"),
        (lambda cache: cache.module(""), "32 hexadecimal digits"),
        (lambda cache: cache.export("f", "b.ccb", targets=[5]), "targets must be CPU names"),
        (lambda cache: cache.stats(since="x"), "since must be a time in seconds since the epoch, .*not 'x'"),
        (lambda cache: cache.stats(since=float("nan")), "since must be a time in seconds since the epoch, .*not nan"),
        (lambda cache: cache.history(datetime(2026, 1, 1, tzinfo=UTC)), "since must be a time in seconds since the epoch, .*not datetime"),
        (lambda cache: cache.link(5), "names must be an iterable of .*not int"),
        (lambda cache: cache.compact(grace="x"), "grace must be a number of seconds, not str"),
        (lambda cache: cache.labelled(3), "label must be a str, not int"),
        (lambda cache: cache.get_or_compile(Identity("f"), lambda: ModuleSource(cast("Any", None))), "not NoneType"),
        (lambda _: Signature.parse(cast("Any", None)), "not NoneType"),
        (lambda cache: cache.compile("\ud800"), "characters that UTF-8 cannot encode"),
    ],
)
def test_what_a_method_cannot_take_is_refused_in_words(cache: Cache, call: Any, complaint: str) -> None:
    with pytest.raises((TypeError, ValueError, CompileError, SignatureError), match=complaint):
        call(cache)


def test_one_name_is_not_a_name_for_each_letter(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("fg", 1)))
    assert cache.has_many("fg") == (True,)
    assert frontend.find_stored(cache, "fg") is not None
    assert cache.prefetch("fg") == ()
    assert [node.name for node in cache.graph("fg").nodes] == ["fg"]
    assert list(cache.link("fg").left) == ["fg"]


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
        with pytest.warns(UserWarning, match="the cache already has different code") as caught:
            cache.add_module(ModuleSource(adder("f", 2)))
    assert [warning.filename for warning in caught] == [__file__]


def test_a_message_is_read_by_a_python_without_zlib(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.add_module(ModuleSource(adder("norm", 1)))
    monkeypatch.setitem(sys.modules, "compcache.inspect.names", None)
    with pytest.raises(NotCachedError, match="'nrom' is not in the cache"):
        cache.get_target("nrom")


def test_explain_suggests_a_near_name(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("norm", 1)))
    assert cache.explain("nrom").message.endswith("did you mean 'norm'?")


def test_a_misspelt_name_of_the_package_is_known() -> None:
    with pytest.raises(AttributeError) as caught:
        compcache.Cahe  # type: ignore[attr-defined]  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("Cahe", compcache)
    assert set(compcache.__all__) < set(dir(compcache))
