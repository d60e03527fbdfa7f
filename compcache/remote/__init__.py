"""A store that many hosts share: found modules are fetched into the local cache, compiled ones are uploaded in the background.

Nothing here is read by a hit, nor by a process without a remote store. The process that asks talks to a helper process
(`helper/`, one per user and store) through a Unix socket; clients of object stores live in the helper alone, because they start
threads that a forked child does not have.
"""
