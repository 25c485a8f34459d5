"""The length of a step by exchangeability, and the method that takes it."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from excise import (
    Cached,
    Calibrated,
    InputError,
    NothingForgotten,
    Predicted,
    SampleWeighted,
    Step,
    Task,
    Unlearner,
    exact_fit,
    fit,
)
from excise.task.objective import losses_on
from excise.unlearning.answered import Answered
from excise.unlearning.exchangeability import LENGTHS, HeldOutLoss, Known, Trials, crossing, nothing_to_forget
from excise.unlearning.method import Workspace


def digits(low, high):
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images[low:high], dtype=torch.float32) / 16, torch.tensor(labels[low:high]))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    task = Task(start, nn.CrossEntropyLoss(), digits(0, 600), digits(600, 1797), weight_decay=1e-3)
    return task.with_model(fit(task, epochs=30, lr=0.1).model)


@given(st.lists(st.floats(0.001, 5), min_size=len(LENGTHS) - 1, max_size=len(LENGTHS) - 1), st.floats(0, 30))
def test_the_crossing_is_where_the_loss_is_the_aim(rises, aim):
    losses = np.cumsum([0.1, *rises])
    found = crossing(losses, aim)
    if aim <= losses[0]:
        assert found == 0
    elif aim >= losses[-1]:
        assert found == pytest.approx(LENGTHS[-1])
    else:
        assert np.interp(found, LENGTHS, losses) == pytest.approx(aim)


def test_a_loss_that_falls_or_fails_ends_the_search():
    falling = np.array([0.1, 0.2, 0.15, *np.arange(1.0, 1.0 + len(LENGTHS) - 3)])
    assert crossing(falling, 5.0) == LENGTHS[1]
    assert crossing(np.array([0.1, 0.2, 0.3, *[np.nan] * (len(LENGTHS) - 3)]), 5.0) == LENGTHS[2]


def test_the_loss_of_held_out_samples_is_weighted_to_the_classes(network):
    unseen = HeldOutLoss.of(replace(network, test_set=digits(600, 1000)), network.model, seed=0)
    labels = network.targets[torch.arange(7)]
    with torch.no_grad():
        images, truth = digits(600, 1000).tensors
        each = nn.functional.cross_entropy(network.model(images), truth, reduction="none")
    slow = [float(each[truth == label].mean()) for label in labels]
    assert unseen.of_each(labels).tolist() == pytest.approx(slow, rel=1e-5)


def trials(ids, rises, aims, counts=None):
    """Of samples that are all on trial, and whose losses are 0 before."""
    none, every = torch.zeros(len(ids), dtype=torch.double), torch.arange(len(ids))
    known = Known(torch.tensor(ids), none, torch.tensor(aims, dtype=torch.double))
    return Trials(known, every, none + 1 if counts is None else counts, torch.stack(rises, 1))


def test_the_samples_of_a_request_do_not_tell_its_length():
    """Two samples whose loss rises to 1 at the whole step, and one with a wrong label that rises much faster."""
    loss = torch.tensor(LENGTHS, dtype=torch.double)
    tried = trials([4, 7, 9], [loss, loss, 50 * loss], [1.0, 1.0, 0.5])
    assert tried.length(without={9, 100}).value == pytest.approx(1.0)
    assert tried.length(without={9}).held_out_loss == 1.0
    assert tried.length().value == pytest.approx(2.5 / 52)
    assert tried.length(without={4, 7, 9}) == tried.length()  # nothing else is known


def test_a_sample_on_trial_counts_as_often_as_it_stands_for():
    """One of a thousand samples rises to 30 at the whole step, the others, of which two are on trial, to a half."""
    loss = torch.tensor(LENGTHS, dtype=torch.double)
    known = Known(torch.arange(1000), torch.full((1000,), 0.1).double(), torch.full((1000,), 0.6295).double())
    counts = torch.tensor([1.0, 499.5, 499.5], dtype=torch.double)
    tried = Trials(known, torch.tensor([3, 5, 900]), counts, torch.stack([30 * loss, 0.5 * loss, 0.5 * loss], 1))
    assert tried.length().value == pytest.approx(1.0, rel=1e-6)
    assert tried.length().known_loss == pytest.approx(0.1)
    assert tried.length(without={3}).value == pytest.approx(0.5295 / 0.5, rel=1e-6)


@pytest.mark.slow
def test_the_length_hardly_depends_on_which_samples_are_on_trial(network):
    """From draw to draw it is that of all samples on trial."""

    def found(method, seed):
        return Unlearner(network, method, guard=None, seed=seed).forget([3]).step_share

    everyone = found(Calibrated(Cached(samples=599), groups=50), 0)
    lengths = [found(Calibrated(Cached(samples=599), groups=8), seed) for seed in range(6)]
    assert np.mean(lengths) == pytest.approx(everyone, rel=0.15)
    assert np.std(lengths) < 0.15 * np.mean(lengths)


@pytest.mark.slow
def test_wrong_labels_are_forgotten_by_the_length_of_the_others(network):
    """Where a part of the samples on trial has wrong labels, these would make a step too short."""
    images, labels = (tensor.clone() for tensor in network.train_set.tensors)
    wrong = torch.arange(0, 600, 50)
    labels[wrong] = (labels[wrong] + 1) % 10
    start = replace(network, train_set=TensorDataset(images, labels))
    task = start.with_model(fit(start, epochs=60, lr=0.1).model)
    method = Calibrated(curvature=Cached(samples=600), groups=15)  # all samples are on trial
    wrong_ones, another = (Unlearner(task, method, guard=None).forget(ids) for ids in (wrong.tolist(), [3]))
    assert wrong_ones.step_share > 1.3 * another.step_share


@pytest.mark.slow
def test_newtons_own_length_is_found_where_the_step_is_exact():
    """A ridge regression is forgotten exactly by the whole step, and then its samples are like any unseen ones."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(6000, 60, generator=generator)
    targets = inputs[:, :1] + torch.randn(6000, 1, generator=generator)
    train, test = TensorDataset(inputs[:400], targets[:400]), TensorDataset(inputs[400:], targets[400:])
    start = Task(nn.Linear(60, 1), nn.MSELoss(), train, test, weight_decay=1e-3)
    task = start.with_model(exact_fit(start).model)
    lengths = [Unlearner(task, Calibrated(groups=25), seed=seed).forget([3]).step_share for seed in range(4)]
    assert 0.6 < np.mean(lengths) < 1.4


@pytest.mark.slow
@pytest.mark.parametrize("times", [0.2, 50])
def test_forgotten_samples_get_the_loss_of_unseen_ones_whatever_the_weight_decay(network, times):
    """A wrong weight decay makes Newton's step too long or too short, and its length makes up for it."""
    guess = replace(network, weight_decay=times * network.weight_decay)
    groups = torch.randperm(600, generator=torch.Generator().manual_seed(0))[:180].split(12)
    unseen = HeldOutLoss.of(network, network.model, seed=0)
    aim = float(unseen.of_each(network.targets[torch.cat(groups)]).mean())

    def missed(method):
        ready = Unlearner(guess, method, guard=None).prepare()  # by the original alone, so once for all groups
        models = [copy.deepcopy(ready).forget(group).model for group in groups]
        losses = [float(losses_on(network, model, group).mean()) for model, group in zip(models, groups, strict=True)]
        return abs(np.mean(losses) - aim)

    before = float(losses_on(network, network.model, torch.cat(groups)).mean())
    assert missed(Calibrated(groups=20)) < 0.3 * (aim - before)
    assert missed(Step("all")) > 0.5 * (aim - before)


def test_the_outcome_says_the_length(network):
    done = Unlearner(network, "calibrated").forget([3, 5])
    assert 0 < done.step_share <= LENGTHS[-1]
    assert f"the step has {done.step_share:.2g} of Newton's length" in done.summary()
    assert done.settings["method"]["name"] == "calibrated"


def test_the_model_and_the_randomness_are_left_alone(network):
    before, state = copy.deepcopy(network.model.state_dict()), torch.get_rng_state()
    first = Unlearner(network, Calibrated(), seed=1).forget([3, 5])
    again = Unlearner(network, Calibrated(), seed=1).forget([3, 5])
    assert first.step_share == again.step_share
    assert all(torch.equal(before[name], tensor) for name, tensor in network.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_what_earlier_requests_forgot_is_not_read(network):
    read = set()

    class Watched(list):
        def __getitem__(self, place):
            read.add(place)
            return super().__getitem__(place)

    watched = replace(network, train_set=Watched(zip(*network.train_set.tensors, strict=True)))
    unlearner = Unlearner(watched, Calibrated(), forgotten=list(range(20, 40)))
    read.clear()
    unlearner.forget([3, 8])
    assert not read & set(range(20, 40))
    assert read >= {3, 8}


def test_a_step_that_settles_has_the_same_length(network):
    plain = Unlearner(network, Calibrated()).forget([3, 5])
    passed = Unlearner(network, Calibrated(settle=True)).forget([3, 5])
    assert passed.step_share == plain.step_share
    assert passed.forget_loss[1] > passed.forget_loss[0]
    assert not torch.equal(passed.model[0].weight, plain.model[0].weight)


def test_a_model_that_knows_its_samples_no_better_forgets_nothing(network):
    with torch.no_grad():
        images, labels = digits(600, 1797).tensors
        each = nn.functional.cross_entropy(network.model(images), labels, reduction="none")
    easy = each < 1e-2
    known = replace(network, test_set=TensorDataset(images[easy], labels[easy]))
    with pytest.raises(NothingForgotten, match="it knows the first no better"):
        Unlearner(known, Calibrated()).forget([3])


@pytest.mark.parametrize(
    ("held_out", "words"),
    [
        (None, "test_set has 0 samples"),
        (digits(600, 629), "test_set has 29 samples"),
        (TensorDataset(torch.rand(40, 64), torch.zeros(40, dtype=torch.long)), r"classes \[0\] alone"),
    ],
    ids=["none", "few", "other classes"],
)
def test_held_out_samples_that_can_not_tell_are_refused(network, held_out, words):
    with pytest.raises(InputError, match=words):
        Unlearner(replace(network, test_set=held_out), Calibrated()).prepare()


@pytest.mark.parametrize("options", [{"groups": 0}, {"lr": 0.0}, {"lr": -1.0}, {"curvature": "newton"}, {"size": 2}])
def test_bad_options(options):
    with pytest.raises(InputError, match=next(iter(options))):
        Calibrated(**options)


def test_a_block_has_a_length_of_its_own(network):
    every = Unlearner(network, Calibrated()).prepare()
    some = Unlearner(network, Calibrated(selection="per-layer"), n_jobs=1).prepare()
    assert (
        some._prepared.trials.length().value > every._prepared.trials.length().value
    )  # fewer weights have to do the same
    done = some.forget([3, 5])
    assert 0 < len(done.slices) < len(some.slices)
    assert "of Newton's length, at which forgotten samples look like held-out ones" in done.summary()


def test_many_classes_with_few_held_out_samples_are_taken_together():
    """A group on trial is small, and held-out samples of most of its classes may be missing by chance."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inputs, labels = torch.randn(80, 6), torch.arange(80) % 20
        held_out = TensorDataset(torch.randn(40, 6), torch.arange(40) % 12)
        start = Task(
            nn.Linear(6, 20), nn.CrossEntropyLoss(), TensorDataset(inputs, labels), held_out, weight_decay=0.01
        )
        task = start.with_model(fit(start, epochs=20, lr=0.1).model)
    assert Unlearner(task, Calibrated()).prepare()._prepared.trials.length().value > 0


def test_samples_without_a_label_change_nothing(network):
    """Their loss is 0 whatever is forgotten; that of the others counts for more, in what is known and in the aim."""
    images, labels = network.train_set.tensors
    unlabelled = torch.cat([labels, torch.full((400,), -100)])
    more = TensorDataset(torch.cat([images, images[:400]]), unlabelled)
    few, many = (
        Known.of(task, network.model, torch.arange(len(task.train_set)), 0)
        for task in (network, replace(network, train_set=more))
    )
    assert float(many.aims.sum() / many.losses.sum()) == pytest.approx(float(few.aims.sum() / few.losses.sum()))
    without_labels = replace(
        network, test_set=TensorDataset(images.repeat(2, 1), torch.cat([labels, 0 * labels - 100]))
    )
    plain = replace(network, test_set=TensorDataset(images, labels))
    seen = [HeldOutLoss.of(task, network.model, 0).mean for task in (without_labels, plain)]
    assert seen[0] == pytest.approx(seen[1])
    none = replace(network, test_set=TensorDataset(images, 0 * labels - 100))
    with pytest.raises(InputError, match="test_set has 0 samples with a label"):
        HeldOutLoss.of(none, network.model, 0)


def test_weights_of_held_out_samples_are_not_looked_at(network):
    def with_weights(data, weight):
        images, labels = data.tensors
        return TensorDataset(images, torch.stack([labels.double(), torch.full((len(labels),), weight).double()], 1))

    train, loss = with_weights(network.train_set, 2.0), SampleWeighted(nn.CrossEntropyLoss(reduction="none"))
    weighted = [Task(network.model, loss, train, with_weights(network.test_set, weight)) for weight in (1.0, 7.0)]
    known = [Known.of(task, network.model, torch.arange(600), 0) for task in weighted]
    assert torch.allclose(known[0].aims, known[1].aims)
    plain = Known.of(network, network.model, torch.arange(600), 0)
    assert torch.allclose(known[0].aims / known[0].losses.sum(), plain.aims / plain.losses.sum(), rtol=1e-4)
    answered = [Answered.by(Workspace(task, 0, None), network.model, torch.arange(600)) for task in weighted]
    aims = [one.known(task, torch.arange(600)).aims for one, task in zip(answered, weighted, strict=True)]
    assert torch.allclose(aims[0], aims[1])
    assert torch.allclose(aims[0], known[0].aims, rtol=1e-4)


@pytest.mark.parametrize("method", [Calibrated(), Predicted(), "auto"])
def test_a_held_out_sample_that_gives_no_number_is_named(network, method):
    images, labels = (one.clone() for one in network.test_set.tensors)
    images[17] = torch.nan
    with pytest.raises(InputError, match="sample 17 of test_set has the loss nan"):
        Unlearner(replace(network, test_set=TensorDataset(images, labels)), method).forget([1])


def test_targets_of_different_width_need_not_fit_together():
    """Sequences are padded batch by batch."""
    generator = torch.Generator().manual_seed(0)
    texts = [
        torch.rand(int(length), generator=generator) for length in torch.randint(2, 9, (700,), generator=generator)
    ]

    def collate(samples):
        width = max(map(len, samples))
        padded = torch.stack([nn.functional.pad(one, (0, width - len(one))) for one in samples])
        return padded[:, :1], padded

    def loss(outputs, targets):
        return ((outputs - targets) ** 2).mean(1)

    model = nn.Linear(1, 1)
    task = Task(model, loss, texts[:600], texts[600:], collate=collate, weight_decay=0.1)
    known = Known.of(task, model, torch.arange(600), 0)
    assert torch.isfinite(known.aims).all()
    assert torch.allclose(known.aims, known.aims[0].expand(600))


def test_a_loss_that_falls_on_trial_is_not_called_unknown():
    with pytest.raises(NothingForgotten, match="have less loss than before"):
        raise nothing_to_forget(0.1, 0.8)
    with pytest.raises(NothingForgotten, match="knows the first no better"):
        raise nothing_to_forget(0.8, 0.1)
