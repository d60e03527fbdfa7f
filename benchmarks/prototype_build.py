"""Makes the directory that `prototype.get_target` reads: an index of many names and one image."""

from __future__ import annotations

from pathlib import Path

import prototype

ENTRIES = 100_000


def build_prototype(directory: str, name: str) -> None:
    """Write index and image; `name` is the one function that has code."""
    import llvmlite.binding as llvm

    from compcache.images.linkers.find import find_linker
    from compcache.images.linkers.link import link_shared

    root = Path(directory)
    root.mkdir(parents=True)
    keys = {prototype.key_of(f"other {number}") for number in range(ENTRIES)} | {prototype.key_of(name)}
    entries = [key + bytes(prototype.ENTRY_SIZE - len(key)) for key in sorted(keys)]
    (root / "index").write_bytes(b"".join(entries))
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(opt=2, reloc="pic", codemodel="default")
    obj = target.emit_object(llvm.parse_assembly(prototype.IMAGE))
    linker = find_linker()
    if linker is None:
        raise SystemExit("the benchmarks need a linker: install ld, lld, mold or the ziglang wheel")
    image = link_shared(
        linker, [obj], soname="prototype.so", libraries=[], export=["prototype_def"]
    )
    (root / "0.so").write_bytes(image)
