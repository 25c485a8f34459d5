"""Sets of Hugging Face's ``datasets`` and of WebDataset, the real ones, from files."""

import io
import json
import pickle
import tarfile

import numpy as np
import pytest
import torch
from torch import nn

from excise import InputError, Step, Task, Unlearner, audit, fit
from excise._support.parcels import packed
from excise.task import reading

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::excise.NotConvergedWarning")]
COUNT, WIDTH = 48, 4
INPUTS = torch.randn(COUNT, WIDTH, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] + 0.5 * INPUTS[:, 1] > 0).long()
UNSEEN = [{"x": row, "labels": int(row[0] > 0)} for row in INPUTS.flip(1) + 0.1]
OWNERS = [f"customer {place // 4}" for place in range(COUNT)]


class Named(nn.Module):
    """Which takes its input by name, as models of Hugging Face's do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, x):
        return self.layer(x)


def task_with(data, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Named()
    return Task(model, nn.CrossEntropyLoss(), data, UNSEEN, weight_decay=0.01, **options)


@pytest.fixture(scope="module")
def datasets():
    import datasets

    datasets.disable_progress_bars()
    yield datasets
    datasets.enable_progress_bars()


@pytest.fixture(scope="module")
def mapped(datasets, tmp_path_factory):
    """Read from a Parquet file into an Arrow file, which is mapped into memory."""
    folder = tmp_path_factory.mktemp("rows")
    columns = {"x": INPUTS.tolist(), "labels": LABELS.tolist()}
    datasets.Dataset.from_dict(columns).to_parquet(folder / "rows.parquet", batch_size=10)
    data = datasets.Dataset.from_parquet(str(folder / "rows.parquet"), cache_dir=str(folder / "cache"))
    assert data.cache_files  # else it is in memory
    return data


def in_torch(rows):
    return {"x": [torch.tensor(row) for row in rows["x"]], "labels": rows["labels"]}


FORMS = {
    "lists": lambda data: data,
    "torch": lambda data: data.with_format("torch"),
    "numpy": lambda data: data.with_format("numpy"),
    "transform": lambda data: data.with_transform(in_torch),
    "label": lambda data: data.rename_column("labels", "label"),
    "chosen twice": lambda data: data.select(reversed(range(COUNT))).select(reversed(range(COUNT))),
}


def of_webdataset(folder):
    """Two tar files with their index."""
    import wids

    shards = []
    for part in torch.arange(COUNT).chunk(2):
        path = folder / f"shard-{len(shards)}.tar"
        with tarfile.open(path, "w") as tar:
            for place in part.tolist():
                row = io.BytesIO()
                np.save(row, INPUTS[place].numpy())
                for ending, content in (("npy", row.getvalue()), ("cls", str(int(LABELS[place])).encode())):
                    member = tarfile.TarInfo(f"{place:04d}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        shards.append({"url": str(path), "nsamples": len(part)})
    index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}
    (folder / "index.json").write_text(json.dumps(index))
    data = wids.ShardListDataset(str(folder / "index.json"), cache_dir=str(folder / "cache"), keep=True)
    return data.add_transform(lambda sample: {"x": sample[".npy"], "labels": sample[".cls"]})


def weights_of(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def worked_on(data):
    """What is made of a set: a training, and a request with its certificate."""
    task = task_with(data)
    task = task.with_model(fit(task, epochs=5).model)
    done = Unlearner(task, Step()).forget([3, 9])
    found = {
        "trained": weights_of(task.model),
        "unlearned": weights_of(done.model),
        "certificate": torch.tensor(done.certificate.gradient_norm),
        "digests": torch.tensor(task.sample_digests),
    }
    return task, done, found


def audited(task, done):
    found = audit(task, done, retrained=1, cache=None).unlearned
    return found.forget.loss, found.retain.loss, found.test.loss, found.summary


def rows():
    """The reference: a list of mappings with tensors."""
    return [{"x": row, "labels": int(label)} for row, label in zip(INPUTS, LABELS, strict=True)]


def test_rows_of_hugging_face_are_as_any_others(mapped):
    *worked, expected = worked_on(rows())
    for form, formed in FORMS.items():
        task, done, found = worked_on(formed(mapped))
        for what, value in expected.items():
            same = form != "label" or what != "digests"  # which are of the names too
            assert torch.equal(found[what], value) == same, (form, what)
        if form == "lists":
            assert audited(task, done) == audited(*worked)


def test_shards_of_webdataset_are_as_any_others(tmp_path):
    expected, found = worked_on(rows())[2], worked_on(of_webdataset(tmp_path))[2]
    for what, value in expected.items():
        assert torch.equal(found[what], value), what


def test_processes_that_read_ahead_change_nothing(mapped, monkeypatch):
    monkeypatch.setattr(reading, "FEWEST_BATCHES", 2)
    alone, ahead = task_with(mapped), task_with(mapped, workers=2)
    pairs = zip(alone.batches(alone.all_ids, 10), ahead.batches(alone.all_ids, 10), strict=True)
    assert all(str(one) == str(other) for one, other in pairs)


def test_a_mapped_file_goes_to_workers_by_its_path(datasets, tmp_path):
    rows = datasets.Dataset.from_dict({"x": [[1.0] * 1000] * 100, "labels": [0] * 100})
    rows.to_parquet(tmp_path / "rows.parquet")
    mapped = datasets.Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path / "cache"))
    sent = packed(mapped, "rows").data
    assert len(packed(rows, "rows").data) > 100_000 > 10_000 > len(sent)
    assert pickle.loads(sent)[99] == rows[99]


def test_a_column_of_the_set_is_its_keys(mapped, datasets):
    owners = datasets.Dataset.from_dict({"owner": OWNERS, "number": list(range(COUNT))})
    for form in (None, "torch", "numpy"):
        columns = owners.with_format(form)
        assert task_with(mapped, keys=columns["owner"]).ids_of(["customer 2"]) == [8, 9, 10, 11]
        assert task_with(mapped, keys=columns["number"]).ids_of([7]) == [7]


def test_what_is_no_set_of_samples_is_refused_with_a_remedy(mapped, datasets):
    with pytest.raises(InputError, match=r"IterableDataset.*must be indexable.*without streaming=True"):
        task_with(mapped.to_iterable_dataset())
    with pytest.raises(InputError, match=r"train_set is a mapping.*train_set\['train'\]"):
        task_with(datasets.DatasetDict({"train": mapped}))
    with pytest.raises(InputError, match="'labels' or 'label', and has 'x'"):
        task_with(mapped.with_format("torch", columns=["x"])).outputs(Named(), {"x": INPUTS})
