"""`compcache doctor`, and settings that are not valid: one line each, never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache, environment, fill
from helpers import PACKAGE_ROOT, adder, run_fresh

from compcache import Cache, ModuleSource
from compcache.cli import main
from compcache.cli.environment import SETTINGS, misspelt_settings

if TYPE_CHECKING:
    from pathlib import Path

#: A value that is not valid for each setting that has such values, and what the message says of it.
INVALID = {
    "COMPCACHE_MAX_SIZE": ("many", "not a valid size"),
    "COMPCACHE_LOCK_TIMEOUT": ("soon", "not a valid number of seconds"),
    "COMPCACHE_LOCKS": ("maybe", "use 1 or 0"),
    "COMPCACHE_MAP_FILES": ("maybe", "use 1 or 0"),
    "COMPCACHE_STATS": ("maybe", "use 1 or 0"),
    "COMPCACHE_CHECK": ("maybe", "use 1 or 0"),
    "COMPCACHE_CONFIG": ("/nowhere/config.toml", "No such file"),
    "COMPCACHE_DEBUG": ("maybe", "use 1 or 0"),
    "COMPCACHE_NUMBA": ("maybe", "use 1 or 0"),
    "COMPCACHE_MIN_LLVM": ("newest", "is not a version of LLVM: use numbers"),
    "COMPCACHE_LINKER": ("/nowhere/ld", "not an executable file"),
    "COMPCACHE_SIGNING_KEY": ("@/nowhere/key", "/nowhere/key"),
    "COMPCACHE_REMOTE": ("s4://bucket", "has an unknown URL scheme"),
    "COMPCACHE_REMOTE_MODE": ("rw", "'write'"),
    "COMPCACHE_TRUSTED_KEYS": ("me", "name:base64"),
    "COMPCACHE_PUBLISH_KEY": ("me", "name:base64"),
    "COMPCACHE_TARGETS": ("+avx2", "write the CPU's name before the changes"),
}
#: What raises in a program: `Cache` when it is opened, a miss when it needs it.
LIBRARY = f"""\
import os, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {str(PACKAGE_ROOT / "tests")!r})
from compcache import Cache, CompcacheError, ModuleSource
from helpers import adder
os.environ[variable] = text
try:
    with Cache(directory) as cache:
        cache.get_or_compile("one", lambda: ModuleSource(adder("one", 1)))(1)
        raised = None
except CompcacheError as error:
    raised = str(error)
result = raised
"""


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    directory = tmp_path / "kernels"
    fill(directory)
    return directory


def findings(directory: Path, **environment: str) -> list[dict[str, str]]:
    done = compcache("--dir", directory, "doctor", "--json", **environment)
    assert done.status in (0, 1), done.err
    found: list[dict[str, str]] = json.loads(done.out)
    assert any(row["severity"] == "error" for row in found) == bool(done.status)
    return found


def errors(directory: Path, **environment: str) -> dict[str, str]:
    return {row["subject"]: row["message"] for row in findings(directory, **environment) if row["severity"] == "error"}


def test_every_setting_that_can_be_wrong_is_tried() -> None:
    assert {setting.name for setting in SETTINGS} - set(INVALID) == {"COMPCACHE_DIR", "COMPCACHE_LAYERS"}


@pytest.mark.slow
@pytest.mark.parametrize("variable", INVALID)
def test_a_value_that_is_not_valid_is_one_line(filled: Path, variable: str) -> None:
    text, says = INVALID[variable]
    done = compcache("--dir", filled, "ls", **{variable: text})
    assert (done.status, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert variable in done.err
    assert says in done.err
    assert says in errors(filled, **{variable: text})[variable]


@pytest.mark.slow
@pytest.mark.parametrize("variable", sorted(setting.name for setting in SETTINGS))
def test_no_text_whatever_makes_a_command_fail_with_more_than_a_line(tmp_path: Path, variable: str) -> None:
    for text in ("-1", "\x01" + "\u00e9" * 300, "@/{}%", "1\n2"):
        for command in ("config", "info"):
            done = compcache(command, **{"COMPCACHE_DIR": str(tmp_path / "kernels"), variable: text})
            endings = {(0, 0), (2, 1)} | ({(0, 1)} if variable == "COMPCACHE_LAYERS" else set())  # what cannot be opened is left out
            assert (done.status, done.err.count("\n")) in endings, (text, command, done)
            assert not done.status or variable in done.err or variable in ("COMPCACHE_DIR", "COMPCACHE_LAYERS")


@pytest.mark.slow
@pytest.mark.parametrize("variable", sorted(set(INVALID) - {"COMPCACHE_LINKER", "COMPCACHE_NUMBA"}))
def test_a_program_gets_an_error_that_names_the_variable_or_goes_on(tmp_path: Path, variable: str) -> None:
    text, says = INVALID[variable]
    script = f"variable, text = {variable!r}, {text!r}\n" + LIBRARY
    raised = run_fresh(tmp_path / "kernels", script)
    if variable not in ("COMPCACHE_MAX_SIZE", "COMPCACHE_REMOTE_MODE"):  # warned of; of no store
        assert raised.startswith(f"{variable}: ")
        assert says in raised
    else:
        assert raised is None


def test_a_misspelt_name_is_told_with_the_right_one(filled: Path) -> None:
    done = compcache("--dir", filled, "ls", COMPCACHE_LAYER="/opt/cache")
    assert done.status == 0
    reason = "the variable COMPCACHE_LAYER is ignored: it is not a setting of compcache"
    assert done.err == f"compcache: warning: {reason}; did you mean COMPCACHE_LAYERS?\n"
    assert "COMPCACHE_LAYERS" in errors(filled, COMPCACHE_LAYER="/opt/cache")["COMPCACHE_LAYER"]
    assert list(misspelt_settings({"COMPCACHE_TEST_SECONDS": "5", "COMPCACHE_DIR": "x", "HOME": "/"})) == []


def test_what_is_in_order_is_told(filled: Path) -> None:
    found = {row["subject"]: row for row in findings(filled)}
    assert not errors(filled)
    assert {"settings", "directory", "content", "processor", "llvm", "linker", "loader", "numba"} <= set(found)
    assert str(filled) in found["directory"]["message"]
    assert "writable for this user alone" in found["directory"]["message"]


def test_nothing_is_created(tmp_path: Path) -> None:
    assert not errors(tmp_path / "absent")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("place", ["file", "file/deeper"])
def test_a_directory_that_is_a_file_is_a_problem(tmp_path: Path, place: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert f"{file} is not a directory: choose another with --dir" in errors(tmp_path / place)["directory"]


def test_layers_are_looked_at(filled: Path, tmp_path: Path) -> None:
    layer, empty, absent = tmp_path / "layer", tmp_path / "empty", tmp_path / "absent"
    with Cache(layer) as cache:
        cache.add_module(ModuleSource(adder("one", 1)))
    empty.mkdir(mode=0o700)
    rows = findings(filled, COMPCACHE_LAYERS=f"{layer}:{empty}:{absent}")
    told = [(row["severity"], row["message"]) for row in rows if row["subject"] == "layer"]
    assert told == [
        ("ok", f"{layer}: 1 function"),
        ("error", f"{empty} is not a cache: correct the path, or leave the layer out"),
        ("error", f"{absent} does not exist and is not used: correct the path, or leave the layer out"),
    ]


def test_a_layer_below_a_directory_that_cannot_be_searched_is_a_problem(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Not one that does not exist: its path is right."""
    (tmp_path / "team").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: str(path) != str(tmp_path / "team"))
    monkeypatch.setenv("COMPCACHE_LAYERS", str(tmp_path / "team" / "layer"))
    assert main(["--dir", str(filled), "doctor"]) == 1
    assert f"layer is not used, because this user cannot search {tmp_path / 'team'}: " in capsys.readouterr().out


def test_who_else_can_write_is_a_problem(filled: Path) -> None:
    filled.chmod(0o777)
    assert "can be written by other users" in errors(filled)["directory"]


@pytest.mark.slow
def test_the_remote_store_is_asked(filled: Path, tmp_path: Path) -> None:
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    store = tmp_path / "store"
    store.mkdir()
    rows = findings(filled, COMPCACHE_REMOTE=f"file://{store}", **runtime)
    assert [row["severity"] for row in rows if row["subject"] == "remote"] == ["ok"]
    assert errors(filled, COMPCACHE_REMOTE="redis://127.0.0.1:1/0", **runtime)["remote"]


@pytest.mark.slow
def test_a_checkout_whose_runtime_is_stale_or_missing_is_told_in_one_line(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(PACKAGE_ROOT / "compcache", checkout / "compcache", ignore=shutil.ignore_patterns("__pycache__"))

    def run(command: str) -> tuple[int, str]:
        variables = {**environment({}), "PYTHONPATH": str(checkout), "COMPCACHE_DIR": str(tmp_path / "kernels")}
        line = [sys.executable, "-m", "compcache", command]
        done = subprocess.run(line, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
        told = [text for text in (done.stdout + done.stderr).splitlines() if "make build" in text]
        assert "Traceback" not in done.stderr
        assert len(told) == 1
        return done.returncode, told[0]

    with (checkout / "compcache/hit/native/module.c").open("a") as source:
        source.write("/* newer */")
    status, told = run("doctor")
    assert status == 1
    assert "was not built from the sources" in told
    assert run("info")[0] == 2
    for extension in checkout.glob("compcache/hit/_runtime*"):
        extension.unlink()
    assert "cannot be imported" in run("doctor")[1]


@pytest.mark.parametrize(
    ("status", "problem"),
    [((10**9, 9, 9, 500, 400, 400), "only 36.0 KiB are free"), ((10**9, 10**9, 10**9, 500, 7, 7), "only 7 inodes are free")],
)
def test_a_full_file_system_is_a_problem(
    filled: Path, status: tuple[int, ...], problem: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, *status, 0, 255)))
    assert main(["--dir", str(filled), "doctor"]) == 1
    assert f"error\tspace\t{problem}" in capsys.readouterr().out


def test_a_directory_that_cannot_be_read_is_a_problem(filled: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not (str(path) == str(filled) and mode & os.R_OK))
    assert main(["--dir", str(filled), "doctor"]) == 1
    assert f"error\tdirectory\t{filled} (chosen by: --dir) cannot be read by this user" in capsys.readouterr().out
