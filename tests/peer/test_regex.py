"""regex: a whole CPython extension module, whose code calls libpython, out of the cache."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compcache import Cache, ModuleSource

from . import libraries
from .bitcode import exported, undefined, undefined_data
from .freshpython import run_fresh

if TYPE_CHECKING:
    from collections.abc import Callable

    from .compilers import Compiler

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not Path(sysconfig.get_path("include"), "Python.h").exists(),
        reason="the headers of CPython are not installed",
    ),
]

# The package's Python half finds the cached module where it would import the binary one.
IMPORT = """
    import ctypes, sys
    init = cache.get_target("PyInit__regex")
    sys.path.insert(0, root)
    sys.modules["regex._regex"] = ctypes.cast(init(), ctypes.py_object).value
    import regex
"""


@pytest.fixture(scope="module")
def bitcode(compiler_named: Callable[[str], Compiler], sdist: Callable[[str], Path]) -> bytes:
    return libraries.REGEX.module(sdist, compiler_named("zig"))


@pytest.fixture(scope="module")
def cache_dir(bitcode: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("regex")
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(bitcode, optimize=0))
    return directory


def test_the_code_needs_functions_and_data_of_the_interpreter(bitcode: bytes) -> None:
    assert exported(bitcode).count("PyInit__regex") == 1
    assert {"PyErr_SetString", "PyModule_Create2"} & set(undefined(bitcode))
    assert "PyExc_ValueError" in undefined_data(bitcode)


def test_patterns_match(cache_dir: Path, sdist: Callable[[str], Path]) -> None:
    script = f"""{IMPORT}
    result = [getattr(regex, function)(*arguments) for function, *arguments in calls]
    result.append(regex.search("(?:teh){{e<=2}}", "a the").span())
    """
    calls = [
        ("findall", r"(?if)straße|\d+", "STRASSE 12 Straße 7"),
        ("findall", r"(\w)\1", "aabbcd", 0),
        ("sub", r"\p{Greek}+", "?", "a αβγ b"),
        ("split", r"(?V1)(?<=,)", "a,b,c"),
        ("findall", rb"(?<=a+)b", b"aaab b ab"),
    ]
    results = run_fresh(cache_dir, script, root=str(sdist("regex")), calls=calls)
    assert results[:-1] == [
        ["STRASSE", "12", "Straße", "7"],
        ["a", "b"],
        "a ? b",
        ["a,", "b,", "c"],
        [b"b", b"b"],
    ]
    assert len(results[-1]) == 2


def test_exceptions_come_through(cache_dir: Path, sdist: Callable[[str], Path]) -> None:
    script = f"""{IMPORT}
    result = []
    for attempt in (lambda: regex.compile("(x"), lambda: regex.match("x", 5), lambda: regex.match("x", "x")[3]):
        try:
            attempt()
        except Exception as error:
            result.append(type(error).__name__)
    """
    assert run_fresh(cache_dir, script, root=str(sdist("regex"))) == ["error", "TypeError", "IndexError"]
