"""What every method, selection and curvature must keep, whichever it is."""

import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import (
    GGN,
    AllSlices,
    AtRandom,
    Cached,
    Descent,
    Drift,
    Fisher,
    Joint,
    LargestChange,
    OneSlice,
    PaperStep,
    PerLayer,
    Step,
    Task,
    Unlearner,
    fit,
)
from excise.baselines import AsMethod
from excise.curvature.operators import curvature
from excise.curvature.solvers import CG
from excise.curvature.strategies import CURVATURES, curvature_named
from excise.slices import find_slices
from excise.task.hashing import hash_of_model
from excise.unlearning.method import method_names, settings_of
from excise.unlearning.selection import SELECTIONS

pytestmark = pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
N, GONE = 60, [3, 8]


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    inputs = torch.randn(N, 4, dtype=torch.float64)
    data, held_out = (
        TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.7).long())
        for x in (inputs, torch.randn(30, 4, dtype=torch.float64))
    )
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    fitted = fit(Task(network, nn.CrossEntropyLoss(), data, weight_decay=0.02), epochs=30, lr=0.1, recorder=True)
    fitted.model.zero_grad()
    held_out.tensors[1][:20] = (held_out.tensors[1][:20] + 1) % 3  # known worse than what it was trained on
    return Task(fitted.model, nn.CrossEntropyLoss(), data, held_out, weight_decay=0.02), fitted.trace


def methods(trace):
    for_images = ("images", "mirrored-images", "ct")
    others = (*for_images, "paper", "ssd", "lotus", "exact")  # the last is for convex models
    named = [name for name in method_names() if name not in others]
    damped = AsMethod("ssd", {"alpha": 1.5})  # no weight of this small network passes the usual threshold
    unsure = AsMethod("lotus", {"aim": 0.0})  # it would leave samples alone that are known worse than held-out ones
    return [
        *named,
        damped,
        unsure,
        PaperStep(trace),
        Drift(selection=PerLayer()),
        Step(AllSlices(), GGN()),
        Descent(steps=2),
    ]


class TestMethods:
    @pytest.mark.slow
    def test_every_method_leaves_the_given_model_alone_and_says_what_it_did(self, trained):
        task, trace = trained
        task.model.train()
        given, modes = hash_of_model(task.model), [module.training for module in task.model.modules()]
        state = torch.get_rng_state()
        for method in methods(trace):
            unlearner = Unlearner(task, method)
            done = unlearner.forget(GONE)
            assert hash_of_model(task.model) == given, method
            assert [module.training for module in task.model.modules()] == modes, method
            assert all(weight.grad is None for weight in task.model.parameters()), method
            assert torch.equal(torch.get_rng_state(), state), method
            assert done.parameters_changed > 0, method
            assert hash_of_model(done.model) != given, method
            assert unlearner.forgotten == done.forgotten == tuple(GONE), method
            assert done.settings["method"]["name"], method
            assert pickle.loads(pickle.dumps(done)).as_dict() == done.as_dict(), method

    @pytest.mark.slow
    def test_every_method_is_decided_by_its_seed(self, trained):
        task, trace = trained
        for method in methods(trace):
            first, again = (hash_of_model(Unlearner(task, method, seed=4).forget(GONE).model) for _ in range(2))
            assert first == again, method

    @pytest.mark.slow
    def test_no_method_reads_what_earlier_requests_forgot(self, trained):
        """Neither to train on, nor to protect it, nor for curvature."""
        task, trace = trained

        read = set()

        class Watched(list):
            def __getitem__(self, place):
                read.add(place)
                return super().__getitem__(place)

        data = Watched(zip(*task.train_set.tensors, strict=True))
        watched = Task(task.model, task.loss, data, task.test_set, weight_decay=0.02)
        earlier = list(range(20, 40))
        for method in methods(trace):
            unlearner = Unlearner(watched, method, forgotten=earlier)
            read.clear()
            unlearner.forget(GONE)
            assert not read & set(earlier), method
            assert read & set(GONE), method

    def test_settings_are_plain_and_whole(self, trained):
        for method in methods(trained[1]):
            settings = Unlearner(trained[0], method).settings
            assert settings == pickle.loads(pickle.dumps(settings))
        assert settings_of(Step(AllSlices(), GGN(5, CG(3)), 0.5)) == {
            "name": "step",
            "selection": {"name": "AllSlices"},
            "curvature": {"name": "GGN", "samples": 5, "solver": {"name": "CG", "iterations": 3, "tolerance": 1e-6}},
            "size": 0.5,
        }


def two(*_):
    return [1, 4]


CHOICES = [
    PerLayer(copies=32),
    Joint(copies=32),
    Joint("cheap", copies=32),
    AllSlices(),
    OneSlice(),
    AtRandom(PerLayer(copies=32)),
    LargestChange(0.4),
    two,
]


class TestSelections:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "selection",
        [*CHOICES, *SELECTIONS],
        ids=lambda given: given if isinstance(given, str) else type(given).__name__,
    )
    def test_numbers_are_valid_and_stable_by_seed(self, trained, selection):
        task, _ = trained
        shares = [Unlearner(task, Step(selection), seed=1).stability(GONE, seeds=[5, 5]) for _ in range(2)]
        assert shares[0] == shares[1]
        assert set(shares[0].values()) == {1.0}
        names = {layer.slice_name(unit) for layer in find_slices(task.model).layers for unit in range(layer.units)}
        assert set(shares[0]) <= names
        assert shares[0]

    def test_numbers_out_of_range_are_named(self, trained):
        from excise import InputError

        for wrong, said in (([9], "not 9"), ([-1], "not -1"), ([], "not none")):
            with pytest.raises(InputError, match=f"slice numbers from 0 to 8, at least one, {said}"):
                Unlearner(trained[0], Step(lambda *_, wrong=wrong: wrong)).forget(GONE)


class TestCurvatures:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "given",
        [
            Cached(rank=100, rows=10**6, exact=10**6),
            GGN(solver=CG(400, 1e-13)),
            GGN(solver="cholesky"),
            Fisher(solver=CG(400, 1e-13)),
        ],
        ids=lambda given: f"{type(given).__name__} {type(getattr(given, 'solver', None)).__name__}",
    )
    @pytest.mark.parametrize("numbers", [[0, 4, 7], range(9)])
    def test_it_solves_what_the_dense_matrix_solves(self, trained, given, numbers):
        """With all rows kept exactly, the kept curvature is the Gauss-Newton matrix itself."""
        task, _ = trained
        slices, ids = find_slices(task.model), torch.arange(N)
        block = slices.block(numbers)
        inverse = given.prepare(task, task.model.eval(), slices, ids, seed=0, all_slices=False)
        kind = getattr(given, "kind", "ggn")
        gradient = torch.randn(block.size(dict(task.model.named_parameters())), dtype=torch.float64)
        kept = [i for i in range(N) if i not in GONE] if not isinstance(given, Cached) else list(range(N))
        dense = curvature(task, task.model, block, kept, kind=kind).dense(gradient)
        found = inverse.solve(task.model, block, gradient, without=GONE if not isinstance(given, Cached) else [])
        truth = torch.linalg.solve(dense + 0.02 * torch.eye(len(gradient)).double(), gradient)
        torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-7)

    def test_names_stand_for_objects(self):
        for name in CURVATURES:
            assert hasattr(curvature_named(name), "prepare")
