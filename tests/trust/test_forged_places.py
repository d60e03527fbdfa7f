"""Every kind of file of the table of places, forged by another user, for every kind of reader: nothing is believed that should not be.

What no reader of that kind allows is not run, and is not believed later on, when the reader has written the directory anew; what is right
is found, and the program goes on.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from forgeries import FORGERIES, OTHER_USER, RIGHT, Victim, evil_source, forge_modules
from helpers import adder, caller

from compcache import Cache, CacheWarning, ModuleSource, NotCachedError, PrunePolicy
from compcache.directory.places import JOURNALS, MODULES, PLACES, STATISTICS, UNCACHED, Place
from compcache.files import Files
from compcache.publish.additions import merge_newest
from compcache.signing.keys import generate_key
from compcache.usage.ledger import fold_small

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

KEY, SECRET = generate_key("team-1"), b"0123456789abcdef0123456789abcdef"
PUBLIC = str(KEY.public())
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "security-files.md"
FUNCTIONS = ("f", "callee")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


class Situation(NamedTuple):
    """The mode of the directory, and the keys of its reader."""

    mode: int
    trusted_keys: bool = False
    signing_key: bool = False
    layered: bool = False

    def options(self, layer: Path, bundle: Path) -> dict[str, object]:
        found: dict[str, object] = {"trusted_keys": [PUBLIC]} if self.trusted_keys else {}
        if self.signing_key:
            found["signing_key"] = SECRET
        if self.layered:
            found["layers"] = [str(layer), str(bundle)]
        return found


#: The other user can write to directories of mode 777, and has done so before in the others.
SITUATIONS = {
    "own": Situation(0o755),
    "own, trusted keys": Situation(0o755, trusted_keys=True),
    "own, signing key": Situation(0o755, signing_key=True),
    "exposed, trusted keys": Situation(0o777, trusted_keys=True),
    "team": Situation(0o777, signing_key=True),
    "above layers": Situation(0o755, layered=True),
    "above layers, trusted keys": Situation(0o755, trusted_keys=True, layered=True),
    "exposed above layers": Situation(0o777, trusted_keys=True, layered=True),
}


class Templates(NamedTuple):
    """A cache of the victim, in part signed; a layer and a bundle of its own, in part signed; and a cache of the other user."""

    own: Path
    layer: Path
    bundle: Path
    evil: Path
    more: Path


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    base = tmp_path_factory.mktemp("templates")
    with Cache(base / "own") as cache:
        cache.add_module(ModuleSource(adder("unsigned", RIGHT)))
    with Cache(base / "own", signing_key=SECRET, publish_key=str(KEY)) as cache:
        cache.add_module(ModuleSource(adder("callee", RIGHT)))
        cache.add_module(ModuleSource(caller("f", "callee")))
    with Cache(base / "layer") as cache:
        cache.add_module(ModuleSource(adder("unsigned_below", RIGHT)))
    with Cache(base / "layer", publish_key=str(KEY)) as cache:
        cache.add_module(ModuleSource(adder("below", RIGHT)))
    with Cache(base / "published", publish_key=str(KEY)) as cache:
        cache.add_module(ModuleSource(adder("bundled", RIGHT)))
        cache.export(["bundled"], base / "bundle.ccb")
    with Cache(base / "more", publish_key=str(KEY)) as cache:
        cache.add_module(ModuleSource(adder("more", RIGHT)))
        cache.export(["more"], base / "more.ccb")
    with Cache(base / "evil") as cache:
        cache.add_modules([evil_source(name) for name in ("f", "callee", "evil")])
    return Templates(base / "own", base / "layer", base / "bundle.ccb", base / "evil", base / "more.ccb")


@pytest.fixture(autouse=True)
def _refusals_are_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        yield


def victim_in(tmp_path: Path, templates: Templates, situation: Situation) -> Victim:
    own, layer, bundle = tmp_path / "own", tmp_path / "layer", tmp_path / "bundle.ccb"
    shutil.copytree(templates.own, own)
    shutil.copytree(templates.layer, layer)
    shutil.copyfile(templates.bundle, bundle)
    bundle.chmod(0o600)
    own.chmod(situation.mode)
    return Victim(own, situation.options(layer, bundle), templates.evil, bundle if situation.layered else None)


def assert_right(victim: Victim, situation: Situation, places: AbstractSet[Place]) -> None:
    """What the policy allows is found and right, and nothing else is."""
    with Cache(victim.root, **victim.options) as cache:  # type: ignore[arg-type]
        names = [*FUNCTIONS, *(("below", "bundled") if situation.layered else ())]
        assert {name: cache.get_target(name)(1) for name in names} == dict.fromkeys(names, 1 + RIGHT)
        unsigned = ["unsigned", *(("unsigned_below",) if situation.layered else ())]
        for name in ("evil", *(unsigned if situation.trusted_keys or situation.signing_key else ())):
            with pytest.raises(NotCachedError):
                cache.get_target(name)
        listed = {function.func_name for function in cache.functions()}
        assert listed >= set(FUNCTIONS)
        assert not [name for name in listed if name.startswith("wrong")]
        known = cache._store.host_file()[1]
        assert known is None or known.cpu != "wrong"
        if not places.isdisjoint({JOURNALS, STATISTICS}):
            assert cache.stats().hits < 1000
        if UNCACHED in places:
            assert "wrong" not in str(cache.explain("f"))


def write_forgeries(victim: Victim, places: AbstractSet[Place]) -> None:
    """Forge these places, in the order of the table: what a forgery is made of must not be forged already."""
    forge_modules(victim)
    for place, write in FORGERIES.items():
        if place in places:
            write(victim)


def forge(victim: Victim, situation: Situation, places: AbstractSet[Place], more: Path) -> None:
    """Forge these places; the reader is deceived neither before nor after it has merged, folded and pruned what is there."""
    write_forgeries(victim, places)
    assert_right(victim, situation, places)
    with Cache(victim.root, **victim.options) as cache:  # type: ignore[arg-type]
        cache.import_bundle(more)
        merge_newest(cache._store)
        cache.prune(PrunePolicy(max_modules=1000))
    if not cache._store.exposed:
        fold_small(Files(), cache.path)
    victim.root.chmod(0o755)  # whoever was deceived has written what is believed now
    assert_right(victim, situation, places)
    with Cache(victim.root, **victim.options) as cache:  # type: ignore[arg-type]
        assert cache.get_target("more")(1) == 1 + RIGHT


#: Large modules hide what else is wrong with them.
TOGETHER = frozenset(PLACES) - {MODULES}


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_another_user_writes_is_not_believed(tmp_path: Path, templates: Templates, situation: str) -> None:
    victim = victim_in(tmp_path, templates, SITUATIONS[situation])
    forge(victim, SITUATIONS[situation], TOGETHER, templates.more)


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("situation", SITUATIONS)
def test_nor_when_it_is_merged_before_it_is_read(tmp_path: Path, templates: Templates, situation: str) -> None:
    victim = victim_in(tmp_path, templates, SITUATIONS[situation])
    write_forgeries(victim, TOGETHER)
    with Cache(victim.root, **victim.options) as cache:  # type: ignore[arg-type]
        merge_newest(cache._store)
    assert_right(victim, SITUATIONS[situation], TOGETHER)


@needs_root
@pytest.mark.parametrize("situation", ["own", "own, trusted keys", "own, signing key"])
def test_nor_in_a_directory_of_the_superuser(tmp_path: Path, templates: Templates, monkeypatch: pytest.MonkeyPatch, situation: str) -> None:
    victim = victim_in(tmp_path, templates, SITUATIONS[situation])
    write_forgeries(victim, TOGETHER)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER + 1)
    assert_right(victim, SITUATIONS[situation], TOGETHER)


@needs_root
@pytest.mark.parametrize("situation", ["own", "own, trusted keys", "own, signing key", "above layers"])
def test_nor_in_files_of_the_reader_that_others_can_write_to(tmp_path: Path, templates: Templates, situation: str) -> None:
    victim = victim_in(tmp_path, templates, SITUATIONS[situation])
    write_forgeries(victim, TOGETHER)
    for path in victim.root.rglob("*"):
        if path.is_file() and path.lstat().st_uid == OTHER_USER:
            os.chown(path, os.geteuid(), os.getegid())
            path.chmod(0o666)
    assert_right(victim, SITUATIONS[situation], TOGETHER)


@needs_root
@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_nor_in_a_layer(tmp_path: Path, templates: Templates, whose: str) -> None:
    situation = SITUATIONS["own, trusted keys"]
    layer = victim_in(tmp_path, templates, situation)
    write_forgeries(layer, TOGETHER)
    if whose == "theirs":
        for path in (layer.root, *layer.root.rglob("*")):
            os.chown(path, OTHER_USER, OTHER_USER)
    above = layer._replace(root=tmp_path / "above", options={**layer.options, "layers": [str(layer.root)]})
    for _ in range(2):  # the second one finds what the first has kept above the layer
        assert_right(above, situation, frozenset())
    if whose == "ours":  # nor is what was merged above it believed without keys
        with Cache(above.root, layers=[str(layer.root)]) as cache:
            assert cache.get_target("callee")(1) == 1 + RIGHT


@needs_root
@pytest.mark.fault
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.form)
def test_what_another_user_writes_in_one_place_is_not_believed(tmp_path: Path, templates: Templates, place: Place, situation: str) -> None:
    victim = victim_in(tmp_path, templates, SITUATIONS[situation])
    forge(victim, SITUATIONS[situation], frozenset({place}), templates.more)


def test_each_place_has_its_row_in_the_document() -> None:
    rows = re.findall(r"^\| `([^`]+)`", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(row for row in rows if "/" in row or row == "CACHEDIR.TAG") == sorted(place.form for place in PLACES)
    assert OTHER_USER not in (0, os.geteuid())
