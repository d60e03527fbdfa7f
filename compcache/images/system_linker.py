"""Finding the system linker, and running it.

Any ELF linker that understands GNU options will do: GNU ld, LLVM's lld, mold, or the lld inside the `ziglang`
wheel, which needs nothing of the system. The flags are the same for all of them but for what
`_flags` says.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compcache.errors import LinkerError
from compcache.images.elf import hide_symbols, is_elf

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["LINKER_VARIABLE", "Linker", "find_linker", "is_chosen", "link_shared"]

LINKER_VARIABLE = "COMPCACHE_LINKER"
"""The environment variable that chooses the linker: a path, a name on the path, `ziglang` or `none`."""

_ON_THE_PATH = ("ld.lld", "mold", "ld")
_NO_LINKER = ("none", "off")
_SCRATCH = "compcache-link-"
_ABANDONED_SECONDS = 3600
_ELF_PLATFORMS = ("linux", "android", "freebsd", "netbsd", "openbsd", "dragonfly")
_CHOICES = (
    f"set {LINKER_VARIABLE} to the path of an ELF linker (ld.lld, mold or ld), to 'ziglang' (after "
    "`pip install ziglang`) or to 'none' to work without one, or unset it"
)

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
"""Variables of the environment by which linkers do something else than they are told to."""

_IMAGE = "image.so"
_VERSION_TIMEOUT = 30.0
_MAX_OUTPUT = 8_000  # characters: enough for the first errors, little enough for a log


@dataclass(frozen=True, slots=True)
class Linker:
    """A linker that can be run."""

    argv: tuple[str, ...]
    """The command, to which arguments are added."""
    source: str
    """How it was chosen, for messages: "ld.lld on the path", for example."""

    def version(self) -> str:
        """The first line that it prints for `--version`; asked once per process. Raises `LinkerError`."""
        return _version(self)

    def __str__(self) -> str:
        return f"{' '.join(self.argv)} ({self.source})"


def find_linker(environ: Mapping[str, str] | None = None) -> Linker | None:
    """The linker to use; None where none is installed or the platform does not use ELF.

    `COMPCACHE_LINKER` decides where it is set; then `ld.lld`, `mold` and `ld` are looked for on the path, and
    last the `ziglang` wheel. The answer is remembered for the same values of these variables. Raises
    `LinkerError` where `COMPCACHE_LINKER` names something that cannot be run.
    """
    if not sys.platform.startswith(_ELF_PLATFORMS):
        return None
    variables = os.environ if environ is None else environ
    return _find(variables.get(LINKER_VARIABLE), variables.get("PATH", os.defpath))


def is_chosen() -> bool:
    """Whether the environment names a linker, or says that there shall be none."""
    return bool(os.environ.get(LINKER_VARIABLE, "").strip())


def link_shared(
    linker: Linker,
    objects: Sequence[bytes],
    *,
    soname: str,
    libraries: Sequence[str] = (),
    export: Sequence[str] | None = None,
    timeout: float = 120.0,
) -> bytes:
    """Link relocatable objects into a shared object: the same bytes for the same arguments and linker.

    `libraries` are paths of shared libraries; one is recorded as needed only where it provides what some object
    uses through a strong reference. `export` limits the dynamic symbol table to these names; None keeps every
    visible one. Symbols that nothing provides stay undefined, for the process that loads the image. `timeout`
    is in seconds.

    Raises `LinkerError` where the linker cannot be started, fails, hangs or produces nothing, and `FormatError`
    where `export` is given and an object is not ELF. Leaves no files behind.
    """
    if export is not None:
        objects = [hide_symbols(data, keep=export) for data in objects]
    names = [f"{number}.o" for number in range(len(objects))]
    paths = [os.path.abspath(library) for library in libraries]
    arguments = [*_flags(linker), "-soname", soname, "-o", _IMAGE, *names, "--as-needed", *paths]
    with _scratch_directory(linker) as directory:
        for name, data in zip(names, objects, strict=True):
            with open(os.path.join(directory, name), "wb") as file:
                file.write(data)
        output = _run(linker, arguments, directory, timeout)
        return _read_image(linker, directory, output)


@functools.lru_cache(maxsize=16)
def _find(choice: str | None, path: str) -> Linker | None:
    if choice and choice.strip():
        return _chosen(choice.strip(), path)
    for name in _ON_THE_PATH:
        program = shutil.which(name, path=path)
        if program is not None:
            return Linker((os.path.abspath(program),), f"{name} on the path")
    return _zig_wheel("ziglang wheel")


def _chosen(value: str, path: str) -> Linker | None:
    """The linker that the value of the variable names."""
    if value.lower() in _NO_LINKER:
        return None
    if value == "ziglang":
        linker = _zig_wheel(LINKER_VARIABLE)
        if linker is None:
            raise LinkerError(f"{LINKER_VARIABLE} is 'ziglang', but that wheel is not installed: {_CHOICES}")
        return linker
    program = shutil.which(value, path=path)
    if program is None:
        where = "is not an executable file" if os.path.dirname(value) else "is not a program on the path"
        raise LinkerError(f"{LINKER_VARIABLE} is {value!r}, which {where}: {_CHOICES}")
    # Zig's own program is many tools in one.
    tool = ("ld.lld",) if os.path.basename(program) == "zig" else ()
    return Linker((os.path.abspath(program), *tool), LINKER_VARIABLE)


def _zig_wheel(source: str) -> Linker | None:
    """The linker inside the `ziglang` wheel, found without importing it: the import would run Zig."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return None
    program = os.path.join(os.path.dirname(spec.origin), "zig")
    if os.access(program, os.X_OK):
        return Linker((program, "ld.lld"), source)
    # Some other layout of the wheel: ask it to find its program, at the cost of one more interpreter.
    return Linker((sys.executable, "-m", "ziglang", "ld.lld"), source) if sys.executable else None


@functools.lru_cache(maxsize=16)
def _version(linker: Linker) -> str:
    with _scratch_directory(linker) as directory:
        output = _run(linker, ["--version"], directory, _VERSION_TIMEOUT)
    if not output:
        raise LinkerError(f"{linker} prints nothing for --version: {_CHOICES}")
    return output.splitlines()[0]


def _flags(linker: Linker) -> tuple[str, ...]:
    """The flags that differ between linkers are told by the name of the program, which costs nothing."""
    program = os.path.basename(os.path.realpath(linker.argv[0]))
    if "mold" in program:
        return (*_FLAGS, "--no-fork")  # else a copy of mold outlives the one that is waited for
    if "gold" in program:
        position = _FLAGS.index("noseparate-code")  # which it never does, and does not know by name
        return _FLAGS[: position - 1] + _FLAGS[position + 1 :]
    return _FLAGS


@contextlib.contextmanager
def _scratch_directory(linker: Linker) -> Iterator[str]:
    """A private directory; what goes wrong with its files is a failure of the link."""
    try:
        _remove_abandoned(tempfile.gettempdir())
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, ignore_cleanup_errors=True) as directory:
            yield directory
    except OSError as error:
        raise LinkerError(f"{linker} cannot work in a temporary directory: {error}") from error


@functools.lru_cache(maxsize=1)
def _remove_abandoned(temporary: str) -> None:
    """Remove what processes that were killed while they linked have left; once per process.

    Only directories of this user that nothing has changed for an hour: no link takes that long. The time is that of the
    file system, read off a new directory, for clocks of programs may be anywhere. `rmtree` follows no links.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=temporary) as probe:
            now = os.stat(probe).st_ctime
        with os.scandir(temporary) as entries:
            found = [entry for entry in entries if entry.name.startswith(_SCRATCH)]
    except OSError:
        return
    for entry in found:
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            is_old = max(status.st_mtime, status.st_ctime) < now - _ABANDONED_SECONDS
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and is_old:
                shutil.rmtree(entry.path, ignore_errors=True)


def _run(linker: Linker, arguments: Sequence[str], directory: str, timeout: float) -> str:
    """Run the linker and return its output. It runs in `directory` and sees relative names, so that no path enters the image."""
    with _start(linker, arguments, directory) as process:
        try:
            printed, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            message = f"{linker} did not finish within {timeout:g} s and was stopped"
            raise LinkerError(message, output=_trim(error.output or b"")) from error
        finally:
            if process.returncode is None:  # a timeout, or an interrupt, which may have come when it had ended
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    output = _trim(printed)
    if process.returncode:
        raise LinkerError(f"{linker} {_describe(process.returncode)}{_first_line(output)}", output=output)
    return output


def _start(linker: Linker, arguments: Sequence[str], directory: str) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [*linker.argv, *arguments],
            cwd=directory,
            env=_environment(directory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # so that a timeout ends whatever it started, too
        )
    except OSError as error:
        raise LinkerError(f"{linker} cannot be started ({error.strerror}): {_CHOICES}") from error


def _environment(directory: str) -> dict[str, str]:
    """The environment of the linker: nothing that changes what it writes or where."""
    inherited = {name: value for name, value in os.environ.items() if name not in _MISLEADING_VARIABLES}
    return {**inherited, "TMPDIR": directory, "LC_ALL": "C"}


def _read_image(linker: Linker, directory: str, output: str) -> bytes:
    try:
        with open(os.path.join(directory, _IMAGE), "rb") as file:
            image = file.read()
    except FileNotFoundError as error:
        raise LinkerError(f"{linker} reported success but wrote no file", output=output) from error
    if not is_elf(image):
        raise LinkerError(f"{linker} reported success but did not write an ELF file", output=output)
    return image


def _describe(status: int) -> str:
    """How a process ended."""
    if status > 0:
        return f"failed with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _trim(printed: bytes) -> str:
    text = printed.decode("utf-8", "replace").strip()
    if len(text) <= _MAX_OUTPUT:
        return text
    return f"{text[:_MAX_OUTPUT]}\n[{len(text) - _MAX_OUTPUT} characters more]"


def _first_line(output: str) -> str:
    return f": {output.splitlines()[0]}" if output else ""
