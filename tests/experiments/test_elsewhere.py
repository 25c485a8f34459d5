"""The default on data and networks that it was not made for: tasks that are the same each time."""

from dataclasses import replace

import pytest
import torch

from excise.task.hashing import hash_of_model
from excise.training.retraining import recipe
from experiments.elsewhere import PLACES

CANCERS = replace(PLACES["cancers, MLP with dropout"], epochs=2)


def test_a_recipe_gives_the_same_model_for_a_seed_and_leaves_random_numbers_as_they_are():
    task, _ = CANCERS.task(wrong=False)
    before = torch.get_rng_state()
    models = [hash_of_model(task.retrain(torch.arange(100), seed)) for seed in (1, 1, 2)]
    assert models[0] == models[1] != models[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_wrong_labels_are_those_that_are_named():
    (right, some), (wrong, named) = (CANCERS.task(wrong=spoilt) for spoilt in (False, True))
    assert some == named
    differ = (right.targets != wrong.targets).nonzero()[:, 0].tolist()
    assert differ == named
    assert torch.equal(right.test_set.tensors[1], wrong.test_set.tensors[1])


@pytest.mark.parametrize("option", [{"epochs": 3}, {"decay": 0.5}, {"batch": 7}])
def test_a_place_with_other_options_has_another_recipe(option):
    """Else one would be given the models of the other."""
    recipes = [recipe(place.task(wrong=False)[0]) for place in (CANCERS, replace(CANCERS, **option))]
    assert recipes[0] != recipes[1]
