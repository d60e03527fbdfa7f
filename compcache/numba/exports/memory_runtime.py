"""The part of Numba's memory runtime that exported kernels need: reference-counted blocks on top of malloc, as LLVM assembly.

Numba's own runtime is a C extension of the numba package, without which exported code must run. Blocks that this runtime allocates never
leave the kernel, so Numba's runtime never receives one. The head of a block has Numba's layout (numba/core/runtime).
"""

from __future__ import annotations

__all__ = ["MEMORY_RUNTIME"]

_TEXT = r"""
; MemInfo, 48 bytes: { reference count, destructor(data, size, info), info, data, size, external allocator }
declare ptr @malloc(i64)
declare ptr @realloc(ptr, i64)
declare void @free(ptr)

define internal ptr @compcache.numba.block(i64 %size, i64 %align, ptr %dtor, ptr %info) {
  %slack = add i64 %align, 48
  %total = add i64 %size, %slack
  %overflow = icmp ult i64 %total, %size
  br i1 %overflow, label %none, label %allocate
allocate:
  %mi = call ptr @malloc(i64 %total)
  %failed = icmp eq ptr %mi, null
  br i1 %failed, label %none, label %fill
fill:
  %after = getelementptr inbounds MEM_INFO, ptr %mi, i64 1
  %address = ptrtoint ptr %after to i64
  %above = add i64 %address, %align
  %last = sub i64 %above, 1
  %rest = urem i64 %last, %align
  %aligned = sub i64 %last, %rest
  %offset = sub i64 %aligned, %address
  %data = getelementptr inbounds i8, ptr %after, i64 %offset
  call void @compcache.numba.fill(ptr %mi, ptr %dtor, ptr %info, ptr %data, i64 %size)
  ret ptr %mi
none:
  ret ptr null
}

define internal void @compcache.numba.fill(ptr %mi, ptr %dtor, ptr %info, ptr %data, i64 %size) {
  store i64 1, ptr %mi
  %dtor_at = getelementptr inbounds MEM_INFO, ptr %mi, i32 0, i32 1
  store ptr %dtor, ptr %dtor_at
  %info_at = getelementptr inbounds MEM_INFO, ptr %mi, i32 0, i32 2
  store ptr %info, ptr %info_at
  %data_at = getelementptr inbounds MEM_INFO, ptr %mi, i32 0, i32 3
  store ptr %data, ptr %data_at
  %size_at = getelementptr inbounds MEM_INFO, ptr %mi, i32 0, i32 4
  store i64 %size, ptr %size_at
  %external_at = getelementptr inbounds MEM_INFO, ptr %mi, i32 0, i32 5
  store ptr null, ptr %external_at
  ret void
}

ALLOCATORS

define void @NRT_MemInfo_call_dtor(ptr %mi) {
  %dtor_at = getelementptr inbounds MEM_INFO, ptr %mi, i32 0, i32 1
  %dtor = load ptr, ptr %dtor_at
  %plain = icmp eq ptr %dtor, null
  br i1 %plain, label %release, label %destroy
destroy:
  %info_at = getelementptr inbounds MEM_INFO, ptr %mi, i32 0, i32 2
  %info = load ptr, ptr %info_at
  %data_at = getelementptr inbounds MEM_INFO, ptr %mi, i32 0, i32 3
  %data = load ptr, ptr %data_at
  %size_at = getelementptr inbounds MEM_INFO, ptr %mi, i32 0, i32 4
  %size = load i64, ptr %size_at
  call void %dtor(ptr %data, i64 %size, ptr %info)
  br label %release
release:
  call void @free(ptr %mi)
  ret void
}

; Blocks whose data is apart, so that it can grow: lists. Their info is a destructor of the items, or null.

define internal void @compcache.numba.free_data(ptr %data, i64 %size, ptr %info) {
  %plain = icmp eq ptr %info, null
  br i1 %plain, label %release, label %destroy
destroy:
  call void %info(ptr %data)
  br label %release
release:
  call void @free(ptr %data)
  ret void
}

define ptr @NRT_MemInfo_new_varsize(i64 %size) {
  %mi = call ptr @NRT_MemInfo_new_varsize_dtor(i64 %size, ptr null)
  ret ptr %mi
}

define ptr @NRT_MemInfo_new_varsize_dtor(i64 %size, ptr %items) {
  %data = call ptr @malloc(i64 %size)
  %no_data = icmp eq ptr %data, null
  br i1 %no_data, label %none, label %head
head:
  %mi = call ptr @malloc(i64 48)
  %no_head = icmp eq ptr %mi, null
  br i1 %no_head, label %undo, label %fill
undo:
  call void @free(ptr %data)
  br label %none
fill:
  call void @compcache.numba.fill(ptr %mi, ptr @compcache.numba.free_data, ptr %items, ptr %data, i64 %size)
  ret ptr %mi
none:
  ret ptr null
}

define ptr @NRT_MemInfo_varsize_alloc(ptr %mi, i64 %size) {
  %data = call ptr @malloc(i64 %size)
  %result = call ptr @compcache.numba.renew(ptr %mi, ptr %data, i64 %size)
  ret ptr %result
}

define ptr @NRT_MemInfo_varsize_realloc(ptr %mi, i64 %size) {
  %data_at = getelementptr inbounds MEM_INFO, ptr %mi, i32 0, i32 3
  %old = load ptr, ptr %data_at
  %data = call ptr @realloc(ptr %old, i64 %size)
  %result = call ptr @compcache.numba.renew(ptr %mi, ptr %data, i64 %size)
  ret ptr %result
}

define internal ptr @compcache.numba.renew(ptr %mi, ptr %data, i64 %size) {
  %failed = icmp eq ptr %data, null
  br i1 %failed, label %done, label %store
store:
  %data_at = getelementptr inbounds MEM_INFO, ptr %mi, i32 0, i32 3
  store ptr %data, ptr %data_at
  %size_at = getelementptr inbounds MEM_INFO, ptr %mi, i32 0, i32 4
  store i64 %size, ptr %size_at
  br label %done
done:
  ret ptr %data
}

define void @NRT_MemInfo_varsize_free(ptr %mi, ptr %data) {
  call void @free(ptr %data)
  %data_at = getelementptr inbounds MEM_INFO, ptr %mi, i32 0, i32 3
  %current = load ptr, ptr %data_at
  %same = icmp eq ptr %current, %data
  br i1 %same, label %forget, label %done
forget:
  store ptr null, ptr %data_at
  br label %done
done:
  ret void
}

define ptr @NRT_Allocate(i64 %size) {
  %data = call ptr @malloc(i64 %size)
  ret ptr %data
}

define void @NRT_Free(ptr %data) {
  call void @free(ptr %data)
  ret void
}
"""


def _format_allocator(suffix: str) -> str:
    """Return the definition of ``NRT_MemInfo_alloc`` with a suffix.

    The suffix ``_aligned`` stands for a parameter for the alignment, and ``_dtor`` for a parameter for the destructor. The suffix ``_safe``
    has no effect here. In Numba, it marks the new memory for debugging.
    """
    align, widen, dtor, parameter = "16", "", "null", ""
    if suffix.endswith("_aligned"):
        align, widen, parameter = "%wide", "  %wide = zext i32 %align to i64\n", ", i32 %align"
    elif "_dtor" in suffix:
        dtor, parameter = "%dtor", ", ptr %dtor"
    return f"""\
define ptr @NRT_MemInfo_alloc{suffix}(i64 %size{parameter}) {{
{widen}  %mi = call ptr @compcache.numba.block(i64 %size, i64 {align}, ptr {dtor}, ptr null)
  ret ptr %mi
}}"""


_ALLOCATORS = "\n\n".join(map(_format_allocator, ("", "_safe", "_aligned", "_safe_aligned", "_dtor", "_dtor_safe")))
# Linking gives named types numbers, which would change the bytes.
MEMORY_RUNTIME = _TEXT.replace("ALLOCATORS", _ALLOCATORS).replace("MEM_INFO", "{ i64, ptr, ptr, ptr, i64, ptr }")
