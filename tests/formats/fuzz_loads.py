"""Loads modules whose records were changed behind right checksums. Run as a child process: directory, seed, cases.

Each case is announced before it is tried, so that a crash has an author. Functions are looked up, described and loaded,
and not called: their code is what it was, their signature may not be.
"""

from __future__ import annotations

import random
import shutil
import sys
import warnings
from pathlib import Path

from compcache import Cache, CompcacheError
from compcache.digest import check
from compcache.formats.footer import FOOTER_SIZE, decode_footer, encode_container
from compcache.formats.manifest import FRAME
from compcache.formats.records import decode_module

KINDS = ("byte", "bit", "number", "swap", "graph", "notes", "key")
NUMBERS = (0, 1, 2, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)


def frames_of(records: bytes) -> list[bytes]:
    """The payloads of all frames."""
    found = []
    at = 0
    while at < len(records):
        length, _ = FRAME.unpack_from(records, at)
        found.append(records[at + FRAME.size : at + FRAME.size + length])
        at += FRAME.size + length
    return found


def encoded(payloads: list[bytes], key: bytes) -> bytes:
    """The records section of these payloads, with right checks."""
    section = b""
    for payload in payloads:
        offset = len(section)
        section += FRAME.pack(len(payload), check(payload, offset, key if offset else b"")) + payload
    return section


def changed(payload: bytes, kind: str, chance: random.Random) -> bytes:
    """A payload of the same length with something else in it; its kind, the first byte, stays in most cases."""
    data = bytearray(payload)
    at = chance.randrange(chance.random() > 0.05, len(data)) if len(data) > 1 else 0
    if kind == "byte":
        data[at] = chance.randrange(256)
    elif kind == "bit":
        data[at] ^= 1 << chance.randrange(8)
    elif kind == "swap":
        other = chance.randrange(len(data))
        data[at], data[other] = data[other], data[at]
    else:
        number = chance.choice(NUMBERS).to_bytes(4, "little")
        data[at : at + 4] = number[: len(data) - at]
    return bytes(data)


def mutate(path: Path, chance: random.Random) -> str:
    """Replace a module by one with other records, graph or notes and everything else right; what was done."""
    data = path.read_bytes()
    footer = decode_footer(data[-FOOTER_SIZE:], len(data))
    sections = []
    at = 0
    for size in (footer.image, footer.records, footer.graph, footer.bitcode, footer.notes):
        sections.append(data[at : at + size])
        at += size
    payloads = frames_of(sections[1])
    key = decode_module(payloads[0]).key
    kind = chance.choice(KINDS)
    if kind in ("graph", "notes"):
        index = 2 if kind == "graph" else 4
        if sections[index]:
            sections[index] = changed(sections[index], "byte", chance)
    elif kind == "key":
        payloads[0] = payloads[0].replace(key, bytes(chance.randrange(256) for _ in key))
        key = decode_module(payloads[0]).key
    else:
        for _ in range(chance.randint(1, 3)):
            number = chance.randrange(len(payloads))
            payloads[number] = changed(payloads[number], kind, chance)
        if payloads[0][:1] == b"m" or kind:
            try:
                key = decode_module(payloads[0]).key
            except Exception:  # noqa: BLE001 - the check of the others then does not matter
                key = bytes(16)
    sections[1] = encoded(payloads, key)
    image, records, graph, bitcode, notes = sections
    module_id, parts = encode_container(image, records, graph, bitcode, notes, None)
    path.unlink()
    target = path.parent.parent / module_id.hex()[:2] / f"{module_id.hex()}{path.suffix}"
    target.parent.mkdir(mode=0o700, exist_ok=True)
    target.write_bytes(b"".join(parts))
    target.chmod(0o600)
    return kind


def main(pristine: Path, work: Path, seed: int, cases: int) -> None:
    """Try the cases; print one line for each, and then how many functions were loaded, and how many were refused."""
    warnings.simplefilter("ignore")
    loaded = refused = 0
    for number in range(cases):
        chance = random.Random(seed * 1_000_003 + number)
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(pristine, work)
        shutil.rmtree(work / "index-v1", ignore_errors=True)
        module = chance.choice(sorted(work.glob("modules-v*/*/*.ccm")))
        print(f"case {number} of seed {seed}: {mutate(module, chance)} of {module.name}", flush=True)
        with Cache(work) as cache:
            for name in "fghtk":
                try:
                    cache.get_target(name)
                    loaded += 1
                except CompcacheError:
                    refused += 1
            for look in (cache.functions, cache.modules, cache.graph, lambda: cache.explain("h"), cache.check):
                try:
                    look()
                except CompcacheError:
                    refused += 1
    print(f"result {loaded} {refused}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
