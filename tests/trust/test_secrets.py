"""Secrets stay where they are: none is in arguments, messages, logs, pickles and files, and remote stores still get theirs."""

from __future__ import annotations

import base64
import copy
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import threading
import traceback
import warnings
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT, constant, run_fresh

from compcache import Cache, Identity, ModuleSource, SettingError, frontend
from compcache.batch import Job, compile_many
from compcache.processes.secret_references import read_secret, reference_to
from compcache.remote.address import has_secret, read_settings, shown_url
from compcache.remote.helper.reads import describe_error
from compcache.signing.keys import generate_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

USER, PASSWORD = "someone", "pass/w?rd#@:s3cret"
ENCODED = "pass%2Fw%3Frd%23%40%3As3cret"
TOKEN = "sig%3Dt0ken"
PUBLISH = generate_key("team-1")
SIGNING = "a-signing-key-of-some-length"
#: All that there are, in every form in which they could stand somewhere.
SECRETS = (
    PASSWORD, ENCODED, "s3cret", TOKEN, "t0ken", SIGNING, str(PUBLISH), str(PUBLISH).partition(":")[2], repr(PUBLISH.seed),
    base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(), "account-secret",
)  # fmt: skip


def require_none(*texts: object) -> None:
    """That no secret stands in these."""
    for text in texts:
        data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogateescape")
        told = [secret for secret in SECRETS if secret.encode() in data]
        assert not told, f"{told} in {data[:500]!r}"
        assert PUBLISH.seed not in data


class Guarded(ThreadingHTTPServer):
    """A store that demands a user and a password of every request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), GuardedHandler)
        self.objects: dict[str, bytes] = {}
        self.refused = 0
        self.url = f"http://{USER}:{ENCODED}@127.0.0.1:{self.server_address[1]}/cache"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class GuardedHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Guarded

    def do_GET(self) -> None:
        found = self.server.objects.get(self.path)
        self._answer(404 if found is None else 200, found or b"")

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self._is_known():
            self.server.objects[self.path] = data
        self._answer(201, b"")

    def _is_known(self) -> bool:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        return scheme == "Basic" and base64.b64decode(given) == f"{USER}:{PASSWORD}".encode()

    def _answer(self, status: int, data: bytes) -> None:
        if not self._is_known():
            self.server.refused += 1
            status, data = 401, b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Helper processes of this test end with it."""
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "account-secret")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def web() -> Iterator[Guarded]:
    with Guarded() as server:
        yield server
        server.shutdown()


def command_lines() -> bytes:
    """The arguments of all processes, as every user sees them."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(place.read_bytes())
    return b"\n".join(found)


# ------------------------------------------------------------------------------------------------ remote stores


@pytest.mark.slow
def test_a_store_that_demands_a_password_gets_it_and_nobody_else_does(
    web: Guarded, runtime: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("obstore")
    name = Identity("f", code=1)
    url = web.url
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with Cache(tmp_path / "a", remote=url, remote_mode="write", publish_key=str(PUBLISH), signing_key=SIGNING) as cache:
            cache.get_or_compile(name, lambda: constant("f", 7))
            cache.push([name])
            assert cache.flush_uploads(30)
            assert b"compcache.remote.helper.server" in command_lines()
            remote = cache.remote
            assert remote is not None
            require_none(command_lines(), remote.status(), cache.explain(name), remote.settings, vars(remote), cache, cache._store)
        with Cache(tmp_path / "b", remote=url, signing_key=SIGNING) as cache:
            assert cache.get_target(name)() == 7
    require_none(caplog.text, *[warning.message for warning in warned])
    assert web.objects
    assert not web.refused
    for place in (runtime, tmp_path / "a"):
        require_none(*[path.read_bytes() for path in place.rglob("*") if path.is_file()], *place.rglob("*"))


def test_a_store_that_refuses_the_password_is_complained_of_without_it(web: Guarded, runtime: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    assert runtime
    with Cache(tmp_path / "a", remote=web.url.replace(ENCODED, "s3cret"), remote_mode="write") as cache:
        answer = cache.explain(Identity("f", code=1)).remote
        status = cache.remote.status()[0]  # type: ignore[union-attr]
    assert answer is not None
    assert answer.outcome == "unavailable"
    assert "401" in status["last_error"]
    require_none(answer, status)


MISTYPED = [
    f"htps://{USER}:s3cret@host/x",
    f"redis:/{USER}:s3cret@host/0",
    f"{USER}:s3cret@host/x",
    f"file://{USER}:s3cret@host/x",
    f"redis://{USER}:{PASSWORD}@host/0",
    f"redis://{USER}:s3cret@host:t0ken/0",
    "redis://:s3cret/t0ken",
    f"redis://[{USER}:s3cret@host/0",
    f"azz://container/x?{TOKEN}",
    f"s3://?{TOKEN}#s3cret",
]


@pytest.mark.slow
@pytest.mark.parametrize("url", MISTYPED)
def test_a_mistyped_url_is_refused_without_telling_it(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match="the remote store") as caught:
        Cache(tmp_path, remote=url)
    require_none(traceback.format_exception_only(caught.value), caught.value.__context__)
    done = subprocess.run(
        [sys.executable, "-m", "compcache", "--dir", str(tmp_path / "c"), "remote", "status"],
        env={**os.environ, "COMPCACHE_REMOTE": url, "PYTHONPATH": str(PACKAGE_ROOT)}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    require_none(done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://{USER}:{ENCODED}@host:1/0", "redis://host:1/0"),
        (f"https://{USER}@host/x?{TOKEN}", "https://host/x"),
        (f"redis://{USER}:{PASSWORD}@host/0", "redis://host/0"),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        (f"abfss://container:s3cret@account/x?{TOKEN}", "abfss://account/x"),
        ("file:///a%40b", "file:///a%40b"),
    ],
)
def test_a_url_is_shown_without_what_can_be_a_secret(url: str, shown: str) -> None:
    assert (shown_url(url), has_secret(url)) == (shown, url != shown)


def test_messages_of_clients_are_shown_without_what_stands_in_urls() -> None:
    text = f'error sending request for url (https://account.blob/c/x?sv=1&{TOKEN}): "https://{USER}:{ENCODED}@h/x" error: "at http://h/?{TOKEN}"'
    require_none(describe_error(OSError(text)))
    assert "account.blob/c/x" in describe_error(OSError(text))


def test_what_may_hold_a_secret_is_not_pickled_or_printed() -> None:
    settings = read_settings(f"redis://{USER}:{ENCODED}@host/0?{TOKEN}", "read")
    for held in (settings, PUBLISH):
        require_none(repr(held), [held])
        for way in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled"):
                way(held)


def test_the_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    given = {
        "COMPCACHE_REMOTE": f"redis://{USER}:{ENCODED}@host/0?{TOKEN}", "COMPCACHE_PUBLISH_KEY": str(PUBLISH),
        "COMPCACHE_SIGNING_KEY": SIGNING, "PYTHONPATH": str(PACKAGE_ROOT),
    }  # fmt: skip
    command = [sys.executable, "-m", "compcache", "--dir", str(tmp_path / "c"), "config", "--json"]
    done = subprocess.run(command, env={**os.environ, **given}, capture_output=True, check=True)
    require_none(done.stdout, done.stderr)
    shown = {row["name"]: row["value"] for row in json.loads(done.stdout)}
    assert (shown["COMPCACHE_REMOTE"], shown["COMPCACHE_PUBLISH_KEY"]) == ("redis://host/0", "(set)")


# ---------------------------------------------------------------------------------------- settings that travel


class Recording(Executor):
    """Sends tasks as executors of clusters do, and keeps them."""

    def __init__(self) -> None:
        self.tasks: list[bytes] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks.append(pickle.dumps((function, args, kwargs)))
        future: Future[Any] = Future()
        called, given, named = pickle.loads(self.tasks[-1])
        try:
            future.set_result(called(*given, **named))
        except BaseException as error:  # noqa: BLE001 - as executors do
            future.set_exception(error)
        return future


@pytest.fixture
def given() -> dict[str, Any]:
    return {"signing_key": SIGNING, "publish_key": str(PUBLISH), "remote": f"redis://{USER}:{ENCODED}@127.0.0.1:1/0"}


JOBS = [Job("f", ModuleSource(constant("f", 1)))]


@pytest.mark.parametrize("how", ["values", "files", "variables"])
def test_tasks_name_secrets_and_do_not_contain_them(
    how: str, given: dict[str, Any], tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runtime
    arguments = given
    variables = {"signing_key": "COMPCACHE_SIGNING_KEY", "publish_key": "COMPCACHE_PUBLISH_KEY", "remote": "COMPCACHE_REMOTE"}
    if how == "files":
        for name, secret in given.items():
            (tmp_path / name).write_text(secret + "\n")
        arguments = {name: f"@{tmp_path / name}" for name in given}
    elif how == "variables":
        for name, secret in given.items():
            monkeypatch.setenv(variables[name], secret)
        arguments = {}
    executor = Recording()
    with Cache(tmp_path / "cache", **arguments) as cache:
        report = compile_many(cache, JOBS, executor=executor)
        report.raise_for_failures()
        settings = frontend.settings_of(cache)
    require_none(*executor.tasks, settings)
    if how == "files":
        assert settings["publish_key"] == arguments["publish_key"]
    elif how == "variables":
        assert {name: settings[name] for name in variables} == {name: f"${variable}" for name, variable in variables.items()}
        monkeypatch.delenv("COMPCACHE_PUBLISH_KEY")
        with pytest.raises(ValueError, match=r"publish_key refers to the environment variable COMPCACHE_PUBLISH_KEY, which is not set"):
            Cache(**settings)
    for name, secret in given.items() if how != "variables" else ():
        assert read_secret(settings[name], name) == secret
    signed: dict[str, Any] = {"trusted_keys": str(PUBLISH.public()), "signing_key": SIGNING, "remote": "", "publish_key": ""}
    with Cache(tmp_path / "cache", **signed) as cache:
        assert cache.get_target("f")() == 1


@pytest.mark.slow
def test_processes_of_a_pool_read_values_from_the_process_that_has_them(given: dict[str, Any], tmp_path: Path, runtime: Path) -> None:
    assert runtime
    with Cache(tmp_path / "cache", **given) as cache, ProcessPoolExecutor(1, get_context("spawn")) as executor:
        compile_many(cache, JOBS, executor=executor).raise_for_failures()
        require_none(command_lines())
        assert cache.get_target("f")() == 1


@pytest.mark.slow
def test_the_batch_s_own_processes_get_them_too(given: dict[str, Any], tmp_path: Path, runtime: Path) -> None:
    assert runtime
    seen: list[bytes] = []
    with Cache(tmp_path / "cache", **given) as cache:
        compile_many(cache, JOBS, workers=1, progress=lambda _: seen.append(command_lines())).raise_for_failures()
        assert cache.get_target("f")() == 1
    assert any(b"compcache.batch.worker" in lines for lines in seen)
    require_none(*seen)


def test_a_value_that_cannot_be_reached_fails_the_jobs_and_says_what_to_do(given: dict[str, Any], tmp_path: Path, runtime: Path) -> None:
    """As on another host, where the number of the process is another one's."""
    assert runtime

    class Elsewhere(Recording):
        def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            settings = {**args[0], "publish_key": args[0]["publish_key"][:-1] + "x"}
            return super().submit(function, settings, *args[1:], **kwargs)

    with Cache(tmp_path / "cache", publish_key=given["publish_key"]) as cache:
        report = compile_many(cache, JOBS, executor=Elsewhere())
    (failed,) = report.failed
    assert "publish_key cannot be read from the memory of process" in failed.message
    assert "$VARIABLE or @file" in failed.message


@pytest.mark.parametrize("value", ["plain", "@home", "$money", "@@x", "$"])
def test_keys_that_look_like_references_are_written_with_one_more(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = value[0] + value if value[0] in "$@" else value
    assert read_secret(written, "a key") == value
    monkeypatch.setenv("SOME_KEY", written)
    assert read_secret("$SOME_KEY", "a key") == value
    assert read_secret(reference_to(value.encode(), value.encode(), "COMPCACHE_SIGNING_KEY", "a key"), "a key") == value


def test_what_names_no_secret_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST", "$SECOND")
    with pytest.raises(ValueError, match="FIRST, which contains another reference"):
        read_secret("$FIRST", "a key")
    with pytest.raises(ValueError, match="a key is '@memory:x', which is not a valid reference to the memory of a process"):
        read_secret("@memory:x", "a key")
    with pytest.raises(FileNotFoundError):
        Cache(tmp_path, remote=f"@{tmp_path}/none", remote_mode="read")
    (tmp_path / "large").write_bytes(bytes(1 << 17))
    with pytest.raises(ValueError, match="too large for a secret"):
        Cache(tmp_path, signing_key=f"@{tmp_path}/large")


@pytest.mark.parametrize("content", ["", " \n"])
def test_a_file_without_a_key_is_not_a_cache_without_signatures(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(content)
    with pytest.raises(ValueError, match="signing_key is empty, or names a file without a key"):
        Cache(tmp_path / "cache", signing_key=f"@{tmp_path}/key")
    monkeypatch.setenv("COMPCACHE_SIGNING_KEY", f"@{tmp_path}/key")
    with pytest.raises(SettingError, match="COMPCACHE_SIGNING_KEY: signing_key is empty"):
        Cache(tmp_path / "cache")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(("mode", "owner"), [(0o620, 0), (0o602, 0), (0o600, 65534)])
@pytest.mark.parametrize("setting", ["signing_key", "publish_key", "remote"])
def test_a_secret_that_others_can_write_is_refused(
    tmp_path: Path, setting: str, mode: int, owner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who decides the key of the publisher decides whose code is trusted, and who decides the store decides what is fetched."""
    path = tmp_path / "secret"
    secret: dict[str, Any] = {setting: f"@{path}"}
    path.write_text(f"file://{tmp_path}/store")
    path.chmod(mode)
    os.chown(path, owner, -1)
    label = "the remote store" if setting == "remote" else setting
    message = f"{label} refers to the file {path}, which other users can write to: change its owner, and run chmod go-w on it"
    with pytest.raises(ValueError, match=f"^{message}$"):
        Cache(tmp_path / "cache", **secret).remote  # noqa: B018 - the store is opened at its first use
    monkeypatch.setenv(f"COMPCACHE_{setting.upper()}", f"@{path}")
    with pytest.raises(SettingError, match=f"^COMPCACHE_{setting.upper()}: {message}$"):
        Cache(tmp_path / "cache").remote  # noqa: B018


def test_a_key_in_a_file_may_have_any_bytes(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xff\xfe\x01key")
    with Cache(tmp_path / "cache", signing_key=f"@{tmp_path}/key") as cache:
        cache.add_module(ModuleSource(constant("f", 3)))
    with Cache(tmp_path / "cache", signing_key=b"\xff\xfe\x01key") as cache:
        assert cache.get_target("f")() == 3


def test_a_key_in_a_file_signs(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SIGNING + "\n")
    with Cache(tmp_path / "cache", signing_key=f"@{tmp_path}/key") as cache:
        cache.add_module(ModuleSource(constant("f", 3)))
    script = f"from compcache import Cache\nresult = Cache(directory, signing_key={SIGNING!r}).get_target('f')()"
    assert run_fresh(tmp_path / "cache", script) == 3
