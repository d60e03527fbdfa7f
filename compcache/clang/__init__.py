"""Compiles C, C++, Fortran and Rust with an installed compiler, once per source. The functions are called as typed Python functions.

    from compcache import clang

    kernels = clang.compile("double scale(double x) { return 2.5 * x; }")
    kernels.scale(4.0)

The names of the functions in the cache contain a digest of the preprocessed source, the version of the compiler and the flags, as in
ccache. A later call finds the functions by the source, the flags and the headers that the compiler read: it runs no compiler, and does
not import LLVM.
"""

from __future__ import annotations

from compcache.clang.compilers import Compiler, find_compiler, language_of
from compcache.clang.units import Unit, make_unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from typing import Any

    from compcache.cache import Cache
    from compcache.hit.compiled import CompiledFunctions

__all__ = ["Compiler", "Unit", "compile", "find_compiler", "language_of"]


def compile(  # noqa: A001 - the public name
    source: str | os.PathLike[str],
    *,
    flags: Iterable[str] | None = None,
    cc: str | None = None,
    language: str | None = None,
    functions: Mapping[str, Any] | None = None,
    cache: Cache | None = None,
    **options: Any,
) -> CompiledFunctions:
    """Return the functions of source code. Compile the code if the cache does not contain them.

    Args:
        source: source code, or the path of a source file: a `pathlib.Path`, or a text without newlines, braces and semicolons that has the
            suffix of a source file (``"kernels/scale.c"``).
        flags: the flags for the compiler's command line; a text is split at spaces. None selects optimization level 2. Flags without a
            level select level 0. The flags also select the CPU (``-march=``).
        cc: the compiler: a path, or a name to find in PATH. None selects clang, clang++, flang or rustc, by the language.
        language: "c", "c++", "fortran" or "rust". None derives the language from the file's suffix; code without a file is C.
        functions: the functions to export with their signatures, in the form of `ModuleSource.functions`. None exports every visible
            function, with the signature of its LLVM type.
        cache: the cache for the functions; None opens the default cache.
        options: further options of `ModuleSource`: ``globals``, ``imports``, ``libraries``.

    Returns:
        A mapping of the functions' names in the source to call targets; ``kernels["scale"]`` is ``kernels.scale``.

    Raises:
        CompileError: an argument is invalid, or the compiler is not installed, reports errors, or has a newer LLVM than llvmlite.
        OSError: the source, or a file that it includes, cannot be read.
        LinkError, ...: the exceptions of `Cache.add_module`.
    """
    if cache is None:
        from compcache.cache import Cache

        cache = Cache()
    unit = make_unit(source, flags, cc, language)
    from compcache.clang.lookup import compiled_functions

    return compiled_functions(cache, unit, functions, options)
