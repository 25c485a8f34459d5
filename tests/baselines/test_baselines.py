"""Other methods of unlearning: each does what its paper says, on cases small enough to work out."""

import inspect
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset
from toy_classifier import ENTROPY, FORGET, N, classifier, flat, losses_of, mean_gradient, network

import excise.baselines
from excise import (
    Drift,
    InputError,
    MissingExtraError,
    NotYetSupportedError,
    PaperStep,
    PerLayer,
    Step,
    Task,
    Unlearner,
    fit,
)
from excise.baselines import (
    GRIDS,
    METHODS,
    REFERENCES,
    baseline,
    ct,
    excise_drift,
    excise_step,
    fine_tune,
    fisher_forgetting,
    full_newton,
    gradient_ascent,
    kfac_newton,
    l1_sparse,
    lotus,
    msg,
    neg_grad_plus,
    paper_step,
    random_labels,
    regun,
    retrain,
    rum,
    salun,
    scrub,
    sfr_on,
    ssd,
)
from excise.baselines.classes import random_other_labels
from excise.baselines.importance import expected_squared_gradients, squared_gradients
from excise.baselines.salun import largest
from excise.baselines.scrub import divergence
from excise.baselines.start import begin
from excise.task.hashing import hash_of_model
from excise.task.ids import all_but
from excise.task.objective import losses_on
from excise.training.retraining import retrain as retrain_from_scratch

EVERYTHING = 10**6
QUICK = {
    "fine-tune": {"batch_size": 8},
    "gradient-ascent": {"batch_size": 1},
    "neg-grad-plus": {"batch_size": 8},
    "random-labels": {"batch_size": 8},
    "fisher-forgetting": {"samples": 10},
    "ssd": {"alpha": 0.9, "samples": 10},
    "salun": {"batch_size": 8},
    "scrub": {"epochs": 3, "batch_size": 8},
    "full-newton": {"samples": 10, "iterations": 3},
    "kfac-newton": {"samples": 10},
    "paper-step": {"n_jobs": 1},
    "excise-step": {"n_jobs": 1},
    "l1-sparse": {"batch_size": 8},
    "ct": {"batch_size": 8},
    "msg": {"batch_size": 8},
    "lotus": {"batch_size": 8},
    "regun": {"batch_size": 8},
    "rum": {"batch_size": 8},
    "sfr-on": {"batch_size": 8, "samples": 10},
}  # options with which all of them are quick and random

TRAINING = ("gradient-ascent", "neg-grad-plus", "random-labels", "salun", "scrub", "ssd")
TRAINING += ("l1-sparse", "lotus", "msg", "regun", "rum", "sfr-on")
GONE = [5, 6, 30]  # not 0 or 1, which are read to see what a sample is like
OF_CONVOLUTIONS = ("ct",)
OF_THE_UNLEARNER = ("full-newton", "paper-step", "excise-step", "excise-drift")

pytestmark = pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")


@pytest.fixture(scope="module")
def trained():
    return {convolution: classifier(convolution=convolution) for convolution in (False, True)}


@pytest.fixture
def task(trained, request):
    """With a network that the method, in a test of one, can change."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    return trained[parameters.get("name") in OF_CONVOLUTIONS]


class Counting:
    """A data set that knows which samples were asked for."""

    def __init__(self, data):
        self.data, self.asked = data, set()

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        self.asked.add(i)
        return self.data[i]


def as_function(task, ids):
    """The mean loss as a function of one vector of weights."""
    model = task.model

    def loss(vector):
        sizes = [weight.numel() for weight in model.parameters()]
        pieces = vector.split(sizes)
        named = {n: piece.view_as(w) for (n, w), piece in zip(model.named_parameters(), pieces, strict=True)}
        inputs, targets = (tensor[torch.as_tensor(ids)] for tensor in task.train_set.tensors)
        return nn.functional.cross_entropy(torch.func.functional_call(model, named, (inputs,)), targets)

    return loss


def one_weight(targets, value, **options):
    """Half squares of the distance between a single weight and the targets."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, value)
    data = TensorDataset(torch.ones(len(targets), 1).double(), torch.tensor(targets).double())
    return Task(model, lambda outputs, targets: (outputs[:, 0] - targets) ** 2 / 2, data, **options)


class TestAll:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", METHODS)
    def test_a_new_model_in_eval_mode_and_nothing_else_has_changed(self, task, name):
        model = network(1, convolution=name in OF_CONVOLUTIONS).train()
        given, own = hash_of_model(model), hash_of_model(task.model)
        torch_state, numpy_state = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
        new = METHODS[name](task, model, FORGET, seed=0, **QUICK.get(name, {}))
        assert hash_of_model(model) == given
        assert hash_of_model(task.model) == own
        assert all(module.training for module in model.modules())
        assert not any(module.training for module in new.modules())
        assert all(weight.grad is None for weight in model.parameters())
        assert torch.equal(torch.get_rng_state(), torch_state)
        assert str(np.random.get_state()) == numpy_state  # noqa: NPY002
        assert hash_of_model(new) != given

    @pytest.mark.slow
    @pytest.mark.parametrize("name", METHODS)
    def test_the_seed_decides(self, task, name):
        made = [METHODS[name](task, task.model, FORGET, seed=s, **QUICK.get(name, {})) for s in (1, 1, 2, 3)]
        first, again, *others = map(hash_of_model, made)
        assert first == again
        assert {first} != set(others)  # one choice of slices may be the same by chance

    @pytest.mark.parametrize("name", METHODS)
    def test_ids_seed_and_model_are_checked(self, task, name):
        method = METHODS[name]
        with pytest.raises(InputError, match="from 0 to 39"):
            method(task, task.model, [N], seed=0)
        with pytest.raises(InputError, match="forget has all 40 samples"):
            method(task, task.model, range(N), seed=0)
        with pytest.raises(InputError, match=r"seed must be a whole number, 0 or more, not -1"):
            method(task, task.model, FORGET, seed=-1)
        with pytest.raises(InputError, match=r"model is of another architecture: 0.bias"):
            method(task, nn.Sequential(nn.Linear(4, 5)), FORGET, seed=0)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", METHODS)
    def test_every_setting_of_the_grid_is_one(self, task, name):
        for options in GRIDS[name]:
            new = METHODS[name](task, task.model, FORGET, seed=0, **{**QUICK.get(name, {}), **options})
            assert flat(new).isfinite().all()
        assert len({str(options) for options in GRIDS[name]}) == len(GRIDS[name])

    def test_grids_are_of_methods(self):
        assert list(GRIDS) == list(METHODS)
        assert [name.replace("-", "_") for name in METHODS] == [method.__name__ for method in METHODS.values()]

    def test_every_file_registers_itself_and_types_are_known(self):
        """The imports for type checkers are the one list that is kept by hand."""
        folder = Path(excise.baselines.__file__).parent
        with_methods = {file.stem for file in folder.glob("*.py") if "\n@baseline(" in file.read_text()}
        assert {name.replace("-", "_") for name in METHODS} == with_methods
        imports = re.findall(r"^    from excise\.baselines\.(\w+) import", (folder / "__init__.py").read_text(), re.M)
        assert sorted(imports) == sorted(with_methods)
        assert set(excise.baselines.__all__) >= with_methods
        assert list(REFERENCES) == list(METHODS)

    def test_a_name_that_is_taken_is_refused(self):
        with pytest.raises(InputError, match=r"name='ssd' is the method .* already"):
            baseline("ssd", reference="nobody")(fine_tune)
        assert METHODS["ssd"] is ssd

    @pytest.mark.slow
    @pytest.mark.parametrize("name", METHODS)
    def test_samples_of_earlier_requests_are_not_looked_at(self, task, name):
        """Nor is the outcome another than with data in which they never were."""
        if name in OF_THE_UNLEARNER and "forgotten" not in inspect.signature(Unlearner).parameters:
            pytest.skip("the Unlearner does not take them yet")
        data = Counting(task.train_set)
        counted = replace(task, train_set=data)
        options = {**QUICK.get(name, {}), "seed": 0}
        new = METHODS[name](counted, task.model, FORGET, forgotten=GONE, **options)
        assert data.asked.isdisjoint(GONE)
        assert data.asked
        inputs, targets = (tensor.clone() for tensor in task.train_set.tensors)
        inputs[GONE] = math.nan
        ruined = replace(task, train_set=TensorDataset(inputs, targets))
        assert torch.equal(flat(new), flat(METHODS[name](ruined, task.model, FORGET, forgotten=GONE, **options)))
        assert hash_of_model(new) != hash_of_model(METHODS[name](task, task.model, FORGET, **options)) or (
            name == "gradient-ascent"  # which looks at no others anyway
        )

    @pytest.mark.parametrize("name", METHODS)
    def test_what_is_forgotten_already_is_checked(self, task, name):
        method = METHODS[name]
        with pytest.raises(InputError, match="forget has 8, which is among forgotten already"):
            method(task, task.model, FORGET, seed=0, forgotten=[8, 9])
        with pytest.raises(InputError, match="forget has all 3 samples left"):
            method(task, task.model, FORGET, seed=0, forgotten=all_but(FORGET, N))
        with pytest.raises(InputError, match="from 0 to 39"):
            method(task, task.model, FORGET, seed=0, forgotten=[N])

    @pytest.mark.parametrize(
        ("method", "options", "message"),
        [
            (fine_tune, {"epochs": 0}, "epochs must be a whole number, 1 or more, not 0"),
            (gradient_ascent, {"lr": -1.0}, "lr must be a positive number, not -1.0"),
            (gradient_ascent, {"epochs": 2.5}, "epochs must be a whole number"),
            (neg_grad_plus, {"alpha": 1.5}, "alpha must be from 0 to 1, not 1.5"),
            (random_labels, {"momentum": 1.0}, "momentum must be from 0 to less than 1, not 1.0"),
            (random_labels, {"batch_size": 0}, "batch_size must be a whole number"),
            (fisher_forgetting, {"alpha": -1.0}, "alpha must be a non-negative number, not -1.0"),
            (fisher_forgetting, {"samples": 0}, "samples must be a whole number"),
            (ssd, {"alpha": 0.0}, "alpha must be a positive number"),
            (ssd, {"dampening": 0.0}, "dampening must be a positive number"),
            (salun, {"share": 0.0}, "share must be above 0 and at most 1"),
            (scrub, {"max_epochs": 6}, "max_epochs must be at most epochs=5, not 6"),
            (scrub, {"gamma": -1.0}, "gamma must be a non-negative number"),
            (full_newton, {"curvature": "hesian"}, "Did you mean 'hessian'"),
            (kfac_newton, {"backend": "exise"}, "Did you mean 'excise'"),
            (kfac_newton, {"damping": 0.0}, "damping must be a positive number"),
            (paper_step, {"lr": 0.0}, "lr must be a positive number"),
            (excise_step, {"share": 2.0}, "share must be above 0"),
            (excise_drift, {"active": 1.5}, "active must be from 0 to 1"),
            (l1_sparse, {"alpha": -1.0}, "alpha must be a non-negative number, not -1.0"),
            (l1_sparse, {"plain_epochs": 5}, "plain_epochs must be less than epochs=5, not 5"),
            (msg, {"share": 1.5}, "share must be above 0 and at most 1, not 1.5"),
            (msg, {"kept": -0.1}, "kept must be a non-negative number, not -0.1"),
            (lotus, {"share": 0}, "share must be above 0 and at most 1, not 0"),
            (lotus, {"aim": 2}, "aim must be from 0 to 1, or None, not 2"),
            (lotus, {"held_out": [30]}, r"held_out must be a list of positions in test_set, .* 0 to 29, not \[30\]"),
            (regun, {"held_out": []}, "held_out must be a list of positions in test_set"),
            (regun, {"held_out": [0.5]}, "held_out must be a list of positions in test_set"),
            (regun, {"alpha": -1}, "alpha must be a non-negative number, not -1"),
            (sfr_on, {"every": 0}, "every must be a whole number, 1 or more, not 0"),
            (sfr_on, {"most": 0.0}, "most must be a positive number, not 0.0"),
            (sfr_on, {"exponent": -0.5}, "exponent must be a non-negative number"),
            (rum, {"proxy": "confidenc"}, "Did you mean 'confidence'"),
            (rum, {"share": 0.0}, "share must be above 0 and at most 1"),
            (ct, {}, "model has no trained nn.Conv2d, and ct needs square kernels .* use msg"),
        ],
    )
    def test_bad_options(self, task, method, options, message):
        with pytest.raises(InputError, match=message):
            method(task, task.model, FORGET, seed=0, **options)

    # the two others perturb the inputs, and must know where these are
    @pytest.mark.slow
    @pytest.mark.parametrize("name", [name for name in METHODS if name not in ("paper-step", "excise-step")])
    def test_batches_that_are_mappings_and_a_forward_of_ones_own(self, task, name):
        """The same samples in other clothes give the same model."""
        samples, others = (
            [{"x": x, "y": y} for x, y in zip(*data.tensors, strict=True)] for data in (task.train_set, task.test_set)
        )
        dressed = replace(
            task,
            train_set=samples,
            test_set=others,
            forward=lambda model, batch: (model(batch["x"]), batch["y"]),
        )
        options = QUICK.get(name, {})
        plain, other = (METHODS[name](one, task.model, FORGET, seed=0, **options) for one in (task, dressed))
        assert torch.allclose(flat(plain), flat(other), atol=1e-9)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", TRAINING)
    def test_one_sample_and_batch_normalisation(self, task, name):
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)).double()
        other = replace(task, model=model)
        options = {"aim": 0.0} if name == "lotus" else {}  # which would do nothing where it knows the sample badly
        new = METHODS[name](other, model, [5], seed=0, **options)
        assert flat(new).isfinite().all()
        assert hash_of_model(new) == hash_of_model(METHODS[name](other, model, [5], seed=0, **options))


class TestTraining:
    def test_retrain_is_the_retraining_of_the_package(self, task):
        truth = retrain_from_scratch(task, FORGET, seed=4).model
        assert hash_of_model(retrain(task, network(7), FORGET, seed=4)) == hash_of_model(truth)

    def test_fine_tuning_is_more_training_without_the_samples(self, task):
        others = [sample for sample in range(N) if sample not in FORGET]
        start = Task(network(1), ENTROPY, task.train_set, weight_decay=0.02)
        truth = fit(start, ids=others, epochs=2, lr=0.03, seed=5).model
        assert torch.equal(flat(fine_tune(task, network(1), FORGET, seed=5, epochs=2, lr=0.03)), flat(truth))

    @pytest.mark.parametrize("lr", [0.01, 0.3])
    def test_a_step_of_ascent_adds_the_gradient(self, task, lr):
        new = gradient_ascent(task, task.model, FORGET, seed=0, epochs=1, lr=lr)
        assert torch.allclose(flat(new), flat(task.model) + lr * mean_gradient(task, task.model, FORGET))

    def test_ascent_goes_through_the_samples_in_batches(self):
        """Of a weight at 2: towards targets at rate lr, away from them at a cosine of the way: 1, then 1/2."""
        task = one_weight([1.0, 5.0, 5.0, 5.0], 2.0)
        new = gradient_ascent(task, task.model, [1, 2], seed=0, epochs=1, lr=0.1, batch_size=2)
        assert new.weight.item() == pytest.approx(2 + 0.1 * (2 - 5))
        new = gradient_ascent(task, task.model, [1, 2], seed=0, epochs=2, lr=0.1, batch_size=2)
        assert new.weight.item() == pytest.approx(1.7 + 0.05 * (1.7 - 5))

    def test_ascent_raises_the_loss(self, task):
        new = gradient_ascent(task, task.model, FORGET, seed=0, epochs=5, lr=0.5)
        assert losses_of(task, new, FORGET).mean() > 1.5 * losses_of(task, task.model, FORGET).mean()

    def test_a_step_of_neg_grad_plus(self, task):
        others = all_but(FORGET, len(task.train_set))
        new = neg_grad_plus(task, task.model, FORGET, seed=0, alpha=0.7, epochs=1, lr=0.1)
        down = 0.7 * mean_gradient(task, task.model, others) - 0.3 * mean_gradient(task, task.model, FORGET)
        assert torch.allclose(flat(new), flat(task.model) - 0.1 * (down + 0.02 * flat(task.model)))

    def test_neg_grad_plus_with_retained_samples_alone_is_fine_tuning(self, task):
        options = {"seed": 3, "epochs": 3, "lr": 0.05, "batch_size": 8}
        new = neg_grad_plus(task, task.model, FORGET, alpha=1.0, **options)
        assert torch.allclose(flat(new), flat(fine_tune(task, task.model, FORGET, **options)))

    def test_neg_grad_plus_uses_every_sample_to_forget_equally_often(self):
        """The gradient of a weight's distance to targets is linear, so that only how often each target came counts."""
        seen = []
        task = one_weight([0.0, 0.0, 0.0, 0.0, 1.0, 2.0], 0.0, weight_decay=0.0)

        def loss(outputs, targets):
            seen.extend(target for target in targets.tolist() if target > 0)
            return (outputs[:, 0] - targets) ** 2 / 2

        neg_grad_plus(
            Task(task.model, loss, task.train_set), task.model, [4, 5], seed=0, epochs=3, lr=1e-3, batch_size=1
        )
        assert sorted(seen) == [1.0] * 6 + [2.0] * 6

    def test_weights_that_diverge_are_an_error(self):
        wide = one_weight([1e200, 0.0], 0.0)
        with pytest.raises(InputError, match=r"diverged with lr=1e\+200"):
            gradient_ascent(wide, wide.model, [0], seed=0, lr=1e200)


class TestLabels:
    @settings(max_examples=30, deadline=None)
    @given(classes=st.integers(2, 6), seed=st.integers(0, 10**6))
    def test_they_are_never_the_true_ones_and_retained_samples_have_none(self, classes, seed):
        labels = torch.arange(30) % classes
        data = TensorDataset(torch.zeros(30, 1), labels)
        start = begin(Task(nn.Linear(1, classes), ENTROPY, data), nn.Linear(1, classes), range(0, 30, 2), seed)
        drawn = random_other_labels(start, "random_labels")
        assert (drawn[1::2] == -1).all()
        assert (drawn[::2] != labels[::2]).all()
        assert ((drawn[::2] >= 0) & (drawn[::2] < classes)).all()

    def test_they_are_uniform_over_the_others(self):
        data = TensorDataset(torch.zeros(9001, 1), torch.ones(9001, dtype=torch.long))
        start = begin(Task(nn.Linear(1, 4), ENTROPY, data), nn.Linear(1, 4), range(9000), 0)
        counts = random_other_labels(start, "random_labels")[:9000].bincount(minlength=4)
        assert counts[1] == 0
        assert ((counts[[0, 2, 3]] - 3000).abs() < 5 * math.sqrt(9000 * 2 / 9)).all()

    def test_what_is_trained_on(self, task):
        """A loss that keeps the targets that it is given."""
        seen = []

        def loss(outputs, targets):
            seen.append(targets)
            return nn.functional.cross_entropy(outputs, targets, reduction="none")

        inputs, truth = torch.arange(N)[:, None].double(), task.train_set.tensors[1]
        order = []

        class Spy(nn.Linear):
            def forward(self, x):
                order.append(x[:, 0].long())
                return super().forward(x / N)

        spy = Task(Spy(1, 3).double(), loss, TensorDataset(inputs, truth))
        random_labels(spy, spy.model, FORGET, seed=0, epochs=2, batch_size=8)
        trained, targets = torch.cat(order[-10:]), torch.cat(seen[-10:])
        assert sorted(trained.tolist()) == sorted([*range(N), *range(N)])
        wrong = targets != truth[trained]
        assert set(trained[wrong].tolist()) == set(FORGET)
        assert int(wrong.sum()) == 2 * len(FORGET)
        for sample in FORGET:
            assert len(targets[trained == sample].unique()) == 1  # drawn once

    @pytest.mark.slow
    def test_the_samples_are_learned_wrongly(self, task):
        new = random_labels(task, task.model, FORGET, seed=0, epochs=200, lr=0.1)
        assert losses_of(task, new, FORGET).mean() > 3 * losses_of(task, task.model, FORGET).mean()
        others = all_but(FORGET, len(task.train_set))
        assert (
            new(task.train_set.tensors[0][others]).argmax(1) == task.train_set.tensors[1][others]
        ).double().mean() > 0.9

    @pytest.mark.parametrize("method", [random_labels, salun, scrub, lotus, regun, rum])
    def test_a_task_without_classes_is_refused(self, method):
        task = one_weight([1.0, 2.0, 3.0], 2.0)
        task = replace(task, test_set=task.train_set)
        with pytest.raises(InputError, match=rf"{method.__name__} needs a task with one class per sample.*float64"):
            method(task, task.model, [2], seed=0)


class TestSalUn:
    def test_the_mask_is_the_share_of_the_largest_gradients_and_nothing_else_moves(self, task):
        size = mean_gradient(task, task.model, FORGET).abs()
        new = salun(task, task.model, FORGET, seed=0, share=0.25)
        moved = flat(new) != flat(task.model)
        assert int(moved.sum()) == round(0.25 * len(size))
        assert size[moved].min() >= size[~moved].max()

    def test_half_the_weights_are_those_from_the_median_on(self, task):
        size = mean_gradient(task, task.model, FORGET).abs()
        moved = flat(salun(task, task.model, FORGET, seed=0)) != flat(task.model)
        assert torch.equal(moved, size >= torch.quantile(size, 0.5))

    def test_with_all_the_weights_it_is_random_labels(self, task):
        options = {"seed": 2, "epochs": 2, "batch_size": 8}
        a, b = salun(task, task.model, FORGET, share=1.0, **options), random_labels(task, task.model, FORGET, **options)
        assert torch.equal(flat(a), flat(b))

    @settings(max_examples=30, deadline=None)
    @given(share=st.floats(0.01, 1), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
    def test_a_mask_has_its_share_also_where_all_are_equal(self, share, sizes):
        mask = largest({str(i): torch.ones(size) for i, size in enumerate(sizes)}, share)
        assert sum(int(one.sum()) for one in mask.values()) == max(1, round(share * sum(sizes)))


class TestFisher:
    def test_information_is_the_diagonal_of_the_gauss_newton_matrix(self, task):
        ids = [1, 4, 9]
        found = torch.cat([one.flatten() for one in expected_squared_gradients(task, torch.tensor(ids)).values()])
        truth = torch.zeros_like(found)
        for sample in ids:
            outputs = task.model(task.train_set.tensors[0][[sample]])[0]
            p = outputs.softmax(0).detach()
            for label in range(3):  # Σ p ∂(log p)², as the paper has it
                gradients = torch.autograd.grad(
                    outputs.log_softmax(0)[label], task.model.parameters(), retain_graph=True
                )
                truth += p[label] * torch.cat([one.flatten() for one in gradients]) ** 2 / len(ids)
        assert torch.allclose(found, truth)

    def test_importance_is_the_mean_of_squared_gradients(self, task):
        found = torch.cat([one.flatten() for one in squared_gradients(task, torch.tensor(FORGET)).values()])
        truth = sum(mean_gradient(task, task.model, [sample]) ** 2 for sample in FORGET) / len(FORGET)
        assert torch.allclose(found, truth)

    def test_the_noise_falls_with_the_fourth_root_of_the_information(self):
        """Inputs of 1 and 16 have information 1 and 256, so deviations α and α / 4, in each of 400 units."""
        model = nn.Linear(2, 400, bias=False)
        nn.init.zeros_(model.weight)
        data = TensorDataset(torch.tensor([[1.0, 16.0]] * 2), torch.zeros(2, 400))
        task = Task(model, lambda outputs, targets: ((outputs - targets) ** 2).sum(1) / 2, data)
        drawn = fisher_forgetting(task, model, [0], seed=0, alpha=0.1).weight.detach()
        # the standard error of a deviation from 400 draws is 3.5 %
        assert drawn.std(0).tolist() == pytest.approx([0.1, 0.025], rel=0.12)
        assert drawn.mean(0).abs().max() < 0.1 * 5 / 20

    def test_it_is_the_information_of_retained_samples(self):
        """The only sample that uses the second input is forgotten, so that its weight gets the most noise there is."""
        model = nn.Linear(2, 1, bias=False).double()
        inputs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).double()
        task = Task(
            model, lambda outputs, targets: (outputs[:, 0] - targets) ** 2 / 2, TensorDataset(inputs, inputs[:, 0])
        )
        change = [
            (fisher_forgetting(task, model, [gone], seed=0, alpha=1e-3, floor=1e-8).weight - model.weight).detach()[0]
            for gone in (2, 1)
        ]
        assert change[0][1] / change[1][1] == pytest.approx((1e-8 / 0.5) ** -0.25)
        assert change[0][0] / change[1][0] == pytest.approx((1 / 0.5) ** -0.25)

    def test_no_noise_leaves_the_model(self, task):
        assert torch.equal(flat(fisher_forgetting(task, task.model, FORGET, seed=0, alpha=0.0)), flat(task.model))


class TestSSD:
    @pytest.mark.parametrize(("alpha", "dampening"), [(1.0, 1.0), (2.0, 0.5), (0.5, 3.0)])
    def test_the_factors(self, task, alpha, dampening):
        to_all = torch.stack([mean_gradient(task, task.model, [sample]) ** 2 for sample in range(N)]).mean(0)
        hardest = losses_of(task, task.model, range(N)).topk(3).indices
        to_forget = torch.stack([mean_gradient(task, task.model, [sample]) ** 2 for sample in hardest]).mean(0)
        truth = flat(task.model).clone()
        for i in range(len(truth)):
            if to_forget[i] > alpha * to_all[i]:
                truth[i] *= min(dampening * to_all[i] / to_forget[i], 1)
        new = flat(ssd(task, task.model, hardest, seed=0, alpha=alpha, dampening=dampening))
        assert torch.allclose(new, truth)
        assert not torch.equal(new, flat(task.model))

    def test_nothing_is_chosen_by_a_huge_alpha(self, task):
        assert torch.equal(flat(ssd(task, task.model, FORGET, seed=0, alpha=1e9)), flat(task.model))

    def test_importance_can_be_taken_from_some_samples(self, task):
        some = [flat(ssd(task, task.model, FORGET, seed=s, alpha=1.0, samples=5)) for s in (0, 1)]
        assert not torch.equal(*some)


class TestSCRUB:
    def test_the_divergence_is_scipys(self):
        from scipy.special import softmax
        from scipy.stats import entropy

        a, b = np.random.default_rng(0).standard_normal((2, 6, 4))
        truth = 9 * entropy(softmax(a / 3, axis=1), softmax(b / 3, axis=1), axis=1).mean()
        assert divergence(torch.tensor(a), torch.tensor(b), 3.0).item() == pytest.approx(truth)

    def test_the_divergence_is_flat_where_student_and_teacher_agree(self, task):
        """With γ = 0 and no weight decay nothing ever moves, however often and fast."""
        plain = Task(task.model, ENTROPY, task.train_set, weight_decay=0.0)
        new = scrub(plain, task.model, FORGET, seed=0, gamma=0.0, lr=0.1)
        assert torch.allclose(flat(new), flat(task.model), atol=1e-12)

    def test_without_teacher_and_turns_away_it_is_fine_tuning(self, task):
        options = {"seed": 1, "epochs": 2, "lr": 0.05, "batch_size": 8}
        new = scrub(task, task.model, FORGET, alpha=0.0, max_epochs=0, **options)
        assert torch.allclose(flat(new), flat(fine_tune(task, task.model, FORGET, **options)))

    def test_a_turn_by_hand(self, task):
        """From elsewhere than the teacher the first step counts: two turns, one batch each, momentum 0."""
        others, model = all_but(FORGET, len(task.train_set)), network(3)
        inputs, targets = task.train_set.tensors
        weights, teacher = [w.detach().clone().requires_grad_() for w in model.parameters()], model(inputs).detach()

        def outputs(ids):
            return torch.tanh(inputs[ids] @ weights[0].T + weights[1]) @ weights[2].T + weights[3]

        def kl(ids):
            p, q = (teacher[ids] / 2).softmax(1), (outputs(ids) / 2).softmax(1)
            return 4 * (p * (p / q).log()).sum(1).mean()

        def near():
            return 0.5 * kl(others) + nn.functional.cross_entropy(outputs(others), targets[others])

        for step, loss in enumerate([lambda: -kl(FORGET), near, lambda: -kl(FORGET), near]):
            gradients = torch.autograd.grad(loss(), weights)
            rate = 0.2 * (1 + math.cos(math.pi * step / 4)) / 2
            with torch.no_grad():
                for weight, one in zip(weights, gradients, strict=True):
                    weight -= rate * (one + 0.02 * weight)
        new = scrub(task, model, FORGET, seed=0, epochs=2, max_epochs=2, lr=0.2, momentum=0.0)
        assert torch.allclose(flat(new), torch.cat([weight.detach().flatten() for weight in weights]))

    def test_the_samples_are_forgotten_and_the_others_are_not(self, task):
        others = all_but(FORGET, len(task.train_set))
        new = scrub(task, task.model, FORGET, seed=0, epochs=8, max_epochs=5, lr=0.2, batch_size=8)
        forgotten, retained = (
            [losses_of(task, m, ids).mean().item() for m in (task.model, new)] for ids in (FORGET, others)
        )
        assert forgotten[1] > 1.5 * forgotten[0]
        assert retained[1] < 1.2 * retained[0]


class TestNewton:
    @pytest.mark.slow
    @pytest.mark.parametrize("curvature", ["hessian", "ggn"])
    def test_full_newton_is_the_dense_solve(self, task, curvature):
        damped = Task(task.model, ENTROPY, task.train_set, weight_decay=0.1)
        others, w = all_but(FORGET, len(task.train_set)), flat(task.model)
        dense = (
            torch.func.hessian(as_function(task, others))(w) if curvature == "hessian" else gauss_newton(task, others)
        )
        assert torch.linalg.eigvalsh(dense)[0] > -0.1  # or the solver would have to add to the diagonal
        g = len(FORGET) * (mean_gradient(task, task.model, FORGET) + 0.1 * w) / len(others)
        truth = w + torch.linalg.solve(dense + 0.1 * torch.eye(len(w)), g)
        new = full_newton(damped, task.model, FORGET, seed=0, curvature=curvature, solver="cholesky")
        assert torch.allclose(flat(new), truth, atol=1e-9)

    @pytest.mark.slow
    def test_size_is_a_multiple(self, task):
        once, twice = (flat(full_newton(task, task.model, FORGET, seed=0, size=s)) for s in (1.0, 2.0))
        assert torch.allclose(twice - flat(task.model), 2 * (once - flat(task.model)))

    @pytest.mark.parametrize("backend", ["excise", "curvlinops"])
    def test_kfac_of_one_linear_layer_and_one_sample_is_exact(self, backend):
        if backend == "curvlinops":
            pytest.importorskip("curvlinops")
        generator = torch.Generator().manual_seed(1)
        data = TensorDataset(torch.randn(2, 4, generator=generator).double(), torch.tensor([0, 2]))
        task = Task(nn.Sequential(network()[0], nn.Identity()).double(), ENTROPY, data, weight_decay=0.1)
        w = flat(task.model)
        dense = gauss_newton(task, [1]) + 0.1 * torch.eye(len(w))
        truth = w + torch.linalg.solve(dense, mean_gradient(task, task.model, [0]) + 0.1 * w)
        new = kfac_newton(task, task.model, [0], seed=0, rows=EVERYTHING, backend=backend)
        assert torch.allclose(flat(new), truth)

    @pytest.mark.parametrize("backend", ["excise", "curvlinops"])
    def test_kfac_is_that_of_dense_kronecker_products(self, task, backend):
        if backend == "curvlinops":
            pytest.importorskip("curvlinops")
        others = all_but(FORGET, len(task.train_set))
        step = []
        squares = sum((weight**2).sum() for weight in task.model.parameters())
        held_up = losses_of(task, task.model, FORGET).sum() + len(FORGET) * task.weight_decay / 2 * squares
        gradients = torch.autograd.grad(held_up / len(others), task.model.parameters())
        for (inputs, between), pair in zip(
            kronecker_factors(task, others), (gradients[:2], gradients[2:]), strict=True
        ):
            matrix = torch.cat([pair[0], pair[1][:, None]], 1)
            dense = torch.kron(between, inputs) + 0.05 * torch.eye(matrix.numel())
            solved = torch.linalg.solve(dense, matrix.flatten()).view_as(matrix)
            step += [solved[:, :-1].flatten(), solved[:, -1]]
        new = kfac_newton(task, task.model, FORGET, seed=0, damping=0.05, size=2.0, rows=EVERYTHING, backend=backend)
        assert torch.allclose(flat(new), flat(task.model) + 2 * torch.cat(step))

    def test_both_kinds_of_kfac_agree_on_a_convolution(self):
        pytest.importorskip("curvlinops")
        generator = torch.Generator().manual_seed(0)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Conv2d(2, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)).double()
        data = TensorDataset(torch.randn(300, 2, 3, 3, generator=generator).double(), torch.arange(300) % 3)
        task = Task(model, ENTROPY, data)
        own, other = (
            kfac_newton(task, model, range(9), seed=0, rows=EVERYTHING, backend=one) for one in ("excise", "curvlinops")
        )
        assert torch.allclose(flat(own), flat(other))

    def test_default_damping_is_the_weight_decay(self, task):
        a, b = (kfac_newton(task, task.model, FORGET, seed=0, **one) for one in ({}, {"damping": 0.02}))
        assert torch.equal(flat(a), flat(b))

    def test_curvlinops_is_asked_for_by_name(self, task, monkeypatch):
        monkeypatch.setitem(sys.modules, "curvlinops", None)
        with pytest.raises(MissingExtraError, match=r"pip install .*curvlinops-for-pytorch"):
            kfac_newton(task, task.model, FORGET, seed=0, backend="curvlinops")

    @pytest.mark.parametrize("backend", ["excise", "curvlinops"])
    def test_kfac_leaves_normalisation_as_it_is(self, task, backend):
        if backend == "curvlinops":
            pytest.importorskip("curvlinops")
        model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)).double()
        new = kfac_newton(Task(model, ENTROPY, task.train_set), model, FORGET, seed=0, backend=backend)
        assert torch.equal(new[1].weight, model[1].weight)
        assert not torch.equal(new[0].weight, model[0].weight)

    def test_models_and_losses_that_kfac_does_not_know(self, task):
        flattened = Task(
            nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).double(), nn.MSELoss(reduction="none"), task.train_set
        )
        with pytest.raises(NotYetSupportedError, match="use full_newton"):
            kfac_newton(flattened, flattened.model, FORGET, seed=0)
        pytest.importorskip("curvlinops")
        words = TensorDataset(torch.arange(12).view(6, 2) % 5, torch.arange(6) % 3)
        text = Task(nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(4, 3)), ENTROPY, words)
        with pytest.raises(NotYetSupportedError, match='use backend="excise"'):
            kfac_newton(text, text.model, [0], seed=0, backend="curvlinops")
        squares = one_weight([1.0, 2.0, 3.0], 2.0)
        with pytest.raises(InputError, match=r"task.loss must be one that curvlinops knows.*CrossEntropyLoss"):
            kfac_newton(squares, squares.model, [0], seed=0, backend="curvlinops")
        heavy = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]).double(), reduction="none")
        with pytest.raises(InputError, match=r"without weights\), not CrossEntropyLoss\(\) with weights"):
            kfac_newton(Task(task.model, heavy, task.train_set), task.model, FORGET, seed=0, backend="curvlinops")


def gauss_newton(task, ids):
    """Mean of Jᵀ (diag(p) - ppᵀ) J."""
    total = 0
    for sample in ids:
        outputs = task.model(task.train_set.tensors[0][[int(sample)]])[0]
        rows = [torch.autograd.grad(one, task.model.parameters(), retain_graph=True) for one in outputs]
        jacobian = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
        p = outputs.softmax(0).detach()
        total = total + jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian / len(ids)
    return total


def kronecker_factors(task, ids):
    """For each layer of the network A, the mean of aaᵀ with 1 for the bias, and B, the mean of the gradients' δδᵀ."""
    first, _, last = task.model
    x = task.train_set.tensors[0][ids]
    hidden = torch.tanh(first(x)).detach()
    p = last(hidden).softmax(1).detach()
    at_outputs = torch.stack([torch.diag(one) - torch.outer(one, one) for one in p])
    back = (
        last.weight.detach() * (1 - hidden**2)[:, None, :]
    )  # samples × outputs × units: ∂ output / ∂ linear activation
    at_hidden = back.transpose(1, 2) @ at_outputs @ back
    for inputs, between in ((x, at_hidden), (hidden, at_outputs)):
        a = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)
        yield a.T @ a / len(a), between.mean(0)


class TestOwn:
    @pytest.mark.slow
    def test_the_papers_step_is_the_unlearners(self, task):
        start = Task(network(1), ENTROPY, task.train_set, weight_decay=0.02)
        fitted = fit(start, epochs=10, recorder=True)
        trained = Task(fitted.model, ENTROPY, task.train_set, weight_decay=0.02)
        truth = Unlearner(trained, PaperStep(fitted.trace), seed=3).forget(FORGET).model
        new = paper_step(task, fitted.model, FORGET, seed=3, trace=fitted.trace)
        assert torch.equal(flat(new), flat(truth))
        assert not torch.equal(flat(new), flat(paper_step(task, fitted.model, FORGET, seed=3)))

    def test_the_papers_noise(self, task):
        plain, noisy = (
            paper_step(task, task.model, [3], seed=3, **one) for one in ({}, {"epsilon": 0.5, "delta": 0.01})
        )
        assert not torch.equal(flat(plain), flat(noisy))
        with pytest.raises(InputError, match="together"):
            paper_step(task, task.model, [3], seed=3, epsilon=0.5)

    @pytest.mark.slow
    def test_the_step_and_the_drift_are_the_unlearners(self, task):
        step = Unlearner(task, Step(PerLayer(0.5)), seed=2).forget(FORGET).model
        assert torch.equal(flat(excise_step(task, task.model, FORGET, seed=2, share=0.5)), flat(step))
        drifted = Unlearner(task, Drift(epochs=2, push=2.0), seed=2).forget(FORGET).model
        assert torch.equal(flat(excise_drift(task, task.model, FORGET, seed=2, epochs=2, push=2.0)), flat(drifted))

    @pytest.mark.slow
    def test_all_of_them_start_from_the_given_model_and_not_from_the_tasks(self, task):
        """A step of next to nothing stays next to the model it began with."""
        other = network(5)
        for new in (
            fine_tune(task, other, FORGET, seed=0, lr=1e-9),
            gradient_ascent(task, other, FORGET, seed=0, lr=1e-9),
            full_newton(task, other, FORGET, seed=0, size=1e-9),
            kfac_newton(task, other, FORGET, seed=0, size=1e-9),
            excise_step(task, other, FORGET, seed=0, size=1e-9),
        ):
            assert torch.allclose(flat(new), flat(other), atol=1e-5)
            assert losses_on(task, new, FORGET).mean().item() == pytest.approx(
                losses_of(task, other, FORGET).mean().item()
            )
