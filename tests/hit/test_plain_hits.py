"""A plain hit is what a hit is otherwise, and a cache that was opened for it becomes the same as one that was opened whole."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, run_fresh

from compcache import Cache, ModuleSource
from compcache.formats.manifest import LINKED
from compcache.hit.target import load_runtime
from compcache.publish.index_merge import encode_function_entry, encode_segment

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs Linux's /proc")

_SETTLED = "import time; time.sleep(0.15)\n"


@pytest.fixture
def stored(directory: Path) -> Path:
    """A directory with `f` and `g`, whose hits are plain by now."""
    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(adder("f", 1)), ModuleSource(adder("g", 2))])
    run_fresh(directory, _SETTLED + "from compcache import Cache; result = Cache(directory).get_target('f')(1)")
    return directory


@pytest.mark.slow
def test_a_closed_cache_has_no_descriptors_and_closes_none_of_the_program(stored: Path) -> None:
    script = """
    import os
    from compcache import Cache

    null = os.open(os.devnull, os.O_RDONLY)

    def numbers():
        return set(os.listdir("/proc/self/fd"))

    def roots_in(numbers):
        return [int(n) for n in numbers if os.path.exists(f"/proc/self/fd/{n}") and os.readlink(f"/proc/self/fd/{n}") == directory]

    def replaced(act):
        cache = Cache(directory)
        cache.get_target("f")
        roots = roots_in(numbers())
        for number in roots:
            os.dup2(null, number)
        act(cache)
        return [os.readlink(f"/proc/self/fd/{n}") for n in roots]

    with Cache(directory) as cache:
        cache.get_target("f")(1)
    before = numbers()
    for _ in range(5):
        with Cache(directory) as cache:
            cache.get_target("f")(1)
    result = [len(numbers() - before), roots_in(before)]
    result += [replaced(act) for act in (Cache.close, lambda cache: cache.get_target("g"))]
    result += ["compcache.cache" in sys.modules, replaced(lambda cache: cache.has("g"))]
    """
    taken = [os.devnull]
    assert run_fresh(stored, script) == [0, [], taken, taken, False, taken]


@pytest.mark.slow
def test_what_is_set_or_done_after_a_cache_was_opened_counts_as_for_one_that_was_opened_whole(stored: Path) -> None:
    script = """
    import os
    import shutil
    import warnings
    from compcache import Cache, ModuleSource
    first, second, third = Cache(directory), Cache(directory), Cache(directory)
    os.environ["COMPCACHE_MIN_LLVM"] = "99"
    os.environ["COMPCACHE_MAP_FILES"] = "neither"
    import logging
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("compcache").addHandler(handler)
    logging.getLogger("compcache").setLevel(logging.DEBUG)
    result = [first.has("f"), "compcache.cache" in sys.modules, first.get_target("f")(1), lines]
    os.chmod(directory, 0o777)
    result.append(third.has("f"))
    os.rename(directory, directory + ".away")
    open(directory, "w").close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        code = "define i64 @h(i64 %x) {\\n  ret i64 %x\\n}\\n"
        result += [second.get_or_compile("h", lambda: ModuleSource(code))(7), [w.category.__name__ for w in caught]]
    """
    assert run_fresh(stored, script) == [True, True, 2, [], True, 7, ["CacheWarning"]]


@pytest.mark.slow
def test_threads_that_ask_for_more_at_once_get_one_store(stored: Path) -> None:
    script = """
    import threading
    import compcache.cache
    from compcache import Cache
    from compcache.cache import Store
    cache = Cache(directory)
    meet = threading.Barrier(2, timeout=20)
    made = Store.__init__

    def slow(self, *args, **named):
        made(self, *args, **named)
        meet.wait()  # each thread has made one

    compcache.cache.Store.__init__ = slow
    found = []
    threads = [threading.Thread(target=lambda: found.append(cache._store)) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    result = [len(set(map(id, found))), found[0] is cache._store is cache._loader.store, cache.get_target("f")(1)]
    """
    assert run_fresh(stored, script) == [1, True, 2]


@pytest.mark.slow
def test_members_are_replaced_and_overridden_while_stand_ins_are_there(stored: Path) -> None:
    script = """
    from unittest import mock
    from compcache import Cache

    class Lookup(Cache):
        def __getattr__(self, name):
            return {"extra": 1}[name]

    cache = Cache(directory)
    result = ["compcache.cache" in sys.modules]
    with mock.patch.object(Cache, "has", lambda self, name: "replaced"):
        result += [cache.info().modules, cache.has("f")]
    result += [cache.has("f"), "f" in cache]
    other = Lookup(directory)
    result += [other.extra, other.has("f"), other.get_target("f")(1)]
    with mock.patch.object(Cache, "get_target", lambda self, name: "replaced"):
        result += [Cache(directory).get_target("f")]
    result += [cache.get_target("f")(1)]
    """
    assert run_fresh(stored, script) == [False, 2, "replaced", True, True, 1, True, 2, "replaced", 2]


@pytest.mark.slow
def test_what_is_known_is_answered_at_once_and_what_is_gone_is_looked_up(stored: Path) -> None:
    script = """
    import inspect
    import weakref
    from compcache import Cache

    def said(*arguments, **named):
        try:
            return cache.get_target(*arguments, **named).func_name
        except Exception as error:
            return type(error).__name__

    cache = Cache(directory)
    target = cache.get_target("f")
    bound = cache.get_target
    result = [target is again for again in (cache.get_target("f"), cache.get_target(func_name="f"), bound("f"))]
    del target, bound
    cache._targets["g"] = weakref.ref(set())  # as it is until the target's own callback was called
    result += [cache.get_target("f").func_name, cache.get_target("g").func_name, said("f")]
    result += [said(), said("f", "g"), said(1), said([]), said("h"), said(name="f")]
    result += [list(inspect.signature(cache.get_target).parameters)]
    """
    refused = ["TypeError", "TypeError", "TypeError", "TypeError", "NotCachedError", "TypeError"]
    assert run_fresh(stored, script) == [True, True, True, "f", "g", "f", *refused, ["func_name"]]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_of_several_realizations_the_newest_is_plain_unless_any_has_its_content(order: tuple[int, ...]) -> None:
    def chosen(*contents: bytes) -> object:
        rows = [encode_function_entry("f", bytes([number]) * 16, 8, "r", number, content) for number, content in enumerate(contents, 5)]
        names = [encode_segment([rows[place]], [], ["r"], 9) for place in order]
        tables = tuple([runtime.open_segment(data, len(data), "s")[0] for data in names])
        found = runtime.newest(tables, "f", True)
        return found and found[1][0]

    runtime = load_runtime()
    one, other, third = (digit * 8 for digit in (b"1", b"2", b"3"))
    assert chosen(one, other, third) == 7
    assert chosen(one, one, third) == 7
    assert chosen(one, other, bytes(8)) == 7
    assert chosen(one, other, one) is None
    assert chosen(other, one, one) is None


def test_of_linked_realizations_one_whose_content_is_known_goes_first() -> None:
    def chosen(*rows: tuple[int, bytes]) -> object:
        encoded = [encode_function_entry("f", bytes([at]) * 16, offset, "r", at, content) for at, (offset, content) in enumerate(rows, 5)]
        data = encode_segment(encoded, [], ["r"], 9)
        found = load_runtime().newest((load_runtime().open_segment(data, len(data), "s")[0],), "f", True)
        return found and found[1][0]

    content = b"1" * 8
    assert chosen((8 | LINKED, content), (8, content), (8, content)) == 5
    assert chosen((8 | LINKED, content), (8, b"2" * 8)) == 5  # it does not hold, which its file tells
    assert chosen((8 | LINKED, bytes(8)), (8, bytes(8))) is None
    assert chosen((8 | LINKED, content), (8, content), (8 | LINKED, content)) is None


@pytest.mark.slow
def test_files_that_only_look_like_segments_are_no_part_of_the_index(stored: Path) -> None:
    (segment,) = (stored / "index-v1").glob("*.idx")
    for name in ("zz" + segment.name[2:], segment.name[:3] + "g" + segment.name[4:]):
        segment = segment.rename(segment.with_name(name))
        assert len(name) == 31
        script = "from compcache import Cache; c = Cache(directory); result = c._plain.load_plain('f', None) is None"
        assert run_fresh(stored, script)


@pytest.mark.slow
def test_an_interrupt_leaves_no_claim_wherever_it_comes(stored: Path) -> None:
    script = """
    from compcache import Cache

    class Interrupt(Exception):
        pass

    def interrupting(which):
        def trace(frame, event, argument):
            count[0] += frame.f_globals.get("__name__") == "compcache.hit"
            if count[0] == which:  # where a function begins, as handlers do
                count[0] += 1
                raise Interrupt
        return trace

    held = Cache(directory).get_target("f")  # whose image no other cache has: a plain load of it fails while it maps
    result, which = [], 0
    while True:
        which, count, cache = which + 1, [0], Cache(directory)
        sys.settrace(interrupting(which))
        try:
            cache.get_target("f")
        except Interrupt as error:
            kept = error
        finally:
            sys.settrace(None)
        if count[0] < which:
            break
        result.append(cache.get_target("f")(1))
    result = set(result), len(result) > 10
    """
    assert run_fresh(stored, script) == ({2}, True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
@pytest.mark.parametrize("change", ["os.chown(directory, 65534, 65534)", "os.chmod(directory, 0o777)", "pass"])
def test_a_directory_that_comes_in_the_place_of_an_open_one_is_looked_at_as_that_one_was(stored: Path, change: str) -> None:
    script = f"""
    import os
    from compcache import Cache
    cache = Cache(directory)
    cache.get_target("f")
    os.rename(directory, directory + ".away")
    os.mkdir(directory, 0o700)
    for name in os.listdir(directory + ".away"):  # what is in it is what was verified
        os.rename(f"{{directory}}.away/{{name}}", f"{{directory}}/{{name}}")
    {change}
    result = cache._plain.load_plain("g", None) is not None
    """
    assert run_fresh(stored, script) == (change == "pass")


@pytest.mark.slow
def test_an_index_that_is_known_to_be_unchanged_is_not_listed(stored: Path) -> None:
    """A change counts at once: an addition, a directory in the place of another one, and whatever happens a moment after a change."""
    with Cache(stored) as cache:
        cache.add_modules([ModuleSource(adder(f"s{number}", number)) for number in range(4)])
        cache.link([f"s{number}" for number in range(4)], into="set")
    shutil.copytree(stored, f"{stored}.other")
    with Cache(f"{stored}.other") as cache:
        cache.add_module(ModuleSource(adder("s3", 30)))
    script = """
    import os, sys, time, warnings
    from compcache import Cache, ModuleSource

    warnings.simplefilter("ignore")  # that code is replaced
    index, listed = f"{directory}/index-v1", []
    while time.time() < max(os.stat(path).st_ctime for path in (index, f"{directory}.other/index-v1")) + 3.1:
        time.sleep(0.1)

    def values(*names):
        listed.clear()
        return [held.setdefault(name, cache.get_target(name))(1) for name in names]

    sys.addaudithook(lambda event, arguments: listed.append(1) if event == "open" and arguments[0] == index else None)
    result, held, text = [], {}, "define i64 @NAME(i64 %x) { ret i64 7 }"
    with Cache(directory) as cache:
        result += [*values("s0", "s1"), len(listed)]
        os.rename(directory, f"{directory}.away")
        os.rename(f"{directory}.other", directory)
        result += values("s3")
        os.rename(directory, f"{directory}.other")
        os.rename(f"{directory}.away", directory)
    with Cache(directory) as cache, Cache(directory) as other:
        result += values("f")
        for name in ("g", "late"):
            other.add_module(ModuleSource(text.replace("NAME", name)))
        result += [*values("g", "late"), len(listed)]
    """
    assert run_fresh(stored, script) == [1, 2, 1, 31, 2, 7, 7, 2]


@pytest.mark.skipif(not os.path.isdir("/sys/kernel"), reason="needs Linux's /sys")
def test_only_directories_of_this_host_alone_are_known_to_be_unchanged() -> None:
    runtime = load_runtime()
    for path in ("sys/kernel", "usr"):
        root, number = os.open("/", os.O_RDONLY), os.open(f"/{path}", os.O_RDONLY)
        names, state = runtime.names_beneath(root, path)
        _, is_local = runtime.file_system(number)
        for opened in (root, number):
            os.close(opened)
        assert sorted(names.decode().split("/")[:-1]) == sorted(os.listdir(f"/{path}"))
        assert runtime.is_unchanged(f"/{path}", state) == bool(state) == is_local


class Paused(threading.Thread):
    """Loads `f` of a cache, and stops before a line of the function that reads the index, until it may go on."""

    def __init__(self, cache: Cache, line: int) -> None:
        super().__init__()
        self._cache, self._line = cache, line
        self.stands, self.may_go_on = threading.Event(), threading.Event()
        self.stopped = False

    def run(self) -> None:
        sys.settrace(self._trace)
        try:
            self._cache.get_target("f")
        finally:
            sys.settrace(None)
            self.stands.set()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_name != "_refresh_index":
            return None
        if event == "line":
            if not self._line:
                self.stopped = True
                self.stands.set()
                self.may_go_on.wait()
            self._line -= 1
        return self._trace


@pytest.mark.slow
def test_threads_that_read_the_index_at_once_do_not_mix_what_they_read(stored: Path) -> None:
    """The first one has listed the index before a segment came in the place of another, the second one afterwards, wherever both stop."""
    index = stored / "index-v1"
    present = [set(os.listdir(index))]
    for name, value in (("other", 1), ("f", 70)):
        with Cache(stored) as cache:
            cache.add_module(ModuleSource(f"define i64 @{name}(i64 %x) {{ ret i64 {value} }}"))
        present.append(set(os.listdir(index)))
    (replaced,), (added,) = present[1] - present[0], present[2] - present[1]
    away = stored.parent / "away"
    away.mkdir()
    (index / replaced).rename(away / replaced)
    values, lines = set(), itertools.count()
    for line in lines:
        for other_line in itertools.count():
            (index / added).rename(away / added)
            (away / replaced).rename(index / replaced)
            with Cache(stored) as cache:
                first, second = Paused(cache, line), Paused(cache, other_line)
                first.start()
                first.stands.wait()
                (away / added).rename(index / added)
                (index / replaced).rename(away / replaced)
                second.start()
                second.stands.wait()
                for thread in (first, second):
                    thread.may_go_on.set()
                    thread.join()
                values.add(cache.get_target("f")(1))
            if not second.stopped:
                break
        if not first.stopped:
            break
    assert values == {70}
    assert next(lines) > 20


def test_segments_that_are_merged_while_a_hit_opens_them_are_read_where_they_are_now(stored: Path) -> None:
    """The hit lists the index once more, and opens only what it has not opened before. A look-up after an addition opens its segment."""
    for number in range(3):
        with Cache(stored) as cache:
            cache.add_module(ModuleSource(adder(f"h{number}", number)))
    script = """
    import os, sys
    from compcache import Cache, ModuleSource
    from compcache.frontend import compact_index

    index, opened, act_after = f"{directory}/index-v1", [], [3]
    segments = sorted(os.listdir(index))

    def note(event, arguments):
        if event == "open" and str(arguments[0]).startswith(index) and act_after is not None:
            opened.append(arguments[0][len(index) + 1 :])
            if len(opened) == act_after[0]:
                change_the_index()

    def change_the_index():
        global act_after
        act_after, kept = None, act_after
        with Cache(directory) as other:
            compact_index(other)
        act_after = kept

    with Cache(directory) as cache:
        sys.addaudithook(note)
        value = cache.get_target("f")(1)
        before = opened.copy()
        act_after = None
        with Cache(directory) as other:
            other.add_module(ModuleSource("define i64 @late(i64 %x) { ret i64 5 }"))
        opened.clear()
        act_after = [0]
        later = cache.get_target("late")(1)
        act_after = None
        is_plain = "_store" not in cache.__dict__
    (merged, added) = sorted(os.listdir(index), reverse=True)
    result = value, later, is_plain, len(segments), before, opened, merged, added
    """
    value, later, is_plain, segments, before, opened, merged, added = run_fresh(stored, script)
    assert (value, later, is_plain, segments) == (2, 5, True, 4)
    assert [name for name in before if name] == [*before[1:3], merged]
    assert before.count("") == 2
    assert opened == ["", added]
