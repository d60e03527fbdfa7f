"""COMMAND...: milliseconds of processor time of a command, and the greatest resident memory in MB, whatever it writes.

A process counts the memory of the one that it was forked from, so this is one that has little.
"""

import json
import os
import sys

child = os.fork()
if not child:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.execv(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(child, 0)
if status:
    sys.exit(f"{sys.argv[1:]} ended with status {os.waitstatus_to_exitcode(status)}")
print(json.dumps({"ms": (usage.ru_utime + usage.ru_stime) * 1e3, "mb": usage.ru_maxrss / 1e3}))
