"""Restores the data that the compiler needs about a stored generator to compile its callers.

Numba keeps these data in the context in which the generator was compiled. Numba's own cache does not restore them. A caller that is
compiled after the generator was loaded from that cache fails with a `KeyError`.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.generators import GeneratorDescriptor

__all__ = ["next_symbol", "restore_generator"]


def next_symbol(cres: Any) -> str:
    """Return the symbol of the function that implements `next` for the generator that a compile result returns.

    The symbol is "" if the result is not a generator.
    """
    kind = cres.signature.return_type
    if not isinstance(kind, types.Generator) or kind not in cres.target_context._generators:
        return ""
    symbol: str = cres.target_context.get_generator_desc(kind).mangled_name
    return symbol


def restore_generator(cres: Any, symbol: str, function: Any) -> Any:
    """Register the generator that a stored compile result returns in its context, so that callers can be compiled.

    Numba distinguishes types of generators by their functions. Therefore the type is created again for the function of this process.

    Returns:
        The compile result with this type.
    """
    context, stored = cres.target_context, cres.signature.return_type
    kind = types.Generator(function, stored.yield_type, stored.arg_types, stored.state_types, stored.has_finalizer)
    cres.fndesc.restype = kind
    described = GeneratorDescriptor.from_generator_fndesc(None, cres.fndesc, kind, context.mangler)
    described.mangled_name = symbol
    context.insert_generator(kind, described, [cres.library])
    return cres._replace(signature=cres.signature.replace(return_type=kind))
