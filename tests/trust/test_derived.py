"""Keys only ever add conditions: what is derived is believed of its owner alone, and nothing becomes signed that was not."""

from __future__ import annotations

import os
import time
import warnings
from array import array
from typing import TYPE_CHECKING

import pytest
from forgeries import OTHER_USER
from helpers import adder, caller, module_file
from hosts import LOOP, host_like, on_host

from compcache import Cache, CacheWarning, ModuleSource, NotCachedError, UndefinedSymbolError, frontend
from compcache.digest import check, digest, name_key
from compcache.directory.places import SIZE, STATISTICS
from compcache.files import Files
from compcache.formats.footer import LARGEST_FOREIGN
from compcache.formats.host import platform_name
from compcache.formats.index import FUNCTION, NAME_SIZE, ROW, requirement_number
from compcache.formats.journal import HOUR
from compcache.formats.statistics import encode_stats
from compcache.formats.table import all_entries
from compcache.globals.pickled import Pickled
from compcache.inspect.uncached import read_refusals, record_refusal
from compcache.layers.layered_store import LayeredStore
from compcache.publish import index_merge
from compcache.signing.keys import generate_key
from compcache.usage.ledger import fold_small
from compcache.usage.size_estimate import add_to_estimate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = generate_key("team-1")
PUBLIC = str(KEY.public())
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
            store.record_verified(store.entry_of(module, os.fstat(module.opened.number)))
    give_away(directory / "index-v1")
    assert_unsigned_is_refused(Cache(directory, trusted_keys=[PUBLIC]))


@needs_root
@pytest.mark.parametrize("keys", [None, [PUBLIC]], ids=["without keys", "with trusted keys"])
def test_processes_with_the_settings_of_a_cache_trust_nobody_else(directory: Path, keys: list[str] | None) -> None:
    """Workers of batches trusted everybody who could write to the directory, whatever the cache required."""
    with Cache(directory, trusted_keys=keys) as cache:  # what the other user can do as well: the key of these stamps is public
        cache.add_module(ModuleSource(adder("f", 1)))
        store = cache._store
        ((module_id, _),) = store.find("f")
        give_away(directory)
        with Cache(directory, trust=True) as plain, plain._store.open_module(module_id) as module:
            store.record_verified(store.entry_of(module, os.fstat(module.opened.number)))
    give_away(directory / "index-v1")
    if keys is not None:
        directory.chmod(0o777)
    with Cache(directory, trusted_keys=keys) as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        with pytest.raises(NotCachedError):
            cache.get_target("f")
        with Cache(**frontend.settings_of(cache)) as other, pytest.raises(NotCachedError):
            other.get_target("f")


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
            above_all.record_verified_in_layer(below.entry_of(module, os.fstat(module.opened.number)))
    above.chmod(0o777)
    assert_unsigned_is_refused(Cache(above, trusted_keys=[PUBLIC], layers=[layer]))


def test_notes_in_a_directory_that_others_write_to_are_not_read(directory: Path) -> None:
    with Cache(directory, trusted_keys=[PUBLIC]) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        record_refusal(cache._store, "g", "it cannot be compiled")
        assert [refusal.name for refusal in read_refusals(cache._store)] == ["g"]
    directory.chmod(0o777)
    with Cache(directory, trusted_keys=[PUBLIC]) as cache:
        assert read_refusals(cache._store) == []


@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")
@pytest.mark.parametrize("signed", [False, True])
def test_code_that_is_compiled_again_is_signed_only_where_it_was(tmp_path: Path, signed: bool) -> None:
    above, layer = tmp_path / "above", tmp_path / "layer"
    with Cache(layer, publish_key=str(KEY) if signed else None) as cache:
        cache.add_module(ModuleSource(LOOP, {"scale": "void(f64[:])"}, cpu="skylake-avx512"))
    with on_host(Cache(above, layers=[layer], publish_key=str(KEY)), host_like("nehalem")) as here:
        here.get_target("scale")(array("d", [1.0] * 8))
    assert bool(list(above.glob("signatures-v1/*"))) is signed


def inline_body(cache: Cache, name: str) -> str:
    kernel = cache.compile(ModuleSource(caller("kernel", "callee"), imports={"callee": name})).kernel
    assert kernel(1) == 2
    return kernel.func_name


def link_closure(cache: Cache, name: str) -> str:
    cache.add_module(ModuleSource(caller("top", "callee"), imports={"callee": name}))
    cache.link(["top"])
    assert cache.get_target("top")(1) == 2
    return "top"


def compile_again(cache: Cache, name: str) -> str:
    on_host(cache, host_like("nehalem")).get_target(name)
    return name


@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")
@pytest.mark.parametrize("make", [inline_body, link_closure, compile_again])
def test_what_is_made_of_code_of_others_is_not_signed(tmp_path: Path, make: Callable[[Cache, str], str]) -> None:
    """A key was trusted no longer, and the code that it had signed still ran, under the signature of the cache."""
    other_key, place, bundle = generate_key("team-2"), tmp_path / "own", tmp_path / "theirs.ccb"
    with Cache(tmp_path / "theirs", publish_key=str(other_key)) as cache:
        if make is compile_again:
            cache.add_module(ModuleSource(LOOP, {"scale": "void(f64[:])"}, cpu="skylake-avx512"))
            name = "scale"
        else:
            name = cache.compile(adder("f", 1)).f.func_name
        cache.export([name], bundle)
    with Cache(place, publish_key=str(KEY), trusted_keys=str(other_key.public())) as cache:
        cache.import_bundle(bundle)
        requested = make(cache, name)
    with Cache(place, publish_key=str(KEY), trusted_keys=PUBLIC) as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        with pytest.raises((NotCachedError, UndefinedSymbolError)):
            (on_host(cache, host_like("nehalem")) if make is compile_again else cache).get_target(requested)


@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")
@pytest.mark.parametrize("link", [False, True])
def test_where_others_can_write_what_is_made_of_code_of_others_is_used_or_not_stored(tmp_path: Path, link: bool) -> None:
    """It was stored unsigned, and no stamp counts there: each process warned of it, and code for another CPU was a miss."""
    other_key, place, bundle = generate_key("team-2"), tmp_path / "own", tmp_path / "theirs.ccb"
    with Cache(tmp_path / "theirs", publish_key=str(other_key)) as cache:
        cache.add_module(ModuleSource(adder("callee", 1)) if link else ModuleSource(LOOP, {"scale": "void(f64[:])"}, cpu="skylake-avx512"))
        cache.export(["callee" if link else "scale"], bundle)
    place.mkdir()
    place.chmod(0o777)
    for _ in range(2):
        with Cache(place, signing_key="k" * 32, publish_key=str(KEY), trusted_keys=str(other_key.public())) as cache:
            cache.import_bundle(bundle)
            if link:
                cache.add_module(ModuleSource(caller("top", "callee"), imports=["callee"]))
                report = cache.link(["top"])
                assert (report.linked, cache.get_target("top")(1)) == ((), 2)
                assert "cannot sign" in report.left["top"]
            else:
                values = array("d", [1.0, 2.0])
                on_host(cache, host_like("nehalem")).get_target("scale")(values)
                assert list(values) == [3.0, 6.0]
    assert len([*place.rglob("*.ccm")]) == 1 + link


@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")
def test_pickles_of_a_layer_that_is_compiled_again_stay_unread(tmp_path: Path) -> None:
    above, layer = tmp_path / "above", tmp_path / "layer"
    fetch = "@box = external global ptr\ndefine ptr @fetch() {\n  %x = load ptr, ptr @box\n  ret ptr %x\n}\n"
    signatures = {"scale": "void(f64[:])", "fetch": "ptr()"}
    with Cache(layer, allow_pickle=True) as cache:
        cache.add_module(ModuleSource(LOOP + fetch, signatures, {"box": Pickled.of([1])}, cpu="skylake-avx512"))
    with on_host(Cache(above, layers=[layer], allow_pickle=True), host_like("nehalem")) as here, pytest.raises(NotCachedError):
        here.get_target("scale")
    assert not list(above.glob("modules-v1/*/*"))


def test_pickles_of_a_layer_that_is_lost_stay_unread(tmp_path: Path) -> None:
    """What is in memory is stored again for what is built upon it: not where that would make it ours."""
    above, layer = tmp_path / "above", tmp_path / "layer"
    fetch = "@box = external global ptr\ndefine ptr @fetch() {\n  %x = load ptr, ptr @box\n  ret ptr %x\n}\n"
    with Cache(layer, allow_pickle=True) as cache:
        module_id = cache.add_module(ModuleSource(adder("f", 1) + fetch, globals={"box": Pickled.of([1])}))
    with Cache(above, layers=[layer], allow_pickle=True) as cache:
        held = cache.get_target("f")
        module_file(layer, module_id).unlink()
        with pytest.raises(UndefinedSymbolError):
            cache.add_module(ModuleSource(caller("g", "f")))
        assert held(1) == 2
        cache.add_modules([ModuleSource(adder("f", 1)), ModuleSource(caller("g", "f"))])
        assert cache.get_target("g")(1) == 2
    assert not module_file(above, module_id).exists()


@needs_root
def test_what_another_user_can_change_is_mapped_from_a_copy_with_a_signing_key_as_well(directory: Path) -> None:
    with Cache(directory, signing_key=b"secret") as cache:
        module_id = cache.add_module(ModuleSource(adder("f", 1)))
    os.chown(module_file(directory, module_id), OTHER_USER, OTHER_USER)
    with Cache(directory, signing_key=b"secret") as cache:
        assert cache.get_target("f")(1) == 2
        with open("/proc/self/maps", encoding="utf-8") as maps:
            assert str(directory) not in maps.read()


@needs_root
@pytest.mark.parametrize("keys", [{"trusted_keys": [PUBLIC]}, {"signing_key": b"secret"}])
def test_a_file_with_holes_is_not_copied_into_memory(directory: Path, keys: dict[str, object]) -> None:
    with Cache(directory, publish_key=str(KEY), signing_key=b"secret") as cache:
        module_id = cache.add_module(ModuleSource(adder("f", 1)))
    path = module_file(directory, module_id)
    os.truncate(path, LARGEST_FOREIGN + 1)
    os.chown(path, OTHER_USER, OTHER_USER)
    directory.chmod(0o777)
    cache = Cache(directory, **keys)  # type: ignore[arg-type]
    with cache, pytest.warns(CacheWarning, match="bytes allowed for such a file"), pytest.raises(NotCachedError):
        cache.get_target("f")


def forged_requirements(text: str, kind: str) -> tuple[bytes, bytes]:
    """The requirements of a segment, sound but for what is in them, and the number of the one in it."""
    *head, made_for, made_on, features = text.split("\0")
    words = ",".join(item.partition(":")[0] + ":zz" for item in made_for.split(","))
    data = b"\xff\xfe" if kind == "no text" else "\0".join([*head, words, f"not {made_on}", features]).encode()
    number = b"none" if kind == "no text" else requirement_number(data.decode())
    rows = ROW.pack(number, len(data)) + data
    return check(rows) + rows, number


@needs_root
@pytest.mark.parametrize("kind", ["no text", "no numbers", "a number beyond all"])
@pytest.mark.parametrize("place", ["layer", "exposed"])
def test_an_index_that_no_writer_of_ours_makes_does_not_end_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    theirs = tmp_path / "theirs"
    with Cache(theirs, publish_key=str(KEY)) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        (segment,) = cache._store.index.segments
        entries, (text,) = list(all_entries(segment.functions)), segment.requirements.values()
    with monkeypatch.context() as patched:
        number = requirement_number(text)
        if kind != "a number beyond all":
            rows, number = forged_requirements(text, kind)
            patched.setattr(index_merge, "encode_requirements", lambda _: rows)
        fields = [FUNCTION.unpack(entry) for entry in entries]
        forged = [FUNCTION.pack(*each[:3], number, (1 << 64) - 1, each[5]) for each in fields]
        data = index_merge.encode_segment(sorted(forged), (), {text}, (1 << 64) - 1)
    (theirs / "index-v1" / f"00-{digest([data], size=NAME_SIZE).hex()}.idx").write_bytes(data)
    give_away(theirs)
    theirs.chmod(0o777)
    root, layers = (tmp_path / "own", [theirs]) if place == "layer" else (theirs, [])
    with Cache(root, trusted_keys=[PUBLIC], publish_key=str(KEY), layers=layers) as cache:
        assert cache.get_target("f")(1) == 2
        cache.add_module(ModuleSource(adder("g", 2)))
        assert cache.get_target("g")(1) == 3
        cache.check()


@needs_root
def test_folds_take_over_no_statistics_of_another_user(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
    for number in range(9):
        path = directory / STATISTICS.directory / f"{number}.stats1"
        hits = {(int(time.time()) // HOUR, "hits"): 1e6}
        path.write_bytes(encode_stats(hits, {(name_key("f"), bytes(16)): (number, 1.0)}, [f"folded{number}"]))
        os.chown(path, OTHER_USER, OTHER_USER)
        os.utime(path, (0, 0))
    fold_small(Files(), str(directory))
    with Cache(directory) as cache:
        assert cache.stats().hits < 1e6


@needs_root
def test_an_estimate_that_another_user_has_left_is_none(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        path = directory / SIZE.form
        path.write_bytes(b"0 99999999999\n")
        assert add_to_estimate(cache._store, 1) is not None
        os.chown(path, OTHER_USER, OTHER_USER)
        assert add_to_estimate(cache._store, 1) is None
