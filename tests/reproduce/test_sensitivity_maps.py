"""Maps and deletion curves against closed forms and a slow loop."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task
from excise.reproduce.framework.experiment import clearly_above
from excise.reproduce.framework.plots import new_figure
from excise.reproduce.studies.sensitivity.experiment import EXPERIMENT
from excise.reproduce.studies.sensitivity.maps import (
    GRADIENT,
    LOSS,
    RANDOM,
    XI,
    Explained,
    PatchNoise,
    area,
    curves,
    gradient_map,
    packed,
    unpacked,
    xi_map,
)
from excise.reproduce.studies.sensitivity.measure import rank_correlation


@pytest.fixture
def explained():
    """Images of 2 × 8 × 8 and a linear network that looks at the square in the second row, first column only."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 2, 8, 8, generator=generator)
    weight = torch.zeros(2, 2, 8, 8)
    weight[1, :, 4:8, 0:4] = torch.rand(2, 4, 4, generator=generator) + 0.5
    network = nn.Linear(128, 2, bias=False)
    network.weight.data = weight.flatten(1)
    task = Task(nn.Sequential(nn.Flatten(), network), LOSS, TensorDataset(images, torch.tensor([1, 1, 0])))
    return Explained("made up", task, torch.zeros(2, 8, 8))


def test_noise_is_one_number_a_square():
    noisy = PatchNoise(4, 0.5)(torch.zeros(1, 3, 8, 12), 4000, torch.Generator().manual_seed(0))
    squares = noisy.view(4000, 3, 2, 4, 3, 4).permute(0, 2, 4, 1, 3, 5).flatten(3)
    assert torch.equal(squares.amin(3), squares.amax(3))
    assert squares[..., 0].std(0).numpy() == pytest.approx(0.5, abs=0.03)
    assert np.abs(np.corrcoef(squares[..., 0].flatten(1).numpy().T) - np.eye(6)).max() < 0.07


def test_xi_finds_the_square_that_counts(explained):
    found = xi_map(explained, 0, side=4, copies=400, noise=0.1, seed=0)
    assert found[4:8, 0:4] == pytest.approx(398 / 401, abs=0.01)  # the loss is a function of it alone
    found[4:8, 0:4] = 0
    assert np.abs(found).max() < 4 * 0.64 / 400**0.5


def test_the_gradient_of_a_linear_network_is_its_weights(explained):
    """∂/∂x of −log softmax is (p − 1)(w₁ − w₀) for two classes and the second as the true one."""
    model, image = explained.task.model, explained.images[:1]
    p = torch.softmax(model(image), 1)[0, 1].item()
    weight = model[1].weight.detach().view(2, 2, 8, 8)[1].sum(0).numpy()
    np.testing.assert_allclose(gradient_map(explained, 0, side=1), (1 - p) * weight, rtol=1e-5)


@pytest.mark.parametrize("side", [1, 4])
def test_curves_against_a_slow_loop(explained, side):
    values = np.kron(np.random.default_rng(1).random((8 // side, 8 // side)), np.ones((side, side)))
    steps = 4
    deleted, inserted = curves(explained, 1, values, side=side, steps=steps)
    model, image = explained.task.model, explained.images[1]
    order = sorted(set(values.ravel()), reverse=True)

    def probability(inputs):
        return torch.softmax(model(inputs[None]), 1)[0, 1].item()

    for step in range(steps + 1):
        gone = np.isin(values, order[: round(step * len(order) / steps)])
        left, came = image.clone(), torch.zeros(2, 8, 8)
        for row, column in zip(*np.nonzero(gone), strict=True):
            left[:, row, column] = 0
            came[:, row, column] = image[:, row, column]
        assert deleted[step] == pytest.approx(probability(left), abs=1e-4)
        assert inserted[step] == pytest.approx(probability(came), abs=1e-4)


def test_area_and_likeness():
    curve = np.random.default_rng(0).random((3, 9))
    np.testing.assert_allclose(area(curve), np.trapezoid(curve, np.linspace(0, 1, 9), axis=1))
    rising = np.arange(4.0).reshape(2, 2)
    assert rank_correlation(rising, np.exp(rising), 1) == 1
    assert rank_correlation(rising, -rising, 1) == -1
    assert rank_correlation(rising, np.ones((2, 2)), 1) == 0


def test_pictures_survive_packing():
    np.testing.assert_array_equal(unpacked(packed(np.array([[-5.0, 0.0], [1.0, 2.0]]))), [[0, 0], [128, 255]])
    colours = np.linspace(-1, 1, 12).reshape(2, 2, 3)
    np.testing.assert_allclose(unpacked(packed(colours)) / 127.5 - 1, colours, atol=0.005)


def made_up(xi, gradient, random):
    """Areas of four images about these means, in deletion; in insertion one minus them."""
    scatter = np.array([-0.01, 0.0, 0.0, 0.01])

    def curve(mean, scale):
        return {"mean": [1.0, mean, 0.1], "error": [0.0, 0.01, 0.01], "areas": (mean + scale * scatter).tolist()}

    one = {
        "deleted": {XI: curve(xi, 1), GRADIENT: curve(gradient, 2), RANDOM: curve(random, 3)},
        "inserted": {XI: curve(1 - xi, 1), GRADIENT: curve(1 - gradient, 2), RANDOM: curve(1 - random, 3)},
        "with gradient": 0.3,
        "with itself": 0.5,
    }
    picture = {key: packed(np.eye(4)) for key in (f"{XI} 1", f"{XI} 4", f"{GRADIENT} 1", f"{GRADIENT} 4")}
    found = {"1": one, "4": one, "shown": [{**picture, "image": packed(np.ones((4, 4, 3)))}]}
    study = {"1": {"deleted": 0.5, "with itself": 0.1}, "4": {"deleted": 0.4, "with itself": 0.8}}
    tried = {"at": [10, 100], "found": [study, study]}
    sets = {"MNIST": found, "CIFAR-10": found}
    return {"copies": 1000, "patch": 4, "sets": sets, "copies tried": tried, "noises tried": tried}


def test_each_verdict_and_the_picture():
    good = EXPERIMENT.judge(made_up(0.3, 0.4, 0.6))
    assert [claim.verdict for claim in good] == ["confirmed"] * 4
    assert "ξ is better" in good[0].why
    bad = EXPERIMENT.judge(made_up(0.6, 0.4, 0.6))
    assert [claim.verdict for claim in bad] == ["not confirmed"] * 4
    assert "the gradient's map is better" in bad[0].why
    assert "not told apart" in EXPERIMENT.judge(made_up(0.4, 0.4, 0.6))[0].why
    EXPERIMENT.draw(made_up(0.3, 0.4, 0.6), new_figure(EXPERIMENT.size))


def test_clearly_means_two_standard_errors():
    """Differences of mean 1 and standard error 0.4 or 0.6: √(Σ(d−1)²/(n(n−1)))."""
    assert clearly_above([1 - 0.4, 1 + 0.4], [0, 0])
    assert not clearly_above([1 - 0.6, 1 + 0.6], [0, 0])
