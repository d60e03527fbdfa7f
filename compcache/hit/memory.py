"""Functions and modules in memory, and the events that hide them from look-ups: removal, unloading, building.

Hits do not import this file.
"""

from __future__ import annotations

from _weakref import _remove_dead_weakref, ref  # type: ignore[attr-defined]

from compcache.digest import name_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from compcache.hit import LoadedModule, PlainLoader
    from compcache.hit.loader import Loader
    from compcache.hit.target import TypedCallTarget

__all__ = ["begin_build", "end_build", "forget", "forget_targets", "held_lines", "modules_behind", "unload"]


def begin_build(loader: Loader, build: object) -> None:
    """Make look-ups ignore memory until the build has ended, because the directory may no longer contain the modules in memory."""
    with loader.lock():
        loader.builds.add(build)
        loader.targets.clear()


def end_build(loader: Loader, build: object) -> None:
    """End a build. Unknown builds are ignored. After the last one, look-ups use memory again."""
    with loader.lock():
        loader.builds.discard(build)
        if not loader.builds:
            loader.targets.update(loader._by_name)


def modules_behind(module: LoadedModule) -> list[LoadedModule]:
    """Return a module and all modules that it is bound to, directly or indirectly."""
    modules = {module: None}
    stack = [module]
    while stack:
        bound = [bound_module for bound_module in _bound_modules(stack.pop()) if bound_module not in modules]
        modules.update(dict.fromkeys(bound))
        stack += bound
    return list(modules)


def _bound_modules(module: LoadedModule) -> list[LoadedModule]:
    """Return the modules that the slots of a module refer to."""
    values: list[Any] = list(module.slots.values())
    return [value for value in values if hasattr(value, "module_id")]


def forget(loader: Loader, module_id: bytes) -> None:
    """Hide a module, and all modules that are bound to it, from later look-ups, which then load them again. Call targets stay valid.

    A linked closure whose modules all exist is not hidden, because its code is still the code of functions in the cache.
    """
    linked = loader.linked
    if linked is not None and module_id in linked and linked.has_all_parts(module_id):
        return
    with loader.lock():
        copies = [loader._loaded(module_id), *(linked.closures_of(module_id) if linked is not None else ())]
        modules = {module for module in copies if module is not None}
        if not modules:
            return
        forgotten = modules.union([user for user in loader.loaded_modules() if not modules.isdisjoint(modules_behind(user))])
        loader.changed = None
        for names in (loader.merged, loader.providers):
            for name in [name for name, weak in list(names.items()) if weak() in forgotten]:
                del names[name]
        for user in forgotten:
            loader._modules.pop(user.module_id, None)
        for token, weak in list(loader._current.items()):
            target = weak()
            context = target._context if target is not None else None
            if target is not None and context is not None and context.module in forgotten:
                _hide(loader, token, target)


def forget_targets(loader: Loader, targets: list[TypedCallTarget]) -> None:
    """Hide call targets from later look-ups, which then load the functions again (`Loader.forget_names`)."""
    numbers = set(map(id, targets))
    with loader.lock():
        for token, weak in list(loader._current.items()):
            target = weak()
            if target is not None and id(target) in numbers:
                loader.changed = None
                _hide(loader, token, target)


def _hide(loader: Loader, token: object, target: TypedCallTarget) -> None:
    """Hide a target with this token from look-ups, keeping it only for `unload` and `close`."""
    ended = loader._ended

    def forget_target(_: ref[TypedCallTarget], remove: Callable[..., None] = _remove_dead_weakref) -> None:
        remove(ended, token)

    ended[token] = ref(target, forget_target)
    loader._current.pop(token, None)
    for table in (loader.targets, loader._by_name):
        weak = table.get(target._name)
        if weak is not None and weak() is target:
            del table[target._name]


def held_lines(loaders: list[ref[PlainLoader]], now: float) -> list[str]:
    """Return journal lines that record all modules of these loaders as used at the time `now`. They add nothing to counters."""
    modules = {module.module_id for weak in loaders if (loader := weak()) is not None for module in loader.loaded_modules()}
    no_name = name_key("").hex()  # a line of the journal states a function, but these lines record modules only
    return [f"{now} loads 0 {module_id.hex()} {no_name}" for module_id in sorted(modules)]


def unload(loader: Loader, func_name: str) -> int:
    """Invalidate the call targets of a function's modules, and return their number (`Loader.unload`).

    The modules leave memory when no target needs them.
    """
    modules = {module_id for module_id, _ in loader.store.find(func_name, linked=True)}
    if loader.linked is not None:
        containers = list(filter(None, map(loader.linked.closure_with, modules)))
        modules.update([container.module_id for container in containers])
    target = loader.held(func_name)
    if target is not None and target._context is not None:
        modules.add(target._context.module.module_id)
    with loader.lock():
        for module_id in modules:
            loader._modules.pop(module_id, None)
        invalidated = loader.invalidate(lambda context: context.module.module_id in modules)
    return len(invalidated)  # dropped here, outside of the lock, because destructors may run anything
