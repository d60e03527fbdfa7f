"""Runs the constructors of modules that have waited for their imports."""

from __future__ import annotations

from compcache.hit import LoadedModule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.hit.loader import Choice, Loader

__all__ = ["start_modules"]


class _StartedModule(LoadedModule):
    """Of modules that refer to one another in a cycle, the garbage collector finalizes all before it takes any apart."""

    __slots__ = ()

    def __del__(self) -> None:
        if self.finish is not None:
            self.finish()


def start_modules(loader: Loader, chosen: dict[str, Choice]) -> None:
    """Run the constructors that have waited for their modules' imports, each after those of the modules from which it imports.

    Their bindings stay, whatever happens to the load.
    """
    waiting = [(choice.loaded, choice.start) for choice in _providers_first(chosen) if choice.start is not None]
    _start_bound(loader.runtime(), loader.bindings(chosen), waiting)


def _providers_first(chosen: dict[str, Choice]) -> list[Choice]:
    """Return the choices, each after its imports unless they form a cycle."""
    order: list[Choice] = []
    seen: set[str] = set()
    for root in chosen:
        stack = [(root, False)]
        while stack:
            name, is_done = stack.pop()
            if is_done:
                order.append(chosen[name])
            elif name not in seen:
                seen.add(name)
                stack.append((name, True))
                stack += [(imported, False) for _, imported, _, _ in chosen[name].imports if imported in chosen]
    return order


def _start_bound(runtime: Any, bindings: tuple[list[bytes], list[dict[Any, Any]]], waiting: list[tuple[LoadedModule, int]]) -> None:
    """Bind the modules with these functions, and run their constructors in this order."""
    writes, updates = bindings
    runtime.commit(b"".join(writes), tuple(updates))
    for module, number in waiting:
        if module.finish is None:
            _start(runtime, module, number)
        elif not module.started and not runtime.is_linking():
            from compcache.hit.interrupts import before_start

            raise before_start(module.module_id)


def _start(runtime: Any, module: LoadedModule, number: int) -> None:
    """Run the constructors of a module by its function with this number. The next number runs the destructors."""
    image, finish = module.image, runtime.finish
    try:
        module.finish = lambda: finish(image, number + 1)  # a constructor that requests its own module finds this, too
        module.__class__ = _StartedModule  # `finish` is called before anything that the destructors may use goes
        runtime.start(image, number)
    finally:
        module.started = True  # until then other threads wait
