"""Code that reads a global, for the tests of globals."""

from __future__ import annotations

import ctypes
from typing import Any

from compcache import Cache, ModuleSource

#: Storage types by name: (LLVM type of the variable, body that reads it, signature of the function).
READERS = {
    "i8": ("i8", "%r = load i8, ptr @g\nret i8 %r", "i8()"),
    "i16": ("i16", "%r = load i16, ptr @g\nret i16 %r", "i16()"),
    "i32": ("i32", "%r = load i32, ptr @g\nret i32 %r", "i32()"),
    "i64": ("i64", "%r = load i64, ptr @g\nret i64 %r", "i64()"),
    "u64": ("i64", "%r = load i64, ptr @g\nret i64 %r", "u64()"),
    "i1": ("i1", "%r = load i1, ptr @g\nret i1 %r", "bool()"),
    "float": ("float", "%r = load float, ptr @g\nret float %r", "f32()"),
    "double": ("double", "%r = load double, ptr @g\nret double %r", "f64()"),
    "pointer": ("ptr", "%r = load ptr, ptr @g\nret ptr %r", "ptr()"),
    "text": ("ptr", "%r = load ptr, ptr @g\nret ptr %r", "cstr()"),
    "length": ("{ptr, i64}", "%p = getelementptr {ptr, i64}, ptr @g, i64 0, i32 1\n%r = load i64, ptr %p\nret i64 %r", "i64()"),
    "span": ("{ptr, i64}", "%r = load ptr, ptr @g\nret ptr %r", "ptr()"),
    "inline": ("[12 x i8]", "ret ptr @g", "ptr()"),
    "structure": ("{ i64, i32 }", "ret ptr @g", "ptr()"),
}


def source_of(value: object, form: str, name: str = "f") -> ModuleSource:
    llvm_type, body, signature = READERS[form]
    result = body.rpartition("ret ")[2].split(" ")[0]
    text = f"@g = external global {llvm_type}\ndefine {result} @{name}() {{\n{body}\n}}\n"
    return ModuleSource(text, {name: signature}, {"g": value})


def read(cache: Cache, value: object, form: str) -> Any:
    """What compiled code reads from a global of this form."""
    cache.add_module(source_of(value, form))
    return cache.get_target("f")()


# ------------------------------------------------------------------------------------ objects by name


def object_at(address: int) -> object:
    return ctypes.cast(address, ctypes.py_object).value
