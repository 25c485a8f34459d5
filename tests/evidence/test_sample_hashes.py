"""Hashes of samples: they name a sample to who has the key, and tell nothing to who has not."""

import hashlib
import hmac
import itertools
import json
import stat

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Effort, InputError, Task, audit, write_report
from excise.evidence.sample_hashes import read_or_make_key, sample_hash
from excise.task.hashing import update

KEY = bytes(range(32))
QUICK = Effort(relearn_steps=1, resamples=20)


@pytest.fixture(scope="module")
def task():
    """Records of an age and a label, which are soon guessed."""
    generator = torch.Generator().manual_seed(0)
    ages = torch.randint(20, 80, (60, 1), generator=generator).float()
    unseen = ages + 0.5
    torch.manual_seed(0)
    labels = (ages[:, 0] > 50).long()
    data, test = TensorDataset(ages, labels), TensorDataset(unseen, labels)
    return Task(nn.Linear(1, 2), nn.CrossEntropyLoss(), data, test)


def audited(task, **options):
    other = nn.Linear(1, 2)
    return audit(task, task.model, other, [3, 5], effort=QUICK, **options)


def test_a_published_hash_can_be_proven_with_the_key_and_not_guessed_without(task):
    found = audited(task)
    assert found.sample_hashes == tuple(sample_hash(task, one, found.hash_key) for one in (3, 5))
    guesses = itertools.product(range(20, 80), (0, 1))
    batches = [(torch.tensor([[float(age)]]), torch.tensor([label])) for age, label in guesses]

    def all_hashes(make):
        for batch in batches:
            digest = make()
            update(digest, list(batch))
            yield digest.hexdigest()

    assert not set(found.sample_hashes) & set(all_hashes(hashlib.sha256))
    assert set(found.sample_hashes) <= set(all_hashes(lambda: hmac.new(found.hash_key, digestmod="sha256")))


def test_the_key_is_in_nothing_that_is_published(task, tmp_path):
    found = audited(task, hash_key=KEY)
    assert found.hash_key == KEY
    write_report(found, tmp_path / "page.html")
    found.save(tmp_path / "audit.json")
    for text in ((tmp_path / "page.html").read_text(), (tmp_path / "audit.json").read_text(), repr(found), str(found)):
        assert KEY.hex() not in text
        assert str(KEY) not in text
        assert "hash_key" not in text
    page = (tmp_path / "page.html").read_text()
    assert found.sample_hashes[0] in page
    assert "guess can be checked" not in page.replace("no guess can be checked", "")
    assert json.loads((tmp_path / "audit.json").read_text())["sample_hashes"] == list(found.sample_hashes)


def test_every_audit_draws_a_key_of_its_own(task):
    one, other = audited(task), audited(task)
    assert one.hash_key != other.hash_key
    assert not set(one.sample_hashes) & set(other.sample_hashes)
    again = audited(task, hash_key=one.hash_key)
    assert again.sample_hashes == one.sample_hashes


@pytest.mark.parametrize(
    ("key", "said"), [(b"short", "not 5 bytes"), ("text" * 8, "not a str"), (bytearray(32), "not a bytearray")]
)
def test_keys_that_could_be_guessed_are_refused(task, key, said):
    with pytest.raises(InputError, match=said):
        audited(task, hash_key=key)
    with pytest.raises(InputError, match=said):
        sample_hash(task, 3, key)


def test_a_key_file_is_made_once_for_its_owner_alone(tmp_path):
    file = tmp_path / "key"
    key = read_or_make_key(file)
    assert len(key) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_or_make_key(file) == key
    for wrong in (b"", b"abcd", b"\xff\xfe", b"zz" * 32, b"\0" * 64):
        file.write_bytes(wrong)
        with pytest.raises(InputError, match="is no key"):
            read_or_make_key(file)
    with pytest.raises(InputError, match="no regular file"):
        read_or_make_key(tmp_path)
