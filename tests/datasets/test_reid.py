"""The person re-identification sets: small folders in the official layouts."""

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from excise import DataError, InputError
from excise.datasets import reid
from excise.datasets.grid import load_grid
from excise.datasets.market1501 import load_market1501
from excise.datasets.msmt17 import load_msmt17
from excise.datasets.prid import load_prid
from excise.datasets.reid import Sighting


def touch(path):
    """An empty file: lists are made from names alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def seen(sightings):
    return [(sighting.person, sighting.camera) for sighting in sightings]


def test_images_of_sightings(tmp_path):
    for number in (1, 2):
        Image.new("RGB", (64, 128), (100 * number, 0, 7)).save(tmp_path / f"{number}.png")
    images = reid.load_images([Sighting(tmp_path / f"{i}.png", i, 1) for i in (2, 1)])
    assert images.shape == (2, 3, 256, 128)
    assert images[:, :, 9, 9].tolist() == [[200, 0, 7], [100, 0, 7]]


def test_random_half_depends_on_the_seed_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    halves = [reid.random_half(range(1, 202), seed) for seed in (0, 0, 1)]
    assert halves[0] == halves[1] != halves[2]
    assert len(halves[0]) == 100
    assert halves[0] < set(range(1, 202))
    assert reid.random_half(range(201, 0, -1), 0) == halves[0]
    assert torch.equal(before[0], torch.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    with pytest.raises(InputError, match="seed must be a non-negative whole number, not -1"):
        reid.random_half([1, 2], -1)


# ---------------------------------------------------------------------------------------------------- Market-1501


def write_market(folder):
    names = {
        "bounding_box_train": ["0007_c3s1_000001_02.jpg", "0002_c1s1_000451_03.jpg", "-1_c2s1_000001_00.jpg"],
        "query": ["0001_c6s2_001051_00.jpg"],
        "bounding_box_test": ["-1_c1s1_000401_03.jpg", "0000_c1s1_000151_01.jpg", "0001_c5s2_001051_00.jpg.jpg"],
    }
    for part, files in names.items():
        for name in files:
            touch(folder / part / name)
        touch(folder / part / "Thumbs.db")


@pytest.mark.parametrize("inside", ["", "Market-1501-v15.09.15"])
def test_market1501(tmp_path, inside):
    write_market(tmp_path / inside)
    found = load_market1501(tmp_path)
    assert found.train[0] == Sighting(tmp_path / inside / "bounding_box_train" / "0002_c1s1_000451_03.jpg", 2, 1)
    assert seen(found.train) == [(2, 1), (7, 3)]
    assert seen(found.query) == [(1, 6)]
    assert seen(found.gallery) == [(0, 1), (1, 5)]
    assert found.summary() == (
        "Market-1501: 2 training images of 2 people, 1 query images of 1 people, 2 gallery images of 2 people."
    )


@pytest.mark.parametrize("name", ["0001_c7s2_001051_00.jpg", "1_c1s2_001051_00.jpg", "picture.jpg"])
def test_market1501_names_are_checked(tmp_path, name):
    write_market(tmp_path)
    touch(tmp_path / "query" / name)
    with pytest.raises(DataError, match=rf"{name} is not named as this set's images are"):
        load_market1501(tmp_path)


def test_missing_market1501(tmp_path):
    with pytest.raises(DataError, match=r"bounding_box_train is missing.*Market-1501-v15\.09\.15\.zip.*zheng-lab"):
        load_market1501(tmp_path)
    (tmp_path / "bounding_box_train").mkdir()
    with pytest.raises(DataError, match=r"bounding_box_train has no images \*\.jpg"):
        load_market1501(tmp_path)


# ---------------------------------------------------------------------------------------------------- MSMT17


def write_msmt(folder, train="train", test="test"):
    lists = {
        "list_train.txt": (train, ["0000/0000_000_01_0303morning_0015_0.jpg 0", "0001/0001_007_14_0113noon_1_0.jpg 1"]),
        "list_val.txt": (train, ["0001/0001_008_02_0113noon_1_0.jpg 1"]),
        "list_query.txt": (test, ["0000/0000_000_15_0303afternoon_0142_1.jpg 0"]),
        "list_gallery.txt": (test, ["0000/0000_001_03_0303afternoon_0142_1.jpg 0", "0003/0003_0_04_a_1_1_ex.jpg 3"]),
    }
    for name, (images, lines) in lists.items():
        for line in lines:
            touch(folder / images / line.split()[0])
        (folder / name).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("inside", "folders"),
    [("", ("train", "test")), ("MSMT17_V1", ("train", "test")), ("MSMT17_V2", ("mask_train_v2", "mask_test_v2"))],
)
def test_msmt17(tmp_path, inside, folders):
    write_msmt(tmp_path / inside, *folders)
    found = load_msmt17(tmp_path)
    path = tmp_path / inside / folders[0] / "0000" / "0000_000_01_0303morning_0015_0.jpg"
    assert found.train[0] == Sighting(path, 0, 1)
    assert seen(found.train) == [(0, 1), (1, 14)]
    assert seen(found.query) == [(0, 15)]
    assert seen(found.gallery) == [(0, 3), (3, 4)]
    assert seen(load_msmt17(tmp_path, validation=True).train) == [(0, 1), (1, 14), (1, 2)]


@pytest.mark.parametrize(
    "line", ["0000/0000_000_01_0303morning_0015_0.jpg", "0000/0000.jpg 0", "0/0_0_01_a.jpg person"]
)
def test_bad_lines_of_msmt17_are_named(tmp_path, line):
    write_msmt(tmp_path)
    with (tmp_path / "list_query.txt").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=rf"list_query\.txt has '{line}' in line 2 instead of a line such as"):
        load_msmt17(tmp_path)


def test_missing_msmt17(tmp_path):
    with pytest.raises(DataError, match=r"neither the folder train nor mask_train_v2.*pkuvmc"):
        load_msmt17(tmp_path)
    write_msmt(tmp_path)
    (tmp_path / "test" / "0003" / "0003_0_04_a_1_1_ex.jpg").unlink()
    with pytest.raises(
        DataError, match=r"0003_0_04_a_1_1_ex\.jpg is missing, but line 2 of list_gallery\.txt lists it"
    ):
        load_msmt17(tmp_path)
    (tmp_path / "list_query.txt").write_text("")
    with pytest.raises(DataError, match=r"list_query\.txt is empty"):
        load_msmt17(tmp_path)
    (tmp_path / "list_train.txt").unlink()
    with pytest.raises(DataError, match=r"list_train\.txt is missing"):
        load_msmt17(tmp_path)
    (tmp_path / "test").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="test is missing"):
        load_msmt17(tmp_path)


# ---------------------------------------------------------------------------------------------------- PRID 2011


def write_prid(folder):
    """The official numbers: 385 people in camera A, 749 in camera B, the first 200 in both."""
    for camera, people in (("cam_a", 385), ("cam_b", 749)):
        for person in range(1, people + 1):
            touch(folder / "single_shot" / camera / f"person_{person:04d}.png")


def test_prid_single_shot(tmp_path):
    write_prid(tmp_path / "prid_2011")
    found = load_prid(tmp_path, seed=3)
    trained = {sighting.person for sighting in found.train}
    tested = {sighting.person for sighting in found.query}
    assert (len(found.train), len(found.query), len(found.gallery)) == (200, 100, 649)
    assert len(trained) == 100
    assert trained | tested == set(range(1, 201))
    assert seen(found.train[:2]) == [(min(trained), 1), (min(trained), 2)]
    assert {sighting.camera for sighting in found.query} == {1}
    assert {sighting.camera for sighting in found.gallery} == {2}
    assert {sighting.person for sighting in found.gallery} == tested | set(range(201, 750))
    assert found.query[0].path.name == f"person_{min(tested):04d}.png"
    assert load_prid(tmp_path, seed=3) == found
    assert load_prid(tmp_path, seed=4).query != found.query


def test_prid_multi_shot_counts_people_with_more_than_21_frames(tmp_path):
    frames = {"cam_a": {1: 22, 2: 30, 3: 21, 4: 40, 250: 40}, "cam_b": {1: 22, 2: 25, 3: 50, 5: 40, 250: 40}}
    for camera, people in frames.items():
        for person, count in people.items():
            for frame in range(1, count + 1):
                touch(tmp_path / "multi_shot" / camera / f"person_{person:04d}" / f"{frame:04d}.png")
    found = load_prid(tmp_path, shots="multi")
    (trained,) = {sighting.person for sighting in found.train}
    (tested,) = {sighting.person for sighting in found.query}
    assert {trained, tested} == {1, 2}
    assert len(found.train) == frames["cam_a"][trained] + frames["cam_b"][trained]
    assert seen(found.query) == [(tested, 1)] * frames["cam_a"][tested]
    assert seen(found.gallery) == [(tested, 2)] * frames["cam_b"][tested]
    assert [sighting.path.name for sighting in found.query[:2]] == ["0001.png", "0002.png"]
    (tmp_path / "multi_shot" / "cam_a" / "person_0099").mkdir()
    with pytest.raises(DataError, match=r"person_0099 has no frames"):
        load_prid(tmp_path, shots="multi")


def test_damaged_prid(tmp_path):
    with pytest.raises(DataError, match=r"single_shot/cam_a is missing.*prid_2011\.zip.*tugraz"):
        load_prid(tmp_path)
    for camera in ("cam_a", "cam_b"):
        touch(tmp_path / "single_shot" / camera / "person_0001.png")
    with pytest.raises(DataError, match="has 1 people in both cameras"):
        load_prid(tmp_path)
    touch(tmp_path / "single_shot" / "cam_b" / "someone.png")
    with pytest.raises(DataError, match=r"someone\.png is not named"):
        load_prid(tmp_path)
    with pytest.raises(InputError, match="shots must be 'single' or 'multi', not 'many'"):
        load_prid(tmp_path, shots="many")
    (tmp_path / "multi_shot" / "cam_a").mkdir(parents=True)
    with pytest.raises(DataError, match="cam_a has no images of people"):
        load_prid(tmp_path, shots="multi")


# ---------------------------------------------------------------------------------------------------- GRID


def write_grid(folder):
    """Six people, each in probe and gallery, and two distractors."""
    for person in range(1, 7):
        touch(folder / "probe" / f"{person:04d}_1_25004_107_32_106_221.jpeg")
        touch(folder / "gallery" / f"{person:04d}_2_25023_116_134_128_330.jpeg")
    for number in (1, 2):
        touch(folder / "gallery" / f"0000_5_3000{number}_1_2_3_4.jpeg")


def write_partitions(path, people):
    """Ten cells, each a struct whose third field lists the people, as in the official file."""
    cells = np.empty((1, 10), dtype=object)
    for number in range(10):
        chosen = np.array([people[number]], dtype=float)
        cells[0, number] = {"first": np.zeros((1, 3)), "second": np.zeros((1, 2)), "third": chosen}
    scipy.io.savemat(path, {"trainIdxAll": cells, "features": np.zeros((2, 2))})


@pytest.mark.parametrize("inside", ["", "underground_reid"])
def test_grid(tmp_path, inside):
    write_grid(tmp_path / inside)
    people = [[1, 2, 3]] * 9 + [[6, 2, 4]]
    write_partitions(tmp_path / inside / "features_and_partitions.mat", people)
    assert {sighting.person for sighting in load_grid(tmp_path).train} == {1, 2, 3}
    found = load_grid(tmp_path, partition=9)
    assert seen(found.train) == [(2, 1), (4, 1), (6, 1), (2, 2), (4, 2), (6, 2)]
    assert seen(found.query) == [(1, 1), (3, 1), (5, 1)]
    assert seen(found.gallery) == [(0, 5), (0, 5), (1, 2), (3, 2), (5, 2)]
    with pytest.raises(InputError, match="partition must be from 0 to 9, or None for a random half, not 10"):
        load_grid(tmp_path, partition=10)


def test_grid_without_official_partitions(tmp_path):
    write_grid(tmp_path)
    with pytest.raises(DataError, match=r"features_and_partitions\.mat is missing \(without it, partition=None"):
        load_grid(tmp_path)
    found = load_grid(tmp_path, partition=None, seed=1)
    assert len({sighting.person for sighting in found.train}) == 3
    assert not {sighting.person for sighting in found.train} & {sighting.person for sighting in found.gallery}
    assert load_grid(tmp_path, partition=None, seed=1) == found


def test_damaged_grid(tmp_path):
    with pytest.raises(DataError, match=r"probe is missing.*underground_reid\.zip.*ccloy"):
        load_grid(tmp_path)
    write_grid(tmp_path)
    path = tmp_path / "features_and_partitions.mat"
    path.write_bytes(b"cut")
    with pytest.raises(DataError, match=r"no readable partitions in trainIdxAll \(.*it has 3 bytes"):
        load_grid(tmp_path)
    scipy.io.savemat(path, {"other": [1]})
    with pytest.raises(DataError, match="no readable partitions in trainIdxAll"):
        load_grid(tmp_path)
    write_partitions(path, [[1, 2, 300]] * 10)
    with pytest.raises(DataError, match="names in partition 0 3 people, who are not some of the 6 in probe"):
        load_grid(tmp_path)
    touch(tmp_path / "probe" / "0000_5_30001_1_2_3_4.jpeg")
    with pytest.raises(DataError, match="has images of person 0"):
        load_grid(tmp_path)
