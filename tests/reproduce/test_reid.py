"""The re-identification experiment: its sets of people, its scores, its training and its verdicts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from excise.errors import DataError, InputError
from excise.networks.embedder import Embedder
from excise.networks.small import seeded
from excise.reproduce.framework.plots import new_figure
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.people import Album, People, load_people
from excise.reproduce.parts.retrieval_models import Seen, Training, by_pixels, look, network, scores, shifted
from excise.reproduce.studies.reid import measure as reid
from excise.reproduce.studies.reid.claims import judge
from excise.reproduce.studies.reid.measure import AT_ONCE, OURS, RETRAINED, literal
from excise.reproduce.studies.reid.plot import draw
from excise.task import Task

Image = pytest.importorskip("PIL.Image")
SIZE = (16, 8)


# ---------------------------------------------------------------------------------------------------- people


def write_image(path, rng):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (20, 10, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def market(tmp_path):
    """Four people to train on, one of them seen by a single camera, and three to seek, in the official layout."""
    rng = np.random.default_rng(0)
    place = tmp_path / "market1501"
    for person, cameras in ((2, (1, 1)), (7, (1, 2, 3)), (9, (1, 2, 5)), (11, (3, 4, 6))):
        for shot, camera in enumerate(cameras):
            write_image(place / "bounding_box_train" / f"{person:04}_c{camera}s1_{shot:06}_00.jpg", rng)
    for person in (1, 3, 4):
        write_image(place / "query" / f"{person:04}_c1s1_000000_00.jpg", rng)
        write_image(place / "bounding_box_test" / f"{person:04}_c2s1_000001_00.jpg", rng)
    write_image(place / "bounding_box_test" / "0000_c3s1_000001_00.jpg", rng)
    write_image(place / "bounding_box_test" / "-1_c3s1_000002_00.jpg", rng)
    return tmp_path


@pytest.fixture
def orl(tmp_path):
    """As many images as ORL has, each of one grey that tells person and shot."""
    labels, index = np.divmod(np.arange(400), 10)
    images = np.broadcast_to((6 * labels + index)[:, None, None], (400, 112, 92)).astype(np.uint8)
    (tmp_path / "orl_faces").mkdir()
    np.savez(tmp_path / "orl_faces" / "orl.npz", images=images, labels=labels, index=index + 1)
    return tmp_path


def people_of(folder, dataset, **options):
    defaults = {"size": SIZE, "trained": 30, "shots": 6, "watched": 2, "seed": 3}
    return load_people(dataset, folder, **defaults | options)


def test_faces_for_training_are_never_sought(orl):
    people = people_of(orl, "orl", shots=5)
    assert len(people.train) == 30 * 5
    assert len(people.query) == 40 * 4
    assert people.gallery is people.query
    assert set(people.train.people) == set(range(30))
    assert set(people.query.people) == set(range(40))
    assert sorted(people.removable) == list(range(30))
    trained = set(zip(people.train.people, people.train.cameras, strict=True))
    sought = set(zip(people.query.people, people.query.cameras, strict=True))
    assert not trained & sought
    assert len(sought) == 160
    grey = people.train.images[:, 0, 0, 0].numpy() - (people.train.cameras - 1)  # what is left is the person's
    assert all(len(set(grey[people.train.people == person])) == 1 for person in range(30))


def test_the_seed_decides_who_is_trained_on(orl):
    first, again, other = (people_of(orl, "orl", seed=seed).train.images for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_official_set_is_sought_with_some_of_its_training_people(market):
    people = people_of(market, "market1501")
    assert people.trained == 4
    assert len(people.train) == 11
    assert set(people.train.people) == {0, 1, 2, 3}
    assert len(people.removable) == 2
    assert 0 not in people.removable
    assert len(people.query) == 3 + 6
    assert len(people.gallery) == 4 + 6
    assert set(people.query.people[:3]) == {5, 6, 7}
    assert 4 in people.gallery.people
    assert set(people.query.people[3:]) == set(people.removable)
    assert people.train.images.shape == (11, 3, *SIZE)


def test_a_set_that_is_not_there_or_not_known(tmp_path):
    with pytest.raises(InputError, match=r"dataset must be 'orl' or one of 'market1501'.*not 'mars'"):
        people_of(tmp_path, "mars")
    with pytest.raises(DataError, match="Market-1501 is not downloaded for you"):
        people_of(tmp_path, "market1501")


def test_an_album_gives_pixels_and_people():
    images = torch.tensor([0, 255, 51], dtype=torch.uint8).view(3, 1, 1, 1).expand(-1, 3, 2, 2)
    album = Album(images, np.array([4, 4, 1]), np.array([1, 2, 1]))
    assert [(image.unique().tolist(), person) for image, person in album] == [
        ([-1.0], 4),
        ([1.0], 4),
        ([pytest.approx(-0.6)], 1),
    ]
    assert album.of(4) == [0, 1]
    assert album.thinned(1).people.tolist() == [4, 1]


# ---------------------------------------------------------------------------------------------------- models


class Tiny(Embedder):
    """One convolution, so that everything about it can be computed by hand."""

    def __init__(self, classes):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.linear = nn.Linear(4, classes)

    def last_maps(self, x):
        return self.convolution(x).relu() + 0.01


def tiny(classes):
    with seeded(0):
        return Tiny(classes).eval()


@pytest.fixture
def crowd():
    """Three trained people and one who is not; each query has a match by another camera."""
    rng = np.random.default_rng(1)
    who, cameras = np.repeat(np.arange(4), 3), np.tile([1, 2, 3], 4)
    album = Album(torch.tensor(rng.integers(0, 256, (12, 3, *SIZE)), dtype=torch.uint8), who, cameras)
    return People(album.take(np.flatnonzero(who < 3)), album, album, 3, (0, 1, 2))


def test_pixels_find_people_who_always_look_the_same(crowd):
    assert by_pixels(crowd) < 0.9  # noise
    alike = torch.stack([torch.roll(torch.eye(8).repeat(3, 1, 1), int(who), 1) for who in crowd.query.people])
    album = replace(crowd.query, images=(255 * alike).byte())
    assert by_pixels(replace(crowd, query=album, gallery=album)) == 1


def slow_precision(features, who, row):
    """Average precision and rank-1 of one query among all other images."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    others = [i for i in np.argsort(-(unit @ unit[row]), kind="stable") if i != row]
    hits = [who[i] == who[row] for i in others]
    return np.mean([sum(hits[: k + 1]) / (k + 1) for k, hit in enumerate(hits) if hit]), float(hits[0])


def test_scores_are_those_of_the_slow_way(crowd):
    model, other = tiny(3), tiny(3)
    with torch.no_grad():
        other.convolution.weight.mul_(-1)
    before, after = look(model, crowd), look(other, crowd)
    found = scores(after, before, crowd, 1)
    who = crowd.query.people
    with torch.no_grad():
        images = crowd.query.images.float() / 127.5 - 1
        first, last = model.last_maps(images), other.last_maps(images)
        features, sure = other.features(images).numpy(), other(images).softmax(1).numpy()
    precise = np.array([slow_precision(features, who, row) for row in range(12)])
    assert found["person mAP"] == pytest.approx(precise[who == 1, 0].mean(), abs=1e-4)
    assert found["rest rank-1"] == pytest.approx(precise[who != 1, 1].mean(), abs=1e-4)
    assert found["unseen mAP"] == pytest.approx(precise[who == 3, 0].mean(), abs=1e-4)
    assert found["person confidence"] == pytest.approx(sure[3:6, 1].mean(), abs=1e-4)
    assert found["rest confidence"] == pytest.approx((sure[:3, 0].sum() + sure[6:9, 2].sum()) / 6, abs=1e-4)
    one, two = ((maps**2).sum(1).flatten(1) for maps in (first, last))
    change = 1 - nn.functional.cosine_similarity(one, two)
    assert found["person map change"] == pytest.approx(float(change[3:6].mean()), abs=1e-4)
    assert found["rest map change"] == pytest.approx(float(change[[0, 1, 2, 6, 7, 8]].mean()), abs=1e-4)


def test_a_ruined_model_finds_people_by_chance_only(crowd):
    before = look(tiny(3), crowd)
    ruined = Seen(np.full((12, 4), np.nan), np.full((12, 4), np.nan), np.full(12, np.nan), np.full_like(before.maps, 0))
    found = scores(ruined, before, crowd, 1)
    assert found["person mAP"] == found["person rank-1"] == pytest.approx(2 / 11, abs=1e-4)  # all alike: 2 of 11 match
    assert found["person confidence"] == 0
    assert found["person map change"] == 1


def test_training_is_adam_on_the_objective(crowd):
    task = Task(tiny(3), nn.CrossEntropyLoss(reduction="none"), crowd.train, weight_decay=0.1)
    training = Training(epochs=3, learning_rate=0.01, batch_size=9, shift=0, falls_after=0.67)
    model, trace = training(task, seed=0, record=True)
    truth = tiny(3)
    optimizer = torch.optim.Adam(truth.parameters(), lr=0.01, weight_decay=0.1)
    images, labels = crowd.train.images.float() / 127.5 - 1, torch.tensor(crowd.train.people)
    for epoch in range(3):
        optimizer.param_groups[0]["lr"] = 0.01 if epoch < 2 else 0.001
        optimizer.zero_grad()
        nn.functional.cross_entropy(truth(images), labels).backward()
        optimizer.step()
    for found, expected in zip(model.parameters(), truth.parameters(), strict=True):
        assert torch.allclose(found, expected, atol=1e-5)
    assert torch.equal(trace.parameters[1]["linear.weight"], model.linear.weight.detach())


def test_images_are_shifted_by_a_few_pixels_at_the_most():
    image = torch.arange(35.0).view(1, 1, 5, 7)
    generator = torch.Generator().manual_seed(0)
    seen = {tuple(shifted(image, 1, generator)[0, 0, 1:-1, 1:-1].flatten().tolist()) for _ in range(200)}
    expected = {
        tuple(image[0, 0, 1 + down : 4 + down, 1 + right : 6 + right].flatten().tolist())
        for down in (-1, 0, 1)
        for right in (-1, 0, 1)
    }
    assert seen == expected
    assert shifted(image, 0, generator) is image


@pytest.mark.parametrize("name", ["resnet20", "resnet50", "mobilenet_v2"])
def test_networks_begin_with_a_files_weights_but_for_the_head(name, tmp_path):
    options = {"classes": 5, "width": 1.0 if name == "resnet20" else 0.125, "side": 16}
    first, began = network(name, tmp_path, seed=1, **options)
    assert began == "random"
    assert first.linear.out_features == 5
    if name == "resnet20":
        torch.save(first.state_dict(), tmp_path / "resnet20-made.pt")
        second, began = network(name, tmp_path, seed=2, **options)
        assert began == "resnet20-made.pt"
        assert torch.equal(second.conv1.weight, first.conv1.weight)
        assert not torch.equal(second.linear.weight, first.linear.weight)
        torch.save({"conv1.weight": first.conv1.weight}, tmp_path / "resnet20-made.pt")
        with pytest.raises(InputError, match=r"resnet20-made.pt does not fit resnet20: it lacks \['bn1.weight'"):
            network(name, tmp_path, seed=2, **options)


def test_an_unknown_network(tmp_path):
    with pytest.raises(InputError, match="networks has 'mlfn'; there are resnet20"):
        network("mlfn", tmp_path, classes=2, width=1.0, side=16, seed=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
def test_it_runs_on_an_official_set(market, tmp_path, monkeypatch):
    monkeypatch.setattr(reid, "network", lambda *_, classes, **__: (tiny(classes), "random"))
    timed = {"seconds": 1.0, "copies": 10, "parameters": 1, "threads": 1}
    monkeypatch.setattr(reid, "time_of_removal", lambda _: timed)
    settings = reid.Settings(
        networks=("tiny",),
        widths=(1.0,),
        size=SIZE,
        watched=3,
        removed_people=1,
        epochs=(3,),
        copies=8,
        few_epochs=2,
    )
    run = Run(tmp_path / "out", "reid", settings, data_dir=market, seed=0)
    measured = reid.measure(run)
    assert measured["images"] == 11
    assert measured["people"] == 4
    ways = measured["networks"]["tiny"]["ways"]
    assert list(ways) == [literal(0.1), literal(0.0005), OURS, AT_ONCE, RETRAINED]
    assert ways[OURS][0]["removed"] == [0, 1, 2, 3]
    assert ways[RETRAINED][0]["removed"] == [0, 3]
    assert measured["few"]["images"] == 8
    assert judge(measured)
    draw(measured, new_figure((14, 6)))


# ---------------------------------------------------------------------------------------------------- verdicts


def outcome(*, rest=(0.9, 0.9, 0.9), sure=(0.8, 0.01), others=(0.8, 0.8), change=(0.4, 0.1), layers=2.0):
    steps = len(rest)

    def rising(ends):
        return np.linspace(*ends, steps).tolist()

    return {
        "removed": list(range(steps)),
        "rest mAP": list(rest),
        "rest rank-1": list(rest),
        "person mAP": list(rest),
        "person rank-1": list(rest),
        "unseen mAP": [0.7] * steps,
        "person confidence": rising(sure),
        "rest confidence": rising(others),
        "person map change": rising((0, change[0])),
        "rest map change": rising((0, change[1])),
        "slices": 3.0,
        "layers": layers,
        "seconds": 1.0,
    }


def figures(*, low=(0.9, 0.9, 0.7), few=None, seconds=30.0, **high):
    paper = [outcome(**high)]
    grey = [[[0, 128], [255, 64]]] * 2
    return {
        "images": 180,
        "people": 30,
        "pixels mAP": 0.7,
        "drop": 0.05,
        "epsilons": [0.1, 0.0005],
        "noise": {"12936": [0.1, 20.0], "180": [500.0, 1e5]},
        "networks": {
            "resnet20": {
                "begins with": "random",
                "parameters": 300_000,
                "ways": {
                    literal(0.1): paper,
                    literal(0.0005): [outcome(rest=low)],
                    OURS: [outcome()],
                    AT_ONCE: [outcome()],
                    RETRAINED: [outcome()],
                },
            }
        },
        "few": {"network": "resnet20", "images": 60, "ways": [outcome(**few or {"layers": 5.0, "change": (0.6, 0.2)})]},
        "time": {"seconds": seconds, "copies": 250, "parameters": 24_000_000, "threads": 1},
        "pictures": {
            "network": "resnet20",
            "images": grey,
            "before": grey,
            "after": dict.fromkeys((literal(0.1), RETRAINED), grey),
        },
    }


YES, NO, UNKNOWN = "confirmed", "not confirmed", "out of reach"


@pytest.mark.parametrize(
    ("given", "row", "verdict"),
    [
        ({}, 0, YES),
        ({"rest": (0.9, 0.86, 0.84)}, 0, NO),
        ({}, 1, YES),
        ({"low": (0.9, 0.9, 0.9)}, 1, UNKNOWN),  # two images can't tell whether ten would be supported
        ({"low": (0.9,) * 11}, 1, NO),
        ({}, 2, YES),
        ({"low": (0.9, 0.9, 0.9)}, 2, NO),
        ({}, 3, YES),
        ({"sure": (0.8, 0.2)}, 3, NO),
        ({}, 4, YES),
        ({"others": (0.8, 0.6)}, 4, NO),
        ({}, 5, YES),
        ({"change": (0.4, 0.3)}, 5, NO),
        ({}, 6, YES),
        ({"few": {"layers": 2.0, "change": (0.6, 0.2)}}, 6, NO),
        ({"few": {"layers": 5.0, "change": (0.1, 0.2)}}, 6, NO),
        ({}, 7, YES),
        ({"seconds": 100.0}, 7, NO),  # 400 s for 1,000 copies
        ({}, 8, UNKNOWN),
    ],
)
def test_verdicts(given, row, verdict):
    assert judge(figures(**given))[row].verdict == verdict


@pytest.mark.slow
def test_the_plot_has_every_way_and_the_maps():
    figure = new_figure((14, 6))
    draw(figures(), figure)
    left, right = figure.subfigs
    assert len(left.axes) == 3
    assert len(right.axes) == 3 * 6
    assert {text.get_text() for text in left.legends[0].get_texts()} >= {literal(0.1), OURS, AT_ONCE, RETRAINED}
