"""Decides whether the Python objects to which compiled code refers would be the same in other processes.

Code contains pickles of the objects that it raises or returns, and refers to constants. A class or function that can be found by its name
is pickled as this name. Any other class or function is pickled as a copy. Each process that unpickles the copy creates a new object, which
`except` and `is` distinguish from the program's own object.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from numba.core.dispatcher import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["copied_objects_reason"]

#: The function that cloudpickle calls to create the copy of a class.
_CLASS_COPIER = "_make_skeleton_"
_PICKLED_CLASS_COPY = re.compile(rf"^@[^\n]*\.const\.pickledata\.[^\n]*{_CLASS_COPIER}", re.MULTILINE)


def copied_objects_reason(text: str, pickled: bytes, constants: Iterable[Any]) -> str | None:
    """Return why other processes would get copies of objects, or None if other processes find the same objects.

    The objects are in LLVM assembly, in the pickled description of the code, and among the constants of its environment.
    """
    functions = [constant for constant in constants if isinstance(constant, Dispatcher)]
    if functions:
        return f"the code returns the function {functions[0].py_func.__qualname__}; other processes would have a copy of this function"
    if _CLASS_COPIER.encode() in pickled or _PICKLED_CLASS_COPY.search(text):
        return "the code refers to a class that cannot be found by its name; other processes would have a copy of this class"
    return None
