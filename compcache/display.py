"""How objects of this package are displayed in a notebook. The drawing code is imported on demand."""

from __future__ import annotations

__all__ = ["Shown", "html"]


def html(value: object) -> str:
    """Return HTML for an object: the protocol of IPython and Jupyter for `_repr_html_`."""
    from compcache.notebook import html_of

    return html_of(value)


class Shown:
    """A base of records that notebooks show as tables."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html(self)
