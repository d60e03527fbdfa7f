"""Credentials of machines: what the metadata service of an instance gives out, or the service that changes web identities for keys."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from compcache import Cache, CacheWarning, Identity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("obstore")

EXPIRES = "2100-01-01T00:00:00Z"
KEYS = (
    '{"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "AKIDROLE", "SecretAccessKey": "s", "Token": "role-token", '
    f'"LastUpdated": "2020-01-01T00:00:00Z", "Expiration": "{EXPIRES}"}}'
)
SSO = '{"roleCredentials": {"accessKeyId": "AKIDSSO", "secretAccessKey": "s", "sessionToken": "sso-token", "expiration": 4102444800000}}'
STS = f"""<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>AKIDWEB</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>web-token</SessionToken><Expiration>{EXPIRES}</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


class Services(ThreadingHTTPServer):
    """A bucket without objects, the metadata service of an instance, and the service for tokens, on one port."""

    daemon_threads = True

    def __init__(self, certificate: tuple[str, str] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.server_address[1]}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.tokens: set[str] = set()  # what requests to the bucket were signed with
        self.identities: list[str] = []
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Services

    def _answer(self, status: int, text: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_PUT(self) -> None:  # a token for the metadata service
        self._answer(200, "metadata-token")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.server.identities.append(self.path + body)
        self._answer(200, STS)

    def do_GET(self) -> None:
        if self.path.rstrip("/").endswith("security-credentials"):
            self._answer(200, "role")
        elif "security-credentials/role" in self.path:
            self._answer(200, KEYS)
        elif "AssumeRoleWithWebIdentity" in self.path:
            self.do_POST()
        elif self.path.startswith("/federation/credentials"):
            is_logged_in = self.headers.get("x-amz-sso_bearer_token") == "of-the-login"
            self._answer(200 if is_logged_in else 401, SSO)
        else:
            self.server.tokens.add(self.headers.get("x-amz-security-token", ""))
            self._answer(404)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # no profile of whoever runs this
    with Services() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        yield server
        server.shutdown()
    shutil.rmtree(tmp_path / "run")


def ask(services: Services, tmp_path: Path) -> None:
    """Ask until the bucket is reached: on a busy machine credentials may take longer than a look-up waits."""
    end = time.monotonic() + 60
    with Cache(tmp_path / "a", remote="s3://bucket/prefix") as cache, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the remote store .* no answer", CacheWarning)
        while not services.tokens and time.monotonic() < end:
            assert cache.has_many([Identity("f", code=1)]) == (False,)
            time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("has_boto3", [True, False])
def test_an_instance_signs_with_what_its_metadata_gives(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_boto3: bool
) -> None:
    """By boto3, and by the client of the store where there is no boto3."""
    if has_boto3:
        pytest.importorskip("boto3")
    else:
        (tmp_path / "hidden").mkdir()
        (tmp_path / "hidden" / "boto3.py").write_text("raise ImportError('hidden')")
        monkeypatch.syspath_prepend(str(tmp_path / "hidden"))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", services.url)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", services.url)  # as boto3 calls it
    ask(services, tmp_path)
    assert services.tokens == {"role-token"}


PROFILES = {
    "process": "credential_process = {program}",
    "sso": "sso_session = company\nsso_account_id = 123456789012\nsso_role_name = reader\n"
    "[sso-session company]\nsso_region = eu-west-1\nsso_start_url = https://company.example/start",
}


@pytest.mark.parametrize("kind", PROFILES)
def test_a_profile_signs_with_what_a_program_or_single_sign_on_gives(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pytest.importorskip("boto3")
    keys = {"Version": 1, "AccessKeyId": "AKIDTEAM", "SecretAccessKey": "s", "SessionToken": "process-token", "Expiration": EXPIRES}
    program = tmp_path / "keys.py"
    program.write_text(f"print({json.dumps(json.dumps(keys))})")
    (tmp_path / "config").write_text(f"[profile team]\n{PROFILES[kind].format(program=f'{sys.executable} {program}')}\n")
    login = tmp_path / ".aws" / "sso" / "cache" / f"{hashlib.sha1(b'company', usedforsecurity=False).hexdigest()}.json"
    login.parent.mkdir(parents=True)
    login.write_text(json.dumps({"accessToken": "of-the-login", "expiresAt": EXPIRES}))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "team")
    ask(services, tmp_path)
    assert services.tokens == {f"{kind}-token"}


def test_a_profile_that_fails_says_why_and_serves_when_it_is_mended(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("boto3")
    config = tmp_path / "config"
    config.write_text("[profile team]\ncredential_process = /nonexistent\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "team")
    with Cache(tmp_path / "a", remote="s3://bucket/prefix") as cache:
        assert cache.remote is not None
        assert "/nonexistent" in cache.remote.status()[0]["last_error"]
        config.write_text("[profile other]\n")
        assert "ProfileNotFound" in cache.remote.status()[0]["last_error"]
        config.write_text("[profile team]\naws_access_key_id = A\naws_secret_access_key = s\naws_session_token = mended\n")
        assert cache.remote.status()[0]["last_error"] == ""
    assert services.tokens == {"mended"}


#: The part of boto3 that is used; its profile is a file with a token, or fails as boto3 does.
STAND_IN = {
    "botocore/__init__.py": "",
    "botocore/credentials.py": "",
    "botocore/exceptions.py": "class BotoCoreError(Exception):\n    pass\n",
    "boto3/session.py": "",
    "boto3/__init__.py": """
import os
from types import SimpleNamespace
from botocore.exceptions import BotoCoreError

class Session:
    region_name = "eu-west-1"

    def get_credentials(self):
        try:
            with open(os.environ["AWS_CONFIG_FILE"]) as file:
                token = file.read()
        except OSError as error:
            raise BotoCoreError("no profile named team") from error
        frozen = SimpleNamespace(access_key="A", secret_key="s", token=token)
        return SimpleNamespace(get_frozen_credentials=lambda: frozen)
""",
}


@pytest.mark.slow
def test_credentials_that_fail_say_why_at_each_request_until_they_are_mended(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where boto3 is not installed: something that fails as it does stands in for it."""
    for name, text in STAND_IN.items():
        (tmp_path / "stand-in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "stand-in" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "stand-in"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "profile"))
    with Cache(tmp_path / "a", remote="s3://bucket/prefix") as cache:
        assert cache.remote is not None
        assert "no profile named team" in cache.remote.status()[0]["last_error"]
        (tmp_path / "profile").write_text("mended")
        assert cache.remote.status()[0]["last_error"] == ""
    assert services.tokens == {"mended"}


@pytest.mark.slow
def test_a_web_identity_is_changed_for_keys(services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("of-the-cluster")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/builder")
    with Services(certified(tmp_path)) as tokens:  # the client speaks to this service by TLS alone
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", tokens.url)
        ask(services, tmp_path)
        assert "of-the-cluster" in tokens.identities[0]
        tokens.shutdown()
    assert services.tokens == {"web-token"}


def certified(place: Path) -> tuple[str, str]:
    """A certificate of 127.0.0.1 and its key, by an authority in ``ca.pem``."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    (place / "names").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=authority",
        "req -newkey rsa:2048 -nodes -keyout own.key -out own.csr -subj /CN=127.0.0.1",
        "x509 -req -in own.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out own.pem -days 2 -extfile names",
    ):
        subprocess.run(["openssl", *command.split()], cwd=place, check=True, capture_output=True)
    return str(place / "own.pem"), str(place / "own.key")
