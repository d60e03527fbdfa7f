"""Maintenance: prune policies and prunes, pins, checks and repairs, the size limit."""
