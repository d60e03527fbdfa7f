"""Runs the constructors of modules that have waited for their imports."""

# On the path of plain hits: no `__future__`, annotations are in quotes.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.hit import LoadedModule

__all__ = ["start_modules"]


def start_modules(
    runtime: "Any", bindings: "tuple[bytes, list[dict[Any, Any]]]", functions: "dict[str, tuple[LoadedModule, int | None, list[str]]]"
) -> None:
    """Run the constructors that have waited for the imports of their modules, each after those of the modules that it imports from.

    The bindings that constructors need stay, even if the load fails.

    Args:
        runtime: the native runtime.
        bindings: the stores into the images, and the table updates that record them.
        functions: by name, all functions of the load: the module, the number of the function that runs the module's constructors if they
            wait, and the names of the imports.

    Raises:
        ReentrantLoadError: this look-up interrupts the start of one of the modules.
    """
    stores, updates = bindings
    runtime.commit(stores, tuple(updates))
    for name in _providers_first(functions):
        module, number, _ = functions[name]
        if number is not None:
            _start(runtime, module, number)


def _providers_first(functions: "dict[str, tuple[LoadedModule, int | None, list[str]]]") -> "list[str]":
    """Return the names in an order in which each comes after its imports, except in cycles."""
    order: list[str] = []
    visited: set[str] = set()
    for root in functions:
        stack = [(root, False)]
        while stack:
            name, is_expanded = stack.pop()
            if is_expanded:
                order.append(name)
            elif name not in visited:
                visited.add(name)
                stack.append((name, True))
                stack += [(imported, False) for imported in functions[name][2] if imported in functions]
    return order


def _start(runtime: "Any", module: "LoadedModule", number: int) -> None:
    """Run the constructors of a module once, by its function with this number. The function with the next number runs the destructors.

    Raise `ReentrantLoadError` if this look-up interrupts the start.
    """
    # Made first, because a garbage collection may run here.
    starter, start = runtime.starter(module.image, number, module.slots), runtime.start
    if module.starter is not None:
        if not module.started and not runtime.is_linking():
            from compcache.hit.interrupts import before_start_error

            raise before_start_error(module.module_id)
        return
    try:  # no call or allocation since the check: a signal handler or a finalizer could start the module there
        module.starter = starter  # set first, so that a constructor that requests its module finds it
        start(starter)
    finally:
        module.started = True  # other threads wait until now
