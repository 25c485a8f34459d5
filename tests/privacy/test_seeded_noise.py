"""A given seed of noise: a warning, and one use."""

import copy
import threading
import warnings

import pytest
import torch
from torch import nn

from excise import InputError, Privacy
from excise.privacy import BudgetAccountant, SeededNoiseWarning
from excise.slices import whole_model_block


def blurred(privacy, model, sigma=1.0, earlier=0):
    noisy = copy.deepcopy(model)
    privacy.add(noisy, whole_model_block(noisy), sigma, earlier)
    return noisy.weight.detach()


def seeded(seed):
    with pytest.warns(SeededNoiseWarning, match="for tests: whoever knows or guesses the seed"):
        return Privacy(noise_seed=seed)


def test_only_a_seed_that_is_not_declared_repeatable_is_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Privacy()
        Privacy(noise_seed=1, repeatable=True)
    with pytest.warns(SeededNoiseWarning) as said:
        Privacy(noise_seed=1)
    assert len(said) == 1
    assert said[0].filename == __file__


@pytest.mark.parametrize("apart", [0, 2**32, 2**64])
def test_a_seed_does_not_blur_other_weights(apart):
    seed = 10_001 + apart
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    first = blurred(seeded(seed), one)
    assert blurred(seeded(seed), one).equal(first)  # the same again shows nothing new
    for privacy in (seeded(seed), seeded(seed)):
        with pytest.raises(InputError, match=rf"noise_seed={seed} has blurred other weights .* repeatable=True"):
            blurred(privacy, other)
    blurred(seeded(seed), other, earlier=1)  # other noise
    blurred(seeded(seed + 1), other)


def test_a_seed_does_not_blur_the_same_weights_by_another_amount():
    """From w + z and w + 2z both are known."""
    model = nn.Linear(3, 2)
    blurred(seeded(10_010), model, sigma=1.0)
    with pytest.raises(InputError, match="noise_seed=10010"):
        blurred(seeded(10_010), model, sigma=2.0)


def test_repeatable_noise_is_that_of_the_seed_each_time():
    zeros = [nn.init.zeros_(nn.Linear(3, 2, bias=False).weight) for _ in range(2)]
    repeatable = Privacy(noise_seed=10_020, repeatable=True)
    models = [nn.Linear(3, 2, bias=False) for _ in zeros]
    noise = [blurred(repeatable, model) - model.weight.detach() for model in models]
    assert torch.allclose(*noise, atol=1e-5)


def test_threads_can_not_both_have_a_seed():
    seed, refused, barrier = 10_030, [], threading.Barrier(8)
    privacy, models = seeded(seed), [nn.Linear(3, 2) for _ in range(8)]

    def race(model):
        barrier.wait()
        try:
            blurred(privacy, model)
        except InputError as error:
            refused.append(error)

    threads = [threading.Thread(target=race, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeatable": True}, "repeatable=True needs a noise_seed"),
        ({"noise_seed": 1, "repeatable": "yes"}, "repeatable must be True or False, not 'yes'"),
        ({"noise_seed": 1, "repeatable": True, "budget": BudgetAccountant(1.0, 1e-5)}, "nothing to count in a budget"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        Privacy(**options)
