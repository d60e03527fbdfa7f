"""KIND DIRECTORY COUNT: many equal objects of ten functions, under names of their own; no fsync anywhere."""

import sys

import orc_objects
import sources


def main(kind: str, directory: str, count: int) -> None:
    obj = orc_objects.compile_object(sources.small_module([f"template_{number}" for number in range(10)]))
    if kind == "orc":
        for number in range(count):
            orc_objects.store(directory, f"module-{number}", obj)
        return
    import diskcache

    # Without a size limit that would evict; the settings are otherwise diskcache's own.
    with diskcache.Cache(directory, size_limit=1 << 40) as cache, cache.transact():
        for number in range(count):
            cache[f"module-{number}"] = obj


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
print("null")
