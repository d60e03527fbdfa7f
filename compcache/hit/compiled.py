"""The result of `Cache.compile`: the functions of a source by their plain names."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, TypeAlias

    from compcache.hit.target import TypedCallTarget

    _Functions: TypeAlias = Mapping[str, TypedCallTarget[..., Any]]
else:
    # `collections.abc.Mapping` without the package around it, which a fresh process would import for this.
    from _collections_abc import Mapping as _Functions

__all__ = ["CompiledFunctions"]


class CompiledFunctions(_Functions):
    """The functions of a source: ``kernels["scale"]``, or ``kernels.scale`` if mappings have no method of that name.

    A function is loaded on first use, and kept.

    Args:
        names: the func_name of each plain name.
        load: returns the call target of a func_name.
    """

    __slots__ = ("_held", "_load", "_names")

    def __init__(self, names: dict[str, str], load: Callable[[str], TypedCallTarget]) -> None:
        self._names = names
        self._load = load
        self._held: dict[str, TypedCallTarget] = {}

    @property
    def func_names(self) -> dict[str, str]:
        """The name of each function in the cache, by its plain name."""
        return dict(self._names)

    def __getitem__(self, name: str) -> TypedCallTarget:
        """Return the call target of a function, loaded at the first request.

        Raises:
            KeyError: the source has no such function.
            SignatureError, UndefinedSymbolError, ...: the errors of `Cache.get_target`.
        """
        held = self._held.get(name)
        if held is None:
            if name not in self._names:
                raise KeyError(self._unknown_message(name))
            held = self._held[name] = self._load(self._names[name])
        return held

    def __getattr__(self, name: str) -> TypedCallTarget:
        if name in self.__slots__:  # `copy` looks up methods of an object whose fields are not set
            raise AttributeError(f"the field {name} of these functions is not set", name=name, obj=self)
        if name.startswith("__") or name not in self._names:
            raise AttributeError(self._unknown_message(name), name=name, obj=self)
        return self[name]

    def _unknown_message(self, name: str) -> str:
        """Return the message about a function that the source does not have."""
        from compcache.wording import join_first

        return f"the source has no function {name!r}; its functions are {join_first(map(repr, self._names), 20)}"

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names]

    def _repr_html_(self) -> str:
        from compcache.display import html

        return html(self)

    def __repr__(self) -> str:
        return f"<compiled functions {', '.join(self._names)}>"
