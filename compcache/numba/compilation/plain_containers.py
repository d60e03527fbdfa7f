"""Compiles kernels that take or return Numba's containers with lists in their place.

Typed lists, typed dictionaries and sets are objects of Numba with memory of their own. A kernel that has such parameters or results is
compiled with a wrapper that takes and returns lists of their items. A process without Numba converts Python's objects to and from such
lists. Changes that the kernel makes to a container are written back to the list.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["carried_type", "has_containers", "made_type", "with_lists"]


def carried_type(type_: Any) -> Any:
    """Return the type with lists of items in place of Numba's containers. The items of a dictionary are tuples of key and value."""
    from numba.core import types

    if isinstance(type_, types.DictType):
        pair = types.Tuple((carried_type(type_.key_type), carried_type(type_.value_type)))
        return types.List(pair, reflected=True)
    if isinstance(type_, (types.ListType, types.Set)):
        return types.List(carried_type(type_.dtype), reflected=True)
    if not has_containers(type_):
        return type_
    if isinstance(type_, types.Optional):
        return types.Optional(carried_type(type_.type))
    if isinstance(type_, types.List):
        return types.List(carried_type(type_.dtype), reflected=type_.reflected)
    return types.Tuple([carried_type(item) for item in type_])


def made_type(type_: Any) -> Any:
    """Return the type that compiled code creates from a list in place of this type. A set does not mirror a Python set."""
    from numba.core import types

    if isinstance(type_, types.Set):
        return types.Set(type_.dtype)
    if isinstance(type_, (types.Tuple, types.UniTuple)):
        return types.Tuple([made_type(item) for item in type_])
    return types.Optional(made_type(type_.type)) if isinstance(type_, types.Optional) else type_


def has_containers(type_: Any) -> bool:
    """Return whether a value of this type is, or contains, one of Numba's containers."""
    from numba.core import types

    if isinstance(type_, (types.DictType, types.ListType, types.Set)):
        return True
    if isinstance(type_, types.Optional):
        return has_containers(type_.type)
    if isinstance(type_, types.BaseTuple):
        return any(map(has_containers, type_))
    return isinstance(type_, types.List) and has_containers(type_.dtype)


def with_lists(kernel: Any, args: Sequence[Any], result: Any) -> Any:
    """Return a Python function that calls a jitted one, with lists in place of the containers among these types.

    Raises:
        NotImplementedError: one of the types has no list form. The message names it.
    """
    names = [f"given{number}" for number in range(len(args))]
    note, forget = _notes()
    scope: dict[str, Any] = {"kernel": kernel, "note": note, "forget": forget, "replace": _compiled(_replace)}
    taken, given_back = [], []
    for name, type_ in zip(names, args, strict=True):
        if has_containers(type_):
            scope[f"take_{name}"] = _compiled(_taking(type_))
            taken += [f"    made_{name} = take_{name}({name})", f"    note({name}, made_{name})"]
            scope[f"items_{name}"] = _compiled(_listing(type_))
            given_back += [f"    forget({name})", f"    replace({name}, items_{name}(made_{name}))"]
    scope["items_of_result"] = _compiled(_listing(result))
    passed = ", ".join(f"made_{n}" if has_containers(t) else n for n, t in zip(names, args, strict=True))
    lines = [
        f"def with_lists({', '.join(names)}):", *taken, f"    result = kernel({passed})", *given_back,
        f"    return {'items_of_result(result)' if has_containers(result) else 'result'}",
    ]  # fmt: skip
    return _made("\n".join(lines), "with_lists", scope)


def _compiled(function: Any) -> Any:
    """Return a jitted function that only compiled code calls, because Python has no conversion for some of the types."""
    from numba import njit

    return njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


def _made(text: str, name: str, scope: dict[str, Any]) -> Any:
    exec(text, scope)  # noqa: S102 - text from above, without anything from outside
    return scope[name]


#: The field of a list's block that holds the container created from it. Numba uses the field for memory of other devices.
_CONTAINER_IN_BLOCK = 5


@functools.cache
def _notes() -> tuple[Any, Any]:
    """Return two functions: one notes in a list's block which container was created from it, the other clears that note.

    Code that raises an exception keeps its references forever. Whoever frees the list then also frees the container, to which nothing else
    can refer.
    """
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    def store(context: Any, builder: Any, type_: Any, items: Any, container: Any) -> Any:
        block = cgutils.create_struct_proxy(type_)(context, builder, value=items).meminfo
        pointer = ir.IntType(8).as_pointer()
        place = builder.gep(builder.bitcast(block, pointer.as_pointer()), [ir.Constant(ir.IntType(32), _CONTAINER_IN_BLOCK)])
        builder.store(builder.bitcast(container, pointer) if container is not None else ir.Constant(pointer, None), place)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def note(_: Any, items: Any, container: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            held = cgutils.create_struct_proxy(signature.args[1])(context, builder, value=args[1]).meminfo
            return store(context, builder, signature.args[0], args[0], held)

        return types.void(items, container), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def forget(_: Any, items: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return store(context, builder, signature.args[0], args[0], None)

        return types.void(items), generate

    return note, forget


def _replace(items: Any, changed: Any) -> None:
    items.clear()
    items.extend(changed)


def _take_set(items: Any) -> Any:
    return set(items)


def _taking(type_: Any) -> Any:
    """Return a function that creates a container from the list of its items.

    Raises:
        NotImplementedError: the type contains a container.
    """
    from numba.core import types
    from numba.typed import Dict, List

    if isinstance(type_, types.DictType) and not has_containers(types.Tuple((type_.key_type, type_.value_type))):
        key_type, value_type = type_.key_type, type_.value_type

        def take_pairs(items: Any) -> Any:
            made = Dict.empty(key_type, value_type)
            for key, value in items:
                made[key] = value
            return made

        return take_pairs
    if isinstance(type_, (types.ListType, types.Set)) and not has_containers(type_.dtype):
        item_type = type_.dtype

        def take_items(items: Any) -> Any:
            made = List.empty_list(item_type)
            for item in items:
                made.append(item)
            return made

        return _take_set if isinstance(type_, types.Set) else take_items
    raise NotImplementedError(f"{type_}, a container in another type")


def _listing(type_: Any) -> Any:
    """Return a function that creates lists of the items of the containers in a value."""
    from numba.core import types

    if not has_containers(type_):
        return lambda found: found
    if isinstance(type_, types.DictType):
        return _listing_pairs(type_.value_type)
    if isinstance(type_, (types.ListType, types.Set, types.List)):
        return _listing_items(type_.dtype)
    if isinstance(type_, types.Optional):
        return _listing_optional(_compiled(_listing(type_.type)))
    if isinstance(type_, types.BaseNamedTuple):
        raise NotImplementedError(f"{type_}, a named tuple with containers")
    scope = {f"of{number}": _compiled(_listing(item)) for number, item in enumerate(type_)}
    items = "".join(f"of{number}(found[{number}]), " for number in range(len(scope)))
    return _made(f"def listed(found):\n    return ({items})", "listed", scope)


def _listing_pairs(value_type: Any) -> Any:
    if not has_containers(value_type):
        return lambda found: [(key, value) for key, value in found.items()]
    of_value = _compiled(_listing(value_type))
    return lambda found: [(key, of_value(value)) for key, value in found.items()]


def _listing_items(item_type: Any) -> Any:
    if not has_containers(item_type):
        return lambda found: [item for item in found]  # noqa: C416 - Numba has no list() of a set
    of_item = _compiled(_listing(item_type))
    return lambda found: [of_item(item) for item in found]


def _listing_optional(of_value: Any) -> Any:
    def listed(found: Any) -> Any:
        if found is None:
            return None
        return of_value(found)

    return listed
