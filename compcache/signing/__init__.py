"""Ed25519 signatures of modules: named keys, the signed message, and the file of signatures of a module."""
