"""Codecs of the on-disk formats, one file each: bytes to records and back. Only indexes and volumes open files."""
