"""Restores the data about a stored generator that the compiler needs to compile the generator's callers.

Numba keeps these data in the context in which the generator was compiled. Numba's own cache does not restore them: after a load from that
cache, the compilation of a caller fails with a `KeyError`.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.generators import GeneratorDescriptor

__all__ = ["next_symbol", "restore_generator"]


def next_symbol(cres: Any) -> str:
    """Return the symbol that implements `next` for the generator that compiled code returns, or "" if the code returns no generator."""
    return_type = cres.signature.return_type
    if not isinstance(return_type, types.Generator) or return_type not in cres.target_context._generators:
        return ""
    symbol: str = cres.target_context.get_generator_desc(return_type).mangled_name
    return symbol


def restore_generator(cres: Any, symbol: str, function: Any) -> Any:
    """Register the generator of a loaded compile result, so that callers can be compiled. Return the result with the new generator type.

    Numba distinguishes generator types by their functions. Therefore the type is created again for the function of this process. The new
    type also replaces the result type in the descriptor of `cres`. `symbol` implements `next`.
    """
    context, stored = cres.target_context, cres.signature.return_type
    kind = types.Generator(function, stored.yield_type, stored.arg_types, stored.state_types, stored.has_finalizer)
    cres.fndesc.restype = kind
    descriptor = GeneratorDescriptor.from_generator_fndesc(None, cres.fndesc, kind, context.mangler)
    descriptor.mangled_name = symbol
    context.insert_generator(kind, descriptor, [cres.library])
    return cres._replace(signature=cres.signature.replace(return_type=kind))
