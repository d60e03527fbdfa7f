"""The code that the static parts of a C library and of compilers add to every shared object that they link.

`atexit`, `at_quick_exit` and `pthread_atfork` register a function for the shared object that calls them. The address of `__dso_handle`
identifies the shared object (Itanium C++ ABI, 3.3.5; glibc's libc_nonshared.a, GCC's crtbeginS.o). A module that refers to one of these
symbols gets its own definitions. It also gets a finalizer, which calls the registered functions once, when the image is unmapped. The
dynamic linker runs finalizers in reverse order, so the lowest priority runs last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FINALIZE", "STATIC_RUNTIME", "static_runtime_text"]

#: The destructor that calls the functions which a module has registered.
FINALIZE = "compcache.finalize"

_HANDLE = """\
@__dso_handle = hidden constant ptr @__dso_handle, align 8
declare void @__cxa_finalize(ptr)
define internal void @compcache.finalize() {
  call void @__cxa_finalize(ptr @__dso_handle)
  ret void
}
@llvm.global_dtors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 0, ptr @compcache.finalize, ptr null }]
"""
_DEFINITIONS = {
    "atexit": """\
declare i32 @__cxa_atexit(ptr, ptr, ptr)
define hidden i32 @atexit(ptr %function) {
  %status = call i32 @__cxa_atexit(ptr %function, ptr null, ptr @__dso_handle)
  ret i32 %status
}
""",
    "at_quick_exit": """\
declare i32 @__cxa_at_quick_exit(ptr, ptr)
define hidden i32 @at_quick_exit(ptr %function) {
  %status = call i32 @__cxa_at_quick_exit(ptr %function, ptr @__dso_handle)
  ret i32 %status
}
""",
    "pthread_atfork": """\
declare i32 @__register_atfork(ptr, ptr, ptr, ptr)
define hidden i32 @pthread_atfork(ptr %prepare, ptr %parent, ptr %child) {
  %status = call i32 @__register_atfork(ptr %prepare, ptr %parent, ptr %child, ptr @__dso_handle)
  ret i32 %status
}
""",
}
#: The symbols that this file defines.
STATIC_RUNTIME = frozenset(("__dso_handle", *_DEFINITIONS))


def static_runtime_text(symbols: Iterable[str]) -> str:
    """Return the LLVM assembly that defines these symbols of `STATIC_RUNTIME`, and the finalizer."""
    return "".join([_HANDLE, *(_DEFINITIONS[name] for name in symbols if name in _DEFINITIONS)])
