"""Batches taken apart and put together: tuples, lists and mappings."""

from collections import UserDict

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import InputError, Task
from excise.slices.activations import GaussianNoise, ScaledNoise
from excise.task.batches import (
    answer,
    inputs_of,
    joined,
    label_of,
    labels_of,
    map_tensors,
    part,
    real_values,
    repeated,
    shown_input,
    tensors_in,
    to_double,
    token_mask,
    tokens_in,
    with_inputs,
    with_real_values,
    with_tokens,
)
from excise.unlearning.views import Views, mean_answers

IMAGES, LABELS = torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0])
TOKENS = {"input_ids": torch.tensor([[7, 8, 0]]), "attention_mask": torch.tensor([[1.0, 1.0, 0.0]])}
PIXELS = {"size": torch.tensor([[2, 2]]), "attention_mask": torch.ones(1, 4), "pixel_values": torch.rand(1, 4)}
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


@pytest.mark.parametrize("batch", [(IMAGES, LABELS), [IMAGES, LABELS], {"x": IMAGES, "labels": LABELS}])
def test_inputs_and_labels(batch):
    assert torch.equal(real_values(inputs_of(batch)), IMAGES)
    assert torch.equal(labels_of(batch), LABELS)
    other = with_inputs(batch, with_real_values(inputs_of(batch), -IMAGES))
    assert torch.equal(real_values(inputs_of(other)), -IMAGES)
    assert torch.equal(labels_of(other), LABELS)


def test_labels_are_never_inputs_whatever_the_order():
    batch = {"labels": torch.tensor([[0.5]]), "x": torch.tensor([[1.0]])}
    assert real_values(inputs_of(batch)) is batch["x"]
    assert shown_input(inputs_of(batch)) is batch["x"]
    assert len(tensors_in(inputs_of(batch))) == 1
    task = Task(nn.Linear(6, 1), CROSS_ENTROPY, [{"labels": torch.zeros(500_000), "x": torch.zeros(6)}])
    assert task.batch_size_within_memory(256) == 256


def test_a_label_counts_where_there_are_no_labels():
    batch = {"label": LABELS, "x": IMAGES}
    assert labels_of(batch) is LABELS
    assert list(inputs_of(batch)) == ["x"]
    assert list(with_inputs(batch, {"x": -IMAGES})) == ["x", "label"]
    both = {**batch, "labels": -LABELS}
    assert labels_of(both) is both["labels"]
    assert list(inputs_of(both)) == ["label", "x"]


def test_a_mapping_without_labels_is_named_with_a_remedy():
    with pytest.raises(InputError, match="needs an entry 'labels' or 'label', and has 'x'; or pass forward="):
        labels_of({"x": IMAGES})
    assert label_of({"x": IMAGES}) == ""
    assert label_of((IMAGES, 3)) == 3
    assert torch.equal(with_inputs({"x": IMAGES}, {"x": -IMAGES})["x"], -IMAGES)


def test_any_mapping_will_do():
    batch = UserDict({"x": IMAGES, "labels": LABELS})
    assert list(inputs_of(batch)) == ["x"]  # and no labels
    assert torch.equal(labels_of(batch), LABELS)
    assert real_values(UserDict(x=IMAGES)) is IMAGES
    assert to_double(batch)["x"].dtype == torch.float64


def test_a_batch_that_is_a_tensor_is_all_inputs():
    assert inputs_of(IMAGES) is IMAGES
    assert with_inputs(IMAGES, LABELS) is LABELS


def test_texts_have_no_real_values_even_if_their_mask_is_real():
    assert real_values(TOKENS) is None
    assert real_values(torch.tensor([[1, 2]])) is None
    assert real_values({"attention_mask": torch.ones(1, 3), "ids": torch.tensor([[1, 2, 3]])}) is None
    with pytest.raises(InputError, match="GaussianNoise needs real-valued inputs, not dict"):
        GaussianNoise()(TOKENS, 2, torch.Generator())
    samples = [{**{name: value[0] for name, value in TOKENS.items()}, "labels": torch.tensor(0)}]
    task = Task(nn.Linear(3, 2), CROSS_ENTROPY, samples)
    with pytest.raises(InputError, match="views need real-valued inputs"):
        mean_answers(task, task.model, task.batch([0]), Views())


def test_images_are_found_beside_masks_and_sizes():
    assert real_values(PIXELS) is PIXELS["pixel_values"]
    for noise in (GaussianNoise(), ScaledNoise(torch.ones(4))):
        noisy = noise(PIXELS, 5, torch.Generator().manual_seed(0))
        assert [len(value) for value in noisy.values()] == [5, 5, 5]
        assert len(noisy["pixel_values"].unique(dim=0)) == 5
        assert torch.equal(noisy["attention_mask"], torch.ones(5, 4))


def test_tokens_and_their_mask():
    assert tokens_in(TOKENS) is TOKENS["input_ids"]
    assert token_mask(TOKENS) is TOKENS["attention_mask"]
    assert token_mask(IMAGES) is None
    assert tokens_in(PIXELS) is None
    ids = torch.tensor([[1, 2]])
    assert tokens_in(ids) is ids
    assert with_tokens(ids, -ids).tolist() == [[-1, -2]]
    assert with_tokens(TOKENS, ids)["input_ids"] is ids
    assert with_tokens(TOKENS, ids)["attention_mask"] is TOKENS["attention_mask"]


def test_what_is_shown_of_a_sample():
    assert shown_input("good film") == "good film"
    assert shown_input(PIXELS) is PIXELS["pixel_values"]
    assert shown_input({"attention_mask": [1], "input_ids": [7]}) == [7]
    assert shown_input({"text": "good film"}) == "good film"
    assert shown_input({}) is None


@pytest.mark.parametrize("inputs", [IMAGES, {"x": IMAGES, "name": "faces", "y": LABELS}])
def test_joined_parts_are_the_whole(inputs):
    together = joined([part(inputs, slice(0, 2)), part(inputs, slice(2, 3))])
    assert torch.equal(real_values(together), IMAGES)
    assert isinstance(inputs, torch.Tensor) or together["name"] == "faces"


def test_repeated_batches_have_copies_of_everything():
    batch = repeated([TOKENS, torch.tensor([4]), "as it is"], 3)
    assert batch[0]["input_ids"].tolist() == [[7, 8, 0]] * 3
    assert batch[1].tolist() == [4, 4, 4]
    assert batch[2] == "as it is"


def test_functions_reach_nested_tensors_and_leave_the_rest():
    found = map_tensors((1, {"a": (LABELS, None)}), lambda tensor: tensor + 1)
    assert found[0] == 1
    assert found[1]["a"][0].tolist() == [1, 2, 1]
    assert found[1]["a"][1] is None


def test_models_are_called_with_the_entries_of_a_mapping():
    class Output:
        logits = LABELS

    assert answer(lambda x, y: x + y, {"x": 1, "y": 2, "labels": 0}) == 3
    assert answer(lambda **_: Output(), {"x": 1}) is LABELS
    assert answer(lambda x: x, (IMAGES, LABELS)) is IMAGES
    both = {"x": 1, "y": 2}
    assert answer(lambda x: x, (both, LABELS)) is both  # as the model's own collate gave them


def test_a_task_reads_both_forms_alike():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, pixel_values):
            return self.inner(pixel_values)

    pairs = Task(model, CROSS_ENTROPY, TensorDataset(IMAGES, LABELS))
    named = [{"labels": label, "pixel_values": image} for image, label in zip(IMAGES, LABELS, strict=True)]
    mappings = Task(Named(), CROSS_ENTROPY, named)
    for task in (pairs, mappings):
        outputs, targets = task.outputs(task.model, task.batch([0, 2]))
        assert torch.equal(outputs, model(IMAGES[[0, 2]]))
        assert targets.tolist() == [0, 0]
        assert task.targets.tolist() == [0, 1, 0]
