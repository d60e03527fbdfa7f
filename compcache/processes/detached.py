"""Starts processes of this interpreter: the tuner, the helper process for a remote store, and trials of new code."""

from __future__ import annotations

import os
import sys
from errno import ENOENT

from compcache.files import DIRECTORY_MODE, Files
from compcache.interrupts import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["DETACHED", "LateFiles", "current_directory", "has_ended", "isolated_command", "start_detached"]

#: The environment variable (not a setting) that marks detached processes. A batch does not end them with the job that started them.
DETACHED = "_COMPCACHE_DETACHED"
#: The interpreter's own path comes first. A file of the program (a `json.py` beside its script) must not replace a standard module.
_START = "import sys\nsys.path[:] = dict.fromkeys([*sys.path, *{path!r}])\n{code}"


class LateFiles(Files):
    """File operations for a detached process. They never recreate the root of a cache that a user has removed."""

    __slots__ = ()

    def mkdir(self, path: str, mode: int = DIRECTORY_MODE, *, dir_fd: int | None = None) -> None:  # type: ignore[override]
        """Create a directory in an open directory; see `os.mkdir`.

        Raise `FileNotFoundError` if `dir_fd` is None, which means that the directory is the root of a cache.
        """
        if dir_fd is None:
            raise FileNotFoundError(ENOENT, "the directory was removed", path)
        os.mkdir(path, mode, dir_fd=dir_fd)


def isolated_command(code: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return a command that runs Python code isolated (``python -I -S``), with `arguments` as ``sys.argv[1:]``.

    The command ignores `PYTHON...` variables, the user's site directory and start-up files. Its import path is the standard library, then
    the import path of this process, with the directory of the script or the current directory last.
    """
    return [sys.executable, "-I", "-S", "-c", _START.format(path=_search_path(), code=code), *arguments]


def start_detached(code: str, arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes = b"") -> int:
    """Start an `isolated_command` in a new session, without output. Return its PID.

    The process reads `stdin`, at most 4 KiB, from its standard input. Pass secrets in `stdin`, because other users can see `arguments`.

    Raise `OSError` if the process cannot be started.
    """
    command = isolated_command(code, arguments)
    reader, writer = os.pipe()
    actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [(os.POSIX_SPAWN_DUP2, reader, 0)]
    actions += [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in ((1, 2) if stdin else (0, 1, 2))]
    try:
        os.write(writer, stdin)  # does not block: the buffer of a pipe holds 4 KiB or more
        return os.posix_spawn(sys.executable, command, {**environment, DETACHED: "1"}, file_actions=actions, setsid=True)
    finally:
        os.close(reader)
        os.close(writer)


def has_ended(pid: int) -> bool:
    """Reap a child process if it has ended, and return whether it has. A process that is not a child counts as ended."""
    with suppress(ChildProcessError):  # the child was reaped before, or the parent of this process started it before a fork
        ended_pid, _ = os.waitpid(pid, os.WNOHANG)
        return ended_pid != 0
    return True


def _search_path() -> list[str]:
    """Return this process's import path as absolute paths, with this package. The script's directory is last if it lacks this package."""
    working_directory = current_directory()
    path = [os.path.join(working_directory, entry) for entry in sys.path if entry]
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.join(working_directory, __file__))))
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    script_directory = os.path.dirname(os.path.join(working_directory, script)) if script else working_directory
    if package not in path:
        path.insert(0, package)
    if script_directory in path and script_directory != package:
        path = [*[entry for entry in path if entry != script_directory], script_directory]
    return path


def current_directory() -> str:
    """Return the current directory, or "" if it was removed."""
    with suppress(OSError):
        return os.getcwd()
    return ""
