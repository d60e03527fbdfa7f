"""Source distributions of other projects: which ones, and how to have one unpacked on disk.

pip downloads them, so that the index, mirrors, proxies and certificates are the user's own. A version and a
digest pin each one. Nothing of a package is run to obtain it (see `metadata_backend`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

DOWNLOAD_SECONDS = 180


class SdistUnavailableError(Exception):
    """Raised when pip cannot download a source distribution; the message is pip's reason."""


@dataclass(frozen=True, slots=True)
class Sdist:
    """One pinned source distribution."""

    name: str
    version: str
    sha256: str

    @property
    def folder(self) -> str:
        """Where it is unpacked, below the directory of all of them: `xxhash-4.1.0-c9b288e4c1f5`."""
        return f"{self.name}-{self.version}-{self.sha256[:12]}"


SDISTS = {
    sdist.name: sdist
    for sdist in (
        Sdist("xxhash", "4.1.0", "c9b288e4c1f5dae54417bc8a05e6f6daf505783d916b4783f4dd2f2e7d5db486"),
        Sdist("lz4", "4.4.5", "5f0b9e53c1e82e88c10d7c180069363980136b9d7a8306c4dca4f760d60c39f0"),
        Sdist("zstandard", "0.25.0", "7713e1179d162cf5c7906da876ec2ccb9c3a9dcbdffef0cc7f70c3667a205f0b"),
        # zlib, among the parts of c-blosc.
        Sdist("blosc", "1.11.4", "e0b312d9554d3aea93c75af4ad70dfa8b815ef4fe2b658c313b2f27ed0f41d37"),
        # libdeflate.
        Sdist("deflate", "0.9.0", "962e0a6f1ea3a94b900a8ea0ce138fa92bfcbafda5b86367104a259ffcd3462b"),
        # SQLite's amalgamation, with an encryption layer that is off unless it is asked for.
        Sdist("sqlcipher3", "0.6.4", "b02a3edfc554c9197d63ab4c38a30f7682eec65b10e5be2c9285a0d6ffb7a29a"),
        Sdist("brotli", "1.2.1", "02b2f7b5a83485efe448a44ddf7983def05c3bb1dcf917d4f7154070260e13de"),
        # cmark, in GitHub's version.
        Sdist("cmarkgfm", "2025.10.22", "5bec61007b65b919488442c838c58a6c8bf4741f5103c593b2ef180d39818eda"),
        Sdist("pysimdjson", "7.0.2", "44cf276e48912a3b9c7ca362c14da8420a7ac15a9f1a16ec95becff86db3904a"),
        Sdist("quickjs", "1.19.4", "1205953abc24ff757f4a795304d5d61e4bf1e555c9ef6ec96a132d4b95535484"),
        # FITPACK, in Fortran; later versions have it in C.
        Sdist("scipy", "1.15.3", "eae3cf522bc7df64b42cad3925c876e1b0b6c35c1337c93e12c0f366f55b0eaf"),
        # re2 and abseil.
        Sdist("grpcio", "1.85.1", "5f530287d5de5f7f66089ead81de44f6787162944dab3922efa65dfdff108a1d"),
        # libsodium.
        Sdist("pynacl", "1.6.2", "018494d6d696ae03c7e656e5e74cdfd8ea1326962cc401bcf018f1ed8436811c"),
        # c-blosc2 with lz4 and zstd; later versions fetch it from elsewhere.
        Sdist("blosc2", "2.7.1", "34db4d41543b16e894d507d6c7d10a9a67c9dd420ff40b072f7c39185cbb8fe8"),
        # htslib and bcftools.
        Sdist("pysam", "0.24.1", "90f612afccdb454d2447ecb5229266c6e7f991093deed4ed0a791db01f7fc994"),
        # Lua in all its versions.
        Sdist("lupa", "2.8", "d8022641b9ec8ecf2c5ecbe9f47e5a70e0b87c4b5ae921b92cb02a638e0acd08"),
        # libyaml.
        Sdist(
            "ruamel.yaml.clib", "0.2.15", "46e4cc8c43ef6a94885f72512094e482114a8a706d3c555a34ed4b0d20200600"
        ),
        # A CPython extension module: its code calls libpython.
        Sdist("regex", "2026.11.15", "d6ec7e29e62ebf93ab2a593d1137022b6025497d8610e5cb666d52f9ee5bb0ce"),
    )
}


def fetch(name: str, directory: Path) -> Path:
    """The root of the unpacked source distribution, downloaded below `directory` unless it is there already.

    Raises `SdistUnavailableError` when pip cannot get it, `ValueError` when what it got is not what is pinned.
    """
    sdist = SDISTS[name]
    target = directory / sdist.folder
    if not target.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as scratch:
            archive = _download(sdist, Path(scratch))
            _check_digest(sdist, archive)
            _publish(_unpack(archive, Path(scratch) / "unpacked"), target)
    return target


def _download(sdist: Sdist, scratch: Path) -> Path:
    backend = scratch / "backend" / "setuptools"
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    (backend.parent / "scikit_build_core").mkdir()
    places = backend / "build_meta.py", backend.parent / "mesonpy.py", backend.parent / "scikit_build_core" / "build.py"
    for module in places:
        shutil.copy(Path(__file__).with_name("metadata_backend.py"), module)
    downloads = scratch / "downloads"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
    command += ["--no-build-isolation", "--use-pep517", "--disable-pip-version-check", "--retries=1"]
    command += [f"--dest={downloads}", f"{sdist.name}=={sdist.version}"]
    environment = os.environ | {"PYTHONPATH": str(backend.parent)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SdistUnavailableError(f"pip took more than {DOWNLOAD_SECONDS} s to get {sdist.name}") from error
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), done.stderr)
        raise SdistUnavailableError(f"pip cannot get {sdist.name} {sdist.version}: {reason.strip()}")
    return next(downloads.iterdir())


def _check_digest(sdist: Sdist, archive: Path) -> None:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != sdist.sha256:
        raise ValueError(f"{archive.name} has the SHA-256 {digest}, pinned is {sdist.sha256}")


def _unpack(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    return next(directory.iterdir())


def _publish(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():  # otherwise another process was faster, with the same content
            raise
