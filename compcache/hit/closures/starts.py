"""Runs the constructors of modules that have waited for what these import."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.hit.loader import LoadedModule

__all__ = ["start_bound"]


def start_bound(runtime: Any, bindings: tuple[list[bytes], list[dict[Any, Any]]], waiting: list[tuple[LoadedModule, int]]) -> None:
    """Bind, and run the constructors of modules by the functions of these numbers, in this order."""
    writes, updates = bindings
    runtime.commit(b"".join(writes), tuple(updates))
    for module, number in waiting:
        if module.finish is None:
            _start(runtime, module, number)
        elif not module.started and not runtime.is_linking():
            from compcache.hit.interrupts import before_start

            raise before_start(module.module_id)


def _start(runtime: Any, module: LoadedModule, number: int) -> None:
    """Run the constructors of a module by the function of this number; the next one runs the destructors."""
    image, finish = module.image, runtime.finish
    try:
        module.finish = lambda: finish(image, number + 1)  # also what a constructor finds that asks for its own module
        module.keep_order()
        runtime.start(image, number)
    finally:
        module.started = True  # until then other threads wait
