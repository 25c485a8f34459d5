"""Training: the exact minimum against scikit-learn and closed forms, SGD against the exact minimum."""

import dataclasses
import io
import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import TensorDataset

from excise.errors import InputError
from excise.task import Task
from excise.training import fit
from excise.training.exact import exact_fit
from excise.training.trace import GradientRecorder

cross_entropy = nn.CrossEntropyLoss(reduction="none")
squared_error = nn.MSELoss(reduction="none")


def digits_task(*, weight_decay=0.01, n=600, bias=False, scale=1 / 16):
    X, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(scale * X[:n], dtype=torch.float32), torch.tensor(y[:n]))
    torch.manual_seed(0)
    return Task(nn.Linear(64, 10, bias=bias), cross_entropy, data, weight_decay=weight_decay)


def ridge_task(*, n=40, weight_decay=0.1, seed=0, outputs=1):
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, 5)), rng.standard_normal((n, outputs))
    data = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32))
    torch.manual_seed(seed)
    return Task(nn.Linear(5, outputs), squared_error, data, weight_decay=weight_decay)


def ridge_solution(task, ids):
    """Weights and bias of argmin mean (Xw + b - y)² + λ/2 (‖w‖² + b²), from the normal equations."""
    X, y = (tensor.double().numpy()[ids] for tensor in task.train_set.tensors)
    X = np.column_stack((X, np.ones(len(X))))
    return np.linalg.solve(X.T @ X / len(X) + task.weight_decay / 2 * np.eye(6), X.T @ y / len(X))[:, 0]


def flat(model):
    return torch.cat([weight.detach().double().reshape(-1) for weight in model.parameters()])


@torch.no_grad()
def objective(task, model):
    inputs, targets = task.train_set.tensors
    loss = task.loss(model(inputs), targets).mean()
    return float(loss + task.weight_decay / 2 * sum((weight**2).sum() for weight in model.parameters()))


# ---------------------------------------------------------------------------------------------------- exact_fit


@pytest.mark.slow
@pytest.mark.parametrize("ids", [None, range(3, 500)])
@pytest.mark.parametrize(("scale", "weight_decay"), [(1 / 16, 0.01), (1, 0.001)])
def test_exact_fit_is_scikit_learns_logistic_regression(scale, weight_decay, ids):
    task = digits_task(weight_decay=weight_decay, scale=scale)
    chosen = np.arange(600) if ids is None else np.array(ids)
    X, y = task.train_set.tensors[0].double().numpy()[chosen], task.train_set.tensors[1].numpy()[chosen]
    other = LogisticRegression(
        C=1 / (len(X) * weight_decay), tol=1e-12, fit_intercept=False, solver="newton-cholesky", max_iter=1000
    ).fit(X, y)
    ours = exact_fit(task, ids=ids, double=True, tolerance=1e-12).model.weight.detach().numpy()
    assert np.abs(other.coef_).max() > 0.1
    assert np.abs(ours - other.coef_).max() < 1e-8


@pytest.mark.parametrize("ids", [None, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29], torch.arange(39, 0, -1), np.array([4])])
def test_exact_fit_is_ridge_regression_in_closed_form(ids):
    task = ridge_task()
    fitted = exact_fit(task, ids=ids, double=True)
    truth = ridge_solution(task, np.arange(40) if ids is None else np.asarray(ids))
    np.testing.assert_allclose(flat(fitted.model).numpy(), truth, rtol=0, atol=1e-10)


def test_exact_fit_keeps_the_dtype_unless_told():
    task = ridge_task()
    single, double = exact_fit(task).model, exact_fit(task, double=True).model
    assert single.weight.dtype == torch.float32
    assert double.weight.dtype == torch.float64
    assert torch.equal(single.weight, double.weight.float())


def test_exact_fit_leaves_frozen_parameters_and_the_task_alone():
    task = ridge_task()
    task.model.bias.requires_grad_(False)
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    model = exact_fit(task).model
    assert torch.equal(model.bias, before["bias"])
    assert not torch.equal(model.weight, before["weight"])
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())
    X, y = (tensor.double().numpy() for tensor in task.train_set.tensors)
    shifted = y[:, 0] - float(before["bias"])
    truth = np.linalg.solve(X.T @ X / 40 + 0.05 * np.eye(5), X.T @ shifted / 40)
    np.testing.assert_allclose(model.weight.detach().numpy()[0], truth, atol=1e-6)


def test_exact_fit_without_weight_decay_is_least_squares():
    task = ridge_task(weight_decay=0.0)
    fitted = exact_fit(task, double=True)
    np.testing.assert_allclose(flat(fitted.model).numpy(), ridge_solution(task, np.arange(40)), atol=1e-8)
    assert fitted.losses[-1] < fitted.losses[0]


def test_exact_fit_with_class_weights_and_mappings():
    """The loss's own weights are single precision too, and a batch may be a mapping."""
    task = digits_task(n=100)
    class_weights = torch.linspace(0.5, 2, 10)
    samples = [{"input": image, "labels": label} for image, label in task.train_set]
    mapped = dataclasses.replace(
        task, train_set=samples, loss=nn.CrossEntropyLoss(weight=class_weights, reduction="none")
    )
    model = exact_fit(mapped, double=True).model
    inputs, targets = task.train_set.tensors
    losses = cross_entropy(model(inputs.double()), targets) * class_weights.double()[targets]
    gradient = torch.autograd.grad(losses.mean() + 0.005 * (model.weight**2).sum(), model.weight)[0]
    assert gradient.norm() < 1e-9
    assert mapped.loss.weight.dtype == torch.float32


@pytest.mark.parametrize("scale", [0.01, 1, 1000])
@pytest.mark.parametrize("classes", [2, 3])
def test_exact_fit_refuses_separable_data_without_weight_decay(scale, classes):
    """There the gradient vanishes as the weights grow, so that a small gradient alone would look like success."""
    data = TensorDataset(scale * torch.tensor([[-2.0], [-1.0], [1.0], [3.0]]), torch.tensor([0, 0, 1, 1]))
    task = Task(nn.Linear(1, classes), cross_entropy, data, weight_decay=0.0)
    nn.init.zeros_(task.model.weight)  # random weights may separate them so far that the loss is 0 in double precision
    with pytest.raises(InputError, match=r"no minimum.*gradient norm is .*set weight_decay above 0"):
        exact_fit(task)


def test_exact_fit_says_which_gradient_norm_it_reached():
    with pytest.raises(InputError, match=r"gradient norm is 0\.\d+ \(tolerance=1e-10 .*max_iterations"):
        exact_fit(digits_task(n=200), max_iterations=1)


def test_exact_fit_refuses_what_is_not_convex():
    task = digits_task(n=50)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
    with pytest.raises(InputError, match="curvature is negative, so it is not convex: use fit"):
        exact_fit(dataclasses.replace(task, model=network, weight_decay=1e-4))


def test_exact_fit_refuses_nan():
    task = ridge_task()
    task.train_set.tensors[0][3, 2] = math.nan
    with pytest.raises(InputError, match="the loss is nan"):
        exact_fit(task)


# ---------------------------------------------------------------------------------------------------------- fit


@pytest.mark.slow
def test_fit_comes_to_the_exact_minimum_of_a_convex_problem():
    task = digits_task(n=300, bias=True)
    best = objective(task, exact_fit(task).model)
    fitted = fit(task, epochs=40, lr=0.2)
    assert objective(task, task.model) - best > 1
    assert 0 <= objective(task, fitted.model) - best < 1e-3
    assert fitted.losses[-1] < fitted.losses[0]
    assert len(fitted.losses) == 40
    assert not fitted.model.training


@pytest.mark.slow
def test_fit_trains_on_the_ids_alone():
    task = ridge_task()
    ids = [1, 2, 3, 5, 8, 13, 21, 34]
    fitted = fit(task, ids=ids, epochs=400, batch_size=8, lr=0.05)
    np.testing.assert_allclose(flat(fitted.model).numpy(), ridge_solution(task, ids), atol=1e-4)
    before = fit(task, ids=ids, epochs=3, batch_size=5)
    inputs, _ = task.train_set.tensors
    inputs[[i for i in range(40) if i not in ids]] = math.nan
    assert torch.equal(flat(fit(task, ids=ids, epochs=3, batch_size=5).model), flat(before.model))


def test_one_epoch_is_sgd_by_hand():
    """Full batch, so that the order does not matter: cosine from lr to 0, momentum, weight decay."""
    task = ridge_task(weight_decay=0.3)
    inputs, targets = task.train_set.tensors
    weights = [weight.detach().clone().requires_grad_() for weight in task.model.parameters()]
    velocities = [torch.zeros_like(weight) for weight in weights]
    for step in range(3):
        lr = 0.1 * (1 + math.cos(math.pi * step / 3)) / 2
        loss = ((inputs @ weights[0].T + weights[1] - targets) ** 2).mean()
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, velocity, gradient in zip(weights, velocities, gradients, strict=True):
                velocity.mul_(0.8).add_(gradient + 0.3 * weight)
                weight.sub_(lr * velocity)
    fitted = fit(task, epochs=3, batch_size=40, lr=0.1, momentum=0.8)
    expected = torch.cat([weight.detach().double().reshape(-1) for weight in weights])
    torch.testing.assert_close(flat(fitted.model), expected, rtol=0, atol=1e-6)
    constant = fit(task, epochs=3, batch_size=40, lr=0.1, momentum=0.8, schedule="constant")
    assert (flat(constant.model) - expected).abs().max() > 1e-3


def dropout_task():
    task = digits_task(n=100)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))
    return dataclasses.replace(task, model=model)


def test_fit_is_decided_by_its_seed_and_not_by_the_global_random_state():
    task = dropout_task()
    torch.manual_seed(1)
    first = fit(task, epochs=2, seed=3)
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), after)  # nothing was drawn from the global state
    torch.manual_seed(99)
    again = fit(task, epochs=2, seed=3, callback=lambda *_: torch.rand(5))
    other = fit(task, epochs=2, seed=4)
    assert torch.equal(flat(first.model), flat(again.model))
    assert first.losses == again.losses
    assert not torch.equal(flat(first.model), flat(other.model))


def test_fit_leaves_the_task_alone():
    task = dropout_task()
    task.model.eval()
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    fitted = fit(task, epochs=2, recorder=True)
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())
    assert all(weight.grad is None for weight in task.model.parameters())
    assert not any(module.training for module in task.model.modules())
    assert not torch.equal(fitted.model[1].running_mean, before["1.running_mean"])


class Counting:
    """A dataset that knows what was asked of it."""

    def __init__(self, data):
        self.data, self.asked = data, []

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        self.asked.append(i)
        return self.data[i]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "expected"), [(33, [16, 17]), (17, [17]), (34, [16, 16, 2]), (32, [16, 16]), (5, [5]), (2, [2])]
)
def test_a_last_batch_of_one_joins_the_one_before(n, expected):
    task = dropout_task()
    data = Counting(task.train_set)
    sizes, orders = [], []
    task = dataclasses.replace(task, train_set=data)
    task.model[1].register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    fit(
        task,
        ids=range(50, 50 + n),
        epochs=2,
        batch_size=16,
        callback=lambda *_: (orders.append(data.asked[:]), data.asked.clear()),
    )
    assert sizes == expected * 2
    assert [sorted(order) for order in orders] == [list(range(50, 50 + n))] * 2
    assert n < 5 or orders[0] != orders[1]


@pytest.mark.slow
def test_a_set_of_one_sample_is_a_batch_of_one():
    task = ridge_task(weight_decay=1.0)
    fitted = fit(task, ids=[7], epochs=150, lr=0.03)
    np.testing.assert_allclose(flat(fitted.model).numpy(), ridge_solution(task, [7]), atol=1e-3)


@pytest.mark.parametrize("seed", [0, 1])
def test_diverging_training_is_an_error(seed):
    with pytest.raises(InputError, match=r"diverged in epoch \d+ of 50 with lr=1000.0 \(mean loss .*smaller lr"):
        fit(ridge_task(seed=seed), epochs=50, lr=1000.0)


def test_weights_that_become_nan_in_the_last_step_are_an_error():
    """The loss is finite, but the gradient of the root at 0 is not."""
    data = TensorDataset(torch.zeros(4, 1), torch.zeros(4))
    task = Task(nn.Linear(1, 1, bias=False), lambda outputs, _: outputs[:, 0].square().sqrt(), data)
    with pytest.raises(InputError, match=r"diverged in epoch 1 of 1 .*mean loss 0\.0"):
        fit(task, epochs=1)


def test_callback_sees_every_epoch():
    seen = []
    fitted = fit(ridge_task(), epochs=3, callback=lambda epoch, model, loss: seen.append((epoch, flat(model), loss)))
    assert [epoch for epoch, _, _ in seen] == [1, 2, 3]
    assert tuple(loss for _, _, loss in seen) == fitted.losses
    assert torch.equal(seen[-1][1], flat(fitted.model))


CASES = [
    (lambda task: fit(task, ids=[]), "ids must be one list of at least one"),
    (lambda task: fit(task, ids=[3, 40]), "ids must be from 0 to 39 .*not 40"),
    (lambda task: fit(task, ids=[-1]), "not -1"),
    (lambda task: exact_fit(task, ids=[5, 6, 5]), "ids has 5 more than once"),
    (lambda task: exact_fit(task, ids=[0.5]), "ids must be whole numbers, not torch.float32"),
    (lambda task: fit(task, ids=np.ones(40, dtype=bool)), "mask.nonzero"),
    (lambda task: fit(task, ids=["3"]), r"ids must be whole numbers.* not \['3'\]"),
    (lambda task: fit(task, epochs=0), "epochs must be a whole number, 1 or more, not 0"),
    (lambda task: fit(task, epochs=1, recorder=True), "epochs must be 2 or more with a recorder.* not 1"),
    (lambda task: fit(task, batch_size=2.5), "batch_size must be .* not 2.5"),
    (lambda task: fit(task, lr=0), "lr must be a positive number, not 0"),
    (lambda task: fit(task, lr="fast"), "lr must be a positive number, not 'fast'"),
    (lambda task: fit(task, momentum=1.0), "momentum must be from 0 to less than 1, not 1.0"),
    (lambda task: fit(task, schedule="cosin"), "schedule must be one of .* Did you mean 'cosine'"),
    (lambda task: fit(task, seed=-1), "seed must be a whole number, 0 or more, not -1"),
    (lambda task: exact_fit(task, tolerance=0.0), "tolerance must be a positive number, not 0.0"),
    (lambda task: exact_fit(task, max_iterations=0), "max_iterations must be .* not 0"),
    (lambda task: fit(dataclasses.replace(task, train_set=[])), "train_set is empty"),
    (lambda task: fit(dataclasses.replace(task, model=nn.ReLU())), "model has no trainable parameters"),
]


@pytest.mark.parametrize(("call", "message"), CASES)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call(ridge_task())


# ----------------------------------------------------------------------------------------------------- recorder


def direct_gradient(task, model, ids):
    """Gradient of the mean loss in one batch, by backward, in eval mode."""
    inputs, targets = task.train_set.tensors
    model.eval().zero_grad()
    task.loss(model(inputs[ids]), targets[ids]).mean().backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def check_trace(trace, task, snapshots, ids):
    for gradient, parameters, state in zip(trace.gradients, trace.parameters, snapshots, strict=True):
        task.model.load_state_dict(state)
        expected = direct_gradient(task, task.model, ids)
        assert list(gradient) == list(expected) == list(parameters)
        for name, weight in task.model.named_parameters():
            assert torch.equal(parameters[name], weight)
            torch.testing.assert_close(gradient[name], expected[name], rtol=1e-4, atol=1e-7)
    name = next(iter(trace.gradients[0]))
    assert not torch.allclose(trace.gradients[0][name], trace.gradients[1][name])


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_the_trace_of_fit_is_autograds_gradient_at_the_end_of_the_last_two_epochs():
    task = dropout_task()
    ids = list(range(1, 100, 2))
    snapshots = []
    fitted = fit(
        task, ids=ids, epochs=4, recorder=True, callback=lambda _, model, __: snapshots.append(snapshot(model))
    )
    check_trace(fitted.trace, task, snapshots[-2:], ids)
    assert fit(task, ids=ids, epochs=1).trace is None


def test_recording_does_not_change_the_training():
    task = dropout_task()
    assert torch.equal(flat(fit(task, epochs=3).model), flat(fit(task, epochs=3, recorder=True).model))


def test_a_recorder_of_your_own_given_to_fit():
    task = dropout_task()
    recorder = GradientRecorder(task)
    fitted = fit(task, epochs=3, recorder=recorder)
    expected = fit(task, epochs=3, recorder=True).trace
    assert torch.equal(fitted.trace.gradients[1]["0.weight"], expected.gradients[1]["0.weight"])
    assert torch.equal(recorder.trace().gradients[0]["0.weight"], expected.gradients[0]["0.weight"])


def test_recorder_in_a_loop_of_your_own():
    task = dropout_task()
    model, (inputs, targets) = task.model, task.train_set.tensors
    model[3].eval()  # a mode of its own, which the recorder must keep
    modes = [module.training for module in model.modules()]
    recorder = GradientRecorder(task)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    snapshots = []
    for epoch in range(3):
        if epoch < 2:
            with pytest.raises(InputError, match=f"has seen {epoch} of the two epochs"):
                recorder.trace()
        optimizer.zero_grad()
        task.loss(model(inputs), targets).mean().backward()
        optimizer.step()
        state, gradients = snapshot(model), [weight.grad.clone() for weight in model.parameters()]
        with torch.no_grad():
            recorder.end_of_epoch(model)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert all(torch.equal(weight.grad, one) for weight, one in zip(model.parameters(), gradients, strict=True))
        assert [module.training for module in model.modules()] == modes
        snapshots.append(state)
    check_trace(recorder.trace(), task, snapshots[-2:], list(range(100)))


def test_recorder_goes_on_from_a_checkpoint():
    task = ridge_task()
    whole, first, second = GradientRecorder(task), GradientRecorder(task), GradientRecorder(task)
    whole.end_of_epoch(task.model)
    first.end_of_epoch(task.model)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    nn.init.ones_(task.model.weight)
    whole.end_of_epoch(task.model)
    second.end_of_epoch(task.model)
    for ours, theirs in zip(second.trace().gradients, whole.trace().gradients, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not torch.equal(second.trace().parameters[0]["weight"], second.trace().parameters[1]["weight"])


def test_recorder_refuses_a_state_that_does_not_fit_and_keeps_its_own():
    task, other = ridge_task(), ridge_task(outputs=2)
    recorder, stranger = GradientRecorder(task), GradientRecorder(other)
    for _ in range(2):
        recorder.end_of_epoch(task.model)
        stranger.end_of_epoch(other.model)
    state = recorder.state_dict()
    with pytest.raises(InputError, match="of another model"):
        recorder.load_state_dict(stranger.state_dict())
    with pytest.raises(InputError, match=r"state must have 'gradients' and 'parameters'.*\{'gradients': 2\}"):
        recorder.load_state_dict({"gradients": state["gradients"]})
    with pytest.raises(InputError, match="of as many epochs"):
        recorder.load_state_dict({**state, "parameters": state["parameters"][:1]})
    assert len(recorder.trace().gradients) == 2
