"""Libraries of many files beside the same sources that a linker made a shared object of (``-shared -Wl,-Bsymbolic``).

Each is added as a group, as modules of their own, and some as a build system compiles them (``compcache add --compile-commands``).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from compcache import Cache

from . import linked_libraries
from .conftest import unavailable
from .programs import Places, UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from .linked_libraries import Library

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

LIBRARIES = {"libsodium": 900, "blosc2": 900, "bcftools": 700, "lapack": 400}
"""How many answers of each are compared, at least."""


@pytest.fixture(scope="module", params=LIBRARIES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def places(peer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Places:
    return Places(peer_dir, tmp_path_factory.mktemp("linked"), debug=False)


@pytest.fixture(scope="module")
def library(name: str, places: Places) -> Library:
    try:
        made: Library = getattr(linked_libraries, name)(places)
        made.ordinary(places)
    except UnavailableError as error:
        unavailable(str(error))
    return made


@pytest.fixture(scope="module")
def expected(name: str, library: Library, places: Places) -> list[object]:
    """What the shared object answers."""
    answers = _answers(library, library.in_shared_object(library.ordinary(places)))
    assert len(answers) > LIBRARIES[name]
    assert len(set(map(repr, answers))) > len(answers) / 4, "the inputs make no difference"
    return answers


def _answers(library: Library, call: linked_libraries.Call) -> list[object]:
    return library.answers(call, random.Random(7))


def _differences(answers: list[object], expected: list[object]) -> list[tuple[object, object]]:
    """Not assert's own comparison, which would show all of them."""
    return [pair for pair in zip(answers, expected, strict=True) if pair[0] != pair[1]][:1]


def test_a_group_answers_what_the_shared_object_answers(
    library: Library, places: Places, expected: list[object], directory: Path
) -> None:
    with Cache(directory) as cache:
        module_ids = cache.add_modules(library.sources(places), group=library.name)
        assert len(set(module_ids)) == 1
    with Cache(directory) as cache:
        assert _differences(_answers(library, library.in_cache(cache)), expected) == []
        assert cache.check().findings == ()


def test_modules_of_their_own_answer_what_the_shared_object_answers(
    library: Library, places: Places, expected: list[object], directory: Path
) -> None:
    with Cache(directory) as cache:
        module_ids = cache.add_modules(library.sources(places))
        assert len(set(module_ids)) == len(module_ids)
    with Cache(directory) as cache:
        assert _differences(_answers(library, library.in_cache(cache)), expected) == []
        assert cache.check().findings == ()
