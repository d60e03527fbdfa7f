; The native half of the hit path: an extension module for CPython, written against the stable ABI.
;
; It is compiled once per cache directory (runtime_build.py), stored beside the modules, and loaded in every
; process that calls cached code (runtime.py). It owns the two objects whose lifetimes keep native code safe,
;
;   Image   a mapped module: closes the library when the last reference goes
;   Target  a call target: its vectorcall slot points straight at an entry point inside an image
;
; and the helpers that entry points call through %Api. Entry points read Target and %Api at fixed offsets, so
; their layouts, and the layout of the module table, are versioned: `abi` below and ABI_VERSION in runtime.py
; change together.
;
; Error paths leave the wording to Python: they call a hook that raises. Nothing here is on the way of a
; successful call but `acquire_*`, `to_u64`, `to_cstr` and `from_cstr`.

; { refcnt, type, dlopen handle or null, module table, owner object or null }
%Image = type { i64, ptr, ptr, ptr, ptr }
; { refcnt, type, vectorcall, function, api, name, image, context, weak references }
%Target = type { i64, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr }
; { fail_arity, fail_value, acquire_buffer, acquire_pointer, to_u64, to_cstr, from_cstr }
%Api = type { ptr, ptr, ptr, ptr, ptr, ptr, ptr }
; { magic, abi version, count, key, offsets of `count` symbols from the start of the table }
%Table = type { i64, i32, i32, [16 x i8], [0 x i32] }
; { buf, obj, len, itemsize, readonly, ndim, format, shape, strides, suboffsets, internal }
%PyBuffer = type { ptr, ptr, i64, i64, i32, i32, ptr, ptr, ptr, ptr, ptr }
%PyMethodDef = type { ptr, ptr, i32, ptr }
%PyMemberDef = type { ptr, i32, i64, i32, ptr }
%PyTypeSlot = type { i32, ptr }
%PyTypeSpec = type { ptr, i32, i32, i32, ptr }
; { refcnt, type, init, index, copy, name, doc, size, methods, slots, traverse, clear, free }
%PyModuleDef = type { i64, ptr, ptr, i64, ptr, ptr, ptr, i64, ptr, ptr, ptr, ptr, ptr }

declare ptr @PyModuleDef_Init(ptr)
declare ptr @PyType_FromSpec(ptr)
declare ptr @PyType_FromSpecWithBases(ptr, ptr)
declare ptr @PyType_GenericAlloc(ptr, i64)
declare i64 @PyType_GetFlags(ptr)
declare ptr @PyType_GetSlot(ptr, i32)
declare i32 @PyArg_ParseTuple(ptr, ptr, ...)
declare ptr @PyObject_CallFunctionObjArgs(ptr, ...)
declare void @PyObject_ClearWeakRefs(ptr)
declare void @PyObject_GC_UnTrack(ptr)
declare i32 @PyObject_GetBuffer(ptr, ptr, i32)
declare void @PyBuffer_Release(ptr)
declare ptr @PyVectorcall_Call(ptr, ptr, ptr)
declare ptr @PyErr_Format(ptr, ptr, ...)
declare void @PyErr_SetString(ptr, ptr)
declare void @PyErr_Clear()
declare ptr @PyErr_Occurred()
declare i32 @PyErr_ExceptionMatches(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyLong_FromUnsignedLongLong(i64)
declare i64 @PyLong_AsUnsignedLongLong(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyNumber_Index(ptr)
declare ptr @PyBool_FromLong(i64)
declare ptr @PyBytes_AsString(ptr)
declare i64 @PyBytes_Size(ptr)
declare ptr @PyBytes_FromStringAndSize(ptr, i64)
declare i32 @PyBytes_AsStringAndSize(ptr, ptr, ptr)
declare ptr @PyUnicode_AsUTF8AndSize(ptr, ptr)
declare ptr @PyUnicode_DecodeUTF8(ptr, i64, ptr)
declare i32 @PyDict_Update(ptr, ptr)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @dlopen(ptr, i32)
declare ptr @dlsym(ptr, ptr)
declare i32 @dlclose(ptr)
declare ptr @dlerror()
declare i64 @strlen(ptr)
declare i32 @bcmp(ptr, ptr, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

@_Py_NoneStruct = external global [0 x i8]
@PyBytes_Type = external global [0 x i8]
@PyTuple_Type = external global [0 x i8]
@PyType_Type = external global [0 x i8]
@PyExc_IndexError = external global ptr
@PyExc_OSError = external global ptr
@PyExc_SystemError = external global ptr
@PyExc_TypeError = external global ptr
@PyExc_ValueError = external global ptr

@image_type = internal global ptr null
@target_type = internal global ptr null
; Python callables: unloaded(target), arity(target, given, keyword names or None), value(target, index, object),
; pointer(object) -> address or None
@hook_unloaded = internal global ptr null
@hook_arity = internal global ptr null
@hook_value = internal global ptr null
@hook_pointer = internal global ptr null
; Set when the interpreter begins to end: from then on images stay mapped.
@ending = internal global i1 false

@api = internal constant %Api {
  ptr @fail_arity, ptr @fail_value, ptr @acquire_buffer, ptr @acquire_pointer, ptr @to_u64, ptr @to_cstr,
  ptr @from_cstr
}

; ---------------------------------------------------------------------------------------------- images

@s.table = private constant [17 x i8] c"compcache_module\00"
@s.percent_s = private constant [3 x i8] c"%s\00"
@s.not_image = private constant [58 x i8] c"the library has no compcache module table, or another one\00"
@s.index = private constant [46 x i8] c"symbol %zd is not in the image's table of %zd\00"
@s.need_image = private constant [28 x i8] c"an argument is not an Image\00"
@s.need_target = private constant [37 x i8] c"an argument is not a TypedCallTarget\00"
@s.unknown = private constant [14 x i8] c"unknown error\00"

; The table is what open_image and adopt_image trust: right magic, right ABI, and the key of the module that
; the caller asked for (glibc may hand back a library that it already had).
define internal i1 @table_matches(ptr %table, ptr %key) {
  %none = icmp eq ptr %table, null
  br i1 %none, label %no, label %magic
magic:
  %m = load i64, ptr %table, align 4
  %good_magic = icmp eq i64 %m, 4993459838723638083 ; "CCMODULE", little-endian
  %abi_at = getelementptr inbounds %Table, ptr %table, i32 0, i32 1
  %abi = load i32, ptr %abi_at, align 4
  %good_abi = icmp eq i32 %abi, 1
  %both = and i1 %good_magic, %good_abi
  br i1 %both, label %keys, label %no
keys:
  %key_at = getelementptr inbounds %Table, ptr %table, i32 0, i32 3
  %differs = call i32 @bcmp(ptr %key_at, ptr %key, i64 16)
  %same = icmp eq i32 %differs, 0
  ret i1 %same
no:
  ret i1 false
}

; Takes over `handle`; the caller keeps its own reference to `owner`.
define internal ptr @new_image(ptr %handle, ptr %table, ptr %owner) {
  %type = load ptr, ptr @image_type
  %self = call ptr @PyType_GenericAlloc(ptr %type, i64 0)
  %failed = icmp eq ptr %self, null
  br i1 %failed, label %close, label %fill
close:
  %has_handle = icmp ne ptr %handle, null
  br i1 %has_handle, label %closing, label %done
closing:
  call i32 @dlclose(ptr %handle)
  br label %done
fill:
  %h = getelementptr inbounds %Image, ptr %self, i32 0, i32 2
  store ptr %handle, ptr %h
  %t = getelementptr inbounds %Image, ptr %self, i32 0, i32 3
  store ptr %table, ptr %t
  %o = getelementptr inbounds %Image, ptr %self, i32 0, i32 4
  store ptr %owner, ptr %o
  call void @Py_IncRef(ptr %owner)
  br label %done
done:
  ret ptr %self
}

; open_image(path: bytes, key: bytes | None, owner: object) -> Image
; With key None any library will do (native symbols of a named library).
@f.open_image = private constant [7 x i8] c"SOO:oi\00"
define internal ptr @open_image(ptr %module, ptr %args) {
  %path_at = alloca ptr
  %key_at = alloca ptr
  %owner_at = alloca ptr
  %parsed = call i32 (ptr, ptr, ...) @PyArg_ParseTuple(ptr %args, ptr @f.open_image, ptr %path_at, ptr %key_at, ptr %owner_at)
  %bad = icmp eq i32 %parsed, 0
  br i1 %bad, label %fail, label %open
open:
  %path_object = load ptr, ptr %path_at
  %path = call ptr @PyBytes_AsString(ptr %path_object)
  ; Constructors of a library may want the GIL, and other threads' dlopen waits for them.
  %thread = call ptr @PyEval_SaveThread()
  %handle = call ptr @dlopen(ptr %path, i32 2) ; RTLD_NOW, RTLD_LOCAL
  call void @PyEval_RestoreThread(ptr %thread)
  %no_handle = icmp eq ptr %handle, null
  br i1 %no_handle, label %dl_failed, label %look
dl_failed:
  call void @raise_dlerror()
  br label %fail
look:
  %key_object = load ptr, ptr %key_at
  %any = icmp eq ptr %key_object, @_Py_NoneStruct
  br i1 %any, label %wrap, label %check
check:
  %table = call ptr @dlsym(ptr %handle, ptr @s.table)
  %key = call ptr @key_of(ptr %key_object)
  %no_key = icmp eq ptr %key, null
  br i1 %no_key, label %close, label %compare
compare:
  %good = call i1 @table_matches(ptr %table, ptr %key)
  br i1 %good, label %wrap, label %mismatch
mismatch:
  %value_error = load ptr, ptr @PyExc_ValueError
  call void @PyErr_SetString(ptr %value_error, ptr @s.not_image)
  br label %close
close:
  call i32 @dlclose(ptr %handle)
  br label %fail
wrap:
  %final = phi ptr [ null, %look ], [ %table, %compare ]
  %owner = load ptr, ptr %owner_at
  %image = call ptr @new_image(ptr %handle, ptr %final, ptr %owner)
  ret ptr %image
fail:
  ret ptr null
}

; adopt_image(address: int, key: bytes, owner: object) -> Image; for code that something else mapped
@f.adopt_image = private constant [7 x i8] c"OSO:ai\00"
define internal ptr @adopt_image(ptr %module, ptr %args) {
  %address_at = alloca ptr
  %key_at = alloca ptr
  %owner_at = alloca ptr
  %parsed = call i32 (ptr, ptr, ...) @PyArg_ParseTuple(ptr %args, ptr @f.adopt_image, ptr %address_at, ptr %key_at, ptr %owner_at)
  %bad = icmp eq i32 %parsed, 0
  br i1 %bad, label %fail, label %convert
convert:
  %address = load ptr, ptr %address_at
  %table = call ptr @PyLong_AsVoidPtr(ptr %address)
  %null = icmp eq ptr %table, null
  br i1 %null, label %mismatch, label %keys
keys:
  %key_object = load ptr, ptr %key_at
  %key = call ptr @key_of(ptr %key_object)
  %no_key = icmp eq ptr %key, null
  br i1 %no_key, label %fail, label %compare
compare:
  %good = call i1 @table_matches(ptr %table, ptr %key)
  br i1 %good, label %wrap, label %mismatch
mismatch:
  %value_error = load ptr, ptr @PyExc_ValueError
  call void @PyErr_SetString(ptr %value_error, ptr @s.not_image)
  br label %fail
wrap:
  %owner = load ptr, ptr %owner_at
  %image = call ptr @new_image(ptr null, ptr %table, ptr %owner)
  ret ptr %image
fail:
  ret ptr null
}

; The 16 bytes of a key object; null with an exception where it is not one.
define internal ptr @key_of(ptr %object) {
  %size = call i64 @PyBytes_Size(ptr %object)
  %right = icmp eq i64 %size, 16
  br i1 %right, label %good, label %wrong
good:
  %bytes = call ptr @PyBytes_AsString(ptr %object)
  ret ptr %bytes
wrong:
  call void @PyErr_Clear()
  %value_error = load ptr, ptr @PyExc_ValueError
  call void @PyErr_SetString(ptr %value_error, ptr @s.not_image)
  ret ptr null
}

define internal void @raise_dlerror() {
  %text = call ptr @dlerror()
  %none = icmp eq ptr %text, null
  %shown = select i1 %none, ptr @s.unknown, ptr %text
  %os_error = load ptr, ptr @PyExc_OSError
  %x = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %os_error, ptr @s.percent_s, ptr %shown)
  ret void
}

define internal void @image_dealloc(ptr %self) {
  %type_at = getelementptr inbounds %Image, ptr %self, i32 0, i32 1
  %type = load ptr, ptr %type_at
  %handle_at = getelementptr inbounds %Image, ptr %self, i32 0, i32 2
  %handle = load ptr, ptr %handle_at
  %has_handle = icmp ne ptr %handle, null
  %ending = load i1, ptr @ending
  %going_on = xor i1 %ending, true
  %may_close = and i1 %has_handle, %going_on
  br i1 %may_close, label %close, label %owner
close:
  call i32 @dlclose(ptr %handle)
  br label %owner
owner:
  %owner_at = getelementptr inbounds %Image, ptr %self, i32 0, i32 4
  %held = load ptr, ptr %owner_at
  call void @Py_DecRef(ptr %held)
  %free = call ptr @PyType_GetSlot(ptr %type, i32 74)
  call void %free(ptr %self)
  call void @Py_DecRef(ptr %type)
  ret void
}

define internal i1 @is_a(ptr %object, ptr %type) {
  %type_at = getelementptr inbounds %Image, ptr %object, i32 0, i32 1
  %actual = load ptr, ptr %type_at
  %same = icmp eq ptr %actual, %type
  ret i1 %same
}

; The address of a symbol of an image's table; null with an exception where the index is not in the table.
define internal ptr @symbol_address(ptr %image, i64 %index) {
  %image_type = load ptr, ptr @image_type
  %is_image = call i1 @is_a(ptr %image, ptr %image_type)
  br i1 %is_image, label %load_table, label %not_image
not_image:
  %type_error = load ptr, ptr @PyExc_TypeError
  call void @PyErr_SetString(ptr %type_error, ptr @s.need_image)
  ret ptr null
load_table:
  %table_at = getelementptr inbounds %Image, ptr %image, i32 0, i32 3
  %table = load ptr, ptr %table_at
  %none = icmp eq ptr %table, null
  br i1 %none, label %not_image, label %bounds
bounds:
  %count_at = getelementptr inbounds %Table, ptr %table, i32 0, i32 2
  %count32 = load i32, ptr %count_at, align 4
  %count = zext i32 %count32 to i64
  %inside = icmp ult i64 %index, %count
  br i1 %inside, label %resolve, label %outside
outside:
  %index_error = load ptr, ptr @PyExc_IndexError
  %x = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %index_error, ptr @s.index, i64 %index, i64 %count)
  ret ptr null
resolve:
  %offset_at = getelementptr inbounds %Table, ptr %table, i32 0, i32 4, i64 %index
  %offset = load i32, ptr %offset_at, align 4
  %wide = sext i32 %offset to i64
  %address = getelementptr inbounds i8, ptr %table, i64 %wide
  ret ptr %address
}

; address(image, index: int) -> int
@f.address = private constant [5 x i8] c"On:a\00"
define internal ptr @image_address(ptr %module, ptr %args) {
  %image_at = alloca ptr
  %index_at = alloca i64
  %parsed = call i32 (ptr, ptr, ...) @PyArg_ParseTuple(ptr %args, ptr @f.address, ptr %image_at, ptr %index_at)
  %bad = icmp eq i32 %parsed, 0
  br i1 %bad, label %fail, label %resolve
resolve:
  %image = load ptr, ptr %image_at
  %index = load i64, ptr %index_at
  %address = call ptr @symbol_address(ptr %image, i64 %index)
  %none = icmp eq ptr %address, null
  br i1 %none, label %fail, label %done
done:
  %number = ptrtoint ptr %address to i64
  %result = call ptr @PyLong_FromUnsignedLongLong(i64 %number)
  ret ptr %result
fail:
  ret ptr null
}

; find_symbol(name: bytes, library: Image | None) -> int; 0 where the process, or the library, has none
@f.find_symbol = private constant [6 x i8] c"SO:fs\00"
define internal ptr @find_symbol(ptr %module, ptr %args) {
  %name_at = alloca ptr
  %library_at = alloca ptr
  %parsed = call i32 (ptr, ptr, ...) @PyArg_ParseTuple(ptr %args, ptr @f.find_symbol, ptr %name_at, ptr %library_at)
  %bad = icmp eq i32 %parsed, 0
  br i1 %bad, label %fail, label %which
which:
  %name_object = load ptr, ptr %name_at
  %name = call ptr @PyBytes_AsString(ptr %name_object)
  %library = load ptr, ptr %library_at
  %process = icmp eq ptr %library, @_Py_NoneStruct
  br i1 %process, label %find, label %typed
typed:
  %image_type = load ptr, ptr @image_type
  %is_image = call i1 @is_a(ptr %library, ptr %image_type)
  br i1 %is_image, label %named, label %not_image
not_image:
  %type_error = load ptr, ptr @PyExc_TypeError
  call void @PyErr_SetString(ptr %type_error, ptr @s.need_image)
  br label %fail
named:
  %handle_at = getelementptr inbounds %Image, ptr %library, i32 0, i32 2
  %library_handle = load ptr, ptr %handle_at
  br label %find
find:
  %handle = phi ptr [ null, %which ], [ %library_handle, %named ] ; null is RTLD_DEFAULT
  %address = call ptr @dlsym(ptr %handle, ptr %name)
  %number = ptrtoint ptr %address to i64
  %result = call ptr @PyLong_FromUnsignedLongLong(i64 %number)
  ret ptr %result
fail:
  ret ptr null
}

; --------------------------------------------------------------------------------------------- targets

; make_target(image, function: int, entry: int, name: str, context: object) -> Target
@f.make_target = private constant [9 x i8] c"OnnUO:mt\00"
define internal ptr @make_target(ptr %module, ptr %args) {
  %image_at = alloca ptr
  %function_at = alloca i64
  %entry_at = alloca i64
  %name_at = alloca ptr
  %context_at = alloca ptr
  %parsed = call i32 (ptr, ptr, ...) @PyArg_ParseTuple(ptr %args, ptr @f.make_target, ptr %image_at, ptr %function_at, ptr %entry_at, ptr %name_at, ptr %context_at)
  %bad = icmp eq i32 %parsed, 0
  br i1 %bad, label %fail, label %resolve
resolve:
  %image = load ptr, ptr %image_at
  %function_index = load i64, ptr %function_at
  %function = call ptr @symbol_address(ptr %image, i64 %function_index)
  %no_function = icmp eq ptr %function, null
  br i1 %no_function, label %fail, label %resolve_entry
resolve_entry:
  %entry_index = load i64, ptr %entry_at
  %entry = call ptr @symbol_address(ptr %image, i64 %entry_index)
  %no_entry = icmp eq ptr %entry, null
  br i1 %no_entry, label %fail, label %allocate
allocate:
  %type = load ptr, ptr @target_type
  %no_type = icmp eq ptr %type, null
  br i1 %no_type, label %no_base, label %new
no_base:
  %system_error = load ptr, ptr @PyExc_SystemError
  call void @PyErr_SetString(ptr %system_error, ptr @s.need_target)
  br label %fail
new:
  %self = call ptr @PyType_GenericAlloc(ptr %type, i64 0)
  %no_memory = icmp eq ptr %self, null
  br i1 %no_memory, label %fail, label %fill
fill:
  %vectorcall_f = getelementptr inbounds %Target, ptr %self, i32 0, i32 2
  store ptr %entry, ptr %vectorcall_f
  %function_f = getelementptr inbounds %Target, ptr %self, i32 0, i32 3
  store ptr %function, ptr %function_f
  %api_f = getelementptr inbounds %Target, ptr %self, i32 0, i32 4
  store ptr @api, ptr %api_f
  %name = load ptr, ptr %name_at
  %name_f = getelementptr inbounds %Target, ptr %self, i32 0, i32 5
  store ptr %name, ptr %name_f
  call void @Py_IncRef(ptr %name)
  %image_f = getelementptr inbounds %Target, ptr %self, i32 0, i32 6
  store ptr %image, ptr %image_f
  call void @Py_IncRef(ptr %image)
  %context = load ptr, ptr %context_at
  %context_f = getelementptr inbounds %Target, ptr %self, i32 0, i32 7
  store ptr %context, ptr %context_f
  call void @Py_IncRef(ptr %context)
  ret ptr %self
fail:
  ret ptr null
}

define internal void @target_dealloc(ptr %self) {
  call void @PyObject_GC_UnTrack(ptr %self)
  %weak_at = getelementptr inbounds %Target, ptr %self, i32 0, i32 8
  %weak = load ptr, ptr %weak_at
  %has_weak = icmp ne ptr %weak, null
  br i1 %has_weak, label %clear_weak, label %release
clear_weak:
  call void @PyObject_ClearWeakRefs(ptr %self)
  br label %release
release:
  %type_at = getelementptr inbounds %Target, ptr %self, i32 0, i32 1
  %type = load ptr, ptr %type_at
  %name_f = getelementptr inbounds %Target, ptr %self, i32 0, i32 5
  %name = load ptr, ptr %name_f
  call void @Py_DecRef(ptr %name)
  ; The context goes first: what it owns may have destructors that expect mapped code.
  %context_f = getelementptr inbounds %Target, ptr %self, i32 0, i32 7
  %context = load ptr, ptr %context_f
  store ptr null, ptr %context_f
  call void @Py_DecRef(ptr %context)
  %image_f = getelementptr inbounds %Target, ptr %self, i32 0, i32 6
  %image = load ptr, ptr %image_f
  call void @Py_DecRef(ptr %image)
  %free = call ptr @PyType_GetSlot(ptr %type, i32 74)
  call void %free(ptr %self)
  call void @Py_DecRef(ptr %type)
  ret void
}

define internal i32 @target_traverse(ptr %self, ptr %visit, ptr %arg) {
  %type_at = getelementptr inbounds %Target, ptr %self, i32 0, i32 1
  %type = load ptr, ptr %type_at
  %a = call i32 %visit(ptr %type, ptr %arg)
  %stop = icmp ne i32 %a, 0
  br i1 %stop, label %out, label %next
next:
  %context_f = getelementptr inbounds %Target, ptr %self, i32 0, i32 7
  %context = load ptr, ptr %context_f
  %none = icmp eq ptr %context, null
  br i1 %none, label %end, label %visit_context
visit_context:
  %b = call i32 %visit(ptr %context, ptr %arg)
  ret i32 %b
out:
  ret i32 %a
end:
  ret i32 0
}

; A collected target can no longer be called: what its code needs may be gone before it is. Its image stays
; until the target itself goes.
define internal i32 @target_clear(ptr %self) {
  %vectorcall_f = getelementptr inbounds %Target, ptr %self, i32 0, i32 2
  store ptr @call_unloaded, ptr %vectorcall_f
  %context_f = getelementptr inbounds %Target, ptr %self, i32 0, i32 7
  %context = load ptr, ptr %context_f
  store ptr null, ptr %context_f
  call void @Py_DecRef(ptr %context)
  ret i32 0
}

; The vectorcall of an invalidated target.
define internal ptr @call_unloaded(ptr %self, ptr %args, i64 %nargs, ptr %names) {
  %hook = load ptr, ptr @hook_unloaded
  call void @call_hook(ptr %hook, ptr %self, ptr null, ptr null)
  ret ptr null
}

; Calls a Python callable that must raise.
define internal void @call_hook(ptr %hook, ptr %a, ptr %b, ptr %c) {
  %missing = icmp eq ptr %hook, null
  br i1 %missing, label %silent, label %run
run:
  %result = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %hook, ptr %a, ptr %b, ptr %c, ptr null)
  %raised = icmp eq ptr %result, null
  br i1 %raised, label %done, label %returned
returned:
  call void @Py_DecRef(ptr %result)
  br label %silent
silent:
  %system_error = load ptr, ptr @PyExc_SystemError
  call void @PyErr_SetString(ptr %system_error, ptr @s.unknown)
  br label %done
done:
  ret void
}

define internal ptr @checked_target(ptr %object) {
  %type = load ptr, ptr @target_type
  %is_target = call i1 @is_a(ptr %object, ptr %type)
  br i1 %is_target, label %good, label %wrong
good:
  ret ptr %object
wrong:
  %type_error = load ptr, ptr @PyExc_TypeError
  call void @PyErr_SetString(ptr %type_error, ptr @s.need_target)
  ret ptr null
}

; invalidate(target) -> None; a call that is running goes on, every later one raises
define internal ptr @invalidate(ptr %module, ptr %target) {
  %checked = call ptr @checked_target(ptr %target)
  %wrong = icmp eq ptr %checked, null
  br i1 %wrong, label %fail, label %swap
swap:
  %vectorcall_f = getelementptr inbounds %Target, ptr %target, i32 0, i32 2
  store atomic ptr @call_unloaded, ptr %vectorcall_f release, align 8
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
fail:
  ret ptr null
}

; is_valid(target) -> bool
define internal ptr @is_valid(ptr %module, ptr %target) {
  %checked = call ptr @checked_target(ptr %target)
  %wrong = icmp eq ptr %checked, null
  br i1 %wrong, label %fail, label %compare
compare:
  %vectorcall_f = getelementptr inbounds %Target, ptr %target, i32 0, i32 2
  %current = load ptr, ptr %vectorcall_f
  %valid = icmp ne ptr %current, @call_unloaded
  %number = zext i1 %valid to i64
  %result = call ptr @PyBool_FromLong(i64 %number)
  ret ptr %result
fail:
  ret ptr null
}

; ----------------------------------------------------------------------------------- memory of images

; commit(writes: bytes, updates: tuple) -> None
; `writes` is a row of (address: u64, size: u64, bytes padded to a multiple of 8); `updates` is a row of pairs of
; dicts, the second of which is merged into the first. One call, so that no signal handler and no other thread of
; the interpreter sees half of it. The stores come first because they cannot fail: a slot that is filled but not
; recorded is filled again by the next load, the other way round it would be believed.
@f.commit = private constant [11 x i8] c"SO!:commit\00"
define internal ptr @commit(ptr %module, ptr %args) {
  %writes_at = alloca ptr
  %updates_at = alloca ptr
  %parsed = call i32 (ptr, ptr, ...) @PyArg_ParseTuple(ptr %args, ptr @f.commit, ptr %writes_at, ptr @PyTuple_Type, ptr %updates_at)
  %bad = icmp eq i32 %parsed, 0
  br i1 %bad, label %fail, label %start
start:
  %writes = load ptr, ptr %writes_at
  %first = call ptr @PyBytes_AsString(ptr %writes)
  %size = call i64 @PyBytes_Size(ptr %writes)
  %end = getelementptr inbounds i8, ptr %first, i64 %size
  br label %loop
loop:
  %at = phi ptr [ %first, %start ], [ %following, %stored ]
  %more = icmp ult ptr %at, %end
  br i1 %more, label %one, label %record
one:
  %address = load ptr, ptr %at, align 1
  %count_at = getelementptr inbounds i8, ptr %at, i64 8
  %count = load i64, ptr %count_at, align 1
  %data = getelementptr inbounds i8, ptr %at, i64 16
  %up = add i64 %count, 7
  %padded = and i64 %up, -8
  %following = getelementptr inbounds i8, ptr %data, i64 %padded
  %number = ptrtoint ptr %address to i64
  %low = and i64 %number, 7
  %aligned = icmp eq i64 %low, 0
  %word = icmp eq i64 %count, 8
  %atomic = and i1 %aligned, %word
  br i1 %atomic, label %store_word, label %copy
store_word:
  %value = load i64, ptr %data, align 1
  store atomic i64 %value, ptr %address release, align 8
  br label %stored
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %address, ptr %data, i64 %count, i1 false)
  br label %stored
stored:
  br label %loop
record:
  %updates = load ptr, ptr %updates_at
  %pairs = call i64 @PyTuple_Size(ptr %updates)
  br label %next
next:
  %i = phi i64 [ 0, %record ], [ %after, %merge ]
  %left = icmp slt i64 %i, %pairs
  br i1 %left, label %merge, label %done
merge:
  %table = call ptr @PyTuple_GetItem(ptr %updates, i64 %i)
  %second = add i64 %i, 1
  %additions = call ptr @PyTuple_GetItem(ptr %updates, i64 %second)
  %after = add i64 %i, 2
  %updated = call i32 @PyDict_Update(ptr %table, ptr %additions)
  %no_update = icmp ne i32 %updated, 0
  br i1 %no_update, label %fail, label %next
done:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
fail:
  ret ptr null
}

; peek(address: int, size: int) -> bytes
@f.peek = private constant [6 x i8] c"On:pk\00"
define internal ptr @peek(ptr %module, ptr %args) {
  %address_at = alloca ptr
  %size_at = alloca i64
  %parsed = call i32 (ptr, ptr, ...) @PyArg_ParseTuple(ptr %args, ptr @f.peek, ptr %address_at, ptr %size_at)
  %bad = icmp eq i32 %parsed, 0
  br i1 %bad, label %fail, label %convert
convert:
  %object = load ptr, ptr %address_at
  %address = call ptr @PyLong_AsVoidPtr(ptr %object)
  %null = icmp eq ptr %address, null
  br i1 %null, label %no_address, label %read
no_address:
  %value_error = load ptr, ptr @PyExc_ValueError
  call void @PyErr_SetString(ptr %value_error, ptr @s.unknown)
  br label %fail
read:
  %size = load i64, ptr %size_at
  %result = call ptr @PyBytes_FromStringAndSize(ptr %address, i64 %size)
  ret ptr %result
fail:
  ret ptr null
}

; buffer_address(object) -> int; the caller keeps the object alive and unresized
define internal ptr @buffer_address(ptr %module, ptr %object) {
  %view = alloca %PyBuffer
  %got = call i32 @PyObject_GetBuffer(ptr %object, ptr %view, i32 0)
  %bad = icmp ne i32 %got, 0
  br i1 %bad, label %fail, label %good
good:
  %buf = load ptr, ptr %view
  call void @PyBuffer_Release(ptr %view)
  %number = ptrtoint ptr %buf to i64
  %result = call ptr @PyLong_FromUnsignedLongLong(i64 %number)
  ret ptr %result
fail:
  ret ptr null
}

; --------------------------------------------------------------- what entry points call through %Api

; Raises and returns false, unless the arguments are right after all (an empty tuple of keyword names).
define internal i1 @fail_arity(ptr %self, i64 %given, i64 %expected, ptr %names) {
  %count = call ptr @PyLong_FromLongLong(i64 %given)
  %no_count = icmp eq ptr %count, null
  br i1 %no_count, label %fail, label %hook
hook:
  %no_names = icmp eq ptr %names, null
  %shown = select i1 %no_names, ptr @_Py_NoneStruct, ptr %names
  %callable = load ptr, ptr @hook_arity
  %result = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %callable, ptr %self, ptr %count, ptr %shown, ptr null)
  call void @Py_DecRef(ptr %count)
  %raised = icmp eq ptr %result, null
  br i1 %raised, label %fail, label %accepted
accepted:
  call void @Py_DecRef(ptr %result)
  ret i1 true
fail:
  ret i1 false
}

; Raises what is wrong with an argument that was converted without success.
define internal void @fail_value(ptr %self, i64 %index, ptr %object) {
  %number = call ptr @PyLong_FromLongLong(i64 %index)
  %none = icmp eq ptr %number, null
  br i1 %none, label %done, label %hook
hook:
  %callable = load ptr, ptr @hook_value
  call void @call_hook(ptr %callable, ptr %self, ptr %number, ptr %object)
  call void @Py_DecRef(ptr %number)
  br label %done
done:
  ret void
}

; Fills `view` with a C-contiguous buffer of one element type. `want` is itemsize | kind << 8 | writable << 16,
; the kind one of the letters i u f b. False with an exception where the object has no such buffer.
define internal i1 @acquire_buffer(ptr %self, i64 %index, ptr %object, ptr %view, i32 %want) {
  %writable = lshr i32 %want, 16
  %flags = or i32 %writable, 60 ; PyBUF_C_CONTIGUOUS | PyBUF_FORMAT
  %got = call i32 @PyObject_GetBuffer(ptr %object, ptr %view, i32 %flags)
  %bad = icmp ne i32 %got, 0
  br i1 %bad, label %refused, label %inspect
refused:
  ; An exporter's own error is replaced by one that names function and parameter, but a MemoryError or an
  ; interrupt is not an answer about the buffer.
  %view_obj0 = getelementptr inbounds %PyBuffer, ptr %view, i32 0, i32 1
  store ptr null, ptr %view_obj0
  %e1 = load ptr, ptr @PyExc_TypeError
  %m1 = call i32 @PyErr_ExceptionMatches(ptr %e1)
  %e2 = load ptr, ptr @PyExc_ValueError
  %m2 = call i32 @PyErr_ExceptionMatches(ptr %e2)
  %e3 = load ptr, ptr @PyExc_BufferError
  %m3 = call i32 @PyErr_ExceptionMatches(ptr %e3)
  %m12 = or i32 %m1, %m2
  %m123 = or i32 %m12, %m3
  %ours = icmp ne i32 %m123, 0
  br i1 %ours, label %explain, label %fail
explain:
  call void @PyErr_Clear()
  call void @fail_value(ptr %self, i64 %index, ptr %object)
  br label %fail
inspect:
  %size_at = getelementptr inbounds %PyBuffer, ptr %view, i32 0, i32 3
  %size = load i64, ptr %size_at
  %want_wide = zext i32 %want to i64
  %want_size = and i64 %want_wide, 255
  %same_size = icmp eq i64 %size, %want_size
  br i1 %same_size, label %kind, label %mismatch
kind:
  %format_at = getelementptr inbounds %PyBuffer, ptr %view, i32 0, i32 6
  %format = load ptr, ptr %format_at
  %found = call i8 @format_kind(ptr %format)
  %shifted = lshr i32 %want, 8
  %want_kind = trunc i32 %shifted to i8
  %same_kind = icmp eq i8 %found, %want_kind
  br i1 %same_kind, label %good, label %mismatch
good:
  ret i1 true
mismatch:
  call void @PyBuffer_Release(ptr %view)
  call void @fail_value(ptr %self, i64 %index, ptr %object)
  br label %fail
fail:
  ret i1 false
}
@PyExc_BufferError = external global ptr

; The kind of a format of the struct module with one native-endian item: i u f b, or 0 for any other.
define internal i8 @format_kind(ptr %format) {
  %absent = icmp eq ptr %format, null
  br i1 %absent, label %unsigned, label %prefix
prefix:
  %c0 = load i8, ptr %format
  switch i8 %c0, label %item [
    i8 64, label %skip ; @
    i8 61, label %skip ; =
    i8 60, label %skip ; <
  ]
skip:
  %second = getelementptr inbounds i8, ptr %format, i64 1
  br label %item
item:
  %at = phi ptr [ %format, %prefix ], [ %second, %skip ]
  %c = load i8, ptr %at
  %end = icmp eq i8 %c, 0
  br i1 %end, label %other, label %single
single:
  %next_at = getelementptr inbounds i8, ptr %at, i64 1
  %next = load i8, ptr %next_at
  %one = icmp eq i8 %next, 0
  br i1 %one, label %classify, label %other
classify:
  switch i8 %c, label %other [
    i8 98, label %signed     ; b
    i8 104, label %signed    ; h
    i8 105, label %signed    ; i
    i8 108, label %signed    ; l
    i8 113, label %signed    ; q
    i8 110, label %signed    ; n
    i8 66, label %unsigned   ; B
    i8 72, label %unsigned   ; H
    i8 73, label %unsigned   ; I
    i8 76, label %unsigned   ; L
    i8 81, label %unsigned   ; Q
    i8 78, label %unsigned   ; N
    i8 99, label %unsigned   ; c
    i8 102, label %floating  ; f
    i8 100, label %floating  ; d
    i8 63, label %boolean    ; ?
  ]
signed:
  ret i8 105
unsigned:
  ret i8 117
floating:
  ret i8 102
boolean:
  ret i8 98
other:
  ret i8 0
}

; ptr: int, None, what hook_pointer knows (ctypes, targets), else any contiguous buffer.
define internal i1 @acquire_pointer(ptr %self, i64 %index, ptr %object, ptr %view, ptr %out) {
  %none = icmp eq ptr %object, @_Py_NoneStruct
  br i1 %none, label %null, label %number
null:
  store ptr null, ptr %out
  ret i1 true
number:
  %type_at = getelementptr inbounds %Image, ptr %object, i32 0, i32 1
  %type = load ptr, ptr %type_at
  %flags = call i64 @PyType_GetFlags(ptr %type)
  %int_bit = and i64 %flags, 16777216 ; Py_TPFLAGS_LONG_SUBCLASS
  %is_int = icmp ne i64 %int_bit, 0
  br i1 %is_int, label %from_int, label %hook
from_int:
  %p = call ptr @PyLong_AsVoidPtr(ptr %object)
  store ptr %p, ptr %out
  %zero = icmp eq ptr %p, null
  br i1 %zero, label %check, label %good
check:
  %raised = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %raised, null
  ret i1 %fine
hook:
  %callable = load ptr, ptr @hook_pointer
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %callable, ptr %object, ptr null)
  %hook_failed = icmp eq ptr %answer, null
  br i1 %hook_failed, label %fail, label %answered
answered:
  %unknown = icmp eq ptr %answer, @_Py_NoneStruct
  br i1 %unknown, label %buffer, label %address
address:
  %a = call ptr @PyLong_AsVoidPtr(ptr %answer)
  call void @Py_DecRef(ptr %answer)
  store ptr %a, ptr %out
  %a_zero = icmp eq ptr %a, null
  br i1 %a_zero, label %check, label %good
buffer:
  call void @Py_DecRef(ptr %answer)
  %got = call i32 @PyObject_GetBuffer(ptr %object, ptr %view, i32 0)
  %bad = icmp ne i32 %got, 0
  br i1 %bad, label %refused, label %take
take:
  %buf = load ptr, ptr %view
  store ptr %buf, ptr %out
  ret i1 true
refused:
  %view_obj = getelementptr inbounds %PyBuffer, ptr %view, i32 0, i32 1
  store ptr null, ptr %view_obj
  call void @PyErr_Clear()
  call void @fail_value(ptr %self, i64 %index, ptr %object)
  br label %fail
good:
  ret i1 true
fail:
  ret i1 false
}

define internal i1 @to_u64(ptr %self, i64 %index, ptr %object, ptr %out) {
  %integer = call ptr @PyNumber_Index(ptr %object)
  %bad = icmp eq ptr %integer, null
  br i1 %bad, label %fail, label %convert
convert:
  %value = call i64 @PyLong_AsUnsignedLongLong(ptr %integer)
  call void @Py_DecRef(ptr %integer)
  store i64 %value, ptr %out
  %suspect = icmp eq i64 %value, -1
  br i1 %suspect, label %check, label %good
check:
  %raised = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %raised, null
  ret i1 %fine
good:
  ret i1 true
fail:
  ret i1 false
}

; cstr: str as UTF-8, or bytes; without an embedded NUL. The text lives as long as the argument.
define internal i1 @to_cstr(ptr %self, i64 %index, ptr %object, ptr %out) {
  %size_at = alloca i64
  %type_at = getelementptr inbounds %Image, ptr %object, i32 0, i32 1
  %type = load ptr, ptr %type_at
  %flags = call i64 @PyType_GetFlags(ptr %type)
  %str_bit = and i64 %flags, 268435456 ; Py_TPFLAGS_UNICODE_SUBCLASS
  %is_str = icmp ne i64 %str_bit, 0
  br i1 %is_str, label %text, label %maybe_bytes
maybe_bytes:
  %bytes_bit = and i64 %flags, 134217728 ; Py_TPFLAGS_BYTES_SUBCLASS
  %is_bytes = icmp ne i64 %bytes_bit, 0
  br i1 %is_bytes, label %bytes, label %wrong
bytes:
  ; With a null size this raises ValueError for an embedded NUL itself.
  %got = call i32 @PyBytes_AsStringAndSize(ptr %object, ptr %out, ptr null)
  %fine = icmp eq i32 %got, 0
  ret i1 %fine
text:
  %utf8 = call ptr @PyUnicode_AsUTF8AndSize(ptr %object, ptr %size_at)
  store ptr %utf8, ptr %out
  %not_utf8 = icmp eq ptr %utf8, null
  br i1 %not_utf8, label %fail, label %scan
scan:
  %size = load i64, ptr %size_at
  %length = call i64 @strlen(ptr %utf8)
  %whole = icmp eq i64 %size, %length
  br i1 %whole, label %good, label %nul
nul:
  %value_error = load ptr, ptr @PyExc_ValueError
  call void @PyErr_SetString(ptr %value_error, ptr @s.nul)
  br label %fail
wrong:
  call void @fail_value(ptr %self, i64 %index, ptr %object)
  br label %fail
good:
  ret i1 true
fail:
  ret i1 false
}
@s.nul = private constant [24 x i8] c"embedded null character\00"
@s.surrogateescape = private constant [16 x i8] c"surrogateescape\00"

define internal ptr @from_cstr(ptr %text) {
  %null = icmp eq ptr %text, null
  br i1 %null, label %none, label %decode
none:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
decode:
  %length = call i64 @strlen(ptr %text)
  %result = call ptr @PyUnicode_DecodeUTF8(ptr %text, i64 %length, ptr @s.surrogateescape)
  ret ptr %result
}

; --------------------------------------------------------------------------------------------- module

; end() -> None; the interpreter ends: objects that code in images has made may be freed in any order from now on,
; and what frees them may be in an image
define internal ptr @end(ptr %module, ptr %nothing) {
  store i1 true, ptr @ending
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}

; setup(target_base: type, unloaded, arity, value, pointer) -> type
; Called once per process; the type it makes is the one of every target.
@f.setup = private constant [12 x i8] c"O!OOOO:setp\00"
define internal ptr @setup(ptr %module, ptr %args) {
  %base_at = alloca ptr
  %unloaded_at = alloca ptr
  %arity_at = alloca ptr
  %value_at = alloca ptr
  %pointer_at = alloca ptr
  %parsed = call i32 (ptr, ptr, ...) @PyArg_ParseTuple(ptr %args, ptr @f.setup, ptr @PyType_Type, ptr %base_at, ptr %unloaded_at, ptr %arity_at, ptr %value_at, ptr %pointer_at)
  %bad = icmp eq i32 %parsed, 0
  br i1 %bad, label %fail, label %once
once:
  %old = load ptr, ptr @target_type
  %is_set = icmp ne ptr %old, null
  br i1 %is_set, label %again, label %make
again:
  call void @Py_IncRef(ptr %old)
  ret ptr %old
make:
  %base = load ptr, ptr %base_at
  %type = call ptr @PyType_FromSpecWithBases(ptr @target_spec, ptr %base)
  %no_type = icmp eq ptr %type, null
  br i1 %no_type, label %fail, label %keep
keep:
  store ptr %type, ptr @target_type
  call void @Py_IncRef(ptr %type)
  %unloaded = load ptr, ptr %unloaded_at
  store ptr %unloaded, ptr @hook_unloaded
  call void @Py_IncRef(ptr %unloaded)
  %arity = load ptr, ptr %arity_at
  store ptr %arity, ptr @hook_arity
  call void @Py_IncRef(ptr %arity)
  %value = load ptr, ptr %value_at
  store ptr %value, ptr @hook_value
  call void @Py_IncRef(ptr %value)
  %pointer = load ptr, ptr %pointer_at
  store ptr %pointer, ptr @hook_pointer
  call void @Py_IncRef(ptr %pointer)
  ret ptr %type
fail:
  ret ptr null
}

@n.vectorcall = private constant [21 x i8] c"__vectorcalloffset__\00"
@n.weaklist = private constant [19 x i8] c"__weaklistoffset__\00"
@n.function = private constant [10 x i8] c"_function\00"
@n.name = private constant [6 x i8] c"_name\00"
@n.image = private constant [7 x i8] c"_image\00"
@n.context = private constant [9 x i8] c"_context\00"
@target_members = internal global [7 x %PyMemberDef] [
  %PyMemberDef { ptr @n.vectorcall, i32 19, i64 16, i32 1, ptr null },
  %PyMemberDef { ptr @n.weaklist, i32 19, i64 64, i32 1, ptr null },
  %PyMemberDef { ptr @n.function, i32 18, i64 24, i32 1, ptr null },
  %PyMemberDef { ptr @n.name, i32 6, i64 40, i32 1, ptr null },
  %PyMemberDef { ptr @n.image, i32 6, i64 48, i32 1, ptr null },
  %PyMemberDef { ptr @n.context, i32 6, i64 56, i32 1, ptr null },
  %PyMemberDef zeroinitializer
]
@target_slots = internal global [6 x %PyTypeSlot] [
  %PyTypeSlot { i32 52, ptr @target_dealloc },
  %PyTypeSlot { i32 71, ptr @target_traverse },
  %PyTypeSlot { i32 51, ptr @target_clear },
  %PyTypeSlot { i32 50, ptr @PyVectorcall_Call },
  %PyTypeSlot { i32 72, ptr @target_members },
  %PyTypeSlot zeroinitializer
]
@n.target = private constant [33 x i8] c"compcache.target.TypedCallTarget\00"
; DEFAULT (1 << 18) | HAVE_GC (1 << 14) | HAVE_VECTORCALL (1 << 11) | DISALLOW_INSTANTIATION (1 << 7)
@target_spec = internal global %PyTypeSpec { ptr @n.target, i32 72, i32 0, i32 280704, ptr @target_slots }

@image_slots = internal global [2 x %PyTypeSlot] [
  %PyTypeSlot { i32 52, ptr @image_dealloc },
  %PyTypeSlot zeroinitializer
]
@n.image_type = private constant [24 x i8] c"compcache.runtime.Image\00"
@image_spec = internal global %PyTypeSpec { ptr @n.image_type, i32 40, i32 0, i32 262272, ptr @image_slots }

define internal i32 @execute(ptr %module) {
  %old = load ptr, ptr @image_type
  %is_set = icmp ne ptr %old, null
  br i1 %is_set, label %good, label %make
make:
  %type = call ptr @PyType_FromSpec(ptr @image_spec)
  store ptr %type, ptr @image_type
  %bad = icmp eq ptr %type, null
  br i1 %bad, label %fail, label %good
good:
  ret i32 0
fail:
  ret i32 -1
}

@m.open_image = private constant [11 x i8] c"open_image\00"
@m.adopt_image = private constant [12 x i8] c"adopt_image\00"
@m.address = private constant [8 x i8] c"address\00"
@m.find_symbol = private constant [12 x i8] c"find_symbol\00"
@m.make_target = private constant [12 x i8] c"make_target\00"
@m.invalidate = private constant [11 x i8] c"invalidate\00"
@m.is_valid = private constant [9 x i8] c"is_valid\00"
@m.commit = private constant [7 x i8] c"commit\00"
@m.peek = private constant [5 x i8] c"peek\00"
@m.buffer_address = private constant [15 x i8] c"buffer_address\00"
@m.setup = private constant [6 x i8] c"setup\00"
@m.end = private constant [4 x i8] c"end\00"
@methods = internal global [13 x %PyMethodDef] [
  %PyMethodDef { ptr @m.open_image, ptr @open_image, i32 1, ptr null },
  %PyMethodDef { ptr @m.adopt_image, ptr @adopt_image, i32 1, ptr null },
  %PyMethodDef { ptr @m.address, ptr @image_address, i32 1, ptr null },
  %PyMethodDef { ptr @m.find_symbol, ptr @find_symbol, i32 1, ptr null },
  %PyMethodDef { ptr @m.make_target, ptr @make_target, i32 1, ptr null },
  %PyMethodDef { ptr @m.invalidate, ptr @invalidate, i32 8, ptr null },
  %PyMethodDef { ptr @m.is_valid, ptr @is_valid, i32 8, ptr null },
  %PyMethodDef { ptr @m.commit, ptr @commit, i32 1, ptr null },
  %PyMethodDef { ptr @m.peek, ptr @peek, i32 1, ptr null },
  %PyMethodDef { ptr @m.buffer_address, ptr @buffer_address, i32 8, ptr null },
  %PyMethodDef { ptr @m.setup, ptr @setup, i32 1, ptr null },
  %PyMethodDef { ptr @m.end, ptr @end, i32 4, ptr null },
  %PyMethodDef zeroinitializer
]
@module_slots = internal global [2 x %PyTypeSlot] [
  %PyTypeSlot { i32 2, ptr @execute },
  %PyTypeSlot zeroinitializer
]
@n.module = private constant [18 x i8] c"compcache_runtime\00"
@definition = internal global %PyModuleDef {
  i64 1, ptr null, ptr null, i64 0, ptr null,
  ptr @n.module, ptr null, i64 0, ptr @methods, ptr @module_slots, ptr null, ptr null, ptr null
}

define ptr @PyInit_compcache_runtime() {
  %result = call ptr @PyModuleDef_Init(ptr @definition)
  ret ptr %result
}
