"""Statistics of batch normalisation: exact for the first layer, and nothing else of the model changes."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise.errors import InputError
from excise.task import Task
from excise.training.batchnorm import has_batch_statistics, reestimate

loss = nn.CrossEntropyLoss(reduction="none")


def task_of(model, *shape, dtype=torch.float32, seed=0):
    """Samples of the shape, of which each channel has its own mean and deviation, far from 0 and 1."""
    rng = np.random.default_rng(seed)
    scale, shift = (rng.uniform(2, 9, (shape[1], *[1] * (len(shape) - 2))) for _ in range(2))
    values = torch.tensor(shift + scale * rng.standard_normal(shape), dtype=dtype)
    return Task(model.to(dtype), loss, TensorDataset(values, torch.zeros(shape[0], dtype=torch.long)))


def channels(task, ids):
    """One row of values per channel."""
    values = task.train_set.tensors[0][torch.as_tensor(ids)].double().numpy()
    return np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)


def deep(dropout=0.5):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Dropout(dropout), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.Dropout(dropout), nn.Linear(6, 10),
    )  # fmt: skip


def buffers(model):
    return {name: value.clone() for name, value in model.named_buffers()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---------------------------------------------------------------------------------------------- what is estimated


@pytest.mark.parametrize("batch_size", [2, 3, 7, 12, 36, 37, 256])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.BatchNorm1d, (40, 5)), (nn.BatchNorm1d, (40, 5, 3)), (nn.BatchNorm2d, (40, 5, 2, 3)),
     (nn.BatchNorm3d, (40, 5, 2, 1, 2))],
)  # fmt: skip
def test_mean_and_unbiased_variance_of_exactly_these_samples(layer, shape, batch_size):
    task = task_of(layer(5), *shape, dtype=torch.float64)
    ids = np.random.default_rng(1).permutation(40)[:37]
    reestimate(task, task.model, ids, batch_size=batch_size)
    rows = channels(task, ids)
    np.testing.assert_allclose(task.model.running_mean.numpy(), rows.mean(1), rtol=1e-13)
    np.testing.assert_allclose(task.model.running_var.numpy(), rows.var(1, ddof=1), rtol=1e-13)


def test_single_precision_far_from_zero():
    task = task_of(nn.BatchNorm1d(5), 3000, 5)
    task.train_set.tensors[0].add_(1000)
    reestimate(task, task.model, None, batch_size=64)
    rows = channels(task, np.arange(3000))
    np.testing.assert_allclose(task.model.running_mean.numpy(), rows.mean(1), rtol=1e-6)
    np.testing.assert_allclose(task.model.running_var.numpy(), rows.var(1, ddof=1), rtol=1e-4)


def test_half_precision_is_pooled_in_single():
    task = task_of(nn.BatchNorm1d(5), 300, 5, dtype=torch.bfloat16)
    reestimate(task, task.model, None, batch_size=7)
    rows = channels(task, np.arange(300))
    np.testing.assert_allclose(task.model.running_mean.float().numpy(), rows.mean(1), rtol=2**-8)
    np.testing.assert_allclose(task.model.running_var.float().numpy(), rows.var(1, ddof=1), rtol=2**-8)


def test_one_batch_gives_what_torch_gives_with_momentum_one():
    task = task_of(deep(0), 30, 3, 4, 4)
    other = copy.deepcopy(task.model).train()
    for module in other.modules():
        if hasattr(module, "momentum"):
            module.momentum = 1.0
    other(task.train_set.tensors[0])
    reestimate(task, task.model, None)
    for name, value in task.model.named_buffers():
        if "running" in name:
            torch.testing.assert_close(value, other.get_buffer(name), msg=name)


def test_several_batches_are_pooled_at_every_layer_as_torch_normalises_them():
    task = task_of(deep(0), 30, 3, 4, 4, dtype=torch.float64)
    other = copy.deepcopy(task.model).train()
    seen = []
    other[6].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    for low, high in ((0, 12), (12, 24), (24, 30)):
        other(task.train_set.tensors[0][low:high])
    reestimate(task, task.model, None, batch_size=12)
    torch.testing.assert_close(task.model[6].running_mean, torch.cat(seen).mean(0))
    torch.testing.assert_close(task.model[6].running_var, torch.cat(seen).var(0))


def test_a_layer_used_twice_pools_all_that_reaches_it():
    norm = nn.BatchNorm1d(5, affine=False)
    task = task_of(nn.Sequential(norm, norm, nn.Linear(5, 2)), 40, 5, dtype=torch.float64)
    first = task.train_set.tensors[0]
    second = (first - first.mean(0)) / (first.var(0, correction=0) + norm.eps).sqrt()
    reestimate(task, task.model, None)
    torch.testing.assert_close(norm.running_mean, torch.cat((first, second)).mean(0))
    torch.testing.assert_close(norm.running_var, torch.cat((first, second)).var(0))


def test_a_second_time_changes_nothing():
    task = task_of(deep(), 30, 3, 4, 4)
    reestimate(task, task.model, range(20), batch_size=8)
    once = buffers(task.model)
    reestimate(task, task.model, range(20), batch_size=8)
    assert same(once, buffers(task.model))


# ---------------------------------------------------------------------------------------------- awkward batches


def test_a_last_batch_of_one_joins_the_one_before():
    task = task_of(deep(), 9, 3, 4, 4)  # the second layer has one value per sample and channel
    other = copy.deepcopy(task.model)
    reestimate(task, task.model, None, batch_size=8)
    reestimate(task, other, None, batch_size=9)
    assert same(buffers(task.model), buffers(other))


def test_of_a_single_sample_layers_without_a_variance_keep_theirs():
    task = task_of(deep(), 9, 3, 4, 4)
    reestimate(task, task.model, range(8))
    before = buffers(task.model)
    reestimate(task, task.model, [3])
    after = buffers(task.model)
    assert same({k: v for k, v in before.items() if k[0] == "6"}, {k: v for k, v in after.items() if k[0] == "6"})
    with torch.no_grad():
        pixels = task.model[0](task.train_set.tensors[0][3:4]).double()
    torch.testing.assert_close(after["1.running_mean"].double(), pixels.mean((0, 2, 3)))
    torch.testing.assert_close(after["1.running_var"].double(), pixels.var((0, 2, 3)))
    assert all(module.track_running_stats for module in task.model if hasattr(module, "running_mean"))


def test_batch_size_of_one_is_refused():
    task = task_of(deep(), 9, 3, 4, 4)
    with pytest.raises(InputError, match="batch_size must be a whole number, 2 or more, not 1"):
        reestimate(task, task.model, None, batch_size=1)


@pytest.mark.parametrize("ids", [[], [0, 0], [9]])
def test_ids_are_checked(ids):
    task = task_of(deep(), 9, 3, 4, 4)
    with pytest.raises(InputError, match="ids"):
        reestimate(task, task.model, ids)


# ---------------------------------------------------------------------------------------------- which layers


def test_layers_with_frozen_weights_and_without_any_are_re_estimated():
    for layer in (nn.BatchNorm1d(5).requires_grad_(False), nn.BatchNorm1d(5, affine=False), nn.BatchNorm1d(5).eval()):
        task = task_of(nn.Sequential(layer, nn.Linear(5, 2)), 20, 5)
        reestimate(task, task.model, None)
        np.testing.assert_allclose(layer.running_mean.numpy(), channels(task, range(20)).mean(1), rtol=1e-5)


def test_layers_that_track_nothing_are_left_alone():
    ignored = nn.BatchNorm1d(5)
    ignored.track_running_stats = False
    task = task_of(nn.Sequential(nn.BatchNorm1d(5, track_running_stats=False), ignored, nn.BatchNorm1d(5)), 20, 5)
    before = buffers(task.model)
    reestimate(task, task.model, None)
    after = buffers(task.model)
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        "2.running_mean",
        "2.running_var",
    }
    assert not task.model[0].track_running_stats
    assert not ignored.track_running_stats


def test_an_unused_layer_keeps_its_statistics():
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 2))
    model[1].register_module("spare", nn.BatchNorm1d(3))
    task = task_of(model, 20, 5)
    reestimate(task, model, None)
    assert torch.equal(model[1].spare.running_var, torch.ones(3))
    assert model[1].spare.track_running_stats


def test_a_layer_called_by_keyword():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(5)

        def forward(self, x):
            return self.norm(input=x)

    task = task_of(Model(), 20, 5)
    reestimate(task, task.model, None)
    np.testing.assert_allclose(task.model.norm.running_mean.numpy(), channels(task, range(20)).mean(1), rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (deep(), True),
        (nn.BatchNorm3d(2, affine=False), True),
        (nn.BatchNorm2d(2, track_running_stats=False), False),
        (nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.InstanceNorm1d(2, track_running_stats=True)), False),
    ],
)
def test_has_batch_statistics(model, expected):
    assert has_batch_statistics(model) is expected


def test_a_model_without_such_layers_is_not_even_run():
    task = task_of(nn.Linear(7, 2), 20, 5)  # of other inputs than the samples
    reestimate(task, task.model, None)


# ---------------------------------------------------------------------------------------------- what stays


def test_only_running_means_and_variances_change():
    task = task_of(deep(), 30, 3, 4, 4)
    task.model.train()(task.train_set.tensors[0])
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    reestimate(task, task.model, range(25), batch_size=8)
    changed = {name for name, value in task.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f"{layer}.running_{kind}" for layer in (1, 6) for kind in ("mean", "var")}
    assert before["1.num_batches_tracked"] == 1
    assert all(weight.requires_grad and weight.grad is None for weight in task.model.parameters())


def test_another_model_than_the_tasks_is_changed_in_place():
    task = task_of(deep(), 30, 3, 4, 4)
    before, model = buffers(task.model), copy.deepcopy(task.model)
    held = model[1].running_mean
    reestimate(task, model, None)
    assert same(before, buffers(task.model))
    assert model[1].running_mean is held
    assert not torch.equal(held, before["1.running_mean"])


def test_dropout_is_off_and_the_global_random_state_untouched():
    task = task_of(deep(dropout=0.9), 30, 3, 4, 4)
    without = deep(dropout=0)
    before = torch.get_rng_state()
    reestimate(task, task.model.train(), None, batch_size=8)
    assert torch.equal(before, torch.get_rng_state())
    reestimate(task, without, None, batch_size=8)
    assert same(buffers(task.model), buffers(without))


def test_modes_and_hooks_are_restored():
    task = task_of(deep(), 30, 3, 4, 4)
    task.model.train()[1].eval()
    task.model[4].eval()
    modes = [module.training for module in task.model.modules()]
    reestimate(task, task.model, None)
    assert [module.training for module in task.model.modules()] == modes
    assert not any(module._forward_pre_hooks for module in task.model.modules())
    assert all(module.track_running_stats for module in task.model if hasattr(module, "running_mean"))


@pytest.mark.parametrize("broken", ["sample", "model"])
def test_after_an_error_nothing_has_changed(broken):
    task = task_of(deep(), 30, 3, 4, 4)
    if broken == "sample":
        task.train_set.tensors[0][29, 0, 0, 0] = torch.nan
    else:
        task.model[8] = nn.Linear(7, 10)
    before, modes = buffers(task.model), [module.training for module in task.model.modules()]
    with pytest.raises((InputError, RuntimeError), match=r"normalisation '1' are not all finite|shapes"):
        reestimate(task, task.model, None, batch_size=8)
    assert same(before, buffers(task.model))
    assert [module.training for module in task.model.modules()] == modes
    assert not any(module._forward_pre_hooks for module in task.model.modules())
    assert all(module.track_running_stats for module in task.model if hasattr(module, "running_mean"))
