"""A million variates of each source under published tests of their tails and independence.

Anderson-Darling against the standard normal, with nothing estimated, by Marsaglia and Marsaglia (2004); Kolmogorov and
Smirnov; exact binomial tests of tail counts; runs by Wald and Wolfowitz (1940); serial correlations by Ljung and Box
(1978); and the differences between the blocks that are drawn at once. A right source fails one of them once in a
million times.
"""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from excise.privacy.mechanism import SecretSource, add_noise, seeded_source

SIZE = 1_000_000
LEAST = 1e-6
SOURCES = {"secret": SecretSource, "seeded": lambda: seeded_source(20)}


@pytest.fixture(scope="module", params=SOURCES)
def drawn(request):
    return add_noise(torch.zeros(SIZE, dtype=torch.float64), 1.0, SOURCES[request.param]()).numpy()


def anderson_darling(values):
    """The probability of a larger A² by chance, by the limit distribution of Marsaglia and Marsaglia."""
    ordered, n = np.sort(values), len(values)
    odd = 2 * np.arange(1, n + 1) - 1
    logs = scipy.stats.norm.logcdf(ordered) + scipy.stats.norm.logsf(ordered[::-1])
    z = -n - float(np.sum(odd * logs)) / n
    if z < 2:
        inner = (0.00168691 * z - 0.0116720) * z
        inner = ((((inner + 0.0347962) * z - 0.0649821) * z) + 0.247105) * z + 2.00012
        below = math.exp(-1.2337141 / z) / math.sqrt(z) * inner
    else:
        inner = 1.0776 - (2.30695 - (0.43424 - (0.082433 - (0.008056 - 0.0003146 * z) * z) * z) * z) * z
        return -math.expm1(-math.exp(inner))
    return 1 - below


def runs(values):
    """The two-sided probability of so many runs above and below 0."""
    signs = values > 0
    above, n = int(signs.sum()), len(signs)
    below = n - above
    found = 1 + int(np.count_nonzero(signs[1:] != signs[:-1]))
    expected = 1 + 2 * above * below / n
    variance = (expected - 1) * (expected - 2) / (n - 1)
    return 2 * scipy.stats.norm.sf(abs(found - expected) / math.sqrt(variance))


def ljung_box(values, lags=20):
    centred = values - values.mean()
    square = float(centred @ centred)
    parts = [(float(centred[lag:] @ centred[:-lag]) / square) ** 2 / (SIZE - lag) for lag in range(1, lags + 1)]
    return scipy.stats.chi2.sf(SIZE * (SIZE + 2) * sum(parts), lags)


@pytest.mark.slow
def test_the_distribution_is_normal(drawn):
    assert np.isfinite(drawn).all()
    assert anderson_darling(drawn) > LEAST
    assert scipy.stats.kstest(drawn, "norm").pvalue > LEAST


@pytest.mark.parametrize("beyond", [1, 2, 3, 4, 4.5])
def test_the_tails_have_their_share(drawn, beyond):
    for tail in (drawn, -drawn):
        count = int(np.sum(tail > beyond))
        assert scipy.stats.binomtest(count, SIZE, scipy.stats.norm.sf(beyond)).pvalue > LEAST


def test_one_variate_tells_nothing_of_the_next(drawn):
    assert runs(drawn) > LEAST
    for series in (drawn, drawn**2, np.abs(drawn) > 2):
        assert ljung_box(np.asarray(series, dtype=float)) > LEAST


def test_what_is_drawn_at_once_tells_nothing_of_what_is_drawn_next(drawn):
    block = 2**18
    both = np.corrcoef(drawn[:block], drawn[block : 2 * block])[0, 1]
    assert abs(both) * math.sqrt(block) < scipy.stats.norm.isf(LEAST / 2)
    assert len(np.unique(drawn)) > SIZE - 2  # 2^53 values: a repetition among a million is rare, two are a fault


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        lambda rng: rng.standard_t(60, SIZE) * math.sqrt(58 / 60),
        lambda rng: np.repeat(rng.standard_normal(SIZE // 2), 2),
        lambda rng: rng.standard_normal(SIZE) * np.repeat(rng.uniform(0.9, 1.1, SIZE // 1000), 1000),
        lambda rng: rng.standard_normal(SIZE) + 0.01,
    ],
)
def test_the_tests_find_noise_that_is_wrong(wrong):
    values = wrong(np.random.default_rng(0))
    tails = scipy.stats.binomtest(int(np.sum(values > 4)), SIZE, scipy.stats.norm.sf(4)).pvalue
    found = [anderson_darling(values), runs(values), ljung_box(values), ljung_box(values**2), tails]
    assert min(found) < LEAST
