"""Shared objects: what a linker makes of a module, and the dynamic linker maps."""
