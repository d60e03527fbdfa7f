"""TESTS NAME DOWNLOADS OUT CACHE: a library of the peers as modules of their own, in CACHE/apart, and linked, in CACHE/linked.

TESTS is the directory of the tests, whose `peer.linked_libraries` says how the library is built.
"""

import json
import shutil
import sys
from pathlib import Path

from compcache import Cache


def main(tests: str, name: str, downloads: str, out: str, place: str) -> None:
    sys.path.append(tests)
    from peer import linked_libraries
    from peer.programs import Places, UnavailableError

    places = Places(Path(downloads), Path(out), debug=False)
    try:
        library = getattr(linked_libraries, name)(places)
        ordinary = library.ordinary(places)
    except UnavailableError as error:
        print(json.dumps({"unavailable": str(error)}))
        return
    with Cache(f"{place}/apart") as cache:
        modules = cache.add_modules(library.sources(places))
    shutil.copytree(f"{place}/apart", f"{place}/linked", symlinks=True)
    with Cache(f"{place}/linked") as cache:
        cache.link(library.functions, into=name)
    print(json.dumps({"modules": len(modules), "functions": len(library.functions), "ordinary": str(ordinary)}))


main(*sys.argv[1:])
