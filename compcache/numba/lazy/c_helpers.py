"""Provides Numba's C helpers to compiled code, also in a process that has not imported Numba.

The helpers are in extension modules of Numba that need only NumPy, and no other module of Numba. These modules are loaded without their
package. If Numba is imported later, it uses the same libraries with the same state, because an extension module of this kind is
initialized once per process.

The threads of parallel code belong to another module, one of Numba's three threading layers. The layer that Numba would choose is started
in Numba's way, so that a Numba that is imported later has the same threads. If the choice is not clear, Numba is imported and
chooses the layer.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock

from compcache import frontend
from compcache.interrupts import suppress
from compcache.numba.lazy import has_numba, has_settings_file, when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = [
    "THREADING", "address_in_numba", "configured_threads", "has_library", "helper_address", "library_function", "load_extension",
    "number_of_threads", "set_number_of_threads", "unpickle",
]  # fmt: skip

_LIBRARY = "numba._helperlib"
_MEMORY = "numba.core.runtime._nrt_python"
#: Functions of the C library that Numba offers to compiled code under their own names.
_MATHEMATICS = frozenset((
    "acos", "acosf", "acosh", "acoshf", "asin", "asinf", "asinh", "asinhf", "atan", "atan2", "atan2f", "atanf", "atanh",
    "atanhf", "ceil", "ceilf", "copysign", "copysignf", "cos", "cosf", "cosh", "coshf", "erf", "erfc", "erfcf", "erff",
    "exp", "expf", "expm1", "expm1f", "fabs", "fabsf", "floor", "floorf", "gamma", "gammaf", "ldexp", "ldexpf", "lgamma",
    "lgammaf", "log", "log10", "log10f", "log1p", "log1pf", "log2", "log2f", "logf", "nextafter", "nextafterf", "pow",
    "powf", "round", "roundf", "sin", "sinf", "sinh", "sinhf", "sqrt", "sqrtf", "tan", "tanf", "tanh", "tanhf", "tgamma",
    "tgammaf", "trunc", "truncf", "fmod", "fmodf", "hypot", "hypotf",
))  # fmt: skip
#: The addresses of helpers that need no NumPy, and of helpers in Numba's extension modules.
_own_addresses: dict[str, int] = {}
_numba_addresses: dict[str, int] = {}
_unpickled_objects: dict[tuple[int, bytes], Any] = {}


def helper_address(name: str) -> int:
    """Return the address of one of Numba's C functions, or of another C function of the process; 0 if no function has this name.

    For a function of a threading layer, start Numba's threads. Raise `ImportError` if Numba is not installed, or its extension modules
    cannot be loaded.
    """
    if has_numba():
        return _address_from_numba(name)
    if not _own_addresses:
        from compcache.numba.lazy import _dispatch

        _own_addresses.update(_dispatch.helper_addresses())
    address = _own_addresses.get(name)
    if address is None and name in _MATHEMATICS and not _numba_addresses:  # so that these functions load no extension module
        address = frontend.address_of(name)
    address = address or address_in_numba(name)
    if not address and name in THREADING:
        address = _layer_address(THREADING[name])
    return address or frontend.address_of(name)


def _address_from_numba(name: str) -> int:
    """Return the address of one of the imported Numba's C functions, or 0. Start Numba's threads for a function of the threading layer.

    The functions of the memory runtime are read from Numba's own table, because Numba registers them with LLVM only before its first
    compilation, which a hit avoids.
    """
    from llvmlite import binding
    from numba.core.runtime import _nrt_python

    helpers: dict[str, Any] = _nrt_python.c_helpers
    address = helpers.get(name.removeprefix("NRT_"), 0)
    address = address or binding.address_of_symbol(name)
    if not address and name in THREADING:
        from numba.np.ufunc.parallel import _launch_threads

        _launch_threads()
        address = binding.address_of_symbol(name)
    return address or 0


def address_in_numba(name: str) -> int:
    """Return the address of a helper in an extension module of Numba, or 0 if there is no helper of this name.

    The first call loads the extension modules. Raise `ImportError` if Numba is not installed, or its extension modules cannot be loaded.
    """
    if not _numba_addresses:
        _load_extensions()
    return _numba_addresses.get(name, 0)


def unpickle(address: int, data: bytes) -> Any:
    """Return the object whose pickle compiled code contains at an address. The same address and pickle always give the same object.

    Code that returns an array contains the pickle of its class.
    """
    value = _unpickled_objects.get((address, data), _unpickled_objects)  # no value is the dictionary itself
    if value is _unpickled_objects:
        value = _unpickled_objects.setdefault((address, data), _unpickle(data))  # another thread may have unpickled it in the meantime
    return value


def _unpickle(data: bytes) -> Any:
    """Return the object in a pickle. A pickle that refers to Numba or LLVM needs a special unpickler."""
    if b"numba" in data or b"llvmlite" in data:
        from compcache.numba.lazy import raising

        return raising.unpickle(data)
    from _pickle import loads

    return loads(data)  # the cache was opened with allow_pickle


def _load_extensions() -> None:
    """Load the two extension modules, as `import numba` does, and store the addresses that they provide."""
    import numpy as np  # noqa: F401 - the extension modules use its C interface

    from compcache.numba.lazy.argument_types import learn_numpy

    learn_numpy()
    helpers, memory = load_extension(_LIBRARY), load_extension(_MEMORY)
    memory.memsys_use_cpython_allocator()
    import atexit

    atexit.register(memory.memsys_shutdown)  # arrays may be freed after the interpreter has begun to shut down
    addresses = {f"numba_{name}": address for name, address in helpers.c_helpers.items()}
    addresses |= helpers.c_helpers
    addresses |= {name if name[0] == "_" else f"NRT_{name}": address for name, address in memory.c_helpers.items()}
    _numba_addresses.update(addresses)


def library_function(name: str, version: str) -> int:
    """Return the address of a function in Numba's library of C helpers, which is loaded without Numba, for an exported kernel.

    The name may have the prefix "numba_". `version` is the version of the Numba that compiled the kernel. Raise `ImportError` if the
    installed Numba has another series, Numba or NumPy is not installed, or the library cannot be loaded. Raise `KeyError` if the library
    has no such function.
    """
    if version not in _libraries:
        _libraries[version] = _load_library(version)
    return _libraries[version][name.removeprefix("numba_")]


_libraries: dict[str, dict[str, int]] = {}


def _load_library(version: str) -> dict[str, int]:
    """Return the addresses of the functions in Numba's library of C helpers. Raise `ImportError` if this version cannot be loaded."""
    from compcache.numba.registered.distributions import numba_version
    from compcache.numba.registered.refusals import NotLazy

    reason = f"a compiled function uses Numba's C library {_LIBRARY} for containers or properties of characters"
    advice = f"install numba {_series(version)} and numpy"
    try:
        installed = numba_version()
    except NotLazy as error:
        raise ImportError(f"{reason}: {error}; {advice}", name=_LIBRARY) from error
    if not installed:
        raise ImportError(f"{reason}: numba is not installed; {advice}", name=_LIBRARY)
    if _series(installed) != _series(version):
        raise ImportError(f"{reason}: numba {installed} is installed, which has another library; {advice}", name=_LIBRARY)
    try:
        import numpy as np  # noqa: F401 - the library uses its C interface

        library = sys.modules.get(_LIBRARY) or load_extension(_LIBRARY)
    except ImportError as error:
        raise ImportError(f"{reason}: {error}; {advice}", name=_LIBRARY) from error
    addresses: dict[str, int] = library.c_helpers
    return addresses


def _series(version: str) -> str:
    """Return the first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def load_extension(name: str) -> Any:
    """Load an extension module of Numba without its package. Raise `ImportError` if the module does not exist, or cannot be loaded."""
    import _imp
    from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
    from os.path import exists, join

    from compcache.numba.registered.distributions import package_directory

    directory = package_directory("numba")
    stem = join(directory or "", *name.split(".")[1:])
    path = next((stem + suffix for suffix in EXTENSION_SUFFIXES if exists(stem + suffix)), None)
    if path is None:
        raise ImportError(f"Numba's extension module {name} does not exist: install numba", name=name)
    spec = ModuleSpec(name, ExtensionFileLoader(name, path), origin=path)
    imported = sys.modules.get(name)
    module = _imp.create_dynamic(spec)
    _imp.exec_dynamic(module)
    if imported is None:
        sys.modules.pop(name, None)  # only an imported Numba has this module
    return module


#: Names of Numba's threading functions: in compiled code, and in a threading layer. Code that sets the number of threads contains an
#: address of this process, and is not stored.
THREADING = {"numba_parallel_for": "parallel_for"} | {
    name: name
    for name in (
        "allocate_sched", "deallocate_sched", "do_scheduling_signed", "do_scheduling_unsigned", "get_num_threads",
        "get_parallel_chunksize", "get_sched_size", "get_thread_id", "set_num_threads", "set_parallel_chunksize",
    )
}  # fmt: skip
_LAYERS = ("tbb", "omp", "workqueue")
_TBB = "libtbb.12.dylib" if sys.platform == "darwin" else "libtbb.so.12"
_start_lock = allocate_lock()
_layer: Any = None
_thread_count = 0


def _layer_address(name: str) -> int:
    """Return the address of a function of the threading layer, which is started now; 0 if only Numba can choose the layer."""
    global _layer  # noqa: PLW0603 - the threads belong to the process
    with _start_lock:
        if _layer is None:
            _layer = _start_threads()
    return int(getattr(_layer, name)) if _layer else 0


def number_of_threads() -> Any:
    """Implement `numba.get_num_threads`, which starts the threads. Return NotImplemented if only Numba can determine the number."""
    address = _layer_address("get_num_threads")
    if address:
        from ctypes import CFUNCTYPE, c_int

        count: int = CFUNCTYPE(c_int)(address)()
        if count > 0:
            return count
    return NotImplemented


def set_number_of_threads(count: object) -> Any:
    """Implement `numba.set_num_threads`, which starts the threads.

    Return None, or NotImplemented if only Numba can set the number, or if Numba must report that the number is invalid.
    """
    address = _layer_address("set_num_threads")
    if not address or type(count) is not int or not 1 <= count <= _thread_count:
        return NotImplemented
    from ctypes import CFUNCTYPE, c_int

    CFUNCTYPE(None, c_int)(address)(count)
    return None


def _start_threads() -> Any:
    """Start the threads that Numba would start, and return the threading layer; False if only Numba can choose the layer."""
    global _thread_count  # noqa: PLW0603 - the threads belong to the process
    count = configured_threads()
    layer = _choose_layer() if count > 0 and not has_settings_file() else None
    if layer is None:
        return False
    _thread_count = count
    from ctypes import CFUNCTYPE, c_int

    CFUNCTYPE(None, c_int)(layer.launch_threads)(count)
    CFUNCTYPE(None, c_int)(layer.set_num_threads)(count)
    when_imported(_share_threads)
    return layer


def configured_threads() -> int:
    """Return the number of threads that Numba would start, or a number less than 1 if $NUMBA_NUM_THREADS is not valid."""
    text = os.environ.get("NUMBA_NUM_THREADS")
    if text is None:
        affinity = getattr(os, "sched_getaffinity", None)
        return max(1, len(affinity(0)) if affinity is not None else os.cpu_count() or 1)
    with suppress(ValueError):
        return int(text)
    return 0


def _choose_layer() -> Any:
    """Load and return the threading layer that Numba would load; None if only Numba can choose the layer, or no layer can be loaded."""
    requested = os.environ.get("NUMBA_THREADING_LAYER", "default").lower()
    priority = os.environ.get("NUMBA_THREADING_LAYER_PRIORITY", " ".join(_LAYERS)).split()
    if sorted(priority) != sorted(_LAYERS) or requested not in ("default", "omp", "workqueue"):
        return None
    for name in priority if requested == "default" else [requested]:
        if name == "tbb":
            if has_library((_TBB,)):  # Numba would load TBB's layer if its version of TBB is new enough, which only Numba decides
                return None
            continue
        layer = _load_layer(name)
        if layer is not None:
            return layer
    return None


def has_library(paths: Iterable[str]) -> bool:
    """Return whether one of these shared libraries can be loaded."""
    from ctypes import CDLL

    for path in paths:
        with suppress(OSError):
            CDLL(path)
            return True
    return False


def _load_layer(name: str) -> Any:
    """Return the extension module of a threading layer, or None if it is not installed or cannot be loaded."""
    try:
        return load_extension(f"numba.np.ufunc.{name}pool" if name == "omp" else f"numba.np.ufunc.{name}")
    except ImportError:
        return None


def _share_threads() -> None:
    """Make the imported Numba use the running threads. Restore the number of active threads, which `_launch_threads` resets."""
    from numba.np.ufunc.parallel import _launch_threads

    count = number_of_threads()
    _launch_threads()
    if count is not NotImplemented:
        set_number_of_threads(count)
