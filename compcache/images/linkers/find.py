"""Finds the linkers of this system.

Any ELF linker that understands GNU options can be used: GNU ld, LLVM's lld, mold, or the lld inside the `ziglang` wheel, which
does not depend on the system.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass

from compcache.errors import LinkerError
from compcache.settings import setting

__all__ = ["CHOICES", "LINKER_VARIABLE", "Linker", "find_linker", "find_linkers", "is_named"]

LINKER_VARIABLE = "COMPCACHE_LINKER"
"""The environment variable that chooses the linker: a path, a name on the path, `ziglang` or `none`. A named linker makes all images."""

#: The linkers to search for, in the order of preference: the linker that starts fastest is first. The `ziglang` wheel comes last.
_PROGRAMS = ("ld", "mold", "ld.lld")
_NO_LINKER = ("none", "off")
_ELF_PLATFORMS = ("linux", "android", "freebsd", "netbsd", "openbsd", "dragonfly")
#: Advice for messages about a linker that cannot be used.
CHOICES = (
    f"set {LINKER_VARIABLE} to the path of an ELF linker (ld.lld, mold or ld), to 'ziglang' (after "
    "`pip install ziglang`) or to 'none' to use no linker, or unset this variable"
)


@dataclass(frozen=True, slots=True)
class Linker:
    """A linker that can be run."""

    argv: tuple[str, ...]
    """The command, without the arguments of a link."""
    source: str
    """How the linker was chosen, for messages: "ld.lld on the path", for example."""

    @property
    def program(self) -> str:
        """The file name of the program, with links resolved. It distinguishes linkers without running them."""
        return _resolve_program(self.argv[0])

    def __str__(self) -> str:
        return f"{' '.join(self.argv)} ({self.source})"


@functools.lru_cache(maxsize=16)
def _resolve_program(path: str) -> str:
    """Return the name of the program file to which a path leads."""
    return os.path.basename(os.path.realpath(path))


def find_linkers() -> tuple[Linker, ...]:
    """Return the available linkers, the preferred linker first. The tuple is empty on platforms without ELF.

    If `COMPCACHE_LINKER` is set, only the linker that it names is returned. Otherwise the linkers are `ld`, `mold` and `ld.lld` on the
    path, and the `ziglang` wheel. The result is kept for the same values of `COMPCACHE_LINKER` and `PATH`.

    Raise `LinkerError` if `COMPCACHE_LINKER` names a program that cannot be run, or a wheel that is not installed.
    """
    if not sys.platform.startswith(_ELF_PLATFORMS):
        return ()
    return _find_linkers(setting(LINKER_VARIABLE).strip(), os.environ.get("PATH", os.defpath))


def find_linker() -> Linker | None:
    """Return the preferred linker, or None if there is no linker. See `find_linkers` for the exceptions."""
    return next(iter(find_linkers()), None)


def is_named() -> bool:
    """Return whether a setting names a linker, which then makes all images."""
    return setting(LINKER_VARIABLE).strip().lower() not in ("", *_NO_LINKER)


@functools.lru_cache(maxsize=16)
def _find_linkers(choice: str, path: str) -> tuple[Linker, ...]:
    """Return the linkers to use, best first: the chosen one, or those on the path and in a wheel. The result is empty for "none".

    Raise `LinkerError` if the chosen linker cannot be run.
    """
    if choice:
        linker = _linker_for_value(choice, path)
        return () if linker is None else (linker,)
    programs = {name: shutil.which(name, path=path) for name in _PROGRAMS}
    linkers = [Linker((os.path.abspath(file),), f"{name} on the path") for name, file in programs.items() if file is not None]
    wheel = _zig_wheel("ziglang wheel")
    return tuple(linkers) if wheel is None else (*linkers, wheel)


def _linker_for_value(value: str, path: str) -> Linker | None:
    """Return the linker that a value of `COMPCACHE_LINKER` names, or None for "none". Raise `LinkerError` if it cannot be run."""
    if value.lower() in _NO_LINKER:
        return None
    if value == "ziglang":
        linker = _zig_wheel(LINKER_VARIABLE)
        if linker is None:
            raise LinkerError(f"{LINKER_VARIABLE} is 'ziglang', but the wheel `ziglang` is not installed: {CHOICES}")
        return linker
    program = shutil.which(value, path=path)
    if program is None:
        problem = "is not an executable file" if os.path.dirname(value) else "is not a program on the path"
        raise LinkerError(f"{LINKER_VARIABLE} is {value!r}, which {problem}: {CHOICES}")
    # Zig's own program is many tools in one.
    tool = ("ld.lld",) if os.path.basename(program) == "zig" else ()
    return Linker((os.path.abspath(program), *tool), LINKER_VARIABLE)


def _zig_wheel(source: str) -> Linker | None:
    """Return the linker inside the `ziglang` wheel, or None without it. Nothing is imported, because the import runs Zig."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return None
    program = os.path.join(os.path.dirname(spec.origin), "zig")
    if os.access(program, os.X_OK):
        return Linker((program, "ld.lld"), source)
    # For another layout of the wheel, let its own code find the program, at the cost of one more interpreter.
    return Linker((sys.executable, "-m", "ziglang", "ld.lld"), source) if sys.executable else None
