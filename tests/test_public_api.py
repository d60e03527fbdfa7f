"""The public names: what section 6 of the design promises, and what each module says it exports."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT, run_fresh

import compcache
from compcache import Cache, Function, ModuleSource, Signature, TypedCallTarget

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = PACKAGE_ROOT / "compcache"


@functools.cache
def names_used() -> dict[str, set[str]]:
    """For each module of the package the names that others import from it."""
    used: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                continue  # what is only there for the type checker
            if isinstance(node, ast.ImportFrom) and node.module:
                used.setdefault(node.module, set()).update(alias.name for alias in node.names)
            todo += ast.iter_child_nodes(node)
    return used


MODULES = sorted(
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in PACKAGE.rglob("[!_]*.py")
    # these need Numba, hatchling, and PyInstaller
    if "numba" not in path.parts and path.name != "hatch_hook.py" and not path.name.startswith("hook-")
)


def test_a_module_lists_what_others_may_use() -> None:
    used = names_used()
    for module in [importlib.import_module(f"compcache.{name}") for name in MODULES]:
        listed = getattr(module, "__all__", None)
        assert listed is not None, f"{module.__name__} has no __all__"
        assert sorted(listed) == sorted(set(listed)), module.__name__
        assert [public for public in listed if not hasattr(module, public)] == [], module.__name__
        others = {name for name in used.get(module.__name__, ()) if not name.startswith("_") and not name.isupper()}
        assert others <= set(listed), f"other modules use what {module.__name__} does not list: {others - set(listed)}"


def test_every_public_name_of_the_package_is_there() -> None:
    assert sorted(compcache.__all__) == sorted(set(compcache.__all__))
    for name in compcache.__all__:
        assert getattr(compcache, name) is not None
    assert set(compcache.errors.__all__) <= set(compcache.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = compcache.no_such_name  # type: ignore[attr-defined]
    assert compcache.__version__


def test_a_program_that_imports_all_public_names_does_not_import_llvm(directory: Path) -> None:
    assert run_fresh(directory, "from compcache import *\nresult = sorted({'llvmlite', 'filelock'} & set(sys.modules))") == []


def test_public_classes_and_functions_are_documented() -> None:
    for name in compcache.__all__:
        assert (getattr(compcache, name).__doc__ or "").strip(), name
    for cls in (Cache, TypedCallTarget, ModuleSource):
        for name, member in vars(cls).items():
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert (member.__doc__ or "").strip(), f"{cls.__name__}.{name}"


def parameters(function: object) -> list[str]:
    """The parameters' names as in the design: ``*`` before keyword-only ones."""
    names: list[str] = []
    for p in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        if p.kind is p.KEYWORD_ONLY and "*" not in names:
            names.append("*")
        if p.name != "self":
            names.append(p.name)
    return names


def test_the_cache_has_the_promised_methods() -> None:
    promised = ["path", "*", "readonly", "verify", "signing_key", "trust", "allow_pickle", "max_size"]
    given = parameters(Cache.__init__)
    assert given[: len(promised)] == promised
    defaults = {
        n: p.default for n, p in inspect.signature(Cache.__init__).parameters.items() if n in promised
    }
    expected = {"path": None, "readonly": False, "verify": True, "signing_key": None, "trust": False}
    assert defaults == expected | {"allow_pickle": False, "max_size": None}
    methods = {
        "has": ["func_name"],
        "get_target": ["func_name"],
        "get_or_compile": ["func_name", "build"],
        "add_module": ["source"],
        "realizations": ["func_name"],
        "dependencies": ["func_name", "transitive"],
        "unload": ["func_name"],
        "close": [],
    }
    for name, wanted in methods.items():
        assert parameters(getattr(Cache, name)) == wanted, name
    assert hasattr(Cache, "__enter__")
    assert hasattr(Cache, "__exit__")


def test_sources_functions_signatures_and_targets_are_as_promised() -> None:
    assert parameters(ModuleSource.__init__)[:6] == ["ir", "functions", "globals", "*", "imports", "optimize"]
    assert inspect.signature(ModuleSource.__init__).parameters["optimize"].default == 2
    function = Function("i64()", symbol="s", nogil=True)
    assert (function.signature, function.symbol, function.nogil) == ("i64()", "s", True)
    assert Function(Signature.parse("i64()")).signature == "i64()"
    assert str(Signature.parse("f64(f64[:], i64)")) == "f64(f64[:], i64)"
    for name in ("func_name", "link_name", "module_id", "signature", "address"):
        assert isinstance(getattr(TypedCallTarget, name), property)
    source = ModuleSource("", {"f": None}, {"g": 1})
    assert (source.functions, source.globals, source.imports, source.optimize) == (
        {"f": None},
        {"g": 1},
        None,
        2,
    )


def test_the_errors_form_the_promised_tree() -> None:
    e = compcache.errors
    below: dict[type, list[type]] = {
        e.CompcacheError: [
            e.NotCachedError,
            e.FormatError,
            e.IntegrityError,
            e.LinkError,
            e.CompileError,
            e.GlobalValidationError,
            e.TargetUnloadedError,
            e.ReentrantCompileError,
            e.ReentrantLoadError,
            e.UntrustedDirectoryError,
        ],
        e.LinkError: [
            e.UndefinedSymbolError,
            e.SignatureMismatchError,
            e.IncompatibleTargetError,
            e.LinkerError,
        ],
        KeyError: [e.NotCachedError],
        ImportError: [e.ReentrantCompileError],
    }
    for base, classes in below.items():
        for cls in classes:
            assert issubclass(cls, base)


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
