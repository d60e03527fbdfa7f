"""Exceptions of exported kernels: converts Numba's pickled descriptions, at export, to native code that raises them."""

from __future__ import annotations

import builtins
import pickle
import re
from typing import Any, NamedTuple

from llvmlite import ir

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
    """An exception that a kernel may raise: the variable that identifies it, its class and arguments.

    If an argument is `COMPUTED` the variable is the pickled text that Numba's description, made when it is raised,
    refers to; else it is the description.
    """

    variable: str
    module: str
    qualname: str
    args: tuple[Any, ...]

    @property
    def is_computed(self) -> bool:
        """Whether an argument is computed when it is raised."""
        return any(argument is COMPUTED for argument in self.args)


#: Marks an argument that is computed when the exception is raised.
COMPUTED = object()


def describe_exceptions(func_name: str, text: str) -> list[KnownException]:
    """The exceptions whose descriptions are constants of a module that Numba has just compiled.

    Raises:
        CompileError: one of them cannot be raised without Numba.
    """
    data = {name: _ESCAPE.sub(_unescape, body.encode("latin-1")) for name, body in _DATA.findall(text)}
    constant = [_describe(func_name, variable, data[content]) for variable, content in _BUFFER.findall(text)]
    pickles = {variable: content for variable, content in data.items() if ".sha1" not in variable}
    computed = [_describe(func_name, variable, content) for variable, content in pickles.items()]
    return [
        *[known for known in constant if known is not None and not known.is_computed],
        *[known for known in computed if known is not None and known.is_computed],
    ]


def _unescape(match: re.Match[bytes]) -> bytes:
    return b"\\" if match[1] == b"\\" else bytes([int(match[1], 16)])


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _describe(func_name: str, variable: str, content: bytes) -> KnownException | None:
    described = pickle.loads(content)  # noqa: S301 - Numba has just pickled it in this process
    if not (isinstance(described, tuple) and described and _is_exception(described[0])):
        return None
    cls, args = described[0], described[1] if len(described) > 1 else None
    if "<locals>" in cls.__qualname__:
        raise CompileError(
            f"{func_name} cannot be exported: the exception class {cls.__qualname__} has no module-level name"
        )
    arguments = tuple([COMPUTED if isinstance(argument, ir.Value) else argument for argument in args or ()])
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
    return argument is None or argument is COMPUTED or isinstance(argument, float)


def raising_text(exceptions: list[KnownException]) -> str:
    """Assembly of the function that raises: it compares Numba's description with the known ones."""
    texts = _Texts()
    constant = [known for known in exceptions if not known.is_computed]
    computed = [known for known in exceptions if known.is_computed]
    blocks = [*_tests("constant", "%info", constant, texts), *_tests("computed", "%pickled", computed, texts)]
    unknown = texts.pointer("an exception that is unknown to compcache.numba")
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
declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @Py_BuildValue(ptr, ...)
declare void @Py_DecRef(ptr)
declare void @NRT_Free(ptr)
@_Py_NoneStruct = external global [0 x i8]
{_class_declarations(exceptions)}
{externals}
; What Numba tells of an exception: pickled, its size, the computed arguments, what makes a tuple of them, their number.
define void @{RAISE}(i32 %code, ptr %info) cold noinline {{
start:
  %gil = call i32 @PyGILState_Ensure()
  %raised = call ptr @PyErr_Occurred()
  %already = icmp ne ptr %raised, null
  br i1 %already, label %done, label %kind
kind:
  switch i32 %code, label %user [
    i32 -3, label %stopped
    i32 -1, label %unknown
  ]
stopped:
  call void @PyErr_SetNone(ptr @PyExc_StopIteration)
  br label %done
user:
  %count_at = getelementptr inbounds {{ ptr, i32, ptr, ptr, i32 }}, ptr %info, i32 0, i32 4
  %count = load i32, ptr %count_at
  %is_computed = icmp sgt i32 %count, 0
  br i1 %is_computed, label %unwrap, label %constant0
unwrap:
  %pickled = load ptr, ptr %info
  %given_at = getelementptr inbounds {{ ptr, i32, ptr, ptr, i32 }}, ptr %info, i32 0, i32 2
  %given = load ptr, ptr %given_at
  %unwrap_at = getelementptr inbounds {{ ptr, i32, ptr, ptr, i32 }}, ptr %info, i32 0, i32 3
  %unwrapping = load ptr, ptr %unwrap_at
  %values = call ptr %unwrapping(ptr %given)
  call void @NRT_Free(ptr %info)
  %no_values = icmp eq ptr %values, null
  br i1 %no_values, label %done, label %computed0
{chr(10).join(blocks)}
constant{len(constant)}:
  br label %unknown
computed{len(computed)}:
  br label %unknown
unknown:
  call void @PyErr_SetString(ptr @PyExc_SystemError, ptr {unknown})
  br label %done
done:
  call void @PyGILState_Release(i32 %gil)
  ret void
}}
{texts.definitions()}
"""


def _tests(stem: str, description: str, exceptions: list[KnownException], texts: _Texts) -> list[str]:
    """Blocks that compare a description with these exceptions in turn, and raise the matching one."""
    blocks: list[str] = []
    for number, known in enumerate(exceptions):
        here = f"{stem}{number}"
        blocks += [
            f"{here}:",
            f'  %is.{here} = icmp eq ptr {description}, @"{known.variable}"',
            f"  br i1 %is.{here}, label %raise.{here}, label %{stem}{number + 1}",
            f"raise.{here}:",
            *_class_lines(here, known, texts),
            *_argument_lines(here, known, texts),
            f"  call void @PyErr_SetObject(ptr %class.{here}, ptr %args.{here})",
            f"  call void @Py_DecRef(ptr %args.{here})",
            *(["  call void @Py_DecRef(ptr %values)"] if known.is_computed else []),
            "  br label %done",
        ]
    return blocks


def _is_builtin(known: KnownException) -> bool:
    return known.module == "builtins" and hasattr(builtins, known.qualname)


def _class_declarations(exceptions: list[KnownException]) -> str:
    """Declarations as Numba writes them; `load_exception_classes` converts their uses to loads."""
    names = {known.qualname for known in exceptions if _is_builtin(known)} | {"StopIteration", "SystemError"}
    return "\n".join(f"@PyExc_{name} = external global i8" for name in sorted(names))


def _class_lines(here: str, known: KnownException, texts: _Texts) -> list[str]:
    if _is_builtin(known):
        return [f"  %class.{here} = getelementptr i8, ptr @PyExc_{known.qualname}, i64 0"]
    lines = [f"  %step.{here}.0 = call ptr @PyImport_ImportModule(ptr {texts.pointer(known.module)})"]
    parts = known.qualname.split(".")
    for step, part in enumerate([*parts, None]):
        value = f"%step.{here}.{step}"
        lines += [
            f"  %none.{here}.{step} = icmp eq ptr {value}, null",
            f"  br i1 %none.{here}.{step}, label %done, label %found.{here}.{step}",
            f"found.{here}.{step}:",
        ]
        if part is not None:
            call = f"call ptr @PyObject_GetAttrString(ptr {value}, ptr {texts.pointer(part)})"
            lines.append(f"  %step.{here}.{step + 1} = {call}")
    lines.append(f"  %class.{here} = getelementptr i8, ptr %step.{here}.{len(parts)}, i64 0")
    return lines


def _argument_lines(here: str, known: KnownException, texts: _Texts) -> list[str]:
    """The tuple of the arguments, by `Py_BuildValue`."""
    formats, values, made = [], [], []
    computed = 0
    for number, argument in enumerate(known.args):
        name = f"%arg.{here}.{number}"
        if argument is COMPUTED:
            made.append(f"  {name} = call ptr @PyTuple_GetItem(ptr %values, i64 {computed})")
            format_, value = "O", f"ptr {name}"
            computed += 1
        elif argument is None:
            format_, value = "O", "ptr @_Py_NoneStruct"
        elif isinstance(argument, bool):
            texts.use_bool()
            made.append(f"  {name} = call ptr @PyBool_FromLong(i64 {int(argument)})")
            format_, value = "N", f"ptr {name}"
        elif isinstance(argument, int):
            format_, value = "L", f"i64 {argument}"
        elif isinstance(argument, float):
            format_, value = "d", f"double 0x{_double_bits(argument):016X}"
        else:
            format_, value = "s", f"ptr {texts.pointer(argument)}"
        formats.append(format_)
        values.append(f", {value}")
    format_text = texts.pointer(f"({''.join(formats)})")
    return [
        *made, f"  %args.{here} = call ptr (ptr, ...) @Py_BuildValue(ptr {format_text}{''.join(values)})",
        f"  %no_args.{here} = icmp eq ptr %args.{here}, null",
        f"  br i1 %no_args.{here}, label %done, label %set.{here}", f"set.{here}:",
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
