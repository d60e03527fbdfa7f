"""Whether a process has compiled something: what is compiled first imports LLVM, or makes a code generator if LLVM was imported before."""

import sys

_machines = []
_imported_before = "llvmlite" in sys.modules
if _imported_before:
    from llvmlite.binding import TargetMachine

    _make = TargetMachine.__init__
    TargetMachine.__init__ = lambda self, *given: _machines.append(self) or _make(self, *given)


def worked():
    return bool(_machines) if _imported_before else "llvmlite" in sys.modules
