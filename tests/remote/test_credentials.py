"""Credentials of remote stores: where they are found, that they change while programs run, and that nothing waits for old ones."""

from __future__ import annotations

import base64
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from helpers import constant
from web_store import WebStore

from compcache import Cache, Identity
from compcache.remote.directory import outbox_directory, state_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("obstore")


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Helper processes of this test end with it."""
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    monkeypatch.setattr("compcache.miss.compile_once.HEDGE_SECONDS", 20.0)  # the machine may be busy
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    yield
    shutil.rmtree(directory)


@pytest.fixture
def web() -> Iterator[WebStore]:
    with WebStore() as server:
        yield server
        server.shutdown()


def never() -> str:
    raise AssertionError("it is compiled, though the store has it")


def url_with(web: WebStore, credentials: str) -> str:
    return web.url.replace("://", f"://{credentials}@")


@pytest.mark.parametrize(
    ("credentials", "header"),
    [("user:p%40ss", "Basic " + base64.b64encode(b"user:p@ss").decode()), (":to%2Fken", "Bearer to/ken"), ("user", "Basic dXNlcjo=")],
)
def test_what_a_url_names_is_sent(web: WebStore, tmp_path: Path, credentials: str, header: str) -> None:
    with Cache(tmp_path / "a", remote=url_with(web, credentials)) as cache:
        assert cache.has_many([Identity("f", code=1)]) == (False,)
    assert set(web.authorizations) == {header}


@pytest.mark.slow
def test_uploads_that_an_old_token_queued_go_out_under_the_new_one(web: WebStore, tmp_path: Path) -> None:
    """In the same process, when the file has changed; what waited is known to wait, and flushed."""
    name, token = Identity("f", code=1), tmp_path / "store-url"
    web.accepts = lambda authorization: authorization == "Bearer new"
    token.write_text(url_with(web, ":old"))
    with Cache(tmp_path / "a", remote=f"@{token}", remote_mode="write") as cache:
        cache.get_or_compile(name, lambda: constant("f", 7))
        cache.push([name])
        assert not cache.flush_uploads(2)
        token.write_text(url_with(web, ":new"))
        assert cache.remote is not None
        assert cache.remote.status()[0]["waiting_uploads"] >= 1
        assert cache.flush_uploads(60)
    with Cache(tmp_path / "b", remote=url_with(web, ":new")) as cache:
        assert cache.get_or_compile(name, never)() == 7


@pytest.mark.slow
def test_uploads_of_a_process_that_has_ended_go_out_under_a_new_token(web: WebStore, tmp_path: Path) -> None:
    name = Identity("f", code=1)
    web.accepts = lambda authorization: authorization == "Bearer new"
    with Cache(tmp_path / "a", remote=url_with(web, ":old"), remote_mode="write") as cache:
        cache.get_or_compile(name, lambda: constant("f", 7))
        cache.push([name])
        assert not cache.flush_uploads(1)
    with Cache(tmp_path / "b", remote=url_with(web, ":new"), remote_mode="write") as cache:
        assert cache.flush_uploads(60)
        assert cache.has_many([name]) == (True,)


@pytest.mark.slow
def test_a_file_that_is_being_exchanged_stops_no_miss(web: WebStore, tmp_path: Path) -> None:
    token = tmp_path / "store-url"
    token.write_text(web.url)
    with Cache(tmp_path / "a", remote=f"@{token}") as cache:
        assert cache.get_or_compile(Identity("f", code=1), lambda: constant("f", 1))() == 1
        token.unlink()
        assert cache.get_or_compile(Identity("f", code=2), lambda: constant("f", 2))() == 2


@pytest.mark.parametrize(
    ("url", "same", "other"),
    [
        ("https://host/path", "https://user:secret@host/path?token=1#x", "https://host/path2"),
        ("redis://host:1/0#a", "redis://:secret@host:1/0?password=1#a", "redis://host:1/0#b"),
        ("s3://bucket/a", "s3://bucket/a?x=1", "s3://bucket/b"),
        ("abfss://one@account/a", "abfss://one@account/a?sig=1", "abfss://two@account/a"),
    ],
)
def test_uploads_wait_for_an_address_and_not_for_a_secret(url: str, same: str, other: str) -> None:
    here = dict(os.environ)
    elsewhere = {**here, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    keys = {**here, "AWS_ACCESS_KEY_ID": "new", "AWS_SESSION_TOKEN": "new"}
    assert outbox_directory(url, here) == outbox_directory(same, keys) != outbox_directory(other, here)
    assert outbox_directory(url, here) != outbox_directory(url, elsewhere)
    assert state_directory(url, here) != state_directory(url, keys)


@pytest.mark.peer
def test_profiles_of_aws_are_found_as_boto3_finds_them(web: WebStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3")
    (tmp_path / "credentials").write_text("[team]\naws_access_key_id = TEAMKEY\naws_secret_access_key = secret\n")
    (tmp_path / "config").write_text("[profile team]\nregion = eu-test-7\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url.removesuffix("/cache"))
    monkeypatch.setenv("AWS_PROFILE", "team")
    with Cache(tmp_path / "a", remote="s3://bucket/prefix") as cache:
        assert cache.has_many([Identity("f", code=1)]) == (False,)
    assert web.authorizations
    assert all("Credential=TEAMKEY/" in each and "/eu-test-7/" in each for each in web.authorizations)


def test_a_profile_needs_boto3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "boto3.py").write_text("raise ImportError('hidden')")
    monkeypatch.syspath_prepend(str(hidden))
    monkeypatch.setenv("AWS_PROFILE", "team")
    with Cache(tmp_path / "a", remote="s3://bucket/prefix") as cache:
        answer = cache.explain(Identity("f", code=1)).remote
    assert answer is not None
    assert "pip install boto3" in answer.message
