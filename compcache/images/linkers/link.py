"""Runs a linker, which makes a shared object from relocatable objects. Objects and image are files in a scratch directory."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import LinkerError
from compcache.images.archives import is_archive
from compcache.images.elf.parts import is_elf
from compcache.images.elf.patching import hide_symbols
from compcache.images.linkers.find import CHOICES
from compcache.images.platform_symbols import absolute_library_path
from compcache.interrupts import reraise_interrupt, suppress
from compcache.processes.scratch import scratch_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from compcache.images.linkers.find import Linker

__all__ = ["link_shared"]

_SCRATCH = "compcache-link-"
_ABANDONED_SECONDS = 3600

_FLAGS = (
    "-shared",
    "-Bsymbolic",  # a module calls its own functions directly
    "--hash-style=gnu",
    "--eh-frame-hdr",  # unwinders and profilers see the code
    "-z", "noseparate-code",  # no padding to whole pages: small modules stay small files
    "-z", "now",
    "-z", "norelro",  # a third off dlopen: no second mapping to protect, and no page of padding for it
    "-z", "noexecstack",
    "--build-id=none",
)  # fmt: skip

#: Further options with static libraries: link only their used members, and hide their symbols.
_FLAGS_OF_ARCHIVES = ("--gc-sections", "--exclude-libs", "ALL")

_MISLEADING_VARIABLES = frozenset(
    (
        "LD_RUN_PATH",  # a run path in the image
        "LLD_VERSION",  # text in the image
        "MOLD_DEBUG",
        "LDEMULATION",  # another architecture
        "GNUTARGET",
        "LLD_REPRODUCE",  # archives of the input, written elsewhere
        "MOLD_REPRO",
    )
)
"""Environment variables that make a linker deviate from its arguments."""

_IMAGE = "image.so"
_SECONDS = 120.0  # for a link
_MAX_OUTPUT = 8_000  # characters: enough for the first errors, little enough for a log


class _Link(NamedTuple):
    """The arguments of one link."""

    linker: Linker
    objects: Sequence[bytes]
    options: tuple[str, ...]
    libraries: tuple[str, ...]

    def command(self, inputs: Sequence[str]) -> list[str]:
        """Return the linker's command line, with the names of its input files."""
        archives = [path for path in self.libraries if is_archive(path)]
        others = [path for path in self.libraries if path not in archives]
        members = [*_FLAGS_OF_ARCHIVES, "--start-group", *archives, "--end-group"] if archives else []
        return [*self.linker.argv, *self.options, "-o", _IMAGE, *inputs, *members, "--as-needed", *others]


class _Exit(NamedTuple):
    """The exit status and the output of a linker."""

    status: int
    output: str


def link_shared(
    linker: Linker,
    objects: Sequence[bytes],
    *,
    soname: str = "",
    libraries: Sequence[str] = (),
    run_paths: Sequence[str] = (),
    export: Sequence[str] | None = None,
) -> bytes:
    """Link relocatable objects into a shared object: the same bytes for the same arguments and linker.

    `libraries` are paths of libraries. A shared library is recorded as needed only if it resolves a strong reference of an object. The
    image's needed libraries are also searched in `run_paths`. `export` limits the dynamic symbol table to these names; None keeps every
    visible symbol. Symbols that no input defines stay undefined, for the process that loads the image. If `soname`
    is empty, the shared object gets no soname. Raise `LinkerError` if the linker cannot be started, fails, hangs or produces nothing, and
    `FormatError` if `export` is given and an object is not ELF. No files remain.
    """
    if export is not None:
        objects = [hide_symbols(data, export) for data in objects]
    options = [*_linker_flags(linker), *(("-soname", soname) if soname else ())]
    for path in run_paths:
        options += ["-rpath", path]
    return _link_in_directory(_Link(linker, objects, tuple(options), tuple(map(absolute_library_path, libraries))))


def _linker_flags(linker: Linker) -> tuple[str, ...]:
    """Return the flags for a linker, which is recognized by its name."""
    program = linker.program
    if "mold" in program:
        return (*_FLAGS, "--no-fork")  # otherwise a forked copy of mold outlives the awaited process
    if "gold" in program:
        position = _FLAGS.index("noseparate-code")  # gold rejects this option, and never separates code
        return _FLAGS[: position - 1] + _FLAGS[position + 1 :]
    return _FLAGS


def _link_in_directory(link: _Link) -> bytes:
    """Link with files in a directory, and return the image. File names are relative, so that the image contains no paths.

    Raise `LinkerError` if the directory cannot be used, or the linker fails or does not write an ELF file.
    """
    linker = link.linker
    names = [f"{number}.o" for number in range(len(link.objects))]
    with _directory_of_link(linker) as directory:
        for name, data in zip(names, link.objects, strict=True):
            with open(os.path.join(directory, name), "wb") as file:
                file.write(data)
        linker_exit = _run_linker(link, link.command(names), directory)
        if linker_exit is None:
            raise LinkerError(f"the linker {linker} cannot be started, because its temporary directory {directory} was removed: try again")
        if linker_exit.status:
            message = f"the linker {linker} {_describe_exit(linker_exit.status)}{_first_error(linker_exit.output)}"
            raise LinkerError(message, output=linker_exit.output)
        return _read_image(linker, directory, linker_exit.output)


@contextlib.contextmanager
def _directory_of_link(linker: Linker) -> Iterator[str]:
    """Create a private directory, and remove it at exit. Convert an `OSError` that the block raises into a `LinkerError`."""
    try:
        _remove_abandoned(tempfile.gettempdir())
        with scratch_directory(_SCRATCH) as directory:
            yield directory
    except OSError as error:
        reraise_interrupt(error)
        raise LinkerError(f"the linker {linker} cannot use a temporary directory ({error}): set TMPDIR to another one") from error


@functools.lru_cache(maxsize=1)
def _remove_abandoned(temporary: str) -> None:
    """Remove scratch directories of killed processes from the directory `temporary`, once per process.

    Only directories of this user that have not changed for an hour are removed, because no link takes that long. The current time is the
    change time of a new directory, because the clock of a program may differ from the file system's. `rmtree` does not follow links.
    """
    with suppress(OSError):
        with scratch_directory(_SCRATCH, temporary) as probe:
            now = os.stat(probe).st_ctime
        with os.scandir(temporary) as entries:
            scratch_entries = [entry for entry in entries if entry.name.startswith(_SCRATCH)]
        for entry in scratch_entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                is_old = max(status.st_mtime, status.st_ctime) < now - _ABANDONED_SECONDS
                if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and is_old:
                    shutil.rmtree(entry.path, ignore_errors=True)


def _read_image(linker: Linker, directory: str, output: str) -> bytes:
    """Return the ELF file that a linker wrote. Raise `LinkerError` if there is none."""
    try:
        with open(os.path.join(directory, _IMAGE), "rb") as file:
            image = file.read()
    except FileNotFoundError as error:
        reraise_interrupt(error)
        raise LinkerError(f"the linker {linker} reported success but wrote no file: {CHOICES}", output=output) from error
    if not is_elf(image):
        raise LinkerError(f"the linker {linker} reported success but did not write an ELF file: {CHOICES}", output=output)
    return image


def _run_linker(link: _Link, command: Sequence[str], directory: str) -> _Exit | None:
    """Run the linker in a directory, and return its exit status and output, or None if the directory does not exist.

    Raise `LinkerError` if the linker cannot be started, or exceeds its time limit and is killed.
    """
    linker = link.linker
    process = _start_linker(linker, command, directory)
    if process is None:
        return None
    with process:
        try:
            printed, _ = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            message = f"the linker {linker} did not finish within {_SECONDS:g} s and was stopped: {CHOICES}"
            raise LinkerError(message, output=_decode_output(error.output or b"")) from error
        finally:
            if process.returncode is None:  # after a timeout or an interrupt; the process may have ended
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return _Exit(process.returncode, _decode_output(printed))


def _start_linker(linker: Linker, command: Sequence[str], directory: str) -> subprocess.Popen[bytes] | None:
    """Start a linker. Return None if its directory has been removed. Raise `LinkerError` if the program cannot be started."""
    try:
        return subprocess.Popen(
            command,
            cwd=directory,
            env=_linker_environment(directory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # so that a timeout also ends its child processes
        )
    except OSError as error:
        reraise_interrupt(error)
        if error.filename == directory:
            return None
        raise LinkerError(f"the linker {linker} cannot be started ({error.strerror or error}): {CHOICES}") from error


def _linker_environment(temporary: str) -> dict[str, str]:
    """Return the environment of the linker, without the variables that make it deviate from its arguments."""
    inherited = {name: value for name, value in os.environ.items() if name not in _MISLEADING_VARIABLES}
    return {**inherited, "TMPDIR": temporary, "LC_ALL": "C"}


def _describe_exit(status: int) -> str:
    """Describe a nonzero exit status as the predicate of a sentence. A negative status is the number of a signal."""
    if status > 0:
        return f"failed with exit status {status}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"


def _decode_output(printed: bytes) -> str:
    """Return what a linker has printed, shortened for a message."""
    text = printed.decode("utf-8", "replace").strip()
    if len(text) <= _MAX_OUTPUT:
        return text
    return f"{text[:_MAX_OUTPUT]}\n[{len(text) - _MAX_OUTPUT} more characters]"


def _first_error(output: str) -> str:
    """Return ": " and the first line of the output that states the error, or "" if there is no output.

    GNU ld prints a line with the function's name, ending with a colon, before the error.
    """
    lines = output.splitlines()
    return f": {next((line for line in lines if not line.endswith(':')), lines[0])}" if lines else ""
