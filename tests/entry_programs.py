"""Functions of random signatures, called with right and wrong arguments: what their entry points say, whichever way these were made."""

from __future__ import annotations

import random
import sys
from array import array
from typing import TYPE_CHECKING, Any

from compcache import Cache, Function, ModuleSource
from compcache.build.entry_code import object_file
from compcache.signature import BOOL, CSTR, FLOAT, OBJECT, POINTER, Signature
from compcache.translation import emission

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCALARS = ("bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64")
BUFFERS = tuple(f"{const}{name}{shape}" for const in ("", "const ") for name in ("i8", "u16", "f32", "i64", "f64") for shape in ("[:]", "[::1]", "[:, ::1]"))  # noqa: E501
OTHERS = ("ptr", "const ptr", "cstr", "object")
CODES = {"i8": "b", "u16": "H", "f32": "f", "i64": "q", "f64": "d"}
LLVM = {"bool": "i1", "f32": "float", "f64": "double", "ptr": "ptr", "cstr": "ptr", "object": "ptr", "void": "void"}
MANY = 24


def _llvm(name: str) -> str:
    return LLVM.get(name) or f"i{name[1:]}"


def random_signature(rng: random.Random) -> str:
    """Mostly some parameters of all types, sometimes more than there are registers for."""
    count = rng.choice((0, 1, 1, 2, 3, 4, 7, MANY))
    kinds = rng.choice((SCALARS, (*SCALARS, *BUFFERS), (*BUFFERS, *OTHERS), ("f64", "f32", "i32", "bool"), ("object", "f32", "i64")))
    results = ["void", "ptr", "cstr", *SCALARS]
    results += [f"tuple[{', '.join(rng.choice(SCALARS) for _ in range(rng.choice((1, 2, 9))))}]"]
    return f"{rng.choice(results)}({', '.join(rng.choice(kinds) for _ in range(count))})"


class _Body:
    """A function that makes a number of all its arguments, and its result of that."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.parameters: list[str] = []
        self.count = 0
        self.number = "7"

    def value(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def take(self, llvm_type: str, attribute: str = "") -> None:
        name = f"%p{len(self.parameters)}"
        self.parameters.append(f"{llvm_type} {attribute} {name}")
        if llvm_type in ("float", "double"):
            bits = "i32" if llvm_type == "float" else "i64"
            name, llvm_type = self.value(f"bitcast {llvm_type} {name} to {bits}"), bits
        if llvm_type == "ptr":
            name = self.value(f"ptrtoint ptr {name} to i64")
        elif llvm_type != "i64":
            name = self.value(f"{'sext' if attribute == 'signext' else 'zext'} {llvm_type} {name} to i64")
        self.number = self.value(f"add i64 {self.value(f'mul i64 {self.number}, 31')}, {name}")

    def give(self, llvm_type: str) -> str:
        if llvm_type in ("float", "double"):
            return self.value(f"sitofp i16 {self.value(f'trunc i64 {self.number} to i16')} to {llvm_type}")
        if llvm_type == "i64":
            return self.number
        return self.value(f"trunc i64 {self.number} to {llvm_type}")


def definition(rng: random.Random, name: str, signature: Signature) -> str:
    """The function in LLVM's assembly."""
    body, result = _Body(), signature.result
    if result.name.startswith("tuple"):
        body.parameters.append("ptr %items")
    for parameter in signature.parameters:
        type_ = parameter.type
        if parameter.is_buffer:
            body.take("ptr")
            for _ in range(parameter.dimensions or 1):
                body.take("i64")
        elif type_.kind == BOOL:
            body.take(rng.choice(("i1", "i8")), "zeroext")
        elif type_.kind in (FLOAT, POINTER, CSTR, OBJECT) or type_.size == 8:
            body.take(_llvm(type_.name))
        else:
            body.take(_llvm(type_.name), "signext" if type_.name[0] == "i" else "zeroext")
    if result.name.startswith("tuple"):
        for number, item in enumerate(result.items()):
            llvm_type = "i8" if item.kind == BOOL else _llvm(item.name)
            place = body.value(f"getelementptr i64, ptr %items, i64 {number}")
            body.lines.append(f"  store {llvm_type} {body.give(llvm_type)}, ptr {place}")
        returned, ending = "void", "ret void"
    else:
        returned = rng.choice(("i1", "i8")) if result.kind == BOOL else _llvm(result.name)
        if result.kind == CSTR:
            ending = "ret ptr @text"
        elif result.kind == POINTER:
            ending = f"ret ptr {body.value(f'inttoptr i64 {body.number} to ptr')}"
        else:
            ending = "ret void" if returned == "void" else f"ret {returned} {body.give(returned)}"
        if returned in ("i1", "i8", "i16", "i32"):
            returned = f"{'signext' if result.name[0] == 'i' else 'zeroext'} {returned}"
    return "\n".join([f"define {returned} @{name}({', '.join(body.parameters)}) noinline {{", *body.lines, f"  {ending}", "}", ""])


def argument(rng: random.Random, parameter: Any) -> Any:  # noqa: PLR0911 - one for each kind
    """Mostly an argument that will do."""
    if rng.random() < 0.06:
        return rng.choice((None, "text", -1, -1.0, 2**70, -(2**63), True, b"bytes", array("i", [1]), object(), 300, 1e300))
    type_ = parameter.type
    if parameter.is_buffer:
        code = CODES[type_.name]
        data = array(code, [rng.randrange(100) for _ in range(6)])
        view: Any = memoryview(data)
        if parameter.dimensions == 2:
            view = view.cast("B").cast(code, (2, 3))
        return view.toreadonly() if rng.random() < 0.15 else view if parameter.dimensions == 2 or rng.random() < 0.3 else data
    if type_.kind == FLOAT:
        return rng.choice((-1.0, 0.0, 1.5, 3, -1))
    if type_.kind == BOOL:
        return rng.choice((True, False, 0, 2, "", [1]))
    if type_.kind == POINTER:
        return rng.choice((0, 64, array("d", [1.0]), b"read", memoryview(bytearray(4))))
    if type_.kind == CSTR:
        return rng.choice(("text", b"bytes", None))
    if type_.kind == OBJECT:
        return rng.choice(([], object(), 1.5))
    bits = 8 * type_.size
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if type_.name[0] == "i" else (0, (1 << bits) - 1)
    return rng.choice((low, high, 0, 1, 5, max(low, -1)))


def arguments(rng: random.Random, signature: Signature) -> list[Any]:
    """Those of one call; sometimes their number is wrong."""
    given = [argument(rng, parameter) for parameter in signature.parameters]
    if rng.random() < 0.05:
        given = given[:-1] if given and rng.random() < 0.5 else [*given, 1]
    return given


def outcome(call: Callable[..., Any], given: Sequence[Any], names: dict[str, Any]) -> tuple[str, str]:
    """The type and text of a result or of an error."""
    own = [item for item in given if isinstance(item, (list, array, memoryview))]  # others may have referents elsewhere
    before = [sys.getrefcount(item) for item in own]
    try:
        result: Any = call(*given, **names)
    except Exception as error:  # noqa: BLE001 - that is what is compared
        result = error.with_traceback(None)
    shown = type(result).__name__, repr(result)
    del result
    return shown[0], f"{shown[1]} {[sys.getrefcount(item) - count for item, count in zip(own, before, strict=True)]}"


def differences(directory: str, seed: int, count: int, calls: int) -> tuple[int, list[Any]]:
    """How many calls of functions succeeded, and those that end otherwise where LLVM has compiled the entry points."""
    rng = random.Random(seed)
    signatures = {f"f{number}": Signature.parse(random_signature(rng)) for number in range(count)}
    code = '@text = constant [5 x i8] c"text\\00"\n' + "".join(definition(rng, name, of) for name, of in signatures.items())
    given = [(name, arguments(rng, of), {} if rng.random() < 0.97 else {"no": 1}) for name, of in signatures.items() for _ in range(calls)]
    functions = {
        name: Function(str(of), nogil="object" not in str(of) and rng.random() < 0.3) for name, of in signatures.items()
    }  # fmt: skip
    real = object_file.entry_object
    answers = []
    for number, way in enumerate((real, lambda points: (b"", tuple(points)))):
        object_file.entry_object = way  # type: ignore[assignment]
        emission._objects_of.cache_clear()
        try:
            with Cache(f"{directory}/{number}") as cache:
                cache.add_module(ModuleSource(code, functions))
                targets = {name: cache.get_target(name) for name in signatures}
                answers.append([outcome(targets[name], values, names) for name, values, names in given])
        finally:
            object_file.entry_object = real
            emission._objects_of.cache_clear()
    good = sum(text.endswith("]") and "Error" not in kind for kind, text in answers[0])
    unequal = [(str(signatures[call[0]]), call, *pair) for call, *pair in zip(given, *answers, strict=True) if pair[0] != pair[1]]
    return good, unequal
