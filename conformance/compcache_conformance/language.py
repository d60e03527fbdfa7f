"""Programs that scenarios are about, and their text in the languages that systems compile.

A program is a few functions of numbers and the constants that they read, each in a file. Bodies are expressions that are the same
in Python and in C, so that one program serves every system; LLVM code is made of them here.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "SHAPES",
    "Constant",
    "Function",
    "Program",
    "Spelling",
    "as_c",
    "as_llvm",
    "as_python",
    "headers",
    "names_in",
    "program",
    "program_of",
    "tagged",
]

#: What of programs not every language can say: `Program.shapes`, and those of adapters.
SHAPES = frozenset(
    {"call", "files", "constant", "table", "environment", "data", "header", "embedded", "record", "closure", "fast", "default"}
)


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, or a table of numbers, that functions read by name.

    `source` says where the value comes from when the program starts: "text" is the source itself, "environment" the variable of this
    name, "data" the file of this name beside the sources, "tool" what a program beside them prints that another one calls, "header" a
    header that a header includes, "embedded" a file that assembly puts into the code (`.incbin`), "record" a field of an object.
    """

    name: str
    value: float | tuple[float, ...]
    file: str = "main"
    source: str = "text"


@dataclass(frozen=True, slots=True)
class Function:
    """A function of numbers. `closes_over` are variables of the function that makes it; `fast` allows inexact arithmetic."""

    name: str
    body: str
    arguments: tuple[str, ...] = ("x",)
    file: str = "main"
    fast: bool = False
    closes_over: tuple[tuple[str, float], ...] = ()
    defaults: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """Functions and constants; what is defined first is there for what comes later."""

    functions: tuple[Function, ...]
    constants: tuple[Constant, ...] = ()
    comment: str = ""
    options: tuple[str, ...] = field(default=())

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files, `main` last."""
        names = ({constant.file for constant in self.constants} | {function.file for function in self.functions}) - {"main"}
        return (*sorted(names), "main")

    @property
    def shapes(self) -> frozenset[str]:
        """What a system's front end must have for this program to be said in it."""
        found = {"files" for name in self.files if name != "main"}
        for constant in self.constants:
            found.add({"text": "constant", "tool": "data"}.get(constant.source, constant.source))
            if isinstance(constant.value, tuple):
                found.add("table")
        names = [function.name for function in self.functions]
        for function in self.functions:
            found |= {"fast"} if function.fast else set()
            found |= {"closure"} if function.closes_over else set()
            found |= {"default"} if function.defaults else set()
            found |= {"call"} if names_in(function.body) & set(names) else set()
        return frozenset(found)

    def function(self, name: str) -> Function:
        """The function of this name."""
        return next(function for function in self.functions if function.name == name)


def program(body: str = "x * 2.0 + 1.0", **other: str | Function | Constant) -> Program:
    """A program of one function, `f`, and of what is given beside it: bodies, constants or functions by name."""
    functions = [
        value if isinstance(value, Function) else Function(name, value) for name, value in other.items() if not isinstance(value, Constant)
    ]
    constants = [value for value in other.values() if isinstance(value, Constant)]
    return Program((*functions, Function("f", body)), tuple(constants))


def program_of(shapes: Iterable[str]) -> Program:
    """The smallest program that has these: ``f`` and the shape's name is a function that has it, of which the answer to 3.0 is 7.0."""
    functions: list[Function] = []
    constants: list[Constant] = []
    for shape in shapes:
        name, plain = f"f{shape}", Function(f"f{shape}", "x * 2.0 + 1.0")
        match shape:
            case "call" | "files":
                functions.append(Function(f"g{shape}", "x * 2.0", file="other" if shape == "files" else "main"))
                plain = replace(plain, body=f"g{shape}(x) + 1.0")
            case "constant" | "environment" | "data" | "header" | "embedded" | "record":
                constants.append(Constant(f"K{shape}", 2.0, source="text" if shape == "constant" else shape))
                plain = replace(plain, body=f"x * K{shape} + 1.0")
            case "table":
                constants.append(Constant("Ktable", (1.0, 2.0)))
                plain = replace(plain, body="x * Ktable[1] + 1.0")
            case "closure":
                plain = Function(name, "x * k + 1.0", closes_over=(("k", 2.0),))
            case "default":
                plain = Function(name, "x * y + 1.0", ("x", "y"), defaults=(2.0,))
            case "fast":
                plain = replace(plain, fast=True)
        functions.append(plain)
    return Program(tuple(functions), tuple(constants))


def names_in(body: str) -> set[str]:
    """The names that an expression mentions."""
    return {node.id for node in ast.walk(ast.parse(body, mode="eval")) if isinstance(node, ast.Name)}


def tagged(program: Program, tag: str) -> Program:
    """The program with this behind the name of each file, function and constant, so that it can stand in one with others."""
    own = {function.name for function in program.functions} | {constant.name for constant in program.constants}

    def body(function: Function) -> str:
        local = {*function.arguments, *(name for name, _ in function.closes_over)}
        return re.sub(r"[A-Za-z_]\w*", lambda word: word[0] + tag if word[0] in own - local else word[0], function.body)

    return Program(
        tuple(replace(said, name=said.name + tag, file=said.file + tag, body=body(said)) for said in program.functions),
        tuple(replace(said, name=said.name + tag, file=said.file + tag) for said in program.constants),
    )


# ---------------------------------------------------------------- Python


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a system that compiles Python functions wants them written.

    `entry` and `callee` give the decorator of a function that is called from Python, and of one that is called by others; `annotation`
    is that of arguments and results; `prefix` stands at the head of every file; `body` and `value` may write expressions and
    constants in another way, and `footer` follows a function.
    """

    prefix: str
    entry: Callable[[Function], str]
    callee: Callable[[Function], str] | None = None
    annotation: str = ""
    body: Callable[[str], str] = str
    value: Callable[[str], str] = str
    footer: Callable[[Function], str] | None = None


def as_python(program: Program, file: str, spelling: Spelling) -> str:
    """The text of one file of a program as a Python module."""
    lines = [
        f"# {program.comment}" if program.comment else "",
        "import os",
        "from pathlib import Path",
        "from collections import namedtuple",
        spelling.prefix,
    ]
    lines += [line for line in (_python_import(program, file, name) for name in program.files if name != file) if line]
    lines += [_python_constant(constant, spelling.value) for constant in program.constants if constant.file == file]
    called = {name for function in program.functions for name in names_in(function.body)}
    for function in program.functions:
        if function.file == file:
            decorator = spelling.callee if spelling.callee and function.name in called else spelling.entry
            lines.append(_python_function(program, function, decorator(function), spelling))
            lines += [spelling.footer(function)] if spelling.footer else []
    return "\n".join(lines) + "\n"


def _python_import(program: Program, file: str, other: str) -> str:
    used = {name for function in program.functions if function.file == file for name in names_in(function.body)}
    there = [c.name for c in program.constants if c.file == other] + [f.name for f in program.functions if f.file == other]
    names = sorted(name for name in there if name in used or file == "main")
    return f"from {other} import {', '.join(names)}" if names else ""


def _python_constant(constant: Constant, spell: Callable[[str], str]) -> str:
    name = constant.name
    texts = {
        "environment": f"float(os.environ['CONFORMANCE_{name}'])",
        "data": f"float(Path(__file__).with_name('{name}.txt').read_text())",
        "tool": f"float(__import__('subprocess').check_output(['sh', str(Path(__file__).with_name('{name}.sh'))]))",
        "text": repr(constant.value),
    }
    if constant.source == "record":
        return f"_{name} = namedtuple('_{name}', 'value')\n{name} = _{name}({spell(repr(constant.value))})"
    return f"{name} = {spell(texts[constant.source])}"


def _python_function(program: Program, function: Function, decorator: str, spelling: Spelling) -> str:
    with_defaults = len(function.arguments) - len(function.defaults)
    parameters = [
        argument + spelling.annotation + (f"={function.defaults[at - with_defaults]!r}" if at >= with_defaults else "")
        for at, argument in enumerate(function.arguments)
    ]
    returns = f" -> {spelling.annotation.removeprefix(':').strip()}" if spelling.annotation else ""
    records = {constant.name for constant in program.constants if constant.source == "record"}
    body = function.body
    for name in records & names_in(body):
        body = body.replace(name, f"{name}.value")
    lines = [decorator, f"def {function.name}({', '.join(parameters)}){returns}:", f"    return {spelling.body(body)}"]
    if not function.closes_over:
        return "\n".join(lines)
    names = ", ".join(name for name, _ in function.closes_over)
    inner = "\n".join("    " + line for line in lines)
    values = ", ".join(spelling.value(repr(value)) for _, value in function.closes_over)
    return f"def make_{function.name}({names}):\n{inner}\n    return {function.name}\n{function.name} = make_{function.name}({values})"


# ---------------------------------------------------------------- C


def as_c(program: Program, file: str) -> str:
    """The text of one file of a program in C; files beside `main` are headers."""
    lines = [f"/* {program.comment} */" if program.comment else "", "#include <math.h>"]
    if file == "main":
        lines += [f'#include "{name}.h"' for name in program.files if name != "main"]
    for constant in program.constants:
        if constant.file == file and constant.source == "text":
            lines.append(_c_constant(constant))
        elif constant.file == file and constant.source == "header":
            lines.append(f'#include "{constant.name}_outer.h"')
        elif constant.file == file and constant.source == "embedded":
            here = f"{constant.name}_here"
            lines.append(f'__asm__(".pushsection .rodata\\n.balign 8\\n{here}: .incbin \\"{constant.name}.bin\\"\\n.popsection");')
            lines.append(f'extern const double {here}[] __attribute__((visibility("hidden")));\n#define {constant.name} ({here}[0])')
    for function in program.functions:
        if function.file == file:
            arguments = ", ".join(f"double {argument}" for argument in function.arguments)
            head = f"{'static ' if file != 'main' else ''}double {function.name}({arguments})"
            lines.append(f"{head} {{ return {function.body}; }}")
    return "\n".join(lines) + "\n"


def headers(program: Program) -> dict[str, str]:
    """The headers of constants that headers define, by their names."""
    found = {}
    for constant in program.constants:
        if constant.source == "header":
            found[f"{constant.name}_outer.h"] = f'#include "{constant.name}_inner.h"\n'
            found[f"{constant.name}_inner.h"] = _c_constant(constant) + "\n"
    return found


def _c_constant(constant: Constant) -> str:
    if isinstance(constant.value, tuple):
        return f"static const double {constant.name}[] = {{{', '.join(repr(value) for value in constant.value)}}};"
    return f"#define {constant.name} ({constant.value!r})"


# ---------------------------------------------------------------- LLVM

_OPERATIONS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}


def as_llvm(program: Program, name: str, *, callees: bool = True) -> str:
    """LLVM code of a function, with all that it calls and reads; with `callees` false, calls are of declared functions."""
    known = {function.name: function for function in program.functions}
    wanted, reached = [name], {}
    while wanted:
        function = known[wanted.pop()]
        if function.name not in reached:
            reached[function.name] = function
            wanted += sorted(names_in(function.body) & set(known)) if callees else []
    order = list(reached.values())
    read = {word for function in order for word in names_in(function.body)}
    text = [_llvm_table(constant) for constant in program.constants if isinstance(constant.value, tuple) and constant.name in read]
    text += [_Body(program, function).text() for function in order]
    declared = sorted((read & set(known)) - set(reached))
    text += [f"declare double @{other}({', '.join('double' for _ in known[other].arguments)})" for other in declared]
    return "\n".join(text) + "\n"


def _llvm_table(constant: Constant) -> str:
    assert isinstance(constant.value, tuple)
    values = ", ".join(f"double {_number(value)}" for value in constant.value)
    return f"@{constant.name} = internal constant [{len(constant.value)} x double] [{values}]"


def _number(value: float) -> str:
    import struct

    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


class _Body:
    """One function's instructions."""

    def __init__(self, program: Program, function: Function) -> None:
        self._constants = {constant.name: constant.value for constant in program.constants} | dict(function.closes_over)
        self._function = function
        self._lines: list[str] = []

    def text(self) -> str:
        """The function's definition."""
        result = self._value(ast.parse(self._function.body, mode="eval").body)
        head = ", ".join(f"double %{argument}" for argument in self._function.arguments)
        lines = "\n".join(f"  {line}" for line in self._lines)
        return f"define double @{self._function.name}({head}) {{\n{lines}\n  ret double {result}\n}}"

    def _emit(self, instruction: str) -> str:
        self._lines.append(f"%t{len(self._lines)} = {instruction}")
        return f"%t{len(self._lines) - 1}"

    def _value(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=value):
                return _number(float(str(value)))
            case ast.Name(id=name):
                known = self._constants.get(name)
                return _number(known) if isinstance(known, (int, float)) else f"%{name}"
            case ast.BinOp(left, operation, right):
                fast = " fast" if self._function.fast else ""
                return self._emit(f"{_OPERATIONS[type(operation)]}{fast} double {self._value(left)}, {self._value(right)}")
            case ast.Call(func=ast.Name(id=name), args=arguments):
                values = ", ".join(f"double {self._value(argument)}" for argument in arguments)
                return self._emit(f"call double @{name}({values})")
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(index))):
                table = self._constants[name]
                size = len(table) if isinstance(table, tuple) else 0
                place = self._emit(f"getelementptr [{size} x double], ptr @{name}, i64 0, i64 {index}")
                return self._emit(f"load double, ptr {place}")
        raise ValueError(f"no LLVM code for {ast.unparse(node)!r}")


def edited(program: Program, name: str, **changes: object) -> Program:
    """The program with one function or constant changed."""

    def change(items: Iterable[Function] | Iterable[Constant]) -> tuple[object, ...]:
        return tuple(replace(item, **changes) if item.name == name else item for item in items)  # type: ignore[arg-type]

    return replace(program, functions=change(program.functions), constants=change(program.constants))  # type: ignore[arg-type]
