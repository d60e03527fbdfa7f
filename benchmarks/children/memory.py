"""WARM_DIRECTORY WARM_NAME DIRECTORY NAME: private KiB that loading and calling one function adds to this process."""

import sys

from compcache import Cache

BUFFER = bytearray(1 << 16)


def private_kib() -> int:
    """Private memory of this process, clean and dirty, as the kernel counts it."""
    total = 0
    with open("/proc/self/smaps_rollup", "rb", buffering=0) as rollup:
        size = rollup.readinto(BUFFER)
    for line in bytes(BUFFER[:size]).splitlines():
        if line.startswith((b"Private_Clean:", b"Private_Dirty:")):
            total += int(line.split()[1])
    return total


if __name__ == "__main__":
    warm = Cache(sys.argv[1]).get_target(sys.argv[2])
    warm(1.0, 2.0)
    cache = Cache(sys.argv[3])
    private_kib()
    before = private_kib()
    target = cache.get_target(sys.argv[4])
    target(1.0, 2.0)
    print(private_kib() - before)
