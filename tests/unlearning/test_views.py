"""Views: the copies by hand, the answers that are taught, and a network that forgets digits it knew by heart."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from excise import Drift, InputError, Task, Unlearner, fit
from excise.task.hashing import hash_of_model
from excise.unlearning.views import Lesson, Views, mean_answers

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


def shifted(image, down, right):
    """The slow, obvious version: every pixel from where it was, the border repeated."""
    height, width = image.shape
    rows = [min(max(row + down, 0), height - 1) for row in range(height)]
    columns = [min(max(column + right, 0), width - 1) for column in range(width)]
    return [[image[row, column].item() for column in columns] for row in rows]


@pytest.mark.parametrize(("size", "share", "moves"), [(4, 1 / 16, [-1, 0, 1]), (8, 1 / 4, [-2, 0, 2])])
def test_views_are_shifted_by_hand(size, share, moves):
    image = torch.arange(float(size * size)).reshape(1, 1, size, size)
    views = Views(shift=share).of(image)
    by_hand = [shifted(image[0, 0], down, right) for down in moves for right in moves]
    assert [view[0, 0].tolist() for view in views] == by_hand


def test_views_keep_channels_and_samples_apart():
    images = torch.rand(3, 2, 16, 32, generator=torch.Generator().manual_seed(0))
    views = Views(shift=1 / 8).of(images)  # by 2 up and down and 4 sideways
    assert len(views) == 9
    assert all(view.shape == images.shape for view in views)
    assert torch.equal(views[4], images)
    assert views[0][2, 1].tolist() == shifted(images[2, 1], -2, -4)
    assert views[8][1, 0].tolist() == shifted(images[1, 0], 2, 4)
    assert views[5][1, 0].tolist() == shifted(images[1, 0], 0, 4)


def test_flipped_views_follow_each_one():
    images = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    views, plain = Views(flip=True).of(images), Views().of(images)
    assert len(views) == 2 * len(plain)
    for k, view in enumerate(plain):
        assert torch.equal(views[2 * k], view)
        assert views[2 * k + 1].tolist() == view.numpy()[:, :, :, ::-1].tolist()


def test_views_of_ones_own():
    views = Views(make=lambda rows: [rows, -rows])
    assert [view.tolist() for view in views.of(torch.tensor([[1.0, 2.0]]))] == [[[1.0, 2.0]], [[-1.0, -2.0]]]
    assert len(views.of(torch.tensor([[1, 2]]))) == 2  # also of tokens


def test_bad_views_are_refused():
    with pytest.raises(InputError, match=r"views are of images.*float32 of shape \(2, 3\).*Views\(make="):
        Views().of(torch.zeros(2, 3))
    with pytest.raises(InputError, match=r"uint8 of shape \(1, 1, 4, 4\)"):
        Views().of(torch.zeros(1, 1, 4, 4, dtype=torch.uint8))
    with pytest.raises(InputError, match="make must be a function that gives at least one view"):
        Views(make=lambda _: []).of(torch.zeros(1, 1, 4, 4))
    for option, wrong in (("batch_size", 0), ("weight", -1.0), ("shift", 1.0), ("shift", -0.1), ("temperature", 0)):
        with pytest.raises(InputError, match=f"{option} must be"):
            Views(**{option: wrong})
    tokens = [{"input_ids": torch.ones(4, dtype=torch.long), "labels": torch.tensor(0)}]
    task = Task(nn.Linear(4, 2), CROSS_ENTROPY, tokens)
    with pytest.raises(InputError, match="views need real-valued inputs"):
        mean_answers(task, task.model, task.batch([0]), Views())
    numbers = TensorDataset(torch.rand(2, 1, 4, 4), torch.rand(2))
    model = nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 16)), nn.Linear(16, 1), nn.Flatten(0))
    task = Task(model, nn.MSELoss(reduction="none"), numbers)
    with pytest.raises(InputError, match=r"views need logits of classes.*shape \(2,\)"):
        mean_answers(task, task.model, task.batch([0, 1]), Views())


# --- the lesson ------------------------------------------------------------------------------------------------------


def linear_task(count):
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(count, 1, 4, 4), torch.arange(count) % 3)
    return Task(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), CROSS_ENTROPY, data)


@pytest.fixture
def small():
    with torch.random.fork_rng():
        yield linear_task(11)


def answers_by_hand(task, ids, views):
    """Softmax of the mean logits over the views, softened by the temperature."""
    with torch.no_grad():
        logits = [task.model(view).double().numpy() for view in views.of(task.train_set.tensors[0][ids])]
    return softmax(np.mean(logits, axis=0) / views.temperature, axis=1)


@pytest.mark.parametrize("warmth", [1.0, 4.0])
def test_the_lesson_is_cross_entropy_with_the_mean_answer(small, warmth):
    """At a temperature T, T² times that of the softened answers."""
    views, ids = Views(flip=True, weight=0.25, temperature=warmth), torch.tensor([7, 2, 4])
    other = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))  # the answers are those of the model at the start
    with torch.no_grad():
        said = log_softmax(other(small.train_set.tensors[0][ids]).double().numpy() / warmth, axis=1)
    truth = -0.25 * warmth**2 * np.mean(np.sum(answers_by_hand(small, ids, views) * said, axis=1))
    assert Lesson(small, small.model, ids, views, seed=0).loss(other).item() == pytest.approx(truth, rel=1e-5)


def test_answers_to_mappings_are_the_same(small):
    inputs, labels = small.train_set.tensors
    samples = [{"pixels": image, "labels": label} for image, label in zip(inputs, labels, strict=True)]

    def forward(model, batch):
        return model(batch["pixels"]), batch["labels"]

    mapped = replace(small, train_set=samples, forward=forward)
    plain, other = (mean_answers(task, task.model, task.batch([3, 1]), Views()) for task in (small, mapped))
    assert torch.equal(plain, other)
    by_hand = answers_by_hand(small, [3, 1], Views(temperature=1.0))
    assert plain.softmax(1).tolist() == [pytest.approx(row, abs=1e-6) for row in by_hand.tolist()]


@pytest.mark.parametrize(("count", "size"), [(11, 4), (10, 5), (3, 16), (5, 4), (1, 2)])
def test_every_sample_has_its_turn(count, size):
    """After any number of steps, no sample was taught twice more often than another; none twice in a step."""
    with torch.random.fork_rng():
        task = linear_task(11)
    ids = torch.arange(11 - count, 11)
    lesson = Lesson(task, task.model, ids, Views(batch_size=size), seed=0)
    taught, asked = np.zeros(11, dtype=int), []

    class Spy(nn.Module):
        def forward(self, inputs):
            asked.append(inputs)
            return task.model(inputs)

    for _ in range(30):
        lesson.loss(Spy())
        now = [int((task.train_set.tensors[0] == image).flatten(1).all(1).nonzero()) for image in asked[-1]]
        assert len(now) == len(set(now)) == min(size, count)
        taught[now] += 1
        assert np.ptp(taught[ids]) <= 2
    assert not taught[: 11 - count].any()
    assert taught[ids].min() >= 30 * min(size, count) // count - 1


def test_lessons_follow_their_seed(small):
    def steps(seed):
        lesson = Lesson(small, small.model, torch.arange(11), Views(batch_size=3), seed)
        return [lesson.loss(small.model).item() for _ in range(5)]

    state = torch.get_rng_state()
    assert steps(0) == steps(0) != steps(1)
    assert torch.equal(torch.get_rng_state(), state)


# --- end to end ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_heart():
    """A small convolutional network that has learned 8 × 8 digits by heart, twelve of them with wrong labels."""
    images, labels = load_digits(return_X_y=True)
    wrong = np.arange(0, 120, 10)
    labels[wrong] = (labels[wrong] + 3) % 10
    data = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(192, 48),
            nn.ReLU(),
            nn.Linear(48, 10),
        )
    train, test = (TensorDataset(*(part[some] for part in data)) for some in (slice(400), slice(400, 800)))
    task = Task(model, CROSS_ENTROPY, train, test, weight_decay=5e-4)
    task = replace(task, model=fit(task, epochs=80, lr=0.1).model)
    assert accuracy(task, task.model, wrong) == 1
    return task, wrong


def accuracy(task, model, ids):
    inputs, labels = task.batch(ids)
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).float().mean().item()


def loss(task, model, ids):
    with torch.no_grad():
        return task.losses(model, task.batch(ids)).mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("flip", [True, False])
def test_a_network_forgets_digits_that_it_knew_by_heart(by_heart, flip, monkeypatch):
    task, wrong = by_heart
    rest = np.setdiff1d(np.arange(400), wrong)
    before = hash_of_model(task.model)

    def never(*_):
        raise AssertionError("the Newton step was computed")

    monkeypatch.setattr("excise.unlearning.drift.influence", never)
    done = Unlearner(task, Drift.of_images(flip=flip), n_jobs=1).forget(wrong.tolist())
    assert loss(task, done.model, wrong) > 3 * loss(task, task.model, wrong)
    assert loss(task, done.model, wrong) > loss(task, task.model, wrong) + 0.3
    assert accuracy(task, done.model, rest) > accuracy(task, task.model, rest) - 0.01
    assert hash_of_model(task.model) == before
    without = replace(Drift.of_images(), views=None)  # the same pass alone does not do it
    plain = Unlearner(task, without, n_jobs=1).forget(wrong.tolist())
    assert loss(task, done.model, wrong) > 2 * loss(task, plain.model, wrong)


def test_with_a_push_the_step_is_computed(by_heart, monkeypatch):
    task, wrong = by_heart

    def stop(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("excise.unlearning.drift.influence", stop)
    with pytest.raises(ZeroDivisionError):
        Unlearner(task, replace(Drift.of_images(), push=1.0), n_jobs=1).forget(wrong.tolist())


def test_views_of_rows_that_are_no_images_are_refused_before_anything_is_done():
    data = TensorDataset(torch.rand(20, 4), torch.arange(20) % 2)
    task = Task(nn.Linear(4, 2), CROSS_ENTROPY, data)
    task = replace(task, model=fit(task, epochs=5).model)
    before, unlearner = copy.deepcopy(task.model), Unlearner(task, Drift.of_images(), n_jobs=1)
    with pytest.raises(InputError, match="views are of images"):
        unlearner.forget([0])
    assert hash_of_model(before) == hash_of_model(task.model)
    assert unlearner.forgotten == ()
