"""What exported code has of the extension module `_objects`: its plan, and functions that call those of the module's table."""

from __future__ import annotations

from compcache.numba.exports.plan import BOX, ENTER, LEAVE, PREPARE

__all__ = ["BOX_SYMBOL", "ENTER_SYMBOL", "LEAVE_SYMBOL", "PLAN_SYMBOL", "objects_text"]

PLAN_SYMBOL, ENTER_SYMBOL = "compcache.numba.plan", "compcache.numba.enter"
LEAVE_SYMBOL, BOX_SYMBOL = "compcache.numba.leave", "compcache.numba.box"
_MODULE, _TABLE = "compcache.numba.exports._objects", "functions"

#: Symbols that the table provides: number, result, parameters.
_CALLS: dict[str, tuple[int, str, str]] = {
    ENTER_SYMBOL: (ENTER, "i32", "ptr, ptr, ptr"),
    LEAVE_SYMBOL: (LEAVE, "void", "ptr, ptr, ptr"),
    BOX_SYMBOL: (BOX, "ptr", "ptr, ptr"),
}


def objects_text(plan: bytes) -> str:
    """Assembly of the plan, of the function that prepares it once, and of those that call the table."""
    return "\n".join([
        _text("compcache.numba.plan_bytes", plan, align=8),
        _text("compcache.numba.module", _MODULE.encode() + b"\0"),
        _text("compcache.numba.table_name", _TABLE.encode() + b"\0"),
        _text("compcache.numba.capsule", f"{_MODULE}.{_TABLE}".encode() + b"\0"),
        _PREPARING.replace("PLAN_SIZE", str(len(plan))).replace("PREPARE_AT", str(PREPARE)),
        *(_call_text(symbol, *call) for symbol, call in _CALLS.items()),
    ])  # fmt: skip


def _text(name: str, data: bytes, align: int = 1) -> str:
    body = "".join(f"\\{byte:02X}" for byte in data)
    return f'@{name} = internal constant [{len(data)} x i8] c"{body}", align {align}'


def _call_text(symbol: str, number: int, result: str, parameters: str) -> str:
    types = [part.strip() for part in parameters.split(",") if part.strip()]
    given = ", ".join(f"{type_} %{index}" for index, type_ in enumerate(types))
    call = f"call {result} %function({given})"
    return "\n".join([
        f"define {result} @{symbol}({given}) alwaysinline {{",
        "start:",
        "  %table = load ptr, ptr @compcache.numba.table",
        f"  %at = getelementptr ptr, ptr %table, i64 {number}",
        "  %function = load ptr, ptr %at",
        *([f"  {call}", "  ret void"] if result == "void" else [f"  %value = {call}", f"  ret {result} %value"]),
        "}",
    ])  # fmt: skip


_PREPARING = """
@compcache.numba.table = internal global ptr null
@compcache.numba.prepared = internal global ptr null
declare ptr @PyImport_ImportModule(ptr)
declare ptr @PyObject_GetAttrString(ptr, ptr)
declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare void @Py_DecRef(ptr)

define ptr @compcache.numba.plan() {
  %known = load atomic ptr, ptr @compcache.numba.prepared acquire, align 8
  %is_known = icmp ne ptr %known, null
  br i1 %is_known, label %done, label %first
first:
  %plan = call ptr @compcache.numba.prepare()
  ret ptr %plan
done:
  ret ptr %known
}

; The capsule lives as long as the extension module, which is never unloaded.
define internal ptr @compcache.numba.prepare() cold noinline {
  %module = call ptr @PyImport_ImportModule(ptr @compcache.numba.module)
  %no_module = icmp eq ptr %module, null
  br i1 %no_module, label %failed, label %imported
imported:
  %capsule = call ptr @PyObject_GetAttrString(ptr %module, ptr @compcache.numba.table_name)
  call void @Py_DecRef(ptr %module)
  %no_capsule = icmp eq ptr %capsule, null
  br i1 %no_capsule, label %failed, label %found
found:
  %table = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr @compcache.numba.capsule)
  call void @Py_DecRef(ptr %capsule)
  %no_table = icmp eq ptr %table, null
  br i1 %no_table, label %failed, label %known
known:
  %prepare_at = getelementptr ptr, ptr %table, i64 PREPARE_AT
  %function = load ptr, ptr %prepare_at
  %plan = call ptr %function(ptr @compcache.numba.plan_bytes, i64 PLAN_SIZE)
  %no_plan = icmp eq ptr %plan, null
  br i1 %no_plan, label %failed, label %store
store:
  store ptr %table, ptr @compcache.numba.table
  store atomic ptr %plan, ptr @compcache.numba.prepared release, align 8
  ret ptr %plan
failed:
  ret ptr null
}
"""
