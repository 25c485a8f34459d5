"""Images with known factors, the reversed gradient, and accuracies of groups against slow or obvious versions."""

import numpy as np
import pytest
import torch

from excise import InputError
from excise.datasets.celeba import image_name
from excise.reproduce.framework.plots import new_figure
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.attributed import (
    CHANGES,
    SIDE,
    Attributed,
    Attributes,
    Digits,
    attributes_of,
    draw_factors,
    rim,
)
from excise.reproduce.studies.spurious.experiment import EXPERIMENT
from excise.reproduce.studies.spurious.measure import (
    ALL,
    FOCI,
    NONE,
    RANDOM,
    SELECTIONS,
    Settings,
    group_accuracies,
    is_right,
    train,
)
from excise.reproduce.studies.spurious.network import Regularised

MARKS = tuple(f"mark {place}" for place in range(28))
NAMES = (*CHANGES, *MARKS)


def table(factors, labels=None):
    factors = np.asarray(factors, dtype=bool)
    return Attributes(np.zeros(len(factors), bool) if labels is None else np.asarray(labels, bool), factors, NAMES)


# ---------------------------------------------------------------------------------------------------- images


def test_every_factor_shows_and_a_mark_shows_at_its_place_only():
    rows = np.vstack([np.zeros(39, bool), np.eye(39, dtype=bool)])
    strokes = torch.zeros(40, 28, 28)
    strokes[:, 6:22, 12:16] = 0.8
    pictures = [draw_factors(strokes[:1], table(row[None]), seed=3)[0].int() for row in rows]  # the same grain for all
    differences = [(picture - pictures[0]).abs().amax(0) for picture in pictures[1:]]
    assert all(difference.any() for difference in differences)
    for place, difference in enumerate(differences[len(CHANGES) :]):
        top, left = rim(place)
        inside = difference[top : top + 4, left : left + 4].clone()
        difference[top : top + 4, left : left + 4] = 0
        assert inside.all()
        assert not difference.any()
    covered = torch.zeros(SIDE, SIDE)
    for place in range(28):
        top, left = rim(place)
        covered[top : top + 4, left : left + 4] += 1
    assert covered.max() == 1
    assert not covered[4:28, 4:28].any()


def test_the_label_decides_the_digit_and_none_is_used_twice():
    """Digits of even brightness, and no two alike: 0.1, 0.2, ... for the first class and 0.51, ... for the second."""
    first, second = torch.arange(1, 5) / 10, 0.51 + torch.arange(6) / 20
    digits = Digits(tuple(shades.view(-1, 1, 1).expand(-1, 28, 28) for shades in (first, second)))
    plain = [table(np.zeros((5, 39)), [0, 1, 1, 0, 1]), table(np.zeros((4, 39)), [1, 0, 1, 0])]
    for one in plain:
        one.factors[:, NAMES.index("Young")] = True  # ink of full brightness
    drawn = digits.drawn(plain, np.random.default_rng(0))
    shades = torch.cat([one.images[:, 0, 12:20, 12:20].float().mean((1, 2)) / 255 for one in drawn])
    labels = torch.cat([one.labels for one in drawn])
    assert labels.tolist() == [0, 1, 1, 0, 1, 1, 0, 1, 0]
    assert ((shades > 0.455) == labels.bool()).all()
    every = torch.cat([first, second])
    nearest = (shades[:, None] - every).abs().argmin(1)
    assert len(set(nearest.tolist())) == 9
    with pytest.raises(InputError, match="5 more digits are needed, but 4 are left"):
        digits.drawn([table(np.zeros((5, 39)))], np.random.default_rng(0))


def write_celeba(folder, count, size=12):
    """Faces in CelebA's layout: bright where the label is set."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    values = np.where(rng.random((count, 40)) < 0.5, 1, -1)
    names = ["No_Beard", *NAMES]
    lines = [str(count), " ".join(name.replace(" ", "_") for name in names)]
    (folder / "img_align_celeba").mkdir(parents=True)
    for row in range(count):
        lines.append(image_name(row) + " " + " ".join(map(str, values[row])))
        pixels = np.full((size, size, 3), 200 if values[row, 0] > 0 else 50, dtype=np.uint8)
        image.fromarray(pixels).save(folder / "img_align_celeba" / image_name(row), quality=95)
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    return values


@pytest.mark.slow
def test_the_same_on_faces_from_disk(tmp_path):
    values = write_celeba(tmp_path / "celeba", 120)
    found = attributes_of(tmp_path / "celeba", "No_Beard")
    assert found.factors.shape == (120, 39)
    np.testing.assert_array_equal(found.labels, values[:, 0] > 0)
    with pytest.raises(InputError, match="label must be one of CelebA's attributes"):
        attributes_of(tmp_path / "celeba", "Beard")
    small = {"train": 70, "validation": 50, "side": 12, "searched": 120, "runs": 2}
    settings = Settings(images="faces", strengths=(0.01,), epochs=6, batch_size=8, **small)
    run = Run(tmp_path / "out", "spurious", settings, data_dir=tmp_path)
    measured = EXPERIMENT.measure(run)
    assert measured["scores"]["overall"][NONE] == [[1.0], [1.0]]  # brightness tells it all
    assert "shifted" not in measured["scores"]
    assert len(EXPERIMENT.judge(measured)) == 3
    EXPERIMENT.draw(measured, new_figure(EXPERIMENT.size))


# ---------------------------------------------------------------------------------------------------- training


def test_only_what_is_below_the_reversal_sees_the_opposite_gradient():
    torch.manual_seed(0)
    model, images = Regularised(3), torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)

    def gradients(logits):
        return torch.autograd.grad(logits.square().sum(), [*model.features.parameters(), *model.factors.parameters()])

    turned = gradients(model(images, 0.25)[1])
    straight = gradients(model.factors(model.features(images.float() / 127.5 - 1)))
    below = len(list(model.features.parameters()))
    for a, b in zip(turned[:below], straight[:below], strict=True):
        torch.testing.assert_close(a, -0.25 * b)
    for a, b in zip(turned[below:], straight[below:], strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_what_is_regularised_against_is_not_learnt_and_the_seed_decides():
    """The label as its own outside factor: features that hide it can't tell it."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(256, generator=generator) < 0.5).float()
    noise = 5 * torch.randn(256, 3, 32, 32, generator=generator)
    images = (100 + 50 * labels.view(-1, 1, 1, 1) + noise).to(torch.uint8)
    data = Attributed(images, labels, labels[:, None])
    settings, state = Settings(epochs=6, batch_size=32), torch.get_rng_state()
    free, same = train(data, [], 0.0, settings, seed=1), train(data, [], 9.0, settings, seed=1)
    hidden = train(data, [0], 30.0, settings, seed=1)
    assert is_right(free, data).mean() > 0.98
    assert is_right(hidden, data).mean() < 0.8
    for one, other in zip(free.parameters(), same.parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_accuracies_of_groups_by_hand():
    """120 samples; a factor in the first 60, the label in every other; another factor in 5, too few to count."""
    factors = torch.zeros(120, 2)
    factors[:60, 0] = 1
    factors[:5, 1] = 1
    labels = (torch.arange(120) % 2).float()
    right = np.ones(120, bool)
    right[0:12:2] = False  # 6, all with the factor and without the label
    found = group_accuracies(right, Attributed(torch.zeros(120, 3, 1, 1), labels, factors))
    assert (found["with"], found["without"]) == ([54 / 60, None], [1.0, round(112 / 115, 4)])
    assert (found["overall"], found["worst group"], found["worst cell"]) == (114 / 120, 54 / 60, 24 / 30)
    assert found["gap"] == pytest.approx(0.1)


# ---------------------------------------------------------------------------------------------------- verdicts


def made_up(overall, lower, shifted):
    """Three runs with a little scatter; factors of correlation 0.5 and 0."""
    scatter = (-0.001, 0.0, 0.001)
    with_it = {name: [[lower[name] + noise, 0.1] for noise in scatter] for name in SELECTIONS}
    scores = {"overall": overall, "worst group": lower, "shifted": shifted}
    return {
        "label": "No_Beard",
        "factors": ["Goatee", "Blurry"],
        "correlation": [-0.5, 0.0],
        "strengths": [0.03],
        "strength": 0.03,
        "chosen": [{RANDOM: ["Blurry"], FOCI: ["Goatee"]}] * 3,
        "counts": [30, 40],
        "with": with_it,
        "without": {name: [[0.99, None]] * 3 for name in SELECTIONS},
        "scores": {score: {n: [[v[n] + s] for s in scatter] for n in SELECTIONS} for score, v in scores.items()},
    }


@pytest.mark.slow
def test_each_verdict():
    well = {NONE: 0.98, ALL: 0.90, RANDOM: 0.92, FOCI: 0.95}
    assert [c.verdict for c in EXPERIMENT.judge(made_up(well, well, well))][:3] == ["confirmed"] * 3
    badly = {NONE: 0.90, ALL: 0.95, RANDOM: 0.97, FOCI: 0.93}
    measured = made_up(badly, badly, badly)
    assert [claim.verdict for claim in EXPERIMENT.judge(measured)] == ["not confirmed"] * 4
    robust = {NONE: 0.6, ALL: 0.7, RANDOM: 0.6, FOCI: 0.8}
    assert EXPERIMENT.judge(made_up(badly, badly, robust))[3].verdict == "confirmed"
    EXPERIMENT.draw(measured, new_figure(EXPERIMENT.size))
