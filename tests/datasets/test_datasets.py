"""What the loaders share, and MNIST and CIFAR-10: small files in the official layout, and the real ones if there."""

import gzip
import hashlib
import struct
import sys

import numpy as np
import pytest
import torch
from data_folder import real
from PIL import Image

import excise
from excise import DataError, ExciseError, InputError, MissingExtraError
from excise.datasets import files
from excise.datasets.cifar import load_cifar, normalised
from excise.datasets.mnist import OFFICIAL, load_mnist

SOURCE = files.Source("Examples", "https://example.org/data", "one.txt and two.txt", "examples")


# ---------------------------------------------------------------------------------------------------- files


def test_data_errors_are_ours_and_the_systems():
    assert issubclass(DataError, ExciseError)
    assert issubclass(DataError, OSError)
    assert excise.DataError is DataError
    assert "DataError" in dir(excise)


def test_default_folder_is_the_named_one_then_a_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("EXCISE_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert files.default_folder() == tmp_path / "home" / ".cache" / "excise" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert files.default_folder() == tmp_path / "caches" / "excise" / "data"
    monkeypatch.setenv("EXCISE_DATA", "~/mine")
    assert files.default_folder() == tmp_path / "home" / "mine"


def test_loaders_look_in_the_default_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EXCISE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"cifar-10-batches-bin is missing.*kriz/cifar\.html.*EXCISE_DATA"):
        load_cifar()
    (tmp_path / "cifar-10-batches-bin").mkdir()
    written = write_batch(tmp_path / "cifar-10-batches-bin" / "test_batch.bin", 2, seed=0)
    np.testing.assert_array_equal(load_cifar(part="test")[0], written[0])


def test_missing_says_what_to_get_and_where(tmp_path):
    with pytest.raises(DataError) as caught:
        files.read(tmp_path / "one.txt", SOURCE)
    message = str(caught.value)
    assert str(tmp_path / "one.txt") in message
    assert ".gz" in message
    assert "Examples is not downloaded for you: get one.txt and two.txt from https://example.org/data." in message


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "one.txt").write_text("")
    with pytest.raises(DataError, match=r"one\.txt is not a folder"):
        SOURCE.locate(tmp_path / "one.txt")


def test_plain_goes_before_gzipped(tmp_path):
    (tmp_path / "one.txt.gz").write_bytes(gzip.compress(b"packed"))
    assert files.read(tmp_path / "one.txt", SOURCE) == (tmp_path / "one.txt.gz", b"packed")
    (tmp_path / "one.txt").write_bytes(b"plain")
    assert files.read(tmp_path / "one.txt", SOURCE) == (tmp_path / "one.txt", b"plain")


def test_text_that_is_none_names_the_byte(tmp_path):
    (tmp_path / "one.txt").write_bytes(b"good\n\xff\xfe")
    with pytest.raises(DataError, match=r"one\.txt is not text \(byte 5 is not UTF-8\)"):
        files.read_lines(tmp_path / "one.txt", SOURCE)


def test_what_was_found_stands_against_what_is_official():
    assert files.Official(3).against(b"four") == "found 4 bytes; the official file has 3 bytes"
    md5 = hashlib.md5(b"four").hexdigest()
    assert files.Official(3_000, "abc").against(b"four") == (
        f"found 4 bytes, md5 {md5}; the official file has 3,000 bytes, md5 abc"
    )
    assert files.Official().against(b"four") == "found 4 bytes"


@pytest.fixture
def picture(tmp_path):
    """An image of 4 × 2 pixels: the left half red, the right half blue."""
    pixels = np.zeros((2, 4, 3), dtype=np.uint8)
    pixels[:, :2, 0] = 200
    pixels[:, 2:, 2] = 100
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def test_image_is_channels_by_height_by_width(picture):
    image = files.read_image(picture)
    assert image.shape == (3, 2, 4)
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image[0], [[200, 200, 0, 0]] * 2)
    np.testing.assert_array_equal(image[2], [[0, 0, 100, 100]] * 2)
    assert files.read_image(picture, mode="L").shape == (2, 4)
    assert files.read_image(picture, size=(6, 3)).shape == (3, 6, 3)


def test_box_is_cut_to_the_image(picture):
    np.testing.assert_array_equal(files.read_image(picture, box=(1.2, 0.9, 2.9, 9))[0], [[200, 0]])
    np.testing.assert_array_equal(files.read_image(picture, box=(-3, -3, 1, 1))[0], [[200]])
    with pytest.raises(DataError, match=r"picture\.png is 4 × 2 pixels, but its box is \(4, 0, 9, 2\)"):
        files.read_image(picture, box=(4, 0, 9, 2))


def test_images_are_stacked_in_their_order(picture, tmp_path):
    Image.new("L", (8, 8), 7).save(tmp_path / "grey.png")
    images = files.read_images([tmp_path / "grey.png", picture, picture], size=(2, 4))
    assert images.dtype == torch.uint8
    assert images.shape == (3, 3, 2, 4)
    assert torch.equal(images[0], torch.full((3, 2, 4), 7, dtype=torch.uint8))
    np.testing.assert_array_equal(images[2].numpy(), files.read_image(picture))


@pytest.mark.parametrize("size", [64, (64,), (0, 4), (4.0, 4)])
def test_bad_sizes_are_named(size):
    with pytest.raises(InputError, match=r"size must be \(height, width\)"):
        files.read_images([], size=size)


def test_broken_images_name_their_file(tmp_path):
    path = tmp_path / "broken.jpg"
    with pytest.raises(DataError, match=r"broken\.jpg is missing"):
        files.read_image(path)
    noise = np.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"no image"):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=rf"broken\.jpg can't be read as an image.*{len(broken):,} bytes"):
            files.read_image(path)


def test_without_pillow_the_extra_is_named(picture, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'excise\[images\]'"):
        files.read_image(picture)


# ---------------------------------------------------------------------------------------------------- MNIST


def idx(values, *, magic=None, shape=None):
    """An idx file: two zeros, 8 for bytes, the number of dimensions, the dimensions, the bytes."""
    values = np.asarray(values, dtype=np.uint8)
    shape = values.shape if shape is None else shape
    magic = struct.pack(">BBBB", 0, 0, 8, values.ndim) if magic is None else struct.pack(">I", magic)
    return magic + struct.pack(f">{len(shape)}I", *shape) + values.tobytes()


def write_mnist(folder, images, labels, prefix="train", ending=""):
    for name, content in (("images-idx3", images), ("labels-idx1", labels)):
        path = folder / f"{prefix}-{name}-ubyte{ending}"
        path.write_bytes(gzip.compress(content) if ending else content)


DIGITS = np.random.default_rng(0).integers(256, size=(3, 28, 28), dtype=np.uint8)


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(("part", "prefix"), [("train", "train"), ("test", "t10k"), ("t10k", "t10k")])
def test_mnist(tmp_path, part, prefix, ending):
    write_mnist(tmp_path, idx(DIGITS), idx([7, 0, 9]), prefix, ending)
    images, labels = load_mnist(tmp_path, part)
    assert images.dtype == np.float32
    assert images.shape == (3, 784)
    assert images[1, 28 * 5 + 6] == np.float32(DIGITS[1, 5, 6]) / np.float32(255)
    np.testing.assert_array_equal(labels, [7, 0, 9])


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (idx(DIGITS)[:-1], idx([1, 2, 3]), r"train-images-idx3-ubyte should have 2,368 bytes.*found 2,367 bytes, md5"),
        (idx(DIGITS) + b"x", idx([1, 2, 3]), r"should have 2,368 bytes by its header of 3 items.*found 2,369 bytes"),
        (idx(DIGITS), idx([1, 2, 3])[:-2], r"train-labels-idx1-ubyte should have 11 bytes.*has 60,008 bytes, md5 a25b"),
        (idx(DIGITS, magic=2049), idx([1, 2, 3]), "magic number 2049 instead of 2051.*official file has 47,040,016"),
        (idx(DIGITS), idx([1, 2, 3], magic=2051), "magic number 2051 instead of 2049"),
        (idx(DIGITS), b"\0\0\x08", "labels.* has no whole header of 8 bytes"),
        (idx(DIGITS, shape=(3, 14, 56)), idx([1, 2, 3]), "14 × 56 pixels, not 28 × 28"),
        (idx(DIGITS), idx([1, 2]), "3 images but 2 labels"),
        (idx(DIGITS), idx([1, 2, 10]), "has the label 10"),
    ],
)
def test_damaged_mnist_is_named(tmp_path, images, labels, message):
    write_mnist(tmp_path, images, labels)
    with pytest.raises(DataError, match=message):
        load_mnist(tmp_path)


def test_missing_mnist_says_where_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte is missing.*get train-images.*yann\.lecun\.com"):
        load_mnist(tmp_path)
    with pytest.raises(InputError, match=r"part must be 'train' or 'test'.*'valid'"):
        load_mnist(tmp_path, "valid")


def test_gzipped_mnist_cut_short(tmp_path):
    write_mnist(tmp_path, idx(DIGITS), idx([1, 2, 3]), ending=".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz can't be unpacked"):
        load_mnist(tmp_path)


def test_real_mnist():
    folder = real("mnist")
    images, labels = load_mnist(folder, "test")
    assert images.shape == (10_000, 784)
    assert (images.min(), images.max()) == (0, 1)
    # the published counts of the ten digits in the test set
    np.testing.assert_array_equal(np.bincount(labels), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OFFICIAL))
def test_real_mnist_is_the_official_one(name):
    content = gzip.decompress((real("mnist") / f"{name}.gz").read_bytes())
    assert (len(content), hashlib.md5(content).hexdigest()) == (OFFICIAL[name].size, OFFICIAL[name].md5)


# ---------------------------------------------------------------------------------------------------- CIFAR-10


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


def test_missing_cifar_says_where_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"nowhere is missing. CIFAR-10.*cifar-10-binary\.tar\.gz \(md5 c32a1d4a"):
        load_cifar(tmp_path / "nowhere")
    write_batch(tmp_path / "data_batch_1.bin", 1, seed=0)
    with pytest.raises(DataError, match=r"has none of test_batch\.bin.*https://www\.cs\.toronto\.edu"):
        load_cifar(tmp_path, "test")
    with pytest.raises(InputError, match="part must be 'train' or 'test', not 't10k'"):
        load_cifar(tmp_path, "t10k")


@pytest.mark.parametrize("kept", [0, 3072, 3074])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_incomplete_images_name_the_official_size(tmp_path, ending, kept):
    path = tmp_path / f"test_batch.bin{ending}"
    path.write_bytes(gzip.compress(bytes(kept)) if ending else bytes(kept))
    with pytest.raises(DataError, match=rf"test_batch\.bin{ending} is not.*found {kept:,} bytes; .* 30,730,000 bytes"):
        load_cifar(tmp_path, "test")


def test_a_gzip_file_cut_short_or_damaged_is_an_error(tmp_path):
    path = tmp_path / "test_batch.bin.gz"
    write_batch(path, 2, seed=0)
    whole = path.read_bytes()
    for broken in (whole[:-100], b"no gzip", whole[:2000] + bytes(200) + whole[2200:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=rf"test_batch\.bin\.gz can't be unpacked .* has {len(broken):,} bytes"):
            load_cifar(tmp_path, "test")


def test_labels_of_another_data_set_are_an_error(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073) + bytes([10]) + bytes(3072))
    with pytest.raises(DataError, match="has the label 10 at image 1"):
        load_cifar(tmp_path, "test")


def test_normalised_by_imagenets_mean_and_deviation():
    images = np.zeros((2, 3, 32, 32), dtype=np.uint8)
    images[1] = 255
    found = normalised(images)
    assert found.dtype == torch.float32
    assert found.shape == (2, 3, 32, 32)
    np.testing.assert_allclose(found[0, :, 5, 6].numpy(), [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225], rtol=1e-6)
    np.testing.assert_allclose(found[1, :, 5, 6].numpy(), [0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225], rtol=1e-6)


def test_real_cifar():
    images, labels = load_cifar(real("cifar-10-batches-bin"), "test")
    assert images.shape[1:] == (3, 32, 32)
    assert len(images) == len(labels)
    assert set(labels) == set(range(10))
