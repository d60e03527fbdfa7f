"""The helper process: it holds the clients of remote stores, answers look-ups for all processes of a user, and uploads in the
background.
"""
