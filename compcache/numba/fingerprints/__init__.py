"""Digests by content: functions, and everything that the compiler or the code that it runs can see of them."""
