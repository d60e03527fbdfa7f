"""NAMEs on command lines: labels, globs and suggestions; what terminals show of names; examples, -q and -v."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from cli_process import KERNELS, compcache, environment, fill, on_terminal
from helpers import PACKAGE_ROOT, adder, constant

from compcache import Cache, Identity, ModuleSource
from compcache.cli.app import COMMANDS
from compcache.cli.examples import EXAMPLES
from compcache.cli.names import common_prefix

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def named(directory: Path) -> Path:
    """Two functions of one label, one of another, and two with plain names, in one module."""
    with Cache(directory) as cache:
        for number in (1, 2):
            code = adder("kernels.scale", number)
            cache.get_or_compile(Identity("kernels.scale", number=number), code.__str__)
        cache.get_or_compile(Identity("kernels.norm"), lambda: adder("kernels.norm", 3))
        cache.add_module(ModuleSource("".join(constant(name, 1) for name in ("first", "second", "third"))))
    return directory


SCALES = sorted(Identity("kernels.scale", number=number).func_name for number in (1, 2))
NORM = Identity("kernels.norm").func_name


@pytest.mark.slow
def test_globs_and_labels_stand_for_functions(named: Path) -> None:
    shown = json.loads(compcache("--dir", named, "show", "kernels.s*", "kernels.norm", "--json").out)
    assert [report["func_name"] for report in shown] == [*SCALES, NORM]
    nodes = json.loads(compcache("--dir", named, "graph", "kernels.*", "--json").out)["nodes"]
    assert sorted(node["name"] for node in nodes) == sorted([*SCALES, NORM])
    assert compcache("--dir", named, "call", "kernels.n*", "4").out == "7\n"
    assert json.loads(compcache("--dir", named, "pin", "kernels.scale", "--json").out) == SCALES
    assert json.loads(compcache("--dir", named, "unpin", "*scale*", "--json").out) == []
    assert compcache("--dir", named, "explain", "kernels.norm").out.startswith(f"{NORM}: hit")
    assert "changed since kernels.scale-" in compcache("--dir", named, "explain", "kernels.scale").out


@pytest.mark.slow
@pytest.mark.parametrize("command", [["show"], ["show", "--ir"], ["graph"], ["call"], ["rm", "-y"], ["explain"]])
def test_every_command_suggests_a_near_name(named: Path, command: list[str]) -> None:
    done = compcache("--dir", named, *command, "kernels.nrom")
    assert done.status in (1, 2)
    assert "did you mean 'kernels.norm'?" in done.err + done.out


@pytest.mark.slow
@pytest.mark.parametrize("command", [["show"], ["graph"], ["rm", "-y"], ["pin"]])
def test_a_glob_that_matches_nothing_says_so(named: Path, command: list[str]) -> None:
    done = compcache("--dir", named, *command, "nothing*")
    assert (done.status, done.out) == (2, "")
    assert "matches 'nothing*'" in done.err


def test_one_function_is_wanted_and_several_are_meant(named: Path) -> None:
    assert "2 functions are named 'kernels.scale'" in compcache("--dir", named, "call", "kernels.scale", "1").err
    assert "3 functions match 'kernels.*'" in compcache("--dir", named, "call", "kernels.*", "1").err


@pytest.mark.slow
def test_a_terminal_shows_label_and_identity(named: Path) -> None:
    shown = re.sub(r"\x1b\[\d*m", "", on_terminal("--dir", named, "ls", "--all", "kernels.*").out).splitlines()
    assert shown[0].split()[:3] == ["function", "(kernels.…)", "identity"] or shown[0].split()[:2] == ["function", "identity"]
    rows = [line.split()[:2] for line in shown[1:]]
    assert [digits for _, digits in rows[1:]] == [name.rpartition("-")[2][:8] for name in SCALES]
    for name in (NORM, *SCALES):  # what is shown is a NAME
        cut = name[: name.rindex("-") + 9]
        assert compcache("--dir", named, "call", cut, "1").status == 0
        assert cut in on_terminal("--dir", named, "graph", "kernels.*").out
    modules = on_terminal("--dir", named, "ls", "--modules", "first", columns=120).out
    assert "first +2" in modules
    assert compcache("--dir", named, "ls", "--modules", "first").out.rstrip("\n").endswith("\tfirst second third")


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        (["package.kernels.a", "package.kernels.b"], "package.kernels."),
        (["package.kernels.a", "package.other.b"], "package."),
        (["package.kernels.a"], ""),
        (["ab.c", "ab.d"], ""),
        (["packaged", "packages"], ""),
        ([], ""),
    ],
)
def test_what_all_names_begin_with_is_shown_once(names: list[str], prefix: str) -> None:
    assert common_prefix(names) == prefix


def test_json_lines_are_objects(named: Path) -> None:
    plain = ["first", NORM, "second", "third"]
    for options, names in (((), [*plain, "kernels.scale"]), (("--all",), [*plain, *SCALES])):
        lines = compcache("--dir", named, "ls", *options, "--jsonl").out.splitlines()
        assert [json.loads(line)["func_name"] for line in lines] == sorted(names)
        assert json.loads(compcache("--dir", named, "ls", *options, "--json").out) == [json.loads(line) for line in lines]


@pytest.mark.slow
def test_top_counts_labels_together(named: Path) -> None:
    rows = {row["name"]: row for row in map(json.loads, compcache("--dir", named, "top", "--jsonl").out.splitlines())}
    assert (rows["kernels.scale"]["realizations"], rows["kernels.norm"]["realizations"]) == (2, 1)
    with Cache(named) as cache:
        modules = cache.modules()
    assert sum(row["seconds"] for row in rows.values()) == pytest.approx(sum(module.seconds for module in modules))
    assert sum(row["size"] for row in rows.values()) == pytest.approx(sum(module.size for module in modules), abs=6)
    first = compcache("--dir", named, "top", "--by", "realizations", "--limit", "1").out.split("\t")
    assert first[0] == "kernels.scale"
    assert "of 5 functions shown" in on_terminal("--dir", named, "top", "-n", "2").out


def test_a_list_of_no_rows_counts_all_functions(named: Path) -> None:
    assert on_terminal("--dir", named, "top", "--limit", 0).out.startswith("0 of 5 functions shown; the whole cache took ")


@pytest.mark.slow
def test_quiet_is_quiet_and_verbose_tells(named: Path) -> None:
    assert "would remain" in compcache("--dir", named, "prune", "--dry-run").err
    for arguments in (["-q", "prune", "--dry-run"], ["prune", "--dry-run", "--quiet"]):
        assert compcache("--dir", named, *arguments).err == ""
    assert "did you mean" in compcache("--dir", named, "-q", "show", "frist").err
    for arguments in (["-v", "call", "first"], ["call", "first", "--verbose"]):
        done = compcache("--dir", named, *arguments)
        assert "hit first" in done.err


@pytest.mark.slow
def test_code_is_coloured_on_a_terminal_alone(named: Path) -> None:
    plain = compcache("--dir", named, "show", "first", "--ir").out
    shown = on_terminal("--dir", named, "show", "first", "--ir", columns=200).out
    assert re.search(r"\x1b\[\d+mdefine\x1b", shown)
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == plain
    plain = compcache("--dir", named, "show", "first", "--asm").out
    assert re.sub(r"\x1b\[[\d;]*m", "", on_terminal("--dir", named, "show", "first", "--asm", columns=200).out) == plain
    assert "\x1b" not in on_terminal("--dir", named, "show", "first", "--asm", NO_COLOR="1").out


@pytest.mark.slow
def test_every_command_has_examples() -> None:
    assert list(EXAMPLES) == [name for name in COMMANDS if name in EXAMPLES]
    assert set(EXAMPLES) == set(COMMANDS)
    for name, lines in EXAMPLES.items():
        shown = compcache(name, "--help").out
        for line in lines:
            assert f"  {line}\n" in shown


@pytest.mark.slow
def test_the_examples_work(tmp_path: Path) -> None:
    shutil.copytree(KERNELS, tmp_path / "kernels")
    shutil.copy(PACKAGE_ROOT / "examples" / "library.py", tmp_path)
    (tmp_path / "kernels" / "blur.c").write_text("double blur(double a, double b) { return (a + b) / 2; }\n")
    for name, lines in EXAMPLES.items():
        directory = tmp_path / "cache"
        shutil.rmtree(directory, ignore_errors=True)
        for line in lines:
            if "blur.c" in line and shutil.which("clang") is None:
                continue
            fill(directory)  # some of them remove things
            words = shlex.split(line)
            if words[0] == "compcache" and "library.py" not in line:
                files = "kernels/", "app.", "publish.", "compcache."
                words = [str(tmp_path / word) if word.startswith(files) else word for word in words[1:]]
                if "-o" in words and not words[-1].startswith(str(tmp_path)):
                    words[-1] = str(tmp_path / words[-1])
                arguments = words if "--dir" in words else ["--dir", directory, *words]
                arguments = [directory if word == "/scratch/cache" else word for word in arguments]
                done = compcache(*arguments)
                assert done.status in ((0, 1) if name == "unpin" else (0,)), (line, done)
            else:
                assert subprocess.run(["sh", "-n", "-c", line], env=environment({}), check=False).returncode == 0
