"""Sets of every kind are read alike: one by one, several at once, from files, ahead by other processes."""

import hashlib
import os
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, Subset, TensorDataset, default_collate

from excise import Drift, InputError, Task, Unlearner, fit
from excise.task import objective, reading
from excise.task.fingerprint import sample_digest

COUNT, WIDTH = 64, 4
INPUTS = torch.randn(COUNT, WIDTH, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] > 0).long()
LOSS = nn.CrossEntropyLoss()


class Plain:
    """A set that knows one sample at a time."""

    def __init__(self):
        self.read = Counter()

    def __len__(self):
        return COUNT

    def __getitem__(self, place):
        self.read[place] += 1
        return INPUTS[place], int(LABELS[place])


class AtOnce(Plain):
    """And several."""

    def __getitem__(self, place):
        raise AssertionError("one by one")

    def __getitems__(self, places):
        return [Plain.__getitem__(self, place) for place in places]


class Mapped:
    """Cut from a file that is mapped into memory."""

    def __init__(self, folder):
        INPUTS.numpy().tofile(folder / "inputs.bin")
        self.inputs = np.memmap(folder / "inputs.bin", dtype=np.float32, mode="r", shape=(COUNT, WIDTH))

    def __len__(self):
        return COUNT

    def __getitem__(self, place):
        return torch.from_numpy(self.inputs[place].copy()), int(LABELS[place])

    def __getitems__(self, places):
        return torch.from_numpy(self.inputs[places]), LABELS[places]


def ready(samples):
    return samples if isinstance(samples, tuple) else default_collate(samples)


def task_with(data, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(WIDTH, 2)
    return Task(model, LOSS, data, weight_decay=0.01, **options)


def kinds(folder):
    return {
        "tensors": task_with(TensorDataset(INPUTS, LABELS)),
        "plain": task_with(Plain()),
        "at once": task_with(AtOnce()),
        "part": task_with(Subset(AtOnce(), range(COUNT))),
        "mapped": task_with(Mapped(folder), collate=ready),
    }


def weights_of(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_all_kinds_of_sets_give_the_same_models_and_fingerprints(tmp_path):
    tasks = kinds(tmp_path)
    trained = {name: fit(task, epochs=3) for name, task in tasks.items()}
    for name, task in tasks.items():
        assert torch.equal(weights_of(trained[name].model), weights_of(trained["tensors"].model)), name
        done = Unlearner(task.with_model(trained[name].model), Drift(push=0.0)).forget([3, 9])
        assert done.certificate.kind == "convex"
    prints = {name: task.fingerprint.ordered for name, task in tasks.items()}
    assert len(set(prints.values())) == 1
    for task in tasks.values():
        digest = hashlib.sha256()
        for place in range(COUNT):
            digest.update(sample_digest(task, place))
        assert task.fingerprint.ordered == digest.hexdigest()


def test_a_part_of_a_set_that_is_read_once_and_kept_is_the_same_of_all_kinds(tmp_path):
    for name, task in kinds(tmp_path).items():
        part = task.only([9, 3, 4])
        (inputs, labels), *_ = part.batches(part.all_ids)
        assert torch.equal(inputs, INPUTS[[9, 3, 4]]), name
        assert labels.tolist() == LABELS[[9, 3, 4]].tolist(), name


def test_what_is_kept_is_not_read_again():
    for data in (Plain(), AtOnce()):
        part = task_with(data).only([9, 3])
        data.read.clear()
        assert len(list(part.batches(part.all_ids, 1))) == 2
        assert not data.read


class Counted(TensorDataset):
    """How often it was asked."""

    asked = 0

    def __getitem__(self, place):
        self.asked += 1
        return super().__getitem__(place)


def test_a_part_of_tensors_is_read_at_once():
    whole = Counted(INPUTS, LABELS)
    part = task_with(whole, test_set=Subset(whole, [5, 7, 1, 9]))
    inputs, labels = part.batch(torch.tensor([2, 0, 3]), part.test_set)
    assert whole.asked == 1
    assert torch.equal(inputs, INPUTS[[1, 5, 9]])
    assert torch.equal(labels, LABELS[[1, 5, 9]])


def test_every_sample_is_read_once_in_a_pass():
    for data in (Plain(), AtOnce()):
        task = task_with(data)
        data.read.clear()
        assert sum(len(labels) for _, labels in task.batches(task.all_ids, 10)) == COUNT
        assert set(data.read.values()) == {1}


@pytest.mark.slow
def test_processes_that_read_ahead_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "FEWEST_BATCHES", 2)
    for name, task in kinds(tmp_path).items():
        if name in ("tensors", "plain"):
            ahead = task_with(task.train_set, workers=2)
            pairs = zip(task.batches(task.all_ids, 10), ahead.batches(task.all_ids, 10), strict=True)
            assert all(str(one) == str(other) for one, other in pairs)
    plain = task_with(Plain())
    ahead = task_with(Telling(), workers=1)
    alone, together = (fit(task, epochs=2, batch_size=8) for task in (plain, ahead))
    assert Telling.here == 0  # all was read elsewhere
    assert torch.equal(weights_of(alone.model), weights_of(together.model))
    sums = [objective.gradient(task, alone.model, task.all_ids, batch_size=8) for task in (plain, ahead)]
    assert Telling.here == 0
    assert all(torch.equal(sums[0][name], sums[1][name]) for name in sums[0])
    gone = [Unlearner(task.with_model(alone.model), Drift(push=0.0)).forget([3]).model for task in (plain, ahead)]
    assert torch.equal(*map(weights_of, gone))


class Telling(Plain):
    """Counts what is read in the process of the test."""

    here, home = 0, os.getpid()

    def __getitem__(self, place):
        if os.getpid() == Telling.home:
            Telling.here += 1
        return super().__getitem__(place)


def test_another_batch_in_between_is_read_at_once(monkeypatch):
    monkeypatch.setattr(reading, "FEWEST_BATCHES", 1)
    data = Plain()
    parts = torch.arange(8).split(4)
    with reading.reading_ahead(data, parts, default_collate, workers=1, seed=0):
        assert reading.read_before(data, torch.tensor([1, 2])) is None
        assert torch.equal(reading.read_before(data, parts[0])[0], INPUTS[:4])
        assert reading.read_before(Plain(), parts[1]) is None
        assert reading.read_before(data, parts[0]) is None
        assert torch.equal(reading.read_before(data, parts[1])[0], INPUTS[4:8])
        assert reading.read_before(data, parts[1]) is None
    assert data.read == {}
    assert reading.read_before(data, parts[0]) is None


def test_few_batches_are_not_worth_processes(monkeypatch):
    assert reading.helpful_workers(2, reading.FEWEST_BATCHES) == 2
    assert reading.helpful_workers(2, reading.FEWEST_BATCHES - 1) == 0
    monkeypatch.setattr(reading.multiprocessing.current_process(), "_config", {"daemon": True})
    assert reading.helpful_workers(2, 1000) == 0


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(INPUTS[0], 0)])

    def __len__(self):
        return 1


@pytest.mark.parametrize("data", [Stream(), iter([(INPUTS[0], 0)]), ((INPUTS[0], 0) for _ in range(3))])
def test_a_stream_is_refused_with_a_remedy(data):
    with pytest.raises(InputError, match=r"train_set is a .* must be indexable and have a length.*ShardListDataset"):
        task_with(data)


def test_a_set_that_gives_too_few_samples_at_once_is_named():
    class Short(AtOnce):
        def __getitems__(self, places):
            return [INPUTS[0]] * (len(places) - 1)

    with pytest.raises(InputError, match="gives 2 samples for 3 positions"):
        task_with(Short()).batch([1, 2, 3])


@pytest.mark.parametrize("workers", [-1, 1.5, "two", None])
def test_workers_must_be_a_number(workers):
    with pytest.raises(InputError, match="workers must be a whole number, 0 or more"):
        task_with(Plain(), workers=workers)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="of Linux")  # noqa: PTH110
def test_pages_of_a_mapped_file_are_given_back(tmp_path, monkeypatch):
    big = np.lib.format.open_memmap(tmp_path / "big.npy", "w+", np.uint8, (4096, 16384))  # 64 MiB
    big[:] = 1
    big.flush()
    del big

    class Big:
        def __init__(self):
            self.rows = np.load(tmp_path / "big.npy", mmap_mode="r")

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, place):
            return self.rows[place]

    data = Big()
    monkeypatch.setattr(reading, "LOOKS", 1)
    monkeypatch.setattr(reading, "GIVEN_BACK", 2**23)
    monkeypatch.setattr(reading._Size, "before", reading.resident())
    start, most = reading.resident(), 0
    for ids in torch.arange(len(data)).split(64):
        assert int(reading.read(data, ids, lambda rows: sum(int(row.sum()) for row in rows))) == 64 * 16384
        most = max(most, reading.resident() - start)
    assert most < 2**24
    total = sum(int(data[place].sum()) for place in range(len(data)))  # nothing is lost
    assert total == 4096 * 16384
    assert reading.resident() - start > 2**25  # what is read past the task stays
    reading.give_back(Subset(data, [0]))
    assert reading.resident() - start < 2**24


def test_changes_of_a_private_mapping_are_not_given_back(tmp_path):
    np.zeros(1000, dtype=np.float32).tofile(tmp_path / "private.bin")

    class Changed:
        rows = None

    data = Changed()
    data.rows = np.memmap(tmp_path / "private.bin", dtype=np.float32, mode="c")
    data.rows[5] = 7
    reading.give_back(data)
    assert data.rows[5] == 7


class Broken:
    """A set whose files are gone."""

    def __len__(self):
        return 40

    def __getitem__(self, place):
        raise OSError("no such file")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_set_that_fails_is_named(workers):
    train = TensorDataset(INPUTS, LABELS)
    task = Task(nn.Linear(WIDTH, 2), LOSS, train, Broken(), workers=workers)
    with pytest.raises(InputError, match=r"test_set failed .*no such file"):
        list(task.batches(range(40), 4, task.test_set))
    task = Task(nn.Linear(WIDTH, 2), LOSS, Broken(), train, workers=workers)
    with pytest.raises(InputError, match=r"train_set failed .*no such file"):
        list(task.batches(range(40), 4))
    with pytest.raises(InputError, match=r"train_set failed .*no such file"):
        task.batch(ids=[0, 1])
