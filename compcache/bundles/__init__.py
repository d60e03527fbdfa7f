"""Bundles: chosen functions in one file, the same bytes for the same content; exported, imported, used as a layer."""
