"""The scenarios, a file for each family."""

from __future__ import annotations

from compcache_conformance.scenarios import damage, hosts, living, missed, network, places, races, scale, stale, trust, wrong_entry
from compcache_conformance.scenarios.core import CORE
from compcache_conformance.scenarios.registry import FAMILIES, SCENARIOS, Scenario

__all__ = [
    "CORE",
    "FAMILIES",
    "SCENARIOS",
    "Scenario",
    "damage",
    "hosts",
    "living",
    "missed",
    "network",
    "places",
    "races",
    "scale",
    "stale",
    "trust",
    "wrong_entry",
]
