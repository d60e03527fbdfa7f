"""The fill colours of nodes in drawings: the nodes of a module have the same colour in every drawing."""

from __future__ import annotations

from colorsys import hls_to_rgb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compcache.inspect.descriptions import GraphNode

__all__ = ["fill_colour"]

_COLOUR_BY_KIND = {"missing": "#ffd0d0", "native": "#f4f4f4"}


def fill_colour(node: GraphNode) -> str:
    """Return the fill colour of a node as ``#rrggbb``. Module ids are digests, so modules are spread evenly over the hues."""
    if node.kind in _COLOUR_BY_KIND or not node.module_id:
        return _COLOUR_BY_KIND.get(node.kind, "#f4f4f4")
    hue = int(node.module_id[:4], 16) / 0x10000
    red, green, blue = hls_to_rgb(hue, 0.86 if node.kind == "function" else 0.93, 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
