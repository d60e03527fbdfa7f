"""Displays objects of this package in notebooks. The code for drawing is imported on demand."""

from __future__ import annotations

__all__ = ["Shown", "html"]


def html(value: object) -> str:
    """Return HTML for an object, for methods `_repr_html_`, which IPython and Jupyter call."""
    from compcache.notebook import html_of

    return html_of(value)


class Shown:
    """A base class for records that notebooks show as tables."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html(self)
