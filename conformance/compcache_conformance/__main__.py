"""`python -m compcache_conformance`."""

from compcache_conformance.cli import main

raise SystemExit(main())
