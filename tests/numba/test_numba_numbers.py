"""Descriptions name dispatchers by numbers, which are the same with Numba and without."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from numba_modes import Programs, uncached_fixture  # noqa: F401 - fixtures

numba = pytest.importorskip("numba")

from compcache.numba.fingerprints.content import content_of  # noqa: E402 - it needs Numba
from compcache.numba.fingerprints.fingerprint import fingerprint  # noqa: E402
from compcache.numba.fingerprints.history import named_functions  # noqa: E402
from compcache.numba.fingerprints.owners import owner_of  # noqa: E402
from compcache.numba.fingerprints.walk import FunctionPart  # noqa: E402
from compcache.numba.identity import linked  # noqa: E402
from compcache.numba.identity.key import identify  # noqa: E402
from compcache.numba.lazy.description import LINKED  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

FASTMATH = numba.njit(fastmath=True)


def names_of(parts: Iterable[FunctionPart], dispatchers: dict[str, Any]) -> list[str]:
    """The names of the dispatchers that the parts name, in order."""
    names = {id(owner_of(dispatcher)): name for name, dispatcher in dispatchers.items()}
    return [names[id(owner())] for _, _, owner in named_functions(parts) if id(owner()) in names]


def orders_of(function: Any, argument: Any, **dispatchers: Any) -> list[list[str]]:
    """The orders of the dispatchers of a function with one of them as an argument: without Numba, and with it."""
    codegen = numba.njit(lambda: None).targetctx.codegen()
    signature = (numba.types.Dispatcher(argument), numba.types.int64)
    identity = identify(function, sig=signature, flags="", extra={}, codegen=codegen)
    return [names_of(parts, dispatchers) for parts in (content_of(function, (), [argument]).parts, identity.parts)]


def test_dispatchers_of_arguments_follow_those_that_the_function_names() -> None:
    def plain(x: Any) -> Any:
        return x + 1

    first, second = numba.njit(plain), FASTMATH(plain)

    def caller(function: Any, x: Any) -> Any:
        return first(x) + function(x)

    assert orders_of(caller, second, first=first, second=second) == [["first", "second"]] * 2


def test_namesakes_among_arguments_follow_those_that_callees_call() -> None:
    def make(number: int) -> Any:
        return numba.njit(lambda x: x + number)

    called, passed = make(1), make(2)
    callee = numba.njit(lambda x: called(x) + 1)

    def caller(function: Any, x: Any) -> Any:
        return callee(x) + function(x)

    assert orders_of(caller, passed, called=called, passed=passed) == [["called", "passed"]] * 2


def test_an_argument_precedes_other_dispatchers_of_its_function_that_it_calls() -> None:
    def plain(x: Any) -> Any:
        return x if x < 1 else first(x - 1)

    first, second = numba.njit(plain), FASTMATH(plain)
    assert orders_of(lambda function, x: function(x), second, first=first, second=second) == [["second", "first"]] * 2


def test_a_function_that_only_an_implementation_names_with_its_dispatcher_has_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Description:
        used = ()
        dependencies: Any = ()

    def plain() -> None: ...

    dispatcher = numba.njit(plain)
    owner = weakref.ref(owner_of(dispatcher))
    with_dispatcher: Any = FunctionPart(plain, b"", "", [owner])
    overload = linked.linked_overload(plain, dispatcher, ())
    monkeypatch.setattr(linked, "functions_compiled_for", lambda _: [with_dispatcher])
    rows = linked.encode_linked([overload], (), named_functions([FunctionPart(plain, b"", "")]))
    assert [content.startswith(f"{LINKED}0 ") for _, content in rows] == [True]
    Description.dependencies = rows
    monkeypatch.setattr(linked, "functions_compiled_for", lambda _: [])
    description: Any = Description
    assert linked.decode_linked(description, named_functions([with_dispatcher])) == {overload}


@pytest.mark.parametrize("walk", [lambda function: content_of(function, ()).parts, lambda function: fingerprint(function).parts])
def test_dispatchers_that_are_gone_keep_their_numbers(walk: Callable[[Any], Iterable[FunctionPart]]) -> None:
    def plain(x: Any) -> Any:
        return x + 1

    first, second = numba.njit(plain), numba.njit(plain)

    def caller(x: Any) -> Any:
        return first(x) + second(x)

    parts = walk(caller)
    first = None
    gc.collect()
    rows = [owner() for name, _, owner in named_functions(parts) if name.endswith("plain")]
    assert rows == [None, owner_of(second)]


_PASSED = """
    from DECORATORS import njit

    K = 3

    def plain(x):
        return x * K

    first, second = njit(cache=True)(plain), njit(cache=True, fastmath=True)(plain)

    @njit(cache=True)
    def both(function, x):
        return first(x) + function(x * 0.5)

    answers = [both(second, 1)]
    K = 50
    print(repr(repr([*answers, first(1), first(1.5), second(1), second(1.5)])))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["run", "decorators"])
def test_what_loaded_code_calls_belongs_to_the_dispatcher_that_was_called(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _PASSED)
    for _ in range(3):
        assert programs.start(mode, tmp_path / "cache").answer == uncached(_PASSED.replace("cache=True", "cache=False"))
