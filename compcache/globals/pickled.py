"""Pickled objects, for caches whose opener allowed them."""

from __future__ import annotations

from compcache.errors import PickleNotAllowedError
from compcache.files import reraise_interrupt
from compcache.globals.definition import GlobalDefinition, Storage, invalid, pack_object, register

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.globals.definition import LoadContext

__all__ = ["Pickled"]


@register
class Pickled(GlobalDefinition):
    """Any picklable object, for caches that are opened with `allow_pickle=True`; `Pickled.of(value)` makes one.

    Reading a pickle runs code of its writer's choice. Every load decodes its own object.

    Args:
        data: the pickle.
    """

    __slots__ = ("data",)
    data: bytes
    kind = "pickle"

    def __init__(self, data: bytes) -> None:
        """`data` is a pickle.

        Raises:
            TypeError: it is not bytes.
        """
        if not isinstance(data, bytes):
            raise TypeError(f"Pickled() takes a pickle as bytes, not {type(data).__name__}: Pickled.of(value) pickles a value")
        super().__init__(data)

    @classmethod
    def of(cls, value: object) -> Pickled:
        """Return the definition of `value`, pickled now.

        Args:
            value: any object that can be pickled.

        Raises:
            GlobalValidationError: it cannot be pickled.
        """
        import pickle

        try:
            return cls(pickle.dumps(value, protocol=4))
        except Exception as error:
            reraise_interrupt(error)
            raise invalid(f"{type(value).__qualname__} object cannot be pickled: {error}") from error

    def encode(self) -> bytes:
        return self.data

    @classmethod
    def decode(cls, payload: bytes) -> Pickled:
        return cls(payload)

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        if not context.allow_pickle:
            reason = "it is pickled, and the cache was not opened with allow_pickle=True"
            raise PickleNotAllowedError(reason, reason=reason)
        import pickle

        try:
            value = pickle.loads(self.data)  # noqa: S301 - only for a caller who allowed it
        except Exception as error:
            reraise_interrupt(error)
            raise invalid(f"it does not unpickle: {error}") from error
        return pack_object(value, storage)
