"""The secrets of a ledger: one that hides who and what was deleted, and one that signs certificates."""

from __future__ import annotations

import hmac
import os
import re
import secrets
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from excise._support.drafts import draft_folder
from excise._support.files import force_to_disk, naming, write_whole
from excise._support.reading import reason
from excise.errors import InputError, MissingExtraError
from excise.ledger.verify import Refused, raw_public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Kind = Literal["subject", "sample", "seal"]

MASTER, PRIVATE, PUBLIC = "ledger.key", "signing.pem", "signing.pub"
MASTER_BYTES = 32
OWNER_ONLY, FOR_ALL = 0o600, 0o644
LARGEST_FILE = 4096  # bytes that are read; a key is far smaller


@dataclass(frozen=True, repr=False, eq=False)
class LedgerKeys:
    """What a ledger hides people and samples by, and signs with; printing it shows the public key alone.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = LedgerKeys.make(folder)
    ...     made.sign(b"so it is") == LedgerKeys.read(folder).sign(b"so it is")  # Ed25519 signs without chance
    True
    >>> len(made.hmac_of("subject", b"ada")), made.hmac_of("subject", b"ada") == made.hmac_of("sample", b"ada")
    (32, False)
    """

    public_key: bytes
    """Of the signatures: Ed25519, as 32 bytes. Anyone may have it."""
    _sub_keys: dict[str, bytes]
    _private_key: Ed25519PrivateKey

    def __repr__(self) -> str:
        return f"LedgerKeys(public_key={self.public_key.hex()})"

    def __reduce__(self) -> Any:
        raise TypeError("LedgerKeys can't be copied or pickled: the secrets stay in their files.")

    @classmethod
    def make(cls, folder: str | Path) -> Self:
        """Draw new keys and write them to a folder, which must be new or empty: keys are never overwritten.

        Two of the three files are secret, and only their owner can read them from the first byte on. All three are
        there or, after an error or a kill, none.
        """
        private = _private_key_class().generate()
        place = _resolved(Path(folder))
        with naming(place), draft_folder(_made(place.parent)) as draft:
            inside = draft / place.name
            inside.mkdir(mode=0o700)
            write_whole(inside / MASTER, secrets.token_bytes(MASTER_BYTES).hex() + "\n", mode=OWNER_ONLY)
            write_whole(inside / PRIVATE, _private_pem(private), mode=OWNER_ONLY)
            write_whole(inside / PUBLIC, _public_pem(private), mode=FOR_ALL)
            inside.rename(place)  # which the system refuses where another process has put files meanwhile
            force_to_disk(place.parent)
        return cls.read(place)

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The keys in a folder, as ``make`` wrote them."""
        place = Path(folder)
        sub_keys = _sub_keys(_read(place / MASTER, secret=True), place / MASTER)
        private = _private_key(_read(place / PRIVATE, secret=True), place / PRIVATE)
        try:
            public_key = raw_public_key(_read(place / PUBLIC, secret=False))
        except Refused as error:
            raise InputError(f"{place / PUBLIC}: is damaged ({error}); {_AS_BEFORE}.") from None
        if public_key != private.public_key().public_bytes_raw():
            raise InputError(
                f"{place / PUBLIC}: is not the public key of {PRIVATE}, so no certificate signed by that could be "
                f"verified with it; {_AS_BEFORE}."
            )
        return cls(public_key, sub_keys, private)

    def hmac_of(self, kind: str, message: bytes) -> bytes:
        """HMAC-SHA256 of a message under a key for this kind alone: without it no guess can be checked."""
        if kind not in self._sub_keys:
            raise InputError(f"kind must be one of {', '.join(self._sub_keys)}, not {kind!r:.80}.")
        return hmac.digest(self._sub_keys[kind], message, "sha256")

    def sign(self, message: bytes) -> bytes:
        """The signature of a message by Ed25519: 64 bytes."""
        return self._private_key.sign(message)


_AS_BEFORE = "put back the file that was made with the ledger"


def _sub_keys(content: bytes, file: Path) -> dict[str, bytes]:
    """A key for each kind, so that the same text as a subject and as a sample has nothing in common."""
    if not re.fullmatch(rb"[0-9a-f]{%d}\n?" % (2 * MASTER_BYTES), content):
        raise InputError(f"{file}: is damaged (a key is {2 * MASTER_BYTES} hexadecimal digits); {_AS_BEFORE}.")
    master = bytes.fromhex(content.decode())
    return {kind: hmac.digest(master, f"excise {kind}".encode(), "sha256") for kind in get_args(Kind)}


def _read(file: Path, *, secret: bool) -> bytes:
    """The bytes of a small file; a secret that others than its owner can read is refused."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # which waits for no pipe
    except FileNotFoundError:
        raise InputError(f"{file}: no such file; {_AS_BEFORE}, or make keys for a new ledger.") from None
    except (OSError, ValueError) as error:  # ValueError for a NUL in the name
        raise InputError(f"{file}: can't be read ({reason(error)}).") from None
    try:
        _require_kept(os.fstat(descriptor).st_mode, file, secret=secret)
        return os.read(descriptor, LARGEST_FILE)
    except OSError as error:
        raise InputError(f"{file}: can't be read ({reason(error)}).") from None
    finally:
        os.close(descriptor)


def _require_kept(mode: int, file: Path, *, secret: bool) -> None:
    if not stat.S_ISREG(mode):
        raise InputError(f"{file}: is a folder, pipe or device; {_AS_BEFORE}.")
    if secret and stat.S_IMODE(mode) & 0o077:
        raise InputError(
            f"{file}: others than its owner can read or write it (mode {stat.S_IMODE(mode):o}), so it may be known to "
            f"them; if it is not, run: chmod 600 {shlex.quote(str(file))}"
        )


def _resolved(folder: Path) -> Path:
    """Where the folder is, links followed; nothing may be there but an empty folder."""
    if "\0" in str(folder):
        raise InputError(f"folder {str(folder)!r}: no folder can have this name.")
    with naming(folder):
        place = folder.resolve()
        if place.name == "":
            raise InputError(f"folder {place}: keys need a folder of their own; name one in it.")
        _require_empty(place)
    return place


def _require_empty(folder: Path) -> None:
    if folder.is_dir():
        inside = sorted(one.name for one in folder.iterdir())
        if inside:
            keys = [name for name in (MASTER, PRIVATE, PUBLIC) if name in inside]
            what = (
                f"has {' and '.join(keys)} already, and keys are" if keys else f"has {inside[0]!r} in it, and keys are"
            )
            raise InputError(f"{folder}: {what} never overwritten; name a new folder.")
    elif folder.exists():
        raise InputError(f"{folder}: is no folder; name a new one for the keys.")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _private_key_class() -> type[Ed25519PrivateKey]:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise MissingExtraError(
            "Certificates need cryptography; install it with: pip install 'excise[ledger]'"
        ) from None
    return Ed25519PrivateKey


def _private_key(content: bytes, file: Path) -> Ed25519PrivateKey:
    wanted = _private_key_class()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # whose words might tell of the content; TypeError: encrypted
        raise InputError(f"{file}: is no private key in PEM without a password; {_AS_BEFORE}.") from None
    if not isinstance(found, wanted):
        raise InputError(f"{file}: is a private key of another kind than Ed25519; {_AS_BEFORE}.")
    return found


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _public_pem(key: Ed25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
