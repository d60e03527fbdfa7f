"""Child process: translate the bitcode on standard input and exit 0, unless LLVM ends the process first."""

from __future__ import annotations

import sys

from compcache.build import codegen

__all__ = ["main"]


def main() -> int:
    """Optimize and emit, with the CPU, features and level of the command line."""
    cpu, features, level = sys.argv[1:4]
    with codegen.new_context() as context:
        module = codegen.parse(sys.stdin.buffer.read(), context)
        machine = codegen.target_machine(cpu, features, int(level))
        codegen.optimize(module, machine, int(level))
        codegen.emit_object(module, machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
