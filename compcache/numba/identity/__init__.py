"""Identities: the key of a compiled overload, and the implementations that the compiler used."""
