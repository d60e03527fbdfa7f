"""Reads ELF files that are held as bytes (`parts`, `reading`), and makes changed copies (`patching`)."""
