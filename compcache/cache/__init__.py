"""The members of `Cache` that open a cache, look functions up and load them. `compcache.facade` has the members that a plain hit needs."""

from __future__ import annotations

import os
import sys
from _weakref import ref
from time import perf_counter

from compcache.errors import CompcacheError, NotCachedError, ReentrantLoadError, UndefinedSymbolError
from compcache.facade import (
    CHECK_VARIABLE,
    DEBUG_VARIABLE,
    LAYERS_VARIABLE,
    LOCKS_VARIABLE,
    PARTS,
    Later,
    default_directory,
    func_name_of,
    members,
    open_caches,
)
from compcache.facade import Cache as Facade
from compcache.files import absolute_path
from compcache.hit.loader import Loader
from compcache.hit.recorder import recorder_for
from compcache.hit.target import path_opener
from compcache.settings import KEY_VARIABLE, RULES, TRUSTED_VARIABLE, is_on, setting
from compcache.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn, TypeGuard

    from compcache.build.source import ModuleSource
    from compcache.cache.adding import Adding
    from compcache.cache.maintenance import Maintenance
    from compcache.cache.sharing import Sharing
    from compcache.hit.compiled import CompiledFunctions
    from compcache.hit.loader import Accept
    from compcache.hit.target import TypedCallTarget
    from compcache.identity import Identity
    from compcache.inspect.descriptions import LoadedState
    from compcache.session import Session

    #: A `ModuleSource`, or LLVM code: assembly text, bitcode, an `llvmlite.ir.Module`, an `llvmlite.binding.ModuleRef`.
    Source = ModuleSource | str | bytes | Any

    class _Parts(Adding, Maintenance, Sharing): ...
else:
    _Parts = Facade

__all__ = ["Cache", "Suggesting", "default_directory", "find_again", "func_names_of", "install_members"]


class Cache(_Parts):
    """See `compcache.facade.Cache`, which receives the members of this class and has the documentation."""

    # ---------------------------------------------------------- compile, or find

    def compile(self, source: Source) -> CompiledFunctions:
        """Compile LLVM code unless it is cached, and return its functions. Each function is cached under a digest of its content.

        The digest covers the function, everything that it reaches in the code, its signature, the definitions of globals, the imports, the
        options and the requested CPU. An edit of one function, or of a comment, does not affect other functions. Only functions that are
        not stored are compiled. If the same source was compiled before, LLVM is not imported.

        Args:
            source: assembly text, bitcode, an llvmlite module, or a `ModuleSource` of these.

        Returns:
            A mapping of plain names to call targets. ``kernels["scale"]`` is ``kernels.scale``. A function is loaded when it is first
            requested.

        Raises:
            CompileError, LinkError, ...: the errors of `add_module` about the source. If the result cannot be stored, the call issues
                one `CacheWarning` instead, and the functions can be called.
        """
        self._require_open()
        from compcache.content.names import NamedSource, read_names, seal
        from compcache.hit.compiled import CompiledFunctions

        sealed = seal(source)
        names = read_names(self._store, sealed.name)
        if names is None or not self._has_all(names.values()):
            from compcache.miss.compile_source import compile_source

            names = compile_source(self._session(), sealed, names)
        source_with_names = NamedSource(sealed, names)
        return CompiledFunctions(names, lambda name: self.get_or_compile(name, source_with_names))

    def _has_all(self, names: Iterable[str]) -> bool:
        """Return whether the functions of one source are stored. `has` checks the first function; the index is enough for the others."""
        first_name, *other_names = names
        return self._loader.holds(first_name, to_import=True) and all(
            next(self._store.find(name), None) is not None for name in other_names
        )

    def has(self, func_name: str | Identity) -> bool:
        """Return whether the cache has a realization of this function that this host can use. ``func_name in cache`` does the same.

        This reads the index, and realizations until one is usable. It does not check whether the cache has the functions that the function
        imports.

        Args:
            func_name: the function's name, or its `Identity`.
        """
        self._require_open()
        return self._loader.holds(func_name_of(func_name))

    __contains__ = has

    # --------------------------------------------------------------- this object

    @property
    def exists(self) -> bool:
        """Whether the directory contains a cache. The first addition creates it."""
        return self._store.is_cache()

    @property
    def readonly(self) -> bool:
        """Whether the cache was opened with readonly=True."""
        return self._store.readonly

    @property
    def layers(self) -> tuple[str, ...]:
        """The read-only directories or bundles that are searched after this directory, in order."""
        return tuple([layer.source for layer in self._store.layers])

    def loaded(self) -> LoadedState:
        """Return the modules, call targets and mapped bytes that this object has in memory now."""
        from compcache.inspect.descriptions import LoadedState

        modules = self._loader.loaded_modules()
        names = tuple(sorted(target._name for target in self._loader.loaded_targets()))
        return LoadedState(tuple(sorted(module.module_id.hex() for module in modules)), names, sum(module.size for module in modules))

    def unload(self, func_name: str | Identity) -> bool:
        """Invalidate the modules that contain a function, and every call target returned from them.

        A running call finishes. Later calls raise `TargetUnloadedError`. The code is unmapped with the last object that could run it.

        Args:
            func_name: the function's name, or its `Identity`.

        Returns:
            Whether there were any call targets.
        """
        self._require_open()
        return self._loader.unload(func_name_of(func_name)) > 0

    def __repr__(self) -> str:
        return f"<compcache.Cache {self.path!r}{' (closed)' if self._closed else ''}>"

    def _repr_html_(self) -> str:
        from compcache.display import html

        return html(self)

    def __reduce__(self) -> NoReturn:
        from compcache.hit.call_errors import raise_not_copyable

        raise_not_copyable()

    # ---------------------------------------------------------- internal methods

    def _open(
        self,
        path: Any,
        layers: Any,
        trusted_keys: Any,
        min_llvm: Any,
        readonly: bool,
        verify: bool,
        trust: bool,
        allow_pickle: bool,
        tune: bool,
        link: Any,
    ) -> None:
        """Open the directory. See `Cache` for the arguments and exceptions."""
        signing_key, publish_key = self._keys_given
        remote, remote_mode = self._remote_given
        _require_type("path", path, (str, os.PathLike))
        _require_type("signing_key", signing_key, (bytes, str))
        _require_type("lock_timeout", self._lock_timeout, (int, float))
        for name, value in (("publish_key", publish_key), ("min_llvm", min_llvm)):
            _require_type(name, value, (str,))
        root = absolute_path(default_directory() if path is None else os.fspath(path))
        self._store = _open_store(
            root, layers, signing_key, trusted_keys, publish_key, min_llvm, {"readonly": readonly, "verify": verify, "trust": trust}
        )
        self._plain = self._loader = Loader(self._store, allow_pickle=allow_pickle)
        self._targets = self._loader.targets
        self._max_size = self._max_size if self._max_size is None else _size_in_bytes(self._max_size)
        self._checks = is_on(CHECK_VARIABLE)
        if link not in (None, "background"):
            raise ValueError(f"Cache(): link must be 'background' or None, not {link!r}")
        self._tunes = tune
        self._tuners = {} if (tune or link) and not readonly else None
        if remote is not None or remote_mode is not None:
            self._session().remote()
        open_caches[root, bool(self._store.stamp_key)] = ref(self)

    def _open_full_store(self) -> None:
        """Replace the loader of plain hits with a store and a full loader, as if the cache had been opened with them.

        Later changes of the environment and of the directory's owner have no effect.
        """
        loader, recorder = self._plain, self._plain._recorder
        loader.leave_plain()
        store = Store(loader._root, open_beneath=path_opener(), user=loader._owner)
        store = self.__dict__.setdefault("_first_store", store)  # the first one counts if threads or handlers meet here
        recorder.write_by(store.files)
        store.stats = recorder
        loader.__class__ = Loader
        assert isinstance(loader, Loader)
        loader.adopt(store)
        self._loader = loader
        self._store = store

    def _is_miss(self, error: Exception) -> TypeGuard[CompcacheError]:
        """Return whether `get_or_compile` compiles after this error of a look-up."""
        return isinstance(error, CompcacheError) and not self._closed and not isinstance(error, ReentrantLoadError)

    def _fetch_after_miss(self, error: Exception, func_name: str | Identity) -> bool:
        """Count an error of a look-up that is a miss. Return whether the function was then fetched from the remote store."""
        if not isinstance(error, CompcacheError) or isinstance(error, ReentrantLoadError):
            return False
        self._store.stats.missed(error)
        if isinstance(error, (NotCachedError, UndefinedSymbolError)) and self._session().fetch((func_name_of(func_name),)):
            return True
        if isinstance(error, NotCachedError):
            error.suggest = self._suggestion
        return False

    def _close_full_store(self) -> None:
        """Write pending entries and statistics, and close the loader and the store. If the entries cannot be written, nothing is closed."""
        if self._entries is not None:
            self._entries.flush()
        self._closed = True
        try:
            if self._tuners:
                from compcache.closures.background import reap_processes

                reap_processes(self._tuners)
            self._store.stats.flush()  # modules that are still held count as used
        finally:  # after an interrupt
            self._loader.close()
            self._store.close()

    def _load_by_store(self, func_name: str, owner: object, accept: Accept | None) -> TypedCallTarget:
        """Load a function. If this thread is building a function, load only functions that are stored. See `Loader.load` for `accept`."""
        if self._loader.builds:
            from compcache.miss.held import load_while_building

            return load_while_building(self._session(), self._load_stored_function, func_name, owner, accept)
        return self._load_stored_function(func_name, owner, accept)

    def _load_stored_function(self, func_name: str, owner: object, accept: Accept | None) -> TypedCallTarget:
        """Load a function, retarget it if necessary, and start background work (tuning, linking) for it once. See `Loader.load` for errors.

        Count a hit unless the function was in memory.
        """
        started = perf_counter()
        held_before = self._loader.held(func_name)
        try:
            target = self._loader.load(func_name, owner, accept)
        except CompcacheError as error:
            from compcache.hit.miss import unfit_function

            if not self._retarget or unfit_function(error, func_name) is None:
                raise
            target = self._load_retargeted(func_name, owner, accept, error)
        if self._tuners is not None and func_name not in self._tuners:
            from compcache.cache.reopening import settings_of
            from compcache.closures.background import start_background_work

            start_background_work(self._session(), self._tuners, target, lambda: settings_of(self, secrets=True), tune=self._tunes)
        if target is not held_before:
            self._store.stats.hit(func_name, target._context.module.module_id, perf_counter() - started)
        return target

    def _load_retargeted(self, func_name: str, owner: object, accept: Accept | None, error: CompcacheError) -> TypedCallTarget:
        """Compile the stored bitcode for this host, and load the function.

        Raise `error` if llvmlite is not installed. See `load_retargeted` for other exceptions.
        """
        try:
            try:
                from compcache.miss.retarget import load_retargeted
            except ImportError:  # llvmlite is not installed
                raise error from error.__cause__

            target = load_retargeted(self._session(), func_name, owner, accept, error)
            self._store.stats.missed(error)
        finally:
            del error  # the traceback contains this frame
        return target

    def _warn_stale(self, target: TypedCallTarget, name: str | Identity, build: Callable[[], Source]) -> TypedCallTarget:
        """Return `target`. Issue a warning if it was compiled from different code than `build` returns now."""
        from compcache.miss.staleness import warn_if_stale

        warn_if_stale(self._session(), target, name, build)
        return target

    def _session(self) -> Session:
        """Return the session of this cache for the miss path, created at the first call. Raise `StorageError` if the cache is closed."""
        self._require_open()
        if self._opened_session is None:
            from compcache.session import Session

            self._opened_session = Session(
                self._store, self._loader, max_size=self._max_size, lock_timeout=self._lock_timeout, retargets=self._retarget,
                remote=self._remote_given,
            )  # fmt: skip
        return self._opened_session

    def _suggestion(self, func_name: str) -> str:
        """Return similar names for the message of a `NotCachedError`. This is called only when the message is formatted."""
        from compcache.inspect.names import suggestion

        return suggestion(self._store, func_name)


class Suggesting:
    """A context manager for questions to an open cache. It adds similar names to the message of a `NotCachedError`."""

    __slots__ = ("_cache",)

    def __init__(self, cache: Facade) -> None:
        self._cache = cache

    def __enter__(self) -> None:
        """Raise `StorageError` if the cache is closed."""
        self._cache._require_open()

    def __exit__(self, _: object, error: object, __: object) -> None:
        """Let a `NotCachedError` find similar names when its message is read."""
        if isinstance(error, NotCachedError):
            error.suggest = self._cache._suggestion


def _size_in_bytes(size: int | str) -> int:
    """Return a size in bytes. See `read_size` for the exceptions."""
    if type(size) is int and size >= 0:
        return size
    from compcache.usage.limits import read_size

    return read_size(size)


def _require_type(name: str, value: object, kinds: tuple[type, ...]) -> None:
    """Check the type of a `Cache` argument. None is accepted. Raise `TypeError` if the argument has another type."""
    if value is not None and not isinstance(value, kinds):
        raise TypeError(f"Cache(): {name} must be {' or '.join(kind.__name__ for kind in kinds)}, not {type(value).__name__}")


def _open_store(
    root: str,
    layers: Iterable[str | os.PathLike[str]] | None,
    signing_key: bytes | str | None,
    trusted_keys: Iterable[str] | str | None,
    publish_key: str | None,
    min_llvm: str | None,
    options: dict[str, Any],
) -> Store:
    """Open the store of a directory. Arguments that are None are read from the settings. See `Cache` for the exceptions."""
    options["open_beneath"] = path_opener()
    rules = signing_key, trusted_keys, publish_key, min_llvm
    if rules != (None,) * 4 or any(map(setting, RULES)):
        from compcache.signing.rules import read_rules

        options.update(read_rules(*rules, RULES))
    is_on(LOCKS_VARIABLE)  # raises an exception for an invalid value
    options["recorder"] = recorder_for
    # A `logging` that is still being imported has no `getLogger` yet.
    if is_on(DEBUG_VARIABLE) or hasattr(sys.modules.get("logging"), "getLogger"):
        from compcache.hit.log import logging_recorder_for

        options["recorder"] = logging_recorder_for
    if layers is None:
        layers = [path for path in setting(LAYERS_VARIABLE).split(os.pathsep) if path]
    if layers:
        from compcache.layers.layered_store import LayeredStore, layer_paths

        return LayeredStore(root, layer_paths(layers), options)
    return Store(root, **options)


def func_names_of(names: Any) -> list[str]:
    """Return the func_names of one or more functions, given as names or `Identity` objects.

    Raises:
        TypeError: `names` is neither iterable nor a name.
    """
    if isinstance(names, str) or hasattr(names, "func_name"):
        return [func_name_of(names)]
    if not hasattr(names, "__iter__"):
        raise TypeError(f"names must be an iterable of str or compcache.Identity, like ['dot'], not {type(names).__name__}")
    return [func_name_of(name) for name in names]


def _open_cache(path: str, *, signed: bool) -> Cache | None:
    """Return an open cache of a directory, or None if there is none. `signed` is whether the cache must have a signing key.

    If `signed` is false, the cache must have no signing key.
    """
    open_cache = open_caches.get((path, signed))
    cache = open_cache() if open_cache is not None else None
    return cache if cache is not None and not cache._closed else None


def find_again(path: str, func_name: str, signed: bool = False, layers: tuple[str, ...] = ()) -> TypedCallTarget:
    """Return the call target for a pickled target, from an open cache of the directory or from a new one.

    A pickle contains no key. If the pickled target belongs to a cache with a signing key (`signed`), the function is loaded only with the
    key of an open cache of the directory or the key in the environment. `layers` are used only if a new cache is opened.

    Raises:
        NotCachedError: the cache does not have the function.
        UntrustedDirectoryError: this process has no key, or other users can write to the directory.
        SettingError: a setting that a new cache reads is not valid.
        CompcacheError: the function cannot be loaded; see `Cache.get_target`.
    """
    cache = _open_cache(path, signed=True) if signed else _open_cache(path, signed=False) or _open_cache(path, signed=True)
    if cache is None:
        if signed and not setting(KEY_VARIABLE) and not setting(TRUSTED_VARIABLE):
            from compcache.hit.call_errors import missing_key_error

            raise missing_key_error(path, func_name, KEY_VARIABLE)
        cache = Cache(path, layers=layers or None)
    try:
        held = cache._targets.get(func_name)
        target = held() if held is not None else None
        return target if target is not None else cache._load(func_name, owner=cache)
    except NotCachedError as error:
        from compcache.hit.call_errors import missing_function_error

        raise missing_function_error(path, func_name, error) from error


def install_members(part: type) -> Any:
    """Replace placeholders in `Cache` with the members that `part` defines, and return `Cache`.

    A member that a program has patched, as tests do, stays. If the program restores the original later, it may restore a placeholder.
    """
    installed = {name: vars(part)[name] for name in PARTS[part.__module__.removeprefix("compcache.cache").removeprefix(".")]}
    for member in installed.values():
        function = getattr(member, "fget", member)
        function.__qualname__ = f"Cache.{function.__name__}"  # which messages of TypeErrors name
    members.update(installed)
    for name, member in installed.items():
        if isinstance(Facade.__dict__[name], Later):
            setattr(Facade, name, member)
    return Facade


if not TYPE_CHECKING:  # last, so that a signal handler that imports this file meanwhile sees all of it or nothing
    Cache = install_members(Cache)
