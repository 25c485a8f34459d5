"""From the outcome of a private request no way leads to the weights before its noise, walked by gc."""

import gc
import io
import pickle
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Privacy, Task, Unlearner, exact_fit
from excise.privacy.mechanism import SecretSource


@pytest.fixture(scope="module")
def task():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 3, generator=generator)
    inputs /= inputs.norm(dim=1, keepdim=True)
    torch.manual_seed(0)
    data = TensorDataset(inputs, torch.arange(60) % 2)
    start = Task(nn.Linear(3, 2), nn.CrossEntropyLoss(), data, weight_decay=0.5)
    return start.with_model(exact_fit(start).model)


def reached_from(thing):
    """All that can be got at from an object without leaving it for the program: modules, classes and globals."""
    seen, left = {}, [thing]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType | types.CodeType):
            continue
        seen[id(one)] = one
        referents = gc.get_referents(one)
        if isinstance(one, types.FunctionType):
            referents = [other for other in referents if other is not one.__globals__]
        if isinstance(one, torch.Tensor):
            referents += [one.grad if one.is_leaf else None, one._base, one.grad_fn]
        left += referents
    return list(seen.values())


def numbers_in(things):
    """Whatever holds floats, as flat arrays; of a view the whole memory behind it."""
    for one in things:
        if isinstance(one, torch.Tensor) and one.is_floating_point():
            storage = one.untyped_storage()
            yield torch.empty(0, dtype=one.dtype).set_(storage).detach().double().numpy()
        elif isinstance(one, np.ndarray) and one.dtype.kind == "f":
            yield one.astype(float).ravel()
        elif isinstance(one, list | tuple) and one and all(isinstance(number, float) for number in one):
            yield np.array(one)


def holds(things, weight):
    """Whether the weights are anywhere, in a row, to seven digits."""
    flat = weight.detach().double().flatten().numpy()
    for found in numbers_in(things):
        for begin in range(len(found) - len(flat) + 1):
            if np.allclose(found[begin : begin + len(flat)], flat, rtol=1e-7, atol=1e-9):
                return True
    return False


def holds_a_multiple(things, weight):
    """The same of the weights times any number, as noise is drawn before it is scaled."""
    flat = weight.detach().double().flatten().numpy()
    for found in numbers_in(things):
        for begin in range(len(found) - len(flat) + 1):
            part = found[begin : begin + len(flat)]
            if abs(part @ flat) > (1 - 1e-11) * np.linalg.norm(part) * np.linalg.norm(flat) > 0:
                return True
    return False


def deleted(task):
    unlearner = Unlearner(task, privacy=Privacy(lipschitz=3.0, hessian_lipschitz=1.0))
    done = unlearner.forget([3, 4], epsilon=1.0, delta=1e-3)
    return done, unlearner._model


def test_the_walk_finds_what_is_there(task):
    done, before = deleted(task)
    assert holds(reached_from(lambda: before), before.weight)
    assert holds(reached_from({"a": [before.weight.detach().numpy().copy()]}), before.weight)
    assert holds(reached_from([before.weight[0].detach()]), before.weight)
    assert holds(reached_from({"a": before.weight.flatten().tolist()}), before.weight)
    assert holds(reached_from(done), done.model.weight)
    noise = (done.model.weight.double() - before.weight.double()).detach()
    assert holds_a_multiple(reached_from([torch.zeros(3), (noise / 7).float()]), noise)
    assert holds(reached_from(Unlearner(task).forget([3])), task.model.weight)  # nothing is to be hidden there


def test_nothing_leads_to_the_weights_before_the_noise(task):
    done, before = deleted(task)
    for look in (lambda: None, lambda: done.certificate, done.as_dict, done.summary, lambda: done.fingerprint):
        look()
        reached = reached_from(done)
        for known in (before, task.model):  # the model as it was tells still more of the samples
            assert not holds(reached, known.weight)
            assert not any(one is known for one in reached)
        assert not any(isinstance(one, Task | Unlearner | SecretSource | torch.Generator) for one in reached)
        assert not holds_a_multiple(reached, done.model.weight.double() - before.weight.double())  # of the noise


def test_nor_after_it_was_sent_away(task, tmp_path):
    done, before = deleted(task)
    sent = pickle.dumps(done)
    buffer = io.BytesIO()
    torch.save(done, buffer)
    done.save(tmp_path / "done.safetensors")
    for content in (sent, buffer.getvalue(), (tmp_path / "done.safetensors").read_bytes()):
        for known in (before, task.model):
            for row in known.weight.detach():
                assert row.numpy().tobytes() not in content
    arrived = pickle.loads(sent)
    assert arrived.model.weight.equal(done.model.weight)
    assert arrived.certificate == done.certificate
    assert not holds(reached_from(arrived), before.weight)
