"""Which samples a short text asks to forget."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from excise import InputError, Task
from excise.task.requests import parse_request

LABELS = [0, 1, 2, 0, 1, 0, 0, 1, 0, 5]


def make_task(labels=LABELS, inputs=None):
    """A model that gives 0 logits, so that inputs alone decide: the loss is their distance from 0."""
    inputs = torch.zeros(len(labels), 1) if inputs is None else torch.tensor(inputs)[:, None]
    model = nn.Linear(1, 6)
    nn.init.zeros_(model.weight)
    return Task(model, nn.CrossEntropyLoss(reduction="none"), TensorDataset(inputs, torch.tensor(labels)))


@pytest.mark.parametrize(
    ("spec", "count"), [("random:4", 4), ("random:30%", 3), ("random:1%", 1), ("random: 25% ", 3), ("random:12.5%", 1)]
)
def test_random_samples(spec, count):
    request = parse_request(spec, make_task())
    assert len(request) == len(set(request.ids)) == count
    assert request.ids == tuple(sorted(request.ids))
    assert request.spec == spec


def test_the_seed_decides_what_is_random():
    task = make_task(list(range(6)) * 20)
    assert parse_request("random:5", task, seed=3) == parse_request("random:5", task, seed=3)
    assert parse_request("random:5", task, seed=3).ids != parse_request("random:5", task, seed=4).ids
    assert parse_request("class:2:5", task, seed=3).ids != parse_request("class:2:5", task, seed=4).ids
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    parse_request("random:5", task)
    assert torch.equal(torch_state, torch.random.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


def test_every_sample_is_drawn_as_often():
    task = make_task()
    drawn = [i for seed in range(400) for i in parse_request("random:3", task, seed=seed).ids]
    assert np.abs(np.bincount(drawn, minlength=10) - 120).max() < 4 * np.sqrt(400 * 0.3 * 0.7)


def test_a_class():
    request = parse_request("class:1", make_task())
    assert (request.ids, request.kind, request.classes) == ((1, 4, 7), "class", (1,))


def test_some_of_a_class():
    request = parse_request("class:0:2", make_task())
    assert len(request) == 2
    assert set(request.ids) < {0, 3, 5, 6, 8}
    assert (request.kind, request.classes) == ("samples", ())
    assert len(parse_request("class:0:60%", make_task())) == 3
    assert parse_request("class:0:5", make_task()).kind == "class"


def test_the_kind_is_found_whatever_the_words():
    task = make_task()
    assert parse_request("ids:7,1,4", task).kind == "class"
    assert parse_request("ids:7,1,4,2", task).classes == (1, 2)
    partly = parse_request("ids:0,9", task)  # all of class 5, and one of class 0
    assert (partly.kind, partly.classes) == ("samples", (5,))


def test_the_hardest_come_first_and_ties_in_order():
    task = make_task()
    with torch.no_grad():
        task.model.bias.copy_(torch.tensor([3.0, 1.0, 2.0, 0.0, 0.0, 0.0]))  # class 5 is hardest, then 1, 2, 0
    assert parse_request("hardest:4", task).ids == (9, 1, 4, 7)
    assert parse_request("hardest:50%", task).ids == (9, 1, 4, 7, 2)
    other = nn.Linear(1, 6)
    nn.init.zeros_(other.weight)
    with torch.no_grad():
        other.bias.copy_(torch.tensor([3.0, 3.0, 0.0, 0.0, 0.0, 3.0]))
    assert parse_request("hardest:1", task, model=other).ids == (2,)


def test_ids_keep_their_order():
    assert parse_request("ids:3,5,9", make_task()).ids == (3, 5, 9)
    assert parse_request("ids: 9, 3", make_task()).ids == (9, 3)


@pytest.mark.parametrize("text", ["3\n5\n9\n", "3,5,9", " 3, 5\n\n9 ", "3\r\n5\r\n9"])
def test_ids_from_a_file(tmp_path, text):
    file = tmp_path / "ids.txt"
    file.write_text(text)
    assert parse_request(f"ids:{file}", make_task()).ids == (3, 5, 9)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b" \n", "is empty"),
        (b"3\nfive\n", "not 'five'"),
        (b"\xff\xfe\x00", "can't be read"),
        (b"3\n3", "more than once"),
    ],
)
def test_files_that_list_no_ids(tmp_path, content, message):
    file = tmp_path / "ids.txt"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        parse_request(f"ids:{file}", make_task())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("randm:3", "Did you mean 'random'"),
        ("random", "write it as random:40 or random:1%"),
        ("class:", "write it as class:3"),
        ("", "must be one of"),
        (3, "must be text"),
        ("random:few", "whole number, not 'few'"),
        ("random:0", "1 or more"),
        ("random:-2", "1 or more"),
        ("random:2.5", "whole number, not '2.5'"),
        ("random:0%", "above 0%"),
        ("random:101%", "at most 100%"),
        ("random:nan%", "above 0%"),
        ("random:x%", "above 0%"),
        ("random:11", "the training set has 10"),
        ("random:10", "all 10 samples"),
        ("hardest:100%", "all 10 samples"),
        ("class:4", "classes 0, 1, 2, 5"),
        ("class:one", "a class must be a whole number"),
        ("class:1:4", "class 1 has 3"),
        ("class:1:", "an amount must be a whole number"),
        ("ids:99", "from 0 to 9"),
        ("ids:-1", "from 0 to 9"),
        ("ids:3,3", "more than once"),
        ("ids:,", "names no id"),
        ("ids:no-such-file.txt", "or a file that exists, not 'no-such-file.txt'"),
        ("ids:99999999999999999999", "whole numbers"),
    ],
)
def test_requests_that_can_not_be_met(spec, message):
    with pytest.raises(InputError, match=message):
        parse_request(spec, make_task())


def test_a_task_of_one_class_only():
    with pytest.raises(InputError, match="all 3 samples"):
        parse_request("class:1", make_task([1, 1, 1]))


@pytest.mark.parametrize("targets", [[0.5, 1.0, 2.0], [[0, 1], [1, 1], [1, 0]]])
def test_tasks_without_classes(targets):
    data = TensorDataset(torch.zeros(3, 1), torch.tensor(targets))
    task = Task(nn.Linear(1, 2), nn.MSELoss(reduction="none"), data)
    with pytest.raises(InputError, match="one class per sample"):
        parse_request("class:1", task)
    request = parse_request("ids:0,2", task)
    assert (request.ids, request.kind, request.classes) == ((0, 2), "samples", ())


def test_classes_are_read_from_any_data_set():
    data = [{"x": torch.zeros(1), "labels": torch.tensor(label)} for label in LABELS]
    assert parse_request("class:1", Task(nn.Linear(1, 6), nn.CrossEntropyLoss(reduction="none"), data)).ids == (1, 4, 7)


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 3), min_size=3, max_size=30).flatmap(
        lambda labels: st.tuples(st.just(labels), st.sets(st.integers(0, len(labels) - 1), min_size=1, max_size=29))
    )
)
def test_classes_are_those_that_vanish(drawn):
    labels, ids = drawn
    if len(ids) == len(labels):
        return
    request = parse_request("ids:" + ",".join(map(str, ids)), make_task(labels))
    left = {label for i, label in enumerate(labels) if i not in ids}
    assert set(request.classes) == set(labels) - left
    assert (request.kind == "class") == all(labels[i] not in left for i in ids)


def test_what_is_forgotten_already_is_not_chosen_again():
    task = make_task()
    assert parse_request("class:1", task, forgotten=[1]).ids == (4, 7)
    assert parse_request("class:1", task, forgotten=[1]).kind == "class"
    assert parse_request("class:5:1", task, forgotten=[0]).classes == (5,)
    assert set(parse_request("random:7", task, forgotten=[0, 1]).ids) <= set(range(2, 10))
    with pytest.raises(InputError, match="8 samples were asked for, but the training set has 7"):
        parse_request("random:8", task, forgotten=[0, 1, 2])
    with pytest.raises(InputError, match="class 5 has no samples"):
        parse_request("class:5", task, forgotten=[9])
    hard = make_task(inputs=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    first = parse_request("hardest:2", hard).ids
    assert not set(parse_request("hardest:2", hard, forgotten=first).ids) & set(first)
