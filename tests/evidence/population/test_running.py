"""Populations as a user makes them: of small models, some of which were made before."""

import json
import threading
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import GaussianNoise, NothingForgotten, Task, fit
from excise.errors import InputError
from excise.evidence.population import population
from excise.evidence.population import running as running_module
from excise.training.model_cache import DamagedWarning
from excise.unlearning.method import Applied, Unprepared

MODELS, FORGET = 6, [1, 5, 9]


class Recipe:
    """Trains a small network, and remembers each time."""

    def __init__(self):
        self.trainings = []
        self.fails_at = None

    def task(self, *, epochs=20, samples=48):
        generator = torch.Generator().manual_seed(0)
        inputs, others = torch.randn(samples, 4, generator=generator), torch.randn(40, 4, generator=generator)
        rule = torch.randn(4, 3, generator=generator)
        train, test = (TensorDataset(x, (x @ rule).argmax(1)) for x in (inputs, others))

        def start(seed):
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                return Task(nn.Linear(4, 3), nn.CrossEntropyLoss(), train, test, weight_decay=0.01)

        def retrain(ids, seed):
            self.trainings.append((len(ids), seed))
            if len(self.trainings) == self.fails_at:
                raise KeyboardInterrupt
            return fit(start(seed), ids=ids, epochs=epochs, batch_size=16, seed=seed).model

        return replace(start(0), model=fit(start(0), epochs=epochs, seed=0).model, retrain=retrain)


@dataclass(frozen=True)
class Shrink(Unprepared):
    """Makes all weights smaller, and remembers which test samples it was given."""

    by: float = 0.1
    heeds_guard: ClassVar[bool] = False
    seen: ClassVar[list] = []

    def apply(self, workspace, _, /, model, removal):  # noqa: ARG002
        Shrink.seen.append(torch.stack([sample[0] for sample in workspace.task.test_set]))
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(self.by)
        return Applied()


@dataclass(frozen=True)
class Refuse(Unprepared):
    heeds_guard: ClassVar[bool] = False

    def apply(self, workspace, _, /, model, removal):  # noqa: ARG002
        raise NothingForgotten("not today")


@pytest.fixture
def recipe():
    return Recipe()


@pytest.fixture
def make(recipe, tmp_path):
    def call(methods=("step",), *, task=None, models=MODELS, **options):
        return population(task or recipe.task(), FORGET, methods, models=models, cache=tmp_path, **options)

    return call


def figures(found):
    """What does not depend on the clock."""
    record = found.as_dict()
    for row in (*record["rows"], record["floor"]):
        del row["seconds"], row["preparation"]
    return json.loads(json.dumps(record, allow_nan=False))


@pytest.mark.slow
def test_a_run_has_a_row_for_each_method_and_a_floor(make, recipe):
    found = make({"all": "step", "shrunk": Shrink(), "no": Refuse()})
    assert [row.name for row in found.rows] == ["nothing done", "all", "shrunk", "no"]
    assert (found.models, found.ids, found.request, found.is_enough) == (MODELS, tuple(FORGET), "3 samples", False)
    assert found.floor.name == "retrained"
    assert found.settings["shrunk"] == {"name": "Shrink", "by": 0.1}
    assert sorted(recipe.trainings)[:MODELS] == [(45, 501_000 + k) for k in range(MODELS)]
    assert sorted(recipe.trainings)[MODELS:] == [(48, 1000 + k) for k in range(MODELS)]
    nothing, _, shrunk, refused = found.rows
    assert shrunk.z["test"] > nothing.z["test"] + 0.5
    assert shrunk.accuracies["test"] == pytest.approx(nothing.accuracies["test"])
    assert shrunk.klom["test"] > nothing.klom["test"]
    assert (nothing.seconds, nothing.refused) == (0, 0)
    assert found.floor.seconds > 0
    assert (refused.refused, shrunk.refused) == (1, 0)
    for name in ("auc", "klom", "score", "z", "accuracies"):  # it is the original
        assert getattr(refused, name) == getattr(nothing, name)


@pytest.mark.slow
def test_a_second_run_trains_nothing_and_says_the_same(make, recipe):
    first, trained = make(), len(recipe.trainings)
    assert trained == 2 * MODELS
    assert figures(make()) == figures(first)
    assert len(recipe.trainings) == trained
    more = make(models=MODELS + 1)
    assert len(recipe.trainings) == trained + 2
    assert more.models == MODELS + 1
    make(seed=1)
    assert len(recipe.trainings) == 2 * trained + 2


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 4, 9])
def test_a_run_that_was_stopped_goes_on(at, make, recipe):
    recipe.fails_at = at
    with pytest.raises(KeyboardInterrupt):
        make()
    found = make()
    assert len(recipe.trainings) == 2 * MODELS + 1  # the one that was stopped, once more
    recipe.trainings.clear()
    assert figures(make()) == figures(found)
    assert not recipe.trainings


@pytest.mark.slow
def test_two_runs_at_once_share_the_work(recipe, tmp_path, monkeypatch):
    """Each with its own descriptors, as two processes have."""
    monkeypatch.setattr(running_module, "PAUSE", 0.01)
    others_are_made, found, workers = threading.Event(), [], []
    task = recipe.task()

    def together(ids, seed):
        workers.append(threading.get_ident())
        if seed == 1000:  # the first original takes long: the other run must not begin it too
            others_are_made.wait(30)
        if len(recipe.trainings) >= 3:
            others_are_made.set()
        return task.retrain(ids, seed)

    def work():
        mine = replace(task, retrain=together)
        found.append(population(mine, FORGET, ("step",), models=MODELS, cache=tmp_path))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    assert len(found) == 2
    assert figures(found[0]) == figures(found[1])
    assert len(set(workers)) == 2
    assert len(recipe.trainings) == len(set(recipe.trainings)) == 2 * MODELS


@pytest.mark.slow
def test_methods_see_one_half_of_the_test_samples_and_are_judged_on_the_other(recipe, tmp_path):
    Shrink.seen.clear()
    task = recipe.task()
    work = running_module.plan(task, FORGET, {"a": Shrink()}, models=MODELS, seed=0, folder=tmp_path)
    running_module.run(work)
    given = {tuple(row.tolist()) for row in Shrink.seen[0]}
    looked_at = {tuple(task.test_set[int(place)][0].tolist()) for place in work.evaluator._held_out}
    assert len(Shrink.seen) == MODELS
    assert (len(given), len(looked_at), len(given | looked_at)) == (20, 20, 40)
    assert work.samples == {"forget": 3, "retain": 45, "test": 20}


@pytest.mark.slow
def test_a_damaged_piece_is_made_anew_without_training(make, recipe, tmp_path):
    first = make()
    recipe.trainings.clear()
    file = min(tmp_path.glob("piece-*.npz"))
    file.write_bytes(file.read_bytes()[:100])
    with pytest.warns(DamagedWarning, match=file.name):
        assert figures(make()) == figures(first)
    assert not recipe.trainings


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False])
def test_a_group_of_pieces_made_by_a_worker_is_the_same(recipe, tmp_path, seen):
    """In the folder of all, where the worker sees it, else in one of its own that is gone afterwards."""
    methods = {"shrunk": Shrink(), "no": Refuse()}
    work = running_module.plan(recipe.task(), FORGET, methods, models=1, seed=0, folder=tmp_path)
    jobs = [job for job in work.pieces() if job[0] != "retrained"]
    sign = tmp_path / "sign"
    if seen:
        sign.touch()
    shared = running_module.Shared(work, work.samples, sign)
    found = running_module._make_group(shared, jobs)
    assert [job for job, _ in found] == jobs
    assert recipe.trainings == [(48, 1000)]  # once for all
    assert {job[2].exists() for job in jobs} == {seen}
    for job, piece in found:
        expected = work.make(*job[:2])
        assert piece.refused == expected.refused == float(job[0] == "no")
        assert all(np.array_equal(piece.margins[group], expected.margins[group]) for group in expected.margins)
    assert len(recipe.trainings) == 1 + (not seen)
    # methods of an original that another process is making are left for later
    assert list(running_module.one_by_one(work, jobs[1:], work.samples, originals=())) == []


def pieces_of(task, tmp_path, method=None):
    work = running_module.plan(task, FORGET, {"a": method or Shrink()}, models=1, seed=0, folder=tmp_path)
    return {name: file for name, _, file in work.pieces()}


def test_the_name_of_a_piece_changes_with_all_it_depends_on(recipe, tmp_path):
    task = recipe.task()
    names = pieces_of(task, tmp_path)
    assert len(set(names.values())) == 3
    assert pieces_of(recipe.task(), tmp_path) == names  # another object of the same content
    inputs, labels = task.test_set.tensors
    others = (
        recipe.task(epochs=21),
        recipe.task(samples=47),
        replace(task, test_set=TensorDataset(inputs + 1, labels)),
        replace(task, test_set=TensorDataset(inputs, 2 - labels)),
        replace(task, weight_decay=0.02),
        replace(task, retrain=None),
    )
    for other in others:
        assert not set(pieces_of(other, tmp_path).values()) & set(names.values())


def test_what_only_methods_heed_changes_their_pieces_alone(recipe, tmp_path):
    task = recipe.task()
    first, second = (pieces_of(one, tmp_path) for one in (task, replace(task, perturbation=GaussianNoise())))
    assert {name for name in first if first[name] != second[name]} == {"a"}


def test_methods_that_differ_have_pieces_of_their_own(recipe, tmp_path):
    class Other(Shrink):
        def apply(self, workspace, prepared, /, model, removal):
            return super().apply(workspace, prepared, model, removal)

    Other.__name__ = Other.__qualname__ = "Shrink"
    names = [pieces_of(recipe.task(), tmp_path, method) for method in (Shrink(), Shrink(0.4), Other())]
    assert len({one["a"] for one in names}) == 3
    assert len({one["original"] for one in names}) == 1


class Moving(torch.utils.data.Dataset):
    """Gives other values at each reading, as with augmentation."""

    def __init__(self, data):
        self.data, self.rng = data, np.random.default_rng(0)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, place):
        inputs, label = self.data[place]
        return inputs + float(self.rng.normal()), label


def test_augmentation_inside_a_set_is_refused(make, recipe):
    task = recipe.task()
    with pytest.raises(InputError, match=r"train_set gives other values at each reading.*retrain="):
        make(task=replace(task, train_set=Moving(task.train_set)))
    with pytest.raises(InputError, match="test_set gives other values at each reading"):
        make(task=replace(task, test_set=Moving(task.test_set)))
    assert not recipe.trainings


def test_bad_arguments_are_named_before_any_training(make, recipe):
    task = recipe.task()
    bad = {
        "models must be 6 or more, not 5": {"models": 5},
        "needs task.test_set": {"task": replace(task, test_set=None)},
        "methods has 'retrained'": {"methods": {"retrained": "step"}},
        "methods must be a list of names": {"methods": "step"},
        "method .*'nonsense'": {"methods": ["nonsense"]},
        "seed": {"seed": -1},
    }
    for words, options in bad.items():
        with pytest.raises(InputError, match=words):
            make(**options)
    with pytest.raises(InputError, match="forget"):
        population(task, range(48), models=MODELS)
    assert not recipe.trainings


def test_a_task_without_classes_is_refused(tmp_path):
    data = TensorDataset(torch.randn(12, 2), torch.randn(12, 1))
    task = Task(nn.Linear(2, 1), nn.MSELoss(), data, data)
    with pytest.raises(InputError, match="samples of one class each"):
        population(task, [0], models=MODELS, cache=tmp_path)


@pytest.mark.slow
def test_a_model_that_diverged_is_told(make, recipe):
    task = recipe.task()

    def diverging(ids, seed):
        model = task.retrain(ids, seed)
        with torch.no_grad():
            model.weight.fill_(torch.nan)
        return model

    with pytest.raises(InputError, match="outputs that are not finite"), pytest.warns(UserWarning, match="not finite"):
        make(task=replace(task, retrain=diverging))
