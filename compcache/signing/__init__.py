"""Ed25519 signatures of modules: named keys, what is signed, and how that is kept beside a module."""
