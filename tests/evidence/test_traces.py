"""Traces of forgotten samples that can be found without a retrained model."""

import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, ttest_ind
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from excise import InputError, Task, fit
from excise.evidence.duplicates import near_duplicates
from excise.evidence.features import penultimate
from excise.evidence.few_shot import few_shot_probe
from excise.evidence.held_out import against_held_out
from excise.evidence.relearning import relearn_steps
from excise.task.hashing import hash_of_model
from excise.task.predictions import predict
from excise.task.targets import targets_of

LOSS = nn.CrossEntropyLoss(reduction="none")


def with_seed(make, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def digits():
    """A network that knows eight-by-eight digits."""
    data = load_digits()
    images, labels = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    model = with_seed(lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
    train, test = TensorDataset(images[:1000], labels[:1000]), TensorDataset(images[1000:], labels[1000:])
    task = Task(model, LOSS, train, test, weight_decay=1e-3)
    return Task(fit(task, epochs=10).model, LOSS, train, test, weight_decay=1e-3)


# features


def test_features_are_what_the_head_reads(digits):
    body = digits.model[:-1]
    assert np.array_equal(penultimate(digits, digits.model), body(digits.train_set.tensors[0]).detach().double())
    some = penultimate(digits, digits.model, [5, 2], dataset=digits.test_set)
    torch.testing.assert_close(torch.tensor(some), body(digits.test_set.tensors[0][[5, 2]]).detach().double())


def test_features_leave_hooks_and_modes_alone(digits):
    model = copy.deepcopy(digits.model).train()
    model[1].eval()
    penultimate(digits, model, [0])
    assert [module.training for module in model] == [True, False, True]
    assert not any(module._forward_hooks for module in model.modules())


def test_hooks_are_removed_after_an_error():
    class Broken(nn.Linear):
        def forward(self, _):
            raise RuntimeError("broken")

    model = Broken(1, 2)
    task = Task(model, LOSS, TensorDataset(torch.zeros(2, 1), torch.tensor([0, 1])))
    with pytest.raises(InputError, match="broken"):
        penultimate(task, model)
    assert not model._forward_hooks


def test_the_last_layer_is_the_one_called_last():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.body = nn.Linear(3, 2), nn.Linear(4, 3)

        def forward(self, inputs):
            return self.head(torch.tanh(self.body(inputs)))

    inputs = normal(6, 4)
    model = with_seed(Backwards)
    task = Task(model, LOSS, TensorDataset(inputs, torch.tensor([0, 1] * 3)))
    expected = torch.tanh(model.body(inputs)).detach().double().numpy()
    np.testing.assert_allclose(penultimate(task, model), expected, rtol=1e-6)


def test_a_convolutional_head_is_averaged_over_space():
    images = normal(4, 1, 6, 6)
    model = with_seed(
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    )
    task = Task(model, LOSS, TensorDataset(images, torch.tensor([0, 1, 0, 1])))
    expected = model[:2](images).mean((2, 3)).detach().double().numpy()
    np.testing.assert_allclose(penultimate(task, model), expected, rtol=1e-5)


def test_tokens_that_are_padding_do_not_count():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.score = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, input_ids, **_):
            return self.score(self.words(input_ids))[:, 0]

    ids = torch.tensor([[1, 2, 3], [4, 5, 0]])
    data = [
        {"input_ids": row, "attention_mask": (row > 0).long(), "labels": torch.tensor(label)}
        for row, label in zip(ids, (0, 1), strict=True)
    ]
    model = with_seed(Tagger)
    words = model.words.weight.detach().double()
    expected = torch.stack([words[[1, 2, 3]].mean(0), words[[4, 5]].mean(0)])
    torch.testing.assert_close(torch.tensor(penultimate(Task(model, LOSS, data), model)), expected)


def test_models_without_features_are_refused():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, inputs):
            return inputs * self.scale

    model = Scale()
    with pytest.raises(InputError, match="no linear or convolutional layer"):
        penultimate(Task(model, LOSS, TensorDataset(torch.zeros(2, 2), torch.tensor([0, 1]))), model)


def test_rows_that_are_not_samples_are_refused():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.score = nn.Linear(2, 2)

        def forward(self, inputs):
            return self.score(inputs.reshape(-1, 2)).reshape(len(inputs), 3, 2).mean(1)

    model = Flat()
    with pytest.raises(InputError, match="for 4 samples"):
        penultimate(Task(model, LOSS, TensorDataset(torch.zeros(4, 6), torch.zeros(4, dtype=torch.long))), model)


# the few-shot probe


@pytest.mark.slow
def test_a_masked_class_is_found_as_well_as_before(digits):
    masked = copy.deepcopy(digits.model)
    with torch.no_grad():
        masked[-1].bias[3] = -30
    hidden = targets_of(digits, dataset=digits.test_set) == 3
    assert (predict(digits, masked, dataset=digits.test_set).outputs[hidden].argmax(1) != 3).all()
    assert few_shot_probe(digits, masked, [3]) == few_shot_probe(digits, digits.model, [3])


def test_features_that_tell_nothing_are_at_chance_and_good_ones_above(digits):
    """A network whose features are all zero can only ever name one class."""
    blank = copy.deepcopy(digits.model)
    with torch.no_grad():
        blank[0].weight.zero_()
        blank[0].bias.zero_()
    found = few_shot_probe(digits, blank, range(10), draws=2)
    assert found.chance == 0.1
    assert abs(found.accuracy - found.chance) < 0.03
    assert few_shot_probe(digits, digits.model, range(10), draws=2).accuracy > 0.7


def test_the_probe_is_fixed_by_its_seed(digits):
    first, second = (few_shot_probe(digits, digits.model, [8], draws=3, seed=4) for _ in range(2))
    assert first == second
    assert first.spread > 0
    assert few_shot_probe(digits, digits.model, [8], draws=3, seed=5) != first
    assert np.isnan(few_shot_probe(digits, digits.model, [8], draws=1).spread)


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (None, [0], "no test_set"),
        ([0, 0, 0], [0], "one class only"),
        ([0, 0, 1], [7], "classes has 7, which is not in task.test_set; it has 0, 1"),
        ([0, 0, 1], [0], "class 0 has 2 samples in task.test_set"),
        ([0, 0, 1], [], "classes is empty"),
        ([0.5, 0.1, 1.0], [0], "not one class per sample"),
    ],
)
def test_what_the_probe_refuses(labels, classes, message):
    test = None if labels is None else TensorDataset(torch.zeros(3, 1), torch.tensor(labels))
    task = Task(nn.Linear(1, 2), LOSS, TensorDataset(torch.zeros(2, 1), torch.tensor([0, 1])), test)
    with pytest.raises(InputError, match=message):
        few_shot_probe(task, task.model, classes, shots=2)


def test_the_probe_refuses_a_model_that_has_diverged(digits):
    broken = copy.deepcopy(digits.model)
    with torch.no_grad():
        broken[0].bias.fill_(torch.nan)
    with pytest.raises(InputError, match="not finite"):
        few_shot_probe(digits, broken, [1])


# relearning


def quadratic(targets):
    """Loss (w - y)²/2 with w = 0: full-batch steps take w towards the mean of y by a share lr of the way."""
    data = TensorDataset(torch.ones(len(targets), 1), torch.tensor(targets))
    task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data)
    nn.init.zeros_(task.model.weight)
    return task


def test_relearning_follows_the_closed_form():
    task = quadratic([1.0, 3.0, 50.0])
    found = relearn_steps(task, task.model, [0, 1], 0.6, lr=0.25)
    expected = [0.5 + 2 * 0.75 ** (2 * step) for step in range(len(found.losses))]  # variance/2 + (mean - w)²/2
    assert found.losses == pytest.approx(expected, rel=1e-6)
    assert found.steps == next(step for step in itertools.count() if 0.5 + 2 * 0.75 ** (2 * step) <= 0.6)
    assert found.reached


def test_a_target_out_of_reach_is_said_to_be():
    task = quadratic([1.0, 3.0])
    found = relearn_steps(task, task.model, [0, 1], 0.4, lr=0.25, most=7)
    assert (found.steps, found.reached, len(found.losses)) == (None, False, 8)


def test_divergence_ends_the_relearning():
    task = quadratic([1e30])
    found = relearn_steps(task, task.model, [0], 0.0, lr=1e20)
    assert not found.reached
    assert len(found.losses) < 5


def test_the_original_has_nothing_to_relearn(digits):
    before = hash_of_model(digits.model)
    ids = list(range(20))
    target = predict(digits, digits.model, ids[::-1]).losses.mean()
    assert relearn_steps(digits, digits.model, ids, target).steps == 0
    fresh = with_seed(lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), 1)
    state = torch.random.get_rng_state()
    runs = [
        relearn_steps(digits, fresh, ids, target, lr=0.1, batch_size=8, most=20, seed=seed).losses for seed in (0, 0, 1)
    ]
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][-1] < runs[0][0]
    assert torch.equal(state, torch.random.get_rng_state())
    assert hash_of_model(digits.model) == before


def test_batch_statistics_and_dropout_stay_out_of_it():
    model = with_seed(lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)))
    task = Task(model.train(), LOSS, TensorDataset(normal(3, 2), torch.tensor([0, 1, 0])))
    first, second = (relearn_steps(task, model, [1], 0.0, most=3) for _ in range(2))
    assert first == second
    assert model.training
    assert model[1].num_batches_tracked == 0


@pytest.mark.parametrize("wrong", [{"target_loss": float("nan")}, {"target_loss": "low"}, {"lr": 0}, {"most": -1}])
def test_what_relearning_refuses(wrong):
    task = quadratic([1.0])
    with pytest.raises(InputError, match=next(iter(wrong))):
        relearn_steps(task, task.model, [0], **{"target_loss": 0.1, **wrong})


# against held-out samples


def one_class(mine, others, **options):
    return against_held_out(mine, np.zeros(len(mine), int), others, np.zeros(len(others), int), **options)


def test_the_rank_test_is_mann_whitneys():
    rng = np.random.default_rng(0)
    few, many, others = rng.exponential(0.6, 12), rng.exponential(1.0, 80).round(1), rng.exponential(1.0, 70).round(1)
    exact = mannwhitneyu(few, others + 1e-4, method="exact")
    found = one_class(few, others + 1e-4)
    assert found.above == pytest.approx(exact.statistic / 12 / 70)
    assert found.p == pytest.approx(exact.pvalue, abs=4 * np.sqrt(exact.pvalue / 9999))
    normal_one = mannwhitneyu(many, others, method="asymptotic", use_continuity=False)  # with ties
    assert one_class(many, others).p == pytest.approx(normal_one.pvalue, rel=1e-9)


def test_one_sample_is_ranked_among_the_others():
    """The lowest of 100 comes up by chance once in 100, on either side."""
    found = one_class([-1.0], np.arange(99.0))
    assert found.p == pytest.approx(0.02, abs=0.006)
    assert found.verdict == "lower"
    assert one_class([1000.0], np.arange(99.0)).verdict == "higher"
    assert one_class([49.0], np.arange(99.0)).verdict == "similar"
    spread = np.arange(99.0).std(ddof=1) * np.sqrt(1 + 1 / 99) * 1.9845  # t with 98 degrees of freedom
    assert found.interval == pytest.approx((-50 - spread, -50 + spread), abs=0.01)


def test_the_interval_of_few_is_welchs():
    rng = np.random.default_rng(1)
    mine, others = rng.normal(1, 1, 9), rng.normal(2, 3, 50)
    truth = ttest_ind(mine, others, equal_var=False).confidence_interval(0.95)
    found = one_class(mine, others)
    assert found.interval == pytest.approx(tuple(truth))
    assert found.interval_by == "Student t"


@pytest.mark.slow
@pytest.mark.parametrize(("count", "least"), [(1, 0.9), (5, 0.85), (20, 0.88), (40, 0.88)])
def test_intervals_cover_the_truth_though_losses_are_skewed(count, least):
    rng = np.random.default_rng(count)
    intervals = [one_class(rng.exponential(1, count), rng.exponential(1, 100)).interval for _ in range(60)]
    assert np.mean([low <= 0 <= high for low, high in intervals]) >= least


@pytest.mark.slow
def test_equal_distributions_seldom_differ():
    """A test at 5 % errs in about 5 of 100, also with one sample each of several classes."""
    rng = np.random.default_rng(0)
    classes, held_out_classes = np.arange(5), np.repeat(np.arange(5), 20)
    wrong = [
        against_held_out(
            rng.exponential(1 + classes), classes, rng.exponential(1 + held_out_classes), held_out_classes
        ).verdict
        for _ in range(200)
    ]
    assert 0.01 <= np.mean([verdict != "similar" for verdict in wrong]) <= 0.1


def test_classes_are_matched():
    """The forgotten are all of the hard class: unmatched they would look far too high."""
    easy, hard = np.linspace(0, 1, 90), np.linspace(10, 11, 10)
    found = against_held_out([10.2, 10.5, 10.8], [1, 1, 1], [*easy, *hard], [0] * 90 + [1] * 10)
    assert found.verdict == "similar"
    assert (found.held_out_mean, found.held_out_median) == pytest.approx((10.5, 10.5))
    assert (found.count, found.held_out_count) == (3, 10)
    unmatched = against_held_out([10.2, 10.5, 10.8], [1.0, 1.0, 1.0], [*easy, *hard], [0.0] * 90 + [1.0] * 10)
    assert unmatched.verdict == "higher"
    assert unmatched.held_out_count == 100


def test_held_out_samples_are_weighted_by_class():
    """Three in four of the forgotten are of class 0: so are the held-out, whatever their number."""
    found = against_held_out([1.0, 1.0, 1.0, 1.0], [0, 0, 0, 1], [2.0, 4.0, 10.0, 10.0, 10.0, 10.0], [0, 0, 1, 1, 1, 1])
    assert found.held_out_mean == pytest.approx(0.75 * 3 + 0.25 * 10)
    assert found.difference == pytest.approx(1 - 4.75)
    assert found.held_out_median == 4.0


@pytest.mark.slow
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.lists(st.integers(0, 5), min_size=2, max_size=12))
@settings(max_examples=40, deadline=None)
def test_the_comparison_has_two_like_sides(mine, others):
    """Negated losses swap lower and higher, and keep all sizes; counting pairs is the slow way to the same figure."""
    a, b = one_class(mine, others), one_class([-x for x in mine], [-x for x in others])
    pairs = [(x > y) + (x == y) / 2 for x in mine for y in others]
    assert a.above == pytest.approx(np.mean(pairs))
    assert a.above + b.above == pytest.approx(1)
    assert a.held_out_median == pytest.approx(np.median(others))
    assert a.interval[0] <= a.difference + 1e-9
    assert a.difference <= a.interval[1] + 1e-9
    assert b.interval == pytest.approx((-a.interval[1], -a.interval[0]))
    assert 0 < a.p <= 1


def test_losses_that_are_all_the_same_are_similar():
    for count in (1, 2, 30, 60):
        found = one_class([0.7] * count, [0.7] * 10)
        assert (found.verdict, found.p, found.difference) == ("similar", 1.0, pytest.approx(0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [4], [1.0, 2.0], [3, 3]), "no sample of class 4"),
        (([], [], [1.0, 2.0], [3, 3]), "forget_losses must be one list"),
        (([np.nan], [3], [1.0, 2.0], [3, 3]), "forget_losses has nan at position 0"),
        (([1.0], [3, 3], [1.0, 2.0], [3, 3]), "forget_targets must have a target for each"),
        (([1.0], [3], [1.0, 2.0], [3, 4]), "1 sample of the forgotten classes"),
    ],
)
def test_what_the_comparison_refuses(arguments, message):
    with pytest.raises(InputError, match=message):
        against_held_out(*arguments)


# near-duplicates


def task_of(inputs, targets=None):
    targets = torch.arange(len(inputs)) % 2 if targets is None else torch.as_tensor(targets)
    return Task(nn.Linear(2, 2), LOSS, TensorDataset(inputs, targets))


def pairs(twins):
    return [(twin.forgotten, twin.retained) for twin in twins]


def test_a_copy_and_a_noisy_copy_are_found_and_nothing_else():
    images = normal(300, 3, 5, 5)
    images[100] = images[7]
    images[200] = images[9] + 0.05 * normal(3, 5, 5, seed=1)
    copy_of, noisy = near_duplicates(task_of(images), [9, 7, 11])
    assert (copy_of.forgotten, copy_of.retained, copy_of.distance, copy_of.exact) == (7, 100, 0.0, True)
    assert (noisy.forgotten, noisy.retained, noisy.exact) == (9, 200, False)
    truth = float((images[9] - images[200]).square().mean().sqrt() / images.std())
    assert noisy.distance == pytest.approx(truth, rel=0.02)
    assert 0 < noisy.relative < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_unrelated_samples_are_not_twins(seed):
    assert near_duplicates(task_of(normal(400, 20, seed=seed)), range(40), seed=seed) == ()


def test_a_twin_with_another_label_is_told():
    inputs = normal(50, 6)
    inputs[30] = inputs[31] = inputs[0]
    targets = [0] * 50
    targets[31] = 1
    twins = near_duplicates(task_of(inputs, targets), [0])
    assert [(twin.retained, twin.same_target) for twin in twins] == [(30, True), (31, False)]


def test_distances_are_those_of_the_slow_way(digits):
    """Scale and shift of the data change nothing; every pair under the threshold is listed, in order."""
    images = digits.train_set.tensors[0].double()
    forgotten, threshold = list(range(30)), 0.9
    distances = torch.cdist(images[:30], images[30:])
    nearest = (torch.cdist(images[30:], images[30:]) + 1e9 * torch.eye(970)).min(1).values.numpy()
    kept = np.sort(np.random.default_rng(0).permutation(970)[:250])  # the sample that says what is usual
    relative = (distances / np.median(nearest[kept])).numpy()
    order = [(i, 30 + j) for i, j in itertools.product(range(30), range(970)) if relative[i, j] <= threshold]
    order.sort(key=lambda pair: relative[pair[0], pair[1] - 30])
    assert len(order) > 5
    for data in (images, images.float(), 1000 + 3 * images):
        twins = near_duplicates(task_of(data), forgotten, threshold=threshold, closest=20)
        assert pairs(twins) == order
        np.testing.assert_allclose([t.relative for t in twins], [relative[i, j - 30] for i, j in order], rtol=1e-5)


def test_where_to_look_and_how_many():
    inputs = normal(40, 6)
    inputs[10:15] = inputs[0]
    task = task_of(inputs)
    two = near_duplicates(task, [0], closest=2, among=range(12, 40))
    assert len({twin.retained for twin in two} & {12, 13, 14}) == len(two) == 2
    assert near_duplicates(task, [0], among=range(20, 40)) == ()
    assert pairs(near_duplicates(task, [0], among=[14])) == [(0, 14)]  # alone it has no neighbour, but is a copy


@pytest.mark.slow
def test_blocks_do_not_change_the_answer(monkeypatch, digits):
    whole = near_duplicates(digits, range(20), threshold=0.9)
    monkeypatch.setattr("excise.evidence.duplicates.MOST_VALUES", 64 * 7)
    assert near_duplicates(digits, range(20), threshold=0.9) == whole != ()


def texts(rows):
    longest = max(map(len, rows))
    return [
        {
            "input_ids": torch.tensor([*row] + [0] * (longest - len(row))),
            "attention_mask": torch.tensor([1] * len(row) + [0] * (longest - len(row))),
            "labels": torch.tensor(len(row) % 2),
        }
        for row in rows
    ]


def test_texts_are_compared_by_the_tokens_they_share():
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, 500, rng.integers(10, 30)).tolist() for _ in range(100)]
    rows[50] = [7, *rows[0]]  # shifted by a word
    rows[60] = rows[1][::-1]
    rows[70] = list(rows[2])
    model = nn.Linear(1, 1)
    twins = near_duplicates(Task(model, LOSS, texts(rows)), [0, 1, 2, 3])
    assert pairs(twins) == [(2, 70), (1, 60), (0, 50)]
    assert [twin.exact for twin in twins] == [True, False, False]
    assert [twin.same_target for twin in twins] == [True, True, False]
    assert [twin.distance for twin in twins] == pytest.approx([0, 0, 1 / (1 + len(rows[0]))])
    # the same without a mask: whole numbers in a plain tensor are tokens
    plain = torch.tensor(rng.integers(1, 500, (60, 20)))
    plain[40] = plain[0].roll(1)
    assert pairs(near_duplicates(task_of(plain), [0, 1])) == [(0, 40)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"forget": range(4)}, "forget has all samples"),
        ({"forget": [0], "among": [0, 1]}, "among has 0, which is in forget too"),
        ({"forget": [0], "threshold": -1}, "threshold must be"),
        ({"forget": [0], "closest": 0}, "closest must be"),
    ],
)
def test_what_the_search_refuses(options, message):
    with pytest.raises(InputError, match=message):
        near_duplicates(task_of(normal(4, 2)), **options)


# targets


def test_targets_need_no_model_unless_the_task_has_a_forward_of_its_own():
    inputs = torch.zeros(5, 2)
    expected = np.array([4, 3, 2, 1, 0])
    labels = torch.tensor(expected)
    plain = Task(nn.Linear(99, 1), LOSS, TensorDataset(inputs, labels))  # the model would not even run
    listed = Task(nn.Linear(99, 1), LOSS, list(zip(inputs, labels, strict=True)))
    mapped = Task(nn.Linear(99, 1), LOSS, [{"x": x, "labels": y} for x, y in zip(inputs, labels, strict=True)])
    swapped = Task(
        nn.Linear(2, 5), LOSS, TensorDataset(labels, inputs), forward=lambda model, batch: (model(batch[1]), batch[0])
    )
    for task in (plain, listed, mapped, swapped):
        assert np.array_equal(targets_of(task), expected)
        assert np.array_equal(targets_of(task, [3, 1]), expected[[3, 1]])
    unlabelled = Task(nn.Linear(2, 1), LOSS, [{"x": torch.zeros(2)}])
    with pytest.raises(InputError, match="'labels'"):
        targets_of(unlabelled)
