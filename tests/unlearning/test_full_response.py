"""Retained samples that respond in full, against a slow version in double precision and against retrained models."""

import copy
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from digit_network import digit_network
from scipy.optimize import minimize
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from excise import InputError, NothingForgotten, Predicted, Unlearner, fit
from excise.curvature.margins import margin_of, margins
from excise.slices.slices import find_slices
from excise.task.ids import all_but
from excise.task.parameters import move, trainable
from excise.training.retraining import fresh
from excise.unlearning import full_response, predicted
from excise.unlearning.full_response import LEAST_LEFT, Among, Looked, Noticing, Response, loss_of, respond, share_left
from excise.unlearning.hold import LEAST_POWER, Hold, OnTrial
from excise.unlearning.linearised import Linearised, Request, kernel_among

FORGOTTEN = torch.arange(10)


@pytest.fixture(scope="module")
def task():
    return digit_network(0)


@pytest.fixture(scope="module")
def network(task):
    return Linearised.of(task, task.model, find_slices(task.model), torch.arange(300), mass=300.0, seed=0)


@pytest.fixture(scope="module")
def among(task):
    return Among(torch.arange(300), margins(task, task.model, range(300)), torch.full((300,), 1 / 300).double())


@dataclass(frozen=True)
class Always:
    """The same samples notice, however a step moves them."""

    held: Noticing

    def noticing(self, *_):
        return self.held


def responded(task, network, let_go, looked, start_at=None):
    """The change of the weights, from a step so long that no end is too far."""
    model = copy.deepcopy(task.model)
    size = network.block.size(trainable(model))
    step = torch.full((size,), 3 / size**0.5) if start_at is None else start_at
    respond(network, model, copy.deepcopy(trainable(model)), step, (FORGOTTEN, let_go), looked, 0)
    return network.block.gather(trainable(model)) - network.block.gather(trainable(task.model))


def iterate(monkeypatch, count):
    """So many iterations, whatever they gain."""
    monkeypatch.setattr(full_response, "FEWEST_ITERATIONS", count)
    monkeypatch.setattr(full_response, "MOST_ITERATIONS", count)


def test_it_goes_to_the_minimum_of_the_slow_objective(task, network, monkeypatch):
    """Five samples are held, with counts of their own; scipy minimises what the docstring says, in double precision."""
    iterate(monkeypatch, 200)
    held, counts, let_go = torch.arange(20, 25), torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15]), torch.linspace(1, 3, 10)
    damped = replace(network, damping=1.0)  # so that there is one minimum only: the loss of a network bends both ways
    double = copy.deepcopy(task.model).double()
    start = network.block.gather(trainable(double))
    names, images = list(trainable(double)), task.batch(range(300))[0].double()

    def answers(change):
        weights = network.block.scatter(start + change, trainable(double))
        return torch.func.functional_call(double, weights, (images,))

    def loss(change):
        return functional.cross_entropy(answers(change)[held], task.targets[held], reduction="none") @ counts.double()

    asked = torch.zeros_like(start).requires_grad_()
    falls = margin_of(answers(asked)[FORGOTTEN], task.targets[FORGOTTEN]) @ let_go.double() / network.mass
    tilt = torch.autograd.grad(falls - loss(asked), asked)[0]

    def slow(change):
        change = torch.tensor(change).requires_grad_()
        value = loss(change) + 1.0 / 2 * (change @ change) + tilt @ change
        return float(value.detach()), torch.autograd.grad(value, change)[0].numpy()

    truth = minimize(slow, np.zeros(len(start)), jac=True, method="L-BFGS-B", options={"maxiter": 2000}).x
    found = responded(task, damped, let_go, Always(Noticing(held, counts)))
    assert names == list(trainable(task.model))
    assert np.linalg.norm(found.numpy() - truth) < 0.02 * np.linalg.norm(truth)


def test_where_nothing_is_let_go_of_a_model_stays_as_it_is(task, network, among):
    none = torch.zeros(network.block.size(trainable(task.model)))
    assert not responded(task, network, torch.zeros(10), Looked(among, among.margins), none).any()


def test_it_is_the_newton_step_where_little_is_let_go_of(task, network, monkeypatch):
    """Fifty samples notice, and their true second derivatives are dense: (H + δI)⁻¹ times what was let go of."""
    iterate(monkeypatch, 100)
    some, even = torch.arange(50), torch.full((50,), 1 / 50)
    damped, let_go = replace(network, damping=1.0), torch.full((10,), 0.05)
    found = responded(task, damped, let_go, Always(Noticing(some, even)))
    double = copy.deepcopy(task.model).double()
    start, images = network.block.gather(trainable(double)), task.batch(range(50))[0].double()

    def outputs(weights):
        return torch.func.functional_call(double, network.block.scatter(weights, trainable(double)), (images,))

    def loss(weights):
        return functional.cross_entropy(outputs(weights), task.targets[:50])

    def falls(weights):
        return 0.05 * margin_of(outputs(weights)[:10], task.targets[:10]).sum() / network.mass

    bends = torch.func.hessian(loss)(start)
    newton = -torch.linalg.solve(bends + torch.eye(len(start)), torch.func.grad(falls)(start))
    assert float((found - newton).norm() / newton.norm()) < 0.05


def test_who_notices_is_drawn_and_stands_for_others(among):
    moved = replace(among.margins, values=among.margins.values.clone())
    moved.values[[7, 70, 170]] -= 30.0
    weights = torch.linspace(0.5, 2, 300).double()
    drawn = Looked(replace(among, margins=replace(among.margins, weights=weights)), moved).noticing(1000, seed=0)
    assert {7, 70, 170} <= set(drawn.ids.tolist())
    assert torch.allclose(drawn.counts, weights[drawn.ids] / 300)  # 300 are fewer than are drawn, so that all are


def test_samples_that_count_for_nothing_are_not_drawn(among):
    weights = (torch.arange(300) < 30).double()
    drawn = Looked(replace(among, margins=replace(among.margins, weights=weights)), among.margins).noticing(20, seed=0)
    assert drawn.ids.max() < 30
    assert len(drawn.ids) == pytest.approx(20, abs=1)


def test_weights_that_are_all_larger_change_nothing(task, monkeypatch):
    monkeypatch.setattr(predicted, "HARM", -1.0)  # which is a loss, and so not the same for all weights
    models = []
    for weight in (1.0, 20.0):
        loss = nn.CrossEntropyLoss(weight=torch.full((10,), weight), reduction="none")
        unlearner = Unlearner(replace(task, loss=loss, weight_decay=0.0), Predicted(), guard=None).prepare()
        assert unlearner._prepared.full_hold is not None
        models.append(unlearner.forget([3, 5, 8]).model)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(one, other, atol=0.02 * float((one - task.model[0].weight.mean()).abs().max()))


def test_the_draw_is_unbiased(among):
    moved = replace(among.margins, values=among.margins.values - torch.linspace(0, 9, 300).double())
    drawn = [Looked(among, moved).noticing(40, seed) for seed in range(200)]
    figure = torch.linspace(1, 2, 300).double()
    means = torch.stack([one.counts @ figure[one.ids] for one in drawn])
    assert all(abs(len(one.ids) - 40) <= 1 for one in drawn)
    assert float(means.mean()) == pytest.approx(1.5, abs=4 * float(means.std()) / 200**0.5)


@pytest.mark.parametrize("power", [1.0, 0.75, 0.0])
def test_retained_samples_pull_as_the_hold_has_it(power):
    at = torch.linspace(-100, 30, 27, dtype=torch.double).requires_grad_()
    slopes = torch.autograd.grad(loss_of(at, power).sum(), at)[0]
    pulls = torch.sigmoid(-at.detach())
    inside = at.detach() > -full_response.MOST_MARGIN
    truth = -power * pulls - (1 - power) * pulls.sqrt()
    assert torch.allclose(slopes[inside], truth[inside])
    assert slopes.isfinite().all()
    if power == 0.75:  # nearly what forgotten samples let go of
        assert torch.allclose(-truth[inside], pulls[inside] ** 0.75, atol=0.05)


def test_those_that_are_looked_at_stand_for_all(among):
    """Whatever becomes of the samples, their sum over those that are looked at is that over all, in the mean."""
    figure = torch.linspace(1, 2, 300).double() * torch.sigmoid(-among.margins.values).sqrt()
    drawn = [among.drawn(60, seed) for seed in range(200)]
    sums = torch.stack([one.shares @ figure[one.ids] for one in drawn])
    assert all(abs(len(one.ids) - 60) <= 1 for one in drawn)
    assert float(sums.mean()) == pytest.approx(float(figure.mean()), abs=4 * float(sums.std()) / 200**0.5)
    often = torch.stack([one.ids for one in drawn if len(one.ids) == 60]).flatten().bincount(minlength=300)
    near = among.margins.values.argsort()
    assert often[near[:30]].sum() > 3 * often[near[-30:]].sum()  # those of small margins rather than others
    assert torch.equal(among.drawn(400, 0).shares, among.shares)


def test_those_that_a_step_may_harm_are_the_half_of_smaller_margins(among):
    half = among.without(torch.tensor([0])).with_smaller_margins()
    assert len(half.ids) == 150  # of 299
    assert half.margins.values.max() <= among.margins.values[1:].median()
    assert torch.equal(among.margins.values[half.ids], half.margins.values)


def test_samples_that_are_gone_are_not_among_them(among):
    left = among.without(torch.tensor([0, 299]))
    assert left.ids.tolist() == list(range(1, 299))
    assert torch.equal(left.margins.values, among.margins.values[1:299])


def test_what_is_left_of_a_rise_is_a_share_and_the_model_stays(task, network, among):
    before = copy.deepcopy(task.model.state_dict())
    on_trial = OnTrial.of(network.gradients(task.model, torch.arange(40)), torch.full((40,), 1 / 40).double())
    left = share_left(network, task.model, on_trial, Hold(1.5), among, 0)
    assert LEAST_LEFT <= left < 1  # others resist, so that less is forgotten than a linear network says
    assert all(torch.equal(one, before[name]) for name, one in task.model.state_dict().items())


def test_samples_that_respond_are_read_once(task, network):
    read = Counter()

    class Counted(TensorDataset):
        def __getitem__(self, places):
            read.update(places.tolist())
            return super().__getitem__(places)

    counted = replace(network, task=replace(task, train_set=Counted(*task.train_set.tensors)))
    held = Always(Noticing(torch.arange(20, 120), torch.full((100,), 0.01).double()))
    responded(task, counted, torch.ones(10), held)
    assert {read[place] for place in range(20, 120)} == {1}


def test_of_a_hold_that_moves_nothing_and_where_nobody_notices_all_is_left(task, network, among):
    on_trial = OnTrial.of(network.gradients(task.model, torch.arange(8)), torch.full((8,), 1 / 8).double())
    assert share_left(network, task.model, on_trial, Hold(0.0), among, 0) == 1.0
    nobody = among.without(torch.arange(300))
    assert share_left(network, task.model, on_trial, Hold(1.0), nobody, 0) == 1.0


def test_answers_of_retained_samples_come_back_and_forgotten_ones_stay_forgotten(task, among):
    threes, prepared = (task.targets == 3).nonzero()[:15, 0], Unlearner(task, Predicted()).prepare()._prepared
    network, left = prepared.network, among.without(threes)
    gradients = network.gradients(task.model, threes)
    let_go = prepared.full_hold(gradients.margins)
    resisting, model = network.gradients(task.model, left.ids[:64]), copy.deepcopy(task.model)
    step = Request.of(gradients, resisting, kernel_among(resisting)).predict(let_go).step
    start, off, fallen = copy.deepcopy(trainable(model)), [], []

    def look():
        off.append((margins(task, model, left.ids).values - left.margins.values).abs().mean())
        fallen.append((gradients.margins.values - margins(task, model, threes).values).mean())

    move(model, start, network.block.scatter(step, start))
    look()
    respond(network, model, start, step, (threes, let_go), Looked(left, margins(task, model, left.ids)), 0)
    look()
    assert off[1] < 0.95 * off[0]
    assert 0.2 * fallen[0] < fallen[1] < fallen[0]
    end = network.block.gather(trainable(model)) - network.block.gather(start)
    assert end.norm() <= 1.001 * full_response.FARTHEST * step.norm()


@pytest.mark.parametrize("rate", [0.1, 0.02])
def test_forgotten_samples_go_to_retraining_also_of_a_model_that_was_not_trained_to_the_end(task, rate):
    threes = (task.targets == 3).nonzero()[:15, 0].tolist()

    def trained(ids, seed):
        return fit(task.with_model(fresh(task.model, seed)), ids=ids, epochs=15, lr=rate, seed=seed).model

    briefly = task.with_model(trained(range(300), 0))
    truth = [margins(task, trained(all_but(threes, 300), seed), threes).values for seed in (1, 2, 3)]
    done = Unlearner(briefly, Predicted(), guard=None).forget(threes)
    off = [(margins(task, model, threes).values - sum(truth) / 3).abs().mean() for model in (briefly.model, done.model)]
    assert off[1] < 0.8 * off[0]


def test_a_response_goes_as_far_as_held_out_samples_say(task, network, among):
    """Wherever it ends, held-out samples have less loss there than at the other points that are tried."""
    threes = (task.targets == 3).nonzero()[:15, 0]
    gradients, left = network.gradients(task.model, threes), among.without(threes)
    let_go = Hold(1.0)(gradients.margins)
    sure = replace(margins(task, task.model, range(600), task.test_set), values=torch.full((600,), 50.0).double())
    unseen = Among(torch.arange(600), sure, torch.ones(600).double())  # so that they have lost, wherever it ends
    less = replace(unseen, shares=-unseen.shares, margins=replace(sure, values=-sure.values))
    ends = []
    for held_out in (None, unseen, less):  # the last wants the most loss
        model, start = copy.deepcopy(task.model), copy.deepcopy(trainable(task.model))
        step = -gradients.rows.solved(let_go)
        move(model, start, network.block.scatter(step, start))
        looked = Looked(left, margins(task, model, left.ids))
        ends.append(respond(network, model, start, step, (threes, let_go), looked, 0, unseen=held_out).change)
        assert torch.allclose(network.block.gather(trainable(model)), network.block.gather(start) + ends[-1], atol=1e-5)
    points = [torch.lerp(step, ends[0], share) for share in (1.0, *full_response.SHARES)]
    losses = []
    for point in points:
        move(model, start, network.block.scatter(point, start))
        losses.append(float(margins(task, model, range(600), task.test_set).losses.mean()))
    assert torch.allclose(ends[1], points[losses.index(min(losses))])
    assert torch.allclose(ends[2], points[losses.index(max(losses))])


def test_what_chance_explains_does_not_shorten_a_response(task, network, among, monkeypatch):
    threes = (task.targets == 3).nonzero()[:15, 0]
    gradients, left = network.gradients(task.model, threes), among.without(threes)
    sure = replace(margins(task, task.model, range(600), task.test_set), values=-torch.full((600,), 50.0).double())
    unseen = Among(torch.arange(600), sure, -torch.ones(600).double())
    ends = []
    for chance in (0.0, 1e6):
        monkeypatch.setattr(full_response, "CHANCE", chance)
        model, start = copy.deepcopy(task.model), copy.deepcopy(trainable(task.model))
        step = -gradients.rows.solved(Hold(1.0)(gradients.margins))
        move(model, start, network.block.scatter(step, start))
        looked, let_go = Looked(left, margins(task, model, left.ids)), Hold(1.0)(gradients.margins)
        ends.append(
            [respond(network, model, start, step, (threes, let_go), looked, 0, unseen=u).change for u in (None, unseen)]
        )
    assert not torch.allclose(*ends[0])
    assert torch.equal(*ends[1])


def test_a_response_by_which_held_out_samples_lose_nothing_is_not_shortened(task, network, among):
    """Whatever they lose at other points: what was there before counts."""
    threes = (task.targets == 3).nonzero()[:15, 0]
    gradients, left = network.gradients(task.model, threes), among.without(threes)
    let_go = Hold(1.0)(gradients.margins)
    unsure = replace(margins(task, task.model, range(600), task.test_set), values=torch.full((600,), -50.0).double())
    model, start = copy.deepcopy(task.model), copy.deepcopy(trainable(task.model))
    step = -gradients.rows.solved(let_go)
    looked, unseen = Looked(left, left.margins), Among(torch.arange(600), unsure, torch.ones(600).double())
    ends = [respond(network, model, start, step, (threes, let_go), looked, 0, unseen=one) for one in (None, unseen)]
    assert torch.equal(*(one.change for one in ends))
    assert ends[1].said == full_response.RESPONDED


def test_a_step_that_is_far_too_long_is_halved_before_it_is_mended(task, network, among, monkeypatch):
    """From a step of a hundred times the length the loss would be so large that no iteration would bring it down."""
    gradients, left = network.gradients(task.model, FORGOTTEN), among.without(FORGOTTEN)
    let_go = Hold(1.0)(gradients.margins)
    step = -100 * gradients.rows.solved(let_go)
    monkeypatch.setattr(full_response, "MOST_ITERATIONS", 0)
    model, start = copy.deepcopy(task.model), copy.deepcopy(trainable(task.model))
    found = respond(network, model, start, step, (FORGOTTEN, let_go), Looked(left, left.margins), 0).change
    halvings = float(torch.log2(step.norm() / found.norm()))
    assert halvings == pytest.approx(round(halvings), abs=1e-3)
    assert 2 <= halvings <= 6
    assert torch.allclose(found * 2 ** round(halvings), step, rtol=1e-3)


def test_a_response_by_which_samples_are_known_better_is_left_out(task, monkeypatch):
    def surer(network, model, start, step, *_):
        move(model, start, network.block.scatter(-step, start))
        return Response(-step)

    monkeypatch.setattr(predicted, "respond", surer)
    done = Unlearner(task, Predicted()).forget([3, 5])
    assert "retained samples responded" not in done.summary()
    assert done.forget_loss[1] > done.forget_loss[0]


def test_class_weights_count(task):
    """Samples of weight 0 are held to nothing: they may be anything, and the outcome is the same."""
    weights = torch.ones(10)
    weights[7] = 0.0
    ids = (task.targets == 3).nonzero()[:10, 0].tolist()
    images, labels = task.train_set.tensors
    other = torch.where((labels == 7)[:, None], 1 - images, images)
    models = []
    for some in (images, other):
        weighted = replace(task, loss=nn.CrossEntropyLoss(weight=weights), train_set=TensorDataset(some, labels))
        model, known = copy.deepcopy(task.model), margins(weighted, task.model, range(300))
        network = Linearised.of(weighted, model, find_slices(model), (labels != 7).nonzero()[:, 0], mass=270.0, seed=0)
        held = Noticing(torch.arange(300), known.weights / known.weights.sum())
        start = copy.deepcopy(trainable(model))
        step = -network.precondition(torch.ones(network.block.size(start)) / 300)
        respond(network, model, start, step, (torch.tensor(ids), torch.ones(10)), Always(held), 0)
        models.append(model)
    for one, two in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_it_is_done_also_where_gradients_are_off(task):
    with torch.no_grad():
        assert "retained samples responded" in Unlearner(task, Predicted()).forget([3, 5]).summary()


def test_classes_that_a_model_rules_out_do_not_stop_it(task):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = copy.deepcopy(task.model)

        def forward(self, images):
            outputs = self.inner(images)
            return torch.cat([outputs, torch.full_like(outputs[:, :1], -torch.inf)], 1)

    done = Unlearner(task.with_model(Masked()), Predicted()).forget([3, 5])
    assert "retained samples responded" in done.summary()
    assert all(one.isfinite().all() for one in done.model.parameters())
    assert done.forget_loss[1] > done.forget_loss[0]


def test_where_no_known_sample_is_left_the_step_is_taken_alone(task, monkeypatch):
    monkeypatch.setattr(predicted, "SAMPLES", 40)
    unlearner = Unlearner(task, Predicted()).prepare()
    known = unlearner._prepared.known.ids.tolist()
    assert "retained samples responded" in unlearner.forget(known[:30]).summary()
    assert "retained samples responded" not in unlearner.forget(known[30:]).summary()


def test_a_batch_that_forward_takes_apart_can_be_asked_again(task):
    def forward(model, batch):
        labels = batch.pop("labels")
        return model(batch["images"]), labels

    images, labels = task.train_set.tensors
    held_out = task.test_set.tensors
    sets = [[{"images": a, "labels": b} for a, b in zip(*one, strict=True)] for one in ((images, labels), held_out)]
    mapped = replace(task, train_set=sets[0], test_set=sets[1], forward=forward)
    found, same = (Unlearner(one, Predicted()).forget([3, 5]).model for one in (mapped, task))
    for one, other in zip(found.parameters(), same.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_the_default_makes_no_pass_where_they_respond(task):
    summary = Unlearner(task).forget((task.targets == 3).nonzero()[:15, 0].tolist()).summary()
    assert "retained samples responded" in summary
    assert "gentle" not in summary


def test_the_less_a_model_has_come_to_rest_the_less_its_hold_is_strengthened(task):
    trial = Unlearner(task, Predicted()).prepare()._prepared.trial
    ways = [trial.on_trial.strong_enough(power, trial.losses.rise) for power in (1.0, 0.85, LEAST_POWER)]
    stronger = [trial.in_full(hold, 0.7).strength / hold.strength for hold in ways]
    assert stronger[0] > stronger[1] > stronger[2]
    less = trial.on_trial.strong_enough(LEAST_POWER, trial.losses.rise / 0.7**0.75, ways[2].strength)
    assert stronger[2] == pytest.approx(less.strength / ways[2].strength, rel=0.05)


def test_samples_with_wrong_labels_do_not_tell_how_they_are_held(task, monkeypatch):
    """Forgotten on trial they have more loss than any held-out sample, so that the hold would look strong enough."""
    labels, wrong = task.targets.clone(), list(range(20))
    labels[wrong] = (labels[wrong] + 3) % 10
    set_ = TensorDataset(task.train_set.tensors[0], labels)
    start = replace(task, train_set=set_)
    spoilt = start.with_model(fit(start.with_model(fresh(task.model, 1)), epochs=60, lr=0.1, seed=1).model)
    prepared = Unlearner(spoilt, Predicted()).prepare()._prepared
    gone = torch.tensor(wrong)
    without = prepared.without(spoilt.model, gone)
    assert without.full_hold.strength > prepared.full_hold.strength
    assert not torch.isin(prepared.trial.without(gone).on_trial.samples.ids, gone).any()
    assert float(prepared.trial.without(gone).on_trial.shares.sum()) == pytest.approx(1, abs=0.2)
    monkeypatch.setattr(predicted, "MUCH_STRONGER", 1.0)
    damped = prepared.without(spoilt.model, gone)
    assert damped.network.damping < prepared.network.damping  # which they had spoilt as well
    assert abs(np.log(damped.hold.strength)) < abs(np.log(without.hold.strength))
    assert damped.among.shape == (len(damped.retained), len(damped.retained))
    assert not torch.isin(damped.retained.ids, gone).any()
    few = prepared.trial.on_trial.samples.ids[:1]
    assert prepared.without(spoilt.model, few) is prepared


def test_hard_samples_tell_half_of_how_they_are_held(task, monkeypatch):
    """Held-out samples have such ones, too, so that those that are left may not make up for them alone."""
    monkeypatch.setattr(predicted, "HEAVIER", 1e6)  # so that they count as hard, and not as wrong
    prepared = Unlearner(task, Predicted()).prepare()._prepared
    trial = prepared.trial
    hardest = trial.on_trial.samples.ids[trial.on_trial.samples.margins.values.argsort()[:8]]
    stay, without = trial.without(hardest), prepared.without(task.model, hardest)
    assert stay.straight.strength > trial.straight.strength
    stronger = without.hold.strength / prepared.hold.strength
    assert stronger**2 == pytest.approx(stay.straight.strength / trial.straight.strength)
    assert without.full_hold.strength == pytest.approx(stronger * prepared.full_hold.strength)
    assert without.network is prepared.network


def test_what_is_left_is_told_by_how_far_margins_fall(task, network, among):
    """Against the sums of the docstring, sample by sample."""
    shares, hold = torch.linspace(0.01, 0.04, 40).double(), Hold(1.5)
    on_trial = OnTrial.of(network.gradients(task.model, torch.arange(40)), shares)
    group, model = torch.arange(10), copy.deepcopy(task.model)
    before, let_go = on_trial.samples.margins.at(group), hold(on_trial.samples.margins.at(group))
    predicted, left = on_trial.request(group).predict(let_go), among.without(group)
    start = copy.deepcopy(trainable(model))
    move(model, start, network.block.scatter(predicted.step, start))
    looked = Looked(left, margins(task, model, left.ids))
    respond(network, model, start, predicted.step, (group, let_go), looked, 0)
    now = margins(task, model, group).values
    told = [
        (s * g * (p - b), s * g * (n - b))
        for s, g, p, n, b in zip(
            shares[:10].tolist(),
            let_go.tolist(),
            predicted.margins.tolist(),
            now.tolist(),
            before.values.tolist(),
            strict=True,
        )
    ]
    share = sum(went for _, went in told) / sum(said for said, _ in told)

    def rise(part):
        losses = [
            s * (np.log1p(np.exp(-(b + part * (p - b)))) - np.log1p(np.exp(-b)))
            for s, p, b in zip(shares[:10].tolist(), predicted.margins.tolist(), before.values.tolist(), strict=True)
        ]
        return sum(losses)

    assert share_left(network, task.model, on_trial, hold, among, 0) == pytest.approx(rise(share) / rise(1), rel=1e-4)


def test_wrong_labels_that_were_not_learned_do_not_hide_that_others_are_known(task):
    """Their losses are so large that the mean over retained samples is above that of held-out ones."""
    labels, wrong = task.targets.clone(), list(range(30))
    labels[wrong] = (labels[wrong] + 3) % 10
    spoilt = replace(task, train_set=TensorDataset(task.train_set.tensors[0], labels))
    unlearner = Unlearner(spoilt, Predicted()).prepare()
    prepared = unlearner._prepared
    assert prepared.hold.strength == 0
    assert prepared.trial.losses.losses.mean() > prepared.trial.losses.aims.mean()
    with pytest.raises(NothingForgotten, match="knows the first no better"):
        unlearner.forget([100, 101])
    done = unlearner.forget(wrong)
    assert done.forget_loss[1] > done.forget_loss[0]


def test_it_says_so(task):
    assert "retained samples responded" in Unlearner(task, Predicted()).forget([3, 5]).summary()
    assert "retained samples responded" not in Unlearner(task, Predicted(respond=False)).forget([3, 5]).summary()


def test_respond_is_yes_or_no():
    with pytest.raises(InputError, match="respond must be True or False, not 3"):
        Predicted(respond=3)


def test_a_later_request_is_held_against_the_model_as_it_is_then(task, monkeypatch):
    """What held-out samples lose by a request is told from what the request before has left."""
    seen, respond = [], predicted.respond

    def watched(network, model, start, *args):
        seen.append((copy.deepcopy(start), args[-1]))
        return respond(network, model, start, *args)

    monkeypatch.setattr(predicted, "respond", watched)
    unlearner = Unlearner(task, Predicted(), guard=None)
    for ids in ([3, 7, 20], [40, 41]):
        unlearner.forget(ids)
    (first, before), (second, later) = seen
    assert not torch.equal(before.margins.values, later.margins.values)
    for weights, unseen in ((first, before), (second, later)):
        model = copy.deepcopy(task.model)
        move(model, weights, {})
        now = margins(task, model, unseen.ids, task.test_set).values
        assert torch.allclose(now, unseen.margins.values, atol=1e-4)


def test_how_far_held_out_samples_let_a_response_go_is_said():
    assert "70% of the way" in Response(torch.zeros(1), 0.7).said
    assert "%" not in Response(torch.zeros(1)).said
