"""Whether a linker makes an image, and which one: where the environment names one it does; else where the image cannot be written."""

from __future__ import annotations

import errno
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest
from helpers import FreshProcessError, constant, require_equal_modules, run_fresh
from test_system_linker import make_program

from compcache import Cache, ModuleSource
from compcache.images.elf.exported import shared_library
from compcache.images.linkers import version
from compcache.images.linkers.find import LINKER_VARIABLE, find_linker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: A section that linkers know, and the writer of images does not.
_UNKNOWN = '@c = constant i64 1, section ".unheard_of"\n'
_ADD = """
import warnings
from compcache import Cache, ModuleSource
from compcache.images.linkers import find
find._zig_wheel = lambda source: None
with warnings.catch_warnings(record=True) as caught, Cache(directory) as cache:
    warnings.simplefilter("always")
    cache.add_module(ModuleSource({text!r}))
    f = cache.get_target("f")
    result = f(), cache.realizations("f")[0].image_kind, [str(warning.message) for warning in caught], cache.info().linker
"""


@pytest.fixture
def linkers(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Makes programs of these names that tell of each link; the environment in which there are no others."""
    real = find_linker()
    if real is None:
        pytest.skip("no linker on this machine")

    def make(*names: str) -> dict[str, str]:
        (tmp_path / "bin").mkdir(exist_ok=True)
        for name in names:
            make_program(tmp_path / "bin", name, f'echo {name} >> "{tmp_path}/runs"; exec {shlex.join(real.argv)} "$@"')
        return {"PATH": str(tmp_path / "bin")}

    return make


@pytest.fixture
def runs(tmp_path: Path) -> Callable[[], list[str]]:
    """Gives the linkers that were run."""

    def read() -> list[str]:
        path = tmp_path / "runs"
        return path.read_text().split() if path.exists() else []

    return read


@pytest.mark.slow
def test_plain_modules_take_no_linker(directory: Path, linkers: Callable[..., dict[str, str]], runs: Callable[[], list[str]]) -> None:
    assert run_fresh(directory, _ADD.format(text=constant("f", 7)), **linkers("ld"))[:3] == (7, "shared", [])
    assert runs() == []


@pytest.mark.slow
@pytest.mark.parametrize(("names", "first"), [(("ld", "ld.lld", "mold"), "ld"), (("ld.lld",), "ld.lld")])
def test_the_linker_that_starts_fastest_makes_what_is_not_written(
    directory: Path, linkers: Callable[..., dict[str, str]], runs: Callable[[], list[str]], names: tuple[str, ...], first: str
) -> None:
    value, kind, warned, shown = run_fresh(directory, _ADD.format(text=_UNKNOWN + constant("f", 7)), **linkers(*names))
    assert (value, kind, warned) == (7, "shared", [])
    assert {*runs()} == {first}
    assert shown.endswith(f"{first} ({first} on the path)")


@pytest.mark.slow
def test_a_linker_that_is_named_makes_all_images(
    directory: Path, linkers: Callable[..., dict[str, str]], runs: Callable[[], list[str]]
) -> None:
    environment = linkers("ld", "ld.lld") | {LINKER_VARIABLE: "ld.lld"}
    assert run_fresh(directory, _ADD.format(text=constant("f", 7)), **environment)[:3] == (7, "shared", [])
    assert {*runs()} == {"ld.lld"}


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{"PATH": "/nowhere"}, {LINKER_VARIABLE: "none"}])
def test_without_a_linker_the_image_is_the_same_as_elsewhere(directory: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    assert run_fresh(directory, _ADD.format(text=constant("f", 7)), **environment)[:3] == (7, "shared", [])
    with Cache(tmp_path / "other") as cache:
        (module_id,) = {module.module_id for module in cache.modules()} | {cache.add_module(ModuleSource(constant("f", 7)))}
    require_equal_modules(directory.rglob("*.ccm"), (tmp_path / "other").rglob("*.ccm"))
    with Cache(directory) as cache:
        assert [module.module_id for module in cache.modules()] == [module_id]


@pytest.mark.slow
def test_without_a_linker_what_is_not_written_is_an_object_and_says_why(directory: Path) -> None:
    value, kind, warned, shown = run_fresh(directory, _ADD.format(text=_UNKNOWN + constant("f", 7)), PATH="/nowhere")
    assert (value, kind, shown) == (7, "object", "none")
    assert "the mapped section '.unheard_of'" in warned[0]
    assert "stored as an object" in warned[0]
    local = "@t = thread_local global i64 8\ndefine i64 @g() {\n  %v = load volatile i64, ptr @t\n  ret i64 %v\n}\n"
    with pytest.raises(FreshProcessError, match=r"the module requires a linker.*section '\.unheard_of'.*compcache\[linker\]"):
        run_fresh(directory, _ADD.format(text=_UNKNOWN + local), PATH="/nowhere")
    with Cache(directory) as cache:
        assert not cache.has("g")


@pytest.mark.slow
@pytest.mark.parametrize("linker", ["", "ld"])
def test_images_have_no_soname(linker: str, directory: Path, linkers: Callable[..., dict[str, str]]) -> None:
    """To open an image, the dynamic linker reads the soname of each image of the process that has one: three times as slow with 4,000."""
    environment = linkers("ld") | ({LINKER_VARIABLE: linker} if linker else {})
    assert run_fresh(directory, _ADD.format(text=constant("f", 7)), **environment)[:3] == (7, "shared", [])
    (path,) = directory.rglob("*.ccm")
    assert shared_library(str(path)).soname == ""


@pytest.mark.parametrize(
    "problem",
    [OSError(errno.EAGAIN, "no more processes"), subprocess.CompletedProcess((), 127, b"", b""), subprocess.TimeoutExpired("ld", 10.0)],
)
def test_the_version_of_a_linker_is_asked_again_after_a_shortage(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, problem: object
) -> None:
    """Else all later modules of the process have a maker without a name, and known faults of the linker do not count.

    A linker that does not answer is not asked again, because each module would wait for it.
    """
    linker = find_linker()
    if linker is None:
        pytest.skip("no linker is installed")
    monkeypatch.setenv(LINKER_VARIABLE, linker.argv[0])
    version._query_version.cache_clear()

    def run(*_: object, **__: object) -> object:
        if isinstance(problem, Exception):
            raise problem
        return problem

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", run)
        cache.add_module(ModuleSource(constant("f", 1)))
    cache.add_module(ModuleSource(constant("g", 2)))
    makers = [dict(cache.function(name).provenance[0].makers) for name in "fg"]
    version._query_version.cache_clear()
    assert makers[0]["linker"] == ""
    if isinstance(problem, subprocess.TimeoutExpired):
        assert makers[1]["linker"] == ""
        return
    assert "linker" not in makers[1]
    assert makers[1]["ld"]
