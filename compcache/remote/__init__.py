"""A store that many hosts share. Found modules are fetched into the local cache; compiled modules are uploaded in the background.

A hit imports nothing of this package, and neither does a process without a remote store. The process that asks talks to a helper process
(`helper/`, one per user and store) through a Unix socket. Clients of object stores live in the helper alone, because they start threads
that a forked child does not have.
"""
