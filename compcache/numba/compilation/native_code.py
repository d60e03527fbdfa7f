"""Delays the generation of machine code for Numba's libraries until an address in the code is needed.

Numba generates machine code for each function as soon as the function is compiled. If the function is only linked into other functions, its
code is generated again as a part of each of these functions. Here, a finished library waits instead. Most libraries never need machine code
of their own: the calling libraries contain the code, or the process runs the stored image (`attach_image`).
"""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment

from compcache.numba.compilation.libraries import ENVIRONMENT_PREFIX, UNRESOLVED, library_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = [
    "address_in_image", "announce_request", "attach_image", "before_requests", "generate", "generate_all", "generate_for", "is_waiting",
    "postpone",
]  # fmt: skip

_ABORT = "nrt_unresolved_abort"


class _WaitingLibrary(NamedTuple):
    """A library without machine code.

    Attributes:
        generate_code: generates the machine code of the library.
        defined: the symbols that the library defines.
        used: the symbols that must exist before the code is generated.
        called: the symbols that must exist before the code runs. The code calls them through Numba's slots for recursion.
        environments: the environments by name; None for an environment that does not exist.
    """

    generate_code: Callable[[Any], None]
    defined: frozenset[str]
    used: tuple[str, ...]
    called: tuple[str, ...]
    environments: dict[str, Any]


_waiting: weakref.WeakKeyDictionary[Any, _WaitingLibrary] = weakref.WeakKeyDictionary()
#: The waiting library that defines each function.
_definers: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
#: The addresses of the functions in each library's image, by symbol.
_images: weakref.WeakKeyDictionary[Any, Mapping[str, int]] = weakref.WeakKeyDictionary()


def postpone(library: Any, generate_code: Callable[[Any], None]) -> None:
    """Delay the call of `generate_code`, which generates the machine code of a finished library.

    The code is generated now if existing code calls a function of the library, or if Numba's own cache has loaded the object code.
    """
    if library._object_caching_enabled and library._compiled_object is not None:
        generate_code(library)
        return
    module = library._final_module
    functions = {function.name: function.is_declaration for function in module.functions}
    variables = [variable.name for variable in module.global_variables]
    defined = frozenset(name for name, is_declaration in functions.items() if not is_declaration)
    declared_names = [name for name, is_declaration in functions.items() if is_declaration]
    called = tuple(name.removeprefix(UNRESOLVED) for name in variables if name.startswith(UNRESOLVED))
    if called:
        declared_names.append(_ABORT)  # each slot contains this function until the slot is filled
    # The environments must live as long as the library, as they do with generated code.
    environments = {name: lookup_environment(name) for name in variables if name.startswith(ENVIRONMENT_PREFIX)}
    _waiting[library] = _WaitingLibrary(generate_code, defined, tuple(declared_names), called, environments)
    for name in defined:
        _definers[name] = library
    if not defined.isdisjoint(library.codegen._rtlinker._unresolved):
        generate(library)  # existing code calls one of its functions recursively


def generate(library: Any) -> None:
    """Generate the machine code of a waiting library and of the libraries that it needs. Do nothing for any other library."""
    with global_compiler_lock:
        waiting = _waiting.pop(library, None)
        if waiting is None:
            return
        for name in waiting.defined:
            if _definers.get(name) is library:
                del _definers[name]
        _generate_definers(waiting.used)
        waiting.generate_code(library)
        for name, earlier in waiting.environments.items():
            environment = lookup_environment(name) or earlier
            if environment is not None:
                library.codegen.set_env(name, environment)
        _generate_definers(waiting.called)
        for name in waiting.called:
            _fill_slot(library.codegen._rtlinker, name)


def _fill_slot(linker: Any, name: str) -> None:
    """Fill the slot for recursive calls of a function whose code was loaded, which Numba's linker does not find."""
    library = library_of(name) if name in linker._unresolved else None
    address = library.get_pointer_to_function(name) if library is not None and library._finalized else 0
    slot = linker._unresolved.pop(name, None) if address else None  # the request may have filled the slot
    if slot is not None:
        slot.value = address
        linker._resolved.append((name, slot))


def _generate_definers(names: Iterable[str]) -> None:
    """Generate the machine code of the waiting libraries that define functions with these names."""
    for name in names:
        definer = _definers.get(name)
        if definer is not None:
            generate(definer)


def generate_for(library: Any, name: str) -> None:
    """Generate the machine code of a function that this library, or another waiting library, defines. Do nothing if the code exists."""
    waiting = _waiting.get(library)
    if waiting is not None and name in waiting.defined:
        generate(library)
    elif not library.codegen._engine.is_symbol_defined(name):
        _generate_definers([name])


class _Requests(threading.local):
    """What this thread does before the address of a function in a library without machine code is determined (`before_requests`)."""

    action: Callable[[Any, str], None] | None = None


_requests = _Requests()


@contextmanager
def before_requests(action: Callable[[Any, str], None]) -> Iterator[None]:
    """Call `action` with the library and the symbol when this thread requests the address of a function in a library without machine code.

    The action may attach an image to the library.
    """
    outer, _requests.action = _requests.action, action
    try:
        yield
    finally:
        _requests.action = outer


def announce_request(library: Any, name: str) -> None:
    """Perform the action of `before_requests` for a function whose address is requested, if its library has no machine code yet."""
    if _requests.action is not None and library in _waiting:
        _requests.action(library, name)


def generate_all() -> None:
    """Generate the machine code of all waiting libraries."""
    for library in list(_waiting):
        generate(library)


def is_waiting(library: Any) -> bool:
    """Return whether a library has no machine code yet."""
    return library in _waiting


def attach_image(library: Any, addresses: Mapping[str, int]) -> None:
    """Use the functions of a stored image in place of a library's machine code. `addresses` contains their addresses by symbol."""
    _images[library] = addresses


def address_in_image(library: Any, name: str) -> int:
    """Return the address of a function in a library's image; 0 if the library has no image, or the image does not contain the function."""
    image = _images.get(library)
    return image.get(name, 0) if image is not None else 0
