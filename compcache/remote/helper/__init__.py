"""The helper process: holds the clients of remote stores, answers look-ups for all processes of a user, uploads in the background."""
