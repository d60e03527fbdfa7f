"""Wraps kernels whose parameters or results are Numba's containers, so that processes without Numba can pass lists instead.

Typed lists, typed dictionaries and sets are objects of Numba with their own memory. A kernel with such parameters or results is compiled
together with a wrapper that takes and returns lists of the items. A process without Numba converts Python objects to and from these lists.
The wrapper writes the kernel's changes to a container back to the list.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["contains_type", "created_type", "has_containers", "item_types", "make_list_adapter", "replace_containers"]


def replace_containers(type_: Any) -> Any:
    """Return a Numba type with lists in place of Numba's containers. The list for a dictionary contains (key, value) tuples."""
    if isinstance(type_, types.DictType):
        pair = types.Tuple((replace_containers(type_.key_type), replace_containers(type_.value_type)))
        return types.List(pair, reflected=True)
    if isinstance(type_, (types.ListType, types.Set)):
        return types.List(replace_containers(type_.dtype), reflected=True)
    if not has_containers(type_):
        return type_
    if isinstance(type_, types.Optional):
        return types.Optional(replace_containers(type_.type))
    if isinstance(type_, types.List):
        return types.List(replace_containers(type_.dtype), reflected=type_.reflected)
    return types.Tuple([replace_containers(item) for item in type_])


def created_type(type_: Any) -> Any:
    """Return the type of the container that compiled code creates from lists of items. A set of this type does not mirror a Python set."""
    if isinstance(type_, types.Set):
        return types.Set(type_.dtype)
    if isinstance(type_, (types.Tuple, types.UniTuple)):
        return types.Tuple([created_type(item) for item in type_])
    return types.Optional(created_type(type_.type)) if isinstance(type_, types.Optional) else type_


def has_containers(type_: Any) -> bool:
    """Return whether a value of this type is one of Numba's containers, or contains one."""
    return contains_type(type_, (types.DictType, types.ListType, types.Set))


def contains_type(type_: Any, classes: tuple[type, ...]) -> bool:
    """Return whether a Numba type, or the type of an item in its values, has one of these classes."""
    return isinstance(type_, classes) or any(contains_type(item, classes) for item in item_types(type_))


def item_types(type_: Any) -> list[Any]:
    """Return the types of the items in values of this type, if any: pairs of a dictionary, the value of an optional type or enumeration."""
    if isinstance(type_, types.Optional):
        return [type_.type]
    if isinstance(type_, types.BaseTuple):
        return list(type_)
    if isinstance(type_, types.DictType):
        return [types.Tuple((type_.key_type, type_.value_type))]
    if isinstance(type_, (types.List, types.ListType, types.Set, types.EnumMember)):
        return [type_.dtype]
    return []


def make_list_adapter(kernel: Any, args: Sequence[Any], result: Any) -> Any:
    """Return a Python function that calls a kernel, with lists in place of containers among the arguments and the result.

    For a kernel with a container as its argument, the function is::

        def with_lists(given0):
            made_given0 = take_given0(given0)
            note(given0, made_given0)
            result = kernel(made_given0)
            forget(given0)
            replace(given0, items_given0(made_given0))
            return result

    `args` and `result` are the types of the kernel's arguments and of its result. Raise `NotImplementedError` if lists cannot replace a
    container in one of the types. The message names the type.
    """
    names = [f"given{number}" for number in range(len(args))]
    note, forget = _make_note_functions()
    scope: dict[str, Any] = {"kernel": kernel, "note": note, "forget": forget, "replace": _jit_without_wrappers(_replace_items)}
    create, passed, write_back = [], [], []
    for name, type_ in zip(names, args, strict=True):
        if not has_containers(type_):
            passed.append(name)
            continue
        scope[f"take_{name}"] = _jit_without_wrappers(_make_creator(type_))
        create += [f"    made_{name} = take_{name}({name})", f"    note({name}, made_{name})"]
        passed.append(f"made_{name}")
        scope[f"items_{name}"] = _jit_without_wrappers(_make_lister(type_))
        write_back += [f"    forget({name})", f"    replace({name}, items_{name}(made_{name}))"]
    scope["items_of_result"] = _jit_without_wrappers(_make_lister(result))
    returned = "items_of_result(result)" if has_containers(result) else "result"
    lines = [f"def with_lists({', '.join(names)}):", *create, f"    result = kernel({', '.join(passed)})", *write_back]
    return _define("\n".join([*lines, f"    return {returned}"]), "with_lists", scope)


def _jit_without_wrappers(function: Any) -> Any:
    """Return a jitted function that only compiled code can call, because some of its types have no conversion from Python objects."""
    return njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


def _define(text: str, name: str, scope: dict[str, Any]) -> Any:
    """Execute the source text of a function in a namespace, and return the function with this name."""
    exec(text, scope)  # noqa: S102 - this module creates the text
    return scope[name]


#: The number of the field in a list's memory block for the container created from the list. Numba uses the field only for other devices.
_CONTAINER_IN_BLOCK = 5


@functools.cache
def _make_note_functions() -> tuple[Any, Any]:
    """Return two intrinsics: one records in a list's block the container that was created from the list, the other clears this record.

    Code that raises an exception never releases its references. With the record, freeing the list also frees the container, to which no
    other object can refer.
    """

    def store(context: Any, builder: Any, type_: Any, items: Any, container: Any) -> Any:
        """Generate code that stores a container's block, or null for None, in the block of a list."""
        block = cgutils.create_struct_proxy(type_)(context, builder, value=items).meminfo
        pointer = ir.IntType(8).as_pointer()
        fields = builder.bitcast(block, pointer.as_pointer())
        field = builder.gep(fields, [ir.Constant(ir.IntType(32), _CONTAINER_IN_BLOCK)])
        builder.store(builder.bitcast(container, pointer) if container is not None else ir.Constant(pointer, None), field)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def note(_: Any, list_type: Any, container_type: Any) -> Any:
        """Record in the block of a list the container that was created from the list."""

        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            items, container = args
            container_block = cgutils.create_struct_proxy(container_type)(context, builder, value=container).meminfo
            return store(context, builder, list_type, items, container_block)

        return types.void(list_type, container_type), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def forget(_: Any, list_type: Any) -> Any:
        """Clear the record in the block of a list."""

        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            (items,) = args
            return store(context, builder, list_type, items, None)

        return types.void(list_type), generate

    return note, forget


def _replace_items(items: Any, changed: Any) -> None:
    """Replace all items of the list `items` by the items of `changed`."""
    items.clear()
    items.extend(changed)


def _create_set(items: Any) -> Any:
    """Return a set of the items of a list. Numba compiles this function."""
    return set(items)


def _make_creator(type_: Any) -> Any:
    """Return a function that creates a container from the list of its items.

    Raise `NotImplementedError` if the type is not one of Numba's containers, or if its items contain containers.
    """
    from numba.typed import Dict, List

    if isinstance(type_, types.DictType) and not has_containers(types.Tuple((type_.key_type, type_.value_type))):
        key_type, value_type = type_.key_type, type_.value_type

        def create_dict(items: Any) -> Any:
            container = Dict.empty(key_type, value_type)
            for key, value in items:
                container[key] = value
            return container

        return create_dict
    if isinstance(type_, (types.ListType, types.Set)) and not has_containers(type_.dtype):
        item_type = type_.dtype

        def create_list(items: Any) -> Any:
            container = List.empty_list(item_type)
            for item in items:
                container.append(item)
            return container

        return _create_set if isinstance(type_, types.Set) else create_list
    raise NotImplementedError(f"compcache has no conversion for the type {type_}, in which a container is nested; use another type")


def _make_lister(type_: Any) -> Any:
    """Return a function that replaces the containers in a value by lists of their items.

    Raise `NotImplementedError` if a named tuple contains a container.
    """
    if not has_containers(type_):
        return lambda value: value
    if isinstance(type_, types.DictType):
        return _make_pairs_lister(type_.value_type)
    if isinstance(type_, (types.ListType, types.Set, types.List)):
        return _make_items_lister(type_.dtype)
    if isinstance(type_, types.Optional):
        return _make_optional_lister(_jit_without_wrappers(_make_lister(type_.type)))
    if isinstance(type_, types.BaseNamedTuple):
        raise NotImplementedError(f"compcache has no conversion for the type {type_}, a named tuple with a container; use another type")
    scope = {f"of{number}": _jit_without_wrappers(_make_lister(item)) for number, item in enumerate(type_)}
    items = "".join(f"of{number}(value[{number}]), " for number in range(len(scope)))
    return _define(f"def listed(value):\n    return ({items})", "listed", scope)


def _make_pairs_lister(value_type: Any) -> Any:
    """Return a function that lists a dictionary's items, with values of `value_type`. See `_make_lister` for the exception."""
    if not has_containers(value_type):
        return lambda dictionary: [(key, value) for key, value in dictionary.items()]
    of_value = _jit_without_wrappers(_make_lister(value_type))
    return lambda dictionary: [(key, of_value(value)) for key, value in dictionary.items()]


def _make_items_lister(item_type: Any) -> Any:
    """Return a function that lists the items, of `item_type`, of a list or set. See `_make_lister` for the exception."""
    if not has_containers(item_type):
        return lambda container: [item for item in container]  # noqa: C416 - Numba has no list() of a set
    of_item = _jit_without_wrappers(_make_lister(item_type))
    return lambda container: [of_item(item) for item in container]


def _make_optional_lister(lister: Any) -> Any:
    """Return a function that calls a lister with a value, or returns None for None."""

    def listed(value: Any) -> Any:
        if value is None:
            return None
        return lister(value)

    return listed
