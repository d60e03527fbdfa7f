"""Decides whether other processes would have the same Python objects that compiled code refers to.

Code contains pickles of the objects that it raises and returns, and refers to constants. A class or function that can be found by name is
pickled as this name. Any other is pickled as a copy, and each process that unpickles the copy creates another object: `except` and `is`
would distinguish it from the program's own object.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from numba.core.dispatcher import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["reason_for_copied_objects"]

#: The function that cloudpickle calls to create the copy of a class.
_MAKES_CLASS = "_make_skeleton_"
_PICKLE = re.compile(rf"^@[^\n]*\.const\.pickledata\.[^\n]*{_MAKES_CLASS}", re.MULTILINE)


def reason_for_copied_objects(text: str, pickled: bytes, constants: Iterable[Any]) -> str | None:
    """Return why other processes would get copies of objects, or None if other processes find the same objects.

    Args:
        text: the assembly of the code.
        pickled: the pickled description of the code.
        constants: the constants of its environment.
    """
    functions = [constant for constant in constants if isinstance(constant, Dispatcher)]
    if functions:
        return f"the code returns the function {functions[0].py_func.__qualname__}; other processes would have a copy of this function"
    if _MAKES_CLASS.encode() in pickled or _PICKLE.search(text):
        return "the code refers to a class that cannot be found by its name; other processes would have a copy of this class"
    return None
