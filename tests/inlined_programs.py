"""Programs of helpers in modules of their own and a kernel that uses them, and the same as one module."""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Any

from compcache import Function, ModuleSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compcache import Cache, TypedCallTarget

__all__ = ["FOLLOWED", "HEAD", "apart", "bits", "follow", "inlined", "together"]

#: The first line of a function i64(i64).
HEAD = "define i64 @{}(i64 %x) {{\n"
#: A function whose arguments do not alias in one call, as flang writes it, and a kernel whose calls of it alias.
FOLLOWED = {
    "follow": """\
define void @follow(ptr %x, ptr %y) {
  %v = load i64, ptr %y, align 8, !tbaa !0
  %r = add i64 %v, 1
  store i64 %r, ptr %x, align 8, !tbaa !1
  ret void
}
!0 = !{!2, !2, i64 0}
!1 = !{!3, !3, i64 0}
!2 = !{!"dummy arg data/_QFfollowEy", !4, i64 0}
!3 = !{!"dummy arg data/_QFfollowEx", !4, i64 0}
!4 = !{!"dummy arg data", !5, i64 0}
!5 = !{!"any data access", !6, i64 0}
!6 = !{!"any access", !7, i64 0}
!7 = !{!"Flang function root _QPfollow"}
""",
    "kernel": """\
define i64 @kernel(ptr %a, ptr %b, ptr %c) {
  call void @follow(ptr %b, ptr %a)
  call void @follow(ptr %c, ptr %b)
  call void @follow(ptr %b, ptr %a)
  %r = load i64, ptr %b, align 8
  ret i64 %r
}
""",
}
_DEFINED = re.compile(r"^(define [^@\n]*@([\w.]+)\([^\n]*\)[^\n]*)\{", re.MULTILINE)
_PARAMETER = re.compile(r" %[\w.]+(?=[,)])")


def apart(cache: Cache, functions: Mapping[str, str], **options: Any) -> dict[str, Any]:
    """Compile functions, each in a module of its own, which imports those before it that it mentions."""
    found: dict[str, Any] = {}
    for name, code in functions.items():
        used = {other: found[other] for other in found if re.search(rf"@{other}\(", code)}
        declared = "".join(_declaration(functions[other]) for other in used)
        if "{ double, double } @" + name in code or "define fastcc" in code:  # nothing that Python could call
            found[name] = f"{name}-{'0' * 32}"
            cache.add_module(ModuleSource(declared + code, {found[name]: Function(None, name)}, imports=used, **options))
        else:
            found[name] = cache.compile(ModuleSource(declared + code, {name: None}, imports=used, **options))[name]
    return found


def _declaration(code: str) -> str:
    head = [match[1] for match in _DEFINED.finditer(code)][-1].replace(" weak ", " ")
    return "declare" + _PARAMETER.sub("", head.removeprefix("define").partition(")")[0]) + ")\n"


def together(cache: Cache, functions: Mapping[str, str]) -> dict[str, TypedCallTarget]:
    """Compile functions as one module."""
    return dict(cache.compile(ModuleSource("".join(functions.values()), {"kernel": None} if "kernel" in functions else None)))


def inlined(cache: Cache, target: TypedCallTarget) -> list[str]:
    """The plain names of the functions whose code may be in one."""
    (verdict,) = cache.explain(target.func_name).verdicts
    return [text.partition(" ")[0].rpartition("-")[0] for text in verdict.inlined]


def follow(kernel: TypedCallTarget) -> object:
    """What the kernel of `FOLLOWED` answers if its first and its third argument are one: 3 if no call is taken for another."""
    first, second = ctypes.c_int64(0), ctypes.c_int64(0)
    return kernel(ctypes.addressof(first), ctypes.addressof(second), ctypes.addressof(first))


def bits(value: object) -> object:
    """A result that compares equal where all bits are the same."""
    return [bits(item) for item in value] if isinstance(value, (list, tuple)) else value.hex() if isinstance(value, float) else value
