"""The pages that say what the code says, too: environment variables, versions, public names, links."""

from __future__ import annotations

import re
import runpy
import tomllib
from typing import TYPE_CHECKING

from helpers import PACKAGE_ROOT

import compcache
from compcache.cli.environment import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_READ = re.compile(r"[\"'](COMPCACHE_[A-Z_]+)[\"']")
#: Set by the project's own builds and tests, or among processes of the package.
_INTERNAL = {"COMPCACHE_LIMITED_API", "COMPCACHE_SOURCES", "COMPCACHE_SOURCE_DIGEST"}


def test_the_table_of_variables_is_that_of_the_code() -> None:
    page = (PACKAGE_ROOT / "docs/environment.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(COMPCACHE_\w+)` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [(variable.name, variable.purpose, variable.default) for variable in SETTINGS]


def test_the_code_reads_no_other_variable() -> None:
    known = {variable.name for variable in SETTINGS} | _INTERNAL
    for path in (PACKAGE_ROOT / "compcache").rglob("*.py"):
        assert set(_READ.findall(path.read_text(encoding="utf-8"))) <= known, path


def test_the_address_of_the_repository_stands_in_one_place() -> None:
    """It is in pyproject.toml; the metadata of a citation, which cannot refer to that, repeats it."""
    urls = tomllib.loads((PACKAGE_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    address = urls["Repository"]
    assert all(url.startswith(address) for url in urls.values())
    assert f"repository-code: {address}\n" in (PACKAGE_ROOT / "CITATION.cff").read_text(encoding="utf-8")
    host_and_name = address.removeprefix("https://")
    places = ("compcache", "docs", "tests", "tools", ".ci")
    files = [*PACKAGE_ROOT.glob("*"), *(path for place in places for path in (PACKAGE_ROOT / place).rglob("*"))]
    texts = {path for path in files if path.is_file() and path.suffix in {"", ".py", ".md", ".yml", ".html", ".sh", ".toml", ".cff"}}
    naming = {path.name for path in texts if host_and_name in path.read_text(encoding="utf-8", errors="replace")}
    assert naming == {"pyproject.toml", "CITATION.cff"}


def test_every_public_name_is_in_the_reference() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (PACKAGE_ROOT / "docs/reference").glob("*.md"))
    named = set(re.findall(r"^::: compcache\.(?:facade\.)?(\w+)$", pages, re.MULTILINE))
    assert set(compcache.__all__) - named - set(compcache.errors.__all__) == set()
    assert {"batch", "errors", "globals"} <= named


def test_every_public_name_has_a_docstring() -> None:
    for name in compcache.__all__:
        value = getattr(compcache, name)
        assert value.__doc__, name
        for attribute, member in vars(value).items():
            if not attribute.startswith("_") and callable(member):
                assert member.__doc__, f"{name}.{attribute}"


def test_the_version_is_said_once() -> None:
    project = tomllib.loads((PACKAGE_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in project
    assert "version" in project["dynamic"]
    assert f"version: {compcache.__version__}\n" in (PACKAGE_ROOT / "CITATION.cff").read_text(encoding="utf-8")
    log = (PACKAGE_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## (Unreleased|{re.escape(compcache.__version__)} \(\d{{4}}-\d\d-\d\d\))$", log, re.MULTILINE)


def test_the_reference_has_each_member_of_a_cache_in_one_group() -> None:
    page = (PACKAGE_ROOT / "docs/reference/cache.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: compcache\.Cache\.(\w+)$", page, re.MULTILINE)
    members = [name for name in vars(compcache.Cache) if name[0] != "_" and hasattr(compcache.Cache, name)]
    assert sorted(named) == sorted(members)
    assert named[:2] == ["compile", "get_or_compile"]
    assert "::: compcache.facade.Cache\n" in page, "the constructor's arguments are documented where a plain hit reads the class"


#: What programs write, and the description of the formats, which is one document.
_LONG = {"benchmarks.md", "conformance.md", "format.md"}


def test_pages_are_short_and_each_is_in_one_way_in() -> None:
    pages = [path for path in (PACKAGE_ROOT / "docs").rglob("*.md") if path.name not in _LONG]
    assert [path.name for path in pages if len(path.read_text(encoding="utf-8").splitlines()) > 200] == []
    navigation = (PACKAGE_ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    named = re.findall(r"[\w/-]+\.md", navigation)
    assert len(named) == len(set(named))
    here = {path.relative_to(PACKAGE_ROOT / "docs").as_posix() for path in (PACKAGE_ROOT / "docs").rglob("*.md")}
    assert {path for path in here if not path.startswith("decisions/")} == set(named) - {"index.md", "changelog.md"}


def test_the_table_of_supported_versions_is_that_of_the_metadata() -> None:
    page = (PACKAGE_ROOT / "docs/releases.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\w+) \| (.+) \|$", page, re.MULTILINE))
    project = tomllib.loads((PACKAGE_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = re.findall(r"Python :: (\d+\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    assert rows["Python"].startswith(f"{', '.join(pythons)} (")
    assert project["requires-python"] == f">={pythons[0]}"
    needs = {**dict.fromkeys(project["dependencies"]), **dict.fromkeys(project["optional-dependencies"]["numba"])}
    oldest = dict(need.split(">=") for need in needs)
    assert rows["llvmlite"].startswith(f"{oldest['llvmlite']} and later")
    assert rows["Numba"].startswith(f"{oldest['numba']} and later")
    release = runpy.run_path(str(PACKAGE_ROOT / "tools/wheels.py"))["TARGETS"]
    assert {name.partition("_")[0].removesuffix("linux") for name in release} == {"many", "musl"}
    assert all(f"{kind} {major}.{minor}" in rows["Platforms"] for kind, major, minor in _platforms(release))


def _platforms(names: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    for name in names:
        kind, major, minor, _ = name.partition(".")[0].split("_", 3)
        yield {"manylinux": "glibc", "musllinux": "musl"}[kind], major, minor
