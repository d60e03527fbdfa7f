"""The code of cached functions as text, from the bitcode that is kept beside the image (imports LLVM)."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any

from compcache import codegen
from compcache.errors import CompcacheError, FormatError
from compcache.manifest import decode_module

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["NoCodeError", "assembly", "llvm_ir", "read_code"]

_MAX_BITCODE = 1 << 31
_END = re.compile(r"^\.Lfunc_end\d+:$")


class NoCodeError(CompcacheError, LookupError):
    """Raised when a module was stored without its bitcode."""


def llvm_ir(store: Store, module_id: str, symbol: str | None = None) -> str:
    """The optimized LLVM assembly of a function, or of the whole module.

    Raises:
        NoCodeError: the module was stored without it.
        FileNotFoundError, FormatError: the module is not there, or damaged.
    """
    bitcode, _, _ = read_code(store, module_id)
    with codegen.new_context() as context:
        module = codegen.parse(bitcode, context)
        return str(module if symbol is None else module.get_function(symbol)).strip()


def assembly(store: Store, module_id: str, symbol: str | None = None) -> str:
    """The native assembly of a function, or of the whole module; raises what `llvm_ir` raises."""
    bitcode, cpu, features = read_code(store, module_id)
    with codegen.new_context() as context:
        module = codegen.parse(bitcode, context)
        machine: Any = codegen.target_machine(cpu, features, 2)
        text: str = machine.emit_assembly(module)
    return text.strip() if symbol is None else _cut(text, symbol)


def read_code(store: Store, module_id: str) -> tuple[bytes, str, str]:
    """The bitcode that is kept beside an image, and the CPU and features that it is for; raises what `llvm_ir` raises."""
    with store.open_module(bytes.fromhex(module_id)) as module:
        footer = module.footer()
        record = decode_module(module.read_record(0))
        packed = module.read(footer.image + footer.records + footer.graph, footer.bitcode)
    if not packed:
        raise NoCodeError(
            f"module {module_id} was stored without its code (keep_bitcode=False, --no-bitcode)"
        )
    try:
        return zlib.decompressobj().decompress(packed, _MAX_BITCODE), record.cpu, record.features
    except zlib.error as error:
        raise FormatError(f"the bitcode of module {module_id} does not decode: {error}") from error


def _cut(text: str, symbol: str) -> str:
    """One function of an assembly file: from its label to the end that LLVM marks."""
    lines = text.splitlines()
    plain, quoted = f"{symbol}:", f'"{symbol}":'
    start = next((i for i, line in enumerate(lines) if line.split("#")[0].rstrip() in (plain, quoted)), None)
    if start is None:
        return text.strip()
    end = next((i for i in range(start, len(lines)) if _END.match(lines[i])), len(lines))
    return "\n".join(lines[start:end])
