"""Bundles: files with chosen functions, which can be exported, imported and used as layers. The same content gives the same bytes."""
