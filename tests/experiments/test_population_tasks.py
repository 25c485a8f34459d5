"""Tasks for populations: networks, augmentation, and the smaller tasks on real data."""

import pytest
import torch
from data_folder import real
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task
from experiments import augmented, networks, tasks


@pytest.mark.parametrize(
    ("make", "inputs", "classes"),
    [
        (networks.bn_cnn, torch.randn(2, 3, 32, 32), 10),
        (lambda seed: networks.resnet9(seed, width=4), torch.randn(2, 3, 32, 32), 10),
        (networks.face_cnn, torch.randn(2, 1, 56, 46), 40),
        (lambda seed: networks.text_transformer(seed, 20, 6, 13), torch.randint(1, 20, (2, 6)), 13),
    ],
)
def test_a_network_follows_from_its_seed(make, inputs, classes):
    torch.manual_seed(5)
    one, same, other = (make(seed).eval()(inputs) for seed in (1, 1, 2))
    assert one.shape == (2, classes)
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)


def test_resnet9_is_the_published_one():
    """6.5 million weights: seven convolutions of 3 × 3, two of them twice, their norms and a linear layer."""
    pairs = ((3, 64), (64, 128), (128, 128), (128, 128), (128, 256), (256, 512), (512, 512), (512, 512))
    expected = sum(9 * before * after + 2 * after for before, after in pairs) + 512 * 10 + 10
    assert sum(weights.numel() for weights in networks.resnet9(0).parameters()) == expected


def test_padding_of_a_text_changes_nothing():
    model = networks.text_transformer(0, 20, 6, 3).eval()
    text = torch.tensor([[4, 9, 2, 0, 0, 0]])
    with torch.no_grad():
        plain = model(text)
        model.words.weight[0] = 7.0
        assert torch.allclose(model(text), plain, atol=1e-6)
        assert model(torch.zeros(1, 6, dtype=torch.long)).shape == (1, 3)


def test_augmented_images_are_moved_or_mirrored():
    images = torch.arange(64 * 32 * 32, dtype=torch.float32).view(64, 1, 32, 32).expand(-1, 3, -1, -1)
    found = augmented.augmented(images, torch.Generator().manual_seed(0))
    assert torch.equal(found, augmented.augmented(images, torch.Generator().manual_seed(0)))
    rising = found[:, 0, 16, 16] > found[:, 0, 16, 15]
    assert 16 < rising.sum() < 48
    for image, before, is_rising in zip(found, images, rising, strict=True):
        middle = (image if is_rising else image.flip(2))[0, 10, 10] - before[0, 0, 0]
        down, right = divmod(int(middle), 32)
        assert abs(down - 10) <= 4
        assert abs(right - 10) <= 4


@pytest.mark.slow
def test_augmented_training_leaves_the_task_alone_and_follows_from_the_seed():
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(65, 3, 32, 32, generator=generator), torch.randint(0, 10, (65,)))
    task = Task(networks.bn_cnn(0), nn.CrossEntropyLoss(), data)
    before = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    one, same, other = (
        augmented.fit_augmented(task, torch.arange(65), epochs=1, lr=0.1, seed=seed).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in task.model.state_dict().items())
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["0.weight"], other["0.weight"])
    assert not torch.equal(one["0.weight"], before["0.weight"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder", "samples", "classes"),
    [
        ("mnist_logistic", "mnist", 4000, 10),
        ("clauses_transformer", "ledgar", 4000, 13),
        ("orl_faces", "orl_faces", 280, 40),
    ],
)
def test_a_task_has_its_samples_whatever_the_seed(name, folder, samples, classes, tmp_path, monkeypatch):
    real(folder)
    monkeypatch.setattr(tasks, "DATA", real(folder).parent)
    monkeypatch.setattr(tasks, "KEPT", tmp_path)
    task, again = (getattr(tasks, name)(epochs=1) for _ in range(2))
    assert len(task.train_set) == samples
    assert task.fingerprint.ordered == again.fingerprint.ordered
    assert set(task.train_set.tensors[1].tolist()) == set(range(classes))
    assert len(list(tmp_path.glob("model-*"))) == 1  # the second was read
    some = torch.arange(100)
    first, same, other = (task.retrain(some, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)
