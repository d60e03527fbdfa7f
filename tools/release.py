"""Makes a release in `dist/`: `make release`, or `python tools/release.py [DIRECTORY]`.

Everything is built twice, and the bytes compared: the files of `tools/wheels.py`, and `compcache-runtime` of each. Then each is installed
in an environment of its own, with every supported Python that is here, and used. Beside the files lie their digests (`SHA256SUMS`), what
they need (`sbom.cdx.json`, CycloneDX 1.6) and where they come from (`provenance.intoto.json`, an in-toto statement with SLSA provenance 1;
who publishes signs it).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

import runtime_distribution
import wheels

SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
#: The extras that users install.
EXTRAS = ("linker", "remote", "sign", "narrow", "report", "numba")
STATEMENT = "provenance.intoto.json"
BILL = "sbom.cdx.json"
SUMS = "SHA256SUMS"
#: What an installed package is asked: a module is compiled, called, and found again by a process that may have no LLVM.
STORE = """\
from compcache import Cache
ir = "define i64 @answer() {\\n  ret i64 42\\n}\\n"
with Cache("cache") as cache:
    name = cache.compile(ir).answer.func_name
open("name", "w").write(name)
"""
CALL = """\
import sys
from compcache import Cache
with Cache("own", layers=["cache"]) as cache:
    assert cache.get_target(open("name").read())() == 42
assert "llvmlite" not in sys.modules
"""


def build(directory: Path) -> dict[str, bytes]:
    """Build everything in a directory, and return the bytes of each file. The compiler reuses none of our objects, only its C libraries."""
    directory.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as objects:
        os.environ["ZIG_LOCAL_CACHE_DIR"] = objects
        wheels.build_all(directory)
    for path in sorted(directory.iterdir()):
        runtime_distribution.convert(path)
    wheels.run(sys.executable, "-m", "twine", "check", "--strict", *sorted(directory.iterdir()))
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def require_same(first: dict[str, bytes], second: dict[str, bytes]) -> None:
    """Check that two builds are equal.

    Raises:
        SystemExit: a file differs.
    """
    different = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    if different:
        raise SystemExit(f"two builds of one commit differ: {', '.join(different)}")
    print(f"two builds are equal: {len(first)} files", flush=True)


def find_python(version: str) -> str | None:
    """An interpreter of a version: on the path, or among pyenv's."""
    found = shutil.which(f"python{version}")
    roots = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    for candidate in [*([found] if found else []), *map(str, roots)]:
        said = subprocess.run([candidate, "-c", "import sys, venv; print(sys.version)"], capture_output=True, text=True, check=False)
        if said.stdout.startswith(f"{version}."):
            return candidate
    return None


def try_in_clean_environments(directory: Path) -> dict[str, str]:
    """Install and use the files of this machine's platform; what was tried with which Python."""
    machine = platform.machine()
    (wheel,) = directory.glob(f"compcache-*manylinux*{machine}*.whl")
    (runtime,) = directory.glob(f"compcache_runtime-*manylinux*{machine}*.whl")
    (sdist,) = directory.glob("compcache-*.tar.gz")
    tried: dict[str, str] = {}
    for version in SUPPORTED:
        python = find_python(version)
        if python is None:
            print(f"no Python {version} here: not tried", flush=True)
            continue
        files = {"wheel": wheel, **({"sdist": sdist} if not tried else {})}
        for kind, path in files.items():
            with tempfile.TemporaryDirectory() as scratch:
                full = environment(python, Path(scratch, "full"), path)
                used(full, STORE, scratch)
                wheels.run(full.parent / "compcache", "--dir", Path(scratch, "cache"), "check")
                used(environment(python, Path(scratch, "runtime"), runtime), CALL, scratch)
            tried[f"{kind} and runtime, Python {version}"] = path.name
            print(f"{path.name} and {runtime.name} work with Python {version}", flush=True)
    return tried


def environment(python: str, place: Path, package: Path) -> Path:
    """The interpreter of a new environment with a package."""
    wheels.run(python, "-m", "venv", place)
    wheels.run(place / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package)
    return place / "bin/python"


def used(python: Path, program: str, directory: str) -> None:
    """Run a program in a directory.

    Raises:
        SystemExit: it fails.
    """
    done = subprocess.run([python, "-I", "-c", program], cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python}: {done.stdout}{done.stderr}")


def bill_of_materials(project: dict[str, Any], version: str, files: dict[str, bytes]) -> dict[str, Any]:
    """What the package needs: a CycloneDX document."""
    optional = [each for extra in EXTRAS for each in project["optional-dependencies"][extra]]
    components = [component(text, "required") for text in project["dependencies"]] + [component(text, "optional") for text in optional]
    hashes = [
        {"type": "distribution", "url": name, "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]}
        for name, data in files.items()
    ]
    reference = f"pkg:pypi/{project['name']}@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, reference + wheels.source_date())}",
        "version": 1,
        "metadata": {
            "timestamp": timestamp(),
            "component": {
                "type": "library", "name": project["name"], "version": version, "bom-ref": reference, "purl": reference,
                "licenses": [{"license": {"id": project["license"]}}], "externalReferences": hashes,
            },
        },
        "components": components,
        "dependencies": [{"ref": reference, "dependsOn": [each["bom-ref"] for each in components if each["scope"] == "required"]}],
    }  # fmt: skip


def component(requirement: str, scope: str) -> dict[str, Any]:
    """A package that is needed, as CycloneDX has it."""
    reference = f"pkg:pypi/{requirement_name(requirement)}"
    named = {"type": "library", "name": requirement_name(requirement), "bom-ref": reference, "purl": reference}
    return {**named, "scope": scope, "properties": [{"name": "requirement", "value": requirement}]}


def statement(project: dict[str, Any], version: str, files: dict[str, bytes], tried: dict[str, str]) -> dict[str, Any]:
    """Where the files come from: an in-toto statement with SLSA provenance."""
    repository = project["urls"]["Repository"]
    tools = [requirement_name(text) for text in project["optional-dependencies"]["release"]]
    commit = wheels.run("git", "rev-parse", "HEAD").strip()
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": hashlib.sha256(data).hexdigest()}} for name, data in files.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{repository}/blob/v{version}/tools/release.py",
                "externalParameters": {"version": version, "SOURCE_DATE_EPOCH": wheels.source_date()},
                "internalParameters": {"tried": tried},
                "resolvedDependencies": [
                    {"uri": f"git+{repository}@refs/tags/v{version}", "digest": {"gitCommit": commit}},
                    *({"uri": f"pkg:pypi/{name}@{metadata.version(name)}"} for name in tools),
                ],
            },
            "runDetails": {"builder": {"id": f"{repository}/blob/v{version}/Makefile"}, "metadata": {"startedOn": timestamp()}},
        },
    }  # fmt: skip


def requirement_name(requirement: str) -> str:
    """The name of the package that a requirement is about."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return match[0].lower()


def timestamp() -> str:
    """The time of the sources, as both documents write it."""
    return dt.datetime.fromtimestamp(int(wheels.source_date()), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def require_clean_checkout(version: str) -> None:
    """Check that what is built is what is committed, and that its version has a dated section in the change log.

    Raises:
        SystemExit: it is not, or has none.
    """
    changed = wheels.run("git", "status", "--porcelain", "--untracked-files=no").strip()
    if changed:
        raise SystemExit(f"commit first: what is released is the commit\n{changed}")
    log = (wheels.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d{{2}}-\d{{2}}\)$", log, re.MULTILINE):
        raise SystemExit(f"CHANGELOG.md: no section '## {version} (DATE)'")


def main() -> None:
    """Build, compare, try, describe."""
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else wheels.ROOT / "dist").resolve()
    project = tomllib.loads((wheels.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    init = (wheels.ROOT / "compcache/__init__.py").read_text(encoding="utf-8")
    version = re.findall(r'^__version__ = "(.+)"$', init, re.MULTILINE)[0]
    require_clean_checkout(version)
    shutil.rmtree(directory, ignore_errors=True)
    with tempfile.TemporaryDirectory() as libraries, tempfile.TemporaryDirectory() as scratch:
        os.environ["ZIG_GLOBAL_CACHE_DIR"] = libraries
        files = build(directory)
        require_same(files, build(Path(scratch, "dist")))
    tried = try_in_clean_environments(directory)
    documents = {BILL: bill_of_materials(project, version, files), STATEMENT: statement(project, version, files, tried)}
    for name, document in documents.items():
        (directory / name).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    described = {**files, **{name: (directory / name).read_bytes() for name in documents}}
    sums = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in described.items()]
    (directory / SUMS).write_text("".join(sums), encoding="utf-8")
    print(f"{directory}: compcache {version}, {len(files)} files to upload, {BILL}, {STATEMENT}, {SUMS}")


if __name__ == "__main__":
    main()
