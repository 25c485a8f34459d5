"""The methods that others found nearest to retraining, each against a slow and obvious version of its mathematics."""

import math
import sys
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy
from torch import nn
from torch.utils.data import TensorDataset
from toy_classifier import ENTROPY, FORGET, N, classifier, flat, losses_of, mean_gradient, network

from excise import InputError, Task, fit
from excise.baselines import ct, fine_tune, l1_sparse, lotus, msg, regun, rum, salun, sfr_on
from excise.baselines.held_out import held_out_positions
from excise.baselines.lotus import Smoothing, drawn_targets
from excise.baselines.msg import smallest_differences
from excise.baselines.passes import descend
from excise.baselines.regun import class_means
from excise.baselines.rum import by_confidence, by_held_out_training, thirds
from excise.baselines.sfr_on import adaptive_coefficients
from excise.baselines.start import begin
from excise.task.ids import all_but

OTHERS = all_but(FORGET, N)
STILL = 1e-12  # a learning rate at which nothing is learned


@pytest.fixture(scope="module")
def task():
    return classifier()


class Reading(list):
    """Samples that keep in which order they were asked for."""

    def __init__(self, data):
        super().__init__(zip(*data.tensors, strict=True))
        self.asked = []

    def __getitem__(self, place):
        self.asked.append(int(place))
        return super().__getitem__(place)


def with_weights(model, vector):
    """A copy with all its weights out of one vector."""
    other = network()
    other.load_state_dict(model.state_dict())
    nn.utils.vector_to_parameters(vector.clone(), other.parameters())
    return other


class TestMSG:
    def test_the_smallest_differences_of_the_hidden_layer_are_chosen(self, task):
        half = list(range(0, N, 2))  # as many are retained, so that all of them count
        mask = smallest_differences(begin(task, task.model, half, 0), 0.3)
        assert list(mask) == ["0.weight"]
        differences = mean_gradient(task, task.model, range(1, N, 2)) - mean_gradient(task, task.model, half)
        ranked = sorted(range(24), key=lambda i: abs(differences[i].item()))  # the first 24 are of this layer
        assert sorted(mask["0.weight"].flatten().nonzero()[:, 0].tolist()) == sorted(ranked[:7])

    def test_these_are_drawn_anew_and_nothing_else(self, task):
        mask = smallest_differences(begin(task, task.model, FORGET, 0), 0.3)["0.weight"].flatten()
        new = flat(msg(task, task.model, FORGET, seed=0, lr=STILL))
        changed = (new - flat(task.model)).abs() > 1e-6
        assert torch.equal(changed[:24], mask)
        assert not changed[24:].any()

    def test_they_have_the_variance_of_the_published_initialisation(self):
        """2 / fan-out, and a fan-out of 400; the standard error of a deviation of 20,000 draws is 0.5 %."""
        model = nn.Sequential(nn.Linear(50, 400), nn.ReLU(), nn.Linear(400, 2))
        wide = Task(model, ENTROPY, TensorDataset(torch.randn(4, 50), torch.arange(4) % 2))
        drawn = msg(wide, model, [0], seed=0, share=1.0, lr=STILL)[0].weight
        assert drawn.std().item() == pytest.approx(math.sqrt(2 / 400), rel=0.03)
        assert abs(drawn.mean().item()) < 5 * math.sqrt(2 / 400 / 20000)

    def test_kept_weights_of_the_layer_learn_at_a_tenth(self, task):
        begun = with_weights(task.model, flat(msg(task, task.model, FORGET, seed=0, lr=STILL)))
        fresh = smallest_differences(begin(task, task.model, FORGET, 0), 0.3)["0.weight"].flatten()
        rate = torch.ones(len(flat(begun))).double()
        rate[:24][~fresh] = 0.1
        truth = flat(begun) - 0.2 * (rate * mean_gradient(task, begun, OTHERS) + 0.02 * flat(begun))
        new = msg(task, task.model, FORGET, seed=0, epochs=1, lr=0.2)
        assert torch.allclose(flat(new), truth, atol=1e-9)

    @pytest.mark.slow
    def test_where_there_are_convolutions_they_alone_are_treated(self):
        task = classifier(convolution=True)
        new = msg(task, task.model, FORGET, seed=0, lr=STILL)
        changed = (flat(new) - flat(task.model)).abs() > 1e-6
        assert int(changed[:24].sum()) == 7
        assert not changed[24:].any()

    def test_a_model_without_such_layers_is_refused(self):
        model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.LayerNorm(3))
        words = Task(model, ENTROPY, TensorDataset(torch.arange(5)[:, None], torch.arange(5) % 3))
        with pytest.raises(InputError, match=r"no trained nn.Conv1d.*use a method for all kinds of parameters"):
            msg(words, model, [0], seed=0)


class TestCT:
    def test_rows_and_columns_of_all_kernels_are_swapped(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, (1, 2)), nn.Flatten(), nn.Linear(6, 2))
        data = TensorDataset(torch.randn(4, 2, 5, 4), torch.arange(4) % 2)
        new = ct(Task(model, ENTROPY, data), model, [0], seed=0, lr=STILL)
        truth = torch.empty_like(model[0].weight)
        for out, into, row, column in torch.cartesian_prod(*map(torch.arange, truth.shape)).tolist():
            truth.data[out, into, row, column] = model[0].weight[out, into, column, row]
        assert torch.allclose(new[0].weight, truth)
        for name in ("0.bias", "2.weight", "2.bias", "4.weight", "4.bias"):  # what is not square stays
            assert torch.allclose(new.state_dict()[name], model.state_dict()[name])

    @pytest.mark.slow
    def test_then_it_is_fine_tuning(self):
        task = classifier(convolution=True)
        turned = network(convolution=True)
        turned.load_state_dict(task.model.state_dict())
        turned[0].weight.data = turned[0].weight.data.transpose(2, 3).contiguous()
        options = {"seed": 3, "epochs": 2, "lr": 0.05, "batch_size": 8}
        new, truth = ct(task, task.model, FORGET, **options), fine_tune(task, turned, FORGET, **options)
        assert torch.equal(flat(new), flat(truth))

    def test_kernels_that_are_not_trained_stay(self):
        """Nothing could repair them."""
        model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Conv2d(2, 2, 2), nn.Flatten(), nn.Linear(2, 2))
        model[0].requires_grad_(False)
        part = Task(model, ENTROPY, TensorDataset(torch.randn(4, 1, 3, 3), torch.arange(4) % 2))
        new = ct(part, model, [0], seed=0, lr=STILL)
        assert torch.equal(new[0].weight, model[0].weight)
        assert torch.allclose(new[1].weight, model[1].weight.transpose(2, 3))

    def test_kernels_that_nothing_can_be_swapped_in_are_named(self):
        model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, (1, 2)), nn.Flatten(), nn.Linear(4, 2))
        thin = Task(model, ENTROPY, TensorDataset(torch.randn(4, 1, 2, 2), torch.arange(4) % 2))
        with pytest.raises(InputError, match="model has kernels of 1x1, 1x2 alone, and ct needs square kernels"):
            ct(thin, model, [0], seed=0)


class TestL1Sparse:
    @pytest.mark.parametrize(
        ("epochs", "plain", "by_hand"),
        [
            (2, 0, [(0.1, 0.2), (0.05, 0.1)]),
            (3, 1, [(0.1, 0.2), (0.05, 0.15), (0.0, 0.05)]),
        ],
    )
    def test_epochs_by_hand(self, task, epochs, plain, by_hand):
        """A batch each: α falls to 0 before the plain epochs, the learning rate along a cosine over all of them."""
        weights = flat(task.model)
        for alpha, rate in by_hand:
            gradient = mean_gradient(task, with_weights(task.model, weights), OTHERS)
            weights = weights - rate * (gradient + alpha * weights.sign() + 0.02 * weights)
        options = {"alpha": 0.1, "epochs": epochs, "plain_epochs": plain, "lr": 0.2, "momentum": 0.0}
        assert torch.allclose(flat(l1_sparse(task, task.model, FORGET, seed=0, **options)), weights)

    def test_without_a_penalty_it_is_fine_tuning(self, task):
        options = {"seed": 1, "epochs": 2, "lr": 0.05, "batch_size": 8}
        new = l1_sparse(task, task.model, FORGET, alpha=0.0, **options)
        assert torch.allclose(flat(new), flat(fine_tune(task, task.model, FORGET, **options)))


class TestLoTUS:
    def test_the_temperature_is_that_of_the_accuracies(self, task):
        wrong = replace(task, train_set=TensorDataset(*(one.clone() for one in task.train_set.tensors)))
        wrong.train_set.tensors[1][FORGET[0]] = (task.model(task.train_set.tensors[0][FORGET[:1]]).argmax() + 1) % 3
        smoothing = Smoothing(begin(wrong, task.model, FORGET, 0), 2.0, 0.5)
        assert not smoothing.done()
        assert smoothing.temperature == pytest.approx(math.exp(2 * (2 / 3 - 0.5)))  # two of three are right
        assert Smoothing(begin(wrong, task.model, FORGET, 0), 2.0, 0.7).done()

    def test_the_aim_is_the_originals_accuracy_on_held_out_samples(self, task, monkeypatch):
        module, seen = sys.modules["excise.baselines.lotus"], []

        class Spy(Smoothing):
            def __init__(self, start, alpha, aim):
                seen.append(aim)
                super().__init__(start, alpha, aim)

        monkeypatch.setattr(module, "Smoothing", Spy)
        some = [0, 4, 5, 6, 7, 9, 20]
        lotus(task, task.model, FORGET, seed=0, held_out=some, epochs=1)
        right = sum(
            int(task.model(task.test_set.tensors[0][[i]]).argmax() == task.test_set.tensors[1][i]) for i in some
        )
        assert seen == [right / len(some)]

    def test_the_temperature_follows_from_epoch_to_epoch_and_training_ends_below_the_aim(self, task, monkeypatch):
        module, used = sys.modules["excise.baselines.lotus"], []
        accuracies = iter([0.9, 1.0, 0.95, 0.5])  # held-out, then of the samples before each epoch

        def spy(outputs, to_forget, temperature):
            used.append(temperature)
            return drawn_targets(outputs, to_forget, temperature)

        monkeypatch.setattr(module, "accuracy", lambda *_: next(accuracies))
        monkeypatch.setattr(module, "drawn_targets", spy)
        lotus(task, task.model, FORGET, seed=0, epochs=5)  # an epoch is one batch
        assert used == pytest.approx([math.exp(2 * 0.1), math.exp(2 * 0.05)])

    def test_targets_are_soft_for_the_forgotten_and_a_class_for_the_others(self):
        outputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
        to_forget = torch.tensor([True, False, True, False, False, True])
        with torch.random.fork_rng():
            torch.manual_seed(1)
            targets = drawn_targets(outputs, to_forget, 3.0)
            torch.manual_seed(1)
            noise = -torch.empty_like(outputs).exponential_().log()
        for i in range(6):
            if to_forget[i]:
                assert torch.allclose(targets[i], ((outputs[i] + noise[i]) / 3.0).softmax(0))
            else:
                assert sorted(targets[i].round(decimals=9).tolist()) == [0, 0, 0, 1]

    def test_the_classes_are_drawn_as_often_as_the_teacher_says(self):
        outputs = torch.tensor([0.0, 1.0, 2.0])
        with torch.random.fork_rng():
            torch.manual_seed(0)
            targets = drawn_targets(outputs.expand(9000, 3), torch.zeros(9000, dtype=torch.bool), 1.0)
        p = outputs.softmax(0)
        assert ((targets.mean(0) - p).abs() < 5 * (p * (1 - p) / 9000).sqrt()).all()

    def test_a_share_of_the_retained_samples_is_trained_on(self, task):
        data = Reading(task.train_set)
        read = replace(task, train_set=data)
        lotus(read, task.model, FORGET, seed=0, share=0.3, epochs=1)
        trained = data.asked[-(3 + 11) :]  # 0.3 of 37 are 11
        assert set(FORGET) <= set(trained)
        assert len(set(trained)) == 14

    def test_a_number_to_aim_at_needs_no_held_out_data(self, task):
        alone = replace(task, test_set=None)
        new = lotus(alone, task.model, FORGET, seed=0, aim=0.0)
        assert not torch.equal(flat(new), flat(task.model))
        with pytest.raises(InputError, match=r"lotus learns from held-out data, but task has no test_set.*fine_tune"):
            lotus(alone, task.model, FORGET, seed=0)


class TestReGUn:
    def test_references_are_mean_probabilities_of_the_class(self, task):
        some = list(range(5, 30))
        found = class_means(begin(task, task.model, FORGET, 0), torch.tensor(some))
        inputs, labels = task.test_set.tensors
        for one in range(3):
            rows = [softmax(task.model(inputs[i]).detach().numpy()) for i in some if labels[i] == one]
            assert found[one].tolist() == pytest.approx((sum(rows) / len(rows)).tolist())

    def test_a_step_by_hand(self, task):
        start = network(3)
        weights = [w.detach().clone().requires_grad_() for w in start.parameters()]
        inputs, labels = task.train_set.tensors

        def outputs(x):
            return torch.tanh(x @ weights[0].T + weights[1]) @ weights[2].T + weights[3]

        unseen, classes = task.test_set.tensors
        q = [start(unseen[classes == one]).softmax(1).mean(0).detach() for one in range(3)]
        loss = nn.functional.cross_entropy(outputs(inputs[OTHERS]), labels[OTHERS])
        for i in FORGET:
            p = outputs(inputs[i]).softmax(0)
            loss = loss + 0.7 * (q[labels[i]] * (q[labels[i]] / p).log()).sum() / len(FORGET)
        gradients = torch.autograd.grad(loss, weights)
        truth = torch.cat([(w - 0.2 * (g + 0.02 * w)).flatten() for w, g in zip(weights, gradients, strict=True)])
        new = regun(task, start, FORGET, seed=0, alpha=0.7, epochs=1, lr=0.2)
        assert torch.allclose(flat(new), truth)

    def test_without_the_divergence_it_is_fine_tuning(self, task):
        options = {"seed": 1, "epochs": 2, "lr": 0.05, "batch_size": 8}
        new = regun(task, task.model, FORGET, alpha=0.0, **options)
        assert torch.allclose(flat(new), flat(fine_tune(task, task.model, FORGET, **options)))

    def test_only_the_held_out_samples_named_are_read(self, task):
        data = Reading(task.test_set)
        regun(replace(task, test_set=data), task.model, FORGET, seed=0, held_out=range(20))
        assert sorted(data.asked) == list(range(20))

    def test_a_class_without_held_out_samples_is_named(self, task):
        first = int(task.train_set.tensors[1][FORGET[0]])
        others = (task.test_set.tensors[1] != first).nonzero()[:, 0]
        with pytest.raises(InputError, match=f"forget has samples of class {first}, of which test_set has none"):
            regun(task, task.model, FORGET[:1], seed=0, held_out=others)
        assert len(held_out_positions(task, others, "regun")) == len(others)


class TestSFRon:
    SHORT: ClassVar = {"every": 2, "batch_size": 4, "epochs": 2}  # 74 retained samples in rounds of 8, 10 rounds

    def trained_on(self, task, options):
        """The samples in the order of training."""
        data = Reading(task.train_set)
        sfr_on(replace(task, train_set=data), task.model, FORGET, seed=0, **self.SHORT, **options)
        return data.asked[-(10 * 3 + 2 * len(OTHERS)) :]

    def test_coefficients_fall_with_the_loss(self):
        losses = [0.2, 1.5, 3.0]
        truth = [loss**-0.5 / sum(other**-0.5 for other in losses) for loss in losses]
        assert adaptive_coefficients(torch.tensor(losses).double(), 0.5).tolist() == pytest.approx(truth)
        assert adaptive_coefficients(torch.tensor(losses), 0.0).tolist() == pytest.approx([1 / 3] * 3)

    @pytest.mark.parametrize("most", [100.0, 0.05])
    def test_a_fast_and_a_slow_step_by_hand(self, task, most):
        model, w = task.model, flat(task.model)
        each = [mean_gradient(task, model, [i]) for i in range(N)]
        of_forget = sum(each[i] ** 2 for i in FORGET) / len(FORGET)
        of_retained = sum(each[i] ** 2 for i in OTHERS) / len(OTHERS)
        losses = losses_of(task, model, FORGET).tolist()
        total = sum(loss**-0.5 for loss in losses)
        up = -3.0 * sum(loss**-0.5 / total * each[i] for loss, i in zip(losses, FORGET, strict=True))
        up = torch.where(of_forget >= 1.5 * of_retained, up, 0.0)
        assert 0.05 < up.norm() < 100
        up = up * min(1.0, most / float(up.norm()))
        fast = w - 0.2 * (up + 0.02 * w)
        slow = fast - 0.1 * (mean_gradient(task, with_weights(model, fast), OTHERS) + 0.02 * fast)
        options = {"alpha": 3.0, "threshold": 1.5, "most": most, "epochs": 1, "lr": 0.2, "momentum": 0.0}
        new = sfr_on(task, model, FORGET, seed=0, samples=None, **options)
        assert torch.allclose(flat(new), slow, atol=1e-6)

    def test_so_many_slow_steps_follow_a_fast_one(self, task):
        trained = self.trained_on(task, {})
        fast = [sample in FORGET for sample in trained]
        assert fast == ([True] * 3 + [False] * 8) * 9 + [True] * 3 + [False] * 2
        retained = [sample for sample in trained if sample not in FORGET]
        assert sorted(retained) == sorted(OTHERS.tolist() * 2)

    def test_only_fast_steps_are_masked(self, task):
        """With nothing salient the fast steps are weight decay alone, and the slow ones plain SGD."""
        options = {"threshold": 1e9, "lr": 0.2, "momentum": 0.0}
        trained, weights, number = self.trained_on(task, options), flat(task.model), 0
        while trained:
            fast = trained[0] in FORGET
            ids, trained = (trained[:3], trained[3:]) if fast else (trained[:4], trained[4:])
            gradient = torch.zeros_like(weights)
            if not fast:
                gradient = mean_gradient(task, with_weights(task.model, weights), ids)
            rate = 0.2 * (1 + math.cos(math.pi * number / 29)) / 2  # 10 fast steps and 19 slow ones
            weights, number = weights - rate * (gradient + 0.02 * weights), number + 1
        assert number == 29
        assert torch.allclose(flat(sfr_on(task, task.model, FORGET, seed=0, **self.SHORT, **options)), weights)

    def test_fast_steps_fade_along_a_cosine(self, task, monkeypatch):
        """Their losses are α · share · Σ ε ℓ; with a model that stands still, the shares can be read off."""
        module, seen = sys.modules["excise.baselines.sfr_on"], []

        def spy(start, passes, pace, **options):
            seen.extend(float(one.loss(torch.tensor(FORGET)).detach()) for one in passes[::2])
            return descend(start, passes, pace, **options)

        monkeypatch.setattr(module, "descend", spy)
        sfr_on(task, task.model, FORGET, seed=0, alpha=3.0, exponent=0.0, **self.SHORT)
        mean = losses_of(task, task.model, FORGET).mean().item()
        assert seen == pytest.approx([-3 * mean * (1 + math.cos(math.pi * i / 10)) / 2 for i in range(10)])


class TestRUM:
    REQUEST = tuple(range(2, 30, 4))

    def test_the_thirds_are_of_rising_scores(self):
        scores = torch.tensor([0.3, 0.9, 0.1, 0.5, 0.7, 0.2, 0.6])
        low, medium, high = thirds(torch.arange(10, 17), scores)
        assert (low.tolist(), medium.tolist(), high.tolist()) == ([12, 15], [10, 13], [16, 14, 11])
        assert [len(one) for one in thirds(torch.tensor([4]), torch.tensor([0.1]))] == [0, 0, 1]
        assert [len(one) for one in thirds(torch.tensor([4, 5]), torch.tensor([0.1, 0.2]))] == [0, 1, 1]

    def test_confidence_is_the_probability_of_the_label(self, task):
        inputs, labels = task.train_set.tensors
        said = [softmax(task.model(inputs[i]).detach().numpy())[labels[i]] for i in FORGET]
        assert by_confidence(begin(task, task.model, FORGET, 0)).tolist() == pytest.approx([1 - p for p in said])

    def test_the_other_proxy_is_how_far_training_on_held_out_samples_moves_the_answer(self, task):
        pace = {"epochs": 2, "lr": 0.1, "momentum": 0.9, "batch_size": 8}
        held_out = Task(task.model, ENTROPY, task.test_set, weight_decay=0.02)
        trained = fit(held_out, ids=range(12), seed=4, **pace).model
        truth = []
        for i in FORGET:
            p, q = (softmax(model(task.train_set.tensors[0][i]).detach().numpy()) for model in (task.model, trained))
            truth.append((entropy(p, q) + entropy(q, p)) / 2)
        found = by_held_out_training(begin(task, task.model, FORGET, 4), range(12), pace)
        assert found.tolist() == pytest.approx(truth)

    def test_nothing_then_fine_tuning_then_salun(self, task):
        """The most memorised are still retained while the middle third is forgotten."""
        sure = [-losses_of(task, task.model, [i]).item() for i in self.REQUEST]
        ranked = [i for _, i in sorted(zip(sure, self.REQUEST, strict=True), reverse=True)]
        low, medium, high = ranked[:2], ranked[2:4], ranked[4:]
        options = {"seed": 2, "epochs": 2, "lr": 0.05, "batch_size": 8}
        between = fine_tune(task, task.model, medium, forgotten=[0, *low], **options)
        truth = salun(task, between, high, forgotten=[0, *low, *medium], share=0.4, **options)
        new = rum(task, task.model, self.REQUEST, forgotten=[0], share=0.4, **options)
        assert torch.equal(flat(new), flat(truth))

    def test_held_out_data_are_asked_for_by_one_proxy_alone(self, task):
        alone = replace(task, test_set=None)
        rum(alone, task.model, FORGET, seed=0)
        with pytest.raises(InputError, match="rum with proxy='held-out' learns from held-out data"):
            rum(alone, task.model, FORGET, seed=0, proxy="held-out")
