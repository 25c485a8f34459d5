"""What the experiments are made of: CIFAR-10's files, the ResNets and their weights, and the small networks."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from experiments.cifar import load_cifar, normalised
from experiments.networks import cnn, logistic, mlp
from experiments.resnet import Block, resnet20, resnet56

DATA = Path(__file__).parents[2] / "shared" / "data"
MAKERS = {"resnet20": resnet20, "resnet56": resnet56}


def write_batch(path, count, *, seed):
    """A file in the official layout (gzipped if its name says so), and the images and labels in it."""
    rng = np.random.default_rng(seed)
    images = rng.integers(256, size=(count, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(10, size=count)
    content = b"".join(
        bytes([label]) + image[0].tobytes() + image[1].tobytes() + image[2].tobytes()
        for image, label in zip(images, labels, strict=True)
    )
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return images, labels


# ---------------------------------------------------------------------------------------------------- CIFAR-10


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_batches_that_exist_are_read_in_their_order(tmp_path, ending):
    written = [write_batch(tmp_path / f"data_batch_{number}.bin{ending}", number, seed=number) for number in (4, 1, 2)]
    test = write_batch(tmp_path / f"test_batch.bin{ending}", 3, seed=9)
    images, labels = load_cifar(tmp_path)
    assert (images.dtype, labels.dtype) == (np.uint8, np.int64)
    np.testing.assert_array_equal(images, np.concatenate([written[i][0] for i in (1, 2, 0)]))
    np.testing.assert_array_equal(labels, np.concatenate([written[i][1] for i in (1, 2, 0)]))
    for found, expected in zip(load_cifar(tmp_path, "test"), test, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_plain_and_gzipped_may_be_mixed_and_a_file_in_both_forms_counts_once(tmp_path):
    write_batch(tmp_path / "data_batch_1.bin", 2, seed=1)
    write_batch(tmp_path / "data_batch_1.bin.gz", 2, seed=1)
    write_batch(tmp_path / "data_batch_5.bin.gz", 3, seed=2)
    assert len(load_cifar(tmp_path, "train")[0]) == 5


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is missing; it should be the unpacked folder of CIFAR-10"):
        load_cifar(tmp_path / "nowhere")
    write_batch(tmp_path / "data_batch_1.bin", 1, seed=0)
    with pytest.raises(FileNotFoundError, match=r"has none of test_batch\.bin"):
        load_cifar(tmp_path, "test")
    with pytest.raises(ValueError, match="part must be 'train' or 'test', not 't10k'"):
        load_cifar(tmp_path, "t10k")


@pytest.mark.parametrize("kept", [0, 3072, 3074])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_incomplete_images_are_an_error(tmp_path, ending, kept):
    path = tmp_path / f"test_batch.bin{ending}"
    path.write_bytes(gzip.compress(bytes(kept)) if ending else bytes(kept))
    with pytest.raises(ValueError, match=rf"test_batch\.bin{ending} has {kept} bytes.*is it complete"):
        load_cifar(tmp_path, "test")


def test_a_gzip_file_cut_short_or_damaged_is_an_error(tmp_path):
    path = tmp_path / "test_batch.bin.gz"
    write_batch(path, 2, seed=0)
    whole = path.read_bytes()
    for broken in (whole[:-100], b"no gzip", whole[:2000] + bytes(200) + whole[2200:]):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"test_batch\.bin\.gz can't be unpacked .* is it complete"):
            load_cifar(tmp_path, "test")


def test_labels_of_another_data_set_are_an_error(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(ValueError, match="has the label 10"):
        load_cifar(tmp_path, "test")


def test_normalised_by_imagenets_mean_and_deviation():
    images = np.zeros((2, 3, 32, 32), dtype=np.uint8)
    images[1] = 255
    found = normalised(images)
    assert found.dtype == torch.float32
    assert found.shape == (2, 3, 32, 32)
    np.testing.assert_allclose(found[0, :, 5, 6].numpy(), [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225], rtol=1e-6)
    np.testing.assert_allclose(found[1, :, 5, 6].numpy(), [0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225], rtol=1e-6)


@pytest.fixture(scope="module")
def official():
    folder = DATA / "cifar-10-batches-bin"
    if not folder.exists():
        pytest.skip(f"needs CIFAR-10 in {folder.name}/, see experiments/cifar.py")
    return load_cifar(folder, "test")


def test_official_files(official):
    images, labels = official
    assert images.shape[1:] == (3, 32, 32)
    assert len(images) == len(labels)
    assert set(labels) == set(range(10))


# ---------------------------------------------------------------------------------------------------- ResNets


@pytest.mark.parametrize(("name", "parameters", "layers"), [("resnet20", 269_722, 20), ("resnet56", 853_018, 56)])
def test_size_of_the_resnets(name, parameters, layers):
    model = MAKERS[name]()
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    assert sum(isinstance(module, nn.Conv2d | nn.Linear) for module in model.modules()) == layers
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_shortcut_takes_every_second_pixel_and_pads_channels_with_zeros():
    x = torch.randn(2, 16, 8, 8)
    wider = Block(16, 32, 2).shortcut(x)
    assert wider.shape == (2, 32, 4, 4)
    assert torch.equal(wider[:, 8:24], x[:, :, ::2, ::2])
    assert not wider[:, :8].any()
    assert not wider[:, 24:].any()
    assert Block(16, 32, 2)(x).shape == wider.shape
    assert torch.equal(Block(16, 16, 1).shortcut(x), x)


@pytest.mark.parametrize("name", MAKERS)
def test_official_weights_recognise_official_images(name, official):
    files = sorted((DATA / "weights").glob(f"{name}-*.pt"))
    if not files:
        pytest.skip(f"needs the pretrained weights {name}-*.pt in weights/")
    images, labels = official
    model = MAKERS[name](files[0])
    assert not model.training
    with torch.no_grad():
        found = model(normalised(images[:500])).argmax(1).numpy()
    assert (found == labels[:500]).mean() > 0.9


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save(resnet20().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(RuntimeError, match="Missing key"):
        resnet56(tmp_path / "weights.pt")


# ---------------------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize(
    ("model", "shape", "parameters"),
    [
        (mlp(0), (784,), 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10),
        (mlp(0, sizes=(5, 4, 3)), (5,), 39),
        (logistic(0), (784,), 7850),
        (logistic(0, inputs=6, classes=2), (6,), 14),
        (cnn(0), (3, 32, 32), 784 + 4_640 + 18_496 + 65_600 + 650),
    ],
)
def test_shapes_and_sizes(model, shape, parameters):
    last = list(model.modules())[-1]
    assert model(torch.zeros(4, *shape)).shape == (4, last.out_features)
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    assert not list(model.buffers())


@pytest.mark.parametrize("make", [mlp, logistic, cnn, lambda seed: resnet20(seed=seed)])
def test_weights_depend_on_the_seed_alone(make):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = make(3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    again, other = make(3), make(4)
    for one, two in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)
    assert any(not torch.equal(one, two) for one, two in zip(first.parameters(), other.parameters(), strict=True))
