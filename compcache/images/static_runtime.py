"""The code that the static parts of a C library and of compilers add to every shared object that they link.

`atexit`, `at_quick_exit` and `pthread_atfork` register for the shared object that calls them, which they know by the
address of its own `__dso_handle` (Itanium C++ ABI, 3.3.5; glibc's libc_nonshared.a, GCC's crtbeginS.o). A module that
refers to one of these gets definitions of its own, and a finalizer that runs what was registered, once, when the image
is unmapped. The dynamic linker runs finalizers in the reverse of their order: the lowest priority comes last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FINALIZE", "STATIC_RUNTIME", "static_runtime_text"]

#: The destructor that runs what a module has registered.
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
#: The symbols that are provided.
STATIC_RUNTIME = frozenset(("__dso_handle", *_DEFINITIONS))


def static_runtime_text(used: Iterable[str]) -> str:
    """Return the assembly that defines these symbols of `STATIC_RUNTIME`."""
    return "".join([_HANDLE, *(_DEFINITIONS[name] for name in used if name in _DEFINITIONS)])
