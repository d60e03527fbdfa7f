"""Converts the exceptions that an exported kernel may raise.

Numba's code contains pickled descriptions of exceptions. An export converts these descriptions to marshalled data, and to code that raises
the exceptions. No pickle is read when the kernel runs.
"""

from __future__ import annotations

import pickle
import re
from typing import Any, NamedTuple

from llvmlite import ir

from compcache.numba.exports.objects import format_constant
from compcache.numba.exports.parameters import export_error
from compcache.numba.lazy.marshalled import encode_fields

__all__ = ["RAISE", "KnownException", "describe_exceptions", "make_raising_assembly"]

RAISE = "compcache.numba.raise"
#: Numba's constants with the bytes of pickles and of their digests, and those that refer to the pickles.
_DATA = re.compile(r'^@"?(\.const\.pickledata\.[^"\s]+?)"? = .*?constant \[\d+ x i8\] c"((?:[^"\\]|\\\\|\\[0-9A-Fa-f]{2})*)"', re.MULTILINE)
_BUFFER = re.compile(r'^@"?(\.const\.picklebuf\.[^"\s]+?)"? = .*?@"?(\.const\.pickledata\.[^",\s)]+)', re.MULTILINE)
_ESCAPE = re.compile(rb"\\(\\|[0-9A-Fa-f]{2})")
_SURROGATE = re.compile("[\ud800-\udfff]")


class KnownException(NamedTuple):
    """An exception that a kernel may raise.

    Attributes:
        variable: the variable that contains Numba's description of the exception. If an argument is `COMPUTED`, Numba creates the
            description when the exception is raised, and the variable contains the pickle to which the description refers.
        module: the module of the exception's class.
        qualname: the qualified name of the class.
        args: the arguments of the exception.
    """

    variable: str
    module: str
    qualname: str
    args: tuple[Any, ...]

    @property
    def is_computed(self) -> bool:
        """Whether an argument is computed when the exception is raised."""
        return any(argument is COMPUTED for argument in self.args)


#: The mark for an argument that is computed when the exception is raised. `marshal` supports this value.
COMPUTED = ...


def describe_exceptions(func_name: str, text: str) -> list[KnownException]:
    """Return the exceptions that code may raise. `text` is the code's LLVM assembly, which Numba must have compiled in this process.

    Raise `CompileError` for the export `func_name` if an exception class is local to a function, or an argument cannot be stored.
    """
    data = {name: _ESCAPE.sub(_unescape, body.encode("latin-1")) for name, body in _DATA.findall(text)}
    # Code identifies an exception with constant arguments by a variable that refers to the pickle, any other by the pickle itself.
    constant = [_describe_pickled_exception(func_name, variable, data[content]) for variable, content in _BUFFER.findall(text)]
    pickles = {variable: content for variable, content in data.items() if ".sha1" not in variable}  # the other variables contain digests
    computed = [_describe_pickled_exception(func_name, variable, content) for variable, content in pickles.items()]
    return [
        *[exception for exception in constant if exception is not None and not exception.is_computed],
        *[exception for exception in computed if exception is not None and exception.is_computed],
    ]


def _unescape(match: re.Match[bytes]) -> bytes:
    """Return the byte for an escape in LLVM assembly: two backslashes, or a backslash and two hexadecimal digits."""
    return b"\\" if match[1] == b"\\" else bytes([int(match[1], 16)])


def _describe_pickled_exception(func_name: str, variable: str, content: bytes) -> KnownException | None:
    """Return the exception that one of Numba's pickles describes, or None if the pickle describes another object.

    `variable` contains the pickle or refers to it. Raise `CompileError` for the export `func_name` if the exception class is local to a
    function, or an argument cannot be stored.
    """
    description = pickle.loads(content)  # noqa: S301 - Numba has just created the pickle in this process
    if not isinstance(description, tuple):
        return None
    padded: tuple[Any, ...] = (*description, None, None)  # other objects may be shorter tuples
    cls, args, *_ = padded
    if not (isinstance(cls, type) and issubclass(cls, BaseException)):
        return None
    if "<locals>" in cls.__qualname__:
        raise export_error(func_name, f"the exception class {cls.__qualname__} is defined inside a function; define it in a module")
    arguments = tuple([COMPUTED if isinstance(argument, ir.Value) else argument for argument in args or ()])
    for argument in arguments:
        if not _is_storable(argument):
            reason = (
                f"it raises {cls.__name__} with the argument {argument!r}, which cannot be stored; use text, a 64-bit int, a float or None"
            )
            raise export_error(func_name, reason)
    return KnownException(variable, cls.__module__, cls.__qualname__, arguments)


def _is_storable(argument: Any) -> bool:
    """Return whether an argument of an exception can be stored."""
    if isinstance(argument, str):
        return "\0" not in argument and _SURROGATE.search(argument) is None  # the argument is stored in UTF-8
    if isinstance(argument, int):
        return -(2**63) <= argument < 2**63
    return argument is None or argument is COMPUTED or isinstance(argument, float)


def make_raising_assembly(exceptions: list[KnownException]) -> str:
    """Return the assembly of the function that finds an exception by Numba's description of the exception, and raises the exception."""
    constant = [exception for exception in exceptions if not exception.is_computed]
    computed = [exception for exception in exceptions if exception.is_computed]
    data = "\n".join(map(_format_data, exceptions))
    return f"""{_DECLARATIONS}{_TEXTS}
{data}
{_DISTINGUISH}{_format_search("computed", "%pickled", computed)}
  br label %known
constant:
{_format_search("constant", "%info", constant)}
  br label %known
known:
  %found = phi ptr [ null, %kind ], [ %computed.{len(computed)}, %computed ], [ %constant.{len(constant)}, %constant ]
  %arguments = phi ptr [ @_Py_NoneStruct, %kind ], [ %values, %computed ], [ @_Py_NoneStruct, %constant ]
  %owned = phi ptr [ null, %kind ], [ %values, %computed ], [ null, %constant ]
{_RAISE_FOUND}"""


def _format_search(stem: str, description: str, exceptions: list[KnownException]) -> str:
    """Return instructions that select the data of an exception by its description, or null for an unknown description.

    `stem` is the prefix of the names of values. `description` is the value with the address of the description.
    """
    lines = [f"  %{stem}.0 = getelementptr i8, ptr null, i64 0"]
    for number, exception in enumerate(exceptions):
        lines += [
            f'  %{stem}.is{number} = icmp eq ptr {description}, @"{exception.variable}"',
            f'  %{stem}.{number + 1} = select i1 %{stem}.is{number}, ptr @"{_DATA_PREFIX}{exception.variable}", ptr %{stem}.{number}',
        ]
    return "\n".join(lines)


def _format_data(exception: KnownException) -> str:
    """Return the assembly of an exception's data: the size, and the bytes from which `known_exception` creates the exception."""
    data = encode_fields((exception.module, exception.qualname, exception.args))
    value = f"{{ i64, [{len(data)} x i8] }} {{ i64 {len(data)}, {format_constant(data)} }}"
    return f'@"{exception.variable}" = external global i8\n@"{_DATA_PREFIX}{exception.variable}" = private constant {value}'


_DATA_PREFIX = "compcache.numba.exception"
_TEXTS = "\n".join(
    f"@compcache.numba.raising.{name} = private constant {format_constant(text.encode() + bytes(1))}"
    for name, text in {
        "module": "compcache.numba.lazy.raising",
        "function": "known_exception",
        "format": "NO",
        "unknown": "an exception that is unknown to compcache.numba",
    }.items()
)
_DECLARATIONS = """
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare ptr @PyErr_Occurred()
declare void @PyErr_SetObject(ptr, ptr)
declare void @PyErr_SetString(ptr, ptr)
declare void @PyErr_SetNone(ptr)
declare ptr @PyImport_ImportModule(ptr)
declare ptr @PyBytes_FromStringAndSize(ptr, i64)
declare ptr @PyObject_CallMethod(ptr, ptr, ptr, ...)
declare ptr @PyObject_Type(ptr)
declare void @Py_DecRef(ptr)
declare void @NRT_Free(ptr)
@_Py_NoneStruct = external global [0 x i8]
@PyExc_StopIteration = external global i8
@PyExc_SystemError = external global i8
"""
#: The start of the function, up to the search for the data of an exception with computed arguments. The parameters are Numba's code of the
#: exception, and its description: pickle, size of the pickle, computed arguments, function that creates a tuple of them, and their number.
_DISTINGUISH = f"""define void @{RAISE}(i32 %code, ptr %info) cold noinline {{
start:
  %gil = call i32 @PyGILState_Ensure()
  %raised = call ptr @PyErr_Occurred()
  %already = icmp ne ptr %raised, null
  br i1 %already, label %done, label %kind
kind:
  switch i32 %code, label %user [
    i32 -3, label %stopped
    i32 -1, label %known
  ]
stopped:
  call void @PyErr_SetNone(ptr @PyExc_StopIteration)
  br label %done
user:
  %count_at = getelementptr inbounds {{ ptr, i32, ptr, ptr, i32 }}, ptr %info, i32 0, i32 4
  %count = load i32, ptr %count_at
  %is_computed = icmp sgt i32 %count, 0
  br i1 %is_computed, label %unwrap, label %constant
unwrap:
  %pickled = load ptr, ptr %info
  %given_at = getelementptr inbounds {{ ptr, i32, ptr, ptr, i32 }}, ptr %info, i32 0, i32 2
  %given = load ptr, ptr %given_at
  %unwrap_at = getelementptr inbounds {{ ptr, i32, ptr, ptr, i32 }}, ptr %info, i32 0, i32 3
  %unwrapping = load ptr, ptr %unwrap_at
  %values = call ptr %unwrapping(ptr %given)
  call void @NRT_Free(ptr %info)
  %no_values = icmp eq ptr %values, null
  br i1 %no_values, label %done, label %computed
computed:
"""
#: The end of the function, after the search: it raises the exception that was found, or `SystemError` for an unknown description.
_RAISE_FOUND = """  %is_unknown = icmp eq ptr %found, null
  br i1 %is_unknown, label %unknown, label %import
import:
  %module = call ptr @PyImport_ImportModule(ptr @compcache.numba.raising.module)
  %no_module = icmp eq ptr %module, null
  br i1 %no_module, label %made, label %make
make:
  %size = load i64, ptr %found
  %data = getelementptr inbounds i8, ptr %found, i64 8
  %described = call ptr @PyBytes_FromStringAndSize(ptr %data, i64 %size)
  %exception = call ptr (ptr, ptr, ptr, ...) @PyObject_CallMethod(ptr %module, ptr @compcache.numba.raising.function, ptr @compcache.numba.raising.format, ptr %described, ptr %arguments)
  call void @Py_DecRef(ptr %module)
  %no_exception = icmp eq ptr %exception, null
  br i1 %no_exception, label %made, label %raise
raise:
  %class = call ptr @PyObject_Type(ptr %exception)
  call void @PyErr_SetObject(ptr %class, ptr %exception)
  call void @Py_DecRef(ptr %class)
  call void @Py_DecRef(ptr %exception)
  br label %made
unknown:
  call void @PyErr_SetString(ptr @PyExc_SystemError, ptr @compcache.numba.raising.unknown)
  br label %made
made:
  call void @Py_DecRef(ptr %owned)
  br label %done
done:
  call void @PyGILState_Release(i32 %gil)
  ret void
}
"""  # noqa: E501 - an instruction is a line
