"""Shared objects: a linker makes them from a module, and the dynamic linker maps them."""
