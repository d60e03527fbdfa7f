"""Stores Numba's compiled functions in a compcache directory, by content.

::

    from compcache.numba import njit, prange

imports Numba's decorators for programs that start without Numba. Functions that were compiled earlier are found by their content. Numba is
imported only if one of them is not found. This module also provides every other name of Numba; the use of such a name imports Numba.

::

    import compcache.numba
    compcache.numba.install()

makes every ``cache=True`` of Numba's own decorators use the cache directory, until `uninstall` is called. See `docs/numba.md`.
"""

from __future__ import annotations

from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    SUPPORTED: tuple[tuple[int, int], tuple[int, int]]
    import os
    from collections.abc import Iterable
    from types import ModuleType, TracebackType
    from typing import Any

    from compcache.cache import Cache
    from compcache.numba.declarations.decorators import cfunc, guvectorize, jit, njit, prange, stencil, vectorize
    from compcache.numba.dispatch import Backend

__all__ = [
    "SUPPORTED", "cfunc", "export", "guvectorize", "install", "installed", "jit", "njit", "package", "prange", "stencil", "uninstall",
    "vectorize",
]  # fmt: skip


def install(
    cache: Cache | str | os.PathLike[str] | None = None, *, lazy: bool = False, targets: Iterable[str] | str | None = None,
    **options: Any,
) -> Backend:  # fmt: skip
    """Make every ``cache=True`` of Numba use a cache directory.

    Numba's entries are pickled. A call of this function permits reading pickles from the directory, under compcache's rules: a directory
    that another user could have written to is refused.

    Args:
        cache: the directory, None for the default one, or an open cache (with ``allow_pickle=True``).
        lazy: whether ``from numba import njit`` returns the decorators of this module, unless Numba is imported already. When the program
            uses a part of Numba without a stand-in, Numba is imported, and ``cache=True`` uses the directory from then on.
        targets: the CPUs to store code for, as in `ModuleSource(targets=...)`; None for $COMPCACHE_TARGETS, or this host if that is not
            set.
        options: further arguments of `compcache.Cache`.

    Returns:
        The backend. It counts hits and misses, and lists the functions that are not cached with the reasons. If a backend is already
        installed with this directory, that backend is returned, and the options are ignored. If the version of Numba is not supported, the
        backend is not installed: a `CacheWarning` is issued, and Numba works as without compcache.

    Raises:
        ImportError: Numba is not installed, and `lazy` is not set.
        RuntimeError: the backend is already installed with another directory.
        UntrustedDirectoryError: another user could have written to the directory.
        SettingError: a setting is not valid.
        ValueError: the open cache was created without ``allow_pickle=True``.
    """
    return _install(cache, {**options, "targets": targets}, is_first=False, lazy=lazy)


def _install(cache: Any, options: dict[str, Any], *, is_first: bool, lazy: bool = False) -> Backend:
    """Install the backend as `install` does, and return it. With `lazy`, Numba is not imported.

    `is_first` is whether Numba is about to compile or load its first function.
    """
    import sys

    from compcache.numba.lazy.garbage import few_collections

    lazy = lazy and "numba" not in sys.modules
    with few_collections(lasting=True):
        if not lazy:
            import numba  # noqa: F401 - its names are checked before any of them is replaced

        return _install_backend(cache, options, is_first=is_first, lazy=lazy)


def _install_backend(cache: Any, options: dict[str, Any], *, is_first: bool, lazy: bool) -> Backend:
    """Install the backend, and return it. Numba must be imported already, unless `lazy` is set.

    If a backend is already installed with this directory, ignore the options, and return that backend. See `install` for the exceptions.
    """
    from compcache import Cache, frontend
    from compcache.numba.dispatch import Backend
    from compcache.numba.lazy import installed_backend, set_installed
    from compcache.numba.versions import warn_if_unsupported

    options = dict(options)
    targets = options.pop("targets", None)
    current: Backend | None = installed_backend()
    if current is not None:
        from compcache.cache import default_directory
        from compcache.files import absolute_path

        directory = cache.path if isinstance(cache, Cache) else absolute_path(cache or default_directory())
        if current.cache.path != directory:
            raise RuntimeError(f"compcache.numba is already installed with the directory {current.cache.path}: call uninstall() first")
        return current
    if isinstance(cache, Cache):
        if not frontend.allows_pickle(cache):
            raise ValueError(f"the cache {cache.path} cannot store Numba's pickled entries; open the cache with allow_pickle=True")
        opened = cache
    else:
        opened = Cache(cache, **{"allow_pickle": True, **options})
    frontend.check_settings()  # the program must not fail at its first miss
    backend = Backend(opened, targets)
    if not warn_if_unsupported():
        set_installed(backend, _install_import_hook(backend) if lazy else _install_numba_hooks(backend, is_first=is_first))
    return backend


def _install_import_hook(backend: Backend) -> Any:
    """Replace Numba by a stand-in, which installs the hooks once Numba is imported. Return the object that removes the stand-in."""
    from compcache.numba.declarations.import_hook import Hook
    from compcache.numba.lazy import installed_hook, set_installed
    from compcache.numba.versions import warn_if_unsupported

    def install_hooks() -> Any:
        """Install the hooks in the imported Numba, and return them; None if the backend was removed, or does not support the version."""
        if installed_hook() is not hook:
            return None
        if warn_if_unsupported():  # Numba's metadata named a supported version, but the imported Numba is not supported
            set_installed(None, None)
            return None
        return _install_numba_hooks(backend, stores_all=True)

    hook = Hook(install_hooks)
    hook.install()
    return hook


def _install_numba_hooks(backend: Backend, *, is_first: bool = False, stores_all: bool = False) -> Any:
    """Install the hooks in Numba, and return the object that removes them. See `Hooks` for the options."""
    from compcache.numba.hooks.installation import Hooks

    return Hooks(backend, stores_all=stores_all).install(is_first=is_first)


def uninstall() -> None:
    """Restore Numba's own cache. Do nothing if the backend is not installed.

    Functions that were decorated in the meantime keep using the directory.
    """
    from compcache.numba.lazy import installed_hook, set_installed

    hook = installed_hook()
    if hook is not None:
        hook.remove()
        set_installed(None, None)


class installed:  # noqa: N801 - it is used like a function
    """A context manager that installs the backend: ``with installed(directory) as backend:``.

    At the end, it uninstalls the backend, unless a backend was installed already.

    Args:
        cache: the cache, or its directory; None for the default one.
        options: further arguments of `install`.
    """

    def __init__(self, cache: Cache | str | os.PathLike[str] | None = None, **options: Any) -> None:
        self._cache = cache
        self._options = options

    def __enter__(self) -> Backend:
        from compcache.numba.lazy import installed_backend

        self._is_own = installed_backend() is None
        return install(self._cache, **self._options)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._is_own:
            uninstall()


_LAZY = frozenset(("cfunc", "guvectorize", "jit", "njit", "prange", "stencil", "vectorize"))


def __getattr__(name: str) -> Any:
    value: Any
    if name in _LAZY:
        value = _find_decorator(name)
    elif name == "SUPPORTED":
        from compcache.numba.versions import series_supported

        oldest, *_, (major, minor) = series_supported()
        value = oldest, (major, minor + 1)
    elif name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        from compcache.numba.declarations.modules import find_attribute
        from compcache.numba.lazy import has_numba

        stand_in = None if has_numba() else find_attribute("numba", name)
        if stand_in is not None:
            return stand_in  # until Numba is imported
        import numba

        try:
            value = getattr(numba, name)
        except AttributeError as error:
            reraise_interrupt(error)
            raise AttributeError(f"neither {__name__} nor numba has an attribute {name!r}") from None
    globals()[name] = value
    return value


def _find_decorator(name: str) -> Any:
    """Return this package's decorator with this name. If the version of Numba is not supported, warn, and return Numba's decorator."""
    from compcache.numba.versions import warn_if_unsupported

    if warn_if_unsupported():
        import numba

        return getattr(numba, name)
    from compcache.numba.declarations import decorators

    return getattr(decorators, name)


def export(
    func: Any, signature: Any, *, cache: Cache | None = None, name: str | None = None,
    targets: Iterable[str] | str | None = None,
) -> str:  # fmt: skip
    """Store a native entry for a function, which `Cache.get_target` calls without Numba.

    Args:
        func: a Python function, or a function decorated with `njit`, whose options are then used.
        signature: a Numba signature, as text or object, with or without a result type: ``"float64(float64[::1], int64)"``. Parameters and
            results are numbers, booleans, None, text, bytes, dates, records, enumerations, arrays of any dtype and order, optional
            values, tuples and named tuples of these, lists, dictionaries and sets. Parameters that the signature omits have their
            default values. For a function with ``*args``, the signature declares the type of each argument of a call. A signature from a
            dispatcher's ``nopython_signatures`` also works.
        cache: the cache to store in; None for the cache of the installed backend, or the default cache.
        name: the func_name for `Cache.get_target`; None for the module and the qualified name. The entry replaces a previous export with
            that name.
        targets: the CPUs to compile for, as in `ModuleSource(targets=...)`; None for $COMPCACHE_TARGETS, or this host if that is not set.

    Returns:
        The func_name.

    Raises:
        CompileError: the function cannot be exported, or Numba cannot compile it. The message says why.
        ImportError: Numba is not installed.
        RuntimeError: this version of Numba is not supported.
        StorageError: the entry cannot be stored.
    """
    _require_supported_numba()
    from compcache.cache import Cache
    from compcache.numba.exports.export import export as export_

    if cache is None:
        from compcache.numba.lazy import installed_backend

        backend = installed_backend()
        cache = backend.cache if backend is not None else Cache()
    return export_(func, signature, cache=cache, name=name, targets=targets)


def package(
    module: ModuleType, out: str | os.PathLike[str] | None = None, *, targets: Iterable[str] | str | None = None
) -> tuple[str, ...]:
    """Compile every kernel of a module, for programs that run without Numba.

    A kernel is a public function that the module decorates with a signature, ``@njit("float64(float64[::1])")``, using `njit` from
    `compcache.numba`. Where Numba is not installed, this `njit` returns the kernel that was packaged beside the module. Where Numba is
    installed, Numba compiles the same source.

    Args:
        module: the imported module.
        out: the directory to write; None for ``__compcache__`` beside the module, where `njit` looks for kernels.
        targets: the CPUs to compile for, as in `ModuleSource(targets=...)`; None for $COMPCACHE_TARGETS, or this host if that is not set.

    Returns:
        The func_names of the kernels.

    Raises:
        CompileError: a kernel cannot be exported; see `export`.
        ImportError: Numba is not installed.
        OSError: no temporary directory can be created.
        RuntimeError: this version of Numba is not supported.
        StorageError: the directory cannot be written.
        ValueError: the module has no kernels, a public jitted function has no signature, or `out` is None and the module has no file.
    """
    _require_supported_numba()
    import os

    from compcache.files import absolute_path
    from compcache.numba.exports.package import package_exports
    from compcache.numba.kernels.find import DIRECTORY

    file: str = getattr(module, "__file__", None) or ""
    if out is None and not file:
        raise ValueError(f"the module {module.__name__} has no file: pass the directory for its kernels as out")
    directory = out if out is not None else os.path.join(os.path.dirname(file), DIRECTORY)
    names = package_exports([module], absolute_path(os.fspath(directory)), targets)
    if not names:
        raise ValueError(f"the module {module.__name__} has no kernel to package: decorate a function with a signature")
    return names


def _require_supported_numba() -> None:
    """Import Numba, in place of a stand-in too. Raise `RuntimeError` if its version is not supported. The message says why."""
    from compcache.numba.lazy.stand_ins import real_numba
    from compcache.numba.versions import unsupported_reason

    real_numba()
    reason = unsupported_reason()
    if reason:
        raise RuntimeError(f"{reason}: install a supported version of Numba")
