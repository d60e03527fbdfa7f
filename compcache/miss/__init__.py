"""From "not found" to "callable", in the order in which it happens: ask the remote store, claim, build, publish, load; many sources at
once.
"""
