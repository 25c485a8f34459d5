"""The unlearner against exact retraining, and everything it must refuse."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from excise import (
    GGN,
    AllSlices,
    AtRandom,
    BudgetAccountant,
    Cached,
    Descent,
    Drift,
    Guard,
    InputError,
    Joint,
    NothingForgotten,
    OneSlice,
    PaperStep,
    PerLayer,
    Privacy,
    RetrainRequired,
    Step,
    Task,
    Unlearner,
    exact_fit,
    fit,
)
from excise.curvature.strategies import MovedToCPUWarning, OnCPUIfTooLarge
from excise.privacy import analytic_sigma
from excise.slices import find_slices
from excise.slices.activations import GaussianNoise, ScaledNoise, TokenReplacement, observe
from excise.task import objective
from excise.task.parameters import norm
from excise.unlearning.blankets import _before_rounding
from excise.unlearning.convergence import NotConvergedWarning

DECAY = 0.01
FEW = PerLayer(copies=64)


def flat(model):
    return torch.cat([p.detach().flatten().double() for p in model.parameters()])


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))[:500]
    return TensorDataset(torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(labels[order]))


@pytest.fixture(scope="module")
def logistic(digits):
    torch.manual_seed(0)
    loss = nn.CrossEntropyLoss(reduction="none")
    start = Task(nn.Linear(64, 10), loss, digits, weight_decay=DECAY)
    return Task(exact_fit(start).model, loss, digits, weight_decay=DECAY)


@pytest.fixture(scope="module")
def retrained(logistic):
    """Samples that matter to the model (of large loss), and the weights it would have without each."""
    hard = torch.argsort(-logistic.losses(logistic.model, logistic.batch(range(500))))[:5].tolist()
    return {z: flat(exact_fit(logistic, ids=[i for i in range(500) if i != z]).model) for z in hard}


def share_left(logistic, retrained, method=Step, selection=None, **options):
    """Distance to the retrained weights as a share of that before, and whether the certificate holds, for each."""
    how = method(selection=selection or PerLayer(0.4, copies=256), curvature=Cached(iterations=50), **options)
    shares = []
    for z, truth in retrained.items():
        done = Unlearner(logistic, how).forget([z])
        left = (flat(done.model) - truth).norm()
        assert done.certificate.kind == "convex"
        assert done.certificate.bound >= left
        shares.append(float(left / (flat(logistic.model) - truth).norm()))
    return float(np.median(shares))


@pytest.mark.slow
def test_one_full_newton_step_nearly_retrains(logistic, retrained):
    assert share_left(logistic, retrained, selection=AllSlices()) < 0.15


def test_samples_take_their_share_of_the_weight_decay_with_them(logistic):
    task, ids = logistic, list(range(40))
    left = np.setdiff1d(np.arange(len(task.train_set)), ids)
    downhill = objective.removal_gradient(task, task.model, ids, len(left))
    uphill = objective.objective_gradient(task, task.model, torch.tensor(left))
    assert norm({name: downhill[name] + uphill[name] for name in uphill}) < 0.05 * norm(uphill)


def test_many_easy_samples_are_forgotten_too(logistic):
    ids = list(range(40))
    truth = flat(exact_fit(logistic, ids=range(40, 500)).model)
    done = Unlearner(logistic, Step("all", Cached(iterations=50))).forget(ids)
    assert (flat(done.model) - truth).norm() < 0.15 * (flat(logistic.model) - truth).norm()


@pytest.mark.slow
def test_the_block_that_lfoci_chooses_goes_most_of_the_way_and_a_random_one_does_not(logistic, retrained):
    chosen = share_left(logistic, retrained)
    at_random = share_left(logistic, retrained, selection=AtRandom(PerLayer(0.4, copies=256)))
    assert chosen < 0.6
    assert chosen < at_random


@pytest.mark.slow
def test_repeated_steps_converge_to_the_retrained_model(logistic, retrained):
    assert share_left(logistic, retrained, Descent, steps=8) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "selection", [Joint(copies=64), Joint("cheap", copies=64), "one", "largest-change", lambda *_: [0, 3]]
)
def test_every_selection_updates_its_slices_and_nothing_else(logistic, selection):
    done = Unlearner(logistic, Step(selection)).forget([4, 9])
    changed = (done.model.weight != logistic.model.weight).any(1)
    assert {f"(model)[{unit}]" for unit in changed.nonzero().flatten().tolist()} == set(done.slices)
    if callable(selection) and not hasattr(selection, "select"):
        assert done.slices == ("(model)[0]", "(model)[3]")


def test_the_model_given_is_never_changed(logistic):
    before = copy.deepcopy(logistic.model.state_dict())
    done = Unlearner(logistic, Step(FEW)).forget([1, 2, 3])
    assert all(torch.equal(before[key], value) for key, value in logistic.model.state_dict().items())
    assert type(done.model) is type(logistic.model)
    assert list(done.model.state_dict()) == list(before)
    assert not torch.equal(done.model.weight, logistic.model.weight)


def test_forgotten_samples_are_remembered(logistic):
    unlearner = Unlearner(logistic, Step(FEW))
    first = unlearner.forget([17])
    second = unlearner.forget([42, 3])
    assert unlearner.forgotten == (3, 17, 42)
    assert unlearner.model is second.model
    assert not torch.equal(first.model.weight, second.model.weight)
    assert set(unlearner.residual().tolist()) == set(range(500)) - {3, 17, 42}


def test_same_seed_same_model(logistic):
    models = [Unlearner(logistic, Step(FEW), seed=5, n_jobs=jobs).forget([8]).model for jobs in (1, 2)]
    assert torch.equal(models[0].weight, models[1].weight)


def test_what_is_reported(logistic):
    done = Unlearner(logistic, Step(FEW)).forget([17])
    assert done.forget_loss[1] > done.forget_loss[0]
    assert set(done.slices) <= set(done.scores)
    assert "forgot 1 sample in" in done.summary()
    assert done.seconds > 0


def test_stability_over_seeds(logistic):
    shares = Unlearner(logistic, "step").stability([17], seeds=range(4))
    assert all(0 < share <= 1 for share in shares.values())
    assert max(shares.values()) >= 0.75


def test_stability_varies_what_is_random(logistic):
    shares = Unlearner(logistic, Step(OneSlice())).stability([17], seeds=range(20))
    assert len(shares) > 1


def test_changed_parameters_are_counted(logistic, trained_cnn):
    one = Unlearner(logistic, Step(lambda *_: [2])).forget([3])
    assert one.parameters_changed <= 65
    assert one.parameters_changed == int((flat(one.model) != flat(logistic.model)).sum())
    everywhere = Unlearner(trained_cnn, "drift").forget([3])
    assert everywhere.parameters_changed == int((flat(everywhere.model) != flat(trained_cnn.model)).sum()) > 2000


def small_cnn():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 10)
    )


@pytest.fixture(scope="module")
def trained_cnn(digits):
    torch.manual_seed(0)
    task = Task(small_cnn(), nn.CrossEntropyLoss(reduction="none"), digits, weight_decay=1e-3)
    fitted = fit(task, epochs=20)
    return Task(fitted.model, task.loss, digits, weight_decay=1e-3)


FEW_OBSERVED = PerLayer(copies=64, observed_samples=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [Step(FEW_OBSERVED), Drift(), Drift(selection=FEW_OBSERVED), Descent(steps=2, selection=FEW_OBSERVED)],
    ids=lambda method: method.name,
)
def test_a_network_with_batch_normalisation_forgets_and_keeps_the_rest(trained_cnn, method):
    trained_cnn.model.train()
    buffers = {name: b.clone() for name, b in trained_cnn.model.named_buffers()}
    ids = list(range(20))
    done = Unlearner(trained_cnn, method).forget(ids)
    assert trained_cnn.model.training
    assert all(torch.equal(b, buffers[name]) for name, b in trained_cnn.model.named_buffers())
    assert all(torch.equal(b, buffers[name]) for name, b in done.model.named_buffers())
    if not isinstance(method, Descent):
        assert done.forget_loss[1] > done.forget_loss[0]
    assert done.retain_loss[1] <= max(1.5 * done.retain_loss[0], done.retain_loss[0] + 0.05)
    assert done.certificate.kind == "heuristic"
    assert done.certificate.bound is None


def test_drift_of_a_block_leaves_the_rest_alone(trained_cnn):
    done = Unlearner(trained_cnn, Drift(selection=PerLayer(0.2, copies=64))).forget([3, 4])
    change = (done.model[1].weight != trained_cnn.model[1].weight).flatten(1).any(1)
    assert {f"1[{unit}]" for unit in change.nonzero().flatten().tolist()} == {s for s in done.slices if s[0] == "1"}
    assert torch.equal(done.model[2].weight, trained_cnn.model[2].weight)


def test_the_guard_shortens_a_step_that_would_hurt(trained_cnn):
    wild = Unlearner(trained_cnn, Step(FEW, size=1e4)).forget([0, 1])
    assert wild.step_share < 1
    assert wild.retain_loss[1] <= max(1.5 * wild.retain_loss[0], wild.retain_loss[0] + 0.05)
    assert "shortened" in wild.summary()


def test_a_step_that_the_guard_allows_no_part_of_is_not_taken_and_this_is_said(trained_cnn, monkeypatch):
    unlearner = Unlearner(trained_cnn, Step(FEW)).prepare()
    before = unlearner._sample_losses
    monkeypatch.setattr("excise.unlearning.guard.GuardSample.losses", lambda *_: before + 10)
    with pytest.raises(NothingForgotten, match=r"guard=Guard\(factor=3, points=3\) \(--guard 3\)") as error:
        unlearner.forget([0, 1])
    assert error.value.slices
    assert unlearner.forgotten == ()
    assert unlearner.model is trained_cnn.model


def test_no_guarded_step_is_longer_than_the_weights_it_changes(trained_cnn):
    start = flat(trained_cnn.model)
    done = Unlearner(trained_cnn, Step(FEW, size=1e9), guard=Guard(1e9)).forget([0, 1])
    assert done.step_share < 1
    assert (flat(done.model) - start).norm() <= start.norm()


class TinyTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids):
        return self.head(self.layer(self.embedding(input_ids))[:, 0])


class Texts(torch.utils.data.Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(2, 20, (60, 6), generator=generator)
        self.ids[:, 0], self.ids[:, -1] = 1, 0
        self.labels = (self.ids > 10).sum(1).gt(2).long()

    def __len__(self):
        return 60

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


def test_a_transformer_forgets_a_text():
    torch.manual_seed(0)
    loss = nn.CrossEntropyLoss(reduction="none")
    start = Task(TinyTransformer(), loss, Texts(), weight_decay=1e-3)
    task = Task(fit(start, epochs=15).model, loss, Texts(), weight_decay=1e-3)
    tokens = TokenReplacement(vocabulary=(0, 20), keep=(0, 1), rate=0.4)
    done = Unlearner(task, Step(PerLayer(copies=64, perturbation=tokens))).forget([7])
    assert done.forget_loss[1] > done.forget_loss[0]
    rows = {int(name.split("[")[1][:-1]) for name in done.slices if name.startswith("embedding")}
    assert rows <= set(Texts().ids[7].tolist())
    assert any(name.startswith("layer.self_attn.") for name in done.slices)


def test_perturbations():
    generator = torch.Generator().manual_seed(0)
    x = torch.ones(1, 4)
    noisy = GaussianNoise(0.5)(x, 4000, generator)
    assert noisy.shape == (4000, 4)
    torch.testing.assert_close(noisy.std(0), torch.full((4,), 0.5), rtol=0.1, atol=0)
    scaled = ScaledNoise(torch.tensor([1.0, 2.0, 3.0, 0.0]), 0.1)(x, 4000, generator)
    torch.testing.assert_close(scaled.std(0), torch.tensor([0.1, 0.2, 0.3, 0.0]), rtol=0.1, atol=1e-6)
    ids = torch.tensor([[1, 5, 6, 7, 0, 0]])
    changed = TokenReplacement(vocabulary=(0, 20), keep=(0, 1), rate=0.5)(ids, 2000, generator)
    assert (changed[:, [0, 4, 5]] == ids[0, [0, 4, 5]]).all()
    assert set(changed[:, 1:4].unique().tolist()) == set(range(2, 20))
    assert 0.4 < (changed[:, 1] != 5).float().mean() < 0.55


def test_observing_in_small_batches_gives_the_same(logistic):
    slices = find_slices(logistic.model)
    seen = [
        observe(
            logistic,
            logistic.model,
            slices,
            3,
            copies=100,
            perturbation=None,
            generator=torch.Generator().manual_seed(1),
            batch_size=size,
        )
        for size in (32, 128)
    ]
    np.testing.assert_allclose(seen[0].losses, seen[1].losses, rtol=1e-5)
    np.testing.assert_allclose(seen[0].layers[0].values, seen[1].layers[0].values, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "ids must be one list of at least one position"),
        ([500], "ids must be from 0 to 499"),
        ([-1], r"ids must be from 0 to 499 \(positions in train_set\), not -1"),
        ([3, 4, 3], "ids has 3 more than once"),
        ([7], "ids has 7, which is forgotten already"),
        ([1.5], "ids must be whole numbers, not torch.float32"),
        (["a"], "ids must be whole numbers, positions in train_set"),
        ([i for i in range(500) if i != 7], "would leave no sample"),
    ],
)
def test_bad_ids_leave_everything_as_it_was(logistic, ids, message):
    unlearner = Unlearner(logistic, Step(PerLayer(copies=32), Cached(samples=50)))
    model = unlearner.forget([7]).model
    with pytest.raises(InputError, match=message):
        unlearner.forget(ids)
    assert unlearner.model is model
    assert unlearner.forgotten == (7,)


def test_nearly_all_may_be_forgotten(logistic):
    assert len(Unlearner(logistic, Drift(push=0.0), guard=None).forget(range(8, 500)).ids) == 492


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: Step("per-leyer"), "Did you mean 'per-layer'"),
        (lambda: Descent(steps=0), "steps must be a whole number, 1 or more, not 0"),
        (lambda: Step(size=0), "size must be a positive number, not 0"),
        (lambda: Step(size="a"), "size must be a positive number, not 'a'"),
        (lambda: Step(size=True), "size must be a positive number, not True"),
        (lambda: PerLayer(share="a"), "share must be above 0"),
        (lambda: PerLayer(perturbation="abc"), "perturbation must be an object such as GaussianNoise"),
        (lambda: Guard("a"), "factor must be 1 or more, not 'a'"),
        (lambda: Drift(views="abc"), "views must be a Views object or None, not 'abc'"),
        (lambda: Drift(push="abc"), "push must be a finite number, 0 or more, not 'abc'"),
        (lambda: PerLayer(copies=1.5), "copies must be a whole number"),
        (lambda: PerLayer(share=0), "share must be above 0"),
        (lambda: PerLayer(observed_samples=0), "observed_samples must be"),
        (lambda: Step(curvature="hesian"), "Did you mean 'hessian'"),
        (lambda: GGN(solver="chol"), "Did you mean 'cholesky'"),
        (lambda: Cached(exact=-1), "exact must be a whole number, 0 or more"),
        (lambda: Guard(0.5), "factor must be 1 or more, not 0.5"),
        (lambda: Guard(rise=-1), "rise must be 0 or more"),
        (lambda: Joint("chep"), "Did you mean 'cheap'"),
        (lambda: Step(size=1, steps=8), "Step does not heed steps; Descent and Exact do. It has selection"),
        (lambda: Drift(size=2), "Drift does not heed size; Step does"),
        (lambda: Descent(denial=2), "Descent does not heed denial; Drift does"),
        (lambda: Step(wild=1), r"Step does not heed wild\. It has"),
        (PaperStep, "needs trace="),
    ],
)
def test_bad_options_are_named_up_front(options, message):
    with pytest.raises(InputError, match=message):
        options()


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("drft", {}, "Did you mean 'drift'"),
        ("sdd", {}, "Did you mean 'ssd'"),
        (Step, {}, r"an object such as Step\(\), not <class"),
        (3, {}, "method must be a name"),
        (Descent(), {"guard": Guard(2)}, "descent does not heed guard; step and drift do"),
        (Step(), {"guard": 1.5}, "guard must be a Guard or None, not 1.5"),
        (Step(), {"privacy": 1}, "privacy must be a Privacy or None, not 1"),
        (Step(), {"batch_statistics": "keeep"}, "Did you mean 'keep'"),
        (Step(), {"forgotten": [500]}, "from 0 to 499"),
        (Step(), {"forgotten": range(500)}, "would leave no sample"),
    ],
)
def test_what_does_not_fit_together_is_named_up_front(logistic, method, options, message):
    with pytest.raises(InputError, match=message):
        Unlearner(logistic, method, **options)


def test_a_dataset_that_changed_is_noticed(digits):
    class Growing(torch.utils.data.Dataset):
        size = 100

        def __len__(self):
            return self.size

        def __getitem__(self, i):
            return digits[i]

    data = Growing()
    model = nn.Linear(64, 10)
    nn.init.zeros_(model.weight)
    unlearner = Unlearner(Task(model, nn.CrossEntropyLoss(reduction="none"), data, convex=False))
    data.size = 99
    with pytest.raises(InputError, match="had 100 samples and now has 99"):
        unlearner.forget([1])


def test_models_that_are_not_trained_are_noticed(digits):
    loss = nn.CrossEntropyLoss(reduction="none")
    broken = nn.Linear(64, 10)
    nn.init.constant_(broken.weight, float("nan"))
    with pytest.raises(InputError, match="loss on its training set is nan"):
        Unlearner(Task(broken, loss, digits))
    torch.manual_seed(0)
    far = nn.Linear(64, 10)
    nn.init.normal_(far.weight)
    with pytest.warns(NotConvergedWarning, match="not near a minimum"):
        Unlearner(Task(far, loss, digits))


def test_gaussian_noise_on_integers_is_refused():
    task = Task(TinyTransformer(), nn.CrossEntropyLoss(reduction="none"), Texts(), weight_decay=1e-3)
    with pytest.raises(InputError, match="pass perturbation="):
        Unlearner(task).forget([0])
    with pytest.raises(InputError, match="GaussianNoise needs real-valued inputs"):
        Unlearner(task, Step(PerLayer(perturbation=GaussianNoise()))).forget([0])


def test_without_weight_decay_there_is_no_certificate(logistic):
    task = Task(logistic.model, logistic.loss, logistic.train_set, weight_decay=0.0)
    done = Unlearner(task).forget([3])
    assert done.certificate.bound is None
    assert "weight decay is 0" in done.certificate.reason


L, M = 8.0, 64.0  # with rows of norm at most 5, bias included
NOISE = Privacy(lipschitz=L, hessian_lipschitz=M)


@pytest.mark.filterwarnings("ignore::excise.privacy.SeededNoiseWarning")
def test_noise_has_the_size_that_the_bound_asks_for(logistic):
    plain = Unlearner(logistic, privacy=NOISE).forget([3])
    blurred = Unlearner(logistic, privacy=replace(NOISE, noise_seed=1)).forget([3], epsilon=1.0, delta=1e-3)
    added = flat(blurred.model) - flat(plain.model)
    distance = 2 * M * L**2 / (DECAY**3 * 500**2)
    sigma = analytic_sigma(distance, 1.0, 1e-3)
    assert float(added.std()) == pytest.approx(sigma, rel=0.1)
    assert blurred.certificate.sigma == pytest.approx(sigma)
    assert blurred.certificate.delta == 1e-3
    assert blurred.certificate.bound == pytest.approx(plain.certificate.bound)
    again = Unlearner(logistic, privacy=NOISE).forget([3], epsilon=1.0, delta=1e-3)
    assert not torch.equal(again.model.weight, blurred.model.weight)  # a fresh secret seed


def test_a_budget_ends_in_retraining_and_nothing_is_half_done(logistic):
    unlearner = Unlearner(logistic, privacy=replace(NOISE, budget=BudgetAccountant(1.7, 1e-3)))
    unlearner.forget([1], epsilon=1.0, delta=1e-3)
    model = unlearner.forget([2], epsilon=1.0, delta=1e-3).model
    with pytest.raises(RetrainRequired):
        unlearner.forget([3], epsilon=1.0, delta=1e-3)
    assert unlearner.forgotten == (1, 2)
    assert unlearner.model is model
    assert len(unlearner.privacy.budget.history) == 2


def test_later_requests_go_on_from_the_weights_before_the_noise(logistic):
    plain, noisy = Unlearner(logistic, privacy=NOISE), Unlearner(logistic, privacy=NOISE)
    plain.forget([1])
    noisy.forget([1], epsilon=1.0, delta=1e-3)
    assert torch.equal(plain.forget([2]).model.weight, noisy.forget([2]).model.weight)


def test_more_noise_for_more_samples_removed_so_far(logistic):
    unlearner = Unlearner(logistic, privacy=NOISE)
    first, second = (unlearner.forget([i], epsilon=1.0, delta=1e-3).certificate.sigma for i in (1, 2))
    assert second == pytest.approx(4 * first)


@pytest.mark.parametrize(
    ("options", "request_", "message"),
    [
        (NOISE, {"epsilon": 1.0}, "epsilon and delta must be given together"),
        (None, {"epsilon": 1.0, "delta": 1e-3}, r"pass privacy=Privacy\(lipschitz="),
        (NOISE, {"epsilon": -1.0, "delta": 1e-3}, "epsilon must be"),
        (NOISE, {"epsilon": 1.0, "delta": 2.0}, "delta must be"),
    ],
)
def test_bad_noise_is_refused(logistic, options, request_, message):
    unlearner = Unlearner(logistic, privacy=options)
    with pytest.raises(InputError, match=message):
        unlearner.forget([1], **request_)
    assert unlearner.forgotten == ()


def test_noise_needs_weight_decay(logistic):
    task = Task(logistic.model, logistic.loss, logistic.train_set, weight_decay=0.0)
    with pytest.raises(InputError, match="epsilon needs weight_decay > 0"):
        Unlearner(task, privacy=NOISE).forget([3], epsilon=1.0, delta=1e-3)


def test_batch_statistics_are_kept_or_estimated_anew(trained_cnn):
    kept = Unlearner(trained_cnn).forget([0, 1]).model
    anew = Unlearner(trained_cnn, batch_statistics="reestimate").forget([0, 1]).model
    names = [name for name, _ in trained_cnn.model.named_buffers() if name.endswith("running_mean")]
    assert names
    for name in names:
        assert torch.equal(kept.get_buffer(name), trained_cnn.model.get_buffer(name))
        assert not torch.equal(anew.get_buffer(name), trained_cnn.model.get_buffer(name))
    assert kept.state_dict().keys() == anew.state_dict().keys()


def test_a_block_that_does_not_fit_is_solved_on_the_cpu():
    gradient, calls = torch.ones(3), []

    class Inverse:
        def solve(self, model, _block, gradient, *, without):
            calls.append((model, without))
            if len(calls) == 1:
                raise torch.OutOfMemoryError
            return 2 * gradient

    model = nn.Linear(1, 3)
    with pytest.warns(MovedToCPUWarning, match="block of 3 parameters does not fit"):
        found = OnCPUIfTooLarge(Inverse()).solve(model, None, gradient, without=())
    assert torch.equal(found, 2 * gradient)
    assert calls[1][0] is not model  # a copy: the model itself stays where it is


def test_a_sample_whose_loss_never_changes_can_still_be_forgotten(logistic):
    class Deaf:
        def __call__(self, inputs, copies, _generator):
            return inputs.expand(copies, *inputs.shape[1:]).clone()

    for selection in (PerLayer, Joint):
        done = Unlearner(logistic, Step(selection(perturbation=Deaf(), copies=16))).forget([3])
        assert done.parameters_changed > 0


def test_stages_tell_where_the_time_went(logistic):
    done = Unlearner(logistic, "step").forget([3])
    assert list(done.stages) == ["watching the samples", "choosing slices", "taking the step"]
    assert sum(done.stages.values()) <= done.seconds


def test_preparing_once_serves_all_requests(logistic, monkeypatch):
    from excise.curvature import kfac

    made = []
    real = kfac.cache
    monkeypatch.setattr(kfac, "cache", lambda *a, **k: made.append(1) or real(*a, **k))
    unlearner = Unlearner(logistic, "step").prepare()
    assert unlearner.prepare() is unlearner
    unlearner.forget([1])
    unlearner.forget([2])
    assert len(made) == 1


def test_several_requests_come_near_to_one_retraining(logistic, retrained):
    hard = list(retrained)[:3]
    truth = flat(exact_fit(logistic, ids=[i for i in range(500) if i not in hard]).model)
    unlearner = Unlearner(logistic, Step("all", Cached(iterations=50)))
    for sample in hard:
        done = unlearner.forget([sample])
    assert (flat(done.model) - truth).norm() < 0.1 * (flat(logistic.model) - truth).norm()
    assert done.certificate.bound >= (flat(done.model) - truth).norm()


def test_the_drift_of_a_class_forgets_nearly_all_of_it_in_a_few_batches(trained_cnn):
    labels = trained_cnn.train_set.tensors[1]
    ids = (labels == labels[0]).nonzero().flatten().tolist()
    done = Unlearner(trained_cnn, Drift.of_class()).forget(ids)
    said = done.model(trained_cnn.batch(ids)[0]).argmax(1)
    kept = done.model(trained_cnn.batch(range(len(labels)))[0]).argmax(1) == labels
    assert (said == labels[0]).float().mean() < 0.25  # it was 1; a pass has 8 batches here
    assert kept[labels != labels[0]].float().mean() > 0.8


def test_values_that_rounding_made_equal_are_told_apart_again_and_others_are_left():
    values = np.array([[0.1, 0.0], [0.1, 0.0], [0.3, 1.5]], dtype=np.float32)
    before = _before_rounding(values, seed=0)
    assert before[0, 0] != before[1, 0]
    assert np.array_equal(before.astype(np.float32), values)
    assert before[:, 1].tolist()[:2] == [0.0, 0.0]
    counts = np.array([[1.0], [2.0], [2.0]], dtype=np.float32)
    assert np.array_equal(_before_rounding(counts, seed=0), counts)


@pytest.mark.slow
def test_real_valued_entries_of_a_mapping_are_perturbed_by_default(digits):
    """As ``pixel_values`` of Hugging Face models: the same slices as for plain inputs."""

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, pixel_values):
            return self.layer(pixel_values)

    torch.manual_seed(0)
    loss = nn.CrossEntropyLoss(reduction="none")
    model = fit(Task(Named(), loss, digits, weight_decay=1e-3), epochs=40, lr=0.2).model
    rows = [{"pixel_values": image, "labels": label} for image, label in zip(*digits.tensors, strict=True)]
    plain, named = (Unlearner(Task(model, loss, data, weight_decay=1e-3)) for data in (digits, rows))
    assert named.forget([3]).slices == plain.forget([3]).slices


def test_an_untrained_model_is_told(digits):
    with pytest.warns(NotConvergedWarning, match="guessing has 2.3: was it trained"):
        Unlearner(Task(nn.Linear(64, 10), nn.CrossEntropyLoss(reduction="none"), digits))
