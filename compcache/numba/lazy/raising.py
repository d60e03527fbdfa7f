"""Creates the exceptions that compiled code raises in a process without Numba.

Functions contain Numba's pickled descriptions: (class, arguments, location). References in a pickle are resolved by name. If the pickle
refers to Numba, Numba is imported. Exported kernels contain names and plain arguments instead.
"""

from __future__ import annotations

import sys

from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ModuleFilePath", "file_of", "known_exception", "make_exception", "unpack_exception", "unpickle"]

_LOCATION_ITEMS = 3


class ModuleFilePath(str):
    """The path of a module's file. Pickling stores the name of the module, and unpickling returns the path in the other process."""

    __slots__ = ("module",)
    module: str

    def __reduce__(self) -> Any:
        return file_of, (self.module, str(self))


def file_of(module: str, path: str) -> str:
    """Return the file of a module in this process, or the recorded path if the module is not imported."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file if isinstance(file, str) else path


class _Computed:
    """Marks an argument that is computed when the exception is raised. In Numba's description it is an LLVM value."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def unpickle(data: bytes) -> Any:
    """Return the object in a pickle that may refer to Numba objects or LLVM.

    References to LLVM values become `_Computed`. A reference to Numba imports Numba.
    """
    import io
    import pickle

    from compcache.numba.lazy.stand_ins import real_numba

    class Unpickler(pickle.Unpickler):
        """Finds all classes by name, except for LLVM values, which only mark positions."""

        def find_class(self, module: str, name: str) -> Any:
            """Return a class by its module and name. Import Numba if the class is Numba's. Values of llvmlite become `_Computed`."""
            if module.startswith("llvmlite."):
                return _Computed
            if module.partition(".")[0] == "numba":
                real_numba()  # a stand-in is not a class
            return super().find_class(module, name)

    return Unpickler(io.BytesIO(data)).load()


def unpack_exception(description: bytes, arguments: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """Return the class, the arguments and the location of an exception. `arguments` replace the marked arguments of the description."""
    cls, described, location = unpickle(description)
    computed = iter(arguments)
    return cls, tuple([next(computed) if isinstance(item, _Computed) else item for item in described]), location


def known_exception(described: bytes, computed: Any) -> BaseException:
    """Return the exception to raise for an exported kernel. The code of kernels contains the name of this function.

    `described` is the marshalled module, class name and arguments of the exception, `computed` the values that replace an ellipsis in it.
    See `make_exception` for the exceptions.
    """
    from importlib import import_module
    from marshal import loads
    from operator import attrgetter

    module, qualname, arguments = loads(described)  # noqa: S302 - a constant of the code that runs
    cls = attrgetter(qualname)(import_module(module))
    values = iter(computed or ())
    return make_exception((cls, tuple([next(values) if argument is ... else argument for argument in arguments]), None))


def make_exception(described: Any) -> BaseException:
    """Return the exception to raise, with the line of the kernel in its traceback.

    `described` is an exception, its class, or a tuple of the class, the arguments and the location. Raise `TypeError` if the object is not
    an exception. The class itself may raise any exception.
    """
    location = None
    if type(described) is tuple:
        described, arguments, location = described
        exception = described if arguments is None else described(*arguments)
    else:
        exception = described
    if isinstance(exception, type) and issubclass(exception, BaseException):
        exception = exception()
    if not isinstance(exception, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    return _set_location(exception, location)


def _set_location(exception: BaseException, location: Any) -> BaseException:
    """Return the exception with a traceback as if a function had raised it at `location` (name, file, line), if this is a location."""
    if not isinstance(location, tuple) or len(location) != _LOCATION_ITEMS:
        return exception
    name, path, line = location
    code = compile("\n" * (line - 1) + "raise exception", path, "exec").replace(co_name=name)
    try:
        exec(code, {"exception": exception})  # noqa: S102 - generated code
    except BaseException as raised:  # noqa: BLE001 - this is the exception to return
        reraise_interrupt(raised)
        traceback = raised.__traceback__
        return raised.with_traceback(traceback.tb_next if traceback is not None else None)
    return exception
