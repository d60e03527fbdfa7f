"""What the compiler must know about a generator to compile its users: Numba keeps it in the context in which the generator was compiled.

Numba's own cache forgets it: a caller that is compiled after the generator was found there fails with a `KeyError`.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.generators import GeneratorDescriptor

__all__ = ["next_symbol", "restore_generator"]


def next_symbol(cres: Any) -> str:
    """Return the symbol of the function behind `next` of the generator that a compile result returns; "" if it returns none."""
    kind = cres.signature.return_type
    if not isinstance(kind, types.Generator) or kind not in cres.target_context._generators:
        return ""
    symbol: str = cres.target_context.get_generator_desc(kind).mangled_name
    return symbol


def restore_generator(cres: Any, symbol: str, function: Any) -> Any:
    """Return the compile result of a stored generator, and register it in the context, so that callers can be compiled.

    Its type is made again for the function of this process, because Numba distinguishes such types by their function.
    """
    context, stored = cres.target_context, cres.signature.return_type
    kind = types.Generator(function, stored.yield_type, stored.arg_types, stored.state_types, stored.has_finalizer)
    cres.fndesc.restype = kind
    described = GeneratorDescriptor.from_generator_fndesc(None, cres.fndesc, kind, context.mangler)
    described.mangled_name = symbol
    context.insert_generator(kind, described, [cres.library])
    return cres._replace(signature=cres.signature.replace(return_type=kind))
