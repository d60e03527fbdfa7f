"""A conformance suite for caches of compiled code.

Scenarios (`scenarios/`) say what is done to a cache and what must hold; adapters (`adapters/`) let them be played against one; `runner`
plays them, and `reports/` writes what came of it.
"""

from __future__ import annotations

from compcache_conformance.adapter import Adapter
from compcache_conformance.results import Cannot, Outcome, Result

__all__ = ["Adapter", "Cannot", "Outcome", "Result"]
