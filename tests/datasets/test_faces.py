"""CelebA, the ORL faces and VGG-Face: small files in the official layout, and the real ones where they are."""

import numpy as np
import pytest
import safetensors.torch
import scipy.io
import torch
from data_folder import real
from PIL import Image
from torch import nn

from excise import DataError, InputError
from excise.datasets import celeba, orl, vggface

# ---------------------------------------------------------------------------------------------------- CelebA

ATTRIBUTES = "3\nBald Smiling \n000001.jpg -1  1\n000002.jpg  1  1\n000003.jpg -1 -1\n"


def write_images(folder, count, size=(178, 218)):
    """Images of one colour each: the first is (10, 0, 50), the second (20, 0, 50), and so on."""
    (folder / "img_align_celeba").mkdir(parents=True)
    for number in range(1, count + 1):
        image = Image.new("RGB", size, (10 * number, 0, 50))
        image.save(folder / "img_align_celeba" / f"{number:06d}.jpg", quality=95)


def test_attributes(tmp_path):
    (tmp_path / "list_attr_celeba.txt").write_text(ATTRIBUTES)
    values, names = celeba.load_attributes(tmp_path)
    assert names == ["Bald", "Smiling"]
    assert values.dtype == np.int8
    np.testing.assert_array_equal(values, [[-1, 1], [1, 1], [-1, -1]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            ATTRIBUTES[: ATTRIBUTES.index("000003")],
            r"should have 3 images by its first line, but holds 2 \(found .* bytes, md5 .* 75e246fa",
        ),
        (
            ATTRIBUTES.replace("000002.jpg  1  1", "000002.jpg  1"),
            "has in line 4 1 values, which should be 2 of -1 or 1",
        ),
        (ATTRIBUTES.replace("000002.jpg  1  1", "000002.jpg 1 1 1"), "has in line 4 3 values"),
        (ATTRIBUTES.replace("000003.jpg -1 -1", "000003.jpg -1 0"), "line 5"),
        (ATTRIBUTES.replace("000003.jpg -1 -1", "000003.jpg -1 x"), "line 5"),
        (ATTRIBUTES.replace("000003.jpg -1 -1", "000003.jpg -1 255"), "line 5"),
        (ATTRIBUTES.replace("000003.jpg -1 -1", "000003.jpg -1 1e6666666667"), "line 5"),  # kills pandas' quick reader
        (ATTRIBUTES.replace("000002.jpg", "000004.jpg"), r"has '000004\.jpg' in line 4 instead of '000002\.jpg'"),
        (ATTRIBUTES[2:], "doesn't start with the number of images"),
        ("3\nBald\n", "holds 0"),
        ("", "doesn't start with the number of images"),
    ],
)
def test_damaged_attributes_name_the_line(tmp_path, text, message):
    (tmp_path / "list_attr_celeba.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        celeba.load_attributes(tmp_path)


def test_missing_celeba_says_where_to_get_it(tmp_path):
    for load in (celeba.load_attributes, celeba.load_partition, celeba.AlignedImages):
        with pytest.raises(DataError, match=r"is missing.*list_attr_celeba\.txt.*mmlab\.ie\.cuhk\.edu\.hk"):
            load(tmp_path)


def test_partition(tmp_path):
    (tmp_path / "list_eval_partition.txt").write_text("000001.jpg 0\n000002.jpg 2\n000003.jpg 1\n")
    np.testing.assert_array_equal(celeba.load_partition(tmp_path), [0, 2, 1])


@pytest.mark.parametrize("line", ["000002.jpg 3", "000003.jpg 1", "000002.jpg", "000002.png 1"])
def test_damaged_partition_names_the_line(tmp_path, line):
    (tmp_path / "list_eval_partition.txt").write_text(f"000001.jpg 0\n{line}\n")
    with pytest.raises(DataError, match=rf"has '{line}' in line 2 instead of '000002\.jpg' and 0, 1 or 2"):
        celeba.load_partition(tmp_path)


def test_empty_partition(tmp_path):
    (tmp_path / "list_eval_partition.txt").write_text("")
    with pytest.raises(DataError, match=r"is empty.*d32c9cbf"):
        celeba.load_partition(tmp_path)


def test_images_are_read_when_asked_for(tmp_path):
    write_images(tmp_path, 4)
    images = celeba.AlignedImages(tmp_path)
    assert len(images) == 4
    assert images[1].shape == (3, 218, 178)
    assert images[1].dtype == torch.uint8
    assert abs(int(images[1][0, 100, 100]) - 20) <= 2  # JPEG is not exact
    assert [round(image[0].float().mean().item(), -1) for image in images] == [10, 20, 30, 40]
    # a file that is broken later is noticed only when it is read
    (tmp_path / "img_align_celeba" / "000003.jpg").write_bytes(b"broken")
    assert images[3].shape == (3, 218, 178)
    with pytest.raises(DataError, match=r"000003\.jpg can't be read"):
        images[2]


def test_chosen_rows_and_slices(tmp_path):
    write_images(tmp_path, 4)
    images = celeba.AlignedImages(tmp_path, [3, 0], size=(10, 20))
    assert len(images) == 2
    assert images[-1].shape == (3, 10, 20)
    assert abs(int(images[0][0, 5, 5]) - 40) <= 2
    rest = celeba.AlignedImages(tmp_path)[1:3]
    assert isinstance(rest, celeba.AlignedImages)
    assert list(rest.rows) == [1, 2]
    with pytest.raises(IndexError):
        images[2]


def test_load_images(tmp_path):
    write_images(tmp_path, 3)
    images = celeba.load_images(tmp_path, [2, 0, 2], size=(32, 16))
    assert images.shape == (3, 3, 32, 16)
    assert images.dtype == torch.uint8
    np.testing.assert_allclose(images[:, 0].float().mean((1, 2)).numpy(), [30, 10, 30], atol=2)
    assert celeba.load_images(tmp_path, np.array([1])).shape == (1, 3, 64, 64)
    with pytest.raises(DataError, match=r"000009\.jpg is missing"):
        celeba.load_images(tmp_path, [8])
    with pytest.raises(InputError, match=r"counted from 0 \(which is 000001\.jpg\), but one is -1"):
        celeba.load_images(tmp_path, [0, -1])


def test_gaps_among_the_images_are_named(tmp_path):
    write_images(tmp_path, 3, size=(2, 2))
    (tmp_path / "img_align_celeba" / "000002.jpg").unlink()
    with pytest.raises(DataError, match=r"has 2 images of 202,599, but 000002\.jpg is not among them"):
        celeba.AlignedImages(tmp_path)
    for path in (tmp_path / "img_align_celeba").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"has no images such as 000001\.jpg"):
        celeba.AlignedImages(tmp_path)


# ---------------------------------------------------------------------------------------------------- ORL


def write_orl(folder):
    """Every image has its person and shot in its first two pixels."""
    for person in range(1, 41):
        (folder / f"s{person}").mkdir()
        for shot in range(1, 11):
            pixels = np.full((112, 92), 128, dtype=np.uint8)
            pixels[0, :2] = person, shot
            header = b"P5\n92 112\n255\n"
            (folder / f"s{person}" / f"{shot}.pgm").write_bytes(header + pixels.tobytes())


def test_official_orl_folders(tmp_path):
    write_orl(tmp_path)
    faces = orl.load_orl(tmp_path)
    assert faces.images.shape == (400, 112, 92)
    assert faces.images.dtype == np.uint8
    np.testing.assert_array_equal(faces.labels, np.repeat(np.arange(40), 10))
    np.testing.assert_array_equal(faces.images[:, 0, 0], faces.labels + 1)
    np.testing.assert_array_equal(faces.images[:, 0, 1], faces.index)
    assert faces.index[:11].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1]


def test_damaged_orl_images_are_named(tmp_path):
    write_orl(tmp_path)
    path = tmp_path / "s7" / "3.pgm"
    whole = path.read_bytes()
    path.write_bytes(whole[:5000])
    with pytest.raises(DataError, match=r"s7/3\.pgm can't be read as an image.*5,000 bytes"):
        orl.load_orl(tmp_path)
    path.write_bytes(b"P5\n112 92\n255\n" + whole[14:])
    with pytest.raises(DataError, match=r"s7/3\.pgm has 92 × 112 pixels instead of 112 × 92"):
        orl.load_orl(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"s7/3\.pgm is missing.*att_faces\.zip"):
        orl.load_orl(tmp_path)


def arrays():
    labels = np.repeat(np.arange(40, dtype=np.uint8), 10)
    images = np.zeros((400, 112, 92), dtype=np.uint8)
    return {"images": images, "labels": labels, "index": np.tile(np.arange(1, 11, dtype=np.uint8), 40)}


def test_orl_from_npz(tmp_path):
    np.savez(tmp_path / "faces.npz", **arrays())
    faces = orl.load_orl(tmp_path)
    assert faces.labels.dtype == np.int64
    np.testing.assert_array_equal(faces.index[:3], [1, 2, 3])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("index", None, "has no array 'index'"),
        ("images", np.zeros((400, 64, 64), dtype=np.uint8), r"has images of shape \(400, 64, 64\) instead of"),
        ("labels", np.zeros(400, dtype=np.uint8), "has labels other than 10 of each from 0 to 39"),
    ],
)
def test_damaged_orl_npz(tmp_path, name, value, message):
    changed = {**arrays(), name: value}
    np.savez(tmp_path / "faces.npz", **{key: array for key, array in changed.items() if array is not None})
    with pytest.raises(DataError, match=rf"faces\.npz {message}"):
        orl.load_orl(tmp_path)


def test_orl_npz_cut_short_and_nothing_at_all(tmp_path):
    with pytest.raises(DataError, match=r"neither the folders s1 to s40 nor an npz file.*cam-orl\.co\.uk"):
        orl.load_orl(tmp_path)
    for content in (b"", b"PK\3\4 cut"):
        (tmp_path / "faces.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"faces\.npz can't be read"):
            orl.load_orl(tmp_path)


def test_real_orl():
    faces = orl.load_orl(real("orl_faces"))
    np.testing.assert_array_equal(faces.labels, np.repeat(np.arange(40), 10))
    np.testing.assert_array_equal(np.unique(faces.index), np.arange(1, 11))
    # two images of a person are nearer each other than images of different people, on average
    small = faces.images[:, ::16, ::16].reshape(400, -1).astype(float)
    distances = np.linalg.norm(small[:, None] - small[None], axis=2)
    same = faces.labels[:, None] == faces.labels
    assert distances[same & ~np.eye(400, dtype=bool)].mean() < 0.7 * distances[~same].mean()


# ---------------------------------------------------------------------------------------------------- VGG-Face

LIST = (
    "00000001 http://example.org/a.jpg 1.00 0.00 3.00 2.00 3.00 2.65 1\n"
    "00000004 http://example.org/b%20c d.jpg 227.27 159.39 429.92 362.04 4.00 -2.30 0\n"
)


def write_identity(folder, name="Ada_Lovelace", text=LIST):
    (folder / "files").mkdir(exist_ok=True)
    (folder / "files" / f"{name}.txt").write_text(text)


def test_identities(tmp_path):
    with pytest.raises(DataError, match=r"files has no lists.*vgg_face_dataset\.tar\.gz.*robots\.ox\.ac\.uk"):
        vggface.identities(tmp_path)
    for name in ("Grace_Hopper", "A.J._Ayer", "Ada_Lovelace"):
        write_identity(tmp_path, name)
    assert vggface.identities(tmp_path) == ["A.J._Ayer", "Ada_Lovelace", "Grace_Hopper"]


def test_identity_list(tmp_path):
    write_identity(tmp_path)
    first, second = vggface.load_identity(tmp_path, "Ada_Lovelace")
    assert first == vggface.Face(1, "http://example.org/a.jpg", 1.0, 0.0, 3.0, 2.0, 3.0, 2.65, True)
    assert second == vggface.Face(4, "http://example.org/b%20c d.jpg", 227.27, 159.39, 429.92, 362.04, 4, -2.3, False)
    with pytest.raises(DataError, match=r"Nobody\.txt is missing"):
        vggface.load_identity(tmp_path, "Nobody")


@pytest.mark.parametrize(
    "line",
    [
        "00000002 http://example.org/a.jpg 1.00 0.00 3.00 2.00 3.00 2.65",
        "00000002 http://example.org/a.jpg 1.00 0.00 3.00 2.00 3.00 2.65 2",
        "00000002 http://example.org/a.jpg 1.00 left 3.00 2.00 3.00 2.65 1",
        "number http://example.org/a.jpg 1.00 0.00 3.00 2.00 3.00 2.65 1",
    ],
)
def test_bad_lines_of_a_list_are_named(tmp_path, line):
    write_identity(tmp_path, text=f"{LIST}\n{line}\n")
    with pytest.raises(DataError, match=r"Ada_Lovelace\.txt has .* in line 4 instead of: number, address"):
        vggface.load_identity(tmp_path, "Ada_Lovelace")


def test_empty_list(tmp_path):
    write_identity(tmp_path, text="\n")
    with pytest.raises(DataError, match="is empty"):
        vggface.load_identity(tmp_path, "Ada_Lovelace")


def test_crops(tmp_path):
    write_identity(tmp_path)
    (tmp_path / "images" / "Ada_Lovelace").mkdir(parents=True)
    path = tmp_path / "images" / "Ada_Lovelace" / "00000001.jpg"
    pixels = np.zeros((6, 8, 3), dtype=np.uint8)
    pixels[0:2, 1:3] = (250, 100, 30)
    Image.fromarray(pixels).save(path, format="PNG")  # Pillow looks at the content, so that the colours are exact
    faces = vggface.present(tmp_path, "Ada_Lovelace")
    assert [face.number for face in faces] == [1]
    crops = vggface.load_crops(tmp_path, "Ada_Lovelace", faces, size=(4, 6))
    assert crops.shape == (1, 3, 4, 6)
    assert torch.equal(crops[0], torch.tensor([250, 100, 30], dtype=torch.uint8)[:, None, None].expand(3, 4, 6))
    with pytest.raises(DataError, match=r"00000004\.jpg is missing"):
        vggface.load_crops(tmp_path, "Ada_Lovelace", vggface.load_identity(tmp_path, "Ada_Lovelace"))


CHANNELS = (2, 3, 4, 5, 6, 7, 8, 2, 3, 4, 5, 6, 3)
SHAPES = vggface.vgg16_shapes(CHANNELS, hidden=(6, 7), classes=5, cells=2)
TORCHVISION = [f"features.{i}" for i in (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)] + [
    f"classifier.{i}" for i in (0, 3, 6)
]
BLOCKS = [f"{block}_{layer}" for block, layers in enumerate((2, 2, 3, 3, 3), 1) for layer in range(1, layers + 1)]
LAYOUTS = {
    "torchvision": TORCHVISION,
    "named": [f"conv_{block}" for block in BLOCKS] + ["fc6", "fc7", "fc8"],
    "grouped": [f"module.features.conv{block}" for block in BLOCKS] + [f"module.fc.fc{i}" for i in (6, 7, 8)],
    "numbered": [str(i) for i in (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)] + ["32.1", "35.1", "38.1"],
}


def layers_at_random(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape, generator=generator), torch.randn(shape[0], generator=generator)) for shape in SHAPES]


def state_dict(names, layers):
    return {
        f"{name}.{kind}": value
        for name, layer in zip(names, layers, strict=True)
        for kind, value in zip(("weight", "bias"), layer, strict=True)
    }


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_shapes_of_the_network():
    shapes = vggface.vgg16_shapes()
    assert len(shapes) == 16
    assert shapes[0] == (64, 3, 3, 3)
    assert shapes[12:] == [(512, 512, 3, 3), (4096, 25_088), (4096, 4096), (2622, 4096)]
    # VGG-16 has 138,357,544 parameters for 1,000 classes
    assert sum(int(np.prod(shape)) + shape[0] for shape in vggface.vgg16_shapes(classes=1000)) == 138_357_544


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_state_dicts_of_any_layout_and_order(tmp_path, layout, ending):
    layers = layers_at_random()
    state = state_dict(LAYOUTS[layout], layers)
    shuffled = {name: state[name] for name in sorted(state, reverse=True)}
    path = tmp_path / f"vgg_face{ending}"
    if ending == ".pth":
        torch.save({"state_dict": shuffled, "epoch": 3}, path)
    else:
        safetensors.torch.save_file(shuffled, path)
    assert_same(vggface.vgg16_weights(path, shapes=SHAPES), layers)


def write_mat(path, layers, *, inside=True):
    """A file in MatConvNet's layout: convolutions (height, width, in, out), linear layers as convolutions too."""
    cells = []
    for number, (weight, bias) in enumerate(layers):
        if weight.ndim == 2:
            side = 2 if number == 13 else 1
            weight = weight.reshape(len(weight), -1, side, side)
        kernel = np.empty((*weight.shape[2:], weight.shape[1], weight.shape[0]), dtype=np.float32)
        for out, into, row, column in np.ndindex(*weight.shape):
            kernel[row, column, into, out] = weight[out, into, row, column]
        weights = np.empty(2, dtype=object)
        weights[0], weights[1] = kernel, bias.numpy()[None]
        cells += [{"name": f"layer{number}", "type": "conv", "weights": weights}, {"name": "relu", "type": "relu"}]
    packed = np.empty(len(cells), dtype=object)
    packed[:] = cells
    scipy.io.savemat(path, {"net": {"layers": packed}} if inside else {"layers": packed})


@pytest.mark.parametrize("inside", [True, False])
def test_matconvnet_weights_give_the_same_network(tmp_path, inside):
    layers = layers_at_random(1)
    write_mat(tmp_path / "vgg_face.mat", layers, inside=inside)
    found = vggface.vgg16_weights(tmp_path / "vgg_face.mat", shapes=SHAPES)
    assert_same(found, layers)
    convolution = nn.Conv2d(3, 2, 3)
    convolution.load_state_dict(dict(zip(("weight", "bias"), found[0], strict=True)))


def test_the_real_network_is_expected_unless_told_otherwise(tmp_path):
    # one number seen as many: the file is small, the shapes are the real ones
    shapes = vggface.vgg16_shapes()
    layers = [(torch.ones(1).expand(shape), torch.ones(1).expand(shape[0])) for shape in shapes]
    torch.save(state_dict(TORCHVISION, layers), tmp_path / "right.pth")
    assert [tuple(weight.shape) for weight, _ in vggface.vgg16_weights(tmp_path / "right.pth")] == shapes
    layers[-1] = (torch.ones(1).expand(1000, 4096), torch.ones(1).expand(1000))
    torch.save(state_dict(TORCHVISION, layers), tmp_path / "imagenet.pth")
    with pytest.raises(DataError, match=r"layer classifier\.6 .* \(1000, 4096\).*where \(2622, 4096\)"):
        vggface.vgg16_weights(tmp_path / "imagenet.pth")


def test_damaged_weights_are_named(tmp_path):
    layers, path = layers_at_random(), tmp_path / "weights.pth"
    with pytest.raises(DataError, match=r"weights\.pth is missing.*vgg_face_matconvnet\.tar\.gz"):
        vggface.vgg16_weights(path)
    state = state_dict(TORCHVISION, layers)
    torch.save({name: value for name, value in state.items() if "features.28" not in name}, path)
    with pytest.raises(DataError, match=r"has 15 layers with weights \(features\.0, .*not 16"):
        vggface.vgg16_weights(path, shapes=SHAPES)
    torch.save({name: value for name, value in state.items() if name != "features.5.bias"}, path)
    with pytest.raises(DataError, match=r"has features\.5\.weight but no features\.5\.bias"):
        vggface.vgg16_weights(path, shapes=SHAPES)
    torch.save({**state, "features.7.bias": torch.zeros(2)}, path)
    with pytest.raises(DataError, match=r"features\.7 .* bias of \(2,\), where \(5, 4, 3, 3\) and \(5,\)"):
        vggface.vgg16_weights(path, shapes=SHAPES)
    torch.save([1, 2], path)
    with pytest.raises(DataError, match="is not a state dict of tensors"):
        vggface.vgg16_weights(path)
    whole = path.read_bytes()
    for name, content in (
        ("cut.pth", whole[: len(whole) // 2]),
        ("cut.mat", b"MATLAB 5.0"),
        ("cut.safetensors", b"\xff\0"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=rf"{name} can't be read .*it has {len(content):,} bytes"):
            vggface.vgg16_weights(tmp_path / name)
    scipy.io.savemat(tmp_path / "other.mat", {"x": [1, 2]})
    with pytest.raises(DataError, match="has no layers of a MatConvNet network"):
        vggface.vgg16_weights(tmp_path / "other.mat")
    (tmp_path / "VGG_FACE.t7").write_bytes(b"lua")
    with pytest.raises(InputError, match=r"VGG_FACE\.t7 is a file of Lua Torch.*convert"):
        vggface.vgg16_weights(tmp_path / "VGG_FACE.t7")
