"""ELF files as bytes: their parts, their content (`reading`), and copies with changed bytes (`patching`)."""
