"""Globals that each process finds: objects by their names, members of dictionaries, native symbols."""

from __future__ import annotations

import ctypes
import gc
import math
import operator
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers import run_fresh
from read_globals import object_at, read, source_of

from compcache import Cache, GlobalValidationError, ModuleSource
from compcache.globals import DictMember, NativeSymbol, ObjectIdentity, PythonObject, define

if TYPE_CHECKING:
    from pathlib import Path


class Named:
    """Found by name, with methods that are."""

    @classmethod
    def make(cls) -> type:
        return cls

    def method(self) -> None:
        """Nothing."""


class Heir(Named):
    """Whose `make` is not that of `Named`."""


OBJECTS = [
    len, math.sin, int, types.SimpleNamespace, operator.add, str.join, None, Ellipsis, NotImplemented,
    dict.fromkeys, int.from_bytes, np.random.normal, Named.make, Heir.make, Named.method,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: getattr(value, "__qualname__", str(value)))
def test_an_object_is_found_again_by_its_name(cache: Cache, value: object) -> None:
    definition = PythonObject.of(value) if value is None else define(value)
    assert isinstance(definition, PythonObject)
    cache.add_module(source_of(definition, "pointer"))
    target = cache.get_target("f")
    assert object_at(target()) == value
    assert getattr(object_at(target()), "__self__", None) is getattr(value, "__self__", None)


def test_a_method_of_a_class_is_one_object_for_all_loads(cache: Cache) -> None:
    """Each look-up of it gives another object. A load that stored that one would keep all the others, for code that runs."""
    source = source_of(Heir.make, "pointer")
    cache.add_module(ModuleSource(source.ir + "define i64 @other() {\nret i64 1\n}\n", globals=source.globals))
    other = cache.get_target("other")  # keeps the module
    assert len({cache.get_target("f")() for _ in range(5)}) == 1
    assert other() == 1
    with pytest.raises(GlobalValidationError, match="no identity"):
        ObjectIdentity.of(Heir.make)
    assert ObjectIdentity.of(np.random.normal) == ObjectIdentity("numpy.random", "normal")


def test_a_ufunc_is_found_by_the_name_that_it_reduces_to(cache: Cache, directory: Path) -> None:
    cache.add_module(source_of(np.hypot, "pointer"))
    assert object_at(cache.get_target("f")()) is np.hypot
    script = """
    import ctypes
    from compcache import Cache
    target = Cache(directory).get_target("f")
    import numpy
    result = ctypes.cast(target(), ctypes.py_object).value is numpy.hypot
    """
    assert run_fresh(directory, script) is True


def test_an_object_without_a_name_is_refused(cache: Cache) -> None:
    for value in (object(), lambda: None, [1], types.SimpleNamespace(), "x".join, [].append, Named().method):
        with pytest.raises(GlobalValidationError, match="cannot be found by module and name") as caught:
            cache.add_module(source_of(value, "pointer"))
        assert "PythonObject(module, qualname)" in str(caught.value)
        assert "a table of numbers must be a buffer, like array.array('d', values)" in str(caught.value)


def test_the_identity_of_an_object_is_a_number(cache: Cache) -> None:
    assert read(cache, ObjectIdentity("math", "pi"), "u64") == id(math.pi)
    assert ObjectIdentity.of(math.sin) == ObjectIdentity("math", "sin")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module whose content the test may change."""
    module = types.ModuleType("a_test_registry")
    module.value = [1]  # type: ignore[attr-defined]
    module.members = {"one": 1.5, 2: "two", b"3": [3]}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_an_object_is_looked_up_at_every_load(cache: Cache, registry: Any) -> None:
    cache.add_module(source_of(PythonObject("a_test_registry", "value"), "pointer"))
    first = cache.get_target("f")
    assert object_at(first()) is registry.value
    old, registry.value = registry.value, [2]
    with Cache(cache.path) as later:
        target = later.get_target("f")
        assert object_at(target()) is registry.value
    assert old == [1]
    del registry.value
    with Cache(cache.path) as later:
        with pytest.raises(GlobalValidationError, match=r"global 'g' of function 'f'.*a_test_registry:value") as caught:
            later.get_target("f")
        assert (caught.value.global_name, caught.value.func_name) == ("g", "f")
        registry.value = [3]
        assert object_at((target := later.get_target("f"))()) is registry.value
        assert target.func_name == "f"


def test_an_object_is_kept_alive_by_the_code(cache: Cache, registry: Any) -> None:
    cache.add_module(source_of(PythonObject("a_test_registry", "value"), "pointer"))
    target = cache.get_target("f")
    registry.value = None
    gc.collect()
    assert object_at(target()) == [1]


@pytest.mark.parametrize(("key", "expected"), [("one", float), (2, str), (b"3", list)])
def test_a_member_of_a_dict_is_found_by_its_key(cache: Cache, registry: Any, key: str | int | bytes, expected: type) -> None:
    cache.add_module(source_of(DictMember.of("a_test_registry", "members", key, expected), "pointer"))
    target = cache.get_target("f")
    assert object_at(target()) is registry.members[key]


def test_a_member_whose_type_changed_is_told(cache: Cache, registry: Any) -> None:
    source = source_of(DictMember.of("a_test_registry", "members", "one", float), "pointer")
    cache.add_module(source)
    registry.members["one"] = "text"
    with pytest.raises(GlobalValidationError, match=r"members\['one'\] must be of type builtins:float, not str") as caught:
        cache.get_target("f")
    assert (caught.value.func_name, caught.value.global_name) == ("f", "g")
    assert "must be of type builtins:float, not str" in caught.value.reason
    del registry.members["one"]
    with pytest.raises(GlobalValidationError, match="has no key 'one'"):
        cache.get_target("f")
    registry.members = None
    with pytest.raises(GlobalValidationError, match="must be a dict, not an object of type NoneType"):
        cache.get_target("f")
    registry.members = {"one": 2.5}
    assert object_at((target := cache.get_target("f"))()) == 2.5
    assert target.func_name == "f"


def test_get_or_compile_rebuilds_where_a_global_no_longer_holds(cache: Cache, registry: Any) -> None:
    built = []

    def build() -> ModuleSource:
        value = registry.members["one"]
        built.append(value)
        return source_of(DictMember.of("a_test_registry", "members", "one", type(value)), "pointer")

    assert object_at((held := cache.get_or_compile("f", build))()) == 1.5
    registry.members["one"] = "text"
    with Cache(cache.path) as later:
        assert object_at((target := later.get_or_compile("f", build))()) == "text"
        assert target.module_id != held.module_id
    with Cache(cache.path) as third:
        assert object_at((target := third.get_or_compile("f", build))()) == "text"
    assert built == [1.5, "text"]


def test_a_key_of_another_type_is_refused(cache: Cache, registry: Any) -> None:
    registry.members[1.5] = "x"
    with pytest.raises(GlobalValidationError, match="must be a str, an int or bytes"):
        cache.add_module(source_of(DictMember("a_test_registry", "members", 1.5, "builtins:str"), "pointer"))


# ------------------------------------------------------------------------------------ native symbols


def test_a_native_symbol_is_an_address(cache: Cache) -> None:
    expected = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value
    assert read(cache, NativeSymbol("strlen"), "pointer") != 0
    assert expected


def test_a_native_symbol_of_a_library_serves_as_a_function(cache: Cache) -> None:
    text = "declare double @g(double)\ndefine double @f(double %x) {\n%y = call double @g(double %x)\nret double %y\n}"
    cache.add_module(ModuleSource(text, globals={"g": NativeSymbol("sqrt", "libm.so.6")}))
    assert cache.get_target("f")(9.0) == 3.0


@pytest.mark.parametrize(
    ("symbol", "culprit"),
    [
        (NativeSymbol("no_such_symbol_here"), "the native symbol 'no_such_symbol_here' is not defined in this process: name its library"),
        (NativeSymbol("_handle"), "the native symbol '_handle' is not defined in this process: name its library"),
        (NativeSymbol("no_such_symbol_here", "libm.so.6"), "is not defined in libm.so.6: correct the symbol or the library"),
    ],
)
def test_a_native_symbol_that_is_not_there_is_refused(cache: Cache, symbol: NativeSymbol, culprit: str) -> None:
    with pytest.raises(GlobalValidationError, match=culprit):
        cache.add_module(source_of(symbol, "pointer"))


@pytest.mark.slow
def test_a_library_that_is_gone_is_told_at_the_load(cache: Cache, directory: Path, tmp_path: Path) -> None:
    library = tmp_path / "libcopied.so"
    script = f"""
    import ctypes
    import llvmlite.binding as llvm
    from compcache import Cache, ModuleSource
    from compcache.images.linkers.find import find_linker
    from compcache.images.linkers.link import link_shared
    from compcache.globals import NativeSymbol
    llvm.initialize_native_target(); llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="default")
    obj = machine.emit_object(llvm.parse_assembly("define i64 @seven() {{\\nret i64 7\\n}}"))
    with open({str(library)!r}, "wb") as file:
        file.write(link_shared(find_linker(), [obj], soname="libcopied.so"))
    text = "declare i64 @g()\\ndefine i64 @f() {{\\n%x = call i64 @g()\\nret i64 %x\\n}}"
    cache = Cache(directory)
    cache.add_module(ModuleSource(text, globals={{"g": NativeSymbol("seven", {str(library)!r})}}))
    result = cache.get_target("f")()
    """
    assert run_fresh(directory, script) == 7
    library.unlink()
    with pytest.raises(GlobalValidationError, match=r"library .*libcopied.so"):
        cache.get_target("f")
