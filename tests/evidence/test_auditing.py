"""The audit: every figure against one made by hand, what must not pass, and that looking changes nothing."""

import copy
import json
import random
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn
from torch.utils.data import TensorDataset

from excise import Effort, InputError, PerLayer, Step, Task, Unlearner, fit
from excise.evidence.auditing import audit as full_audit
from excise.evidence.gap import Gap, Logits, divergence_gap, margin_gap
from excise.evidence.sample_hashes import sample_hash
from excise.evidence.utility import retrieval
from excise.task.hashing import hash_of_model
from excise.training.retraining import fresh

CLASSES, WIDTH, HIDDEN, TRAINED = 5, 20, 32, 200
FORGET = list(range(40))
REST = list(range(40, TRAINED))
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
BRIEF = Effort(relearn_steps=5, resamples=200, permutations=999, held_out_resamples=199)
audit = partial(full_audit, effort=BRIEF)


def clusters(count, seed):
    """Overlapping clusters: a network gets all of them right only by learning them by heart."""
    means = 0.55 * np.random.default_rng(99).standard_normal((CLASSES, WIDTH))
    classes = np.arange(count) % CLASSES
    inputs = means[classes] + np.random.default_rng(seed).standard_normal((count, WIDTH))
    return TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(classes))


def network(seed, width=WIDTH, outputs=CLASSES, hidden=HIDDEN):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, outputs)).eval()


def trained(task, ids, seed, epochs=60):
    return fit(replace(task, model=network(seed)), ids=ids, epochs=epochs, lr=0.1, seed=seed).model


@pytest.fixture(scope="module")
def problem():
    start = Task(network(0), CROSS_ENTROPY, clusters(TRAINED, 0), clusters(150, 1), weight_decay=1e-3)
    original = trained(start, range(TRAINED), 0)
    return SimpleNamespace(
        task=replace(start, model=original),
        original=original,
        retrained=[trained(start, REST, seed) for seed in range(1, 5)],
    )


@pytest.fixture(scope="module")
def found(problem):
    """An audit of a fourth retraining by two others."""
    return look(problem, problem.retrained[3], retrained=problem.retrained[:2])


def look(problem, unlearned, forget=FORGET, **options):
    return audit(problem.task, problem.original, unlearned, forget, **options)


def outputs(model, data):
    with torch.no_grad():
        return copy.deepcopy(model).eval()(data.tensors[0]).double().numpy()


def losses(model, data):
    table = log_softmax(outputs(model, data), axis=1)
    return -table[np.arange(len(table)), data.tensors[1].numpy()]


def part(data, ids):
    return TensorDataset(*(tensor[ids] for tensor in data.tensors))


def softened(model, factor=0.5):
    model = copy.deepcopy(model)
    with torch.no_grad():
        model[-1].weight *= factor
        model[-1].bias *= factor
    return model


def level_of(audited, title):
    return {one.title: one.level for one in audited.verdict.findings}.get(title)


# --- looking changes nothing -----------------------------------------------------------------------------------------


def states():
    return torch.get_rng_state().numpy().tobytes(), repr(np.random.get_state()), random.getstate()  # noqa: NPY002


@pytest.mark.slow
def test_models_modes_and_randomness_are_left_as_they_were(problem):
    """Also where a recipe of the user's seeds everything; and dropout has no say in an audit."""

    def dropping(model):
        return nn.Sequential(*copy.deepcopy(model), nn.Dropout(0.5))

    def careless(ids, seed):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        return dropping(trained(problem.task, ids, seed, epochs=2))

    original, unlearned, mixed, truth = (
        dropping(model) for model in (problem.original, problem.retrained[3], problem.original, problem.retrained[0])
    )
    given = [original, unlearned, mixed, truth]
    unlearned.eval()[0].train()
    mixed[3].eval()
    modes = [[module.training for module in model.modules()] for model in given]
    hashes, before = [hash_of_model(model) for model in given], states()
    task = replace(problem.task, model=mixed, retrain=careless)
    audited = audit(task, original, unlearned, FORGET, retrained=truth)
    audit(task, original, unlearned, FORGET, retrained=2, cache=None)
    assert [hash_of_model(model) for model in given] == hashes
    assert [[module.training for module in model.modules()] for model in given] == modes
    assert states() == before
    plain = look(problem, problem.retrained[3], retrained=problem.retrained[0])
    assert audited.as_dict()["to_retraining"] == plain.as_dict()["to_retraining"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_audit(problem):
    """Whatever the global randomness was, and also where a figure is NaN, such as the floor of a single model."""
    recipe = replace(problem.task, retrain=lambda ids, seed: trained(problem.task, ids, seed, epochs=2))

    def run(seed):
        torch.manual_seed(random.randrange(1000))
        return audit(recipe, problem.original, problem.retrained[3], FORGET, retrained=1, cache=None, seed=seed)

    one, two, other = run(0), run(0), run(1)
    assert one.change.retraining_seconds is not None
    assert one == two
    assert one != other
    assert one.as_dict()["to_retraining"] == two.as_dict()["to_retraining"]
    assert one.verdict == two.verdict


def test_what_a_model_draws_at_random_comes_from_the_seed(problem):
    """A network that is noisy even when it is used."""

    class Noisy(nn.Sequential):
        def forward(self, inputs):
            return super().forward(inputs) + 0.1 * torch.randn(len(inputs), CLASSES)

    noisy = Noisy(*copy.deepcopy(problem.original))
    task, before = replace(problem.task, model=noisy), states()
    assert audit(task, noisy, noisy, FORGET) == audit(task, noisy, noisy, FORGET)
    assert states() == before


def test_frozen_copies_are_audited_like_others(problem):
    """A model that was frozen for use has the same figures, and stays frozen."""
    frozen = copy.deepcopy(problem.retrained[3]).requires_grad_(False)
    assert look(problem, frozen) == look(problem, problem.retrained[3])
    assert not any(weight.requires_grad for weight in frozen.parameters())


# --- every figure by hand --------------------------------------------------------------------------------------------


def test_accuracies_and_losses_are_those_made_by_hand(problem, found):
    data = {"forget": part(problem.task.train_set, FORGET), "retain": part(problem.task.train_set, REST)}
    data["test"] = problem.task.test_set
    models = [problem.original, problem.retrained[3], *problem.retrained[:2]]
    assert [one.name for one in found.models] == ["original", "unlearned", "retrained 1", "retrained 2"]
    for one, model in zip(found.models, models, strict=True):
        accuracy = {}
        for group, samples in data.items():
            said = getattr(one, group)
            accuracy[group] = np.mean(outputs(model, samples).argmax(1) == samples.tensors[1].numpy())
            assert said.value == pytest.approx(accuracy[group])
            assert said.loss == pytest.approx(losses(model, samples).mean())
            assert said.count == len(samples)
            assert said.metric == "accuracy"
        assert one.summary["UA"] == pytest.approx(1 - accuracy["forget"])
        assert one.summary["RA"] == pytest.approx(accuracy["retain"])
        assert one.summary["TA"] == pytest.approx(accuracy["test"])
        assert one.model_hash == hash_of_model(model)


def test_attacks_are_against_held_out_samples_of_the_same_classes(problem):
    """Forgotten samples of classes 1 and 3 alone; scikit-learn's AUC is the truth."""
    forget = [i for i in FORGET if i % CLASSES in (1, 3)]
    test = problem.task.test_set
    alike = np.isin(test.tensors[1].numpy(), (1, 3))
    audited = look(problem, problem.retrained[3], forget)
    for one, model in ((audited.original, problem.original), (audited.unlearned, problem.retrained[3])):
        inside, outside = losses(model, part(problem.task.train_set, forget)), losses(model, test)[alike]
        truth = roc_auc_score([1] * len(inside) + [0] * len(outside), -np.concatenate([inside, outside]))
        assert one.attacks["loss"].auc == pytest.approx(truth)
        assert one.attacks["confidence"].auc == pytest.approx(truth)  # the same order
        assert one.attacks["loss"].non_members == one.held_out.held_out_count == alike.sum()
        p = [np.exp(log_softmax(outputs(model, data), axis=1)) for data in (part(problem.task.train_set, forget), test)]
        scores = [np.sum(table * np.log(table), axis=1) for table in (p[0], p[1][alike])]
        by_entropy = roc_auc_score([1] * len(inside) + [0] * len(outside), np.concatenate(scores))
        assert one.attacks["entropy"].auc == pytest.approx(by_entropy)
        assert one.summary["MIA"] == one.attacks["loss"].auc
    held_out = audited.losses["unlearned"]["held-out"]
    assert held_out[100] == pytest.approx(np.median(losses(problem.retrained[3], test)[alike]))
    assert audited.losses["original"]["forget"] == pytest.approx(
        losses(problem.original, part(problem.task.train_set, forget))
    )


def test_distance_to_two_retrained_models_by_hand(found):
    mine, a, b = (one.summary for one in found.models[1:])

    def average(one, other):
        return np.mean([abs(one[name] - other[name]) for name in ("UA", "RA", "TA", "MIA")])

    def tug(one, other):
        return np.prod([1 - abs(one[name] - other[name]) for name in ("UA", "RA", "TA")])

    compared = found.to_retraining
    assert compared.models == 2
    assert compared.average_gap == pytest.approx((average(mine, a) + average(mine, b)) / 2)
    assert compared.average_gap_floor == pytest.approx(average(a, b))
    assert compared.tug_of_war == pytest.approx((tug(mine, a) + tug(mine, b)) / 2)
    assert compared.tug_of_war_floor == pytest.approx(tug(a, b))
    assert compared.ratio is None


def test_divergences_are_those_of_the_logits(problem, found):
    forget, test = part(problem.task.train_set, FORGET), problem.task.test_set
    models = (problem.retrained[3], problem.original, problem.retrained[0], problem.retrained[1])
    mine, before, *truths = (Logits(outputs(model, forget), outputs(model, test)) for model in models)
    compared = found.to_retraining
    for name, on in (("forget", "forget"), ("test", "held_out")):
        for calibrated, ending in ((False, ""), (True, "_calibrated")):
            truth = divergence_gap(mine, before, truths, calibrated=calibrated, on=on)
            got = getattr(compared, name + ending)
            assert (got.model, got.original, got.floor) == pytest.approx(
                (truth.model, truth.original, truth.floor), rel=1e-4
            )
    truth = margin_gap(mine, before, truths, forget.tensors[1].numpy(), test.tensors[1].numpy())
    assert compared.margins.share == pytest.approx(truth.share, rel=1e-4)
    p, q = (log_softmax(outputs(model, forget), axis=1) for model in (problem.retrained[0], problem.retrained[1]))
    by_hand = (np.sum(np.exp(p) * (p - q), 1).mean() + np.sum(np.exp(q) * (q - p), 1).mean()) / 2
    assert compared.forget.floor == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.slow
def test_one_retrained_model_has_no_floor_and_three_have_a_ratio(problem):
    one = look(problem, problem.retrained[3], retrained=problem.retrained[0])
    assert np.isnan([one.to_retraining.average_gap_floor, one.to_retraining.forget.floor]).all()
    record = one.as_dict()["to_retraining"]
    assert record["average_gap_floor"] is None
    assert record["tug_of_war_floor"] is None
    assert record["forget_calibrated"]["floor"] is None
    assert record["forget_calibrated"]["share"] is None
    assert record["ratio"] is None
    three = look(problem, problem.retrained[3], retrained=problem.retrained[:3]).to_retraining
    assert len(three.ratio.z) == len(FORGET)
    assert len(three.ratio.retrained_aucs) == 3


@pytest.mark.slow
def test_what_is_saved_is_strict_json_and_loads_back(problem, tmp_path):
    file = tmp_path / "audit.json"
    audited = look(problem, problem.retrained[3], retrained=problem.retrained[:1], budget={"ε": float("inf")})
    audited.save(file)

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    record = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    assert record == audited.as_dict()
    assert record["original"]["summary"]["UA"] == pytest.approx(audited.original.summary["UA"])
    assert record["change"]["budget"] == {"ε": None}
    assert record["verdict"]["outcome"] == audited.verdict.outcome
    assert record["ids"] == FORGET
    assert record["sample_hashes"][3] == sample_hash(problem.task, 3, audited.hash_key)
    with pytest.raises(InputError, match=r"nowhere.*could not be written"):
        audited.save(tmp_path / "nowhere" / "audit.json")


def test_what_changed_by_hand(problem):
    """One row of one layer was moved, by 3 in one weight and 4 in its bias."""
    moved = copy.deepcopy(problem.original)
    with torch.no_grad():
        moved[0].weight[7, 2] += 3
        moved[0].bias[7] += 4
    change = look(problem, moved).change
    size = torch.cat([weight.flatten() for weight in problem.original.parameters()]).double().norm().item()
    assert change.changed == 2
    assert change.distance == pytest.approx(5)
    assert change.relative == pytest.approx(5 / size)
    assert change.layers == {"0": (1, HIDDEN), "2": (0, CLASSES)}
    assert change.parameters == 21 * HIDDEN + (HIDDEN + 1) * CLASSES
    assert change.certificate is None


def test_what_an_unlearner_gave_tells_slices_and_certificate(problem):
    done = Unlearner(problem.task, Step(PerLayer(copies=16)), n_jobs=1).forget(FORGET[:3])
    change = audit(problem.task, problem.original, done, FORGET[:3], retraining_seconds=7.0).change
    assert set(change.scores) == set(done.slices)
    assert change.certificate == done.certificate
    assert change.seconds == done.seconds
    assert change.retraining_seconds == 7.0
    assert sum(moved for moved, _ in change.layers.values()) <= len(done.slices)


@pytest.mark.slow
def test_what_earlier_requests_forgot_counts_as_gone(problem):
    """It is neither retained nor trained on by the models that the second request is held against."""
    session = Unlearner(problem.task, Step(PerLayer(copies=16)), n_jobs=1)
    session.forget(FORGET[:3])
    done = session.forget(FORGET[3:5])
    trained_on = []

    def retrain(ids, seed):  # noqa: ARG001
        trained_on.append(set(ids.tolist()))
        return copy.deepcopy(problem.original)

    found = audit(replace(problem.task, retrain=retrain), done, retrained=1, cache=None)
    assert found.ids == tuple(FORGET[3:5])
    assert found.earlier == tuple(sorted(FORGET[:3]))
    assert not trained_on[0] & set(FORGET[:5])
    assert found.unlearned.retain.count == len(problem.task.train_set) - 5
    said = audit(problem.task, problem.original, done.model, FORGET[3:5], forgotten=FORGET[:3])
    assert said.earlier == found.earlier


@pytest.mark.slow
def test_what_an_unlearner_gave_says_all_that_is_needed(problem):
    done = Unlearner(problem.task, Step(PerLayer(copies=16)), n_jobs=1).forget(FORGET[:3])
    short = audit(problem.task, done, retrained=problem.retrained[:2])
    assert short.ids == tuple(FORGET[:3])
    assert set(short.change.scores) == set(done.slices)
    assert short == audit(problem.task, problem.task.model, done, FORGET[:3], retrained=problem.retrained[:2])
    more = audit(problem.task, done, forget=FORGET[:5])
    assert more.ids == tuple(FORGET[:5])
    with pytest.raises(InputError, match=r"unlearned is missing: .*audit\(task, done\)"):
        audit(problem.task, problem.original)
    with pytest.raises(InputError, match="forget is missing"):
        audit(problem.task, problem.original, done)
    with pytest.raises(InputError, match=r"original is no torch\.nn\.Module, but a Forgotten"):
        audit(problem.task, done, problem.original, FORGET[:3])


@pytest.mark.slow
def test_learning_again_is_held_against_retrained_models(problem):
    effort = replace(BRIEF, relearn_steps=60)
    audited = look(problem, softened(problem.original, 0.99), retrained=problem.retrained[0], effort=effort)
    assert audited.original.relearning.steps == 0
    assert 0 < audited.unlearned.relearning.steps < 20
    assert audited.retrained[0].relearning.steps is None
    assert audited.unlearned.relearning.target == pytest.approx(audited.original.forget.loss)
    assert level_of(audited, "Learning again") == "warning"


@pytest.mark.slow
def test_effort_is_heeded(class_problem, found):
    effort = replace(BRIEF, relearn_steps=3, few_shot_draws=2, retained_samples=50)
    audited = look(class_problem, class_problem.retrained[0], class_problem.forget, effort=effort)
    assert len(audited.unlearned.relearning.losses) == 4
    assert (audited.unlearned.few_shot.draws, audited.unlearned.few_shot.shots) == (2, 5)
    assert audited.original.retain.count == 50
    beyond = found.unlearned.held_out.p * 1000 / 2  # of 999 permutations and the samples as they are
    assert beyond == pytest.approx(round(beyond))
    intervals = [
        look(class_problem, class_problem.retrained[0], class_problem.forget, effort=replace(BRIEF, resamples=count))
        .unlearned.attacks["entropy"]
        .interval
        for count in (20, 21)
    ]
    assert intervals[0] != intervals[1]


def test_it_prints_a_verdict_and_a_table(found):
    text = str(found)
    assert text.startswith(found.verdict.sentence[:60])
    assert "retrained (2)" in text
    assert f"{found.original.test.value:.3f}" in text


# --- what must and what must not pass --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("factor", [1, 0.5, 0.1])
def test_the_original_has_not_forgotten_nor_does_it_by_softer_answers(problem, count, factor):
    verdict = look(problem, softened(problem.original, factor), retrained=problem.retrained[:count] or None).verdict
    assert verdict.outcome == "not forgotten"


@pytest.mark.slow
def test_another_retraining_has_forgotten(problem):
    for left_out in (3, 1):
        others = [model for k, model in enumerate(problem.retrained) if k != left_out]
        audited = look(problem, problem.retrained[left_out], retrained=others)
        assert audited.verdict.outcome in ("forgotten", "mostly forgotten")
        assert level_of(audited, "Distance to retraining") == "good"
        assert level_of(audited, "Use of the model") != "bad"
    alone = look(problem, problem.retrained[3])
    assert alone.verdict.outcome == "forgotten"
    assert "no retrained model" in alone.verdict.sentence


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_network_of_random_weights_is_damaged(problem, count):
    verdict = look(problem, network(77), retrained=problem.retrained[:count] or None).verdict
    assert verdict.outcome == "damaged"
    assert "does worse on other data" in verdict.sentence


@pytest.mark.slow
def test_pushed_too_far_is_not_called_remembering(problem):
    """Wrong on purpose on the forgotten samples: farther from retraining than before, and said so."""
    model = copy.deepcopy(problem.original)
    batch = problem.task.batch(FORGET)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        (-CROSS_ENTROPY(model(batch[0]), batch[1]).mean()).backward()
        optimizer.step()
    audited = look(problem, model, retrained=problem.retrained[:3])
    assert audited.to_retraining.forget_calibrated.share > 1
    assert audited.verdict.outcome in ("overshot", "damaged")
    assert level_of(audited, "Deviation of the forgotten samples") == "bad"


@pytest.mark.slow
def test_retrained_models_that_agree_leave_nothing_to_measure(problem):
    """As where training has one outcome: no floor, no spread, and neither a crash nor a claim."""
    same = problem.original
    audited = look(problem, same, retrained=[same, same, same])
    assert audited.to_retraining.ratio is None
    gap = audited.to_retraining.forget_calibrated
    assert (gap.model, gap.original, gap.floor) == pytest.approx((0, 0, 0), abs=1e-12)
    assert "nothing was done" in audited.verdict.findings[0].text
    assert "hardly farther" in audited.verdict.findings[1].text
    assert audited.verdict.outcome == "not forgotten"
    other = look(problem, softened(same, 0.999), retrained=[same, same, same])
    assert other.verdict.outcome == "undecided"
    assert replace(audited, to_retraining=replace(audited.to_retraining, forget=Gap(1, 0, 0))).as_dict()


def deep_network(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10)).eval()


@pytest.fixture(scope="module")
def class_problem():
    """Networks that never saw a 1 tell it by their features much less often."""
    images, labels = load_digits(return_X_y=True)
    data = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    train, test = (TensorDataset(*(part[some] for part in data)) for some in (slice(600), slice(600, 1000)))
    start = Task(deep_network(0), CROSS_ENTROPY, train, test, weight_decay=1e-3)

    def again(ids, seed):
        return fit(replace(start, model=deep_network(seed)), ids=ids, epochs=30, lr=0.1, seed=seed).model

    forget, rest = ((train.tensors[1] == 1) == yes for yes in (True, False))
    original = again(range(600), 0)
    return SimpleNamespace(
        task=replace(start, model=original),
        original=original,
        forget=forget.nonzero().flatten(),
        retrained=[again(rest.nonzero().flatten(), seed) for seed in range(1, 5)],
    )


@pytest.mark.slow
def test_a_masked_class_is_hidden_and_not_forgotten(class_problem):
    masked = copy.deepcopy(class_problem.original)
    with torch.no_grad():
        masked[-1].bias[1] -= 30
    for truths in (None, class_problem.retrained[:3]):
        audited = look(class_problem, masked, class_problem.forget, retrained=truths)
        assert audited.kind == "class"
        assert audited.classes == (1,)
        assert audited.unlearned.forget.value == 0
        assert level_of(audited, "Hidden or forgotten") == "bad"
        assert audited.verdict.outcome not in ("forgotten", "mostly forgotten")


@pytest.mark.slow
def test_a_class_is_forgotten_by_retraining(class_problem):
    truths = class_problem.retrained
    audited = look(class_problem, truths[3], class_problem.forget, retrained=truths[:3])
    assert audited.verdict.outcome in ("forgotten", "mostly forgotten")
    assert level_of(audited, "Hidden or forgotten") == "good"


@pytest.mark.slow
def test_the_kind_is_found_or_told(problem):
    found = look(problem, problem.original, FORGET)
    assert (found.kind, found.original.few_shot) == ("samples", None)
    told = look(problem, problem.original, FORGET[:2], kind="class")
    assert (told.kind, told.classes) == ("class", (0, 1))
    of_class = [i for i in range(TRAINED) if i % CLASSES == 4]
    assert look(problem, problem.original, of_class).classes == (4,)
    assert look(problem, problem.original, of_class, kind="samples").original.few_shot is None


@pytest.mark.slow
def test_the_probe_makes_do_with_a_small_test_set(problem):
    of_class = [i for i in range(TRAINED) if i % CLASSES == 4]
    for size, shots in ((15, 2), (30, 5)):
        small = replace(problem.task, test_set=part(problem.task.test_set, list(range(size))))
        assert audit(small, problem.original, problem.original, of_class).original.few_shot.shots == shots


def test_a_planted_copy_is_found(problem):
    inputs, targets = (tensor.clone() for tensor in problem.task.train_set.tensors)
    inputs[100] = inputs[3]
    planted = replace(problem.task, train_set=TensorDataset(inputs, targets))
    audited = audit(planted, problem.original, problem.original, FORGET)
    assert [(one.forgotten, one.retained, one.exact) for one in audited.near_duplicates] == [(3, 100, True)]
    assert level_of(audited, "Near-duplicates are still there") == "bad"
    assert level_of(look(problem, problem.original), "Near-duplicates are still there") is None


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_few_samples_are_said_to_be_few(problem, count):
    few = look(problem, problem.original, FORGET[:count], retrained=problem.retrained[:3])
    low, high = few.unlearned.attacks["loss"].interval
    assert high - low > 0.6
    low, high = few.unlearned.forget.interval
    assert high - low > 0.5
    assert level_of(few, "Few samples") == "note"
    assert json.dumps(few.as_dict(), allow_nan=False)
    assert level_of(look(problem, problem.original, FORGET), "Few samples") is None


# --- other kinds of tasks --------------------------------------------------------------------------------------------


def of_labels(count, seed):
    """Three labels a sample, each from a noisy sign."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((count, WIDTH))
    labels = (inputs[:, :3] + inputs[:, 3:6] + rng.standard_normal((count, 3)) > 0).astype(np.float32)
    return TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels))


def fitted(task, model, ids=None, epochs=40, lr=0.2):
    return fit(replace(task, model=model), ids=ids, epochs=epochs, lr=lr).model


@pytest.fixture(scope="module")
def label_problem():
    loss = nn.BCEWithLogitsLoss(reduction="none")
    start = Task(network(0, outputs=3), loss, of_labels(TRAINED, 0), of_labels(150, 1), weight_decay=1e-3)
    original = fitted(start, start.model, epochs=80)
    truths = [fitted(start, network(seed, outputs=3), REST, epochs=80) for seed in (1, 2, 3, 4)]
    return SimpleNamespace(task=replace(start, model=original), original=original, retrained=truths)


@pytest.mark.slow
def test_several_labels_a_sample(label_problem):
    alone = look(label_problem, label_problem.retrained[3])
    assert alone.metric == "micro-f1"
    assert set(alone.original.attacks) == {"loss"}
    test = label_problem.task.test_set
    truth = f1_score(test.tensors[1].numpy(), outputs(label_problem.original, test) > 0, average="micro")
    assert alone.original.test.value == pytest.approx(truth)
    audited = look(label_problem, label_problem.retrained[3], retrained=label_problem.retrained[:3])
    assert audited.verdict.outcome in ("forgotten", "mostly forgotten")
    forget = part(label_problem.task.train_set, FORGET)
    yes, other = (
        1 / (1 + np.exp(-outputs(model, forget))) for model in (label_problem.retrained[0], label_problem.retrained[1])
    )

    def divergence(p, q):
        return np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))

    only_two = look(label_problem, label_problem.retrained[3], retrained=label_problem.retrained[:2])
    assert only_two.to_retraining.forget.floor == pytest.approx((divergence(yes, other) + divergence(other, yes)) / 2)


@pytest.mark.slow
def test_softer_answers_are_no_forgetting_of_labels_either(label_problem):
    audited = look(label_problem, softened(label_problem.original), retrained=label_problem.retrained[:3])
    assert audited.verdict.outcome == "not forgotten"
    assert look(label_problem, label_problem.original).verdict.outcome == "not forgotten"


@pytest.mark.slow
def test_one_logit_for_two_classes():
    data, test = of_labels(TRAINED, 0), of_labels(100, 1)
    data, test = (TensorDataset(one.tensors[0], one.tensors[1][:, :1]) for one in (data, test))
    task = Task(network(0, outputs=1), nn.BCEWithLogitsLoss(reduction="none"), data, test, weight_decay=1e-3)
    models = [fitted(task, network(seed, outputs=1), REST, epochs=20) for seed in range(4)]
    audited = audit(task, models[0], models[1], FORGET, retrained=models[1:])
    truth = np.mean((outputs(models[0], test) > 0) == test.tensors[1].numpy())
    assert audited.metric == "accuracy"
    assert audited.original.test.value == pytest.approx(truth)
    assert audited.to_retraining.ratio is not None


def of_numbers(count, seed, unit):
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((count, WIDTH))
    targets = unit * (inputs[:, :1] + rng.standard_normal((count, 1)))
    return TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets, dtype=torch.float32))


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1.0, 100.0])
def test_numbers_to_predict(unit):
    """The verdict does not hang on the unit that targets are in."""
    loss = nn.MSELoss(reduction="none")

    class InUnits(nn.Sequential):
        def forward(self, inputs):
            return unit * super().forward(inputs)

    def start(seed):
        return InUnits(*network(seed, outputs=1))

    task = Task(start(0), loss, of_numbers(TRAINED, 0, unit), of_numbers(150, 1, unit), weight_decay=0)
    scaled = replace(task, loss=lambda said, truth: loss(said, truth) / unit**2)
    models = [fitted(scaled, start(seed), ids, epochs=25, lr=0.05) for seed, ids in enumerate([None] + [REST] * 4)]
    audited = audit(task, models[0], models[4], FORGET, retrained=models[1:4])
    test = task.test_set
    assert audited.metric == "rmse"
    truth = np.sqrt(np.mean((outputs(models[0], test) - test.tensors[1].numpy()) ** 2))
    assert audited.original.test.value == pytest.approx(truth)
    assert audited.to_retraining.forget is None
    assert np.isnan(audited.to_retraining.average_gap)
    assert audited.as_dict()["to_retraining"]["tug_of_war"] is None
    assert audited.verdict.outcome == "forgotten"
    assert audit(task, models[0], models[0], FORGET, retrained=models[1:4]).verdict.outcome == "not forgotten"
    assert audit(task, models[0], models[0], FORGET).verdict.outcome == "not forgotten"
    assert audit(task, models[0], start(9), FORGET, retrained=models[1:4]).verdict.outcome == "damaged"


def test_retrieval_by_features(problem):
    audited = look(problem, problem.retrained[3], metric="retrieval")
    assert audited.metric == "mAP"

    def features(ids):
        with torch.no_grad():
            return problem.original[:2](problem.task.batch(ids)[0]).numpy()

    ids = FORGET + REST
    precisions = retrieval(features(ids), problem.task.batch(ids)[1].numpy()).precisions
    assert audited.original.forget.value == pytest.approx(precisions[: len(FORGET)].mean())
    assert audited.original.retain.value == pytest.approx(precisions[len(FORGET) :].mean())
    assert 0.2 < audited.original.test.value < audited.original.retain.value


class Reader(nn.Module):
    """The mean of the words that are shown."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(40, 8), nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask):
        shown = attention_mask[:, :, None].float()
        return SimpleNamespace(logits=self.head((self.words(input_ids) * shown).sum(1) / shown.sum(1)))


def texts(count, seed):
    rng = np.random.default_rng(seed)
    samples = []
    for k in range(count):
        words, mask = torch.tensor(rng.integers(1, 40, 12)), torch.ones(12, dtype=torch.long)
        mask[rng.integers(6, 12) :] = 0
        samples.append({"input_ids": words * mask, "attention_mask": mask, "labels": torch.tensor(k % 2)})
    return samples


@pytest.mark.slow
def test_batches_that_are_mappings():
    def start(seed):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return Reader()

    task = Task(start(0), CROSS_ENTROPY, texts(80, 0), texts(60, 1), weight_decay=1e-3)
    original = fitted(task, start(0), epochs=60, lr=0.5)
    truths = [fitted(task, start(seed), range(20, 80), epochs=60, lr=0.5) for seed in (1, 2, 3, 4)]
    audited = audit(replace(task, model=original), original, truths[3], range(20), retrained=truths[:3])
    with torch.no_grad():
        said = original(*(torch.stack([one[key] for one in task.train_set[:20]]) for key in list(texts(1, 0)[0])[:2]))
    labels = torch.tensor([one["labels"] for one in task.train_set[:20]])
    assert audited.original.forget.value == pytest.approx((said.logits.argmax(1) == labels).float().mean().item())
    gap = audited.to_retraining.forget_calibrated
    assert gap.floor < gap.original
    assert gap.model < gap.original
    overlap = replace(task, test_set=[*texts(60, 1), {**task.train_set[5], "labels": torch.tensor(0)}])
    with pytest.raises(InputError, match=r"forget has sample 5, which is also in task\.test_set \(position 60\)"):
        audit(overlap, original, original, range(20))


def test_a_network_that_has_no_slices_is_audited_too():
    """As other methods may have changed it."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, CLASSES)

        def forward(self, inputs):
            return self.head(self.body(inputs.view(len(inputs), -1, 4))[0][:, -1])

    task = Task(Recurrent(), CROSS_ENTROPY, clusters(40, 0), clusters(40, 1))
    assert audit(task, task.model, Recurrent(), FORGET[:9]).change.layers == {}


# --- what is refused -------------------------------------------------------------------------------------------------


def changed(problem, **options):
    return replace(problem.task, **options)


@pytest.mark.slow
def test_bad_input_is_refused_with_a_remedy(problem):
    task, model = problem.task, problem.original
    train, test = task.train_set, task.test_set
    both = TensorDataset(
        torch.cat([test.tensors[0], train.tensors[0][7:8]]), torch.cat([test.tensors[1], torch.tensor([0])])
    )
    absent = part(test, [i for i in range(150) if i % CLASSES != 2])
    single = part(test, [i for i in range(150) if i % CLASSES != 2] + [2])
    one_class = TensorDataset(train.tensors[0], torch.ones(TRAINED, dtype=torch.long))
    wide, nan = network(0, hidden=9), copy.deepcopy(model)
    with torch.no_grad():
        nan[0].weight[0] = torch.nan
    of_two = [i for i in range(40) if i % CLASSES == 2]
    cases = [
        (
            r"forget has sample 7, which is also in task.test_set.*take it out",
            {"task": changed(problem, test_set=both)},
        ),
        (r"forget: .*at least one", {"forget": []}),
        (r"forget: .*from 0 to 199.*not 200", {"forget": [200]}),
        (r"forget: .*3 more than once", {"forget": [3, 3]}),
        (r"forget has all 200 samples.*leave", {"forget": range(TRAINED)}),
        (r"train_set has one class only \(1\).*pass", {"task": changed(problem, train_set=one_class)}),
        (r"original is of another architecture: 0\.bias is \(9,\) there and \(32,\).*pass one", {"original": wide}),
        (r"unlearned is of another architecture.*pass one", {"unlearned": wide}),
        (r"retrained has a model that is of another architecture.*pass one", {"retrained": [model, wide]}),
        (r"original is no torch.nn.Module, but a str", {"original": "model.pt"}),
        (r"unlearned is no torch.nn.Module, but a OrderedDict", {"unlearned": model.state_dict().copy()}),
        (r"retrained has a model that is no torch.nn.Module", {"retrained": ["a.pt"]}),
        (r"retrained has no model; pass", {"retrained": []}),
        (r"retrained must be a whole number.*not 0", {"retrained": 0}),
        (r"retrained must be a whole number.*not 2.5", {"retrained": 2.5}),
        (r"task has no test_set.*pass test_set=", {"task": changed(problem, test_set=None)}),
        (r"task has no test_set", {"task": changed(problem, test_set=part(test, []))}),
        (
            r"forget has samples of class 2, of which task.test_set has none.*add",
            {"task": changed(problem, test_set=absent)},
        ),
        (r"task.test_set has 1 sample.*add", {"task": changed(problem, test_set=single), "forget": of_two}),
        (r"kind must be.*not 'classes'\. Did you mean 'class'\?", {"kind": "classes"}),
        (r"metric must be.*Did you mean 'retrieval'\?", {"metric": "retreival"}),
        (r"metric must be.*Did you mean 'accuracy'\?", {"metric": "accurcy"}),
        (r'metric \'micro-f1\' needs.*try metric="auto"', {"metric": "micro-f1"}),
        (r"seed must be a whole number.*not -1", {"seed": -1}),
        (r"attacks must be one of.*Did you mean 'loss'\?", {"attacks": ["los"]}),
        (r"unlearned: the model's answers.*diverged", {"unlearned": nan}),
        (r"original: the model's answers.*diverged", {"original": nan}),
    ]
    given = {"task": task, "original": model, "unlearned": model, "forget": FORGET}
    for message, wrong in cases:
        with pytest.raises(InputError, match=message):
            audit(**{**given, **wrong})


def test_what_is_wrong_is_said_before_anything_is_trained(problem):
    def never(*_):
        raise AssertionError("was trained")

    absent = part(problem.task.test_set, [i for i in range(150) if i % CLASSES != 2])
    for wrong, options in (({"test_set": absent}, {}), ({}, {"metric": "rmse"}), ({}, {"metric": "no"})):
        with pytest.raises(InputError):
            audit(
                changed(problem, retrain=never, **wrong),
                problem.original,
                problem.original,
                FORGET,
                retrained=1,
                cache=None,
                **options,
            )


def test_kind_class_needs_classes(label_problem):
    with pytest.raises(InputError, match='kind="class" is for targets that are one class each'):
        look(label_problem, label_problem.original, kind="class")


@pytest.mark.slow
def test_an_original_that_was_never_trained_decides_nothing(problem):
    """Else any trained model would seem to have come all the way to retraining."""
    audited = audit(problem.task, fresh(problem.original, 5), problem.original, FORGET, retrained=problem.retrained)
    assert audited.verdict.outcome == "undecided"
    assert audited.verdict.findings[0].title == "Another original"


def test_forgotten_samples_must_all_be_audited(problem):
    step = Step(PerLayer(copies=32, observed_samples=2))
    done = Unlearner(replace(problem.task, model=problem.original), step).forget([0, 1])
    with pytest.raises(InputError, match="forget lacks sample 1"):
        audit(problem.task, problem.original, done, [0])
