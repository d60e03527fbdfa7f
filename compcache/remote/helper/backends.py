"""Remote stores as the helper sees them: get, create, replace and list objects by key."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import stat
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from errno import EAGAIN, EIO, ELOOP, ENOTDIR, ENXIO, ESTALE, ETIMEDOUT
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from compcache.files import DIRECTORY_MODE, Tree, read_file
from compcache.hit.target import path_opener
from compcache.processes.detached import LateFiles
from compcache.publish.atomic_file import make_directories
from compcache.remote.shelves import LAYOUT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from compcache.remote.address import RemoteSettings

__all__ = ["Backend", "BackendMissingError", "Listed", "TooLargeError", "open_backend"]

_CONNECT = "250ms"
_PART = 1 << 20
_LONGEST = "1h"  # `Requests` gives up earlier
#: A link, a socket, or what `read_file` refuses.
_NO_OBJECT = (ELOOP, ENOTDIR, ENXIO, None)
#: What a shared file system says when its server is busy, or was exchanged.
_PASSING = (EAGAIN, EIO, ESTALE, ETIMEDOUT)
#: What passes of what `obstore` says: statuses of HTTP, and what becomes of connections. It does not tell `Retry-After`.
_STATUS, _PASSING_STATUSES = re.compile(r"status: (\d{3})"), frozenset(("408", "425", "429", "500", "502", "503", "504"))
_CONNECTION = re.compile(r"kind: (Connect|Request|Timeout|Interrupted)\b(?!.*InvalidCertificate)", re.DOTALL)


class BackendMissingError(Exception):
    """Raised when the library that speaks to a kind of store is not installed."""


class TooLargeError(Exception):
    """Raised for an object that is larger than what was asked for can be."""


class Listed(NamedTuple):
    """An object of a store: its key, its size in bytes, when it was written in seconds since the epoch."""

    key: str
    size: int
    modified: float


class Backend(Protocol):
    """A store of objects. Errors other than a missing object are raised as the client raises them."""

    @property
    def compares(self) -> bool:
        """Whether of several that `create` or `exchange` an object at the same moment one alone is told that it has."""

    async def get(self, key: str, largest: int, begun: Callable[[], None] | None = None, /) -> bytes | None:
        """The object, None where there is none. Raises `TooLargeError` where it has more bytes than `largest`, without reading it.

        `begun` is called when the store has begun to answer, if that is told before the whole answer is there.
        """

    def parts(self, key: str, largest: int) -> AsyncIterator[bytes]:
        """The same in parts of some MiB at most. Raises `FileNotFoundError` where there is none."""

    async def create(self, key: str, data: bytes) -> bool:
        """Store an object unless the key is taken; return whether it was stored."""

    async def replace(self, key: str, data: bytes) -> None:
        """Store an object in place of the one that is there."""

    async def exchange(self, key: str, data: bytes, expected: bytes) -> bool:
        """Store an object in place of one whose bytes are `expected`; return whether it was stored.

        Where the store cannot compare (`compares` is False), what another host stores at the same moment is lost.
        """

    async def look(self, key: str) -> Listed | None:
        """The size and the time of an object as they are now, None where there is none; nothing of it is read."""

    async def delete(self, key: str) -> None:
        """Remove an object; one that does not exist is passed over."""

    def list(self, prefix: str) -> AsyncIterator[Listed]:
        """The objects whose keys begin with `prefix`; NotImplementedError where the store cannot list."""

    def pause_after(self, error: Exception) -> float | None:
        """After how many seconds, at least, a request that failed so may be made again; None where that would be in vain."""


def open_backend(settings: RemoteSettings) -> Backend:
    """The client of a store.

    Raises:
        BackendMissingError: its library is not installed.
        ValueError: the library does not accept the URL.
    """
    if settings.kind == "file":
        return _Directory(unquote(urlsplit(settings.url).path))
    if settings.kind == "redis":
        return _Redis(settings)
    return _ObjectStore(settings)


def _missing(library: str, settings: RemoteSettings) -> BackendMissingError:
    scheme = urlsplit(settings.url).scheme
    return BackendMissingError(f"{scheme}:// stores need {library}: pip install 'compcache[remote]'")


class _Directory:
    """A directory, for example on a shared file system: objects become visible by linking them, complete or not at all.

    Whoever else can write there can put links, pipes and devices in it: nothing is read, written or removed through a link
    below the directory, and what is not a file is not an object.
    """

    compares = False  # a file is put in place of whatever is there

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)
        self._files = Tree(LateFiles(), self._root, path_opener())
        self._stood = os.path.isdir(self._root)

    async def get(self, key: str, largest: int, _: Callable[[], None] | None = None) -> bytes | None:
        return await asyncio.to_thread(self._read, key, largest)

    def pause_after(self, error: Exception) -> float | None:
        return 0.0 if isinstance(error, OSError) and error.errno in _PASSING else None

    async def parts(self, key: str, largest: int) -> AsyncIterator[bytes]:
        opened = await asyncio.to_thread(self._files.open_owned, self._path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(opened.number)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(key)
        if status.st_size > largest:
            raise TooLargeError(key)
        while part := await asyncio.to_thread(os.read, opened.number, _PART):
            yield part

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _read(self, key: str, largest: int) -> bytes | None:
        path = self._path(key)
        try:
            status = self._files.stat(path)
            if stat.S_ISREG(status.st_mode) and status.st_size > largest:
                raise TooLargeError(key)
            return read_file(self._files, path, largest)
        except FileNotFoundError:
            return None  # also where the directory does not exist yet: the first upload makes it
        except OSError as error:
            if error.errno in _NO_OBJECT:
                return None
            raise

    async def create(self, key: str, data: bytes) -> bool:
        return await asyncio.to_thread(self._write, key, data, self._files.link)

    async def replace(self, key: str, data: bytes) -> None:
        await asyncio.to_thread(self._write, key, data, self._files.rename)

    async def exchange(self, key: str, data: bytes, expected: bytes) -> bool:
        return await _exchanged(self, key, data, expected)

    def _write(self, key: str, data: bytes, publish: Callable[[str, str], None]) -> bool:
        path = self._path(key)
        parent, _, name = path.rpartition("/")
        self._require_root()
        make_directories(self._files, parent)
        new = f"{parent}/.{name}.{os.getpid():x}-{os.urandom(6).hex()}"
        try:
            opened = self._files.open_owned(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            left = memoryview(data)
            while left:
                left = left[self._files.write(opened.number, left) :]
            self._files.fsync(opened.number)
            publish(new, path)
        except FileExistsError:
            return False
        finally:
            with suppress(OSError):  # it was renamed
                self._files.unlink(new)
        return True

    def _require_root(self) -> None:
        """Make the directory with the first upload, in one that is there. One that was there, and is not any more, somebody has removed.

        Raises:
            FileNotFoundError: it was removed, or the one that it is to be in does not exist: a disk that is not mounted, for example.
        """
        if not self._stood:
            with suppress(FileExistsError):
                os.mkdir(self._root, DIRECTORY_MODE)
            self._stood = True

    async def look(self, key: str) -> Listed | None:
        return await asyncio.to_thread(self._look, key)

    def _look(self, key: str) -> Listed | None:
        try:
            status = self._files.stat(self._path(key))
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _NO_OBJECT:
                return None
            raise
        return Listed(key, status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None

    async def delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            await asyncio.to_thread(self._files.unlink, self._path(key))

    async def list(self, prefix: str) -> AsyncIterator[Listed]:
        for found in await asyncio.to_thread(lambda: sorted(self._below(self._path(prefix.rstrip("/"))))):
            yield found

    def _below(self, directory: str) -> Iterator[Listed]:
        try:
            statuses = self._files.statuses(directory)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno in _NO_OBJECT:
                return
            raise
        for name, status in statuses.items():
            path = f"{directory}/{name}"
            if stat.S_ISDIR(status.st_mode):
                yield from self._below(path)
            elif stat.S_ISREG(status.st_mode) and not name.startswith("."):
                yield Listed(path[len(self._root) + 1 :], status.st_size, status.st_mtime)


class _ObjectStore:
    """S3, Google Cloud Storage, Azure Blob Storage, and HTTP servers that take PUT (WebDAV), by `obstore`."""

    def __init__(self, settings: RemoteSettings) -> None:
        try:
            self._obstore: Any = import_module("obstore")
            from_url: Any = import_module("obstore.store").from_url
        except ImportError as error:
            raise _missing("obstore", settings) from error
        plain = settings.url.startswith("http:") or any(
            value.startswith("http:") for name, value in os.environ.items() if "ENDPOINT" in name.upper()
        )
        options: dict[str, Any] = {"connect_timeout": _CONNECT, "timeout": _LONGEST, "allow_http": plain}
        if settings.kind == "http" and settings.credentials is not None:  # the client knows passwords of object stores alone
            user, password = settings.credentials
            basic = base64.b64encode(f"{user}:{password}".encode()).decode()
            options["default_headers"] = {"authorization": f"Basic {basic}" if user else f"Bearer {password}"}
        self._store = from_url(
            settings.bare if settings.kind == "http" else settings.url, client_options=options, retry_config={"max_retries": 0},
            **_found_by_boto3(settings),
        )  # fmt: skip
        self.compares = settings.kind == "object"  # HTTP knows no conditional PUT that servers agree on

    async def get(self, key: str, largest: int, begun: Callable[[], None] | None = None) -> bytes | None:
        try:
            found = await self._obstore.get_async(self._store, key)
            if begun is not None:
                begun()
            if found.meta["size"] > largest:
                raise TooLargeError(key)
            return bytes(await found.bytes_async())
        except FileNotFoundError:
            return None

    async def parts(self, key: str, largest: int) -> AsyncIterator[bytes]:
        found = await self._obstore.get_async(self._store, key)
        if found.meta["size"] > largest:
            raise TooLargeError(key)
        async for part in found.stream(min_chunk_size=_PART):
            yield bytes(part)

    def pause_after(self, error: Exception) -> float | None:
        if type(error) is not self._obstore.exceptions.GenericError:
            return None
        status = _STATUS.search(str(error))
        passes = status[1] in _PASSING_STATUSES if status is not None else _CONNECTION.search(str(error)) is not None
        return 0.0 if passes else None

    async def create(self, key: str, data: bytes) -> bool:
        if not self.compares:
            if await self.look(key) is not None:
                return False
            await self.replace(key, data)
            return True
        try:
            await self._obstore.put_async(self._store, key, data, mode="create")
        except self._obstore.exceptions.AlreadyExistsError:
            return False
        return True

    async def exchange(self, key: str, data: bytes, expected: bytes) -> bool:
        if not self.compares:
            return await _exchanged(self, key, data, expected)
        try:
            found = await self._obstore.get_async(self._store, key)
            if found.meta["size"] != len(expected) or bytes(await found.bytes_async()) != expected:
                return False
            version = {name: found.meta[name] for name in ("e_tag", "version") if found.meta[name] is not None}
            await self._obstore.put_async(self._store, key, data, mode=version, use_multipart=False)
        except (FileNotFoundError, self._obstore.exceptions.PreconditionError):
            return False
        return True

    async def look(self, key: str) -> Listed | None:
        try:
            found = await self._obstore.get_async(self._store, key)  # and nothing is read of it; HEAD is not forwarded everywhere
        except FileNotFoundError:
            return None
        return Listed(key, found.meta["size"], found.meta["last_modified"].timestamp())

    async def replace(self, key: str, data: bytes) -> None:
        await self._obstore.put_async(self._store, key, data, mode="overwrite", use_multipart=False)

    async def delete(self, key: str) -> None:
        try:
            await self._obstore.delete_async(self._store, key)
        except FileNotFoundError:
            return

    async def list(self, prefix: str) -> AsyncIterator[Listed]:
        async for batch in self._obstore.list(self._store, prefix):
            for item in batch:
                yield Listed(item["path"], item["size"], item["last_modified"].timestamp())


async def _exchanged(backend: Backend, key: str, data: bytes, expected: bytes) -> bool:
    """`Backend.exchange` where the store cannot compare."""
    with suppress(TooLargeError):
        if await backend.get(key, len(expected)) == expected:
            await backend.replace(key, data)
            return True
    return False


#: What `obstore` finds by itself, and renews.
_OWN_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)  # fmt: skip
_CREDENTIALS_MINUTES = 5


def _found_by_boto3(settings: RemoteSettings) -> dict[str, Any]:
    """Options that have boto3 find credentials of S3, where it is installed: profiles, SSO, processes, roles, metadata of instances.

    They are looked for anew every five minutes, so that what is exchanged on disk is used.

    Raises:
        BackendMissingError: a profile is named, which boto3 alone knows.
    """
    if not urlsplit(settings.url).scheme.startswith("s3") or any(os.environ.get(name) for name in _OWN_CREDENTIALS):
        return {}
    try:
        provider: Any = import_module("obstore.auth.boto3").Boto3CredentialProvider
    except ImportError as error:
        if os.environ.get("AWS_PROFILE"):
            raise BackendMissingError("AWS_PROFILE needs boto3: pip install boto3") from error
        return {}

    def credentials() -> Any:
        return provider(ttl=timedelta(minutes=_CREDENTIALS_MINUTES))()

    try:
        region = provider().config.get("region")
    except ValueError:
        return {}  # it finds none: the bucket may be public, or the metadata of the instance come later
    except (OSError, import_module("botocore.exceptions").BotoCoreError):
        region = None  # a profile or program that fails does so at each request, which says why, until it is mended
    return {"credential_provider": credentials, **({"config": {"region": region}} if region else {})}


class _Redis:
    """A Redis (or Valkey) server. Objects are strings; how long they stay is the server's policy. When each was written, by the server's
    clock, is in a sorted set beside them; one that is not there was written when that is noticed.
    """

    compares = True

    def __init__(self, settings: RemoteSettings) -> None:
        try:
            client: Any = import_module("redis.asyncio").Redis
            known: Any = import_module("redis.exceptions")
            never: Any = import_module("redis.asyncio.retry").Retry(import_module("redis.backoff").NoBackoff(), 0)
        except ImportError as error:
            raise _missing("redis", settings) from error
        plain, _, prefix = settings.url.partition("#")
        path = urlsplit(plain).path.strip("/")
        if path and not path.partition("/")[0].isdecimal():
            raise ValueError(f"{settings.shown}: the path of a redis URL is the number of a database, like redis://host/0")
        _, _, rest = path.partition("/")
        if rest:
            plain, prefix = plain[: -len(rest) - 1], rest
        self._prefix = f"{prefix}/" if prefix else ""
        self._times = f"{self._prefix}{_TIMES}"
        self._passing = known.ConnectionError, known.TimeoutError, known.TryAgainError, known.ClusterDownError
        self._refusing = known.AuthenticationError, known.AuthorizationError
        self._redis = client.from_url(
            plain, socket_connect_timeout=0.25, socket_timeout=3600.0, single_connection_client=False, retry=never
        )
        pool = self._redis.connection_pool
        pool.connection_class = _bounded(pool.connection_class)

    async def get(self, key: str, largest: int, _: Callable[[], None] | None = None) -> bytes | None:
        with _allowing(largest):
            found: bytes = await self._redis.getrange(self._prefix + key, 0, largest)
        if len(found) > largest:
            raise TooLargeError(key)
        return found or None  # nothing that is stored is empty

    async def parts(self, key: str, largest: int) -> AsyncIterator[bytes]:
        at = 0
        while at <= largest:
            with _allowing(_PART):
                part: bytes = await self._redis.getrange(self._prefix + key, at, at + _PART - 1)
            if not part and not at:
                raise FileNotFoundError(key)
            if not part:
                return
            yield part
            at += len(part)
        raise TooLargeError(key)

    def pause_after(self, error: Exception) -> float | None:
        return 0.0 if isinstance(error, self._passing) and not isinstance(error, self._refusing) else None

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
        seconds, microseconds = await self._redis.time()
        await self._redis.zadd(self._times, {key: seconds + microseconds / 1e6}, nx=nx)

    async def look(self, key: str) -> Listed | None:
        size = int(await self._redis.strlen(self._prefix + key))
        if not size:
            return None
        when = await self._redis.zscore(self._times, key)
        if when is None:
            await self._note_time(key, nx=True)
            when = await self._redis.zscore(self._times, key)
        return Listed(key, size, float(when or 0.0))

    async def delete(self, key: str) -> None:
        await self._redis.delete(self._prefix + key)
        await self._redis.zrem(self._times, key)

    async def list(self, prefix: str) -> AsyncIterator[Listed]:
        names: set[str] = set()
        with _allowing(_LARGEST_ANSWER):
            async for name in self._redis.scan_iter(match=f"{_literal(self._prefix + prefix)}*", count=100):
                names.add(name.decode("utf-8", "replace")[len(self._prefix) :])
                if len(names) > _MOST_NAMES:
                    raise TooLargeError("the server lists without end")
        for key in sorted(names):
            found = await self.look(key)
            if found is not None:
                yield found


#: The largest answer to anything that does not get an object: errors, numbers, names of objects, of which a server sends some at a time.
_LARGEST_ANSWER = 512 << 10
#: What a line counts for: the client makes objects of it.
_LINE = 512
_MOST_NAMES = 1 << 23
_TIMES = f"{LAYOUT}-times"
_EXCHANGE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) return 1 end return 0"
_allowed: ContextVar[int] = ContextVar("allowed", default=_LARGEST_ANSWER)


@contextmanager
def _allowing(size: int) -> Iterator[None]:
    """Within it answers have so many bytes at most, and what frames them."""
    token = _allowed.set(size + _LARGEST_ANSWER)
    try:
        yield
    finally:
        _allowed.reset(token)


def _literal(prefix: str) -> str:
    """A pattern of Redis that this prefix alone matches."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", prefix)


def _bounded(kind: Any) -> Any:
    """A class of connections that hold no more of an answer than was allowed: the client believes the lengths that a server sends."""

    class Bounded(kind):  # type: ignore[misc]
        _reader: Any

        async def _connect(self) -> None:
            await super()._connect()
            self._reader = _BoundedReader(self._reader)

        async def read_response(self, *arguments: Any, **named: Any) -> Any:
            if isinstance(self._reader, _BoundedReader):
                self._reader.left = _allowed.get()
            return await super().read_response(*arguments, **named)

    return Bounded


class _BoundedReader:
    """An `asyncio.StreamReader` that gives `left` bytes."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.left = _LARGEST_ANSWER

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def _take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise TooLargeError("an answer of the server is larger than what was asked for can be")

    async def readexactly(self, size: int) -> bytes:
        self._take(size)
        found: bytes = await self._reader.readexactly(size)
        return found

    async def readline(self) -> bytes:
        found: bytes = await self._reader.readline()
        self._take(max(len(found), _LINE))
        return found

    async def read(self, size: int) -> bytes:
        found: bytes = await self._reader.read(size)
        self._take(len(found))
        return found
