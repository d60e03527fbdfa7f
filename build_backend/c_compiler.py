"""Which C compiler the extension module is built with, and whether this Python can be built against."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig

__all__ = ["ZIG_REQUIREMENT", "find_system_compiler", "require_python_headers", "zig_command"]

ZIG_REQUIREMENT = "ziglang>=0.12"
_USUAL = ("cc", "gcc", "clang")


def find_system_compiler() -> str | None:
    """The command of the C compiler: `CC`, else the one that Python was built with, else a usual one on the path.

    Returns:
        None where none of them is there.
    """
    if os.environ.get("CC"):
        return os.environ["CC"]
    configured = sysconfig.get_config_var("CC") or ""
    return next((name for name in (configured, *_USUAL) if _is_there(name)), None)


def _is_there(command: str) -> bool:
    words = shlex.split(command)
    return bool(words) and shutil.which(words[0]) is not None


def zig_command() -> list[str]:
    """The compiler in the `ziglang` wheel, which installs on any machine.

    Raises:
        SystemExit: the wheel is not installed.
    """
    if importlib.util.find_spec("ziglang") is None:
        raise SystemExit(
            f"compcache: there is no C compiler on the path, nor the {ZIG_REQUIREMENT.partition('>')[0]} package, which "
            "brings one. Install gcc or clang, or run: pip install ziglang"
        )
    return [sys.executable, "-m", "ziglang", "cc"]


def require_python_headers() -> None:
    """Check that `Python.h` is there.

    Raises:
        SystemExit: it is not; the message names the packages that bring it.
    """
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if not os.path.exists(header):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SystemExit(
            f"compcache: {header} is missing, and building from source needs it. Install it "
            f"(Debian, Ubuntu: python{version}-dev or python3-dev; Fedora, RHEL: python{version}-devel or python3-devel; "
            "openSUSE: python3-devel; Alpine: python3-dev), or use a Python that brings its headers, as those of "
            "pyenv, uv, conda and the official containers do."
        )
