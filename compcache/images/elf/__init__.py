"""Reads ELF files in memory (`parts`, `reading`), and makes changed copies (`patching`)."""
