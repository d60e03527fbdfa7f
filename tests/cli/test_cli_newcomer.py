"""What happens to somebody who does not know the program yet: slips of the finger, odd terminals, other shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_process import compcache, environment, fresh, on_terminal
from helpers import adder

from compcache import Cache, Function, ModuleSource, Signature
from compcache.cli.app import COMMANDS, group

NAMES = ("model.predict", "model.loss", "vector.dot")


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("named") / "cache"
    functions = {name: Function(Signature.parse("i64(x: i64)"), symbol="f") for name in NAMES}
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1), functions))
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("lss", "unknown command 'lss', did you mean 'ls'? See 'compcache --help'"),
        ("ls --modle", "no such option '--modle', did you mean '--modules'? See 'compcache ls --help'"),
        ("check --repare", "no such option '--repare', did you mean '--repair'? See 'compcache check --help'"),
        ("--dri x ls", "no such option '--dri', did you mean '--dir'? See 'compcache --help'"),
        ("ls --frobnicate", "no such option '--frobnicate'; see 'compcache ls --help'"),
        ("top --by sizes", "did you mean 'size'? See 'compcache top --help'"),
        ("completion fsh", "did you mean 'fish'?"),
        ("graph --all --format htm", "did you mean 'html'?"),
        ("show model.predikt", "did you mean 'model.predict'?"),
        ("show dot", "did you mean 'vector.dot'?"),
        ("call predikt 1", "did you mean 'model.predict'?"),
        ("key show /nowhere/key", "cannot read /nowhere/key (No such file or directory): give the file that"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(named: Path, line: str, text: str) -> None:
    done = compcache(*line.split(), COMPCACHE_DIR=str(named))
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith("compcache: error: ")
    assert done.err.count("\n") == 1
    assert text in done.err


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_a_narrow_terminal(name: str) -> None:
    command = group.get_command(click.Context(group), name) if name else group
    assert command is not None
    context = click.Context(command, info_name=f"compcache {name}".strip(), terminal_width=50, max_content_width=100)
    text = command.get_help(context)
    shown, _, examples = text.partition("Examples:")
    broken = [line for line in shown.splitlines() if not line.startswith(("Usage", "  -"))]  # what is typed is not
    assert [line for line in broken if len(line) > 50 and len(line.split()) > 1] == []
    assert bool(examples) == bool(name)


@pytest.mark.parametrize("line", ["ls", "top", "config", "check"])
def test_tables_fit_a_narrow_terminal(named: Path, line: str) -> None:
    shown = on_terminal("--dir", named, *line.split(), columns=40, NO_COLOR="1").out
    assert shown.isprintable() or "\x1b" not in shown
    table = [row for row in shown.splitlines() if not row.startswith("healthy") and " shown; " not in row]
    assert max(map(len, table)) <= (44 if line == "config" else 40), shown


@pytest.mark.slow
def test_a_terminal_without_frames_gets_ascii(named: Path) -> None:
    with Cache(named) as cache:
        cache.add_module(
            ModuleSource(
                "declare i64 @dot(i64)\ndefine i64 @caller(i64 %x) {\n  %y = call i64 @dot(i64 %x)\n  ret i64 %y\n}\n",
                imports={"dot": "vector.dot"},
            )
        )
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    assert "\n`-- vector.dot" in fresh("--dir", named, "graph", "caller", **plain).out
    assert "\n\u2514\u2500\u2500 vector.dot" in fresh("--dir", named, "graph", "caller", PYTHONUTF8="1").out


#: What each shell does when somebody presses Tab; `{script}` is what `compcache completion` prints.
_SHELLS = {
    "bash": """
        source {script}
        COMP_WORDS=(compcache sh); COMP_CWORD=1; _compcache_completion compcache; echo "${{COMPREPLY[@]}}"
        COMP_WORDS=(compcache show vec); COMP_CWORD=2; _compcache_completion compcache; echo "${{COMPREPLY[@]}}"
    """,
    "zsh": """
        autoload -Uz compinit; compinit -u -D
        source {script}
        _describe() {{ print -l "${{(@P)3}}" }}
        compadd() {{ print -l "${{(@P)5}}" }}
        words=(compcache sh); CURRENT=2; _compcache_completion
        words=(compcache show vec); CURRENT=3; _compcache_completion
    """,
    "fish": """
        source {script}
        complete -C 'compcache sh'
        complete -C 'compcache show vec'
    """,
}
_WITHOUT_SETTINGS = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}


@pytest.mark.slow
@pytest.mark.parametrize("shell", list(_SHELLS))
def test_a_shell_completes(named: Path, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    programs = Path(sys.executable).parent
    if not (programs / "compcache").exists():
        pytest.skip("the program is not installed")
    (tmp_path / "script").write_text(compcache("completion", shell).out)
    (tmp_path / "typed").write_text(_SHELLS[shell].format(script=tmp_path / "script"))
    done = subprocess.run(
        [shell, *_WITHOUT_SETTINGS[shell], str(tmp_path / "typed")],
        env={**environment({}), "PATH": f"{programs}:{os.environ['PATH']}", "COMPCACHE_DIR": str(named), "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "show" in done.stdout, done.stderr
    assert "vector.dot" in done.stdout, done.stderr


@pytest.mark.slow
def test_help_and_version_are_found_as_in_other_tools() -> None:
    assert compcache("help") == compcache("--help")
    assert compcache("help", "prune") == compcache("prune", "--help")
    assert compcache("help", "remote", "gc") == compcache("remote", "gc", "--help")
    assert compcache("-V") == compcache("--version")
