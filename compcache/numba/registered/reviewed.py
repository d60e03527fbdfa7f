"""Lists functions and classes that were reviewed and always return the same result for the same arguments.

No analysis of Python code can establish this for objects that are written in C, or for Python functions that read more than their results
depend on. The lists are written by hand. Any object that is not listed, and does not consist of listed objects only (`purity`), is refused.
Therefore a function that a later version of Python or NumPy adds is refused until it is reviewed.
"""

from __future__ import annotations

__all__ = [
    "DIFFERING_VALUES", "EXTERNAL_STATE", "NAMESPACE_ATTRIBUTES", "NOT_IN_KEYS", "PROCESS_FUNCTIONS", "REGISTERED_CLASSES",
    "REVIEWED_MODULES", "REVIEWED_NAMES",
]  # fmt: skip

#: Modules whose names are all listed, except for the names that follow, separated by spaces. The exceptions read files, settings, frames or
#: the names of a namespace, they return what a program has registered, or they return an address or the hash seed of the process.
REVIEWED_MODULES = {
    "_abc": "", "_ast": "", "_bisect": "", "_collections": "", "_collections_abc": "", "_functools": "", "_heapq": "",
    "_operator": "", "_sre": "",
    "_ctypes": "FreeLibrary LoadLibrary PyObj_FromPtr addressof call_cdeclfunction call_function dlclose dlopen dlsym get_errno"
    " get_last_error set_errno set_last_error",
    "_statistics": "", "_string": "", "_struct": "", "_typing": "", "_weakref": "getweakrefcount getweakrefs", "_weakrefset": "",
    "abc": "", "array": "", "ast": "main", "binascii": "", "bisect": "",
    "builtins": "__build_class__ __import__ breakpoint copyright credits eval exec exit globals hash help id input license open quit"
    " vars",
    "cmath": "", "collections": "", "collections.abc": "", "contextlib": "chdir", "copy": "", "copyreg": "", "dataclasses": "",
    "enum": "", "functools": "", "heapq": "", "itertools": "", "keyword": "", "math": "", "numbers": "", "operator": "", "re": "",
    "re._compiler": "", "re._parser": "", "re._constants": "", "reprlib": "", "string": "", "struct": "", "textwrap": "",
    "types": "", "typing": "clear_overloads evaluate_forward_ref get_overloads get_type_hints", "unicodedata": "",
    "weakref": "finalize getweakrefcount getweakrefs", "zlib": "",
}  # fmt: skip
#: The listed names of other modules, separated by spaces.
REVIEWED_NAMES = {
    "_blake2": "blake2b blake2s", "_codecs": "decode encode", "_contextvars": "Context ContextVar copy_context Token",
    "_hashlib": "HASH new openssl_md5 openssl_sha1 openssl_sha224 openssl_sha256 openssl_sha384 openssl_sha512",
    "_io": "BytesIO StringIO _BufferedIOBase _IOBase _TextIOBase",
    "_json": "encode_basestring encode_basestring_ascii make_encoder make_scanner scanstring",
    "_md5": "md5", "_pickle": "PickleBuffer dumps", "_sha1": "sha1", "_sha2": "sha224 sha256 sha384 sha512", "_sha256": "sha256",
    "_sha512": "sha512", "_thread": "RLock _local allocate_lock lock", "_warnings": "warn warn_explicit",
    "ctypes": "CFUNCTYPE POINTER PYFUNCTYPE cast", "fractions": "Fraction", "hashlib": "blake2b blake2s md5 new sha1 sha256 sha512",
    "inspect": "BoundArguments FullArgSpec Parameter Signature _ParameterKind _empty cleandoc"
    " get_annotations getattr_static getdoc getfullargspec getmembers"
    " isabstract isbuiltin isclass iscode iscoroutinefunction isdatadescriptor isfunction isgenerator isgeneratorfunction ismethod"
    " ismethoddescriptor ismodule isroutine signature unwrap",
    "json": "JSONDecoder JSONEncoder dumps loads", "json.decoder": "JSONDecoder", "json.encoder": "JSONEncoder",
    "logging": "FileHandler Filter Filterer Formatter Handler LogRecord Logger LoggerAdapter NullHandler PlaceHolder RootLogger"
    " StreamHandler critical debug error exception getLogger info log warning",
    "nt": "fspath", "posix": "fspath",
    "sys": "exc_info exception getdefaultencoding intern", "threading": "Condition Event Lock RLock local",
    "warnings": "WarningMessage catch_warnings deprecated simplefilter warn warn_explicit",
    "numpy": "_ArrayFunctionDispatcher _DTypeMeta arange array asanyarray asarray ascontiguousarray"
    " asfortranarray bool broadcast busdaycalendar"
    " character complexfloating datetime_data dtype empty errstate finfo flatiter flexible floating frombuffer fromiter"
    " frompyfunc fromstring generic iinfo inexact integer may_share_memory ndarray nditer number promote_types signedinteger"
    " ufunc unsignedinteger vectorize zeros"
    " bool_ bytes_ clongdouble complex128 complex64 datetime64 float16 float32 float64 int16 int32 int64 int8 intc intp longdouble"
    " longlong object_ str_ timedelta64 uint16 uint32 uint64 uint8 uintc uintp ulonglong void",
    "numpy._core._multiarray_umath": "_array_converter _get_implementing_args _monotonicity _place"
    " _vec_string bincount busday_count busday_offset"
    " c_einsum can_cast concatenate copyto correlate correlate2 count_nonzero datetime_as_string dot empty_like inner interp"
    " interp_complex is_busday lexsort min_scalar_type packbits putmask ravel_multi_index result_type shares_memory"
    " unpackbits unravel_index vdot where",
    "numpy._core.getlimits": "finfo iinfo", "numpy._core.numeric": "allclose isclose",
    "numpy.lib._arraypad_impl": "pad", "numpy.lib._arraysetops_impl": "unique",
    "numpy.lib._function_base_impl": "median percentile quantile", "numpy._core.multiarray": "_reconstruct flagsobj scalar",
    "numpy.dtypes": "StringDType", "numpy.lib": "add_docstring", "numpy.lib.array_utils": "normalize_axis_index",
}  # fmt: skip
#: Values in libraries that represent a state outside of the program's code, by module and name.
EXTERNAL_STATE = frozenset((
    "gc.callbacks", "gc.garbage", "linecache.cache", "os.environ", "os.environb", "sys.modules", "sys.stdin",
    "sys.__stdin__", "sys.path_importer_cache", "sys.last_traceback", "sys.last_value", "sys.meta_path", "sys.path_hooks",
    "typing._overload_registry",
))  # fmt: skip
#: Values in libraries that differ between processes, and on which no result depends. `dispatch_cache` is what `singledispatch` remembers.
DIFFERING_VALUES = frozenset(("functools.dispatch_cache", "logging._startTime", "tokenize.PseudoToken"))
#: Functions of libraries that generate code whose results depend on the process or host. Numba exports them from several modules.
PROCESS_FUNCTIONS = frozenset((
    "address_of_symbol", "get_default_triple", "get_host_cpu_features", "get_host_cpu_name", "get_num_threads", "get_parallel_chunksize",
    "get_process_triple", "get_thread_id", "set_num_threads", "set_parallel_chunksize", "threading_layer",
))  # fmt: skip
#: The classes that libraries register with abstract classes of libraries when they are imported.
REGISTERED_CLASSES = {
    "collections.abc.ByteString": "builtins.bytearray builtins.bytes",
    "collections.abc.ItemsView": "builtins.dict_items",
    "collections.abc.KeysView": "builtins.dict_keys",
    "collections.abc.Mapping": "builtins.mappingproxy",
    "collections.abc.MutableMapping": "builtins.dict",
    "collections.abc.Set": "builtins.frozenset",
    "collections.abc.MutableSequence": "array.array builtins.bytearray builtins.list collections.deque",
    "collections.abc.MutableSet": "_weakrefset.WeakSet builtins.set",
    "collections.abc.Sequence": "builtins.bytes builtins.memoryview builtins.range builtins.str builtins.tuple"
    " numpy.random._generator._memoryviewslice numpy.random._generator.array sqlite3.Row",
    "collections.abc.ValuesView": "builtins.dict_values",
    "io.RawIOBase": "_io.FileIO",
    "io.BufferedIOBase": "_io.BufferedRWPair _io.BufferedRandom _io.BufferedReader _io.BufferedWriter _io.BytesIO",
    "io.TextIOBase": "_io.StringIO _io.TextIOWrapper",
    "numbers.Complex": "builtins.complex numpy.inexact",
    "numbers.Integral": "builtins.int numpy.integer",
    "numbers.Number": "decimal.Decimal numpy.number",
    "numbers.Real": "builtins.float numpy.floating",
}
#: Attributes with values that no key contains: addresses of the process, hashes, the location of source code, the functions that the
#: process has compiled, and attributes that are set on a function that is an argument.
NOT_IN_KEYS = frozenset((
    "__array_interface__", "__array_struct__", "__hash__", "cache_info", "co_filename", "co_firstlineno", "co_lines", "co_linetable",
    "co_lnotab", "co_positions", "ctypes", "dispatcher", "getEffectiveLevel", "hasHandlers", "inspect_asm", "inspect_llvm",
    "isEnabledFor", "locked", "nopython_signatures", "overloads", "signatures",
))  # fmt: skip
#: Attributes of Python's objects that refer to namespaces that the code does not name.
NAMESPACE_ATTRIBUTES = frozenset((
    "__builtins__", "__globals__", "__loader__", "__spec__", "f_back", "f_builtins", "f_globals", "f_locals",
    "gi_frame", "tb_frame",
))  # fmt: skip
