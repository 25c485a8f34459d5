"""The ledger's secrets: made once, read by their owner alone, told to nobody."""

import copy
import hashlib
import hmac
import os
import pickle
import stat
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

from excise.errors import InputError, MissingExtraError
from excise.ledger import keys as keys_module
from excise.ledger.keys import LedgerKeys

NAMES = ["ledger.key", "signing.pem", "signing.pub"]


def mode(file):
    return stat.S_IMODE(file.stat().st_mode)


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def folder(tmp_path):
    LedgerKeys.make(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_secrets_are_for_their_owner_alone_whatever_the_umask(tmp_path):
    LedgerKeys.make(tmp_path / "new" / "keys")
    folder = tmp_path / "new" / "keys"
    assert sorted(content(folder)) == NAMES
    assert [mode(folder / name) for name in NAMES] == [0o600, 0o600, 0o644]
    assert mode(folder) == 0o700
    assert list((tmp_path / "new").iterdir()) == [folder]  # no draft is left


@pytest.mark.usefixtures("umask")
def test_secrets_have_their_mode_before_they_have_content(tmp_path, monkeypatch):
    seen = {}
    write = Path.write_bytes
    monkeypatch.setattr(
        Path, "write_bytes", lambda self, data: seen.update({self.name: mode(self)}) or write(self, data)
    )
    LedgerKeys.make(tmp_path / "keys")
    assert [seen[name] for name in NAMES] == [0o600, 0o600, 0o644]


def test_every_ledger_has_keys_of_its_own(tmp_path):
    one, other = LedgerKeys.make(tmp_path / "one"), LedgerKeys.make(tmp_path / "other")
    assert one.public_key != other.public_key
    assert one.hmac_of("sample", b"x") != other.hmac_of("sample", b"x")


def test_keys_that_are_read_are_those_that_were_made(tmp_path):
    made, found = LedgerKeys.make(tmp_path / "keys"), LedgerKeys.read(tmp_path / "keys")
    assert found.public_key == made.public_key
    assert found.sign(b"x") == made.sign(b"x")
    assert found.hmac_of("seal", b"x") == made.hmac_of("seal", b"x")


@pytest.mark.parametrize("kind", ["subject", "sample", "seal"])
def test_an_hmac_is_under_a_key_of_its_kind(folder, kind):
    master = bytes.fromhex((folder / "ledger.key").read_text())
    assert len(master) == 32
    sub_key = hmac.new(master, b"excise " + kind.encode(), hashlib.sha256).digest()
    expected = hmac.new(sub_key, b"ada", hashlib.sha256).digest()
    assert LedgerKeys.read(folder).hmac_of(kind, b"ada") == expected


def test_a_kind_that_is_none_is_refused(folder):
    with pytest.raises(InputError, match="kind must be one of subject, sample, seal, not 'person'"):
        LedgerKeys.read(folder).hmac_of("person", b"ada")


def test_signatures_are_ed25519(folder):
    # the first test vector of RFC 8032, 7.1
    secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    write_signing_key(folder, Ed25519PrivateKey.from_private_bytes(secret))
    keys = LedgerKeys.read(folder)
    assert keys.public_key.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert keys.sign(b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24"
        "655141438e7a100b"
    )


def test_the_public_key_verifies_what_was_signed(folder):
    keys = LedgerKeys.read(folder)
    public = load_pem_public_key((folder / "signing.pub").read_bytes())
    public.verify(keys.sign(b"so it is"), b"so it is")
    assert public.public_bytes_raw() == keys.public_key


def write_signing_key(folder, key, *, password=None):
    how = BestAvailableEncryption(password) if password else NoEncryption()
    (folder / "signing.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))
    (folder / "signing.pub").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


@pytest.mark.parametrize("there", [*NAMES, "notes.txt"])
def test_nothing_is_overwritten(tmp_path, there):
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / there).write_text("mine")
    with pytest.raises(InputError, match=f"{there}.* never overwritten"):
        LedgerKeys.make(folder)
    assert content(folder) == {there: b"mine"}
    assert list(tmp_path.iterdir()) == [folder]


def test_keys_that_another_process_made_meanwhile_stay(folder, monkeypatch):
    before = content(folder)
    monkeypatch.setattr(keys_module, "_require_empty", lambda _: None)  # as if it had been empty when looked at
    with pytest.raises(InputError, match="could not be written"):
        LedgerKeys.make(folder)
    assert content(folder) == before
    assert list(folder.parent.iterdir()) == [folder]


def test_after_an_error_there_is_no_key(tmp_path, monkeypatch):
    def fail(path, data, *, mode):
        if path.name == "signing.pub":
            raise OSError(28, "No space left on device")
        return write(path, data, mode=mode)

    write = keys_module.write_whole
    monkeypatch.setattr(keys_module, "write_whole", fail)
    with pytest.raises(InputError, match=r"keys: could not be written \(No space left on device"):
        LedgerKeys.make(tmp_path / "keys")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_and_a_link_to_one_will_do(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    made = LedgerKeys.make(tmp_path / "link")
    assert LedgerKeys.read(tmp_path / "empty").public_key == made.public_key
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize(("name", "words"), [("file", "is no folder"), ("a\0b", "no folder can have this name")])
def test_keys_need_a_folder(tmp_path, name, words):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=words):
        LedgerKeys.make(tmp_path / name)
    with pytest.raises(InputError, match=r"can't be read|no such file"):
        LedgerKeys.read(tmp_path / name)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_missing_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"{name}: no such file; put back"):
        LedgerKeys.read(folder)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "damage", [b"", b"\xff\x00", b"x" * 10_000, b"a" * 64 + b"b" * 64, b"-----BEGIN PUBLIC KEY-----\n"]
)
def test_a_file_that_is_damaged_is_named(folder, name, damage):
    (folder / name).write_bytes(damage)
    with pytest.raises(InputError, match=f"{name}: is (damaged|no private key)"):
        LedgerKeys.read(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_or_pipe_in_place_of_a_file_is_refused(folder, name):
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(InputError, match=f"{name}: is a folder, pipe or device"):
        LedgerKeys.read(folder)
    (folder / name).rmdir()
    os.mkfifo(folder / name, 0o600)
    with pytest.raises(InputError, match=f"{name}: is a folder, pipe or device"):
        LedgerKeys.read(folder)


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o602, 0o610, 0o777])
def test_a_secret_that_others_could_read_is_refused_with_the_remedy(folder, name, bits):
    (folder / name).chmod(bits)
    with pytest.raises(InputError, match=rf"{name}: others .*mode {bits:o}.*chmod 600 {folder / name}"):
        LedgerKeys.read(folder)
    (folder / name).chmod(0o600)
    LedgerKeys.read(folder)


@pytest.mark.parametrize("bits", [0o400, 0o600])
def test_links_to_files_elsewhere_are_followed(folder, tmp_path, bits):
    for name in NAMES:
        (folder / name).rename(tmp_path / name)
        (tmp_path / name).chmod(bits)
        (folder / name).symlink_to(tmp_path / name)
    LedgerKeys.read(folder)
    (tmp_path / "ledger.key").chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        LedgerKeys.read(folder)


def test_a_public_key_of_another_ledger_is_refused(folder, tmp_path):
    LedgerKeys.make(tmp_path / "other")
    (folder / "signing.pub").write_bytes((tmp_path / "other" / "signing.pub").read_bytes())
    with pytest.raises(InputError, match=r"signing.pub: is not the public key of signing.pem"):
        LedgerKeys.read(folder)


def test_private_keys_of_another_kind_or_with_a_password_are_refused(folder):
    write_signing_key(folder, rsa.generate_private_key(65537, 1024))
    with pytest.raises(InputError, match="of another kind than Ed25519"):
        LedgerKeys.read(folder)
    write_signing_key(folder, Ed25519PrivateKey.generate(), password=b"secret")
    with pytest.raises(InputError, match="no private key in PEM without a password"):
        LedgerKeys.read(folder)


def test_secrets_are_not_printed_copied_or_pickled(folder):
    keys = LedgerKeys.read(folder)
    assert repr(keys) == f"LedgerKeys(public_key={keys.public_key.hex()})" == str(keys) == f"{keys}"
    for move in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="can't be copied or pickled"):
            move(keys)
    with pytest.raises(AttributeError):
        keys.public_key = b""


def test_errors_tell_nothing_of_the_secrets(folder):
    for name in NAMES[:2]:
        secret = (folder / name).read_text()
        (folder / name).write_text(secret[:-5])
        with pytest.raises(InputError) as caught:
            LedgerKeys.read(folder)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        assert not any(part in str(caught.value) for part in (secret[:20], secret[40:60]) if "BEGIN" not in part)
        (folder / name).write_text(secret)


def test_without_cryptography_the_remedy_is_told(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    for work in (lambda: LedgerKeys.make(tmp_path / "new"), lambda: LedgerKeys.read(folder)):
        with pytest.raises(MissingExtraError, match=r"pip install 'excise\[ledger\]'"):
            work()
    assert not (tmp_path / "new").exists()
