"""The paper's literal method: the formula against dense matrices, and its place in the unlearner."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Guard, InputError, Joint, PaperStep, Privacy, Step, Task, Unlearner, fit
from excise.curvature.woodbury import woodbury_of_multiple
from excise.privacy.gaussian import paper_sigma
from excise.task.objective import gradient
from excise.task.parameters import trainable
from excise.unlearning.paper import SAMPLE_LR, paper_change

N = 40


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(N, 4).double(), torch.randint(0, 3, (N,)))
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    task = Task(model, nn.CrossEntropyLoss(reduction="none"), data, weight_decay=0.1)
    fitted = fit(task, epochs=20, recorder=True)
    return Task(fitted.model, task.loss, data, weight_decay=0.1), fitted.trace


def unlearner(trained, **options):
    how = {name: options.pop(name) for name in ("selection", "noise_samples") if name in options}
    seed = options.pop("noise_seed", None)
    privacy = Privacy(noise_seed=seed, repeatable=seed is not None)
    return Unlearner(trained[0], PaperStep(trained[1], **how), privacy=privacy, **options)


def test_the_change_is_that_of_the_dense_formula(trained):
    task, trace = trained
    block = unlearner(trained).slices.block([0, 3, 6])
    first = gradient(task, task.model, [5])
    moved = {name: weight - SAMPLE_LR * first[name] for name, weight in trainable(task.model).items()}
    copied = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    copied.load_state_dict(moved)
    second = gradient(task, copied, [5])
    g = block.gather(first)
    d = block.gather(trace.gradients[0]) - block.gather(trace.gradients[1])
    of_all = torch.outer(d, d) / (block.gather(trace.parameters[0]) - block.gather(trace.parameters[1])).abs().sum()
    e = g - block.gather(second)
    of_sample = torch.outer(e, e) / (SAMPLE_LR * g).abs().sum()
    assert of_sample.abs().max() > 0  # the published code has 0 here
    hessian = (N * of_all - of_sample) / (N - 1) + 0.1 * torch.eye(len(g)).double()
    truth = torch.linalg.solve(hessian, g) / (N - 1)
    assert torch.allclose(paper_change(task, task.model, block, 5, trace, N), truth)


def test_rank_two_solve():
    torch.manual_seed(1)
    rows, b = torch.randn(2, 6).double(), torch.randn(6).double()
    signs = torch.tensor([2.0, -0.01]).double()
    dense = rows.T @ torch.diag(signs) @ rows + 0.5 * torch.eye(6)
    assert torch.allclose(woodbury_of_multiple(b, rows, 0.5, signs), torch.linalg.solve(dense, b))


def test_one_sample_after_the_other_and_nothing_outside_the_blocks(trained):
    done = unlearner(trained).forget([3, 8])
    assert done.parameters_changed > 0
    touched = {name.rpartition("[")[0] for name in done.slices}
    start, end = trainable(trained[0].model), trainable(done.model)
    for layer in ("0", "2"):
        units = [int(name.split("[")[1][:-1]) for name in done.slices if name.startswith(f"{layer}[")]
        rest = [unit for unit in range(len(start[f"{layer}.weight"])) if unit not in units]
        assert torch.equal(start[f"{layer}.weight"][rest], end[f"{layer}.weight"][rest])
    assert touched <= {"0", "2"}
    assert done.step_share == 1.0


def test_the_noise_is_that_of_the_published_code_and_on_the_block_alone(trained):
    sigma = paper_sigma(samples=N, weight_decay=0.1, epsilon=0.5, delta=0.01)
    bound = 2 * 0.25 * 1.0 / (N**2 * 0.1**3)
    assert sigma == pytest.approx(bound / 0.5 * math.sqrt(2 * math.log(1.25 / 0.01)))
    plain = unlearner(trained).forget([3])
    noisy = unlearner(trained, noise_seed=0).forget([3], epsilon=0.5, delta=0.01)
    for name, weight in trainable(noisy.model).items():
        moved = (weight != trainable(plain.model)[name]).reshape(len(weight), -1).any(1)
        layer = name.rpartition(".")[0]
        assert {unit for unit in range(len(weight)) if moved[unit]} == {
            int(one.split("[")[1][:-1]) for one in noisy.slices if one.startswith(f"{layer}[")
        }


def test_its_noise_adds_up_over_requests(trained):
    one, all_at_once = unlearner(trained, noise_seed=0), unlearner(trained)
    released = [one.forget([sample], epsilon=0.5, delta=0.01).model for sample in (3, 8)]
    noise = [
        torch.cat([(a - b).flatten() for a, b in zip(trainable(x).values(), trainable(y).values(), strict=True)])
        for x, y in zip(released, [task_model(all_at_once, 3), task_model(all_at_once, 8)], strict=True)
    ]
    both = (noise[0] != 0) & (noise[1] != 0)
    assert both.any()
    second = noise[1] - noise[0]  # the second request starts from the noisy weights, so its own noise is the rest
    assert abs(float(torch.corrcoef(torch.stack([noise[0][both], second[both]]))[0, 1])) < 0.9  # and another draw
    sigma = paper_sigma(samples=N, weight_decay=0.1, epsilon=0.5, delta=0.01)
    assert float(noise[0][noise[0] != 0].std()) == pytest.approx(sigma, rel=0.6)


def test_noise_of_a_larger_data_set_is_smaller_by_the_square(trained):
    plain = unlearner(trained).forget([3])
    sizes = []
    for samples in (N, 10 * N):
        noisy = unlearner(trained, noise_seed=0, noise_samples=samples).forget([3], epsilon=0.5, delta=0.01)
        pairs = zip(trainable(noisy.model).values(), trainable(plain.model).values(), strict=True)
        sizes.append(math.sqrt(sum(float(((a - b) ** 2).sum()) for a, b in pairs)))
    assert sizes[0] == pytest.approx(100 * sizes[1])
    with pytest.raises(InputError, match="Step does not heed noise_samples; PaperStep does"):
        Step(noise_samples=5)


def task_model(forgetter, sample):
    return forgetter.forget([sample]).model


def test_how_the_slices_are_chosen_and_from_how_many_copies_can_be_said(trained):
    assert len(unlearner(trained, selection=Joint("cheap", copies=100)).forget([3]).slices) == 1
    assert len(unlearner(trained, selection="all").forget([3]).slices) == 8


def test_it_needs_a_trace_of_this_model_and_weight_decay(trained):
    task, trace = trained
    with pytest.raises(InputError, match=r"needs trace=.*recorder=True"):
        Unlearner(task, "paper")
    other = Task(nn.Linear(4, 3).double(), task.loss, task.train_set)
    with pytest.raises(InputError, match="of another model"):
        Unlearner(other, PaperStep(trace))
    with pytest.raises(InputError, match="weight_decay > 0"):
        Unlearner(Task(task.model, task.loss, task.train_set, weight_decay=0.0), PaperStep(trace))
    with pytest.raises(InputError, match="Did you mean 'paper'"):
        Unlearner(task, "papr")
    with pytest.raises(InputError, match="paper does not heed guard"):
        Unlearner(task, PaperStep(trace), guard=Guard(2))
