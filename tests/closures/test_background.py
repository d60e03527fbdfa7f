"""Functions that reach several modules are linked in the background once they were loaded before."""

from __future__ import annotations

import base64
import errno
import marshal
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller, run_fresh

from compcache import Cache, ModuleSource, frontend
from compcache.closures import background
from compcache.closures.used import link_used
from compcache.formats.host import platform_name
from compcache.publish.module_reader import linked_closures
from compcache.signing.keys import generate_key

if TYPE_CHECKING:
    from pathlib import Path

_LOAD = """\
import os
from compcache import Cache
with Cache(directory, {options}) as cache:
    target = cache.get_target("first")
    result = [target(1), len(cache._loader.loaded_modules()), [key for key, process in (cache._tuners or {{}}).items() if process]]
"""


@pytest.fixture
def chain(directory: Path) -> Path:
    with Cache(directory) as cache:
        cache.add_modules(
            [ModuleSource(caller("first", "second", plus=1)), ModuleSource(caller("second", "third")), ModuleSource(adder("third", 3))]
        )
    return directory


def linked(directory: Path) -> int:
    with Cache(directory) as cache:
        return len(linked_closures(cache._store))


@pytest.mark.slow
@pytest.mark.parametrize("options", ["link='background'", "tune=True"])
def test_what_is_loaded_for_the_second_time_is_linked(chain: Path, options: str) -> None:
    script = _LOAD.format(options=options)
    assert run_fresh(chain, script) == [5, 3, []]
    value, modules, processes = run_fresh(chain, script)
    assert (value, modules, len(processes)) == (5, 3, 1)
    while not linked(chain):
        time.sleep(0.1)
    assert run_fresh(chain, script) == [5, 1, []]


@pytest.mark.slow
def test_caches_that_link_in_the_background_have_plain_hits(chain: Path) -> None:
    with Cache(chain) as cache:
        cache.link(["first"])
    names = "first", "third", "alone"
    with Cache(chain) as cache:
        cache.add_module(ModuleSource(adder("alone", 7)))
    script = """\
import sys
from compcache import Cache
with Cache(directory, link="background") as cache:
    result = [cache.get_target({name!r})(1), "compcache.hit.loader" in sys.modules]
"""
    results = [[run_fresh(chain, script.format(name=name)) for name in names] for _ in range(2)]  # the first time records what is valid
    assert results[1] == [[5, False], [4, False], [8, False]]


@pytest.mark.slow
def test_nothing_is_linked_unless_it_is_asked_for(chain: Path) -> None:
    results: list[Any] = [run_fresh(chain, _LOAD.format(options="")) for _ in range(3)]
    assert results == [[5, 3, []]] * 3
    with pytest.raises(ValueError, match="background"):
        Cache(chain, link="now")


@pytest.mark.slow
def test_what_cannot_be_linked_is_tried_once(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(code, keep_bitcode=False) for code in (caller("first", "second"), adder("second", 2))])
    script = _LOAD.format(options="link='background'")
    run_fresh(directory, script)
    with Cache(directory) as cache:
        assert link_used(cache._session(), "first") == ()
    assert run_fresh(directory, script) == [3, 2, []]
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("other", 1)))
    assert len(run_fresh(directory, script)[2]) == 1


@pytest.mark.slow
def test_functions_that_others_load_often_are_linked_with_it(chain: Path) -> None:
    with Cache(chain) as cache:
        cache.add_module(ModuleSource(caller("other", "third", plus=9)))
    for _ in range(2):
        run_fresh(chain, _LOAD.format(options="").replace("first", "other"))
    with Cache(chain) as cache:
        assert set(link_used(cache._session(), "first")) == {"first", "other"}
        assert link_used(cache._session(), "first") == ()


@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="the code is for the baseline of x86-64")
def test_functions_are_loaded_where_no_process_can_be_started(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1), cpu="x86-64"))
    started = []

    def refuse(*_: object, **__: object) -> int:
        started.append(1)
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    with Cache(directory, tune=True) as cache:
        assert cache.get_target("f")(1) == 2
    assert started


@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="the code is for the baseline of x86-64")
def test_threads_load_while_processes_are_reaped(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(directory) as cache:
        for name in "fgh":
            cache.add_module(ModuleSource(adder(name, 1), cpu="x86-64"))
    results = []

    def has_ended(_: int) -> bool:
        """Load another function in another thread."""
        monkeypatch.setattr("compcache.closures.background.has_ended", lambda _: True)
        other = threading.Thread(target=lambda: results.append(cache.get_target("h")(3)))
        other.start()
        other.join()
        return True

    monkeypatch.setattr("compcache.closures.background.has_ended", has_ended)
    monkeypatch.setattr("compcache.closures.background._start_process", lambda *_, **__: os.getpid())
    with Cache(directory, tune=True) as cache:
        assert cache.get_target("f")(1) == 2
        assert cache.get_target("g")(2) == 3
    assert results == [4]

#: The process that tunes would remove all other modules with the limit of the environment.
_TUNE = """\
import os, time
os.environ["COMPCACHE_MAX_SIZE"] = "1"
from compcache import Cache
from compcache.closures.background import reap_processes
with Cache(directory, tune=True, max_size=0) as cache:
    cache.get_target("f")
    while any(cache._tuners.values()):
        time.sleep(0.05)
        reap_processes(cache._tuners)
    result = sorted(cache), len(cache.realizations("f"))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="the code is for the baseline of x86-64")
def test_the_process_has_the_size_limit_of_the_cache(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(adder("f", 1), cpu="x86-64"), ModuleSource(adder("g", 2))])
    assert run_fresh(directory, _TUNE) == (["f", "g"], 2)


#: The program sets a key that the open cache does not use. With this key, the process would find no module.
_TUNE_BESIDE_A_KEY = _TUNE.replace('["COMPCACHE_MAX_SIZE"] = "1"', '["COMPCACHE_MAX_SIZE"] = "0"').replace(
    '    cache.get_target("f")\n', '    len(cache)\n    os.environ["COMPCACHE_SIGNING_KEY"] = "another key"\n    cache.get_target("f")\n'
)


@pytest.mark.slow
@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="the code is for the baseline of x86-64")
def test_the_process_has_no_key_if_the_cache_has_none(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1), cpu="x86-64"))
    assert run_fresh(directory, _TUNE_BESIDE_A_KEY) == (["f"], 2)


@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="the code is for the baseline of x86-64")
def test_functions_are_loaded_with_a_damaged_publish_key(directory: Path) -> None:
    pytest.importorskip("nacl")
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1), cpu="x86-64"))
    seeds = [str(generate_key("key")).partition(":")[2] for _ in range(2)]
    secret, public = (base64.b64decode(seed) for seed in seeds)
    damaged = f"key:{base64.b64encode(secret[:32] + public[32:]).decode()}"
    with Cache(directory, tune=True, publish_key=damaged) as cache:
        assert cache.get_target("f")(1) == 2


@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="the code is for the baseline of x86-64")
def test_the_process_has_the_other_settings_of_the_cache(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1), cpu="x86-64"))
    started: list[dict[str, Any]] = []

    def start(_code: str, _arguments: list[str], environment: dict[str, str]) -> int:
        started.append(marshal.loads(bytes.fromhex(environment["_COMPCACHE_BACKGROUND"]))[0])
        return 0

    monkeypatch.setattr(background, "start_detached", start)
    monkeypatch.setenv("COMPCACHE_REMOTE", (tmp_path / "other").as_uri())
    monkeypatch.setenv("COMPCACHE_REMOTE_MODE", "write")
    store = (tmp_path / "store").as_uri()
    with Cache(directory, tune=True, min_llvm="9.5", remote=store, remote_mode="read") as cache:
        assert cache.get_target("f")(1) == 2
        settings = frontend.settings_of(cache, secrets=True)
    assert started == [settings]
    assert [settings[name] for name in ("min_llvm", "remote", "remote_mode")] == ["9.5", store, "read"]
