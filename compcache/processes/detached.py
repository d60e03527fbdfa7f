"""Starts processes of this interpreter: the tuner, the helper of a remote store, trials of new code."""

from __future__ import annotations

import os
import sys
from errno import ENOENT

from compcache.files import DIRECTORY_MODE, Files, reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LateFiles", "has_ended", "isolated_command", "start_detached"]

#: The interpreter's own path stands first: no file of the program (a `json.py` beside its script) takes the place of a standard module.
_START = "import sys\nsys.path[:] = dict.fromkeys([*sys.path, *{path!r}])\n{code}"


class LateFiles(Files):
    """The files of a detached process: it never recreates a directory that somebody has removed, nor its parents."""

    __slots__ = ()

    def mkdir(self, path: str, mode: int = DIRECTORY_MODE, *, dir_fd: int | None = None) -> None:  # type: ignore[override]
        """See `os.mkdir`; only in a directory that is open.

        Raises:
            FileNotFoundError: it is named by its whole path, as the root of a tree is.
        """
        if dir_fd is None:
            raise FileNotFoundError(ENOENT, "it was removed", path)
        os.mkdir(path, mode, dir_fd=dir_fd)


def isolated_command(code: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return a command that runs `code` by this interpreter, isolated (``python -I -S``), with `arguments` as its ``sys.argv[1:]``.

    `PYTHON...` variables, the user's site and start-up files do not reach it. It imports from the standard library first, then what this
    process can import; modules beside this process's script, or in the current directory, come last.
    """
    return [sys.executable, "-I", "-S", "-c", _START.format(path=_search_path(), code=code), *arguments]


def start_detached(code: str, arguments: Sequence[str], environment: Mapping[str, str], told: bytes = b"") -> int:
    """Start a process by an `isolated_command`, in a separate session and without standard streams; return its process id.

    It reads `told`, at most 4 KiB, from its standard input, because other users see the arguments of a process.

    Raises:
        OSError: it could not be started.
    """
    reader, writer = os.pipe()
    actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [(os.POSIX_SPAWN_DUP2, reader, 0)]
    actions += [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in ((1, 2) if told else (0, 1, 2))]
    try:
        os.write(writer, told)  # a pipe takes so much at once
        return os.posix_spawn(sys.executable, isolated_command(code, arguments), environment, file_actions=actions, setsid=True)
    finally:
        os.close(reader)
        os.close(writer)


def has_ended(process: int) -> bool:
    """Return whether a process that was started here has ended, and release it. A process that is no child of this one counts as ended."""
    try:
        ended, _ = os.waitpid(process, os.WNOHANG)
    except ChildProcessError as error:  # already reaped, or this process was forked from the one that started it
        reraise_interrupt(error)
        return True
    return ended != 0


def _search_path() -> list[str]:
    here = _current_directory()
    path = [os.path.join(here, entry) for entry in sys.path if entry]
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.join(here, __file__))))
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    last = os.path.dirname(os.path.join(here, script)) if script else here
    if package not in path:
        path.insert(0, package)
    if last in path and last != package:
        path = [*[entry for entry in path if entry != last], last]
    return path


def _current_directory() -> str:
    try:
        return os.getcwd()
    except OSError as error:  # it was removed
        reraise_interrupt(error)
        return ""
