"""The paper's literal method: the formula against dense matrices, and its place in the unlearner."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import InputError, Task, Unlearner, fit
from excise.objective import gradient
from excise.paper import SAMPLE_LR, paper_change, paper_sigma, solve_rank_two
from excise.slices import trainable

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
    return Unlearner(trained[0], method="paper", trace=trained[1], **options)


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
    assert torch.allclose(solve_rank_two(rows, signs, b, 0.5), torch.linalg.solve(dense, b))


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


def test_it_needs_a_trace_of_this_model_and_weight_decay(trained):
    task, trace = trained
    with pytest.raises(InputError, match=r"needs trace=.*recorder=True"):
        Unlearner(task, method="paper")
    other = Task(nn.Linear(4, 3).double(), task.loss, task.train_set)
    with pytest.raises(InputError, match="of another model"):
        Unlearner(other, method="paper", trace=trace)
    with pytest.raises(InputError, match="weight_decay > 0"):
        Unlearner(Task(task.model, task.loss, task.train_set, weight_decay=0.0), method="paper", trace=trace)
    with pytest.raises(InputError, match="Did you mean 'paper'"):
        Unlearner(task, method="papr", trace=trace)
