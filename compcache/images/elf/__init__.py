"""ELF files as bytes: their parts, what they say (`reading`), and files like them with other bytes (`patching`)."""
