"""Ed25519 signatures: what runs was signed by a key that the reader named, or compiled by the reader."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache
from helpers import adder, constant, run_fresh

from compcache import Cache, CacheWarning, CompcacheError, ModuleSource, NotCachedError, SettingError, StorageError
from compcache.files import Tree
from compcache.globals import Pickled
from compcache.signing.keys import add_trusted_key, generate_key, parse_public_key, parse_public_keys, parse_secret_key, trusted_keys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY, OTHER = generate_key("team-1"), generate_key("team-2")
PUBLIC, OTHER_PUBLIC = str(KEY.public()), str(OTHER.public())


def publish(place: Path, *names: str, key: str | None = str(KEY)) -> None:
    with Cache(place, publish_key=key) as cache:
        for number, name in enumerate(names):
            cache.add_module(ModuleSource(adder(name, number)))


def signature_files(place: Path) -> list[Path]:
    return sorted(place.glob("signatures-v1/*.ed25519"))


def assert_miss(place: Path, name: str = "f", *keys: str, warning: str = "is not used") -> None:
    with Cache(place, trusted_keys=keys or [PUBLIC]) as cache, pytest.raises(NotCachedError), pytest.warns(CacheWarning, match=warning):
        cache.get_target(name)


@pytest.mark.slow
def test_what_a_trusted_key_signed_is_a_hit(directory: Path) -> None:
    publish(directory, "f", "g")
    with Cache(directory, trusted_keys=[OTHER_PUBLIC, PUBLIC]) as cache:
        assert cache.get_target("g")(41) == 42
    time.sleep(0.15)  # of a file that has just been written nothing is remembered: the clock of its times may not have ticked
    script = f"from compcache import Cache\nresult = Cache(directory, trusted_keys=[{PUBLIC!r}]).get_target('f')(1), 'nacl' in sys.modules"
    run_fresh(directory, script)
    assert run_fresh(directory, script) == (1, False)  # that it was checked is remembered
    with Cache(directory) as plain:
        assert plain.get_target("f")(1) == 1


@contextlib.contextmanager
def unanswered(monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[None]:
    """Files whose names end so cannot be read at the moment."""
    with monkeypatch.context() as patch:

        def fail(self: Tree, path: str, *arguments: Any, usual: Any = Tree.open_owned, **options: Any) -> Any:
            if path.endswith(names):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return usual(self, path, *arguments, **options)

        patch.setattr(Tree, "open_owned", fail)
        yield


def test_signatures_that_cannot_be_read_at_the_moment_are_not_lost(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(directory, "f", "g")
    (with_g,) = [path.name for path in signature_files(directory) if path != signature_files(directory)[0]]
    with unanswered(monkeypatch, with_g):
        with Cache(directory, publish_key=str(OTHER), trusted_keys=[PUBLIC]) as cache, contextlib.suppress(CompcacheError):
            cache.add_modules([ModuleSource(adder("g", 1)), ModuleSource(adder("f", 0))])
        with Cache(directory) as cache:
            cache.compact(grace=0)
    with Cache(directory, trusted_keys=[PUBLIC]) as cache:
        assert (cache.get_target("f")(41), cache.get_target("g")(41)) == (41, 42)


@pytest.mark.filterwarnings("ignore::compcache.ShadowWarning")
def test_former_code_is_not_used_while_the_signatures_of_newer_code_cannot_be_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(directory, "f")
    former = signature_files(directory)
    publish(directory, "other", "f")
    newer = [path.name for path in signature_files(directory) if path not in former]
    with Cache(directory, trusted_keys=[PUBLIC]) as cache:
        with unanswered(monkeypatch, *newer), pytest.raises(StorageError):
            cache.get_target("f")
        assert cache.get_target("f")(41) == 42


def test_unsigned_code_is_a_miss(directory: Path) -> None:
    publish(directory, "f", key=None)
    assert_miss(directory, warning="it is not signed")


def test_a_key_that_is_not_trusted_counts_nothing(directory: Path) -> None:
    publish(directory, "f", key=str(OTHER))
    assert_miss(directory, warning="'team-2'.*trusted_keys: 'team-1'")
    with Cache(directory, trusted_keys=[PUBLIC]) as cache:
        with pytest.warns(CacheWarning):
            assert cache.explain("f").reason == "untrusted"
        assert cache.stats().miss_reasons == {"untrusted": 1}


def test_a_key_of_the_same_name_is_another_key(directory: Path) -> None:
    publish(directory, "f", key=str(generate_key("team-1")))
    assert_miss(directory)


def test_a_stripped_signature_is_a_miss(directory: Path) -> None:
    publish(directory, "f")
    for path in signature_files(directory):
        path.unlink()
    assert_miss(directory)


def test_a_signature_of_another_module_is_a_miss(directory: Path) -> None:
    publish(directory, "f", "g")
    first, second = signature_files(directory)
    shutil.copyfile(first, second)
    with Cache(directory) as cache:
        name = next(name for name in "fg" if cache.realizations(name)[0].module_id == second.stem)
    assert_miss(directory, name)


@pytest.mark.parametrize("at", [7, 20, -3])
def test_a_changed_signature_is_a_miss(directory: Path, at: int) -> None:
    publish(directory, "f")
    (path,) = signature_files(directory)
    data = bytearray(path.read_bytes())
    data[at] = ord("B") if data[at] != ord("B") else ord("C")
    path.write_bytes(data)
    assert_miss(directory)


def test_rubbish_in_place_of_a_signature_is_a_miss(directory: Path) -> None:
    publish(directory, "f")
    (path,) = signature_files(directory)
    for content in (b"", b"\0" * 100, b"team-1 \xff\xfe\n", b"team-1 " + b"A" * 100_000, b"team-1 QUJD\n" * 1000):
        path.write_bytes(content)
        assert_miss(directory)


def test_changed_code_under_a_right_signature_is_a_miss(directory: Path) -> None:
    publish(directory, "f")
    (path,) = directory.rglob("*.ccm")
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with (
        Cache(directory, trusted_keys=[PUBLIC], verify=False) as cache,
        pytest.raises(NotCachedError),
        pytest.warns(CacheWarning, match="damaged"),
    ):
        cache.get_target("f")


def test_what_is_compiled_here_is_used_again_and_what_is_copied_is_not(directory: Path, tmp_path: Path) -> None:
    with Cache(directory, trusted_keys=[PUBLIC]) as cache:
        assert cache.get_or_compile("f", lambda: constant("f", 5))() == 5
    with Cache(directory, trusted_keys=[PUBLIC]) as cache:
        assert cache.get_target("f")() == 5
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    assert_miss(copy)
    assert_miss(directory, "f", OTHER_PUBLIC)


@pytest.mark.slow
@pytest.mark.parametrize("signing_key", [None, "k" * 32])
def test_code_of_a_key_that_is_no_longer_trusted_is_a_miss(tmp_path: Path, signing_key: str | None) -> None:
    publish(tmp_path / "published", "f", key=str(OTHER))
    with Cache(tmp_path / "published") as cache:
        cache.export(["f"], tmp_path / "f.ccb")
    place = tmp_path / "own"
    with Cache(place, signing_key=signing_key, trusted_keys=[PUBLIC, OTHER_PUBLIC]) as cache:
        cache.import_bundle(tmp_path / "f.ccb")
    time.sleep(0.15)  # of a file that has just been written nothing is remembered
    for _ in range(2):
        with Cache(place, signing_key=signing_key, trusted_keys=[PUBLIC, OTHER_PUBLIC]) as cache:
            assert cache.get_target("f")(41) == 41
    with (
        Cache(place, signing_key=signing_key, trusted_keys=[PUBLIC]) as cache,
        pytest.raises(NotCachedError),
        pytest.warns(CacheWarning, match="'team-2'.*trusted_keys: 'team-1'"),
    ):
        cache.get_target("f")


def test_who_publishes_trusts_itself(directory: Path, tmp_path: Path) -> None:
    with Cache(directory, trusted_keys=[OTHER_PUBLIC], publish_key=str(KEY)) as cache:
        cache.add_module(ModuleSource(constant("f", 5)))
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    with Cache(copy, trusted_keys=[OTHER_PUBLIC], publish_key=str(KEY)) as cache:
        assert cache.get_target("f")() == 5


def test_several_keys_sign_the_same_module(directory: Path) -> None:
    publish(directory, "f")
    publish(directory, "f", key=str(OTHER))
    for key in (PUBLIC, OTHER_PUBLIC):
        with Cache(directory, trusted_keys=key) as cache:
            assert cache.get_target("f")(2) == 2


def test_a_new_key_of_the_same_name_does_not_replace_a_key_that_is_still_trusted(directory: Path) -> None:
    new_key = generate_key(KEY.name)
    publish(directory, "f")
    with Cache(directory, publish_key=str(new_key), trusted_keys=[PUBLIC]) as cache:
        cache.add_module(ModuleSource(adder("f", 0)))
    for key in (PUBLIC, str(new_key.public())):
        with Cache(directory, trusted_keys=key) as cache:
            assert cache.get_target("f")(41) == 41


def test_a_layer_that_its_owner_forges_is_not_believed(directory: Path, tmp_path: Path) -> None:
    """Its index says, with the stamps that a reader of these keys would have left, that everything was checked."""
    layer = tmp_path / "layer"
    publish(layer, "f", key=None)
    with Cache(layer, trusted_keys=[PUBLIC]) as forging:
        store = forging._store
        ((module_id, _),) = store.find("f")
        with Cache(layer)._store.open_module(module_id) as module:
            store.record_verified(store.entry_of(module, os.stat(module.path), 1))
    with (
        Cache(directory, layers=[layer], trusted_keys=[PUBLIC]) as cache,
        pytest.raises(NotCachedError),
        pytest.warns(CacheWarning, match="not signed"),
    ):
        cache.get_target("f")


def test_a_signed_layer_that_others_can_write_to_is_used(directory: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    publish(layer, "f", "g")
    os.chmod(layer, 0o777)
    with Cache(directory, layers=[layer], trusted_keys=[PUBLIC]) as cache:
        assert cache.get_target("g")(1) == 2


def test_what_others_can_write_is_not_believed_of_the_machine(directory: Path) -> None:
    """Public keys sign no derived files: the note on the linker to run, for one, could be anybody's."""
    with Cache(directory) as cache:
        assert cache._store.host_file()[1] is not None
    directory.chmod(0o777)
    with Cache(directory, trusted_keys=[PUBLIC]) as cache:
        assert cache._store.host_file()[1] is None


PICKLED = "@o = external global ptr\ndefine ptr @f() {\n  %x = load ptr, ptr @o\n  ret ptr %x\n}\n"


@pytest.mark.parametrize("signed", [False, True])
def test_pickles_of_a_layer_need_a_trusted_signature(directory: Path, tmp_path: Path, signed: bool) -> None:
    layer = tmp_path / "layer"
    with Cache(layer, allow_pickle=True, publish_key=str(KEY)) as cache:
        cache.add_module(ModuleSource(PICKLED, {"f": "ptr()"}, {"o": Pickled.of({"a": 1})}))
        assert cache.get_target("f")()
    with Cache(directory, layers=[layer], allow_pickle=True, trusted_keys=[PUBLIC] if signed else None) as cache:
        if signed:
            assert cache.get_target("f")()
        else:
            with pytest.raises(Exception, match="pickle"):
                cache.get_target("f")


def test_keys_are_text_and_errors_never_show_a_secret() -> None:
    secret = str(KEY)
    assert str(parse_secret_key(secret)) == secret
    assert parse_public_key(PUBLIC) == KEY.public()
    assert secret.partition(":")[2] not in repr(KEY)
    for text in (secret[:-3], secret.replace(":", ""), "a b:" + secret.partition(":")[2]):
        with pytest.raises(ValueError, match="key") as raised:
            Cache("unused", publish_key=text)
        assert secret.partition(":")[2][:20] not in str(raised.value)
    with pytest.raises(ValueError, match="name:base64"):
        parse_public_key("nothing")
    with pytest.raises(ValueError, match="is the secret key team-1: give its public key") as raised:
        parse_public_key(secret)
    assert secret.partition(":")[2][:20] not in str(raised.value)
    assert parse_public_keys(f"{PUBLIC}, {OTHER_PUBLIC}") == (KEY.public(), OTHER.public())


@pytest.mark.slow
def test_a_public_key_in_the_place_of_a_secret_one_is_noticed(tmp_path: Path, directory: Path) -> None:
    """Everybody could sign with such a key. Secret keys of version 1.0.0 have the same form, and are read."""
    former = f"{KEY.name}:{base64.b64encode(KEY.seed).decode()}"
    with pytest.warns(CacheWarning, match="the secret key team-1 has the form of version 1.0.0, which is also the form of public keys"):
        assert str(parse_secret_key(former)) == str(KEY)
    with pytest.warns(CacheWarning, match="if it is a public key, everybody can sign with it"):
        publish(directory, "f", key=PUBLIC)
    file = tmp_path / "key"
    for text, is_noticed in ((str(KEY), False), (former, True), (PUBLIC, True)):
        file.write_text(f"{text}\n", encoding="utf-8")
        shown = compcache("key", "show", file)
        assert (shown.out.strip() == PUBLIC, "form of public keys" in shown.err) == (text != PUBLIC, is_noticed)
        listed = compcache("--dir", directory, "ls", COMPCACHE_PUBLISH_KEY=f"@{file}")
        assert listed.err.count("form of public keys") == is_noticed  # the settings are checked, and then the cache reads them
        examined = compcache("--dir", directory, "doctor", COMPCACHE_PUBLISH_KEY=f"@{file}")
        assert (examined.status, examined.out.count("form of public keys"), examined.err) == (0, is_noticed, "")


@pytest.mark.parametrize("half", [0, 1])
def test_a_secret_key_whose_halves_do_not_belong_together_signs_nothing(directory: Path, half: int) -> None:
    """A damaged seed would sign with a key that nobody trusts, and nobody would learn why."""
    name, _, text = str(KEY).partition(":")
    data = bytearray(base64.b64decode(text))
    data[half * 32 + 3] ^= 1
    damaged = f"{name}:{base64.b64encode(data).decode()}"
    with pytest.raises(ValueError, match=f"the secret key {name} is damaged"):
        parse_secret_key(damaged).public()
    with Cache(directory, publish_key=damaged) as cache:
        with pytest.raises(ValueError, match="damaged"):
            cache.add_module(ModuleSource(adder("f", 1)))
        assert not cache.has("f")


def test_files_of_keys_may_include_each_other(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.write_text(f"@{own} @{other}\n{PUBLIC}")
    other.write_text(f"{OTHER_PUBLIC} # a comment\n@{own}")
    assert {*parse_public_keys(f"@{own}")} == {KEY.public(), OTHER.public()}
    assert {*parse_public_keys([f"@{other}"])} == {KEY.public(), OTHER.public()}


def test_keys_that_others_can_add_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    before = os.umask(0)
    try:
        path = add_trusted_key(KEY.public())
    finally:
        os.umask(before)
    assert (os.stat(path).st_mode & 0o777, trusted_keys()) == (0o600, (KEY.public(),))
    os.chmod(path, 0o666)
    with pytest.raises(SettingError, match=f"{path}: other users can write to"):
        trusted_keys()
    with pytest.raises(SettingError, match="other users can write to"):
        add_trusted_key(OTHER.public())
    with pytest.raises(ValueError, match=f"{path}: other users can write to"):
        Cache(tmp_path / "cache", trusted_keys=f"@{path}")
    monkeypatch.setenv("COMPCACHE_TRUSTED_KEYS", f"{OTHER.public()} @{path}")
    with pytest.raises(SettingError, match=f"COMPCACHE_TRUSTED_KEYS: {path}: other users can write to"):
        Cache(tmp_path / "cache")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_home_of_another_user_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for configuration files: `runuser -u` keeps $HOME, and `compcache import` failed there. A directory that is found is different."""
    with tempfile.TemporaryDirectory() as base:
        monkeypatch.setenv("XDG_CONFIG_HOME", f"{base}/config")
        add_trusted_key(KEY.public())
        os.chmod(f"{base}/config", 0o755)
        for mode, expected in ((0o700, contextlib.nullcontext()), (0o755, pytest.raises(PermissionError))):
            os.chmod(base, mode)
            os.setresuid(65534, 65534, 0)
            try:
                with expected:
                    assert trusted_keys() is None
            finally:
                os.setresuid(0, 0, 0)


@pytest.mark.slow
def test_the_commands_make_show_and_trust_keys(tmp_path: Path, directory: Path) -> None:
    secret = tmp_path / "k.secret"
    made = compcache("key", "new", "example.org-1", "-o", secret)
    assert made.status == 0, made.err
    public = made.out.strip()
    assert public.startswith("example.org-1:")
    assert secret.stat().st_mode & 0o777 == 0o600
    assert compcache("key", "show", secret).out.strip() == public
    assert compcache("key", "new", "example.org-1", "-o", secret).status == 2
    spaced = {"XDG_CONFIG_HOME": str(tmp_path / "a, b")}
    assert (compcache("key", "trust", public, **spaced).status, compcache("key", "show", **spaced).out.split()) == (0, [public])
    home = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert compcache("key", "trust", public, **home).status == 0
    assert compcache("key", "trust", public, **home).status == 0
    trusted = tmp_path / "config" / "compcache" / "trusted-keys"
    trusted.write_text(f"# by hand\n{OTHER_PUBLIC}", encoding="utf-8")  # without the end of the last line
    assert compcache("key", "trust", public, **home).status == 0
    assert set(compcache("key", "show", **home).out.split()) == {OTHER_PUBLIC, public}
    trusted.write_text(f"{public}\n", encoding="utf-8")
    assert compcache("key", "show", **home).out.split() == [public]
    assert compcache("key", "trust", "rubbish", **home).status == 2
    trusted.write_text(f"{public}\nrubbish\n", encoding="utf-8")
    for arguments in (("key", "show"), ("key", "trust", OTHER_PUBLIC), ("import", tmp_path / "app.ccb")):
        outcome = compcache(*arguments, **home)
        assert (outcome.status, str(trusted) in outcome.err, "Traceback" in outcome.err) == (2, True, False)
    trusted.write_text(f"{public}\n", encoding="utf-8")
    publish(directory, "f", key=f"@{secret}")
    with Cache(directory, trusted_keys=f"@{tmp_path}/config/compcache/trusted-keys") as cache:
        assert cache.get_target("f")(3) == 3
