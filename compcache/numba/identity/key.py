"""The key of a compiled overload: the function's fingerprint, the signature, and everything else that shapes code."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.numba.identity.errors import Unidentifiable
from compcache.numba.identity.fingerprint import Fingerprint, fingerprint
from compcache.numba.identity.settings import config_text, cpu_text, versions_text
from compcache.numba.identity.type_text import type_text

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Identity", "flags_text", "identify", "signature_text"]


class Identity(NamedTuple):
    """Who an overload is: a key, the digest of where its source lines are, and the key's named components."""

    key: str
    lines: str
    name: str
    components: dict[str, str]


def identify(function: Any, *, sig: Any, flags: str, extra: Mapping[str, str], codegen: Any) -> Identity:
    """The identity of one overload of a function.

    Args:
        function: the Python function that is compiled.
        sig: what the overload was asked for with: a signature, or the tuple of its argument types.
        flags: the compiler flags as `flags_text` writes them.
        extra: further named components.
        codegen: Numba's code generator, which knows the CPU.

    Raises:
        Unidentifiable: something has no identity by content.
    """
    found: Fingerprint = fingerprint(function)
    components = {
        "function": found.content,
        "signature": signature_text(sig),
        "flags": flags,
        "config": config_text(),
        "versions": versions_text(),
        "cpu": cpu_text(codegen),
        **extra,
    }
    state = blake2b(digest_size=16, person=b"compcache-numba2")
    for name, text in components.items():
        data = text.encode("utf-8", "surrogatepass")
        state.update(f"{name}:{len(data)}:".encode())
        state.update(data)
    name = f"{function.__module__}.{function.__qualname__}"
    shown = {"name": name, **components, **{f"read {where}": what for where, what in found.reads.items()}}
    return Identity(state.hexdigest(), found.lines, name, shown)


def signature_text(sig: Any) -> str:
    """Argument types, and the result type where it was asked for; types of functions by their content."""
    args, result = (sig.args, sig.return_type) if hasattr(sig, "return_type") else (tuple(sig), None)
    texts = [_type_text(item) for item in args]
    return f"({', '.join(texts)}) -> {'?' if result is None else _type_text(result)}"


def _type_text(item: Any) -> str:
    dispatcher = getattr(item, "dispatcher", None)
    if dispatcher is not None:
        return f"jitted {fingerprint(dispatcher).content}"
    kind = type(item)
    return (
        f"{type_text(item, 'an argument')}"
        if kind.__module__.startswith("numba.core.types")
        else (f"{kind.__module__}.{kind.__qualname__}:{type_text(item, 'an argument')}")
    )


def flags_text(flags: Any) -> str:
    """Every flag with its value, in a fixed order."""
    return ", ".join(f"{name}={_flag_text(name, value)}" for name, value in sorted(flags.values().items()))


def _flag_text(name: str, value: Any) -> str:
    if name == "inline":
        chosen = getattr(value, "_inline", value)
        return chosen if isinstance(chosen, str) else f"cost model {fingerprint(chosen).content}"
    inner = getattr(value, "flags", value)
    if isinstance(inner, (set, frozenset)):
        return str(sorted(inner))
    if hasattr(value, "encode") and not isinstance(value, str):
        return str(value.encode())
    text = repr(inner)
    if " at 0x" in text:
        raise Unidentifiable(f"the flag {name} is {text}, which has no identity by content")
    return text
