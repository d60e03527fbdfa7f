"""The command line as a whole: where it looks, how it fails, what it writes where."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from cli_process import SIGNATURES, command, compcache, environment, fill, fresh, on_terminal
from helpers import PACKAGE_ROOT, adder, constant, flip_byte, module_file

from compcache import Cache, ModuleSource, __version__
from compcache.cli.app import COMMANDS

if TYPE_CHECKING:
    from pathlib import Path

CACHES = [("info",), ("ls",), ("ls", "--modules"), ("show", "f"), ("graph", "f"), ("graph", "--all")]


@pytest.mark.slow
def test_help_names_every_command() -> None:
    done = fresh("--help")
    assert done.status == 0
    assert all(f"\n  {name} " in done.out for name in COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    done = compcache(name, "--help")
    assert done.status == 0
    assert done.out.startswith(f"Usage: compcache {name} ")
    assert "--help" in done.out
    assert "\\" not in done.out, "click would have replaced an escape"


@pytest.mark.parametrize("name", ["key", "remote"])
def test_a_group_without_a_command_shows_its_help(name: str) -> None:
    assert compcache(name) == compcache(name, "--help")


@pytest.mark.slow
def test_the_console_script_and_python_m_are_the_same_program() -> None:
    script = (
        "from compcache.cli import main; import sys; sys.argv = ['compcache', '--version']; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment({}), capture_output=True, text=True, check=True
    )
    assert done.stdout == fresh("--version").out
    assert done.stdout.startswith(f"compcache {__version__}")


def test_help_imports_nothing_slow() -> None:
    script = (
        "import sys; from compcache.cli import main; main(['--help']); "
        "print([n for n in ('llvmlite', 'rich', 'numpy', 'filelock', 'msgpack', 'dataclasses') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment({}), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["frobnicate"], "unknown command 'frobnicate'; see 'compcache --help'"),
        (["grpah", "x"], "did you mean 'graph'?"),
        (["ls", "--nope"], "see 'compcache ls --help'"),
        (["show"], "missing argument 'NAME...'"),
        (["graph"], "give the names of functions, or --all"),
        (["graph", "x", "--all"], "--all cannot be combined with NAMEs"),
        (["add", "x.ll", "--optimize", "9"], "9 is not in the range 0<=x<=3"),
        (["add", "x.ll", "--nogil"], "--nogil requires --export"),
        (["add", "x.ll", "--global", "g"], "does not have the form NAME=VALUE"),
        (["add", "x.ll", "--global", "g=what"], "expected a number, true, false"),
        (["show", "f", "--whole-module"], "require --ir or --asm"),
        (["completion", "powershell"], "'bash', 'zsh', 'fish'"),
        (["prune", "--unused-for", "3600"], "'3600' has no unit"),
        (["ls", "--dir", ""], "--dir is empty"),
        (["graph", "f", "-o", "picture.png"], "compcache does not write png files; write .svg, .html or .dot"),
    ],
)
def test_a_wrong_usage_is_one_line_of_advice_and_status_2(
    tmp_path: Path, arguments: list[str], advice: str
) -> None:
    done = compcache("--dir", tmp_path / "none", *arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("compcache: error: ")
    assert done.err.count("\n") == 1
    assert advice in done.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("limit", "reason"), [("lots", "'lots' is not a valid size"), ("-1", "'-1' is not a valid size")])
@pytest.mark.parametrize("name", ["info", "stats", "ls"])
def test_a_limit_that_is_no_size_is_told_by_every_command(
    tmp_path: Path, name: str, limit: str, reason: str
) -> None:
    done = compcache("--dir", tmp_path / "none", name, COMPCACHE_MAX_SIZE=limit)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith(f"compcache: error: COMPCACHE_MAX_SIZE: {reason}")


def test_an_empty_directory_name_is_not_the_working_directory() -> None:
    done = compcache("--dir", "", "ls")
    assert (done.status, done.out) == (2, "")
    assert "--dir is empty" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ls", "info", "check"])
def test_a_closed_or_full_output_is_no_traceback(directory: Path, name: str) -> None:
    fill(directory)
    line = " ".join(command("--dir", directory, name))
    for redirection, status, message in ((">&-", 0, ""), ("2>&-", 0, ""), ("> /dev/full", 2, "No space left on device")):
        done = subprocess.run(
            f"{line} {redirection}",
            shell=True,
            env=environment({}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr
        if name != "check" or not message:  # a healthy cache leaves nothing to write
            assert done.returncode == status
            assert message in done.stderr


@pytest.mark.slow
def test_an_addition_needs_no_standard_error(directory: Path, tmp_path: Path) -> None:
    source = tmp_path / "f.ll"
    source.write_text(adder("f", 1), encoding="utf-8")
    line = " ".join(command("--dir", directory, "add", source))
    done = subprocess.run(f"{line} 2>&-", shell=True, env=environment({}), capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.split("\t")[1:3] == [str(source), "f"]


def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    done = compcache("--dir", path, "ls")
    assert (done.status, done.out) == (2, "")
    assert done.err == f"compcache: error: {path} (chosen by: --dir) is not a directory: give the directory of a cache\n"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".ll", ".o"])
def test_a_file_that_exceeds_the_memory_is_no_traceback(directory: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"large{suffix}"
    path.touch()
    os.truncate(path, 1 << 40)  # it takes no room on the disk
    limited = ["bash", "-c", 'ulimit -v 4000000; exec "$@"', "bash", *command("--dir", directory, "add", path)]
    done = subprocess.run(limited, capture_output=True, text=True, check=False, env=environment({}))
    assert done.returncode == 2
    assert done.stderr.startswith("compcache: error: not enough memory")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", CACHES)
def test_looking_at_a_directory_that_is_not_there_does_not_create_it(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = compcache("--dir", tmp_path / "none", *arguments)
    assert done.status == (0 if "info" in arguments else 2)
    assert "info" in arguments or done.err.startswith(f"compcache: error: there is no cache at {tmp_path / 'none'}")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_the_directory_is_that_of_the_option_then_of_the_variable_then_the_users(tmp_path: Path) -> None:
    option, variable, users = tmp_path / "option", tmp_path / "variable", tmp_path / "users"
    settings = {"COMPCACHE_DIR": str(variable), "XDG_CACHE_HOME": str(users)}

    def chosen(*arguments: object, **environment: str) -> tuple[str, str]:
        info = json.loads(compcache(*arguments, "info", "--json", **environment).out)
        return info["directory"], info["chosen_by"]

    assert chosen("--dir", option, **settings) == (str(option), "--dir")
    assert chosen(**settings) == (str(variable), "$COMPCACHE_DIR")
    del settings["COMPCACHE_DIR"]
    assert chosen(**settings) == (str(users / "compcache"), "default")


@pytest.mark.slow
def test_info_counts_what_is_there(directory: Path) -> None:
    fill(directory)
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant("sieve", 0)))
    info = json.loads(compcache("--dir", directory, "info", "--json").out)
    assert (info["modules"], info["functions"], info["realizations"]) == (6, 5, 6)
    files = [path.stat().st_size for path in directory.glob("modules-v1/*/*.ccm")]
    assert info["size"] == sum(files)
    with Cache(directory) as cache:
        cache.get_target("dot")
        assert "nothing" not in cache
    assert (info["hits"], info["hit_rate"], info["max_size"]) == (0, 0.0, 5 << 30)
    info = json.loads(compcache("--dir", directory, "info", "--json", COMPCACHE_MAX_SIZE="100K").out)
    assert (info["hits"], info["misses"], info["hit_rate"], info["max_size"]) == (1, 0, 1.0, 100 << 10)
    full = compcache("--dir", directory, "info", COMPCACHE_MAX_SIZE="100K").out
    assert f"of 100.0 KiB ({info['size'] / (100 << 10):.1%})" in full
    assert "hit rate: 100.0% (1 of 1 request)" in full
    assert "without a limit" in compcache("--dir", directory, "info", COMPCACHE_MAX_SIZE="0").out
    text = compcache("--dir", directory, "info").out
    assert f"directory: {directory} (--dir)\n" in text
    assert "\nfunctions: 5\n" in text


def test_a_directory_that_others_can_write_to_is_refused_unless_vouched_for(directory: Path) -> None:
    directory.chmod(0o777)
    done = compcache("--dir", directory, "ls")
    assert (done.status, done.out) == (2, "")
    assert "can be written by other users" in done.err
    assert done.err.count("\n") == 1
    assert compcache("--trust", "--dir", directory, "ls").status == 0


def test_a_damaged_module_is_one_line_of_warning_and_the_next_realization_is_used(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant("seven", 7)))
        cache.add_module(ModuleSource(constant("seven", 7) + constant("other", 1)))
        preferred = cache.get_target("seven").module_id
    flip_byte(module_file(directory, preferred), 100)
    done = compcache("--dir", directory, "call", "seven")
    assert (done.status, done.out) == (0, "7\n")
    assert done.err.startswith("compcache: warning: ")
    assert done.err.count("\n") == 1
    assert "quarantine" in done.err


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(directory: Path) -> None:
    lines = [constant(f"function{number}", number) for number in range(2_000)]
    with Cache(directory) as cache:
        cache.add_module(ModuleSource("\n".join(lines), keep_bitcode=False, optimize=0))
    process = subprocess.Popen(
        command("--dir", directory, "ls"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment({"PYTHONUNBUFFERED": "1"}),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"function0\t")
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), errors) == (0, b"")


def test_names_that_no_terminal_can_show_are_escaped(directory: Path) -> None:
    name = "line\nbreak\x1b[31m\tred"
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant('"line\\0Abreak\\1B[31m\\09red"', 1)))
        assert cache.has(name)
    listed = compcache("--dir", directory, "ls").out
    assert listed.split("\t")[0] == r"line\nbreak\x1b[31m\tred"
    assert listed.count("\n") == 1
    assert "\x1b[31m" not in on_terminal("--dir", directory, "show", name).out
    assert json.loads(compcache("--dir", directory, "ls", "--json").out)[0]["func_name"] == name


def test_an_ascii_locale_can_show_any_name(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource('define i64 @"\\CE\\BB"() { ret i64 1 }'))
    done = fresh("--dir", directory, "ls", PYTHONIOENCODING="ascii")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("\\u03bb\t")


def test_a_terminal_gets_a_table_in_colour_and_a_pipe_gets_records(directory: Path) -> None:
    fill(directory)
    piped = compcache("--dir", directory, "ls").out
    assert [line.split("\t")[:2] for line in piped.splitlines()] == [
        [n, SIGNATURES[n]] for n in sorted(SIGNATURES)
    ]
    assert "\x1b" not in piped
    shown = on_terminal("--dir", directory, "ls").out
    assert "\x1b[36mdot" in shown
    assert "copies" in shown.splitlines()[0]
    plain = on_terminal("--dir", directory, "ls", NO_COLOR="1").out
    assert "\x1b" not in plain
    assert "copies" in plain.splitlines()[0]


def test_rows_fit_the_terminal_whatever_the_names(directory: Path) -> None:
    long_name = "package.module.function[" + "x" * 300 + "]0123456789abcdef"
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant(f'"{long_name}"', 1)))
        cache.add_module(ModuleSource(constant('"\\E6\\BC\\A2\\E5\\AD\\97"', 1)))
    shown = on_terminal("--dir", directory, "ls", columns=80, NO_COLOR="1").out.splitlines()
    assert len(shown) == 3
    assert all(len(line) <= 80 for line in shown)
    assert any("…" in line and "abcdef" in line and line.startswith("package.") for line in shown)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(shell: str) -> None:
    done = compcache("completion", shell, PATH=os.environ["PATH"])
    assert done.status == 0
    assert "_COMPCACHE_COMPLETE" in done.out


def test_a_shell_completes_commands_and_function_names(directory: Path) -> None:
    fill(directory)
    commands = compcache(_COMPCACHE_COMPLETE="bash_complete", COMP_WORDS="compcache c", COMP_CWORD="1")
    assert [line.partition(",")[2] for line in commands.out.splitlines()] == [
        n for n in COMMANDS if n[0] == "c"
    ]
    names = compcache(
        _COMPCACHE_COMPLETE="bash_complete",
        COMP_WORDS=f"compcache --dir {directory} show d",
        COMP_CWORD="4",
    )
    assert "dot" in names.out
    assert "norm" not in names.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_bash_script_is_valid_bash(tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(compcache("completion", "bash").out)
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.slow
def test_clearing_needs_a_yes(directory: Path) -> None:
    fill(directory)

    def count() -> int:
        return len(list(directory.glob("modules-v1/*/*.ccm")))

    refused = compcache("--dir", directory, "clear")
    assert (refused.status, count()) == (2, 5)
    assert "give --yes" in refused.err
    assert compcache("--dir", directory, "clear", "--dry-run").out.startswith("would remove 5 modules")
    assert count() == 5
    assert on_terminal("--dir", directory, "clear", typed="n\n").status == 130
    assert count() == 5
    cleared = on_terminal("--dir", directory, "clear", typed="y\n")
    assert (cleared.status, count()) == (0, 0)
    assert compcache("--dir", directory, "ls").out == ""
    assert json.loads(compcache("--dir", directory, "clear", "-y", "--json").out)["modules"] == 0


def test_a_cleared_cache_is_a_miss_for_who_has_it_open_and_fills_again(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant("five", 5)))
        target = cache.get_target("five")
        assert compcache("--dir", directory, "clear", "-y").status == 0
        assert target() == 5
        del target
        assert not cache.has("five")
        cache.add_module(ModuleSource(constant("five", 5)))
        assert cache.get_target("five")() == 5


def test_the_package_has_everything_that_the_commands_read() -> None:
    assert (PACKAGE_ROOT / "compcache/cli/render/page.html").is_file()
    assert "cli/render/*.html" in (PACKAGE_ROOT / "pyproject.toml").read_text()
