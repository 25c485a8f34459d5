"""Retraining: weights that are really new, a cache that knows what it depends on, and files that are whole."""

import copy
import functools
import json
import os
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import nn
from torch.utils.data import TensorDataset

from excise import InputError, Task, fit
from excise.evidence.auditing import audit
from excise.task.hashing import hash_of_model
from excise.task.ids import all_but
from excise.training import model_cache
from excise.training.model_cache import DamagedWarning, NotKeptWarning
from excise.training.retraining import fresh, retrain, seeded
from excise.training.several import retrainings

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


def used(model):
    """A model as after a training: every number in it is another one."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *(one for one in model.buffers() if one.is_floating_point())):
            tensor.add_(0.1 + torch.rand(tensor.shape, generator=torch.Generator().manual_seed(1)))
    return model


def assert_all_new(old, new):
    for name, weight in new.named_parameters():
        before = old.get_parameter(name)
        assert weight.isfinite().all(), name
        assert (weight != before).all(), f"{name} was kept"


def convolutional():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def random_states():
    return torch.get_rng_state().numpy().tobytes(), repr(np.random.get_state()), random.getstate()  # noqa: NPY002


# --- fresh weights ---------------------------------------------------------------------------------------------------


def test_fresh_weights_are_new_and_follow_the_seed():
    model = used(convolutional())
    before, state = hash_of_model(model), random_states()
    one, same, other = fresh(model, 0), fresh(model, 0), fresh(model, 1)
    assert_all_new(model, one)
    assert hash_of_model(one) == hash_of_model(same) != hash_of_model(other)
    assert hash_of_model(model) == before
    assert random_states() == state


def test_batch_statistics_begin_anew():
    new = fresh(used(convolutional()).train(), 0)
    assert torch.equal(new[1].running_mean, torch.zeros(4))
    assert torch.equal(new[1].running_var, torch.ones(4))
    assert torch.equal(new[1].weight, torch.ones(4))


def test_fresh_weights_are_spread_as_torch_spreads_them():
    """U(-1/√n, 1/√n) for a linear layer of n inputs."""
    weight = fresh(used(nn.Linear(400, 300)), 0).weight
    assert weight.abs().max() <= 1 / 20
    assert weight.std().item() == pytest.approx(1 / 20 / 3**0.5, rel=0.02)


def test_parts_come_before_the_whole_as_when_a_module_is_made():
    """Attention makes the bias of its output layer 0; the layer alone would draw it."""
    model = used(nn.MultiheadAttention(8, 2))
    new = fresh(model, 0)
    assert_all_new(model, new)
    assert torch.equal(new.out_proj.bias, torch.zeros(8))
    assert torch.equal(new.in_proj_bias, torch.zeros(24))


@pytest.mark.parametrize("kind", ["bert", "resnet", "vit inside another"])
def test_models_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    if kind == "bert":
        model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=500, **small))
    elif kind == "resnet":
        config = transformers.ResNetConfig(num_channels=1, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1])
        model = transformers.ResNetForImageClassification(config)
    else:
        config = transformers.ViTConfig(image_size=8, patch_size=4, **small)
        model = nn.Sequential(transformers.ViTForImageClassification(config), nn.Linear(2, 2))
    new = fresh(used(model), 0)
    assert_all_new(model, new)
    means = [one for name, one in new.named_buffers() if name.endswith("running_mean")]
    assert bool(means) == (kind == "resnet")
    assert not any(one.any() for one in means)
    if kind == "bert":  # of the model's own spread, where torch's embeddings have 1
        assert new.bert.embeddings.word_embeddings.weight.std().item() == pytest.approx(0.02, rel=0.1)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, inputs):
        return self.factor * inputs


class Forgetful(nn.Module):
    """Says how its linear layers begin, and forgets its own weight."""

    def __init__(self):
        super().__init__()
        self.token, self.head = nn.Parameter(torch.randn(3)), nn.Linear(3, 2)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.ones_(module.weight)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.Sequential(nn.Linear(1, 1), Scale()), r"1\.factor \(of a Scale\)"),
        (Forgetful(), r"token \(of a Forgetful\)"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), r"parametrizations\.weight\.original0"),
    ],
)
def test_weights_that_nobody_sets_anew_are_refused(model, name):
    """Else the retrained model would have seen the samples."""
    with pytest.raises(InputError, match=f"model has {name}.*pass retrain= to Task"):
        fresh(model, 0)


def test_what_is_frozen_stays():
    """A pretrained body was not learned from the samples, and fresh weights of it would never be trained."""
    model = used(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), Scale(), nn.Linear(4, 2)))
    model[:3].requires_grad_(False)
    new = fresh(model, 0)
    for part in range(3):
        assert hash_of_model(new[part]) == hash_of_model(model[part])
    assert (new[3].weight != model[3].weight).all()
    assert not new[0].weight.requires_grad


# --- the randomness of recipes ---------------------------------------------------------------------------------------


def test_a_recipe_finds_randomness_seeded_and_leaves_none_behind():
    drawn = []

    def recipe(*_):
        drawn.append((torch.rand(1).item(), np.random.random(), random.random()))  # noqa: NPY002
        return nn.Linear(2, 2)

    task, before = replace(problem(), retrain=recipe), random_states()
    models = [retrain(task, [0], seed=seed).model for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert hash_of_model(models[0]) == hash_of_model(models[1]) != hash_of_model(models[2])
    assert random_states() == before


def test_randomness_is_restored_after_an_error_too():
    def fail():
        with seeded(3):
            random.random()
            torch.rand(3)
            raise ZeroDivisionError

    before = random_states()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert random_states() == before


# --- what is trained, and what is kept -------------------------------------------------------------------------------


def problem(seed=0):
    rng = np.random.default_rng(seed)
    inputs, labels = rng.standard_normal((30, 2)), np.arange(30) % 2
    inputs[:, 0] += 2 * labels
    data = torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)
    train, test = (TensorDataset(*(part[some] for part in data)) for some in (slice(20), slice(20, 30)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Task(nn.Linear(2, 2), CROSS_ENTROPY, train, test, weight_decay=1e-2)


def counting(task):
    """The task with a recipe that remembers what it was asked."""
    asked = []

    def recipe(ids, seed):
        asked.append((ids.tolist(), seed))
        return fit(replace(task, model=fresh(task.model, seed)), ids=ids, epochs=1, seed=seed).model

    return replace(task, retrain=recipe), asked


def test_without_a_recipe_it_is_fit_from_fresh_weights():
    task = problem()
    before = hash_of_model(task.model)
    found = retrain(task, [1, 3], seed=4)
    truth = fit(replace(task, model=fresh(task.model, 4)), ids=all_but([1, 3], len(task.train_set)), seed=4).model
    assert hash_of_model(found.model) == hash_of_model(truth)
    assert hash_of_model(task.model) == before
    assert not found.from_cache
    assert found.seconds > 0


@pytest.mark.slow
def test_a_second_audit_trains_nothing(tmp_path):
    task, asked = counting(problem())
    one = audit(task, task.model, task.model, [1, 3], retrained=2, cache=tmp_path)
    assert [ids for ids, _ in asked] == [all_but([1, 3], len(task.train_set)).tolist()] * 2
    assert len({seed for _, seed in asked}) == 2
    files = sorted(tmp_path.iterdir())
    assert [file.suffix for file in files] == [".safetensors"] * 2
    two = audit(task, task.model, task.model, [3, 1], retrained=2, cache=str(tmp_path))
    assert len(asked) == 2
    assert two.retrained[0].model_hash == one.retrained[0].model_hash
    assert two.change.retraining_seconds == one.change.retraining_seconds
    assert audit(task, task.model, task.model, [1, 3], retrained=2, cache=tmp_path) == one
    audit(task, task.model, task.model, [1, 3], retrained=3, cache=tmp_path)
    assert len(asked) == 3


def test_the_file_says_what_was_left_out_and_one_that_does_not_is_read_as_before(tmp_path):
    task, asked = counting(problem())
    retrain(task, [3, 1], seed=0, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    with safe_open(file, framework="pt") as opened:
        record = opened.metadata()
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    assert json.loads(record["trained_on"]) == {"train_set": task.fingerprint.ordered, "left_out": [1, 3]}
    earlier = {name: value for name, value in record.items() if name not in ("trained_on", "sha256")}
    seal = model_cache._hash_of_content(tensors, earlier)
    file.write_bytes(save(tensors, earlier | {"sha256": seal}))
    assert retrain(task, [1, 3], seed=0, cache=tmp_path).from_cache
    assert len(asked) == 1


def test_without_a_cache_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    task, asked = counting(problem())
    for _ in range(2):
        audit(task, task.model, task.model, [1], retrained=1, cache=None)
    assert len(asked) == 2
    assert list(tmp_path.iterdir()) == []


def with_default(*_, epochs=1):
    return nn.Linear(2, 2 if epochs else 3)


def with_other_default(*_, epochs=2):
    return nn.Linear(2, 2 if epochs else 3)


class Recipe:
    def __init__(self, epochs):
        self.epochs = epochs

    def __call__(self, *_):
        return nn.Linear(2, 2)

    def train(self, *_):
        return nn.Linear(2, 2)


def closing_over(epochs):
    def recipe(*_):
        return nn.Linear(2, 2 if epochs else 3)

    return recipe


def key(tmp_path, task, forget=(1,), seed=0):
    """The name of the file that it is kept in."""
    before = set(tmp_path.iterdir())
    retrain(task, list(forget), seed=seed, cache=tmp_path)
    new = set(tmp_path.iterdir()) - before
    return new.pop().name if new else None


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda task: (task, (2,), 0),
        lambda task: (task, (1, 2), 0),
        lambda task: (task, (1,), 1),
        lambda task: (replace(task, train_set=problem(1).train_set), (1,), 0),
        lambda task: (replace(task, weight_decay=0.02), (1,), 0),
        lambda task: (replace(task, loss=nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)), (1,), 0),
        lambda task: (replace(task, loss=nn.CrossEntropyLoss(torch.tensor([1.0, 2.0]), reduction="none")), (1,), 0),
        lambda task: (replace(task, loss=lambda a, b: CROSS_ENTROPY(2 * a, b)), (1,), 0),
        lambda task: (replace(task, forward=lambda model, batch: (2 * model(batch[0]), batch[1])), (1,), 0),
        lambda task: (replace(task, model=nn.Linear(2, 2, bias=False)), (1,), 0),
        lambda task: (replace(task, model=nn.Sequential(nn.Linear(2, 2))), (1,), 0),
        lambda task: (replace(task, retrain=with_default), (1,), 0),
    ],
    ids=[
        "sample",
        "samples",
        "seed",
        "data",
        "decay",
        "smoothing",
        "weight",
        "loss",
        "forward",
        "bias",
        "name",
        "recipe",
    ],
)
def test_what_a_retrained_model_depends_on_is_in_its_name(tmp_path, change):
    task = problem()
    first = key(tmp_path, task)
    assert first is not None
    assert key(tmp_path, task) is None
    task, forget, seed = change(task)
    assert key(tmp_path, task, forget, seed) not in (None, first)
    assert key(tmp_path, task, forget, seed) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (with_default, with_other_default),
        (functools.partial(with_default, epochs=1), functools.partial(with_default, epochs=3)),
        (Recipe(1), Recipe(2)),
        (Recipe(1).train, Recipe(2).train),
        (Recipe(1), Recipe(1).train),
        (closing_over(1), closing_over(2)),
        (closing_over({"epochs": [1]}), closing_over({"epochs": [2]})),
        (closing_over(torch.tensor([1.0])), closing_over(torch.tensor([2.0]))),
        (lambda *_: nn.Linear(2, 2).half().float(), lambda *_: nn.Linear(2, 2).double().float()),
        (
            lambda *_: [nn.Linear(2, 2) for _ in range(1)].pop(),
            lambda *_: [nn.Linear(2, 2) for _ in range(2)].pop(),
        ),
    ],
    ids=[
        "default",
        "partial",
        "object",
        "method",
        "call",
        "closure",
        "options",
        "tensor",
        "another name",
        "comprehension",
    ],
)
def test_a_changed_recipe_is_another(tmp_path, one, other):
    task = problem()
    assert key(tmp_path, replace(task, retrain=one)) is not None
    assert key(tmp_path, replace(task, retrain=one)) is None
    assert key(tmp_path, replace(task, retrain=other)) is not None


def test_frozen_weights_are_in_the_name_and_trained_ones_are_not(tmp_path):
    def task_of(body, head):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        nn.init.constant_(model[0].weight, body), nn.init.constant_(model[1].weight, head)
        nn.init.zeros_(model[0].bias), nn.init.zeros_(model[1].bias)
        model[0].requires_grad_(False)
        return replace(problem(), model=model)

    assert key(tmp_path, task_of(1.0, 1.0)) is not None
    assert key(tmp_path, task_of(1.0, 2.0)) is None
    assert key(tmp_path, task_of(2.0, 1.0)) is not None


SCRIPT = """
import sys, torch
from pathlib import Path
from torch import nn
from torch.utils.data import TensorDataset
from excise import Task
from excise.training.retraining import retrain


def recipe(ids, seed):
    kinds = [one for one in ("a", "b", "c", "d") if one in {"a", "b", "c", "d"}]
    pick = sorted(kinds, key=lambda one: (one, RATE))
    return nn.Linear(2, 2)

data = TensorDataset(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))
loss = lambda a, b: nn.functional.cross_entropy(a, b, reduction="none")
for rate in sys.argv[2:]:
    RATE, cache = float(rate), Path(sys.argv[1])
    retrain(Task(nn.Linear(2, 2), loss, data, retrain=recipe), [0], seed=0, cache=cache)
    print(len(list(cache.iterdir())))
"""


@pytest.mark.slow
def test_a_recipe_has_the_same_name_in_every_process(tmp_path):
    """Not so its place in memory, nor the order of its sets; a number that it reads counts."""
    script, cache = tmp_path / "script.py", tmp_path / "cache"
    script.write_text(SCRIPT)
    counts = []
    for hash_seed, rates in (("1", ["0.1"]), ("2", ["0.1", "0.2"])):
        command = [sys.executable, str(script), str(cache), *rates]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
        counts += map(int, done.stdout.split())
    assert counts == [1, 1, 2]


DAMAGE = {
    "empty": lambda *_: b"",
    "half": lambda whole, *_: whole[: len(whole) // 2],
    "nonsense": lambda *_: b"\xff" * 200,
    "another shape": lambda _, state, record: save({**state, "weight": torch.ones(9)}, record),
    "a weight missing": lambda _, state, record: save({"weight": state["weight"]}, record),
    "a weight too many": lambda _, state, record: save({**state, "other": torch.ones(1)}, record),
    "not finite": lambda _, state, record: save({**state, "bias": torch.tensor([0.0, torch.nan])}, record),
    "no record": lambda _, state, __: save(state),
    "a record that is none": lambda _, state, record: save(state, {**record, "seconds": "{"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_named_trained_again_and_mended(tmp_path, how):
    task, asked = counting(problem())
    truth = retrain(task, [1], seed=0, cache=tmp_path).model
    file = next(tmp_path.iterdir())
    with safe_open(file, framework="pt") as opened:
        state, record = {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118
    file.write_bytes(DAMAGE[how](file.read_bytes(), state, record))
    with pytest.warns(DamagedWarning, match=rf"{file.name} is damaged \(.*\); its model is trained anew"):
        again = retrain(task, [1], seed=0, cache=tmp_path)
    assert not again.from_cache
    assert hash_of_model(again.model) == hash_of_model(truth)
    assert retrain(task, [1], seed=0, cache=tmp_path).from_cache
    assert len(asked) == 2


def test_a_model_that_is_not_finite_is_not_kept(tmp_path):
    def recipe(*_):
        return nn.Linear(2, 2).requires_grad_(False).apply(lambda layer: layer.bias.fill_(torch.inf)).requires_grad_()

    with pytest.warns(NotKeptWarning, match="bias has values that are not finite"):
        found = retrain(replace(problem(), retrain=recipe), [1], seed=0, cache=tmp_path)
    assert found.model.bias.isinf().all()
    assert list(tmp_path.iterdir()) == []


def test_a_mask_of_the_model_itself_may_be_infinite(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    task = replace(problem(), model=model)
    assert [retrain(task, [1], seed=0, cache=tmp_path).from_cache for _ in range(2)] == [False, True]


def test_retrainings_have_seeds_of_their_own_and_more_of_them_begin_with_the_same(tmp_path):
    task, asked = counting(problem())
    two = [hash_of_model(one.model) for one in retrainings(task, [1], 2, seed=0, cache=tmp_path)]
    three = [hash_of_model(one.model) for one in retrainings(task, [1], 3, seed=0, cache=tmp_path)]
    other = [hash_of_model(one.model) for one in retrainings(task, [1], 2, seed=1)]
    assert three[:2] == two
    assert len({*three, *other}) == 5
    assert [seed for _, seed in asked] == [1000, 1001, 1002, 2000, 2001]


def test_a_stopped_write_leaves_nothing_behind(tmp_path, monkeypatch):
    """The disk is full, half way through: a warning, no file, and the training is not lost."""

    def half(_, file, *__):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("excise.training.model_cache.save_file", half)
    with pytest.warns(NotKeptWarning, match="No space left"):
        found = retrain(problem(), [1], seed=0, cache=tmp_path)
    assert found.model.weight.isfinite().all()
    assert list(tmp_path.iterdir()) == []


def test_a_file_appears_only_when_it_is_whole(tmp_path, monkeypatch):
    """Whoever kills the process in between leaves no file of the final name."""
    seen = []

    def spying(state, file, record):
        from safetensors.torch import save_file

        save_file(state, file, record)
        seen.extend(path.name for path in tmp_path.iterdir())

    monkeypatch.setattr("excise.training.model_cache.save_file", spying)
    retrain(problem(), [1], seed=0, cache=tmp_path)
    assert len(seen) == 1
    assert seen[0].startswith(".")
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"]


def test_a_folder_that_is_none_is_a_warning_too(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.warns(NotKeptWarning, match=r"cache=.*file"):
        retrain(problem(), [1], seed=0, cache=file)


def test_kept_models_are_read_back_exactly(tmp_path):
    """With batch statistics, tied weights and half precision."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.one, self.two = nn.BatchNorm1d(2), nn.Linear(2, 2), nn.Linear(2, 2)
            self.two.weight = self.one.weight
            self.register_buffer("small", torch.ones(2, dtype=torch.bfloat16))

        def forward(self, inputs):
            return self.two(self.one(self.norm(inputs)))

    task = replace(problem(), model=Tied())
    first, second = (retrain(task, [1], seed=0, cache=tmp_path) for _ in range(2))
    assert second.from_cache
    assert hash_of_model(first.model) == hash_of_model(second.model)
    assert second.model.two.weight is second.model.one.weight
    assert second.seconds == first.seconds
    assert not second.model.training


# --- what is refused -------------------------------------------------------------------------------------------------


def test_recipes_that_give_something_else_are_refused():
    task = problem()
    for recipe, message in (
        (lambda *_: nn.Linear(2, 3), "task.retrain gave a model that is of another architecture"),
        (lambda *_: None, "task.retrain gave a model that is no torch.nn.Module"),
        (lambda *_: task.model, "task.retrain gave the task's own model back"),
    ):
        with pytest.raises(InputError, match=message):
            retrain(replace(task, retrain=recipe), [1], seed=0)
    with pytest.raises(InputError, match="seed must be a whole number"):
        retrain(task, [1], seed=-1)


def test_hashes_tell_data_and_models_apart():
    task = problem()
    inputs, labels = task.train_set.tensors
    changed = replace(task, train_set=TensorDataset(inputs, 1 - labels))
    assert task.fingerprint == problem().fingerprint
    assert task.fingerprint != changed.fingerprint
    model = copy.deepcopy(task.model)
    assert hash_of_model(model) == hash_of_model(task.model)
    with torch.no_grad():
        model.bias[0] = torch.nextafter(model.bias[0], torch.tensor(9.0))
    assert hash_of_model(model) != hash_of_model(task.model)
