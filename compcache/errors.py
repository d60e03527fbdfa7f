"""Every exception of the package.

Each class subclasses the builtin that a user would catch anyway, carries its facts as fields, and pickles with them, so that a worker
process can hand it to its parent.

Fields, empty where they are not known: `message` is what `str` gives; an error is about `func_name`, `module_id`, `global_name`,
`library`, `path` or `cache_dir`; `reason` is why, without advice; `errno` the system's number.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = [
    "ArgumentBufferError",
    "CacheWarning",
    "CompcacheError",
    "CompileError",
    "FormatError",
    "FunctionInUseError",
    "GlobalValidationError",
    "IncompatibleTargetError",
    "IntegrityError",
    "InvalidNameError",
    "KnownFaultError",
    "LibraryError",
    "LinkError",
    "LinkerError",
    "MissingPackageError",
    "NotCachedError",
    "PickleNotAllowedError",
    "ReentrantCompileError",
    "ReentrantLoadError",
    "ShadowWarning",
    "SignatureError",
    "SignatureMismatchError",
    "StorageError",
    "TargetUnloadedError",
    "UndefinedSymbolError",
    "UnknownVersionError",
    "UntrustedDirectoryError",
]


class CacheWarning(UserWarning):
    """Issued when an operation of the cache failed on which the caller's result does not depend.

    For example: an entry was damaged and went to quarantine, or a compiled module could not be stored.
    """


class ShadowWarning(CacheWarning):
    """Issued when `Cache.add_module` stores other code under names that the cache has already."""


class CompcacheError(Exception):
    """The base of every exception that compcache raises on purpose."""

    def __str__(self) -> str:
        """Return the message alone: `KeyError` would show its repr."""
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from message and fields, whatever arguments the class's own constructor takes."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(cls: type[CompcacheError], args: tuple[Any, ...], fields: dict[str, Any]) -> CompcacheError:
    error = cls(*args)
    error.__dict__.update(fields)
    return error


class NotCachedError(CompcacheError, KeyError):
    """Raised when the cache holds no usable realization of a function.

    `suggest` returns the part of the message about similar names. It is called when the message is read, so a caller that catches the
    error and compiles does not pay for it.
    """

    func_name: str
    cache_dir: str

    def __init__(self, message: str, *, func_name: str = "", cache_dir: str = "") -> None:
        super().__init__(message)
        self.func_name = func_name
        self.cache_dir = cache_dir
        self.suggest: Callable[[str], str] | None = None

    def __str__(self) -> str:
        """Return the message, followed by similar names."""
        suggest, self.suggest = self.suggest, None
        if suggest is not None:
            try:
                self.args = (f"{super().__str__()}{suggest(self.func_name)}",)
            except (CompcacheError, OSError, ImportError):
                return super().__str__()  # the directory cannot be listed, or by a Python without zlib
        return super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        str(self)  # another process cannot ask
        return super().__reduce__()


class FormatError(CompcacheError, ValueError):
    """Raised when bytes do not decode as the expected format."""


class UnknownVersionError(FormatError):
    """Raised when bytes are intact, but of a version of their format that this package does not know."""


class IntegrityError(CompcacheError, OSError):
    """Raised when a stored file does not have the content that it was published with, or is not trusted.

    The latter are files without the signature of the cache's key, and files of other users.
    """

    path: str
    reason: str

    def __init__(self, message: str, *, path: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.reason = reason


class StorageError(CompcacheError, OSError):
    """Raised when the cache directory cannot be read or written (full, read-only, vanished)."""

    path: str

    def __init__(self, message: str, *, path: str = "", errno: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.errno = errno


class UntrustedDirectoryError(CompcacheError, PermissionError):
    """Raised when a cache directory belongs to, or can be written by, another user.

    `reason` is the message without the ways to open the directory nevertheless.
    """

    path: str
    reason: str

    def __init__(self, message: str, *, path: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.reason = reason


class LinkError(CompcacheError):
    """Raised when compiled code cannot be bound to its dependencies; below it, one class per reason."""

    func_name: str
    module_id: str

    def __init__(self, message: str, *, func_name: str = "", module_id: str = "") -> None:
        super().__init__(message)
        self.func_name = func_name
        self.module_id = module_id


class UndefinedSymbolError(LinkError):
    """Raised when a symbol is used but not provided, or provided but not used.

    `symbols` are used but not provided; `unused` were provided (in `imports` or `globals`) but not used.
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
    """Raised when a declared signature contradicts the LLVM type of the function."""


class IncompatibleTargetError(LinkError):
    """Raised when code is for another architecture, operating system, CPU or interpreter than this one."""


class KnownFaultError(IncompatibleTargetError):
    """Raised when code was made by a version of a tool that is known to make wrong code."""


class LibraryError(LinkError):
    """Raised when a shared library that a module names cannot be found or opened."""

    library: str

    def __init__(self, message: str, *, library: str = "", func_name: str = "", module_id: str = "") -> None:
        super().__init__(message, func_name=func_name, module_id=module_id)
        self.library = library


class LinkerError(LinkError):
    """Raised when the system linker fails; `output` is what it printed."""

    output: str

    def __init__(self, message: str, *, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class CompileError(CompcacheError, ValueError):
    """Raised when LLVM rejects the code: it does not parse, does not verify or cannot be compiled."""


class SignatureError(CompcacheError, ValueError):
    """Raised when a signature text is malformed, or a function has none that Python could call."""


class InvalidNameError(CompcacheError, ValueError):
    """Raised when a function or symbol name is not valid (empty, or not encodable)."""


class GlobalValidationError(CompcacheError, ValueError):
    """Raised when a global variable of a function does not decode, or its object is missing or of another type."""

    global_name: str
    func_name: str
    reason: str

    def __init__(self, message: str, *, global_name: str = "", func_name: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.global_name = global_name
        self.func_name = func_name
        self.reason = reason


class FunctionInUseError(CompcacheError, ValueError):
    """Raised when removing a function would remove other functions too, or break an import, without `force`.

    `others` are the functions that its modules hold beside it, `importers` those that import it.
    """

    func_name: str
    others: tuple[str, ...]
    importers: tuple[str, ...]

    def __init__(self, message: str, *, func_name: str = "", others: Iterable[str] = (), importers: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.func_name = func_name
        self.others = tuple(others)
        self.importers = tuple(importers)


class PickleNotAllowedError(GlobalValidationError):
    """Raised when a pickled global is met by a cache that was opened without `allow_pickle=True`."""


class TargetUnloadedError(CompcacheError, RuntimeError):
    """Raised when a call target is used after its module was unloaded or its cache was closed."""

    func_name: str

    def __init__(self, message: str, *, func_name: str = "") -> None:
        super().__init__(message)
        self.func_name = func_name


class ReentrantCompileError(CompcacheError, ImportError):
    """Raised when building a function asks for that same function again."""

    func_name: str

    def __init__(self, message: str, *, func_name: str = "") -> None:
        super().__init__(message)
        self.func_name = func_name


class ReentrantLoadError(CompcacheError, RuntimeError):
    """Raised if a signal handler or a finalizer interrupts a load, and needs the half-finished result; ask again later."""

    func_name: str

    def __init__(self, message: str, *, func_name: str = "") -> None:
        super().__init__(message)
        self.func_name = func_name


class MissingPackageError(CompcacheError, ImportError):
    """Raised when an operation needs a package that is not installed or cannot be loaded, as beside `compcache-runtime` alone."""

    @classmethod
    def of(cls, package: str, what: str, extra: str = "") -> MissingPackageError:
        """Return the exception that says which package something needs, and what to install.

        Args:
            package: the name of the package to install.
            what: what needs it.
            extra: the extra of compcache that has it, if one has.
        """
        wanted = f"'compcache[{extra}]'" if extra else "compcache"
        return cls(f"{what} needs {package}, which is not installed: pip install {wanted}", name=package.lower())


class ArgumentBufferError(CompcacheError, TypeError, BufferError):
    """Raised when an argument's buffer has another element type, is not contiguous or is read-only.

    It is a `TypeError`, as CPython's functions raise, and a `BufferError`, as exporters raise.
    """
