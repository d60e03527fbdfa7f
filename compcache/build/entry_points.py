"""Generates the native entry points of call targets, and the table of a module's addresses.

An entry point is a vectorcall function (PEP 590) in LLVM assembly against CPython's stable ABI, with one difference. Instead of the
callable, it gets a `Callee`, which refers to the function, the runtime and the target, so an image does not depend on the layout of
CPython's objects. An entry point checks and converts the arguments, calls the function and converts the result. Functions with the same
signature share an entry point. Work that a successful call does not need is left to the native runtime. If `compcache.build.entry_code`
has an assembler for the architecture, it makes the same code without LLVM. The layouts (`Callee`, `EntryApi`, `ModuleTable`) are defined
in `hit/native/image_abi.h`, and versioned by `compcache.formats.host.ABI_VERSION`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.arch.known import architecture
from compcache.build.ir_text import Head, leading_type, parse_head, quote
from compcache.build.llvm_types import split_type, split_words
from compcache.digest import digest
from compcache.errors import SignatureError, SignatureMismatchError
from compcache.formats.host import ABI_VERSION, platform_name
from compcache.formats.module_table import TABLE_HEAD_SIZE, TABLE_MAGIC, TABLE_SYMBOL
from compcache.identity import label_of
from compcache.signature import BOOL, CSTR, FLOAT, OBJECT, POINTER, SIGNED, TUPLE, UNSIGNED, VOID, Parameter, Signature, Type

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

__all__ = [
    "API_AT", "BUFFER", "CSTR_HOOK", "FAIL_ARITY", "FAIL_VALUE", "FROM_CSTR", "FUNCTION_AT", "POINTER_HOOK", "U64_HOOK", "VIEW_NDIM",
    "VIEW_READONLY", "VIEW_SHAPE", "EntryPoint", "FunctionHead", "entries_text", "entry_point", "entry_text", "read_head",
    "read_signature", "symbols_of_entries", "table_head", "table_symbols_of", "table_text", "wanted_buffer",
]  # fmt: skip

_TABLE_FIELDS = Struct("<II")
FUNCTION_AT, API_AT = 0, 8  # of Callee
VIEW_READONLY, VIEW_NDIM, VIEW_SHAPE = 32, 36, 48  # of Py_buffer, which is part of the stable ABI
# of EntryApi
FAIL_ARITY, FAIL_VALUE, BUFFER, POINTER_HOOK, U64_HOOK, CSTR_HOOK, FROM_CSTR = range(0, 56, 8)
_KIND_LETTER = {SIGNED: "i", UNSIGNED: "u", FLOAT: "f", BOOL: "b"}
_BY_LLVM_TYPE = {
    "void": "void", "i1": "bool", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64",
    "float": "f32", "double": "f64", "ptr": "ptr",
}  # fmt: skip
_SYMBOL_SIZE = 8  # bytes of a digest
#: The number of function types whose results are kept, because the modules of a program have functions of few types.
_KEPT = 1024
#: Attributes of parameters that no type in signatures has.
_UNMATCHED = ("byval(", "sret(", "byref(", "preallocated(", "inalloca(", "inreg", "nest", "swift")
_BEFORE_TYPE = re.compile(r"\A[^{\[<]*(?=[{\[<])")  # linkage, visibility and attributes before an aggregate
_CONVENTIONS = (
    "fastcc", "coldcc", "tailcc", "preserve_", "win64cc", *architecture(platform_name()).conventions, "swift", "ghccc",
)  # fmt: skip
_DECLARATIONS = """\
declare i64 @PyLong_AsLongLong(ptr)
declare double @PyFloat_AsDouble(ptr)
declare i32 @PyObject_IsTrue(ptr)
declare ptr @PyErr_Occurred()
declare void @PyBuffer_Release(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyBool_FromLong(i64)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyLong_FromUnsignedLongLong(i64)
declare ptr @PyLong_FromVoidPtr(ptr)
declare ptr @PyFloat_FromDouble(double)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
@_Py_NoneStruct = external global [0 x i8]
"""


class EntryPoint(NamedTuple):
    """The properties of an entry point. Functions with equal properties share the entry point.

    `types` and `result` are LLVM types. `readonly` states for each parameter whether it accepts read-only buffers. `convention` is the
    calling convention, or "" for C's. `nogil` says that calls release the GIL, and `may_raise` that the function may set an exception.
    """

    signature: str
    types: tuple[str, ...]
    result: str
    readonly: tuple[bool, ...]
    convention: str
    nogil: bool
    may_raise: bool


class FunctionHead(NamedTuple):
    """A function's head, the LLVM types of its parameters and result, and its calling convention."""

    head: Head
    types: tuple[str, ...]
    result: str
    convention: str


@lru_cache(maxsize=_KEPT)
def read_head(head_line: str) -> FunctionHead:
    """Parse the printed head of a function (without ``define``). Raise `ValueError` if the text is not a head."""
    head = parse_head(head_line)
    result, *types = [split_type(words)[0] for words in (split_words(head.prefix)[::-1], *map(split_words, head.parameters))]
    return FunctionHead(head, tuple(types), result, _calling_convention(head.prefix))


def _calling_convention(prefix: str) -> str:
    """Return the words that name a calling convention in the text before a function's name, or "" for the convention of C."""
    words = prefix.split()
    if len(words) == 1:  # only the result type
        return ""
    if "cc" in words:
        return f"cc {words[words.index('cc') + 1]}"
    return next((word for word in words if word.startswith(_CONVENTIONS)), "")


@lru_cache(maxsize=_KEPT)
def read_signature(function: FunctionHead) -> Signature:
    """Return the signature that matches a function's LLVM type. Integers are signed, unless they have the attribute `zeroext`.

    Raise `SignatureError` if no signature matches the type. The message gives the reason.
    """
    head, types, result, _ = function
    parameters = []
    for text, llvm_type in zip(head.parameters, types, strict=True):
        name = _BY_LLVM_TYPE.get(llvm_type)
        if name is None or any(attribute in text for attribute in _UNMATCHED):
            raise SignatureError(_unmatched_message(text))
        parameters.append(Parameter(_scalar_type(name, text), False, False, _parameter_name(text), 0))
    name = _BY_LLVM_TYPE.get(result)
    if name is None:
        raise SignatureError(f"no signature type matches the function's result of type {_BEFORE_TYPE.sub('', result)}")
    return Signature(tuple(parameters), _scalar_type(name, head.prefix))


def _unmatched_message(text: str) -> str:
    """Return a message with the reason why no signature type matches a parameter."""
    if text == "...":
        return "the function takes a variable number of arguments"
    name = _parameter_name(text)
    type_text = text.rpartition(" %")[0] if any(attribute in text for attribute in _UNMATCHED) else leading_type(text)
    return f"no signature type matches the function's parameter{f' {name!r}' if name else ''} of type {type_text or text}"


def _scalar_type(name: str, text: str) -> Type:
    """Return the type of an LLVM scalar with attributes `text`. LLVM integers have no sign: only `zeroext` shows an unsigned one."""
    if name[0] == "i" and " zeroext " in f" {text} ":
        name = "u" + name[1:]
    return Type.by_name[name]


def _parameter_name(text: str) -> str:
    """Return the name of a parameter in LLVM assembly, or "" if Python cannot use it as the name of an argument."""
    name = text.rpartition("%")[2] if "%" in text else ""
    return name if name.isidentifier() else ""


def entry_point(
    name: str, function: FunctionHead, signature: Signature, *, nogil: bool, only_reads: bool = False, may_raise: bool = True
) -> EntryPoint:
    """Return the properties of the entry point for a function.

    Args:
        name: the func_name, for messages.
        function: the head of the function.
        signature: the signature for callers.
        nogil: whether the entry point releases the GIL during the call.
        only_reads: whether the function's attributes say that it does not write to the memory of its arguments.
        may_raise: whether the function's attributes allow it to raise a Python exception.

    Raises:
        SignatureMismatchError: the signature does not match the function's LLVM type, or `nogil` is set and the function takes or
            returns Python objects.
    """
    head, types, result, convention = function
    reason = _find_mismatch(function, signature)
    if reason:
        raise SignatureMismatchError(
            f"the signature {signature} of function {label_of(name) or name!r} does not match its LLVM type '{_type_text(result, types)}': "
            f"{reason}",
            func_name=name,
        )
    if nogil and any(type_.kind == OBJECT for type_ in (signature.result, *[parameter.type for parameter in signature.parameters])):
        raise SignatureMismatchError(
            f"the signature {signature} of function {label_of(name) or name!r} takes or returns Python objects, which need the "
            "GIL, but nogil=True releases the GIL: leave out nogil, and release the GIL in the function while it uses no Python objects",
            func_name=name,
        )
    return EntryPoint(
        str(signature), types, result, _readonly_parameters(signature, head, only_reads=only_reads), convention, nogil, may_raise
    )


def _type_text(result: str, types: Sequence[str]) -> str:
    """Return a function's LLVM type as messages show it."""
    return f"{result} ({', '.join(types)})"


def _expected_text(signature: Signature) -> str:
    """Return the LLVM type of a function that a signature requires, for messages. Of several possible types, the usual one is shown."""
    types = [usual for usual, *_ in _expected_types(signature)]
    result, *_ = _value_types(signature.result)
    return _type_text(result, types)


def _mismatch_hint(signature: Signature) -> str:
    """Return a hint, for a message, on how functions return tuples and take buffers; "" if the signature has neither."""
    notes = []
    if signature.result.kind == TUPLE:
        notes.append("the function stores a tuple through an additional first parameter, a pointer")
    if any(parameter.is_buffer for parameter in signature.parameters):
        notes.append("each buffer is passed as a pointer and its length, an i64 for each dimension")
    return "".join(f"; {note}" for note in notes)


def _find_mismatch(function: FunctionHead, signature: Signature) -> str:
    """Return why a function's LLVM type does not match a signature, or "" if it matches."""
    head, types, result, _ = function
    unmatched = next((text for text in head.parameters if any(attribute in text for attribute in _UNMATCHED)), None)
    if unmatched is not None:
        return f"no signature type matches parameter '{unmatched}'"
    expected = _expected_types(signature)
    has_expected = len(expected) == len(types) and all(actual in allowed for actual, allowed in zip(types, expected, strict=True))
    if has_expected and result in _value_types(signature.result):
        return ""
    return f"the signature requires '{_expected_text(signature)}'{_mismatch_hint(signature)}"


def _expected_types(signature: Signature) -> list[tuple[str, ...]]:
    """Return the allowed LLVM types of each parameter of the function."""
    types: list[tuple[str, ...]] = [("ptr",)] if signature.result.kind == TUPLE else []
    return types + [kind for parameter in signature.parameters for kind in _llvm_types(parameter)]


def _llvm_types(parameter: Parameter) -> list[tuple[str, ...]]:
    """Return the LLVM parameters that pass a parameter, each as a tuple of its allowed types."""
    if parameter.is_buffer:
        return [("ptr",), *[("i64",)] * _extent_count(parameter)]
    return [_value_types(parameter.type)]


def _extent_count(parameter: Parameter) -> int:
    """Return the number of integers that pass a buffer's size to the function."""
    return parameter.dimensions or 1


def _value_types(type_: Type) -> tuple[str, ...]:
    """Return the LLVM types that a value of a type may have."""
    if type_.kind == BOOL:
        return ("i1", "i8")
    if type_.kind in (SIGNED, UNSIGNED):
        return (f"i{8 * type_.size}",)
    if type_.kind in (POINTER, CSTR, OBJECT):
        return ("ptr",)
    return ({VOID: "void", TUPLE: "void", FLOAT: "float" if type_.size == 4 else "double"}[type_.kind],)  # noqa: PLR2004 - bytes


def _readonly_parameters(signature: Signature, head: Head, *, only_reads: bool) -> tuple[bool, ...]:
    """Return for each parameter whether it accepts read-only memory: a const or unwritten buffer or pointer.

    The function does not write to the memory if the parameter has LLVM's attribute `readonly` or `readnone`, or with `only_reads`.
    """
    result = []
    position = 1 if signature.result.kind == TUPLE else 0  # a tuple is returned through an additional first parameter
    for parameter in signature.parameters:
        is_unwritten = only_reads or not {"readonly", "readnone"}.isdisjoint(head.parameters[position].split())
        is_memory = parameter.is_buffer or parameter.type.kind == POINTER
        result.append(is_memory and (parameter.is_const or is_unwritten))
        position += len(_llvm_types(parameter))
    return tuple(result)


class _Body:
    """The lines of one entry point, and unique names for its values and blocks."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names = 0

    def name(self, stem: str) -> str:
        """Return a new unique name that begins with `stem`."""
        self._names += 1
        return f"{stem}{self._names}"

    def emit(self, *lines: str) -> None:
        """Append instructions."""
        self.lines += [f"  {line}" for line in lines]

    def value(self, expression: str) -> str:
        """Append an instruction with a result, and return the name of the result."""
        name = "%" + self.name("v")
        self.emit(f"{name} = {expression}")
        return name

    def block(self, label: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{label}:")

    def branch(self, condition: str, good: str, bad: str) -> None:
        """Append a branch to `good` if the condition holds, which is likely, otherwise to `bad`."""
        self.emit(f'br i1 {condition}, label %{good}, label %{bad}, !prof !{{!"branch_weights", i32 2000, i32 1}}')

    def require_valid(self, condition: str, index: int, item: str, stem: str) -> None:
        """Append a check that fails for the argument `index`, the object `item`, unless the condition holds.

        `stem` begins the name of the failing block.
        """
        good, bad = self.name("ok"), self.name(stem)
        self.branch(condition, good, bad)
        self.block(bad)
        self.emit(f"call void {self.api(FAIL_VALUE)}(ptr %callee, i64 {index}, ptr {item})", "br label %fail")
        self.block(good)

    def require(self, condition: str, otherwise: str) -> None:
        """Append a branch to the block `otherwise` for the case that the condition does not hold."""
        label = self.name("ok")
        self.branch(condition, label, otherwise)
        self.block(label)

    def api(self, offset: int) -> str:
        """Append loads of the runtime's function at an offset of `EntryApi`, and return the name of its address."""
        api = self.value(f"load ptr, ptr {self.value(f'getelementptr inbounds i8, ptr %callee, i64 {API_AT}')}")
        return self.value(f"load ptr, ptr {self.value(f'getelementptr inbounds i8, ptr {api}, i64 {offset}')}")

    def fail_on_error_if(self, suspect: str, index: int, item: str) -> None:
        """Append a check that fails for the argument `index`, the object `item`, if `suspect` holds and an exception is set."""
        check, good = self.name("check"), self.name("ok")
        self.branch(self.value(f"xor i1 {suspect}, true"), good, check)
        self.block(check)
        raised = self.value("call ptr @PyErr_Occurred()")
        self.require_valid(self.value(f"icmp eq ptr {raised}, null"), index, item, "bad")
        self.emit(f"br label %{good}")
        self.block(good)


def entry_text(symbol: str, entry: EntryPoint) -> str:
    """Return the LLVM assembly that defines an entry point under this symbol."""
    signature = Signature.parse(entry.signature)
    views = [index for index, parameter in enumerate(signature.parameters) if parameter.is_buffer or parameter.type.kind == POINTER]
    body = _Body()
    body.block("start")
    _reserve_stack(body, signature, views)
    _check_arity(body, len(signature.parameters))
    body.block("convert")
    types = iter(entry.types)
    arguments: list[str] = []
    if signature.result.kind == TUPLE:
        next(types)
        arguments.append("ptr %items")
    for index, parameter in enumerate(signature.parameters):
        arguments += _convert_argument(body, index, parameter, types, readonly=entry.readonly[index])
    _call_function(body, entry, signature.result, arguments)
    for label, result in (("done", "%result"), ("fail", "null")):
        body.block(label)
        for index in views:
            body.emit(f"call void @PyBuffer_Release(ptr %view{index})")
        body.emit(f"ret ptr {result}")
    head = f"define hidden ptr @{quote(symbol)}(ptr %callee, ptr %args, i64 %nargsf, ptr %names) uwtable {{"
    return "\n".join([head, *body.lines, "}", ""])


def _reserve_stack(body: _Body, signature: Signature, views: Sequence[int]) -> None:
    """Append the stack variables: buffer views of the parameters `views`, values that hooks convert, and the items of a tuple result."""
    for index in views:
        body.emit(f"%view{index} = alloca [80 x i8], align 8")
        body.emit(f"%obj{index} = getelementptr inbounds i8, ptr %view{index}, i64 8", f"store ptr null, ptr %obj{index}")
    for index, parameter in enumerate(signature.parameters):
        if not parameter.is_buffer and parameter.type.name in ("ptr", "cstr", "u64"):
            body.emit(f"%out{index} = alloca i64, align 8")
    if signature.result.kind == TUPLE:
        body.emit(f"%items = alloca [{len(signature.result.items())} x i64], align 8")


def _check_arity(body: _Body, count: int) -> None:
    """Append a check for `count` positional arguments. For other calls, the runtime matches the arguments by name or fails."""
    body.emit("%given = and i64 %nargsf, 9223372036854775807")  # without PY_VECTORCALL_ARGUMENTS_OFFSET
    is_count = body.value(f"icmp eq i64 %given, {count}")
    has_no_names = body.value("icmp eq ptr %names, null")
    body.branch(body.value(f"and i1 {is_count}, {has_no_names}"), "convert", "arity")
    body.block("arity")
    hook = body.api(FAIL_ARITY)
    accepted = body.value(f"call i32 {hook}(ptr %callee, i64 %given, i64 {count}, ptr %names)")
    body.branch(body.value(f"icmp ne i32 {accepted}, 0"), "convert", "fail")


def _convert_argument(body: _Body, index: int, parameter: Parameter, types: Iterator[str], *, readonly: bool) -> list[str]:
    """Append the conversion of one argument, and return the LLVM arguments for the function.

    The LLVM types of these arguments are taken from `types`. With `readonly`, read-only memory is accepted.
    """
    llvm_type = next(types)
    slot = body.value(f"getelementptr inbounds ptr, ptr %args, i64 {index}")
    item = body.value(f"load ptr, ptr {slot}")
    if parameter.is_buffer:
        for _ in range(_extent_count(parameter)):
            next(types)
        return _convert_buffer(body, index, parameter, item, writable=not readonly)
    kind, size = parameter.type.kind, parameter.type.size
    if kind == OBJECT:
        return [f"ptr {item}"]
    if kind == FLOAT:
        return _convert_float(body, index, item, llvm_type)
    if kind == BOOL:
        truth = body.value(f"call i32 @PyObject_IsTrue(ptr {item})")
        body.require(body.value(f"icmp sge i32 {truth}, 0"), "fail")
        bit = body.value(f"icmp ne i32 {truth}, 0")
        return [f"i1 zeroext {bit}" if llvm_type == "i1" else f"i8 zeroext {body.value(f'zext i1 {bit} to i8')}"]
    if kind in (SIGNED, UNSIGNED) and parameter.type.name != "u64":
        return _convert_integer(body, index, item, kind, size)
    view = f", ptr %view{index}" if kind == POINTER else ""
    hook = body.api({POINTER: POINTER_HOOK, CSTR: CSTR_HOOK}.get(kind, U64_HOOK))
    converted = body.value(f"call i32 {hook}(ptr %callee, i64 {index}, ptr {item}{view}, ptr %out{index})")
    body.require(body.value(f"icmp ne i32 {converted}, 0"), "fail")
    if kind == POINTER and not readonly:
        _check_writable(body, index, item)
    return [f"{llvm_type} {body.value(f'load {llvm_type}, ptr %out{index}')}"]


def _check_writable(body: _Body, index: int, item: str) -> None:
    """Append a check that fails if a pointer belongs to a read-only buffer. A pointer that is a plain address has no buffer."""
    is_address = body.value(f"icmp eq ptr {body.value(f'load ptr, ptr %obj{index}')}, null")
    readonly = body.value(f"load i32, ptr {body.value(f'getelementptr inbounds i8, ptr %view{index}, i64 {VIEW_READONLY}')}")
    may_write = body.value(f"select i1 {is_address}, i1 true, i1 {body.value(f'icmp eq i32 {readonly}, 0')}")
    body.require_valid(may_write, index, item, "readonly")


def _convert_buffer(body: _Body, index: int, parameter: Parameter, item: str, *, writable: bool) -> list[str]:
    """Append the conversion of an argument to a buffer. Return the LLVM arguments: its address, then its extents or number of elements.

    With `writable`, the call fails for read-only memory.
    """
    element = parameter.type
    wanted = wanted_buffer(element, writable=writable)
    hook = body.api(BUFFER)
    acquired = body.value(f"call i32 {hook}(ptr %callee, i64 {index}, ptr {item}, ptr %view{index}, i32 {wanted})")
    body.require(body.value(f"icmp ne i32 {acquired}, 0"), "fail")
    data = body.value(f"load ptr, ptr %view{index}")
    if parameter.dimensions:
        return [f"ptr {data}", *_check_extents(body, index, parameter.dimensions, item)]
    size_at = body.value(f"getelementptr inbounds i8, ptr %view{index}, i64 16")
    size = body.value(f"load i64, ptr {size_at}")
    return [f"ptr {data}", f"i64 {body.value(f'udiv exact i64 {size}, {element.size}')}"]


def wanted_buffer(element: Type, *, writable: bool) -> int:
    """Return what a parameter requires of a buffer, as `wanted` of `EntryApi.acquire_buffer`. With `writable`, memory must be writable."""
    return element.size | ord(_KIND_LETTER[element.kind]) << 8 | int(writable) << 16


def _check_extents(body: _Body, index: int, dimensions: int, item: str) -> list[str]:
    """Append a check of a buffer's number of dimensions, and loads of its extents, and return the LLVM arguments for the extents."""
    count = body.value(f"load i32, ptr {body.value(f'getelementptr inbounds i8, ptr %view{index}, i64 {VIEW_NDIM}')}")
    body.require_valid(body.value(f"icmp eq i32 {count}, {dimensions}"), index, item, "shape")
    shape = body.value(f"load ptr, ptr {body.value(f'getelementptr inbounds i8, ptr %view{index}, i64 {VIEW_SHAPE}')}")
    addresses = [body.value(f"getelementptr inbounds i64, ptr {shape}, i64 {axis}") for axis in range(dimensions)]
    return [f"i64 {body.value(f'load i64, ptr {address}')}" for address in addresses]


def _convert_float(body: _Body, index: int, item: str, llvm_type: str) -> list[str]:
    """Append the conversion of an argument to a float. Return the LLVM argument as a list of one."""
    number = body.value(f"call double @PyFloat_AsDouble(ptr {item})")
    body.fail_on_error_if(body.value(f"fcmp oeq double {number}, -1.0"), index, item)
    if llvm_type == "float":
        number = body.value(f"fptrunc double {number} to float")
    return [f"{llvm_type} {number}"]


def _convert_integer(body: _Body, index: int, item: str, kind: str, size: int) -> list[str]:
    """Append the conversion of an argument to an integer, with the check of its range. Return the LLVM argument as a list of one."""
    number = body.value(f"call i64 @PyLong_AsLongLong(ptr {item})")
    body.fail_on_error_if(body.value(f"icmp eq i64 {number}, -1"), index, item)
    if size == 8:  # noqa: PLR2004 - bytes
        return [f"i64 {number}"]
    extend, attribute = ("sext", "signext") if kind == SIGNED else ("zext", "zeroext")
    narrow = body.value(f"trunc i64 {number} to i{8 * size}")
    back = body.value(f"{extend} i{8 * size} {narrow} to i64")
    body.require_valid(body.value(f"icmp eq i64 {number}, {back}"), index, item, "range")
    return [f"i{8 * size} {attribute} {narrow}"]


def _call_function(body: _Body, entry: EntryPoint, result: Type, arguments: list[str]) -> None:
    """Append the call of the compiled function and the conversion of its result. If `entry.nogil` is set, the call releases the GIL."""
    function_address = body.value(f"getelementptr inbounds i8, ptr %callee, i64 {FUNCTION_AT}")
    function = body.value(f"load ptr, ptr {function_address}")
    if entry.nogil:
        body.emit("%thread = call ptr @PyEval_SaveThread()")
    extend = {SIGNED: "signext ", UNSIGNED: "zeroext ", BOOL: "zeroext "}.get(result.kind, "")
    extend = extend if result.size < 8 else ""  # noqa: PLR2004 - bytes
    call = " ".join(filter(None, ["call", entry.convention, f"{extend}{entry.result} {function}({', '.join(arguments)})"]))
    value = "" if entry.result == "void" else body.value(call)
    if not value:
        body.emit(call)
    if entry.nogil:
        body.emit("call void @PyEval_RestoreThread(ptr %thread)")
    if entry.may_raise:  # a function that uses Python's C API
        raised = body.value("call ptr @PyErr_Occurred()")
        body.require(body.value(f"icmp eq ptr {raised}, null"), "fail")
    if result.kind == TUPLE:
        _return_tuple(body, result.items())
    else:
        body.emit(*_return_value(body, result, entry.result, value), "br label %done")


def _return_tuple(body: _Body, items: tuple[Type, ...]) -> None:
    """Append code that returns a tuple of the values that the function has stored."""
    body.emit(f"%result = call ptr @PyTuple_New(i64 {len(items)})")
    body.require(body.value("icmp ne ptr %result, null"), "fail")
    for number, item in enumerate(items):
        llvm_type = "i8" if item.kind == BOOL else _value_types(item)[0]
        slot = body.value(f"getelementptr inbounds i64, ptr %items, i64 {number}")
        (line,) = _return_value(body, item, llvm_type, body.value(f"load {llvm_type}, ptr {slot}"))
        created = body.value(line.partition(" = ")[2])
        created_block, failed_block = body.name("ok"), body.name("none")
        body.branch(body.value(f"icmp ne ptr {created}, null"), created_block, failed_block)
        body.block(failed_block)
        body.emit("call void @Py_DecRef(ptr %result)", "br label %fail")
        body.block(created_block)
        body.emit(f"call i32 @PyTuple_SetItem(ptr %result, i64 {number}, ptr {created})")
    body.emit("br label %done")


def _return_value(body: _Body, result: Type, llvm_type: str, value: str) -> list[str]:
    """Append the conversion of the function's result to an object. Return the line that defines `%result`, as a list of one.

    A select with a constant condition gives a value this name, because LLVM has no instruction that copies.
    """
    if result.kind == VOID:
        body.emit("call void @Py_IncRef(ptr @_Py_NoneStruct)")
        return ["%result = select i1 true, ptr @_Py_NoneStruct, ptr null"]
    if result.kind == FLOAT:
        wide = body.value(f"fpext float {value} to double") if llvm_type == "float" else value
        return [f"%result = call ptr @PyFloat_FromDouble(double {wide})"]
    if result.kind in (POINTER, OBJECT):
        conversion = "call ptr @PyLong_FromVoidPtr(ptr {})" if result.kind == POINTER else "select i1 true, ptr {}, ptr null"
        return [f"%result = {conversion.format(value)}"]
    if result.kind == CSTR:
        return [f"%result = call ptr {body.api(FROM_CSTR)}(ptr {value})"]
    if result.kind == BOOL:
        truth = body.value(f"icmp ne {llvm_type} {value}, 0")
        return [f"%result = call ptr @PyBool_FromLong(i64 {body.value(f'zext i1 {truth} to i64')})"]
    maker = "PyLong_FromLongLong" if result.kind == SIGNED else "PyLong_FromUnsignedLongLong"
    if result.size < 8:  # noqa: PLR2004 - bytes
        value = body.value(f"{'sext' if result.kind == SIGNED else 'zext'} {llvm_type} {value} to i64")
    return [f"%result = call ptr @{maker}(i64 {value})"]


def symbols_of_entries(entries: Sequence[EntryPoint]) -> list[str]:
    """Return the symbols of entry points. They do not depend on the module, so many modules can share one compilation."""
    return [_symbol_of(entry) for entry in entries]


@lru_cache(maxsize=_KEPT)
def _symbol_of(entry: EntryPoint) -> str:
    """Return the symbol of an entry point. Equal entry points have equal symbols."""
    return f"compcache.entry.{digest([repr(tuple(entry)).encode()], size=_SYMBOL_SIZE).hex()}"


def entries_text(entries: Sequence[EntryPoint]) -> str:
    """Return the LLVM assembly of a module's entry points. It depends on nothing else in the module."""
    texts = [entry_text(*pair) for pair in zip(symbols_of_entries(entries), entries, strict=True)]
    return "\n".join([_DECLARATIONS, *texts, ""])


def table_head(key: bytes, count: int) -> bytes:
    """Return the head of the table of a module (`compcache.formats.module_table`). `count` is the number of its symbols."""
    return TABLE_MAGIC + _TABLE_FIELDS.pack(ABI_VERSION, count) + key


def table_symbols_of(functions: Sequence[str], entries: Sequence[EntryPoint], slots: Sequence[str]) -> list[str]:
    """Return the symbols of the table, in the order of their numbers.

    `functions` are the exports, variables included. `slots` are import slots and global variables.
    """
    return [*functions, *symbols_of_entries(entries), *slots]


def table_text(
    key: bytes, functions: Sequence[str], entries: Sequence[EntryPoint], slots: Sequence[str], variables: Collection[str] = ()
) -> str:
    """Return the LLVM assembly of a module's table and entry points, to be linked into the module.

    The table contains offsets from its own start, so the dynamic linker relocates nothing in it. `functions` are the exported symbols, and
    `variables` those that are variables. `slots` are import slots and global variables.
    """
    symbols = table_symbols_of(functions, entries, slots)
    table = f"@{TABLE_SYMBOL}"
    offsets = ", ".join(
        f"i32 trunc (i64 sub (i64 ptrtoint (ptr @{quote(symbol)} to i64), i64 ptrtoint (ptr {table} to i64)) to i32)" for symbol in symbols
    )
    head = "".join(f"\\{byte:02X}" for byte in table_head(key, len(symbols)))
    size = TABLE_HEAD_SIZE + len(key)
    return "\n".join([
        entries_text(entries),
        *(f"declare hidden void @{quote(symbol)}()" for symbol in dict.fromkeys(functions) if symbol not in variables),
        *(f"@{quote(symbol)} = external hidden global i8" for symbol in dict.fromkeys((*slots, *variables))),
        (f'{table} = protected constant {{ [{size} x i8], [{len(symbols)} x i32] }} {{ [{size} x i8] c"{head}", '
        f"[{len(symbols)} x i32] [{offsets}] }}, align 16"),
        "",
    ])  # fmt: skip
