"""WARM_DIRECTORY WARM_NAME DIRECTORY NAME: private KiB that loading and calling one function adds to this process."""

import sys

from children.private_memory import private_kib
from compcache import Cache

if __name__ == "__main__":
    warm = Cache(sys.argv[1]).get_target(sys.argv[2])
    warm(1.0, 2.0)
    cache = Cache(sys.argv[3])
    private_kib()
    before = private_kib()
    target = cache.get_target(sys.argv[4])
    target(1.0, 2.0)
    print(private_kib() - before)
