"""Defines Numba code libraries whose machine code is a mapped image. They are created without compiling, parsing or linking."""

from __future__ import annotations

import ctypes
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from llvmlite import binding
from numba import _dynfunc
from numba.core.codegen import CodeLibrary, JITCodeLibrary

from compcache.numba.entries.named_addresses import bind_imports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compcache.numba.lazy.description import Description

__all__ = ["MappedLibrary", "StoredLibrary", "keep_mapped", "make_entry_point", "set_environments"]

#: The call targets whose images stay mapped. Numba never frees machine code, so raw addresses in the images may be in use.
_mapped_targets: dict[int, Any] = {}


def keep_mapped(target: Any) -> None:
    """Keep the image of a call target mapped until the process ends."""
    _mapped_targets[id(target)] = target


def set_environments(addresses: Mapping[str, int], environments: Mapping[str, Any]) -> None:
    """Assign environments to the slots with the same names in an image. None, and an environment without a slot, are ignored."""
    for name, environment in environments.items():
        slot = addresses.get(name)
        if slot and environment is not None:
            ctypes.c_void_p.from_address(slot).value = id(environment)


def make_entry_point(address: int, library: Any, fndesc: Any, environment: Any) -> Any:
    """Return the callable through which Python runs the machine code at an address. The callable keeps the library alive."""
    doc = f"compiled wrapper for {fndesc.qualname!r}"
    name = fndesc.qualname.split(".")[-1]
    return _dynfunc.make_function(fndesc.lookup_module(), name, doc, address, environment, (library,))


class StoredLibrary(NamedTuple):
    """The entry of a library.

    Attributes:
        name: the name of the entry.
        lines: the digest of the source lines.
        description: the description of the entry.
        symbols: the symbols of the image, by number.
        constants: the constants of each environment, by the environment's name.
    """

    name: str
    lines: str
    description: Description
    symbols: tuple[str, ...]
    constants: dict[str, list[Any]]


class MappedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """A finished library whose bitcode is parsed only if another function is linked with it.

    Attributes:
        stored: the entry of a library that contains a wrapper or a loop; None for a library that contains a user's function.
    """

    stored: StoredLibrary | None = None

    def __init__(
        self, codegen: Any, name: str, target: Any, addresses: Mapping[str, int], environments: Mapping[str, Any],
        bitcode: bytes,
    ) -> None:  # fmt: skip
        CodeLibrary.__init__(self, codegen, name)
        self._linking_libraries: list[Any] = []
        self._shared_module: Any = None
        self._finalized = True
        self._disable_inspection = True
        self._addresses = dict(addresses)
        self._environments = dict(environments)
        self._bitcode = bitcode
        keep_mapped(target)
        set_environments(self._addresses, environments)

    @property
    def _final_module(self) -> Any:
        """The module that other libraries link."""
        return self._get_module_for_linking()

    def address_in_image(self, name: str) -> int:
        """Return the address of a function in the image, or 0 if the image has no function with this name."""
        return self._addresses.get(name, 0)

    def get_pointer_to_function(self, name: str) -> int:
        """Return the address of a function, or 0 if the library has no function with this name.

        If only the bitcode contains the function, compile it first. See `bind_imports` for the exception.
        """
        address = self.address_in_image(name)
        if address:
            return address
        functions = self._get_module_for_linking().functions
        is_defined = any(function.name == name and not function.is_declaration for function in functions)
        return self._compile_from_bitcode(name) if is_defined else 0

    def _compile_from_bitcode(self, name: str) -> int:
        """Compile a function that only the bitcode contains, and return its address."""
        library = self._codegen.create_library(self._name)
        library._final_module = self._get_module_for_linking().clone()
        library._finalize_final_module()
        self._compiled_library = library  # keeps the machine code alive
        return int(library.get_pointer_to_function(name))

    def _get_module_for_linking(self) -> Any:
        """Return the parsed bitcode. On the first call, define the environments that it looks up. See `bind_imports` for the exception."""
        if self._shared_module is None:
            self._define_environments()
            self._shared_module = bind_imports(binding.parse_bitcode(zlib.decompress(self._bitcode)))
        return self._shared_module

    def _define_environments(self) -> None:
        """Define the variables of environments that LLVM's execution engine lacks."""
        engine = self._codegen._engine
        missing = {name: environment for name, environment in self._environments.items() if not engine.is_symbol_defined(name)}
        if missing:
            text = "\n".join(f'@"{name}" = global ptr null' for name in missing)
            module = binding.parse_assembly(text)
            module.triple = self._codegen._llvm_module.triple
            module.data_layout = self._codegen._data_layout
            engine.add_module(module)
            engine.finalize_object()
        for name, environment in missing.items():
            self._codegen.set_env(name, environment)
