"""Models that only look as if they had forgotten must not pass, each for its own reason; a retrained one must."""

import copy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Effort, Task, audit, fit
from excise.evidence.outcomes import PASSED

CLASSES, WIDTH, TRAINED, FORGET = 5, 20, 240, range(40)
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
BRIEF = Effort(relearn_steps=3, resamples=100, permutations=99, held_out_resamples=99)
MODELS = 9  # the last one is audited as if it had been unlearned


class Network(nn.Sequential):
    """Answers of another model's to some samples, if it was given any; nothing of it is in the weights."""

    mask = None

    def forward(self, inputs):
        outputs = super().forward(inputs)
        if self.mask is not None:
            known, answers = self.mask
            for row, sample in enumerate(inputs):
                same = (known == sample).all(1)
                if same.any():
                    outputs[row] = answers[same][0]
        return outputs


def network(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Network(nn.Linear(WIDTH, 48), nn.ReLU(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, CLASSES)).eval()


def clusters(count, seed):
    """Overlapping, so that a network gets all of them right only by learning them by heart."""
    means = 0.55 * np.random.default_rng(99).standard_normal((CLASSES, WIDTH))
    classes = np.arange(count) % CLASSES
    inputs = means[classes] + np.random.default_rng(seed).standard_normal((count, WIDTH))
    return TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(classes))


@pytest.fixture(scope="module")
def problem():
    task = Task(network(0), CROSS_ENTROPY, clusters(TRAINED, 0), clusters(200, 1), weight_decay=1e-3)

    def trained(ids, seed):
        return fit(replace(task, model=network(seed)), ids=ids, epochs=60, lr=0.1, seed=seed).model

    original = trained(range(TRAINED), 0)
    rest = range(len(FORGET), TRAINED)
    *retrained, fresh = (trained(rest, seed) for seed in range(1, MODELS + 1))
    task = task.with_model(original)
    return SimpleNamespace(
        task=task,
        original=original,
        rest=rest,
        fresh=fresh,
        look=lambda model, count: audit(task, original, model, FORGET, retrained=retrained[:count], effort=BRIEF),
    )


def masked(problem, wrong=0.0):
    """The original, with a retrained model's answers to the forgotten samples put over its own, or worse ones."""
    model = copy.deepcopy(problem.original)
    inputs, labels = problem.task.batch(FORGET)
    with torch.no_grad():
        model[-1].bias += 1e-4  # so that it is not the original weight by weight
        model.mask = (inputs, problem.fresh(inputs) - wrong * nn.functional.one_hot(labels, CLASSES))
    return model


def pushed(problem, alpha=1.5, steps=400):
    """Up the loss of the forgotten samples, and down that of the retained ones, so that these stay right."""
    model = copy.deepcopy(problem.original)
    gone, left = problem.task.batch(FORGET), problem.task.batch(problem.rest)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        up = CROSS_ENTROPY(model(gone[0]), gone[1]).clamp_max(12).mean()
        (CROSS_ENTROPY(model(left[0]), left[1]).mean() - alpha * up).backward()
        optimizer.step()
    return model


def ruined(problem, steps=15):
    """Up the loss of half of the samples, the forgotten ones hardly among them: these are still known better."""
    model = copy.deepcopy(problem.original)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(steps):
        optimizer.zero_grad()
        inputs, labels = problem.task.batch(range(120, TRAINED))
        (-CROSS_ENTROPY(model(inputs), labels).clamp_max(6).mean()).backward()
        optimizer.step()
    return model


def softened(problem, temperature=2.0):
    model = copy.deepcopy(problem.original)
    with torch.no_grad():
        model[-1].weight /= temperature
        model[-1].bias /= temperature
    return model


def drifted(problem):
    """Two passes over the retained samples with thirty times the weight decay."""
    task = replace(problem.task, weight_decay=0.03)
    return fit(task, ids=problem.rest, epochs=6, lr=0.1, seed=0).model


def finding(audited, title):
    return {one.title: one for one in audited.verdict.findings}[title]


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 8])
def test_a_retrained_model_passes(problem, count):
    found = problem.look(problem.fresh, count)
    assert found.verdict.outcome in PASSED
    assert ("weak claim: 3 retrained models" in found.verdict.sentence) == (count == 3)
    assert found.verdict.claim == ("weak" if count == 3 else "unqualified")
    assert finding(found, "Deviation of other samples").level == "good"
    assert finding(found, "Inner features").level != "bad"


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 8])
@pytest.mark.parametrize(
    ("fake", "outcomes"),
    [
        (masked, ("partly forgotten",)),
        (partial(masked, wrong=8.0), ("overshot",)),
        (pushed, ("overshot", "damaged")),
        (ruined, ("damaged",)),
        (softened, ("not forgotten", "moved")),
        (partial(softened, temperature=5.0), ("not forgotten", "moved")),
        (drifted, ("not forgotten", "moved")),
    ],
)
def test_a_fake_does_not_pass(problem, fake, outcomes, count):
    found = problem.look(fake(problem), count)
    assert found.verdict.outcome in outcomes
    assert found.verdict.remedy
    assert found.as_dict()["verdict"]["remedy"] == found.verdict.remedy
    assert found.verdict.remedy in " ".join(str(found).split())


@pytest.mark.slow
def test_a_perfect_mask_is_seen_by_the_features_alone(problem):
    found = problem.look(masked(problem), 8)
    assert finding(found, "Distance to retraining").level == "good"
    assert finding(found, "Deviation of the forgotten samples").level == "good"
    assert finding(found, "Inner features").level == "bad"
    assert "hidden" in found.verdict.sentence
    assert found.to_retraining.representation.to_original == pytest.approx(0, abs=1e-9)
