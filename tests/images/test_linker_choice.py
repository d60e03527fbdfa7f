"""Which of several linkers is used: the one that starts fastest, timed once for a directory and a host."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers import compile_object, run_fresh
from test_system_linker import make_program

from compcache import Cache
from compcache.errors import LinkerError
from compcache.formats.host_file import decode_host
from compcache.images.linkers import choose
from compcache.images.linkers.find import LINKER_VARIABLE, Linker, find_linker, find_linkers
from compcache.images.linkers.link import link_shared

if TYPE_CHECKING:
    from collections.abc import Callable

NOWHERE = "no note"
ADD = """
from compcache import Cache, ModuleSource
import itertools
with Cache(directory) as cache:
    known = len(cache)
    cache.add_module(ModuleSource("define i64 @f%d() { ret i64 7 }" % known))
    result = cache.get_target("f%d" % known)(), cache.info().linker
"""


@pytest.fixture
def programs(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Makes linkers that take some seconds more than a real one, or fail; the environment in which there are no others."""
    real = find_linker()
    if real is None:
        pytest.skip("no linker on this machine")

    def make(**seconds: float | None) -> dict[str, str]:
        for name, pause in seconds.items():
            program = name.replace("_", ".")
            action = "exit 1" if pause is None else f'sleep {pause}; exec {shlex.join(real.argv)} "$@"'
            make_program(tmp_path / "bin", program, f'echo {program} >> "{tmp_path}/runs"; {action}')
        for tool in ("sleep", "sh"):
            if not (tmp_path / "bin" / tool).exists():
                (tmp_path / "bin" / tool).symlink_to(f"/bin/{tool}")
        return {"PATH": str(tmp_path / "bin")}

    return make


@pytest.fixture
def runs(tmp_path: Path) -> Callable[[], list[str]]:
    """Gives the linkers that were run since it was called last, in order, the wheel's left out."""

    def read() -> list[str]:
        path = tmp_path / "runs"
        names = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return names

    return read


def add(directory: Path, environment: dict[str, str]) -> str:
    """Add a module in a fresh process without the wheel; the linker that `info` names."""
    script = "from compcache.images.linkers import find\nfind._zig_wheel = lambda source: None" + ADD
    value, linker = run_fresh(directory, script, **environment)
    assert value == 7
    return str(linker)


@pytest.mark.parametrize(("seconds", "best"), [({"ld_lld": 3, "ld": 0.05}, "ld"), ({"ld_lld": 0, "ld": 0.3}, "ld.lld")])
def test_the_fastest_linker_is_used_and_remembered(
    directory: Path,
    programs: Callable[..., dict[str, str]],
    runs: Callable[[], list[str]],
    seconds: dict[str, float],
    best: str,
) -> None:
    environment = programs(**seconds)
    assert add(directory, environment).endswith(f"{best} ({best} on the path)")
    assert {"ld.lld", "ld"} == set(runs())
    assert add(directory, environment).endswith(f"{best} ({best} on the path)")
    assert set(runs()) == {best}


def test_a_slow_linker_is_not_waited_for(
    directory: Path, programs: Callable[..., dict[str, str]]
) -> None:
    environment = programs(ld_lld=50, ld=0)
    assert add(directory, environment).endswith("ld (ld on the path)")  # within the time limit of the test


def test_a_linker_that_does_not_work_is_passed_over(directory: Path, programs: Callable[..., dict[str, str]]) -> None:
    assert add(directory, programs(ld_lld=None, ld=0)).endswith("ld (ld on the path)")


def test_a_linker_that_is_installed_later_is_timed(directory: Path, programs: Callable[..., dict[str, str]]) -> None:
    assert add(directory, programs(ld=0.3)).endswith("ld (ld on the path)")
    assert add(directory, programs(ld_lld=0)).endswith("ld.lld (ld.lld on the path)")


def test_a_chosen_linker_is_not_timed(
    directory: Path, programs: Callable[..., dict[str, str]], runs: Callable[[], list[str]]
) -> None:
    environment = programs(ld_lld=0.2, ld=0)
    assert add(directory, environment | {LINKER_VARIABLE: "ld.lld"}).endswith(f"ld.lld ({LINKER_VARIABLE})")
    assert set(runs()) == {"ld.lld"}


def test_the_choice_of_one_directory_costs_another_one_of_the_process_nothing(
    tmp_path: Path, programs: Callable[..., dict[str, str]], runs: Callable[[], list[str]]
) -> None:
    add(tmp_path / "one", programs(ld=0.05, ld_lld=3))
    runs()
    script = """
    from compcache import Cache, ModuleSource
    from compcache.images.linkers import find
    find._zig_wheel = lambda source: None
    for number in range(3):
        with Cache(f"{directory}{number}") as cache:
            cache.add_module(ModuleSource("define i64 @f() { ret i64 7 }"))
    result = None
    """
    run_fresh(tmp_path / "more", script, PATH=str(tmp_path / "bin"))
    assert 0 < runs().count("ld.lld") <= 2 * choose._ROUNDS  # in memory, and in a directory


def test_what_info_says_before_anything_was_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LINKER_VARIABLE, raising=False)
    found = find_linkers()
    if len(found) < 2:
        pytest.skip("one linker on this machine")
    with Cache(tmp_path / "new") as cache:
        shown = cache.info().linker
    assert shown.startswith(f"{found[0].source}, {found[1].source}")
    assert shown.endswith("starts fastest")


def test_the_note_does_not_change_what_is_known_of_the_host(
    directory: Path, programs: Callable[..., dict[str, str]]
) -> None:
    run_fresh(directory, "from compcache import Cache\nwith Cache(directory, readonly=False) as c:\n    result = c._store.host().cpu")
    (before,) = [(path.name, path.read_bytes()) for path in (directory / "hosts-v4").iterdir()]
    add(directory, programs(ld=0, ld_lld=3))
    (after,) = [(path.name, path.read_bytes()) for path in (directory / "hosts-v4").iterdir()]
    assert after[0] == before[0]
    assert after[1] != before[1]
    known, later = decode_host(before[1], before[0]), decode_host(after[1], after[0])
    assert known is not None
    assert later is not None
    assert (later.cpu, later.llvm_version) == (known.cpu, known.llvm_version) != ("", "")


# --- the choice itself ---


class Timed:
    """Takes the place of the clock: each linker takes as many seconds as its source says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[Linker] = []
        monkeypatch.setattr(choose, "_seconds", self._seconds)
        choose._fastest.cache_clear()

    def _seconds(self, linker: Linker, _: bytes, limit: float) -> float | None:
        self.runs.append(linker)
        seconds = float(linker.source)
        return seconds if seconds <= limit else None


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Any:
    yield Timed(monkeypatch)
    choose._fastest.cache_clear()


def linkers(*seconds: float) -> list[Linker]:
    return [Linker((f"/no/such/{number}",), str(pause)) for number, pause in enumerate(seconds)]


OBJECT = compile_object("define i64 @f() { ret i64 7 }")


@pytest.mark.parametrize(
    ("seconds", "best"),
    [((3, 2, 1), 2), ((1, 2, 3), 0), ((1.2, 1.1, 1), 0), ((1.3, 1.2, 1), 1), ((1.4, 1.3, 1), 2), ((99, 99, 5), 2)],
)
def test_the_order_decides_where_times_are_alike(timed: Timed, seconds: tuple[float, ...], best: int) -> None:
    candidates = linkers(*seconds)
    chosen, note = choose.choose_linker(candidates, NOWHERE, OBJECT)
    assert chosen is candidates[best]
    timed.runs.clear()
    assert choose.choose_linker(candidates, note, OBJECT) == (chosen, note)
    assert choose.recall_linker(candidates, note) is chosen
    assert timed.runs == []


def test_a_linker_that_starts_at_once_is_not_compared_with_others(timed: Timed) -> None:
    candidates = linkers(3, 0.009, 0.001)
    chosen, note = choose.choose_linker(candidates, NOWHERE, OBJECT)
    assert chosen is candidates[1]
    assert choose.recall_linker(candidates, note) is chosen
    assert candidates[2] not in timed.runs


@pytest.mark.usefixtures("timed")
def test_a_note_of_other_candidates_chooses_nothing() -> None:
    candidates = linkers(3, 2, 1)
    _, note = choose.choose_linker(candidates, NOWHERE, OBJECT)
    assert choose.recall_linker(candidates[1:], note) is None
    assert choose.recall_linker(candidates, note + "x") is None
    assert choose.recall_linker(candidates, note.replace(" 1", " /bin/sh")) is None
    assert choose.recall_linker(candidates, "") is None


@pytest.mark.usefixtures("timed")
def test_where_none_works_the_first_one_says_why() -> None:
    candidates = linkers(99, 98)
    assert choose.choose_linker(candidates, NOWHERE, OBJECT) == (candidates[0], "")


@pytest.mark.parametrize("name", ["ld.lld", "mold", "ld", "ziglang"])
def test_every_linker_links_what_it_is_timed_by(name: str) -> None:
    try:
        linker = find_linker({LINKER_VARIABLE: name, "PATH": os.environ["PATH"]})
    except LinkerError:
        pytest.skip(f"{name} is not installed")
    assert linker is not None
    assert link_shared(linker, [choose._empty_object(OBJECT)], soname="probe").startswith(b"\x7fELF")
    own = Path(sys.executable).read_bytes()[:64]
    if own.startswith(b"\x7fELF"):
        assert choose._empty_object(own) == choose._empty_object(OBJECT)
