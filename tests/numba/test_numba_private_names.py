"""The names of Numba that the backend hooks: this version has them, and the list is what is hooked."""

from __future__ import annotations

import pytest
from numba_helpers import Project

pytestmark = [pytest.mark.peer, pytest.mark.quick_answer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

from compcache.numba.versions import private_names  # noqa: E402 - needs Numba


@pytest.mark.parametrize("private", [*private_names.REPLACED, *private_names.USED], ids=lambda private: private.name)
def test_numba_has_the_name(private: private_names.PrivateName) -> None:
    assert private not in private_names.missing_names(), f"Numba has moved {private.name}: {private.reason}"


def test_what_is_replaced_is_what_the_list_says(tmp_path: object) -> None:
    script = """
    import importlib
    import compcache.numba
    from compcache.numba.hooks import replacements
    from compcache.numba.versions import private_names
    replaced = []
    original = replacements.Replacements.replace
    def replace(self, owner, name, value):
        module = owner.__module__ if isinstance(owner, type) else owner.__name__
        replaced.append(f"{module}:{owner.__qualname__ + '.' if isinstance(owner, type) else ''}{name}")
        return original(self, owner, name, value)
    replacements.Replacements.replace = replace
    with compcache.numba.installed("cache"):
        pass
    result = sorted(set(replaced)), sorted(private.name for private in private_names.REPLACED)
    """
    replaced, listed = Project(tmp_path).run(script, backend=False)  # type: ignore[arg-type]
    assert replaced == listed
