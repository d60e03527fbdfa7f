"""The makers of modules: their record, and which versions a text means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compcache import hit
from compcache.errors import FormatError
from compcache.formats import known_faults
from compcache.formats.makers import Maker, Versions, decode_makers, encode_makers, makers_of, makers_text
from compcache.store import Store

NAMES = st.from_regex(r"[a-z][a-z0-9._+-]{0,8}", fullmatch=True)
VERSIONS = st.from_regex(r"[0-9][!-~]{0,8}", fullmatch=True)


@pytest.mark.slow
@given(st.lists(st.builds(Maker, NAMES, VERSIONS), min_size=1))
def test_makers_are_read_as_they_were_written(makers: list[Maker]) -> None:
    text = decode_makers(encode_makers(makers_text(makers)))
    assert set(makers_of("shared", "22.1.0", text)) == {*makers, Maker("llvm", "22.1.0")}


@given(st.binary(max_size=40))
def test_other_bytes_are_a_format_error(data: bytes) -> None:
    try:
        text = decode_makers(data)
    except FormatError:
        return
    assert all(name and " " not in version for name, version in makers_of("shared", "22.1.0", text))


@pytest.mark.parametrize("data", [b"B", b"M1 2", b"Bnumba", b"Bnumba 1 2", b"Bnumba 1\n", b"B\xff 1", b"B 1"])
def test_damaged_records_are_format_errors(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_makers(data)


def test_without_a_record_the_package_is_of_a_version_before_all_others() -> None:
    package = makers_of("shared", "20.1.8", "")[0]
    assert package == ("compcache", "")
    assert Versions.parse("compcache<0.1").includes(package)
    assert Versions.parse("compcache").includes(package)
    assert not Versions.parse("compcache>=0.0.1").includes(package)
    assert not Versions.parse("compcache==0.1.0").includes(package)
    assert makers_of("data", "", "") == ()


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("numba<0.66.1", "0.66 0.66.0 0.66.1rc1 0.66.1.dev3 0.9 0.66.0.post1", "0.66.1 0.66.1.post2 0.100 1.0 0.66.1.0"),
        ("numba <= 0.66.1", "0.66.1 0.66.1.0 0.66.1rc2", "0.66.2 0.66.1.post1"),
        ("numba>=0.60,<0.66.1", "0.60 0.65.9 0.60.0", "0.59.9 0.66.1 0.60rc1"),
        ("numba==0.66", "0.66 0.66.0", "0.66.1 0.66rc1"),
        ("numba==0.66.*", "0.66 0.66.0 0.66.9rc1", "0.67 0.6 0.660"),
        ("numba!=0.66.*", "0.67 0.6", "0.66.3"),
        ("NumBa>17.0.1", "17.0.2 17.0.1.post1 18git", "17.0.1 17"),
        ("numba", "0.1 9", ""),
        ("numba<18.1.3", "18.1.2+local v18.1.2 18.1.2-1ubuntu1", "18.1.3+local 18.1.3-1ubuntu1"),
    ],
)
def test_which_versions_a_text_means(text: str, inside: str, outside: str) -> None:
    versions = Versions.parse(text)
    assert [v for v in inside.split() if not versions.includes(Maker("numba", v))] == []
    assert [v for v in outside.split() if versions.includes(Maker("numba", v))] == []
    assert not versions.includes(Maker("llvm", inside.split(maxsplit=1)[0]))


@pytest.mark.parametrize(
    "text", ["", "<0.66", "numba<", "numba 0.66", "numba<x", "numba~=0.6", "numba<0.66,", "numba<0.6.*", "numba=<1", "a b<1"]
)
def test_other_texts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"numba<0\.66\.1"):
        Versions.parse(text)


def test_stamps_stand_for_the_table_of_known_faults() -> None:
    assert Store.known_faults == hit.KNOWN_FAULTS == known_faults.faults_digest()


def test_every_known_fault_means_versions() -> None:
    for fault in known_faults.FAULTS:
        assert Versions.parse(fault.versions).conditions
        assert fault.wrong
        assert fault.since
