"""The members of `Cache` that a hit needs. The other members are defined in `compcache.cache`, and imported on first use."""

# For a hit, a new process imports only this file and the code for plain hits. `Cache` is still one class. A member that is defined
# elsewhere has a placeholder (`Later`), which `compcache.cache.install_members` replaces with the definition from a file of `PARTS`.

import os
import sys
from _weakref import ref

from compcache.hit import open_plain
from compcache.hit.recorder import shared_recorder
from compcache.hit.target import load_runtime
from compcache.settings import RULES, are_set, setting, users_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Self, TypeAlias, TypeGuard

    from compcache.build.source import ModuleSource
    from compcache.errors import CompcacheError
    from compcache.hit import PlainLoader
    from compcache.hit.loader import Accept, Loader
    from compcache.hit.target import TypedCallTarget
    from compcache.identity import Identity
    from compcache.miss.entries import PendingEntries
    from compcache.session import Session
    from compcache.store import Store

    #: A `ModuleSource`, or LLVM code: assembly text, bitcode, an `llvmlite.ir.Module`, an `llvmlite.binding.ModuleRef`.
    Source: TypeAlias = ModuleSource | str | bytes | Any

__all__ = ["PARTS", "Cache", "Later", "default_directory", "func_name_of", "members", "open_caches"]

DIRECTORY_VARIABLE = "COMPCACHE_DIR"
#: If set (for CI), a hit of `get_or_compile` also calls `build`, and compares the returned source with the source of the cached code.
CHECK_VARIABLE = "COMPCACHE_CHECK"
LAYERS_VARIABLE = "COMPCACHE_LAYERS"
#: A switch that is needed late. An invalid value is reported when a cache is opened.
LOCKS_VARIABLE = "COMPCACHE_LOCKS"
#: If set, each hit, miss, compilation, wait and refusal is logged to standard error (`compcache.hit.log`).
DEBUG_VARIABLE = "COMPCACHE_DEBUG"
#: The members that are not defined here, by the module of `compcache.cache` that defines them. (A `__getattr__` would make every attribute
#: access of a cache slower.)
PARTS = {
    "": (
        "compile", "has", "__contains__", "exists", "readonly", "layers", "loaded", "unload", "__repr__", "_repr_html_", "__reduce__",
        "_open", "_open_full_store", "_is_miss", "_fetch_after_miss", "_close_full_store", "_load_by_store", "_load_stored_function",
        "_load_retargeted", "_warn_stale", "_session", "_suggestion", "_has_all",
    ),
    "adding": ("add_module", "add_modules", "replace", "link"),
    "questions": (
        "functions", "__iter__", "__len__", "__bool__", "labelled", "function", "realizations", "dependencies", "graph", "ir", "asm",
        "explain", "modules", "module", "info", "stats", "history", "zero_stats",
    ),
    "maintenance": (
        "prune", "propose_prune", "carry_out", "compact", "check", "pin", "unpin", "pinned", "remove", "remove_module", "clear",
    ),
    "sharing": ("export", "import_bundle", "remote", "has_many", "prefetch", "push", "flush_uploads"),
}  # fmt: skip
#: In place of a part: `Cache._open_full_store` sets the attribute.
_STORE = "store"
#: A cache is plain only if none of these is set (`compcache.hit`).
_NOT_PLAIN = (*RULES, CHECK_VARIABLE, LAYERS_VARIABLE, LOCKS_VARIABLE, DEBUG_VARIABLE, "COMPCACHE_MAP_FILES", "COMPCACHE_STATS")

#: Open caches by directory and whether they have a signing key, so that unpickling a call target finds an open cache.
open_caches: "dict[tuple[str, bool], ref[Any]]" = {}


def default_directory() -> str:
    """Return the directory of caches without a path: $COMPCACHE_DIR, else the user's cache directory. Exception: see `setting`."""
    chosen = setting(DIRECTORY_VARIABLE)
    if chosen:
        return chosen
    if sys.platform.startswith(("linux", "freebsd", "openbsd", "netbsd")):
        # The same result as platformdirs, without importing it.
        return os.path.join(users_directory("XDG_CACHE_HOME", "~/.cache"), "compcache")
    from platformdirs import user_cache_dir

    return user_cache_dir("compcache", appauthor=False)


def func_name_of(name: "str | Identity") -> str:
    """Return the func_name of a function that is given by name or as an `Identity`. Raise `TypeError` for other objects."""
    if isinstance(name, str):
        return name
    func_name = getattr(name, "func_name", None)
    if not isinstance(func_name, str):
        raise TypeError(f"the name of a function must be a str or a compcache.Identity, not {type(name).__name__}")
    return func_name


class Later:
    """A placeholder for a member of `Cache` that a file of `PARTS` defines."""

    # The first access imports the file. With `_STORE`, a placeholder for an attribute of a full cache. The first access turns a cache for
    # plain hits into a full cache. The class is not a data descriptor, so attributes of the instance take precedence.

    __slots__ = ("_name", "_part")

    def __init__(self, name: str, part: str) -> None:
        self._name = name
        self._part = part

    def __get__(self, cache: "Any", owner: "Any" = None) -> "Any":
        """Import and return the member. Raise `ReentrantLoadError` or `RuntimeError` if this code interrupts the import of the member."""
        if self._part == _STORE:
            if cache is None:
                return self
            cache._open_full_store()
            return cache.__dict__[self._name]
        import compcache.cache

        if self._part:
            __import__(f"compcache.cache.{self._part}")
        member = members.get(self._name, self)
        if member is self:  # this thread is in the middle of importing it
            message = f"Cache.{self._name} was used by code that interrupts the import of compcache.cache: retry later"
            # Nothing can be imported here, and the interrupted import may not have reached `compcache.errors`.
            raise getattr(getattr(compcache, "errors", None), "ReentrantLoadError", RuntimeError)(message)
        return member.__get__(cache, owner) if hasattr(member, "__get__") else member


#: The definitions that replace placeholders, by name.
members: "dict[str, Any]" = {}


class Cache:
    """A directory of compiled LLVM modules.

    Args:
        path: the directory; None means `default_directory()`. The first addition creates it.
        readonly: whether never to write to the directory. Missing functions are compiled in memory.
        verify: whether to check the digest of each file before its first use.
        signing_key: the key that signs additions. Only modules with its signature are accepted. None means $COMPCACHE_SIGNING_KEY. Text
            that begins with ``@`` or ``$`` names a file or an environment variable with the key, also for `publish_key` and `remote`.
        trust: whether to use the directory even if other users own it or can write to it.
        allow_pickle: whether to unpickle pickled globals.
        max_size: the size limit that additions maintain, in bytes or as ``"500M"``, ``"5GB"`` (powers of 1024). 0 is no limit. None means
            $COMPCACHE_MAX_SIZE or the default limit.
        lock_timeout: the number of seconds that `get_or_compile` waits for another process that compiles the function; None means
            $COMPCACHE_LOCK_TIMEOUT or 60.
        retarget: whether to compile stored code for this host if all realizations of a function are for other CPUs. If not, such a
            function is a miss.
        tune: whether to compile the stored code of a loaded function for this host in the background, if its realization is for another
            CPU. Functions that are loaded again are also linked. The next process uses the results.
        link: ``"background"`` links functions that reach several modules and are loaded again (see `Cache.link`), in the background.
        layers: the directories of read-only caches, for example of an image, a package or a team. Look-ups search them in their order,
            after this directory. Missing directories are skipped. None means $COMPCACHE_LAYERS, paths separated by colons.
        trusted_keys: public keys (Ed25519, ``name:base64``; ``@path`` is a file of keys). Only code that is signed by one of these keys,
            or compiled in this directory, runs. None means $COMPCACHE_TRUSTED_KEYS.
        publish_key: the secret key that signs additions for readers with its public key (``name:base64``, as ``compcache key new``
            writes it). None means $COMPCACHE_PUBLISH_KEY.
        min_llvm: the oldest version of LLVM, like ``"22"``, whose code is used. None means $COMPCACHE_MIN_LLVM, or no limit.
        remote: the URL of a store that hosts share (``s3://``, ``gs://``, ``az://``, ``https://``, ``redis://``, ``file:///``), or a list
            of URLs, the nearest first. Misses search the stores before they compile. None means $COMPCACHE_REMOTE, or no store.
        remote_mode: ``"read"``, ``"write"`` (also upload compiled modules) or ``"off"``, for all stores, or a list with a mode for each
            store. None means $COMPCACHE_REMOTE_MODE or ``"read"``.

    Raises:
        UntrustedDirectoryError: another user may have written files in the directory.
        OSError, TypeError, ValueError: an argument, or the setting that replaces it, is not valid. The message names it.

    If `COMPCACHE_DEBUG` is set, or `logging` is imported before the cache is opened, each hit, miss, compilation, wait and refusal is
    logged to ``compcache`` (level DEBUG). Methods of a closed cache raise `StorageError`.
    """

    def __init__(
        self,
        path: "str | os.PathLike[str] | None" = None,
        *,
        readonly: bool = False,
        verify: bool = True,
        signing_key: "bytes | str | None" = None,
        trust: bool = False,
        allow_pickle: bool = False,
        max_size: "int | str | None" = None,
        lock_timeout: "float | None" = None,
        retarget: bool = True,
        tune: bool = False,
        link: "str | None" = None,
        layers: "Iterable[str | os.PathLike[str]] | None" = None,
        trusted_keys: "Iterable[str] | str | None" = None,
        publish_key: "str | None" = None,
        min_llvm: "str | None" = None,
        remote: "str | Sequence[str] | None" = None,
        remote_mode: "str | Sequence[str] | None" = None,
    ) -> None:
        self._tuners: dict[str, int] | None = None  # tuning processes by func_name
        self._opened_session: Session | None = None
        self._entries: PendingEntries | None = None  # entries of data that wait to be written
        self._closed = False
        self._lock_timeout = lock_timeout
        self._retarget = retarget
        self._max_size: Any = max_size
        self._keys_given = signing_key, publish_key
        self._remote_given = remote, remote_mode
        given = signing_key, layers or None, trusted_keys, publish_key, min_llvm, remote, remote_mode, max_size, lock_timeout
        links = link == "background"
        plain = None
        if verify and not (readonly or trust or tune or given != (None,) * len(given)) and (links or link is None):
            plain = _open_plain(path)
        if plain is None:
            self._open(path, layers, trusted_keys, min_llvm, readonly, verify, trust, allow_pickle, tune, link)
        else:
            self._checks = self._tunes = False
            self._tuners = {} if links else None
            self._plain: PlainLoader = plain
            plain.links, plain.allow_pickle = links, allow_pickle
            self._targets = plain.targets
            open_caches[plain._root, False] = ref(self)
        _shorten()

    if TYPE_CHECKING:
        _store: Store
        _loader: Loader
        _checks: bool

        def _open(self, *given: Any) -> None: ...
        def _open_full_store(self) -> None: ...
        def _warn_stale(self, target: TypedCallTarget, name: str | Identity, build: Callable[[], Source]) -> TypedCallTarget: ...
        def _session(self) -> Session: ...
        def _is_miss(self, error: Exception) -> TypeGuard[CompcacheError]: ...
        def _fetch_after_miss(self, error: Exception, func_name: str | Identity) -> bool: ...
        def _load_by_store(self, func_name: str, owner: object, accept: Accept | None) -> TypedCallTarget: ...
        def _close_full_store(self) -> None: ...
        def _suggestion(self, func_name: str) -> str: ...

        def has(self, func_name: str | Identity) -> bool:
            """See `compcache.cache`."""
    else:
        _store = Later("_store", _STORE)
        _loader = Later("_loader", _STORE)

    if not TYPE_CHECKING:
        compile = Later("compile", "")

    def get_or_compile(self, func_name: "str | Identity", build: "Callable[[], Source]") -> "TypedCallTarget":
        """Return the call target of a function. If the cache does not contain the function, compile and store it.

        If the compiled module cannot be stored, a `CacheWarning` is issued, and the call target is valid.

        Args:
            func_name: an `Identity`, which names the function by all its inputs, or a name.
            build: returns a `ModuleSource`, or LLVM code, that exports the function. It is called on a miss. With an `Identity`, the source
                may use the plain label of the function. Meanwhile, other processes that miss the function wait for this process, for at
                most `lock_timeout` seconds.

        Returns:
            The call target: the same object for as long as it is referenced.

        Raises:
            ReentrantCompileError: `build` requested the same function.
            CompileError, LinkError, ...: see `add_module`.
        """
        identity, func_name = func_name, func_name_of(func_name)
        weak = self._targets.get(func_name)
        target = weak() if weak is not None else None
        try:
            if target is None:
                target = self._load(func_name)
        except Exception as error:
            if not self._is_miss(error):
                raise
            miss = error
        else:
            return self._warn_stale(target, identity, build) if self._checks else target
        from compcache.miss.compile_once import compile_once

        return compile_once(self._session(), identity, func_name, build, miss)

    def get_target(self, func_name: "str | Identity") -> "TypedCallTarget":
        """Return the call target of a cached function.

        Args:
            func_name: the function's name, or its `Identity`.

        Returns:
            The call target: the same object for as long as it is referenced.

        Raises:
            NotCachedError: the cache contains no realization of the function that this host can use.
            UndefinedSymbolError: a dependency of the function is no longer in the cache.
            GlobalValidationError: the value of a global variable that the function uses has changed.
            SignatureError: only other modules, not Python, can call the function.
            ReentrantLoadError: a signal handler or a finalizer requests a function that this thread is loading.
        """
        weak = self._targets.get(func_name)  # type: ignore[arg-type]  # an Identity is not in it
        if weak is not None:
            target = weak()
            if target is not None:
                return target
        try:
            return self._load(func_name)
        except Exception as error:
            if not self._fetch_after_miss(error, func_name):
                raise
        return self._load(func_name)

    if not TYPE_CHECKING:
        has = Later("has", "")

    def close(self) -> None:
        """Invalidate all call targets of this cache, and close its files. Closing a closed cache has no effect.

        Raise `StorageError` if waiting entries (`compcache.frontend.put_entry`) cannot be written. The cache then stays open.
        """
        if self._closed:
            return
        if "_store" in self.__dict__:
            self._close_full_store()
        else:
            self._closed = True
            self._plain.close_plain()

    @property
    def path(self) -> str:
        """The absolute path of the directory."""
        return self._plain._root

    def __enter__(self) -> "Self":
        self._require_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, func_name: "str | Identity", owner: object = None, accept: "Accept | None" = None) -> "TypedCallTarget":
        # See `_load_by_store`.
        if self._closed:
            self._require_open()
        if not isinstance(func_name, str):
            func_name = func_name_of(func_name)
        target = self._plain.load_plain(func_name, owner) if accept is None else None
        return target if target is not None else self._load_by_store(func_name, owner, accept)

    def _require_open(self) -> None:
        """Raise `StorageError` if the cache is closed."""
        if self._closed:
            from compcache.errors import StorageError

            raise StorageError(f"the cache {self.path} is closed: open it again with Cache(path)", path=self.path)

    if not TYPE_CHECKING:
        for _part, _names in PARTS.items():
            for _name in _names:
                locals()[_name] = Later(_name, _part)
        del _part, _names, _name


Cache.__module__ = "compcache.cache"

_get_target = Cache.get_target


def _shorten() -> None:
    """Replace `get_target` with a function of the runtime that finds call targets in memory, unless a program has replaced it."""
    if Cache.__dict__.get("get_target") is _get_target:
        try:
            Cache.get_target = load_runtime().shortcut(_get_target, "_targets")  # type: ignore[method-assign]
        except ImportError:  # a load reports the reason
            return


def _open_plain(path: "Any") -> "PlainLoader | None":
    """Return a loader for plain hits; None if the settings or the directory require a full cache. Exception: see `are_set`."""
    if path == "" or are_set(_NOT_PLAIN):
        return None
    try:
        plain = open_plain(os.path.abspath(os.fspath(default_directory() if path is None else path)))
    except (OSError, TypeError, ValueError) as error:  # opening a full cache reports the reason
        from compcache.interrupts import reraise_interrupt

        reraise_interrupt(error)
        return None
    if plain is None:
        return None
    if hasattr(sys.modules.get("logging"), "getLogger"):
        from compcache.hit.log import logging_recorder_for

        plain.count_with(lambda files, root: logging_recorder_for(files, root, readonly=False))
    else:
        plain.count_with(shared_recorder)
    return plain
