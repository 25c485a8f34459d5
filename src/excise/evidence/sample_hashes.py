"""Hashes that name samples in a published report without giving them away.

A plain hash of a short record can be guessed: whoever tries all ages and labels finds the one that fits. So samples are
hashed under a key. Without it no guess can be checked; with it the user can prove which samples a report is about.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excise._support.files import write_whole
from excise.errors import InputError
from excise.task.hashing import update
from excise.task.ids import positions

if TYPE_CHECKING:
    from excise.task.task import Task

KEY_BYTES = 32
LEAST_KEY_BYTES = 16  # a shorter key could itself be guessed


def new_hash_key() -> bytes:
    """A key that no one can guess."""
    return secrets.token_bytes(KEY_BYTES)


def admitted_key(key: Any) -> bytes:
    """The key, unless it is too short to be a secret."""
    if not isinstance(key, bytes) or len(key) < LEAST_KEY_BYTES:
        what = f"{len(key)} bytes" if isinstance(key, bytes) else f"a {type(key).__name__}"
        raise InputError(
            f"hash_key must be {LEAST_KEY_BYTES} secret bytes or more, not {what}; draw one by secrets.token_bytes(32)."
        )
    return key


def sample_hash(task: Task, id: int, key: bytes) -> str:
    """HMAC-SHA256 of one training sample, input and target as the model gets them, under the user's key.

    A report has the same hash for a sample, so whoever holds the key and the sample can prove that it is the one.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.zeros(3, 1), torch.tensor([0, 1, 1]))
    >>> from excise import Task
    >>> task = Task(torch.nn.Linear(1, 2), torch.nn.CrossEntropyLoss(), data)
    >>> sample_hash(task, 1, b"sixteen or more bytes") == sample_hash(task, 2, b"sixteen or more bytes")
    True
    >>> sample_hash(task, 1, b"sixteen or more bytes") == sample_hash(task, 1, b"another key, as long")
    False
    """
    place = positions([id], len(task.train_set))
    mac = hmac.new(admitted_key(key), digestmod=hashlib.sha256)
    update(mac, task.batch(place))
    return mac.hexdigest()


def read_or_make_key(file: Path) -> bytes:
    """The key in a file, as hexadecimal digits; a file that is not there is made, for its owner's eyes only."""
    if not file.exists():
        key = new_hash_key()
        write_whole(file, key.hex() + "\n", mode=0o600)
        return key
    try:
        if not file.is_file():
            raise ValueError("it is no regular file")
        key = bytes.fromhex(file.read_text(encoding="ascii").strip())
        if len(key) < LEAST_KEY_BYTES:
            raise ValueError(f"it has {len(key)} bytes")
    except (OSError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(
            f"{file}: is no key ({reason}); a key is {2 * LEAST_KEY_BYTES} hexadecimal digits or more, and one is made "
            "where the file is not there."
        ) from None
    return key
