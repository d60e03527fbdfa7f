"""Debian's packages, downloaded by apt and unpacked without being installed."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

DOWNLOAD_SECONDS = 120


class PackageUnavailableError(Exception):
    """Raised when apt cannot download a package; the message is its reason."""


def headers(package: str, directory: Path) -> Path:
    """The ``usr/include`` of a package, downloaded below `directory` unless it is there already.

    Raises `PackageUnavailableError` where there is no apt, or it has no such package.
    """
    return unpacked((package,), directory) / "usr" / "include"


def unpacked(packages: tuple[str, ...], directory: Path) -> Path:
    """The root of the files of several packages, downloaded below `directory` unless they are there already.

    Raises `PackageUnavailableError` where there is no apt, or it has no such package.
    """
    target = directory / "+".join(packages)
    if not target.is_dir():
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise PackageUnavailableError("this is not a system of Debian's packages")
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as scratch:
            _run(["apt-get", "download", "--quiet", *packages], scratch)
            for file in Path(scratch).glob("*.deb"):
                _run(["dpkg-deb", "--extract", str(file), f"{scratch}/unpacked"], scratch)
            Path(scratch, "unpacked").rename(target)
    return target


def _run(command: list[str], directory: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PackageUnavailableError(f"{command[0]} took more than {DOWNLOAD_SECONDS} s") from error
    if done.returncode:
        raise PackageUnavailableError(f"{' '.join(command)}: {done.stderr.strip()}")


def source(package: str, directory: Path) -> Path:
    """The root of the upstream source of a Debian package, downloaded below `directory` unless it is there already.

    What apt knows of sources is kept there, too; the system's lists stay as they are.
    Raises `PackageUnavailableError` where there is no apt, or it has no such source.
    """
    target = directory / f"{package}-source"
    if not target.is_dir():
        if shutil.which("apt-get") is None:
            raise PackageUnavailableError("this is not a system of Debian's packages")
        directory.mkdir(parents=True, exist_ok=True)
        options = _source_lists(directory / "lists")
        with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as scratch:
            _run(["apt-get", *options, "source", "--download-only", "--quiet", package], scratch)
            archive = next(path for path in Path(scratch).glob("*.orig.tar.*") if path.suffix != ".asc")
            with tarfile.open(archive) as tar:
                tar.extractall(Path(scratch, "unpacked"), filter="data")
            next(Path(scratch, "unpacked").iterdir()).rename(target)
    return target


def _source_lists(directory: Path) -> list[str]:
    """Options that make apt read lists of source packages below `directory`, which are fetched the first time."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    lists, places = directory / "lists", directory / "sources.list"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    codename = release.get("VERSION_CODENAME", "stable").strip('"')
    line = f"deb-src [signed-by={keyring}] http://deb.debian.org/debian {codename} main\n"
    options = ["-o", f"Dir::Etc::sourcelist={places}", "-o", "Dir::Etc::sourceparts=/dev/null", "-o", f"Dir::State::lists={lists}"]
    if not places.exists():
        places.write_text(line)
        try:
            _run(["apt-get", *options, "update", "--quiet"], str(directory))
        except PackageUnavailableError:
            places.unlink()
            raise
    return options
