"""Backends of remote stores for the helper: get, create, replace and list objects by key."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import stat
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from errno import EAGAIN, EIO, ELOOP, ENOENT, ENOTDIR, ENXIO, ESTALE, ETIMEDOUT
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from compcache.errors import MissingPackageError
from compcache.files import DIRECTORY_MODE, Tree, read_file
from compcache.hit.target import path_opener
from compcache.processes.detached import LateFiles
from compcache.publish.atomic_file import make_directories
from compcache.remote.maintenance import RemoteObject
from compcache.remote.shelves import LAYOUT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from compcache.files import Opened
    from compcache.remote.address import RemoteSettings

__all__ = ["Backend", "BackendMissingError", "TooLargeError", "open_backend"]

_CONNECT_SECONDS = 0.25
_LONGEST = "1h"  # never reached: `Requests` gives up earlier
#: The errors that mean that an object does not exist: those for a missing file or directory, and those for a link, a socket or another
#: special file (None: `read_file` refuses it).
_NO_OBJECT = (ENOENT, ELOOP, ENOTDIR, ENXIO, None)
#: Errors of a shared file system whose server is busy or was replaced: a later try may succeed.
_TEMPORARY_ERRORS = (EAGAIN, EIO, ESTALE, ETIMEDOUT)
#: How messages of `obstore` show temporary errors: HTTP statuses and broken connections. `obstore` does not report `Retry-After`.
_STATUS, _TEMPORARY_STATUSES = re.compile(r"status: (\d{3})"), frozenset(("408", "425", "429", "500", "502", "503", "504"))
_CONNECTION = re.compile(r"kind: (Connect|Request|Timeout|Interrupted)\b(?!.*InvalidCertificate)", re.DOTALL)


class BackendMissingError(Exception):
    """Raised if the library that a kind of store needs is not installed."""


class TooLargeError(Exception):
    """Raised if an object or an answer is larger than the caller allows."""


class Backend(Protocol):
    """A store of objects. Methods handle missing objects as described here. Other errors are those of the store's client."""

    @property
    def is_atomic(self) -> bool:
        """Whether `create` and `exchange` are atomic: if several hosts store an object at once, exactly one receives True."""

    async def get(self, key: str, max_size: int, on_response: Callable[[], None] | None = None, /) -> bytes | None:
        """Return the object, or None if it does not exist.

        `on_response` is called when the response begins, if the client reports that.

        Raise `TooLargeError` if the object has more than `max_size` bytes. Such an object is not read.
        """

    async def create(self, key: str, data: bytes) -> bool:
        """Store an object unless one with this key exists. Return whether it was stored."""

    async def replace(self, key: str, data: bytes) -> None:
        """Store an object, replacing any object with this key."""

    async def exchange(self, key: str, data: bytes, expected: bytes) -> bool:
        """Replace an object if its bytes are `expected`. Return whether it was replaced.

        If the store cannot compare (`is_atomic` is False), a change that another host makes at the same moment is lost.
        """

    async def stat(self, key: str) -> RemoteObject | None:
        """Return an object's size and modification time without reading its content, or None if the object does not exist."""

    async def delete(self, key: str) -> None:
        """Remove an object. Do nothing if it does not exist."""

    def list(self, prefix: str) -> AsyncIterator[RemoteObject]:
        """Yield the objects whose keys begin with `prefix`. Raise `NotImplementedError` if the store cannot list."""

    def retry_delay(self, error: Exception) -> float | None:
        """Return the minimum delay in seconds before a request that failed with this error is retried, or None for a permanent error."""


def _require_size(key: str, size: int, max_size: int) -> None:
    """Raise `TooLargeError` if an object of this size has more than `max_size` bytes."""
    if size > max_size:
        raise TooLargeError(f"the object {key} has more than {max_size} bytes")


def open_backend(settings: RemoteSettings) -> Backend:
    """Return the client of a store.

    Raises:
        BackendMissingError: the library for this kind of store is not installed.
        ValueError: the library does not accept the URL.
    """
    if settings.kind == "file":
        return _Directory(unquote(urlsplit(settings.url).path))
    if settings.kind == "redis":
        return _Redis(settings)
    return _ObjectStore(settings)


def _missing_error(library: str, settings: RemoteSettings) -> BackendMissingError:
    """Return the exception for a library that is not installed, with the command that installs it."""
    what = f"a remote store with a URL like {urlsplit(settings.url).scheme}://"
    return BackendMissingError(str(MissingPackageError.of(library, what, "remote")))


class _Parent(NamedTuple):
    """The directory that contains a store. While `opened` is open, no other directory has the same inode."""

    opened: Opened
    status: os.stat_result

    def was_replaced_by(self, other: _Parent) -> bool:
        """Return whether `other` is another directory on the same device."""
        return self.status.st_dev == other.status.st_dev and self.status.st_ino != other.status.st_ino


class _Directory:
    """A `Backend` for a directory, for example on a shared file system. A link or rename makes an object visible, complete or not at all.

    Other users who can write there can create links, pipes and devices. So nothing below the directory is read, written or removed
    through a link, and only regular files are objects.
    """

    is_atomic = False  # publishing a file replaces any file of its name

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)
        self._files = Tree(LateFiles(), self._root, path_opener())
        self._parent = self._open_parent() if os.path.isdir(self._root) else None  # in which the store has existed

    async def get(self, key: str, max_size: int, _: Callable[[], None] | None = None) -> bytes | None:
        return await asyncio.to_thread(self._read, key, max_size)

    def retry_delay(self, error: Exception) -> float | None:
        return 0.0 if isinstance(error, OSError) and error.errno in _TEMPORARY_ERRORS else None

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _read(self, key: str, max_size: int) -> bytes | None:
        """Return an object, or None if there is none. Raise `TooLargeError` beyond `max_size` bytes."""
        path = self._path(key)
        with suppress(FileNotFoundError), _report_special_files_as_missing():
            status = self._files.stat(path)
            if stat.S_ISREG(status.st_mode):
                _require_size(key, status.st_size, max_size)
            return read_file(self._files, path, max_size)
        return None

    async def create(self, key: str, data: bytes) -> bool:
        return await asyncio.to_thread(self._write, key, data, self._files.link)

    async def replace(self, key: str, data: bytes) -> None:
        await asyncio.to_thread(self._write, key, data, self._files.rename)

    async def exchange(self, key: str, data: bytes, expected: bytes) -> bool:
        return await _compare_and_replace(self, key, data, expected)

    def _write(self, key: str, data: bytes, publish: Callable[[str, str], None]) -> bool:
        """Write an object to a temporary file and publish it by `publish(temporary path, path)`.

        Return whether the object was published. False means that `publish` raised `FileExistsError`.
        """
        path = self._path(key)
        parent, _, name = path.rpartition("/")
        self._require_root()
        make_directories(self._files, parent)
        temporary_path = f"{parent}/.{name}.{os.getpid():x}-{os.urandom(6).hex()}"
        try:
            opened = self._files.open_owned(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[self._files.write(opened.number, remaining) :]
            self._files.fsync(opened.number)
            publish(temporary_path, path)
        except FileExistsError:
            return False
        finally:
            with suppress(OSError):  # the file was renamed already
                self._files.unlink(temporary_path)
        return True

    def _require_root(self) -> None:
        """Create the root directory before the first upload. A root that has existed in the same parent is not created again.

        A parent on another device, for example below an unmounted disk, counts as the same parent.

        Raise `FileNotFoundError` if the parent does not exist.
        """
        parent = self._open_parent()
        if self._parent is None or self._parent.was_replaced_by(parent):
            with suppress(FileExistsError):
                os.mkdir(self._root, DIRECTORY_MODE)
            self._parent = parent

    def _open_parent(self) -> _Parent:
        """Open the directory that contains the root."""
        opened = LateFiles().open_owned(os.path.dirname(self._root), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return _Parent(opened, os.fstat(opened.number))

    async def stat(self, key: str) -> RemoteObject | None:
        return await asyncio.to_thread(self._stat, key)

    def _stat(self, key: str) -> RemoteObject | None:
        with suppress(FileNotFoundError), _report_special_files_as_missing():
            status = self._files.stat(self._path(key))
            return RemoteObject(key, status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None
        return None

    async def delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            await asyncio.to_thread(self._files.unlink, self._path(key))

    async def list(self, prefix: str) -> AsyncIterator[RemoteObject]:
        for item in await asyncio.to_thread(lambda: sorted(self._list_below(self._path(prefix.rstrip("/"))))):
            yield item

    def _list_below(self, directory: str) -> Iterator[RemoteObject]:
        """Yield the objects below a directory. Special files are left out. A missing directory has none.

        Raise `OSError` if a directory cannot be listed for another reason.
        """
        statuses: dict[str, os.stat_result] = {}
        with suppress(FileNotFoundError), _report_special_files_as_missing():
            statuses = self._files.statuses(directory)
        for name, status in statuses.items():
            path = f"{directory}/{name}"
            if stat.S_ISDIR(status.st_mode):
                yield from self._list_below(path)
            elif stat.S_ISREG(status.st_mode):
                yield RemoteObject(path[len(self._root) + 1 :], status.st_size, status.st_mtime)


@contextmanager
def _report_special_files_as_missing() -> Iterator[None]:
    """Convert the errors for missing files, links, sockets and other files that are not objects into `FileNotFoundError`."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_OBJECT:
            raise FileNotFoundError(ENOENT, "the store does not have this object", error.filename) from error
        raise


class _ObjectStore:
    """A `Backend` for S3, Google Cloud Storage, Azure Blob Storage, and HTTP servers that accept PUT (WebDAV), through `obstore`."""

    def __init__(self, settings: RemoteSettings) -> None:
        try:
            self._obstore: Any = import_module("obstore")
            from_url: Any = import_module("obstore.store").from_url
        except ImportError as error:
            raise _missing_error("obstore", settings) from error
        plain = settings.url.startswith("http:") or any(
            value.startswith("http:") for name, value in os.environ.items() if "ENDPOINT" in name.upper()
        )
        options: dict[str, Any] = {"connect_timeout": f"{_CONNECT_SECONDS}s", "timeout": _LONGEST, "allow_http": plain}
        if settings.kind == "http" and settings.credentials is not None:  # the client supports passwords for object stores only
            user, password = settings.credentials
            basic = base64.b64encode(f"{user}:{password}".encode()).decode()
            options["default_headers"] = {"authorization": f"Basic {basic}" if user else f"Bearer {password}"}
        self._store = from_url(
            settings.bare if settings.kind == "http" else settings.url, client_options=options, retry_config={"max_retries": 0},
            **_boto3_options(settings),
        )  # fmt: skip
        self.is_atomic = settings.kind == "object"  # HTTP servers do not agree on conditional PUT

    async def get(self, key: str, max_size: int, on_response: Callable[[], None] | None = None) -> bytes | None:
        """See `Backend.get`."""
        try:
            response = await self._obstore.get_async(self._store, key)
            if on_response is not None:
                on_response()
            _require_size(key, response.meta["size"], max_size)
            return bytes(await response.bytes_async())
        except FileNotFoundError:
            return None

    def retry_delay(self, error: Exception) -> float | None:
        """See `Backend.retry_delay`."""
        if type(error) is not self._obstore.exceptions.GenericError:
            return None
        status = _STATUS.search(str(error))
        is_temporary = status[1] in _TEMPORARY_STATUSES if status is not None else _CONNECTION.search(str(error)) is not None
        return 0.0 if is_temporary else None

    async def create(self, key: str, data: bytes) -> bool:
        """See `Backend.create`."""
        if not self.is_atomic:
            if await self.stat(key) is not None:
                return False
            await self.replace(key, data)
            return True
        try:
            await self._obstore.put_async(self._store, key, data, mode="create")
        except self._obstore.exceptions.AlreadyExistsError:
            return False
        return True

    async def exchange(self, key: str, data: bytes, expected: bytes) -> bool:
        """See `Backend.exchange`."""
        if not self.is_atomic:
            return await _compare_and_replace(self, key, data, expected)
        try:
            response = await self._obstore.get_async(self._store, key)
            if response.meta["size"] != len(expected) or bytes(await response.bytes_async()) != expected:
                return False
            version = {name: response.meta[name] for name in ("e_tag", "version") if response.meta[name] is not None}
            await self._obstore.put_async(self._store, key, data, mode=version, use_multipart=False)
        except (FileNotFoundError, self._obstore.exceptions.PreconditionError):
            return False
        return True

    async def stat(self, key: str) -> RemoteObject | None:
        """See `Backend.stat`."""
        try:  # not HEAD, which some proxies do not forward; the content is not read
            response = await self._obstore.get_async(self._store, key)
        except FileNotFoundError:
            return None
        return RemoteObject(key, response.meta["size"], response.meta["last_modified"].timestamp())

    async def replace(self, key: str, data: bytes) -> None:
        await self._obstore.put_async(self._store, key, data, mode="overwrite", use_multipart=False)

    async def delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            await self._obstore.delete_async(self._store, key)

    async def list(self, prefix: str) -> AsyncIterator[RemoteObject]:
        async for batch in self._obstore.list(self._store, prefix):
            for item in batch:
                yield RemoteObject(item["path"], item["size"], item["last_modified"].timestamp())


async def _compare_and_replace(backend: Backend, key: str, data: bytes, expected: bytes) -> bool:
    """Implement `Backend.exchange`, not atomically: read the object, and replace it if its bytes are `expected`."""
    with suppress(TooLargeError):
        if await backend.get(key, len(expected)) == expected:
            await backend.replace(key, data)
            return True
    return False


#: Credentials that `obstore` finds and renews without boto3.
_OWN_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)  # fmt: skip
_CREDENTIALS_MINUTES = 5


def _boto3_options(settings: RemoteSettings) -> dict[str, Any]:
    """Return options for `obstore` that let boto3 find S3 credentials: profiles, SSO, processes, roles, instance metadata.

    The result is empty for other stores, without boto3 or credentials, or if `obstore` finds the credentials itself. Credentials are looked
    up again every five minutes, so that replaced files take effect.

    Raise `BackendMissingError` if AWS_PROFILE is set, and boto3 is not installed.
    """
    if not urlsplit(settings.url).scheme.startswith("s3") or any(os.environ.get(name) for name in _OWN_CREDENTIALS):
        return {}
    try:
        provider: Any = import_module("obstore.auth.boto3").Boto3CredentialProvider
    except ImportError as error:
        if os.environ.get("AWS_PROFILE"):
            raise BackendMissingError("AWS_PROFILE is set, but boto3 is not installed: pip install boto3") from error
        return {}

    def credentials() -> Any:
        return provider(ttl=timedelta(minutes=_CREDENTIALS_MINUTES))()

    try:
        region = provider().config.get("region")
    except ValueError:
        return {}  # no credentials were found: the bucket may be public, or instance metadata may become available later
    except (OSError, import_module("botocore.exceptions").BotoCoreError):
        region = None  # a credentials profile or program fails: each request then fails and reports the reason
    return {"credential_provider": credentials, **({"config": {"region": region}} if region else {})}


class _Redis:
    """A `Backend` for a Redis (or Valkey) server. Objects are strings. The server's policy decides how long they stay.

    A sorted set has the time when each object was written, by the server's clock. An object that is missing in the set counts as
    written when that is noticed.
    """

    is_atomic = True

    def __init__(self, settings: RemoteSettings) -> None:
        try:
            client: Any = import_module("redis.asyncio").Redis
            exceptions: Any = import_module("redis.exceptions")
            no_retry: Any = import_module("redis.asyncio.retry").Retry(import_module("redis.backoff").NoBackoff(), 0)
        except ImportError as error:
            raise _missing_error("redis", settings) from error
        plain, _, prefix = settings.url.partition("#")
        path = urlsplit(plain).path.strip("/")
        if path and not path.partition("/")[0].isdecimal():
            raise ValueError(f"the path of {settings.shown!r} is not the number of a database: write a URL like redis://host/0")
        _, _, path_prefix = path.partition("/")
        if path_prefix:
            plain, prefix = plain[: -len(path_prefix) - 1], path_prefix
        self._prefix = f"{prefix}/" if prefix else ""
        self._times = f"{self._prefix}{_TIMES}"
        self._temporary_errors = exceptions.ConnectionError, exceptions.TimeoutError, exceptions.TryAgainError, exceptions.ClusterDownError
        self._permanent_errors = exceptions.AuthenticationError, exceptions.AuthorizationError
        self._redis = client.from_url(
            plain, socket_connect_timeout=_CONNECT_SECONDS, socket_timeout=3600.0, single_connection_client=False, retry=no_retry
        )
        pool = self._redis.connection_pool
        pool.connection_class = _bounded_connection(pool.connection_class)

    async def get(self, key: str, max_size: int, _: Callable[[], None] | None = None) -> bytes | None:
        with _limit_answer(max_size):
            response: bytes = await self._redis.getrange(self._prefix + key, 0, max_size)
        _require_size(key, len(response), max_size)
        return response or None  # an object is never empty

    def retry_delay(self, error: Exception) -> float | None:
        return 0.0 if isinstance(error, self._temporary_errors) and not isinstance(error, self._permanent_errors) else None

    async def create(self, key: str, data: bytes) -> bool:
        is_new = bool(await self._redis.set(self._prefix + key, data, nx=True))
        if is_new:
            await self._note_time(key)
        return is_new

    async def replace(self, key: str, data: bytes) -> None:
        await self._redis.set(self._prefix + key, data)
        await self._note_time(key)

    async def exchange(self, key: str, data: bytes, expected: bytes) -> bool:
        is_exchanged = bool(await self._redis.eval(_EXCHANGE, 1, self._prefix + key, expected, data))
        if is_exchanged:
            await self._note_time(key)
        return is_exchanged

    async def _note_time(self, key: str, *, nx: bool = False) -> None:
        """Set the modification time of an object to the present time of the server; with `nx`, only if the object has none."""
        seconds, microseconds = await self._redis.time()
        await self._redis.zadd(self._times, {key: seconds + microseconds / 1e6}, nx=nx)

    async def stat(self, key: str) -> RemoteObject | None:
        """See `Backend.stat`."""
        size = int(await self._redis.strlen(self._prefix + key))
        if not size:
            return None
        modified = await self._redis.zscore(self._times, key)
        if modified is None:
            await self._note_time(key, nx=True)
            modified = await self._redis.zscore(self._times, key)
        return RemoteObject(key, size, float(modified or 0.0))

    async def delete(self, key: str) -> None:
        await self._redis.delete(self._prefix + key)
        await self._redis.zrem(self._times, key)

    async def list(self, prefix: str) -> AsyncIterator[RemoteObject]:
        """See `Backend.list`."""
        names: set[str] = set()
        with _limit_answer(_LARGEST_ANSWER):
            async for name in self._redis.scan_iter(match=f"{_escape_pattern(self._prefix + prefix)}*", count=100):
                names.add(name.decode("utf-8", "replace")[len(self._prefix) :])
                if len(names) > _MOST_NAMES:
                    raise TooLargeError(f"the server lists more than {_MOST_NAMES} objects")
        for key in sorted(names):
            item = await self.stat(key)
            if item is not None:
                yield item


#: The size limit in bytes of answers other than objects: errors, numbers, and names of objects, which a server sends in batches.
_LARGEST_ANSWER = 512 << 10
#: Each line counts for at least this many bytes, because the client creates an object for it.
_LINE = 512
_MOST_NAMES = 1 << 23
_TIMES = f"{LAYOUT}-times"
_EXCHANGE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) return 1 end return 0"
_allowed: ContextVar[int] = ContextVar("allowed", default=_LARGEST_ANSWER)


@contextmanager
def _limit_answer(size: int) -> Iterator[None]:
    """Limit each answer within this context to `size` bytes, and `_LARGEST_ANSWER` bytes more for its framing."""
    token = _allowed.set(size + _LARGEST_ANSWER)
    try:
        yield
    finally:
        _allowed.reset(token)


def _escape_pattern(prefix: str) -> str:
    """Escape the special characters of a Redis pattern."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", prefix)


def _bounded_connection(base: Any) -> Any:
    """Return a subclass of a Redis connection class that limits the size of answers: the client trusts the lengths that servers send."""

    class BoundedConnection(base):  # type: ignore[misc]
        _reader: Any

        async def _connect(self) -> None:
            await super()._connect()
            self._reader = _BoundedReader(self._reader)

        async def read_response(self, *arguments: Any, **named: Any) -> Any:
            """Read a response of at most the size that the current request allows."""
            if isinstance(self._reader, _BoundedReader):
                self._reader.remaining = _allowed.get()
            return await super().read_response(*arguments, **named)

    return BoundedConnection


class _BoundedReader:
    """A wrapper of `asyncio.StreamReader` that raises `TooLargeError` after `remaining` bytes."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.remaining = _LARGEST_ANSWER

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def _consume(self, size: int) -> None:
        """Count bytes of an answer. Raise `TooLargeError` if there are more than allowed."""
        self.remaining -= size
        if self.remaining < 0:
            raise TooLargeError(f"an answer of the Redis server is {-self.remaining} bytes larger than allowed")

    async def readexactly(self, size: int) -> bytes:
        self._consume(size)
        data: bytes = await self._reader.readexactly(size)
        return data

    async def readline(self) -> bytes:
        line: bytes = await self._reader.readline()
        self._consume(max(len(line), _LINE))
        return line

    async def read(self, size: int) -> bytes:
        data: bytes = await self._reader.read(size)
        self._consume(len(data))
        return data
