"""Recipes of the documents: files are valid for what reads them, and the commands in them do what the page says."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from cli_process import compcache
from documents import blocks_of
from helpers import PACKAGE_ROOT, adder

from compcache import Cache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECIPES = PACKAGE_ROOT / "docs" / "how-to" / "recipes.md"
CI = PACKAGE_ROOT / "docs" / "how-to" / "ci.md"


def texts(kind: str, page: Path = RECIPES) -> list[str]:
    return [text for found, text in blocks_of(page) if found == kind]


def documents() -> Iterator[Any]:
    for page in (RECIPES, CI):
        for text in texts("yaml", page):
            yield from yaml.safe_load_all(text)


def commands_in(text: str) -> list[str]:
    """What is run by a recipe: command lines that begin with compcache, with settings before them."""
    return re.findall(r"((?:COMPCACHE_\w+=\S+ )*(?:\S*/)?compcache (?:--\S+ (?:/\S+ )?)?(?:batch|prune)[^\"\n&]*)", text)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name in ("dot", "norm"):
        (folder / f"{name}.ll").write_text(adder(name, 1), encoding="utf-8")
    return folder


def run(command: str, kernels: Path, tmp_path: Path) -> Path:
    """Run a command of a recipe with its paths below `tmp_path`; the cache directory."""
    settings = dict(re.findall(r"(COMPCACHE_\w+)=(\S+) ", command))
    words = shlex.split(command[command.index("compcache ") :])[1:]
    words = [str(path) for word in words for path in (sorted(kernels.glob("*.ll")) if word == "kernels/*.ll" else [word])]
    if "--dir" in words:
        settings["COMPCACHE_DIR"] = words.pop(words.index("--dir") + 1)
        words.remove("--dir")
    directory: Path = tmp_path / settings.pop("COMPCACHE_DIR", "/caches").lstrip("/")
    done = compcache(*words, COMPCACHE_DIR=str(directory), **settings)
    assert done.status == 0, done.err
    return directory


@pytest.mark.slow
def test_the_image_has_a_layer_that_programs_use(kernels: Path, tmp_path: Path) -> None:
    (text,) = texts("dockerfile")
    (command,) = commands_in(text)
    layer = run(command, kernels, tmp_path)
    (layers,) = re.findall(r"COMPCACHE_LAYERS=(\S+)", text)
    assert layer == tmp_path / layers.lstrip("/")
    with Cache(tmp_path / "own", layers=[layer]) as cache:
        assert cache.get_target("dot")(41) == 42
        assert {row.cpu for row in cache.realizations("dot")} >= {"x86-64-v2"} or len(cache.realizations("dot")) > 0


@pytest.mark.parametrize("kind", ["dockerfile", "yaml"])
def test_others_can_read_the_layer_that_one_user_fills(kind: str) -> None:
    (text,) = [text for text in texts(kind) if "COMPCACHE_LAYERS" in text]
    (layer,) = re.findall(r"COMPCACHE_LAYERS(?:=|, value: )([\w/]+)", text)
    assert re.search(rf"compcache [^\n]*batch [^\n]* && chmod -R go\+rX {layer}\b", text), "a new cache is its user's alone"


@pytest.mark.slow
def test_the_volume_is_mounted_where_it_is_a_layer_and_read_only(kernels: Path, tmp_path: Path) -> None:
    job, deployment = (document for document in documents() if isinstance(document, dict) and "kind" in document)
    (filler,) = job["spec"]["template"]["spec"]["containers"]
    (command,) = commands_in(" ".join(filler["command"]))
    assert run(command, kernels, tmp_path).name == "kernels"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = {row["name"]: row["value"] for row in container["env"]}
    mounts = {row["mountPath"]: row for row in container["volumeMounts"]}
    assert mounts[settings["COMPCACHE_LAYERS"]]["readOnly"]
    assert not mounts["/scratch"].get("readOnly")
    volumes = {row["name"] for row in deployment["spec"]["template"]["spec"]["volumes"]}
    assert {row["name"] for row in container["volumeMounts"]} == volumes


def test_the_timer_prunes_and_is_content_without_a_cache(kernels: Path, tmp_path: Path) -> None:
    service, timer = texts("ini")
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(service)
    command = parsed["Service"]["ExecStart"]
    run(command, kernels, tmp_path)
    assert not (tmp_path / "caches").exists()
    with Cache(tmp_path / "caches"):
        pass
    run(command, kernels, tmp_path)
    parsed.read_string(timer)
    assert parsed["Install"]["WantedBy"] == "timers.target"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for text in texts("ini"):
        name = re.findall(r"compcache-prune\.\w+", text)[0]
        program = shutil.which("true")
        (tmp_path / name).write_text(re.sub(r"ExecStart=\S+", f"ExecStart={program}", text), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.glob("*.timer"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "compcache-prune" not in done.stderr, done.stderr


def test_files_of_recipes_are_valid() -> None:
    found = list(documents())
    assert len(found) >= 5
    (container,) = texts("json")
    assert json.loads(container)["containerEnv"]["COMPCACHE_DIR"].startswith("/caches/")


def test_keys_of_github_are_new_in_each_run_and_those_of_others_are_fixed() -> None:
    (steps,) = (document for document in documents() if isinstance(document, list))
    chosen = steps[0]["with"]
    assert chosen["key"].startswith(chosen["restore-keys"].strip())
    assert "github.run_id" in chosen["key"]
    assert "run_id" not in chosen["restore-keys"]
