"""Keys only ever add conditions: what is derived is believed of its owner alone, and nothing becomes signed that was not."""

from __future__ import annotations

import os
from array import array
from typing import TYPE_CHECKING

import pytest
from helpers import adder
from hosts import LOOP, host_like, on_host

from compcache import Cache, CacheWarning, ModuleSource, NotCachedError
from compcache.formats.host import platform_name
from compcache.inspect.uncached import note, read_all
from compcache.layers.layered_store import LayeredStore
from compcache.signing.keys import new_key

if TYPE_CHECKING:
    from pathlib import Path

KEY = new_key("team-1")
PUBLIC = str(KEY.public())
OTHER_USER = 54321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files away")


def give_away(place: Path) -> None:
    for path in place.rglob("*"):
        os.lchown(path, OTHER_USER, OTHER_USER)


def assert_unsigned_is_refused(cache: Cache, name: str = "f") -> None:
    with cache, pytest.warns(CacheWarning, match="is not signed"), pytest.raises(NotCachedError):
        cache.get_target(name)


@needs_root
@pytest.mark.parametrize("whose", ["theirs", "ours"])
def test_stamps_of_another_user_are_not_believed_whatever_keys_are_trusted(directory: Path, whose: str) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
    if whose == "theirs":
        give_away(directory)
    with Cache(directory, trusted_keys=[PUBLIC]) as cache:  # what the other user can do as well: the key of these stamps is public
        store = cache._store
        ((module_id, _),) = store.find("f")
        with Cache(directory, trust=True) as plain, plain._store.open_module(module_id) as module:
            store.remember(store.entry_of(module, os.fstat(module.descriptor)))
    give_away(directory / "index-v1")
    assert_unsigned_is_refused(Cache(directory, trusted_keys=[PUBLIC]))


@needs_root
def test_signed_code_of_another_user_is_used_though_its_stamps_are_not(directory: Path) -> None:
    with Cache(directory, publish_key=str(KEY)) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
    give_away(directory)
    with Cache(directory, trusted_keys=[PUBLIC]) as cache:
        assert cache.get_target("f")(1) == 2


def test_what_is_planted_above_a_layer_vouches_for_nothing(tmp_path: Path) -> None:
    above, layer = tmp_path / "above", tmp_path / "layer"
    with Cache(layer) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
    with Cache(above, trusted_keys=[PUBLIC], layers=[layer]) as cache:
        (below,) = cache._store.layers
        ((module_id, _),) = below.find("f")
        with Cache(layer) as plain, plain._store.open_module(module_id) as module:
            above_all = cache._store
            assert isinstance(above_all, LayeredStore)
            above_all.remember_layer(below.entry_of(module, os.fstat(module.descriptor)))
    above.chmod(0o777)
    assert_unsigned_is_refused(Cache(above, trusted_keys=[PUBLIC], layers=[layer]))


def test_notes_in_a_directory_that_others_write_to_are_not_read(directory: Path) -> None:
    with Cache(directory, trusted_keys=[PUBLIC]) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        note(cache._store, "g", "it cannot be compiled")
        assert [refusal.name for refusal in read_all(cache._store)] == ["g"]
    directory.chmod(0o777)
    with Cache(directory, trusted_keys=[PUBLIC]) as cache:
        assert read_all(cache._store) == []


@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")
@pytest.mark.parametrize("signed", [False, True])
def test_code_that_is_compiled_again_is_signed_only_where_it_was(tmp_path: Path, signed: bool) -> None:
    above, layer = tmp_path / "above", tmp_path / "layer"
    with Cache(layer, publish_key=str(KEY) if signed else None) as cache:
        cache.add_module(ModuleSource(LOOP, {"scale": "void(f64[:])"}, cpu="skylake-avx512"))
    with on_host(Cache(above, layers=[layer], publish_key=str(KEY)), host_like("nehalem")) as here:
        here.get_target("scale")(array("d", [1.0] * 8))
    assert bool(list(above.glob("signatures-v1/*"))) is signed
