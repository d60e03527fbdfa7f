"""The helper process: it answers look-ups for all processes of a user, and uploads in the background.

The clients of remote stores live in this process alone.
"""
