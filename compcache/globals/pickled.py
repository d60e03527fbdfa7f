"""Definitions that are pickled objects, for caches that are opened with `allow_pickle=True`."""

from __future__ import annotations

from compcache.errors import PickleNotAllowedError
from compcache.globals.definition import GlobalDefinition, Storage, invalid_error, pack_object, register
from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.globals.definition import LoadContext

__all__ = ["Pickled"]


@register
class Pickled(GlobalDefinition):
    """A pickled object, for caches that are opened with `allow_pickle=True`. Use `Pickled.of` to pickle a value.

    A pickle can execute arbitrary code when it is loaded. Every load unpickles a new object.

    Args:
        data: the pickle.
    """

    __slots__ = ("data",)
    data: bytes
    kind = "pickle"

    def __init__(self, data: bytes) -> None:
        """Check that the pickle is bytes. Raise `TypeError` if `data` is not bytes."""
        if not isinstance(data, bytes):
            raise TypeError(f"Pickled(): data must be a pickle as bytes, not {type(data).__name__}; use Pickled.of to pickle a value")
        super().__init__(data)

    @classmethod
    def of(cls, value: object) -> Pickled:
        """Pickle a value, and return its definition. Later changes of the value do not affect the definition.

        Args:
            value: an object that can be pickled.

        Raises:
            GlobalValidationError: the value cannot be pickled.
        """
        import pickle

        try:
            return cls(pickle.dumps(value, protocol=4))
        except Exception as error:
            reraise_interrupt(error)
            raise invalid_error(
                f"an object of type {type(value).__qualname__} cannot be pickled ({error}): pass a value that can"
            ) from error

    def encode(self) -> bytes:
        return self.data

    @classmethod
    def decode(cls, payload: bytes) -> Pickled:
        return cls(payload)

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        if not context.allow_pickle:
            reason = "the value is pickled, but the cache was opened without allow_pickle=True: open the cache with this option"
            raise PickleNotAllowedError(reason, reason=reason)
        import pickle

        try:
            value = pickle.loads(self.data)  # noqa: S301 - only if the caller has allowed it
        except Exception as error:
            reraise_interrupt(error)
            raise invalid_error(f"the value cannot be unpickled: {error}; its classes must be as they were when it was pickled") from error
        return pack_object(value, storage)
