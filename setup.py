"""The extension module in C; all else about the package is in pyproject.toml."""

from __future__ import annotations

import glob
import os
import re
import runpy
import sys
import sysconfig
import tomllib

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "build_backend"))
from c_compiler import find_system_compiler, require_python_headers, zig_command

_build = runpy.run_path("compcache/hit/native_build.py")
source_digest, source_paths = _build["source_digest"], _build["source_paths"]

#: Free-threaded builds have no limited API before 3.15: they get an extension for their version alone.
LIMITED_API = None if sysconfig.get_config_var("Py_GIL_DISABLED") else "0x030B0000"


#: Set by `make wheels`: the target of zig (``aarch64-linux-gnu.2.17``), and the tag of the platform that the wheel gets.
TARGET, PLATFORM = os.environ.get("COMPCACHE_WHEEL_TARGET"), os.environ.get("COMPCACHE_WHEEL_PLATFORM")
_LINK = re.compile(r"(\]\()(?!https?:|#)([^)]+\))")


class BuildExtension(build_ext):  # type: ignore[misc]  # setuptools has no types here
    """Builds with the system's C compiler, else with the one in the `ziglang` wheel."""

    def finalize_options(self) -> None:
        """Tell the extension of its sources where it is put beside them, as in an editable installation."""
        super().finalize_options()
        names = " ".join(os.path.basename(path) for path in source_paths()) if self.inplace else ""
        for extension in self.extensions or ():
            extension.define_macros.append(("COMPCACHE_SOURCES", f'"{names}"'))

    def build_extensions(self) -> None:
        """Choose the compiler, then build."""
        require_python_headers()
        if TARGET:
            self._use([*zig_command(), "-target", TARGET, "-g0"], "-s")  # zig's own objects name the directory that they are built in
            super().build_extensions()
            return
        compiler = find_system_compiler()
        if compiler is None:
            self._use(zig_command())
        elif not os.environ.get("CC") and compiler != sysconfig.get_config_var("CC"):
            self._use([compiler])
        super().build_extensions()

    def _use(self, compiler: list[str], *linking: str) -> None:
        """Use a compiler that this Python was not built with, and none of the flags that were for that one."""
        self.compiler.set_executables(compiler_so=[*compiler, "-O2", "-fPIC"], linker_so=[*compiler, "-shared", *linking])


def runtime_extension() -> Extension:
    """The native half of the hit path."""
    macros = [("COMPCACHE_SOURCE_DIGEST", f'"{source_digest()}"')]
    if LIMITED_API:
        macros.append(("COMPCACHE_LIMITED_API", LIMITED_API))
    return Extension(
        "compcache.hit._runtime",
        sources=[os.path.relpath(path) for path in source_paths() if path.endswith(".c")],
        depends=[os.path.relpath(path) for path in source_paths() if path.endswith(".h")],
        define_macros=macros,
        extra_compile_args=["-std=gnu11", "-fvisibility=hidden"],
        py_limited_api=bool(LIMITED_API),
    )


def numba_extension(name: str, *shared: str) -> Extension:
    """What runs functions that Numba has compiled: its sources are in `native` beside it, and those that it shares."""
    folder = f"{os.path.dirname(name.replace('.', '/'))}/native"
    names = sorted(os.listdir(folder))
    return Extension(
        name,
        sources=[*(f"{folder}/{name}" for name in names if name.endswith(".c")), *shared],
        depends=sorted(glob.glob("compcache/numba/*/native/*.h")),
        define_macros=[("COMPCACHE_LIMITED_API", LIMITED_API)] if LIMITED_API else [],
        extra_compile_args=["-std=gnu11", "-fvisibility=hidden"],
        py_limited_api=bool(LIMITED_API),
    )


def readme() -> str:
    """The README for an index page: its links lead to the repository, its pictures to the files there."""
    with open("pyproject.toml", "rb") as file:
        home = tomllib.load(file)["project"]["urls"]["Repository"]
    with open("README.md", encoding="utf-8") as text:
        absolute = _LINK.sub(rf"\1{home}/blob/main/\2", text.read())
    return re.sub(rf"(!\[[^]]*\]\({re.escape(home)})/blob/", r"\1/raw/", absolute)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    cmdclass={"build_ext": BuildExtension},
    ext_modules=[
        runtime_extension(),
        numba_extension("compcache.numba.lazy._dispatch"),
        numba_extension("compcache.numba.exports._objects", "compcache/numba/lazy/native/calls.c"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311", **({"plat_name": PLATFORM} if PLATFORM else {})}} if LIMITED_API else {},
)
