"""The exceptions of the package.

Each class also derives from the builtin exception that callers would catch in its place. Exceptions have fields and pickle with them, so a
worker process can pass an exception to its parent.

Fields are empty if their values are not known. `message` is the text that `str` returns. `func_name`, `module_id`, `global_name`,
`library`, `path` and `cache_dir` name the item that the exception is about. `reason` is the reason without advice. `errno` is the system's
error number.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

__all__ = [
    "ArgumentBufferError", "CacheWarning", "CompcacheError", "CompileError", "FormatError", "FunctionInUseError", "GlobalValidationError",
    "IncompatibleTargetError", "IntegrityError", "InvalidNameError", "KnownFaultError", "LibraryError", "LinkError", "LinkerError",
    "MissingPackageError", "ModulesNotAddedError", "NotCachedError", "PickleNotAllowedError", "ReentrantCompileError", "ReentrantLoadError",
    "ShadowWarning", "SignatureError", "SignatureMismatchError", "StorageError", "TargetUnloadedError", "UndefinedSymbolError",
    "UnknownVersionError", "UntrustedDirectoryError",
]  # fmt: skip


class CacheWarning(UserWarning):
    """Issued when an operation of the cache fails, but the caller still gets its result.

    For example, a damaged entry was moved to quarantine, or a compiled module could not be stored.
    """


class ShadowWarning(CacheWarning):
    """Issued when an addition stores different code under func_names that the cache already contains."""


class CompcacheError(Exception):
    """The base class of all exceptions of compcache."""

    def __str__(self) -> str:
        """Return the message, not its repr as `KeyError` does."""
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message and the fields, independently of the constructor's parameters."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(cls: type[CompcacheError], args: tuple[Any, ...], fields: dict[str, Any]) -> CompcacheError:
    """Return an unpickled error. `args` has only the message, so the fields are set directly."""
    error = cls(*args)
    error.__dict__.update(fields)
    return error


class _FunctionError(CompcacheError):
    """The base class of exceptions about one function."""

    func_name: str

    def __init__(self, message: str, *, func_name: str = "") -> None:
        super().__init__(message)
        self.func_name = func_name


class NotCachedError(_FunctionError, KeyError):
    """Raised when the cache contains no realization of a function that this host can use.

    `suggest` returns a part of the message about similar names. It is called when the message is first read, so a caller that catches the
    exception and compiles the function does not wait for the search.
    """

    cache_dir: str

    def __init__(self, message: str, *, func_name: str = "", cache_dir: str = "") -> None:
        super().__init__(message, func_name=func_name)
        self.cache_dir = cache_dir
        self.suggest: Callable[[str], str] | None = None

    @classmethod
    def of(cls, func_name: str, cache_dir: str, reason: object = None) -> NotCachedError:
        """Return the exception for a function that a cache does not contain.

        Args:
            func_name: the name of the function.
            cache_dir: the path of the cache.
            reason: why the cache cannot use a function of this name; it becomes a part of the message.
        """
        message = f"function {func_name!r} is not in the cache {cache_dir}{f': {reason}' if reason else ''}"
        return cls(message, func_name=func_name, cache_dir=cache_dir)

    def __str__(self) -> str:
        """Return the message with similar names, if any. The first call searches for them."""
        suggest, self.suggest = self.suggest, None
        if suggest is not None:
            try:
                self.args = (f"{super().__str__()}{suggest(self.func_name)}",)
            except (CompcacheError, OSError, ImportError):
                return super().__str__()  # the directory cannot be listed, or this Python has no zlib
        return super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        str(self)  # another process cannot search for similar names
        return super().__reduce__()


class FormatError(CompcacheError, ValueError):
    """Raised when bytes are not valid in the expected format."""


class UnknownVersionError(FormatError):
    """Raised when bytes are intact, but have a version of their format that this release does not know."""


class _FileError(CompcacheError):
    """The base class of exceptions about one file or directory."""

    path: str
    reason: str

    def __init__(self, message: str, *, path: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.reason = reason


class IntegrityError(_FileError, OSError):
    """Raised when a stored file is damaged, or is not trusted.

    Files without a required signature are not trusted, and neither are files of other users.
    """


class StorageError(CompcacheError, OSError):
    """Raised when the cache directory cannot be read or written, for example because the disk is full or the directory was removed."""

    path: str

    def __init__(self, message: str, *, path: str = "", errno: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.errno = errno


class UntrustedDirectoryError(_FileError, PermissionError):
    """Raised when a cache directory belongs to another user, or when other users can write to it.

    `reason` is the message without the advice on how to open the directory.
    """


class LinkError(_FunctionError):
    """Raised when compiled code cannot be bound to its dependencies. Subclasses exist for the reasons."""

    module_id: str

    def __init__(self, message: str, *, func_name: str = "", module_id: str = "") -> None:
        super().__init__(message, func_name=func_name)
        self.module_id = module_id


class UndefinedSymbolError(LinkError):
    """Raised when code uses a symbol that nothing defines, or does not use a symbol that its source provides.

    `symbols` are the used symbols that nothing defines. `unused` are the symbols in `imports` or `globals` that the code does not use.
    """

    symbols: tuple[str, ...]
    unused: tuple[str, ...]

    def __init__(
        self, message: str, *, symbols: Iterable[str] = (), unused: Iterable[str] = (), func_name: str = "", module_id: str = ""
    ) -> None:
        super().__init__(message, func_name=func_name, module_id=module_id)
        self.symbols = tuple(symbols)
        self.unused = tuple(unused)


class SignatureMismatchError(LinkError, TypeError):
    """Raised when a signature does not match a function's LLVM type, or an import is used with another type than its definition."""


class IncompatibleTargetError(LinkError):
    """Raised when code is for another architecture, operating system, CPU or version of the package than this process has."""


class KnownFaultError(IncompatibleTargetError):
    """Raised when code was compiled by a version of a tool that is known to generate wrong code."""


class LibraryError(LinkError):
    """Raised when a shared library or archive that a module names cannot be found or opened."""

    library: str

    def __init__(self, message: str, *, library: str = "", func_name: str = "", module_id: str = "") -> None:
        super().__init__(message, func_name=func_name, module_id=module_id)
        self.library = library


class LinkerError(LinkError):
    """Raised when a linker fails or cannot be run. `output` is the text that the linker printed."""

    output: str

    def __init__(self, message: str, *, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class CompileError(CompcacheError, ValueError):
    """Raised when code cannot be compiled: it is not LLVM code, LLVM rejects it, or its source has contradicting options."""


class SignatureError(CompcacheError, ValueError):
    """Raised when the text of a signature is malformed, or when a function has no signature that Python can call."""


class InvalidNameError(CompcacheError, ValueError):
    """Raised when the name of a function or symbol is not valid, for example empty or reserved."""


class GlobalValidationError(CompcacheError, ValueError):
    """Raised when the value of a global variable cannot be stored or loaded, or has changed since it was stored."""

    global_name: str
    func_name: str
    reason: str

    def __init__(self, message: str, *, global_name: str = "", func_name: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.global_name = global_name
        self.func_name = func_name
        self.reason = reason


class FunctionInUseError(_FunctionError, ValueError):
    """Raised when removing a function, without `force`, would also remove other functions, break an import or remove a pinned function.
    `others` are the other functions in the function's modules. `importers` are the functions that import it.
    """

    others: tuple[str, ...]
    importers: tuple[str, ...]

    def __init__(self, message: str, *, func_name: str = "", others: Iterable[str] = (), importers: Iterable[str] = ()) -> None:
        super().__init__(message, func_name=func_name)
        self.others = tuple(others)
        self.importers = tuple(importers)


class PickleNotAllowedError(GlobalValidationError):
    """Raised when a load needs a pickled value, and the cache was opened without `allow_pickle=True`."""


class TargetUnloadedError(_FunctionError, RuntimeError):
    """Raised when a call target is used after its module was unloaded or its cache was closed."""


class ReentrantCompileError(_FunctionError, ImportError):
    """Raised when `build` requests the function that it is building."""


class ReentrantLoadError(_FunctionError, RuntimeError):
    """Raised when a signal handler or a finalizer requests a function of a module that the interrupted code is loading. Retry later."""


class ModulesNotAddedError(CompcacheError):
    """Raised by `Cache.add_modules` and `Cache.replace` if sources could not be added. The others are stored, unless they replace a group.
    `failures` are the errors by position in the list of sources. `module_ids` has one item for each source: the id of its module, or
    None if the source failed.
    """

    failures: dict[int, Exception]
    module_ids: tuple[str | None, ...]

    def __init__(self, message: str, *, failures: Mapping[int, Exception] | None = None, module_ids: tuple[str | None, ...] = ()) -> None:
        super().__init__(message)
        self.failures = dict(failures or {})
        self.module_ids = module_ids


class MissingPackageError(CompcacheError, ImportError):
    """Raised when an operation needs a package that is not installed or cannot be loaded, for example with only `compcache-runtime`."""

    @classmethod
    def of(cls, package: str, what: str, extra: str = "") -> MissingPackageError:
        """Return the exception for a missing package. Its message names the package, and says what to install.

        Args:
            package: the name of the missing package.
            what: the operation or module that needs the package, as the subject of a sentence.
            extra: the extra of compcache that installs the package; empty if compcache itself installs it.
        """
        requirement = f"'compcache[{extra}]'" if extra else "compcache"
        return cls(f"{what} needs {package}, which is not installed: pip install {requirement}", name=package.lower())


class ArgumentBufferError(CompcacheError, TypeError, BufferError):
    """Raised when an argument's buffer has the wrong element type, is not contiguous or is read-only.

    The class derives from `TypeError`, which CPython's functions raise, and from `BufferError`, which exporters raise.
    """
