"""Where realizations come from, as far as it is recorded."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from cli_process import compcache
from faulty_makers import made_by
from helpers import module_file

from compcache import Cache, Provenance
from compcache.remote.adopt import adopt_module
from compcache.signing.keys import SecretKey, generate_key

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

KEY, OTHER = generate_key("team-1"), generate_key("team-2")


def provenance_of(place: Path, **options: object) -> Provenance:
    with Cache(place, **options) as cache:  # type: ignore[arg-type]
        (found,) = cache.function("f").provenance
    return found


def add(place: Path, key: SecretKey | None = None, **options: object) -> str:
    with Cache(place, publish_key=None if key is None else str(key), **options) as cache:  # type: ignore[arg-type]
        return cache.add_module(made_by("f", 1, numba="0.66.0"))


def test_what_is_compiled_here(directory: Path) -> None:
    before = time.time()
    module_id = add(directory)
    found = provenance_of(directory)
    assert (found.module_id, found.origin, found.layer, found.order, found.signers, found.keyed_digest) == (
        module_id, "compiled", "", 1, (), "",
    )  # fmt: skip
    assert found.digests.keys() == {"code", "source"}
    assert before - 1 < found.compiled <= found.added + 1 < time.time() + 2
    assert found.owner == module_file(directory, module_id).owner()


def test_what_comes_in_bundles_from_stores_and_in_layers(directory: Path, tmp_path: Path) -> None:
    layer, bundle = tmp_path / "layer", tmp_path / "f.ccb"
    module_id = add(layer)
    with Cache(layer) as cache:
        cache.export(["f"], bundle)
    with Cache(directory) as cache:
        cache.import_bundle(bundle)
    imported = provenance_of(directory)
    assert (imported.origin, imported.compiled, imported.order) == ("bundle", 0.0, 1)  # bundles of the same code are the same bytes
    with Cache(tmp_path / "other") as cache:
        adopt_module(cache._store, module_file(layer, module_id).read_bytes(), func_name="f", signatures=b"")
    assert provenance_of(tmp_path / "other").origin == "remote"
    below = provenance_of(tmp_path / "above", layers=[layer])
    assert (below.origin, below.layer) == ("compiled", str(layer))
    below = provenance_of(tmp_path / "above", layers=[bundle])
    assert (below.origin, below.layer) == ("bundle", str(bundle))


def test_signatures_are_checked_by_the_keys_that_are_trusted_here(directory: Path) -> None:
    module_id = add(directory, KEY)
    assert provenance_of(directory).signers == (("team-1", "unknown"),)
    assert provenance_of(directory, trusted_keys=[str(KEY.public())]).signers == (("team-1", "trusted"),)
    if add(directory, OTHER) != module_id:  # LLVM does not always emit code in one order: one in some hundred times under load
        with Cache(directory) as cache:
            cache.clear()
        module_id = add(directory, KEY)
        assert add(directory, OTHER) == module_id
    assert set(provenance_of(directory, trusted_keys=[str(KEY.public())]).signers) == {("team-1", "trusted"), ("team-2", "unknown")}
    path = directory / "signatures-v1" / f"{module_id}.ed25519"
    lines = dict(line.split() for line in path.read_text().splitlines())
    path.write_text(f"team-1 {lines['team-1']}\nteam-2 {lines['team-1']}\n")
    keys = [str(KEY.public()), str(OTHER.public())]
    assert provenance_of(directory, trusted_keys=keys).signers == (("team-1", "trusted"), ("team-2", "wrong"))


def test_without_pynacl_signatures_are_unchecked(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(directory, KEY)
    key = str(KEY)
    assert provenance_of(directory, publish_key=key).signers == (("team-1", "trusted"),)
    monkeypatch.setitem(sys.modules, "nacl", None)
    assert provenance_of(directory, publish_key=key).signers == (("team-1", "unchecked"),)


def test_keyed_digests(directory: Path) -> None:
    add(directory, signing_key="ours")
    assert provenance_of(directory, signing_key="ours").keyed_digest == "own"
    assert provenance_of(directory).keyed_digest == "other"


def test_the_command_prints_it(directory: Path) -> None:
    module_id = add(directory, KEY)
    shown = compcache("--dir", directory, "show", "f", "--provenance").out
    for line in (f"realization: {module_id}", "came from: compilation", "signed by: team-1 (no key of this name is trusted here)"):
        assert line in shown.splitlines()
    assert "numba 0.66.0" in shown
    found = json.loads(compcache("--dir", directory, "show", "f", "--provenance", "--json").out)
    assert {"name": "numba", "version": "0.66.0"} in found["provenance"][0]["makers"]
    assert compcache("--dir", directory, "show", "f", "--provenance", "--ir").status == 2
