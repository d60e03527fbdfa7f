"""The errors of look-ups that interrupt a load, from a signal handler or a finalizer, and meet its half-finished state."""

from __future__ import annotations

from compcache.errors import LinkError, ReentrantLoadError

__all__ = ["add_name", "before_start_error", "half_mapped_error", "in_constructor_error"]

_INTERRUPTED = "a function was requested by code that interrupts a load"


def half_mapped_error(module_id: bytes) -> ReentrantLoadError:
    """Return the exception for a request of a module that this thread is mapping."""
    return ReentrantLoadError(f"{_INTERRUPTED} of module {module_id.hex()}: retry the look-up once the load has finished")


def in_constructor_error(module_id: bytes) -> LinkError:
    """Return the exception for a request of a module by one of its own constructors."""
    name = module_id.hex()
    return LinkError(f"module {name} is being mapped, and one of its constructors requests it: remove that call", module_id=name)


def before_start_error(module_id: bytes) -> ReentrantLoadError:
    """Return the exception for a request of a module whose constructors this thread is about to run."""
    return ReentrantLoadError(
        f"{_INTERRUPTED} of module {module_id.hex()}, whose constructors have not run: retry the look-up once the load has finished"
    )


def add_name(error: Exception, func_name: str) -> Exception:
    """Return the exception to raise for an error of a look-up.

    An error that comes from a half-imported module becomes a `ReentrantLoadError`. Each `ReentrantLoadError` gets the function's name.
    Other errors are returned unchanged.
    """
    if _comes_from_half_import(error):
        # An AttributeError has the module in `obj`, an ImportError its name in `name`.
        module = getattr(getattr(error, "obj", None), "__name__", "") or getattr(error, "name", "")
        error = ReentrantLoadError(f"{_INTERRUPTED} that imports {module}: retry the look-up once the import has finished")
    if isinstance(error, ReentrantLoadError):
        error.func_name = func_name
    return error


def _comes_from_half_import(error: Exception) -> bool:
    """Return whether an error is about a name that a half-imported module lacks, or comes from a half-imported file of this package."""
    if isinstance(error, (ImportError, AttributeError)) and "partially initialized module" in str(error):
        return True  # the handler imported a missing name from the file, or read it as an attribute
    if isinstance(error, ImportError):
        return False
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    names = traceback.tb_frame.f_globals if traceback is not None else {}
    return str(names.get("__name__")).startswith("compcache.") and bool(getattr(names.get("__spec__"), "_initializing", False))
