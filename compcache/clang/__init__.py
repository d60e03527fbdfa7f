"""C, C++, Fortran and Rust through the compilers that are installed: compiled once ever, called as typed Python functions.

    from compcache import clang

    kernels = clang.compile("double scale(double x) { return 2.5 * x; }")
    kernels.scale(4.0)

The names that the functions get in the cache stand for the preprocessed source, the version of the compiler and the flags, as in
ccache. A program that asks again finds them by the source, the flags and the headers that were read: it runs no compiler, and
imports no LLVM.
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
    """Compile source code once ever, and return its functions.

    Args:
        source: source code, or the path of a file of it: a `pathlib.Path`, or a text without newlines that ends like the name
            of one (``"kernels/scale.c"``).
        flags: for the compiler, as it takes them on its command line; None optimizes at level 2. Flags without a level leave code
            unoptimized.
        cc: the compiler, a name on the path or a path; None is clang, clang++, flang or rustc, by the language.
        language: "c", "c++", "fortran" or "rust"; None derives it from the file's suffix; text without a file is C.
        functions: the functions to export with their signatures, as `ModuleSource` takes them; None is every visible function, by
            its LLVM type.
        cache: where to keep the result; None opens the default cache.
        options: further options of `ModuleSource`: ``globals``, ``imports``, ``libraries``, ``cpu``.

    Returns:
        A mapping of plain names to call targets; ``kernels["scale"]`` is ``kernels.scale``.

    Raises:
        CompileError: no such compiler is installed, it reports errors, or its LLVM is newer than the one that is to read its code.
        OSError: the file cannot be read.
        LinkError, ...: what `Cache.add_module` raises.
    """
    if cache is None:
        from compcache.cache import Cache

        cache = Cache()
    unit = make_unit(source, flags, cc, language)
    from compcache.clang.lookup import compiled_functions

    return compiled_functions(cache, unit, functions, options)
