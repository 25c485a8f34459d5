"""How often an audit reads the training set: of a folder of pictures, each reading decodes all of them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Effort, Task, Unlearner, fit
from excise import audit as full_audit
from excise.evidence.duplicates import near_duplicates
from excise.evidence.relearning import relearn_steps
from excise.report import html

COUNT, FORGET = 400, list(range(5, 35))
MOST = 8  # times its size
audit = partial(full_audit, effort=Effort(resamples=200, permutations=999))


class Counting:
    """Samples that are counted as they are read."""

    def __init__(self, samples):
        self.samples, self.reads = samples, 0

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, place):
        self.reads += 1
        return self.samples[place]


def network(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))


def samples(count, seed):
    inputs = torch.randn(count, 10, generator=torch.Generator().manual_seed(seed))
    return list(zip(inputs, inputs[:, :4].argmax(1), strict=True))


@pytest.fixture
def task():
    """Whose retraining reads data of its own, so that it is not counted."""
    known, test = samples(COUNT, 0), samples(100, 1)
    data = TensorDataset(*(torch.stack(part) for part in zip(*known, strict=True)))
    uncounted = Task(network(0), nn.CrossEntropyLoss(reduction="none"), data)

    def again(ids, seed):
        return fit(replace(uncounted, model=network(seed)), ids=ids, epochs=2, seed=seed).model

    return replace(uncounted, train_set=Counting(known), test_set=test, retrain=again)


def reads(task):
    found, task.train_set.reads = task.train_set.reads / COUNT, 0
    return found


@pytest.mark.slow
def test_an_audit_reads_the_training_set_a_few_times(task):
    retrained = [network(seed) for seed in (1, 2, 3)]
    audit(task, task.model, network(4), FORGET, retrained=retrained)
    assert 0 < reads(task) <= MOST
    audit(task, task.model, network(5), FORGET, retrained=retrained)
    assert reads(task) <= 4  # fingerprint and targets are known


@pytest.mark.slow
def test_also_with_models_that_were_kept(task, tmp_path):
    audit(task, task.model, network(4), FORGET, retrained=3, cache=tmp_path)
    assert reads(task) <= MOST
    anew = replace(task)
    audit(anew, task.model, network(4), FORGET, retrained=3, cache=tmp_path)
    assert reads(task) <= MOST


@pytest.mark.slow
def test_also_of_what_an_unlearner_gave(task):
    """With the certificate, which takes the gradient of all retained samples."""
    done = Unlearner(task, "step", n_jobs=1).forget(FORGET)
    reads(task)
    found = audit(task, task.model, done, FORGET, retrained=[network(seed) for seed in (1, 2, 3)])
    assert found.change.certificate is not None
    assert reads(task) <= MOST


@pytest.mark.parametrize("text", [False, True])
def test_near_duplicates_read_every_sample_once(task, text):
    if text:
        rng = np.random.default_rng(0)
        rows = [(torch.tensor(rng.integers(0, 50, 12)), torch.tensor(k % 4)) for k in range(COUNT)]
        rows[200] = rows[7]
        task = replace(task, train_set=Counting(rows))
    _ = task.targets
    reads(task)
    found = near_duplicates(task, FORGET)
    assert reads(task) <= 1.01
    assert [(one.forgotten, one.retained) for one in found] == ([(7, 200)] if text else [])


def test_learning_again_reads_the_samples_once(task):
    found = relearn_steps(task, task.model, FORGET, 0.0, most=20, batch_size=8)
    assert len(found.losses) == 21
    assert task.train_set.reads <= len(FORGET) + 1


@pytest.mark.slow
def test_samples_that_differ_at_each_reading_have_no_hash(task):
    """And draw their noise without a trace in the global randomness."""

    class Noisy(Counting):
        def __getitem__(self, place):
            inputs, target = super().__getitem__(place)
            return inputs + 0.1 * torch.randn(10), target

    noisy = replace(task, train_set=Noisy(task.train_set.samples))
    before = torch.get_rng_state()
    found = audit(noisy, task.model, network(4), FORGET)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.train_hash is None
    assert "none: the samples differ at each reading" in html(found)
    assert audit(task, task.model, network(4), FORGET).train_hash == task.fingerprint.ordered


def test_the_verdict_is_made_once_and_follows_the_figures(task):
    found = audit(task, task.model, task.model, FORGET)
    assert found.verdict is found.verdict
    other = replace(found, unlearned=replace(found.unlearned, model_hash="another"))
    assert found.verdict.findings[0].title == "Nothing was changed"
    assert other.verdict.findings[0].title != "Nothing was changed"
