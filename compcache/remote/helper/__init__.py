"""The helper process: the client of a remote store, look-ups for all processes of a user, uploads in the background."""
