"""Shared objects: made by the writer or by a linker, and mapped by the dynamic linker."""
