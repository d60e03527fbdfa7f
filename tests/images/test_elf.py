from __future__ import annotations

import contextlib
import os
import struct
import time
from typing import TYPE_CHECKING

import pytest
from helpers import compile_object
from hypothesis import given, settings
from hypothesis import strategies as st

from compcache.errors import FormatError
from compcache.images.elf import parts, patching, reading
from compcache.images.linkers.find import find_linker
from compcache.images.linkers.link import link_shared

if TYPE_CHECKING:
    from collections.abc import Callable

    Reader = Callable[[bytes], object]

ODD_NAME = 'odd name\n"*é'
IR = r"""
@table = global ptr @used
@tls = external thread_local global i32
declare i64 @used(i64)
declare i64 @"odd name\0A\22*\C3\A9"(i64)
declare extern_weak i64 @already_weak(i64)
define i64 @caller(i64 %x) {
  %a = call i64 @used(i64 %x)
  %b = call i64 @"odd name\0A\22*\C3\A9"(i64 %a)
  %c = call i64 @already_weak(i64 %b)
  %t = load i32, ptr @tls
  %d = zext i32 %t to i64
  %e = add i64 %c, %d
  ret i64 %e
}
define hidden i64 @concealed(i64 %x) { ret i64 %x }
define protected i64 @guarded(i64 %x) { ret i64 %x }
define internal i64 @private(i64 %x) { ret i64 %x }
"""
GLOBAL, WEAK = 1, 2
DEFAULT, HIDDEN, PROTECTED = 0, 2, 3
X86_64 = "x86_64-unknown-linux-gnu"
OBJECT_READERS: list[Reader] = [reading.undefined_symbols, patching.weaken_undefined, patching.hide_symbols, reading.code_sections]
IMAGE_READERS: list[Reader] = [reading.dynamic_undefined, reading.needed_libraries]
READERS: list[Reader] = [reading.architecture_of, patching.protect_dynamic, *OBJECT_READERS, *IMAGE_READERS]


@pytest.fixture(scope="module")
def relocatable() -> bytes:
    return compile_object(IR, X86_64)


@pytest.fixture(scope="module")
def image() -> bytes:
    linker = find_linker()
    if linker is None:
        pytest.skip("no linker on this machine")
    ir = IR.replace("@tls = external", "@tls =").replace("i32\n", "i32 0\n", 1)
    return link_shared(linker, [compile_object(ir)], soname="image")


def section_field(data: bytes, section_type: int, field: str) -> tuple[int, int]:
    """Where a field of the first section of this type lies, and its value."""
    (headers,) = struct.unpack_from("<Q", data, 40)
    (count,) = struct.unpack_from("<H", data, 60)
    header = next(at for at in range(headers, headers + 64 * count, 64) if data[at + 4] == section_type)
    position = header + {"sh_offset": 24, "sh_size": 32, "sh_link": 40, "sh_entsize": 56}[field]
    (value,) = struct.unpack_from("<I" if field == "sh_link" else "<Q", data, position)
    return position, value


def symbol_positions(data: bytes) -> dict[str, int]:
    """Where the record of each symbol lies, read here a second time and straight off the specification."""
    (headers,) = struct.unpack_from("<Q", data, 40)
    start, size, link = (section_field(data, 2, field)[1] for field in ("sh_offset", "sh_size", "sh_link"))
    (names,) = struct.unpack_from("<Q", data, headers + 64 * link + 24)
    positions = {}
    for position in range(start, start + size, 24):
        name = names + int(struct.unpack_from("<I", data, position)[0])
        positions[data[name : data.index(b"\0", name)].decode()] = position
    return positions


def symbol_table(data: bytes) -> dict[str, tuple[int, int]]:
    """Binding and visibility of each symbol."""
    return {name: (data[at + 4] >> 4, data[at + 5]) for name, at in symbol_positions(data).items()}


def changed_names(before: bytes, after: bytes) -> set[str]:
    old, new = symbol_table(before), symbol_table(after)
    return {name for name in old if old[name] != new[name]}


def test_undefined_symbols_are_named_in_table_order_whatever_their_binding(relocatable: bytes) -> None:
    expected = ("used", ODD_NAME, "already_weak", "tls", "__tls_get_addr")
    assert reading.undefined_symbols(relocatable) == expected


def test_an_object_that_defines_all_it_uses_leaves_nothing_undefined() -> None:
    assert reading.undefined_symbols(compile_object("define i64 @f() { ret i64 1 }", X86_64)) == ()


@pytest.mark.parametrize("triple", [X86_64, "aarch64-unknown-linux-gnu"])
def test_the_users_of_a_symbol_are_those_of_the_machine_code(triple: str) -> None:
    code = """
@table = global [2 x ptr] [ptr null, ptr @used]
declare i64 @used(i64)
define double @remainder(double %x, double %y) {
  %r = frem double %x, %y
  ret double %r
}
@other = alias double (double, double), ptr @remainder
define i64 @idle(i64 %x) { ret i64 %x }
"""
    obj = compile_object(code, triple)
    assert reading.users_of(obj, {"fmod", "used"}) == {("remainder", "fmod"), ("other", "fmod"), ("table", "used")}
    assert reading.users_of(obj, {"used"}) == {("table", "used")}


def test_an_object_without_sections_has_no_symbols(relocatable: bytes) -> None:
    bare = bytearray(relocatable[:64])
    struct.pack_into("<Q", bare, 40, 0)
    assert reading.undefined_symbols(bytes(bare)) == ()
    assert patching.weaken_undefined(bytes(bare)) == bytes(bare)


def test_weakening_changes_strong_undefined_symbols_and_not_one_byte_else(relocatable: bytes) -> None:
    weakened = patching.weaken_undefined(relocatable)
    table = symbol_table(weakened)
    assert changed_names(relocatable, weakened) == {"used", ODD_NAME, "__tls_get_addr"}
    assert {table[name][0] for name in ("used", ODD_NAME, "already_weak")} == {WEAK}
    assert table["tls"][0] == table["caller"][0] == GLOBAL
    assert sum(a != b for a, b in zip(relocatable, weakened, strict=True)) == 3
    assert reading.undefined_symbols(weakened) == reading.undefined_symbols(relocatable)


def test_weakening_keeps_the_binding_of_the_names_it_is_told_to_keep(relocatable: bytes) -> None:
    weakened = patching.weaken_undefined(relocatable, keep=[ODD_NAME, "__tls_get_addr", "never heard of"])
    assert changed_names(relocatable, weakened) == {"used"}


def test_hiding_changes_visible_definitions_and_not_one_byte_else(relocatable: bytes) -> None:
    hidden = patching.hide_symbols(relocatable, keep={"caller"})
    assert changed_names(relocatable, hidden) == {"table", "guarded"}
    table = symbol_table(hidden)
    assert table["table"] == table["guarded"] == table["concealed"] == (GLOBAL, HIDDEN)
    assert table["caller"] == (GLOBAL, DEFAULT)
    assert symbol_table(relocatable)["guarded"] == (GLOBAL, PROTECTED)
    assert sum(a != b for a, b in zip(relocatable, hidden, strict=True)) == 2


def test_what_shares_a_byte_with_binding_or_visibility_stays(relocatable: bytes) -> None:
    used, caller = (symbol_positions(relocatable)[name] for name in ("used", "caller"))
    patched = bytearray(relocatable)
    patched[used + 4] = GLOBAL << 4 | 2  # a function
    patched[caller + 5] = 0x60 | DEFAULT  # the upper bits belong to the architecture
    assert patching.weaken_undefined(bytes(patched))[used + 4] == WEAK << 4 | 2
    assert patching.hide_symbols(bytes(patched))[caller + 5] == 0x60 | HIDDEN


def test_other_bindings_and_visibilities_stay(relocatable: bytes) -> None:
    used, caller = (symbol_positions(relocatable)[name] for name in ("used", "caller"))
    unique, internal = 10, 1
    patched = bytearray(relocatable)
    patched[used + 4] = unique << 4
    patched[caller + 5] = internal
    assert symbol_table(patching.weaken_undefined(bytes(patched)))["used"][0] == unique
    assert symbol_table(patching.hide_symbols(bytes(patched)))["caller"][1] == internal


def test_names_that_are_not_utf8_are_told_apart() -> None:
    code = compile_object(
        r"""@table = global [2 x ptr] [ptr @"\FE", ptr @"\FF"] declare void @"\FE"() declare void @"\FF"()"""
    )
    first, second = reading.undefined_symbols(code)
    assert os.fsencode(first) == b"\xfe"
    weakened = patching.weaken_undefined(code, keep=[second])
    assert sum(a != b for a, b in zip(code, weakened, strict=True)) == 1


def test_a_shared_object_tells_what_it_expects_of_its_process(image: bytes) -> None:
    assert set(reading.dynamic_undefined(image)) >= {"used", ODD_NAME, "already_weak"}
    assert not set(reading.dynamic_undefined(image)) & {"caller", "table", "tls", "private"}
    assert reading.needed_libraries(image) == ()


@pytest.mark.parametrize(
    ("triple", "name"),
    [
        (X86_64, "x86_64"),
        ("aarch64-unknown-linux-gnu", "aarch64"),
        ("riscv64-unknown-linux-gnu", "riscv64"),
    ],
)
def test_the_architecture_is_told_by_its_number(triple: str, name: str) -> None:
    code = compile_object("define i64 @f() { ret i64 1 }", triple)
    assert reading.architecture_of(code).name == name
    assert reading.undefined_symbols(code) == ()


def test_linking_moves_code_where_nothing_is_known_of_it() -> None:
    ir = "define i64 @f() { ret i64 1 }"
    assert reading.has_fixed_code(compile_object(ir))
    moved = compile_object(ir, "riscv64-unknown-linux-gnu")
    assert not reading.has_fixed_code(moved)
    with pytest.raises(FormatError, match="moves code on the architecture riscv64"):
        reading.code_sections(moved)


@pytest.mark.parametrize(
    ("triple", "met"),
    [
        ("i386-unknown-linux-gnu", "32-bit and little-endian"),
        ("s390x-unknown-linux-gnu", "64-bit and big-endian"),
        ("x86_64-apple-darwin", "not an ELF file"),
    ],
)
@pytest.mark.parametrize("reader", READERS)
def test_other_formats_are_refused_by_name(triple: str, met: str, reader: Reader) -> None:
    code = compile_object("define i32 @f() { ret i32 1 }", triple)
    with pytest.raises(FormatError, match=met):
        reader(code)


def test_is_elf_looks_at_the_magic_alone(relocatable: bytes) -> None:
    assert parts.is_elf(relocatable)
    assert parts.is_elf(relocatable[:4])
    assert not parts.is_elf(relocatable[:3])
    assert not parts.is_elf(b"")
    assert not parts.is_elf(relocatable[1:])


@pytest.mark.parametrize("reader", OBJECT_READERS)
def test_functions_for_objects_refuse_a_shared_object(reader: Reader, image: bytes) -> None:
    with pytest.raises(FormatError, match="is a shared object, not a relocatable object"):
        reader(image)


@pytest.mark.parametrize("reader", IMAGE_READERS)
def test_functions_for_shared_objects_refuse_an_object(reader: Reader, relocatable: bytes) -> None:
    with pytest.raises(FormatError, match="is a relocatable object, not a shared object"):
        reader(relocatable)


@pytest.mark.parametrize("reader", IMAGE_READERS)
def test_a_shared_object_without_section_headers_is_refused(reader: Reader, image: bytes) -> None:
    stripped = bytearray(image)
    struct.pack_into("<Q", stripped, 40, 0)
    with pytest.raises(FormatError, match="no section header for a dynamic"):
        reader(bytes(stripped))


def test_the_dynamic_section_is_protected_and_not_one_byte_else_changes(image: bytes) -> None:
    """Type 2 is PT_DYNAMIC, the second of its flags says that it can be written to."""
    protected = patching.protect_dynamic(image)
    (start,), (number,) = struct.unpack_from("<Q", image, 32), struct.unpack_from("<H", image, 56)
    segments = [struct.unpack_from("<II", protected, start + 56 * index) for index in range(number)]
    assert [flags & 2 for kind, flags in segments if kind == 2] == [0]
    changed = [at for at, (old, new) in enumerate(zip(image, protected, strict=True)) if old != new]
    assert len(changed) == 1
    with pytest.raises(FormatError, match="program headers of the shared object have 0 bytes"):
        patching.protect_dynamic(image[:54] + bytes(2) + image[56:])


def test_the_number_of_sections_may_stand_in_the_first_section_header(relocatable: bytes) -> None:
    (headers,) = struct.unpack_from("<Q", relocatable, 40)
    (count,) = struct.unpack_from("<H", relocatable, 60)
    extended = bytearray(relocatable)
    struct.pack_into("<H", extended, 60, 0)
    struct.pack_into("<Q", extended, headers + 32, count)
    assert reading.undefined_symbols(bytes(extended)) == reading.undefined_symbols(relocatable)


def test_section_headers_of_another_size_are_refused(relocatable: bytes) -> None:
    damaged = bytearray(relocatable)
    struct.pack_into("<H", damaged, 58, 40)
    with pytest.raises(FormatError, match="section headers of the ELF file have 40 bytes"):
        reading.undefined_symbols(bytes(damaged))


@pytest.mark.parametrize(
    ("field", "damage", "complaint"),
    [
        ("sh_link", 0xFFFF, "section 65535"),
        ("sh_entsize", 0, "has entries of 0 bytes, not of"),
        ("sh_size", 2**64 - 16, "truncated"),
        ("sh_size", 25, "25 bytes"),
        ("sh_offset", 2**64 - 1, "truncated"),
    ],
)
@pytest.mark.parametrize("reader", OBJECT_READERS)
def test_a_damaged_section_header_is_told_from_a_good_one(
    reader: Reader, relocatable: bytes, field: str, damage: int, complaint: str
) -> None:
    position, _ = section_field(relocatable, 2, field)
    damaged = bytearray(relocatable)
    struct.pack_into("<I" if field == "sh_link" else "<Q", damaged, position, damage)
    with pytest.raises(FormatError, match=complaint):
        reader(bytes(damaged))


def test_a_needed_library_whose_name_lies_outside_the_string_table_is_refused(image: bytes) -> None:
    damaged = bytearray(image)
    struct.pack_into("<qQ", damaged, section_field(image, 6, "sh_offset")[1], 1, 2**64 - 1)
    with pytest.raises(FormatError, match="no terminated string"):
        reading.needed_libraries(bytes(damaged))


def test_what_follows_the_end_of_the_dynamic_section_does_not_count(image: bytes) -> None:
    ended = bytearray(image)
    struct.pack_into("<qQqQ", ended, section_field(image, 6, "sh_offset")[1], 0, 0, 1, 2**64 - 1)
    assert reading.needed_libraries(bytes(ended)) == ()


@pytest.mark.parametrize("reader", OBJECT_READERS)
def test_every_truncation_of_an_object_is_refused(reader: Reader, relocatable: bytes) -> None:
    for end in range(len(relocatable)):
        with pytest.raises(FormatError):
            reader(relocatable[:end])


@pytest.mark.parametrize("reader", IMAGE_READERS)
def test_every_truncation_of_a_shared_object_is_refused(reader: Reader, image: bytes) -> None:
    for end in range(len(image)):
        with pytest.raises(FormatError):
            reader(image[:end])


def read_or_refuse(reader: Reader, data: bytes) -> None:
    with contextlib.suppress(FormatError):
        reader(data)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_but_format_errors(noise: bytes) -> None:
    for reader in READERS:
        read_or_refuse(reader, noise)
        read_or_refuse(reader, b"\x7fELF\x02\x01" + noise)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_damaged_files_raise_nothing_but_format_errors(
    relocatable: bytes, image: bytes, data: st.DataObject
) -> None:
    original = data.draw(st.sampled_from([relocatable, image]))
    damaged = bytearray(original)
    (headers,) = struct.unpack_from("<Q", original, 40)
    # Headers and tables are small among the code: aim at them as often as at the rest.
    positions = (
        st.integers(0, len(original) - 1) | st.integers(headers, len(original) - 1) | st.integers(0, 63)
    )
    for position in data.draw(st.lists(positions, min_size=1, max_size=6)):
        damaged[position] = data.draw(st.integers(0, 255))
    for reader in READERS:
        read_or_refuse(reader, bytes(damaged))


@pytest.mark.slow
def test_ten_thousand_symbols_take_tens_of_milliseconds() -> None:
    names = [f"a_function_with_a_long_name_{number}" for number in range(10_000)]
    declared = "".join(f"declare void @{name}()\n" for name in names)
    table = ", ".join(f"ptr @{name}" for name in names)
    code = compile_object(f"{declared}@table = global [{len(names)} x ptr] [{table}]", X86_64)
    durations = []
    for _ in range(5):
        start = time.process_time()
        weakened = patching.weaken_undefined(code)
        durations.append(time.process_time() - start)
    assert reading.undefined_symbols(weakened) == tuple(names)
    assert len(changed_names(code, weakened)) == len(names)
    assert min(durations) < 0.2, durations
