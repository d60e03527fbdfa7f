"""Signed caches: what somebody who can write to the directory, and has no key, can make a process run. Nothing."""

from __future__ import annotations

import copy
import pickle
import shutil
from typing import TYPE_CHECKING

import pytest
from helpers import FreshProcessError, adder, caller, module_file, run_fresh

from compcache import Cache, CacheWarning, ModuleSource, NotCachedError, UndefinedSymbolError, UntrustedDirectoryError, frontend
from compcache.digest import check
from compcache.directory.places import HOSTS, INDEX, TEMPORARY
from compcache.files import Files
from compcache.formats.footer import FOOTER_SIZE, decode_footer, encode_container, intact_footer, sections_of
from compcache.formats.host_file import decode_host
from compcache.formats.index import Index
from compcache.formats.manifest import FRAME, FUNCTION, GLOBAL, NO_ENTRY, FunctionRecord, decode_function
from compcache.formats.manifest_writer import encode_function, encode_global, iterate_frames
from compcache.formats.records import GlobalRecord, decode_global, decode_module
from compcache.publish import index_merge

if TYPE_CHECKING:
    from pathlib import Path

KEY = b"the key of the owner"
MARK = b"here the forged record begins: "
ROOM = 200


def holding(data: bytes) -> ModuleSource:
    """A module that holds bytes of somebody's choice in the definition of a global variable."""
    text = (
        f"@g = external global [{ROOM} x i8]\ndefine i64 @f(i64 %x) {{\n%p = load i8, ptr @g\n%q = zext i8 %p to i64\n"
        "%y = add i64 %x, %q\nret i64 %y\n}\n"
    )
    return ModuleSource(text, globals={"g": data})


def forged(offset: int, key: bytes, target: bytes = bytes(8)) -> bytes:
    """A frame with a function record that names any symbol as code; nothing in its check is secret but the key."""
    payload = encode_function(FunctionRecord("evil", "f", "i64(i64)", target, 0, NO_ENTRY, 0))
    return len(payload).to_bytes(4, "little") + check(payload, offset, key) + payload


@pytest.mark.parametrize("knows", ["no key", "the key of an earlier module", "zeros"])
def test_bytes_of_a_constant_cannot_pose_as_a_record(directory: Path, knows: str) -> None:
    """The offsets of the index are not signed: whoever can write there points them at any byte of a signed module."""
    with Cache(directory, signing_key=KEY) as cache:
        first = cache.add_module(holding(MARK.ljust(ROOM, b".")))
        with cache._store.open_module(bytes.fromhex(first)) as module:
            records = module.read(module.image, module.records)
            earlier = module.key
            ((_, at),) = cache._store.find("f")
            target = decode_function(module.read_record(at)).target_id
        offset = records.index(MARK) + len(MARK)
        known = {"no key": b"", "the key of an earlier module": earlier, "zeros": bytes(16)}[knows]
        content = (MARK + forged(offset, known, target)).ljust(ROOM, b".")
        second = cache.add_module(holding(content))
        with cache._store.open_module(bytes.fromhex(second)) as module:
            assert module.read(module.image + offset, len(content) - len(MARK)) == content[len(MARK) :]
    index = Index(Files(), f"{directory}/{INDEX.directory}", f"{directory}/{TEMPORARY.directory}", INDEX.suffix)
    entry = index_merge.encode_function_entry("evil", bytes.fromhex(second), offset, "")
    index_merge.publish_addition(index, [entry], [], [""])
    with Cache(directory, signing_key=KEY) as cache:
        with pytest.raises(NotCachedError):
            cache.get_target("evil")
        cache.add_module(ModuleSource(caller("caller", "evil"), imports=["evil"]))
        with pytest.raises(UndefinedSymbolError, match="'evil'"):
            cache.get_target("caller")
        assert cache.get_target("f")(1) == 1 + content[0]


def in_code(records: bytes) -> bytes:
    """The records of a module, where a variable is stored in the place of the code of its first function."""
    frames = list(iterate_frames(records))
    key = decode_module(frames[0][1]).key
    code = next(decode_function(payload).function for _, payload in frames if payload[:1] == FUNCTION)
    changed = []
    for offset, before in frames:
        payload = before
        if before[:1] == GLOBAL:
            record = decode_global(before)
            payload = encode_global(GlobalRecord(record.name, code, record.form, record.size, record.kind, record.payload))
        changed += [FRAME.pack(len(payload), check(payload, offset, key if offset else b"")), payload]
    return b"".join(changed)


def test_records_that_do_not_fit_their_image_write_nowhere(directory: Path) -> None:
    """The file is as it was published, with right digests; what published it was wrong."""
    with Cache(directory) as cache:
        module_id = cache.add_module(holding(b"."))
    path = module_file(directory, module_id)
    data = path.read_bytes()
    image, records, graph, bitcode, notes = sections_of(data, intact_footer(data))
    changed, parts = encode_container(image, in_code(records), graph, bitcode, notes, None)
    path.unlink()
    shutil.rmtree(directory / INDEX.directory)
    path = module_file(directory, changed.hex())
    path.parent.mkdir(exist_ok=True, mode=0o700)
    path.write_bytes(b"".join(parts))
    path.chmod(0o600)
    script = """
import warnings
from compcache import Cache, CompcacheError
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with Cache(directory) as cache:
        try:
            result = [str(cache.get_target("f")(1))]
        except CompcacheError as error:
            result = [type(error).__name__, *(str(warning.message) for warning in caught)]
"""
    outcome, *warnings = run_fresh(directory, script)
    assert (outcome, len(warnings)) == ("NotCachedError", 1)
    assert "its records do not fit its image" in warnings[0]


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_an_entry_of_the_index_leads_to_no_other_function(directory: Path, key: bytes | None) -> None:
    """Nor are the names in it signed: the record of an intact module says what function it is of."""
    with Cache(directory, signing_key=key) as cache:
        module_id = bytes.fromhex(cache.add_module(ModuleSource(adder("harmless", 1) + adder("dangerous", 20))))
        ((_, offset),) = cache._store.find("dangerous")
        with cache._store.open_module(module_id) as module:
            header = decode_module(module.read_record(0))
            needs = header.requirement(header.features_of(decode_function(module.read_record(offset))))
    index = Index(Files(), f"{directory}/{INDEX.directory}", f"{directory}/{TEMPORARY.directory}", INDEX.suffix)
    entry = index_merge.encode_function_entry("wanted", module_id, offset, needs)
    index_merge.publish_addition(index, [entry], [], [needs])
    with Cache(directory, signing_key=key) as cache:
        with pytest.raises(NotCachedError):
            cache.get_target("wanted")
        assert cache.get_or_compile("wanted", lambda: ModuleSource(adder("wanted", 300)))(1) == 301
        assert (cache.get_target("harmless")(1), cache.get_target("dangerous")(1)) == (2, 21)


def test_notes_are_signed(directory: Path) -> None:
    """They decide nothing that runs, but identities are shown from them."""
    with Cache(directory, signing_key=KEY) as cache:
        module_id = cache.add_module(ModuleSource(adder("f", 1)))
    path = module_file(directory, module_id)
    data = bytearray(path.read_bytes())
    footer = decode_footer(bytes(data[-FOOTER_SIZE:]), len(data))
    data[footer.content + footer.notes - 1] ^= 1
    path.unlink()
    path.write_bytes(data)
    path.chmod(0o600)
    with (
        Cache(directory, signing_key=KEY) as cache,
        pytest.warns(CacheWarning, match="notes"),
        pytest.raises(NotCachedError),
    ):
        cache.get_target("f")


def test_an_entry_is_believed_of_who_has_the_key(directory: Path) -> None:
    with Cache(directory, signing_key=KEY) as cache:
        frontend.put_entry(cache, "a name", b"ours", kind="data")
    with Cache(directory) as other:
        frontend.put_entry(other, "a name", b"theirs", kind="data")
        frontend.put_entry(other, "another", b"theirs", kind="data")
    with Cache(directory, signing_key=KEY) as cache:
        with pytest.warns(CacheWarning, match="signed with this cache's signing_key"):
            assert frontend.get_entry(cache, "a name", "data") == b"ours"
        assert frontend.get_entry(cache, "another", "data") is None


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_what_is_true_of_one_machine_is_not_believed_of_another(directory: Path, key: bytes | None) -> None:
    """A signed description, copied to the name of a machine that has less."""
    with Cache(directory, signing_key=key) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        name, _ = cache._store.host_file()
        assert name
        path = cache._store.path(HOSTS, name)
    other = HOSTS.file_name(name[:4] + "0" * 20)
    shutil.copy(path, f"{path[: -len(name)]}{other}")
    data = cache._store.read_file(HOSTS, other)
    assert data == cache._store.read_file(HOSTS, name)
    assert data is not None
    assert decode_host(data, name, key) is not None
    assert decode_host(data, other, key) is None


# ------------------------------------------------------------------------------------ keys stay where they are


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_a_cache_is_neither_copied_nor_pickled(directory: Path, how: object, key: bytes | None) -> None:
    assert callable(how)
    with Cache(directory, signing_key=key) as cache, pytest.raises(TypeError, match="cannot be copied or pickled"):
        how(cache)


def pickled(directory: Path, **settings: object) -> bytes:
    with Cache(directory, **settings) as cache:  # type: ignore[arg-type]
        cache.add_module(ModuleSource(adder("f", 1)))
        return pickle.dumps(cache.get_target("f"))


UNPICKLE = """
import pickle
from compcache import Cache
{first}
result = pickle.loads({data!r})(1)
"""


@pytest.mark.slow
def test_a_target_of_a_signed_cache_is_found_again_only_with_a_key(directory: Path) -> None:
    data = pickled(directory, signing_key=KEY)
    assert KEY not in data
    with pytest.raises(FreshProcessError, match=r"UntrustedDirectoryError.*this process has no key"):
        run_fresh(directory, UNPICKLE.format(data=data, first=""))
    with pytest.raises(FreshProcessError, match="UntrustedDirectoryError"):
        run_fresh(directory, UNPICKLE.format(data=data, first="kept = Cache(directory)"))
    assert run_fresh(directory, UNPICKLE.format(data=data, first=""), COMPCACHE_SIGNING_KEY=KEY.decode()) == 2
    opened = f"kept = Cache(directory, signing_key={KEY!r}); other = Cache(directory)"
    assert run_fresh(directory, UNPICKLE.format(data=data, first=opened)) == 2
    with pytest.raises(FreshProcessError, match="is not signed with"):
        run_fresh(directory, UNPICKLE.format(data=data, first=""), COMPCACHE_SIGNING_KEY="another")


@pytest.mark.slow
def test_a_target_of_a_trusted_cache_is_found_again_only_by_who_trusts_it(directory: Path) -> None:
    directory.chmod(0o777)
    data = pickled(directory, trust=True)
    with pytest.raises(FreshProcessError, match=r"UntrustedDirectoryError.*chmod go-w"):
        run_fresh(directory, UNPICKLE.format(data=data, first=""))
    opened = "kept = Cache(directory, trust=True)"
    assert run_fresh(directory, UNPICKLE.format(data=data, first=opened)) == 2
    with pytest.raises(UntrustedDirectoryError):
        pickle.loads(data)
