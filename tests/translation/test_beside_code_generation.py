"""What Python does while LLVM works: in which thread it runs, and how it ends."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder

from compcache import Function, ModuleSource, SignatureMismatchError
from compcache.build import codegen
from compcache.build.recipe import read_recipe
from compcache.images import llvm_thread
from compcache.images.llvm_thread import call_beside, call_in_caller, in_llvm_thread
from compcache.linker import rebuild_module
from compcache.translation import emission

if TYPE_CHECKING:
    from types import FrameType

    from compcache import Cache

_SECONDS = 20.0
_EMISSION: Any = emission

LOOP = """
define void @scale(ptr noalias %out, ptr noalias %in) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %in, i64 %i
  %x = load float, ptr %from
  %y = fmul float %x, 3.0
  %to = getelementptr float, ptr %out, i64 %i
  store float %y, ptr %to
  %next = add nuw nsw i64 %i, 1
  %more = icmp ult i64 %next, 1024
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


def test_a_module_is_described_while_llvm_generates_its_code(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the caller's thread: its text needs no object."""
    begun, described, beside, threads = threading.Event(), threading.Event(), [], []
    emit, make_entries = codegen.emit_object, _EMISSION.make_entries

    def emit_object(module: Any, machine: Any) -> bytes:
        begun.set()
        beside.append(described.wait(_SECONDS))
        return emit(module, machine)

    def entries(*arguments: Any) -> Any:
        threads.append((threading.current_thread(), begun.wait(_SECONDS)))
        described.set()
        return make_entries(*arguments)

    monkeypatch.setattr(codegen, "emit_object", emit_object)
    monkeypatch.setattr(_EMISSION, "make_entries", entries)
    cache.add_module(ModuleSource(adder("f", 3)))
    assert (threads, beside) == ([(threading.main_thread(), True)], [True])
    assert cache.get_target("f")(4) == 7


def test_the_caller_does_not_wait_until_modules_are_freed() -> None:
    returned, waited = threading.Event(), []
    freed = threading.Event()

    def clean() -> None:
        waited.append(returned.wait(_SECONDS))
        freed.set()

    assert in_llvm_thread(lambda: 5, clean) == 5
    returned.set()
    assert freed.wait(_SECONDS)
    assert waited == [True]


class _Held:
    """An object in a frame, like those of LLVM."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def __del__(self) -> None:
        self._events.append("object freed")


def test_modules_are_closed_before_the_objects_in_frames_of_an_error_are_freed() -> None:
    events: list[str] = []

    def work() -> None:
        held = _Held(events)
        call_beside(lambda: events.append("worked"), lambda: 1 // 0)
        del held

    with pytest.raises(ZeroDivisionError):
        in_llvm_thread(work, lambda: events.append("closed"))
    assert events[:3] == ["worked", "closed", "object freed"]


@pytest.mark.parametrize("in_main", [True, False])
def test_both_results_are_returned(in_main: bool) -> None:
    results: list[object] = []

    def run() -> None:
        results.append(in_llvm_thread(lambda: call_beside(lambda: 1, lambda: 2)))

    if in_main:
        run()
    else:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert results == [(1, 2)]


def test_an_answer_beside_work_that_fails_is_not_that_of_the_next_call() -> None:
    called = threading.Event()

    def fail() -> None:
        called.wait(_SECONDS)
        raise ZeroDivisionError

    def work() -> int:
        with pytest.raises(ZeroDivisionError):
            call_beside(fail, called.set)
        return call_in_caller(lambda: 3)

    assert in_llvm_thread(work) == 3


def test_an_interrupt_beside_code_generation_arrives(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    make_entries = _EMISSION.make_entries

    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return make_entries(*arguments)

    def handler(_: int, __: FrameType | None) -> None:
        raise TimeoutError("from a handler")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        monkeypatch.setattr(_EMISSION, "make_entries", interrupted)
        with pytest.raises(TimeoutError, match="from a handler"):
            cache.add_module(ModuleSource(adder("f", 3)))
    finally:
        signal.signal(signal.SIGUSR1, before)
    monkeypatch.undo()
    assert not cache.has("f")
    cache.add_module(ModuleSource(adder("f", 3)))
    assert cache.get_target("f")(4) == 7


def test_functions_of_one_type_may_be_called_in_different_ways(cache: Cache) -> None:
    text = adder("f", 1) + adder("g", 2) + adder("h", 3)
    functions = {"f": "i64(i64)", "g": "u64(u64)", "h": Function("i64(i64)", nogil=True)}
    cache.add_module(ModuleSource(text, functions))
    assert [str(cache.get_target(name).signature) for name in "fgh"] == ["i64(i64)", "u64(u64)", "i64(i64)"]
    assert [cache.get_target(name)(1) for name in "fgh"] == [2, 3, 4]
    with pytest.raises(OverflowError):
        cache.get_target("g")(-1)
    assert [cache.realizations(name)[0].signature for name in "fgh"] == ["i64(i64)", "u64(u64)", "nogil i64(i64)"]


def test_a_signature_that_fits_one_of_two_equal_types_is_refused_by_name(cache: Cache) -> None:
    with pytest.raises(SignatureMismatchError, match="'g'"):
        cache.add_module(ModuleSource(adder("f", 1) + adder("g", 2), {"f": "i64(i64)", "g": "f64(f64)"}))


@pytest.mark.parametrize("functions", [1, 500], ids=["small", "large"])
def test_vectorized_code_keeps_its_form_for_other_processors(cache: Cache, functions: int) -> None:
    """Of small modules a copy is written, of large ones the bitcode before they are optimized."""
    text = LOOP + "".join(adder(f"f{number}", number) for number in range(functions))
    module_id = cache.add_module(ModuleSource(text))
    with cache._store.open_module(bytes.fromhex(module_id)) as module:
        footer = module.footer()
        recipe = read_recipe(module.read(footer.image + footer.records + footer.graph, footer.bitcode), module.read_record)
    assert not recipe.optimized
    built = rebuild_module(recipe, {}, {}, cache._store.host())
    assert len(built.functions) == functions + 1


def test_a_request_that_comes_while_the_caller_looks_for_one_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GIL, it comes between any two steps of the caller."""
    looking, asked = threading.Event(), threading.Event()
    main = threading.current_thread()

    class Task(llvm_thread._Task[Any]):
        stored: Any = None

        @property
        def _request(self) -> Any:
            found = self.stored
            if not looking.is_set() and threading.current_thread() is main:
                looking.set()
                asked.wait(_SECONDS)
            return found

        @_request.setter
        def _request(self, request: Any) -> None:
            self.stored = request
            if request is not None:
                asked.set()

    def work() -> Any:
        looking.wait(_SECONDS)
        task: Any = llvm_thread._local.task
        task.ask(int, ("7",))
        return task._answers.get(timeout=_SECONDS)

    monkeypatch.setattr(llvm_thread, "_Task", Task)
    assert in_llvm_thread(work) == 7
