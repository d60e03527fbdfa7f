"""Remote stores, which many hosts share.

Modules that a store has are fetched into the local cache. Compiled modules are uploaded in the background.

A hit imports nothing from this package, and neither does a process without a remote store. A process sends its look-ups to a helper
process (`helper/`, one per user and store) through a Unix socket. Only the helper uses clients of object stores, because these clients
start threads, and a forked child does not inherit threads.
"""
