"""Configuration files: what each key sets, which file decides, what is refused, and what reading them costs a process."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache, fill
from helpers import PACKAGE_ROOT, run_fresh

from compcache import SettingError, settings
from compcache.cli.environment import SETTINGS
from compcache.configuration import KEYS
from compcache.packaging.build import read_settings

if TYPE_CHECKING:
    from collections.abc import Callable

SEEN = """\
import os
from compcache import SettingError
from compcache.settings import setting
try:
    result = {name: setting(name) for name in names}
except SettingError as error:
    result = str(error)
"""
TRACED = (
    """\
asked = []
sys.addaudithook(lambda event, arguments: asked.append(str(arguments[0])) if event == "open" else None)
"""
    + SEEN
    + """
opened = [path for path in asked if "compcache" in path and not path.endswith(("py", "pyc"))]
result = {"set": result, "toml": "tomllib" in sys.modules, "opened": opened}
"""
)

#: Preloaded: whatever asks for files below $UNANSWERED gets EIO.
UNANSWERED = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
static int fails(const char *path) { const char *place = getenv("UNANSWERED"); return place && !strncmp(path, place, strlen(place)) && (errno = EIO); }
#define NEXT(name, ...) ((int (*)())dlsym(RTLD_NEXT, name))(__VA_ARGS__)
int access(const char *path, int mode) { return fails(path) ? -1 : NEXT("access", path, mode); }
int faccessat(int at, const char *path, int mode, int flags) { return fails(path) ? -1 : NEXT("faccessat", at, path, mode, flags); }
int stat(const char *path, struct stat *found) { return fails(path) ? -1 : NEXT("stat", path, found); }
int lstat(const char *path, struct stat *found) { return fails(path) ? -1 : NEXT("lstat", path, found); }
int stat64(const char *path, struct stat64 *found) { return fails(path) ? -1 : NEXT("stat64", path, found); }
int lstat64(const char *path, struct stat64 *found) { return fails(path) ? -1 : NEXT("lstat64", path, found); }
int fstatat(int at, const char *path, struct stat *found, int flags) { return fails(path) ? -1 : NEXT("fstatat", at, path, found, flags); }
int fstatat64(int at, const char *path, struct stat64 *found, int flags) { return fails(path) ? -1 : NEXT("fstatat64", at, path, found, flags); }
int open(const char *path, int flags, ...) {
    va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest);
    return fails(path) ? -1 : NEXT("open", path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest);
    return fails(path) ? -1 : NEXT("open64", path, flags, mode);
}
"""  # noqa: E501


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Where this user's configuration and caches are, as variables of the environment."""
    (tmp_path / "config" / "compcache").mkdir(parents=True)
    (tmp_path / "caches").mkdir()
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_CACHE_HOME": str(tmp_path / "caches"), "HOME": str(tmp_path)}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str, path: Path | None = None, *, age: float = 60) -> Path:
        path = path or tmp_path / "config" / "compcache" / "config.toml"
        path.write_text(text, encoding="utf-8")
        os.utime(path, (time.time() - age,) * 2)
        return path

    return write


def seen(home: dict[str, str], *names: str, script: str = SEEN, **environment: str) -> Any:
    variables = [f"COMPCACHE_{name}" for name in names]
    return run_fresh("unused", f"names = {variables!r}\n{script}", **{**home, **environment})


def test_a_key_for_every_variable() -> None:
    assert {f"COMPCACHE_{key.upper()}" for key in KEYS} == {row.name for row in SETTINGS} - {"COMPCACHE_CONFIG"}


def test_each_key_is_what_the_variable_would_be(home: dict[str, str], write: Any) -> None:
    numbers = 'max_size = "7G"\nlock_timeout = 2.5\nstats = false\n'
    write(numbers + 'layers = ["~/a", "/b"]\ntargets = ["x86-64-v2", "native"]\nsigning_key = "@~/key"\n')
    assert seen(home, "MAX_SIZE", "LOCK_TIMEOUT", "STATS", "LAYERS", "TARGETS", "SIGNING_KEY", "DIR") == {
        "COMPCACHE_MAX_SIZE": "7G",
        "COMPCACHE_LOCK_TIMEOUT": "2.5",
        "COMPCACHE_STATS": "0",
        "COMPCACHE_LAYERS": f"{home['HOME']}/a:/b",
        "COMPCACHE_TARGETS": "x86-64-v2,native",
        "COMPCACHE_SIGNING_KEY": f"@{home['HOME']}/key",
        "COMPCACHE_DIR": "",
    }


def test_the_environment_goes_before_the_file_even_where_it_says_nothing(home: dict[str, str], write: Any) -> None:
    write('layers = ["/b"]\nmax_size = "7G"\n')
    found = seen(home, "LAYERS", "MAX_SIZE", COMPCACHE_LAYERS="", COMPCACHE_MAX_SIZE="8G")
    assert found == {"COMPCACHE_LAYERS": "", "COMPCACHE_MAX_SIZE": "8G"}


@pytest.mark.slow
def test_settings_are_found_among_many_whether_a_variable_or_a_file_sets_them(home: dict[str, str], write: Any) -> None:
    script = "from compcache.settings import are_set\nresult = are_set(names)\n"
    assert not seen(home, "LAYERS", "DEBUG", script=script, COMPCACHE_MAX_SIZE="8G")
    assert seen(home, "LAYERS", "DEBUG", script=script, COMPCACHE_DEBUG="1")
    assert seen(home, "LAYERS", "DEBUG", script="import os\nos.environ = dict(os.environ, COMPCACHE_DEBUG='1')\n" + script)
    write('layers = ["/b"]\n')
    assert seen(home, "LAYERS", "DEBUG", script=script)
    assert not seen(home, "LAYERS", "DEBUG", script=script, COMPCACHE_LAYERS="")


@pytest.mark.parametrize(
    ("variables", "path"),
    [
        ({"HOME": "/home/u"}, "/home/u/.config"),
        ({"HOME": "/home/u/"}, "/home/u/.config"),
        ({"HOME": "/"}, "/.config"),
        ({"HOME": "/home/u", "XDG_CONFIG_HOME": "/x"}, "/x"),
        ({"HOME": "/home/u", "XDG_CONFIG_HOME": "x"}, "/home/u/.config"),
        ({"HOME": "/home/u", "XDG_CONFIG_HOME": ""}, "/home/u/.config"),
    ],
)
def test_the_users_file_is_in_the_home_unless_an_absolute_path_is_set(
    variables: dict[str, str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "COMPCACHE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert settings.configuration_files() == (f"{path}/compcache/config.toml", "/etc/compcache/config.toml")


def test_a_missing_setting_raises_and_catches_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Exceptions of missing variables and files took a tenth of the first load of a process."""
    monkeypatch.setattr(settings, "_read", [])
    for name in ("COMPCACHE_DIR", "COMPCACHE_LAYERS", "COMPCACHE_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    raised = []

    def record(_: object, event: str, argument: Any) -> Any:
        if event == "exception":
            raised.append(argument[0])
        return record

    before = sys.gettrace()
    sys.settrace(record)
    try:
        assert not settings.are_set(["COMPCACHE_DIR", "COMPCACHE_LAYERS"])
        assert settings.setting("COMPCACHE_DIR") == ""
    finally:
        sys.settrace(before)
    assert raised == []


def test_the_path_of_a_file_need_not_be_utf8(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    other = write('min_llvm = "20"\n', tmp_path / os.fsdecode(b"\xff.toml"))
    for _ in range(2):  # the second process reads the parsed copy
        assert seen(home, "MIN_LLVM", COMPCACHE_CONFIG=str(other)) == {"COMPCACHE_MIN_LLVM": "20"}
    (copy,) = (tmp_path / "caches").iterdir()
    copy.write_bytes(b"")
    assert seen(home, "MIN_LLVM", COMPCACHE_CONFIG=str(other)) == {"COMPCACHE_MIN_LLVM": "20"}


def test_a_value_may_contain_what_splits_lines_elsewhere(home: dict[str, str], write: Any) -> None:
    directory = "/caches/a\u2028b\x85c"
    write(f'dir = "{directory}"\n')
    for _ in range(2):  # the second process reads the parsed copy
        assert seen(home, "DIR") == {"COMPCACHE_DIR": directory}


@pytest.mark.slow
def test_one_file_can_be_named_in_place_of_others_and_none_too(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    write('max_size = "7G"\n')
    other = write('min_llvm = "20"\n', tmp_path / "other.toml")
    names = "MAX_SIZE", "MIN_LLVM"
    assert list(seen(home, *names, COMPCACHE_CONFIG=str(other)).values()) == ["", "20"]
    assert list(seen(home, *names, COMPCACHE_CONFIG="none").values()) == ["", ""]
    assert seen(home, *names, COMPCACHE_CONFIG="/nowhere/c.toml") == (
        "COMPCACHE_CONFIG: /nowhere/c.toml cannot be read (No such file or directory): correct the path or its permissions"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_size = ", "the file is not valid TOML"),
        ('max_sise = "1G"', "'max_sise' is not a setting: did you mean 'max_size'?"),
        ("stats = 0", "stats: the value must be true or false, not 0"),
        ("layers = [1]", "the value must be a string or a list of strings, not 1"),
        ('layers = ["b"]', "is not absolute"),
        ('dir = "b"', "is not absolute"),
        ('signing_key = "hush"', "a configuration file must not contain secrets"),
        ('dir = "/a\\nCOMPCACHE_TRUSTED_KEYS="', "control character"),
        ("dir = true", "the value must be a string, not True"),
    ],
)
def test_what_is_not_valid_names_the_file_and_the_key(home: dict[str, str], write: Any, text: str, says: str) -> None:
    path = write(text)
    message = seen(home, "MAX_SIZE")
    assert message.startswith(f"{path}: ")
    assert says in message
    assert "hush" not in message


@pytest.mark.slow
def test_values_are_checked_where_they_are_used_and_the_key_is_named(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    path = write('max_size = "many"\n')
    fill(tmp_path / "kernels")
    done = compcache("--dir", tmp_path / "kernels", "ls", **home)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"compcache: {path}: max_size: ") or f"{path}: max_size: " in done.err
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_a_file_that_others_can_write_to_is_refused(home: dict[str, str], write: Any) -> None:
    path = write('max_size = "7G"\n')
    path.chmod(0o666)
    assert "other users can write to the file" in seen(home, "MAX_SIZE")
    path.chmod(0o644)
    assert seen(home, "MAX_SIZE") == {"COMPCACHE_MAX_SIZE": "7G"}


def test_a_file_that_is_missing_behind_a_link_is_refused(home: dict[str, str], tmp_path: Path) -> None:
    """The rules of a file on a disk that is not mounted, such as trusted_keys, do not silently cease to hold."""
    path = tmp_path / "config" / "compcache" / "config.toml"
    path.symlink_to(tmp_path / "mounted" / "config.toml")
    assert f"{path} cannot be read (No such file or directory)" in seen(home, "TRUSTED_KEYS")
    path.unlink()
    assert seen(home, "TRUSTED_KEYS") == {"COMPCACHE_TRUSTED_KEYS": ""}
    path.parent.rmdir()
    path.parent.symlink_to(tmp_path / "mounted")
    assert f"{path} cannot be read (No such file or directory)" in seen(home, "TRUSTED_KEYS")
    (tmp_path / "mounted").mkdir()
    assert seen(home, "TRUSTED_KEYS") == {"COMPCACHE_TRUSTED_KEYS": ""}
    path.parent.unlink()
    path.parent.parent.rmdir()
    path.parent.parent.symlink_to(tmp_path / "mounted")  # the whole directory for configuration
    assert seen(home, "TRUSTED_KEYS") == {"COMPCACHE_TRUSTED_KEYS": ""}
    (tmp_path / "mounted").rmdir()
    assert f"{path} cannot be read (No such file or directory)" in seen(home, "TRUSTED_KEYS")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_file_that_cannot_be_looked_for_at_the_moment_is_refused(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    """A home on a server that does not answer does not make the rules of its file cease to hold."""
    path, shim = write('trusted_keys = "x"\n'), tmp_path / "shim.so"
    (tmp_path / "shim.c").write_text(UNANSWERED)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(shim), str(tmp_path / "shim.c")], check=True)
    text = seen(home, "TRUSTED_KEYS", LD_PRELOAD=str(shim), UNANSWERED=str(path.parent))
    assert f"{path} cannot be read (Input/output error)" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_file_that_this_user_cannot_look_for_is_refused(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that root created with the umask 077 would hide the rules of its file from everybody else."""
    with TemporaryDirectory() as base:  # parents of `tmp_path` are private
        os.chmod(base, 0o755)
        path = Path(base) / "compcache" / "config.toml"
        path.parent.mkdir(mode=0o700)
        write('min_llvm = "3"\n', path)
        monkeypatch.setattr(settings, "_read", [])
        monkeypatch.setenv("XDG_CONFIG_HOME", base)
        monkeypatch.delenv("COMPCACHE_CONFIG", raising=False)
        os.setresuid(65534, 65534, 0)
        try:
            with pytest.raises(SettingError, match=f"{path} cannot be read \\(Permission denied"):
                settings.setting("COMPCACHE_TRUSTED_KEYS")
        finally:
            os.setresuid(0, 0, 0)


def test_a_link_to_the_file_is_followed(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    path = write('max_size = "7G"\n', tmp_path / "dotfile.toml")
    (tmp_path / "config" / "compcache" / "config.toml").symlink_to(path)
    assert seen(home, "MAX_SIZE") == {"COMPCACHE_MAX_SIZE": "7G"}


@pytest.mark.slow
def test_toml_is_read_once_and_again_after_an_edit(home: dict[str, str], write: Any) -> None:
    write('max_size = "7G"\n')
    first, second = (seen(home, "MAX_SIZE", script=TRACED) for _ in range(2))
    assert first["toml"]
    assert not second["toml"]
    assert len(second["opened"]) == 1
    assert first["set"] == second["set"] == {"COMPCACHE_MAX_SIZE": "7G"}
    write('max_size = "8G"\n', age=50)
    assert seen(home, "MAX_SIZE") == {"COMPCACHE_MAX_SIZE": "8G"}


def test_what_is_kept_of_a_file_that_just_changed_is_nothing(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    write('max_size = "7G"\n', age=0)
    assert seen(home, "MAX_SIZE") == {"COMPCACHE_MAX_SIZE": "7G"}
    assert list((tmp_path / "caches").iterdir()) == []


@pytest.mark.slow
def test_a_kept_form_that_is_damaged_or_of_others_is_read_anew(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    write('max_size = "7G"\nmin_llvm = "20"\n')
    seen(home, "MAX_SIZE")
    (kept,) = (tmp_path / "caches").iterdir()
    data = kept.read_bytes()
    for changed in (b"", data[:-1], data[:-5], data.replace(b"7G", b"1G"), b"\xff" * 50):
        kept.write_bytes(changed)
        assert seen(home, "MAX_SIZE", "MIN_LLVM") == {"COMPCACHE_MAX_SIZE": "7G", "COMPCACHE_MIN_LLVM": "20"}
    kept.write_bytes(data)
    kept.chmod(0o666)
    assert seen(home, "MAX_SIZE", script=TRACED)["toml"]


def test_without_files_nothing_is_opened(home: dict[str, str]) -> None:
    found = seen(home, "MAX_SIZE", script=TRACED)
    assert (found["toml"], found["opened"]) == (False, [])


LIMIT = """\
from compcache import Cache, CompcacheError
try:
    result = Cache(directory).info().max_size
except CompcacheError as error:
    result = str(error)
"""


@pytest.mark.slow
def test_a_project_sets_limits_of_caches_inside_it_and_nothing_else(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    project = tmp_path / "clone"
    project.mkdir()
    write('[tool.compcache]\nmax_size = "3M"\n', project / "pyproject.toml")
    assert run_fresh(project / "build" / "cache", LIMIT, **home) == 3 << 20
    assert run_fresh(tmp_path / "users", LIMIT, **home) == 5 << 30
    assert run_fresh(project / "cache", LIMIT, **home, COMPCACHE_MAX_SIZE="4M") == 4 << 20
    shown = compcache("--dir", project / "cache", "config", **home).out
    assert f"COMPCACHE_MAX_SIZE\t3M\t{project}/pyproject.toml: [tool.compcache]\t" in shown
    assert "COMPCACHE_LOCK_TIMEOUT\t60\tdefault\t" in shown
    write('[tool.compcache]\ntrusted_keys = "x"\n', project / "pyproject.toml")
    assert "a project may set only lock_timeout and max_size" in run_fresh(project / "cache", LIMIT, **home)
    write('[tool.compcache]\nmax_size = "many"\n', project / "pyproject.toml")
    assert run_fresh(project / "cache", LIMIT, **home).startswith(f"{project}/pyproject.toml: [tool.compcache] max_size: ")
    write("[tool", project / "pyproject.toml")
    assert run_fresh(project / "cache", LIMIT, **home) == 5 << 30
    write("tool.compcache = 3", project / "pyproject.toml")
    assert run_fresh(project / "cache", LIMIT, **home) == 5 << 30


def test_the_settings_of_the_build_hooks_and_the_limits_share_a_table(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    write('[tool.compcache]\nkernels = ["a.b"]\ntargets = ["x86-64-v2"]\nmax_size = "3M"\n', tmp_path / "pyproject.toml")
    assert run_fresh(tmp_path / "cache", LIMIT, **home) == 3 << 20
    assert read_settings(str(tmp_path)) == (("a.b",), ("x86-64-v2",))


def test_a_project_whose_file_links_to_itself_sets_nothing(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    """No size limit held in such a clone: each addition failed to find it out, and removed nothing."""
    (tmp_path / "clone" / "part").mkdir(parents=True)
    write('[tool.compcache]\nmax_size = "1M"\n', tmp_path / "clone" / "pyproject.toml")
    (tmp_path / "clone" / "part" / "pyproject.toml").symlink_to("pyproject.toml")
    assert run_fresh(tmp_path / "clone" / "part" / "cache", LIMIT, **home) == 1 << 20


def test_a_limit_that_is_edited_holds_in_running_processes(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    (tmp_path / "clone").mkdir()
    write('[tool.compcache]\nmax_size = "3M"\n', tmp_path / "clone" / "pyproject.toml")
    script = """
    import os
    from compcache.usage.limits import effective_limit
    found = [effective_limit(None, directory)]
    with open(os.path.join(os.path.dirname(directory), "pyproject.toml"), "w") as file:
        file.write('[tool.compcache]\\nmax_size = "12M"\\n')
    result = [*found, effective_limit(None, directory)]
    """
    assert run_fresh(tmp_path / "clone" / "cache", script, **home) == [3 << 20, 12 << 20]


#: The limit of a cache, asked for first while the project's file cannot be read.
UNREADABLE = """
import errno, os
from compcache import Cache, ModuleSource, StorageError
from compcache.files import Files
def fail(self, path, *arguments):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
usual, Files.open_owned = Files.open_owned, fail
from compcache.usage.limits import effective_limit
try:
    result = [effective_limit(None, directory)]
except StorageError as error:
    result = [str(error)]
Files.open_owned = usual
result.append(Cache(directory).info().max_size)
"""


def test_a_project_that_cannot_be_read_for_a_moment_keeps_its_limit(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    """A limit that was taken for the default removed what the project's own limit allows."""
    (tmp_path / "clone").mkdir()
    write('[tool.compcache]\nmax_size = "50G"\n', tmp_path / "clone" / "pyproject.toml")
    found = run_fresh(tmp_path / "clone" / "cache", UNREADABLE, **home)
    assert found == [f"{tmp_path}/clone/pyproject.toml cannot be read (Too many open files): try again", 50 << 30]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["locks", "stats", "check", "debug"])
def test_a_switch_is_on_or_off_or_refused(home: dict[str, str], tmp_path: Path, name: str) -> None:
    script = """
    from compcache import Cache, SettingError
    try:
        Cache(directory)
        result = "opened"
    except SettingError as error:
        result = str(error)
    """
    variable = f"COMPCACHE_{name.upper()}"
    found = run_fresh(tmp_path / "cache", script, **home, **{variable: "perhaps"})
    assert found == f"{variable}: 'perhaps' is neither on nor off: use 1 or 0"
    assert run_fresh(tmp_path / "cache", script, **home, **{variable: "Off"}) == "opened"


@pytest.mark.slow
def test_the_file_decides_what_a_hit_does(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    fill(tmp_path / "kernels")
    write(f'dir = "{tmp_path}/kernels"\nmin_llvm = "999"\n')
    script = "from compcache import Cache\nresult = [Cache().path, Cache().has('dot')]"
    assert run_fresh("unused", script, **home) == [str(tmp_path / "kernels"), False]


def test_the_commands_say_which_file_set_what(home: dict[str, str], write: Any, tmp_path: Path) -> None:
    fill(tmp_path / "kernels")
    path = write(f'dir = "{tmp_path}/kernels"\nsigning_key = "@/nowhere/key"\nmin_llvm = "20"\n')
    rows = {row["name"]: row for row in json.loads(compcache("config", "--json", **home).out)}
    assert rows["COMPCACHE_MIN_LLVM"]["source"] == f"{path}: min_llvm"
    assert rows["COMPCACHE_DIR"]["value"] == str(tmp_path / "kernels")
    assert rows["COMPCACHE_SIGNING_KEY"]["value"] == "(set)"
    write(f'dir = "{tmp_path}/kernels"\nmin_llvm = "20"\n')
    found = {row["subject"]: row["message"] for row in json.loads(compcache("doctor", "--json", **home).out)}
    assert found["settings"].startswith(f"from {path}: COMPCACHE_DIR, COMPCACHE_MIN_LLVM")


@pytest.mark.slow
def test_settings_are_read_in_one_place() -> None:
    """Whoever asks the environment for one of ours passes by the configuration files."""
    allowed = {"settings.py", "environment.py", "config.py", "doctor.py", "app.py"}
    for path in (PACKAGE_ROOT / "compcache").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv") and path.name not in allowed:
                told = ast.unparse(node.args[0])
                assert not told.endswith("_VARIABLE"), f"{path}: {ast.unparse(node)}"
                assert "COMPCACHE_" not in told, f"{path}: {ast.unparse(node)}"
