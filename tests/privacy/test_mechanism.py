"""Noise as it is drawn: normal, independent, of full entropy, and the same again from a given seed only."""

import copy
import math

import numpy as np
import pytest
import scipy.stats
import torch

from excise.errors import InputError
from excise.privacy.mechanism import Privacy, SecretSource, add_noise, seeded_source
from excise.slices import whole_model_block
from excise.task.parameters import trainable

SOURCES = {"secret": SecretSource, "seeded": lambda: seeded_source(0)}


@pytest.mark.parametrize("source", SOURCES)
def test_noise_has_the_size_asked_for(source):
    vector = torch.full((1_000, 100), 3.0, dtype=torch.float64)
    noise = add_noise(vector, 0.2, SOURCES[source]()) - vector
    assert scipy.stats.kstest(noise.flatten().numpy() / 0.2, "norm").pvalue > 1e-6
    assert vector.eq(3).all()


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_noise_is_normal_and_independent_to_the_tails(source):
    size = 2_000_000
    drawn = add_noise(torch.zeros(size, dtype=torch.float64), 1.0, SOURCES[source]()).numpy()
    assert np.isfinite(drawn).all()
    assert scipy.stats.kstest(drawn, "norm").pvalue > 1e-6
    for beyond in (3, 4, 4.5):
        for tail in (drawn, -drawn):
            count, expected = np.sum(tail > beyond), size * scipy.stats.norm.sf(beyond)
            both = scipy.stats.poisson.cdf(count, expected), scipy.stats.poisson.sf(count - 1, expected)
            assert min(both) > 1e-7
    for lag in (1, 2, 3, 2**18):  # the last is how many are drawn at once
        for series in (drawn, drawn**2):
            assert abs(np.corrcoef(series[lag:], series[:-lag])[0, 1]) < 6 / math.sqrt(size - lag)


def test_noise_at_the_ends_of_the_random_bits(monkeypatch):
    words = np.array([0, 1, 2**64 - 2, 2**64 - 1], dtype=np.uint64)
    monkeypatch.setattr("secrets.token_bytes", lambda size: words.tobytes()[:size])
    # mpmath, 50 digits: the quantiles of 2^-54 and of 1/2 - 2^-54
    far, near = 8.2923610758135955, 1.3914582123358835e-16
    assert SecretSource().standard_normal(4) == pytest.approx([far, -far, near, -near], rel=1e-12, abs=0)


@pytest.mark.parametrize("modulus", [2**32, 2**63, 2**64, 2**128, 2**200])
def test_all_bits_of_a_seed_count(modulus):
    one, other = (add_noise(torch.zeros(100), 1.0, seeded_source(seed)) for seed in (5, 5 + 7 * modulus))
    assert not (one == other).any()


def test_a_seed_draws_other_noise_after_other_removals():
    seeds = [(0, 0), (0, 3), (3, 0), (3, 3), (3 * 2**32, 0), (3 + 3 * 2**32, 0), (3 * 2**128, 0)]
    drawn = {seeded_source(seed, earlier).standard_normal() for seed, earlier in seeds}
    assert len(drawn) == len(seeds)


def test_secret_noise_is_drawn_anew():
    source, zeros = SecretSource(), torch.zeros(100)
    draws = [add_noise(zeros, 1.0, source), add_noise(zeros, 1.0, source), add_noise(zeros, 1.0, SecretSource())]
    torch.manual_seed(0)  # no seed can be set
    np.random.seed(0)  # noqa: NPY002
    draws.append(add_noise(zeros, 1.0, source))
    assert not any((one == other).any() for index, one in enumerate(draws) for other in draws[:index])


@pytest.mark.filterwarnings("ignore::excise.privacy.SeededNoiseWarning")
@pytest.mark.parametrize("seed", [None, 3])
def test_no_noise_leaves_the_weights_alone(seed):
    model = torch.nn.Linear(3, 2)
    before = {name: weight.clone() for name, weight in trainable(model).items()}
    Privacy(noise_seed=seed).add(model, whole_model_block(model), 0.0, 0)
    assert all(weight.equal(before[name]) for name, weight in trainable(model).items())
    vector = torch.tensor([0.1, -0.0, math.inf])
    assert add_noise(vector, 0.0, SecretSource()).equal(vector)


@pytest.mark.filterwarnings("ignore::excise.privacy.SeededNoiseWarning")
@pytest.mark.parametrize(("seed", "reproduces"), [(None, False), (0, True), (2**80 + 1, True)])
def test_only_a_given_seed_reproduces_the_noise_on_a_model(seed, reproduces):
    noise, start = Privacy(noise_seed=seed), torch.nn.Linear(3, 2)
    models = [copy.deepcopy(start) for _ in range(3)]
    for model, earlier in zip(models, (4, 4, 5), strict=True):
        noise.add(model, whole_model_block(model), 1.0, earlier)
    same, again, later = (model.weight for model in models)
    assert same.equal(again) == reproduces
    assert not (same == later).any()
    assert not (same == start.weight).any()


@pytest.mark.parametrize("seed", [-1, 1.5, True, "3"])
def test_a_bad_noise_seed_is_refused(seed):
    with pytest.raises(InputError, match="noise_seed must be a whole number, 0 or more, not"):
        Privacy(noise_seed=seed)


def test_noise_is_of_the_seed_whatever_the_precision():
    draws = {
        dtype: add_noise(torch.zeros(50, 3, dtype=dtype), 0.5, seeded_source(7))
        for dtype in (torch.float64, torch.float32, torch.bfloat16)
    }
    for dtype, draw in draws.items():
        assert draw.dtype == dtype
        assert draw.equal(draws[torch.float64].to(dtype))
    assert not draws[torch.float64].equal(add_noise(torch.zeros(50, 3).double(), 0.5, seeded_source(8)))


def test_noise_goes_on_with_its_source():
    source = seeded_source(0)
    assert not add_noise(torch.zeros(4), 1.0, source).equal(add_noise(torch.zeros(4), 1.0, source))


seeded = seeded_source(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: add_noise(torch.zeros(3), -1, seeded), "sigma must be a non-negative number, not -1"),
        (lambda: add_noise(torch.zeros(3, dtype=torch.int64), 1, seeded), "tensor of floats, not torch.int64"),
        (lambda: add_noise([0.0], 1, seeded), "tensor of floats, not list"),
        (
            lambda: add_noise(torch.zeros(3), 1, None),
            r"source must be an object with standard_normal\(size\), not None; pass SecretSource",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()
