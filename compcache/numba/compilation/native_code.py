"""Delays the generation of machine code for Numba's libraries until an address in the code is needed.

Numba generates code for each function as soon as it is compiled. If the function is only linked into other functions, its code is generated
again as a part of each of them. Here a finished library waits instead. Most libraries never need code of their own: the libraries that call
their functions contain it, or the process runs the stored image (`attach_image`).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["address_in_image", "attach_image", "generate", "generate_all", "generate_for", "is_waiting", "postpone"]

_ENVIRONMENT = "_ZN08NumbaEnv"
_UNRESOLVED = ".numba.unresolved$"
_ABORT = "nrt_unresolved_abort"


class _Waiting(NamedTuple):
    """A library without machine code.

    Attributes:
        make: generates the code.
        defined: the symbols that the library defines.
        used: the symbols that must exist before the code is generated.
        called: the symbols that must exist before the code runs. It calls them through Numba's slots for recursion.
        environments: the environments by name; None for an environment that does not exist.
    """

    make: Callable[[Any], None]
    defined: frozenset[str]
    used: tuple[str, ...]
    called: tuple[str, ...]
    environments: dict[str, Any]


_waiting: weakref.WeakKeyDictionary[Any, _Waiting] = weakref.WeakKeyDictionary()
#: The waiting libraries by the functions that they define.
_definers: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_images: weakref.WeakKeyDictionary[Any, Mapping[str, int]] = weakref.WeakKeyDictionary()


def postpone(library: Any, make: Callable[[Any], None]) -> None:
    """Delay `make`, which generates the code of a finished library. If existing code needs the library, call `make` now."""
    if library._object_caching_enabled and library._compiled_object is not None:
        make(library)  # Numba's own cache has loaded the object code
        return
    module = library._final_module
    functions = [(function.name, function.is_declaration) for function in module.functions]
    variables = [variable.name for variable in module.global_variables]
    defined = frozenset(name for name, is_declared in functions if not is_declared)
    used = [name for name, is_declared in functions if is_declared]
    called = tuple(name.removeprefix(_UNRESOLVED) for name in variables if name.startswith(_UNRESOLVED))
    if called:
        used.append(_ABORT)  # the value of a slot until it is filled
    # The environments must live as long as the library, as with generated code.
    environments = {name: lookup_environment(name) for name in variables if name.startswith(_ENVIRONMENT)}
    _waiting[library] = _Waiting(make, defined, tuple(used), called, environments)
    for name in defined:
        _definers[name] = library
    if not defined.isdisjoint(library.codegen._rtlinker._unresolved):
        generate(library)  # existing code calls one of its functions recursively


def generate(library: Any) -> None:
    """Generate the code of a library and of the libraries that it needs. Do nothing if it exists."""
    with global_compiler_lock:
        waiting = _waiting.pop(library, None)
        if waiting is None:
            return
        for name in waiting.defined:
            if _definers.get(name) is library:
                del _definers[name]
        _generate_definers(waiting.used)
        waiting.make(library)
        for name, known in waiting.environments.items():
            environment = lookup_environment(name) or known
            if environment is not None:
                library.codegen.set_env(name, environment)
        _generate_definers(waiting.called)


def _generate_definers(names: Iterable[str]) -> None:
    for name in names:
        definer = _definers.get(name)
        if definer is not None:
            generate(definer)


def generate_for(library: Any, name: str) -> None:
    """Generate the code of a function if it is not generated yet, because its address is requested."""
    waiting = _waiting.get(library)
    if waiting is not None and name in waiting.defined:
        generate(library)
    elif not library.codegen._engine.is_symbol_defined(name):
        _generate_definers([name])


def generate_all() -> None:
    """Generate the code of all waiting libraries."""
    for library in list(_waiting):
        generate(library)


def is_waiting(library: Any) -> bool:
    """Return whether a library has no machine code yet."""
    return library in _waiting


def attach_image(library: Any, addresses: Mapping[str, int]) -> None:
    """Use the functions of a stored image in place of generated code for a library."""
    _images[library] = addresses


def address_in_image(library: Any, name: str) -> int:
    """Return the address of a function in a library's image.

    The result is 0 if the library has no image, or if the image lacks the function.
    """
    image = _images.get(library)
    return image.get(name, 0) if image is not None else 0
