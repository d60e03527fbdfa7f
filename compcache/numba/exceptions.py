"""Exceptions of exported kernels: from Numba's pickled descriptions, at export, to code that raises them natively."""

from __future__ import annotations

import builtins
import pickle
import re
from typing import Any, NamedTuple

from compcache.errors import CompileError

__all__ = ["RAISE", "KnownException", "describe_exceptions", "raising_text"]

RAISE = "compcache.numba.raise"
_DATA = re.compile(
    r'^@"?(\.const\.pickledata\.[^"\s]+?)"? = .*?constant \[\d+ x i8\] c"((?:[^"\\]|\\\\|\\[0-9A-Fa-f]{2})*)"',
    re.MULTILINE,
)
_BUFFER = re.compile(
    r'^@"?(\.const\.picklebuf\.[^"\s]+?)"? = .*?@"?(\.const\.pickledata\.[^",\s)]+)', re.MULTILINE
)
_ESCAPE = re.compile(rb"\\(\\|[0-9A-Fa-f]{2})")


class KnownException(NamedTuple):
    """An exception that a kernel may raise: the variable that stands for it, its class and arguments."""

    variable: str
    module: str
    qualname: str
    args: tuple[Any, ...]


def describe_exceptions(func_name: str, text: str) -> list[KnownException]:
    """The exceptions whose descriptions are constants of a module that Numba has just compiled.

    Raises:
        CompileError: one of them cannot be raised without Numba.
    """
    data = {name: _ESCAPE.sub(_unescape, body.encode("latin-1")) for name, body in _DATA.findall(text)}
    known = []
    for variable, content in _BUFFER.findall(text):
        described = pickle.loads(data[content])  # noqa: S301 - Numba made it in this process, a moment ago
        if isinstance(described, tuple) and described and _is_exception(described[0]):
            known.append(_describe(func_name, variable, described))
    return known


def _unescape(match: re.Match[bytes]) -> bytes:
    return b"\\" if match[1] == b"\\" else bytes([int(match[1], 16)])


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _describe(func_name: str, variable: str, described: tuple[Any, ...]) -> KnownException:
    cls, args = described[0], described[1] if len(described) > 1 else None
    if "<locals>" in cls.__qualname__:
        raise CompileError(
            f"{func_name} cannot be exported: the exception class {cls.__qualname__} has no module-level name"
        )
    arguments = () if args is None else tuple(args)
    for argument in arguments:
        if not _is_plain(argument):
            raise CompileError(
                f"{func_name} cannot be exported: it raises {cls.__name__} with the argument {argument!r}"
            )
    return KnownException(variable, cls.__module__, cls.__qualname__, arguments)


def _is_plain(argument: Any) -> bool:
    if isinstance(argument, str):
        return "\0" not in argument and not any("\ud800" <= c <= "\udfff" for c in argument)
    if isinstance(argument, int):
        return -(2**63) <= argument < 2**63
    return argument is None or isinstance(argument, float)


def raising_text(exceptions: list[KnownException]) -> str:
    """Assembly of the function that raises: it compares Numba's description with those that it knows."""
    texts = _Texts()
    blocks: list[str] = []
    for number, known in enumerate(exceptions):
        variable = f'@"{known.variable}"'
        blocks += [
            f"test{number}:",
            f"  %is{number} = icmp eq ptr %info, {variable}",
            f"  br i1 %is{number}, label %raise{number}, label %test{number + 1}",
            f"raise{number}:",
            *_class_lines(number, known, texts),
            *_argument_lines(number, known, texts),
            f"  call void @PyErr_SetObject(ptr %class{number}, ptr %args{number})",
            f"  call void @Py_DecRef(ptr %args{number})",
            "  br label %done",
        ]
    unknown = texts.pointer("an exception that compcache.numba does not know")
    externals = "\n".join(f'@"{known.variable}" = external global i8' for known in exceptions)
    return f"""
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare ptr @PyErr_Occurred()
declare void @PyErr_SetObject(ptr, ptr)
declare void @PyErr_SetString(ptr, ptr)
declare void @PyErr_SetNone(ptr)
declare ptr @PyImport_ImportModule(ptr)
declare ptr @PyObject_GetAttrString(ptr, ptr)
declare ptr @Py_BuildValue(ptr, ...)
declare void @Py_DecRef(ptr)
@_Py_NoneStruct = external global [0 x i8]
{_class_declarations(exceptions)}
{externals}
define void @{RAISE}(i32 %code, ptr %info) cold noinline {{
start:
  %gil = call i32 @PyGILState_Ensure()
  %raised = call ptr @PyErr_Occurred()
  %already = icmp ne ptr %raised, null
  br i1 %already, label %done, label %kind
kind:
  %stop = icmp eq i32 %code, -3
  br i1 %stop, label %stopped, label %test0
stopped:
  call void @PyErr_SetNone(ptr @PyExc_StopIteration)
  br label %done
{chr(10).join(blocks)}
test{len(exceptions)}:
  call void @PyErr_SetString(ptr @PyExc_SystemError, ptr {unknown})
  br label %done
done:
  call void @PyGILState_Release(i32 %gil)
  ret void
}}
{texts.definitions()}
"""


def _is_builtin(known: KnownException) -> bool:
    return known.module == "builtins" and hasattr(builtins, known.qualname)


def _class_declarations(exceptions: list[KnownException]) -> str:
    """Declared as Numba declares them; `load_exception_classes` makes loads of all of them."""
    names = {known.qualname for known in exceptions if _is_builtin(known)} | {"StopIteration", "SystemError"}
    return "\n".join(f"@PyExc_{name} = external global i8" for name in sorted(names))


def _class_lines(number: int, known: KnownException, texts: _Texts) -> list[str]:
    if _is_builtin(known):
        return [f"  %class{number} = getelementptr i8, ptr @PyExc_{known.qualname}, i64 0"]
    lines = [f"  %step{number}.0 = call ptr @PyImport_ImportModule(ptr {texts.pointer(known.module)})"]
    parts = known.qualname.split(".")
    for step, part in enumerate([*parts, None]):
        lines += [
            f"  %none{number}.{step} = icmp eq ptr %step{number}.{step}, null",
            f"  br i1 %none{number}.{step}, label %done, label %found{number}.{step}",
            f"found{number}.{step}:",
        ]
        if part is not None:
            lines.append(
                f"  %step{number}.{step + 1} = call ptr @PyObject_GetAttrString(ptr %step{number}.{step}, ptr {texts.pointer(part)})"
            )
    lines.append(f"  %class{number} = getelementptr i8, ptr %step{number}.{len(parts)}, i64 0")
    return lines


def _argument_lines(number: int, known: KnownException, texts: _Texts) -> list[str]:
    format_ = ""
    values: list[str] = []
    for argument in known.args:
        if argument is None:
            format_, value = format_ + "O", "ptr @_Py_NoneStruct"
        elif isinstance(argument, bool):
            format_, value = format_ + "N", f"ptr %bool{number}.{len(values)}"
        elif isinstance(argument, int):
            format_, value = format_ + "L", f"i64 {argument}"
        elif isinstance(argument, float):
            format_, value = format_ + "d", f"double 0x{_double_bits(argument):016X}"
        else:
            format_, value = format_ + "s", f"ptr {texts.pointer(argument)}"
        values.append(value)
    made = [
        f"  %bool{number}.{i} = call ptr @PyBool_FromLong(i64 {int(argument)})"
        for i, argument in enumerate(known.args)
        if isinstance(argument, bool)
    ]
    if made:
        texts.use_bool()
    arguments = "".join(f", {value}" for value in values)
    call = f"  %args{number} = call ptr (ptr, ...) @Py_BuildValue(ptr {texts.pointer(f'({format_})')}{arguments})"
    return [
        *made, call, f"  %no_args{number} = icmp eq ptr %args{number}, null",
        f"  br i1 %no_args{number}, label %done, label %set{number}", f"set{number}:",
    ]  # fmt: skip


def _double_bits(value: float) -> int:
    import struct

    bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return bits


class _Texts:
    """Constant C strings of the assembly."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._bool = False

    def pointer(self, text: str) -> str:
        return self._names.setdefault(text, f"@compcache.numba.text.{len(self._names)}")

    def use_bool(self) -> None:
        self._bool = True

    def definitions(self) -> str:
        lines = ["declare ptr @PyBool_FromLong(i64)"] if self._bool else []
        for text, name in self._names.items():
            data = text.encode() + b"\0"
            body = "".join(f"\\{byte:02X}" for byte in data)
            lines.append(f'{name} = private constant [{len(data)} x i8] c"{body}"')
        return "\n".join(lines)
