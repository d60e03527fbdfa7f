"""Runs the constructors of modules that have waited for their imports."""

# On the path of plain hits: no `__future__`, annotations are in quotes.
from compcache.hit import LoadedModule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["start_modules"]


class _StartedModule(LoadedModule):
    """Of modules that refer to one another in a cycle, the garbage collector finalizes all before it takes any apart."""

    __slots__ = ()

    def __del__(self) -> None:
        if self.finish is not None:
            self.finish()


def start_modules(
    runtime: "Any", bindings: "tuple[bytes, list[dict[Any, Any]]]", functions: "dict[str, tuple[LoadedModule, int | None, list[str]]]"
) -> None:
    """Run the constructors that have waited for what their modules import, each after those of the modules that it imports from.

    What is bound for them stays bound, whatever becomes of the load.

    Args:
        runtime: the native runtime.
        bindings: what to store in the images so that they find each other, and what to record about it.
        functions: all of the load, by name: the module of each, the function that runs the module's constructors if these wait, and the
            names of its imports.
    """
    stores, updates = bindings
    runtime.commit(stores, tuple(updates))
    for name in _providers_first(functions):
        module, number, _ = functions[name]
        if number is None:
            continue
        if module.finish is None:
            _start(runtime, module, number)
        elif not module.started and not runtime.is_linking():
            from compcache.hit.interrupts import before_start

            raise before_start(module.module_id)


def _providers_first(functions: "dict[str, tuple[LoadedModule, int | None, list[str]]]") -> "list[str]":
    """Return the names, each after its imports unless they form a cycle."""
    order: list[str] = []
    seen: set[str] = set()
    for root in functions:
        stack = [(root, False)]
        while stack:
            name, is_done = stack.pop()
            if is_done:
                order.append(name)
            elif name not in seen:
                seen.add(name)
                stack.append((name, True))
                stack += [(imported, False) for imported in functions[name][2] if imported in functions]
    return order


def _start(runtime: "Any", module: LoadedModule, number: int) -> None:
    """Run the constructors of a module by its function with this number. The next number runs the destructors."""
    image, finish = module.image, runtime.finish
    try:
        module.finish = lambda: finish(image, number + 1)  # a constructor that requests its own module finds this, too
        module.__class__ = _StartedModule  # `finish` is called before anything that the destructors may use goes
        runtime.start(image, number)
    finally:
        module.started = True  # until then other threads wait
