"""Decides whether another process would have the same Python objects as those that compiled code holds.

Code holds pickles of what it raises and returns, and refers to constants. A class or function that can be found by its name is
pickled as that name; any other is pickled as a copy, which is another object in each process that unpickles it: `except`
and `is` would tell it from the program's own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from numba.core.dispatcher import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["why_copied"]

#: What cloudpickle calls to make the copy of a class.
_MAKES_CLASS = "_make_skeleton_"
_PICKLE = re.compile(rf"^@[^\n]*\.const\.pickledata\.[^\n]*{_MAKES_CLASS}", re.MULTILINE)


def why_copied(text: str, pickled: bytes, constants: Iterable[Any]) -> str | None:
    """Return why another process would get copies of objects that code, its description or its constants hold; None if it would not."""
    functions = [constant for constant in constants if isinstance(constant, Dispatcher)]
    if functions:
        return f"its result is the function {functions[0].py_func.__qualname__} itself"
    if _MAKES_CLASS.encode() in pickled or _PICKLE.search(text):
        return "it holds a class that cannot be found by its name, of which another process would have a copy"
    return None
