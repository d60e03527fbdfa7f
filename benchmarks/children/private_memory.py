"""The private memory of this process, as the kernel counts it, read without allocating any."""

BUFFER = bytearray(1 << 16)


def private_parts() -> tuple[int, int]:
    """Private memory in KiB: all of it, and what is not a page of a file, because it was written to.

    The rest are pages of files that no other process has mapped. Those count as dirty, too, until the disk has what was written to the
    file.
    """
    private = own = 0
    with open("/proc/self/smaps_rollup", "rb", buffering=0) as rollup:
        size = rollup.readinto(BUFFER)
    for line in bytes(BUFFER[:size]).splitlines():
        if line.startswith((b"Private_Clean:", b"Private_Dirty:")):
            private += int(line.split()[1])
        elif line.startswith(b"Anonymous:"):
            own = int(line.split()[1])
    return private, own


def private_kib() -> int:
    """Private memory, clean and dirty, in KiB."""
    return private_parts()[0]
