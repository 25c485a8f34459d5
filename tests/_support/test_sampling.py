"""Drawing few of many: sums over all are told from the few, in the mean, and the better the more they go with size."""

import torch

from excise._support.sampling import draw_proportionally

SIZES = torch.linspace(0.05, 1, 400).double() ** 3


def sums(figures, count=40, draws=300):
    """Of all figures, as told by each of some draws."""
    drawn = (draw_proportionally(SIZES, count, torch.Generator().manual_seed(seed)) for seed in range(draws))
    return torch.stack([(figures[which] / inclusion).sum() for which, inclusion in drawn])


def test_sums_are_right_in_the_mean():
    for figures in (torch.ones(400).double(), torch.linspace(2, -1, 400).double().sin()):
        told = sums(figures)
        assert abs(told.mean() - figures.sum()) < 4 * told.std() / 300**0.5


def test_what_goes_with_size_is_told_better_than_by_independent_draws():
    """The variance of a draw in which each is included by itself is Σ x² (1 - π) / π."""
    figures = SIZES**2
    share = (40 * SIZES / SIZES.sum()).clamp(max=1)  # none is larger than 1 here
    independent = (figures**2 * (1 - share) / share).sum().sqrt()
    assert share.max() < 1
    assert sums(figures).std() < 0.2 * independent


def test_draws_have_their_number_and_no_repetition():
    for seed in range(20):
        which, inclusion = draw_proportionally(SIZES, 40, torch.Generator().manual_seed(seed))
        assert abs(len(which) - 40) <= 1
        assert len(which.unique()) == len(which) == len(inclusion)


def test_equal_sizes_are_drawn_in_no_order():
    """Every second one of what lies in rows would be all of one kind."""
    even = torch.ones(400)
    drawn = [draw_proportionally(even, 200, torch.Generator().manual_seed(seed))[0] for seed in range(10)]
    assert all(40 < int((which % 2).sum()) < 160 for which in drawn)
