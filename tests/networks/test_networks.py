"""The networks: their sizes as published, their answers as transformers computes them, and that they can forget."""

import warnings

import numpy as np
import pytest
import torch
from data_folder import LACKING, real
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from excise import Cached, PerLayer, Step, Task, Unlearner, fit
from excise.datasets.cifar import load_cifar, normalised
from excise.errors import InputError
from excise.networks.densenet import DenseLayer, densenet
from excise.networks.mobilenet import MobileNetV2, mobilenet_v2
from excise.networks.resnet import Block, ProjectedBlock, resnet18, resnet20, resnet50, resnet56
from excise.networks.small import cnn, logistic, mlp
from excise.networks.vgg import VGG, VGG16, vgg11, vgg16
from excise.slices import find_slices
from excise.training.batchnorm import reestimate

WITH_WEIGHTS = {"resnet20": resnet20, "resnet56": resnet56}
SMALLEST = {
    "vgg11": lambda seed: vgg11(seed, classes=3, width=4),
    "vgg11 with batch norm": lambda seed: vgg11(seed, classes=3, width=4, batch_norm=True),
    "vgg16": lambda seed: vgg16(seed, classes=3, width=2, side=32),
    "resnet18": lambda seed: resnet18(seed, classes=3, width=4),
    "resnet50": lambda seed: resnet50(seed, classes=3, width=2),
    "densenet": lambda seed: densenet(seed, classes=3, depth=10, growth=4),
    "mobilenet_v2": lambda seed: mobilenet_v2(seed, classes=3, width=0.1),
}
EMBEDDERS = SMALLEST | {"resnet20": lambda seed: resnet20(seed=seed)}
MAKERS = EMBEDDERS | {"mlp": mlp, "logistic": logistic, "cnn": cnn}


def images(count, side=32, *, seed=0):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def size(model):
    return sum(weights.numel() for weights in model.parameters())


def of_kind(model, *kinds):
    return [module for module in model.modules() if isinstance(module, kinds)]


def vgg_face():
    """VGG-Face without values: 580 MB of them are not needed for shapes."""
    with torch.device("meta"):
        return VGG(VGG16, hidden=4096, classes=2622, side=224)


# ---------------------------------------------------------------------------------------------------- all networks


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_weights_depend_on_the_seed_alone(name):
    make = MAKERS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = make(3)
        assert torch.equal(before, torch.get_rng_state())
        torch.manual_seed(2)
        again, other = make(3), make(4)
    for one, two in zip(first.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    for one, two, layer in zip(
        of_kind(first, nn.Linear, nn.Conv2d),
        of_kind(other, nn.Linear, nn.Conv2d),
        find_slices(first).layers,
        strict=True,
    ):
        assert not torch.equal(one.weight, two.weight), layer.name


@pytest.mark.slow
@pytest.mark.parametrize("name", EMBEDDERS)
def test_logits_are_the_linear_layer_of_the_features(name):
    model, x = EMBEDDERS[name](0), images(2)
    with torch.no_grad():
        maps, features, logits = model.last_maps(x), model.features(x), model(x)
    assert not model.training
    assert torch.equal(F.linear(features, model.linear.weight, model.linear.bias), logits)
    assert logits.shape == (2, model.linear.out_features)
    if not isinstance(model, VGG):
        np.testing.assert_allclose(features, maps.flatten(2).mean(2), rtol=1e-5)
    assert maps.min() >= 0  # after a ReLU
    assert maps.std() > 0


@pytest.mark.parametrize("name", EMBEDDERS)
def test_every_weight_matrix_is_in_a_slice_and_no_relu_works_in_place(name):
    model = EMBEDDERS[name](0)
    layers = find_slices(model).layers
    expected = {key for key, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)}
    assert {layer.name for layer in layers} == expected
    assert not any(getattr(module, "inplace", False) for module in model.modules())


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_a_trained_network_forgets(name):
    labels = torch.arange(24) % 3
    data = TensorDataset(images(24) + F.one_hot(labels)[:, :, None, None], labels)  # a colour for each class
    task = Task(SMALLEST[name](0), nn.CrossEntropyLoss(reduction="none"), data)
    trained = fit(task, epochs=6, batch_size=12, lr=0.01)
    assert trained.losses[-1] < trained.losses[0]
    reestimate(task, trained.model, None)  # so short a training leaves batch statistics far from the samples
    task = Task(trained.model, task.loss, data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # six epochs don't end at a minimum
        result = Unlearner(task, Step(PerLayer(copies=16), Cached(samples=12)), n_jobs=1).forget([0])
    before, after = trained.model.state_dict(), result.model.state_dict()
    assert result.parameters_changed > 0
    assert any(not torch.equal(before[key], after[key]) for key in before)
    assert all(bool(value.isfinite().all()) for value in after.values())
    assert result.forget_loss[1] > result.forget_loss[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vgg11(0, classes=0), "classes must be a whole number, 1 or more, not 0"),
        (lambda: vgg16(0, side=31), "side must be a whole number, 32 or more, not 31"),
        (lambda: resnet18(0, width=0), "width must be a whole number, 1 or more, not 0"),
        (lambda: resnet50(-1, classes=2), "seed must be a whole number, 0 or more, not -1"),
        (lambda: densenet(0, depth=41), r"depth must be 6 n \+ 4 .* not 41"),
        (lambda: densenet(0, depth=4), r"depth must be 6 n \+ 4 .* not 4"),
        (lambda: mobilenet_v2(0, width=0.0), "width must be a positive number, not 0.0"),
    ],
)
def test_impossible_sizes_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


# ---------------------------------------------------------------------------------------------------- small


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
    assert size(model) == parameters
    assert not list(model.buffers())


# ---------------------------------------------------------------------------------------------------- ResNets


@pytest.mark.parametrize(("name", "parameters", "layers"), [("resnet20", 269_722, 20), ("resnet56", 853_018, 56)])
def test_size_of_the_resnets(name, parameters, layers):
    model = WITH_WEIGHTS[name]()
    assert size(model) == parameters
    assert len(of_kind(model, nn.Conv2d, nn.Linear)) == layers
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
    assert torch.equal(ProjectedBlock(16, 16, 1).shortcut(x), x)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_official_weights_recognise_official_images(name):
    folder, files = real("cifar-10-batches-bin"), sorted(real("weights").glob(f"{name}-*.pt"))
    if not files:
        pytest.skip(f"{LACKING} needs the pretrained weights {name}-*.pt in weights/")
    photographs, labels = load_cifar(folder, "test")
    model = WITH_WEIGHTS[name](files[0])
    assert not model.training
    with torch.no_grad():
        found = model(normalised(photographs[:250])).argmax(1).numpy()
    assert (found == labels[:250]).mean() > 0.9


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save(resnet20().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(RuntimeError, match="Missing key"):
        resnet56(tmp_path / "weights.pt")


def test_resnet18_of_the_cifar_variant():
    model = resnet18(0)
    assert size(model) == 11_173_962  # 11.17 M, as of the common CIFAR variant
    assert size(resnet18(0, classes=100)) == 11_173_962 + 90 * 513
    assert len(of_kind(model, nn.Conv2d, nn.Linear)) == 18 + 3  # and three shortcuts
    with torch.no_grad():
        assert model.last_maps(images(1)).shape == (1, 512, 4, 4)


@pytest.mark.slow
def test_resnet50_of_imagenet_and_of_persons():
    assert size(resnet50(0, classes=1000)) == 25_557_032
    model = resnet50(0, classes=751)  # Market-1501
    assert size(model) == 23_508_032 + 2049 * 751
    assert len(of_kind(model, nn.Conv2d, nn.Linear)) == 50 + 4
    x = torch.zeros(1, 3, 256, 128)
    with torch.no_grad():
        assert model.last_maps(x).shape == (1, 2048, 8, 4)
        assert model.features(x).shape == (1, 2048)
        assert model(x).shape == (1, 751)


# ---------------------------------------------------------------------------------------------------- VGG


def test_vgg11_of_the_cifar_variant():
    convolutions = 1_792 + 73_856 + 295_168 + 590_080 + 1_180_160 + 3 * 2_359_808
    assert convolutions == 9_220_480
    head = 2 * (512 * 512 + 512) + 512 * 10 + 10
    assert size(vgg11(0)) == convolutions + head
    assert size(vgg11(0, batch_norm=True)) == convolutions + head + 2 * (64 + 128 + 2 * 256 + 4 * 512)
    larger = vgg11(0, classes=4, side=70, width=2)  # 70, 35, 17, 8, 4, 2 pixels
    assert larger(images(2, 70)).shape == (2, 4)
    assert larger.last_maps(images(1, 70)).shape == (1, 16, 4, 4)


def test_vgg_face():
    model = vgg_face()
    dense = (25_088 * 4096 + 4096) + (4096 * 4096 + 4096) + (4096 * 2622 + 2622)
    assert size(model) == 14_714_688 + dense == 145_002_878
    assert [layer.out_channels for layer in of_kind(model, nn.Conv2d)] == [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6
    x = torch.zeros(2, 3, 224, 224, device="meta")
    assert model.last_maps(x).shape == (2, 512, 14, 14)
    assert model.features(x).shape == (2, 4096)
    assert model(x).shape == (2, 2622)


def test_vgg_is_convolutions_pools_and_linear_layers_in_this_order():
    model, x = vgg11(0, classes=5, width=2), images(2)
    expected = x
    convolutions, (first, second, last) = of_kind(model, nn.Conv2d), of_kind(model, nn.Linear)
    for number, layer in enumerate(convolutions):
        expected = F.relu(F.conv2d(expected, layer.weight, layer.bias, padding=1))
        if number in (0, 1, 3, 5, 7):
            expected = F.max_pool2d(expected, 2)
    expected = F.relu(F.linear(expected.flatten(1), first.weight, first.bias))
    expected = F.linear(F.relu(F.linear(expected, second.weight, second.bias)), last.weight, last.bias)
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_pairs_of_weights_and_biases_are_loaded_in_order(batch_norm):
    source = vgg11(1, classes=3, width=2, batch_norm=batch_norm)
    for layer in of_kind(source, nn.Conv2d, nn.Linear):
        nn.init.uniform_(layer.bias, generator=torch.Generator().manual_seed(0))
    pairs = [(layer.weight.detach().numpy(), layer.bias.detach()) for layer in of_kind(source, nn.Conv2d, nn.Linear)]
    target = vgg11(2, classes=3, width=2, batch_norm=batch_norm)
    assert not torch.equal(target(images(2)), source(images(2)))
    target.load_pairs(pairs)
    assert torch.equal(target(images(2)), source(images(2)))


def test_a_linear_layer_is_loaded_from_the_filters_it_is_equal_to():
    model, x = vgg11(0, classes=3, side=64, width=2), images(2, 64)
    layers = of_kind(model, nn.Conv2d, nn.Linear)
    filters = torch.randn(16, 16, 2, 2, generator=torch.Generator().manual_seed(0))
    pairs = [(layer.weight.detach(), layer.bias.detach()) for layer in layers]
    pairs[8] = filters, pairs[8][1]
    model.load_pairs(pairs)
    as_convolution = F.conv2d(F.max_pool2d(model.last_maps(x), 2), filters)[:, :, 0, 0]
    np.testing.assert_allclose(
        model.hidden[0](F.max_pool2d(model.last_maps(x), 2).flatten(1)).detach(),
        F.relu(as_convolution).detach(),
        rtol=1e-4,
        atol=1e-5,
    )


def test_pairs_that_do_not_fit_are_named_and_change_nothing():
    model = vgg11(0, classes=3, width=2)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    pairs = [(layer.weight.detach() + 1, layer.bias.detach()) for layer in of_kind(model, nn.Conv2d, nn.Linear)]
    with pytest.raises(InputError, match="pairs has 10 pairs of weight and bias, and the network 11 layers"):
        model.load_pairs(pairs[:-1])
    transposed = [*pairs[:-1], (pairs[-1][0].T, pairs[-1][1])]
    with pytest.raises(InputError, match=r"pairs\[10\] has a weight of \(16, 3\) .* linear takes \(3, 16\) and \(3,\)"):
        model.load_pairs(transposed)
    with pytest.raises(InputError, match=r"pairs\[0\] .* a bias of \(3,\)"):
        model.load_pairs([(pairs[0][0], torch.zeros(3)), *pairs[1:]])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


# ---------------------------------------------------------------------------------------------------- DenseNet


@pytest.mark.parametrize(("depth", "parameters"), [(40, 176_122), (100, 769_162)])  # 0.8 M in the paper's table 2
def test_size_of_densenet(depth, parameters):
    model = densenet(0, depth=depth)
    assert size(model) == parameters
    assert len(of_kind(model, nn.Conv2d, nn.Linear)) == depth


def test_size_of_the_smallest_densenet_by_hand():
    # maps: 8 + 4 = 12, halved to 6, + 4 = 10, halved to 5, + 4 = 9
    layers = sum(2 * c + 16 * c + 32 + 9 * 16 * 4 for c in (8, 6, 5))
    transitions = sum(2 * c + c * c // 2 for c in (12, 10))
    assert size(densenet(0, classes=3, depth=10, growth=4)) == 3 * 8 * 9 + layers + transitions + 2 * 9 + 9 * 3 + 3


def test_a_dense_layer_appends_to_what_it_reads():
    layer, x = DenseLayer(6, 4).eval(), images(2).repeat(1, 2, 1, 1)
    found = layer(x)
    assert torch.equal(found[:, :6], x)
    own = F.conv2d(F.conv2d(x.relu(), layer.conv1.weight).relu(), layer.conv2.weight, padding=1)
    # fresh batch normalisation divides by √(1 + 1e-5), once for each of the two
    np.testing.assert_allclose(found[:, 6:].detach(), own.detach() / (1 + 1e-5), rtol=1e-3, atol=1e-5)


def test_maps_of_densenet_are_halved_twice():
    assert densenet(0).last_maps(images(1)).shape == (1, 132, 8, 8)


# ---------------------------------------------------------------------------------------------------- MobileNetV2


def test_size_of_mobilenet():
    assert size(mobilenet_v2(0, classes=1000, side=224)) == 3_504_872
    assert size(mobilenet_v2(0)) == 3_504_872 - 990 * 1281


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "millions"), [(1.4, 6.06), (1.3, 5.34), (1.0, 3.47), (0.75, 2.61), (0.5, 1.95), (0.35, 1.66)]
)
def test_widths_of_mobilenet_as_in_the_authors_table(width, millions):
    with torch.device("meta"):
        model = MobileNetV2(1000, width=width)
    # the table of their published weights does not count batch normalisation
    assert round(sum(layer.weight.numel() for layer in of_kind(model, nn.Conv2d, nn.Linear)) / 1e6, 2) == millions


def test_mobilenet_filters_each_map_by_itself():
    model = mobilenet_v2(0, width=0.1)
    depthwise = [layer for layer in of_kind(model, nn.Conv2d) if layer.groups > 1]
    assert len(depthwise) == 17
    assert all(layer.groups == layer.in_channels == layer.out_channels for layer in depthwise)


def test_small_images_are_halved_less_often():
    assert mobilenet_v2(0, width=0.1).last_maps(images(1)).shape == (1, 1280, 4, 4)
    assert mobilenet_v2(0, width=0.1, side=64).last_maps(images(1, 64)).shape == (1, 1280, 8, 8)
    persons = mobilenet_v2(0, classes=751, width=0.1, side=128)
    assert persons.last_maps(torch.zeros(1, 3, 256, 128)).shape == (1, 1280, 8, 4)
    assert persons.features(torch.zeros(1, 3, 256, 128)).shape == (1, 1280)


# ---------------------------------------------------------------------------------------------------- transformers


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers")


def randomise(model, seed=0):
    """Weights of a sensible size, and batch statistics that are not those of a fresh network."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for norm in of_kind(model, nn.BatchNorm2d):
            for values, low, high in (
                (norm.weight, 0.5, 1.0),
                (norm.bias, -0.3, 0.3),
                (norm.running_mean, -0.5, 0.5),
                (norm.running_var, 0.5, 2.0),
            ):
                values.uniform_(low, high, generator=generator)


def copy_over(theirs, ours):
    """Layers to layers, in the order given."""
    for source, target in zip(theirs, ours, strict=True):
        target.load_state_dict(source.state_dict())


def parts(*modules):
    return [part for module in modules for part in of_kind(module, nn.Conv2d, nn.BatchNorm2d, nn.Linear)]


@pytest.mark.slow
def test_resnet50_answers_as_that_of_transformers(transformers):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=7))
    randomise(theirs)
    blocks = [block for stage in theirs.resnet.encoder.stages for block in stage.layers]
    in_our_order = [module for block in blocks for module in (block.layer, block.shortcut)]
    ours = resnet50(0, classes=7)
    copy_over(parts(theirs.resnet.embedder, *in_our_order, theirs.classifier), parts(ours))
    compare(theirs, theirs.resnet, ours)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1.0, 0.35])
def test_mobilenet_answers_as_that_of_transformers(transformers, width):
    options = {"tf_padding": False, "layer_norm_eps": 1e-5, "depth_multiplier": width}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = transformers.MobileNetV2ForImageClassification(transformers.MobileNetV2Config(num_labels=7, **options))
    randomise(theirs)
    ours = mobilenet_v2(0, classes=7, width=width, side=224)
    with torch.no_grad():
        for layer in of_kind(
            theirs, nn.Conv2d
        ):  # theirs are so small that the answers would hardly depend on the image
            nn.init.kaiming_normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    copy_over(parts(theirs), parts(ours))
    compare(theirs, theirs.mobilenet_v2, ours)


def compare(theirs, body, ours):
    x = images(2, 96).double()
    theirs, ours = theirs.double().eval(), ours.double().eval()
    with torch.no_grad():
        seen, logits = body(x), theirs(x).logits
        assert (logits[0] - logits[1]).abs().max() > 1e-3 * logits.abs().max()
        torch.testing.assert_close(ours.last_maps(x), seen.last_hidden_state)
        torch.testing.assert_close(ours.features(x), seen.pooler_output.flatten(1))
        torch.testing.assert_close(ours(x), logits)
