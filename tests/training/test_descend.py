"""The training loop itself: which batches, which learning rates, when the hook is called and what it may do."""

import math

import pytest
import torch
from torch import nn

from excise.training.loop import Pass, batch_sizes, constant, cosine, descend


def weight(value=1.0):
    return nn.Parameter(torch.tensor([value], dtype=torch.float64))


def run(optimizer, passes, *, batch_size=4, share=constant, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return list(descend(optimizer, passes, batch_size=batch_size, share=share, generator=generator, **options))


def test_passes_follow_one_another_and_their_steps_are_counted_through():
    one, steps = weight(), []
    first = Pass(torch.arange(9), lambda ids: one.sum() * 0 + len(ids))
    second = Pass(torch.arange(2), lambda _: one.sum() * 0 + 7)
    means = run(torch.optim.SGD([one], lr=0.1), [first, second, first], before_step=steps.append)
    assert [step.number for step in steps] == [0, 1, 2, 3, 4]
    assert [step.samples for step in steps] == [4, 5, 2, 4, 5]
    assert [step.loss for step in steps] == [4, 5, 7, 4, 5]
    assert means == [pytest.approx(41 / 9), 7, pytest.approx(41 / 9)]


@pytest.mark.parametrize("training", [True, False])
def test_every_pass_has_each_sample_once_in_an_order_of_its_own(training):
    one, seen = weight(), []

    def loss(ids):
        seen.append(ids.tolist())
        return one.sum()

    run(torch.optim.SGD([one], lr=0.1), [Pass(torch.arange(10, 19), loss)] * 2, training=training)
    sizes = batch_sizes(9, 4, join=training)
    assert [len(ids) for ids in seen] == sizes * 2
    halves = [[sample for ids in part for sample in ids] for part in (seen[: len(sizes)], seen[len(sizes) :])]
    assert sorted(halves[0]) == sorted(halves[1]) == list(range(10, 19))
    assert halves[0] != halves[1]


def test_learning_rates_of_all_groups_follow_the_share():
    """A gradient of 1 moves a weight by the learning rate."""
    fast, slow = weight(0.0), weight(0.0)
    optimizer = torch.optim.SGD([{"params": [fast], "lr": 1.0}, {"params": [slow], "lr": 0.1}])
    run(optimizer, [Pass(torch.arange(3), lambda _: (fast + slow).sum())] * 4, share=cosine)
    total = sum((1 + math.cos(math.pi * step / 4)) / 2 for step in range(4))
    assert -fast.item() == pytest.approx(total)
    assert -slow.item() == pytest.approx(0.1 * total)


def test_the_hook_changes_the_gradient_before_the_step():
    one = weight(1.0)

    def halve(_):
        assert one.grad.item() == 1
        one.grad.mul_(0.5)

    run(torch.optim.SGD([one], lr=0.1), [Pass(torch.arange(3), lambda _: one.sum())], before_step=halve)
    assert one.item() == pytest.approx(0.95)
    assert one.grad is None  # none is left behind


def test_an_error_in_the_hook_ends_it_and_leaves_the_global_random_state():
    one, before = weight(), torch.get_rng_state()

    def stop(step):
        torch.rand(3)
        if step.number == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(torch.optim.SGD([one], lr=0.1), [Pass(torch.arange(8), lambda _: one.sum())], before_step=stop)
    assert one.item() == pytest.approx(0.9)
    assert torch.equal(torch.get_rng_state(), before)


def test_it_learns_also_where_gradients_are_switched_off_outside():
    one = weight()
    with torch.no_grad():
        run(torch.optim.SGD([one], lr=0.1), [Pass(torch.arange(3), lambda _: one.sum())])
    assert one.item() == pytest.approx(0.9)
