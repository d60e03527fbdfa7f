"""Loads the native runtime of the hit path into the process, once.

It is an extension module made from `runtime.ll` by `compcache.publish.runtime_build`, kept in the cache directory as
``runtime-v1/<name>.so`` behind a digest of its own (keyed where the cache has a key), and mapped with the
interpreter's own loader for extension modules. That costs a tenth of importing `ctypes`.
"""

from __future__ import annotations

import sys

from compcache.digest import MAC_SIZE, digest, key_suffix, mac
from compcache.errors import IncompatibleTargetError
from compcache.formats import host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.store import Store

__all__ = ["MODULE_NAME", "REVISION", "load_copy", "load_extension", "load_runtime", "runtime_file", "seal"]

MODULE_NAME = "compcache_runtime"
#: Changes whenever `runtime.ll` does (a test compares it with the file's digest).
REVISION = "37869d3b571c"

_HEAD_SIZE = 16  # of PyObject in builds with a stable ABI: reference count and type
_loaded: Any = None


def runtime_file(signing_key: bytes | None = None) -> tuple[str, str]:
    """Where the runtime of this platform is, below the root of a cache: one for each key."""
    name = f"{MODULE_NAME}-{host.ABI_VERSION}-{REVISION}-{host.platform_name()}{key_suffix(signing_key)}.so"
    return "runtime-v1", name


def seal(image: bytes, signing_key: bytes | None) -> bytes:
    """The last bytes of a runtime's file: the digest of the image before them."""
    return mac(image, signing_key) if signing_key else digest([image], size=MAC_SIZE, person=b"compcache-rt")


def load_runtime(store: Store) -> Any:
    """The native runtime: from the process, from the cache directory, or built anew.

    Raises:
        IncompatibleTargetError: this interpreter has no stable ABI (a free-threaded or a tracing build).
    """
    global _loaded  # noqa: PLW0603 - an extension module is one per process
    if _loaded is None:
        if object.__basicsize__ != _HEAD_SIZE:
            raise IncompatibleTargetError(
                f"this Python ({sys.version.split()[0]}, abiflags {sys.abiflags!r}) does not have the stable ABI that "
                "call targets are made for; use a build with the GIL"
            )
        runtime = _from_directory(store)
        if runtime is None:
            from compcache.publish.runtime_build import build_and_load

            runtime = build_and_load(store)
        from compcache.hit.target import install

        install(runtime)
        import atexit

        atexit.register(runtime.end)
        _loaded = runtime
    return _loaded


def _from_directory(store: Store) -> Any:
    names = runtime_file(store.signing_key)
    data = store.read_file(*names)
    if data is None or len(data) <= MAC_SIZE:
        return None
    if seal(data[:-MAC_SIZE], store.signing_key) != data[-MAC_SIZE:]:
        store.quarantine(store.path(*names), "it does not have the digest that it was published with")
        return None
    try:
        if not store.exposed:
            return load_extension(store.path(*names))
    except ImportError:
        pass  # a noexec mount
    return load_copy(data[:-MAC_SIZE])


def load_copy(image: bytes) -> Any:
    """Map an extension module from memory; None where that cannot be done."""
    from compcache.images.anonymous_file import anonymous_file

    try:
        # The descriptor stays open on purpose: the module is mapped as long as the process lives.
        return load_extension(anonymous_file(image)[1])
    except (ImportError, OSError):
        return None


def load_extension(path: str) -> Any:
    """Map an extension module, without a place in `sys.modules`."""
    import _imp
    from _frozen_importlib import ModuleSpec

    module = _imp.create_dynamic(ModuleSpec(MODULE_NAME, None, origin=path))
    _imp.exec_dynamic(module)
    return module
