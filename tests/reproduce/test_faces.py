"""The face experiment: its data, its scores, and its verdicts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from data_folder import DATA, real
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

from excise import InputError
from excise.reproduce.framework.plots import new_figure
from excise.reproduce.studies.faces.claims import judge
from excise.reproduce.studies.faces.experiment import HERE
from excise.reproduce.studies.faces.measure import (
    AT_ONCE,
    BGR_MEAN,
    OURS,
    PAPER,
    QUIET,
    RETRAINED,
    Faces,
    accuracies,
    full_size,
    load_faces,
)
from excise.reproduce.studies.faces.plot import draw


def test_orl_is_split_by_shot():
    faces = load_faces(real("orl_faces").parent, HERE)
    assert [len(faces.train), len(faces.test)] == [320, 80]
    assert torch.equal(faces.train.tensors[1].bincount(), torch.full((40,), 8))
    images = torch.cat([faces.train.tensors[0], faces.test.tensors[0]])
    assert images.shape == (400, 3, 64, 64)
    assert float(images.mean()) == pytest.approx(0, abs=1e-4)
    assert torch.equal(images[:, 0], images[:, 2])  # grey
    assert faces.network(0)(images[:2]).shape == (2, 40)


def write_vggface(folder):
    """Two people of the official lists, four red, green and blue images each."""
    for person, colour in (("Ada_Lovelace", (200, 10, 30)), ("Grace_Hopper", (10, 20, 250))):
        (folder / "files").mkdir(parents=True, exist_ok=True)
        (folder / "images" / person).mkdir(parents=True)
        lines = [f"{i:08d} http://example.org/{i}.jpg 4.0 4.0 44.0 44.0 3.00 2.5 1" for i in range(1, 5)]
        (folder / "files" / f"{person}.txt").write_text("\n".join(lines) + "\n")
        for i in range(1, 5):
            Image.new("RGB", (48, 48), colour).save(folder / "images" / person / f"{i:08d}.png")
            (folder / "images" / person / f"{i:08d}.png").rename(folder / "images" / person / f"{i:08d}.jpg")


def test_vgg_face_is_read_as_its_network_expects(tmp_path):
    write_vggface(tmp_path / "vgg_face_dataset")
    settings = replace(HERE, dataset="vggface", people=2, images=3, side=32, width=2)
    faces = load_faces(tmp_path, settings)
    assert faces.train.tensors[1].tolist() == [0, 0, 0, 1, 1, 1]
    assert faces.test.tensors[1].tolist() == [0, 1]
    blue, green, red = faces.train.tensors[0][0].mean((1, 2)).tolist()
    assert [blue, green, red] == pytest.approx([30 - BGR_MEAN[0], 10 - BGR_MEAN[1], 200 - BGR_MEAN[2]], abs=0.5)
    assert faces.network(0)(faces.train.tensors[0]).shape == (6, 2)
    with pytest.raises(InputError, match="leaves none to test"):
        load_faces(tmp_path, replace(settings, images=4))


def test_another_data_set_is_refused():
    with pytest.raises(InputError, match="must be 'orl' or 'vggface', not 'lfw'"):
        load_faces(DATA, replace(HERE, dataset="lfw"))


def test_accuracies_of_the_person_and_of_all_others():
    scores = torch.eye(3)[[0, 0, 1, 2, 2]]  # what the model says of five images
    train = TensorDataset(scores[:4], torch.tensor([0, 1, 1, 2]))
    test = TensorDataset(scores[4:], torch.tensor([1]))
    faces = Faces(train, test, lambda _: nn.Identity())
    assert accuracies(faces, 1, nn.Identity()) == {"person": pytest.approx(1 / 3), "others": 1.0}


def test_the_cost_at_full_size_counts_all_parameters():
    cost = full_size(replace(HERE, full_side=32, full_width=4, full_classes=5, copies=8))
    layers = [(3, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (16, 16), *[(16, 32)], *[(32, 32)] * 5]
    dense = [(32, 256), (256, 256), (256, 5)]
    assert cost["parameters"] == sum(9 * a * b + b for a, b in layers) + sum(a * b + b for a, b in dense)
    assert cost["peak_gib"] > 0.1


def figures(*, person=(1.0, 0.9, 0.0), others=(1.0, 0.98, 0.97), retrained=(0.9, 0.0)):
    curves = {"person": [list(person)] * 2, "others": [list(others)] * 2}
    return {
        "removed": [0, 4, 8],
        "curves": dict.fromkeys((PAPER, QUIET, OURS), curves),
        "ends": {way: {"person": [retrained[1]] * 2, "others": [0.97] * 2} for way in (AT_ONCE, RETRAINED)},
        "half": [{"removed": 4, "person": retrained[0], "others": 0.98}] * 2,
        "supported": [{PAPER: "> 8", QUIET: "> 8", OURS: "> 8"}] * 2,
        "drop": 0.1,
        "sigma": 2.3,
        "full_size": {"parameters": 145e6, "prepare_seconds": 1.0, "seconds": 2.0, "peak_gib": 3.0},
    }


@pytest.mark.parametrize(
    ("given", "verdicts"),
    [
        ({}, ["confirmed", "confirmed", "confirmed"]),
        ({"person": (1.0, 1.0, 0.99)}, ["not confirmed", "not confirmed", "confirmed"]),
        ({"person": (1.0, 0.2, 0.0)}, ["confirmed", "not confirmed", "confirmed"]),
        ({"others": (1.0, 0.85, 0.3)}, ["confirmed", "confirmed", "not confirmed"]),
        ({"others": (1.0, 0.5, 0.3)}, ["not confirmed", "confirmed", "not confirmed"]),  # the others fell first
    ],
)
def test_verdicts(given, verdicts):
    assert [claim.verdict for claim in judge(figures(**given))][:3] == verdicts


def test_the_plot_has_a_panel_for_each_way():
    figure = new_figure((9, 4))
    draw(figures(), figure)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [PAPER, QUIET, OURS]
    line = figure.axes[0].get_lines()[0]
    assert np.allclose(line.get_ydata(), [100, 90, 0])
