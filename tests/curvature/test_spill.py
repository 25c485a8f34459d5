"""Kept curvature that lies in files solves as the one in memory does."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toy_classifier import FORGET, N, classifier, flat

from excise import Cached, InputError, Step, Task, Unlearner
from excise.curvature import kfac
from excise.curvature.groups import groups_within
from excise.curvature.layer_statistics import INPUTS
from excise.curvature.spill import Spill
from excise.slices.slices import find_slices
from excise.task.parameters import trainable


def blocks(slices):
    return [range(len(slices)), range(1, len(slices), 2), [len(slices) - 1]]


def of_pictures():
    torch.manual_seed(0)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 5, (1, 2)), nn.Flatten(), nn.Linear(10, 3)).double()


@pytest.mark.parametrize("exact", [0, 5])
@pytest.mark.parametrize("convolution", [False, True])
def test_a_solve_layer_by_layer_is_the_solve(exact, convolution):
    task = classifier()
    if convolution:
        task = task.with_model(of_pictures())
    slices = find_slices(task.model)
    options = {"rank": 3, "rows": 40, "exact": exact, "seed": 1}
    held = kfac.cache(task, task.model, slices, torch.arange(N), **options)
    in_files = kfac.cache(task, task.model, slices, torch.arange(N), **options, memory=0)
    assert held.spill is None
    assert in_files.spill.in_memory == 0
    assert in_files.spill.in_files > 0
    weights = trainable(task.model)
    for numbers in blocks(slices):
        block = slices.block(numbers)
        gradient = torch.randn(block.size(weights), generator=torch.Generator().manual_seed(2)).double()
        for without in ((), FORGET, range(N)):
            expected = held.solve(block, gradient, damping=0.1, without=without)
            again = held._solve_by_layers(block, gradient, 0.1, without)
            torch.testing.assert_close(again, expected, rtol=1e-9, atol=1e-12)
            found = in_files.solve(block, gradient, damping=0.1, without=without)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_files_change_no_step_of_a_linear_network():
    """Where no places of a sample are drawn, groups of layers see the same inputs as all at once."""
    task = classifier()
    steps = [
        Unlearner(task, Step("all", Cached(memory=memory))).forget(FORGET).model.state_dict()
        for memory in (None, 0, "1kB")
    ]
    for other in steps[1:]:
        for name, weight in steps[0].items():
            torch.testing.assert_close(other[name], weight, rtol=1e-7, atol=1e-10)


def test_memory_holds_what_has_room_and_files_the_rest():
    spill = Spill(1000)
    kept = [spill.keep(torch.full((100,), float(number))) for number in range(4)]  # 400 bytes each
    assert (spill.in_memory, spill.in_files) == (800, 800)
    spill.give_back()
    assert [float(one.sum()) for one in kept] == [0, 100, 200, 300]


def test_no_more_than_half_of_what_is_free(monkeypatch):
    monkeypatch.setattr("excise.curvature.spill.available", lambda: 1000)
    assert Spill().limit == 500
    assert Spill(300).limit == 300
    assert Spill(10**9).limit == 500


def test_layers_are_grouped_by_what_fits():
    model = nn.Sequential(*(nn.Linear(10, 10) for _ in range(5)))
    layers = find_slices(model).layers
    each = 4 * INPUTS * 11 + 2 * 4 * 10**2  # vectors with a bias; B and its eigenvectors
    sizes = {limit: [len(group) for group in groups_within(Spill(limit * each), layers, model)] for limit in (0, 2, 9)}
    assert sizes == {0: [1] * 5, 2: [2, 2, 1], 9: [5]}


@pytest.mark.parametrize("memory", ["lots", -1, 1.5, True])
def test_what_is_no_size_is_refused(memory):
    with pytest.raises(InputError, match="memory must be"):
        Cached(memory=memory)


def half_task(dtype):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 16, generator=generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(dtype)
    data = TensorDataset(inputs, inputs[:, :4].argmax(1))
    return Task(model, nn.CrossEntropyLoss(), data, weight_decay=0.05)


@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
@pytest.mark.parametrize(("size", "off"), [(1.0, 0.03), (0.01, 0.3)])
def test_a_step_in_bfloat16_is_that_in_single_precision_on_average(size, off):
    """A small step is lost by rounding to the nearest number; at random it is right on average."""
    short, single = half_task(torch.bfloat16), half_task(torch.float32)
    single.model.load_state_dict({name: one.float() for name, one in short.model.state_dict().items()})
    method = Step("all", Cached(rows=5000), size=size)  # all rows: other ones drawn would be another step
    done, truth = (Unlearner(task, method, guard=None).forget(range(20)) for task in (short, single))
    assert {weight.dtype for weight in done.model.parameters()} == {torch.bfloat16}
    before, after, wanted = (flat(model).float() for model in (short.model, done.model, truth.model))
    moved, wanted, nearest = after - before, wanted - before, wanted.bfloat16().float() - before

    def along(step):
        return float(step @ wanted / (wanted @ wanted))

    assert abs(along(moved) - 1) < off
    if size == 1:
        assert float((moved - wanted).norm() / wanted.norm()) < off
    else:
        assert int((nearest != 0).sum()) < int((moved != 0).sum())
    assert done.certificate.gradient_norm == pytest.approx(truth.certificate.gradient_norm, rel=0.1)


@pytest.mark.parametrize("method", ["drift", "auto", Step("all", "ggn")])
@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
def test_methods_that_would_lose_small_changes_refuse_bfloat16(method):
    words = r"bfloat16.*\.float\(\).*\.to\(torch\.bfloat16\), or take Step\(\)"
    with pytest.raises(InputError, match=words):
        Unlearner(half_task(torch.bfloat16), method)
    Unlearner(half_task(torch.bfloat16), "step")


def test_float16_is_refused_by_all():
    with pytest.raises(InputError, match="in float16, in which the small changes"):
        Unlearner(half_task(torch.float16), "step")


def pictures(count):
    generator = torch.Generator().manual_seed(1)
    return [
        {"pixel_values": torch.randn(3, 8, 8, generator=generator), "labels": torch.tensor(place % 2)}
        for place in range(count)
    ]


def texts(count):
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(5, 50, (6,), generator=generator) for _ in range(count)]
    return [{"input_ids": one, "labels": torch.tensor(place % 2)} for place, one in enumerate(tokens)]


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return ViTForImageClassification(ViTConfig(hidden_size=32, image_size=8, patch_size=4, **config)), pictures(20)


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=50, hidden_size=32, **config)), texts(20)


def resnet():
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 2], layer_type="bottleneck")
    return ResNetForImageClassification(config), pictures(20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "dtype"), [(vit, torch.float32), (vit, torch.bfloat16), (bert, torch.float32), (resnet, torch.float32)]
)
@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
@pytest.mark.filterwarnings("ignore::excise.unlearning.suitability.UntouchedParametersWarning")
def test_networks_of_several_kinds_with_factors_in_files(make, dtype):
    """The small forms of those in ``benchmarks/large_networks.py``."""
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, samples = make()
    model = model.eval().to(dtype)
    before = copy.deepcopy(model.state_dict())
    task = Task(model, nn.CrossEntropyLoss(), samples, weight_decay=1e-3)
    changed = []
    for memory in ("10kB", None):
        unlearner = Unlearner(task, Step("all", Cached(memory=memory)), guard=None).prepare()
        spill = unlearner._prepared.inverse.kept.spill
        assert (spill is None) == (memory is None)
        if spill is not None:
            assert spill.in_memory <= 10_000 < spill.in_files
        done = unlearner.forget([1]).model
        assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
        assert {weight.dtype for weight in done.parameters()} == {dtype}
        changed.append(flat(done).float() - flat(model).float())
    by_files, in_memory = changed
    assert float(in_memory.norm()) > 0
    # filters are seen at places that are drawn anew for each group of layers
    off = {resnet: 0.3}.get(make, 0.3 if dtype == torch.bfloat16 else 1e-3)
    assert float((by_files - in_memory).norm() / in_memory.norm()) < off
